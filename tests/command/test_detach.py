"""Whatever ends a session with a running program, the program is afterwards as it was: mappings, the bytes of its code,
descriptors, threads and signal handlers. By day a few times each, by night (`--long`) 200 times."""

import hashlib
import os
import pty
import resource
import signal
import tempfile
import time
import unittest

from command.test_endings import handlers
from command.test_leaving import Command, joined, places, states
from lib.env import LONG, PATIENCE, ULPF, example, ulpf_only
from lib.rsp import Rsp, wait_until
from lib.server import Server, address

TIMES = 200 if LONG else 3


def code(pid):
    """A digest of all executable memory of the program, by address."""
    digests = {}
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            span, rights, *_ = line.split()
            start, end = (int(at, 16) for at in span.split("-"))
            if "x" in rights and "[v" not in line:
                memory.seek(start)
                try:
                    digests[start] = hashlib.sha256(memory.read(end - start)).hexdigest()
                except OSError:
                    digests[start] = "is unmapped just now"
    return digests


def what_it_has(pid):
    return {
        "mappings": joined(places(pid)),
        "code": code(pid),
        "descriptors": sorted(os.listdir(f"/proc/{pid}/fd"), key=int),
        "threads": sorted(os.listdir(f"/proc/{pid}/task"), key=int),
        "handlers": handlers(pid),
    }


@ulpf_only
class EachWay(Command):
    larger = True
    limit = 1200

    def setUp(self):
        self.running = self.program(example("waits"))
        self.assertEqual(self.running.stdout.readline(), b"waits: up\n")
        self.pid = self.running.pid
        self.before = what_it_has(self.pid)

    def attached(self, n):
        """ulpf watches the program: its counter, or its heap, or both with reads; some accesses are patched."""
        watches = [("-w", "rounds"), ("-w", "heap:rw", "-w", "other_rounds"), ("-w", "heap", "-w", "rounds:rw")][n % 3]
        watcher = self.start("attach", "-q", *watches, str(self.pid))
        self.wait_for(watcher, "watch")
        time.sleep(0.01 * (n % 8))  # Each time at another moment.
        return watcher

    def assertAsBefore(self, n, ended):
        """Within a second or so (a busy machine's may be longer)."""
        wait_until(lambda: what_it_has(self.pid) == self.before, 20)
        now = what_it_has(self.pid)
        for what, before in self.before.items():
            self.assertEqual(now[what], before, f"{what} after detach {n}; ulpf said {ended}")
        self.assertIsNone(self.running.poll())

    def each(self, end, status=0):
        for n in range(TIMES):
            watcher = self.attached(n)
            end(watcher, n)
            _, said = watcher.communicate(timeout=30 * PATIENCE)
            if status is not None:
                self.assertEqual(watcher.returncode, status, said)
            self.assertAsBefore(n, said)

    def test_sigint(self):
        self.each(lambda watcher, _: watcher.send_signal(signal.SIGINT))

    def test_sigterm(self):
        self.each(lambda watcher, _: watcher.send_signal(signal.SIGTERM))

    def test_sighup(self):
        self.each(lambda watcher, _: watcher.send_signal(signal.SIGHUP))

    def test_twice(self):
        """As timeout(1) does it, within milliseconds."""
        def end(watcher, n):
            watcher.send_signal(signal.SIGTERM)
            time.sleep(0.001 * (n % 10))
            watcher.send_signal(signal.SIGTERM)
        self.each(end)

    def test_sigkill(self):
        self.each(lambda watcher, _: watcher.kill(), -signal.SIGKILL)

    def test_sigkill_while_it_leaves(self):
        def end(watcher, n):
            watcher.send_signal(signal.SIGINT)
            time.sleep(0.0005 * (n % 40))
            watcher.kill()
        self.each(end, None)

    def test_a_stopped_program(self):
        def end(watcher, _):
            os.kill(self.pid, signal.SIGSTOP)
            self.assertTrue(wait_until(lambda: set(states(self.pid)) == {"T"}))
            watcher.send_signal(signal.SIGINT)
            self.assertEqual(watcher.wait(30 * PATIENCE), 0)
            os.kill(self.pid, signal.SIGCONT)
        self.each(end)

    def test_no_memory(self):
        """ulpf gets no memory any more, and ends as it can."""
        def end(watcher, n):
            resource.prlimit(watcher.pid, resource.RLIMIT_AS, (1, 1))
            time.sleep(0.02 * (n % 5))
            watcher.send_signal(signal.SIGINT)
        self.each(end, None)

    def test_a_closed_terminal(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        for n in range(TIMES):
            log = os.path.join(folder, f"{n}.log")
            watcher, terminal = pty.fork()
            if not watcher:
                os.execv(ULPF, [ULPF, "attach", "-l", log, "-w", "rounds", str(self.pid)])
            self.assertTrue(wait_until(lambda: os.path.exists(log) and os.path.getsize(log) > 100, 20))
            os.close(terminal)
            os.waitpid(watcher, 0)
            self.assertAsBefore(n, "nothing that could be read")

    def test_a_closed_connection(self):
        self.hang_up(lambda: None)

    def test_a_closed_connection_and_a_stopped_program(self):
        def stop():
            os.kill(self.pid, signal.SIGSTOP)
            self.assertTrue(wait_until(lambda: set(states(self.pid)) == {"T"}))
        self.hang_up(stop)

    def hang_up(self, before):
        for n in range(TIMES):
            server = Server(str(self.pid), options=("--once", "--attach"))
            self.addCleanup(server.close)
            client = Rsp(server.target)
            client("qSupported:swbreak+;hwbreak+;vContSupported+;error-message+")
            self.assertEqual(client(f"Z2,{address(self.pid, 'waits', 'rounds'):x},8"), b"OK")
            client.raw(b"$vCont;c#a8")
            time.sleep(0.01 * (n % 8))
            before()
            client.socket.close()
            server.wait()
            os.kill(self.pid, signal.SIGCONT)
            self.assertAsBefore(n, server.said)
            server.close()


if __name__ == "__main__":
    unittest.main()
