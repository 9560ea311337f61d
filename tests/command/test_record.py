"""The record of hits: one schema in every front end, writers, lines that are whole, figures that add up."""

import csv
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from lib import schema
from lib.cases import Case
from lib.env import PATIENCE, ULPF, bare, example, find_tool, ulpf_only
from lib.plugin import PluginCase
from lib.rsp import wait_until
from lib.run import Json, run, ulpf

TYPES = ["number", "large", "flag", "half", "third", "colour", "letter", "list", "only", "pointer", "bits.high", "pair"]
# Fields that differ from run to run, and fields that only the command that runs the program knows.
VOLATILE = {"time", "pid", "tid", "watch", "spec", "addr", "pc", "object", "offset", "file"}


def steady(hit):
    return {name: value for name, value in hit.items() if name not in VOLATILE}


def cell(value):
    """A field as a table has it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@ulpf_only
class OneSchema(PluginCase):
    maxDiff = None

    def test_values_are_typed_as_their_variables_are(self):
        hits = {(hit["name"], n): hit for n, hit in enumerate(Json(TYPES, "record", "types").hits)}
        said = {(name, hit["value_type"]): hit["new"] for (name, _), hit in hits.items()}
        self.assertEqual(said, {
            ("number", "int"): -7, ("large", "unsigned long"): 2**64 - 1, ("flag", "_Bool"): True, ("half", "float"): 0.5,
            ("third", "double"): "inf", ("colour", "enum colour"): "BLUE", ("letter", "char"): 114, ("list[2]", "int"): 9,
            ("only", "struct only"): -2.25, ("pointer", "void *"): "0x1234", ("bits.high", "int"): -3, ("pair.a+1", None): "0x1"})
        third = [hit["new"] for (name, _), hit in hits.items() if name == "third"]
        self.assertAlmostEqual(third[0], 1 / 3)

    def test_a_table_has_the_same(self):
        """Each cell of `--log FILE.csv` is the field of `--log FILE.jsonl`, in the same order."""
        with tempfile.TemporaryDirectory() as folder:
            for what in "types", "copies":
                names = [os.path.join(folder, what + end) for end in (".csv", ".jsonl")]
                for name in names:
                    status, _, err = run([*TYPES, "text"], "record", what, options=["--no-aslr", "--log", name, "--backtrace", "2"])
                    self.assertEqual(status, 0, err)
                with open(names[0], newline="") as file:
                    rows = list(csv.DictReader(file))
                with open(names[1]) as file:
                    lines = [json.loads(line) for line in file]
                schema.lines().check("run", lines)
                hits = [line for line in lines if line["type"] == "hit"]
                self.assertEqual(len(rows), len(hits))
                self.assertGreater(len(rows), 5)
                fields = {name for name in schema.lines().definitions["hit"]["properties"] if name != "type"}
                self.assertEqual(set(rows[0]), fields)
                for row, hit in zip(rows, hits):
                    for name in fields - {"time", "pid", "tid", "by", "callers", "call"}:
                        shown = cell(hit.get(name)).encode("unicode_escape").decode() if name in ("old", "new") else cell(hit.get(name))
                        self.assertEqual(row[name], shown, name)
                    self.assertEqual(bool(row["by"]), "by" in hit)
                    self.assertEqual(len(row["callers"].split(" < ")), len(hit["callers"]))

    def test_export(self):
        self.exported(lambda process: None)

    def test_export_while_the_session_answers_late(self):
        """The names are its, and are waited for."""
        def answer_late(process):
            process.send_signal(signal.SIGSTOP)
            threading.Timer(0.5, process.send_signal, [signal.SIGCONT]).start()
        self.exported(answer_late)

    def exported(self, first):
        """Each hit as the session's own log has it, but for the clock."""
        with tempfile.TemporaryDirectory() as folder:
            own, name = os.path.join(folder, "own.jsonl"), os.path.join(folder, "export.jsonl")
            with subprocess.Popen([ULPF, "run", "--log", own, "--no-summary", "-w", "bank.fees", "-w", "audits:rw", example("bank"), "4", "1000"],
                                  stdout=subprocess.DEVNULL) as process:
                self.assertTrue(wait_until(lambda: os.path.exists(own) and '"type":"hit"' in open(own).read(), 30))
                first(process)
                status, _, err = ulpf("export", "-o", name, "-p", str(process.pid))
                self.assertEqual(status, 0, err)
                process.wait(60)
            theirs = [json.loads(line) for line in open(own)]
            lines = [json.loads(line) for line in open(name)]
            schema.lines().check("export", lines)
            hits = [hit for hit in lines if hit["type"] == "hit"]
            self.assertGreater(len(hits), 100)
            strip = lambda hit: {name: value for name, value in hit.items() if name != "time"}
            self.assertEqual([strip(hit) for hit in hits], [strip(hit) for hit in theirs if hit["type"] == "hit"])

    def test_export_of_a_program_that_ends_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "export.jsonl")
            with subprocess.Popen([ULPF, "run", "--held", "--log", os.devnull, "-w", "total", example("filters")], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True) as process:
                os.waitpid(process.pid, os.WUNTRACED)
                with subprocess.Popen([ULPF, "export", "-o", name, "-p", str(process.pid)], stderr=subprocess.DEVNULL) as export:
                    time.sleep(0.5)
                    process.send_signal(signal.SIGCONT)
                    export.wait(30)
                process.wait(30)
            lines = [json.loads(line) for line in open(name)]
            schema.lines().check("export", lines)
            self.assertEqual(sum(line["type"] == "hit" for line in lines), 210)

    def test_gdb(self):
        """`ulpf log save`, and Hit.record in Python."""
        watches = [*TYPES, "text"]
        for what in "types", "copies":
            expected = Json(watches, "record", what).hits
            gdb = self.begin("record", what, gdb_options={"libraries": True})
            for watch in watches:
                gdb(f"ulpf watch {watch} log")
            self.assertSays(gdb("continue"), r"Temporary breakpoint")
            folder = gdb.server.dir.name
            self.assertSays(gdb(f"ulpf log save {folder}/a.jsonl"), rf"^{len(expected)} hits saved in ")
            self.assertSays(gdb(f"ulpf log save {folder}/a.csv"), rf"^{len(expected)} hits saved in ")
            lines = [json.loads(line) for line in open(f"{folder}/a.jsonl")]
            schema.lines().check("saved", lines)
            for ours, theirs in zip(expected, lines):
                if ours["name"].startswith(("text[", "list[", "pair", "only")):
                    # Parts of arrays and structures are still called otherwise in gdb.
                    for name in "name", "old", "new", "value_type":
                        ours.pop(name), theirs.pop(name)
                for hit in ours, theirs:
                    # (Addresses differ without --no-aslr.)
                    hit.pop("call", None)
                    hit.update(by=steady(hit.get("by", {})))
                self.assertEqual(steady(theirs), steady(ours))
            with open(f"{folder}/a.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            self.assertEqual(set(rows[0]), {name for name in schema.lines().definitions["hit"]["properties"] if name != "type"})
            self.assertEqual([row["old_bytes"] for row in rows], [hit["old_bytes"] for hit in expected])
            said = gdb("python import json; print(json.dumps(ulpf.log(1)[0].record))")
            schema.lines().check("completed", [json.loads(said)])
            self.assertSays(gdb(f"ulpf log save {folder}/a.xml"), r"^the hits are not saved in .*/a\.xml: ulpf has no format for "
                            r"a file called \.xml; call it \.jsonl .*, \.csv .*, \.txt or \.log")
            self.assertFalse(os.path.exists(f"{folder}/a.xml"))

    def test_unknown_files_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "hits.xml")
            status, _, err = run(["number"], "record", "types", options=["--log", name])
            self.assertEqual(status, 2)
            self.assertRegex(err, r"ulpf has no format for a file called \.xml; call it \.txt or \.log .*\.jsonl.*\.csv")
            self.assertEqual(os.listdir(folder), [])
            status, _, err = ulpf("export", "-o", name)
            self.assertEqual(status, 2)
            self.assertRegex(err, r"\.jsonl .*\.csv .*\.trace\.json")


