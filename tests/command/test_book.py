"""The README and the book (docs/): every console block is run, every link leads somewhere, figures are the measured ones."""

import os
import re
import shlex
import subprocess
import unittest

from lib import console
from lib.env import ROOT, ULPF, example, needs, ulpf_only


def read(*names):
    with open(os.path.join(ROOT, *names), encoding="utf-8") as file:
        return file.read()


def said_by_the_sources():
    """All texts of the programs, with `…` in the place of what is filled in, and without backticks."""
    names = subprocess.run(["git", "ls-files", "command/**.rs", "stub/**.rs", "ulpf-lib/**.rs", "gdb-plugin/**.py"], cwd=ROOT, stdout=subprocess.PIPE,
                           text=True, check=True).stdout.split()
    text = "\n".join(read(name) for name in names)
    # A string that goes on in the next line: Rust's, then Python's.
    text = re.sub(r'\\\n\s*|"\n\s*f?"', "", text).replace('\\"', '"').replace("`", "")
    return re.sub(r"\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\}", "…", text)


@ulpf_only
class Pages(unittest.TestCase):
    """A test for each page, of its name: test_readme, test_tutorial_gdb, …"""

    limit = 300


def tried(path):
    def test(self):
        if missing := console.missing(path):
            self.skipTest(f"the page needs {', '.join(missing)}")
        self.assertGreater(console.try_page(path), 0)
        with open(path, encoding="utf-8") as file:
            for line, command in console.left_out(file.read()).items():
                with self.subTest(line=line):
                    self.skipTest(f"line {line} needs a machine where this works: {command}")
    return test


for page in console.pages():
    name = re.sub(r"\W", "_", os.path.relpath(page, os.path.join(ROOT, "docs")).removesuffix(".md").removeprefix("../")).lower()
    setattr(Pages, f"test_{name}", tried(page))


class Book(unittest.TestCase):
    def test_links(self):
        done = subprocess.run([os.path.join(ROOT, "tests", "links")], stdout=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_all_kinds_of_users_have_a_page_that_is_tried(self):
        tests = {name for name in dir(Pages) if name.startswith("test_")}
        self.assertLessEqual({"test_readme", "test_recipes", "test_tutorial_gdb", "test_tutorial_lldb", "test_tutorial_terminal",
                              "test_tutorial_library", "test_tutorial_ci"}, tests)

    def test_messages_that_are_explained_exist(self):
        rows = re.findall(r"(?m)^\| (?!message|---)(.*?) \| .* \|$", read("docs", "errors.md"))
        self.assertGreater(len(rows), 40)
        sources = said_by_the_sources()
        for message in rows:
            self.assertIn(message.strip("… "), sources)

    def test_headline_figures_are_the_measured_ones(self):
        """Each row of the README's table is, number for number, part of the row in the record."""
        table = read("docs", "notes", "measurements.md").split("### Beside debuggers")[1].split("###")[0]
        rows = re.findall(r"(?m)^\| (\d+) \| (.*) \|$", read("README.md").split("GDB, hardware")[1].split("##")[0])
        self.assertEqual([watches for watches, _ in rows], ["1", "4", "8", "64"])
        for watches, figures in rows:
            cells = re.search(rf"(?m)^\| {watches} \| (.*)$", table)[1].split(" | ")
            # Patched, then without the trap path's column.
            self.assertEqual(figures.split(" | "), [cells[0], *cells[2:6]])


@ulpf_only
class Examples(unittest.TestCase):
    """Each command of the table in examples/README.md has a hit. (command.test_top runs the one of `ulpf top`.)"""

    def rows(self):
        rows = re.findall(r"(?m)^\| `(\w+)` \| .* \| (`.*`) \|$", read("examples", "README.md"))
        self.assertGreater(len(rows), 10)
        return [(name, re.findall(r"`([^`]+)`", commands)) for name, commands in rows]

    def said(self, *words, **options):
        return subprocess.run([ULPF, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options).stdout

    def test_in_a_shell(self):
        for name, (command, *_) in self.rows():
            words = shlex.split(command)
            if words[:2] == ["ulpf", "run"]:
                with self.subTest(name):
                    self.assertEqual(words[-1], f"examples/bin/{name}")
                    self.assertRegex(self.said(*words[1:-1], example(name)), r"(?m)^ulpf: .*\b[1-9]\d* hits? on 1 watch")

    @needs("gdb")
    def test_in_gdb(self):
        for name, commands in self.rows():
            if commands[0].startswith(("ulpf run", "ulpf top")):
                continue
            with self.subTest(name):
                typed = [word for command in ("start", *commands, "continue", "kill") for word in ("-ex", command)]
                said = self.said("gdb", "-nx", "-batch", *typed, example(name))
                numbers = r"(?i)(?:watch|watchpoint) (\d+): "
                self.assertEqual(len(set(re.findall(numbers, said))), sum("watch" in command for command in commands), said)
                self.assertRegex(said.split("Continuing.")[-1], numbers)
