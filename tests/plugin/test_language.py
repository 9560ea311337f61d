"""The tables of watches and filters (tests/watches.json, filters.json) in gdb; command/symbols runs them for `ulpf run`."""

import json
import os
import re
import subprocess
import tempfile

from lib.env import ROOT, ulpf_only
from lib.plugin import LOADER, PluginCase


@ulpf_only
class Language(PluginCase):
    def test_the_table(self):
        with open(os.path.join(ROOT, "tests", "watches.json")) as file:
            cases = json.load(file)["cases"]
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "shapes")
            subprocess.run(["cc", "-g", os.path.join(ROOT, "command/symbols/fixtures/shapes.c"), "-o", program], check=True)
            gdb = self.session(program, stop="bump")
            gdb(f"source {LOADER}")
            gdb("up")
            for case in cases:
                with self.subTest(case["watch"]):
                    self.one(gdb, case)

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
        for thing, offset, length in case.get("bytes") or case["several"]:
            address = gdb(f"python print(int(gdb.parse_and_eval('(long)&({thing})')))")
            wanted.append((int(address) + offset, length))
        self.assertIn(f"PLACES {wanted}", said)
