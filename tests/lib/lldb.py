"""Real lldb as a conversation."""

import os
import subprocess
import threading
import time

from .env import PATIENCE


class Lldb:
    def __init__(self, program):
        self.transcript, self._count = "", 0
        self._output = bytearray()
        self.process = subprocess.Popen([program, "--no-lldbinit", "--no-use-colors"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                        env={**os.environ, "TERM": "dumb", "LC_ALL": "C.UTF-8"})
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self("settings set use-color false")
        self("settings set auto-confirm true")

    def _read(self):
        while chunk := os.read(self.process.stdout.fileno(), 65536):
            with self._changed:
                self._output += chunk
                self._changed.notify_all()

    def __call__(self, command, seconds=40):
        """Answer of one command. `script` is not everywhere, so a help text of one line marks the end."""
        self._count += 1
        self.transcript += f"\n> {command}\n"
        mark = f"@@{self._count}@@"
        self.process.stdin.write(f"{command}\nsettings set target.env-vars ULPF_MARK={mark}\nsettings show target.env-vars\n".encode())
        self.process.stdin.flush()
        end = time.monotonic() + seconds * PATIENCE
        with self._changed:
            while f"  ULPF_MARK={mark}\n".encode() not in self._output:
                left = end - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    raise AssertionError(f"no answer within {seconds} s:\n{self.transcript}{self._output.decode(errors='replace')}")
                self._changed.wait(min(left, 0.5))
            text = self._output.decode(errors="replace")
            self._output.clear()
        text = "\n".join(l for l in text.splitlines() if "ULPF_MARK" not in l and "target.env-vars" not in l)
        self.transcript += text
        return text

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self._reader.join(2)
        self.process.stdout.close()
