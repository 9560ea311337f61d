# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stops by ulpf's own watches, shown as clearly as GDB's.

GDB does not know these watches. It has one internal `awatch` of the plugin's, on a byte at an address that no program
has. The stub reports a hit of any of them as an access to that byte (stub/task/src/control/out_of_band.rs). So GDB
removes and inserts one watch at each stop, however many there are, and asks `stop()` here whether to stop.

    hit ─▶ "awatch:756c706600000000" ─▶ stop(): which watch, what access ─▶ callback ─▶ the stop event: said
"""

from . import facade, foreign, own, places, replies, values, wire
from .errors import UlpfError

_marker = None
# The hit that GDB is about to stop for.
_pending = None
# The hit that it has stopped for last, until ide.py takes it.
shown = None


class Hit:
    """One access to a watch, as a callback gets it."""

    def __init__(self, watch, place, record):
        if place is not None and place.path:
            # Where it was then.
            place = place.at(record.address, record.inside, record.length or 1)
        self.watch, self.place = watch, place
        self.access, self.length = record.access or "access", record.length or 1
        self.address, self.tid, self.pc, self.callers = record.address, record.tid, record.pc, record.callers
        self.through, self.call, self.silent = record.through, record.call, record.silent
        self.time, self.ago, self.unchained = record.time, record.ago, record.unchained
        self._old, self._new = record.old, record.new
        self._part = None

    @property
    def bytes(self):
        """The accessed bytes, before and after (of a long access the beginning); None where unknown."""
        return tuple(None if digits is None else bytes.fromhex(digits) for digits in (self._old, self._new))

    @property
    def record(self):
        """All that is known, as a dict: the object that `ulpf run --json` writes (docs/json.md)."""
        from . import completed

        return completed.of([self])[0]["hit"]

    @property
    def reads(self):
        return self.access == "read"

    def part(self):
        """(name, address, type, length) of the smallest part in which the access lies."""
        if self._part is None:
            if self.place is None or self.watch is not None and self.watch.heap:
                self._part = facade.symbol_at(self.address) or f"{self.address:#x}", self.address, None, self.length
            else:
                self._part = places.part(self.place, self.address, self.length)
        return self._part

    @property
    def past(self):
        """The program has gone on since."""
        return self.time is not None or self.ago is not None

    @property
    def name(self):
        name, at, type, length = self.part()
        if self.past and type is not None and length != self.length and not (self.place and self.place.mask):
            name += f"+{self.address - at}"
        return name

    @property
    def old(self):
        """The value before; a gdb.Value, bytes if there is no type for it or it is too large for one, None if it
        is not known."""
        # Of a long access only the beginning is known; the rest of memory is new already.
        whole = self._old is None or len(self._old) // 2 >= self.length
        return self._value(self._old, whole)

    @property
    def new(self):
        return self._value(self._new)

    def _value(self, digits, whole=True):
        if digits is None:
            return None
        data = bytes.fromhex(digits)
        _, at, type, length = self.part()
        if type is None:
            return data
        if (at, length) != (self.address, len(data)):
            if self.past or not whole or length > values.largest_value():
                return data
            # A part of it was touched; the rest is as it is.
            memory = facade.read_memory(at, length)
            skip = self.address - at
            if memory is None or skip < 0 or skip + len(data) > length:
                return data
            data = memory[:skip] + data + memory[skip + len(data):]
        if self.place is not None and self.place.mask:
            return (int.from_bytes(data, "little") & self.place.mask) // (self.place.mask & -self.place.mask)
        value = values.value_of_bytes(data, type)
        return data if value is None else value

    def shown(self, value):
        if value is None:
            return "<unknown>"
        if isinstance(value, bytes):
            _, at, type, _ = self.part()
            return values.shown_bytes(value, type if at == self.address else None, self.length)
        return str(value) if isinstance(value, int) else facade.shown(value)

    def values(self):
        """The lines below the watch's name."""
        old, new = self.shown(self.old), self.shown(self.new)
        if self.reads:
            return [f"Value = {new}"]
        if self.silent:
            return [f"Value = {new} (written again)"]
        return [f"Old value = {old}", f"New value = {new}"]


