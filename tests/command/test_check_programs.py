"""`ulpf check` on programs whose allocator no dynamic symbol names: static ones, and those by other names."""

import os
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

from command.test_check import ERRORS, check
from command.test_check_strings import PROCESSORS
from lib.env import PATIENCE, ULPF, needs, source_of, ulpf_only
from lib.run import program

FLAGS = ["-g", "-O1", "-fno-builtin", "-D_GNU_SOURCE", "-pthread", "-w"]


class Built(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-static-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def built(self, source, *flags, compiler="cc"):
        made = os.path.join(self.folder, "made-" + source.split(".")[0])
        subprocess.run([shutil.which(compiler), *FLAGS, *flags, "-o", made, source_of(source)], check=True)
        return made

    def addresses(self, built, **functions):
        """Options for functions by their addresses, with the symbols taken away."""
        symbols = subprocess.run(["nm", built], capture_output=True, text=True, check=True).stdout
        at = {line.split()[2]: line.split()[0] for line in symbols.splitlines() if len(line.split()) == 3}
        subprocess.run(["strip", built], check=True)
        file = os.path.basename(built)
        return ["--allocator", ",".join(f"{name}={file}+0x{at[symbol]}" for name, symbol in functions.items())]


@ulpf_only
class Static(Built):
    limit = 300

    def each_error(self, built, tables=True):
        for word, (kind, access, where) in ERRORS.items():
            with self.subTest(word):
                status, _, found, _ = check(built, word)
                self.assertEqual((status, [error["error"] for error in found]), (5, [kind]), found)
                (error,) = found
                # (How much of a copy is made at once is the library's business.)
                self.assertIn(access.split(" of ")[0], error["what"])
                self.assertIn(where, error["what"])
                places = [error.get("place", {}), *error["callers"]]
                if tables or "(2)" not in error["what"]:
                    self.assertIn(word, [place.get("function") for place in places], error)
                    # (What calls main is not told.)
                    self.assertEqual(error["callers"][-1]["function"], "main")
                if error.get("block"):
                    self.assertEqual(error["allocated_by"][0]["function"], word)
        _, _, found, heap = check(built, "lose")
        lost = {error["error"]: error["len"] for error in found}
        self.assertEqual(lost, {"lost": 5000, "indirectly-lost": 16})
        status, _, found, heap = check(built, "none")
        # (The C library keeps the inside of what it allocates for each thread.)
        found = [error for error in found if error["error"] != "possibly-lost"]
        self.assertEqual((status, found, heap["errors"]), (0, [], 0))
        self.assertGreater(heap["allocated"], 50_000)

    def test_glibc(self):
        self.each_error(self.built("heap_errors.c", "-static"))

    def test_anywhere(self):
        self.each_error(self.built("heap_errors.c", "-static-pie"))

    @needs("musl-gcc")
    def test_musl(self):
        """Its system calls have no unwind tables."""
        self.each_error(self.built("heap_errors.c", "-static", compiler="musl-gcc"), tables=False)

    def test_cxx(self):
        built = self.built("new_errors.cc", "-static", compiler="c++")
        for word, says in {
            "free_of_new": "free of {}, which was allocated by new",
            "delete_of_malloc": "delete of {}, which was allocated by malloc",
            "delete_of_array": "delete of {}, which was allocated by new[]",
        }.items():
            with self.subTest(word):
                _, _, (error,), _ = check(built, word)
                self.assertEqual(error["what"], says.format(error["addr"]))
        self.assertEqual(check(built, "none")[2], [])

    def strings(self, built, *options):
        status, said, found, heap = check(built, options=["--no-leaks", *options])
        self.assertEqual((status, said), (0, "done\n"))
        self.assertEqual([(error["what"], error.get("place")) for error in found], [])
        self.assertGreater(heap["allocated"], 50_000)

    def test_functions_for_strings(self):
        """Their over-reads are no errors, also without symbols."""
        built = self.built("heap_strings.c", "-static")
        for without in PROCESSORS:
            with self.subTest(without), mock.patch.dict(os.environ, GLIBC_TUNABLES=f"glibc.cpu.hwcaps={without}"):
                self.strings(built)
        stripped = self.addresses(built, malloc="malloc", free="free", calloc="calloc", realloc="realloc")
        self.strings(built, *stripped)

    @needs("musl-gcc")
    def test_functions_of_musl_for_strings(self):
        self.strings(self.built("heap_strings.c", "-static", compiler="musl-gcc"))


@ulpf_only
class Named(Built):
    def found(self, built, *options):
        status, said, found, _ = check(built, "again", options=["--no-leaks", *options])
        self.assertEqual(status, 0)
        return [(error["error"], error["what"].split(" at ")[0], error["what"].split(", ")[1]) for error in found]

    EXPECTED = [
        ("outside", "write of 6 bytes", "0 bytes behind a block of 10 bytes"),
        ("freed", "read of 1 byte", "0 bytes inside a freed block of 40 bytes"),
    ]
    NAMES = "malloc=pool_alloc,realloc=pool_realloc"

    def test_by_symbols(self):
        built = program("own_allocator")
        self.assertEqual(self.found(built), [])
        self.assertEqual(self.found(built, "--allocator", self.NAMES, "--allocator", "free=pool_free"), self.EXPECTED)

    def test_by_addresses(self):
        for flags in (["-O1"], ["-static"]):
            with self.subTest(flags):
                built = self.built("own_allocator.c", *flags)
                options = self.addresses(built, malloc="pool_alloc", realloc="pool_realloc", free="pool_free")
                self.assertEqual(self.found(built, *options)[-1], self.EXPECTED[-1])

    def run_it(self, *options):
        return subprocess.run([ULPF, "check", *options, program("own_allocator")], capture_output=True, text=True, timeout=60 * PATIENCE)

    def test_what_is_not_there(self):
        done = self.run_it("--allocator", "malloc=no_such_function")
        self.assertIn("ulpf: --allocator: the program has no function no_such_function; it is looked for in each library", done.stderr)
        done = self.run_it("--allocator", "alloc=pool_alloc")
        self.assertEqual(done.returncode, 2)
        self.assertIn("`alloc=pool_alloc`: it takes NAME=FUNCTION", done.stderr)


if __name__ == "__main__":
    unittest.main()
