"""The table of watches (tests/watches.json) as `ulpf run` takes it; tests/plugin/test_language.py has it in gdb."""

import json
import os
import subprocess
import tempfile
import unittest

from command.test_control_socket import ask, listed
from lib.env import ROOT, ULPF, ulpf_only
from lib.run import Json, run
from lib.server import child_of


@ulpf_only
class Language(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.program = os.path.join(cls.folder.name, "shapes")
        source = os.path.join(ROOT, "command/symbols/tests/fixtures/shapes.c")
        subprocess.run(["cc", "-g", source, "-o", cls.program], check=True)
        with open(os.path.join(ROOT, "tests", "watches.json")) as file:
            cls.cases = json.load(file)["cases"]

    def test_the_table(self):
        """Each place is armed where the program says that the object is."""
        taken = [case for case in self.cases if "bytes" in case]
        # (What follows is one watch; a snapshot says where each of its places is.)
        said = Json([f"{case['watch']} snapshot" for case in taken], self.program, options=["--at", "bump"])
        where = {}
        for line in said.out.splitlines():
            if line.count(" ") >= 2:
                name, address, _ = line.rsplit(" ", 2)
                where[name] = int(address, 16)
        for number, case in enumerate(taken, 1):
            with self.subTest(case["watch"]):
                armed = [(int(line["addr"], 16), line["len"]) for line in said.lines
                         if line["type"] == "watch" and line["watch"] == number]
                self.assertEqual(armed, [(where[name] + offset, length) for name, offset, length in case["bytes"]])

    def test_what_is_refused(self):
        for case in self.cases:
            if "refused" in case:
                with self.subTest(case["watch"]):
                    status, _, err = run([case["watch"]], self.program, options=["--at", "bump"])
                    self.assertNotEqual(status, 0)
                    self.assertIn(case["refused"], err)

    def test_containers(self):
        """With libstdc++ and with Rust, without a debugger."""
        for source, compiler, stop in ("containers.cc", "g++ -std=c++17", "ready"), ("containers.rs", "rustc --edition 2024", "ready"):
            program = os.path.join(self.folder.name, source.replace(".", "-"))
            source = os.path.join(ROOT, "command/symbols/tests/fixtures", source)
            subprocess.run([*compiler.split(), "-g", source, "-o", program], check=True)
            lines = self.says(program)
            said = Json([f"{watch} snapshot" for watch, _ in lines], program, options=["--at", stop])
            where = dict(self.lines(said.out))
            for number, (watch, _) in enumerate(lines, 1):
                with self.subTest(watch):
                    armed = [(int(line["addr"], 16), line["len"]) for line in said.lines
                             if line["type"] == "watch" and line["watch"] == number]
                    self.assertEqual(armed, where[watch])

    def says(self, program):
        return self.lines(subprocess.run([program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout.decode())

    def lines(self, said):
        """Output of such a program: watches, each with its places."""
        found = []
        for watch, *numbers in map(str.split, said.splitlines()):
            numbers = [int(n, 0) for n in numbers]
            if numbers:
                found.append((watch, list(zip(numbers[::2], numbers[1::2], strict=True))))
        return found

    def test_hits_of_many_places(self):
        """One watch, one number, one row; each hit by the name of its element."""
        said = Json(["table[0..4].x", "sum"], self.compiled("""
            struct { int x, y; } table[8]; long sum;
            int main(void) {
                for (int i = 0; i < 8; i++) { table[i].x = i + 1; table[i].y = 7; sum += i; }
                return 0;
            }"""))
        self.assertEqual([hit["name"] for hit in said.hits if hit["watch"] == 1], [f"table[{i}].x" for i in range(4)])
        first, second = said.summary["watches"]
        self.assertEqual((first["hits"], first["len"], first["places"]), (4, 16, 4))
        self.assertEqual((second["watch"], second["hits"], second.get("places")), (2, 8, None))

    def test_many_places_over_the_control_socket(self):
        """A request of `ulpf top`: one watch, which goes off and on as a whole."""
        program = self.compiled("""
            #include <stdio.h>
            struct { int x, y; } table[8]; long sum;
            int main(void) {
                while (getchar() != EOF) for (int i = 0; i < 8; i++) { table[i].x++; sum++; if (i == 7) puts("."), fflush(stdout); }
                return 0;
            }""")
        with subprocess.Popen([ULPF, "run", "--quiet", "-w", "sum", "--", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            def turn():
                process.stdin.write(b"x")
                process.stdin.flush()
                process.stdout.readline()
            turn()
            pid = child_of(process.pid)
            self.assertEqual(ask(process.pid, pid, do="add", spec="table[2..5].x")["watch"], 2)
            turn()
            entry = listed(process.pid, pid)[2]
            self.assertEqual((entry["state"], len(entry["ids"]), entry["len"]), ("armed", 3, 12))
            ask(process.pid, pid, do="off", watch=2)
            turn()
            self.assertEqual(listed(process.pid, pid)[2]["state"], "off")
            ask(process.pid, pid, do="on", watch=2)
            turn()
            err = process.communicate(timeout=60)[1].decode()
        # Of the three turns in which it was in force or off: two.
        self.assertRegex(err, r"(?m)^ +6 .* table\[2\.\.5\]\.x \(3 places\)$")
        self.assertRegex(err, r"(?m)^ +32 .* sum$")

    def compiled(self, text):
        source = os.path.join(self.folder.name, "program.c")
        with open(source, "w") as file:
            file.write(text)
        subprocess.run(["cc", "-g", source, "-o", source[:-2]], check=True)
        return source[:-2]
