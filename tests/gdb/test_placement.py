"""Guarded pages or debug registers: the same stops, wherever a watch lives."""

import json
import re

from lib.cases import Case, line
from lib.env import example, needs_registers, ulpf_only

NAMES = ["auto", "guard", "debug-register"]


class PlacementCase(Case):
    def hotlocal(self, *arguments, placement="debug-register"):
        gdb = self.session("hotlocal", *arguments, options=[f"--placement={placement}"])
        gdb("finish")
        return gdb

    def stats(self, gdb):
        said = gdb("monitor ulpf stats")
        return json.loads(said[said.index("{"):])

    def placed(self, gdb):
        return [w["placement"] for w in self.stats(gdb)["watches"]]


@ulpf_only
class Registers(PlacementCase):
    @needs_registers
    def test_the_same_stops(self):
        for placement in NAMES:
            gdb = self.hotlocal(placement=placement)
            gdb("watch -l *watched")
            self.assertChange(gdb("continue"), 2, "-location *watched", 0, 1)
            self.assertEqual(gdb.value("i"), 10000)
            self.assertSays(gdb("frame"), r"main ", rf"\n{line('hotlocal.c', 'every / 2)')}\s")
            self.assertChange(gdb("continue"), 2, "-location *watched", 1, 2)
            if placement == "debug-register":
                self.assertEqual(self.placed(gdb), ["debug-register"])
                self.assertEqual(self.stats(gdb)["faults"], 0)
            gdb("ignore 2 8")
            out = gdb("continue")
            self.assertSays(out, r'Thread 2 "hotlocal" hit Hardware watchpoint 2: -location \*watched',
                            r"Old value = 10\n", r"New value = 1010\n", r"elsewhere ")
            self.assertChange(gdb("continue"), 2, "-location *watched", 1010, 85)
            self.assertExits(gdb, 0, "hotlocal: busy 5000050000 seldom 85 pair 170")

    @needs_registers
    def test_one_store_to_two_registers(self):
        """The kernel sends one SIGTRAP for both."""
        gdb = self.hotlocal("10")
        gdb("break both")
        gdb("continue")
        gdb("watch -l watched[0]")
        gdb("watch -l watched[1]")
        both = gdb("continue") + gdb("continue")
        self.assertSays(both, r"watchpoint 3: ", r"New value = 85")
        self.assertSays(both, r"watchpoint 4: ", r"New value = 85")
        self.assertEqual([w["hits"] for w in self.stats(gdb)["watches"]], [1, 1])
        gdb("delete")
        self.assertExits(gdb, 0, "pair 170")

    @needs_registers
    def test_steps_and_breakpoints_on_the_store(self):
        """The trap of a step hides that of the register."""
        gdb = self.hotlocal("10", "1")
        gdb(f"break {line('hotlocal.c', 'seldom[0]++')}")
        gdb("continue")
        gdb("watch -l *watched")
        self.assertChange(gdb("next"), 3, "-location *watched", 0, 1)
        gdb("continue")
        for _ in range(12):
            out = gdb("stepi")
            if "watchpoint" in out:
                break
        self.assertChange(out, 3, "-location *watched", 1, 2)
        # Stepping over a breakpoint on the very instruction: first gdb's step, then the stub's own.
        store = re.search(r"=> 0x\w+ <main\+\d+>:[^\n]*\n", gdb("x/1i $pc"))
        self.assertTrue(store)
        for _ in range(2):
            gdb("continue")
        gdb("delete 2")
        where = None
        for text in gdb("disassemble /s main").splitlines():
            found = re.match(r"\s+(0x\w+) <\+\d+>:\s+mov +%rax,-0x\w+\(%rbp\)", text)
            if "seldom[0]++" in text:
                where = "next"
            elif found and where == "next":
                where = found.group(1)
                break
        gdb(f"break *{where} if 0")
        before = gdb.value("*watched")
        for n in range(3):
            self.assertChange(gdb("continue"), 3, "-location *watched", before + n, before + n + 1)
        gdb("delete")
        self.assertExits(gdb, 0)

    @needs_registers
    def test_access_watch(self):
        gdb = self.hotlocal("10", "4")
        gdb("awatch -l *watched")
        out = gdb("continue")
        self.assertSays(out, r"Hardware access \(read/write\) watchpoint 2: ", r"Value = 0")
        self.assertEqual(gdb.value("i"), 2)
        self.assertEqual(self.placed(gdb), ["debug-register"])
        gdb("delete")
        self.assertExits(gdb)

    @needs_registers
    def test_kernel_writes(self):
        for placement in NAMES:
            gdb = self.session("sysread", options=[f"--placement={placement}"])
            gdb("watch -l *(long*)buffer")
            self.assertSays(gdb("continue"), r"watchpoint 2: ", r"Old value = 0", r"New value = \d+")
            gdb("delete")
            self.assertExits(gdb)

    @needs_registers
    def test_children_have_none(self):
        gdb = self.session("children", options=["--placement=debug-register"])
        gdb("watch shared_count")
        self.assertChange(gdb("continue"), 2, "shared_count", 1, 2)
        self.assertChange(gdb("continue"), 2, "shared_count", 2, 3)
        self.assertExits(gdb, 0, "children: count 3, codes 3 4 5 6 -6")

    @needs_registers
    def test_threads_that_come_and_go(self):
        gdb = self.session("threads16", "300", options=["--placement=debug-register"])
        for number in range(4):
            gdb(f"watch cells[{number}]")
            gdb(f"ignore {number + 2} 1000000")
        out = self.assertExits(gdb, 0, "threads16: 16 x 300 stores")
        self.assertEqual(re.findall(r"already hit (\d+) times", gdb("info watchpoints")), ["300"] * 4, out)

    @needs_registers
    def test_detach(self):
        gdb = self.hotlocal()
        gdb("watch -l *watched")
        gdb("continue")
        self.assertSays(gdb("detach"), r"Detaching from program")
        gdb.server.wait()
        self.assertIn("hotlocal: busy 5000050000 seldom 85", gdb.server.stdout())


