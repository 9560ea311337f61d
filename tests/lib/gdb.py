"""Real gdb as a conversation: one command, its answer, the next command."""

import os
import re
import signal
import subprocess
import threading
import time

from .env import GDB, PATIENCE

SETTINGS = """\
set pagination off
set confirm off
set width 0
set height 0
set debuginfod enabled off
set print thread-events off
set print frame-arguments scalars
set auto-load no
set breakpoint pending on
set max-completions 0
"""


# Valgrind brings libc's debug information, and reading it takes a third of the time of a conversation. (Most machines of
# users do not have it.)
WITHOUT_LIBRARIES = ["-iex", "set debug-file-directory"]


class GdbTimeout(AssertionError):
    pass


class Gdb:
    """`gdb("continue")` returns what gdb printed until it was ready for the next command.

    `libraries`: gdb reads what debug information is installed of them."""

    def __init__(self, *args, settings=SETTINGS, sysroot="/", env=None, libraries=False):
        self.transcript = ""
        self._output = bytearray()
        self._count = 0
        self._eof = False
        self.process = subprocess.Popen([GDB, "-nx", "-q", *([] if libraries else WITHOUT_LIBRARIES), *args], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        start_new_session=True, env={**os.environ, **(env or {}), "LC_ALL": "C.UTF-8"})
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self(settings + (f"set sysroot {sysroot}\n" if sysroot else ""))

    def _read(self):
        while chunk := os.read(self.process.stdout.fileno(), 65536):
            with self._changed:
                self._output += chunk
                self._changed.notify_all()
        with self._changed:
            self._eof = True
            self._changed.notify_all()

    def send(self, command):
        """Sends without waiting; the answer comes with `answer()`."""
        self._count += 1
        self.transcript += f"\n> {command}\n"
        self.process.stdin.write(f"{command}\necho \\n@@{self._count}@@\\n\n".encode())
        self.process.stdin.flush()

    def answer(self, seconds=30):
        mark = f"\n@@{self._count}@@\n".encode()
        end = time.monotonic() + seconds * PATIENCE
        with self._changed:
            while mark not in self._output:
                left = end - time.monotonic()
                if self._eof:
                    text = self._take(len(self._output))
                    raise AssertionError(f"gdb ended:\n{self.transcript}")
                if left <= 0:
                    self._take(len(self._output))
                    raise GdbTimeout(f"no answer within {seconds} s:\n{self.transcript}")
                self._changed.wait(min(left, 0.5))
            text = self._take(self._output.index(mark))
            del self._output[: len(mark)]
        return text

    def _take(self, length):
        text = self._output[:length].decode(errors="replace").replace("(gdb) ", "")
        del self._output[:length]
        self.transcript += text
        return text

    def __call__(self, command, seconds=30):
        self.send(command)
        return self.answer(seconds)

    def interrupt(self):
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def value(self, expression):
        """An integer expression's value."""
        match = re.search(r"= (-?\d+)", self(f"print (long)({expression})"))
        if not match:
            raise AssertionError(f"no value of {expression}:\n{self.transcript[-2000:]}")
        return int(match.group(1))

    def address(self, expression):
        return self.value(f"&({expression})")

    def quit(self):
        self.process.stdin.write(b"quit\n")
        self.process.stdin.flush()
        self.process.wait(20 * PATIENCE)

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
            except OSError:
                pass
            self.process.kill()
            self.process.wait()
        self._reader.join(2)
        self.process.stdout.close()
