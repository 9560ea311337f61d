# SPDX-License-Identifier: MIT OR Apache-2.0
"""The elements of containers, as containers.json describes them: the command reads the same description, so that a
watch means the same with and without GDB. Nothing here calls a function of the program.
"""

import contextlib
import json
import os
from dataclasses import dataclass
from typing import Any, Optional

from . import facade, settings
from .errors import UlpfError
from .layout import Senseless, align, read, sensible, word

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "containers.json")
_table = None
_WORD = 8
_LONGEST_KEY = 64
# Keys whose value is a path of members.
_PATHS = ("begin", "end", "count", "at", "pointer", "flag", "first", "header", "start", "finish", "map", "capacity", "head", "as", "root", "height",
          "control", "mask", "inside", "index", "tables", "length")
_ELSEWHERE = {("one", "at"), ("alternatives", "first"), ("directory", "mask"), ("directory", "control")}
# A group of Go's maps has so many slots; elements that are larger than this are not in them.
_SLOTS, _LARGEST = 8, 128
# Smart pointers and cells in one another.
_MOST_HELD = 8


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
        # (Of what these lead to, later.)
        if not isinstance(path, str) or (entry["shape"], key) in _ELSEWHERE:
            continue
        found = member(type, path.replace("{}", "0"))
        if found is None:
            # GDB knows the variant that a value has, and no other.
            if key == "at" and entry["shape"] == "inline" and is_enum(type):
                continue
            return False
        pointer = key in ("begin", "pointer", "root", "control")
        if pointer and not facade.is_pointer(facade.plain(found[1])):
            return False
    return True


def is_enum(type):
    """Is it an enum of Rust's? Its number has no name, and each variant is a member called after it."""
    parts = list(facade.parts(type))
    return len(parts) > 1 and not parts[0][0] and facade.is_integer(facade.plain(parts[0][3])) and parts[1][0] is not None


def _unqualified(name):
    head = name.split("<", 1)[0]
    return head.rsplit("::", 1)[-1] + name[len(head):]


def member(type, path):
    """Offset and type of a member of members, or None if the type lacks it."""
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


def elements(head, value, low=None, high=None):
    """The elements of a container as runs, from `low` to before `high` if given. An empty container has no runs. Returns
    None for an unknown container. Smart pointers and cells give the elements of their target, or the whole target."""
    numbered = low is not None or high is not None
    run = None
    for _ in range(_MOST_HELD):
        type = facade.plain(value.type)
        entry = of(type)
        if entry is None or entry["shape"] not in ("one", "inline"):
            break
        argument = facade.template_argument(type, 0) if entry["shape"] == "one" and "at" not in entry else None
        if numbered and argument is not None and facade.is_array(facade.plain(argument)):
            return _behind(head, value, type, entry, low or 0, high)
        run = held(head, value)
        if run is None:
            return []
        value = facade.value_at(run.address, run.type)
    if entry is not None:
        return _elements(head, value, type, entry, low, high)
    if run is None:
        return None
    if facade.is_array(type):
        return list(_cut(list(_whole(run.address, type)), low or 0, high if high is not None else type.range()[1] + 1))
    if numbered:
        raise UlpfError(f"cannot watch {head}", f"{head} holds a {type}, no array", f"write {head}[*] for what it holds")
    return [run]


def held(head, value):
    """The present target of a smart pointer or cell, or None."""
    type = facade.plain(value.type)
    with _sense(head):
        return _held(_at(head, value), type, of(type))


def _at(head, value):
    at = facade.address_of(value)
    if at is None:
        raise UlpfError(f"cannot watch {head}", "it has no address: it lives in a register, or is a computed value", "watch variables")
    return at


@contextlib.contextmanager
def _sense(head):
    try:
        yield
    except Senseless:
        raise UlpfError(f"cannot watch {head}", f"what is in {head} makes no sense as a container",
                        "set the watch when it has been constructed") from None


