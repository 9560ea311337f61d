"""Every system call that is easily made, with its buffers on guarded pages: results and memory as bare."""

import subprocess

from lib.cases import Case
from lib.env import PATIENCE, ULPF, bare, example, ulpf_only


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
