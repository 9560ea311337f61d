"""A terminal to look at: a tmux server of its own for each."""

import os
import re
import subprocess
import tempfile

from .rsp import wait_until


class Screen:
    """A command in a terminal of this size."""

    def __init__(self, *command, size=(80, 24), env=None):
        self._folder = tempfile.TemporaryDirectory(prefix="ulpf-tmux-")
        self._tmux = ["tmux", "-S", os.path.join(self._folder.name, "socket"), "-u", "-f", "/dev/null"]
        # The screen stays visible after the command's end, with its exit status.
        self._words = ["sh", "-c", '"$@"; echo "exit status $?"; exec sleep 1000', "sh", *map(str, command)]
        settings = [word for name, value in (env or {}).items() for word in ("-e", f"{name}={value}")]
        subprocess.run([*self._tmux, "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-s", "t",
                        "-e", "LC_ALL=C.UTF-8", *settings, *self._words], check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run([*self._tmux, "kill-server"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._folder.cleanup()

    def close(self):
        """The terminal goes away."""
        subprocess.run([*self._tmux, "kill-server"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def text(self, colours=False):
        return subprocess.run([*self._tmux, "capture-pane", "-p", *(["-e"] if colours else []), "-t", "t"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout

    def keys(self, *keys):
        """`Enter`, `Escape`, `Up`, …; anything else as it is."""
        for key in keys:
            named = key in ("Enter", "Escape", "Up", "Down", "Tab", "C-c", "C-u", "End")
            subprocess.run([*self._tmux, "send-keys", *([] if named else ["-l"]), "-t", "t", key], check=True)

    def resize(self, width, height):
        subprocess.run([*self._tmux, "resize-window", "-t", "t", "-x", str(width), "-y", str(height)], check=True)

    def shows(self, *patterns, seconds=20):
        """Waits for a screen that has all of them; the matches."""
        found = []

        def all_there():
            text = self.text()
            found[:] = [re.search(pattern, text, re.M) for pattern in patterns]
            return all(found)

        if not wait_until(all_there, seconds):
            missing = [pattern for pattern, match in zip(patterns, found) if not match]
            raise AssertionError(f"the screen has no {missing}:\n{self.text()}")
        return found
