"""Signals: as the program gets them, and as gdb sees them."""

import os
import signal
import subprocess
import time

from lib.cases import SEEN, Case, line
from lib.env import bare, example
from lib.rsp import wait_until
from lib.server import peek, sleeps

EXPECTED = bare(example("signals"))[1] if os.path.exists(example("signals")) else ""


def caught(pid, number):
    """Has the kernel a handler for it? (Under ulpf one of ours, if the debugger wants to hear of the signal.)"""
    with open(f"/proc/{pid}/status") as status:
        mask = next(l for l in status if l.startswith("SigCgt")).split()[1]
    return int(mask, 16) >> (number - 1) & 1


class Delivery(Case):
    def test_untouched(self):
        gdb = self.session("signals", stop=None)
        gdb("handle SIGUSR1 SIGSEGV SIGALRM nostop noprint pass")
        self.assertExits(gdb, 0, EXPECTED)

    def test_stops_and_passes_on(self):
        gdb = self.session("signals")
        gdb("handle SIGALRM nostop noprint pass")
        self.assertSays(gdb("continue"), r"received signal SIGUSR1")
        gdb("handle SIGUSR1 nostop print pass")
        out = gdb("continue")
        self.assertSays(out, r"received signal SIGUSR1", r"received signal SIGSEGV")
        self.assertEqual(gdb.value("$_siginfo._sifields._sigfault.si_addr"), 0x10)
        self.assertExits(gdb, 0, EXPECTED)

    def test_siginfo(self):
        gdb = self.session("signals")
        self.assertSays(gdb("continue"), r"SIGUSR1")
        self.assertEqual(gdb.value("$_siginfo.si_signo"), signal.SIGUSR1)
        self.assertEqual(gdb.value("$_siginfo._sifields._rt.si_sigval.sival_int"), 42)

    def test_discarded(self):
        gdb = self.session("signals")
        gdb("handle SIGALRM nostop noprint pass")
        gdb("handle SIGSEGV nostop noprint pass")
        gdb("handle SIGUSR1 stop nopass")
        self.assertSays(gdb("continue"), r"SIGUSR1")
        gdb("tbreak sigsuspend")
        gdb("continue")
        self.assertEqual(gdb.value("user_signals"), 0)
        gdb("kill")

    def test_signal_command(self):
        gdb = self.session("signals")
        gdb("handle SIGALRM SIGSEGV nostop noprint pass")
        gdb("handle SIGUSR1 stop pass")
        gdb("continue")
        gdb("break on_user")
        self.assertSays(gdb("signal SIGUSR1"), r"Breakpoint 2, on_user")
        self.assertSays(gdb("backtrace"), r"on_user", r"<signal handler called>", r"main \(\)")
        self.assertSays(gdb("finish"), r"signal handler called")
        gdb("delete")
        gdb("handle SIGUSR1 nostop noprint pass")
        self.assertExits(gdb, 0, "signals:")

    def test_barrage(self):
        """Thousands of signals strike while watched pages are worked on: none is lost, none overtakes."""
        gdb = self.session("barrage", stop="main")
        gdb("handle SIGALRM nostop noprint pass")
        gdb("handle SIG34 nostop noprint pass")
        gdb("rwatch -l page.untouched")
        self.assertExits(gdb, 0, bare(example("barrage"))[1])

    def test_a_fault_while_a_watched_page_is_written(self):
        """The store begins on the watched page; what the program's handler hears of is the missing one."""
        gdb = self.session("page_edge", stop="ready")
        gdb("handle SIGSEGV nostop noprint pass")
        gdb("watch -l *page")
        self.assertExits(gdb, 0, bare(example("page_edge"))[1])

    def test_step_into_a_handler(self):
        gdb = self.session("signals")
        gdb("handle SIGUSR1 stop print pass")
        gdb("continue")
        self.assertSays(gdb("step"), r"on_user")
        gdb("kill")

    def test_watch_in_a_handler(self):
        gdb = self.session("signals")
        gdb("handle SIGUSR1 SIGSEGV SIGALRM nostop noprint pass")
        gdb("watch ticks")
        for i in range(3):
            out = gdb("continue")
            self.assertChange(out, 2, "ticks", i, i + 1)
            self.assertSays(out, r"on_alarm")
        gdb("delete")
        self.assertExits(gdb, 0, EXPECTED)

    def test_watch_on_the_alternate_stack(self):
        gdb = self.session("signals")
        gdb("handle SIGUSR1 SIGSEGV SIGALRM nostop noprint pass")
        gdb("watch -l *(long*)(alternate + 100)")
        gdb("watch on_alternate")
        self.assertSays(gdb("continue"), r"on_alternate", r"New value = 1")
        gdb("delete")
        self.assertExits(gdb, 0, EXPECTED)

    def test_wanted_while_the_program_sleeps(self):
        """It rests in its system call when gdb says that it wants to hear of the signal."""
        gdb = self.session("/bin/sleep", "60", stop=None)
        gdb("handle SIGUSR1 nostop noprint pass")
        gdb.send("continue")
        self.assertTrue(wait_until(lambda: sleeps(gdb.server.program_pid)))
        gdb.interrupt()
        self.assertSays(gdb.answer(), r"SIGINT")
        gdb("handle SIGUSR1 stop print nopass")
        gdb.send("continue")
        self.assertTrue(wait_until(lambda: caught(gdb.server.program_pid, signal.SIGUSR1)))
        os.kill(gdb.server.program_pid, signal.SIGUSR1)
        self.assertSays(gdb.answer(), r"received signal SIGUSR1")
        gdb("kill")

    def test_ignored_by_the_program(self):
        """A debugger hears of it, as a tracer does; the program does not, and waits as long as it would have."""
        gdb = self.session("ignored")
        pid = gdb.server.program_pid
        for wait, call in (1, "nanosleep"), (2, "poll"):
            gdb(f"tbreak {call}")
            self.assertSays(gdb("continue"), r"Temporary breakpoint \d, ")
            gdb.send("continue")
            time.sleep(0.2)
            os.kill(pid, signal.SIGUSR1)
            self.assertSays(gdb.answer(), r"received signal SIGUSR1")
            self.assertEqual(gdb.value("waits"), wait)
        self.assertSays(gdb("continue"), r"received signal SIGPIPE")
        self.assertSays(gdb("continue"), r"received signal SIGUSR1")
        self.assertSays(gdb("continue"), r"is executing new program", r"received signal SIGUSR1")
        self.assertExits(gdb, 0, "nanosleep 0 1\npoll 0 1\nwrite -1 1\nwait -1 1\nafter: 1 1\n")

    def test_ignored_by_default(self):
        gdb = self.session("/bin/sleep", "60", stop=None)
        gdb("handle SIGWINCH stop print")
        gdb.send("continue")
        self.assertTrue(wait_until(lambda: sleeps(gdb.server.program_pid)))
        self.assertTrue(wait_until(lambda: caught(gdb.server.program_pid, signal.SIGWINCH)))
        os.kill(gdb.server.program_pid, signal.SIGWINCH)
        self.assertSays(gdb.answer(), r"received signal SIGWINCH")
        gdb("kill")

    def test_breakpoint_in_a_handler(self):
        gdb = self.session("signals")
        gdb("handle SIGUSR1 SIGSEGV SIGALRM nostop noprint pass")
        gdb("break on_alarm if ticks == 5")
        self.assertSays(gdb("continue"), r"Breakpoint 2, on_alarm")
        self.assertEqual(gdb.value("ticks"), 5)
        gdb("delete")
        self.assertExits(gdb, 0, EXPECTED)


