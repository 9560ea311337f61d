"""System calls that read and write watched memory: exact, seen, and never short or failing."""

import re

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

    @ulpf_only
    def test_the_call_is_named(self):
        gdb = self.session("sysread")
        gdb("watch *(char(*)[12])buffer")
        at = gdb.address("buffer")
        said = rf"ulpf: {at:#x} written by read\(\d+, {at:#x}, 12\) = 12\n"
        self.assertSays(gdb("continue"), said, r"Hardware watchpoint 2", r'New value = "hello, watch"')
        self.assertSays(gdb("monitor ulpf why"), said)
        gdb("delete")
        gdb("rwatch buffer[3]")
        self.assertSays(gdb("continue"), rf"ulpf: {at + 3:#x} read by write\(\d+, {at:#x}, 12\) = 12\n", r"read watchpoint 3")
        gdb("delete")
        # An instruction's access is not attributed to the kernel: the sum at the end reads every byte.
        gdb("rwatch buffer[5000]")
        out = gdb("continue")
        self.assertSays(out, r"read watchpoint 4")
        self.assertNotRegex(out, r"ulpf:")
        gdb("delete")
        self.assertExits(gdb, 0, self.expected())

    @ulpf_only
    def test_one_call_and_several_watches(self):
        """gdb compares only the watch that a stop names: one stop for each."""
        gdb = self.session("sysread")
        for at in 0, 4, 8:
            gdb(f"watch *(char(*)[4])&buffer[{at}]")
        for number, text in (2, "hell"), (3, "o, w"), (4, "atch"):
            self.assertSays(gdb("continue"), r"written by read\(", rf"Hardware watchpoint {number}:", rf'New value = "{text}"')
        gdb("delete")
        self.assertExits(gdb, 0, self.expected())


class Overrun(Case):
    """The demo: read(2) with the wrong length. gdb alone misses it, ulpf names the call."""

    def test_gdb_alone_misses_it(self):
        gdb = self.gdb()
        gdb(f"file {example('overrun')}")
        gdb("break ready")
        out = gdb("run", 60)
        if re.search(r"ptrace: Operation not permitted|Couldn't get registers", out):
            self.skipTest("gdb may not trace programs here")
        self.assertSays(out, r"Breakpoint 1, ")
        gdb("up")
        self.assertSays(gdb("watch account.balance"), r"Hardware watchpoint 2: account.balance")
        out = gdb("continue")
        if "Could not insert hardware" in out:
            self.skipTest("this machine lends no debug registers")
        self.assertSays(out, r"overrun: Mallory has 1000000", r"exited with code 01")
        self.assertNotRegex(out, r"Old value")

    @ulpf_only
    def test_ulpf_stops_and_names_the_call(self):
        gdb = self.session("overrun")
        gdb("watch account.balance")
        start = gdb.address("account")
        out = gdb("continue")
        self.assertSays(out, rf"ulpf: {start + 16:#x} written by read\(\d+, {start:#x}, 24\) = 24")
        self.assertChange(out, 2, "account.balance", 1000, 1000000)
        self.assertSays(gdb("backtrace"), r"read", r"main \(\)")
        self.assertExits(gdb, 1, "overrun: Mallory has 1000000")
