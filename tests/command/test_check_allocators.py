"""`ulpf check` on programs with another allocator than the C library's."""

import os
import subprocess
import tempfile
import unittest

from command.test_check import check
from command.test_check_cases import PROGRAM, cases, plain
from lib.env import PATIENCE, ULPF, ulpf_only
from lib.run import program

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
ALLOCATORS = {"jemalloc": "libjemalloc.so.2", "mimalloc": "libmimalloc.so.2.0", "tcmalloc": "libtcmalloc_minimal.so.4"}


@ulpf_only
class Allocators(unittest.TestCase):
    def linked(self, library):
        """The program of all cases, linked with that library."""
        path = os.path.join(LIBRARIES, library)
        folder = tempfile.TemporaryDirectory(prefix="ulpf-allocators-")
        self.addCleanup(folder.cleanup)
        to = os.path.join(folder.name, PROGRAM)
        source = os.path.join(os.path.dirname(os.path.dirname(program(PROGRAM))), f"{PROGRAM}.cc")
        subprocess.run(["c++", "-g", "-O0", "-fno-builtin", "-w", "-o", to, source, "-Wl,--no-as-needed", path], check=True)
        return to

    def refused(self, linked):
        """tcmalloc 2.16 waits for its own malloc. Then its heap is not checked, with a message, and the program runs as usual."""
        done = subprocess.run([ULPF, "check", "--no-leaks", "--", linked, "good"], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=60 * PATIENCE)
        said = "waits for its own malloc" in done.stderr
        if said:
            self.assertEqual(done.returncode, 0, done.stderr)
        return said

    def test_operator_new_of_an_allocator(self):
        there = {name: library for name, library in ALLOCATORS.items() if os.path.exists(os.path.join(LIBRARIES, library))}
        if not there:
            self.skipTest(f"none of {', '.join(ALLOCATORS)} is there")
        for name, library in there.items():
            with self.subTest(name):
                linked = self.linked(library)
                if name == "tcmalloc" and self.refused(linked):
                    continue
                status, _, errors, heap = check(linked, "good", options=["--no-leaks"])
                self.assertEqual((status, errors), (0, []))
                self.assertGreater(heap["allocated"], len(cases()))
                # (Allocation families are not distinguished there.)
                expected = {case: word for case, word in cases().items() if word != "mismatched-free"}
                found = {}
                for error in check(linked, "bad")[2]:
                    places = [error.get("place", {}), *error["callers"]] if error.get("tid") else error["allocated_by"]
                    for place in places:
                        if plain(place.get("function")) in expected:
                            found.setdefault(plain(place["function"]), set()).add(error["error"])
                self.assertEqual(found, {case: {word} for case, word in expected.items()})

    def test_other_functions(self):
        """An allocator's functions beside malloc find one that has begun, and blocks go from the ones to the others."""
        there = {name: os.path.join(LIBRARIES, library) for name, library in ALLOCATORS.items()}
        there = {name: library for name, library in there.items() if os.path.exists(library)}
        if not there:
            self.skipTest(f"none of {', '.join(ALLOCATORS)} is there")
        for name, library in {"glibc": None, **there}.items():
            with self.subTest(name):
                environment = {**os.environ, **({"LD_PRELOAD": library} if library else {})}
                way = [program("heap_other_ways")]
                alone = subprocess.run(way, env=environment, capture_output=True, text=True, timeout=60 * PATIENCE)
                self.assertEqual(alone.returncode, 0, alone)
                done = subprocess.run([ULPF, "check", "--no-leaks", "--", *way], env=environment, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=60 * PATIENCE)
                self.assertEqual((done.returncode, done.stdout), (0, alone.stdout), done.stderr)
                if "waits for its own malloc" not in done.stderr:
                    self.assertIn(" 0 errors", done.stderr)


if __name__ == "__main__":
    unittest.main()
