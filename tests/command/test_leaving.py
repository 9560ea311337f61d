"""How `ulpf run` and `ulpf attach` end: by signals to themselves, and when the program is killed at a bad moment."""

import ctypes
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
import unittest

from command.test_endings import handlers
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.server import peek


def rounds(pid):
    """The variable of a running tests/programs/spin.c."""
    return int.from_bytes(peek(pid, "spin", "rounds"), "little")


def states(pid):
    """Of all its threads: R, S, T, …"""
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/stat") as stat:
            yield stat.read().rsplit(") ", 1)[1][0]


def places(pid):
    """Where its memory is."""
    with open(f"/proc/{pid}/maps") as maps:
        return [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in maps]


def resident(pid, before):
    """Its mappings outside of `before` that have memory."""
    found, place = [], None
    with open(f"/proc/{pid}/smaps") as smaps:
        for line in smaps:
            first, *rest = line.split()
            if not first.endswith(":"):
                place = tuple(int(end, 16) for end in first.split("-"))
            elif first == "Rss:" and rest[0] != "0" and not any(start <= place[0] and place[1] <= end for start, end in before):
                found.append(place)
    return found


def joined(places):
    """The same, without the borders between what touches."""
    whole = []
    for start, end in places:
        if whole and whole[-1][1] == start:
            start = whole.pop()[0]
        whole.append((start, end))
    return whole


def keeper_of(watcher):
    """The process that ulpf has beside it, as soon as it is there."""
    end = time.monotonic() + 20 * PATIENCE
    while time.monotonic() < end:
        for tid in os.listdir(f"/proc/{watcher.pid}/task"):
            with open(f"/proc/{watcher.pid}/task/{tid}/children") as children:
                for child in children.read().split():
                    with open(f"/proc/{child}/comm") as comm:
                        if comm.read() == "ulpf-keeper\n":
                            return int(child)
    raise AssertionError("there is no keeper")


