"""A debug adapter's session: how it gets a program, what it shows, how it ends."""

import os
import re
import signal
import socket
import subprocess
import time

from lib import schema
from lib.dap import DapCase, Refused, source
from lib.env import ULPF, example, ulpf_only
from lib.server import Server, sleeps, stub_of
from lib.rsp import wait_until


def gone(pid):
    """Is a process no more (or only its exit status)?"""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@ulpf_only
class Launch(DapCase):
    def test_from_the_first_instruction_to_the_end(self):
        dap = self.adapter()
        able = dap.initialize()
        self.assertTrue(able["supportsDataBreakpoints"] and able["supportsDataBreakpointBytes"])
        dap.ask("launch", program=example("five"), gdbArgs=["-nx"])
        dap.event("initialized")
        dap.ask("configurationDone")
        self.assertEqual(dap.exited(), 0)
        self.assertIn("five: done\n", dap.outputs("stdout"))
        dap.disconnect()
        self.assertEqual(dap.process.returncode, 0)

    def test_arguments_folder_environment(self):
        dap = self.adapter()
        script = 'for w in "$@"; do echo "[$w]"; done; pwd; echo "$ONE+${HOME-none}"; echo wrong >&2; exit 7'
        dap.launch("/bin/sh", "-c", script, "sh", "it's", 'a "b" $HOME', "", cwd="/usr", env={"ONE": "1 2", "HOME": None})
        dap.ask("configurationDone")
        self.assertEqual(dap.exited(), 7)
        self.assertEqual(dap.outputs("stdout"), '[it\'s]\n[a "b" $HOME]\n[]\n/usr\n1 2+none\n')
        self.assertEqual(dap.outputs("stderr"), "wrong\n")

    def test_stop_on_entry_and_stepping(self):
        dap = self.adapter()
        dap.launch("five", stopOnEntry=True)
        dap.ask("configurationDone")
        self.assertEqual(dap.event("stopped")["reason"], "entry")
        frame = dap.top()[0]
        self.assertEqual((frame["name"], frame["source"]["path"]), ("main", source("five.c")["path"]))
        dap.ask("next", threadId=1)
        dap.event("stopped", reason="step")
        dap.ask("next", threadId=1)
        dap.event("stopped", reason="step")
        self.assertEqual(dap.value("a"), "11")
        before = dap.top()[0]["instructionPointerReference"]
        dap.ask("stepIn", threadId=1, granularity="instruction")
        dap.event("stopped", reason="step")
        self.assertNotEqual(dap.top()[0]["instructionPointerReference"], before)

    def test_step_in_and_out(self):
        dap = self.adapter()
        dap.begin("filters", at="slowly")
        dap.ask("stepIn", threadId=1)
        dap.event("stopped", reason="step")
        self.assertEqual([f["name"] for f in dap.top()], ["add", "slowly", "main"])
        dap.ask("stepOut", threadId=1)
        dap.event("stopped", reason="step")
        self.assertEqual(dap.top()[0]["name"], "slowly")

    def test_a_program_that_crashes(self):
        dap = self.adapter()
        dap.begin("crash")
        stop = dap.event("stopped", reason="exception")
        self.assertIn("SIGSEGV", stop["text"])
        self.assertIn("SIGSEGV", dap.ask("exceptionInfo", threadId=stop["threadId"])["exceptionId"])
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 128 + signal.SIGSEGV)
        # Nothing is left, and the session still answers.
        with self.assertRaisesRegex(Refused, "no program"):
            dap.top()
        dap.disconnect()

    def test_what_cannot_be_launched(self):
        dap = self.adapter()
        dap.initialize()
        for options, why in (({}, "names no program"), ({"program": "/no/such"}, "no program /no/such"),
                             ({"program": "/etc/passwd"}, "gdb cannot use"),
                             ({"program": example("five"), "cwd": "/no/dir"}, "no folder /no/dir"),
                             ({"program": example("five"), "gdb": "/no/gdb"}, "cannot be started"),
                             ({"program": example("five"), "placement": "nowhere"}, "nowhere"),
                             ({"program": 7}, "not understood")):
            with self.assertRaisesRegex(Refused, why):
                dap.ask("launch", {"gdbArgs": ["-nx"], **options})
        # None of it has spoilt the session.
        dap.ask("launch", program=example("five"), gdbArgs=["-nx"])
        dap.event("initialized")

    def test_restart(self):
        dap = self.adapter()
        dap.launch("five")
        dap.ask("setFunctionBreakpoints", breakpoints=[{"name": "ready"}])
        watch, = dap.set_watches(dap.watch("b"))
        dap.ask("configurationDone")
        first = dap.pid()
        dap.event("stopped", reason="function breakpoint")
        self.assertHit(dap.cont(), watch, "b: 20 → 21")
        dap.ask("restart", {})
        dap.event("stopped", reason="function breakpoint")
        self.assertNotEqual(dap.pid(), first)
        self.assertTrue(gone(first))
        self.assertHit(dap.cont(), watch, "b: 20 → 21")
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)
        # And once more, after its end.
        dap.ask("restart", {})
        dap.event("stopped", reason="function breakpoint")

    def test_terminate_and_disconnect(self):
        dap = self.adapter()
        dap.begin("/bin/sleep", "60")
        pid = dap.pid()
        self.assertTrue(wait_until(lambda: sleeps(pid), 20))
        dap.ask("terminate")
        self.assertEqual(dap.exited(), 128 + signal.SIGTERM)
        dap.disconnect()

    def test_disconnect_ends_what_was_launched(self):
        for options, dies in (({}, True), ({"terminateDebuggee": False}, False)):
            with self.subTest(options):
                dap = self.adapter()
                dap.begin("/bin/sleep", "60")
                pid = dap.pid()
                dap.disconnect(**options)
                self.assertEqual(wait_until(lambda: gone(pid), 5 if dies else 0.3), dies)
                if not dies:
                    os.kill(pid, signal.SIGKILL)

    def test_a_client_that_vanishes(self):
        dap = self.adapter()
        dap.begin("/bin/sleep", "60")
        pid = dap.pid()
        dap.process.stdin.close()
        dap.process.wait(20)
        self.assertTrue(wait_until(lambda: gone(pid)))

    def test_the_adapter_is_told_to_end(self):
        dap = self.adapter()
        dap.begin("/bin/sleep", "60")
        pid = dap.pid()
        dap.process.send_signal(signal.SIGTERM)
        self.assertEqual(dap.process.wait(20), 128 + signal.SIGTERM)
        self.assertTrue(wait_until(lambda: gone(pid)))

    def test_a_terminal_of_the_clients(self):
        dap = self.adapter()
        dap.initialize(supportsRunInTerminalRequest=True)
        launched = dap.send("launch", {"program": example("five"), "console": "integratedTerminal", "gdbArgs": ["-nx"]})
        wanted = dap.wait(lambda m: m["type"] == "request")
        self.assertEqual((wanted["command"], wanted["arguments"]["kind"]), ("runInTerminal", "integrated"))
        terminal = subprocess.Popen(wanted["arguments"]["args"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(terminal.stdout.close)
        self.addCleanup(terminal.kill)
        dap.respond(wanted, {"processId": terminal.pid})
        dap.answer(launched)
        # Its counters are found in the other server's area.
        self.watch_a(dap, "a: 10 → 11 (hit 1)")
        dap.disconnect()
        self.assertIn("five: done", terminal.communicate(timeout=20)[0])
        self.assertEqual(dap.outputs("stdout"), "")

    def test_gdb_is_killed(self):
        dap = self.adapter()
        dap.begin("/bin/sleep", "60")
        pid = dap.pid()
        gdb = subprocess.run(["pgrep", "-P", str(dap.process.pid), "gdb"], stdout=subprocess.PIPE, text=True).stdout.split()
        os.kill(int(gdb[0]), signal.SIGKILL)
        dap.event("terminated")
        self.assertIn("gdb has ended", dap.outputs("important"))
        with self.assertRaises(Refused):
            dap.ask("evaluate", expression="1", context="repl")
        self.assertTrue(wait_until(lambda: gone(pid)))
        dap.disconnect()

    def test_gdb_ends_over_a_question(self):
        """No false stop is reported, and the end is."""
        dap = self.adapter()
        dap.begin("filters", at="ready")
        dap.set_watches(dap.watch("total"))
        # The adapter reads this property first at a stop.
        dap.ask("evaluate", expression="python import ulpf.stops, os; ulpf.stops.Hit.old = property(lambda hit: os.abort())", context="repl")
        dap.ask("continue", threadId=1)
        dap.event("terminated", 30)
        self.assertEqual(dap.waiting("stopped"), [])
        self.assertIn("gdb has ended", dap.outputs("important"))
        with self.assertRaisesRegex(Refused, "no program"):
            dap.ask("continue", threadId=1)


@ulpf_only
class Forks(DapCase):
    """Children that GDB follows by its settings: a message says so, and the session stays whole."""

    def launch(self, *commands):
        dap = self.adapter()
        dap.launch("children", initCommands=list(commands))
        dap.ask("configurationDone")
        return dap

    def test_children_run_on(self):
        dap = self.launch()
        self.assertEqual(dap.exited(), 0)
        self.assertNotIn("gdb follows", dap.outputs("important"))

    def test_a_child_is_followed(self):
        dap = self.launch("set follow-fork-mode child")
        self.assertEqual(dap.exited(), 3)
        self.assertIn("it has none of the data breakpoints", dap.outputs("important"))

    def test_both(self):
        dap = self.launch("set detach-on-fork off")
        said = dap.wait(lambda m: m.get("event") == "output" and "gdb follows process" in m["body"]["output"])
        child = int(re.search(r"process (\d+)", said["body"]["output"]).group(1))
        pid = dap.pid()
        self.assertNotEqual(pid, child)
        # The program waits for its child, which gdb holds.
        dap.ask("pause", threadId=1)
        dap.event("stopped", reason="pause")
        self.assertEqual(len(dap.ask("threads")["threads"]), 2)
        dap.disconnect()
        for process in pid, child:
            self.assertTrue(wait_until(lambda: gone(process), 20), "it is still there")

    def test_one_of_two_ends(self):
        dap = self.launch("set detach-on-fork off", "set schedule-multiple on")
        stop = dap.event("stopped", reason="pause")
        self.assertIn("A process has ended; another one is there", stop["text"])
        self.assertTrue(dap.ask("stackTrace", threadId=stop["threadId"])["stackFrames"])
        dap.disconnect()


@ulpf_only
class Attach(DapCase):
    def test_attach_and_let_go(self):
        program = subprocess.Popen(["/bin/sleep", "60"], stdout=subprocess.DEVNULL)
        self.addCleanup(program.kill)
        self.assertTrue(wait_until(lambda: sleeps(program.pid), 20))
        dap = self.adapter()
        dap.initialize()
        dap.ask("attach", pid=str(program.pid), gdbArgs=["-nx"], stopOnEntry=True)
        dap.event("initialized")
        dap.ask("configurationDone")
        dap.event("stopped", reason="entry")
        # Below functions of the C library's own.
        self.assertIn("nanosleep", " ".join(frame["name"] for frame in dap.top()[:4]))
        dap.ask("continue", threadId=1)
        dap.disconnect()
        self.assertTrue(wait_until(lambda: sleeps(program.pid), 20))
        self.assertIsNone(program.poll())
        with self.assertRaisesRegex(AssertionError, r"\[\]"):
            stub_of(program.pid)

    def test_a_running_server(self):
        server = Server(example("five"))
        self.addCleanup(server.close)
        dap = self.adapter()
        dap.initialize()
        dap.ask("attach", address=server.target, program=example("five"), gdbArgs=["-nx"])
        self.watch_a(dap, "a: 10 → 11")

    def test_what_cannot_be_attached_to(self):
        dap = self.adapter()
        dap.initialize()
        for options, why in (({}, "neither"), ({"pid": 2 ** 30}, "no process"), ({"pid": "x"}, "no number"),
                             ({"address": "127.0.0.1:1"}, "no connection")):
            with self.assertRaisesRegex(Refused, why):
                dap.ask("attach", {"gdbArgs": ["-nx"], **options})


@ulpf_only
class Transport(DapCase):
    def listening(self):
        """An adapter's port and token."""
        server = subprocess.Popen([ULPF, "dap", "--listen", "0"], stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.wait)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.kill)
        port = int(re.search(r"port (\d+)", server.stderr.readline()).group(1))
        return server, port, re.search(r'"token": "(\w+)"', server.stderr.readline()).group(1)

    def test_settings_are_a_sessions_own(self):
        _, port, token = self.listening()
        chosen = {"debug-register": {"placement": "debug-register"}, "guard": {"placement": "guard"}, "auto": {}}
        for wanted, options in chosen.items():
            dap = self.adapter(connect=socket.create_connection(("127.0.0.1", port)))
            dap.begin("five", at="ready", token=token, **options)
            said = dap.ask("evaluate", expression="monitor ulpf placement", context="repl")["result"]
            self.assertIn(f'"placement":"{wanted}"', said)

    def test_tcp(self):
        server, port, token = self.listening()
        with open(f"/proc/{server.pid}/net/tcp") as sockets:
            self.assertIn(f"0100007F:{port:04X}", sockets.read())
        # Each has a session of its own.
        both = [self.adapter(connect=socket.create_connection(("127.0.0.1", port))) for _ in range(2)]
        for dap in both:
            dap.begin("five", at="ready", token=token)
        for dap in both:
            dap.ask("continue", threadId=1)
            self.assertEqual(dap.exited(), 0)

    def test_garbage(self):
        dap = self.adapter()
        for bad in (b"hello\r\n\r\n", b"Content-Length: x\r\n\r\n", b"Content-Length: 5\r\n\r\n{abc}",
                    b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 4\r\n\r\nnull",
                    b'Content-Length: 30\r\n\r\n{"seq":"x","type":"request"}  '):
            dap.send_bytes(bad)
            answer = dap.wait(lambda m: m["type"] == "response" and m["request_seq"] == 0)
            self.assertFalse(answer["success"])
            self.assertIn("not understood", answer["message"])
        with self.assertRaisesRegex(Refused, "no request fly"):
            dap.ask("fly")
        with self.assertRaisesRegex(Refused, "no program yet"):
            dap.ask("evaluate", expression="1", context="repl")
        with self.assertRaisesRegex(Refused, "arguments"):
            dap.ask("variables", {"variablesReference": "seven"})
        dap.begin("five", at="ready")
        with self.assertRaisesRegex(Refused, "frame is gone"):
            dap.ask("scopes", frameId=4711)
        with self.assertRaisesRegex(Refused, "variable is gone"):
            dap.ask("variables", variablesReference=4711)
        self.assertEqual(dap.value("a"), "10")

    def test_cancel(self):
        dap = self.adapter()
        dap.begin("/bin/sleep", "60")
        pid = dap.pid()
        self.assertTrue(wait_until(lambda: sleeps(pid), 20))
        dap.ask("pause", threadId=1)
        stop = dap.event("stopped", reason="pause")
        # GDB sleeps; both requests are taken back.
        slow = dap.send("evaluate", {"expression": "python import time; time.sleep(60)", "context": "repl"})
        next_one = dap.send("evaluate", {"expression": "1", "context": "repl"})
        dap.send("cancel", {"requestId": next_one})
        time.sleep(0.5)
        dap.send("cancel", {"requestId": slow})
        for seq in slow, next_one:
            with self.assertRaisesRegex(Refused, "cancelled"):
                dap.answer(seq, 20)
        self.assertTrue(dap.ask("stackTrace", threadId=stop["threadId"])["stackFrames"])


class Schema(DapCase):
    def test_every_conversation_is_checked(self):
        """Fetches the schema for this and later runs; without it the other tests check less."""
        if schema.path(fetch=True) is None:
            self.skipTest("no debugpy with the protocol's schema, and pip cannot fetch it")
        schema.load.cache_clear()
        judge = schema.load()
        self.assertTrue(list(judge.problems({"seq": 1, "type": "event", "event": "stopped", "body": {"reason": 7}})))
        self.assertTrue(list(judge.problems({"seq": 1, "type": "event", "event": "stopped", "body": {}})))
        self.assertFalse(list(judge.problems({"seq": 1, "type": "event", "event": "stopped", "body": {"reason": "step"}})))
        dap = self.adapter()
        dap.begin("five", at="ready")
        dap.top()


@ulpf_only
class CheckedHeap(DapCase):
    def test_an_error_is_an_exception(self):
        dap = self.adapter()
        dap.launch("heap_errors", "use_after_free", check=True)
        dap.ask("configurationDone")
        stop = dap.event("stopped", reason="exception")
        self.assertEqual(stop["description"], "Error of the heap: freed")
        self.assertRegex(stop["text"], r"^read of 4 bytes at 0x[0-9a-f]+, 12 bytes inside a freed block of 40 bytes$")
        self.assertEqual([frame["name"] for frame in dap.top()][:2], ["use_after_free", "main"])
        info = dap.ask("exceptionInfo", threadId=stop["threadId"])
        self.assertEqual(info["exceptionId"], "heap: freed")
        for part in "freed by", "allocated by", "use_after_free at heap_errors.c:":
            self.assertIn(part, info["description"])
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 5)
        self.assertIn("ulpf: 1 error at 1 place", dap.outputs("console"))
        self.assertEqual(dap.outputs("stdout"), "")

    def test_threads_and_signals_that_nobody_wants(self):
        """Each error is a stop on its thread, also where the client wants no signals."""
        dap = self.adapter()
        dap.launch("heap_stops", check=True)
        dap.ask("setExceptionBreakpoints", filters=[])
        dap.ask("configurationDone")
        seen = set()
        for _ in range(3):
            stop = dap.event("stopped", reason="exception")
            seen.add((stop["description"], stop["threadId"]))
            dap.ask("continue", threadId=stop["threadId"])
        self.assertEqual(sorted(what for what, _ in seen),
                         ["Error of the heap: double-free", "Error of the heap: freed", "Error of the heap: outside"])
        self.assertEqual(len({thread for _, thread in seen}), 3)
        self.assertEqual(dap.exited(), 0)

    def test_last_writers(self):
        dap = self.adapter()
        dap.launch("blamed", "loop", blame=True)
        dap.ask("configurationDone")
        dap.event("stopped")
        [use, *_] = dap.top()
        said = dap.ask("evaluate", expression="ulpf last s->peer", context="repl", frameId=use["id"])["result"]
        self.assertRegex(said, r" s ago \[\d+\] write  s->peer: 8 bytes  rename_by_loop\+0x\w+ at blamed\.c:\d+")
        writer = r"rename_by_loop\+0x\w+ at blamed\.c:\d+, \d+\.\d+ s ago in thread \d+$"
        hover = dap.ask("evaluate", expression="s->peer", context="hover", frameId=use["id"])["result"]
        self.assertRegex(hover, rf"^0x\w+ ← {writer}")
        self.assertNotIn("←", dap.ask("evaluate", expression="s->peer", context="watch", frameId=use["id"])["result"])
        # A structure has its writers as a child that is fetched when the user asks.
        whole = dap.ask("evaluate", expression="*s", context="watch", frameId=use["id"])["variablesReference"]
        lazy = dap.ask("variables", variablesReference=whole)["variables"][-1]
        self.assertEqual((lazy["name"], lazy["value"], lazy["presentationHint"]["lazy"]), ("last writer", "", True))
        [fetched] = dap.ask("variables", variablesReference=lazy["variablesReference"])["variables"]
        self.assertRegex(fetched["value"], r"^\d writers: ulpf blame \(?\*")
        name = next(one for one in dap.ask("variables", variablesReference=whole)["variables"] if one["name"] == "name")
        lazy = dap.ask("variables", variablesReference=name["variablesReference"])["variables"][-1]
        [fetched] = dap.ask("variables", variablesReference=lazy["variablesReference"])["variables"]
        self.assertRegex(fetched["value"], rf"^{writer}")

    def test_what_cannot_be_checked(self):
        for more, why in ({"address": "localhost:1", "check": False, "blame": True}, "start the server with --blame"), ({"address": "localhost:1"}, "start it with --check"), ({"check": ["--gaps"]}, "has no option `--gaps`"):
            dap = self.adapter()
            dap.initialize()
            with self.assertRaisesRegex(Refused, why):
                dap.ask("launch", **{"program": example("heap_errors"), "check": True, **more})
