"""`ulpf check` on accesses over the redzone into another block: found by the pointer in the operand. tests/programs/heap_far.cc
has them, each beside a twin with a good index; Valgrind's memcheck finds none of them."""

import os
import re
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree

from command.test_check import check
from command.test_check_cases import plain
from command.test_check_outputs import WithFolder, entry
from lib import schema
from lib.env import PATIENCE, example, find_tool, ulpf_only

AS_WRITTEN, OPTIMISED = "heap_far", "heap_far_optimised"
# Of those with a pointer and an index so many, in percent.
BAR = 90
# The same without --base, which leaves out indexes that are not multiplied (single bytes, odd sizes).
BAR_WITHOUT = 60


def cases(path):
    """The function of each case, and which word it has."""
    listed = subprocess.run([path], capture_output=True, text=True, check=True)
    return dict(line.split() for line in listed.stdout.splitlines())


def found(path, *options):
    """The errors of each case."""
    known = cases(path)
    _, _, errors, _ = check(path, "bad", options=["--no-leaks", *options])
    kinds = {}
    for error in errors:
        places = [error["place"], *error["callers"]]
        names = [plain(place.get(of)) for place in places for of in ("inlined", "function")]
        kinds.setdefault(next((name for name in names if name in known), None), set()).add(error["error"])
    return kinds


def share(kinds, known, *words):
    wanted = [case for case, word in known.items() if word in words]
    return 100 * len([case for case in wanted if kinds.get(case) == {"far"}]) // len(wanted)


@ulpf_only
class Far(WithFolder):
    def judge(self, path, *words):
        known = cases(path)
        self.assertGreater(len(known), 60)
        for options, bar in ([], BAR_WITHOUT), (["--base"], BAR):
            with self.subTest(path=path, options=options):
                kinds = found(path, *options)
                self.assertNotIn(None, kinds)
                self.assertGreaterEqual(share(kinds, known, *words), bar, sorted(set(known) - set(kinds)))
                for case, word in known.items():
                    if word == "loop":
                        self.assertEqual(kinds.get(case), {"outside"}, case)
                    if word == "none":
                        self.assertNotIn(case, kinds)
                status, _, errors, heap = check(path, "good", options=["--no-leaks", *options])
                self.assertEqual((status, errors, heap["errors"]), (0, [], 0))

    def test_what_is_not_optimised(self):
        self.judge(example(AS_WRITTEN), "index")

    def test_what_is_optimised(self):
        self.judge(example(OPTIMISED), "index", "object")

    def test_clang(self):
        clang = find_tool("clang++")
        if not clang:
            self.skipTest("clang++ is not there (apt install clang)")
        source = os.path.join(os.path.dirname(os.path.dirname(example(AS_WRITTEN))), "heap_far.cc")
        for level, words in ("-O0", ["index"]), ("-O2", ["index", "object"]):
            built = os.path.join(self.folder, "heap_far")
            subprocess.run([clang, "-g", level, "-w", "-o", built, source], check=True, timeout=120 * PATIENCE)
            self.judge(built, *words)

    def test_patched_accesses_ask_only_where_that_is_wanted(self):
        """After thousands of good accesses."""
        self.assertEqual(found(example(OPTIMISED), "--base").get("after_many_char"), {"far"})
        self.assertNotIn("after_many_char", found(example(OPTIMISED)))

    def test_memcheck_finds_none(self):
        """The cases touch addressable bytes only, so memcheck finds no error."""
        if not find_tool("valgrind"):
            self.skipTest("valgrind is not there")
        path = self.file("found.xml")
        known = cases(example(OPTIMISED))
        command = ["valgrind", "--xml=yes", f"--xml-file={path}", example(OPTIMISED), "bad", *(case for case in known if known[case] != "loop")]
        subprocess.run(command, capture_output=True, timeout=120 * PATIENCE, check=True)
        self.assertEqual(list(ElementTree.parse(path).getroot().iterfind("error")), [])


@ulpf_only
class Reports(WithFolder):
    """Both blocks are named, with the callers that allocated them."""

    CASE = ("bad", "write_int")

    def test_json(self):
        _, _, (error,), _ = check(example(AS_WRITTEN), *self.CASE, options=["--no-leaks"])
        schema.lines().check("run", [error])
        self.assertEqual((error["error"], error["size"], error["other_size"], error["len"]), ("far", 40, 4000, 4))
        self.assertEqual(error["place"]["function"], "write_int(bool)")
        self.assertTrue(error["other"] <= error["addr"] < hex(int(error["other"], 16) + 4000))
        self.assertEqual([place["function"] for place in error["allocated_by"]][:2], ["int* make<int>(unsigned long)", "write_int(bool)"])
        self.assertEqual(error["other_allocated_by"][0]["function"], "index(bool, void const*, long, bool)")

    def test_text(self):
        said = self.run_check("--no-leaks", example(AS_WRITTEN), *self.CASE).stderr
        self.assertRegex(
            said,
            r"ulpf: #1 write of 4 bytes at 0x[0-9a-f]+, \d+ bytes (before|behind) a block of 40 bytes: \d+ bytes inside another one of 4000 bytes\n"
            r" +write_int\b.*\n(.*\n)+    allocated by\n +.*make<int>.*\n(.*\n)+    the other one allocated by\n +index\b",
        )

    def test_xml_and_sarif(self):
        xml, sarif = (os.path.join(self.folder, name) for name in ("xml", "sarif"))
        self.run_check("--no-leaks", "--xml", xml, "--sarif", sarif, example(AS_WRITTEN), *self.CASE)
        (error,) = ElementTree.parse(xml).getroot().iterfind("error")
        self.assertEqual(error.findtext("kind"), "InvalidWrite")
        aux = [re.sub(r"0x\w+", "…", aux.text) for aux in error.iterfind("auxwhat")]
        self.assertEqual(aux, ["Allocated by: the block of 40 bytes at …", "The other one allocated by: the block of 4000 bytes at …"])
        self.assertEqual([stack.findtext("frame/fn") for stack in error.iterfind("stack")], ["write_int(bool)", "int* make<int>(unsigned long)", "index(bool, void const*, long, bool)"])
        with open(sarif) as file:
            text = file.read()
        self.assertIn('"ruleId":"far"', text)
        self.assertIn('"text":"the other one allocated by"', text)

    def test_suppressions(self):
        for kind, hides in ("ulpf:far", True), ("Memcheck:Addr4", True), ("ulpf:outside", False):
            with self.subTest(kind):
                path = self.file("hidden.supp", entry(kind, "fun:write_int*"))
                _, _, errors, _ = check(example(AS_WRITTEN), *self.CASE, options=["--no-leaks", "--suppressions", path])
                self.assertEqual(errors == [], hides)


if __name__ == "__main__":
    unittest.main()
