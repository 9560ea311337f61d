"""Several programs on one connection: started, attached to, watched and ended one by one."""

import subprocess

from lib.cases import Case
from lib.env import example
from lib.rsp import wait_until
from lib.server import peek


class SeveralPrograms(Case):
    def connected(self):
        server = self.serve(options=["--multi"])
        gdb = self.gdb()
        gdb.server = server
        gdb(f"target extended-remote {server.target}")
        return gdb

    def add(self, gdb, number, name):
        if number > 1:
            self.assertSays(gdb("add-inferior"), rf"Added inferior {number} on connection 1")
            gdb(f"inferior {number}")
        gdb(f"file {example(name)}")
        gdb(f"set remote exec-file {example(name)}")

    def test_two_are_started(self):
        """The second program leaves the first one as it is, and each has watches of its own."""
        gdb = self.connected()
        self.add(gdb, 1, "five")
        gdb("tbreak main")
        self.assertSays(gdb("run"), r"Temporary breakpoint 1, .*main")
        self.add(gdb, 2, "exitcode")
        gdb("tbreak main")
        self.assertSays(gdb("run"), r"hit Temporary breakpoint 2(\.\d)?, .*main")
        self.assertSays(gdb("info inferiors"), r"1 +process \d+", r"\* 2 +process \d+")
        gdb("inferior 1")
        gdb("watch b")
        self.assertSays(gdb("continue"), r"watchpoint 3: b\n", r"Old value = 20\n")
        gdb("inferior 2")
        self.assertSays(gdb("continue"), r"\[Inferior 2 \(process \d+\) exited")
        gdb("inferior 1")
        gdb("delete 3")
        self.assertSays(gdb("continue"), r"\[Inferior 1 \(process \d+\) exited normally\]")

    def test_all_of_them_run_together(self):
        gdb = self.connected()
        self.add(gdb, 1, "spin")
        gdb("tbreak turn")
        self.assertSays(gdb("run"), r"Temporary breakpoint 1, turn")
        self.add(gdb, 2, "five")
        gdb("tbreak ready")
        self.assertSays(gdb("run"), r"hit Temporary breakpoint 2, ready")
        gdb("set schedule-multiple on")
        gdb("watch d")
        self.assertSays(gdb("continue"), r"Thread 2\.1 .*watchpoint 3: d\n")
        gdb("inferior 1")
        before = gdb.value("rounds")
        gdb("inferior 2")
        gdb("delete 3")
        self.assertSays(gdb("continue"), r"\[Inferior 2 \(process \d+\) exited normally\]")
        gdb("inferior 1")
        self.assertGreaterEqual(gdb.value("rounds"), before)
        gdb("set var leave = 1")
        self.assertSays(gdb("continue"), r"\[Inferior 1 \(process \d+\) exited with code 011\]")

    def test_one_is_attached_to_beside_one_that_was_started(self):
        program = subprocess.Popen([example("spin")], stdout=subprocess.PIPE)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        program.stdout.readline()
        gdb = self.connected()
        self.add(gdb, 1, "five")
        gdb("tbreak ready")
        self.assertSays(gdb("run"), r"Temporary breakpoint 1, .*ready")
        self.add(gdb, 2, "spin")
        gdb(f"attach {program.pid}")
        gdb("watch rounds")
        self.assertSays(gdb("continue"), r"watchpoint 2: rounds\n")
        gdb("kill inferiors 1")
        self.assertSays(gdb("info inferiors"), r"  1 +<null>", r"\* 2 +process \d+")
        self.assertSays(gdb("continue"), r"watchpoint 2: rounds\n")
        gdb("delete")
        self.assertSays(gdb("detach"), r"detached")
        before = peek(program.pid, "spin", "rounds")
        self.assertTrue(wait_until(lambda: peek(program.pid, "spin", "rounds") != before, 20))
        self.assertIsNone(program.poll())
