"""Sessions of gdb with the ulpf commands."""

import os
import re

from .cases import Case
from .env import ROOT

LOADER = os.path.join(ROOT, "gdb-plugin", "ulpf-gdb.py")


class PluginCase(Case):
    def begin(self, program="filters", *args, done=True, **options):
        """At ready() of an example, with the plugin; a breakpoint at done() follows."""
        gdb = self.session(program, *args, **options)
        gdb(f"source {LOADER}")
        if done:
            gdb("tbreak done")
        return gdb

    def row(self, gdb, number):
        """A watch's line of `ulpf info watches`, by the heads of its columns."""
        lines = gdb("ulpf info watches").splitlines()
        names = lines[0].replace("Lives on", "Lives").split()
        for line in lines[1:]:
            words = line.replace(" log ", "+log ").split()
            if words and words[0] == str(number):
                return dict(zip(names, words))
        raise AssertionError(f"no watch {number} in {lines}")

    def counted(self, gdb, number):
        """Hits and stops of a watch."""
        row = self.row(gdb, number)
        return int(row["Hits"]), int(row["Stops"])

    def assertStop(self, text, number, name, old, new, kind=""):
        self.assertSays(text, rf"Ulpf {kind}watch {number}: " + re.escape(name) + "\n",
                        rf"Old value = {old}\n", rf"New value = {new}\n", r" at \w+\.(c|cc):\d+")
