"""Steps over a breakpoint that the stub makes by itself, because the condition does not hold, and what they meet."""

import re

from lib.cases import Case, line
from lib.env import ulpf_only


@ulpf_only
class OwnSteps(Case):
    def start(self, *program, **options):
        return self.session(*program, options=["--placement=guard"], **options)

    def passed(self, gdb, where):
        """A breakpoint that never stops."""
        self.assertSays(gdb(f"break {where} if 0"), r"Breakpoint \d+ at")

    def instruction(self, gdb, name):
        """Its first place in main."""
        return re.search(rf"(?m)^ +(0x\w+) <\+\d+>:\s+{name}", gdb("disassemble main")).group(1)

    def test_the_store_is_a_hit(self):
        gdb = self.start("five")
        self.passed(gdb, f"five.c:{line('five.c', 'a = 11;')}")
        self.passed(gdb, f"five.c:{line('five.c', 'b = 21;')}")
        gdb("watch a")
        gdb("watch b")
        self.assertChange(gdb("continue"), 4, "a", 10, 11)
        self.assertChange(gdb("continue"), 5, "b", 20, 21)
        self.assertChange(gdb("continue"), 4, "a", 11, 12)
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    def test_the_store_is_a_false_positive(self):
        """In the middle of a line that the debugger steps over."""
        gdb = self.start("five")
        self.passed(gdb, f"*{self.instruction(gdb, r'mov +%ecx,.%rdx')}")
        gdb(f"tbreak five.c:{line('five.c', 'unwatched[i % 64] += i;')}")
        gdb("watch d")
        self.assertChange(gdb("continue"), 4, "d", 40, 41)
        self.assertSays(gdb("continue"), r"Temporary breakpoint 3, ")
        self.assertSays(gdb("next"), r"for \(int i = 0")
        self.assertEqual(gdb.value("i"), 0)
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    def test_the_instruction_faults(self):
        for how, name, signal in ("fpe", "idiv", "SIGFPE"), ("ill", "ud2", "SIGILL"), ("trap", "int3", "SIGTRAP"):
            gdb = self.start("crash", how)
            self.passed(gdb, f"*{self.instruction(gdb, name)}")
            if signal == "SIGTRAP":
                # A breakpoint on an int3 of the program's own replaces it, also if its condition is false.
                self.assertExits(gdb, 0, "")
                continue
            self.assertSays(gdb("continue"), rf"received signal {signal}")
            self.assertSays(gdb("continue"), f"Program terminated with signal {signal}")

    def test_the_store_faults_on_its_second_page(self):
        gdb = self.start("page_edge")
        gdb("handle SIGSEGV nostop noprint pass")
        gdb("watch -l *page")
        self.passed(gdb, f"*{self.instruction(gdb, r'movq +[$]0x5,')}")
        self.assertExits(gdb, 0, "page_edge: fault at page + 4096, its last byte is 1")


@ulpf_only
class Forbidden(Case):
    """Faults of the program's own on pages that have moved."""

    def test_a_jump_to_data(self):
        for watch in "watch", "rwatch":
            gdb = self.session("crash", "data", options=["--placement=guard"])
            gdb(f"{watch} watched")
            if watch == "watch":
                gdb("continue")
            else:
                gdb("handle SIGSEGV stop")
            self.assertSays(gdb("continue"), r"received signal SIGSEGV")
            self.assertEqual(gdb.value("$_siginfo._sifields._sigfault.si_addr"), gdb.address("watched"))
            self.assertSays(gdb("continue"), r"Program terminated with signal SIGSEGV")

    def test_behind_the_end_of_a_file(self):
        gdb = self.session("crash", "bus", options=["--placement=guard"])
        gdb("watch -l *(int *)mapped")
        self.assertSays(gdb("continue"), r"received signal SIGBUS")
        self.assertSays(gdb("continue"), r"Program terminated with signal SIGBUS")
