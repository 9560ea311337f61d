"""Data breakpoints: hits, messages, limits."""

import re

from lib import schema
from lib.dap import DapCase, Refused
from lib.env import ulpf_only


@ulpf_only
class Stops(DapCase):
    def test_six_in_order(self):
        """They are set before the program has run, and hit one after the other."""
        dap = self.adapter()
        dap.launch("five")
        ids = dap.set_watches(*(dap.watch(name) for name in "abcde"), dap.watch("unwatched[5]"))
        self.assertEqual(len(set(ids)), 6)
        dap.ask("configurationDone")
        a, b, c, d, e, u = ids
        for number, text in ((a, "a: 10 → 11"), (b, "b: 20 → 21"), (c, "c: 30 → 31"), (d, "d: 40 → 41"), (e, "e: 50 → 51"),
                             (u, "unwatched[5]: 0 → 5")):
            stop = dap.event("stopped")
            self.assertHit(stop, number, text)
            self.assertEqual(stop["text"], f"{text} (hit 1)")
            self.assertEqual(dap.top()[0]["name"], "main")
            dap.ask("continue", threadId=1)
        self.assertHit(dap.event("stopped"), u, "unwatched[5]: 5 → 74")
        dap.set_watches(dap.watch("a"))
        # The same one keeps its number and what it has counted.
        self.assertEqual(dap.cont()["text"], "a: 11 → 12 (hit 2)")

    def test_many_places_that_follow(self):
        """They are set before there is any, and go with what the program makes of its lists."""
        dap = self.adapter()
        dap.launch("growing_lists", "4")
        nodes, numbers = dap.set_watches(dap.watch("chain->*next.refs"), dap.watch("numbers[*]"))
        dap.ask("configurationDone")
        self.assertHit(dap.event("stopped"), nodes, "chain->*next[0].refs: 1 → 100")
        self.assertHit(dap.cont(), numbers, "numbers[0]: 0 → 200")
        # Another node comes before it.
        self.assertHit(dap.cont(), nodes, "chain->*next[1].refs: 100 → 101")
        self.assertHit(dap.cont(), numbers, "numbers[0]: 200 → 201")
        dap.set_watches()
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)

    def test_a_variable_of_a_scope_and_a_field(self):
        dap = self.adapter()
        dap.begin("structs", at="ready")
        frame = dap.caller()
        scopes = {s["name"]: s for s in dap.ask("scopes", frameId=frame)["scopes"]}
        globals_ = dap.ask("variables", variablesReference=scopes["Globals of this file"]["variablesReference"])["variables"]
        box = next(v for v in globals_ if v["name"] == "box")
        fields = dap.ask("variables", variablesReference=box["variablesReference"])["variables"]
        self.assertEqual([f["name"] for f in fields], ["id", "flags", "name", "weight", "corner", "value"])
        self.assertEqual(fields[0]["evaluateName"].replace("(", "").replace(")", ""), "box.id")
        wanted = []
        for name in "id", "weight":
            info = dap.ask("dataBreakpointInfo", name=name, variablesReference=box["variablesReference"])
            self.assertEqual(info["accessTypes"], ["read", "write", "readWrite"])
            wanted.append({"dataId": info["dataId"], "accessType": "write"})
        id_, weight = dap.set_watches(*wanted)
        level, = dap.set_watches(*wanted, dap.watch("box.flags.level"))[2:]
        self.assertHit(dap.cont(), id_, "id: 1 → 2")
        self.assertHit(dap.cont(), level, "box.flags.level: 0 → 33")
        self.assertHit(dap.cont(), weight, "→ 2.5")

    def test_more_than_gdb_makes_values_of(self):
        """GDB (13) ended over what the kernel had written, and the client heard of a stop that there was not."""
        dap = self.adapter()
        dap.begin("large", at="ready")
        big, record = dap.set_watches(dap.watch("big"), dap.watch("record"))
        self.assertHit(dap.cont(), big, r"big[7]: 0 '\000' → 7 '\a'")
        stop = dap.cont()
        self.assertRegex(stop["text"], r"^big: .*\.\.\. → .*\.\.\., by read\(")
        self.assertEqual(stop["hitBreakpointIds"], [big])
        self.assertHit(dap.cont(), record, "record.body[70000]: ")
        dap.set_watches()
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)

    def test_a_mebibyte(self):
        dap = self.adapter()
        dap.begin("bigarray", at="ready")
        all_, = dap.set_watches(dap.watch("big"))
        for n in range(12):
            stop = dap.cont()
            self.assertEqual(stop["hitBreakpointIds"], [all_])
            self.assertRegex(stop["text"], rf"big\[\d+\]: 0 .* → {n + 1} .*\(hit {n + 1}\)")
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)

    def test_addresses_and_ranges(self):
        dap = self.adapter()
        dap.begin("bigarray", at="ready")
        address = dap.ask("evaluate", expression="&big", frameId=dap.caller())["memoryReference"]
        info = dap.ask("dataBreakpointInfo", name=address, asAddress=True, bytes=1 << 20)
        self.assertFalse(info["canPersist"])
        number, = dap.set_watches({"dataId": info["dataId"]})
        self.assertHit(dap.cont(), number, "→ 01")
        number, = dap.set_watches(dap.watch("big", bytes=1 << 20))
        self.assertHit(dap.cont(), number, "→ 2")
        number, = dap.set_watches(dap.watch("big[0..1048576]"))
        self.assertHit(dap.cont(), number, "→ 3")
        self.assertIn("no memory", dap.ask("dataBreakpointInfo", name="0x10", asAddress=True, bytes=4)["description"])

    def test_reads(self):
        dap = self.adapter()
        dap.begin("reads", at="ready")
        number, = dap.set_watches(dap.watch("table[2]", "read"))
        self.assertHit(dap.cont(), number, "table[2] was read: 300")
        self.assertHit(dap.cont(), number, "table[2] was read: 301")
        number, = dap.set_watches(dap.watch("table[2]", "readWrite"))
        self.assertHit(dap.cont(), number, "table[2] was read: 301")
        self.assertHit(dap.cont(), number, "table[2]: 301 → 302")

    def test_conditions(self):
        dap = self.adapter()
        dap.begin("filters", at="ready")
        number, = dap.set_watches(dap.watch("total", condition="$new > 500 && limit == 900"))
        self.assertHit(dap.cont(), number, "total: 498 → 508")
        for hit, wanted in (("3", 1), (">= 2", 3)):
            dap.set_watches()
            number, = dap.set_watches(dap.watch("total", hitCondition=hit))
            for _ in range(wanted):
                self.assertEqual(dap.cont()["hitBreakpointIds"], [number])
        dap.set_watches()
        number, = dap.set_watches(dap.watch("checked", condition="$new > 50", hitCondition="% 10"))
        self.assertHit(dap.cont(), number, "checked: 59 → 60")
        self.assertHit(dap.cont(), number, "checked: 69 → 70")
        bad = [dap.watch("flag", condition="nosuch > 1"), dap.watch("flag", hitCondition="often")]
        answer = dap.ask("setDataBreakpoints", breakpoints=bad)["breakpoints"]
        self.assertEqual([b["verified"] for b in answer], [False, False])
        self.assertIn("No symbol", answer[0]["message"])
        self.assertIn("often", answer[1]["message"])

    def test_hit_counts_that_do_not_stop_again(self):
        dap = self.adapter()
        dap.begin("filters", at="ready")
        number, = dap.set_watches(dap.watch("total", hitCondition="3"))
        self.assertHit(dap.cont(), number, "total: 11 → 12 (hit 3)")
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)

    def test_log_only(self):
        dap = self.adapter()
        dap.begin("filters", at="ready")
        dap.set_watches(dap.watch("total", log=True))
        dap.ask("evaluate", expression="ulpf watch first.x log", context="repl", frameId=dap.caller())
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)
        # The same for programs.
        hits = [body["data"]["hit"] for body in dap.waiting("output") if "data" in body]
        schema.lines().check("completed", hits)
        self.assertEqual(len([hit for hit in hits if hit["name"] == "total"]), 210)
        said = dap.outputs("console")
        self.assertEqual(len(re.findall(r" total: -?\d+ → -?\d+ ", said)), 210, said[:2000])
        self.assertRegex(said, r"total: 0 → 1 .*add.* at filters\.c:\d+")
        self.assertRegex(said, r"first\.x: 98 → 99")
        self.assertFalse(dap.waiting("stopped"))

    def test_log_is_shown_while_the_program_runs(self):
        dap = self.adapter()
        dap.launch("spin")
        dap.ask("evaluate", expression="ulpf watch rounds log count 5", context="repl")
        dap.ask("configurationDone")
        dap.until_output(r"(?s)rounds: 0 → 1.*rounds: 4 → 5", "console")
        watch, = dap.ask("ulpf/watches")["watches"]
        self.assertEqual((watch["name"], watch["log"]), ("rounds", True))
        self.assertGreaterEqual(watch["hits"], 5)
        self.assertFalse(dap.waiting("stopped"))

    def test_locals_end_with_their_function(self):
        dap = self.adapter()
        dap.begin("locals", at="inner")
        for _ in range(2):
            dap.ask("next", threadId=1)
            dap.event("stopped", reason="step")
        scopes = dap.ask("scopes", frameId=dap.top()[0]["id"])["scopes"]
        reference = next(s for s in scopes if s["name"] == "Locals")["variablesReference"]
        info = dap.ask("dataBreakpointInfo", name="depth_sum", variablesReference=reference)
        self.assertFalse(info["canPersist"])
        number, = dap.set_watches({"dataId": info["dataId"]})
        for text in "1 → 3", "3 → 6":
            stop = dap.cont()
            while text not in stop["text"]:
                stop = dap.cont()
            self.assertHit(stop, number, f"depth_sum: {text}")
        dap.ask("continue", threadId=1)
        dap.until_output("ulpf: watch 1 .* has ended", "important")
        self.assertEqual(dap.exited(), 0)

    def test_values_that_are_written_again(self):
        dap = self.adapter()
        dap.begin("five", at="ready")
        changed, = dap.set_watches(dap.watch("b"))
        self.assertHit(dap.cont(), changed, "b: 20 → 21 (hit 1)")
        every, = dap.set_watches(dap.watch("b", silent=True))
        self.assertHit(dap.cont(), every, "b: 21 (written again)")

    def test_threads(self):
        dap = self.adapter()
        dap.begin("filters", at="ready")
        number, = dap.set_watches(dap.watch("shared"))
        seen = set()
        # Each of the two stores a hundred times.
        while len(seen) < 2:
            stop = dap.cont()
            self.assertEqual(stop["hitBreakpointIds"], [number])
            seen.add(stop["threadId"])
            self.assertEqual(dap.top(stop["threadId"])[0]["name"], "worker")
        self.assertNotIn(1, seen)
        self.assertGreaterEqual(len(dap.ask("threads")["threads"]), 1)

    def test_gdbs_own_watch(self):
        dap = self.adapter()
        dap.begin("five", at="ready")
        said = dap.ask("evaluate", expression="watch c", context="repl")["result"]
        number = int(re.search(r"watchpoint (\d+): c", said).group(1))
        self.assertHit(dap.cont(), number, "c: 30 → 31")


