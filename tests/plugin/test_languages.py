"""`ulpf watch` in every language of GDB's that there is a compiler for: nothing that the plugin has written
itself is read as the user's language."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from lib.env import ROOT, ulpf_only
from lib.languages import LANGUAGES, binary, everywhere
from lib.plugin import LOADER, PluginCase


class LanguageCase(PluginCase):
    def at_ready(self, language, program, **options):
        gdb = self.session(program, stop=language.ready, **options)
        gdb(f"source {LOADER}")
        if language.name != "d":
            gdb("up")
        if language.name == "modula-2":
            # gm2's programs say that they are C.
            gdb("set language modula-2")
        self.assertIn(language.name, gdb("show language"))
        return gdb


@ulpf_only
@everywhere
class Conversations(LanguageCase):
    def converse(self, language, program):
        gdb = self.at_ready(language, program)
        before = gdb("show language")
        self.assertEqual(gdb(f"ulpf watch {language.total}"), f"Ulpf watch 1: {language.total}\n")
        self.assertSays(gdb("continue"), rf"Ulpf watch 1: {re.escape(language.total)}\n\nOld value = 0\nNew value = 5\n")
        watches = 1
        if language.element:
            self.assertSays(gdb(f"ulpf watch {language.array}"), r"^Ulpf watch 2: .*\(24 bytes\)\n")
            gdb(f"ulpf watch {language.element} log")
            self.assertSays(gdb("continue"), rf"Ulpf watch 2: {re.escape(language.part)}\n\nOld value = 3\nNew value = 4\n")
            watches = 3
        if language.weight:
            gdb(f"ulpf watch {language.weight}")
            self.assertSays(gdb("continue"), rf"Ulpf watch 4: {re.escape(language.weight)}\n\nOld value = 0(\.0)?\nNew value = 2\.5\n")
            watches = 4
        self.assertEqual(gdb("show language"), before)
        # Logged hits are shown in the frame of another function, too.
        said = gdb("ulpf log show")
        self.assertEqual(said.count("0 → 5"), 1)
        gdb("ulpf delete")
        if language.name == "d":
            gdb("up")
            return self.assertExits(gdb, 3)
        gdb("up")
        self.assertSays(gdb(f"ulpf watch {language.total} if {language.condition}"), rf"^Ulpf watch {watches + 1}: ")
        self.assertSays(gdb("continue"), r"Old value = 5\nNew value = 905\n")
        gdb("ulpf delete")
        self.assertExits(gdb, 0 if language.name == "modula-2" else 3)


@ulpf_only
@everywhere
class AnotherRun(LanguageCase):
    """GDB reads its breakpoints' expressions anew; ours are still C then."""

    def converse(self, language, program):
        if language.name == "d":
            self.skipTest("a watch through a parameter does not outlive it")
        gdb = self.at_ready(language, program, extended=True)
        gdb(f"ulpf watch {language.total}")
        for _ in range(2):
            self.assertSays(gdb("continue"), r"Ulpf watch 1: .*\n\nOld value = 0\nNew value = 5\n")
            said = gdb("kill") + gdb(f"tbreak {language.ready}") + gdb("run")
            self.assertNotRegex(said, "rror|not set again")


@ulpf_only
class SetByTheUser(LanguageCase):
    def test_any_language_in_any_frame(self):
        cpp = next(language for language in LANGUAGES if language.name == "c++")
        gdb = self.at_ready(cpp, binary(self, cpp), extended=True)
        names = re.findall(r"^(\S+?),? +Use the", gdb("help set language"), re.M)
        self.assertGreater(len(names), 12)
        for name in names:
            with self.subTest(name):
                gdb("set language c++")
                gdb("set $place = &shelf::total")
                gdb(f"set language {name}")
                before = gdb("show language")
                # `$place` is a pointer in all of them.
                said = gdb("python print(ulpf.watch('$place[0..1]').number)")
                self.assertSays(said, r"^\d+\n$")
                self.assertSays(gdb("continue"), rf"Ulpf watch {said.strip()}: .*\n\nOld value = 0\nNew value = 5\n")
                self.assertEqual(gdb("show language"), before)
                gdb("ulpf delete")
                self.assertNotIn("rror", gdb("kill") + gdb("tbreak ready" if name != "ada" else "tbreak shelf.cc:13") + gdb("run"))


@ulpf_only
class Descriptors(LanguageCase):
    """Arrays of Fortran whose place, bounds and strides stand in a descriptor: GDB knows their elements' addresses."""

    @unittest.skipUnless(shutil.which("gfortran"), "gfortran is not installed")
    def test_elements(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "arrays")
            source = os.path.join(ROOT, "tests", "programs", "languages", "arrays.f90")
            subprocess.run(["gfortran", "-g", "-O0", "-J", folder, source, "-o", program], check=True)
            gdb = self.session(program, stop="ready")
            gdb(f"source {LOADER}")
            gdb("up")
            for number, (watch, said) in enumerate({"items(2)%weights": "", "row": r" \(3 places, 12 bytes\)", "row[*]": r" \(3 places, 12 bytes\)",
                                                    "back": r" \(4 places, 16 bytes\)", "every_other": r" \(6 places, 24 bytes\)",
                                                    "cube": r" \(80 bytes\)", "cube(1,3,4)": ""}.items(), 1):
                self.assertSays(gdb(f"ulpf watch {watch}"), rf"^Ulpf watch {number}: {re.escape(watch)}{said}")
            self.assertSays(gdb("ulpf watch nowhere"), r"^cannot watch nowhere: it has no memory now; watch it when it is allocated, or associated")
            for wrong in "nowhere(1)", "nowhere[*]", "items(9)%id", "row(5)", "row(one)":
                self.assertSays(gdb(f"ulpf watch {wrong}"), r"^cannot watch .*: .*; ")
            # (A watch of two stops twice.)
            for number, part, new in ((1, "items(2)%weights(3)", "1.5"), (2, "row(3)", "7"), (3, "row(3)", "7"), (5, "every_other(1,1)", "1"),
                                      (4, "back(1)", "11"), (5, "every_other(2,3)", "12"), (6, "cube(1,3,4)", "13"), (7, "cube(1,3,4)", "13")):
                self.assertSays(gdb("continue"), rf"Ulpf watch {number}: {re.escape(part)}\n\nOld value = 0\nNew value = {new}\n")
            # A component's descriptor is no value without its memory.
            gdb("ulpf delete")
            gdb("ulpf watch items")
            self.assertSays(gdb("continue"), r"Ulpf watch \d+: items\(2\)\n\nOld value = 00 00 00 00 [0-9a-f ]+\nNew value = 00 00 00 00 [0-9a-f ]+\n")
