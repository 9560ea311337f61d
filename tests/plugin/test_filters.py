"""Clauses of `ulpf watch`: what the program's threads decide by themselves."""

import re

from lib.env import ulpf_only
from lib.plugin import PluginCase


@ulpf_only
class Clauses(PluginCase):
    def passed(self, gdb, number):
        row = self.row(gdb, number)
        return int(row["Hits"]), int(row["Hits"]) - int(row["Filtered"])

    def all_passed(self, *clauses, variable="total"):
        """For each of these clauses, the number of all hits, and of those that pass; all are logged."""
        gdb = self.begin()
        for clause in clauses:
            self.assertSays(gdb(f"ulpf watch {variable} {clause} log"), r"^Ulpf (access )?watch \d+: .*, logged\n")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        return [self.passed(gdb, n) for n in range(1, len(clauses) + 1)]

    def test_conditions(self):
        """Of the types that GDB knows: $new is an int, locals mean those of the frame."""
        self.assertEqual(self.all_passed("if $new > limit", "if $new < $old", "if $new - $old == -5", "if $hits % 10 == 0",
                                         "if $new > second.x && first.x == 0", "if $new > 900 || total == 1"),
                         [(210, n) for n in (31, 10, 10, 21, 209, 32)])

    def test_small_and_signed(self):
        gdb = self.begin()
        gdb("ulpf watch table[0..16] if $new == 0x1111 log")
        gdb("ulpf watch first->*next.state if $new < 0 log")
        gdb("ulpf watch first->*next.state if $new >= 0 log")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        # One memset, which may store in two parts, and the same bytes twice: as libc thinks best of this processor.
        self.assertIn(self.passed(gdb, 1)[1], (1, 2))
        hits, below = self.passed(gdb, 2)
        self.assertEqual(below + self.passed(gdb, 3)[1], hits)

    def test_floating_point(self):
        """GDB cannot compile it; the server does."""
        gdb = self.begin()
        gdb("ulpf watch ratio if $new > 3.5")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: ratio\n\nOld value = \S+\nNew value = (3\.[6-9]|[4-9])")
        self.assertSays(gdb("ulpf watch first->*next.x if $new > 3.5"), r"^the condition .* cannot be used: .*an integer is not compared with a floating-point value")
        self.assertSays(gdb("ulpf watch first->*next.x if $new > 3.5 snapshot"), r"^the condition .* cannot be used: GDB cannot compile it: ")

    def test_places(self):
        self.assertEqual(self.all_passed("from elsewhere", "outside elsewhere", "called from slowly", "from add called outside slowly",
                                         "from filters", "from libc.so"),
                         [(210, n) for n in (10, 200, 100, 100, 210, 0)])

    def test_skip_count_changed(self):
        self.assertEqual(self.all_passed("skip 90", "count 7", "skip 3 count 4 if $new >= 50", "changed", variable="checked"),
                         [(100, 10), (100, 7), (100, 4), (100, 99)])

    def test_thread(self):
        gdb = self.begin()
        gdb("ulpf watch shared thread 1 log")
        self.assertSays(gdb("ulpf watch shared thread 9"), r"^no thread 9: .*; info threads lists them\.\n")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        self.assertEqual(self.passed(gdb, 1), (300, 100))

    def test_changing_them(self):
        gdb = self.begin()
        gdb("ulpf watch total")
        gdb("continue")
        gdb("ulpf filter 1 if $new > 1000")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: total\n", r"New value = 1001\n")
        gdb("ulpf filter 1")
        self.assertSays(gdb("continue"), r"New value = 1011\n")
        self.assertSays(gdb("ulpf filter 1 maybe"), r"^ulpf filter 1: maybe says nothing about hits; ")
        self.assertSays(gdb("ulpf filter x"), r"^ulpf filter: it takes the number of a watch first; ")
        self.assertSays(gdb("ulpf filter 7 changed"), r"^no ulpf watch 7: ")

    def test_a_local_in_a_condition(self):
        gdb = self.begin(done=False)
        gdb("break slowly\ncontinue\nup")
        self.assertSays(gdb("info locals"), r"i = 0")
        self.assertSays(gdb("ulpf watch total if i == 7"), r"^Ulpf watch 1|lives in|no place in memory")
        gdb("delete")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: total\n")
        gdb("up\nup")
        self.assertEqual(re.findall(r"\bi = (\d+)", gdb("info locals")), ["7"])

    def test_values_that_bytecode_does_not_have(self):
        gdb = self.begin("wide")
        for watch in "big if $new < 0", "big if big == 2", "row[1] if $old == 2", "ratio if $new > 2", "step if pair.count == 70", \
                "step if at->count == 70", "step if boxed.wide == 3", "step if (__int128) step == 4":
            with self.subTest(watch=watch):
                self.assertSays(gdb(f"ulpf watch {watch}"), r"^the condition .* cannot be used: .+; ")
        gdb("ulpf watch big if *(long *) &big == 2")
        self.assertSays(gdb("continue"), r"Old value = 3\n", r"New value = 2\n")

    def test_bad_conditions(self):
        gdb = self.begin()
        for condition in "nosuch == 3", "$new ==", "total +* 3":
            self.assertSays(gdb(f"ulpf watch total if {condition}"), r"^the condition .* cannot be used: .+; ")
        self.assertSays(gdb("ulpf watch total from nowhere"), r"^no code is called nowhere: ")
        self.assertSays(gdb("ulpf info watches"), r"No ulpf watches")
