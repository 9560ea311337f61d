# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tells the server the text of the program's arguments.

GDB up to 16 sends words without their quotes, so the server cannot know which words a shell was to expand or redirect.
The server asks for the text while GDB's own thread waits for the answer to its vRun. That thread does nothing else until
the answer comes, so another thread may use GDB meanwhile. It must not do so at any other time.
"""

import contextlib
import signal
import socket
import threading

from . import facade


def offer(path):
    """Answers each connection to the socket `path` with `=` and the text. The socket lies in a private folder."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    # Signals are for GDB's own thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=_answer, args=(listener,), daemon=True, name="ulpf arguments").start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(listener):
    while True:
        with contextlib.suppress(OSError):
            asker, _ = listener.accept()
            with asker:
                try:
                    text = facade.arguments()
                except Exception:  # a text that GDB cannot encode: the server goes by the words then, and says so
                    continue
                asker.sendall(b"=" + text)
