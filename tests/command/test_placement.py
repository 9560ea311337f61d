"""`ulpf run --placement`: every hit, the same wherever the watch lives; stacks under guard."""

import unittest

from lib.env import bare, example, needs_registers, ulpf_only
from lib.run import Json, run, ulpf

FIELDS = ("name", "silent", "access", "function", "offset", "line")


def sequence(said):
    # The stack protector's random word differs from run to run; its lowest byte is zero.
    def value(text):
        text = str(text)
        return "canary" if text.startswith("0x") and len(text) > 15 and text.endswith("00") else text
    return [(*map(value, (hit["old"], hit["new"])), *(hit.get(f) for f in FIELDS)) for hit in said.hits]


@ulpf_only
class Sequences(unittest.TestCase):
    maxDiff = None

    def same(self, watches, name, *arguments, at="ready"):
        """Guards, registers and the engine's choice log the same hits, and the program is as without us."""
        expected = bare(example(name), *arguments)
        kept = None
        for placement in "guard", "debug-register", "auto":
            said = Json(watches, name, *arguments, options=["--no-aslr", "--at", at, "--placement", placement])
            self.assertEqual((said.status, said.out), expected, placement)
            if kept is None:
                kept = sequence(said)
            self.assertEqual(sequence(said), kept, placement)
            self.assertGreater(len(kept), 0)
            if placement == "debug-register":
                self.assertEqual({w["placement"] for w in said.summary["watches"]}, {"debug-register"})
                # The kernel's own stores match no register: the system-call layer sees them.
                ours = [hit for hit in said.hits if "syscall" not in hit]
                self.assertEqual(sum(w["traps"] for w in said.summary["watches"]), len(ours))
        return kept

    @needs_registers
    def test_a_local(self):
        hits = self.same(["*watched"], "hotlocal", "20000", "1000")
        self.assertEqual(len(hits), 42)

    @needs_registers
    def test_two_neighbours_in_one_store(self):
        hits = self.same(["watched[0]", "watched[1]"], "hotlocal", "2000", "1000")
        self.assertLessEqual({("85", "watched[0]"), ("85", "watched[1]")}, {h[1:3] for h in hits})

    @needs_registers
    def test_reads_too(self):
        self.same(["*watched:8:rw"], "hotlocal", "2000", "1000")

    @needs_registers
    def test_the_kernels_stores(self):
        """More of them than a call site needs to be patched."""
        hits = self.same(["*watched"], "hotlocal", "100", "10", "0", "200")
        self.assertEqual(len([h for h in hits if h[1] != "85"]), 221)

    @needs_registers
    def test_a_local_among_calls_and_signals(self):
        self.same(["*local_slot"], "stacks")

    @needs_registers
    def test_a_return_address(self):
        """Written by call instructions, and by whatever uses the slot in between."""
        self.same(["*return_slot:8"], "stacks")

    @needs_registers
    def test_a_global_with_every_shape_of_store(self):
        self.same(["counter"], "strings")


@ulpf_only
class Choice(unittest.TestCase):
    TRAPS = ["--at", "ready", "--quiet", "--no-patch"]  # a patched access is cheaper than any register

    @needs_registers
    def test_a_register_that_is_hit_all_the_time_gives_its_watch_back(self):
        said = Json(["*watched"], "hotlocal", "100000", "50000", "20000", options=self.TRAPS)
        self.assertEqual((said.status, said.out), bare(example("hotlocal"), "100000", "50000", "20000"))
        watch = said.summary["watches"][0]
        self.assertEqual((watch["hits"], watch["placement"]), (20006, "guard"))
        self.assertGreater(watch["traps"], 0)
        self.assertLess(watch["traps"], 10000)

    @needs_registers
    def test_and_keeps_it_if_a_guard_would_cost_more(self):
        said = Json(["*watched"], "hotlocal", "400000", "200", options=self.TRAPS)
        watch = said.summary["watches"][0]
        self.assertEqual((watch["hits"], watch["placement"]), (4002, "debug-register"))
        self.assertGreater(watch["traps"], 3000)


@ulpf_only
class Stacks(unittest.TestCase):
    """All accesses of a stack are hits: nothing may go wrong with any of them."""

    def check(self, spec, name="stacks", *arguments):
        status, out, err = run([spec], name, *arguments, options=["--quiet", "--at", "ready", "--placement", "guard"])
        self.assertEqual((status, out), bare(example(name), *arguments), err)
        self.assertRegex(err, r"ulpf: [1-9]\d* hits on 1 watch")

    def test_of_main_and_what_grows_below(self):
        self.check("*main_area:32768")
        self.check("*main_area:32768:rw")

    def test_of_signal_handlers(self):
        self.check("*alternate:131072:rw")

    def test_of_a_coroutine(self):
        self.check("*coroutine_area:131072:rw")

    def test_of_a_thread(self):
        self.check("*thread_area:32768", "stacks", "thread")
        self.check("*thread_area:32768:rw", "stacks", "thread")

    def test_that_exceptions_unwind(self):
        self.check("*area:16384", "unwind")
        self.check("*area:16384:rw", "unwind")


@ulpf_only
class Options(unittest.TestCase):
    def test_what_cannot_be(self):
        status, out, err = run(["unwatched"], "five", options=["--placement", "debug-register"])
        self.assertEqual((status, out), (2, ""))
        self.assertRegex(err, r"1, 2, 4 or 8 bytes at a multiple of their number|does not permit|no perf")
        status, _, err = run(["a"], "five", options=["--placement", "nowhere"])
        self.assertEqual(status, 2)
        self.assertIn("possible values: auto, guard, debug-register", err)

    def test_doctor_counts_them(self):
        _, out, _ = ulpf("doctor")
        self.assertRegex(out, r"debug registers +(\d free, through perf events|not available: )")
