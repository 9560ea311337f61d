"""A watch is armed, or refused at once with a reason; never accepted and then dead."""

from lib.cases import Case
from lib.env import ulpf_only
from lib.rsp import Rsp


class BadRanges(Case):
    @ulpf_only
    def refused(self, expression, words):
        gdb = self.session("five")
        out = gdb(f"watch *(char*){expression}") + gdb("continue")
        self.assertRegex(out, words)
        # And the session goes on without it.
        gdb("delete")
        gdb("watch a")
        self.assertSays(gdb("continue"), r"New value = 11")
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    def test_kernel(self):
        self.refused("0xffff800000000000", r"(?i)kernel|Could not insert hardware watchpoint|Cannot access memory")

    def test_vsyscall(self):
        self.refused("0xffffffffff600000", r"(?i)vsyscall|Could not insert hardware watchpoint|Cannot access memory")

    def test_non_canonical(self):
        self.refused("0x4141414141414141", r"(?i)canonical|Could not insert hardware watchpoint|Cannot access memory")

    @ulpf_only
    def test_text(self):
        """Code can be watched: nobody writes it, the program runs as ever."""
        gdb = self.session("five")
        out = gdb("watch *(int*)main") + gdb("continue")
        if "Could not insert" in out:
            self.assertRegex(gdb("monitor ulpf why"), r"0x555555555\w+")
            gdb("delete")
            out = gdb("continue")
        self.assertSays(out, r"exited normally")
        self.assertIn("five: done", gdb.server.stdout())

    def test_unmapped(self):
        self.refused("0x10", r"(?i)not mapped|unmapped|Could not insert hardware watchpoint|Cannot access memory")


class RawRanges(Case):
    """What gdb would hide: the server's own answers."""

    def client(self):
        server = self.serve("five_nopie")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        rsp("qSupported:multiprocess+;swbreak+;hwbreak+;vContSupported+;error-message+")
        return rsp

    @ulpf_only
    def test_zero_length(self):
        self.assertRegex(self.client()("Z2,404040,0"), rb"^E")

    @ulpf_only
    def test_wrapping(self):
        self.assertRegex(self.client()("Z2,fffffffffffffff0,100"), rb"^E")

    @ulpf_only
    def test_kernel_and_vsyscall(self):
        rsp = self.client()
        self.assertRegex(rsp("Z2,ffff800000000000,8"), rb"^E")
        self.assertRegex(rsp("Z3,ffffffffff600000,8"), rb"^E")

    @ulpf_only
    def test_the_reason_is_said(self):
        """Z packets only carry an error number: the sentence comes from `monitor ulpf why`."""
        rsp = self.client()
        self.assertRegex(rsp("Z2,ffff800000000000,8"), rb"^E")
        self.assertRegex(rsp.monitor("ulpf why"), r"(?i)0xffff800000000000")

    @ulpf_only
    def test_malformed(self):
        rsp = self.client()
        for packet in "Z2", "Z2,", "Z2,zz,4", "Z2,404040", "Z2,404040,", "Z9,404040,4", "Z2,404040,4,4", \
                "Z2,1ffffffffffffffff,4", "z2,", "z2,404040,4":
            self.assertRegex(rsp(packet), rb"^(E|$|OK)", packet)
        self.assertRegex(rsp("?"), rb"^[TS]05")
