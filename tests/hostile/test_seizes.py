"""A worker that asks to trace its master, and may not: that ends no watch."""

import os
import subprocess
import tempfile
import unittest

from lib.env import ulpf_only
from lib.run import Json
from lib.users import as_root

HERE = os.path.dirname(os.path.abspath(__file__))


@ulpf_only
class Seizes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = os.path.join(folder.name, "seizes")
        subprocess.run(["cc", "-g", "-O1", os.path.join(HERE, "seizes.c"), "-o", self.program], check=True)

    def check(self, how, error):
        said = Json(["counter"], self.program, how, options=("--follow",))
        self.assertEqual((said.status, said.out), (0, f"worker: -1, {error}\nmaster: 200\n"), said.err)
        self.assertNotIn("not watched any more", said.err)
        master = said.lines[0]["pid"]
        self.assertEqual(len([hit for hit in said.hits if hit["pid"] == master]), 200)

    @as_root
    def test_a_worker_that_has_dropped_its_rights(self):
        """On the build before, its request ends the watch on its master, and is refused then."""
        self.check("dropped", "Operation not permitted")
        self.check("attaches", "Operation not permitted")

    def test_a_request_that_means_nothing(self):
        self.check("malformed", "Input/output error")

    @as_root
    def test_a_worker_that_may(self):
        said = Json(["counter"], self.program, "may", options=("--follow",))
        self.assertEqual((said.status, said.out), (0, "worker: 0, traces\nmaster: 200\n"), said.err)
        self.assertRegex(said.err, r"process \d+ is traced by process \d+ \(ptrace\), and not watched any more")
