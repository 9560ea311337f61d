# SPDX-License-Identifier: MIT OR Apache-2.0
"""Watches on locals end with their function, because their memory is reused afterwards. In another run of the
program they are set again where it enters their scope.

    bind: the frame that has the bytes ─▶ an internal breakpoint behind its call ─▶ the watch has ended
          the variable that they are of ─▶ its function, and where its scope begins ─▶ (another run) a breakpoint there
"""

import re
from dataclasses import dataclass

from . import facade, returns

_MOST_FRAMES = 100
_MOST_STACK = 8 << 20
_NAME = re.compile(r"[A-Za-z_]\w*")

# watch number: the breakpoint at which it is set again
_expected = {}

class _Left(returns.Return):
    """Behind the call of the function that has the variable."""

    def __init__(self, frame, watch):
        super().__init__(frame)
        self.watch = watch

    def returned(self):
        from .registry import watches

        try:
            if self.watch.number in watches.all and self.watch.armed and _stays(self.watch):
                watches.pin(self.watch)
                facade.say(f"ulpf: watch {self.watch.number} ({self.watch.name}) stays where it is: the function that had the pointer has returned.")
            elif self.watch.number in watches.all and self.watch.armed:
                watches.end(self.watch, "the function that had it has returned")
                facade.say(f"ulpf: watch {self.watch.number} ({self.watch.name}) has ended: the function that had it has returned.")
        except Exception as e:
            facade.say(f"ulpf: {e}")

    lost = returned


def _stays(watch):
    """Its pointer was a local; does what that led to outlive it?"""
    if len(watch.places) != 1 or not watch.places[0].path or watch.places[0].many is not None:
        return False
    at = _now(watch)
    left = facade.register("rsp")
    # (What lies below is the frame that has been left, and those that it had called.)
    return at != 0 and not left - _MOST_STACK <= at < left


def _now(watch):
    """Where a watch that follows is now; 0: nowhere."""
    from .registry import counts

    counts([watch])
    return watch.places[0].address


def bind(watch):
    """If a watch is on the stack of this thread: it ends with the frame."""
    if not watch.places:
        return
    if not watch.static:
        watch.scope = _scope(watch) or watch.scope
    frame = facade.frame_with(watch.places[0].anchor[0], _MOST_FRAMES)
    if frame is None:
        return
    try:
        _Left(frame, watch)
    except Exception:  # the outermost frame, or one whose caller is not known: it lasts as long as the thread
        pass


def _scope(watch):
    """Where the scope of the variable with all bytes of a watch begins; None if it is not of this frame. (The target of
    a pointer is found by the pointer's value, which another run has later.)"""
    for name in _NAME.findall(watch.spec.expression):
        home = _home_of(name)
        if home and all(home.address <= p.anchor[0] and p.anchor[1] <= home.address + home.size for p in watch.places):
            return home
    return None


class _Entered(facade.Breakpoint):
    """Where the scope of a watch's variable begins."""

    def stop(self):
        try:
            self.enabled = False
            again(self.watch)
        except Exception as e:  # GDB would show a traceback
            facade.say(f"ulpf: watch {self.watch.number} ({self.watch.name}) is not set again: {e}")
        return False


def again(watch):
    """In the frame that has begun its scope."""
    from .registry import watches

    if watch.number in watches.all and watch.enabled and not watch.ids():
        watches.found(watch)
        bind(watch)


def expect(watch):
    """In another run: the watch is set when its scope is entered. Why not, if it cannot be."""
    forget(watch)
    at = _begin_of(watch.scope)
    if at is None:
        return f"{watch.scope.function} is not there any more"
    if _has_begun(watch.scope, at):
        again(watch)
        return None
    with facade.own_language():
        point = _Entered(f"*{at}", internal=True)
    point.watch = watch
    _expected[watch.number] = point
    return None


def forget(watch):
    point = _expected.pop(watch.number, None)
    if point is not None and point.is_valid():
        point.enabled = False


def rest():
    """The program is gone."""
    for point in _expected.values():
        if point.is_valid():
            point.enabled = False
    _expected.clear()
    returns.rest()


# ---- variables ----

@dataclass
class Home:
    """Where a local variable is, and where its scope begins."""
    address: int
    size: int
    # The function's name and symbol, and how far behind its beginning the scope's is.
    function: str
    symbol: object
    offset: int


def _home_of(name):
    """Of a variable of the selected frame, or None."""
    try:
        frame = facade.gdb.selected_frame()
        block = frame.block()
        while block is not None:
            for symbol in block:
                if symbol.name == name and symbol.needs_frame:
                    return _made(frame, block, symbol)
            if block.function:
                return None
            block = block.superblock
    except (facade.gdb.error, RuntimeError):
        pass
    return None


def _made(frame, block, variable):
    value = variable.value(frame)
    at, size, start = facade.address_of(value), value.type.sizeof, block.start
    whole = block
    while whole is not None and not whole.function:
        whole = whole.superblock
    if at is None or not size or whole is None:
        return None
    if whole is block:
        # Behind what sets up the frame: where the second line begins, as for GDB's own breakpoints.
        line = facade.gdb.find_pc_line(start)
        if line.last is not None and line.last + 1 < block.end:
            start = line.last + 1
    return Home(at, size, whole.function.name, whole.function, start - whole.start)


def _begin_of(home):
    """The address where a scope begins in this run; None if its function is not there."""
    try:
        return int(home.symbol.value().address) + home.offset if home.symbol.is_valid() else None
    except (facade.gdb.error, RuntimeError, TypeError):
        return None


def _has_begun(home, at):
    """Is the program in that scope's function, and at its beginning or behind it?"""
    try:
        frame = facade.gdb.newest_frame()
        # (Two objects of GDB's for one symbol are not equal.)
        return frame.name() == home.function and frame.pc() >= at
    except (facade.gdb.error, RuntimeError):
        return False
