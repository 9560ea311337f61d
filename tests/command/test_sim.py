"""`ulpf sim`: the simulated hardware behind the command."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from lib.env import ROOT, ULPF, ulpf_only

SIM = os.path.join(ROOT, "target", "release", "ulpf-sim")


def run(*words, command=ULPF, path=None):
    env = dict(os.environ, PATH=path) if path is not None else None
    done = subprocess.run([command, "sim", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                          timeout=300)
    return done.returncode, done.stdout, done.stderr


@ulpf_only
class Sim(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def program(self, text):
        source, binary = os.path.join(self.folder, "p.c"), os.path.join(self.folder, "p")
        with open(source, "w") as file:
            file.write(text)
        subprocess.run(["gcc", "-static", "-O1", "-o", binary, source], check=True)
        return binary

    def need(self):
        if not os.path.exists(SIM):
            self.skipTest("ulpf-sim is not built (`make sim`)")

    def test_without_ulpf_sim(self):
        """It says what to build, wherever `ulpf` lies."""
        alone = os.path.join(self.folder, "ulpf")
        shutil.copy(ULPF, alone)
        status, _, err = run("prog", command=alone, path="/nonexistent")
        self.assertEqual(status, 125)
        self.assertIn("`make sim` builds it", err)

    def test_a_program_and_its_statistics(self):
        self.need()
        program = self.program("int x; int main(int c, char **v) { for (int i = 0; i < 9; i++) ((volatile int *)&x)[0]++; return 40 + c; }")
        status, out, err = run("--stats", "--json", os.path.join(self.folder, "s"), "--watch", "x", program, "a")
        self.assertEqual((status, out), (42, ""), err)
        self.assertIn("tlb misses", err)
        with open(os.path.join(self.folder, "s")) as file:
            stats = json.load(file)
        # A read-modify-write is one fault and one hit.
        self.assertEqual((stats["status"], stats["hits"]), (42, 9))
        for name in "cycles", "tlb_hits", "tlb_misses", "faults", "false_positives", "handler_cycles":
            self.assertIn(name, stats)

    def test_beside_the_command(self):
        """An installed pair, not in PATH."""
        self.need()
        for file in ULPF, SIM:
            shutil.copy(file, self.folder)
        status, out, _ = run("--version", command=os.path.join(self.folder, "ulpf"), path="/nonexistent")
        self.assertEqual(status, 0)
        self.assertTrue(out.startswith("ulpf-sim "), out)
