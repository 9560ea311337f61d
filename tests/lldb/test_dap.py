"""LLDB's own debug adapter over our server: lldb-dap, which VS Code's LLDB extension and nvim-dap start."""

import unittest

from lib.dap import DapCase
from lib.env import example, find_tool, ulpf_only
from lib.server import Server

LLDB_DAP = find_tool("lldb-dap-19")


@ulpf_only
@unittest.skipUnless(LLDB_DAP, "lldb-19 is not installed")
class Adapter(DapCase):
    def test_more_data_breakpoints_than_registers(self):
        """With the configuration that docs/dap.md gives."""
        server = Server(example("stray"))
        self.addCleanup(server.close)
        dap = self.adapter(program=LLDB_DAP)
        dap.initialize()
        attached = dap.send("attach", {"program": example("stray"), "attachCommands": [f"gdb-remote {server.target}"]})
        dap.event("initialized", 60)
        dap.ask("setFunctionBreakpoints", breakpoints=[{"name": "main"}])
        dap.ask("configurationDone")
        dap.answer(attached)
        thread = dap.event("stopped", reason="breakpoint")["threadId"]
        frame = dap.top(thread)[0]
        self.assertEqual(frame["name"], "main")
        scopes = dap.ask("scopes", frameId=frame["id"])["scopes"]
        globals_ = next(scope["variablesReference"] for scope in scopes if scope["name"] == "Globals")
        game = self.field(dap, globals_, "game")
        scores = self.field(dap, game, "scores")
        asked = [(game, "total"), *((scores, f"[{n}]") for n in range(4))]
        watches = [dap.ask("dataBreakpointInfo", variablesReference=of, name=name)["dataId"] for of, name in asked]
        answer = dap.ask("setDataBreakpoints", breakpoints=[{"dataId": watch, "accessType": "write"} for watch in watches])
        self.assertEqual([one["verified"] for one in answer["breakpoints"]], [True] * 5, answer)
        seen = []
        for _ in range(10):
            dap.ask("continue", threadId=thread)
            stop = dap.event("stopped")
            self.assertRegex(stop["description"], "^watchpoint [1-5]$")
            seen.append(dap.top(thread)[0]["name"])
        self.assertEqual(seen, ["add"] * 4 + ["reset_scores"] * 5 + ["add"])
        dap.ask("continue", threadId=thread)
        self.assertEqual(dap.exited(), 0)
        self.assertEqual(server.wait(), 0)
        self.assertIn("total 5 (should be 14)", server.stdout())

    def field(self, dap, of, name):
        return next(v["variablesReference"] for v in dap.ask("variables", variablesReference=of)["variables"] if v["name"] == name)