@ulpf_only
class Who(unittest.TestCase):
    def test_the_programs_own_call(self):
        said = Json(["text", "list"], "record", "copies")
        self.assertEqual(said.status, 0, said.err)
        for hit in said.hits:
            self.assertNotIn("callers", hit)
            if hit["object"] == "record":
                self.assertNotIn("by", hit)
            else:
                self.assertEqual(hit["by"]["object"], "record", hit)
                self.assertIn(hit["by"]["function"], ("copies", "reads"))
        self.assertGreater(sum("by" in hit for hit in said.hits), 4)
        _, _, err = run(["text", "list"], "record", "copies")
        for call in "strcpy", "memcpy", "snprintf", "memset":
            self.assertRegex(err, rf"bytes?  copies at record\.c:\d+ \({call}\)\n")
        self.assertRegex(err, r"by read\(\d+, 0x\w+, 5\) = 5, called from reads at record\.c:\d+ \(read\)\n")
        self.assertRegex(err, r"1 byte  copies\+0x\w+ at record\.c:\d+\n")

    def test_with_callers(self):
        said = Json(["list"], "record", "copies", options=["-b", "3"])
        hit = next(hit for hit in said.hits if "by" in hit)
        self.assertEqual(hit["by"], hit["callers"][0])
        self.assertEqual([caller["function"] for caller in hit["callers"][:2]], ["copies", "main"])

    def test_a_static_program_has_no_library(self):
        self.assertFalse(any("by" in hit for hit in Json(["a"], "five_static").hits))


