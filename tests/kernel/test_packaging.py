"""The module's sources as the kernel's checkers see them, and as DKMS packages them."""

import os
import subprocess
import unittest

from lib import vm


class Packaging(unittest.TestCase):
    limit = 240

    def does(self, *command):
        done = subprocess.run([os.path.join(vm.ROOT, ".ci", command[0]), *command[1:]], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=self.limit - 10)
        if done.returncode == 77:
            self.skipTest(done.stdout.strip().removeprefix("skipped: "))
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_sparse_finds_nothing(self):
        self.does("kernel-check", "sparse")

    def test_checkpatch_finds_nothing(self):
        places = [os.path.join(vm.BUILD, "scripts"), os.path.join(vm.BUILD, "debug", "linux-source-6.1", "scripts")]
        if not any(os.path.exists(os.path.join(place, "checkpatch.pl")) for place in places):
            self.skipTest("checkpatch.pl is in a package of 140 MB: `make -C kernel check` gets it")
        self.does("kernel-check", "checkpatch")

    def test_dkms_builds_installs_and_removes(self):
        """In a throw-away tree, by `make -C kernel dkms` and `dkms-remove`."""
        self.does("kernel-dkms")
    test_dkms_builds_installs_and_removes.night = "the module is compiled once more, in a tree of its own"
