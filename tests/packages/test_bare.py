"""The packages on a Debian that has nothing of ours: the README's session and the tutorials, as a newcomer would type them.

`tests/run --long packages.test_bare`, as root, with debootstrap and a mirror. The bare systems are made once, in target/bare.
"""

import os
import shutil
import sys
import tempfile
import unittest

from lib.bare import DEBOOTSTRAP, bare, copy, inside, run
from lib.env import ROOT, ULPF, ulpf_only

BUILD = os.path.join(ROOT, "packaging", "build")
# Packages that the pages require, and packages to run the pages.
NEEDED = ["ca-certificates", "gcc", "libc6-dev", "make", "pkg-config", "procps", "python3"]
PAGES = ["README.md", "docs/tutorial/gdb.md", "docs/tutorial/terminal.md", "docs/tutorial/library.md", "docs/tutorial/ci.md", "docs/commands.md", "docs/log.md"]
INSTALL = """
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq /root/*.deb
"""
# Only what the tree says of the pages is copied; `ulpf`, the examples and libulpf are those that were installed.
TRY = """
import sys
sys.path.insert(0, "/root/tree/tests")
from lib import console
for page in sys.argv[1:]:
    count = console.try_page(f"/root/tree/{page}", "/usr/share/doc/ulpf/examples", "/usr/bin/ulpf", "/usr/lib/x86_64-linux-gnu")
    print(f"{page}: {count} commands")
"""


@ulpf_only
@unittest.skipUnless(os.geteuid() == 0, "only root can make a system to try in")
@unittest.skipUnless(DEBOOTSTRAP, "debootstrap is not installed")
class Bare(unittest.TestCase):
    limit = 1800
    night = "a bare Debian takes minutes"
    # The pages' servers listen at the ports that they listen at on the machine itself (tests/command/test_book.py).
    alone = True
    idle = True

    def try_in(self, suite):
        with tempfile.TemporaryDirectory(prefix="ulpf-bare-") as root:
            copy(bare(suite, NEEDED), root)
            run(sys.executable, BUILD, "--binary", ULPF, "--out", os.path.join(root, "root"), "-z1", "deb")
            tree = os.path.join(root, "root", "tree")
            shutil.copytree(os.path.join(ROOT, "tests", "lib"), os.path.join(tree, "tests", "lib"))
            shutil.copytree(os.path.join(ROOT, "docs"), os.path.join(tree, "docs"))
            shutil.copy(os.path.join(ROOT, "README.md"), tree)
            run(*inside(root), "sh", "-c", INSTALL)
            said = run(*inside(root), "ULPF=/usr/bin/ulpf", "python3", "-c", TRY, *PAGES)
            for page in PAGES:
                self.assertRegex(said, rf"(?m)^{page}: [1-9]\d* commands$")

    def test_debian_12(self):
        self.try_in("bookworm")

    def test_debian_13(self):
        self.try_in("trixie")
