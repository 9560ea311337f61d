"""Values larger than GDB's limit: GDB (13) ends when Python requests one, so the plugin never does."""

from lib.env import ulpf_only
from lib.plugin import PluginCase


@ulpf_only
class Large(PluginCase):
    def test_the_kernel_writes_all_of_it(self):
        for size in "65536", "unlimited", "20":
            with self.subTest(size):
                gdb = self.begin("large", done=False)
                gdb(f"set max-value-size {size}")
                self.assertSays(gdb("ulpf watch big"), r"^Ulpf watch 1: big \(98304 bytes\)")
                gdb("ulpf watch record")
                self.assertStop(gdb("continue"), 1, "big[7]", r"0 '\\000'", r"7 '\\a'")
                said = gdb("continue")
                self.assertSays(said, r"Ulpf watch 1: big\n\nOld value = .*\\a.*\.\.\.\nNew value = .*\\000.*\.\.\.\nWritten by read\(")
                self.assertLess(len(said), 1000)
                self.assertStop(gdb("continue"), 2, "record.body[70000]", r"0 '\\000'", r"3 '\\003'")
                self.assertSays(gdb("continue"), r"Ulpf watch 2: record\n\nOld value = 00 00 .* … \(98320 bytes\)\nNew value = 00 00 .*\n")
                self.assertSays(gdb("ulpf log show 2"), r"#2 write  record\.body\[70000\]: ", r"#2 write  record: 00 00 .* by read\(")
                self.assertExits(gdb, 0, "large: 196624")

    def test_what_a_script_gets(self):
        gdb = self.begin("large", done=False)
        gdb("python got = []")
        gdb("python w = ulpf.watch('big', callback=lambda h: got.append((h.length, type(h.old).__name__, type(h.new).__name__)))")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: big\[7\]")
        gdb("continue")
        self.assertSays(gdb("python print(got)"), r"^\[\(1, 'Value', 'Value'\), \(98304, 'bytes', 'bytes'\)\]")

    def test_many_elements_behind_a_pointer(self):
        gdb = self.begin("large", done=False)
        self.assertSays(gdb("ulpf watch *pointer@98304"), r"^Ulpf watch 1: \*pointer@98304 \(98304 bytes\)")
        self.assertStop(gdb("continue"), 1, "pointer[7]", r"0 '\\000'", r"7 '\\a'")
        self.assertSays(gdb("ulpf watch *pointer@98304000000"), r"^cannot watch \*pointer@98304000000: (there is no memory at 0x\w+|Value out of range)")
        self.assertSays(gdb("ulpf watch big[99999999999999999999..]"), r"^cannot watch big\[99999999999999999999\.\.\]: ")

    def test_advice_says_the_truth(self):
        gdb = self.begin("large", done=False)
        self.assertSays(gdb("watch big"), r"ulpf: GDB will never report a hit of this watch: big has 98304 bytes, more than its max-value-size \(65536\)\.")
        gdb("set max-value-size unlimited")
        self.assertNotIn("ulpf:", gdb("watch record"))
