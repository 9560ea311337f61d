# SPDX-License-Identifier: MIT OR Apache-2.0
"""From an expression to the bytes that are watched.

    total                 an object                      one place
    arr[0..1024]          elements of an array           one place, if they are neighbours
    arr[0..=9].x          a field of each                ten places
    *ptr@len              GDB's own way to say it        one place
    list->*next.refs      along a chain of pointers      one for each node
    map[*].second         each element of a container    one for each
    total:4, 0x1000:16    so many bytes, as they are     one place
    file.c:total          the one of that source file
    libfoo`total          the one of that object
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Optional

from . import containers, expressions, facade, names, settings, values
from .errors import UlpfError

# The first of them in an expression is where it stops to be GDB's.
MARK = re.compile(r"\[(?P<low>[^\[\]]*?)(?P<range>\.\.=?)(?P<high>[^\[\]]*)\]|\[(?P<all>\*)\]|->\*(?P<link>[A-Za-z_]\w*)")
# `*ptr@len`, whose elements are ptr[0] and so on.
_AT = re.compile(r"^\*\s*([\w.>\[\]-]+)\s*@")
_FIELD = re.compile(r"^(.*?)\s*(\.|->)\s*([A-Za-z_]\w*)$", re.S)


@dataclass
class Place:
    name: str
    address: int
    length: int
    # Of all of it.
    type: Any = None
    # Size of the elements that a condition sees one by one; 0: the place is one value.
    unit: int = 0
    # Of a bit-field: its bits in the watched bytes.
    mask: int = 0
    # The first index, if the elements of a range are named.
    first: Optional[int] = None
    # The language of its name, in which its parts are named.
    language: str = ""
    # Of a place that follows pointers: the way for the stub, where its first pointer is, and `address` where it is now;
    # 0: nowhere.
    path: str = ""
    base: int = 0
    # Number of the first place, if there may be many. The name has `[*]` in place of the number, or `[#*]` where
    # elements are known by keys.
    many: Optional[int] = None
    id: Optional[int] = None

    @property
    def end(self):
        return self.address + self.length

    def at(self, address, inside, length):
        """Of a place that follows: where it was when `length` bytes were accessed at `address`, `inside` bytes from its
        beginning. Of many places the one of them."""
        if self.many is None:
            return replace(self, address=address - inside)
        size = self.length
        number, within = self.many + inside // size, inside % size
        last = self.many + (inside + max(length, 1) - 1) // size
        # (Of what is known by keys, it is the how manyth.)
        mark = "[#*]" if "[#*]" in self.name else "[*]"
        if last > number:
            return replace(self, name=self.name.replace(mark, mark.replace("*", f"{number}..{last + 1}"), 1), address=address, length=length,
                           type=None, many=None)
        return replace(self, name=self.name.replace(mark, mark.replace("*", str(number)), 1), address=address - within, many=None)

    @property
    def anchor(self):
        """Range of memory that the place depends on: its own, or that of its first pointer."""
        return (self.base, self.base + 8) if self.path else (self.address, self.end)


# `total:4`, `loop.c:total` and `libfoo`total`, as `ulpf run` takes them.
BYTES = re.compile(r"^(?P<what>.*[^\s:])\s*:\s*(?P<number>0[xX][0-9a-fA-F_]+|\d[\d_]*)(?P<unit>[KkMG]?)$", re.S)
_BEYOND = re.compile(r"^(?P<what>.*[^\s+-])\s*(?P<sign>[+-])\s*(?P<bytes>0[xX][0-9a-fA-F]+|\d+)$", re.S)
_UNITS = {"": 1, "K": 1 << 10, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def is_heap(expression):
    """All that the program allocates, unless a variable is called so."""
    return expression == "[heap]" or expression == "heap" and not names.is_variable("heap")


def find(expression):
    """All places of an expression; at least one, or an error."""
    said = BYTES.match(expression)
    # (`a ? b : 4` is the debugged language's.)
    if said and "?" not in expression:
        return _bytes(expression, said["what"], bytes_of(said))
    return _find(expression)


def bytes_of(said):
    """The number in what `BYTES` has matched."""
    return int(said["number"].replace("_", ""), 0) * _UNITS[said["unit"]]


def _bytes(expression, what, length):
    """A place of `length` bytes without a type."""
    if not length:
        raise UlpfError(f"cannot watch {expression}", "its length is zero", "say how many bytes: x:8")
    if re.fullmatch(r"0[xX][0-9a-fA-F]+|\d+", what):
        return [Place(what, int(what, 0), length)]
    beyond = _BEYOND.match(what)
    offset = 0
    if beyond:
        what, offset = beyond["what"], int(beyond["bytes"], 0) * (-1 if beyond["sign"] == "-" else 1)
    found = [Place(p.name if not offset else f"({p.name}{offset:+})", p.address + offset, length) for p in _find(what)]
    for place in found:
        if place.address < 1 << 47 and facade.pid() and not facade.readable(place.end - 1):
            raise UlpfError(f"cannot watch {expression}", f"there is no memory at {place.end - 1:#x}", "name fewer bytes")
    return found


def _find(expression):
    mark = MARK.search(expression)
    if mark:
        found = list(_expand(expression, mark))
    else:
        found = [_repeated(expression) or _single(expression, expressions.evaluate(expression))]
    language = facade.language_now()
    for place in found:
        place.language = language
    return found


def _repeated(expression):
    """`*ptr@len` with more bytes than GDB's largest value: only the first element is evaluated."""
    head, at, count = expression.rpartition("@")
    limit = values.max_value_size()
    if not at or limit is None:
        return None
    try:
        first, count = expressions.evaluate(head), int(facade.evaluate(count))
    except Exception:  # the whole of it says what is wrong
        return None
    place = _of(expression, first)
    if place.length * count <= limit:
        return None
    place.type = facade.array_of(facade.plain(first.type), count)
    place.unit, place.length = element_size(place.type), place.length * count
    if not facade.readable(place.end - 1):
        raise UlpfError(f"cannot watch {expression}", f"there is no memory at {place.end - 1:#x}", "name fewer elements")
    return place


