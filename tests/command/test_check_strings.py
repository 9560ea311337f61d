"""`ulpf check`: functions for strings read more than they are given, and that is no error."""

import os
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

from command.test_check import check
from lib.env import needs, source_of, ulpf_only
from lib.run import program

# Settings that change the processor features that glibc assumes; each selects other functions.
PROCESSORS = ["", "-AVX2", "-AVX2,-Prefer_No_VZEROUPPER,-BMI2", "-AVX512F,-AVX512VL", "-SSE4_2"]


@ulpf_only
class Strings(unittest.TestCase):
    """tests/programs/heap_strings.c: strings of each length, at each place, that end with their blocks."""

    limit = 300

    def nothing_is_found(self, command):
        status, said, found, heap = check(command, options=["--no-leaks"])
        self.assertEqual((status, said), (0, "done\n"))
        self.assertEqual([(error["what"], error.get("place")) for error in found], [])
        self.assertGreater(heap["allocated"], 50_000)

    def test_of_glibc(self):
        for without in PROCESSORS:
            with self.subTest(without), mock.patch.dict(os.environ, GLIBC_TUNABLES=f"glibc.cpu.hwcaps={without}"):
                self.nothing_is_found(program("heap_strings"))

    def test_of_freed_memory(self):
        """Loads that are patched by then, as those of strings in use, are errors if no byte of them may be read."""
        for without in PROCESSORS:
            with self.subTest(without), mock.patch.dict(os.environ, GLIBC_TUNABLES=f"glibc.cpu.hwcaps={without}"):
                _, said, found, _ = check(program("heap_strings"), "freed", options=["--no-leaks"])
                self.assertEqual(said, "done\n")
                self.assertEqual({error["error"] for error in found}, {"freed"}, found)
                made = [next(caller["line"] for caller in error["callers"] if caller.get("function") == "freed") for error in found]
                self.assertEqual(len(set(made)), 5, found)

    @needs("musl-gcc")
    def test_of_musl(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-strings-")
        self.addCleanup(folder.cleanup)
        made = os.path.join(folder.name, "heap_strings")
        subprocess.run([shutil.which("musl-gcc"), "-g", "-O1", "-fno-builtin", "-D_GNU_SOURCE", "-w", "-o", made, source_of("heap_strings.c")], check=True)
        self.nothing_is_found(made)
