"""A desktop of its own for a program with windows: Xvfb, and xdotool for its mouse and keyboard."""

import os
import shutil
import signal
import subprocess
import time

from .env import PATIENCE

HERE = bool(shutil.which("Xvfb") and shutil.which("xdotool"))


class Desktop:
    """A program on a virtual screen."""

    def __init__(self, *command, env=None):
        reader, tell = os.pipe()
        self._server = subprocess.Popen(["Xvfb", "-displayfd", str(tell), "-nolisten", "tcp", "-screen", "0", "1400x1000x24"], pass_fds=[tell],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(tell)
        with os.fdopen(reader) as display:
            self._env = {**os.environ, **(env or {}), "DISPLAY": f":{display.readline().strip()}", "QT_QPA_PLATFORM": "xcb"}
        self._program = subprocess.Popen(command, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._program.poll() is None:
            os.killpg(self._program.pid, signal.SIGTERM)
            time.sleep(0.5)
            os.killpg(self._program.pid, signal.SIGKILL)
        self._program.wait()
        self._server.terminate()
        self._server.wait()

    def do(self, *words):
        """Runs xdotool with these words."""
        return subprocess.run(["xdotool", *map(str, words)], env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=20 * PATIENCE, check=True).stdout

    def click(self, x, y):
        self.do("mousemove", x, y, "click", 1, "sleep", 0.3)

    def line(self, text):
        """Types it."""
        self.do("type", "--delay", 20, "--", text)
        self.do("key", "Return")