def _single(name, value):
    field = _bit_field(name)
    if field:
        return field
    return _of(name, value)


def _of(name, value):
    what = f"cannot watch {name}"
    if facade.is_optimized_out(value):
        raise UlpfError(what, "it has been optimised out here", "watch it where it has a place in memory, or compile with -Og")
    type = facade.plain(value.type)
    if facade.is_function(type):
        raise UlpfError(what, "it is code, and only data can be watched", "use break")
    at = facade.address_of(value)
    if at is None:
        raise UlpfError(what, "it has no address: it lives in a register, or is a computed value",
                        "watch variables: the parts of the expression, or *(long *)ADDRESS")
    size = type.sizeof
    if not size:
        raise UlpfError(what, "it has no size", "watch one of its elements")
    # (Of the kernel's half the stub says why it cannot be watched.)
    if at < 1 << 47 and facade.pid() and not facade.readable(at):
        raise UlpfError(what, f"there is no memory at {at:#x}",
                        "the pointer is stale or not set yet; watch the pointer itself, and this once it points somewhere")
    element = element_size(type)
    return Place(name, at, size, type, element)


def element_size(type):
    """Of an array, if a condition can look at its elements one by one."""
    while facade.is_array(type):
        type = facade.plain(type.target())
        if not facade.is_array(type):
            return type.sizeof if type.sizeof <= 8 else 0
    return 0


def _bit_field(expression):
    """GDB does not tell a bit-field's place; its structure's type does."""
    match = _FIELD.match(expression)
    if not match:
        return None
    try:
        parent = expressions.evaluate(match.group(1))
        if match.group(2) == "->":
            parent = parent.dereference()
        return bits(expression, parent, match.group(3))
    except (UlpfError, RuntimeError):
        return None


