# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pointers that an expression goes through, so that the program's threads can follow them.

    p->next->x    the pointer p, 8 bytes behind what it points to another one, and 16 bytes behind that the value

The stub is told where the first pointer is, and what to add to each. Where an expression has more than fields, indices
and pointers (casts, calls, references, containers, overloaded operators), GDB says where its value is now, and the watch stays there.
"""

import re

from . import expressions, facade, places
from .errors import UlpfError

_TOKEN = re.compile(r"\s*(?:(?P<name>(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)|(?P<sign>->|[*().]|\[(?P<index>[^\[\]]+)\]))")
# No program has anything below: such a pointer points to nothing.
_LOWEST = 0x1000
_POINTER = 8
_WRAP = 1 << 64


class _None(Exception):
    """There is no such way."""


def locate(expression):
    """All places of an expression; one that follows its pointers, if it has some."""
    found = along(expression)
    return [found] if found else places.find(expression)


def along(expression):
    """The place at the end of an expression's pointers, or None."""
    try:
        walk = _Walk(expression)
        value = walk.all()
        return walk.place(expression, value) if walk.steps else None
    except (_None, UlpfError, RuntimeError, LookupError, ValueError, TypeError):
        # (GDB's own are RuntimeErrors. What is wrong with an expression it says when it evaluates it.)
        return None


class _Walk:
    """From the left to the right, with GDB's types and the program's pointers as they are now."""

    def __init__(self, text):
        self.text, self.at = text.rstrip(), 0
        # Where the first pointer is, and how far each other one is behind what the one before it points to.
        self.steps = []
        # What the last one points to.
        self.last = 0
        self.whole = True
        # Structure and member that were named last.
        self.member = None

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
            return self._object(value)
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
            match = self._next()
            if match is None or match.group("sign") in (None, "*", "(", ")"):
                return value
            self._take(match)
            if match.group("index"):
                value = self._element(value, int(facade.evaluate(match.group("index").strip())))
                continue
            arrow = match.group("sign") == "->"
            match = self._next()
            if match is None or not match.group("name"):
                raise _None
            self._take(match)
            if arrow or facade.is_pointer(_type(value)):
                value = self._object(value)
            if not facade.is_struct(_type(value)):
                raise _None
            self.member = value, match.group("name")
            value = value[match.group("name")]

    def _element(self, value, index):
        self.member = None
        if facade.is_array(_type(value)):
            return facade.element(value, index)
        first = self._object(value)
        at = _address(first) + index * _type(first).sizeof
        return facade.value_at(at % _WRAP, first.type)

    def _object(self, value):
        """What a pointer points to."""
        type = _type(value)
        if facade.is_array(type):
            return facade.element(value, 0)
        if not facade.is_pointer(type) or type.sizeof != _POINTER:
            raise _None
        at = _address(value)
        there = facade.read_memory(at, _POINTER) if self.whole else None
        to = int.from_bytes(there, "little") if there else 0
        self.steps.append((at - self.last) % _WRAP)
        self.last = to if to >= _LOWEST else 0
        self.whole = self.whole and to >= _LOWEST
        return facade.value_at(self.last, type.target())

    def place(self, expression, value):
        bits = places.bits(expression, *self.member) if self.member else None
        type = _type(value)
        if bits is None and (facade.is_function(type) or not type.sizeof):
            raise _None
        found = bits or places.Place(expression, _address(value), type.sizeof, type, places.element_size(type))
        offsets = [*self.steps[1:], (found.address - self.last) % _WRAP]
        found.base = self.steps[0]
        found.path = f"{found.base:#x}" + "".join(f">{offset if offset < _WRAP // 2 else offset - _WRAP}" for offset in offsets)
        found.address = found.address if self.whole else 0
        found.language = facade.language_now()
        return found


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