@ulpf_only
class Many(DapCase):
    limit = 120

    def test_ten_thousand(self):
        dap = self.adapter()
        dap.begin("bigarray", at="ready")
        base = int(dap.ask("evaluate", expression="&big", frameId=dap.caller())["memoryReference"], 16)
        # Every hundredth byte; only the program knows which of them are written.
        wanted = [{"dataId": f"a:{base + 100 * n:#x}:100"} for n in range(10_000)]
        ids = dap.set_watches(*wanted, seconds=60)
        self.assertEqual(len(set(ids)), 10_000)
        dap.event("progressStart")
        dap.event("progressEnd")
        stop = dap.cont()
        self.assertEqual(stop["reason"], "data breakpoint")
        self.assertIn(stop["hitBreakpointIds"][0], ids)
        # One away, one more: the others stay.
        again = dap.set_watches(*wanted[1:], dap.watch("big[1000050]"))
        self.assertEqual(again[:-1], ids[1:])
        self.assertEqual(dap.set_watches(), [])
        self.assertEqual(dap.ask("ulpf/watches")["watches"], [])
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)

    def test_changed_while_the_program_runs(self):
        dap = self.adapter()
        dap.launch("spin")
        wanted = dap.watch("rounds")
        dap.ask("configurationDone")
        number, = dap.set_watches(wanted)
        self.assertHit(dap.event("stopped"), number, "rounds: ")


@ulpf_only
class OwnRequests(DapCase):
    def test_the_list_of_watches(self):
        dap = self.adapter()
        dap.begin("filters", at="ready")
        number, = dap.set_watches(dap.watch("total"))
        other = dap.ask("ulpf/watch", text="table :rw log")["breakpointId"]
        for _ in range(3):
            dap.cont()
        total, table = dap.ask("ulpf/watches")["watches"]
        self.assertEqual((total["breakpointId"], total["name"], total["kind"], total["hits"], total["stops"]), (number, "total", "w", 3, 3))
        self.assertEqual((table["breakpointId"], table["bytes"], table["log"], table["hits"]), (other, 32, True, 0))
        self.assertEqual((total["placement"], total["silent"]), ("page", 0))
        dap.ask("ulpf/unwatch", number=table["number"])
        self.assertEqual(len(dap.ask("ulpf/watches")["watches"]), 1)
        with self.assertRaisesRegex(Refused, "No symbol"):
            dap.ask("ulpf/watch", text="nosuch")