def bits(name, parent, field):
    """The place of a bit-field, or None for any other field."""
    type = facade.plain(parent.type)
    if not facade.is_struct(type):
        return None
    for known, position, size, of in facade.members(type):
        if known == field and size:
            break
    else:
        return None
    base = facade.address_of(parent)
    if base is None:
        return None
    first, last = position // 8, (position + size - 1) // 8
    mask = ((1 << size) - 1) << (position % 8)
    return Place(name, base + first, last - first + 1, of, mask=mask)


# ---- several at once ----

def _expand(expression, mark):
    head, tail = expression[:mark.start()], expression[mark.end():]
    value = expressions.evaluate(head)
    found = 0
    most = settings.most_elements()
    for place in _walk(head, value, mark, tail):
        found += 1
        if found > most:
            raise UlpfError(f"{expression} has more than {most} elements", "that many watches are seldom meant",
                            f"name fewer, or: set ulpf max-elements {10 * most}")
        yield place
    if not found:
        raise UlpfError(f"cannot watch {expression}", "it has no elements now",
                        "watch the container itself, and its elements once there are any")


def _walk(head, value, mark, tail):
    if not mark.group("link"):
        low = high = None
        value = containers.map_behind(value)
        if value is None:
            return
        known = containers.of(value.type) is not None
        if known and not mark.group("all"):
            text = f"{head}{mark.group()}"
            low, high = (index(mark.group(part), text) for part in ("low", "high"))
            if high is None and mark.group("range") == "..=":
                raise UlpfError(f"cannot watch {text}", "nothing follows ..=", _HOW)
            high = high + 1 if mark.group("range") == "..=" else high
        found = containers.elements(head, value, low, high) if known else None
        if found is not None:
            yield from _contents(head, found, tail)
            return
    if mark.group("link"):
        yield from _chain(head, value, mark.group("link"), tail)
    elif mark.group("all"):
        yield from _all(head, value, tail)
    else:
        yield from _range(head, value, *_bounds(head, value, mark), tail)


# `..` excludes its end, `..=` includes it, as in Rust and in `ulpf run`.
_HOW = "write arr[0..16] for the elements 0 to 15, or arr[0..=15]"


def _bounds(head, value, mark):
    """The first index of a range, and the one behind its last."""
    text = f"{head}{mark.group()}"
    type = facade.plain(value.type)
    known = facade.bounds(type) if facade.is_array(type) else None
    low, high = (index(mark.group(part), text) for part in ("low", "high"))
    if high is None and mark.group("range") == "..=":
        raise UlpfError(f"cannot watch {text}", "nothing follows ..=", _HOW)
    if high is None and not known:
        raise UlpfError(f"cannot watch {text}", f"how many elements {head} has is not known", _HOW)
    if low is None:
        low = known[0] if known else 0
    if high is None:
        high = known[1] + 1
    elif mark.group("range") == "..=":
        high += 1
    if high <= low:
        why = "it is empty" if high == low else "it ends before it begins"
        raise UlpfError(f"cannot watch {text}", why, _HOW)
    if not (facade.is_array(type) or facade.is_pointer(type)):
        raise UlpfError(f"cannot watch {text}", f"{head} is neither an array nor a pointer",
                        f"for the elements of a container write {head}[*]")
    # Trailing arrays of one or no element are a C idiom for "as many as there are".
    if known and known[1] > known[0] and not known[0] <= low < high <= known[1] + 1:
        raise UlpfError(f"cannot watch {text}", f"it has the elements {known[0]} to {known[1]}",
                        f"stay within them ({_HOW}), or take its address: (&arr[0])[0..16]")
    return low, high


def index(text, range):
    """None if nothing is there."""
    if not text.strip():
        return None
    value = facade.evaluate(text.strip(), range)
    try:
        return int(value)
    except Exception:  # whatever GDB makes of something that is no number
        raise UlpfError(f"cannot watch {range}", f"{text.strip()} is no index", _HOW) from None


