"""Conversations with `ulpf dap`: one request, its answer, the events on the way."""

import collections
import json
import os
import subprocess
import threading
import time
import unittest

from . import schema
from .env import GDB, PATIENCE, ULPF, example, source_of
from .gdb import WITHOUT_LIBRARIES


class Refused(AssertionError):
    """The adapter has answered with `success: false`."""


class Adapter:
    """`dap.ask("threads")["threads"]`; `dap.event("stopped")["reason"]`.

    Every message of the adapter's is checked against the protocol's schema, where there is one. `program` is another adapter,
    which is not checked.
    """

    def __init__(self, *words, connect=None, env=None, program=None):
        self.transcript = []
        self.process = None
        if connect is None:
            self.process = subprocess.Popen([program, *words] if program else [ULPF, "dap", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, start_new_session=True,
                                            env={**os.environ, **(env or {}), "LC_ALL": "C.UTF-8"})
            self.input, self.output = self.process.stdin, self.process.stdout
            self._errors = threading.Thread(target=self._read_errors, daemon=True)
            self._errors.start()
        else:
            self.socket = connect
            self.input = self.output = connect.makefile("rwb", buffering=0)
        self.said = ""
        self.checked = None if program else schema.load()
        self.wrong = []
        self._seq = 0
        self._messages = collections.deque()
        self._over = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read_errors(self):
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            self.said += chunk.decode(errors="replace")

    def _read(self):
        try:
            while message := self._frame():
                with self._changed:
                    self._messages.append(message)
                    self._changed.notify_all()
        except (OSError, ValueError):
            pass
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _frame(self):
        length = None
        while (line := self.output.readline()).strip():
            name, _, value = line.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        if length is None:
            return None
        body = b""
        while len(body) < length:
            piece = self.output.read(length - len(body))
            if not piece:
                return None
            body += piece
        message = json.loads(body)
        self._note("<", message)
        return message

    def _note(self, way, message):
        self.transcript.append(f"{way} {json.dumps(message, ensure_ascii=False)[:2000]}")
        if self.checked and way == "<":
            for problem in self.checked.problems(message):
                self.wrong.append(f"{problem} in {json.dumps(message)[:1000]}")

    # ---- saying ----

    def send_bytes(self, data):
        self.transcript.append(f"> {data[:300]!r}")
        self.input.write(data)
        self.input.flush()

    def send(self, command, arguments=None):
        """Its number; the answer comes with `answer()`."""
        self._seq += 1
        message = {"seq": self._seq, "type": "request", "command": command}
        if arguments is not None:
            message["arguments"] = arguments
        self._note(">", message)
        body = json.dumps(message).encode()
        self.input.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.input.flush()
        return self._seq

    def respond(self, request, body=None):
        """To a request of the adapter's."""
        self._seq += 1
        message = {"seq": self._seq, "type": "response", "request_seq": request["seq"], "success": True,
                   "command": request["command"], "body": body or {}}
        data = json.dumps(message).encode()
        self.input.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self.input.flush()

    # ---- hearing ----

    def wait(self, wanted, seconds=30, what="a message"):
        """The first message that is wanted; others stay."""
        end = time.monotonic() + seconds * PATIENCE
        with self._changed:
            while True:
                for message in self._messages:
                    if wanted(message):
                        self._messages.remove(message)
                        return message
                left = end - time.monotonic()
                if self._over or left <= 0:
                    tail = "\n".join(self.transcript[-40:])
                    raise AssertionError(f"{what} never came{' (the adapter has ended)' if self._over else ''}:\n{tail}\n{self.said}")
                self._changed.wait(min(left, 0.5))

    def answer(self, seq, seconds=30):
        answer = self.wait(lambda m: m["type"] == "response" and m["request_seq"] == seq, seconds, f"the answer to {seq}")
        if not answer["success"]:
            raise Refused(answer["message"])
        return answer.get("body", {})

    def ask(self, command, arguments=None, seconds=30, **more):
        return self.answer(self.send(command, {**(arguments or {}), **more}), seconds)

    def event(self, name, seconds=30, **having):
        """The body of the next event of that name (and with these fields)."""
        def wanted(message):
            body = message.get("body", {})
            return message["type"] == "event" and message["event"] == name and all(body.get(k) == v for k, v in having.items())
        return self.wait(wanted, seconds, f"the event {name} {having or ''}").get("body", {})

    def outputs(self, category=None):
        """The text of all output events so far; they are gone then."""
        with self._changed:
            found = [m for m in self._messages if m.get("event") == "output" and category in (None, m["body"]["category"])]
            for message in found:
                self._messages.remove(message)
        return "".join(m["body"]["output"] for m in found)

    def until_output(self, pattern, category=None, seconds=30):
        """Waits for a text in the output."""
        import re
        said, end = "", time.monotonic() + seconds * PATIENCE
        while not re.search(pattern, said):
            if time.monotonic() > end or self._over:
                raise AssertionError(f"{pattern!r} is missing from the output:\n{said}\n" + "\n".join(self.transcript[-30:]))
            time.sleep(0.02)
            said += self.outputs(category)
        return said

    def waiting(self, name):
        """Events of that name that were not consumed."""
        with self._changed:
            return [m["body"] for m in self._messages if m.get("event") == name]

    # ---- a session ----

    def initialize(self, **more):
        return self.ask("initialize", {"adapterID": "ulpf", "linesStartAt1": True, "columnsStartAt1": True, "pathFormat": "path",
                                       "supportsVariableType": True, "supportsInvalidatedEvent": True,
                                       "supportsMemoryEvent": True, "supportsProgressReporting": True, **more})

    def launch(self, program, *args, **more):
        """Up to `initialized`: the program rests at its first instruction."""
        path = program if "/" in program else example(program)
        options = {"program": path, "args": list(args), "gdb": GDB, "gdbArgs": ["-nx", *WITHOUT_LIBRARIES], **more}
        self.initialize()
        self.ask("launch", options, 60)
        self.event("initialized")

    def begin(self, program, *args, at=None, **more):
        """Launched, and stopped at a function."""
        self.launch(program, *args, **more)
        if at:
            self.ask("setFunctionBreakpoints", breakpoints=[{"name": at}])
        self.ask("configurationDone")
        if at:
            self.event("stopped", reason="function breakpoint")
            self.ask("setFunctionBreakpoints", breakpoints=[])

    def watch(self, name, access="write", frame=None, bytes=None, **more):
        """The argument of setDataBreakpoints for it."""
        asked = {"name": name, **({"frameId": frame} if frame else {}), **({"bytes": bytes} if bytes else {})}
        info = self.ask("dataBreakpointInfo", asked)
        if not info["dataId"]:
            raise AssertionError(info["description"])
        return {"dataId": info["dataId"], "accessType": access, **more}

    def set_watches(self, *wanted, seconds=60):
        answer = self.ask("setDataBreakpoints", seconds=seconds, breakpoints=list(wanted))["breakpoints"]
        for one in answer:
            if not one["verified"]:
                raise AssertionError(one["message"])
        return [one["id"] for one in answer]

    def cont(self, **having):
        """Continues to the next stop."""
        self.ask("continue", threadId=1)
        return self.event("stopped", **having)

    def top(self, thread=1, **more):
        """The frames of a thread."""
        return self.ask("stackTrace", threadId=thread, **more)["stackFrames"]

    def caller(self):
        """Number of the frame above the innermost."""
        return self.top()[1]["id"]

    def value(self, expression, context="watch"):
        return self.ask("evaluate", expression=expression, context=context, frameId=self.top()[0]["id"])["result"]

    def exited(self):
        code = self.event("exited", 60)["exitCode"]
        self.event("terminated")
        return code

    def pid(self):
        return self.event("process")["systemProcessId"]

    def disconnect(self, **more):
        self.ask("disconnect", more)
        if self.process:
            self.process.wait(20 * PATIENCE)

    def close(self):
        if self.process is None:
            self.socket.close()
            return
        if self.process.poll() is None:
            try:
                self.input.close()
                self.process.wait(15)
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait()
        for stream in self.process.stdin, self.process.stdout, self.process.stderr:
            try:
                stream.close()
            except OSError:
                pass


class DapCase(unittest.TestCase):
    longMessage = True

    def setUp(self):
        self._adapters = []

    def adapter(self, *words, **options):
        adapter = Adapter(*words, **options)
        self._adapters.append(adapter)
        return adapter

    def tearDown(self):
        wrong = []
        failed = not self._outcome.success
        for adapter in self._adapters:
            adapter.close()
            wrong += adapter.wrong
            if failed:
                print("--- the conversation:\n" + "\n".join(adapter.transcript) + f"\n--- stderr:\n{adapter.said}")
        if wrong:
            self.fail("against the protocol's schema:\n" + "\n".join(wrong[:10]))

    def assertHit(self, stop, number, text):
        self.assertEqual((stop["reason"], stop.get("hitBreakpointIds")), ("data breakpoint", [number]), stop)
        self.assertIn(text, stop["text"])

    def watch_a(self, dap, text):
        """Configures a session on tests/programs/five, and sees one hit and the end."""
        dap.event("initialized")
        watch, = dap.set_watches(dap.watch("a"))
        dap.ask("configurationDone")
        self.assertHit(dap.event("stopped"), watch, text)
        dap.set_watches()
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)


def source(name):
    return {"name": name, "path": source_of(name)}
