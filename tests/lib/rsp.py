"""A bare client of the remote serial protocol, for what gdb would never send."""

import re
import socket
import time

from .env import PATIENCE


def frame(body):
    body = body.encode() if isinstance(body, str) else body
    return b"$" + body + b"#%02x" % (sum(body) & 0xFF)


# No test means this time: it is longer than what the product itself waits for (10 s), on a busy machine.
LIMIT = 30


class Rsp:
    """`rsp("g")` sends a packet and returns the body of the reply."""

    def __init__(self, target, seconds=LIMIT):
        family = socket.AF_UNIX if target.startswith("/") else socket.AF_INET
        self.socket = socket.socket(family)
        self._limit = seconds * PATIENCE
        self.socket.settimeout(self._limit)
        if family == socket.AF_UNIX:
            self.socket.connect(target)
        else:
            host, port = target.rsplit(":", 1)
            self.socket.connect((host, int(port)))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = b""
        self._notifications = []
        self.acks = True

    def raw(self, data):
        self.socket.sendall(data)

    def _more(self):
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._input += data

    def byte(self):
        """The next byte, whatever it is."""
        while not self._input:
            self._more()
        first, self._input = self._input[:1], self._input[1:]
        return first

    def reply(self):
        """Body of the next packet, with run-length encoding and escapes undone."""
        while not (match := re.search(rb"\$([^#]*)#(..)", self._input, re.S)):
            self._more()
        self._notifications += re.findall(rb"%([^#]*)#..", self._input[:match.start()], re.S)
        self._input = self._input[match.end():]
        if self.acks:
            self.raw(b"+")
        body = match.group(1)
        if int(match.group(2), 16) != sum(body) & 0xFF:
            raise AssertionError(f"wrong checksum in {match.group(0)!r}")
        out, i = bytearray(), 0
        while i < len(body):
            if body[i] == 0x7D:
                out.append(body[i + 1] ^ 0x20)
                i += 2
            elif body[i] == 0x2A:
                out += out[-1:] * (body[i + 1] - 29)
                i += 2
            else:
                out.append(body[i])
                i += 1
        return bytes(out)

    def notified(self, seconds):
        """Has a notification come, or does one come within this time?"""
        end = time.monotonic() + seconds
        while True:
            while match := re.match(rb"%([^#]*)#..", self._input, re.S):
                self._notifications.append(match.group(1))
                self._input = self._input[match.end():]
            left = end - time.monotonic()
            if self._notifications or self.quiet(max(left, 0.001)) and left <= 0:
                return bool(self._notifications)

    def notification(self, seconds=LIMIT):
        """Body of the next notification, or None."""
        return self._notifications.pop(0) if self.notified(seconds * PATIENCE) else None

    def __call__(self, body):
        self.raw(frame(body))
        return self.reply()

    def expect(self, reply, count):
        """Reads `count` replies that are all this one (many at once; no acknowledgements)."""
        left = len(reply) * count
        pattern = reply * (65536 // len(reply) + 2)
        while left:
            if not self._input:
                self._more()
            part, self._input = self._input[:min(left, 65536)], self._input[min(left, 65536):]
            at = -left % len(reply)
            if part != pattern[at:at + len(part)]:
                raise AssertionError(f"unexpected reply in {part[:80]!r}")
            left -= len(part)

    def no_ack(self):
        if self("QStartNoAckMode") == b"OK":
            self.acks = False

    def monitor(self, command):
        """Text that gdb would print for `monitor command`."""
        self.raw(frame(b"qRcmd," + command.encode().hex().encode()))
        text = b""
        while True:
            part = self.reply()
            if part == b"OK":
                return text.decode()
            if part.startswith(b"E") or not part:
                return text.decode() + part.decode()
            text += bytes.fromhex((part[1:] if part[:1] == b"O" else part).decode())
            if part[:1] != b"O":
                return text.decode()

    def quiet(self, seconds):
        """Nothing arrives for so long?"""
        self.socket.settimeout(seconds)
        try:
            self._more()
            return False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(self._limit)

    def closed(self, seconds=LIMIT):
        """Does the server hang up within this time?"""
        self.socket.settimeout(seconds * PATIENCE)
        try:
            while self.socket.recv(65536):
                pass
            return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def close(self):
        self.socket.close()


def wait_until(condition, seconds=LIMIT):
    end = time.monotonic() + seconds * PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
