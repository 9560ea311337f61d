"""Tests with other users run in a chroot whose root folder only root may enter."""

import os
import subprocess
import sys
import tempfile
import unittest

from lib.env import ROOT, needs

# The argument is an empty folder; the rest is a command.
CLOSED = r"""
set -e
mount -t tmpfs closed "$1"
root="$1/root"
mkdir -m 700 "$root"
shift
for path in /*; do
    if [ -L "$path" ]; then
        cp -a "$path" "$root/"
    elif [ -d "$path" ]; then
        mkdir "$root$path"
        mount --rbind "$path" "$root$path"
    fi
done
exec chroot "$root" "$@"
"""

INSIDE = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
print(oct(os.stat("/").st_mode & 0o777))
from lib.users import ALICE, as_root, becomes, no_other_users
print(no_other_users(), oct(os.stat("/").st_mode & 0o777), flush=True)
subprocess.run(["/bin/sh", "-c", "id -u; test -e /proc/self/exe && cd /tmp && pwd"], check=True, **becomes(ALICE))
"""


@needs("unshare")
@unittest.skipUnless(os.geteuid() == 0, "only root may chroot")
class ClosedRoot(unittest.TestCase):
    def test_other_users_get_an_open_one(self):
        before = os.stat("/").st_mode
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["unshare", "--mount", "sh", "-c", CLOSED, "sh", folder, sys.executable, "-c", INSIDE, os.path.join(ROOT, "tests")],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines()[0], "0o700")
        self.assertRegex(done.stdout.splitlines()[1], "^None 0o755$")
        self.assertEqual(done.stdout.splitlines()[2:], ["54321", "/tmp"])
        self.assertEqual(os.stat("/").st_mode, before)
