# SPDX-License-Identifier: MIT OR Apache-2.0
"""The elements of containers, as containers.json describes them: the command reads the same description, so that a
watch means the same with and without GDB. Nothing here calls a function of the program.
"""

import json
import os
from dataclasses import dataclass
from typing import Any, Optional

from . import facade, settings
from .errors import UlpfError

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "containers.json")
_table = None
_WORD = 8
_LONGEST_KEY = 64
# No program has so much memory.
_MOST_BYTES = 1 << 47
# What takes a path of members.
_PATHS = "begin", "end", "count", "at", "pointer", "flag", "first", "header", "start", "finish", "capacity", "head", "as"


@dataclass
class Run:
    """Elements side by side: the number of the first, where it is, how many they are."""

    first: int
    address: int
    count: int
    type: Any
    # Of an element of a map; of what a pointer or cell holds: then it is all that there is.
    key: Optional[str] = None
    held: bool = False


def _entries():
    global _table
    if _table is None:
        with open(_FILE) as file:
            _table = json.load(file)["containers"]
    return _table


def of(type):
    """The description of a type; None if it is no container that is known."""
    type = facade.plain(type)
    if not facade.is_struct(type) or not type.name:
        return None
    # Without namespaces, as the debug information of a class has it.
    whole = _unqualified(type.name)
    base = whole.split("<", 1)[0]
    for entry in _entries():
        name = entry["type"]
        if (whole.startswith(name[:-1]) if name.endswith("*") else base == name) and _fits(type, entry):
            return entry
    return None


def _fits(type, entry):
    for key in _PATHS:
        path = entry.get(key)
        # (Of what a pointer leads to, and of an iterator, later.)
        if not isinstance(path, str) or key == "at" and entry["shape"] == "one":
            continue
        found = member(type, path)
        if found is None:
            return False
        pointer = key == "begin" or key == "pointer"
        if pointer and not facade.is_pointer(facade.plain(found[1])):
            return False
    return True


def _unqualified(name):
    head = name.split("<", 1)[0]
    return head.rsplit("::", 1)[-1] + name[len(head):]


def member(type, path):
    """Offset and type of a member of members; None if there is none."""
    offset = 0
    for name in path.split("."):
        found = _member(facade.plain(type), name)
        if found is None:
            return None
        offset, type = offset + found[0], found[1]
    return offset, type


