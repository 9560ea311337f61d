"""File systems of a target that never answer: a reader of the target's memory must not wait for them."""

import os
import signal
import subprocess
import tempfile
import unittest

from lib.env import PATIENCE, ULPF, ulpf_only
from lib.fuse import silent
from lib.rsp import wait_until
from lib.users import ALICE, Place, as_root, becomes

HERE = os.path.dirname(os.path.abspath(__file__))


@as_root
@ulpf_only
class Silent(unittest.TestCase):
    limit = 120
    costs = "ulpf waits ten seconds for a file system"

    def setUp(self):
        self.place = Place()
        self.addCleanup(self.place.__exit__)
        program = os.path.join(self.place.path, "silent")
        subprocess.run(["gcc", "-O1", "-g", "-o", program, os.path.join(HERE, "silent.c")], check=True)
        os.chmod(program, 0o755)
        mount = os.path.join(self.place.path, "mount")
        os.mkdir(mount)
        files = silent(mount)
        try:
            path, self.waits = files.__enter__()
        except OSError as why:
            self.skipTest(str(why))
        self.target = subprocess.Popen([program, path], stdout=subprocess.PIPE, cwd="/", **becomes(ALICE))
        self.addCleanup(self.target.stdout.close)
        self.addCleanup(self.target.wait)
        self.addCleanup(self.target.kill)
        # Runs before the cleanups above, so that no process waits for the file system any more.
        self.addCleanup(files.__exit__, None, None, None)
        self.assertEqual(self.target.stdout.readline(), b"ready\n")
        cache = tempfile.TemporaryDirectory(prefix="ulpf-silent-")
        self.addCleanup(cache.cleanup)
        self.env = {**os.environ, "XDG_CACHE_HOME": cache.name}

    def ulpf(self, *words):
        process = subprocess.Popen([ULPF, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.env)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def ends(self, process, seconds):
        try:
            process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.fail("it waits for the file system")

    def test_a_search_can_be_ended(self):
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGKILL:
            with self.subTest(signal=number):
                self.waits.clear()
                find = self.ulpf("find", str(self.target.pid), "4711")
                # (The kernel requests a page once while it is being read.)
                wait_until(self.waits.is_set, 3)
                find.send_signal(number)
                self.ends(find, 5)
                self.assertEqual(find.stdout.read(), b"")

    def test_a_search_goes_on_without_it(self):
        find = self.ulpf("find", str(self.target.pid), "4711..4713", "--in", "data")
        self.ends(find, 40)
        said = find.stdout.read().decode()
        self.assertRegex(said, r"silent at 0x[0-9a-f]+ is not searched: its file system does not answer")
        self.assertRegex(said, r"silent\+0x")
        self.assertEqual(find.returncode, 0, said)

    def test_what_a_pointer_leads_to(self):
        """`ulpf last` reads the target's memory, too."""
        watch = self.ulpf("attach", "-w", "first.value", str(self.target.pid))
        self.assertTrue(any(b"first.value:" in line for line in watch.stdout))
        last = self.ulpf("last", "lost->next->value", "--pid", str(self.target.pid))
        self.ends(last, 40)
        self.assertEqual(last.returncode, 2)


if __name__ == "__main__":
    unittest.main()
