"""`ulpf watch p->x` goes where p points, inside the program."""

import collections
import json
import os
import tempfile

from lib.env import ulpf_only
from lib.plugin import PluginCase


@ulpf_only
class Following(PluginCase):
    def at(self, function, *args):
        return self.begin("follows", *args, done=False, stop=function)

    def test_a_pointer_that_changes(self):
        gdb = self.at("plain", "plain")
        self.assertSays(gdb("ulpf watch p->x"), r"^Ulpf watch 1: p->x$")
        self.assertSays(gdb("ulpf info watches"), r"p->x \(nowhere now, moved 0 times\)")
        self.assertStop(gdb("continue"), 1, "p->x", 1, 2)
        self.assertSays(gdb("ulpf info watches"), r"p->x \(at 0x\w+ now, moved 1 time\)")
        self.assertStop(gdb("continue"), 1, "p->x", 0, 3)
        self.assertStop(gdb("continue"), 1, "p->x", 4, 6)
        self.assertStop(gdb("continue"), 1, "p->x", 6, 9)
        self.assertStop(gdb("continue"), 1, "p->x", 5, 10)
        self.assertSays(gdb("ulpf info watches"), r"moved 5 times")
        self.assertExits(gdb)

    def test_what_the_debugger_writes(self):
        gdb = self.at("plain", "plain")
        gdb("ulpf watch p->y")
        gdb("set var p = &b")
        gdb("break here")
        self.assertSays(gdb("continue"), r"Breakpoint \d+, here \(n=1\)")
        gdb("set var a.y = 3")
        self.assertSays(gdb("ulpf info watches"), r"\(at 0x\w+ now, moved 2 times\)")
        gdb("delete")
        self.assertStop(gdb("continue"), 1, "p->y", 3, 7)

    def test_parts_filters_and_the_log(self):
        gdb = self.at("plain", "plain")
        gdb("ulpf watch *p log")
        gdb("ulpf watch p->x if $new > 5 skip 1")
        self.assertStop(gdb("continue"), 2, "p->x", 6, 9)
        said = gdb("ulpf log show 10 of 1")
        for part in r"\(\*p\)\.x", r"\(\*p\)\.y", r"\(\*p\)\.z\[2\]":
            self.assertSays(said, part)
        gdb("ulpf filter 2")
        self.assertStop(gdb("continue"), 2, "p->x", 5, 10)
        self.assertEqual(self.counted(gdb, 2), (5, 2))

    def test_a_condition_that_gdb_cannot_compile(self):
        gdb = self.at("plain", "plain")
        gdb("set var p = &a")
        self.assertSays(gdb("ulpf watch p->weight if $new > 5.5"), r"^Ulpf watch 1: p->weight$")
        self.assertStop(gdb("continue"), 1, "p->weight", 2.5, 6.5)
        self.assertExits(gdb)

    def test_such_a_condition_while_the_pointer_leads_nowhere(self):
        gdb = self.at("plain", "plain")
        self.assertSays(gdb("ulpf watch p->weight if $new > 5.5"), r"^Ulpf watch 1: p->weight$")
        self.assertStop(gdb("continue"), 1, "p->weight", 2.5, 6.5)
        self.assertExits(gdb)

    def test_so_many_bytes(self):
        gdb = self.at("plain", "plain")
        self.assertSays(gdb("ulpf watch p->x:2"), r"^Ulpf watch 1: p->x:2")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: p->x\n", r"Old value = 01 00\n", r"New value = 02 00\n")
        self.assertSays(gdb("ulpf info watches"), r"p->x:2 \(at 0x\w+ now, moved 1 time\)")

    def test_off_and_on_again(self):
        gdb = self.at("plain", "plain")
        gdb("ulpf watch p->x")
        self.assertStop(gdb("continue"), 1, "p->x", 1, 2)
        gdb("ulpf disable 1")
        gdb("break here if n == 3")
        self.assertSays(gdb("continue"), r"here \(n=3\)")
        gdb("ulpf enable 1")
        self.assertSays(gdb("ulpf info watches"), r"nowhere now")
        self.assertStop(gdb("continue"), 1, "p->x", 4, 6)
        gdb("ulpf delete 1")
        gdb("delete")
        self.assertExits(gdb)

    def test_snapshot(self):
        gdb = self.at("plain", "plain")
        self.assertSays(gdb("ulpf watch p->x snapshot"), r"cannot watch p->x: .*no memory at 0x0|Cannot access memory at address 0x0")
        gdb("break here if n == 2")
        gdb("continue")
        gdb("ulpf watch p->x snapshot")
        gdb("ulpf watch p->x log")
        self.assertStop(gdb("continue"), 1, "p->x", 0, 3)
        # It stays at b, where GDB's own follows with p.
        self.assertStop(gdb("continue"), 1, "p->x", 3, 5)
        self.assertNotIn("snapshot (at", gdb("ulpf info watches"))

    def test_a_local_pointer(self):
        gdb = self.at("often", "often", "50")
        gdb("next")
        self.assertSays(gdb("ulpf watch places[1]->x log"), r"^Ulpf watch 1: places\[1\]->x, logged")
        self.assertSays(gdb("finish"), r"ulpf: watch 1 \(places\[1\]->x\) stays where it is: the function that had the pointer has returned")
        self.assertEqual(self.counted(gdb, 1)[0], 25)
        self.assertNotIn("moved", gdb("ulpf info watches"))


