"""The tables of watches and filters (tests/watches.json, filters.json) in gdb; command/symbols runs them for `ulpf run`."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from lib.env import ROOT, ulpf_only
from lib.plugin import LOADER, PluginCase


@ulpf_only
class Language(PluginCase):
    def test_the_table(self):
        with open(os.path.join(ROOT, "tests", "watches.json")) as file:
            cases = json.load(file)["cases"]
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "shapes")
            subprocess.run(["cc", "-g", os.path.join(ROOT, "command/symbols/tests/fixtures/shapes.c"), "-o", program], check=True)
            gdb = self.session(program, stop="bump")
            gdb(f"source {LOADER}")
            gdb("up")
            for case in cases:
                with self.subTest(case["watch"]):
                    self.one(gdb, case)

    def test_cpp_containers(self):
        self.containers("containers.cc", "g++ -std=c++17", "ready()")

    def test_rust_containers(self):
        self.containers("containers.rs", "rustc --edition 2024", "containers::ready")

    @unittest.skipUnless(shutil.which("go"), "no go")
    def test_go_maps(self):
        """Known by what they hold: they have no addresses in Go."""
        version = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout
        if int(re.search(r"go1\.(\d+)", version)[1]) < 24:
            self.skipTest(f"maps are known from Go 1.24 on; this is {version.split()[2]}")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(ROOT, "command/symbols/tests/fixtures/maps.go"), folder)
            program = os.path.join(folder, "maps")
            subprocess.run(["go", "build", "-gcflags=-N -l", "-o", program, "maps.go"], check=True, cwd=folder)
            gdb = self.session(program, stop="main.ready")
            gdb(f"source {LOADER}")
            for watch, values in (("names[*]", range(1000, 1003)), ("items[*].Y", range(2000, 2003)),
                                  ("many[*]", [5000 + n for n in range(3000) if n != 77])):
                with self.subTest(watch):
                    ask = (f"import gdb, ulpf.places as p; read = gdb.selected_inferior().read_memory; "
                           f"print('VALUES', sorted(int.from_bytes(read(x.address, 8), 'little') for x in p.find('main.{watch}')))")
                    self.assertIn(f"VALUES {list(values)}", gdb(f"python exec({ask!r})"))
            self.assertSays(gdb("ulpf watch main.names[*] snapshot"), r"^Ulpf watch 1: main\.names\[\*\] \(3 places, 24 bytes\)")
            self.assertSays(gdb("ulpf watch main.none[*]"), r"it has no elements now")

    def test_libcpp_containers(self):
        compiler = "clang++ -std=c++17 -fstandalone-debug -stdlib=libc++"
        try_it = f"echo '#include <vector>' | {compiler} -x c++ -fsyntax-only -"
        if subprocess.run(try_it, shell=True, stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no clang++ with libc++ (clang, libc++-dev)")
        self.containers("containers.cc", compiler, "ready()")

    @unittest.skipUnless(shutil.which("gfortran"), "no gfortran")
    def test_fortran(self):
        with open(os.path.join(ROOT, "command/symbols/tests/fixtures/shapes.f90")) as file:
            line = next(number for number, text in enumerate(file, 1) if "read (" in text)
        self.containers("shapes.f90", "gfortran", f"shapes.f90:{line}", finish=False)

    def containers(self, source, compiler, stop, finish=True):
        """The program says where its elements are; as the library has them."""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "containers")
            source = os.path.join(ROOT, "command/symbols/tests/fixtures", source)
            subprocess.run([*compiler.split(), "-g", source, "-o", program], check=True, cwd=folder)
            gdb = self.session(program, stop=stop)
            if finish:
                gdb("finish")
            gdb(f"source {LOADER}")
            lines = [line.split() for line in gdb.server.stdout().splitlines() if re.match(r"\S+( 0x[0-9a-fA-F]+ \d+)+$", line)]
            self.assertGreater(len(lines), 15)
            for watch, *numbers in lines:
                with self.subTest(watch):
                    numbers = [int(n, 0) for n in numbers]
                    wanted = list(zip(numbers[::2], numbers[1::2], strict=True))
                    ask = f"import ulpf.places as p; print('PLACES', [(x.address, x.length) for x in p.find({watch!r})])"
                    self.assertIn(f"PLACES {wanted}", gdb(f"python exec({ask!r})"))

    def test_clauses(self):
        with open(os.path.join(ROOT, "tests", "filters.json")) as file:
            cases = json.load(file)["clauses"]
        gdb = self.begin(done=False)
        for case in cases:
            with self.subTest(case["said"]):
                spec = f"s.parse({'total ' + case['said']!r})"
                said = gdb(f"python import ulpf.filters as f, ulpf.spec as s; print('WORDS', f.words({spec}, None))")
                words = re.search(r"WORDS \[(.*)\]", said)
                self.assertEqual(" ".join(re.findall(r"'([^']*)'", words[1])), case["words"])

    def one(self, gdb, case):
        # As `ulpf watch` finds them: an error of the plugin's is its text.
        ask = ("python import ulpf.places as p, ulpf.errors as e\n"
               f"try: print('PLACES', [(x.address, x.length) for x in p.find({case['watch']!r})])\n"
               "except e.UlpfError as why: print('REFUSED', why)\nend")
        said = gdb(f"python exec({ask[len('python '):-len(chr(10) + 'end')]!r})")
        if "refused" in case:
            self.assertIn("REFUSED", said)
            self.assertIn(case["refused"], said)
            return
        wanted = []
        for thing, offset, length in case["bytes"]:
            address = gdb(f"python print(int(gdb.parse_and_eval('(long)&({thing})')))")
            wanted.append((int(address) + offset, length))
        self.assertIn(f"PLACES {wanted}", said)
