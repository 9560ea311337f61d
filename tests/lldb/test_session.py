"""LLDB talks to the same server."""

import os
import re

from lib.cases import Case, line
from lib.env import ROOT, example, find_tool, ulpf_only
from lib.lldb import lldb

# Its package cannot be installed beside lldb 19's: .ci/lldb-14 unpacks it.
UNPACKED = os.path.join(ROOT, "build/lldb-14/usr/lib/llvm-14/bin/lldb")
LLDB_14 = os.environ.get("LLDB_14") or (UNPACKED if os.path.exists(UNPACKED) else find_tool("lldb-14"))


@ulpf_only  # gdbserver is no match for LLDB
class Session(Case):
    limit = 180

    def conversation(self, debugger):
        names = ["box.id", "box.weight", "box.value.as_int", "shelf[2].id", "shelf[3].id", "chosen", "shelf[1].id", "shelf[0].id"]
        server = self.serve("structs")
        answers, text = lldb(debugger, [
            f"target create {example('structs')}",
            f"gdb-remote {server.port}",
            "breakpoint set --name ready",
            "continue",
            "up",
            *(f"watchpoint set variable {name}" for name in names),
            "watchpoint list",
            "process continue",
            "thread backtrace",
            "register read rip",
            "expression box.id + 40",
            "process continue",
            "watchpoint delete --force 1 2 3",
            "process continue",
            "process continue",
            "watchpoint delete --force",
            "process continue",
        ])
        say = iter(answers)
        self.assertSays(next(say), r"Current executable set to")
        self.assertSays(next(say), r"stopped|stop reason")
        self.assertSays(next(say), r"Breakpoint 1")
        self.assertSays(next(say), r"stop reason = breakpoint 1\.1")
        next(say)
        for number, _ in enumerate(names, start=1):
            self.assertSays(next(say), rf"Watchpoint created: Watchpoint {number}:")
        self.assertEqual(len(re.findall(r"(?m)^Watchpoint \d+: addr", next(say))), len(names))
        out = next(say)
        self.assertSays(out, r"Watchpoint 1 hit:", r"old value: 1", r"new value: 2")
        self.assertSays(out, r"stop reason = watchpoint 1", r"main")
        self.assertSays(next(say), rf"structs.c:{line('structs.c', 'box.flags.ready = 1')}")
        self.assertSays(next(say), r"rip = 0x")
        self.assertSays(next(say), r"= 42")
        self.assertSays(next(say), r"Watchpoint 2 hit:", r"new value: 2.5")
        next(say)
        self.assertSays(next(say), r"Watchpoint 7 hit:", r"new value: 10")
        self.assertSays(next(say), r"Watchpoint 4 hit:", r"new value: 20")
        next(say)
        self.assertSays(next(say), r"exited with status = 0")
        self.assertEqual(server.wait(), 0)
        self.assertIn("structs: 2 33 777 second", server.stdout())

    def test_lldb_19(self):
        debugger = find_tool("lldb-19")
        if not debugger:
            self.skipTest("lldb-19 is not installed")
        self.conversation(debugger)

    def test_lldb_14(self):
        if not LLDB_14:
            self.skipTest("lldb-14 could not be fetched")
        self.conversation(LLDB_14)

    def test_steps_and_libraries(self):
        debugger = find_tool("lldb-19", "lldb-14")
        if not debugger:
            self.skipTest("lldb is not installed")
        server = self.serve("locals")
        answers, _ = lldb(debugger, [
            f"target create {example('locals')}",
            f"gdb-remote {server.port}",
            "breakpoint set --name inner",
            "continue",
            "thread step-over",
            "thread step-out",
            "thread step-inst",
            "image list",
            "breakpoint delete 1",
            "process continue",
        ])
        self.assertSays(answers[3], r"stop reason = breakpoint 1\.1")
        self.assertSays(answers[4], r"stop reason = step over")
        self.assertSays(answers[5], r"stop reason = step out")
        self.assertSays(answers[6], r"stop reason = instruction step")
        self.assertSays(answers[7], r"libc.so.6")
        self.assertSays(answers[9], r"exited with status = 0")
        self.assertEqual(server.wait(), 0)

    def test_a_hit_behind_the_beginning(self):
        """It is that of the watched object: with its values, its condition and its commands."""
        debugger = find_tool("lldb-19", "lldb-14")
        if not debugger:
            self.skipTest("lldb is not installed")
        server = self.serve("structs")
        answers, text = lldb(debugger, [
            f"target create {example('structs')}",
            f"gdb-remote {server.port}",
            "breakpoint set --name ready",
            "continue",
            "up",
            "watchpoint set variable box.corner[1]",
            "watchpoint modify --condition 'box.corner[1].y == -4' 1",
            "watchpoint command add 1 -o 'register read rip'",
            "process continue",
            "process kill",
        ])
        self.assertSays(answers[8], r"rip = 0x", r"Watchpoint 1 hit:", r"x = 0, y = 0", r"x = 0, y = -4", r"stop reason = watchpoint 1\n")
        self.assertSays(answers[9], r"Process \d+ exited with status = 9")
        self.assertNotIn("failed to send", text)
        server.wait()

    def test_children(self):
        """LLDB hears of fork, vfork and its end, lets the children go, and stops for its watch only."""
        debugger = find_tool("lldb-19")
        if not debugger:
            self.skipTest("lldb-19 is not installed")
        server = self.serve("children")
        answers, _ = lldb(debugger, [
            f"target create {example('children')}",
            f"gdb-remote {server.port}",
            "breakpoint set --name ready",
            "continue",
            "watchpoint set variable shared_count",
            "process continue",
            "thread list",
            "process continue",
            "watchpoint delete 1",
            "process continue",
        ])
        self.assertSays(answers[5] + answers[6], r"stop reason = watchpoint 1")
        self.assertSays(answers[7], r"stop reason = watchpoint 1")
        self.assertSays(answers[9], r"exited with status = 0")
        self.assertEqual(server.wait(), 0)
        self.assertIn("children: count 3, codes 3 4 5 6 -6", server.stdout())
