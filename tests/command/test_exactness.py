"""`ulpf run`: every hit is counted, and the program runs as without us. The other commands."""

import os
import re
import socket
import subprocess
import unittest

from lib.env import ULPF, bare, example, needs, needs_registers, ulpf_only
from lib.run import Json, run, ulpf
from lib.users import ALICE, Place, as_root


@ulpf_only
class Exactness(unittest.TestCase):
    """Every store to the watched byte is counted, none twice, and memory ends as without us."""

    limit = 300

    def stores(self, placement, others):
        """Sixteen threads that store a hundred thousand times each; `others`: false positives."""
        expected = bare(example("threads16"), "100000")
        status, out, said = run(["cells[3]"], "threads16", "100000", options=["-q", "--placement", placement], seconds=250)
        self.assertEqual((status, out), expected)
        self.assertRegex(said, rf"100000 hits on 1 watch, 0 silent stores, {others} false positives")

    def test_more_instructions_than_can_be_remembered(self):
        """An instruction's accesses are known also when the table of sites is full."""
        said = Json(["*watched:1"], "many_stores", options=("--at", "ready", "--placement=guard"))
        self.assertEqual((said.status, said.out), (0, "many_stores: 70\n"))
        self.assertEqual([hit["new"] for hit in said.hits], list(range(1, 71)))

    def test_sixteen_threads_and_a_guard(self):
        self.stores("guard", 1_500_000)

    @needs_registers
    def test_sixteen_threads_and_a_debug_register(self):
        self.stores("debug-register", 0)

    def test_string_instructions(self):
        """Iterations that are made at once, where hits are only counted, count as those that are made one by one."""
        expected = bare(example("string_runs"))
        for watches, hits, silent, beside in (
                (["area"], 32675, 254, 0),
                (["area[100..7000]"], 25129, 245, 4275),
                (["area[4090..4100]", "area[4101..5000]"], 4769, 118, 24635),
                (["area[1]", "area[2000..2003]", "area[9000]"], 14, 0, 14784),
                (["area:rw"], 53559, 254, 0),
                (["from:rw"], 32308, 65, 0),
                (["area:rw", "from:rw"], 85867, 319, 0),
                (["area[100..7000]:rw", "from[700..6000]:rw"], 51384, 266, 7683)):
            for options in ["-q"], ["--log", "/dev/null"], ["-q", "--no-patch"]:
                with self.subTest(watches=watches, options=options):
                    status, out, said = run(watches, "string_runs", options=[*options, "--placement=guard"])
                    self.assertEqual((status, out), expected)
                    self.assertRegex(said, rf"{hits} hits on \d watch(es)?, {silent} silent stores, {beside} false positives")

    def test_string_instructions_that_overlap(self):
        """Source and destination overlap, up and down: as a model says, an element at a time."""
        counted = re.compile(r"area (\d+) (\d+), part (\d+) (\d+)")
        for seed in "1", "2", "3":
            expected = bare(example("string_overlaps"), "model", seed, "500")
            area, part = (counted.search(expected[1]).groups()[of:of + 2] for of in (0, 2))
            for watch, (hits, silent) in ("area", area), ("area[3000..5000]", part):
                for options in ["-q"], ["--log", "/dev/null"], ["-q", "--no-patch"]:
                    with self.subTest(seed=seed, watch=watch, options=options):
                        options = [*options, "--at", "ready", "--placement=guard"]
                        status, out, said = run([watch], "string_overlaps", "model", seed, "500", options=options)
                        self.assertEqual((status, out), expected)
                        self.assertIn(f"{hits} hits on 1 watch, {silent} silent stores", said)
            reads = {}
            for options in ["-q"], ["--log", "/dev/null"], ["-q", "--no-patch"]:
                options = [*options, "--at", "ready", "--placement=guard"]
                said = run(["area[3000..5000]:rw"], "string_overlaps", "model", seed, "500", options=options)[2]
                reads[re.search(r"\d+ hits on 1 watch, \d+ silent stores", said).group()] = options
            self.assertEqual(len(reads), 1, reads)

    def test_overlapping_string_instructions_are_made_a_page_at_a_time(self):
        """A fault serves 65,536 steps, which are pages here, not bytes: 12,000,000 bytes are moved."""
        expected = bare(example("string_overlaps"), "shift", "4000000", "2")
        options = ["-q", "--no-patch"]
        status, out, said = run(["heap"], "string_overlaps", "shift", "4000000", "2", options=options)
        self.assertEqual((status, out), expected)
        self.assertLess(int(re.search(r"(\d+) faults", said)[1]), 100, said)
        status, out, said = ulpf("check", "--", example("string_overlaps"), "shift", "4000000", "2")
        self.assertEqual((status, out), expected)

    def test_whole_heaps(self):
        """Real programs whose heap is counted as a whole: as without patches, at the same addresses (which are stored, too)."""
        table = "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 300) " \
                "insert into t select i, 'row ' || i from n; select count(*), sum(length(b)) from t where b like '%7%';"
        for command in ["sqlite3", ":memory:", table], ["sort", "-r", "/usr/share/common-licenses/GPL-3"]:
            for watch in "heap:rw", "heap":
                counts = set()
                for options in [], ["--no-patch"]:
                    said = subprocess.run([ULPF, "run", "--no-aslr", "-q", *options, "-w", watch, "--", *command], capture_output=True, check=True)
                    counts.add(re.search(rb"(\d{4,}) hits on 1 watch, \d+ silent stores", said.stderr).group())
                self.assertEqual(len(counts), 1, (command, watch, counts))

    def test_stacks_in_a_whole_heap(self):
        """Pushes, calls, returns and stores of all sorts, interrupted anywhere: as without patches, and as many a round."""
        for watch, each in ("heap", 27), ("heap:rw", 36):
            counts = set()
            for options in [], ["--no-patch"]:
                status, out, said = run([watch], "heap_stack", "3000", options=["--no-aslr", "-q", *options], seconds=60)
                self.assertEqual((status, out), (0, "heap_stack: done\n"), said)
                counts.add(re.search(r"(\d{4,}) hits on 1 watch, (\d+) silent stores", said).groups())
            self.assertEqual(len(counts), 1, (watch, counts))
            few = int(counts.pop()[0])
            status, out, said = run([watch], "heap_stack", "103000", options=["--no-aslr", "-q"], seconds=100)
            self.assertEqual((status, out), (0, "heap_stack: done\n"), said)
            self.assertIn(f"{few + 100_000 * each} hits on 1 watch", said)

    def test_ends_of_functions_without_room_for_a_jump(self):
        """They are patched as well; a trap behind one of them is reported at its address."""
        expected = bare(example("short_ends"), "30000")
        status, out, said = run(["heap:rw"], "short_ends", "30000", options=["--no-aslr", "-q"])
        self.assertEqual((status, out), expected)
        self.assertLess(int(re.search(r"(\d+) faults", said)[1]), 2000, said)
        counts = r"(\d+) hits on 1 watch, (\d+) silent stores"
        unpatched = run(["heap:rw"], "short_ends", "30000", options=["--no-aslr", "-q", "--no-patch"], seconds=100)
        self.assertEqual(re.search(counts, said).groups(), re.search(counts, unpatched[2]).groups())

    def test_instructions_of_the_x87_unit_are_patched(self):
        """Each result and each hit is as without patches, and a fault of the unit is reported at the program's instruction."""
        expected = bare(example("long_double"), "trap")
        self.assertIn("8 3, known, there", expected[1])
        for watches in ["sums.sum:rw", "sums.half:rw", "sums.whole"], ["sums:rw"], ["sums.product", "sums.tiny:rw"]:
            counts = set()
            for options in ["-q"], ["--log", "/dev/null"], ["-q", "--no-patch"]:
                status, out, said = run(watches, "long_double", "trap", options=[*options, "--placement=guard"], seconds=60)
                self.assertEqual((status, out), expected)
                counts.add(re.search(r"\d{5,} hits on \d watch(es)?, \d+ silent stores", said).group())
                if "--no-patch" not in options:
                    self.assertLess(int(re.search(r"(\d+) faults", said)[1]), 2000, said)
            self.assertEqual(len(counts), 1, counts)

    def test_registers_and_flags_inside_of_patches(self):
        """A program's handlers find each register as it is without patches, and its flags are what it asks for."""
        for rounds, command in (1_000_000, ["check"]), (300_000, ["run", "-q", "-w", "heap"]), (300_000, ["run", "-q", "-w", "heap:rw"]), (
                30_000, ["run", "-l", "/dev/null", "-w", "heap:rw"]):
            with self.subTest(command):
                expected = bare(example("heap_registers"), str(rounds))
                self.assertIn(f" {rounds} rounds, 0 wrong", expected[1])
                status, out, said = ulpf(*command, "--", example("heap_registers"), str(rounds))
                self.assertEqual((status, out), expected, said)
                self.assertRegex(said, r"struck [1-9]\d* times")

    def test_pages_that_may_only_be_read(self):
        """Their loads are patched; a store there faults at the program's address, also one that begins on a watched page before."""
        expected = bare(example("read_only"))
        self.assertIn("600 faults, 0 elsewhere", expected[1])
        for watch, hits, faults in ("pages:rw", 320002, 1000), ("pages", 46684, 1000), ("pages[4096..8192]:rw", 118408, 1000), (
                "pages[0..4096]:rw", 124102, 20000):
            for options in ["-q"], ["-q", "--no-patch"]:
                with self.subTest(watch, options=options):
                    status, out, said = run([watch], "read_only", options=[*options, "--placement=guard"])
                    self.assertEqual((status, out), expected)
                    self.assertIn(f"{hits} hits on 1 watch", said)
                    if "--no-patch" not in options:
                        self.assertLess(int(re.search(r"(\d+) faults, ", said)[1]), faults, said)

    def test_pages_of_a_checked_heap_that_may_only_be_read(self):
        expected = bare(example("heap_read_only"))
        for command in ["check"], ["run", "-q", "-w", "heap:rw"], ["run", "-q", "--no-patch", "-w", "heap"]:
            with self.subTest(command):
                status, out, said = ulpf(*command, "--", example("heap_read_only"))
                self.assertEqual((status, out), expected, said)

    def test_string_instructions_are_patched(self):
        status, out, said = run(["cell.text[0..24]"], "chain", "string", "1", "100000", options=["-q", "--placement=guard"])
        self.assertEqual((status, out), (0, "chain: done\n"))
        self.assertRegex(said, r"2400000 hits on 1 watch, \d+ silent stores")
        self.assertLess(int(re.search(r"(\d+) faults", said).group(1)), 1000, said)

    def test_signals_strike_meanwhile(self):
        expected = bare(example("barrage"))
        status, out, said = run(["page.in_handler"], "barrage", options=["-q", "--summary"], seconds=100)
        self.assertEqual((status, out), expected)
        hits = int(re.search(r"(\d+) hits on 1 watch", said).group(1))
        self.assertGreaterEqual(hits, 20000, "each handler stores once")

    def test_a_hail_of_signals(self):
        """Hits of patched stores, interrupted anywhere, also by signals that ulpf lives on."""
        expected = bare(example("signal_flood"), "100000")
        for options in ["-q"], ["--log", "/dev/null", "--backtrace", "4"], ["-q", "--no-patch"]:
            with self.subTest(options):
                watches = ["cells[0]", "cells[1]", "cells[2]", "taken", "whole+4096:4096"]
                status, out, said = run(watches, "signal_flood", "100000", options=[*options, "--placement=guard"], seconds=80)
                self.assertEqual((status, out), expected)
                hits = {name: int(n) for n, name in re.findall(r"(?m)^ +(\d+) .* (\S+)$", said)}
                self.assertEqual([hits["cells[0]"], hits["cells[1]"]], [100000, 100000], said)
                self.assertEqual(hits["cells[2]"], hits["taken"], said)
                self.assertGreaterEqual(hits["taken"], 5000)
                self.assertRegex(said, r"(?m)^ +400000 +225002 .* whole\+4096:4096$")
                faults = int(re.search(r"(\d+) faults", said).group(1))
                check = self.assertGreater if "--no-patch" in options else self.assertLess
                check(faults, 150_000, said)

    def test_sixteen_watches(self):
        status, out, said = run(["cells[0..16]", "cells[7]"], "threads16", "20000", options=["-q", "--summary"], seconds=200)
        self.assertEqual((status, out), bare(example("threads16"), "20000"))
        self.assertRegex(said, r"(?m)^ +320000 +0 +0 +w .* cells\[0\.\.16\]$")
        self.assertRegex(said, r"(?m)^ +20000 +0 +0 +w .* cells\[7\]$")