class _Marker(facade.Breakpoint):
    """The byte that GDB watches for us."""

    def stop(self):
        global _pending
        try:
            settled = own.stopped()
            _pending = _what()
            hit = _pending
            if hit is None and settled:
                return False
            # GDB takes them when it stops.
            self.commands = "\n".join(hit.watch.commands) if hit and hit.watch else ""
            if hit is None or hit.watch is None or hit.watch.callback is None:
                return True
            stay = hit.watch.callback(hit) is not False
        except Exception as e:  # GDB would swallow it, and go on
            facade.say(f"ulpf: {e if isinstance(e, UlpfError) else type(e).__name__ + ': ' + str(e)}")
            return True
        if not stay:
            _pending = None
        return stay


def is_ready():
    """Is there nothing that `prepare` would have to create?"""
    return _marker is not None and _marker.is_valid()


def prepare():
    """GDB is ready for our stops."""
    global _marker
    if _marker is not None and _marker.is_valid():
        if not _marker.enabled:
            # GDB reads its expression again, in the language that is set now.
            with facade.own_language():
                _marker.enabled = True
        return
    at = wire.ask("about").stops_at
    with facade.own_language():
        _marker = _Marker(f"*(unsigned char *) {at:#x}", **facade.access_watch())
    _marker.silent = True


def rest():
    """No program: GDB must not try to insert the byte elsewhere."""
    global _pending
    _pending = None
    if _marker is not None and _marker.is_valid():
        _marker.enabled = False


def _what():
    """The hit behind the present stop."""
    record = wire.ask("stop", replies.stop)
    return None if record is None else hit_of(record)


def hit_of(record):
    from .registry import watches

    # A stop counts only for a watch that still exists. Records of the past belong to all watches.
    known = watches.by_id if record.time is None else watches.known
    watch, place = known.get(record.watch, (None, None))
    return Hit(watch, place, record)


def show(event):
    """GDB has stopped: if it is for us, says why."""
    global _pending, shown
    hit, _pending = _pending, None
    shown = hit
    hit_by = getattr(event, "breakpoints", None) or []
    if not any(b is _marker for b in hit_by):
        if any(facade.is_watchpoint(b) for b in hit_by):
            _show_rest()
        return
    if hit is not None and hit.watch is not None and hit.watch.commands[:1] == ["silent"]:
        return
    if hit is None:
        facade.say("\nUlpf: a watch that is not known any more was hit.")
    elif hit.watch is None:
        facade.say(f"\nA watch set by `monitor ulpf watch`: {foreign.shown(hit.name)}")
        facade.say("\n" + "\n".join(hit.values()))
    else:
        number, name, threads = facade.thread_of(hit.tid)
        who = f'Thread {number} "{name}" hit ' if threads > 1 and number else ""
        facade.say(f"\n{who}{_called(hit)}")
        facade.say("\n" + "\n".join(hit.values()))
        if hit.call:
            facade.say(f"{'Read' if hit.reads else 'Written'} by {hit.call}")
    try:
        facade.say(facade.frame_line())
    except Exception as e:  # a frame that cannot be shown is no reason to hide the stop
        facade.say(facade.error_text(e))


def _called(hit):
    kind = {"r": "read ", "rw": "access "}.get(hit.watch.spec.kind, "")
    return f"Ulpf {kind}watch {hit.watch.number}: {foreign.shown(hit.name)}"


def _show_rest():
    """GDB has stopped for a watch of its own: what else of ours the same instruction has hit is not one more stop."""
    from .registry import watches

    if not any(watch.armed and not watch.spec.log for watch in watches.all.values()):
        return
    for hit in map(hit_of, wire.stop_rest()):
        if hit.watch is None:
            continue
        facade.say(f"\n{_called(hit)}, by the same access\n\n" + "\n".join(hit.values()))
        if hit.watch.callback is not None:
            hit.watch.callback(hit)
        for command in hit.watch.commands:
            if command != "silent":
                facade.later(lambda command=command: _run(command))


def _run(command):
    try:
        facade.run_command(command)
    except Exception as e:
        if not facade.gdb_error(e):
            raise
        facade.say(facade.error_text(e))
