"""Breakpoints, stepping, calls: what every debugger session does besides watching."""

import re
import struct

from lib.cases import Case, line

LOOP = line("five.c", "unwatched[i % 64] += i")


class RunControl(Case):
    def test_stops_at_the_first_instruction(self):
        gdb = self.session("five", stop=None)
        # ld.so's entry: nothing of the program has run yet, not even its loader.
        base = int(re.search(r"AT_BASE .*?(0x[0-9a-f]+)", gdb("info auxv")).group(1), 16)
        with open("/lib64/ld-linux-x86-64.so.2", "rb") as loader:
            entry = struct.unpack_from("<Q", loader.read(64), 24)[0]
        self.assertEqual(gdb.value("(long)$pc"), base + entry)
        self.assertEqual(gdb.value("*(long*)$sp"), 1)  # argc
        self.assertExits(gdb, 0, "five: done")

    def test_breakpoint_continue_exit(self):
        gdb = self.session("five", stop=None)
        gdb("break main")
        self.assertSays(gdb("continue"), r"Breakpoint 1, main \(\) at .*five.c:\d+")
        self.assertExits(gdb, 0, "five: done")

    def test_conditional_breakpoint(self):
        gdb = self.session("five")
        gdb(f"break {LOOP} if i == 500")
        self.assertSays(gdb("continue"), r"Breakpoint 2, main")
        self.assertEqual(gdb.value("i"), 500)
        self.assertSays(gdb("info breakpoints"), r"already hit 1 time")
        gdb("delete")
        self.assertExits(gdb)

    def test_ignore_count_and_disable(self):
        gdb = self.session("five")
        gdb(f"break {LOOP}")
        gdb("ignore 2 99")
        self.assertSays(gdb("continue"), r"Breakpoint 2, main")
        self.assertEqual(gdb.value("i"), 99)
        gdb("disable 2")
        self.assertExits(gdb)

    def test_step_next_finish_until(self):
        gdb = self.session("locals", stop="main")
        self.assertSays(gdb("next"), r"second = inner")
        self.assertSays(gdb("step"), r"inner \(n=4\)")
        self.assertSays(gdb("finish"), r"Run till exit", r"Value returned is \$\d+ = 10")
        gdb("next")
        self.assertSays(gdb("next"), r"printf")
        self.assertExits(gdb, 0, "locals: 6 10 30")

    def test_until_leaves_the_loop(self):
        gdb = self.session("five")
        gdb(f"tbreak {LOOP}")
        gdb("continue")
        gdb("next")  # at the loop's head again
        self.assertSays(gdb("until"), r"a = 12")
        self.assertExits(gdb)

    def test_stepi_counts_instructions(self):
        """Each step is one instruction, and twenty at once come to where twenty by themselves do."""
        one = self.session("five")
        one("down")
        for _ in range(20):
            code = one("x/2i $pc")
            here, behind = (int(at, 16) for at in re.findall(r"(?m)^\W*(0x[0-9a-f]+)", code))
            one("stepi")
            now = one.value("$pc")
            self.assertNotEqual(now, here)
            if not re.search(r"\b(ret|call|j[a-z]+|rep)\b", code.splitlines()[0]):
                self.assertEqual(now, behind, code)
        many = self.session("five")
        many("stepi 20")
        self.assertEqual(many.value("$pc"), now)
        for gdb in one, many:
            self.assertExits(gdb)

    def test_step_over_a_call_that_hits_a_breakpoint(self):
        gdb = self.session("locals", stop="main")
        gdb("break inner")
        self.assertSays(gdb("next"), r"Breakpoint 2, inner \(n=3\)")
        gdb("delete 2")
        self.assertExits(gdb)

    def test_backtrace_of_a_recursion(self):
        gdb = self.session("locals", stop=None)
        gdb("break recurse if n == 0")
        gdb("continue")
        out = gdb("backtrace")
        self.assertEqual(out.count("recurse (n="), 6)
        self.assertSays(out, r"#6 .* main \(\)")

    def test_call_functions(self):
        gdb = self.session("registers", stop="main")
        self.assertSays(gdb("print add(40, 2)"), r"= 42")
        self.assertSays(gdb("print half(9.0)"), r"= 4.5")
        self.assertSays(gdb('print (int)puts("called")'), r"= 7")
        self.assertExits(gdb, 0, "called\nregisters: 5555555555555555 5 2.50")

    def test_write_memory_and_registers(self):
        gdb = self.session("five")
        gdb("set var a = 99")
        self.assertEqual(gdb.value("a"), 99)
        gdb(f"tbreak {LOOP}")
        gdb("continue")
        gdb("set var i = 998")
        gdb("print $rax = 0x1234")
        self.assertEqual(gdb.value("$rax"), 0x1234)
        self.assertExits(gdb)

    def test_jump(self):
        gdb = self.session("five")
        gdb("tbreak " + str(line("five.c", "puts(")))
        self.assertSays(gdb("jump " + str(line("five.c", "a = 12"))), r"main")
        self.assertEqual(gdb.value("b"), 20)
        self.assertExits(gdb)

    def test_breakpoints_are_invisible_in_memory(self):
        gdb = self.session("five", stop=None)
        gdb("break main")
        gdb("break ready")
        gdb("continue")
        self.assertNotIn("int3", gdb("disassemble main"))
        self.assertNotIn("0xcc", gdb("x/4xb ready"))
        self.assertExits_after_deleting(gdb)

    def assertExits_after_deleting(self, gdb):
        gdb("delete")
        self.assertExits(gdb)
