"""The plugin, the debug adapter and `ulpf top` over the simulated processor: the same conversations as over our own
stub, of which those that need it (heap, callers, debug registers, another program's memory) are refused by name."""

import json
import re
import subprocess

from lib.bridge import needs_sim, static
from lib.cases import Case
from lib.dap import DapCase
from lib.env import ULPF, needs, ulpf_only
from lib.plugin import LOADER, PluginCase
from lib.tmux import Screen

SIM = ["--backend", "sim"]


@ulpf_only
@needs_sim
class Plugin(PluginCase):
    def serve(self, *program, options=(), **more):
        program = (static(program[0]), *program[1:]) if program else ()
        return super().serve(*program, options=[*SIM, *options], **more)

    def assertStop(self, text, number, name, old, new, kind=""):
        # (These are compiled by their whole paths.)
        self.assertSays(text, rf"Ulpf {kind}watch {number}: " + re.escape(name) + "\n",
                        rf"Old value = {old}\n", rf"New value = {new}\n", r" at \S+\.(c|cc):\d+")

    def test_stops(self):
        gdb = self.begin()
        self.assertSays(gdb("ulpf watch total"), r"^Ulpf watch 1: total\n")
        self.assertStop(gdb("continue"), 1, "total", 0, 1)
        self.assertSays(gdb("backtrace 2"), r"add ", r"slowly ")
        self.assertStop(gdb("continue"), 1, "total", 1, 11)
        self.assertEqual(self.counted(gdb, 1), (2, 2))
        gdb("ulpf disable 1")
        gdb("break elsewhere")
        self.assertSays(gdb("continue"), r"Breakpoint \d, elsewhere")
        row = self.row(gdb, 1)
        self.assertEqual((row["Hits"], row["Lives"]), ("2", "disabled"))
        gdb("ulpf enable 1")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: total", r"elsewhere \(\) at \S*filters.c")
        self.assertEqual(self.row(gdb, 1)["Hits"], "3")
        gdb("ulpf delete 1")
        self.assertSays(gdb("ulpf info watches"), r"No ulpf watches")

    def test_beside_gdbs_own_on_the_same_bytes(self):
        gdb = self.begin()
        gdb("watch total")
        gdb("ulpf watch total")
        said = gdb("continue") + gdb("continue")
        self.assertSays(said, r"watchpoint 3: total")
        self.assertStop(said, 1, "total", 0, 1)
        gdb("ulpf delete")
        self.assertChange(gdb("continue"), 3, "total", 1, 11)

    def test_parts_are_named(self):
        gdb = self.begin("structs", done=False)
        gdb("ulpf watch shelf")
        gdb("ulpf watch box.flags.level")
        self.assertStop(gdb("continue"), 2, "box.flags.level", 0, 33)
        self.assertStop(gdb("continue"), 1, "shelf[1].id", 0, 10)

    def passed(self, *clauses, variable="total"):
        """For each of these clauses, the number of all hits, and of those that pass; all are logged, none stops."""
        gdb = self.begin()
        for clause in clauses:
            self.assertSays(gdb(f"ulpf watch {variable} {clause} log"), r"^Ulpf (access )?watch \d+: .*, logged\n")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        rows = [self.row(gdb, n) for n in range(1, len(clauses) + 1)]
        return [(int(row["Hits"]), int(row["Hits"]) - int(row["Filtered"])) for row in rows]

    def test_conditions(self):
        self.assertEqual(self.passed("if $new > limit", "if $new < $old", "if $new - $old == -5", "if $hits % 10 == 0",
                                     "if $new > second.x && first.x == 0", "if $new > 900 || total == 1"),
                         [(210, n) for n in (31, 10, 10, 21, 209, 32)])

    def test_places_skip_count(self):
        self.assertEqual(self.passed("from elsewhere", "outside elsewhere", "from filters"), [(210, n) for n in (10, 200, 210)])

    def test_skip_count_changed(self):
        self.assertEqual(self.passed("skip 90", "count 7", "skip 3 count 4 if $new >= 50", "changed", variable="checked"),
                         [(100, 10), (100, 7), (100, 4), (100, 99)])

    def test_another_filter(self):
        gdb = self.begin()
        gdb("ulpf watch total if $new > 900")
        gdb("ulpf filter 1 if $new == 12")
        self.assertStop(gdb("continue"), 1, "total", 11, 12)

    def test_log_and_last(self):
        gdb = self.begin()
        gdb("ulpf watch total log")
        self.assertSays(gdb("ulpf log show"), r"^No hits yet\.\n")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        self.assertSays(gdb("ulpf log show 3 of 1"), r"^ +\d+\.\d+ \[\d+\] #1 (write |update) total: 1044 → 1045  add\+0x\w+ at \S*filters\.c:\d+\n")
        self.assertSays(gdb("ulpf last total"), r"total: 1055 → 1050")
        folder = gdb.server.dir.name
        self.assertSays(gdb(f"ulpf log save {folder}/a.jsonl of 1"), r"^210 hits saved in ")
        with open(f"{folder}/a.jsonl") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["old"] for line in lines[1:]], [line["new"] for line in lines[:-1]])

    def test_callbacks(self):
        gdb = self.begin()
        gdb("python\nseen = []\ndef hit(h):\n    seen.append((int(h.old), int(h.new)))\n    return h.new > 30\nend")
        gdb("python w = ulpf.watch('total', callback=hit)")
        self.assertStop(gdb("continue"), 1, "total", r"\d+", r"3[1-9]|[4-9]\d")
        self.assertSays(gdb("python print(len(seen) > 3, seen[0], ulpf.counts(w)['hits'] == len(seen))"), r"^True \(0, 1\) True")

    def test_another_run(self):
        gdb = self.begin(extended=True, done=False)
        gdb("break ready")
        gdb("ulpf watch total")
        self.assertStop(gdb("continue"), 1, "total", 0, 1)
        self.assertSays(gdb("run", 60), r"Breakpoint \d, ready")
        self.assertStop(gdb("continue"), 1, "total", 0, 1)

    def test_what_cannot_be_had(self):
        gdb = self.begin()
        for words, why in (("heap", "followed by our own stub only"), ("total bt 2", "callers"),
                           ("total called from slowly", "who called"), ("total debug-register", "debug registers")):
            self.assertSays(gdb(f"ulpf watch {words}"), why)
        self.assertSays(gdb("ulpf backend"), r"^unicorn +ulpf-sim .*: 0 watches\n +conditions are evaluated by the back end")
        gdb("ulpf watch total")
        self.assertStop(gdb("continue"), 1, "total", 0, 1)
        self.assertSays(gdb("ulpf stats"), r"watches +1\n", r"hits +1\n", r"faults +[1-9]")

    def test_ulpf_gdb_has_it(self):
        done = subprocess.run([ULPF, "gdb", *SIM, "-nx", "-q", "-batch", "-ex", "break ready", "-ex", "run", "-ex",
                               "ulpf watch total if $new > 10", "-ex", "continue", "-ex", "kill", static("filters")],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=80)
        self.assertSays(done.stdout, r"Ulpf watch 1: total", r"Old value = 1\nNew value = 11")