@ulpf_only
class Lines(unittest.TestCase):
    def test_none_is_torn(self):
        """Program and log share a pipe, which the program may have set not to wait."""
        for mode in "talk", "talk-now":
            read, write = os.pipe()
            with subprocess.Popen([ULPF, "run", "-w", "number", example("record"), mode, "20000"], stderr=write) as process:
                os.close(write)
                with open(read) as pipe:
                    lines = pipe.read().splitlines()
                self.assertEqual(process.wait(60), 0)
            log = re.compile(r" *\d+\.\d{6} \[\d+\] write  number: \d+ → \d+( \(unchanged\))?  4 bytes  talk\+0x\w+ at record\.c:\d+"
                             r"| *\d+\.\d{6} \[\d+\] write  number: 0 \(unchanged\)  4 bytes  talk\+0x\w+ at record\.c:\d+"
                             r"|ulpf: .*| +hits +silent .*| +\d+ +\d+ +\d+  w .*| +\(\d+ hits lost here.*| +\d+ +by patched .*")
            own = re.compile(r"program line \d+, as long as lines are that programs write to say where they are")
            torn = [line for line in lines if not log.fullmatch(line) and not own.fullmatch(line)]
            self.assertEqual(torn[:3], [], mode)
            self.assertEqual(sum(bool(own.fullmatch(line)) for line in lines), 20000)

    def test_nobody_writes_over_a_log(self):
        """The program's output goes to the same file."""
        with tempfile.NamedTemporaryFile(suffix=".log") as file, open(file.name, "a") as out:
            subprocess.run([ULPF, "run", "-w", "number", "--log", file.name, example("record"), "talk", "500"], stderr=out, check=True)
            lines = file.read().decode().splitlines()
            self.assertEqual(sum("program line" in line for line in lines), 500)
            self.assertEqual(sum(" number: " in line for line in lines), 500)


@ulpf_only
class Figures(unittest.TestCase):
    CASES = [(["cells[3]", "total"], ("threads16", "3000"), []), (["total if $new > 900", "checked"], ("filters",), []),
             ([f"cells[{n}]" for n in range(40)], ("crowd", "16", "1", "500"), []), (["number"], ("record", "types"), []),
             (["cells[3]"], ("threads16", "20000"), ["--summary"])]

    def test_columns_add_up(self):
        for watches, (program, *arguments), options in self.CASES:
            with self.subTest(program=program):
                status, _, err = run(watches, program, *arguments, options=["--keep-going", *options, "--log", os.devnull])
                self.assertEqual(status, 0, err)
                head = re.search(r"ulpf: (\d+) hits? on \d+ watch(?:es)?, (\d+) silent stores?, (?:(\d+) filtered out, )?(\d+) false", err)
                said = dict(zip(("hits", "silent", "filtered", "false"), (int(n or 0) for n in head.groups())))
                lines = err[head.end():].splitlines()[1:]
                ends = {name: lines[0].index(f" {name} ") + 1 + len(name) for name in said if f" {name} " in lines[0]}
                sums = dict.fromkeys(said, 0)
                for line in lines[1:]:
                    if not line.startswith(" "):
                        break
                    for name, end in ends.items():
                        digits = line[:end].split(" ")[-1]
                        sums[name] += int(digits) if digits.isdigit() else 0
                self.assertEqual(sums, said, err)

    def test_hits_are_lines_and_what_is_left_out(self):
        for watches, (program, *arguments), options in self.CASES:
            said = Json(watches, program, *arguments, options=["--keep-going", *options])
            rows = said.summary["watches"]
            total = lambda name: sum(row[name] for row in rows)
            self.assertEqual(total("hits"), len(said.hits) + total("filtered") + said.summary["lost"])
            self.assertEqual(said.summary["false_positives"], total("false_positives") + said.summary["false_positives_patched"])


