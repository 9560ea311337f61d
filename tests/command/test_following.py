"""Watches follow pointers: `p->x` is resolved again at each change of p, before the thread continues."""

import collections
import os
import tempfile
import unittest

from lib.env import needs_registers, ulpf_only
from lib.run import Json, run

# Places whose stores tests/programs/mutations.cc records, by its numbers; `{}` is the number of the place.
MANY = {"numbers[*]": "numbers[{}]", "records[*].count": "records[{}].count", "chain->*next.refs": "chain->*next[{}].refs",
        "items[*].value": "items[{}].value", "text[*]": "text[{}]", "owner->value": "owner->value", "stack[*]": "stack[{}]",
        "table[*]->refs": "table[{}]->refs", "numbers[2]": "numbers[2]"}
# Places whose stores tests/programs/following.c records, by its numbers.
WATCHED = ["head->value", "head->next->next->value", "*pair[1]->inner", "other->value"]


@ulpf_only
class Following(unittest.TestCase):
    limit = 200

    def follow(self, watches, *args, options=(), **more):
        said = Json(watches, "follows", *args, options=options, **more)
        self.assertEqual(said.status, 0, said.err)
        return said

    def test_changes_and_null(self):
        said = self.follow(["p->x"], "plain")
        self.assertEqual(said.changes(), [("p->x", *v) for v in [("1", "2"), ("0", "3"), ("4", "6"), ("6", "9"), ("5", "10")]])
        counted = said.summary["watches"][0]
        # To a, b, nowhere, a, b; a store of the same pointer moves nothing.
        self.assertEqual((counted["hits"], counted["moved"]), (5, 5))
        armed = next(line for line in said.lines if line["type"] == "watch")
        self.assertEqual((armed["follows"], armed["addr"]), (True, "0x0"))
        self.assertEqual(counted["addr"], said.hits[-1]["addr"])
        self.assertFalse(any(line["type"] == "notice" for line in said.lines), "NULL is no news")

    def test_parts_of_a_structure_are_named(self):
        said = self.follow(["*p"], "plain")
        names = [hit["name"] for hit in said.hits]
        self.assertEqual(names, ["p->x", "p->x", "p->x", "p->y", "p->z[2]", "p->x", "p->x", "p->weight", "p->weight"])

    def test_pointers_to_pointers(self):
        said = self.follow(["(*pp)->x", "**pp", "p->x", "p->z[2]"], "plain")
        by = collections.Counter(hit["spec"] for hit in said.hits)
        self.assertEqual(by, {"(*pp)->x": 2, "**pp": 4, "p->x": 5, "p->z[2]": 1})
        self.assertIn("(*pp)->x", [hit["name"] for hit in said.hits])

    def test_a_snapshot_stays(self):
        status, _, err = run(["p->x snapshot"], "follows", "plain")
        self.assertEqual(status, 2)
        self.assertRegex(err, r"the pointer `p` is null now")
        said = self.follow(["p->x snapshot"], "plain", options=["--at", "here"])
        # Where p pointed when `here` was called for the first time: a.x.
        self.assertEqual([hit["new"] for hit in said.hits], [4, 6, 9])
        self.assertNotIn("moved", said.summary["watches"][0])

    def test_a_list_that_is_empty_at_first(self):
        said = self.follow(["p->*link.x"], "plain")
        whole = self.follow(["p->x"], "plain")
        self.assertEqual([hit["new"] for hit in said.hits if hit["name"] == "p->*link[0].x"], [hit["new"] for hit in whole.hits])
        armed = next(line for line in said.lines if line["type"] == "watch")
        self.assertEqual((armed["spec"], armed["follows"], armed["addr"]), ("p->*link.x", True, "0x0"))
        self.assertFalse(any(line["type"] == "notice" for line in said.lines))

    def test_a_list_that_stays(self):
        """`snapshot`: where the pointers on its way lead when it is set, and these must lead somewhere then."""
        status, _, err = run(["p->*link.x snapshot"], "follows", "plain")
        self.assertEqual(status, 2)
        self.assertRegex(err, r"it has no elements now")
        said = self.follow(["p->*link.x snapshot"], "plain", options=["--at", "here"])
        self.assertEqual([hit["new"] for hit in said.hits], [4, 6, 9])
        self.assertEqual({hit["name"] for hit in said.hits}, {"p->*link[0].x"})
        armed = next(line for line in said.lines if line["type"] == "watch")
        self.assertNotIn("follows", armed)
        self.assertNotIn("moved", said.summary["watches"][0])

    def test_parts_behind_a_null_pointer(self):
        """The offset from a pointer's target to the first element is added once, also while the pointer is NULL."""
        for watch, stores in [("holder->pairs[1..3].x", [("holder->pairs[1].x", 21), ("holder->pairs[2].x", 22)]),
                              ("holder->pairs[2]->*link.x", [("holder->pairs[2]->*link[0].x", 22), ("holder->pairs[2]->*link[1].x", 30)]),
                              ("p->z[1..3]", [("p->z[1]", 11), ("p->z[2]", 12)])]:
            with self.subTest(watch):
                said = self.follow([watch], "elements")
                self.assertEqual([(hit["name"], hit["new"]) for hit in said.hits], stores)

    def test_conditions_and_ranges(self):
        said = self.follow(["p->x if $new > 3 && $new < 10", "p->z[1..3]"], "plain")
        self.assertEqual([(h["name"], h["new"]) for h in said.hits], [("p->x", 6), ("p->z[2]", 8), ("p->x", 9)])
        self.assertEqual(said.summary["watches"][0]["filtered"], 3)

    def test_memory_that_comes_and_goes(self):
        said = self.follow(["p->x", "(*pp)->x"], "mapped")
        stores = [(h["watch"], h["new"]) for h in said.hits]
        self.assertEqual([n for w, n in stores if w == 1][:3], [1, 2, 3])
        self.assertEqual([n for w, n in stores if w == 2], [4, 7])

    def test_realloc_and_free(self):
        said = self.follow(["p->x"], "moved")
        self.assertEqual([h["new"] for h in said.hits if h["object"] == "follows"], list(range(1, 8)))
        self.assertEqual({h["object"] for h in said.hits}, {"follows"}, "nothing of what malloc does to blocks that p has left")
        self.assertEqual(said.summary["watches"][0]["addr"], "0x0")

    def test_a_handler_comes_between(self):
        self.assertEqual(len(self.follow(["p->x"], "signalled").hits), 100)

    def test_children_follow_too(self):
        said = self.follow(["p->x"], "forked", options=["--follow"])
        self.assertEqual(sorted(hit["new"] for hit in said.hits), [1, 2])

    def test_another_thread_uses_the_pointer_at_once(self):
        for options in [], ["--no-patch"]:
            with self.subTest(options):
                said = self.follow(["p->x"], "race", "2000", options=options, seconds=90)
                self.assertEqual([hit["new"] for hit in said.hits], list(range(2000)))

    def test_refusals(self):
        long = "->link" * 17
        for watch, why in [(f"p{long}->x", r"18 pointers are on the way, and 16 at most are followed; .*snapshot"),
                           ("p->nosuch", r"has no field `nosuch`"),
                           ("rounds->x", r"`rounds` is .*no pointer")]:
            with self.subTest(watch):
                status, _, err = run([watch], "follows", "plain")
                self.assertEqual(status, 2)
                self.assertRegex(err, why)

    @needs_registers
    def test_in_a_debug_register(self):
        """The pointers stay on their pages."""
        said = self.follow(["p->x", "(*pp)->x"], "plain", options=["--placement", "debug-register"])
        self.assertEqual([(h["watch"], h["new"]) for h in said.hits if h["watch"] == 1], [(1, n) for n in (2, 3, 6, 9, 10)])
        self.assertEqual([h["new"] for h in said.hits if h["watch"] == 2], [9, 10])
        said = self.follow(["p->x"], "often", "100", options=["--placement", "debug-register"])
        only = said.summary["watches"][0]
        self.assertEqual((only["placement"], only["hits"], only["traps"], only["moved"]), ("debug-register", 100, 100, 100))

    def test_sixteen_pointers(self):
        said = self.follow([f"p{'->link' * 15}->x"], "plain")
        self.assertEqual(said.hits, [])

    def test_the_summary_says_where_it_is(self):
        status, _, err = run(["p->x"], "follows", "moved")
        self.assertEqual(status, 0)
        self.assertRegex(err, r" nowhere +4  p->x \(moved \d+ times\)")


