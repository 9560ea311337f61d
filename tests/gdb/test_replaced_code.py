"""Breakpoints in code that goes away, and where other code comes."""

from lib.cases import Case
from lib.env import ulpf_only

PLACE = "0x10000000"


class ReplacedCode(Case):
    @ulpf_only
    def test_other_code_in_its_place(self):
        """The first byte of what was there does not come back into what is there now. (With gdbserver 13 it does.)"""
        gdb = self.session("replaced")
        gdb("break loaded")
        gdb("continue")
        gdb(f"break *{PLACE}")
        self.assertSays(gdb("continue"), r"Breakpoint 3, 0x0*10000000")
        # Without a stop in between: the code goes, other code comes.
        self.assertSays(gdb("continue"), r"Breakpoint 2, loaded")
        self.assertSays(gdb(f"x/2i {PLACE}"), r"xor +%eax,%eax", r"add +\$0x2,%al")
        self.assertSays(gdb("continue"), r"Breakpoint 3, 0x0*10000000")
        gdb("delete")
        self.assertExits(gdb, 0, "replaced: 1 2")

    def test_a_hardware_breakpoint_waits(self):
        """It may be set where nothing is, and is there when code comes, whatever that is."""
        gdb = self.session("replaced")
        self.assertSays(gdb("hbreak *0"), r"Hardware assisted breakpoint 2 at 0x0")
        gdb(f"hbreak *{PLACE}")
        for _ in range(2):
            self.assertSays(gdb("continue"), r"Breakpoint 3, 0x0*10000000")
        gdb("delete")
        self.assertExits(gdb, 0, "replaced: 1 2")

    def test_a_software_breakpoint_does_not(self):
        gdb = self.session("replaced")
        gdb(f"break *{PLACE}")
        self.assertSays(gdb("continue"), r"Cannot (insert breakpoint 2|access memory at address 0x10000000)")
        gdb("delete")
        self.assertExits(gdb, 0, "replaced: 1 2")
