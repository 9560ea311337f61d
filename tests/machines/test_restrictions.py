"""Machines that forbid something: Docker's filter of system calls, a read-only system, /proc hidden or not there."""

import ctypes
import os
import re
import signal
import struct
import subprocess
import unittest

from lib.env import PATIENCE, ULPF, example, find_tool, ulpf_only

# <linux/filter.h>, <linux/seccomp.h>
LD, JEQ, RET = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7fff0000, 0x50000
NUMBER, ARGUMENT = 0, 16
EPERM, ENOSYS = 1, 38
# x86-64's numbers of the calls that Docker's default profile refuses to a container with default rights. (They are kcmp,
# userfaultfd, pidfd_getfd, process_madvise, perf_event_open, bpf, keyctl, mount, setns, unshare, and others not called here.)
REFUSED = [312, 323, 438, 440, 298, 321, 250, 165, 308, 272, 246, 153, 169, 175, 313]
CLONE3, PERSONALITY = 435, 135
PERSONALITIES = [0, 8, 0x20000, 0x20008, 0xffffffff]
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 38, 22


def instruction(code, k, jt=0, jf=0):
    return struct.pack("HBBI", code, jt, jf, k)


def dockers_filter():
    """As a container has it that is started without options."""
    code = [instruction(LD, NUMBER)]
    for number, errno in [(n, EPERM) for n in REFUSED] + [(CLONE3, ENOSYS)]:
        code += [instruction(JEQ, number, 0, 1), instruction(RET, ERRNO | errno)]
    code += [instruction(JEQ, PERSONALITY, 1, 0), instruction(RET, ALLOW), instruction(LD, ARGUMENT)]
    for allowed in PERSONALITIES:
        code += [instruction(JEQ, allowed, 0, 1), instruction(RET, ALLOW)]
    code = b"".join([*code, instruction(RET, ERRNO | EPERM)])
    array = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(array)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")


def run(*command, **options):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60 * PATIENCE, **options)


@ulpf_only
class DockersFilter(unittest.TestCase):
    limit = 120

    def within(self, *command):
        return run(*command, preexec_fn=dockers_filter)

    def test_run(self):
        bare = run(example("five"))
        done = self.within(ULPF, "run", "-q", "-w", "heap:rw", "--", example("five"))
        self.assertEqual((done.returncode, done.stdout), (bare.returncode, bare.stdout), done.stderr)
        self.assertRegex(done.stderr, r"[1-9][\d,]* hits on 1 watch")

    def test_children_are_followed(self):
        bare = run(example("children"))
        done = self.within(ULPF, "run", "-q", "--follow", "-w", "heap", "--", example("children"))
        self.assertEqual((done.returncode, done.stdout), (bare.returncode, bare.stdout), done.stderr)

    def test_check(self):
        done = self.within(ULPF, "check", example("heap_errors"), "write_behind")
        self.assertRegex(done.stdout + done.stderr, r"ulpf: #1 .*behind a block")

    def test_attach(self):
        with subprocess.Popen([example("spin")], stdout=subprocess.DEVNULL) as program:
            try:
                command = [ULPF, "attach", "-q", "-w", "heap", str(program.pid)]
                with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=dockers_filter) as attached:
                    try:
                        attached.wait(2 * PATIENCE)
                    except subprocess.TimeoutExpired:
                        attached.send_signal(signal.SIGINT)
                    self.assertRegex(attached.communicate(timeout=30 * PATIENCE)[1], r"hits on 1 watch")
            finally:
                program.kill()

    def test_doctor(self):
        done = self.within(ULPF, "doctor")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"- +pidfd_getfd +not available: a container's seccomp filter is likely")


# Each folder of the root may be a mount of its own (lib.users.open_root).
READ_ONLY = """mount --rbind / /mnt && cut -d" " -f5 /proc/self/mountinfo | grep "^/mnt" | while read -r folder; do
mount -o remount,ro,bind "$folder"; done && mount -t proc proc /mnt/proc && mount --rbind /dev /mnt/dev && exec chroot /mnt "$@"
"""
WITHOUT_PROC = """umount -l /proc && exec "$@"
"""
HIDDEN = """mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


def has_own_mounts():
    """Not in a chroot whose root is no mount, nor without the right."""
    return bool(find_tool("unshare")) and subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0


@ulpf_only
@unittest.skipUnless(os.geteuid() == 0, "only root can make such a machine")
@unittest.skipUnless(find_tool("setpriv"), "util-linux is not installed")
@unittest.skipUnless(has_own_mounts(), "no process can have mounts of its own here")
class Mounts(unittest.TestCase):
    limit = 120

    def within(self, how, *command, processes=False):
        own = ["--pid", "--fork"] if processes else []
        return run("unshare", "--mount", *own, "sh", "-c", how, "sh", *command)

    def test_a_read_only_system(self):
        done = self.within(READ_ONLY, ULPF, "run", "-q", "-w", "heap", "--", example("five"))
        self.assertEqual(done.returncode, run(example("five")).returncode, done.stderr)
        self.assertRegex(done.stderr, r"hits? on 1 watch")
        if find_tool("gdb"):
            done = self.within(READ_ONLY, ULPF, "gdb", "-q", "-batch", "-ex", "start", "-ex", "watch a", "-ex", "continue", example("five"))
            self.assertRegex(done.stdout, r"Hardware watchpoint 2: a", done.stderr)

    def test_no_proc(self):
        done = self.within(WITHOUT_PROC, ULPF, "run", "-q", "-w", "a", "--", example("five"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("/proc is not mounted", done.stderr)
        self.assertNotIn("may be executed but not read", done.stderr)

    def test_hidden_processes(self):
        done = self.within(HIDDEN, ULPF, "run", "-q", "-w", "a", "--", example("five"), processes=True)
        if re.search("Permission denied", done.stderr):
            self.skipTest("nobody may not come here")
        self.assertRegex(done.stderr, r"hits? on 1 watch")
