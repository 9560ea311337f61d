"""The bridge (docs/bridge.md): a client for a back end, and a fake back end that records and misbehaves."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from .env import PATIENCE, ROOT

SIM = os.path.join(ROOT, "target", "release", "ulpf-sim")

# A gem5 v24.0 built with EXTRAS=sim-bridge/gem5/ulpf (its README.md).
GEM5 = os.environ.get("ULPF_GEM5")

needs_gem5 = unittest.skipUnless(GEM5, "gem5 is not here (ULPF_GEM5 names one built with EXTRAS=sim-bridge/gem5/ulpf)")

needs_sim = unittest.skipUnless(os.path.exists(SIM), "ulpf-sim is not built (`make sim`)")

REGISTERS = 164  # amd64-core


def static(name, *options):
    """A program of examples/, tests/programs or tests/sim, linked statically and at fixed addresses, as the simulators need it."""
    out = os.path.join(ROOT, "target", "static-examples", name)
    places = [os.path.join(ROOT, *folder, f"{name}.c") for folder in (("examples",), ("tests", "programs"), ("tests", "sim"))]
    source = next(place for place in places if os.path.exists(place))
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(source):
        os.makedirs(os.path.dirname(out), exist_ok=True)
        own = f"{out}.{os.getpid()}"
        subprocess.run(["gcc", "-g", "-O0", "-static", "-no-pie", "-fno-pie", "-w", *options, "-o", own, source],
                       check=True)
        os.rename(own, out)
    return out


class Front:
    """The debugger's side: `front("threads")` asks and returns the answer."""

    def __init__(self, place, hello=True, patient=20):
        """`place`: a socket's path, or HOST:PORT. A port forwarder may accept before the back end answers."""
        end = time.monotonic() + patient * PATIENCE
        while True:
            self._input, self._id, self.events = b"", 0, []
            try:
                if "/" in place:
                    self.socket = socket.socket(socket.AF_UNIX)
                    self.socket.connect(place)
                else:
                    host, port = place.rsplit(":", 1)
                    self.socket = socket.create_connection((host, int(port)))
                self.socket.settimeout(5 * PATIENCE if hello else 20 * PATIENCE)
                if hello:
                    self.raw(b"\n")
                    self.hello = self("hello", versions=[1, 1], client="a test")
                self.socket.settimeout(20 * PATIENCE)
                return
            except OSError:
                self.socket.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def raw(self, data):
        self.socket.sendall(data)

    def line(self):
        while b"\n" not in self._input:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("the back end closed the connection")
            self._input += data
        text, self._input = self._input.split(b"\n", 1)
        return json.loads(text)

    def send(self, op, **fields):
        self._id += 1
        self.raw(json.dumps({"id": self._id, "op": op, **fields}).encode() + b"\n")
        return self._id

    def __call__(self, op, **fields):
        number = self.send(op, **fields)
        while (said := self.line()).get("id") != number:
            self.events.append(said)
        return said

    def stop(self):
        """The next stop."""
        while True:
            said = self.events.pop(0) if self.events else self.line()
            if said.get("event") == "stopped":
                return said["stop"]

    def close(self):
        self.socket.close()


class FakeBackEnd:
    """Answers as a back end with one thread at 0x1000 does, and writes down what it is asked. `script` maps a
    request to what is done instead, once for each entry of its list: bytes to be said, or a function."""

    def __init__(self, script=None):
        self.dir = tempfile.TemporaryDirectory(prefix="ulpf-test-")
        self.path = os.path.join(self.dir.name, "back")
        self.script = {op: list(steps) for op, steps in (script or {}).items()}
        self.asked, self.session, self.connections = [], "one", 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def ops(self):
        return [a["op"] for a in self.asked]

    def _serve(self):
        while True:
            try:
                self.peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            held = b""
            try:
                while data := self.peer.recv(65536):
                    held += data
                    while b"\n" in held:
                        text, held = held.split(b"\n", 1)
                        if text:
                            self._answer(json.loads(text))
            except OSError:
                pass

    def say(self, **message):
        self.peer.sendall(json.dumps(message).encode() + b"\n")

    def stopped(self, **stop):
        self.say(event="stopped", stop={"thread": 1, "pc": 0x1000, **stop})

    def hang_up(self):
        self.peer.shutdown(socket.SHUT_RDWR)
        self.peer.close()

    def _answer(self, ask):
        self.asked.append(ask)
        op, number = ask["op"], ask["id"]
        if steps := self.script.get(op):
            step = steps.pop(0)
            if step is not None:
                return step(self, ask) if callable(step) else self.peer.sendall(step)
        if op == "hello":
            self.say(id=number, reply="hello", version=1, backend="fake", name="a fake", session=self.session,
                     capabilities={"registers": "amd64-core", "watches": ["write", "read", "access"],
                                   "features": ["breakpoints", "step", "interrupt", "set-registers"]})
        elif op == "status":
            self.say(id=number, reply="status", state="stopped",
                     stop={"thread": 1, "pc": 0x1000, "reason": "attached"})
        elif op == "threads":
            self.say(id=number, reply="threads", threads=[1])
        elif op == "registers":
            self.say(id=number, reply="data", data="00" * REGISTERS)
        elif op == "read":
            self.say(id=number, reply="data", data="00" * ask["len"])
        elif op == "watch":
            self.say(id=number, reply="watched", watches=[{"id": n + 1} for n, _ in enumerate(ask["watches"])])
        else:
            self.say(id=number, reply="done")

    def close(self):
        self._listener.close()
        self.dir.cleanup()


class Sim:
    """An ulpf-sim of its own that waits for a front end."""

    def __init__(self, program, *args):
        self.dir = tempfile.mkdtemp(prefix="ulpf-test-")
        self.path = os.path.join(self.dir, "sim")
        self.process = subprocess.Popen([SIM, "--bridge", self.path, "--", program, *args],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.dir, ignore_errors=True)
