# SPDX-License-Identifier: MIT OR Apache-2.0
"""Splits an expression into steps that the program's threads can follow: pointers, lists, containers.

    p->next->x            the pointer p, another one at offset 8 of its target, and the value at offset 16 of that target
    list->*next.refs      the pointer list, in each node the link at offset 8, and the value at offset 4
    v[*]                  a vector's two pointers, and the elements between them

The stub gets the address of the first step, and the offset to add to the target of each step (the syntax is in
ulpf-lib/src/command/path.rs). Other expressions (casts, calls, references, overloaded operators), and expressions with
many places in two ways, are evaluated by GDB once. The watch then stays at that address.
"""

import re

from . import containers, expressions, facade, places, settings
from .errors import UlpfError

_TOKEN = re.compile(r"\s*(?:(?P<name>(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)|(?P<sign>->|[*().]|\[(?P<index>[^\[\]]+)\]))")
# No program has anything below: such a pointer points to nothing.
_LOWEST = 0x1000
_POINTER = 8
_WRAP = 1 << 64
# Default limit of the number of places (MOST_FOLLOWED of the stub).
_MOST = 100_000


class _None(Exception):
    """There is no such way."""


def locate(expression):
    """All places of an expression; one that follows, if it can."""
    found = along(expression)
    return [found] if found else places.find(expression)


def along(expression):
    """The place that an expression leads to, or None."""
    said = places.BYTES.match(expression)
    length = None
    if said and "?" not in expression:
        expression, length = said["what"], places.bytes_of(said)
    try:
        walk = _Walk(expression)
        value = walk.all()
        if not walk.may_change or length is not None and (walk.many is not None or not length):
            return None
        found = walk.place(expression, value)
    except (_None, UlpfError, RuntimeError, LookupError, ValueError, TypeError):
        # (GDB's own errors are RuntimeErrors. GDB reports a wrong expression when it evaluates it.)
        return None
    if length is not None:
        found.length, found.type, found.unit, found.mask, found.first = length, None, 0, 0, None
    return found


def _first(value, low=None):
    """The present elements of a container from `low` on; empty if it is empty, or not constructed yet."""
    try:
        return containers.elements("it", value, low)
    except UlpfError:
        return []