def _member(type, name):
    if not facade.is_struct(type):
        return None
    inner = []
    for known, position, bits, of_type, base in facade.parts(type):
        if bits:
            continue
        said = _unqualified(known) if known else ""
        if said == name or name.endswith("*") and said.startswith(name[:-1]):
            return position // 8, of_type
        if base or not known:
            inner.append((position // 8, of_type))
    for offset, of_type in inner:
        found = _member(facade.plain(of_type), name)
        if found is not None:
            return offset + found[0], found[1]
    return None


class _Senseless(Exception):
    """What is in memory is no container: it has not been constructed yet, or not any more."""


def elements(head, value, low=None, high=None):
    """The elements of a container as runs, from `low` to the one before `high` where they are said; none if it is
    empty, None if it is no container that is known."""
    type = facade.plain(value.type)
    entry = of(type)
    if entry is None:
        return None
    at = facade.address_of(value)
    if at is None:
        raise UlpfError(f"cannot watch {head}", "it has no address: it lives in a register, or is a computed value", "watch variables")
    try:
        return _elements(head, at, type, entry, low, high)
    except _Senseless:
        raise UlpfError(f"cannot watch {head}", f"what is in {head} makes no sense as a container",
                        "set the watch when it has been constructed") from None


def _elements(head, at, type, entry, low, high):
    shape = entry["shape"]
    if shape == "same":
        offset, inner = member(type, entry["as"])
        return elements(head, facade.value_at(at + offset, facade.plain(inner)), low, high)
    numbered = low is not None or high is not None
    if entry.get("keyed") and numbered:
        raise UlpfError(f"cannot watch {head}", f"{head} has keys, and no numbers", f"for all of its elements write {head}[*]")
    if shape in ("one", "inline"):
        return _held(head, at, type, entry, low, high)
    runs = list(_FORMS[shape](at, type, entry))
    size = sum(run.count for run in runs)
    low, high = low or 0, size if high is None else high
    if low < 0 or high < low or high > size:
        last = low if low < 0 else max(high, low + 1) - 1
        raise UlpfError(f"cannot watch {head}", f"{head} has {size} elements now, {last} is none of them",
                        f"for all that there are now write {head}[*]")
    return list(_cut(runs, low, high))


def _cut(runs, low, high):
    for run in runs:
        first, behind = max(run.first, low), min(run.first + run.count, high)
        if first < behind:
            yield Run(first, run.address + (first - run.first) * run.type.sizeof, behind - first, run.type, run.key)


def _held(head, at, type, entry, low, high):
    if entry["shape"] == "inline":
        if "flag" in entry and not _number(at, type, entry["flag"]) & 0xff:
            return []
        offset, inner = member(type, entry["at"])
        found = at + offset, facade.plain(inner)
    else:
        offset, pointer = member(type, entry["pointer"])
        address, inner = _word(at + offset), facade.plain(facade.plain(pointer).target())
        if not address:
            return []
        # `unique_ptr<T[]>`: the pointer is one to elements.
        argument = facade.template_argument(type, 0)
        if (low is not None or high is not None) and argument is not None and facade.is_array(facade.plain(argument)):
            if high is None:
                raise UlpfError(f"cannot watch {head}", f"how many elements {head} has is not known", "write [FROM..TO]")
            low = low or 0
            return [Run(low, address + low * inner.sizeof, high - low, inner)]
        if "at" in entry:
            further = member(inner, entry["at"])
            if further is None:
                raise _Senseless
            address, inner = address + further[0], facade.plain(further[1])
        found = address, inner
    if low is not None or high is not None:
        inside = elements(head, facade.value_at(*found), low, high)
        if inside is not None:
            return inside
        if facade.is_array(found[1]):
            return list(_cut(list(_whole(*found)), low or 0, high if high is not None else found[1].range()[1] + 1))
        raise UlpfError(f"cannot watch {head}", f"{head} holds a {found[1]}, no array", f"write {head}[*] for what it holds")
    return [Run(0, found[0], 1, found[1], held=True)]


# ---- what has its elements side by side ----

def _array(at, type, entry):
    offset, array = member(type, entry["at"])
    return _whole(at + offset, facade.plain(array))


def _whole(at, array):
    low, high = facade.bounds(array) or (0, -1)
    if high >= low:
        yield Run(0, at, high - low + 1, facade.plain(array.target()))


def _span(at, type, entry):
    element = element_type(type, entry)
    begin = _number(at, type, entry["begin"])
    if "count" in entry:
        count = _number(at, type, entry["count"])
    else:
        end = _number(at, type, entry["end"])
        if end < begin:
            raise _Senseless
        count = (end - begin) // element.sizeof
    _sensible(count, element)
    if count:
        yield Run(0, begin, count, element)


def _ring(at, type, entry):
    element = element_type(type, entry)
    begin, capacity, head, count = (_number(at, type, entry[key]) for key in ("begin", "capacity", "head", "count"))
    _sensible(capacity, element)
    if count > capacity or head > capacity:
        raise _Senseless
    straight = min(count, capacity - head)
    if straight:
        yield Run(0, begin + head * element.sizeof, straight, element)
    if straight < count:
        yield Run(straight, begin, count - straight, element)


def _deque(at, type, entry):
    """libstdc++'s: a map of pointers to chunks; iterators know the current element and the chunk."""
    def part(iterator, name):
        return _number(at, type, f"{entry[iterator]}.{name}")
    element = facade.plain(facade.plain(member(type, entry["start"] + "._M_cur")[1]).target())
    current, last, node = part("start", "_M_cur"), part("start", "_M_last"), part("start", "_M_node")
    chunk = last - part("start", "_M_first")
    end, last_node = part("finish", "_M_cur"), part("finish", "_M_node")
    number = 0
    while True:
        behind = end if node == last_node else last
        if not 0 <= behind - current <= chunk:
            raise _Senseless
        count = (behind - current) // element.sizeof
        if count:
            yield Run(number, current, count, element)
            number += count
        if node >= last_node:
            return
        node += _WORD
        current = _word(node)
        last = current + chunk


# ---- what has a node for each ----

def _list(at, type, entry):
    element = element_type(type, entry)
    end = at + member(type, entry["header"])[0] if "header" in entry else 0
    offset, link = member(type, entry["first"])
    node_type = facade.plain(facade.plain(link).target())
    next_at = member(node_type, entry["next"])
    if next_at is None:
        raise _Senseless
    node, nodes, seen = _word(at + offset), [], set()
    while node and node != end and node not in seen:
        seen.add(node)
        nodes.append(node)
        _few(nodes)
        node = _word(node + next_at[0])
    return _values(nodes, element, entry)


def _tree(at, type, entry):
    """libstdc++'s red-black tree, in order."""
    element = element_type(type, entry)
    offset, header = member(type, entry["header"])
    left, right, parent = (member(facade.plain(header), name)[0] for name in ("_M_left", "_M_right", "_M_parent"))
    node, above, nodes, seen = _word(at + offset + parent), [], [], set()
    while node or above:
        while node:
            if node in seen:
                raise _Senseless
            seen.add(node)
            _few(seen)
            above.append(node)
            node = _word(node + left)
        node = above.pop()
        nodes.append(node)
        node = _word(node + right)
    return _values(nodes, element, entry)


def after(entry, element):
    """So many bytes of a node are before its value."""
    whole = align(element)
    return -(-entry["after"] // whole) * whole


def _values(nodes, element, entry):
    offset = after(entry, element)
    for number, node in enumerate(nodes):
        run = Run(number, node + offset, 1, element)
        if entry.get("keyed"):
            run.key = _key(run.address, element)
        yield run


def _key(address, pair):
    """The key of a pair, as a text: of a number, or of characters."""
    first = member(pair, "first")
    if first is None:
        return None
    at, type = address + first[0], facade.plain(first[1])
    value = facade.value_at(at, type)
    if facade.is_integer(type) or facade.is_pointer(type):
        return facade.shown(value) if not facade.is_pointer(type) else f"{int(value):#x}"
    entry = of(type)
    characters = elements("key", value) if entry is not None and entry["shape"] == "span" else None
    if not characters or characters[0].type.sizeof != 1 or len(characters) > 1 or characters[0].count > _LONGEST_KEY:
        return None
    try:
        return json.dumps(facade.read_memory(characters[0].address, characters[0].count).decode(), ensure_ascii=False)
    except (UnicodeDecodeError, UlpfError):
        return None


_FORMS = {"array": _array, "span": _span, "ring": _ring, "deque": _deque, "list": _list, "tree": _tree}


# ---- numbers and types ----

def element_type(type, entry):
    """What the elements are."""
    which = entry.get("element")
    if which is None:
        return facade.plain(facade.plain(member(type, entry["begin"])[1]).target())
    path, _, number = which.rpartition(":")
    found = facade.template_argument(facade.plain(member(type, path)[1]) if path else type, int(number))
    if found is None:
        raise _Senseless
    return facade.plain(found)


def align(type):
    """As the largest scalar in it (x86-64 psABI)."""
    type = facade.plain(type)
    if facade.is_struct(type):
        return max((align(of_type) for _, _, _, of_type, _ in facade.parts(type)), default=1)
    if facade.is_array(type):
        return align(type.target())
    whole = 1
    while whole < min(type.sizeof, 16):
        whole *= 2
    return whole


def _number(at, type, path):
    found = member(type, path)
    if found is None:
        raise _Senseless
    size = min(facade.plain(found[1]).sizeof, _WORD)
    return int.from_bytes(_read(at + found[0], size), "little")


def _word(address):
    return int.from_bytes(_read(address, _WORD), "little")


def _read(address, size):
    data = facade.read_memory(address, size) if facade.readable(address) else b""
    if len(data) != size:
        raise _Senseless
    return data


def _sensible(count, element):
    if not element.sizeof or count * element.sizeof >= _MOST_BYTES:
        raise _Senseless


def _few(nodes):
    most = settings.most_elements()
    if len(nodes) > most:
        raise UlpfError(f"it has more than {most} elements", "that many watches are seldom meant", f"set ulpf max-elements {10 * most}")
