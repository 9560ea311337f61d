"""The runner of the book's console blocks finds what differs."""

import tempfile
import unittest

from lib import console
from lib.env import ulpf_only


@ulpf_only
class Console(unittest.TestCase):
    def page(self, *lines):
        with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
            file.write("\n".join(["# A page", "```console", *lines, "```", ""]))
            file.flush()
            return console.try_page(file.name)

    def test_what_fits(self):
        self.assertEqual(self.page("$ echo one; echo two; echo three", "one", "…", "three"), 1)
        self.assertEqual(self.page("$ x=7", "$ echo [1234] 0.123456 $x >&2", "[9876] 5.000001 7"), 2)
        self.assertEqual(self.page("$ printf 'a\\n'", "a", "$ true"), 2)
        self.assertEqual(self.page("$ cat \\", "    /dev/null"), 1)

    def test_what_does_not_fit(self):
        for lines in (("$ echo one", "two"), ("$ echo one",), ("$ true", "something"), ("$ echo one two", "one"), ("$ echo one two", "… one"),
                      ("$ echo 17", "18"), ("$ echo one; echo two", "two", "…")):
            with self.subTest(lines), self.assertRaisesRegex(AssertionError, r"md:3: \$ .*\nsays: .*\nexpected: "):
                self.page(*lines)

    def test_a_command_without_an_end(self):
        shell_seconds, console.PATIENCE = console.PATIENCE, 0.02
        try:
            with self.assertRaisesRegex(AssertionError, "no end"):
                self.page("$ sleep 100")
        finally:
            console.PATIENCE = shell_seconds
