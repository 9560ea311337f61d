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


def sections(page):
    """The (heading's anchor, text) of each part of a page, where headings are of the second or third level."""
    for heading, text in re.findall(r"(?ms)^##+ ([^\n]+)\n(.*?)(?=^##|\Z)", page):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"), text


def rows(text):
    """The cells of each row of a text's tables, without the tables' heads."""
    for table in re.findall(r"(?m)^\|.*\n\|[-:| ]+\|\n((?:\|.*\n)*)", text):
        yield from ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())


def figures(*cells):
    """Numbers, and the dash that stands for none, in their order."""
    return re.findall(r"–|\d+(?:,\d{3})*(?:\.\d+)?", " ".join(cells))


def missing_rows(page, record):
    """The rows of `page` that are no part of a row of `record`, number for number.

    A row is looked for in the sections of the record that its own section links to; if one of their rows has the same
    first cell, then only in the rows that have. Its own first cell is text, unless it is a number."""
    parts = dict(sections(record))
    for _, text in sections(page):
        linked = [row for anchor in re.findall(r"measurements\.md#([\w-]+)", text) for row in rows(parts[anchor])]
        for first, *rest in rows(text):
            wanted = figures(*([first] if figures(first) == [first] else []), *rest)
            of_this_name = [row for row in linked if row[0] == first]
            for row in of_this_name or linked:
                left = iter(figures(*row))
                if wanted and all(figure in left for figure in wanted):
                    break
            else:
                yield [first, *rest]


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
        """Each row of the README's table is, cell for cell, part of the row in BENCHMARKS.md."""
        table = {row[0]: row for row in rows(dict(sections(read("BENCHMARKS.md")))["1-beside-debuggers"])}
        shown = list(rows(read("README.md").split("Slowdown of a loop")[1].split("##")[0]))
        self.assertEqual([row[0] for row in shown], ["1", "4", "8", "64"])
        for row in shown:
            watches, patched, _, *others = table[row[0]]
            self.assertEqual(row, [watches, patched, *others])

    def test_benchmarks_are_the_measured_ones(self):
        """Each row of BENCHMARKS.md is, number for number, part of a row of the record (docs/notes/measurements.md)."""
        page, record = read("BENCHMARKS.md"), read("docs", "notes", "measurements.md")
        tables = [len(list(rows(text))) for _, text in sections(page)]
        self.assertEqual(sum(count > 4 for count in tables), 6, tables)
        self.assertEqual(list(missing_rows(page, record)), [])

    def test_a_row_that_is_not_in_the_record(self):
        record = "## Real\n| program | ms | writes | reads |\n|---|---|---|---|\n| perl | 2,877 | 3.29× | – |\n| 8 | 20 | 30 | 40 |\n"
        for row, found in (("perl | 2,877 | –", True), ("perl's loop | 3.29×", True), ("8 | 20 ms, 40 µs", True), ("perl | 2,878", False),
                           ("perl | 20", False), ("4 | 20", False), ("8 | 40 | 30", False), ("perl | –, 3.29×", False)):
            with self.subTest(row):
                page = f"## Table\n[all](docs/notes/measurements.md#real)\n\n| program | figures |\n|---|---|\n| {row} |\n"
                self.assertEqual(list(missing_rows(page, record)), [] if found else [row.split(" | ")])


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
