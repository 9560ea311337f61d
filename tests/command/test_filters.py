"""`ulpf run -w 'SPEC if …'`: which hits are logged."""

import unittest

from lib.env import bare, example, needs_registers, ulpf_only
from lib.run import Json, run

TOTAL = "filters: total 1050, flag 9, checked 99, hello, filters\n"


@ulpf_only
class Filters(unittest.TestCase):
    def passed(self, *watches, options=(), name="filters"):
        """Number of hits that pass each filter; the log and the counters have to agree."""
        said = Json(list(watches), name, options=options)
        self.assertEqual((said.status, said.out), bare(example(name)))
        found = []
        for watch in said.summary["watches"]:
            logged = [hit for hit in said.hits if hit["watch"] == watch["watch"]]
            self.assertEqual(len(logged), watch["hits"] - watch["filtered"], watch["spec"])
            found.append([hit["new"] for hit in logged])
        self.assertEqual(said.summary["lost"], 0)
        return found

    def counts(self, *watches, **more):
        return [len(values) for values in self.passed(*watches, **more)]

    def test_conditions(self):
        self.assertEqual(
            self.counts("total if $new > 900", "total if $new > limit", "total if $new - $old == -5", "total if $new < $old",
                        "total if $hits % 10 == 0", "checked if zero == 5 && checked > 50", "checked if $old != $new - 1",
                        "first.x if !head", "first.x if head && head->x != 0 && head->next->state == -1", "shared if $tid != $pid",
                        "table if $new == -49", "table[3] if $new < 0", "ratio if $new > 10.5", "second.low", "shared if mine == 2",
                        "total if $addr == &total && $len == 4 && $writes && !$reads"),
            [31, 31, 10, 10, 21, 5, 1, 25, 75, 200, 1, 4, 15, 0, 100, 210])

    def test_ready_made(self):
        self.assertEqual(
            self.counts("flag changed", "checked skip 90", "checked count 7", "checked skip 3 count 4 if $new >= 50",
                        "total from elsewhere", "total outside elsewhere", "total from elsewhere,add", "total outside filters",
                        "total called from slowly", "total called outside slowly from add", "shared thread main",
                        "shared:rw changed thread main", "buffer from libc", "buffer called from fill outside libc",
                        "buffer outside libc", "total from libnone", "total from add outside filters`add"),
            [9, 10, 7, 4, 10, 200, 210, 0, 100, 100, 100, 100, 3, 0, 0, 0, 0])

    def test_values(self):
        self.assertEqual(self.passed("checked if $new >= 95", "flag changed if $new % 2"),
                         [[95, 96, 97, 98, 99], [1, 3, 5, 7, 9]])

    def test_the_same_without_patches_and_in_registers(self):
        watches = "total if $new > 900", "checked skip 90", "flag changed", "total outside add"
        for options in ["--no-patch"], ["--placement=guard"]:
            self.assertEqual(self.counts(*watches, options=options), [31, 10, 9, 10])

    @needs_registers
    def test_debug_registers(self):
        watches = "total if $new > 900", "checked skip 90", "flag changed", "total outside add"
        self.assertEqual(self.counts(*watches, options=["--placement=debug-register"]), [31, 10, 9, 10])

    def test_the_heap(self):
        said = Json(["heap if ($new >> 32) == 0x6d61726b && $len == 8"], "allocations")
        marks = [int.from_bytes(bytes.fromhex(hit["new_bytes"]), "little") - 0x6d61726b00000000 for hit in said.hits]
        self.assertEqual(sorted(marks), list(range(1, 12)))

    def test_children_have_it_too(self):
        said = Json(["depth if $new == 2"], "family", options=["--follow"])
        self.assertEqual({hit["new"] for hit in said.hits}, {2})
        self.assertGreater(sum(line["watches"][0]["filtered"] for line in said.lines if line["type"] == "summary"), 0)

    def test_a_library_that_comes_and_goes(self):
        """Its code is somewhere else each time, and nowhere between."""
        watches = ["libplugin`plugin_state from libplugin", "libplugin`plugin_state outside libplugin skip 0",
                   "libplugin`plugin_state from libplugin`plugin_step", "notes from libplugin skip 1",
                   "notes outside libplugin", "notes from libplugin`plugin_note"]
        said = Json(watches, "plugins")
        by_watch = [[hit["new"] for hit in said.hits if hit["watch"] == n] for n in range(1, 7)]
        steps = [11, 31, 11, 31]
        self.assertEqual(by_watch, [steps, [], steps, [12], [11, 22], [1, 12]])
        self.assertEqual((said.status, said.out), bare(example("plugins")))

    def test_errors_are_told_once(self):
        said = Json(["checked if 50 / zero == 10", "checked if head->x >= 0", "total"], "filters")
        notices = [line["text"] for line in said.lines if line["type"] == "notice"]
        self.assertEqual(len(notices), 2, notices)
        self.assertRegex(notices[0], r"condition of watch 0 on 0x\w+ \(4 bytes\) cannot be evaluated for the access at 0x\w+: division by zero")
        self.assertRegex(notices[1], r"watch 1 .* memory at 0x8 cannot be read")
        # Where it cannot be told, the hit counts.
        logged = [sum(hit["watch"] == n for hit in said.hits) for n in (1, 2, 3)]
        self.assertEqual(logged, [20, 100, 210])

    def test_text(self):
        status, out, err = run(["total if $new > 900", "checked"], "filters", options=["--quiet"])
        self.assertEqual((status, out), (0, TOTAL))
        self.assertRegex(err, r"ulpf: 310 hits on 2 watches, 1 silent store, 179 filtered out, \d+ false")
        self.assertRegex(err, r"hits +silent +filtered +false +kind")
        self.assertRegex(err, r"\n +210 +0 +179 .*  total if \$new > 900\n")
        self.assertRegex(err, r"\n +100 +1 +0 .*  checked\n")

    def test_what_is_wrong_is_refused(self):
        for spec, why in (("total if $new >", r"nothing follows `>` \(column 15"),
                          ("total if limmit > 3", r"there is no variable `limmit`; did you mean `limit`\? \(column 10, at `limmit > 3`\)"),
                          ("total from ad", r"neither a function nor a library `ad`; did you mean `add`\? \(column 12, at `ad`\)"),
                          ("total changed perhaps", r"one of if, from, outside, .* is expected \(column 15, at `perhaps`\)")):
            status, out, err = run([spec], "filters")
            self.assertEqual((status, out), (2, ""), err)
            self.assertRegex(err, why)

    def test_values_of_more_than_64_bits(self):
        """Refused, and not compared by a half of them."""
        for spec, why in (("big if $new < 0", r"a __int128 has more than 64 bits"), ("big if $old == 5 || $new == 3", r"a __int128 has more"),
                          ("row[1] if $new == 3", r"a (__int128|int128) has more"), ("step if big == 2", r"a __int128 has more"),
                          ("boxed.wide if $new == 3", r"has more than 64 bits"), ("ratio if $new > 3", r"a long double has no value")):
            status, out, err = run([spec], "wide")
            self.assertEqual((status, out), (2, ""), (spec, err))
            self.assertRegex(err, why)
        said = Json(["big if ((long *) &big)[1] < 0 && *(long *) &big == -3"], "wide")
        self.assertEqual(said.status, 0, said.err)
        self.assertTrue(said.hits)
        said = Json(["big", "ratio"], "wide")
        self.assertGreaterEqual(len(said.hits), 40)


