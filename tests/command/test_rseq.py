"""Restartable sequences (rseq(2)): what touches guarded pages in one is restarted rightly, and what they count is exact."""

import os
import re
import signal
import subprocess
import tempfile
import unittest
from unittest import mock

from command.test_endings import handlers
from lib.cases import Case
from lib.env import PATIENCE, ULPF, bare, example, needs_registers, ulpf_only
from lib.rsp import wait_until
from lib.run import run

OWN = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
ONE = "counts: {}\nknown: 1\n"


def table(said):
    """Watch: hits, of the summary."""
    return {name: int(n) for n, name in re.findall(r"(?m)^ +(\d+) +\d+ +\d+ .* (\S+)$", said)}


@ulpf_only
class Sequences(Case):
    limit = 120

    def setUp(self):
        super().setUp()
        if "not registered" in bare(example("rseq"), "libc", "adds", "1")[1]:
            raise unittest.SkipTest("this kernel or C library has no restartable sequences")

    def each(self, what, watches, times=200, options=()):
        """With an area of the program's own and with the C library's: as without ulpf. (What was said, for each.)"""
        for way, more in ("own", OWN), ("libc", {}):
            with self.subTest(way, what=what, watches=watches), mock.patch.dict(os.environ, more):
                expected = bare(example("rseq"), way, what, str(times))
                status, out, said = run(watches, "rseq", way, what, str(times), options=["-q", *options], seconds=100)
                self.assertEqual((status, out), expected, said)
                self.assertEqual(status, 0, out)
                yield said

    def test_counters(self):
        """Threads that add to counters of their processor, one on the watched page and one beside it."""
        for said in self.each("adds", ["shared.counts"], options=["--placement=guard"]):
            self.assertEqual(table(said), {"shared.counts": 800})
            self.assertRegex(said, r"800 hits on 1 watch, 0 silent stores, 0 false positives")
        for said in self.each("drafts", ["shared.counts:rw", "shared.drafts"], options=["--placement=guard"]):
            hits = table(said)
            self.assertEqual(hits["shared.counts:rw"] % 2, 0, "each attempt reads, or reads and writes")
            self.assertGreaterEqual(hits["shared.counts:rw"], 1600)
            self.assertGreaterEqual(hits["shared.drafts"], 800)

    def test_lists(self):
        for said in self.each("takes", ["shared:rw", "nodes"]):
            self.assertGreaterEqual(table(said)["shared:rw"], 800, "each attempt reads")

    def test_the_area_on_a_guarded_page(self):
        """The kernel writes to it, and what is watched beside it is seen; so is the area itself."""
        for watches, hits in ((["first.beside", "first.behind"], [1, 1]), (["first.area.rseq_cs", "first.beside"], [200, 1])):
            with self.subTest(watches), mock.patch.dict(os.environ, OWN):
                status, out, said = run(watches, "rseq", "own", "adds", "200", options=["-q", "--placement=guard"], seconds=100)
                self.assertEqual((status, out), (0, ONE.format(800)), said)
                for seen, least in zip(table(said).values(), hits, strict=True):
                    # An attempt that the kernel aborts is begun again.
                    self.assertTrue(seen == least or least > 1 and seen in range(least, 2 * least), said)
        with mock.patch.dict(os.environ, OWN):
            # Of each thread's own: three of the four have theirs there.
            status, out, said = run(["own_area"], "rseq", "own", "adds", "200", options=["-q", "--placement=guard"], seconds=100)
            self.assertEqual((status, out), (0, ONE.format(800)), said)
            self.assertGreaterEqual(int(re.search(r"(\d+) hits on 1 watch", said).group(1)), 600, said)

    @needs_registers
    def test_debug_registers(self):
        """A trap within a sequence aborts it as a fault does."""
        for said in self.each("forks", ["shared.counts[0]", "shared.counts[1]", "shared.drafts[0]"], options=["--placement=debug-register"]):
            self.assertEqual(sum(table(said).values()), 400)

    def test_forks(self):
        for said in self.each("forks", ["shared.counts", "first.beside"]):
            self.assertEqual(table(said), {"shared.counts": 400, "first.beside": 1})
        for said in self.each("forks", ["shared.counts"], options=["--follow"]):
            self.assertEqual(sorted(map(int, re.findall(r"(\d+) hits? on 1 watch", said))), [200, 400])

    def test_a_storm_of_signals(self):
        """Their handlers have sequences, too."""
        for said in self.each("storm", ["shared.counts"]):
            self.assertEqual(table(said), {"shared.counts": 200})

    def test_registering(self):
        for said in self.each("errors", ["shared"]):
            self.assertRegex(said, r"\b0 hits")
        for said in self.each("unregisters", ["shared.counts", "first.beside"]):
            self.assertEqual(table(said), {"shared.counts": 800, "first.beside": 1})

    def test_areas_whose_memory_changes(self):
        """Their memory is given back for the call, and the kernel told where they are."""
        for _ in self.each("protects", ["shared.counts"]):
            pass
        for said in self.each("protects", ["first.beside"]):
            self.assertRegex(said, "cannot guard .* restartable sequences|1 hit on 1 watch")

    def test_programs_without(self):
        """The C library of a program without sequences asks in vain, as of an older kernel."""
        gdb = self.session("late_threads", stop="main")
        self.assertEqual(gdb.value("*(unsigned *)&__rseq_size"), 0)

    def test_breakpoints(self):
        """Within a sequence one stops each attempt, also if its condition is false; on the way there it is stepped over."""
        gdb = self.session("rseq", "libc", "adds", "5")
        inside = re.search(r"(0x\w+) <\+\d+>:\s+add +\$0x1,%rcx", gdb("disassemble add")).group(1)
        gdb("watch shared.drafts[0]")
        gdb(f"break *{inside}")
        for _ in range(3):
            self.assertSays(gdb("continue"), r"Breakpoint 3, ")
            self.assertEqual(gdb.value("$pc"), int(inside, 16))
        gdb("delete 3")
        gdb("break processor if 0")
        self.assertExits(gdb, 0, ONE.format(20))

    def test_each_hit_stops(self):
        gdb = self.session("rseq", "libc", "adds", "2")
        gdb("watch shared.counts[0]")
        gdb("watch shared.counts[1]")
        stops = []
        while "exited" not in (out := gdb("continue")):
            stops.append(tuple(map(int, re.search(r"Old value = (\d+)\nNew value = (\d+)", out).groups())))
        self.assertEqual(len(stops), 8)
        self.assertEqual([new - old for old, new in stops], [1] * 8)

    def test_detached(self):
        """The kernel knows the area by the program's own address then, and the threads count on."""
        for way, more in ("own", OWN), ("libc", {}):
            with self.subTest(way), mock.patch.dict(os.environ, more):
                self.detached(way)

    def detached(self, way):
        program = subprocess.Popen([example("rseq"), way, "waits", "50"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (program.kill(), program.communicate()))
        self.assertEqual(program.stdout.readline(), "waits\n")
        before = handlers(program.pid)
        with tempfile.NamedTemporaryFile() as log:
            words = [ULPF, "attach", "-q", "-l", log.name, "-w", "shared.counts", "-w", "first.beside:64:rw", str(program.pid)]
            watcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(lambda: (watcher.kill(), watcher.communicate()))
            self.assertTrue(wait_until(lambda: handlers(program.pid) != before, 20))
            program.stdin.write("x")
            program.stdin.flush()
            self.assertEqual(program.stdout.readline(), "again\n")
            watcher.send_signal(signal.SIGINT)
            _, said = watcher.communicate(timeout=20 * PATIENCE)
            self.assertEqual(table(said)["shared.counts"], 200, said)
        out, _ = program.communicate("yz", timeout=20 * PATIENCE)
        ends = "unregistered: 0\ncounts: 600\nknown: 0\n" if way == "own" else ONE.format(600)
        self.assertEqual((program.returncode, out), (0, "again\nagain\n" + ends))
