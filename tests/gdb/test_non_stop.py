"""Non-stop mode: one thread stops, the others go on, and watches stay exact."""

import re
import subprocess
import time

from lib.cases import SEEN, Case
from lib.env import PATIENCE, example, ulpf_only
from lib.rsp import wait_until

# The program's threads, as gdb numbers them: main, two that count, one that stores.
MAIN, COUNTER, OTHER, STORER = 1, 2, 3, 4


class NonStopCase(Case):
    limit = 240

    def independent(self, *settings, **options):
        """The program at `ready`: main is stopped there, the others run."""
        server = self.serve("independent", **options)
        gdb = self.gdb()
        gdb.server = server
        for setting in settings or ["set non-stop on"]:
            gdb(setting)
        gdb(f"file {server.command[-1]}")
        self.assertSays(gdb(f"target remote {server.target}"), r"Remote debugging using")
        gdb("tbreak ready")
        self.assertSays(gdb("continue"), r"Temporary breakpoint 1, ")
        gdb("up")
        return gdb

    def later(self, gdb, command, *patterns, seconds=30):
        """gdb's output for a command and afterwards by itself, until the patterns have appeared in this order."""
        said = gdb(command)
        end = time.monotonic() + seconds * PATIENCE
        while not re.search(".*?".join(patterns), said, re.S):
            if time.monotonic() > end:
                self.fail(f"{patterns} are missing from:\n{said}")
            said += gdb("echo")
            time.sleep(0.05)
        return said

    def state(self, gdb):
        """Threads by number; True: it runs."""
        lines = re.findall(r"^[* ] (\d+) +Thread .*$", out := gdb("info threads"), re.M)
        running = re.findall(r"^[* ] (\d+) +Thread .*\(running\)$", out, re.M)
        return {int(number): number in running for number in lines}

    def assertGoesOn(self, gdb, expression):
        before = gdb.value(expression)
        self.assertTrue(wait_until(lambda: gdb.value(expression) > before), f"{expression} stays {before}")

    def assertRests(self, gdb, expression):
        before = gdb.value(expression)
        time.sleep(0.1)  # Nothing happens in it.
        self.assertEqual(gdb.value(expression), before)

    def finish(self, gdb):
        gdb("delete")
        gdb("set var finished = 1")
        self.later(gdb, "continue -a&" if "on." in gdb("show non-stop") else "continue&", r"exited with code 03\]")
        gdb.server.wait()
        self.assertIn("independent: done", gdb.server.stdout())


