# SPDX-License-Identifier: MIT OR Apache-2.0
"""A hit for programs: the object of docs/json.md, as `ulpf run --json` and `ulpf export` write it, and a row of CSV.

The command does it in command/session/src/hit/entry.rs: same names, same types.
"""

import json
import math
import os
import re

from . import facade, foreign, values

# The columns of a table: the fields of an object, in this order.
COLUMNS = ("time", "ago", "pid", "tid", "watch", "spec", "name", "access", "addr", "len", "value_type", "old", "new", "old_bytes",
           "new_bytes", "silent", "truncated", "unchained", "syscall", "call", "pc", "function", "offset", "inlined", "file", "line", "object",
           "by", "callers")
# Libraries that every program of a language has (ulpf-lib/src/runtime_library.rs).
_RUNTIME = re.compile(r"(libc|libc\.musl-x86_64|ld-musl-x86_64|ld-linux-x86-64|ld|libm|libmvec|libpthread|libstdc\+\+|libc\+\+|libc\+\+abi|"
                      r"libgcc_s|libunwind|libasan|libtsan)(\.so.*|-\d.*\.so)$")
# `__memcpy_avx_unaligned_erms` is what memcpy comes to on one processor.
_WRITTEN = re.compile(r"_+(?:(?:GI_|libc_|IO_)_*)*(\w+?)(?:_(?:avx|sse|ssse3|evex|erms|unaligned|generic|fma|slow|fast|nocancel|internal).*)?$")


def of(hit):
    """The object. Unknown fields are left out, except `value_type`."""
    said = {"type": "hit"}
    known = {"time": hit.time, "ago": hit.ago, "pid": _pid() or None, "tid": hit.tid, "watch": hit.watch.number if hit.watch else None}
    said.update((name, value) for name, value in known.items() if value is not None)
    said.update(spec=hit.watch.spec.text if hit.watch else f"{hit.address:#x}:{hit.length}", name=hit.name, access=hit.access,
                addr=f"{hit.address:#x}", len=hit.length, value_type=None)
    old, new = hit.bytes
    if old is not None and new is not None:
        said["value_type"] = _type_name(hit, len(new))
        said.update(old=_typed(hit, old), new=_typed(hit, new), old_bytes=old.hex(), new_bytes=new.hex())
    said.update(silent=hit.silent, truncated=new is not None and len(new) < hit.length)
    if hit.unchained:
        said["unchained"] = True
    if hit.call:
        said.update(syscall=hit.call.partition("(")[0], call=hit.call)
    if hit.pc is not None:
        said.update(place(hit.pc))
    caller = own_caller(hit)
    if caller:
        said["by"] = place(caller[0], True)
    if hit.callers:
        said["callers"] = [place(pc, True) for pc in hit.callers]
    return said


def text(hit):
    """The object in one line."""
    return foreign.quoted(json.dumps(of(hit), ensure_ascii=False))


def row(hit):
    """A row of a table: texts by their columns."""
    said = of(hit)
    said["by"] = at(own_caller(hit)[0] - 1) if "by" in said else ""
    said["callers"] = " < ".join(at(pc - 1) for pc in hit.callers)
    return {name: foreign.shown(_cell(said.get(name))) for name in COLUMNS}


def _cell(value):
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pid():
    from .registry import watches

    return watches.pid or facade.pid()


# ---- where ----

def place(pc, caller=False):
    """Where an instruction is, or (`caller`) the call before a return address."""
    lookup = pc - 1 if caller else pc
    said = {"pc": f"{pc:#x}"}
    symbol = facade.symbol_at(lookup)
    if symbol:
        function, _, offset = symbol.rpartition("+0x")
        said["function"] = function or symbol
        said["offset"] = (int(offset, 16) if function else 0) + caller
    file = facade.file_at(lookup)
    if file:
        said["file"], said["line"] = file
    name = facade.object_at(lookup)
    if name:
        said["object"] = os.path.basename(name)
    return said


def at(pc):
    """`add+0x12 at stray.c:22`"""
    source = facade.line_at(pc)
    return (facade.symbol_at(pc) or f"{pc:#x}") + (f" at {source}" if source else "")


