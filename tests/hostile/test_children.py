"""A program's children find nothing of ulpf in their memory; nor does the program itself when ulpf has left it."""

import os
import re
import signal
import subprocess
import tempfile
import time
import unittest

from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.server import sleeps
from lib.run import ulpf
from lib.users import ALICE, as_root

HERE = os.path.dirname(os.path.abspath(__file__))

# Where our mappings go (ulpf-lib/src/place.rs).
REGION = range(0x7E80_0000_0000, 0x7EF0_0000_0000)


def build(folder, name, *how):
    program = os.path.join(folder, name)
    subprocess.run(["cc", "-g", "-O1", "-pthread", *how, os.path.join(HERE, f"{name}.c"), "-o", program], check=True)
    return program


def mappings(text):
    """(start, end, protection, name) of each line of a maps file."""
    for line in text.splitlines():
        match = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s*(.*)", line)
        if match:
            yield int(match[1], 16), int(match[2], 16), match[3], match[4]


def ours(text):
    """Mappings that can only be ours."""
    return [(hex(start), protection, name) for start, _, protection, name in mappings(text)
            if start in REGION or "ulpf" in name or protection.endswith("s")]


def extents(text):
    """Adjacent mappings of the same protection as one: a watched page has been replaced by one of its own."""
    found = []
    for start, end, protection, name in mappings(text):
        if name in ("[vvar]", "[vvar_vclock]", "[vdso]", "[stack]", "[heap]"):
            end = start if name == "[stack]" else end  # the kernel lets it grow
        if found and found[-1][1] == start and found[-1][2] == protection:
            found[-1][1] = end
        else:
            found.append([start, end, protection])
    return found


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


