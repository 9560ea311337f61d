"""Steps over the calls that make processes, and their catchpoints."""

from lib.cases import Case
from lib.env import example


class CallsThatFork(Case):
    def test_a_step_ends_behind_the_call(self):
        for how in "fork", "vfork":
            for detach in "on", "off":
                with self.subTest(how=how, detach=detach):
                    gdb = self.session("calls_that_fork", how)
                    gdb(f"set detach-on-fork {detach}")
                    gdb(f"break *&{how}_call")
                    self.assertSays(gdb("continue"), r"Breakpoint 2")
                    if (how, detach) == ("vfork", "off"):
                        continue  # the parent waits for a child that is held for ever
                    gdb("stepi")
                    self.assertEqual(gdb.value(f"$pc == (long)&after_{how}"), 1)
                    gdb("stepi")
                    self.assertEqual(gdb.value(f"$pc - (long)&after_{how}"), 1)
                    gdb("delete")
                    if detach == "on":
                        self.assertExits(gdb, 0, f"{how}: 3")

    def test_the_return_of_exec(self):
        gdb = self.session("calls_that_fork", "exec", example("five"))
        self.assertSays(gdb("catch syscall execve"), r"Catchpoint 2")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(call to syscall execve\)")
        self.assertSays(gdb("continue"), r"is executing new program: .*/five", r"Catchpoint 2 \(returned from syscall execve\)")
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    def test_the_return_of_exec_and_the_exec(self):
        gdb = self.session("calls_that_fork", "exec", example("five"))
        gdb("catch syscall execve")
        gdb("catch exec")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(call to syscall execve\)")
        self.assertSays(gdb("continue"), r"Catchpoint 3 \(exec'd .*/five\)")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(returned from syscall execve\)")
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    def test_a_grandchild(self):
        """A vfork child makes one of its own: both are reported, and followed."""
        gdb = self.session("calls_that_fork", "grand")
        gdb("set follow-fork-mode child")
        gdb("set detach-on-fork off")
        gdb("catch vfork")
        for _ in range(2):
            self.assertSays(gdb("continue"), r"Catchpoint 2 \(vforked process \d+\)")
        self.assertSays(gdb("continue"), r"Inferior 3 .* exited with code 02")
        gdb("inferior 2")
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited with code 03")
        gdb("inferior 1")
        self.assertExits(gdb, 0, "grand: 3")
