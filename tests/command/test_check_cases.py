"""`ulpf check` on small programs with one error each, by their numbers in the Common Weakness Enumeration, and on twins
without it: no error is missed, none is invented. Valgrind's memcheck, where it is there, says the same of them."""

import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from command.test_check import check
from lib.env import PATIENCE, find_tool, ulpf_only
from lib.run import program

PROGRAM = "heap_cases"


def cases():
    """The function of each case, and the kind of its error."""
    listed = subprocess.run([program(PROGRAM)], capture_output=True, text=True, check=True)
    return dict(line.split() for line in listed.stdout.splitlines())


def plain(function):
    return (function or "").split("(")[0]


@ulpf_only
class Cases(unittest.TestCase):
    def test_bad_ones_are_found(self):
        expected = cases()
        self.assertGreater(len(expected), 50)
        _, _, errors, heap = check(program(PROGRAM), "bad")
        found = {}
        for error in errors:
            places = [error.get("place", {}), *error["callers"]] if error.get("tid") else error["allocated_by"]
            names = [plain(place.get("function")) for place in places]
            case = next((name for name in names if name in expected), None)
            self.assertIsNotNone(case, error)
            found.setdefault(case, set()).add(error["error"])
        self.assertEqual(found, {case: {word} for case, word in expected.items()})
        self.assertTrue(heap["searched"])

    def test_good_ones_are_silent(self):
        status, _, errors, heap = check(program(PROGRAM), "good")
        self.assertEqual((status, errors, heap["errors"]), (0, [], 0))
        self.assertGreaterEqual(heap["allocated"], len(cases()))

    def test_memcheck_agrees(self):
        """The cases are what their names say."""
        if not find_tool("valgrind"):
            self.skipTest("valgrind is not there")
        for word, expected in ("bad", set(cases())), ("good", set()):
            with self.subTest(word), tempfile.TemporaryDirectory(prefix="ulpf-cases-") as folder:
                path = os.path.join(folder, "found.xml")
                command = ["valgrind", "--leak-check=full", "--xml=yes", f"--xml-file={path}", program(PROGRAM), word]
                subprocess.run(command, capture_output=True, timeout=120 * PATIENCE)
                found = ElementTree.parse(path).getroot().iterfind("error/stack/frame/fn")
                names = {plain(name.text) for name in found}
                self.assertEqual({name for name in names if name.startswith("cwe")}, expected)


if __name__ == "__main__":
    unittest.main()
