"""Other systems: the tarball, unpacked in a Debian or an Ubuntu as old as glibc 2.27 and as new as there is, on programs of that
system, under its GDB.

`make tarball && tests/run --long test_systems`, as root, with debootstrap and mirrors. The table in docs/machines.md is of
these tests.
"""

import glob
import os
import re
import shutil
import sys
import tempfile
import unittest

from lib.bare import DEBOOTSTRAP, bare, copy, inside, run
from lib.env import ROOT, ulpf_only

NEEDED = ["ca-certificates", "gcc", "g++", "libc6-dev", "gdb", "python3", "perl", "sqlite3", "libc6-dbg"]
# On a system that is older than DWARF 5, gdb reads what its own gcc writes.
SESSION = """
set pagination off
set confirm off
break reset_scores
run
watch game.total
watch game.scores[0]
watch game.scores[1]
watch game.scores[2]
watch game.scores[3]
continue
continue
info watchpoints
delete
continue
"""
HEAP = {
    "python3": ["python3", "-c", "d = {n: str(n) * (n % 7) for n in range(3000)}; print(sum(map(len, d.values())))"],
    "perl": ["perl", "-e", r"my %h; $h{$_} = 'x' x ($_ % 50) for 1..3000; my $s = 0; $s += length for values %h; print qq($s)"],
    "sqlite3": ["sqlite3", ":memory:", "create table t(a, b); with recursive c(n) as (select 1 union all select n+1 from c where n < 2000) "
                "insert into t select n, hex(n) from c; create index i on t(b); select count(*), sum(length(b)) from t;"],
}


@ulpf_only
@unittest.skipUnless(os.geteuid() == 0, "only root can make a system to try in")
@unittest.skipUnless(DEBOOTSTRAP, "debootstrap is not installed")
class Systems(unittest.TestCase):
    limit = 1800
    night = "each bare system takes minutes"
    idle = True

    def within(self, root, *command):
        return run(*inside(root), "sh", "-c", 'cd /root; exec "$@"', "sh", *command)

    def try_in(self, suite, ubuntu=False):
        tarballs = [path for path in glob.glob(os.path.join(ROOT, "target", "packages", "ulpf-*-linux.tar.xz")) if "debug" not in path]
        if not tarballs:
            self.skipTest("there is no tarball: make tarball")
        with tempfile.TemporaryDirectory(prefix="ulpf-system-") as root:
            copy(bare(suite, NEEDED, ubuntu), root)
            run("tar", "-C", os.path.join(root, "opt"), "-xJf", tarballs[0])
            ulpf = "/opt/" + os.path.basename(tarballs[0]).removesuffix(".tar.xz") + "/bin/ulpf"
            for source in "examples/stray.c", "tests/programs/heap_errors.c":
                shutil.copy(os.path.join(ROOT, source), os.path.join(root, "root"))
            self.within(root, "cc", "-g", "-o", "stray", "stray.c")
            versions = self.within(root, "sh", "-c", "ldd --version | head -n 1; gdb --version | head -n 1; cc --version | head -n 1")
            print(versions, file=sys.stderr)
            self.assertIn("Watchpoints work on this machine", self.within(root, ulpf, "doctor"))
            said = self.within(root, ulpf, "run", "-w", "game.total if $new < $old", "./stray")
            self.assertRegex(said, r"write +game\.total: 9 → 0 +4 bytes +reset_scores\+\w+ at stray\.c:22")
            for name, command in HEAP.items():
                with self.subTest(name):
                    bare_said = self.within(root, *command)
                    said = self.within(root, ulpf, "run", "-q", "-w", "heap:rw", "--", *command)
                    self.assertTrue(said.startswith(bare_said), said)
                    self.assertRegex(said, r"ulpf: [\d,]+ hits? on 1 watch")
            with self.subTest("gdb"):
                with open(os.path.join(root, "root", "session"), "w") as file:
                    file.write(SESSION)
                if int(re.search(r"GNU gdb.* (\d+)\.", versions)[1]) < 12:
                    said = self.within(root, "sh", "-c", f"{ulpf} gdb -q -batch -x session ./stray; test $? = 2")
                    self.assertIn("`ulpf gdb` needs GDB 12 or later", said)
                    self.assertNotIn("Traceback", said)
                    said = self.within(root, "sh", "-c", f"{ulpf} server --once :2345 ./stray & sleep 1; sed 's/^run/target remote :2345\\ncontinue/' session >remote; "
                                       "gdb -q -batch -x remote ./stray; wait")
                else:
                    said = self.within(root, ulpf, "gdb", "-q", "-batch", "-x", "session", "./stray")
                self.assertRegex(said, r"(?s)Hardware watchpoint 6: game\.scores\[3\].*Hardware watchpoint \d: game.*Old value = .*exited normally")
                self.assertNotIn("Software", said)
            with self.subTest("check"):
                self.within(root, "cc", "-g", "-O0", "-fno-builtin", "-w", "-o", "errors", "heap_errors.c", "-pthread")
                said = self.within(root, "sh", "-c", f"{ulpf} check ./errors write_behind; true")
                self.assertRegex(said, r"ulpf: #1 .*behind a block")


# With glibc 2.27, 2.31 (both GDB 9 and 10), 2.35, 2.39, and newer ones; 2.36 and 2.41 are Debian 12 and 13, on which the whole suite runs.
SYSTEMS = {"bionic": True, "focal": True, "bullseye": False, "jammy": True, "noble": True, "resolute": True, "sid": False}


def define():
    for suite, ubuntu in SYSTEMS.items():
        def test(self, suite=suite, ubuntu=ubuntu):
            self.try_in(suite, ubuntu)
        setattr(Systems, f"test_{suite}", test)


define()
