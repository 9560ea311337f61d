"""exec, fork and vfork under real gdb: catchpoints, follow modes, and what comes after."""

import os
import subprocess
import unittest

from lib.cases import Case
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import Rsp, wait_until
from lib.users import Place, no_other_users


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

    @ulpf_only
    def test_a_watch_at_what_is_code_there(self):
        """The other program runs to its end without it, as with gdbserver, and that is said."""
        gdb = self.session("relay", "0", "/bin/true")
        gdb("watch *(char (*)[32]) &baton")
        self.assertSays(gdb("continue"), r"New value = ")
        for _ in range(3):
            said = gdb("continue")
            if "is executing" in said:
                break
        self.assertSays(said, r"is executing new program: .*/true", r"exited normally")
        if "after the exec" in said:
            self.assertSays(said, r"ulpf: after the exec: cannot set a write watch on 0x\w+ \(32 bytes\): 0x\w+ lies in executable memory")

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
        for _ in range(2):
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
        """The same for a process that ulpf has attached to."""
        program = subprocess.Popen([example("relay"), "20", "wait"], stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL)
        self.addCleanup(lambda: (program.kill(), program.wait()))
        server = self.serve(options=("--attach", str(program.pid)), wait=True)
        gdb = self.gdb()
        gdb.server = server
        gdb(f"file {example('relay')}")
        gdb(f"target remote {server.target}")
        gdb("break ready if leg == 10")
        program.stdin.write(b"go\n")
        program.stdin.close()
        self.assertSays(gdb("continue", 60), r"is executing new program: .*/relay", r"Breakpoint 1, ready")
        gdb("delete")
        gdb("watch baton")
        self.assertSays(gdb("continue"), r"New value = 20")
        self.assertSays(gdb("detach"), r"detached")
        self.assertEqual(server.wait(), 0)
        self.assertEqual(program.wait(60 * PATIENCE), 11)

    @ulpf_only
    def test_what_cannot_be_followed(self):
        """A 32-bit program runs on without ulpf, to its end; the user sees the reason."""
        gdb = self.session("relay", "0", example("tiny32"))
        out = gdb("continue")
        self.assertSays(out, r"has executed .*/tiny32 and runs on unwatched: .*32-bit program")
        self.assertSays(out, r"exited")

    @ulpf_only
    @unittest.skipUnless(os.stat("/bin/mount").st_mode & 0o4000, "mount is no set-user-ID program here")
    def test_other_rights(self):
        """Under our eyes the kernel would take its rights away, so a set-user-ID program is left alone."""
        program, options = "relay", {}
        if os.getuid() == 0:
            if why := no_other_users():
                self.skipTest(why)
            # The build may lie where only root can read it.
            place = Place()
            self.addCleanup(place.__exit__)
            program, options = place.add(example("relay")), {"server": [place.add(ULPF), "server"], "preexec": lambda: os.setuid(65534), "cwd": "/"}
        gdb = self.session(program, "0", "/bin/mount", **options)
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


