"""The bridge (docs/bridge.md): a simulator of its own, and a fake remote stub that records and misbehaves."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from .env import PATIENCE, ROOT
from .rsp import Rsp, frame

SIM = os.path.join(ROOT, "target", "release", "ulpf-sim")

# A gem5 v24.0 built with EXTRAS=sim-bridge/gem5/ulpf (its README.md).
GEM5 = os.environ.get("ULPF_GEM5")

needs_gem5 = unittest.skipUnless(GEM5, "gem5 is not here (ULPF_GEM5 names one built with EXTRAS=sim-bridge/gem5/ulpf)")

needs_sim = unittest.skipUnless(os.path.exists(SIM), "ulpf-sim is not built (`make sim`)")

REGISTERS = 164  # from rax to gs


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


class FakeStub:
    """A remote stub with one thread at 0x1000, which writes down what it is asked. `script` maps the beginning of a packet
    to what is done instead, once for each entry of its list: a reply, a function, or None for the usual reply. `role` is
    what it says of itself to `qUlpf.About`: nothing, as gdbserver and QEMU, or b"watches", as ulpf-sim."""

    FEATURES = b"PacketSize=4000;QStartNoAckMode+;QNonStop+;vContSupported+;swbreak+;hwbreak+"

    def __init__(self, script=None, role=b""):
        self.dir = tempfile.TemporaryDirectory(prefix="ulpf-test-")
        self.path = os.path.join(self.dir.name, "stub")
        self.script = {start: list(steps) for start, steps in (script or {}).items()}
        self.role, self.asked, self.connections, self.watches = role, [], 0, 0
        # The packets of the server's greeting are not noted.
        self.greeted = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                self.peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self.acks, held = True, b""
            try:
                while data := self.peer.recv(65536):
                    held += data
                    while match := re.match(rb"[^$\x03]*(?:\x03|\$([^#]*)#..)", held, re.S):
                        held = held[match.end():]
                        self._answer(match.group(1) if match.group(1) is not None else b"\x03")
            except OSError:
                pass

    def raw(self, data):
        self.peer.sendall(data)

    def say(self, body):
        self.raw(frame(body))

    def print(self, text):
        self.say(b"O" + text.encode().hex().encode())

    def hang_up(self):
        self.peer.shutdown(socket.SHUT_RDWR)
        self.peer.close()

    def _answer(self, packet):
        if packet != b"\x03" and self.acks:
            self.raw(b"+")
        if self.greeted:
            self.asked.append(packet)
        if packet.startswith(b"qXfer:auxv:"):
            self.greeted = True
        for start, steps in self.script.items():
            if packet.startswith(start) and steps:
                step = steps.pop(0)
                if step is not None:
                    return step(self, packet) if callable(step) else self.say(step)
                break
        usual = self.usual(packet)
        if usual is not None:
            self.say(usual)
        if packet == b"QStartNoAckMode":
            self.acks = False

    def usual(self, packet):
        """The usual reply, or None."""
        if packet.startswith(b"qSupported"):
            return self.FEATURES
        if packet == b"qUlpf.About":
            return b"a%s;fake;%s" % (self.role, b"a fake".hex().encode()) if self.role else b""
        if packet.startswith(b"qUlpf.") and self.role:
            kind, numbers = packet[6:7].lower(), packet.split(b":")[1].split(b",")
            return b"%s%s,0,0,0" % (kind, numbers[0]) + (b",0" if kind == b"c" else b"")
        if packet.startswith(b"qRcmd,") and self.role:
            words = bytes.fromhex(packet[6:].decode()).decode().split(";")
            self.watches += len(words)
            first = self.watches - len(words) + 1
            replies = "".join(f'{{"watch":{first + n}}}\n' if "unwatch" not in word else '{"unwatched":{"heap":true}}\n'
                              for n, word in enumerate(words))
            self.print(replies)
            return b"OK"
        if packet.startswith(b"m"):
            return b"00" * int(packet.split(b",")[1], 16)
        known = {b"?": b"T05thread:1;", b"g": b"00" * REGISTERS, b"vCont?": b"vCont;c;C;s;S", b"qfThreadInfo": b"m1",
                 b"qsThreadInfo": b"l", b"qC": b"QC1", b"QStartNoAckMode": b"OK"}
        if packet in known:
            return known[packet]
        if packet == b"\x03" or packet == b"k" or packet.startswith(b"vCont;"):
            return None
        return b"OK" if packet[:1] in b"GPMXHZzTD" and packet else b""

    def close(self):
        self._listener.close()
        self.dir.cleanup()


class Sim:
    """An ulpf-sim of its own that waits for a debugger."""

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

    def connect(self, patient=20):
        """A client of its remote port; several packets may be on their way before it listens."""
        end = time.monotonic() + patient * PATIENCE
        while True:
            try:
                rsp = Rsp(self.path)
                rsp.no_ack()
                return rsp
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