@ulpf_only
class AsBare(unittest.TestCase):
    def test_as_bare(self):
        for program in ("signals",), ("children",), ("sysread",), ("shapes",), ("strings",), ("shared",), ("plugins",), ("locals",), ("heap1000",):
            with self.subTest(program[0]):
                self.assertEqual(run(["environ:rw"], program[0], options=["-q", "--no-summary"])[:2], bare(example(program[0])))

    def test_whole_objects_as_bare(self):
        for program, what in (("children", "big_block"), ("sysread", "buffer:rw"), ("shapes", "lanes:rw"), ("strings", "text:rw"),
                              ("bigarray", "big[0..4096]"), ("signals", "ticks:rw")):
            with self.subTest(program):
                self.assertEqual(run([what], program, options=["-q", "--no-summary"])[:2], bare(example(program)))


@ulpf_only
class Faces(unittest.TestCase):
    def test_gdb(self):
        status, out, said = ulpf("gdb", "-nx", "-batch", "-ex", "break ready", "-ex", "run", "-ex", "watch a", "-ex", "continue", example("five"))
        self.assertRegex(out + said, r"(?s)Breakpoint 1, .*Hardware watchpoint 2: a.*New value = 11")

    def test_doctor(self):
        status, out, _ = ulpf("doctor")
        self.assertEqual(status, 0)
        self.assertRegex(out, r"(?m)^ok +memfd")
        self.assertRegex(out, r"(?m)^ok +a trial +`true` has run with its heap watched$")
        self.assertIn("Watchpoints work on this machine", out)

    def test_report(self):
        status, out, _ = ulpf("doctor", "--report")
        self.assertEqual(status, 0)
        self.assertRegex(out, r"(?s)^ulpf \d\S*\n\n```text\nsystem: \S.*\nkernel's build: #.*\nok +kernel .*```\n$")
        self.assertNotIn(socket.gethostname() + " ", out)

    def of_a_hidden_proc(self, command, *prefix):
        """Output of the doctor where /proc hides other users' processes."""
        # (Where the root is no mount of its own, it cannot be made private.)
        inside = 'mount --make-private /proc; mount -t proc -o hidepid=2 proc /proc; exec "$@"'
        done = subprocess.run(["unshare", "--mount", "--propagation", "unchanged", "--pid", "--fork", "sh", "-ec", inside, "sh", *prefix, command, "doctor"],
                              stdout=subprocess.PIPE, text=True)
        return done.stdout

    @needs("unshare")
    @unittest.skipUnless(os.geteuid() == 0, "only root mounts /proc anew")
    def test_the_doctor_of_a_hidden_proc(self):
        self.assertRegex(self.of_a_hidden_proc(ULPF), r"(?m)^ok +processes +/proc is there$")

    @as_root
    @needs("unshare")
    @needs("setpriv")
    def test_the_doctor_of_a_hidden_proc_for_somebody(self):
        with Place() as place:
            somebody = "setpriv", "--reuid", str(ALICE), "--regid", str(ALICE), "--clear-groups"
            said = self.of_a_hidden_proc(place.add(ULPF), *somebody)
        self.assertRegex(said, r"(?m)^no +processes +those of other users are hidden")

    def test_help(self):
        for command in "server", "run", "attach", "gdb", "doctor":
            status, out, said = ulpf(command, "--help")
            self.assertEqual(status, 0, command)
            self.assertRegex(out + said, r"(?i)usage", command)

    def test_nonsense(self):
        for args, why in ([], "Usage: ulpf"), (["nonsense"], "unrecognized subcommand 'nonsense'"), (["run"], "<PROGRAM>"), \
                (["run", "--nonsense"], "'--nonsense' found"), (["attach"], "<PID>"), (["attach", "zz"], "invalid value 'zz'"):
            status, out, err = ulpf(*args)
            self.assertEqual((status, out), (2, ""), args)
            self.assertIn(why, err)
