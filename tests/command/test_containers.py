"""Maps, hash tables, deques, variants and enums are followed: what is in them at each moment is watched, and nothing else."""

import collections
import os
import shutil
import subprocess
import tempfile
import unittest

from lib.env import ROOT, ulpf_only
from lib.run import Json, ulpf

# Places whose stores tests/programs/trees.cc records, by its numbers; `{}` is the number of the place.
TREES = {"tree[*].second.value": "tree[#{}].second.value", "table[*].second": "table[#{}].second", "queue[*]": "queue[{}]",
         "either[1].value": "either[1].value", "maybe[*].second": "maybe[#{}].second", "several[*].second": "several[#{}].second",
         "queue[2]": "queue[2]"}


@ulpf_only
class Oracle(unittest.TestCase):
    """Maps, hash tables, deques and variants of C++ are changed at random: each store to what is in them then is a hit, by the
    number that it has then, and no other store is."""

    limit = 300

    def mutate(self, mutations, seed, *options):
        with tempfile.NamedTemporaryFile("r") as notes:
            said = Json(list(TREES), "trees", str(mutations), str(seed), notes.name, options=options, seconds=250)
            self.assertEqual(said.status, 0, said.err)
            noted = [line.split() for line in notes]
        names = list(TREES.values())
        expected = [(int(w) + 1, names[int(w)].format(k), int(at, 16), int(n), int(v, 16).to_bytes(8, "little")[:int(n)].hex())
                    for w, k, at, n, v in noted]
        # (What the library stores while it changes a variant's alternative, or a deque's chunk, is a store to it as well.)
        hits = [h for h in said.hits if h["function"].startswith("store(")]
        others = {h["spec"] for h in said.hits if not h["function"].startswith("store(")}
        self.assertLessEqual(others, {"either[1].value", "queue[*]", "queue[2]", "table[*].second"}, said.err)
        seen = [(h["watch"], h["name"], int(h["addr"], 16), h["len"], h["new_bytes"]) for h in hits]
        missed = collections.Counter(expected) - collections.Counter(seen)
        more = collections.Counter(seen) - collections.Counter(expected)
        self.assertEqual((missed, more), (collections.Counter(), collections.Counter()), said.err)
        for watch in range(1, len(names) + 1):
            self.assertEqual([s for s in seen if s[0] == watch], [e for e in expected if e[0] == watch])
        self.assertEqual(said.summary["lost"], 0)
        self.assertEqual([line for line in said.lines if line["type"] == "notice"], [])
        return len(seen)

    def test_many(self):
        """`make soak` asks for a million."""
        mutations = int(os.environ.get("ULPF_MUTATIONS", "20000"))
        self.assertGreater(self.mutate(mutations, mutations + 5), mutations // 10)

    def test_without_patches(self):
        self.mutate(4_000, 6, "--no-patch")

    def test_an_element_that_stays(self):
        """C++ lets one thread use an element while another changes the container around it."""
        for watch, which in ("tree[*].second.value", "tree"), ("table[*].second", "table"), ("queue[*]", "queue"):
            with self.subTest(which):
                said = Json([watch], "trees", "beside", "3000", which, seconds=100)
                self.assertEqual(said.status, 0, said.err)
                mine = [hit["new"] for hit in said.hits if "_M_run" in hit["function"]]
                self.assertEqual(mine, list(range(1, 3001)))
                self.assertGreater(said.summary["watches"][0]["moved"], 100)

    def test_of_rust(self):
        """Elements of maps, rings and enums, through cells, locks and options on the way."""
        watches = ["TABLE[*].value", "TREE[*].value", "RING[*]", "STATE.value", "HEAD.value", "HEAD.next.value", "LOCKED[*]"]
        said = Json(watches, "maps", "6000", seconds=250)
        self.assertEqual(said.status, 0, said.err)
        expected = [tuple(line.split()) for line in said.out.splitlines()]
        hits = [(hit["watch"], hit["name"], str(hit["new"])) for hit in said.hits if hit["function"] == "maps::store"]
        for number, watch in enumerate(watches, 1):
            name = watch.partition("[")[0] if "[" in watch else watch
            mine = [line for line in expected if (line[0].partition("[")[0] if "[" in watch else line[0]) == name]
            self.assertGreater(len(mine), 20, watch)
            self.assertEqual([hit[1:] for hit in hits if hit[0] == number], mine)
        self.assertEqual([line for line in said.lines if line["type"] == "notice"], [])

    @unittest.skipUnless(os.path.exists("/usr/include/absl/container/flat_hash_map.h"), "Abseil is not installed")
    def test_of_abseil(self):
        """The slots of its tables lie apart from the control bytes, and both move when a table grows."""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "abseil")
            flags = subprocess.run(["pkg-config", "--cflags", "--libs", "absl_flat_hash_map"], stdout=subprocess.PIPE, text=True, check=True)
            source = os.path.join(ROOT, "tests", "programs", "languages", "abseil.cc")
            subprocess.run(["g++", "-g", "-O1", "-std=c++17", source, "-o", program, *flags.stdout.split()], check=True)
            said = Json(["places[*].second.y"], program)
        self.assertEqual(said.status, 0, said.err)
        stored = [int(line) for line in said.out.split()]
        self.assertGreater(len(stored), 20)
        self.assertEqual([hit["new"] for hit in said.hits if hit["function"].startswith("store(")], stored)
        self.assertEqual([line for line in said.lines if line["type"] == "notice"], [])


