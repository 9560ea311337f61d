"""tests/peers: nothing outlives it, nor a program that has been given up."""

import glob
import os
import subprocess
import sys
import tempfile
import unittest

from lib.env import PATIENCE, ROOT, needs
from lib.rsp import wait_until
from lib.users import as_root

PEERS = os.path.join(ROOT, "tests", "peers")
# A process that hangs, and one that has left its session.
HANGS = ["sh", "-c", "setsid sleep 1000 & echo begun; wait; :"]

RUN = f"""
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.SourceFileLoader("peers", {PEERS!r})
peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers", loader))
loader.exec_module(peers)
print(peers.run(sys.argv[3:], sys.argv[1], float(sys.argv[2]), None), flush=True)
"""


def named(word):
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if word.encode() in file.read():
                    found.append(path)
        except OSError:
            pass
    return found


@needs("unshare")
class Peers(unittest.TestCase):
    def begin(self, limit):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.word = f"PEERS_TEST={os.path.basename(folder.name)}"
        name, value = self.word.split("=")
        process = subprocess.Popen([sys.executable, "-c", RUN, os.path.join(folder.name, "run"), str(limit), *HANGS],
                                   stdout=subprocess.PIPE, text=True, env=dict(os.environ, **{name: value}))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: len(named(self.word)) >= 4), named(self.word))
        return process

    @as_root
    def test_a_program_that_hangs(self):
        process = self.begin(1)
        said, _ = process.communicate(timeout=20 * PATIENCE)
        self.assertIn("'hang', 'begun", said)
        self.assertEqual(named(self.word), [])

    @as_root
    def test_it_is_killed(self):
        """On the build before, what it had begun ran on."""
        process = self.begin(1000)
        process.kill()
        process.wait()
        self.assertTrue(wait_until(lambda: not named(self.word)), named(self.word))
