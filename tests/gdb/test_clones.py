"""Tasks that the C library knows nothing of are threads; and of several threads each has its turn."""

import re
import time

from lib.cases import SEEN, Case, line


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

    def test_no_thread_starves(self):
        """Two threads are at the same breakpoint whenever there is one: each of them is told of."""
        gdb = self.session("clones", "tight", options=SEEN)
        gdb("break in_circles")
        for _ in range(2):
            self.assertSays(gdb("continue"), r"Breakpoint 2, in_circles")
        gdb("delete")
        where = f"clones.c:{line('clones.c', '++*turn')}"
        seen = []
        while len(seen) < 8:
            self.resume(gdb)
            time.sleep(0.1)
            gdb.interrupt()
            self.assertSays(gdb.answer(), r"SIGINT")
            gdb(f"break {where}")
            self.assertSays(gdb("continue"), r"hit Breakpoint \d+, in_circles")
            seen.append(gdb.value("$_thread"))
            # Who goes on need not step over anything.
            gdb("delete")
            gdb(f"thread {5 - seen[-1]}")
        self.assertEqual(set(seen), {2, 3})
        gdb("set var stop = 1")
        self.assertExits(gdb, 0, "clones: 0")
