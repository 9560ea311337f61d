# SPDX-License-Identifier: MIT OR Apache-2.0
"""Heap blocks: those that may hold a type, and following one object through realloc and free.

The stub knows no allocator. The plugin uses the C library's chunk headers, and sets internal breakpoints with
conditions at its functions. The program's threads evaluate the conditions; only the call that concerns the object
stops the program.
"""

import re
import struct

from . import facade, returns, settings
from .errors import UlpfError
from .places import Place

# watch number: its breakpoints
_following = {}


def blocks(type_name):
    """Places of all live blocks of the main heap in which an object of this type fits exactly.

        chunk - 8   | size, lowest bits are flags: 1 = the chunk before is in use |
        chunk       | what malloc returned ...                                    |
    """
    what = f"cannot watch the blocks of {type_name}"
    type = facade.plain(facade.lookup_type(type_name))
    wanted = max(32, (type.sizeof + 8 + 15) & ~15)
    start, end = _main_heap(what)
    heap = _Heap(start, end)
    try:
        found, at = [], heap.size_at(start) & ~7
        at += start
        while at + 16 < end:
            size = heap.size_at(at) & ~7
            if size < 32 or at + size + 16 > end:
                break  # the top chunk, or no heap of glibc
            if heap.size_at(at + size) & 1 and size == wanted:
                found.append(Place(f"*({type_name} *) {at + 16:#x}", at + 16, type.sizeof, type))
                if len(found) > settings.most_elements():
                    raise UlpfError(what, f"there are more than {settings.most_elements()}",
                                    f"that many watches are seldom meant; else: set ulpf max-elements {10 * settings.most_elements()}")
            at += size
    except LookupError:
        raise UlpfError(what, "the heap cannot be read", "watch objects by their names") from None
    if not found:
        raise UlpfError(what, f"glibc's main heap has no block of its size ({type.sizeof} bytes)",
                        "see whether the program has allocated any yet; other allocators are not known")
    return found


class _Heap:
    """The heap's chunk headers, which are read in windows: GDB takes room for all that it reads at once."""

    WINDOW = 1 << 18

    def __init__(self, start, end):
        self._start, self._end = start, end
        self._base, self._window = start, b""

    def size_at(self, chunk):
        """The word that has the size of the chunk there."""
        at = chunk + 8
        if not self._base <= at <= self._base + len(self._window) - 8:
            self._base = at
            self._window = facade.read_memory(at, min(self.WINDOW, self._end - at))
            if self._window is None or len(self._window) < 8:
                self._window = b""
                raise LookupError(at)
        return struct.unpack_from("<Q", self._window, at - self._base)[0]


def _main_heap(what):
    for line in facade.execute("info proc mappings").splitlines():
        fields = line.split()
        if fields and fields[-1] == "[heap]":
            return int(fields[0], 16), int(fields[1], 16)
    raise UlpfError(what, "the program has no heap of glibc's yet", "watch them after the first malloc")


class _Call(facade.Breakpoint):
    """A call that concerns a watch. GDB calls `stop` of each breakpoint at this address if any condition was true."""

    def stop(self):
        try:
            if facade.own_number(self.condition):
                self.called()
        except Exception as e:  # GDB would show a traceback
            facade.say(f"ulpf: watch {self.watch.number} ({self.watch.name}) does not go with the heap any more: {e}")
        return False


def _entry(function, what=None):
    """Where a function of the C library begins."""
    return facade.own_number(f"(unsigned long) &{function}", what or function)


def _at(kind, address, condition):
    """A breakpoint of this kind, whose condition the program's threads evaluate."""
    with facade.own_language():
        point = kind(f"*{address:#x}", internal=True)
        point.condition = condition
    return point


class _Ended(_Call):
    """The call that gives the object back, or another place."""

    def called(self):
        from .registry import watches

        watch = self.watch
        if watch.number not in watches.all or not watch.armed:
            return
        if self.moves:
            # The allocator's accesses to the block meanwhile are no accesses to the object.
            _Moved(watch)
            watches.pause(watch)
            return
        watches.end(watch, "the object was freed")
        facade.say(f"ulpf: watch {watch.number} ({watch.name}) has ended: the object was freed{_by()}.")


def _by():
    lines = facade.execute("backtrace 2").splitlines()
    match = re.search(r"^#1 .*? in (\S+)|^#1 +(\S+)", "\n".join(lines), re.M)
    return f" by {match.group(1) or match.group(2)}" if match else ""