class _Walk:
    """From the left to the right, with GDB's types and the program's pointers as they are now."""

    def __init__(self, text):
        self.text, self.at = text.rstrip(), 0
        # Address of the first step; each step in the stub's syntax, with `{}` for its offset; the offsets.
        self.base = 0
        self.steps = []
        self.offsets = []
        # Address that the last step leads to.
        self.last = 0
        self.whole = True
        # Is there more on the way than an array's elements?
        self.may_change = False
        # Structure and member that were named last.
        self.member = None
        # Number of the first place, or None if there is only one. `mark` is its position in the name: begin, end, text.
        self.many = None
        self.mark = 0, 0, ""
        # Of a range that the expression ends with: the first index.
        self.first = None

    def _next(self):
        match = _TOKEN.match(self.text, self.at)
        if match is None and self.at < len(self.text):
            raise _None
        return match

    def _take(self, match):
        self.at = match.end()

    def all(self):
        value = self._unary()
        if self.at != len(self.text):
            raise _None
        return value

    def _unary(self):
        match = self._next()
        if match and match.group("sign") == "*":
            self._take(match)
            value = self._unary()
            self.member = None
            held = self._held(value)
            return held if held is not None else self._object(value)
        return self._postfix()

    def _postfix(self):
        match = self._next()
        if match is None:
            raise _None
        self._take(match)
        if match.group("name"):
            value = expressions.evaluate(match.group("name"))
        elif match.group("sign") == "(":
            value = self._unary()
            match = self._next()
            if match is None or match.group("sign") != ")":
                raise _None
            self._take(match)
        else:
            raise _None
        while True:
            mark = places.MARK.match(self.text, self.at)
            if mark:
                value = self._all_of(value, mark)
                continue
            match = self._next()
            if match is None or match.group("sign") in (None, "*", "(", ")"):
                return value
            if self.first is not None:
                raise _None
            self._take(match)
            if match.group("index"):
                value = self._element(value, int(facade.evaluate(match.group("index").strip())))
                continue
            arrow = match.group("sign") == "->"
            match = self._next()
            if match is None or not match.group("name"):
                raise _None
            self._take(match)
            held = self._held(value) if arrow else None
            if held is not None:
                value = held
            elif arrow or facade.is_pointer(_type(value)):
                value = self._object(value)
            if not facade.is_struct(_type(value)):
                raise _None
            self.member = value, match.group("name")
            value = value[match.group("name")]

    # ---- to many places ----

    def _all_of(self, value, mark):
        """The nodes or elements that are meant by a mark."""
        if self.many is not None or self.first is not None:
            raise _None
        start, self.at, self.member = self.at, mark.end(), None
        link = mark.group("link")
        if link:
            self._numbered(0, mark.end(), mark.end())
            return self._nodes(value, link)
        low = high = None
        if not mark.group("all"):
            low, high = (places.index(mark.group(part), mark.group()) for part in ("low", "high"))
            if high is not None and mark.group("range") == "..=":
                high += 1
        if containers.of(_type(value)) is None:
            return self._range(value, low, high, start)
        if low is not None and low < 0 or high is not None and high <= (low or 0):
            raise _None
        value = self._innermost(value)
        entry = containers.of(_type(value))
        if entry is None:
            return value
        self._numbered(low or 0, start, mark.end(), "[#*]" if containers.keyed(entry) else "[*]")
        return self._contents(value, low or 0, -1 if high is None else high)

    def _numbered(self, first, start, end, said="[*]"):
        self.many, self.mark = first, (start, end, said)

    def _innermost(self, value):
        """The innermost target of smart pointers and cells."""
        held = value
        while held is not None:
            value, held = held, self._held(held)
        return value

    def _nodes(self, value, link):
        if facade.is_pointer(_type(value)):
            at, target = _address(value), facade.plain(_type(value).target())
            to, step = self._points_to(at), "@list"
        else:
            at, target = _address(value), _type(value)
            to, step = at if self.whole else None, "@nodes"
        found = containers.member(target, link)
        if found is None or not facade.is_pointer(facade.plain(found[1])):
            raise _None
        return facade.value_at(self._step(at, f"{step},{found[0]},{{}}", to), target)

    def _range(self, value, low, high, start):
        """Elements of an array, or of what a pointer points to."""
        type = _type(value)
        known = facade.bounds(type) if facade.is_array(type) else None
        if high is None and known is None or not (known or facade.is_pointer(type)):
            raise _None
        low = (known[0] if known else 0) if low is None else low
        high = known[1] + 1 if high is None else high
        if high <= low or known and known[1] > known[0] and not known[0] <= low < high <= known[1] + 1:
            raise _None
        first = self._element(value, low)
        if self.at == len(self.text):
            # One place, however many elements it has.
            self.first = low
            return facade.value_at(_address(first), facade.array_of(_type(first), high - low))
        self._numbered(low, start, self.at)
        at, element = _address(first), _type(first)
        to = at if self.whole else None
        return facade.value_at(self._step(at, f"@times,{high - low},{element.sizeof},{{}}", to, changes=False), element)

    # ---- containers ----

    def _member(self, value, path):
        """Where a member of members is, and its type."""
        found = containers.member(_type(value), path)
        if found is None:
            raise _None
        return (_address(value) + found[0]) % _WRAP, facade.plain(found[1])

    def _contents(self, value, low, high):
        """Any element of a container."""
        type = _type(value)
        entry = containers.of(type)
        if entry is None:
            raise _None
        shape = entry["shape"]
        if shape == "same":
            at, inner = self._member(value, entry["as"])
            return self._contents(facade.value_at(at, inner), low, high)
        if shape == "span":
            return self._span(value, entry, low, high)
        if shape in ("short", "ring", "deque"):
            return self._chunks(value, entry, low, high)
        if shape in ("list", "tree", "table", "btree") and (low, high) == (0, -1):
            return self._nodes_of(value, entry)
        if shape in ("fields", "alternatives") and high == low + 1:
            return self._one_of(value, entry, low)
        raise _None

    def _nodes_of(self, value, entry):
        """Each element of a list, a tree or a table."""
        type, shape = _type(value), entry["shape"]
        element = containers.element_type(type, entry)
        more, meant = containers.item(entry, element)
        at, start = self._member(value, entry[{"list": "first", "tree": "root", "table": "control", "btree": "root"}[shape]])
        node = facade.plain(start.target())

        def there(key):
            return self._member(value, entry[key])[0] - at

        def inside(key):
            found = containers.member(node, entry[key])
            if found is None:
                raise _None
            return found[0]
        end = ""
        if shape == "list":
            step = f"@counted,{inside('next')},{there('count')}" if "count" in entry else f"@list,{inside('next')}"
            end = f",{there('header')}" if "header" in entry else ""
            offset = containers.after(entry, element, node)
        elif shape == "tree":
            step, offset = f"@tree,{inside('left')},{inside('right')},{there('count')}", containers.after(entry, element, node)
        elif shape == "table":
            step, offset = f"@table,{there('mask')},{element.sizeof}", 0
        else:
            _, length, edges, offset, room, stride = containers.btree(type, entry)
            step = f"@btree,{there('height')},{length},{edges},{room},{stride}"
        # (The first target does not matter, because elements may come and go.)
        found = _first(value) if self.whole else []
        to = found[0].address - offset - more if found else None
        place = self._step(at, f"{step},{{}}{end}", to)
        return facade.value_at((place + offset + more) % _WRAP, meant)

    def _chunks(self, value, entry, low, high):
        """Each element of what has them in pieces."""
        def there(key):
            return self._member(value, entry[key])[0] - at
        if entry["shape"] == "deque":
            at, _ = self._member(value, entry["start"])
            current = containers.member(_type(value), entry["start"] + "._M_cur")
            if current is None:
                raise _None
            element = facade.plain(facade.plain(current[1]).target())
            step = f"@chunks,{there('finish')},{there('map')}"
        else:
            at, _ = self._member(value, entry["begin"])
            element = containers.element_type(_type(value), entry)
            keys = ("capacity", "head", "count") if entry["shape"] == "ring" else ("flag", "count", "inside")
            step = f"@{entry['shape']}," + ",".join(str(there(key)) for key in keys)
        found = _first(value, low) if self.whole else []
        to = found[0].address if found else None
        return facade.value_at(self._step(at, f"{step},{element.sizeof},{low},{high},{{}}", to), element)

    def _one_of(self, value, entry, number):
        """Of a tuple, or of a variant while it has that alternative."""
        type, at = _type(value), _address(value)
        if entry["shape"] == "fields":
            at, inner = self._member(value, entry["at"].replace("{}", str(number)))
            return facade.value_at(at, inner)
        found = containers.alternative(type, entry, number)
        if found is None:
            raise _None
        index, of = self._member(value, entry["index"])
        size = min(of.sizeof, _POINTER)
        there = self.whole and _number(index, size) == number
        at = self._step(at, f"@is,{index - at},{size},{number},1,{{}}", at if there else None)
        return facade.value_at((at + found[0]) % _WRAP, found[1])

    def _span(self, value, entry, low, high):
        at, _ = self._member(value, entry["begin"])
        element = containers.element_type(_type(value), entry)
        begin = self._points_to(at)
        if "count" in entry:
            of, number = self._member(value, entry["count"])
            size = min(number.sizeof, _POINTER)
            count = _number(of, size) if begin else 0
            until = f"@count,{of - at},{size}"
        else:
            of, _ = self._member(value, entry["end"])
            end = _number(of, _POINTER) if begin else 0
            count = max(0, end - (begin or 0)) // element.sizeof
            until = f"@span,{of - at}"
        to = (begin + low * element.sizeof) % _WRAP if begin and count > low else None
        return facade.value_at(self._step(at, f"{until},{element.sizeof},{low},{high},{{}}", to), element)

    def _held(self, value):
        """The target of a smart pointer or cell; None for any other value."""
        type = _type(value)
        entry = containers.of(type) if facade.is_struct(type) else None
        if entry is None or entry["shape"] not in ("one", "inline"):
            return None
        if entry["shape"] == "inline":
            at = _address(value)
            if "flag" in entry:
                flag, _ = self._member(value, entry["flag"])
                there = self.whole and _number(flag, 1)
                at = self._step(at, f"@if,{flag - at},1,{{}}", at if there else None)
            return self._inline(at, type, entry["at"])
        at, pointer = self._member(value, entry["pointer"])
        held = self._object(facade.value_at(at, pointer))
        if "at" in entry:
            at, inner = self._member(held, entry["at"])
            held = facade.value_at(at, inner)
        return held

    def _inline(self, at, type, path):
        """A member of members. Of what numbers mean a variant GDB tells nothing: of enums only those are followed that have a
        pointer, and none where it is null."""
        for name in path.split("."):
            static = facade.plain(type)
            found = containers.member(static, name)
            if found is None:
                raise _None
            pointer = facade.is_pointer(facade.plain(found[1])) or static.sizeof == _POINTER
            if containers.is_enum(static) and not (pointer and static.sizeof == _POINTER):
                raise _None
            at, type = (at + found[0]) % _WRAP, facade.plain(found[1])
        return facade.value_at(at, type)

    # ---- to one place ----

    def _element(self, value, index):
        self.member = None
        type = _type(value)
        if facade.is_array(type):
            return facade.element(value, index)
        if facade.is_struct(type):
            if index < 0:
                raise _None
            return self._contents(value, index, index + 1)
        first = self._object(value)
        at = _address(first) + index * _type(first).sizeof
        return facade.value_at(at % _WRAP, first.type)

    def _object(self, value):
        """The target of a pointer."""
        type = _type(value)
        if facade.is_array(type):
            return facade.element(value, 0)
        if not facade.is_pointer(type) or type.sizeof != _POINTER:
            raise _None
        at = _address(value)
        return facade.value_at(self._step(at, ">{}", self._points_to(at)), type.target())

    def _points_to(self, at):
        """Where the pointer at this address leads; None: nowhere."""
        there = facade.read_memory(at, _POINTER) if self.whole else None
        to = int.from_bytes(there, "little") if there else 0
        return to if to >= _LOWEST else None

    def _step(self, at, step, to, changes=True):
        """One more step; what it comes to."""
        if self.steps:
            self.offsets.append(_signed(at - self.last))
        else:
            self.base = at
        self.steps.append(step)
        self.may_change = self.may_change or changes
        self.last = to or 0
        self.whole = self.whole and to is not None
        return self.last

    def place(self, expression, value):
        bits = places.bits(expression, *self.member) if self.member else None
        type = _type(value)
        if bits is None and (facade.is_function(type) or not type.sizeof):
            raise _None
        found = bits or places.Place(expression, _address(value), type.sizeof, type, places.element_size(type), first=self.first)
        offsets = [*self.offsets, _signed(found.address - self.last)]
        found.base = self.base
        found.path = f"{found.base:#x}" + "".join(step.format(offset) for step, offset in zip(self.steps, offsets))
        found.address = found.address if self.whole else 0
        found.language = facade.language_now()
        if self.many is not None:
            start, end, said = self.mark
            found.name, found.many = expression[:start] + said + expression[end:], self.many
            # (Places that are neighbours are one range to the stub.)
            found.unit = found.unit or (type.sizeof if type.sizeof <= 8 and bits is None else 0)
            if settings.most_elements() != _MOST:
                found.path += f"@most,{settings.most_elements()}"
        elif self.first is not None:
            found.name = expression
        return found


def _signed(offset):
    offset %= _WRAP
    return offset if offset < _WRAP // 2 else offset - _WRAP


def _number(at, size):
    there = facade.read_memory(at, size)
    return int.from_bytes(there, "little") if there else 0


def _type(value):
    """Of a value; references have places of their own, which GDB does not tell."""
    if facade.is_reference(value.type):
        raise _None
    return facade.plain(value.type)


def _address(value):
    if facade.is_optimized_out(value):
        raise _None
    at = facade.address_of(value)
    if at is None:
        raise _None
    return at
