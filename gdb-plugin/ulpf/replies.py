# SPDX-License-Identifier: MIT OR Apache-2.0
"""Answers to `monitor ulpf …`: lines of JSON, which are parsed here and nowhere else.

ulpf_lib::command::reply writes them, with the same types. tests/replies.json tests both against one table. Any other
line is a `ValueError`.
"""

import json
import re
from dataclasses import dataclass
from typing import Optional

from .errors import UlpfError


_RECORD = r'@"([^"\\]*(?:\\.[^"\\]*)*)"\n'
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.S)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"a": b"\a", b"e": b"\033"}


def unwrapped(said):
    """The server's answer. Where GDB speaks MI, GDB 18 returns it as MI records."""
    if not re.fullmatch(f"(?:{_RECORD})+", said):
        return said
    def plain(found):
        code = found[1]
        return bytes([int(code, 8) & 0xff]) if len(code) == 3 else _LETTERS.get(code, code)
    return _ESCAPED.sub(plain, "".join(re.findall(_RECORD, said)).encode(errors="surrogateescape")).decode(errors="replace")


def objects(answer):
    """The JSON objects of an answer; what else the server had to say meanwhile is left out."""
    return [json.loads(line) for line in answer.splitlines() if line.startswith("{")]


def _get(object, name, kind, absent=ValueError):
    """A field of this type. `absent` is its value if it is missing; an exception makes the field required."""
    value = object.get(name) if isinstance(object, dict) else None
    if value is None and absent is not ValueError:
        return absent
    # (True is an int of Python's.)
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise ValueError(f"{name} is {value!r}")
    return value


def _count(object, name, absent=ValueError):
    value = _get(object, name, int, absent)
    if value is not absent and value < 0:
        raise ValueError(f"{name} is {value}")
    return value


def _address(text):
    return int(text, 16 if text.startswith("0x") else 10)


def _seconds(object, name):
    value = _get(object, name, (int, float), None)
    if value is not None and value < 0:
        raise ValueError(f"{name} is {value}")
    return value


def _bytes(object, name):
    """Hexadecimal digits."""
    digits = _get(object, name, str, None)
    return None if digits is None else bytes.fromhex(digits).hex()


def _nullable(object, *names):
    """These are there, if only to say that nothing is known."""
    for name in names:
        if name not in object:
            raise ValueError(f"{name} is missing")


# ---- results of commands ----


@dataclass(frozen=True)
class Watched:
    id: int
    # Bytes of the heap, if that is watched.
    heap: Optional[int] = None


@dataclass(frozen=True)
class WatchedMany:
    first: int
    count: int


@dataclass(frozen=True)
class Switched:
    id: int
    on: bool


@dataclass(frozen=True)
class Filtered:
    ids: list


@dataclass(frozen=True)
class Unwatched:
    # None: the heap.
    start: Optional[int]
    length: Optional[int]


@dataclass(frozen=True)
class Watchable:
    # Else it waits for memory.
    mapped: bool


@dataclass(frozen=True)
class About:
    session: int
    pid: int
    stops_at: int


@dataclass(frozen=True)
class PatchSyscalls:
    on: bool


@dataclass(frozen=True)
class HeapChecked:
    pass


@dataclass(frozen=True)
class LastWriters:
    pass


@dataclass(frozen=True)
class HeapAsked:
    reports: int


@dataclass(frozen=True)
class Refused:
    what: str
    why: str
    what_to_do: str

    def error(self):
        return UlpfError(self.what, self.why, self.what_to_do.rstrip("."))


def change(object):
    """Answer to a command that changes something, or a refusal."""
    if (r := _get(object, "refused", dict, None)) is not None:
        return Refused(_get(r, "what", str), _get(r, "why", str), _get(r, "what_to_do", str))
    if (id := _count(object, "watch", None)) is not None:
        heap, on = _count(object, "heap", None), _get(object, "on", bool, None)
        return Watched(id, heap) if heap is not None or on is None else Switched(id, on)
    if (many := _get(object, "watches", list, None)) is not None:
        first, count = many
        return WatchedMany(first, count)
    if (ids := _get(object, "filtered", list, None)) is not None:
        return Filtered(ids)
    if (bytes := _get(object, "unwatched", dict, None)) is not None:
        return Unwatched(_count(bytes, "start", None), _count(bytes, "len", None))
    if _get(object, "watchable", bool, None):
        return Watchable(_get(object, "mapped", bool))
    if (on := _get(object, "patch_syscalls", bool, None)) is not None:
        return PatchSyscalls(on)
    if _get(object, "heap_checked", bool, None):
        return HeapChecked()
    if _get(object, "last_writers", bool, None):
        return LastWriters()
    if (reports := _count(object, "heap_asked", None)) is not None:
        return HeapAsked(reports)
    session, stops_at = (_address(_get(object, name, str)) for name in ("session", "stops_at"))
    return About(session, _get(object, "pid", int), stops_at)


# ---- hits ----


@dataclass(frozen=True)
class Record:
    # In seconds: since the session began (`log`), before the question (`last`).
    time: Optional[float]
    ago: Optional[float]
    watch: Optional[int]
    tid: int
    address: int
    # None: its watch keeps no records, and nothing more is known.
    access: Optional[str]
    length: Optional[int]
    # Hexadecimal digits; None: not known.
    old: Optional[str]
    new: Optional[str]
    silent: bool
    call: Optional[str]
    pc: Optional[int]
    callers: list
    # The way out of a library that every program has, where no callers were asked for.
    through: list
    # Of a watch that moves: how many of its bytes are before those of the hit.
    inside: int = 0
    # The old value is not known to be what the hit before has left.
    unchained: bool = False


