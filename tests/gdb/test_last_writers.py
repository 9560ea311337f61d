"""Records of last writers beside watches that count, on pages that one instruction writes to."""

import json
import re

from lib.cases import Case
from lib.env import ulpf_only

LARGE, BLOCK = 65536, 20000


@ulpf_only
class LastWriters(Case):
    def hits(self, gdb, number):
        [watch] = [watch for watch in json.loads(gdb("monitor ulpf stats"))["watches"] if watch["id"] == number]
        return watch["hits"]

    def watch(self, gdb, at):
        return int(re.search(r'"watch":(\d+)', gdb(f"monitor ulpf watch {at:#x} {LARGE} w"))[1])

    def check_block(self, gdb):
        at = int(gdb.value("(long)block"))
        answer = json.loads(gdb(f"monitor ulpf last {at:#x} {BLOCK}"))
        self.assertEqual(sum(stretch["len"] for stretch in answer["last"]), BLOCK)
        self.assertEqual({gdb(f"info symbol {stretch['pc']}").split()[0] for stretch in answer["last"]}, {"fill"})

    def begin(self):
        gdb = self.session("records_and_counts")
        gdb("tbreak between\ntbreak done")
        return gdb, int(gdb.value("(long)&array"))

    def test_a_watch_that_counts_comes_first(self):
        """Its patches write no records."""
        gdb, at = self.begin()
        number = self.watch(gdb, at)
        gdb("continue")
        self.assertEqual(self.hits(gdb, number), 20 * LARGE)
        self.assertIn('"last_writers":true', gdb("monitor ulpf last-writers"))
        gdb("continue")
        self.assertEqual(self.hits(gdb, number), 40 * LARGE)
        self.check_block(gdb)

    def test_a_watch_that_counts_comes_second(self):
        """Trampolines that write records do not count."""
        gdb, at = self.begin()
        gdb("monitor ulpf last-writers")
        gdb("continue")
        number = self.watch(gdb, at)
        gdb("continue")
        self.assertEqual(self.hits(gdb, number), 20 * LARGE)
        self.check_block(gdb)
