"""System calls that read and write watched memory: exact, seen, and never short or failing."""

from lib.cases import Case
from lib.env import bare, example, ulpf_only


class KernelWrites(Case):
    def expected(self):
        return bare(example("sysread"))[1]

    @ulpf_only
    def test_read_into_a_watched_buffer(self):
        gdb = self.session("sysread")
        gdb("watch *(char(*)[12])buffer")
        out = gdb("continue")
        self.assertSays(out, r"Hardware watchpoint 2", r'New value = "hello, watch"')
        # The stop is behind the system call: nothing is done twice.
        self.assertSays(gdb("backtrace"), r"read", r"main \(\)")
        gdb("delete")
        self.assertExits(gdb, 0, self.expected())

    @ulpf_only
    def test_every_call_is_a_hit(self):
        gdb = self.session("sysread")
        gdb("watch *(char(*)[12])buffer")
        gdb("watch *(char(*)[8])&buffer[100]")
        gdb("watch *(char(*)[6])&buffer[4093]")
        gdb("watch *(char(*)[16])&buffer[200]")
        for number, text in (2, "hello, watch"), (3, "89abcdef"), (4, "packet"), (5, "0123456789abcdef"):
            self.assertSays(gdb("continue"), rf"Hardware watchpoint {number}:", rf'New value = "{text}"')
        gdb("delete")
        self.assertExits(gdb, 0, self.expected())

    @ulpf_only
    def test_kernel_reads_are_reads(self):
        gdb = self.session("sysread")
        gdb("rwatch buffer[3]")
        self.assertSays(gdb("continue"), r"read watchpoint 2: buffer\[3\]", r"Value = 108 'l'")
        self.assertSays(gdb("backtrace"), r"write", r"main \(\)")
        gdb("delete")
        self.assertExits(gdb, 0, self.expected())

    @ulpf_only
    def test_the_whole_buffer_guarded(self):
        """No EFAULT and no short count, whatever the kernel does with the buffer."""
        gdb = self.session("sysread")
        gdb("set max-value-size unlimited")
        gdb("watch buffer if buffer[8191] != 0")  # never true: every hit goes on
        gdb("rwatch buffer[8190] if buffer[8191] != 0")
        self.assertExits(gdb, 0, self.expected())