@dataclass(frozen=True)
class Last:
    address: int
    length: int
    # In seconds before the question.
    watched_since: Optional[float]
    reaches_back: Optional[float]
    # `last` has each stretch of bytes with one last writer, ascending; other bytes have not been written since.
    stretches: bool
    last: list


@dataclass(frozen=True)
class LogHead:
    # In seconds since the session began.
    reaches_back: Optional[float]


def record(object):
    time, ago, watch = _seconds(object, "time"), _seconds(object, "ago"), _count(object, "watch", None)
    if (ago is None) == (watch is None) or ago is not None and time is not None:
        raise ValueError("this is no hit")
    access = _get(object, "access", str, None)
    if access not in (None, "read", "write", "update"):
        raise ValueError(f"{access} is no access")
    # Fields of an access are present together or not at all.
    absent = None if access is None else ValueError
    pc = _get(object, "pc", str, absent)
    old, new = _bytes(object, "old_bytes"), _bytes(object, "new_bytes")
    if (old is None) != (new is None):
        raise ValueError("one of two values")
    return Record(time, ago, watch, _count(object, "tid"), _address(_get(object, "addr", str)), access,
                  _count(object, "len", absent), old, new, _get(object, "silent", bool, False),
                  _get(object, "call", str, None), None if pc is None else _address(pc),
                  [_address(c) for c in _get(object, "callers", list, [])], [_address(c) for c in _get(object, "through", list, [])],
                  _count(object, "inside", 0), _get(object, "unchained", bool, False))


def stop(object):
    """The hit behind the last stop, or None."""
    _nullable(object, "stop")
    return None if object["stop"] is None else record(object["stop"])


def last(object):
    _nullable(object, "watched_since", "reaches_back")
    return Last(_address(_get(object, "addr", str)), _count(object, "len"), _seconds(object, "watched_since"),
                _seconds(object, "reaches_back"), _get(object, "stretches", bool, False), [record(r) for r in _get(object, "last", list)])


def log_head(object):
    _nullable(object, "reaches_back")
    return LogHead(_seconds(object, "reaches_back"))


# ---- counters ----

_NUMBERS = "hits", "silent", "filtered", "false_positives", "stops", "traps"
_TOTALS = "faults", "false_positives", "slow", "syscalls", "sites", "sites_refused", "moved_pages", "watch_bytes", "next"


@dataclass(frozen=True)
class Counted:
    id: int
    start: Optional[int]
    length: Optional[int]
    # Bytes of the heap, if that is watched.
    heap: Optional[int]
    # How often a watch that follows has moved; it has no bytes now if its start is 0.
    moved: Optional[int]
    kind: str
    hits: int
    silent: int
    filtered: int
    false_positives: int
    stops: int
    traps: int
    placement: str
    off: bool
    gone: bool


@dataclass(frozen=True)
class Statistics:
    faults: int
    false_positives: int
    slow: int
    syscalls: int
    sites: int
    sites_refused: int
    moved_pages: int
    watch_bytes: int
    next: int
    lost: Optional[int]
    watches: list


def counted(object):
    heap = _count(object, "heap", None)
    absent = ValueError if heap is None else None
    placement, kind = _get(object, "placement", str), _get(object, "kind", str)
    if placement not in ("guard", "debug-register") or kind not in ("r", "w", "rw"):
        raise ValueError("this is no watch")
    return Counted(id=_count(object, "id"), start=_count(object, "start", absent), length=_count(object, "len", absent),
                   heap=heap, moved=_count(object, "moved", None), kind=kind, **{name: _count(object, name) for name in _NUMBERS}, placement=placement,
                   off=_get(object, "off", bool, False), gone=_get(object, "gone", bool, False))


def statistics(object):
    return Statistics(**{name: _count(object, name) for name in _TOTALS}, lost=_count(object, "lost", None),
                      watches=[counted(watch) for watch in _get(object, "watches", list)])


# ---- how watches are served ----


@dataclass(frozen=True)
class Patching:
    enabled: bool
    after: Optional[int]
    patches: int
    # Why nothing can be patched.
    why: Optional[str]


@dataclass(frozen=True)
class Placement:
    placement: str
    registers: int
    used: int
    # Why there are no debug registers.
    unavailable: Optional[str]


@dataclass(frozen=True)
class Backend:
    # `kernel`, `signal`, or the kind of a back end of the bridge, which has a name, too.
    backend: str
    name: Optional[str]
    why: str
    what_to_do: Optional[str]


def patching(object):
    why = _get(object, "why", str, None)
    after = _count(object, "after", ValueError if why is None else None)
    return Patching(_get(object, "enabled", bool), after, _count(object, "patches"), why)


def placement(object):
    where = _get(object, "placement", str)
    if where not in ("auto", "guard", "debug-register"):
        raise ValueError(f"{where} is no placement")
    return Placement(where, _count(object, "registers"), _count(object, "used"), _get(object, "unavailable", str, None))


def backend(object):
    return Backend(_get(object, "backend", str), _get(object, "name", str, None), _get(object, "why", str),
                   _get(object, "what_to_do", str, None))


# ---- events that GDB has not seen ----


@dataclass(frozen=True)
class Settled:
    address: int
    length: int
    kind: str
    skipped: int


@dataclass(frozen=True)
class Settle:
    of: list
    look: bool


def settle(object):
    of = [_settled(one) for one in _get(object, "settle", list)]
    return Settle(of, _get(object, "look", bool))


def _settled(object):
    kind = _get(object, "kind", str)
    if kind not in ("r", "w", "rw"):
        raise ValueError(f"{kind} is no kind of access")
    return Settled(_count(object, "start"), _count(object, "len"), kind, _count(object, "skipped"))
