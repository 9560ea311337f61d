"""A watch is armed, or refused at once with a reason; never accepted and then dead."""

from lib.cases import Case
from lib.env import ulpf_only
from lib.rsp import Rsp


class BadRanges(Case):
    def refused(self, expression, sentence):
        gdb = self.session("five")
        gdb(f"watch *(char*){expression}")
        # GDB (before 15) has no words for it but that there may be too many; so the server says it.
        self.assertIn(f"ulpf: cannot set a write watch on {expression} (1 bytes): {sentence}.\n", gdb("continue"))
        self.assertEqual(gdb("monitor ulpf why").strip(), f"cannot set a write watch on {expression} (1 bytes): {sentence}")
        # The session continues without the watch.
        gdb("delete")
        gdb("watch a")
        self.assertSays(gdb("continue"), r"New value = 11")
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    @ulpf_only
    def test_kernel(self):
        self.refused("0xffff800000000000", "0xffff800000000000 does not belong to the program: its addresses end at 0x7ffffffff000; "
                                           "watch an address of the program; `info proc mappings` lists them")

    @ulpf_only
    def test_vsyscall(self):
        self.refused("0xffffffffff600000", "0xffffffffff600000 is the kernel's vsyscall page, which holds code only; "
                                           "watch the memory that the system call writes to")

    @ulpf_only
    def test_non_canonical(self):
        self.refused("0x4141414141414141", "0x4141414141414141 does not belong to the program: its addresses end at 0x7ffffffff000; "
                                           "watch an address of the program; `info proc mappings` lists them")

    @ulpf_only
    def test_text(self):
        gdb = self.session("five")
        gdb("watch *(long double *) main")
        self.assertSays(gdb("continue"), r"ulpf: cannot set a write watch on 0x\w+ \(16 bytes\): 0x\w+ lies in executable memory")
        self.assertSays(gdb("monitor ulpf why"), r"^cannot set a write watch on 0x\w+ \(16 bytes\): 0x\w+ lies in executable memory, "
                                                 r"and guarding instruction pages is not supported; use a breakpoint to see the code run; ")
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")


class RawRanges(Case):
    """The server's own answers, which gdb would hide, to a client that has not identified itself."""

    def client(self):
        server = self.serve("five_nopie")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
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
        for packet in "Z2", "Z2,", "Z2,zz,4", "Z2,404040", "Z2,404040,", "Z2,404040,4,4", "Z2,1ffffffffffffffff,4", \
                "z2,", "z2,404040,4":
            with self.subTest(packet):
                self.assertRegex(rsp(packet), rb"^E[0-9a-f]{2}$")
        # A kind that does not exist is a packet that is not known.
        self.assertEqual(rsp("Z9,404040,4"), b"")
        self.assertEqual(rsp("Z2,404040,4"), b"OK")
        self.assertEqual(rsp("z2,404040,4"), b"OK")
        self.assertRegex(rsp("?"), rb"^[TS]05")
