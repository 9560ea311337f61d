"""exec, fork and vfork under real gdb: catchpoints, follow modes, and what comes after."""

import os
import subprocess
import unittest

from lib.cases import Case
from lib.env import example, ulpf_only
from lib.rsp import Rsp, wait_until


class Exec(Case):
    def test_catch_exec(self):
        """The watch lives on in the same program's next life; a failing exec changes nothing."""
        gdb = self.session("relay", "1")
        gdb("watch baton")
        gdb("catch exec")
        self.assertChange(gdb("continue"), 2, "baton", 0, 11)
        self.assertChange(gdb("continue"), 2, "baton", 11, 12)
        self.assertSays(gdb("continue"), r"is executing new program: .*/relay", r"Catchpoint 3 \(exec'd .*/relay\)")
        self.assertSays(gdb("info inferiors"), r"\* 1 +process \d+ .*relay")
        self.assertChange(gdb("continue"), 2, "baton", 0, 10)
        self.assertChange(gdb("continue"), 2, "baton", 10, 11)
        gdb("delete")
        self.assertExits(gdb, 11, "relay: leg 1, baton 12\nrelay: leg 0, baton 11\n")

    def test_continue_through(self):
        """Without a catchpoint nothing stops at exec, and a breakpoint is there on the other side."""
        gdb = self.session("relay", "3")
        gdb("break ready")
        for leg in (2, 1, 0):
            self.assertSays(gdb("continue"), r"is executing new program", r"Breakpoint 2, ready")
            self.assertEqual(gdb.value("leg"), leg)
        gdb("watch baton")
        self.assertChange(gdb("continue"), 3, "baton", 0, 10)
        self.assertChange(gdb("continue"), 3, "baton", 10, 11)
        gdb("delete")
        self.assertExits(gdb, 11, "relay: leg 0, baton 11\n")

    def test_another_program(self):
        """The symbols are the new program's; its own functions can be stopped in."""
        gdb = self.session("relay", "0", example("five"))
        gdb("tbreak five.c:ready")
        self.assertSays(gdb("continue"), r"is executing new program: .*/five", r"Temporary breakpoint 2, .*ready")
        gdb("up")
        gdb("watch a")
        self.assertChange(gdb("continue"), 3, "a", 10, 11)
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    def test_from_another_thread(self):
        gdb = self.session("relay", "2", "thread")
        gdb("catch exec")
        for leg in (1, 0):
            self.assertSays(gdb("continue"), r"Catchpoint 2 \(exec'd .*/relay\)")
            self.assertSays(gdb("info threads"), r"\* 1 ")
            self.assertNotIn("\n  2 ", gdb("info threads"))
        gdb("watch baton")
        self.assertChange(gdb("continue"), 3, "baton", 0, 10)
        self.assertChange(gdb("continue"), 3, "baton", 10, 11)
        gdb("delete")
        self.assertExits(gdb, 11)

    def test_follow_exec_mode_new(self):
        gdb = self.session("relay", "1", extended=True)
        gdb("set follow-exec-mode new")
        gdb("catch exec")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(exec'd .*/relay\)")
        self.assertSays(gdb("info inferiors"), r"  1 +<null>", r"\* 2 +process \d+ ")
        gdb("watch baton")
        self.assertChange(gdb("continue"), 3, "baton", 0, 10)
        gdb("delete")
        self.assertSays(gdb("continue"), r"exited with code 013")

    def test_attached(self):
        """The same for a process that somebody else has started."""
        program = subprocess.Popen([example("relay"), "300"], stdout=subprocess.DEVNULL)
        self.addCleanup(lambda: (program.kill(), program.wait()))
        server = self.serve(options=("--attach", str(program.pid)), wait=True)
        gdb = self.gdb()
        gdb.server = server
        gdb(f"file {example('relay')}")
        gdb(f"target remote {server.target}")
        gdb("break ready if leg == 280")
        self.assertSays(gdb("continue", 60), r"is executing new program: .*/relay", r"Breakpoint 1, ready")
        gdb("delete")
        gdb("watch baton")
        self.assertSays(gdb("continue"), r"New value = 290")
        self.assertSays(gdb("detach"), r"detached")
        self.assertEqual(server.wait(), 0)
        self.assertEqual(program.wait(60), 11)

    @ulpf_only
    def test_what_cannot_be_followed(self):
        """A 32-bit program runs on without us, to its end; the user is told why."""
        gdb = self.session("relay", "0", example("tiny32"))
        out = gdb("continue")
        self.assertSays(out, r"has executed .*/tiny32 and runs on unwatched: .*32-bit program")
        self.assertSays(out, r"exited")

    @ulpf_only
    @unittest.skipUnless(os.stat("/bin/mount").st_mode & 0o4000, "mount is no set-user-ID program here")
    def test_other_rights(self):
        """Under our eyes the kernel would take its rights away, so a set-user-ID program is left alone."""
        drop = (lambda: os.setuid(65534)) if os.getuid() == 0 else None
        gdb = self.session("relay", "0", "/bin/mount", preexec=drop)
        out = gdb("continue")
        self.assertSays(out, r"has executed \S*mount and runs on unwatched: .*set-user-ID.*as root to follow it",
                        r"exited")

    def test_without_exec_events(self):
        """A debugger that does not know of exec hears nothing of it, only of the end."""
        server = self.serve("relay", "5")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp("qSupported:multiprocess+")
        self.assertRegex(rsp("?"), rb"T05")
        self.assertRegex(rsp("vCont;c"), rb"W0b")

    def test_interrupt_afterwards(self):
        """The server talks to the new stub: Ctrl-C and kill reach the new program."""
        gdb = self.session("relay", "0", "/bin/sleep", extended=True, env={**os.environ, "LC_ALL": "C"})
        gdb("catch exec")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(exec'd .*sleep\)")
        pid = int(gdb.server.program_pid)
        self.assertSays(gdb("kill"), r"killed")
        self.assertTrue(wait_until(lambda: not os.path.exists(f"/proc/{pid}/exe")))
