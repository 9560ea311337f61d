"""Tasks that the C library knows nothing of are threads."""

import re

from lib.cases import Case


class Clones(Case):
    def test_a_task_that_shares_memory(self):
        """clone(2) without CLONE_THREAD makes a process for the kernel, and a thread for debuggers; or a thread all the same."""
        for how in "shared", "bare":
            with self.subTest(how):
                gdb = self.session("clones", how)
                gdb("break in_clone")
                self.assertSays(gdb("continue"), r"hit Breakpoint 2, in_clone")
                self.assertEqual(len(re.findall(r"(?m)^[* ] +\d+ +Thread", gdb("info threads"))), 2)
                gdb("watch counter")
                self.assertChange(gdb("continue"), 3, "counter", 0, 5)
                gdb("delete")
                self.assertExits(gdb, 0, "clones: 5, status 0")
