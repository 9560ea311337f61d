"""Every system call that is easily made, with its buffers on guarded pages: results and memory as bare."""

import subprocess
import unittest

from lib.cases import Case
from lib.env import PATIENCE, ULPF, bare, example, ulpf_only
from lib.run import ulpf


@ulpf_only
class SystemCalls(Case):
    limit = 240

    def compare(self, *specs):
        watches = [word for spec in specs for word in ("--watch", spec)]
        done = subprocess.run([ULPF, "run", *watches, "--quiet", "--", example("syscalls")], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200 * PATIENCE, text=True)
        status, expected = bare(example("syscalls"))
        self.assertEqual(status, 0)
        self.assertGreater(expected.count("\n"), 2000)
        wrong = [f"bare: {a}\nulpf: {b}" for a, b in zip(expected.splitlines(), done.stdout.splitlines()) if a != b]
        self.assertFalse(wrong[:20], "\n".join(wrong[:20]))
        self.assertEqual((done.returncode, done.stdout), (0, expected))
        self.assertRegex(done.stderr, r"[1-9]\d* hits? on")

    def test_pages_without_any_access(self):
        self.compare("arena.hot:rw", "arena.alone:rw")

    def test_pages_that_may_be_read(self):
        self.compare("arena.hot:w", "arena.alone:w")

    def test_nothing_but_one_byte_is_watched(self):
        self.compare("arena.hot[4095]:rw")

    def test_memory_that_userfaultfd_serves(self):
        """It was there, for it had been moved; and it could not be taken away (UFFDIO_MOVE)."""
        status, expected = bare(example("missing_pages"))
        if status == 77:
            raise unittest.SkipTest("userfaultfd may not be used here")
        self.assertEqual((status, expected.count("served 4096")), (0, expected.count("then: written")), expected)
        for kinds in "heap", "heap:rw":
            status, out, err = ulpf("run", "--quiet", "--no-summary", "--watch", kinds, "--", example("missing_pages"))
            self.assertEqual((status, out, err), (0, expected, ""), kinds)
