"""`catch syscall`: before and after a call, by name, by number, all of them."""

import re

from lib.cases import Case
from lib.env import bare, example, ulpf_only


class CatchSyscall(Case):
    def test_by_name(self):
        gdb = self.session("sysread")
        self.assertSays(gdb("catch syscall write read"), r"Catchpoint 2 \(syscalls 'write' \[1\] 'read' \[0\]\)")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(call to syscall write\)")
        self.assertEqual(gdb.value("$rdx"), 12)
        self.assertEqual(gdb.value("$rax"), -38)
        self.assertEqual(gdb.value("$orig_rax"), 1)
        self.assertSays(gdb("backtrace"), r"write", r"main \(\)")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(returned from syscall write\)")
        self.assertEqual(gdb.value("$rax"), 12)
        for name in "read", "write":
            self.assertSays(gdb("continue"), rf"Catchpoint 2 \(call to syscall {name}\)")
            self.assertSays(gdb("continue"), rf"Catchpoint 2 \(returned from syscall {name}\)")
        gdb("delete")
        self.assertExits(gdb, 0, bare(example("sysread"))[1])

    def test_all(self):
        gdb = self.session("sysread")
        gdb("catch syscall")
        seen = []
        while len(seen) < 40 and (out := gdb("continue")) and "exited" not in out:
            match = re.search(r"Catchpoint 2 \((call to|returned from) syscall (\S+)\)", out)
            self.assertTrue(match, out)
            seen.append(match.groups())
        calls = [name for what, name in seen if what == "call to"]
        self.assertEqual(calls[:4], ["write", "read", "write", "readv"])
        for what, back in zip(seen[::2], seen[1::2]):
            self.assertEqual((what[0], back), ("call to", ("returned from", what[1])))
        gdb("delete")
        gdb("continue")

    @ulpf_only
    def test_with_a_watch(self):
        """A caught call writes to watched memory: the hit is reported as well."""
        gdb = self.session("sysread")
        gdb("catch syscall read")
        gdb("watch *(char(*)[12])buffer")
        self.assertSays(gdb("continue"), r"call to syscall read")
        out = gdb("continue")
        self.assertSays(out, r"Hardware watchpoint 3", r'New value = "hello, watch"')
        self.assertSays(gdb("continue"), r"returned from syscall read")
        gdb("delete")
        self.assertExits(gdb, 0, bare(example("sysread"))[1])

    def test_on_and_off(self):
        """A busy site that was left to itself is caught, and left to itself again."""
        gdb = self.session("spin", stop=None)
        gdb("tbreak main")
        gdb("continue")
        gdb("catch syscall nanosleep clock_nanosleep")
        said = [gdb("continue") for _ in range(6)]  # of two threads
        self.assertEqual(sum(bool(re.search(r"Catchpoint 2 .*syscall (clock_)?nanosleep", s)) for s in said), 6)
        self.assertSays("".join(said), r"call to", r"returned from")
        gdb("delete")
        gdb("kill")
