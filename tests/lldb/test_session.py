"""LLDB talks to the same server."""

import os
import re

from lib.cases import Case, line
from lib.env import STAND_IN, example, find_tool
from lib.lldb import Lldb

# Where an unpacked second lldb may lie (the two packages cannot be installed side by side).
LLDB_14 = find_tool("lldb-14") or os.environ.get("LLDB_14")


class Session(Case):
    limit = 180

    def lldb(self, program):
        lldb = Lldb(program)
        self.addCleanup(lldb.close)
        return lldb

    def conversation(self, debugger):
        server = self.serve("structs")
        lldb = self.lldb(debugger)
        lldb(f"target create {example('structs')}")
        self.assertSays(lldb(f"gdb-remote {server.port}"), r"stop reason|stopped")
        lldb("breakpoint set --name ready")
        self.assertSays(lldb("continue"), r"stop reason = breakpoint 1\.1")
        lldb("up")
        names = ["box.id", "box.weight", "box.value.as_int", "shelf[2].id", "shelf[3].id", "chosen", "shelf[1].id", "shelf[0].id"]
        for number, name in enumerate(names[:3] if STAND_IN else names, start=1):
            self.assertSays(lldb(f"watchpoint set variable {name}"), rf"Watchpoint created: Watchpoint {number}:")
        if not STAND_IN:
            self.assertEqual(len(re.findall(r"(?m)^Watchpoint \d+: addr", lldb("watchpoint list"))), 8)
        out = lldb("continue")
        self.assertSays(out, r"Watchpoint 1 hit:", r"old value: 1", r"new value: 2")
        self.assertSays(out, r"stop reason = watchpoint 1", rf"structs.c:{line('structs.c', 'box.id = 2')}|main")
        self.assertSays(lldb("thread backtrace"), r"main")
        self.assertSays(lldb("register read rip"), r"rip = 0x")
        self.assertSays(lldb("expression box.id + 40"), r"= 42")
        self.assertSays(lldb("continue"), r"Watchpoint 2 hit:", r"new value: 2.5")
        lldb("watchpoint delete 3")
        if not STAND_IN:
            self.assertSays(lldb("continue"), r"Watchpoint 7 hit:", r"new value: 10")
            self.assertSays(lldb("continue"), r"Watchpoint 4 hit:", r"new value: 20")
        lldb("watchpoint delete")
        self.assertSays(lldb("continue"), r"exited with status = 0")
        self.assertEqual(server.wait(), 0)
        self.assertIn("structs: 2 33 777 second", server.stdout())

    def test_lldb_19(self):
        debugger = find_tool("lldb-19")
        if not debugger:
            self.skipTest("lldb-19 is not installed")
        self.conversation(debugger)

    def test_lldb_14(self):
        if not LLDB_14:
            self.skipTest("lldb-14 is not here (it cannot be installed beside lldb-19; LLDB_14 may name one)")
        self.conversation(LLDB_14)

    def test_step_and_threads(self):
        debugger = find_tool("lldb-19", "lldb-14")
        if not debugger:
            self.skipTest("lldb is not installed")
        server = self.serve("locals")
        lldb = self.lldb(debugger)
        lldb(f"target create {example('locals')}")
        lldb(f"gdb-remote {server.port}")
        lldb("breakpoint set --name inner")
        self.assertSays(lldb("continue"), r"stop reason = breakpoint 1\.1")
        self.assertSays(lldb("thread step-over"), r"stop reason = step over")
        self.assertSays(lldb("thread step-out"), r"stop reason = step out")
        self.assertSays(lldb("thread step-inst"), r"stop reason = instruction step")
        self.assertSays(lldb("image list"), r"libc.so.6")
        lldb("breakpoint delete 1")
        self.assertSays(lldb("continue"), r"exited with status = 0")
        self.assertEqual(server.wait(), 0)