class Interrupts(Case):
    def interrupted(self):
        gdb = self.session("spin", stop=None, options=SEEN)
        self.resume(gdb)
        self.assertTrue(wait_until(lambda: "spin: up" in gdb.server.stdout()))
        pid = gdb.server.program_pid
        self.assertTrue(wait_until(lambda: any(peek(pid, "spin", "rounds")) and any(peek(pid, "spin", "other_rounds"))))
        gdb.interrupt()
        self.assertSays(gdb.answer(), r"received signal SIGINT")
        return gdb

    def test_ctrl_c(self):
        gdb = self.interrupted()
        self.assertEqual(gdb("info threads").count("Thread "), 2)
        self.assertSays(gdb("thread apply all backtrace"), r"other \(", r"main \(\)")
        gdb("set var leave = 1")
        self.assertExits(gdb, 9, "spin: done")

    def test_ctrl_c_again_and_again(self):
        gdb = self.interrupted()
        for _ in range(5):
            self.resume(gdb)
            gdb.interrupt()
            self.assertSays(gdb.answer(), r"received signal SIGINT")
        gdb("kill")

    def test_watch_after_ctrl_c(self):
        gdb = self.interrupted()
        gdb("watch rounds")
        self.assertSays(gdb("continue"), r"watchpoint 1: rounds", r"turn \(\)")
        gdb("delete")
        gdb("set var leave = 1")
        self.assertExits(gdb, 9, "spin: done")

    def test_sleep_is_not_cut_short(self):
        """A stop in nanosleep is no EINTR for the program: what was left is slept."""
        gdb = self.session("/bin/sleep", "6", stop=None, options=SEEN)
        # As long, but for what it takes to begin: it ends before ours does.
        alone = subprocess.Popen(["/bin/sleep", "5.9"])
        self.addCleanup(alone.wait)
        self.addCleanup(alone.kill)
        for _ in range(3):
            self.resume(gdb)
            self.assertTrue(wait_until(lambda: sleeps(gdb.server.program_pid)))
            time.sleep(0.3)  # some of the six seconds
            gdb.interrupt()
            self.assertSays(gdb.answer(), r"SIGINT")
        self.assertExits(gdb)
        self.assertEqual(alone.poll(), 0, "it has slept less")
    test_sleep_is_not_cut_short.idle = True


