"""`ulpf check` where it cannot take the allocator's place, and where memory is much larger than what is used of it."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from lib.env import ULPF, bare, find_tool, ulpf_only
from lib.run import program, ulpf

SOURCE = os.path.join(os.path.dirname(__file__), "..", "programs", "sanitized.c")


@ulpf_only
class Sanitizers(unittest.TestCase):
    def built(self, *flags):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        out = os.path.join(folder.name, "sanitized")
        done = subprocess.run([*flags, "-g", "-O1", "-pthread", "-o", out, SOURCE], stderr=subprocess.DEVNULL)
        if done.returncode != 0 or bare(out)[0] != 7:
            self.skipTest(f"{' '.join(flags)} makes no program that runs here")
        return out

    def is_as_alone(self, *flags):
        status, out, err = ulpf("check", self.built(*flags))
        self.assertEqual((status, out), (7, "done\n"), err)
        self.assertEqual(err.count("the heap is not checked"), 1, err)
        self.assertNotIn("no block begins", err)

    def test_a_log_says_it_too(self):
        with tempfile.NamedTemporaryFile("r") as log:
            status, out, err = ulpf("check", "--json", "-l", log.name, self.built("gcc", "-fsanitize=address"))
            self.assertEqual((status, out), (7, "done\n"), err)
            notices = [line["text"] for line in map(json.loads, log) if line["type"] == "notice"]
        self.assertEqual(notices, ["the heap is not checked: ulpf cannot take the place of the allocator of AddressSanitizer"])

    def test_address(self):
        self.is_as_alone("gcc", "-fsanitize=address")

    def test_thread(self):
        self.is_as_alone("gcc", "-fsanitize=thread")

    def test_leak(self):
        self.is_as_alone("gcc", "-fsanitize=leak")

    def test_in_the_program_itself(self):
        if not find_tool("clang"):
            self.skipTest("there is no clang")
        self.is_as_alone("clang", "-fsanitize=address")

    def test_entries_beside_malloc(self):
        """Chromium's allocator: code of the program frees by another entry, which finds no record of a block of ours."""
        status, out, err = ulpf("check", program("own_entries"))
        self.assertEqual((status, out), (0, "done\n"), err)
        self.assertEqual(err.count("cannot take the place of the allocator of Chromium"), 1, err)
        self.assertNotIn("no function called malloc", err)


@ulpf_only
class Sparse(unittest.TestCase):
    def test_what_is_lost_beside_large_reservations(self):
        status, out, err = ulpf("check", program("heap_sparse"))
        self.assertEqual((status, out), (0, "done\n"), err)
        self.assertIn("77 bytes", err)
        self.assertNotIn("99 bytes", err)

    def test_a_search_takes_no_memory_for_what_was_never_written(self):
        # The largest size that a process reports includes that of its parent at vfork(2): a small process starts what is measured.
        measured = ("import resource, subprocess, sys; status = subprocess.call(sys.argv[1:]); "
                    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(status)")
        done = subprocess.run([sys.executable, "-c", measured, ULPF, "check", "--", program("heap_sparse"), "block"],
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("77 bytes", done.stderr)
        self.assertNotIn("99 bytes", done.stderr)
        # The block has two gibibytes, and its table of addressable bytes an eighth of that.
        self.assertLess(int(done.stdout.split()[-1]) << 10, 1 << 30)
