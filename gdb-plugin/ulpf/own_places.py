# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the bytes that GDB watches for an expression of its own `watch`, where that is possible from outside.

GDB watches each piece of memory that an expression's value was read from:

    total            total                 table[3].x       table[3].x
    p->x             p, and p->x           *p               p, and *p
    a + b            a, and b              -location x      x

Any other form is `None`: its bytes are unknown, now and later.
"""

import re

from . import facade

gdb = facade.gdb

_PATH = re.compile(r"(\**)\s*([A-Za-z_]\w*)((?:\s*(?:\.|->)\s*[A-Za-z_]\w*|\s*\[\s*\d+\s*\])*)")
_STEP = re.compile(r"\s*(\.|->)\s*([A-Za-z_]\w*)|\s*\[\s*(\d+)\s*\]")
_ABSOLUTE = re.compile(r"\*\s*\(\s*[A-Za-z_][\w\s:]*\*+\s*\)\s*\(?\s*(?:0x[0-9a-fA-F]+|\d+)\s*\)?")
# Text that is allowed between the variables of a sum.
_BETWEEN = re.compile(r"[-+/%|^~<>=!?: ()0-9]*")


class Unknown(Exception):
    """The bytes that GDB watches for this expression cannot be determined from outside."""


class Path:
    """A variable, and the way from there to what is watched."""

    def __init__(self, stars, symbol, steps):
        self.symbol, self.stars, self.steps = symbol, stars, steps
        self.local = symbol.needs_frame
        # Where a local is: in the frame that the expression was written for.
        value = symbol.value(gdb.selected_frame()) if self.local else symbol.value()
        self.type = value.type
        if facade.address_of(value) is None or self.local and value.is_optimized_out:
            raise Unknown(f"{symbol.name} is in no memory")
        self.address = facade.address_of(value) if self.local else None

    def pieces(self):
        """(address, length) of each piece; the last one is the value of the expression. Fewer where a pointer is
        invalid."""
        value = facade.value_at(self.address, self.type) if self.local else self.symbol.value()
        found = []
        try:
            for kind, name, index in self.steps:
                type = value.type.strip_typedefs()
                if type.code == gdb.TYPE_CODE_ARRAY and index:
                    value = value[int(index)]
                    continue
                if kind == ".":
                    value = value[name]
                else:
                    found.append(_piece(value))
                    value = value[name] if kind else value[int(index)]
                    if kind:
                        value.fetch_lazy()
            for _ in range(self.stars):
                found.append(_piece(value))
                value = value.dereference()
            value.fetch_lazy()
        except gdb.MemoryError:
            return found, False
        found.append(_piece(value))
        return found, True


def _piece(value):
    type = value.type.strip_typedefs()
    if type.code in (gdb.TYPE_CODE_REF, getattr(gdb, "TYPE_CODE_RVALUE_REF", -1)):
        raise Unknown("it has a reference in it")
    at = facade.address_of(value)
    if at is None:
        raise Unknown("it is in no memory")
    return at, type.sizeof


class Expression:
    """The bytes watched for an expression that was typed now, in the selected frame."""

    def __init__(self, text):
        self.text = text
        self.fixed, self.paths, self.whole = None, [], True
        located = re.match(r"-l(?:ocation)?\s+(.*)", text)
        if located or _ABSOLUTE.fullmatch(text.strip()):
            value = gdb.parse_and_eval(located.group(1) if located else text)
            self.fixed = _piece(value)
            return
        rest, at = "", 0
        for match in _PATH.finditer(text):
            if match.start() < at:
                continue
            rest, at = rest + text[at:match.start()] + " ", match.end()
            self.paths.append(Path(len(match.group(1)), _variable(match.group(2)), _STEP.findall(match.group(3))))
        rest += text[at:]
        if not _BETWEEN.fullmatch(rest) or not self.paths:
            raise Unknown("its form is not known")
        # True for a single variable: its bytes are contiguous, and GDB compares exactly these bytes.
        self.whole = not rest.strip() and len(self.paths) == 1

    @property
    def local(self):
        return any(path.local for path in self.paths)

    def pieces(self):
        """All pieces, and which of them is the value itself and leads nowhere else (`None`: none is)."""
        if self.fixed:
            return [self.fixed], self.fixed
        found, leaf = [], None
        for path in self.paths:
            some, complete = path.pieces()
            found += some
            if complete and self.whole:
                leaf = some[-1]
        return found, leaf if found.count(leaf) == 1 else None


def _variable(name):
    symbol = facade.gdb.lookup_symbol(name)[0] if _has_frame() else gdb.lookup_global_symbol(name) or gdb.lookup_static_symbol(name)
    if symbol is None or not (symbol.is_variable or symbol.is_argument):
        raise Unknown(f"{name} is no variable of the program")
    if not symbol.needs_frame and symbol.addr_class != gdb.SYMBOL_LOC_STATIC:
        raise Unknown(f"each thread has its own {name}")
    return symbol


def _has_frame():
    try:
        gdb.selected_frame()
        return True
    except gdb.error:
        return False