class NonStop(NonStopCase):
    def test_only_the_thread_at_the_breakpoint_stops(self):
        gdb = self.independent()
        self.assertEqual(self.state(gdb), {MAIN: False, COUNTER: True, OTHER: True, STORER: True})
        said = self.later(gdb, f"break turn thread {COUNTER}", rf'Thread {COUNTER} "independent" hit Breakpoint 2, ')
        self.assertNotIn(f"Thread {OTHER} ", said)
        self.assertEqual(self.state(gdb), {MAIN: False, COUNTER: False, OTHER: True, STORER: True})
        self.assertRests(gdb, "counts[0]")
        self.assertGoesOn(gdb, "counts[1]")
        self.assertGoesOn(gdb, "stored")
        # One round after the other; the breakpoint is stepped over while the other thread passes it, too.
        gdb(f"thread {COUNTER}")
        for _ in range(5):
            before = gdb.value("counts[0]")
            self.assertSays(gdb("continue"), rf"Thread {COUNTER} .* hit Breakpoint 2, ")
            self.assertEqual(gdb.value("counts[0]"), before + 1)
        self.finish(gdb)

    def test_a_watch_stops_the_thread_that_stores(self):
        """It is set while the program runs, and no store is missed or told twice."""
        gdb = self.independent()
        said = self.later(gdb, "watch stored", r"Hardware watchpoint 2: stored\n", rf"Thread {STORER} .* hit Hardware watchpoint 2: stored", r"New value = \d+")
        value = int(re.search(r"New value = (\d+)", said).group(1))
        gdb(f"thread {STORER}")
        for _ in range(20):
            self.assertChange(gdb("continue"), 2, "stored", value, value + 1)
            value += 1
            self.assertEqual(gdb.value("stored"), value)
        self.assertEqual(self.state(gdb), {MAIN: False, COUNTER: True, OTHER: True, STORER: False})
        self.assertGoesOn(gdb, "counts[0]")
        self.assertGoesOn(gdb, "counts[1]")
        self.finish(gdb)

    def test_watches_of_what_runs_come_and_go(self):
        """Each of them is exact, however often the others are set and deleted meanwhile."""
        gdb = self.independent()
        for _ in range(3):
            gdb(f"thread {MAIN}")  # gdb evaluates nothing in a thread that runs
            said = self.later(gdb, "watch counts[0]", rf"Thread {COUNTER} .* hit Hardware watchpoint \d+: ",
                              r"New value = \d+")
            number = gdb.value("$bpnum")
            new = int(re.search(r"New value = (\d+)", said).group(1))
            gdb(f"thread {COUNTER}")
            for _ in range(3):
                self.assertChange(gdb("continue"), number, "counts[0]", new, new + 1)
                new += 1
            gdb(f"delete {number}")
            gdb("continue&")
            self.assertGoesOn(gdb, "counts[0]")
        self.finish(gdb)

    def test_steps_of_one_thread(self):
        gdb = self.independent()
        self.later(gdb, f"break turn thread {COUNTER}", rf"Thread {COUNTER} .* hit Breakpoint 2, ")
        gdb("delete 2")
        gdb(f"thread {COUNTER}")
        before = gdb.value("counts[0]")
        others = gdb.value("counts[1]")
        self.assertSays(gdb("next"), r"bystander\+\+")
        self.assertEqual(gdb.value("counts[0]"), before + 1)
        for _ in range(10):
            gdb("stepi")
        self.assertSays(gdb("info threads"), rf"\* {COUNTER} ")
        for _ in range(6):
            gdb("next")
        self.assertEqual(self.state(gdb), {MAIN: False, COUNTER: False, OTHER: True, STORER: True})
        self.assertTrue(wait_until(lambda: gdb.value("counts[1]") > others))
        self.finish(gdb)

    def test_interrupt_stops_one_thread_and_then_all(self):
        gdb = self.independent()
        gdb(f"thread {OTHER}")
        self.later(gdb, "interrupt", rf'Thread {OTHER} "independent" stopped')
        self.assertEqual(self.state(gdb), {MAIN: False, COUNTER: True, OTHER: False, STORER: True})
        self.assertRests(gdb, "counts[1]")
        self.assertGoesOn(gdb, "counts[0]")
        self.later(gdb, "interrupt -a", r'Thread \d "independent" stopped', r'Thread \d "independent" stopped')
        self.assertEqual(set(self.state(gdb).values()), {False})
        self.assertRests(gdb, "counts[0]")
        said = gdb("thread apply all backtrace")
        self.assertEqual(len(re.findall(r"in (?:counter|storer|main) ", said)), 4, said)
        gdb("continue -a&")
        self.assertGoesOn(gdb, "counts[0]")
        self.assertGoesOn(gdb, "counts[1]")
        self.assertEqual(set(self.state(gdb).values()), {True})
        self.later(gdb, "set var finish_soon = 1", r"exited with code 03\]")

    def test_memory_while_everything_runs(self):
        gdb = self.independent()
        gdb("continue&")
        self.assertEqual(set(self.state(gdb).values()), {True})
        self.assertGoesOn(gdb, "counts[0]")
        gdb("set var bystander = -1000000")
        self.assertLess(gdb.value("bystander"), 0)
        # Rests for writes, thousands of times: no round is lost.
        for n in range(200):
            gdb(f"set var leave[1] = {n % 2 * 0}")
        self.assertGoesOn(gdb, "counts[1]")
        self.later(gdb, "set var finish_soon = 1", r"exited with code 03\]")

    def test_a_crash_stops_the_thread_that_crashes(self):
        gdb = self.independent()
        self.later(gdb, "set var crash = 1", rf'Thread {COUNTER} "independent" received signal SIGSEGV')
        self.assertEqual(self.state(gdb), {MAIN: False, COUNTER: False, OTHER: True, STORER: True})
        self.assertGoesOn(gdb, "counts[1]")
        gdb(f"thread {COUNTER}")
        self.assertSays(gdb("print $_siginfo.si_signo"), r"= 11")
        self.later(gdb, "continue&", r"Program terminated with signal SIGSEGV")

    def test_detach_and_kill_while_it_runs(self):
        gdb = self.independent()
        gdb("set var finish_soon = 30")
        gdb("continue&")
        self.assertSays(gdb("detach"), r"\[Inferior 1 \(.*\) detached\]")
        gdb.server.wait()
        self.assertIn("independent: done", gdb.server.stdout())
        gdb = self.independent()
        gdb("continue&")
        self.assertSays(gdb("kill"), r"\[Inferior 1 \(.*\) killed\]")
        gdb.server.wait()

    def test_a_debugger_that_goes_and_the_next_one(self):
        """All threads are stopped while no debugger is connected, also those that ran."""
        server = self.serve("independent")
        for non_stop in ["on", "off"]:
            gdb = self.gdb()
            gdb.server = server
            gdb(f"set non-stop {non_stop}")
            gdb(f"file {server.command[-1]}")
            gdb(f"target remote {server.target}")
            self.assertEqual(set(self.state(gdb).values()), {False})
            if non_stop == "on":
                gdb("tbreak turn")
                self.later(gdb, "continue -a&", r"Temporary breakpoint \d, ")
            gdb("disconnect")
        self.assertNotIn("rror", server.said)

    @ulpf_only
    def test_catch_fork(self):
        gdb = self.independent()
        gdb("catch fork")
        self.later(gdb, "set var forks = 2", rf"Thread {COUNTER} .* hit Catchpoint 2 \(forked process \d+\)")
        self.assertGoesOn(gdb, "counts[1]")
        gdb(f"thread {COUNTER}")
        self.assertSays(gdb("continue"), r"hit Catchpoint 2 \(forked process \d+\)")
        gdb("continue&")
        self.assertGoesOn(gdb, "counts[0]")
        self.finish(gdb)


