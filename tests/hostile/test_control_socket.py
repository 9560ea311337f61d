"""The control socket, which every user reaches, and whose name every user can take first."""

import json
import os
import socket
import subprocess
import unittest

from lib.cases import Case
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.users import ALICE, as_root, becomes, no_other_users


def ask(by, pid, **words):
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(30 * PATIENCE)
        control.connect(f"\0ulpf/{by}")
        control.sendall(json.dumps({"pid": pid, **words}).encode() + b"\n")
        return json.loads(control.makefile().readline())


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


# One that every user can run.
PYTHON = "/usr/bin/python3"

FLOOD = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
for _ in range(int(sys.argv[2])):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(10)
    s.connect('\\0ulpf/' + sys.argv[1])
    held.append(s)
time.sleep(1)
print(held[-1].recv(1000).decode(), flush=True)
sys.stdin.read()
"""

# A process takes the name, lets its child keep the socket, and is gone when its number is another's.
SQUAT = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind('\\0ulpf/' + sys.argv[1])
s.listen(int(sys.argv[2]))
held = []
if sys.argv[2] == '0':
    for _ in range(2):
        c = socket.socket(socket.AF_UNIX)
        c.setblocking(False)
        try:
            c.connect('\\0ulpf/' + sys.argv[1])
        except BlockingIOError:
            pass
        held.append(c)
print('there', flush=True)
while sys.argv[2] != '0':
    c, _ = s.accept()
    held.append(c)
    c.settimeout(2)
    try:
        print('asked', c.recv(1000), flush=True)
    except OSError:
        print('asked nothing', flush=True)
    c.sendall(b'{"watches":[]}\\n')
sys.stdin.read()
"""


RUN = ["run", "-w", "bank.fees", "--log", os.devnull, "--no-summary", "--", example("bank"), "60", "2000"]


class Watched:
    """`ulpf run` with a program that takes its time."""

    def __init__(self, case, **options):
        self.ulpf = subprocess.Popen([ULPF, *RUN], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     **options)
        case.addCleanup(self.ulpf.wait)
        case.addCleanup(self.ulpf.terminate)
        case.assertTrue(wait_until(lambda: self.pid(), 20))

    def pid(self):
        children = subprocess.run(["pgrep", "-P", str(self.ulpf.pid), "-x", "bank"], stdout=subprocess.PIPE, text=True).stdout.split()
        return int(children[0]) if children else None


@ulpf_only
class ControlSocket(Case):
    def answers(self, watched):
        try:
            return "watches" in ask(watched.ulpf.pid, watched.pid(), do="list")
        except (OSError, ValueError):
            return False

    def flood(self, watched, count, **options):
        flood = subprocess.Popen([PYTHON, "-c", FLOOD, str(watched.ulpf.pid), str(count)], stdin=subprocess.PIPE, cwd="/",
                                 stdout=subprocess.PIPE, text=True, **options)
        self.addCleanup(flood.stdout.close)
        self.addCleanup(flood.wait)
        self.addCleanup(flood.kill)
        self.addCleanup(flood.stdin.close)
        return flood, flood.stdout.readline()

    @as_root
    def test_another_user_takes_no_descriptor(self):
        watched = Watched(self)
        self.assertTrue(wait_until(lambda: self.answers(watched), 20))
        before = descriptors(watched.ulpf.pid)
        _, said = self.flood(watched, 1000, **becomes(ALICE))
        self.assertIn("belongs to another user", said)
        self.assertLess(descriptors(watched.ulpf.pid), before + 5)
        self.assertTrue(self.answers(watched))

    def test_many_of_our_own(self):
        watched = Watched(self)
        self.assertTrue(wait_until(lambda: self.answers(watched), 20))
        before = descriptors(watched.ulpf.pid)
        flood, said = self.flood(watched, 1000)
        self.assertIn("too many ask at once", said)
        self.assertLess(descriptors(watched.ulpf.pid), before + 40)
        flood.kill()
        self.assertTrue(wait_until(lambda: self.answers(watched)))

    def test_silence_ends(self):
        """A client that sends nothing, or half a line, is not waited for for ever."""
        watched = Watched(self)
        self.assertTrue(wait_until(lambda: self.answers(watched), 20))
        # Both wait for their end at the same time.
        with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as half:
            for control, says in (silent, b""), (half, b'{"do":'):
                control.settimeout(30 * PATIENCE)
                control.connect(f"\0ulpf/{watched.ulpf.pid}")
                control.sendall(says)
            for control in silent, half:
                self.assertEqual(control.recv(100), b"")
    test_silence_ends.idle = True

    def squat(self, by, backlog, **options):
        squatter = subprocess.Popen([PYTHON, "-c", SQUAT, str(by), str(backlog)], stdin=subprocess.PIPE, cwd="/",
                                    stdout=subprocess.PIPE, text=True, **options)
        self.addCleanup(squatter.stdout.close)
        self.addCleanup(squatter.wait)
        self.addCleanup(squatter.kill)
        self.addCleanup(squatter.stdin.close)
        self.assertEqual(squatter.stdout.readline(), "there\n")
        return squatter

    def held(self, backlog, **options):
        """A session whose name another process took before the session began: its process ID is known, and it waits."""
        read, write = os.pipe()
        starts = "import os, sys; sys.stdin.read(1); os.execv(sys.argv[1], sys.argv[1:])"
        self.log = subprocess.Popen([PYTHON, "-c", starts, ULPF, *RUN],
                                    stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.log.stderr.close)
        self.addCleanup(self.log.wait)
        self.addCleanup(self.log.terminate)
        os.close(read)
        squatter = self.squat(self.log.pid, backlog, **options)
        os.write(write, b"x")
        os.close(write)
        for line in self.log.stderr:
            if "control socket" in line:
                break
        self.assertRegex(line, r"the control socket @ulpf/\d+ cannot be made: another process has taken its name")
        return squatter

    def test_a_name_that_is_taken_is_told(self):
        options = becomes(ALICE) if not no_other_users() else {}
        squatter = self.held(5, **options)
        done = subprocess.run([ULPF, "top", "--plain", "--count", "2", "--interval", "0.5", "--pid", str(self.log.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^bank \(\d+\), \d+ seconds: ")
        squatter.kill()
        # The process that took the name has received no request.
        for line in squatter.stdout.read().splitlines():
            self.assertIn(line, ("asked nothing", "asked b''"))

    def test_who_never_accepts_keeps_nobody(self):
        options = becomes(ALICE) if not no_other_users() else {}
        squatter = self.held(0, **options)
        done = subprocess.run([ULPF, "top", "--plain", "--count", "2", "--interval", "0.5", "--pid", str(self.log.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^bank \(\d+\), \d+ seconds: ")
        self.assertIsNone(squatter.poll())


if __name__ == "__main__":
    unittest.main()