@ulpf_only
@needs_sim
class Dap(DapCase):
    def test_six_in_order(self):
        dap = self.adapter()
        dap.launch(static("five"), backend="sim")
        ids = dap.set_watches(*(dap.watch(name) for name in "abcde"))
        dap.ask("configurationDone")
        for number, text in zip(ids, ("a: 10 → 11", "b: 20 → 21", "c: 30 → 31", "d: 40 → 41", "e: 50 → 51")):
            stop = dap.event("stopped")
            self.assertHit(stop, number, text)
            self.assertEqual(stop["text"], f"{text} (hit 1)")
            self.assertEqual(dap.top()[0]["name"], "main")
            dap.ask("continue", threadId=1)
        self.assertHit(dap.event("stopped"), ids[0], "a: 11 → 12 (hit 2)")
        dap.set_watches()
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)
        self.assertIn("five: done", dap.outputs("stdout"))

    def test_conditions_and_a_log(self):
        dap = self.adapter()
        dap.launch(static("filters"), backend="sim")
        number, _ = dap.set_watches(dap.watch("total", condition="$new > 500 && limit == 900"), dap.watch("checked", log=True))
        dap.ask("configurationDone")
        self.assertHit(dap.event("stopped"), number, "total: 498 → 508")
        watches = {w["name"]: w for w in dap.ask("ulpf/watches")["watches"]}
        self.assertGreater(watches["total"]["hits"], watches["total"]["stops"])
        dap.set_watches(dap.watch("checked", log=True))
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)
        self.assertEqual(len(re.findall(r" checked: -?\d+ → -?\d+", dap.outputs("console"))), 99)  # (The first leaves the value as it was.)


@needs("tmux")
@ulpf_only
@needs_sim
class Top(Case):
    def test_a_program_that_runs(self):
        """Counts, hits with their names and values, what is written where: while the machine runs."""
        server = self.serve(static("alone"), "spin", options=SIM)
        gdb = self.gdb()
        gdb(f"file {static('alone')}")
        gdb(f"target remote {server.target}")
        gdb(f"source {LOADER}")
        gdb("tbreak main")
        gdb("continue")
        gdb("ulpf watch rounds log")
        gdb.send("continue")
        with Screen(ULPF, "top", "--pid", server.process.pid, size=(100, 30)) as screen:
            screen.shows(r"^ ulpf top  alone \(\d+\)", r"hits [\d,]{2,}", r"^ +\d+ rounds +w ", r"write  rounds: \d+ → \d+  main\+0x\w+ at alone")
            screen.keys("q")
            screen.shows(r"exit status 0")
        gdb.interrupt()
        self.assertSays(gdb.answer(), r"SIGINT")
        self.assertSays(gdb("ulpf last rounds"), r"rounds: \d+ → \d+  main")
        done = subprocess.run([ULPF, "last", "-p", str(server.process.pid), "rounds"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertSays(done.stdout, r"rounds", r"main")
        gdb("kill")