class Fork(Case):
    OUTPUT = "children: count 3, codes 3 4 5 6 -6"

    def test_catch_fork(self):
        """The parent stays with gdb; the child that it lets go runs as without a debugger."""
        gdb = self.session("children")
        gdb("watch shared_count")
        gdb("catch fork")
        self.assertSays(gdb("continue"), r"Catchpoint 3 \(forked process \d+\)")
        self.assertSays(gdb("info inferiors"), r"\* 1 ")
        self.assertSays(gdb("continue"), r"Detaching after fork", r"New value = 2")
        self.assertSays(gdb("continue"), r"Catchpoint 3 \(forked process \d+\)")
        self.assertSays(gdb("continue"), r"New value = 3")
        gdb("delete")
        self.assertExits(gdb, 0, self.OUTPUT)

    def test_child(self):
        """`set follow-fork-mode child`: the watch counts the child's stores, and the parent goes on alone."""
        gdb = self.session("children")
        gdb("watch shared_count")
        gdb("set follow-fork-mode child")
        self.assertSays(gdb("continue"), r"Attaching after .* fork to child", r"Inferior 1 .* detached",
                        r"atchpoint 2: shared_count", r"New value = 2")
        self.assertSays(gdb("continue"), r"New value = 3")
        gdb("delete")
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited with code 03")

    def test_both(self):
        """`set detach-on-fork off`: two inferiors, each with its memory, watches and threads."""
        gdb = self.session("children", extended=True)
        gdb("set detach-on-fork off")
        gdb("catch fork")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(forked process (\d+)\)")
        self.assertSays(gdb("next"), r"New inferior 2")
        self.assertSays(gdb("info inferiors"), r"\* 1 +process", r"  2 +process")
        self.assertSays(gdb("inferior 2"), r"Switching to inferior 2")
        self.assertSays(gdb("info threads"), r"  1\.1 +Thread", r"\* 2\.1 +Thread")
        gdb("up 3")
        gdb("watch shared_count")
        self.assertSays(gdb("continue"), r"Thread 2\.1 .* hit Hardware watchpoint 3: shared_count", r"New value = 2")
        self.assertEqual(gdb.value("shared_count"), 2)
        self.assertSays(gdb("inferior 1"), r"Switching to inferior 1")
        gdb("up 3")
        self.assertEqual(gdb.value("shared_count"), 1)
        gdb("delete")
        gdb("inferior 2")
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited with code 03")
        gdb("inferior 1")
        gdb("set detach-on-fork on")
        self.assertSays(gdb("continue"), r"Inferior 1 .* exited normally")
        self.assertIn(self.OUTPUT, gdb.server.stdout())

    def test_kill_the_child(self):
        gdb = self.session("children", extended=True)
        gdb("set detach-on-fork off")
        gdb("catch fork")
        gdb("continue")
        self.assertSays(gdb("next"), r"New inferior 2")
        gdb("kill inferiors 2")
        self.assertSays(gdb("info inferiors"), r"  2 +<null>")
        gdb("inferior 1")
        gdb("delete")
        gdb("set detach-on-fork on")
        self.assertSays(gdb("continue"), r"Inferior 1 .* exited normally")
        self.assertIn("children: count 3, codes -9 4 5 6 -6", gdb.server.stdout())

    def test_both_run(self):
        """`set schedule-multiple on`: both run at once, and a stop of one stops the other."""
        gdb = self.session("children", extended=True)
        gdb("set detach-on-fork off")
        gdb("set schedule-multiple on")
        gdb("tbreak _exit")
        self.assertSays(gdb("continue"), r"New inferior 2", r"Thread 2\.1 .* hit (Temporary b|B)reakpoint")
        gdb("set detach-on-fork on")  # the parent's vfork follows close behind the child's end
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited with code 03")
        self.assertSays(gdb("inferior 1"), r"Switching to inferior 1")
        self.assertSays(gdb("continue"), r"Inferior 1 .* exited normally")
        self.assertIn(self.OUTPUT, gdb.server.stdout())

    def test_catch_vfork(self):
        """vfork and posix_spawn: the child shares the stub's memory until its exec, and gdb gets both events."""
        gdb = self.session("children")
        gdb("watch shared_count if shared_count == 3")
        gdb("catch vfork")
        for _ in range(3):
            self.assertSays(gdb("continue"), r"Catchpoint 3 \(vforked process \d+\)")
        self.assertSays(gdb("continue"), r"New value = 3")
        gdb("delete")
        self.assertExits(gdb, 0, self.OUTPUT)

    def test_a_breakpoint_is_not_the_vfork_childs(self):
        """It shares our memory and so our breakpoints, but is not the process that is debugged."""
        gdb = self.session("children")
        gdb("break _exit")
        self.assertSays(gdb("continue"), r"Breakpoint 2[.,].*_exit")
        self.assertEqual(gdb.value("shared_count"), 3)
        self.assertIn(self.OUTPUT, gdb.server.stdout())
        self.assertExits(gdb, 0, self.OUTPUT)

    def test_a_client_that_leaves_the_child_undecided(self):
        """The child does not wait for a client that has gone."""
        server = self.serve("children", options=("--multi",))
        rsp = Rsp(server.target)
        rsp("qSupported:multiprocess+;fork-events+")
        self.assertRegex(rsp("vCont;c"), rb"T05.*fork:p")
        rsp.close()
        server.wait_for(r"reopen the connection")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp("qSupported:multiprocess+")
        rsp("QPassSignals:14")  # SIGCHLD, as the protocol numbers it
        self.assertRegex(rsp("vCont;c"), rb"W00")
        self.assertIn(self.OUTPUT, server.stdout())
