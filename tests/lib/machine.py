"""Sessions of real gdb on any simulated processor."""

from .bridge import static
from .cases import SEEN, line


class Machine:
    """Tests of a Case that has OPTIONS, those of `ulpf server`."""

    def test_more_watches_than_registers(self):
        gdb = self.session(static("five"), options=self.OPTIONS)
        for number, name in enumerate("abcde", start=2):
            self.assertSays(gdb(f"watch {name}"), rf"Hardware watchpoint {number}: {name}")
        out = gdb("continue")
        self.assertChange(out, 2, "a", 10, 11)
        # Behind the store, as on the real processor.
        self.assertSays(out, r"main \(\) at .*five.c:\d+\n\d+\s+unwatched\[0\] = 1;")
        for number, (name, old, new) in enumerate(
                [("b", 20, 21), ("c", 30, 31), ("d", 40, 41), ("e", 50, 51)], start=3):
            self.assertChange(gdb("continue"), number, name, old, new)
        self.assertChange(gdb("continue"), 2, "a", 11, 12)
        self.assertExits(gdb, 0, "five: done")

    def test_reads_and_both(self):
        gdb = self.session(static("reads"), options=self.OPTIONS)
        gdb("rwatch table[2]")
        self.assertSays(gdb("continue"), r"read watchpoint 2: table\[2\]", r"Value = 300", r"middle")
        gdb("awatch table[0]")
        self.assertSays(gdb("continue"), r"watchpoint 3: table\[0\]", r"Value = 100", r"sum_ends")
        self.assertSays(gdb("continue"), r"read watchpoint 2: table\[2\]", r"Value = 301", r"middle")
        gdb("delete 2 3")
        self.assertExits(gdb, 0, "reads: ")

    def test_run_control(self):
        gdb = self.session(static("five"), options=self.OPTIONS, stop="main")
        self.assertSays(gdb("break ready"), r"Breakpoint 2 at")
        self.assertSays(gdb("continue"), r"Breakpoint 2, ready")
        self.assertSays(gdb("bt"), r"#0\s+ready", r"#1 .*main")
        self.assertSays(gdb("finish"), r"Run till exit", r"main \(\)")
        gdb("next")
        before = gdb.value("$pc")
        gdb("stepi")
        self.assertNotEqual(gdb.value("$pc"), before)
        gdb("set var a = 77")
        self.assertEqual(gdb.value("a"), 77)
        gdb("set var $rbx = 0x1234567890")
        self.assertEqual(gdb.value("$rbx"), 0x1234567890)
        self.assertSays(gdb("info threads"), r"\* 1 ")
        self.assertSays(gdb("x/2i $pc"), r"=> 0x")
        self.assertSays(gdb("detach"), r"[Cc]an't detach process")
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    def test_a_watch_while_stepping(self):
        gdb = self.session(static("five"), options=self.OPTIONS)
        gdb("watch b")
        gdb(f"tbreak {line('five.c', 'b = 21;')}")
        self.assertSays(gdb("continue"), r"Temporary breakpoint 3, main")
        self.assertChange(gdb("next"), 2, "b", 20, 21)
        gdb("delete")
        self.assertExits(gdb)

    def test_interrupt(self):
        gdb = self.session(static("alone"), "spin", options=self.OPTIONS + SEEN)
        self.resume(gdb)
        gdb.interrupt()
        self.assertSays(gdb.answer(), r"SIGINT", r"main")
        self.assertGreater(gdb.value("rounds"), 0)
        gdb("kill")

    def test_a_signal_that_kills(self):
        gdb = self.session(static("alone"), "crash", options=self.OPTIONS)
        self.assertSays(gdb("continue"), r"signal 11: ", r"SIGSEGV")
        self.assertSays(gdb("continue"), r"terminated with signal SIGSEGV")
        gdb.server.wait()