def _range(head, value, low, high, tail):
    """The elements from `low` to the one before `high`."""
    mark = MARK.search(tail)
    if mark or not _stays(facade.plain(value.type).target(), tail):
        for i in range(low, high):
            yield from _follow(f"{head}[{i}]", facade.element(value, i), tail)
        return
    type = facade.plain(value.type)
    # The same offset in each element: no need to ask GDB for all of them.
    place = next(_follow(f"{head}[{low}]", facade.element(value, low), tail))
    stride = facade.plain(type.target()).sizeof
    last = place.address + (high - 1 - low) * stride
    if not facade.readable(last):
        raise UlpfError(f"cannot watch {head}[{low}..{high}]", f"there is no memory at {last:#x}", "name fewer elements")
    if stride == place.length and not place.mask:
        length = stride * (high - low)
        yield Place(f"{head}[{low}..{high}]{tail}", place.address, length, place.type, stride if stride <= 8 else 0,
                    first=low)
        return
    for i in range(low, high):
        yield Place(f"{head}[{i}]{tail}", place.address + (i - low) * stride, place.length, place.type, place.unit, place.mask)


def _stays(type, tail):
    """Do fields and indices lead from an object of this type only to its own parts? Then they are at the same offset in
    each."""
    at = 0
    while at < len(tail.rstrip()):
        match = expressions.STEP.match(tail, at)
        if match is None or match.group(1) == "->" or facade.is_reference(type):
            return False
        type = facade.plain(type)
        if match.group(3) is not None:
            if not facade.is_array(type):
                return False
            type = type.target()
        else:
            found = containers.member(type, expressions.field(match.group(2)))
            if found is None:
                return False
            type = found[1]
        at = match.end()
    return not facade.is_reference(type)


def _contents(head, runs, tail):
    """The elements of a container."""
    for run in runs:
        if run.held or run.key is not None:
            name = f"*{head}" if run.held else f"{head}[{run.key}]"
            yield from _follow(name, facade.value_at(run.address, run.type), tail)
        elif run.count > 1 and not tail.strip():
            size = run.type.sizeof
            last = run.first + run.count
            yield Place(f"{head}[{run.first}..{last}]", run.address, size * run.count, run.type, size if size <= 8 else 0,
                        first=run.first)
        else:
            for i in range(run.count):
                value = facade.value_at(run.address + i * run.type.sizeof, run.type)
                yield from _follow(f"{head}[{run.first + i}]", value, tail)


def _chain(head, value, link, tail):
    """Nodes from the one that `head` is or points to, until NULL or a node that has been seen."""
    type = facade.plain(value.type)
    if facade.is_pointer(type):
        at, type = int(value), facade.plain(type.target())
    else:
        at = facade.address_of(value)
    if not at:
        return
    if not facade.is_struct(type):
        raise UlpfError(f"cannot follow {head}->*{link}", f"{head} is no structure and points to none", "write list->*next.field")
    seen, number = set(), 0
    while at and at not in seen:
        seen.add(at)
        if not facade.readable(at):
            raise UlpfError(f"cannot follow {head}->*{link}", f"after {number} nodes it leads to {at:#x}, where no memory is",
                            "the list is broken, or not set up yet")
        node = facade.value_at(at, type)
        yield from _follow(f"{head}->*{link}[{number}]", node, tail)
        try:
            at = int(node[link])
        except Exception as e:  # no such member, or no pointer
            raise UlpfError(f"cannot follow {head}->*{link}", f"{link}: {facade.error_text(e)}", "ptype shows the members") from None
        number += 1


def _all(head, value, tail):
    type = facade.plain(value.type)
    if facade.is_array(type):
        known = facade.bounds(type)
        if known:
            yield from _range(head, value, known[0], known[1] + 1, tail)
        return
    if facade.is_pointer(type):
        raise UlpfError(f"cannot watch {head}[*]", f"how many elements {head} has is not known", _HOW)
    found = facade.children(value)
    if found is None:
        raise UlpfError(f"cannot watch {head}[*]", f"GDB knows no elements of {value.type}: it has no pretty-printer for it",
                        "load one (libstdc++ brings its own: info pretty-printer), or name a range: ptr[0..10]")
    hint, pairs = found
    key = None
    for number, (name, child) in enumerate(pairs):
        if hint == "map" and number % 2 == 0:
            key = facade.shown(child) if not isinstance(child, str) else child
            continue
        label = f"{head}[{key}]" if hint == "map" else head + (name if name.startswith("[") else f".{name}")
        if isinstance(child, (str, int)) or facade.address_of(child) is None:
            raise UlpfError(f"cannot watch {label}", "its pretty-printer computes it; it has no place in memory",
                            "watch the container itself")
        yield from _follow(label, child, tail)