@ulpf_only
class Crashes(unittest.TestCase):
    def crash(self, watches, *arguments, options=()):
        said = Json(watches, "record", *arguments, options=options)
        [crash] = [line for line in said.lines if line["type"] == "crash"]
        self.assertEqual(crash["pid"], said.lines[0]["pid"])
        return said.status, crash

    def test_a_stale_pointer(self):
        """The report names the place of the crash, its callers, and the store of the stale pointer."""
        for how, callers in ("crash", ["main"]), ("thread", ["thread"]):
            with self.subTest(how):
                status, crash = self.crash(["nodes[..]"], how)
                self.assertEqual(status, -signal.SIGSEGV)
                self.assertEqual((crash["signal"], crash["addr"], crash["function"]), ("SIGSEGV", "0x18", "follow"))
                self.assertEqual([caller["function"] for caller in crash["callers"]], callers)
                self.assertGreater(crash["line"], 10)
                [writer] = crash["writers"]
                self.assertEqual((writer["name"], writer["new"], writer["function"]), ("nodes[0].next", "0x10", "lose"))
        status, _, err = run(["nodes[..]"], "record", "crash")
        self.assertEqual(status, -signal.SIGSEGV)
        self.assertRegex(err, r"\nulpf: killed by SIGSEGV \(segmentation fault\) in follow\+0x\w+ at record\.c:\d+, by an access to 0x18 "
                         r"\(thread \d+, at \d+\.\d+ s\)\n +#1 main\+0x\w+ at record\.c:\d+\n"
                         r"ulpf: 0x18 is 8 bytes behind 0x10, which was stored in `nodes\[\.\.\]` by:\n"
                         r" .* write  nodes\[0\]\.next: 0x0 → 0x10  8 bytes  lose\+0x\w+ at record\.c:\d+\n")

    def test_a_call_of_what_is_no_code(self):
        status, crash = self.crash(["number"], "wild")
        self.assertEqual((status, crash["pc"], crash["addr"]), (-signal.SIGSEGV, "0x10", "0x10"))
        self.assertEqual([caller["function"] for caller in crash["callers"]], ["main"])

    def test_abort(self):
        status, crash = self.crash(["number"], "abort")
        self.assertEqual((status, crash["signal"], crash["by"]["function"]), (-signal.SIGABRT, "SIGABRT", "main"))
        self.assertNotIn("addr", crash)
        _, _, err = run(["number"], "record", "abort")
        self.assertRegex(err, r"ulpf: killed by SIGABRT \(aborted\) in main at record\.c:\d+ \(abort\) \(thread \d+, ")

    def test_arithmetic(self):
        status, crash = self.crash(["number"], "divide")
        self.assertEqual((status, crash["signal"], crash["function"]), (-signal.SIGFPE, "SIGFPE", "main"))

    def test_who_handles_a_signal_does_not_crash(self):
        for program in "signals", "barrage":
            said = Json(["nothing_at_all"], program, options=["--keep-going"])
            self.assertEqual([line for line in said.lines if line["type"] == "crash"], [], program)
            self.assertEqual((said.status, said.out), bare(example(program)), program)

    def test_killed_by_another(self):
        with subprocess.Popen([ULPF, "run", "-w", "number", "--", "/bin/sleep", "60"], stderr=subprocess.PIPE, text=True) as process:
            process.kill()
            self.assertNotIn("killed by", process.communicate()[1])