@ulpf_only
class Children(Programs):
    watches = (["-w", "counter"], ["-w", "heap"], ["-w", "heap:rw", "-w", "counter"], ["-w", "counter", "--placement", "debug-register"])

    def test_a_child_has_the_mappings_that_it_has_natively(self):
        program = build(self.folder, "child")
        native = subprocess.run(["setarch", "-R", program, "maps"], stdout=subprocess.PIPE, check=True, text=True).stdout
        for watches in self.watches[:3]:
            with self.subTest(watches=watches):
                status, out, err = ulpf("run", "--no-aslr", "-q", *watches, program, "maps")
                self.assertEqual(status, 0, err)
                self.assertIn("child 0", err)
                self.assertEqual(ours(out), [])
                self.assertEqual(extents(out), extents(native), out)

    def test_a_child_cannot_write_to_what_its_parent_executes(self):
        """On 35e2e40 the parent dies of the child's instructions."""
        program = build(self.folder, "child")
        for what in ["overwrite"], ["grandchild"]:
            for watches in self.watches[:3]:
                with self.subTest(what=what, watches=watches):
                    status, _, err = ulpf("run", "-q", *watches, program, *what)
                    self.assertEqual(status, 0, err)
                    self.assertNotIn("shared:", err)
                    self.assertRegex(err, r"child 0, counter 201000, heap \d+")

    @as_root
    def test_a_child_of_another_user_cannot(self):
        program = build(self.folder, "child")
        for watches in self.watches[:2]:
            status, _, err = ulpf("run", "-q", *watches, program, "overwrite", str(ALICE))
            self.assertEqual(status, 0, err)
            self.assertIn("child 0, counter 201000", err)

    def test_nor_one_that_is_followed(self):
        """The memory of its own stub is not its parent's."""
        program = build(self.folder, "child")
        status, out, err = ulpf("run", "-f", "-q", "-w", "counter", program, "maps")
        self.assertEqual(status, 0, err)
        self.assertIn("child 0", err)
        images = [start for start, _, protection, name in mappings(out)
                  if start in REGION and protection == "r-xp" and not name]
        self.assertLessEqual(len(images), 3, out)  # text and slots of one image

    def test_an_executed_program_has_nothing(self):
        program = build(self.folder, "child")
        status, out, err = ulpf("run", "-q", "-w", "heap", program, "exec", program, "maps")
        self.assertEqual(status, 0, err)
        self.assertEqual(ours(out), [])

    def test_an_executed_program_ignores_no_signal_of_ours(self):
        program = build(self.folder, "child")
        script = os.path.join(self.folder, "status")
        with open(script, "w") as file:
            file.write("#!/bin/sh\ngrep -E '^Sig(Ign|Blk)' /proc/self/status\n")
        os.chmod(script, 0o755)
        native = subprocess.run([program, "exec", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
        _, out, _ = ulpf("run", "-q", "-w", "heap", program, "exec", script)
        self.assertEqual(out, native)


class Attached(Programs):
    """A program that we attach to and leave again."""

    def start(self, *command, **options):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, **options)
        for clean in process.stdout.close, process.wait, process.kill:
            self.addCleanup(clean)
        return process

    def state(self, pid):
        """Its state as /proc shows it to every user."""
        with open(f"/proc/{pid}/maps") as file:
            maps = file.read()
        with open(f"/proc/{pid}/status") as file:
            status = file.read()
        fields = re.findall(r"(?m)^(Sig(?:Pnd|Blk|Ign|Cgt)|ShdPnd|TracerPid|Seccomp|NoNewPrivs|Threads):\s*(\S+)", status)
        descriptors = sorted((fd, os.readlink(f"/proc/{pid}/fd/{fd}")) for fd in os.listdir(f"/proc/{pid}/fd"))
        return maps, dict(fields), descriptors

    def attach(self, pid, *watches, **options):
        watcher = subprocess.Popen([ULPF, "attach", "-q", *watches, str(pid)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True, **options)
        for clean in watcher.stdout.close, watcher.stderr.close, watcher.wait, watcher.kill:
            self.addCleanup(clean)
        self.assertTrue(wait_until(lambda: self.is_watched(pid), 30), "no stub has come")
        time.sleep(0.3)
        return watcher

    def is_watched(self, pid):
        with open(f"/proc/{pid}/maps") as maps:
            return "ulpf-shared" in maps.read()

    def leave(self, watcher):
        watcher.send_signal(signal.SIGINT)
        out, err = watcher.communicate(timeout=30 * PATIENCE)
        self.assertEqual(watcher.returncode, 0, err)
        self.assertNotIn(b"stays in process", err)
        return err.decode()

    def assertSame(self, before, after, pid):
        """Nothing of ours, and nothing else changed; what was watched was private file memory, or the heap."""
        self.assertEqual([m for m in mappings(after[0]) if m[0] in REGION or "ulpf" in m[3]], [], pid)
        self.assertEqual(extents(after[0]), extents(before[0]))
        self.assertEqual(after[1:], before[1:])


@ulpf_only
class Leaving(Attached):
    def check(self, *command, watches, ready=True):
        program = self.start(*command)
        if ready:
            program.stdout.readline()
        else:
            self.assertTrue(wait_until(lambda: sleeps(program.pid), 20))
        before = self.state(program.pid)
        watcher = self.attach(program.pid, *watches)
        during = self.state(program.pid)
        self.assertNotEqual(ours(during[0]), [])
        self.leave(watcher)
        self.assertSame(before, self.state(program.pid), program.pid)
        self.assertIsNone(program.poll())
        return program

    def test_after_a_watch(self):
        self.check(example("spin"), watches=["-w", "rounds"])

    def test_after_the_heap(self):
        self.check(example("spin"), watches=["-w", "heap:rw"])

    def test_of_a_program_that_sleeps(self):
        """Every thread of it is in a system call, which ulpf had made for it when it left."""
        self.check("sleep", "1000", watches=["-w", "heap"], ready=False)

    def test_again_and_again(self):
        program = self.start(example("spin"))
        program.stdout.readline()
        before = self.state(program.pid)
        for _ in range(5):
            self.leave(self.attach(program.pid, "-w", "rounds"))
        self.assertSame(before, self.state(program.pid), program.pid)

    def test_the_place_is_random(self):
        places = set()
        for _ in range(3):
            program = self.start(example("spin"))
            program.stdout.readline()
            watcher = self.attach(program.pid, "-w", "rounds")
            found = [m[0] for m in mappings(self.state(program.pid)[0]) if m[0] in REGION]
            places.add(found[0])
            self.leave(watcher)
        self.assertEqual(len(places), 3, places)

    def test_nothing_that_can_be_written_can_be_executed(self):
        program = self.start(example("spin"))
        program.stdout.readline()
        self.attach(program.pid, "-w", "heap")
        self.assertEqual([m for m in mappings(self.state(program.pid)[0]) if "w" in m[2] and "x" in m[2]], [])