def _elements(head, value, type, entry, low, high):
    at, shape = _at(head, value), entry["shape"]
    if shape == "same":
        offset, inner = member(type, entry["as"])
        return elements(head, facade.value_at(at + offset, facade.plain(inner)), low, high)
    if shape in ("fields", "alternatives"):
        if low is None or high != low + 1 or low < 0:
            raise UlpfError(f"cannot watch {head}", f"the elements of {head} are of several types", f"watch one of them: {head}[0]")
        with _sense(head):
            return [_field(head, at, type, entry, low) if shape == "fields" else _alternative(head, at, type, entry, low)]
    if keyed(entry) and (low is not None or high is not None):
        raise UlpfError(f"cannot watch {head}", f"{head} has keys, and no numbers", f"for all of its elements write {head}[*]")
    with _sense(head):
        runs = list(_FORMS[shape](at, type, entry))
    size = sum(run.count for run in runs)
    low, high = low or 0, size if high is None else high
    if low < 0 or high < low or high > size:
        last = low if low < 0 else max(high, low + 1) - 1
        raise UlpfError(f"cannot watch {head}", f"{head} has {size} elements now, {last} is none of them",
                        f"for all that there are now write {head}[*]")
    return list(_cut(runs, low, high))


def keyed(entry):
    """Have its elements keys, and no numbers?"""
    return "key" in entry or entry["shape"] in ("table", "btree", "directory")


def _cut(runs, low, high):
    for run in runs:
        first, behind = max(run.first, low), min(run.first + run.count, high)
        if first < behind:
            yield Run(first, run.address + (first - run.first) * run.type.sizeof, behind - first, run.type, run.key)


def _held(at, type, entry):
    if entry["shape"] == "inline":
        if "flag" in entry and not _number(at, type, entry["flag"]) & 0xff:
            return None
        for name in entry["at"].split("."):
            # (Of an enum the members are those of the variant that it has now.)
            found = _member(facade.plain(facade.value_at(at, type).type), name)
            if found is None:
                return None
            at, type = at + found[0], facade.plain(found[1])
        return Run(0, at, 1, type, held=True)
    offset, pointer = member(type, entry["pointer"])
    address, inner = word(at + offset), facade.plain(facade.plain(pointer).target())
    if not address:
        return None
    if "at" in entry:
        further = member(inner, entry["at"])
        if further is None:
            raise Senseless
        address, inner = address + further[0], facade.plain(further[1])
    return Run(0, address, 1, inner, held=True)


def _behind(head, value, type, entry, low, high):
    """`unique_ptr<T[]>`: the pointer is one to elements."""
    if high is None:
        raise UlpfError(f"cannot watch {head}", f"how many elements {head} has is not known", "write [FROM..TO]")
    offset, pointer = member(type, entry["pointer"])
    with _sense(head):
        address, inner = word(_at(head, value) + offset), facade.plain(facade.plain(pointer).target())
    return [Run(low, address + low * inner.sizeof, high - low, inner)] if address else []


# ---- types with one field for each number ----

def _field(head, at, type, entry, number):
    found = member(type, entry["at"].replace("{}", str(number)))
    if found is None:
        raise UlpfError(f"cannot watch {head}[{number}]", f"{head} has no element {number}, or one without bytes", "count its elements from 0")
    return Run(number, at + found[0], 1, facade.plain(found[1]))


def alternative(type, entry, number):
    """Of a variant: where the alternative with that number is, and its type; None if it has none."""
    argument = facade.template_argument(type, number)
    found = member(type, ".".join([entry["at"], *[entry["rest"]] * number, entry["first"]]))
    return None if found is None or argument is None else (found[0], facade.plain(argument))


def _alternative(head, at, type, entry, number):
    found = alternative(type, entry, number)
    if found is None:
        raise UlpfError(f"cannot watch {head}[{number}]", f"{head} has no alternative {number}", "count its alternatives from 0")
    now = _number(at, type, entry["index"])
    if now != number:
        raise UlpfError(f"cannot watch {head}[{number}]", f"{head} has its alternative {now} now", "set the watch when it has that one")
    return Run(number, at + found[0], 1, found[1])


# ---- types with contiguous elements ----

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
            raise Senseless
        count = (end - begin) // element.sizeof
    sensible(count, element)
    if count:
        yield Run(0, begin, count, element)


def _short(at, type, entry):
    """A text that may be in the object itself."""
    element = element_type(type, entry)
    flag = _number(at, type, entry["flag"]) & 0xff
    begin, count = at + member(type, entry["inside"])[0], flag >> 1
    if flag & 1:
        begin, count = _number(at, type, entry["begin"]), _number(at, type, entry["count"])
    sensible(count, element)
    if count:
        yield Run(0, begin, count, element)


