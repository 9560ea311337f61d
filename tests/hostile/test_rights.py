"""The stub in a program may do no more than the program: its credentials, root, namespaces and domains follow.

The oracle: a program changes what it may at random. After each call, each task of the stub is compared with each thread of
the program; results, and what the threads may, are compared with the same program alone.
"""

import ctypes
import os
import subprocess
import unittest

from lib.cases import example
from lib.env import LONG, PATIENCE, ULPF, ulpf_only
from lib.users import as_root

CAP_SETGID, CAP_SETUID = 1 << 6, 1 << 7
# CAP_SYS_CHROOT, CAP_SYS_PTRACE, CAP_SYS_ADMIN
FOLLOWS = 1 << 18 | 1 << 19 | 1 << 21
SPACES = ("user", "mnt", "net", "ipc", "uts", "cgroup")


class Task:
    """A task's rights as the kernel reports them."""

    def __init__(self, path):
        with open(f"{path}/status") as file:
            said = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        numbers = lambda name: [int(word) for word in said[name].split()]
        self.users, self.groups, self.others = numbers("Uid"), numbers("Gid"), numbers("Groups")
        self.sets = {name: int(said[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
        self.no_new_privs = int(said["NoNewPrivs"])
        self.place = [os.readlink(f"{path}/root"), *(os.readlink(f"{path}/ns/{space}").split(":")[1] for space in SPACES)]

    def credentials(self):
        return self.users, self.groups, self.others, self.sets, self.no_new_privs

    def more_than(self, thread):
        """Rights that it has and the thread lacks."""
        permitted = thread.sets["CapPrm"]
        more = []
        if not permitted & CAP_SETUID and not set(self.users) <= set(thread.users):
            more.append(f"users {self.users}, not {thread.users}")
        if not permitted & CAP_SETGID and not set(self.groups + self.others) <= set(thread.groups + thread.others):
            more.append(f"groups {self.groups} {self.others}, not {thread.groups} {thread.others}")
        for name, own in self.sets.items():
            # To each user namespace its own; and the stub executes nothing.
            if name == "CapBnd" and self.place[1] != thread.place[1]:
                continue
            limit = permitted if name == "CapEff" else thread.sets[name]
            if own & ~limit:
                more.append(f"{name} {own:x}, not {limit:x}")
        if self.no_new_privs < thread.no_new_privs:
            more.append("new privileges")
        return more


def tasks(pid):
    return [f"/proc/{pid}/task/{tid}" for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: (tid != pid, tid))]


def stubs(pid):
    """The processes that share this one's memory (kcmp(2), KCMP_VM)."""
    found = []
    for other in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{other}/comm") as file:
                ours = file.read() == "ulpf-stub\n"
        except OSError:
            continue
        if ours and ctypes.CDLL(None).syscall(312, pid, int(other), 1, 0, 0) == 0:
            found.append(int(other))
    return found


@ulpf_only
@as_root
class Rights(unittest.TestCase):
    limit = 3600 if LONG else 180
    larger = True
    CALLS = 12
    SEEDS = 8400 if LONG else 40

    def run_it(self, words, look):
        """What it says; `look(pid)` after each call."""
        with subprocess.Popen(words, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              bufsize=1) as process:
            try:
                said = []
                for line in process.stdout:
                    said.append(line.rstrip())
                    if line.startswith("end"):
                        break
                    look(process.pid, said)
                    process.stdin.write("\n")
                process.stdin.close()
                notices = process.stderr.read()
                process.wait(60 * PATIENCE)
            finally:
                process.kill()
        return said, notices

    def alone(self, words):
        states = []

        def look(pid, _):
            states.append([Task(path).credentials() for path in tasks(pid)])
        return self.run_it(words, look)[0], states

    def watched(self, words):
        states, found, equal, stays, before = [], [], [0, 0], [], [FOLLOWS]

        def look(ulpf, said):
            if not found:
                children = [child for path in tasks(ulpf) for child in open(f"{path}/children").read().split()]
                program, = map(int, children)
                found.extend([program, *stubs(program)])
            program, stub = found
            threads = [Task(path) for path in tasks(program)]
            states.append([thread.credentials() for thread in threads])
            in_domain = any(" landlock 0 " in f"{line} " for line in said)
            for task in (Task(path) for path in tasks(stub)):
                for thread in threads:
                    self.assertEqual(task.more_than(thread), [], said)
                # A task that may not see the program's new place, or not enter it, opens no more files, and stays.
                # (In another user namespace, a program that has changed its user is not visible.)
                inner = task.place[1] != Task("/proc/self").place[1]
                if task.place != threads[-1].place and (inner or FOLLOWS & ~before[0]):
                    stays.append(said[-1])
                if not in_domain and not stays:
                    self.assertEqual(task.place, threads[-1].place, said)
                before[0] = task.sets["CapEff"]
                equal[task.credentials()[:4] == threads[-1].credentials()[:4]] += 1
        said, notices = self.run_it([ULPF, "run", "-q", "-w", "counter", "--", *words], look)
        return said, states, notices, equal

    def sequences(self, *how):
        same = [0, 0]
        for seed in range(1, self.SEEDS + 1):
            with self.subTest(seed=seed):
                words = [example("rights"), str(seed), str(self.CALLS), *how]
                said, states = self.alone(words)
                got, states_watched, notices, equal = self.watched(words)
                self.assertEqual(got, said)
                self.assertEqual(states_watched, states, said)
                self.assertEqual(said[-1], f"end {self.CALLS}")
                self.assertRegex(notices, rf"(?m)^ulpf: {self.CALLS} hits on 1 watch")
                same = [a + b for a, b in zip(same, equal)]
        # It is as the program is, but in a domain, where it is less.
        self.assertGreater(same[True], 9 * same[False])

    def test_random_calls(self):
        self.sequences()

    def test_random_calls_of_another_thread(self):
        self.sequences("thread")


if __name__ == "__main__":
    unittest.main()