@ulpf_only
class Places(PluginCase):
    """Watches of many places go with what the program makes of lists, vectors and strings: tests/programs/mutations.cc
    notes what they should see."""

    WATCHES = {"numbers[*]": "numbers[{}]", "records[*].count": "records[{}].count", "chain->*next.refs": "chain->*next[{}].refs",
               "items[*].value": "items[{}].value", "text[*]": "text[{}]", "owner->value": "owner->value",
               "stack[*]": "stack[{}]", "table[*]->refs": "table[{}]->refs", "numbers[2]": "numbers[2]"}

    def test_at_random(self):
        with tempfile.TemporaryDirectory() as folder:
            notes, log = os.path.join(folder, "notes"), os.path.join(folder, "log.jsonl")
            gdb = self.begin("mutations", "2000", "17", "1", notes, done=False, stop="work", extended=True)
            for number, watch in enumerate(self.WATCHES, 1):
                self.assertSays(gdb(f"ulpf watch {watch} log"), rf"^Ulpf watch {number}: ")
                self.assertSays(gdb("ulpf info watches"), r"\(nowhere now, moved 0 times\)")
            self.assertSays(gdb("continue"), r"exited normally")
            self.assertSays(gdb(f"ulpf log save {log}"), r"^\d+ hits saved in ")
            with open(log) as file:
                hits = sorted(map(json.loads, file), key=lambda hit: hit["time"])
            seen = [(h["watch"], h["name"], h["addr"], h["new_bytes"]) for h in hits]
            with open(notes) as file:
                noted = [line.split() for line in file]
        names = list(self.WATCHES.values())
        expected = [(int(w) + 1, names[int(w)].format(k), at, int(v, 16).to_bytes(8, "little")[:int(n)].hex()) for w, k, at, n, v in noted]
        self.assertGreater(len(expected), 100)
        self.assertEqual(collections.Counter(seen), collections.Counter(expected))
        for number in range(1, len(names) + 1):
            # (Where two of a table's pointers lead to the same bytes, one store is two hits, in any order.)
            stores = [[(s[0], *s[2:]) for s in side if s[0] == number] for side in (seen, expected)]
            self.assertEqual(*stores)

    def test_containers_at_random(self):
        """As tests/command/test_containers.py."""
        watches = {"tree[*].second.value": "tree[#{}].second.value", "table[*].second": "table[#{}].second", "queue[*]": "queue[{}]",
                   "either[1].value": "either[1].value", "maybe[*].second": "maybe[#{}].second",
                   "several[*].second": "several[#{}].second", "queue[2]": "queue[2]"}
        with tempfile.TemporaryDirectory() as folder:
            notes, log = os.path.join(folder, "notes"), os.path.join(folder, "log.jsonl")
            gdb = self.begin("trees", "2500", "17", notes, done=False, stop="mutate", extended=True)
            for number, watch in enumerate(watches, 1):
                self.assertSays(gdb(f"ulpf watch {watch} log"), rf"^Ulpf watch {number}: ")
            gdb("delete breakpoints")
            self.assertSays(gdb("continue"), r"exited normally")
            self.assertSays(gdb(f"ulpf log save {log}"), r"^\d+ hits saved in ")
            with open(log) as file:
                hits = sorted(map(json.loads, file), key=lambda hit: hit["time"])
            seen = [(h["watch"], h["name"], h["addr"], h["new_bytes"]) for h in hits if h.get("function", "").startswith("store")]
            with open(notes) as file:
                noted = [line.split() for line in file]
        names = list(watches.values())
        expected = [(int(w) + 1, names[int(w)].format(k), at, int(v, 16).to_bytes(8, "little")[:int(n)].hex()) for w, k, at, n, v in noted]
        self.assertGreater(len(expected), 200)
        for number in range(1, len(names) + 1):
            self.assertEqual([s for s in seen if s[0] == number], [e for e in expected if e[0] == number])

    def test_so_many_and_no_more(self):
        gdb = self.begin("growing_lists", "0", "11", done=False, stop="at_once")
        gdb("ulpf watch chain->*next.refs most 10 log")
        gdb("ulpf watch chain->*next.refs most 11 log")
        gdb("tbreak _exit")
        said = gdb("continue")
        self.assertSays(said, r"does not follow to the end: .*more than 10 places.*most N")
        self.assertEqual([self.counted(gdb, n)[0] for n in (1, 2)], [1, 2])

    def test_stops(self):
        with tempfile.TemporaryDirectory() as folder:
            notes = os.path.join(folder, "notes")
            gdb = self.begin("mutations", "400", "17", "1", notes, done=False, stop="work")
            gdb("ulpf watch numbers[*] if $new > 0")
            self.assertSays(gdb("continue"), r"Ulpf watch 1: numbers\[\d+\]\n", r"Old value = -?\d+\n", r"New value = \d+\n")
            self.assertSays(gdb("ulpf info watches"), r"numbers\[\*\] if \$new > 0 \(at 0x\w+ now, moved [1-9]\d* times?\)")
            gdb("ulpf filter 1 if $new == 123456789")
            self.assertExits(gdb)
