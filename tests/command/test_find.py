"""`ulpf find`: a value in a running program, narrowed until one place is left, which is watched."""

import os
import re
import subprocess
import tempfile
import time
import unittest

from lib.env import ULPF, ulpf_only
from lib.rsp import wait_until
from lib.run import program, ulpf


@ulpf_only
class Find(unittest.TestCase):
    limit = 60

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.env = {**os.environ, "XDG_CACHE_HOME": folder.name}
        self.process = subprocess.Popen([program("sought")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.process.wait, 30)
        self.addCleanup(self.process.stdin.close)
        self.addCleanup(self.process.stdout.close)
        said = self.process.stdout.readline().split()
        self.at = dict(zip(said[::2], (int(at, 16) for at in said[1::2])))

    def turn(self, letter):
        """The program changes one of its variables."""
        self.process.stdin.write(letter)
        self.process.stdin.flush()
        self.assertEqual(self.process.stdout.read(1), letter)

    def find(self, *args, status=0):
        found, out, err = ulpf("find", str(self.process.pid), *args, env=self.env)
        self.assertEqual(found, status, out + err)
        return out if status < 2 else err

    def places(self, *args, status=0):
        out = self.find("--list", "100000", *args, status=status)
        return {int(at, 16) for at in re.findall(r"(?m)^  (0x[0-9a-f]+)", out)}

    def test_kinds_of_memory(self):
        for kind, names in ("data", {"number"}), ("heap", {"block"}), ("stack", {"local", "thread"}):
            found = self.places("271828182", "--in", kind)
            self.assertEqual(found & set(self.at.values()), {self.at[name] for name in names}, kind)
        everywhere = self.places("271828182")
        self.assertLessEqual({self.at[name] for name in ("number", "block", "local", "thread")}, everywhere)

    def test_types_and_ranges(self):
        self.assertIn(self.at["real"], self.places("3.25"))
        self.assertIn(self.at["real"], self.places("3.2..3.3", "-t", "f64"))
        self.assertNotIn(self.at["real"], self.places("3.25", "-t", "f32", status=1))
        self.assertIn(self.at["small"], self.places("-77", "-t", "i16"))
        self.assertIn(self.at["text"], self.places("sought and found"))
        self.assertIn(self.at["number"], self.places("271828180..271828183"))
        self.assertNotIn(self.at["number"], self.places("271828180..271828182", status=1))
        self.assertIn(self.at["odd"], self.places("0x12345678", "--unaligned"))
        self.assertNotIn(self.at["odd"], self.places("0x12345678", status=1))

    def test_narrowing_and_a_watch(self):
        first = self.places("271828182")
        self.assertGreaterEqual(len(first), 4)
        self.turn("+")
        self.assertEqual(self.places("--next", "increased"), {self.at["number"]})
        self.assertEqual(self.places("--next", "unchanged"), {self.at["number"]})
        self.turn("-")
        self.assertEqual(self.places("--next", "decreased"), {self.at["number"]})
        self.assertEqual(self.places("--next", "271828182"), {self.at["number"]})
        self.turn("+")
        self.assertEqual(self.places("--next", "changed"), {self.at["number"]})
        log = tempfile.NamedTemporaryFile(suffix=".txt")
        self.addCleanup(log.close)
        command = [ULPF, "attach", "-w", "@found", "--log", log.name, str(self.process.pid)]
        with subprocess.Popen(command, env=self.env, stderr=subprocess.PIPE, text=True) as watching:
            for _ in range(300):
                if "ulpf" in open(f"/proc/{self.process.pid}/maps").read():
                    break
                time.sleep(0.02)
            time.sleep(0.5)
            self.turn("-")
            wait_until(lambda: os.path.getsize(log.name) > 0, 20)
            watching.terminate()
            err = watching.communicate()[1]
        self.assertEqual(watching.returncode, 0, err)
        hit, = open(log.name).read().splitlines()
        self.assertIn(f"{271828183:#x} → {271828182:#x}", hit)
        self.assertIn("change", hit)

    def test_nothing(self):
        self.assertIn("nothing has been searched for", self.find("--next", "1", status=2))
        self.find("1099511627776123", "-t", "i64", "--in", "data", status=1)
        status, _, err = ulpf("attach", "-w", "@found", str(self.process.pid), env=self.env)
        self.assertEqual(status, 2)
        self.assertIn("has found nothing", err)

    def test_refusals(self):
        self.assertIn("no value of type u8", self.find("256", "-t", "u8", status=2))
        self.assertIn("empty range", self.find("5..3", status=2))
        status, _, err = ulpf("find", str(2**22 - 1), "1", env=self.env)
        self.assertEqual(status, 2)
        self.assertIn("4194303", err)