@ulpf_only
class Oracle(unittest.TestCase):
    """Pointers, lists and pairs are changed at random, in every way there is; each store to what they lead to is a hit,
    and no other."""

    limit = 300

    def mutate(self, mutations, seed, threads, *options):
        with tempfile.NamedTemporaryFile("r") as notes:
            said = Json(WATCHED, "following", str(mutations), str(seed), str(threads), notes.name, options=options, seconds=200)
            self.assertEqual(said.status, 0, said.err)
            noted = [line.split() for line in notes]
        expected = [(int(w) + 1, int(at, 16), int(n), int(v, 16).to_bytes(8, "little")[:int(n)].hex()) for w, at, n, v in noted]
        seen = [(h["watch"], int(h["addr"], 16), h["len"], h["new_bytes"]) for h in said.hits]
        # The hits of one store on several watches come in any order.
        missed = collections.Counter(expected) - collections.Counter(seen)
        more = collections.Counter(seen) - collections.Counter(expected)
        self.assertEqual((missed, more), (collections.Counter(), collections.Counter()), said.err)
        for watch in range(1, 5):
            self.assertEqual([s for s in seen if s[0] == watch], [e for e in expected if e[0] == watch])
        self.assertEqual(said.summary["lost"], 0)
        return len(seen), said

    def test_a_hundred_thousand(self):
        hits, said = self.mutate(100_000, 7, 1)
        self.assertGreater(hits, 10_000)
        self.assertGreater(said.summary["watches"][0]["moved"], 5_000)

    def test_without_patches(self):
        self.mutate(5_000, 8, 1, "--no-patch")

    def test_threads(self):
        hits, _ = self.mutate(5_000, 9, 4)
        self.assertGreater(hits, 500)

    def test_beside_a_watched_heap(self):
        """Another watch on the same bytes changes nothing."""
        with tempfile.NamedTemporaryFile("r") as notes:
            said = Json([*WATCHED, "head", "pair:rw"], "following", "3000", "10", "1", notes.name)
            noted = sum(1 for _ in notes)
        self.assertEqual(len([h for h in said.hits if h["watch"] <= 4]), noted)
        self.assertGreater(len([h for h in said.hits if h["watch"] > 4]), 100)


