"""`ulpf-bench`: its machinery. Its measurements are for quiet machines, not for tests."""

import csv
import json
import os
import shutil
import tempfile
import unittest
import xml.etree.ElementTree

from lib.env import ROOT, ULPF, needs, ulpf_only
from lib.run import command

BENCH = os.path.join(ROOT, "target", "release", "ulpf-bench")
COMPILER = ["cc", "as", "ld", "setarch"]


@ulpf_only
@needs("cc")
class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def bench(self, *args, tools=COMPILER, **environment):
        """On a machine that has these tools and no others."""
        path = os.path.join(self.folder, "bin")
        os.makedirs(path, exist_ok=True)
        for tool in tools:
            if not os.path.exists(os.path.join(path, tool)) and shutil.which(tool):
                os.symlink(shutil.which(tool), os.path.join(path, tool))
        made = os.path.join(self.folder, "tmp")
        os.makedirs(made, exist_ok=True)
        said = command(BENCH, "--ulpf", ULPF, *args, env={"PATH": path, "TMPDIR": made, **environment})
        self.assertEqual(os.listdir(made), [], "something was left behind")
        return said

    def test_list(self):
        status, out, err = self.bench("--list")
        self.assertEqual((status, err), (0, ""))
        names = [line.split()[0] for line in out.splitlines()]
        self.assertLessEqual({"sparse", "dense", "extreme", "debuggers", "heap", "store", "coverage"}, set(names))

    def test_a_case_that_is_not_there(self):
        status, out, err = self.bench("--only", "sparse,sprase")
        self.assertEqual((status, out), (2, ""))
        self.assertIn("there is no case `sprase`", err)

    def test_readings_charts_and_tables(self):
        """Base and watched, of several tables; a program that is not installed is left out, and named."""
        readings, charts = (os.path.join(self.folder, name) for name in ("readings.csv", "charts"))
        status, out, err = self.bench("-q", "--only", "sparse", "--json", "--csv", readings, "--svg", charts)
        self.assertEqual(status, 0, err)
        for peer in "gdb hardware", "gdbserver", "valgrind":
            self.assertRegex(err, f"{peer} is left out: \\w+ is not installed")

        with open(readings, newline="") as file:
            lines = list(csv.reader(file))
        described = [line[0] for line in lines if line[0].startswith("# ")]
        self.assertTrue(any(line.startswith("# kernel: Linux ") for line in described), described)
        head, *rows = lines[len(described):]
        self.assertEqual(head, ["case", "variant", "unit", "value"])
        values = {(row[1], row[2]): float(row[3]) for row in rows}
        bare = values["bare", "ns"]
        self.assertGreater(bare, 0.01)
        for watches in 1, 16, 256:
            self.assertGreater(values[f"{watches} watches, patched", "ns"], 0.01)
        # A page fault for each store: hundreds of times as long.
        self.assertGreater(values["1 watches, trap", "ns"], 2 * values["1 watches, patched", "ns"])

        said = json.loads(out)
        goals, table = said["tables"]
        self.assertEqual(len(goals["rows"]), 3)
        self.assertEqual([row[0] for row in table["rows"]], ["1", "16", "256"])
        for row in table["rows"]:
            self.assertEqual(len(row), len(table["head"]))
            self.assertIn(row[-1], ("goal met", "bar met", "missed"))

        self.assertEqual(os.listdir(charts), ["slowdown-by-pages.svg"])
        root = xml.etree.ElementTree.parse(os.path.join(charts, "slowdown-by-pages.svg")).getroot()
        lines = [node for node in root.iter() if node.tag.endswith("polyline")]
        self.assertGreaterEqual(len(lines), 4)
        for line in lines:
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                self.assertTrue(0 < x < float(root.get("width")) and 0 < y < float(root.get("height")), point)

    def test_a_vectorised_loop_is_refused(self):
        compiler = os.path.join(self.folder, "vectors")
        with open(compiler, "w") as script:
            script.write(f'#!/bin/sh\nexec {shutil.which("cc")} "$@" -O3 -DSTORED= -fno-tree-loop-distribute-patterns\n')
        os.chmod(compiler, 0o755)
        status, out, err = self.bench("-q", "--only", "dense", CC=compiler)
        self.assertEqual((status, out), (1, ""))
        self.assertIn("the compiler has not made one store instruction a byte; nothing is measured", err)

    def test_without_a_compiler(self):
        status, out, err = self.bench("-q", "--only", "dense", CC="no-such-compiler")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("there is no C compiler `no-such-compiler`", err)
        self.assertIn("apt install gcc", err)

    def test_coverage(self):
        """Read from this machine's files, whatever they are: most stores can be patched."""
        status, out, err = self.bench("--only", "coverage", "--json")
        self.assertEqual(status, 0, err)
        table = next(t for t in json.loads(out)["tables"] if t["title"].startswith("Sites that some tactic"))
        libc = next(row for row in table["rows"] if row[0] == "libc.so.6, stores")
        self.assertGreater(float(libc[5].split()[0]), 90)

    def test_only_in_the_source_tree(self):
        status, out, err = command(BENCH, "--write", cwd=self.folder)
        self.assertEqual((status, out), (2, ""))
        self.assertIn("--write belongs in ulpf's source tree", err)

    def test_the_page_has_a_place_for_figures(self):
        with open(os.path.join(ROOT, "docs", "notes", "measurements.md")) as page:
            text = page.read()
        self.assertLess(text.index("<!-- begin figures -->"), text.index("<!-- end figures -->"))
