"""gem5 with sim-bridge/gem5: real gdb through `ulpf server --backend gem5`, and programs for /dev/ulpf. (What the
proxy does without a gem5 is in test_proxy, the same hits as everywhere else in test_same_hits.)"""

import os
import re
import signal
import subprocess
import tempfile
import unittest

from lib.bridge import GEM5, SIM, needs_gem5, needs_sim, static
from lib.cases import Case
from lib.env import ROOT, ulpf_only
from lib.machine import Machine

FOLDER = os.path.join(ROOT, "sim-bridge", "gem5")


def run(program, *args, options=()):
    """Result of gem5's run.py for a program: (status, standard output, standard error)."""
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([GEM5, "--quiet", "--listener-mode=on", "--dot-config=", "--outdir", out, os.path.join(FOLDER, "run.py"),
                               *options, "--", program, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@ulpf_only
@needs_gem5
class Gem5(Machine, Case):
    night = "gem5 takes an hour to build"

    OPTIONS = ["--backend", "gem5", "--gem5", GEM5 or ""]

    def test_a_hundred_watches(self):
        gdb = self.session(static("alone"), options=self.OPTIONS)
        for n in range(100):
            gdb(f"watch cells[{1200 + n}]")
        self.assertSays(gdb("continue"), r"watchpoint 36: cells\[1234\]", r"Old value = 0", r"New value = 5")
        self.assertSays(gdb("monitor ulpf stats"), r"faults [1-9]", r"(?m)^hits 1$")
        gdb("delete")
        self.assertExits(gdb, 3, "alone: done")

    def test_what_the_kernel_writes(self):
        gdb = self.session(static("alone"), options=self.OPTIONS)
        gdb("watch -location *(char (*)[64])buf")
        self.assertSays(gdb("continue"), r"watchpoint 2: ", r"New value = ")
        gdb("delete")
        self.assertExits(gdb, 3, "alone: done")

    def test_kill(self):
        gdb = self.session(static("alone"), "spin", options=self.OPTIONS)
        self.assertSays(gdb("kill"), r"killed")
        gdb.server.wait()

    def test_gem5_that_dies(self):
        gdb = self.session(static("five"), options=self.OPTIONS)
        children = subprocess.run(["pgrep", "-P", str(gdb.server.process.pid)], stdout=subprocess.PIPE, text=True).stdout.split()
        self.assertEqual(len(children), 1)
        os.kill(int(children[0]), signal.SIGKILL)
        self.assertSays(gdb("continue"), r"Cannot insert breakpoint|has ended|closed")
        gdb("kill")


@needs_gem5
@needs_sim
class Models(unittest.TestCase):
    night = "gem5 takes an hour to build"

    def test_same_hits_and_false_positives(self):
        """As many of each on both models, for real programs and for the thesis's patterns (docs/notes/measurements.md has the table)."""
        done = subprocess.run([os.path.join(ROOT, "benches", "sim", "gem5", "compare.py"), GEM5, SIM], stdout=subprocess.PIPE, text=True,
                              timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 9)

    test_same_hits_and_false_positives.limit = 260


@needs_gem5
class Upcalls(unittest.TestCase):
    """/dev/ulpf on gem5."""

    night = "gem5 takes an hour to build"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = os.path.join(folder.name, "upcalls")
        subprocess.run(["gcc", "-O1", "-w", "-static", "-no-pie", "-I", os.path.join(ROOT, "kernel", "include", "uapi"),
                        "-o", self.program, os.path.join(ROOT, "sim-bridge", "tests", "programs", "upcalls.c")], check=True)

    def test_the_device(self):
        """Aliases, batches, loads, regions of the program's own, write-once: the program checks them."""
        for cpu in ("timing", "atomic"):
            self.assertEqual(run(self.program, options=["--cpu", cpu])[:2], (0, "upcalls: done\n"))

    def test_write_once(self):
        """Thesis, section 3.2.3: which instructions the rules repeat for ever."""
        ends = {}
        for rule in ("bit", "thesis", "corrected"):
            status, out, _ = run(self.program, "once", options=["--write-once", rule])
            self.assertEqual(status, 0)
            ends[rule] = [line.split(",")[0] for line in out.splitlines()]
        self.assertEqual(ends, {"bit": ["modify: does not end", "move: does not end"],
                                "thesis": ["modify: does not end", "move: ends"],
                                "corrected": ["modify: ends", "move: ends"]})

    def test_without_a_handler(self):
        status, _, said = run(self.program, "unhandled")
        self.assertEqual(status, -signal.SIGSEGV)
        self.assertTrue(re.search(r"SIGSEGV: the user's tables forbid the store to 0x\w+ by 0x\w+, and there is no handler", said))

    def test_bad_input(self):
        self.assertIn("no watch", run(static("five"), options=["--watch", "4:x"])[2])
        self.assertIn("There is no program", run("/nowhere/program")[2])
        status, _, said = run("/bin/true")
        self.assertNotEqual(status, 0)
        self.assertIn("dynamically linked", said)
