"""`ulpf check`: functions that copy, of which what they read and write overlaps."""

import json
import os
import subprocess
import tempfile
import unittest

from command.test_check import check
from lib.env import PATIENCE, ULPF, find_tool, needs, source_of, ulpf_only
from lib.run import program

# Each overlap of tests/programs/heap_overlaps.c, with its report.
OVERLAPS = {
    "copies": "memcpy of 10 bytes",
    "copies_back": "memcpy of 10 bytes",
    "copies_and_tells": "mempcpy of 10 bytes",
    "copies_string": "strcpy of 11 bytes",
    "copies_string_and_tells": "stpcpy of 7 bytes",
    "copies_some": "strncpy of 7 bytes",
    "appends": "strcat of 7 bytes",
    "appends_some": "strncat of 7 bytes",
    "copies_elsewhere": "memcpy of 10 bytes",
}


@ulpf_only
class Overlaps(unittest.TestCase):
    limit = 200

    def each(self, built):
        for word, what in OVERLAPS.items():
            with self.subTest(word):
                _, said, found, _ = check(built, word, options=["--no-leaks"])
                self.assertEqual(said, "done\n")
                found = [(error["error"], error["what"].split(" from ")[0], error["callers"][0]["function"]) for error in found]
                self.assertEqual(found, [("overlap", what, word)])
        self.assertEqual(check(built, "none", options=["--no-leaks"])[2], [])

    def test_each(self):
        self.each(program("heap_overlaps"))

    def built(self, compiler, *flags):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-overlaps-")
        self.addCleanup(folder.cleanup)
        made = os.path.join(folder.name, "heap_overlaps")
        flags = ["-g", "-O1", "-fno-builtin", "-D_GNU_SOURCE", "-w", *flags]
        subprocess.run([find_tool(compiler), *flags, "-o", made, source_of("heap_overlaps.c")], check=True)
        return made

    def test_bound_at_the_start(self):
        """Also those that look at the size of what is written to."""
        self.each(self.built("cc", "-Wl,-z,now"))
        built = self.built("cc", "-Wl,-z,now", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fbuiltin", "-O2", "-fno-inline", "-fno-optimize-sibling-calls")
        _, _, (error,), _ = check(built, "copies_elsewhere", options=["--no-leaks"])
        self.assertEqual((error["error"], error["callers"][0]["function"]), ("overlap", "copies_elsewhere"))
        self.assertEqual(check(built, "none", options=["--no-leaks"])[2], [])

    def test_one_of_the_programs_own(self):
        """It is called as before, also where calls are bound at first."""
        with tempfile.TemporaryDirectory(prefix="ulpf-overlaps-") as folder:
            sources = {
                "own.c": 'char *strcpy(char *to, const char *from) { to[0] = *from + 1; to[1] = 0; return to; }',
                "main.c": '#include <stdio.h>\n#include <string.h>\nint main(void) { char to[9]; puts(strcpy(to, "A")); puts(strcpy(to, "C")); return 0; }',
            }
            for name, text in sources.items():
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
            for command in (["-shared", "-fPIC", "-o", "libown.so", "own.c"], ["-o", "main", "main.c", "./libown.so", "-Wl,-z,lazy"]):
                subprocess.run(["cc", "-O0", "-fno-builtin", "-w", *command], cwd=folder, check=True)
            run = [ULPF, "check", "--no-leaks", "./main"]
            done = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=60 * PATIENCE)
            self.assertEqual((done.returncode, done.stdout), (0, "B\nD\n"))

    @needs("musl-gcc")
    def test_musl(self):
        built = self.built("musl-gcc")
        for word in ("copies", "copies_string", "appends"):
            _, _, found, _ = check(built, word, options=["--no-leaks"])
            # (A string that is written over its own end has none there.)
            self.assertEqual((found[0]["error"], found[0]["what"].split(" from ")[0]), ("overlap", OVERLAPS[word]))
        self.assertEqual(check(built, "none", options=["--no-leaks"])[2], [])

    def test_suppressed_as_memcheck_does(self):
        with tempfile.TemporaryDirectory(prefix="ulpf-overlaps-") as folder:
            file = os.path.join(folder, "known.supp")
            with open(file, "w") as known:
                known.write("{\n   known\n   Memcheck:Overlap\n   fun:memcpy\n   fun:copies\n}\n")
            run = [ULPF, "check", "--no-leaks", "--json", "--suppressions", file, program("heap_overlaps")]
            for word, errors in {"copies": 0, "copies_back": 1}.items():
                done = subprocess.run([*run, word], capture_output=True, text=True, timeout=60 * PATIENCE)
                lines = [json.loads(line) for line in done.stderr.splitlines()]
                self.assertEqual(sum(line["type"] == "error" for line in lines), errors)
            made = subprocess.run([ULPF, "check", "--no-leaks", "--gen-suppressions", program("heap_overlaps"), "appends"], capture_output=True, text=True, timeout=60 * PATIENCE).stderr
            self.assertIn("   Memcheck:Overlap\n   fun:strcat\n   fun:appends\n   fun:main\n", made)
            xml = os.path.join(folder, "found.xml")
            subprocess.run([ULPF, "check", "--no-leaks", "--xml", xml, program("heap_overlaps"), "appends"], capture_output=True, timeout=60 * PATIENCE, check=True)
            with open(xml) as written:
                self.assertIn("<kind>Overlap</kind>", written.read())


if __name__ == "__main__":
    unittest.main()