class NonStopTarget(NonStopCase):
    """`maint set target-non-stop on`: gdb is in all-stop mode, its target is not."""

    SETTINGS = ["set non-stop off", "maint set target-non-stop on"]

    def test_all_stop(self):
        gdb = self.independent(*self.SETTINGS)
        self.assertEqual(set(self.state(gdb).values()), {False})
        self.assertRests(gdb, "counts[0]")
        gdb("watch stored")
        value = gdb.value("stored")
        for _ in range(10):
            self.assertChange(gdb("continue"), 2, "stored", value, value + 1)
            value += 1
            self.assertEqual(set(self.state(gdb).values()), {False})
        gdb("delete 2")
        gdb("break turn")
        for _ in range(6):
            self.assertSays(gdb("continue"), r"hit Breakpoint 3, ")
            gdb("next")
        self.finish(gdb)

    def test_ctrl_c(self):
        gdb = self.independent(*self.SETTINGS, options=SEEN)
        self.resume(gdb)
        gdb.interrupt()
        self.assertSays(gdb.answer(), r"received signal SIGINT")
        self.assertEqual(set(self.state(gdb).values()), {False})
        self.assertRests(gdb, "counts[0]")
        self.finish(gdb)

    def test_threads_end_while_others_are_stopped_for(self):
        gdb = self.independent(*self.SETTINGS)
        gdb("watch stored")
        for round_ in range(6):
            if round_ == 2:
                gdb("set var leave[0] = 1")
                gdb("set var leave[1] = 1")
            self.assertSays(gdb("continue"), r"Hardware watchpoint 2: stored")
        self.finish(gdb)


class Attached(NonStopCase):
    def test_gdb_hears_of_one_thread_that_is_stopped(self):
        """GDB 13 ends with an internal error when it connects and hears of several."""
        for settings in ["set non-stop on"], NonStopTarget.SETTINGS:
            with self.subTest(settings):
                program = subprocess.Popen([example("spin")], stdout=subprocess.PIPE)
                self.addCleanup(program.stdout.close)
                self.addCleanup(program.wait)
                self.addCleanup(program.kill)
                program.stdout.readline()
                server = self.serve(options=("--attach", str(program.pid)), wait=True)
                gdb = self.gdb()
                for setting in settings:
                    gdb(setting)
                gdb(f"file {example('spin')}")
                self.assertSays(gdb(f"target remote {server.target}"), r"Remote debugging using")
                self.assertEqual(len(self.state(gdb)), 2)
                gdb("tbreak turn")
                self.later(gdb, "continue&", r"Temporary breakpoint 1, turn")
                gdb("kill")


class NothingResumed(NonStopCase):
    def test_the_only_thread_that_runs_ends(self):
        """All others are held: the server reports that no thread runs, and gdb has its prompt back."""
        gdb = self.independent("set non-stop off")
        gdb("set var leave[0] = 1")
        gdb("set scheduler-locking on")
        gdb(f"thread {COUNTER}")
        self.assertSays(gdb("continue"), r"No unwaited-for children left\.")
        gdb(f"thread {MAIN}")
        gdb("set scheduler-locking off")
        gdb("set var finished = 1")
        self.assertExits(gdb, 3, "independent: done")