@ulpf_only
class StalledReader(Case):
    """The log goes to a pipe that nobody reads, as to a pager that waits or a terminal that is held."""

    limit = 120
    # Each round is a fork, an exec and thousands of hits.
    PROGRAM = ["perl", "-e", "$|=1; for my $i (1..20) { $h{$_%100}.='x' for 1..2000; print `echo $i`; }"]
    EXPECTED = "".join(f"{n}\n" for n in range(1, 21)).encode()

    def finishes(self, *words):
        perl = find_tool("perl")
        if not perl:
            self.skipTest("no perl")
        program = [perl, *self.PROGRAM[1:]]
        with subprocess.Popen([ULPF, *words, "-w", "heap", "--follow", "--", *program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as run:
            self.addCleanup(run.kill)
            self.assertEqual(run.stdout.read(len(self.EXPECTED)), self.EXPECTED)
            self.assertIsNone(run.poll())
            said = run.stderr.read()
            self.assertEqual(run.wait(60 * PATIENCE), 0, said[-2000:])
            return said.decode()

    def test_the_program_goes_on(self):
        said = self.finishes("run")
        self.assertRegex(said, r"hits missing from the log")
        self.assertGreater(said.count("update heap["), 1000)

    def test_left(self):
        """Ctrl-C lets the program go, whoever reads."""
        perl = find_tool("perl")
        if not perl:
            self.skipTest("no perl")
        # (Twenty rounds may be over before the watcher is there.)
        rounds = 400
        program = [word.replace("1..20)", f"1..{rounds})") for word in self.PROGRAM[1:]]
        with subprocess.Popen([perl, *program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as program:
            self.addCleanup(program.kill)
            with subprocess.Popen([ULPF, "attach", "-w", "heap", "--follow", str(program.pid)], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE) as watcher:
                self.addCleanup(watcher.kill)
                self.assertTrue(select.select([watcher.stderr], [], [], 60 * PATIENCE)[0])
                watcher.send_signal(signal.SIGINT)
                self.assertEqual(program.stdout.read(), "".join(f"{n}\n" for n in range(1, rounds + 1)).encode())
                self.assertEqual(program.wait(60 * PATIENCE), 0)
                watcher.stderr.read()
                self.assertEqual(watcher.wait(60 * PATIENCE), 0)


@ulpf_only
class Lossless(unittest.TestCase):
    def test_none_is_lost(self):
        """Of a log that is written much slower than it fills; in the order of each thread."""
        status, _, err = run(["number"], "record", "count", "1500000", options=["--log-policy", "lossless", "--log", "/dev/stdout"], seconds=80)
        self.assertEqual(status, 0)
        self.assertRegex(err, r"^ulpf: 1500000 hits on 1 watch")
        self.assertNotIn("missing", err)
        said = Json(["cells[0..16]"], "threads16", "3000", options=["--log-policy", "lossless"])
        self.assertEqual((said.status, len(said.hits), said.summary["lost"]), (0, 48000, 0))
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "log.txt")
            run(["number"], "record", "count", "700000", options=["--log-policy", "lossless", "--log", name])
            with open(name) as file:
                stored = [int(re.search(r"number: (?:-?\d+ → )?(\d+)", line).group(1)) for line in file]
            self.assertEqual(stored, list(range(700000)))

    def test_the_chain_holds_while_threads_wait_for_room(self):
        """They store faster than the log is read. Each old value is the new value of the hit before, and none is `unchained`."""
        with tempfile.NamedTemporaryFile(suffix=".json") as log:
            status, *_ = run(["shared"], "rivals", "atomic", "400000", options=["--json", "--log", log.name, "--log-policy", "lossless"], seconds=80)
            self.assertEqual(status, 0)
            last, count = b"0", 0
            for line in log:
                if line.startswith(b'{"type":"hit"'):
                    self.assertNotIn(b'"unchained"', line)
                    old, new = re.search(rb'"old":(\d+),.*"new":(\d+)', line).groups()
                    self.assertEqual(old, last, line)
                    last, count = new, count + 1
        self.assertEqual((last, count), (b"1200000", 1_200_000))
    test_the_chain_holds_while_threads_wait_for_room.costs = "fewer hits than these do not fill the rings"

    def test_a_reader_that_does_not_read(self):
        """ulpf's output is not read: the program waits, and continues when ulpf has died; killed, ulpf takes the program along."""
        for how in signal.SIGSTOP, signal.SIGKILL:
            with subprocess.Popen([ULPF, "run", "--log-policy", "lossless", "-w", "number", "--", example("record"), "count", "2000000000"],
                                  stderr=subprocess.PIPE) as process:
                program = None
                try:
                    time.sleep(3)
                    [program] = subprocess.run(["pgrep", "-P", str(process.pid)], stdout=subprocess.PIPE, text=True).stdout.split()
                    before = self.time(program)
                    time.sleep(1)
                    self.assertLess(self.time(program) - before, 30)
                    before = self.time(program)
                    process.send_signal(how)
                    for _ in range(150):
                        time.sleep(0.1)
                        if self.time(program) - before > 40:
                            break
                    else:
                        self.fail("the program still waits")
                finally:
                    if program:
                        subprocess.run(["kill", "-KILL", program], check=False, stderr=subprocess.DEVNULL)
                    process.kill()

    def time(self, pid):
        """Of its threads, in hundredths of a second; endless, once it has ended."""
        try:
            with open(f"/proc/{pid}/stat") as file:
                words = file.read().rpartition(")")[2].split()
        except OSError:
            return float("inf")
        return float("inf") if words[0] == "Z" else int(words[11]) + int(words[12])
