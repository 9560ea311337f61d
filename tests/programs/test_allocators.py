"""Allocators that take memory, give it back, move and discard it, with watches among their blocks."""

import glob
import os
import re
import subprocess

from lib.cases import Case
from lib.env import PATIENCE, ULPF, bare, example, ulpf_only


@ulpf_only
class Allocators(Case):
    def allocate(self, library):
        env = dict(os.environ)
        if library:
            found = sorted(glob.glob(f"/usr/lib/*/{library}"))
            if not found:
                self.skipTest(f"{library} is not installed")
            env["LD_PRELOAD"] = found[0]
        expected = bare(example("blocks"), env=env)
        self.assertEqual(expected, (0, "blocks: counter 30, 0 of 4 threads found damage\n"))
        for spec, hits in ("*counter:8:w", r"30 hits"), ("*counter:65536:rw", r"\d{2,} hits"):
            done = subprocess.run([ULPF, "run", "--at", "ready", "--watch", spec, "--quiet", "--", example("blocks")],
                                  env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=80 * PATIENCE, text=True)
            self.assertEqual((done.returncode, done.stdout), expected, done.stderr)
            self.assertTrue(re.search(rf"ulpf: {hits} on 1 watch", done.stderr), done.stderr)

    def test_glibc(self):
        self.allocate(None)

    def test_jemalloc(self):
        self.allocate("libjemalloc.so.2")

    def test_mimalloc(self):
        self.allocate("libmimalloc.so.2")

    def test_tcmalloc(self):
        self.allocate("libtcmalloc_minimal.so.4")
