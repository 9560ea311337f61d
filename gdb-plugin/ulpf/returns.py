# SPDX-License-Identifier: MIT OR Apache-2.0
"""Breakpoints behind the call of a frame, in its thread.

GDB's FinishBreakpoint looks for its frame in the thread that is selected at a stop. So the stop of another thread ends it.
"""

from . import facade

_waiting = set()
# To be deleted at the next stop: that cannot be done in the middle of one, nor while the program runs.
_over = []


class Return(facade.Breakpoint):
    """Calls `returned` when a frame of the selected thread has returned to its caller, or `lost` when a stop finds that it has
    gone in another way (an exception, longjmp, the end of its thread)."""

    def __init__(self, frame):
        caller, thread = frame.older(), facade.gdb.selected_thread()
        with facade.own_language():
            super().__init__(f"*{int(caller.pc())}", internal=True)
        self.thread = thread.global_num
        self.of, self.pid, self.frame = thread, facade.pid(), frame
        self.stack = int(caller.read_register("rsp"))
        _waiting.add(self)

    def returned(self):
        pass

    def lost(self):
        pass

    def stop(self):
        if facade.register("rsp") == self.stack:
            self.over()
            self.returned()
        return False

    def over(self):
        """It waits no more."""
        _waiting.discard(self)
        if self.is_valid():
            self.enabled = False
            _over.append(self)

    def look(self):
        """At a stop: is the frame still there?"""
        if not self.is_valid() or self.pid != facade.pid():
            self.over()
        elif not self.of.is_valid() or not self.of.is_running() and not facade.in_thread(self.of, self.frame.is_valid):
            self.over()
            self.lost()


def at_stop():
    for point in list(_waiting):
        point.look()
    while _over:
        point = _over.pop()
        if point.is_valid():
            point.delete()


def rest():
    """The program is gone."""
    for point in list(_waiting):
        point.over()