if __name__ == "__main__":
    unittest.main()


@ulpf_only
class Places(unittest.TestCase):
    """Vectors, strings and lists are changed at random: each store to what is in them then is a hit, by the name that it
    has then, and no other store is, least of all one to what has been freed."""

    limit = 300

    def mutate(self, mutations, seed, threads, *options, watches=None):
        watches = watches or list(MANY)
        with tempfile.NamedTemporaryFile("r") as notes:
            said = Json(watches, "mutations", str(mutations), str(seed), str(threads), notes.name, options=options, seconds=250)
            self.assertEqual(said.status, 0, said.err)
            noted = [line.split() for line in notes]
        number = {list(MANY).index(watch): n for n, watch in enumerate(watches)}
        expected = [(number[int(w)] + 1, watches[number[int(w)]], int(at, 16), int(n), int(v, 16).to_bytes(8, "little")[:int(n)].hex(), k)
                    for w, k, at, n, v in noted if int(w) in number]
        expected = [(w, MANY[name].format(k), at, n, v) for w, name, at, n, v, k in expected]
        seen = [(h["watch"], h["name"], int(h["addr"], 16), h["len"], h["new_bytes"]) for h in said.hits]
        missed = collections.Counter(expected) - collections.Counter(seen)
        more = collections.Counter(seen) - collections.Counter(expected)
        self.assertEqual((missed, more), (collections.Counter(), collections.Counter()), said.err)
        for watch in range(1, len(watches) + 1):
            # (Where two of a table's pointers lead to the same bytes, one store is two hits, in any order.)
            stores = [[(s[0], *s[2:]) for s in side if s[0] == watch] for side in (seen, expected)]
            self.assertEqual(*stores)
        self.assertEqual(said.summary["lost"], 0)
        notices = [line for line in said.lines if line["type"] == "notice"]
        self.assertEqual(notices, [])
        return len(seen)

    def test_many(self):
        """`make soak` asks for a million."""
        mutations = int(os.environ.get("ULPF_MUTATIONS", "20000"))
        self.assertGreater(self.mutate(mutations, mutations + 3, 1), mutations // 10)

    def test_of_rust(self):
        said = Json(["NUMBERS[*]", "ITEMS[*].count", "TEXT[*]"], "growing")
        self.assertEqual(said.status, 0, said.err)
        stores = [tuple(line.split()) for line in said.out.splitlines()]
        self.assertEqual([(hit["name"], str(hit["new"])) for hit in said.hits], stores)
        self.assertEqual(len(stores), 121)

    def test_a_list_that_is_too_long(self):
        """Excess elements are refused when the watch is set, and reported when they come later."""
        for nodes, most, stores in ("100000", "", [1, 2]), ("100001", "", [1]), ("100001", " most 200000", [1, 2]), ("11", " most 10", [1]):
            said = Json([f"chain->*next.refs{most}"], "growing_lists", "0", nodes)
            self.assertEqual((said.status, [hit["new"] for hit in said.hits]), (0, stores))
            notices = "".join(line["text"] for line in said.lines if line["type"] == "notice")
            self.assertEqual("does not follow to the end" in notices, len(stores) == 1, notices)