def _runtime(pc):
    return bool(_RUNTIME.match(os.path.basename(facade.object_at(pc) or "")))


def own_caller(hit):
    """(return address, name of the function that was called), if a library that every program has has made the access, and the
    program's own call of it is known."""
    frames = hit.through or hit.callers
    if hit.pc is None or not frames or not _runtime(hit.pc):
        return None
    within = hit.pc
    for frame in frames:
        if not _runtime(frame - 1):
            symbol = (facade.symbol_at(within) or "").partition("+")[0]
            match = _WRITTEN.match(symbol) if symbol.startswith("_") else None
            return frame, match.group(1) if match else symbol
        within = frame - 1
    return None


def who(hit):
    """The writer: the instruction, or for such a library the call into it, as `main at mpi2.c:5 (memcpy)`."""
    caller = own_caller(hit)
    if not caller:
        return at(hit.pc)
    source = facade.line_at(caller[0] - 1)
    text = at(caller[0] - 1)
    if source:
        text = f"{(facade.symbol_at(caller[0] - 1) or '').partition('+')[0]} at {source}"
    return f"{text} ({caller[1]})" if caller[1] else text


# ---- values ----

def _type_name(hit, length):
    _, at_, type, whole = hit.part()
    if type is None:
        return None
    if hit.place is not None and hit.place.mask:
        return str(type)
    if at_ == hit.address and whole == length == hit.length:
        return str(type)
    element = _elements(hit, type, at_, length)
    return f"{element} [{hit.length // element.sizeof}]" if element is not None else None


def _elements(hit, type, start, length):
    """The type of an array's elements, if whole ones were accessed."""
    if not facade.is_array(type):
        return None
    element = facade.plain(type.target())
    size = element.sizeof
    return element if size and (hit.address - start) % size == 0 and hit.length % size == 0 and length >= size else None


def _typed(hit, data):
    """As the variable's type is: a number, a truth value, a text, a list; bytes of no type as text."""
    _, start, type, whole = hit.part()
    truncated = len(data) < hit.length
    if type is None:
        return _raw(data, truncated)
    mask = hit.place.mask if hit.place is not None else 0
    if mask:
        return (int.from_bytes(data, "little") & mask) // (mask & -mask)
    if start == hit.address and whole == len(data) and not truncated:
        return _value(data, facade.plain(type))
    element = _elements(hit, type, start, len(data))
    if element is None:
        return _raw(data, truncated)
    return _list(data, element)


def _list(data, element):
    size = element.sizeof
    if size == 1 and facade.is_character(element):
        return data.partition(b"\0")[0].decode(errors="replace")
    return [_value(data[n:n + size], element) for n in range(0, len(data) - size + 1, size)]


def _value(data, type):
    if facade.is_array(type):
        element = facade.plain(type.target())
        return _list(data, element) if element.sizeof else _raw(data, False)
    number = int.from_bytes(data, "little")
    if facade.is_pointer(type):
        return f"{number:#x}"
    if facade.is_bool(type):
        return bool(number) if number < 2 else number
    if facade.is_enum(type):
        shown = facade.shown(values.value_of_bytes(data, type))
        return int(shown) if re.fullmatch(r"-?\d+", shown) else shown
    if facade.is_integer(type):
        return int.from_bytes(data, "little", signed=facade.is_signed(type))
    if facade.is_float(type):
        value = float(values.value_of_bytes(data, type))
        return value if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "NaN")
    if facade.is_struct(type):
        sized = [(position, bits, of) for _, position, bits, of in facade.members(type) if of.sizeof]
        if len(sized) == 1 and sized[0][:2] == (0, 0) and sized[0][2].sizeof == type.sizeof:
            return _value(data, facade.plain(sized[0][2]))
    return _raw(data, False)


def _raw(data, truncated):
    if len(data) in (1, 2, 4, 8) and not truncated:
        return f"{int.from_bytes(data, 'little'):#x}"
    return data.hex(" ") + (" …" if truncated else "")
