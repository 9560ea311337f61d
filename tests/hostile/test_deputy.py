"""The watched program belongs to another user, who impersonates its stub. Whatever it sends, root's ulpf touches no
other process, stays small, and ends on request."""

import os
import re
import signal
import subprocess
import threading
import time
import unittest

from lib.env import LONG, PATIENCE, ULPF, needs, ulpf_only
from lib.rsp import Rsp, wait_until
from lib.server import Server, sleeps
from lib.together import failures
from lib.users import ALICE, BOB, Place, as_root, becomes

# A flood of hundreds of megabytes a second would show; an idle ulpf has a tenth of this.
MOST_MEMORY = 400 << 20
# Seconds until it must have ended after the request.
PATIENT = 25


class Victim:
    """A process under observation: it must never be traced, changed or signalled."""

    def __init__(self, **user):
        self.process = subprocess.Popen(["sleep", "600"], **user)
        wait_until(lambda: sleeps(self.pid))
        self._before = self._look()
        self.tracers = set()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def pid(self):
        return self.process.pid

    def _read(self, what):
        with open(f"/proc/{self.pid}/{what}") as file:
            return file.read()

    def _look(self):
        """State that would change if code were injected into it."""
        maps = [line.split()[0:2] + line.split()[5:] for line in self._read("maps").splitlines()]
        status = re.findall(r"(?m)^(?:Name|Threads|SigCgt|SigBlk|SigPnd|ShdPnd):.*", self._read("status"))
        return maps, status, os.listdir(f"/proc/{self.pid}/fd")

    def _watch(self):
        while not self._over.wait(0.002):
            tracer = re.search(r"TracerPid:\s+(\d+)", self._read("status"))
            if tracer and tracer.group(1) != "0":
                self.tracers.add(tracer.group(1))

    def end(self):
        """Changes since the beginning; expected: none."""
        self._over.set()
        self._watcher.join()
        done = [f"traced by {tracer}" for tracer in self.tracers]
        if self.process.poll() is not None:
            done.append(f"ended with {self.process.returncode}")
        elif self._look() != self._before:
            done.append(f"changed: {self._look()} instead of {self._before}")
        self.process.kill()
        self.process.wait()
        return done


class Scene:
    """A target and a forger of the same user, ALICE if ulpf attaches to it; victims of BOB's and root's."""

    def __init__(self, test, user=ALICE):
        self.test, self.user = test, becomes(user)
        self.program = os.path.join(test.place.path, "hostile")
        self.clock = os.path.join(test.place.path, f"clock-{time.monotonic_ns()}")
        with open(self.clock, "wb") as clock:
            clock.write(bytes(4096))
        os.chmod(self.clock, 0o666)
        self.stubs = []
        self.victims = [Victim(**becomes(BOB)), Victim()]
        test.addCleanup(self.close)

    def start(self, *args):
        process = subprocess.Popen([self.program, *args], stdout=subprocess.PIPE, text=True, cwd="/", **self.user)
        self.test.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        return process

    def target(self):
        """Its number, if it is to be attached to."""
        return int(self.start("target", self.clock).stdout.readline())

    def forge(self, target, what, step=0, number=0):
        """Has the stub's words forged; comes back when that has begun."""
        forger = self.start("forger", str(target), self.clock, str(step), what, str(number))
        said = forger.stdout.readline().split()
        self.test.assertEqual(said[:1], ["forging"], "the forger has not come to the stub's socket")
        self.stubs.append(int(said[1]))

    def close(self):
        for stub in self.stubs:
            try:
                os.kill(stub, signal.SIGKILL)
            except ProcessLookupError:
                pass
        done = [victim.end() for victim in self.victims]
        self.victims = []
        self.test.assertFalse(any(done), done)