def _follow(name, value, tail):
    """Resolves the text behind an element: fields, indices, and further marks."""
    mark = MARK.search(tail)
    steps = tail[:mark.start()] if mark else tail
    parent, at, last = None, 0, None
    while at < len(steps.rstrip()):
        match = expressions.STEP.match(steps, at)
        if not match:
            raise UlpfError(f"cannot watch {name}{tail}", f"{steps[at:].strip()} is no field and no index",
                            "write for example list->*next.refcount, or arr[0..10].x")
        parent, last = value, match.group(2)
        try:
            value = expressions.step(value, match, name + steps[:at])
        except UlpfError:
            raise
        except Exception as e:  # GDB's own: no such member, memory that cannot be read
            raise UlpfError(f"cannot watch {name}{tail}", facade.error_text(e), "ptype shows the members") from None
        at = match.end()
    name += steps
    if mark:
        yield from _walk(name, value, mark, tail[mark.end():])
        return
    field = bits(name, parent, last) if parent is not None and last else None
    yield field or _of(name, value)


# ---- the part of a place that was hit ----

def part(place, address, length):
    """Name, address and type of the smallest part of a place in which an access lies."""
    name, at, type = place.name, place.address, place.type
    if type is None:
        return name + (f"+{address - at}" if address != at else ""), address, None, length
    if place.mask:
        return name, at, type, place.length
    pointer = _AT.match(name)
    if pointer and facade.is_array(type):
        name = pointer.group(1)
    if place.first is not None and type.sizeof:
        index = (address - at) // type.sizeof
        at += index * type.sizeof
        name = re.sub(r"\[-?\d+\.\.-?\d+\]", f"[{place.first + index}]", name, count=1)
        if address + length > at + type.sizeof:
            end = place.first + (address + length - 1 - place.address) // type.sizeof + 1
            name = re.sub(r"\[(-?\d+)\](?!.*\[)", rf"[\1..{end}]", name, count=1)
            return name, address, None, length
    return _descend(name, at, type, address, length, place.language)


def _indexed(name, indices, more, language):
    """An element of an array, or so many dimensions more of it, the outermost index first."""
    if language == "fortran":
        # Its first index is the innermost.
        return f"{name}({','.join([':'] * more + [str(i) for i in reversed(indices)])})"
    if language == "ada":
        return f"{name}({', '.join(map(str, indices))})"
    return name + "".join(f"[{i}]" for i in indices)


def _descend(name, at, type, address, length, language):
    end = address + length
    if facade.is_array(type):
        indices, of, start = [], type, at
        while facade.is_array(of):
            element, known = facade.plain(of.target()), facade.bounds(of)
            if not known or not element.sizeof:
                break
            index = (address - start) // element.sizeof
            if end > start + (index + 1) * element.sizeof:
                break
            indices.append(known[0] + index)
            of, start = element, start + index * element.sizeof
        if indices:
            return _descend(_indexed(name, indices, facade.dimensions(of), language), start, of, address, length, language)
    elif facade.is_struct(type):
        # A union's members lie on each other: the first that is wide enough.
        for field, position, bits, of in facade.members(type):
            of = facade.plain(of)
            start = at + position // 8
            if not bits and of.sizeof and start <= address and end <= start + of.sizeof:
                dot = "%" if language == "fortran" else "."
                inner = name if field is None else f"({name}){dot}{field}" if name.startswith("*") else f"{name}{dot}{field}"
                return _descend(inner, start, of, address, length, language)
    return name, at, type, type.sizeof