@ulpf_only
class Refusals(PlacementCase):
    def refused(self, gdb, command, why):
        gdb(command)
        self.assertSays(gdb("continue"), rf"\nulpf: .*{why}", r"The program does not go on before")
        self.assertSays(gdb("monitor ulpf why"), why)
        gdb("delete")

    @needs_registers
    def test_what_no_register_can_hold(self):
        gdb = self.hotlocal()
        self.refused(gdb, "rwatch -l *watched", r"not for reads alone")
        self.refused(gdb, "watch -l *(long*)((char*)watched + 2)", r"1, 2, 4 or 8 bytes at a multiple")
        self.refused(gdb, "watch -l *(char(*)[16])watched", r"1, 2, 4 or 8 bytes at a multiple")
        for number in range(4):
            gdb(f"watch -l watched[{number}]")
        self.refused(gdb, "watch -l watched[4]", r"all four debug registers are taken", )
        self.assertExits(gdb)

    @needs_registers
    def test_where_a_single_watch_lives(self):
        gdb = self.hotlocal(placement="auto")
        at = gdb.value("watched")
        self.assertSays(gdb(f"monitor ulpf watch {at} 8 w log debug-register"), r'"watch":0')
        self.assertSays(gdb(f"monitor ulpf watch {at + 8} 8 r log debug-register"), r"not for reads alone")
        self.assertSays(gdb(f"monitor ulpf watch {at + 16} 8 w log guard"), r'"watch":1')
        gdb("tbreak elsewhere")
        gdb("continue")
        self.assertEqual(self.placed(gdb), ["debug-register", "guard"])
        self.assertSays(gdb("monitor ulpf placement guard"), r'"placement":"guard"', r'"used":1')
        self.assertSays(gdb("monitor ulpf placement nowhere"), r"say: ulpf placement")
        self.assertExits(gdb)

    def test_perf_is_forbidden(self):
        """As in many containers. Without the option, guards do it all."""
        wrapper = ["--wrapper", example("noperf"), "--"]
        gdb = self.session("hotlocal", options=["--placement=debug-register", *wrapper])
        self.refused(gdb, "watch -l *watched", r"does not permit perf events")
        self.assertExits(gdb)
        gdb = self.session("hotlocal", options=wrapper)
        gdb("watch -l *watched")
        gdb("ignore 2 9")
        self.assertChange(gdb("continue"), 2, "-location *watched", 9, 10)
        self.assertEqual(self.placed(gdb), ["guard"])
        gdb("delete")
        self.assertExits(gdb)


@ulpf_only
class Choice(PlacementCase):
    def test_a_page_with_many_watches_is_seldom_looked_at(self):
        """Each look stops the world: there must not be one for every false positive."""
        gdb = self.hotlocal("50000", "50000", placement="auto")
        gdb("monitor ulpf patch off")
        for number in range(8):
            gdb(f"watch -l *((char *)watched + {number})")
        self.assertSays(gdb("continue"), r"watchpoint 2: ", r"Old value = 0", r"New value = 1")
        self.assertGreater(self.stats(gdb)["faults"], 50000)
        state = json.loads(re.search(r"{.*}", gdb("monitor ulpf placement")).group())
        self.assertGreater(state["looks"], 0)
        self.assertLess(state["looks"], 12)
        gdb("delete")
        self.assertExits(gdb)

    @needs_registers
    def test_a_busy_page_gives_its_watch_to_a_register(self):
        gdb = self.hotlocal("100000", "50000", placement="auto")
        gdb("monitor ulpf patch off")
        gdb("watch -l *watched")
        self.assertChange(gdb("continue"), 2, "-location *watched", 0, 1)
        self.assertEqual(self.placed(gdb), ["debug-register"])
        self.assertLess(self.stats(gdb)["faults"], 50000)
        gdb("delete")
        self.assertExits(gdb)

    @needs_registers
    def test_what_cannot_be_guarded(self):
        """Small watches on it are in debug registers, without being asked for; larger ones are refused with that remedy."""
        gdb = self.session("unguarded", stop="ready")
        gdb("watch *(long (*)[4]) code")
        self.assertSays(gdb("continue"), r"lies in executable memory", r"watch writes to 1, 2, 4 or 8 bytes of it \(there are debug registers for four such watches\)")
        gdb("delete")
        memory = ["code", "huge"] if gdb.value("huge") else ["code"]
        for where in memory:
            gdb(f"watch -l {where}[8]")
        for new in range(1, 4):
            for where in memory:
                self.assertSays(gdb("continue"), rf"atchpoint \d+: -location {where}\[8\]", rf"New value = {new + 0xc3 if where == 'code' else new}\n")
        gdb("delete")
        self.assertExits(gdb)

    def test_many_watches_stay(self):
        gdb = self.hotlocal("20000", "10000", placement="auto")
        for number in range(5):
            gdb(f"watch -l watched[{number - 8}]")
        gdb("tbreak elsewhere")
        gdb("continue")
        self.assertEqual(set(self.placed(gdb)), {"guard"})
        gdb("delete")
        self.assertExits(gdb)