def _blocks(at, type, entry):
    """libc++'s deque."""
    element = element_type(type, entry)
    begin, head, count = (_number(at, type, entry[key]) for key in ("begin", "head", "count"))
    sensible(head + count, element)
    room = 4096 // element.sizeof if element.sizeof < 256 else 16
    number = 0
    while number < count:
        block, inside = divmod(head + number, room)
        here = min(room - inside, count - number)
        yield Run(number, word(begin + block * _WORD) + inside * element.sizeof, here, element)
        number += here


def _ring(at, type, entry):
    element = element_type(type, entry)
    begin, capacity, head, count = (_number(at, type, entry[key]) for key in ("begin", "capacity", "head", "count"))
    sensible(capacity, element)
    if count > capacity or head > capacity:
        raise Senseless
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
            raise Senseless
        count = (behind - current) // element.sizeof
        if count:
            yield Run(number, current, count, element)
            number += count
        if node >= last_node:
            return
        node += _WORD
        current = word(node)
        last = current + chunk


# ---- types with a node for each element ----

def _list(at, type, entry):
    element = element_type(type, entry)
    end = at + member(type, entry["header"])[0] if "header" in entry else 0
    offset, link = member(type, entry["first"])
    node_type = facade.plain(facade.plain(link).target())
    next_at = member(node_type, entry["next"])
    if next_at is None:
        raise Senseless
    node, nodes, seen = word(at + offset), [], set()
    while node and node != end and node not in seen:
        seen.add(node)
        nodes.append(node)
        _few(nodes)
        node = word(node + next_at[0])
    return _values((node + after(entry, element, node_type) for node in nodes), element, entry)


def _tree(at, type, entry):
    """A binary tree, in order."""
    element = element_type(type, entry)
    offset, root = member(type, entry["root"])
    node_type = facade.plain(facade.plain(root).target())
    left, right = (_offset(node_type, entry[key]) for key in ("left", "right"))
    node, above, nodes, seen = word(at + offset), [], [], set()
    while node or above:
        while node:
            if node in seen:
                raise Senseless
            seen.add(node)
            _few(seen)
            above.append(node)
            node = word(node + left)
        node = above.pop()
        nodes.append(node)
        node = word(node + right)
    return _values((node + after(entry, element, node_type) for node in nodes), element, entry)


