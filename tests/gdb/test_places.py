"""Many watches in one command: monitor ulpf watches."""

import json
import re

from lib.cases import Case
from lib.env import bare, example, ulpf_only


@ulpf_only
class Places(Case):
    def setUp(self):
        super().setUp()
        self.gdb = self.session("sweep", "2", options=["--placement=guard"])
        self.block = self.gdb.value("(long)block")

    def replies(self, command):
        """Its answer, a line each."""
        return [json.loads(line) for line in re.findall(r"{.*}", self.gdb(f"monitor ulpf {command}"))]

    def refused(self, command, what):
        answer = self.replies(command)
        self.assertEqual(len(answer), 1, answer)
        self.assertRegex(answer[0]["refused"]["why"] + answer[0]["refused"]["what_to_do"], what)

    def test_a_stretch(self):
        replies = self.replies(f"watches w at {self.block}:1*256+4096 {self.block + 1:#x}:2 {self.block + 5}:1*3+2")
        self.assertEqual(replies, [{"watches": [0, 260]}])
        self.gdb("tbreak printf")
        self.assertSays(self.gdb("continue"), r"Temporary breakpoint")
        [stats] = self.replies("stats")
        watches = {w["start"]: (w["len"], w["hits"]) for w in stats["watches"]}
        expected = {self.block + n * 4096: (1, 2) for n in range(256)}
        expected[self.block + 1] = (2, 4)
        expected |= {self.block + 5 + n * 2: (1, 2) for n in range(3)}
        self.assertEqual(watches, expected)
        status, text = bare(example("sweep"), "2")
        self.assertExits(self.gdb, status, text.strip())

    def test_what_is_to_be_done_holds_for_all(self):
        self.replies(f"watches w log at {self.block + 4096}:1 {self.block + 8192}:1*2+1")
        self.replies(f"watches w at {self.block + 4}:1")
        self.gdb("tbreak printf")
        self.gdb("continue")
        hits = [int(hit["addr"], 0) - self.block for hit in self.replies("log") if "addr" in hit]
        self.assertEqual(hits, [4096, 8192, 8193] * 2)

    def test_some_are_refused(self):
        """The others are armed, and the answer says which is which."""
        replies = self.replies(f"watches w at {self.block}:1 nothing {self.block + 8}:0 0x10:8 {self.block + 16}:8*2+8")
        first, no_place, empty, unmapped, last = replies
        self.assertEqual((first, last), ({"watches": [0, 1]}, {"watches": [1, 2]}))
        self.assertRegex(no_place["refused"]["what_to_do"], r"ADDR:LEN\*COUNT\+STRIDE")
        self.assertRegex(empty["refused"]["why"], r"length is zero")
        self.assertIn("why", unmapped["refused"])

    def test_what_makes_no_sense(self):
        at = f"at {self.block}:1"
        self.refused(f"watches {at}", r"kind has to be r, w or rw")
        self.refused("watches w log", r"no place is named")
        self.refused(f"watches w changed {at}", r"`changed` says nothing that holds for many")
        self.refused(f"watches w bt 99 {at}", r"from 0 to 16")
        self.refused(f"watches w at {self.block}:1*2", r"ADDR:LEN\*COUNT\+STRIDE")
        self.refused(f"watches w at {self.block}:1*99999999+1", r"ADDR:LEN\*COUNT\+STRIDE")
        self.refused("watches w at 0xffffffffffffffff:2", r"wraps around")
        self.assertEqual(self.replies(f"watches w {at}"), [{"watches": [0, 1]}])