class Deaths(Case):
    def dies(self, how, name, fatal=True):
        gdb = self.session("crash", how, stop=None)
        out = gdb("continue")
        if fatal:
            self.assertSays(out, rf"received signal {name}")
            out = gdb("continue")
        self.assertSays(out, rf"Program terminated with signal {name}")
        self.assertEqual(gdb.server.wait(), 0)
        number = int(getattr(signal, name))
        self.assertRegex(gdb.server.said, rf"Child terminated with signal = 0x[0-9a-f]+ \({name}\)", f"signal {number}")

    def test_segv(self):
        self.dies("segv", "SIGSEGV")

    def test_wild_pointer(self):
        self.dies("wild", "SIGSEGV")

    def test_jump_to_nowhere(self):
        self.dies("jump", "SIGSEGV")

    def test_store_into_text(self):
        self.dies("text", "SIGSEGV")

    def test_abort(self):
        self.dies("abort", "SIGABRT")

    def test_fpe(self):
        self.dies("fpe", "SIGFPE")

    def test_ill(self):
        self.dies("ill", "SIGILL")

    def test_trap(self):
        gdb = self.session("crash", "trap", stop=None)
        self.assertSays(gdb("continue"), r"received signal SIGTRAP")
        # gdb keeps SIGTRAP to itself unless told otherwise.
        self.assertSays(gdb("signal SIGTRAP"), r"Program terminated with signal SIGTRAP")
        self.assertEqual(gdb.server.wait(), 0)

    def test_term(self):
        self.dies("term", "SIGTERM")

    def test_kill(self):
        self.dies("kill", "SIGKILL", fatal=False)

    def test_in_a_thread(self):
        self.dies("thread", "SIGSEGV")

    def test_fault_address_and_pc(self):
        gdb = self.session("crash", "segv")
        gdb("watch watched")
        self.assertChange(gdb("continue"), 2, "watched", 1, 2)
        out = gdb("continue")
        self.assertSays(out, r"SIGSEGV", rf"crash.c:{line('crash.c', '*(volatile int *)8')}\b")
        self.assertEqual(gdb.value("$_siginfo._sifields._sigfault.si_addr"), 8)
        self.assertEqual(gdb.value("$_siginfo.si_code"), 1)

    def test_killed_from_outside(self):
        gdb = self.session("spin", stop="turn", options=SEEN)
        gdb("watch leave")
        self.resume(gdb)
        os.kill(gdb.server.program_pid, signal.SIGKILL)
        self.assertSays(gdb.answer(), r"Program terminated with signal SIGKILL")
        gdb.server.wait()