def kill(pid):
    """It may have ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Tracer:
    """Holds a thread by ptrace(2), as another debugger does."""

    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, tid):
        self.tid = tid

    def request(self, number):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(number, self.tid, None, None) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def __enter__(self):
        self.request(self.SEIZE)
        self.request(self.INTERRUPT)
        os.waitpid(self.tid, self.WALL)

    def __exit__(self, *_):
        self.request(self.DETACH)


def ignored(*numbers):
    """For preexec_fn: as nohup and shells start what runs in the background."""
    def ignore():
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
    return ignore


class Command(unittest.TestCase):
    def start(self, *words, **options):
        """ulpf in a session of its own, with a log; nothing is typed anywhere."""
        log = tempfile.NamedTemporaryFile()
        self.addCleanup(log.close)
        process = subprocess.Popen([ULPF, words[0], "--json", "-l", log.name, *words[1:]], stdin=options.pop("stdin", subprocess.DEVNULL),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **options)
        process.log = log.name
        for clean in process.stdout.close, process.stderr.close, process.wait, process.kill:
            self.addCleanup(clean)
        return process

    def lines(self, process):
        return [json.loads(line) for line in open(process.log).read().splitlines() if line.endswith("}")]

    def wait_for(self, process, kind, count=1):
        self.assertTrue(wait_until(lambda: sum(l["type"] == kind for l in self.lines(process)) >= count, 30), open(process.log).read())

    def program(self, *command):
        program = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        for clean in program.stdout.close, program.wait, program.kill:
            self.addCleanup(clean)
        return program


@ulpf_only
class Leaving(Command):
    def spin(self):
        program = self.program(example("spin"))
        program.stdout.readline()
        return program

    def assertGoesOn(self, program, before):
        self.assertIsNone(program.poll())
        self.assertTrue(wait_until(lambda: handlers(program.pid) == before), (handlers(program.pid), before))
        first = rounds(program.pid)
        self.assertTrue(wait_until(lambda: rounds(program.pid) > first + 10))

    def test_while_it_waits_for_a_function(self):
        """Whatever ends an `attach --at` that has not begun, the program goes on."""
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            with self.subTest(number):
                program = self.spin()
                before = handlers(program.pid)
                watcher = self.start("attach", "--at", "main", "-w", "rounds", str(program.pid))
                self.assertTrue(wait_until(lambda: handlers(program.pid) != before))
                time.sleep(0.5 * PATIENCE)
                watcher.send_signal(number)
                self.assertEqual(watcher.wait(20 * PATIENCE), 0, watcher.stderr.read())
                self.assertGoesOn(program, before)

    def test_again_and_again(self):
        """Remains of an earlier stub in the program do not interfere, and are not its heap."""
        program = self.spin()
        before = handlers(program.pid)
        for _ in range(3):
            watcher = self.start("attach", "-w", "heap:rw", "-w", "rounds", str(program.pid))
            self.wait_for(watcher, "hit", 3)
            watcher.send_signal(signal.SIGINT)
            self.assertEqual(watcher.wait(20 * PATIENCE), 0)
            self.assertGoesOn(program, before)

    def test_in_the_first_moments(self):
        """A signal finds ulpf on its way into the program: it goes all the way in, and out again."""
        program = self.spin()
        before = handlers(program.pid)
        for n in range(40):
            watcher = self.start("attach", "-q", "-w", "rounds", str(program.pid))
            time.sleep(n * 0.001)  # Each time at another moment.
            watcher.send_signal([signal.SIGINT, signal.SIGTERM][n % 2])
            # Before it has begun it may just end.
            self.assertIn(watcher.wait(20 * PATIENCE), [0, -signal.SIGINT, -signal.SIGTERM], watcher.stderr.read())
            self.assertGoesOn(program, before)

    def test_a_program_that_executes_itself(self):
        """Whatever becomes of it while ulpf comes and goes, it goes on."""
        with tempfile.NamedTemporaryFile() as bytes_of:
            program = subprocess.Popen([example("executes")], stdout=bytes_of)
            for clean in program.wait, program.kill:
                self.addCleanup(clean)
            for n in range(30):
                watcher = self.start("attach", "-q", "-w", "heap", str(program.pid))
                time.sleep(0.02 + 0.005 * n)
                watcher.send_signal(signal.SIGINT)
                said = watcher.communicate(timeout=60 * PATIENCE)
                self.assertIn(watcher.returncode, [0, -signal.SIGINT], said)
                self.assertIsNone(program.poll())
                before = os.stat(bytes_of.name).st_size
                self.assertTrue(wait_until(lambda: os.stat(bytes_of.name).st_size > before + 3, 30 * PATIENCE), said)

    def test_threads_that_fault(self):
        """A fault of the program's own that has not been delivered when its thread is stopped is delivered, and nothing stays."""
        program = subprocess.Popen([example("faulting")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        for clean in program.stdout.close, program.wait, program.kill:
            self.addCleanup(clean)
        self.assertEqual(program.stdout.readline(), b"ready\n")
        for n in range(20):
            watcher = self.start("attach", "-q", "-w", "heap", "-w", "counter", str(program.pid))
            self.wait_for(watcher, "watch")
            watcher.send_signal([signal.SIGINT, signal.SIGTERM][n % 2])
            self.assertEqual(watcher.wait(20 * PATIENCE), 0, watcher.stderr.read())
            self.assertNotIn(b"stays", watcher.stderr.read())
        out, _ = program.communicate(timeout=20 * PATIENCE)
        self.assertEqual((program.returncode, out), (0, b"wrong: 0\n"))

    def busy(self):
        """A program with a watch whose threads all run, and what watches it."""
        program = self.program(example("threads16"), "4000000000")
        self.assertTrue(wait_until(lambda: len(list(states(program.pid))) == 17))
        before = joined(places(program.pid))
        watcher = self.start("attach", "-q", "-w", "stores", str(program.pid))
        self.wait_for(watcher, "watch")
        # The program runs, so ulpf does not wait for an answer of its stub.
        self.assertTrue(wait_until(lambda: "R" in states(program.pid)))
        return program, watcher, before

    def test_a_program_that_a_signal_has_stopped(self):
        """It is left at the first request, and is stopped as before."""
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            with self.subTest(number):
                program, watcher, mapped = self.busy()
                os.kill(program.pid, signal.SIGSTOP)
                self.assertTrue(wait_until(lambda: set(states(program.pid)) == {"T"}))
                watcher.send_signal(number)
                self.assertEqual(watcher.wait(20 * PATIENCE), 0)
                self.assertNotIn(b"rest", watcher.stderr.read())
                self.assertTrue(wait_until(lambda: set(states(program.pid)) == {"T"}))
                self.assertEqual(handlers(program.pid)[-1][1] & ~0x180000000, 0)
                self.assertEqual([place for place in places(program.pid) if not any(a <= place[0] and place[1] <= b for a, b in mapped)], [])
                os.kill(program.pid, signal.SIGCONT)
                self.assertTrue(wait_until(lambda: "R" in states(program.pid)))
                self.assertIsNone(program.poll())

    def test_a_program_that_is_about_to_stop(self):
        """SIGSTOP that waits, because the parent of a vfork child cannot stop: ulpf wakes the program and says so."""
        program = self.program(example("waits_for_vfork"))
        self.assertEqual(program.stdout.readline(), b"waits\n")
        os.kill(program.pid, signal.SIGSTOP)
        watcher = self.start("attach", "-w", "heap", str(program.pid))
        self.wait_for(watcher, "hit", 3)
        watcher.send_signal(signal.SIGINT)
        self.assertEqual(watcher.wait(20 * PATIENCE), 0)
        self.assertIn(b"has been woken with SIGCONT", watcher.stderr.read())

    def test_what_does_not_come_to_rest_is_left(self):
        """The second Ctrl-C, more than a second after the first, leaves at once; the program is let go when it can be."""
        program, watcher, _ = self.busy()
        # The first thread waits in a system call for the others, which work.
        worker = max(int(tid) for tid in os.listdir(f"/proc/{program.pid}/task"))
        with Tracer(worker):
            watcher.send_signal(signal.SIGINT)
            # One that comes with it is the same request.
            watcher.send_signal(signal.SIGINT)
            with self.assertRaises(subprocess.TimeoutExpired):
                watcher.wait(2)
            watcher.send_signal(signal.SIGINT)
            self.assertEqual(watcher.wait(20 * PATIENCE), 0)
            # (If the worker was parked for ulpf when it was stopped here, the stub has left without it.)
            self.assertRegex(watcher.stderr.read(), rb"does not come to rest|some memory of ulpf stays in process")
            self.assertIsNone(program.poll())
        self.assertTrue(wait_until(lambda: handlers(program.pid)[-1][1] & ~0x180000000 == 0, 20), handlers(program.pid))
        self.assertIsNone(program.poll())

    def test_alternate_stacks_are_the_programs_again(self):
        """Of each thread, and of a child that is not followed; with and without an earlier attach."""
        said = sorted(f"{who}: its stack" for who in ("first", "second", "third", "main", "child"))
        for watched, leaves in (False, False), (True, True), (True, False):
            with self.subTest(watched=watched, leaves=leaves):
                program = subprocess.Popen([example("alternate")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                           start_new_session=True)
                for clean in program.stdout.close, program.stdin.close, program.wait, program.kill:
                    self.addCleanup(clean)
                self.assertEqual(program.stdout.readline(), "ready\n")
                if watched:
                    before = handlers(program.pid)
                    watcher = self.start("attach", "-w", "count", str(program.pid))
                    self.wait_for(watcher, "hit", 10)
                if leaves:
                    watcher.send_signal(signal.SIGINT)
                    self.assertEqual(watcher.wait(20 * PATIENCE), 0)
                    self.assertTrue(wait_until(lambda: handlers(program.pid) == before))
                out, _ = program.communicate("now\n", timeout=20 * PATIENCE)
                self.assertEqual((sorted(out.split("\n")[:-1]), program.returncode), (said, 0))

    def test_threads_that_wait_for_an_io_uring(self):
        """Rings that were made before, and waits for ever and for long: nothing of ours is in the program afterwards."""
        program = self.program(example("uring_waits"))
        if program.stdout.readline() != b"ready\n":
            self.skipTest("no io_uring here")
        before = places(program.pid)
        for number in signal.SIGTERM, signal.SIGINT:
            with self.subTest(number):
                watcher = self.start("attach", "-w", "heap", str(program.pid))
                self.wait_for(watcher, "hit", 3)
                watcher.send_signal(number)
                _, err = watcher.communicate(timeout=20 * PATIENCE)
                self.assertEqual(watcher.returncode, 0, err)
                self.assertNotIn(b"stays", err)
                more = [place for place in places(program.pid) if not any(a <= place[0] and place[1] <= b for a, b in joined(before))]
                self.assertEqual(more, [], err)
                self.assertIsNone(program.poll())

    def test_nothing_is_left_by_who_is_killed(self):
        """SIGKILL of ulpf: a helper process takes the last of ulpf out of the program."""
        program = self.spin()
        before = handlers(program.pid)
        maps = lambda: joined(places(program.pid))
        mapped = maps()
        for what in "heap:rw", "rounds":
            with self.subTest(what):
                watcher = self.start("attach", "-w", what, "-w", "rounds", str(program.pid))
                self.wait_for(watcher, "hit", 3)
                self.assertNotEqual(maps(), mapped)
                watcher.kill()
                watcher.wait()
                self.assertGoesOn(program, before)
                self.assertTrue(wait_until(lambda: maps() == mapped, 10), set(maps()) - set(mapped))

    def test_nothing_is_left_by_who_is_killed_on_its_way_in(self):
        """SIGKILL of ulpf at any moment of its attach: it goes all the way in, and out again."""
        program = self.spin()
        before = handlers(program.pid)
        maps = lambda: joined(places(program.pid))
        mapped = maps()
        for n in range(60):
            watcher = self.start("attach", "-q", "-w", "heap", str(program.pid))
            time.sleep(0.004 * n)  # Each time at another moment.
            watcher.kill()
            watcher.wait()
            time.sleep(0.05)  # The way in may go on.
            self.assertGoesOn(program, before)
        self.assertTrue(wait_until(lambda: maps() == mapped, 10), set(maps()) - set(mapped))
        time.sleep(1)
        self.assertGoesOn(program, before)
        self.assertEqual(maps(), mapped)

    def test_nothing_is_left_by_who_is_killed_on_its_way_out(self):
        """SIGKILL of ulpf at any moment after it was told to leave: the program has its own registers, and nothing of ours."""
        program = self.spin()
        before = handlers(program.pid)
        maps = lambda: joined(places(program.pid))
        mapped = maps()
        for n in range(40):
            watcher = self.start("attach", "-w", "rounds", str(program.pid))
            self.wait_for(watcher, "hit")
            watcher.send_signal(signal.SIGINT)
            time.sleep(0.001 * n)  # Each time at another moment.
            watcher.kill()
            watcher.wait()
            self.assertGoesOn(program, before)
            self.assertTrue(wait_until(lambda: maps() == mapped, 20), set(maps()) - set(mapped))

    def test_the_keeper_is_killed_on_its_way_in(self):
        """SIGKILL of the process that puts the stub into the program: ulpf takes back what is there, and does it itself. The
        address space of the image may stay, without memory, if that was all that was there."""
        program = self.spin()
        before = handlers(program.pid)
        for n in range(60):
            mapped = joined(places(program.pid))
            watcher = self.start("attach", "-w", "rounds", str(program.pid))
            keeper = keeper_of(watcher)
            time.sleep(0.0005 * n)  # Each time at another moment.
            kill(keeper)
            self.wait_for(watcher, "hit")
            watcher.send_signal(signal.SIGINT)
            self.assertEqual(watcher.wait(20 * PATIENCE), 0, watcher.stderr.read())
            self.assertGoesOn(program, before)
            self.assertTrue(wait_until(lambda: not resident(program.pid, mapped), 10), resident(program.pid, mapped))
    test_the_keeper_is_killed_on_its_way_in.night = "a minute of kills, of which some hundred are needed for what was found last"

    def test_the_keeper_is_killed_on_its_way_out(self):
        """SIGKILL of the process that takes the remains away: ulpf does it."""
        program = self.spin()
        before = handlers(program.pid)
        maps = lambda: joined(places(program.pid))
        mapped = maps()
        for n in range(60):
            watcher = self.start("attach", "-w", "rounds", str(program.pid))
            keeper = keeper_of(watcher)
            self.wait_for(watcher, "hit")
            watcher.send_signal(signal.SIGINT)
            time.sleep(0.001 * n)  # Each time at another moment.
            kill(keeper)
            self.assertEqual(watcher.wait(20 * PATIENCE), 0, watcher.stderr.read())
            self.assertGoesOn(program, before)
            self.assertTrue(wait_until(lambda: maps() == mapped, 10), set(maps()) - set(mapped))

    def test_killed_while_it_follows_children(self):
        """SIGKILL of ulpf at any moment: the program, its children and what they execute are what they would be."""
        script = "n=0; while :; do n=$((n+1)); (exit 7); [ $? = 7 ] || exit 1; /bin/true || exit 2; echo $n; done"
        self.kill_followers(60, ["attach", "-f", "-q", "-w", "heap"], ["/bin/sh", "-c", script])

    def test_killed_while_it_follows_execs(self):
        self.kill_followers(60, ["attach", "-q", "-w", "heap"], [example("executes")])
    test_killed_while_it_follows_execs.night = "a minute of kills, of which some hundred are needed for what was found last"

    def kill_followers(self, times, watch, command):
        with tempfile.NamedTemporaryFile() as said:
            program = subprocess.Popen(command, stdout=said, start_new_session=True)
            self.addCleanup(program.wait)
            self.addCleanup(os.killpg, program.pid, signal.SIGKILL)
            for n in range(times):
                watcher = self.start(*watch, str(program.pid))
                time.sleep(0.02 + 0.005 * n)  # Each time at another moment.
                watcher.kill()
                watcher.wait()
                size = os.stat(said.name).st_size
                grows = lambda: program.poll() is not None or os.stat(said.name).st_size > size + 12
                self.assertTrue(wait_until(grows, 30), f"it hangs after {n} kills")
                self.assertIsNone(program.poll(), f"it has ended after {n} kills")
            with open(said.name) as file:
                lines = file.read().split("\n")[:-1]
            self.assertEqual(lines, [str(n + 1) for n in range(len(lines))])

    def test_ignored_signals_stay_ignored(self):
        """nohup ulpf attach"""
        program = self.spin()
        before = handlers(program.pid)
        watcher = self.start("attach", "-w", "rounds", str(program.pid), preexec_fn=ignored(signal.SIGHUP))
        self.wait_for(watcher, "hit")
        watcher.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        seen = len(self.lines(watcher))
        self.wait_for(watcher, "hit", seen + 100)
        watcher.send_signal(signal.SIGINT)
        self.assertEqual(watcher.wait(20 * PATIENCE), 0)
        self.assertGoesOn(program, before)

    def test_an_interrupt_that_was_not_typed_is_handed_on(self):
        for number in signal.SIGINT, signal.SIGQUIT:
            with self.subTest(number):
                run = self.start("run", "-w", "rounds", "--", example("spin"))
                self.wait_for(run, "hit")
                run.send_signal(number)
                self.assertEqual(run.wait(20 * PATIENCE), -number)


@ulpf_only
class Killed(Command):
    """The program's end is the program's, whatever it and ulpf were about."""

    limit = 180

    def kill_at_any_moment(self, times, *words, **options):
        for n in range(times):
            run = self.start("run", "-q", "--no-summary", *words, **options)
            self.wait_for(run, "start")
            pid = self.lines(run)[0]["pid"]
            time.sleep(0.1 * n / times)  # Each time at another moment.
            os.kill(pid, signal.SIGKILL)
            said = run.communicate(timeout=20 * PATIENCE)[1].decode()
            self.assertEqual(run.returncode, -signal.SIGKILL, said)
            self.assertNotRegex(said, "unexpected|could not|cannot")

    def test_during_exec(self):
        self.kill_at_any_moment(25, "-w", "baton", "--", example("relay"), "1000")
        self.kill_at_any_moment(10, "-w", "baton", "--", example("relay"), "1000", "thread")

    def test_while_libraries_come_and_go(self):
        source = ("#include <dlfcn.h>\nint main(int n, char **names)"
                  "{ for (;;) { void *library = dlopen(names[1], RTLD_NOW); if (library) dlclose(library); } }")
        with tempfile.TemporaryDirectory() as folder:
            binary = os.path.join(folder, "loader")
            subprocess.run(["cc", "-x", "c", "-", "-o", binary, "-ldl"], input=source.encode(), check=True)
            self.kill_at_any_moment(25, "-w", "libplugin.so`plugin_state", "--", binary, example("libplugin.so"))

    def test_before_the_watches_are_set(self):
        program = self.program(example("spin"))
        program.stdout.readline()
        before = handlers(program.pid)
        watcher = self.start("attach", "--at", "main", "-w", "rounds", str(program.pid))
        self.assertTrue(wait_until(lambda: handlers(program.pid) != before))
        time.sleep(0.5 * PATIENCE)
        program.kill()
        self.assertEqual(watcher.wait(20 * PATIENCE), 0)
        self.assertIn(b"ended before the watches could be set", watcher.stderr.read())


@ulpf_only
class Shortage(Command):
    """No descriptor is left to follow a process: the program continues unwatched, and the user sees the reason."""

    def exhaust(self, process, left):
        """`left` descriptors can still be had."""
        looks = []

        def has_settled():
            looks.append({int(fd) for fd in os.listdir(f"/proc/{process.pid}/fd")})
            return len(looks) >= 5 and all(look == looks[-1] for look in looks[-5:])

        # (It may have one open for a moment.)
        self.assertTrue(wait_until(has_settled), looks)
        used = looks[-1]
        limit = sorted(set(range(len(used) + left + 1)) - used)[left]
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, limit))

    def test_exec(self):
        run = self.start("run", "-w", "baton", "--", example("relay"), "1", "wait", stdin=subprocess.PIPE)
        self.addCleanup(run.stdin.close)
        self.wait_for(run, "watch")
        self.exhaust(run, 1)
        out, said = run.communicate(b"\n", timeout=30 * PATIENCE)
        self.assertEqual((run.returncode, out), (11, b"relay: leg 1, baton 12\nrelay: leg 0, baton 11\n"))
        self.assertRegex(said.decode(), r"runs on unwatched: ulpf cannot follow it \(Too many open files")

    def test_fork(self):
        run = self.start("run", "-f", "-w", "libc`environ", "--", "/bin/sh", "-c", "read line; (exit 3); echo $?", stdin=subprocess.PIPE)
        self.addCleanup(run.stdin.close)
        self.wait_for(run, "start")
        pid = self.lines(run)[0]["pid"]
        self.assertTrue(wait_until(lambda: open(f"/proc/{pid}/syscall").read().startswith("0 "), 20))  # it reads
        self.exhaust(run, 0)
        out, said = run.communicate(b"\n", timeout=30 * PATIENCE)
        self.assertEqual((run.returncode, out), (0, b"3\n"), said)
        self.assertRegex(said.decode(), r"child \d+ is not watched: .*Too many open files")
