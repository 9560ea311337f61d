"""The cache of ulpf below the home of another user, who tries to lead root elsewhere."""

import os
import pwd
import subprocess
import unittest

from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.users import ALICE, Place, as_root


@as_root
@ulpf_only
class OfAnotherUser(unittest.TestCase):
    def setUp(self):
        self.hers, self.roots = Place(owner=ALICE), Place()
        self.addCleanup(self.hers.__exit__)
        self.addCleanup(self.roots.__exit__)
        self.target = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
        self.addCleanup(self.target.wait)
        self.addCleanup(self.target.kill)

    def path(self, *names):
        return os.path.join(self.hers.path, *names)

    def ulpf(self, *words, **env):
        done = subprocess.run([ULPF, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, **env}, timeout=60 * PATIENCE)
        return done.returncode, done.stdout.decode(errors="replace")

    def link(self, name):
        """A link of Alice's to a folder of root's."""
        os.symlink(self.roots.path, self.path(name))
        os.lchown(self.path(name), ALICE, ALICE)
        return self.path(name)

    def kept(self, cache):
        """Nothing is made there by any command that keeps something."""
        status, said = self.ulpf("find", str(self.target.pid), "4711", XDG_CACHE_HOME=cache)
        self.assertEqual(status, 2, said)
        self.assertIn("belongs to another user", said)
        status, said = self.ulpf("run", "-v", "-w", "bank.fees", "--", example("bank"), "1", "10", XDG_CACHE_HOME=cache, ULPF_HOT_CACHE="on")
        self.assertEqual(status, 0, said)
        self.assertIn("belongs to another user", said)
        self.assertEqual(os.listdir(self.roots.path), [])

    def test_a_link(self):
        self.kept(self.link("cache"))

    def test_a_link_on_the_way(self):
        self.kept(os.path.join(self.link("way"), "a", "b"))

    def test_a_folder(self):
        os.mkdir(self.path("cache"))
        os.chown(self.path("cache"), ALICE, ALICE)
        self.kept(self.path("cache"))
        self.assertEqual(os.listdir(self.path("cache")), [])

    def test_a_folder_of_roots_in_hers(self):
        """She may exchange it."""
        os.makedirs(self.path("cache", "ulpf"), 0o700)
        self.kept(self.path("cache"))
        self.assertEqual(os.listdir(self.path("cache", "ulpf")), [])

    def test_her_home_under_sudo(self):
        """It is kept where root has its own home."""
        self.link(".cache")
        status, said = self.ulpf("find", str(self.target.pid), "4711", HOME=self.hers.path, XDG_CACHE_HOME="")
        own = os.path.join(pwd.getpwuid(0).pw_dir, ".cache", "ulpf", f"{self.target.pid}.found")
        self.addCleanup(lambda: os.path.exists(own) and os.remove(own))
        self.assertIn(status, (0, 1), said)
        self.assertTrue(os.path.exists(own))
        self.assertEqual(os.listdir(self.hers.path), [".cache"])
        self.assertEqual(os.listdir(self.roots.path), [])


if __name__ == "__main__":
    unittest.main()