def after(entry, element, node):
    """Offset of the value in a node."""
    if "value" in entry:
        return _offset(node, entry["value"])
    whole = align(element)
    return -(-entry["after"] // whole) * whole


def _offset(type, path):
    found = member(type, path)
    if found is None:
        raise Senseless
    return found[0]


def _hash_table(at, type, entry):
    """hashbrown's: the places are before the control bytes, and a full one's has no highest bit."""
    element = element_type(type, entry)
    control, mask = (_number(at, type, entry[key]) for key in ("control", "mask"))
    if not mask:
        return iter(())
    sensible(mask + 1, element)
    full = [n for n, byte in enumerate(read(control, mask + 1)) if not byte & 0x80]
    _few(full)
    return _values((control - (n + 1) * element.sizeof for n in full), element, entry)


def map_behind(value):
    """A map of Go's is a pointer to the map that `containers.json` describes. Returns that map, or None for a nil pointer,
    and any other value as it is."""
    type = facade.plain(value.type)
    target = facade.plain(type.target()) if facade.is_pointer(type) else None
    entry = of(target) if target is not None and facade.is_struct(target) else None
    if entry is None or entry["shape"] != "directory":
        return value
    return facade.value_at(int(value), target) if int(value) else None


def _directory(at, type, entry):
    """Go's maps."""
    def behind(type, path):
        found = member(type, path)
        if found is None:
            raise Senseless
        return found[0], facade.plain(facade.plain(found[1]).target())
    tables, pointer = behind(type, entry["tables"])
    table = facade.plain(pointer.target())
    groups, group = behind(table, entry["groups"])
    control, (slots, array) = _offset(group, entry["control"]), member(group, entry["slots"])
    slot = facade.plain(facade.plain(array).target())
    key, item = member(slot, entry["key"]), member(slot, entry["item"])
    meant = facade.plain(item[1])
    # Of larger ones there are pointers, which look as those that a program has put there itself.
    if facade.is_pointer(meant) and facade.plain(meant.target()).sizeof > _LARGEST:
        raise UlpfError("cannot watch the elements of this map", "they may be elsewhere in memory", "watch one of them by its address")
    first, length = word(at + tables), _number(at, type, entry["length"])
    all, before = [(first, 1)] if first and not length else [], None
    for n in range(length):
        here = word(first + n * _WORD)
        if here != before:
            all.append((word(here + groups), _number(here, table, entry["mask"]) + 1))
        before = here
    number = 0
    for first, count in all:
        for n in range(count):
            start = first + n * group.sizeof
            free = read(start + control, _SLOTS)
            for place in (start + slots + i * slot.sizeof for i in range(_SLOTS) if not free[i] & 0x80):
                yield Run(number, place + item[0], 1, meant, _key(place + key[0], facade.plain(key[1])) or str(number))
                number += 1


def btree(type, entry):
    """Of Rust's B-trees: the type of a node; where it has its number of elements, the nodes below, the values, how many of them
    at most, and the bytes from one to the next."""
    leaf = facade.plain(facade.plain(member(type, entry["root"])[1]).target())
    parent = member(leaf, "parent.Some.__0.pointer")
    above = facade.plain(facade.plain(parent[1]).target()) if parent else None
    if above is None or _offset(above, "data") != 0:
        raise Senseless
    at, slots = member(leaf, entry["values"])
    slots = facade.plain(slots)
    bounds = facade.bounds(slots)
    return leaf, _offset(leaf, "len"), _offset(above, "edges"), at, bounds[1] + 1, facade.plain(slots.target()).sizeof


def _btree(at, type, entry):
    element, key = element_type(type, entry), facade.plain(facade.template_argument(type, 0))
    leaf, len_at, edges, values, room, stride = btree(type, entry)
    keys_at, keys = member(leaf, entry["keys"])
    key_size = facade.plain(facade.plain(keys).target()).sizeof
    found = []

    def below(node, height):
        count = int.from_bytes(read(node + len_at, 2), "little")
        if count > room or height > 64:
            raise Senseless
        for n in range(count + 1):
            if height:
                below(word(node + edges + n * _WORD), height - 1)
            if n < count:
                found.append((node + values + n * stride, node + keys_at + n * key_size))
                _few(found)

    root = _number(at, type, entry["root"])
    if root:
        below(root, _number(at, type, entry["height"]))
    for number, (address, at_key) in enumerate(found):
        yield Run(number, address, 1, element, _key(at_key, key) or str(number))


def item(entry, element):
    """Of an element: what is meant of it, as offset and type."""
    found = member(element, entry["item"]) if "item" in entry else (0, element)
    if found is None:
        raise Senseless
    return found[0], facade.plain(found[1])


def _values(places, element, entry):
    offset, meant = item(entry, element)
    key = member(element, entry["key"]) if "key" in entry else None
    for number, place in enumerate(places):
        run = Run(number, place + offset, 1, meant)
        if key is not None:
            run.key = _key(place + key[0], facade.plain(key[1]))
        yield run


def _key(at, type):
    """A key as a text: a number, or characters."""
    value = facade.value_at(at, type)
    if facade.is_integer(type) or facade.is_pointer(type):
        return facade.shown(value) if not facade.is_pointer(type) else f"{int(value):#x}"
    entry = of(type)
    texts = entry is not None and entry["shape"] in ("span", "short", "same")
    characters = elements("key", value) if texts else None
    if not characters or characters[0].type.sizeof != 1 or len(characters) > 1 or characters[0].count > _LONGEST_KEY:
        return None
    try:
        return json.dumps(facade.read_memory(characters[0].address, characters[0].count).decode(), ensure_ascii=False)
    except (UnicodeDecodeError, UlpfError):
        return None


_FORMS = {"array": _array, "span": _span, "short": _short, "blocks": _blocks, "ring": _ring, "deque": _deque, "list": _list, "tree": _tree,
          "table": _hash_table, "btree": _btree, "directory": _directory}


# ---- numbers and types ----

def element_type(type, entry):
    """Type of the elements."""
    which = entry.get("element")
    if which is None:
        return facade.plain(facade.plain(member(type, entry["begin"])[1]).target())
    path, _, number = which.rpartition(":")
    found = facade.template_argument(facade.plain(member(type, path)[1]) if path else type, int(number))
    if found is None:
        raise Senseless
    return facade.plain(found)


def _number(at, type, path):
    found = member(type, path)
    if found is None:
        raise Senseless
    size = min(facade.plain(found[1]).sizeof, _WORD)
    return int.from_bytes(read(at + found[0], size), "little")


def _few(nodes):
    most = settings.most_elements()
    if len(nodes) > most:
        raise UlpfError(f"it has more than {most} elements", "that many watches are seldom meant", f"set ulpf max-elements {10 * most}")
