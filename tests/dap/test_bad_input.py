"""Invalid requests from an IDE or another client: each gets a clear answer, and the session continues."""

import errno
import os
import re
import socket
import subprocess

from lib.dap import DapCase, Refused
from lib.env import ULPF, ulpf_only
from lib.rsp import wait_until


@ulpf_only
class BadInput(DapCase):
    def refused(self, dap, why, **asked):
        info = dap.ask("dataBreakpointInfo", **asked)
        self.assertIsNone(info["dataId"])
        self.assertRegex(info["description"], why)

    def test_expressions(self):
        dap = self.adapter()
        dap.begin("filters", at="ready")
        frame = dap.caller()
        self.refused(dap, r'No symbol "nosuch"', name="nosuch", frameId=frame)
        # Of what stays where it is now there has to be something; `head->x` waits for a pointer that leads somewhere.
        self.refused(dap, r"stale", name="*&head->x", frameId=frame)
        self.refused(dap, r"Cannot access memory|stale", name="*&head->next->x", frameId=frame)
        for follows in "head->x", "head->next->x":
            self.assertEqual(dap.ask("dataBreakpointInfo", name=follows, frameId=frame)["dataId"], f"e:{follows}")
        self.refused(dap, r"it has no address", name="3 + 4", frameId=frame)
        self.refused(dap, r"no memory", name="*(int *) 5", frameId=frame)
        self.refused(dap, r".", name="total[", frameId=frame)
        self.refused(dap, r"no memory at all", name="0x10", asAddress=True, bytes=4)
        self.refused(dap, r"that is no size", name="0x10", asAddress=True, bytes=0)
        with self.assertRaisesRegex(Refused, "not understood"):
            dap.ask("dataBreakpointInfo", name="0x10", asAddress=True, bytes=-4)
        with self.assertRaisesRegex(Refused, "no address"):
            dap.ask("dataBreakpointInfo", name="nowhere", asAddress=True)
        with self.assertRaisesRegex(Refused, "nosuch"):
            dap.ask("evaluate", expression="nosuch", frameId=frame, context="watch")
        self.assertEqual(dap.value("limit"), "900")

    def test_optimised_out(self):
        dap = self.adapter()
        dap.begin("optimised", at="ready")
        frame = dap.caller()
        self.refused(dap, r"optimi[sz]ed out", name="gone", frameId=frame)
        self.assertEqual(dap.ask("evaluate", expression="gone", frameId=frame, context="watch")["result"], "<optimized out>")

    def test_data_ids_of_somebody_else(self):
        """An unknown ID stays unverified, and does not affect the others."""
        dap = self.adapter()
        dap.launch("five")
        good = dap.watch("b")
        bad = [{"dataId": text, "accessType": "write"} for text in
               ("a:zz:1", "a:0x10:x", "b:many:a", "p:77:x", "x", "", "e:", "e:nosuch", "a:0xffffffffffffffffffff:4", "e:a[")]
        bad += [{**good, "accessType": "taste"}, {**good, "hitCondition": "soon"}, {**good, "condition": "$new >"}]
        answer = dap.ask("setDataBreakpoints", breakpoints=[*bad, good])["breakpoints"]
        self.assertEqual([one["verified"] for one in answer], [False] * len(bad) + [True], answer)
        self.assertTrue(all(one["message"] for one in answer[:-1]))
        dap.ask("configurationDone")
        self.assertHit(dap.event("stopped"), answer[-1]["id"], "b: 20 → 21")

    def test_numbers_without_bounds(self):
        dap = self.adapter()
        dap.begin("five", at="ready")
        least, most = -(1 << 63), (1 << 63) - 1
        pc = dap.top()[0]["instructionPointerReference"]
        for command, asked, why in (
                ("disassemble", {"memoryReference": pc, "instructionOffset": least, "instructionCount": 4}, "too far from the address"),
                ("disassemble", {"memoryReference": pc, "instructionOffset": most, "instructionCount": 4}, "too far from the address"),
                ("readMemory", {"memoryReference": pc, "count": most}, "too many at once"),
                ("variables", {"variablesReference": least}, "That variable is gone"), ("scopes", {"frameId": least}, "That frame is gone"),
                ("source", {"sourceReference": least}, "cannot be read"),
                ("stackTrace", {"threadId": least, "startFrame": most, "levels": most}, "Invalid thread id"),
                ("writeMemory", {"memoryReference": pc, "data": "not base64!"}, "no base64"),
                ("goto", {"threadId": most, "targetId": most}, "not known any more"), ("stepIn", {"threadId": most}, "There is no thread"),
                ("stepOut", {"threadId": 99}, "There is no thread 99")):
            with self.subTest(command, asked=asked), self.assertRaisesRegex(Refused, why):
                dap.ask(command, asked)
        self.assertEqual(dap.ask("readMemory", {"memoryReference": "0x0", "offset": least, "count": 8}),
                         {"address": "0x8000000000000000", "unreadableBytes": 8})
        for column in most, least:
            self.assertIn("targets", dap.ask("completions", {"text": "p ñandú", "column": column}))
        far, = dap.ask("setBreakpoints", {"source": {"path": "/five.c"}, "breakpoints": [{"line": most}]})["breakpoints"]
        self.assertFalse(far["verified"], far)
        self.assertEqual(dap.value("a"), "10")

    def test_garbage_at_the_port(self):
        """Noise, half a message, a browser: a client that does not begin as an IDE is dropped unanswered, others get
        an answer, and the next client is served."""
        server = subprocess.Popen([ULPF, "dap", "--listen", "0"], stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.wait)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.kill)
        port = int(re.search(r"port (\d+)", server.stderr.readline()).group(1))

        def say(text, hears):
            with socket.create_connection(("127.0.0.1", port), 20) as client:
                client.settimeout(20)
                heard = b""
                try:
                    client.sendall(text)
                    client.shutdown(socket.SHUT_WR)
                    while piece := client.recv(65536):
                        heard += piece
                # It may have been dropped by now: at the sending, at the end of it (ENOTCONN), or at the hearing.
                except OSError as error:
                    self.assertIn(error.errno, (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN))
            self.assertRegex(heard, hears)

        say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", rb"^$")
        say(os.urandom(100_000) + b"\r\n\r\n", rb"^$")
        say(b"\0" * 1_000_000, rb"^$")
        say(b"Content-Length: x\r\n\r\n", rb"not understood")
        say(b"Content-Length: 1000\r\n\r\n{", rb"^$")
        say(b"Content-Length: 999999999999\r\n\r\n{", rb"too long")
        say(b"Content-Length: 2\r\n\r\n[]", rb"not understood")
        say(b"", rb"^$")
        # A session of its own is untouched.
        body = b'{"seq":1,"type":"request","command":"initialize","arguments":{"adapterID":"x"}}'
        say(b"Content-Length: %d\r\n\r\n%s" % (len(body), body), rb'"success":true')
        self.assertIsNone(server.poll())
        # No gdb, no program is left of them.
        left = lambda: subprocess.run(["pgrep", "-P", str(server.pid)], stdout=subprocess.PIPE, text=True).stdout.split()
        self.assertTrue(wait_until(lambda: not left(), 20), left())