class Ulpf:
    """A command of root's, and what it takes."""

    def __init__(self, test, *args):
        self.test = test
        self.process = subprocess.Popen([ULPF, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        self._said = []
        self._reader = threading.Thread(target=lambda: self._said.extend(iter(lambda: os.read(
            self.process.stdout.fileno(), 65536), b"")), daemon=True)
        self._reader.start()
        self.memory = 0
        test.addCleanup(self.close)

    def said(self):
        return b"".join(self._said).decode(errors="replace")

    def ends(self, seconds):
        """Waits for its end; true if it has come. Its peak of memory is known then.

        (The peak of the process itself: wait4(2) includes the memory of the process that started it.)"""
        def ended():
            if self.process.poll() is None:
                with open(f"/proc/{self.process.pid}/status") as status:
                    peak = re.search(r"VmHWM:\s*(\d+) kB", status.read())
                self.memory = max(self.memory, int(peak[1]) << 10 if peak else 0)
            return self.process.returncode is not None
        return wait_until(ended, seconds)

    def must_end(self, by_itself):
        """It must end by itself in `by_itself` seconds, or on request; and stay small."""
        if not self.ends(by_itself):
            for number in signal.SIGINT, signal.SIGTERM:
                self.process.send_signal(number)
                if self.ends(PATIENT / 2):
                    break
            else:
                self.test.fail(f"it does not end when it is told to; it has said:\n{self.said()}")
        self._reader.join(5)
        self.test.assertLess(self.memory, MOST_MEMORY, self.said())
        self.test.assertNotIn("panicked", self.said())

    def close(self):
        if self.process.returncode is None:
            self.process.kill()
            self.ends(10)
        self.process.stdout.close()


@as_root
@ulpf_only
@needs("cc")
class Hostile(unittest.TestCase):
    limit = 400

    def setUp(self):
        self.place = Place()
        self.addCleanup(self.place.__exit__)
        source = os.path.join(os.path.dirname(__file__), "hostile.c")
        program = os.path.join(self.place.path, "hostile")
        # At the same place in every process, so that the forger knows the target's addresses.
        subprocess.run(["cc", "-O1", "-g", "-Wall", "-Wno-format-truncation", "-no-pie", "-o", program, source], check=True)
        os.chmod(program, 0o755)

    def forged(self, what, *options, step=0, victim=None, run=False, by_itself=1, status=None):
        """Output of root's `ulpf attach` when the stub's messages are forged; or of `ulpf run`, with a forger of root's.

        `status`: the expected exit status, or None for any."""
        scene = Scene(self, user=0 if run else ALICE)
        number = 0 if victim is None else scene.victims[victim].pid
        options = ["--watch", "watched", "--log", "/dev/null", *options, *(["--at", "ready"] if step else [])]
        if run:
            ulpf = Ulpf(self, "run", *options, "--", scene.program, "target", scene.clock)
            self.assertTrue(wait_until(lambda: re.match(r"\d+\n", ulpf.said()), 20), ulpf.said())
            target = int(ulpf.said().split()[0])
        else:
            target = scene.target()
            ulpf = Ulpf(self, "attach", *options, str(target))
        scene.forge(target, what, step, number)
        ulpf.must_end(by_itself)
        if status is not None:
            self.assertEqual(ulpf.process.returncode, status, ulpf.said())
        scene.close()
        return re.sub(rf"\b{target}\b", "TARGET", re.sub(rf"\b{number}\b", "VICTIM", ulpf.said()))

    def side_by_side(self, check, cases):
        said = failures(check, cases)
        if said:
            self.fail(said)

    def test_what_was_not_asked_for(self):
        """Children are not followed, so a process that reports one is no stub."""
        def check(what, says, victim):
            said = self.forged(what, victim=victim)
            self.assertRegex(said, rf"the stub of process TARGET says that .*{says}.*ulpf did not ask for that")
        self.side_by_side(check, [(what, says, victim) for victim in (0, 1) for what, says in [
            ("fork", "it has forked a child"), ("vfork", "it has forked a child"), ("exec", "a process is about to execute a program"),
            ("strange", "no stub tells of")]])

    def test_a_stranger_as_a_child(self):
        """Where children are followed, the kernel says which they are."""
        def check(what, says, victim):
            self.assertIn(says, self.forged(what, "--follow", victim=victim))
        no_child = "process VICTIM is not a child of process TARGET"
        self.side_by_side(check, [(what, says, victim) for victim in (0, 1) for what, says in [
            ("fork", no_child), ("exec", no_child), ("vfork", "ulpf did not ask for that")]])

    def test_a_stranger_as_a_thread(self):
        self.side_by_side(lambda victim: self.forged("thread", victim=victim), [(0,), (1,)])

    def test_a_program_that_was_started(self):
        def check(what, step):
            if what in ("fork", "exec", "thread"):
                said = self.forged(what, "--follow", victim=0, run=True)
                if what != "thread":
                    self.assertRegex(said, "process VICTIM is not a child of process TARGET")
            else:
                self.forged(what, step=step, run=True)
        self.side_by_side(check, [("fork", 0), ("exec", 0), ("thread", 0), ("many", 4), ("notes", 0), ("silent", 4), ("close", 0)])

    def test_execs_without_end(self):
        self.assertIn("several threads execute programs at once", self.forged("spawn"))

    def test_floods(self):
        # One by one: each keeps the processors busy.
        for what in "notes", "output", "garbage", "packet", "runs":
            for step in (0, 4) if LONG else (4,):
                with self.subTest(what, step=step):
                    self.assertIn("the program's stub says more than", self.forged(what, step=step, by_itself=30))
    test_floods.larger = True

    def test_answers_that_are_none(self):
        self.side_by_side(lambda what, says: self.assertIn(says, self.forged(what, step=4)), [
            ("many", "4294967295 watches instead of 1"), ("deep", "the stub answered"),
            ("nonsense", "the stub of process TARGET does not answer, so it is left as it is")])
    test_answers_that_are_none.idle = True

    def test_a_stub_that_does_not_let_go(self):
        self.assertIn("the stub of process TARGET does not answer, so it is left as it is", self.forged("stays", status=2))

    def test_nonsense_and_endings_at_every_step(self):
        self.side_by_side(lambda what, step: self.forged(what, step=step),
                          [(what, step) for number, what in enumerate(("nonsense", "truncated", "close", "die", "kill"))
                           for step in range(7) if LONG or (step + number) % 2 == 0])
    test_nonsense_and_endings_at_every_step.larger = True
    test_nonsense_and_endings_at_every_step.costs = "18 programs of another user's, each with a stub and a command of its own; by night 35"

    def test_silence_at_every_step(self):
        """The stub does not answer, or does not read: ulpf still obeys a request to leave."""
        self.side_by_side(lambda what, step: self.forged(what, step=step),
                          [("silent", 0), ("silent", 1), ("silent", 4), ("silent", 5), ("deaf", 0), ("deaf", 4)])
    test_silence_at_every_step.idle = True
    test_silence_at_every_step.costs = "it waits until ulpf waits no longer"

    def forged_to_server(self, what, victim=0, wanted="fork-events+;vfork-events+;exec-events+"):
        scene = Scene(self)
        target = scene.target()
        server = Server(options=["--attach"], after=[str(target)])
        self.addCleanup(server.close)
        gdb = Rsp(server.target, seconds=40)
        gdb("QStartNoAckMode")
        gdb.acks = False
        gdb(f"qSupported:multiprocess+;swbreak+;vContSupported+;error-message+;{wanted}")
        gdb("?")
        gdb.raw(b"$vCont;c#a8")
        scene.forge(target, what, number=scene.victims[victim].pid)
        return scene, server, gdb

    def ends(self, server):
        """It heeds SIGTERM, and is small."""
        with open(f"/proc/{server.process.pid}/status") as status:
            peak = int(re.search(r"VmHWM:\s+(\d+)", status.read()).group(1)) << 10
        self.assertLess(peak, MOST_MEMORY)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(PATIENT * PATIENCE), -signal.SIGTERM)

    def test_server_what_was_not_asked_for(self):
        def check(what):
            scene, server, gdb = self.forged_to_server(what, wanted="exec-events+")
            self.assertRegex(gdb.reply().decode(), "^E.*ulpf did not ask for that")
            self.ends(server)
            scene.close()
        self.side_by_side(check, [("fork",), ("vfork",), ("strange",)])

    def test_server_a_stranger_as_a_child(self):
        """A debugger's requests for it are refused; killing all processes does not kill foreign ones."""
        def check(what, wish, victim):
            scene, server, gdb = self.forged_to_server(what, victim)
            pid = f"{scene.victims[victim].pid:x}"
            self.assertIn(f"fork:p{pid}", gdb.reply().decode())
            if wish == "Hg":
                gdb(f"Hgp{pid}.{pid}")
                self.assertIn(gdb("g"), (b"E01", b""))
            elif wish == "k":
                gdb.raw(b"$k#6b")
            else:
                gdb(f"{wish}{pid}")
            if wish != "k":
                self.ends(server)
            else:
                server.wait()
            self.assertIn("is not a child of process", server.said)
            scene.close()
        self.side_by_side(check, [(what, wish, victim) for victim in (0, 1) for what in ("fork", "vfork") for wish in ("Hg", "vKill;", "k", "D;")])

    def test_server_floods(self):
        for what in ("notes", "output", "garbage", "packet") if LONG else ("output", "packet"):
            with self.subTest(what):
                scene, server, gdb = self.forged_to_server(what)
                said = b""
                while b"$E." not in said:
                    said = said[-1000:] + gdb.socket.recv(1 << 20)
                self.assertIn(b"stub says more than", said)
                self.ends(server)
                scene.close()
    test_server_floods.larger = True
    test_server_floods.costs = "two floods, by night four, each up to the size that the server refuses"

    def test_server_silence(self):
        def check(what):
            scene, server, _ = self.forged_to_server(what)
            self.ends(server)
            scene.close()
        self.side_by_side(check, [("silent",), ("deaf",)])
    test_server_silence.idle = True
