# SPDX-License-Identifier: MIT OR Apache-2.0
"""Watches on locals end with their function: what lies there afterwards is somebody else's."""

from . import facade

_MOST_FRAMES = 100

if facade.gdb:
    class _Left(facade.gdb.FinishBreakpoint):
        """Behind the call of the function that has the variable."""

        def __init__(self, frame, watch):
            super().__init__(frame, internal=True)
            self.watch = watch

        def stop(self):
            self.out_of_scope()
            return False

        def out_of_scope(self):
            from .registry import watches

            try:
                if self.watch.number in watches.all and self.watch.armed:
                    watches.end(self.watch, "the function that had it has returned")
                    facade.say(f"ulpf: watch {self.watch.number} ({self.watch.name}) has ended: the function that had it has returned.")
            except Exception as e:
                facade.say(f"ulpf: {e}")


def bind(watch):
    """If a watch is on the stack of this thread: it ends with the frame."""
    if not watch.places:
        return
    frame = facade.frame_with(watch.places[0].address, _MOST_FRAMES)
    if frame is None:
        return
    try:
        _Left(frame, watch)
    except Exception:  # the outermost frame, or one whose caller is not known: it lasts as long as the thread
        pass