class _Moved(returns.Return):
    """realloc's end: where the object is now."""

    def __init__(self, watch):
        super().__init__(facade.gdb.newest_frame())
        self.watch = watch

    def returned(self):
        from .registry import watches

        try:
            now = facade.register("rax")
            base = _following[self.watch.number][0]
            # NULL: it stays where it was.
            watches.moved(self.watch, (now or base) - base)
            if now and now != base:
                facade.say(f"ulpf: watch {self.watch.number} ({self.watch.name}) follows its object from {base:#x} to {now:#x}.")
                follow(self.watch, now)
        except Exception as e:
            facade.say(f"ulpf: watch {self.watch.number} is not followed any more: {e}")


# ---- all blocks that a function allocates ----

# Expression for the size of the new block.
_SIZES = {"malloc": "$rdi", "calloc": "$rdi * $rsi"}
# More breakpoints at `free` than that make each call of it slow.
_MOST_BLOCKS = 1000

# watch number: its breakpoints
_expecting = {}


def expect(watch, function):
    """From now on what this function allocates is watched, until it is freed."""
    what = f"cannot watch the blocks of {function}"
    code = facade.code_of(function)
    if not code:
        raise UlpfError(what, "no function has that name", "info functions lists them")
    forget(watch)
    start, end = code[0]
    caller = "*(unsigned long *) $rsp"
    points = []
    for name, size in _SIZES.items():
        point = _at(_Allocates, _entry(name, what), f"{caller} >= {start:#x} && {caller} < {end:#x}")
        point.watch, point.size = watch, size
        points.append(point)
    _expecting[watch.number] = points


def forget(watch):
    """No more blocks; those there are stay as they are."""
    for point in _expecting.pop(watch.number, []):
        if point.is_valid():
            point.enabled = False


class _Allocates(_Call):
    def called(self):
        if self.watch.armed and len(self.watch.places) < _MOST_BLOCKS:
            _Allocated(self.watch, facade.own_number(f"(unsigned long) ({self.size})"))


class _Freed(_Call):
    def called(self):
        from .registry import watches

        self.enabled = False
        if self.place in self.watch.places:
            watches.shrink(self.watch, self.place)


class _Allocated(returns.Return):
    def __init__(self, watch, size):
        super().__init__(facade.gdb.newest_frame())
        self.watch, self.size = watch, size

    def returned(self):
        from .registry import watches

        try:
            at = facade.register("rax")
            if at and self.size and self.watch.armed:
                place = Place(f"block of {self.size} bytes at {at:#x}", at, self.size)
                watches.extend(self.watch, place)
                freed = _at(_Freed, _entry("free"), f"$rdi == {at:#x}")
                freed.watch, freed.place = self.watch, place
        except Exception as e:
            facade.say(f"ulpf: a block of watch {self.watch.number} is not watched: {e}")


def _block(watch):
    """The allocated block: the pointer by which the expression reaches the object."""
    at = watch.places[0].address
    head, arrow, _ = watch.name.rpartition("->")
    for pointer in (head if arrow else None, watch.name.split("[")[0], watch.name.lstrip("* ").split("@")[0]):
        if not pointer or pointer == watch.name:
            continue
        try:
            value = facade.evaluate(pointer)
            if facade.is_pointer(facade.plain(value.type)) and 0 <= at - int(value) < 1 << 40:
                return int(value)
        except UlpfError:
            pass
    return at


def follow(watch, base=None):
    """From now on the watch ends with its object, and moves with it."""
    unfollow(watch)
    base = base if base is not None else _block(watch)
    made = []
    try:
        for name in "free", "realloc":
            point = _at(_Ended, _entry(name), f"$rdi == {base:#x}")
            point.watch, point.moves = watch, name == "realloc"
            made.append(point)
    except Exception as e:
        for point in made:
            point.delete()
        raise UlpfError(f"watch {watch.number} cannot be followed", f"free and realloc are not found: {e}",
                        "follow works with an allocator that has symbols; the watch itself stays") from None
    _following[watch.number] = (base, made)


def unfollow(watch):
    _base, points = _following.pop(watch.number, (0, []))
    for point in points:
        if point.is_valid():
            point.enabled = False


def rest():
    """The program is gone, and its objects with it."""
    for number in list(_expecting):
        for point in _expecting.pop(number):
            if point.is_valid():
                point.enabled = False
    for _base, points in _following.values():
        for point in points:
            if point.is_valid():
                point.enabled = False
    _following.clear()
