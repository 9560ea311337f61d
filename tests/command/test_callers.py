"""Backtraces in the log: of code without frame pointers, by its unwind tables."""

from lib.cases import Case
from lib.env import ulpf_only
from lib.run import Json


@ulpf_only
class Callers(Case):
    def callers(self, *arguments, frames=16):
        """For each hit: its call path, the callers by the C library's unwinder, the callers by ulpf's."""
        said = Json(["total"], "callers", *arguments, options=["--no-aslr", "--backtrace", str(frames)])
        self.assertEqual(said.status, 0, said.err)
        ways = [line.split() for line in said.out.splitlines()]
        self.code = next(int(way[1], 0) for way in ways if way[0] == "code")
        ways = [way for way in ways if way[0] != "code"]
        self.assertEqual(len(ways), len(said.hits))
        for way, hit in zip(ways, said.hits):
            yield way[0], way[1:], [caller["pc"] for caller in hit.get("callers", [])]

    def test_as_the_c_library_says(self):
        """Through a sort, in a thread, a signal's handler, a library loaded a moment ago."""
        seen = set()
        for way, theirs, ours in self.callers():
            if way != "generated":
                self.assertEqual(ours, theirs, way)
                seen.add(way)
        self.assertEqual(seen, {"plain", "deep", "sorted", "thread", "signal", "library"})

    def test_patched(self):
        """Hits that come without a signal."""
        plain = [(theirs, ours) for way, theirs, ours in self.callers("200") if way == "plain"]
        self.assertEqual(len(plain), 200)
        for theirs, ours in plain:
            self.assertEqual(ours, theirs)

    def test_generated_code(self):
        """It has no tables: its frame pointers serve, once the code is known."""
        *_, (way, _, ours) = self.callers()
        main = [ours for way, _, ours in self.callers() if way == "plain"][0][1:]
        self.assertEqual(way, "generated")
        self.assertEqual(int(ours[0], 0) & ~0xfff, self.code)
        self.assertEqual(ours[2:], main[1:])

    def test_no_more_than_wanted(self):
        callers = [(way, theirs, ours) for way, theirs, ours in self.callers(frames=2) if way != "generated"]
        self.assertEqual(max(len(ours) for _, _, ours in callers), 2)
        for way, theirs, ours in callers:
            self.assertEqual(ours, theirs[:2], way)

    def test_filters_know_the_caller(self):
        self.assertEqual(len(Json(["total called from compare"], "callers").hits), 3)
        self.assertEqual(len(Json(["total called outside middle"], "callers").hits), 11 - 3)

    def test_a_static_program(self):
        said = Json(["a"], "five_static", options=["--backtrace", "4"])
        self.assertRegex(said.hits[0]["callers"][0]["function"], "libc_start")
