"""A forked child that has given up its rights has no influence on its siblings' memory, nor on the process that
follows them."""

import json
import os
import subprocess
import tempfile
import unittest

from lib.env import PATIENCE, ROOT, ULPF, ulpf_only
from lib.users import as_root

HERE = os.path.join(ROOT, "tests", "hostile")


@ulpf_only
class Siblings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-siblings-")
        cls.addClassCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        cls.program = os.path.join(folder.name, "siblings")
        subprocess.run(["gcc", "-O1", "-g", "-o", cls.program, os.path.join(HERE, "siblings.c")], check=True)

    def said(self, *command):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=60 * PATIENCE, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("children with blocks that are not as at the fork: 0\n", done.stdout)
        return done.stdout

    @as_root
    def test_of_a_checked_program(self):
        for value in "0", "1", "-1":
            said = self.said(ULPF, "check", "--no-leaks", self.program, value)
            self.assertIn("shared with the first child: 0\n", said)

    @as_root
    def test_of_a_program_whose_heap_is_watched(self):
        self.said(ULPF, "run", "-q", "-w", "heap", self.program, "1")

    @as_root
    def test_of_a_program_that_is_followed(self):
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as log:
            for value in "0", "1", "-1":
                self.said(ULPF, "run", "--follow", "-l", log.name, "-w", "counter", self.program, value)
                with open(log.name) as lines:
                    hits = [hit for hit in map(json.loads, lines) if hit.get("type") == "hit"]
                # `counter = round`, of each child.
                self.assertEqual(sorted(int(hit["new"]) for hit in hits), [0, 1, 2, 3, 4], hits)