@ulpf_only
class Freeze(unittest.TestCase):
    """A watch's bytes keep the value that they have when it is set."""

    def said(self, watches, *args, options=()):
        said = Json(watches, "frozen", *args, options=options)
        self.assertEqual(said.status, 0, said.err)
        return said, dict(line.split(" ", 1) for line in said.out.splitlines())

    def test_a_value_stays(self):
        for options in [], ["--no-patch"]:
            said, out = self.said(["lives freeze", "name freeze"], "5000", options=options)
            self.assertEqual(out, {"alone": "3", "two": "3", "name": "as it was, 0", "set": "3"}, options)
            row = said.summary["watches"][0]
            self.assertEqual(row["hits"], 15001, options)
            self.assertEqual(said.hits[-1]["new"], 7)

    def test_what_does_not_matter_is_stored(self):
        # Only the last store is one that matters: what is there then is what was there when the watch was set.
        _, out = self.said(["lives if $new > $old + 5 freeze"], "10")
        self.assertEqual((out["alone"], out["set"]), ("-7", "3"))

    def test_refusals(self):
        for watch, why in [("heap freeze", "the heap cannot be frozen"), ("lives:r freeze", "sees no stores"), ("main::times freeze", "somewhere else in each call"),
                           ("lives freeze freeze", "said twice")]:
            status, _, err = run([watch], "frozen")
            self.assertEqual(status, 2, watch)
            self.assertIn(why, err)