# Names and values of the stores of tests/programs/languages/arrays.f90, by the watches.
FORTRAN = {"items(2)%weights(3)": [("items(2).weights(3)", 1.5), ("items(2).weights(3)", 2.5)],
           "items(2)%weights": [("items(2).weights(3)", 1.5), ("items(2).weights(3)", 2.5)],
           "row": [("row(3)", 7)], "row(3)": [("row(3)", 7)],
           # (From grid(4,2) to grid(1,2).)
           "back": [("back(1)", 11), ("back(4)", 99)], "cube(1,3,4)": [("cube(1,3,4)", 13)], "cube": [("cube(1,3,4)", 13)],
           "every_other": [("every_other(1,1)", 1), ("every_other(2,3)", 12), ("every_other(1,2)", 99)],
           "every_other(2,3)": [("every_other(2,3)", 12)]}


@ulpf_only
@unittest.skipUnless(shutil.which("gfortran"), "gfortran is not installed")
class Descriptors(unittest.TestCase):
    """Arrays of Fortran whose place, bounds and strides stand in a descriptor."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.program = os.path.join(folder.name, "arrays")
        source = os.path.join(ROOT, "tests", "programs", "languages", "arrays.f90")
        subprocess.run(["gfortran", "-g", "-O0", "-J", folder.name, source, "-o", cls.program], check=True)

    def test_elements(self):
        said = Json(list(FORTRAN), self.program, options=["--at", "ready"])
        self.assertEqual(said.status, 0, said.err)
        for number, (watch, stores) in enumerate(FORTRAN.items(), 1):
            with self.subTest(watch):
                self.assertEqual([(hit["name"], hit["new"]) for hit in said.hits if hit["watch"] == number], stores)

    def test_what_has_no_memory(self):
        status, _, err = ulpf("run", "-w", "items(2)%id", "-w", "nowhere(1)", "--", self.program)
        self.assertEqual(status, 2)
        for name in "items", "nowhere":
            self.assertIn(f"`{name}` has no memory now; set the watch when it is allocated, or associated (--at", err)

    def test_names_of_functions(self):
        """By their names in the program: the linker's are `__shapes_MOD_fill` and `MAIN__`."""
        for options in ["--at", "fill"], ["--at", "shapes::fill"]:
            said = Json(["grid from fill", "grid from arrays"], self.program, options=options)
            self.assertEqual([(hit["watch"], hit["new"], hit["function"]) for hit in said.hits], [(1, 99, "shapes::fill")], said.err)
        status, _, err = ulpf("run", "-w", "fill::x(2)", "--", self.program)
        self.assertIn("how large `fill::x` is, is known only while it is there; stop there in a debugger", err)


if __name__ == "__main__":
    unittest.main()
