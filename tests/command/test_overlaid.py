"""Programs that have reserved the addresses at which ulpf takes its memory, before it comes; and what becomes of a program
whose stub fails."""

import os
import resource
import signal
import subprocess
import unittest

from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.run import program
from lib.server import stub_of


def ours(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return [line for line in maps if "memfd:ulpf" in line]


class Attached(unittest.TestCase):
    def start(self, *command, **options):
        process = subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def attach(self, target, *watches):
        flags = [word for watch in watches for word in ("-w", watch)]
        return self.start(ULPF, "attach", "-q", *flags, str(target.pid))

    def assertGoesOn(self, target):
        for _ in range(30):
            self.assertNotEqual(target.stdout.readline(), b"")

    def watched(self, target):
        self.assertTrue(wait_until(lambda: len(ours(target.pid)) > 3, 30 * PATIENCE), "it is not watched")


@ulpf_only
class Overlaid(Attached):
    def ends_well(self, *arguments):
        target = self.start(program("overlaid"), *arguments)
        target.stdout.readline()
        session = self.attach(target, "heap")
        self.watched(target)
        self.assertGoesOn(target)
        session.send_signal(signal.SIGINT)
        _, err = session.communicate(timeout=60 * PATIENCE)
        self.assertEqual(session.returncode, 0, err)
        self.assertNotIn(b"unexpectedly", err)
        self.assertRegex(err, rb"[1-9]\d* hits on 1 watch")
        self.assertGoesOn(target)
        self.assertEqual(ours(target.pid), [])

    def test_reserved_as_a_whole(self):
        """As MariaDB 10.11 does."""
        self.ends_well()

    def test_reserved_but_for_some_of_it(self):
        self.ends_well("some")

    def test_libraries_that_lie_there(self):
        """With a stack limit of 1,000 GiB the kernel puts the dynamic loader, and what it loads, into these addresses."""
        limit = 1000 << 30
        if 0 <= resource.getrlimit(resource.RLIMIT_STACK)[1] < limit:
            self.skipTest("this machine allows no stack limit of 1,000 GiB")
        run = ["prlimit", f"--stack={limit}", ULPF, "check", "--no-leaks", "--exit-on-first-error", "--", program("heap_family"), "self"]
        for _ in range(6):
            done = subprocess.run(run, capture_output=True, text=True, timeout=60 * PATIENCE)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("write of 1 byte", done.stderr)


@ulpf_only
class Failed(Attached):
    def loses_its_stub(self, number, said):
        """Its stub gets this signal; ulpf fails, and says so."""
        target = self.start(program("overlaid"))
        target.stdout.readline()
        session = self.attach(target, "heap")
        self.watched(target)
        os.kill(stub_of(target.pid), number)
        _, err = session.communicate(timeout=60 * PATIENCE)
        self.assertNotEqual(session.returncode, 0)
        self.assertIn(said.format(target.pid).encode(), err)
        return target

    def test_the_program_goes_on_without_a_stub_that_failed(self):
        for _ in range(8):  # The first moments have most requests, and no task serves them then.
            target = self.loses_its_stub(signal.SIGSEGV, "ulpf has left process {}, which goes on without its watches")
            self.assertGoesOn(target)
            self.assertEqual(ours(target.pid), [])

    def test_started_programs_go_on_to_their_end(self):
        session = self.start(ULPF, "run", "-q", "-w", "other_rounds", "--", example("spin"))
        session.stdout.readline()
        target = int(subprocess.run(["pgrep", "-P", str(session.pid)], stdout=subprocess.PIPE).stdout)
        os.kill(stub_of(target), signal.SIGBUS)
        self.assertTrue(wait_until(lambda: not ours(target), 30 * PATIENCE))
        os.kill(target, signal.SIGUSR1)
        _, err = session.communicate(timeout=30 * PATIENCE)
        self.assertEqual(session.returncode, -signal.SIGUSR1)
        self.assertIn(f"ulpf has left process {target}".encode(), err)

    def test_a_stub_that_is_killed_is_no_success(self):
        self.loses_its_stub(signal.SIGKILL, "the watchpoint stub in process {} has ended unexpectedly")
