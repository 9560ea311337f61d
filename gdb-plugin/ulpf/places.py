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

GDB evaluates the beginning: a variable, or all that only it understands (casts, calls, registers). The server knows the
way from there through pointers, containers and lists (command/symbols/src/resolve), and where such a watch follows.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Optional

from . import expressions, facade, names, settings, types, values, wire
from .errors import UlpfError

# The first of them in an expression is where it stops to be GDB's.
MARK = re.compile(r"\[(?P<low>[^\[\]]*?)(?P<range>\.\.=?)(?P<high>[^\[\]]*)\]|\[(?P<all>\*)\]|->\*(?P<link>[A-Za-z_]\w*)")
# `*ptr@len`, whose elements are ptr[0] and so on.
_AT = re.compile(r"^\*\s*([\w.>\[\]-]+)\s*@")
_FIELD = re.compile(r"^(.*?)(\s*(?:\.|->)\s*[A-Za-z_]\w*)$", re.S)
# A variable with FILE.c: or OBJECT` before it.
_VARIABLE = re.compile(r"(?P<signs>[\s*(]*)(?P<head>(?:[\w./+-]+\.\w+\s*:(?!:)\s*|[\w./+-]+`\s*)?(?P<name>(?:::)?[A-Za-z_$][\w$]*(?:::~?[A-Za-z_]\w*)*))")
_NUMBER = r"(?:0[xX][0-9a-fA-F_]+|\d[\d_]*)"
# Steps that the server knows, behind a variable.
_STEPS = re.compile(rf"(?:\s*(?:->\*?\s*[A-Za-z_]\w*|[.%]\s*(?:[A-Za-z_]\w*|\d+)|\[[^\[\]]*\]|\)))*(?:\s*[+-]\s*{_NUMBER}(?=\s*:))?(?:\s*:\s*{_NUMBER}[KkMG]?)?\s*$")
_INDEX = re.compile(r"\[([^\[\]]*)\]")
# The same in Fortran: `items(2)%weights(i + 1)`.
_FORTRAN_STEPS = re.compile(r"(?:\s*(?:%\s*[A-Za-z_]\w*|\([^():]*\)))*\s*$")
_INDICES = re.compile(r"\(([^():]*)\)")
# The beginning of the expression, in the server's grammar (ulpf_symbols::HEAD).
_HEAD = "it"
# The server's limit of places (MOST_PLACES).
_MOST = 100_000


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
_BYTES = re.compile(rf"^(?P<what>.*[^\s:])\s*:\s*(?P<number>{_NUMBER})(?P<unit>[KkMG]?)$", re.S)
_UNITS = {"": 1, "K": 1 << 10, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def is_heap(expression):
    """All that the program allocates, unless a variable is called so."""
    return expression == "[heap]" or expression == "heap" and not names.is_variable("heap")


def find(expression):
    """All places of an expression as they are now; at least one, or an error."""
    return _found(expression, follow=False)


def locate(expression):
    """All places of an expression; one that follows, if it can."""
    return _found(expression, follow=True)


def of_value(value):
    """The place of a gdb.Value."""
    return _of(str(value.type), value)


def value(expression):
    """The value of an expression that has one place."""
    find, decided = _by_server(expression, follow=False)
    found = find() if decided else []
    if len(found) == 1 and found[0].type is not None:
        return facade.value_at(found[0].address, found[0].type)
    return expressions.evaluate(expression)


def _found(expression, follow):
    find, decided = _by_server(expression, follow)
    try:
        found = find() if decided else [_by_gdb(expression)]
    except UlpfError:
        # In Fortran, for instance, GDB knows no index in brackets.
        if decided or find is None:
            raise
        found = find()
    language = facade.language_now()
    for place in found:
        place.language = language
    return found


# ---- by the server ----

def _by_server(expression, follow):
    """A function that finds the places, or None, and whether they count: if not, the debugged language says what the expression
    means."""
    mark = MARK.search(expression)
    if mark:
        facade.need_program()
    asked = _asked(expression, mark) if facade.pid() else None
    if asked is None:
        return None, False
    said = wire.places({**asked, "follow": follow})
    decided, problem = said["decided"], said.get("problem")
    if problem is None:
        # (Any other place GDB finds as well, with the type that it has in the debugged language.)
        servers = mark or decided or _BYTES.match(expression) or any("path" in place or "mask" in place for place in said["places"])
        return lambda: _places(said["places"], expression, mark, decided), bool(servers)
    if mark and mark["all"] and not decided and (found := _by_printer(expression, mark)):
        return lambda: found, True
    if mark or decided:
        raise UlpfError(f"cannot watch {expression}", problem.why, problem.what_to_do)
    return None, False


def _asked(expression, mark):
    """The expression in the server's words, or None if it is none of the server's."""
    # (`a ? b : 4` is the debugged language's.)
    if "?" in expression or "@" in expression:
        return None
    if re.fullmatch(rf"\s*{_NUMBER}\s*:\s*{_NUMBER}[KkMG]?\s*", expression):
        return {"watch": expression}
    if not mark and (head := _apart(expression)):
        return _with_limit({"watch": _HEAD, "head": head})
    split = _variable(expression, mark) or mark and _before(expression, mark.start())
    if not split:
        return None
    signs, head, steps = split
    if not mark and not signs.strip() and not steps.strip():
        return None
    if mark is None and steps.strip().endswith(")") and facade.language_now() == "fortran":
        steps = _INDICES.sub(lambda match: f"({','.join(_number(one, expression) for one in match[1].split(','))})", steps)
    else:
        steps = _INDEX.sub(lambda match: _numbered(match[1], expression), steps)
    return _with_limit({"watch": signs + _HEAD + steps, "head": head})


def _with_limit(asked):
    if settings.most_elements() != _MOST:
        asked["most"] = settings.most_elements()
    return asked


def _apart(expression):
    """An array of Fortran between whose elements other memory lies, as `_head` says it; None: it is none."""
    if facade.language_now() != "fortran":
        return None
    try:
        value = expressions.evaluate(expression)
        strides, size = facade.strides(value), facade.plain(value.type).sizeof
        return _head(expression, None) if strides and size and any(_gaps(facade.plain(value.type), strides)) else None
    except (UlpfError, RuntimeError):
        return None  # what is wrong with it is said where it is evaluated


def _before_first(type, strides):
    """Bytes from where GDB lets an array of Fortran begin to its first element: of indices that run downwards, GDB names the end
    (fortran_adjust_dynamic_array_base_address_hack in gdb/f-lang.c)."""
    distance = 0
    for stride in strides:
        low, high = facade.bounds(type)
        distance += max(-stride, 0) * (high - low)
        type = facade.plain(type.target())
    return distance


def _gaps(type, strides):
    """Of each dimension, whether its elements are not neighbours."""
    size = 1
    counts = []
    while facade.is_array(type):
        low, high = facade.bounds(type)
        counts.append(high - low + 1)
        type = facade.plain(type.target())
    size = type.sizeof
    for count, stride in zip(reversed(counts), reversed(strides)):
        yield stride != size
        size *= count


def _variable(expression, mark):
    """(signs before it, the variable, steps behind it), or None."""
    match = _VARIABLE.match(expression)
    fortran = mark is None and facade.language_now() == "fortran" and "(" in expression
    if match is None or not (_FORTRAN_STEPS if fortran else _STEPS).match(expression, match.end()):
        return None
    try:
        return match["signs"], _head(match["head"], match["name"]), expression[match.end():]
    except UlpfError:
        # (It may be `main.total`, a variable of a Go package.)
        if mark is None:
            return None
        return _before(expression, mark.start())


def _before(expression, end):
    """The same, where GDB evaluates all that stands before an offset."""
    return "", _head(expression[:end], None), expression[end:]


def _head(text, name):
    """The beginning of an expression: its address, or the value of a pointer that has none."""
    value = expressions.evaluate(text)
    type = facade.plain(value.type)
    strides = facade.strides(value) if facade.is_array(type) and facade.language_now() == "fortran" else ()
    said = {"text": text.strip(), "name": name and name.rpartition("::")[2], "pc": facade.pc_here(),
            "type": types.described(value.type, targets=True, strides=strides)}
    at = None if facade.is_optimized_out(value) else facade.address_of(value)
    if at is not None:
        said["at"] = at + _before_first(type, strides)
    elif facade.is_pointer(type):
        said["value"] = int(value) & (1 << 64) - 1
    else:
        raise _no_address(text, value)
    return said


def _numbered(text, expression):
    """An index or a range, whose numbers GDB computes."""
    if text.strip() == "*":
        return "[*]"
    return "[" + "".join(part if part.startswith("..") else _number(part, expression) for part in re.split(r"(\.\.=?)", text)) + "]"


def _number(said, expression):
    said = said.strip()
    if not said or re.fullmatch(r"-?\d+", said):
        return said
    value = facade.evaluate(said, expression)
    try:
        return str(int(value))
    except Exception:  # whatever GDB makes of something that is no number
        raise UlpfError(f"cannot watch {expression}", f"{said} is no index",
                        "write arr[0..16] for the elements 0 to 15, or arr[0..=15]") from None


def _places(said, expression, mark, decided):
    """The places of an expression, in the server's words."""
    found, known = [], {}
    for place in said:
        # (Most of them are of one type.)
        key = json.dumps(place.get("type")), "first" in place
        if key not in known:
            known[key] = _type(place.get("type"), expression, "first" in place, decided)
        found.append(_place(place, expression, mark or len(said) > 1, known[key]))
    for place in found[0], found[-1]:
        _in_memory(expression, place)
    return found


def _place(said, expression, named, type):
    """`named`: the server's name for it says more than the expression."""
    name, first, many = said["name"], said.get("first"), said.get("many")
    size = said["len"]
    if first is not None and type is not None and type.sizeof:
        size = type.sizeof
        name = f"{name}[{first}..{first + said['len'] // size}]"
    elif not named and not _BYTES.match(expression):
        name = expression
    place = Place(name, said["at"], said["len"], type, mask=said.get("mask", 0), first=first, many=many)
    if type is not None and not place.mask:
        single = first is None and many is None
        place.unit = element_size(type) or (0 if single or size > 8 else size)
    if "path" in said:
        place.path, place.base = said["path"], int(re.match("0x[0-9a-f]+", said["path"])[0], 16)
    return place


def _type(said, expression, is_range, decided):
    """GDB's type of a place, or of one element of a range."""
    if said is None:
        return None
    if not decided and facade.is_c() and not _BYTES.match(expression):
        # The first of many is like the others.
        one = MARK.sub(lambda mark: f"->{mark['link']}[0]" if mark["link"] else "[0]", expression)
        try:
            return facade.plain(expressions.evaluate(one).type)
        except (UlpfError, RuntimeError):
            pass  # a pointer that leads nowhere now
    found = types.named(said["array"]["of"] if is_range and "array" in said else said)
    return found and facade.plain(found)


def _in_memory(expression, place):
    if place.path or place.address >= 1 << 47 or not facade.pid():
        return
    for at in place.address, place.end - 1:
        if not facade.readable(at):
            raise UlpfError(f"cannot watch {expression}", f"there is no memory at {at:#x}",
                            "name fewer elements or bytes; a pointer on the way may be stale or not set yet")


def _by_printer(expression, mark):
    """The elements of a container that only its pretty-printer knows; None if it is none."""
    head, tail = expression[:mark.start()], expression[mark.end():]
    of = expressions.evaluate(head)
    if not facade.is_struct(facade.plain(of.type)):
        return None
    found = None if MARK.search(tail) else facade.children(of)
    if found is None:
        raise UlpfError(f"cannot watch {expression}", f"GDB knows no elements of {of.type}: it has no pretty-printer for it",
                        "load one (libstdc++ brings its own: info pretty-printer), or name a range: ptr[0..10]")
    hint, pairs = found
    key, places = None, []
    for number, (name, child) in enumerate(pairs):
        if hint == "map" and number % 2 == 0:
            key = facade.shown(child) if not isinstance(child, str) else child
            continue
        label = f"{head}[{key}]" if hint == "map" else head + (name if name.startswith("[") else f".{name}")
        at = None if isinstance(child, (str, int)) else child.address
        if at is None:
            raise UlpfError(f"cannot watch {label}", "its pretty-printer computes it; it has no place in memory",
                            "watch the container itself")
        facade.keep("ulpf_found", at)
        places.append(_of(label + tail, facade.evaluate(f"(*$ulpf_found){tail}", label + tail)))
        if len(places) > settings.most_elements():
            raise UlpfError(f"cannot watch {expression}", f"it has more than {settings.most_elements()} elements",
                            f"that many watches are seldom meant; else: set ulpf max-elements {10 * settings.most_elements()}")
    if not places:
        raise UlpfError(f"cannot watch {expression}", "it has no elements now", "watch the container itself, or this once there are some")
    return places


# ---- by GDB ----

def _by_gdb(expression):
    said = _BYTES.match(expression)
    if said and "?" not in expression:
        length = int(said["number"].replace("_", ""), 0) * _UNITS[said["unit"]]
        if not length:
            raise UlpfError(f"cannot watch {expression}", "its length is zero", "say how many bytes: x:8")
        place = _by_gdb(said["what"])
        place = Place(place.name, place.address, length)
        _in_memory(expression, place)
        return place
    return _repeated(expression) or _single(expression)


def _single(expression):
    value = expressions.evaluate(expression)
    field = _FIELD.match(expression)
    if field and not facade.is_optimized_out(value) and facade.address_of(value) is None:
        # GDB does not tell a bit-field's place; its structure's type does.
        try:
            said = wire.places({"watch": _HEAD + field[2], "head": _head(field[1], None), "follow": False})
        except (UlpfError, RuntimeError):
            said = {}
        if "places" in said:
            return _places(said["places"], expression, None, False)[0]
    return _of(expression, value)


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


def _no_address(name, value):
    if facade.is_optimized_out(value):
        return UlpfError(f"cannot watch {name}", "it has been optimised out here", "watch it where it has a place in memory, or compile with -Og")
    return UlpfError(f"cannot watch {name}", "it has no address: it lives in a register, or is a computed value",
                     "watch variables: the parts of the expression, or *(long *)ADDRESS")


def _of(name, value):
    what = f"cannot watch {name}"
    if facade.is_optimized_out(value):
        raise _no_address(name, value)
    type = facade.plain(value.type)
    if facade.is_function(type):
        raise UlpfError(what, "it is code, and only data can be watched", "use break")
    at = facade.address_of(value)
    if at is None:
        raise _no_address(name, value)
    size = type.sizeof
    if not size and facade.language_now() == "fortran":
        raise UlpfError(what, "it has no memory now", "watch it when it is allocated, or associated")
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
