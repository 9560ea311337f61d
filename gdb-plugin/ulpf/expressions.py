# SPDX-License-Identifier: MIT OR Apache-2.0
"""Evaluates expressions without ranges: in the debugged language, by GDB, with the additions of `ulpf run`:
`FILE.c:`, OBJECT`, and paths through containers.
"""

import re

from . import containers, facade, names
from .errors import UlpfError

STEP = re.compile(r"\s*(?:(\.|->|%)\s*([A-Za-z_]\w*|\d+)|[\[(]([^\[\]()]+)[\])])")
_FILE = re.compile(r"^(?P<file>[\w./+-]+\.\w+)\s*:(?!:)\s*(?P<stars>[*(&\s]*)(?P<name>[A-Za-z_$:].*)$", re.S)
_OBJECT = re.compile(r"^(?P<object>[\w./+-]+)`\s*(?P<stars>[*(&\s]*)(?P<name>[A-Za-z_$]\w*)(?P<rest>.*)$", re.S)

# A variable, and the way from there to what is watched.
_PATH = re.compile(r"^(?P<stars>[*\s]*)(?P<name>[A-Za-z_$][\w$]*(?:::[A-Za-z_]\w*)*)(?P<steps>(?:\s*(?:\.|->)\s*\w+|\s*\[[^\[\]]+\])+|)$", re.S)


# Cells, pointers and enums in one another.
_MOST_HELD = 8
_ARROW = re.compile(r"^\s*\(\s*\*\s*([^()]+?)\s*\)\s*\.")


def evaluate(expression, what=None):
    """As `ulpf run` has it where that is a container, else as the debugged language has it."""
    # (`(*p).x` is p->x.)
    path = _PATH.match(_ARROW.sub(r"\1->", expression))
    found, through = None, False
    if path and (path["stars"].strip() or path["steps"]):
        found, through = _walked(path)
    # GDB would call the program's functions for what is in a container, where it can.
    if through:
        return found
    try:
        return _by_gdb(expression, what)
    except UlpfError:
        # Not all languages know all signs, and GDB wants names whole.
        if found is None:
            found = _by_a_part_of_its_name(expression)
        if found is None:
            raise
        return found


_SCOPED = re.compile(r"^(?P<stars>[*(&\s]*)(?P<name>[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)*)(?P<rest>(?!\s*::).*)$", re.S)


def _by_a_part_of_its_name(expression):
    """`inner::deep` for app::inner::deep, `f::calls` for a static of the function f, if just one is called so; or None."""
    scoped = _SCOPED.match(expression)
    found = scoped and names.variable_by_part(scoped["name"])
    if not found:
        return None
    facade.keep("ulpf_found", found)
    try:
        return facade.evaluate(f"{scoped['stars']}(*$ulpf_found){scoped['rest']}", expression)
    except UlpfError:
        return None


def _walked(path):
    """Value of a path, and whether it leads through a container; None if only GDB can evaluate it."""
    through, at, steps = False, 0, path["steps"]
    try:
        value = facade.evaluate(path["name"])
        while at < len(steps.rstrip()):
            match = STEP.match(steps, at)
            through = through or match is not None and _leads_through(value, match.group(1), field(match.group(2)))
            if match is None or match.group(3) and not through and not re.fullmatch(r"\s*-?\d+\s*", match.group(3)):
                return None, False
            value = step(value, match, path["name"] + steps[:at])
            at = match.end()
        for _ in path["stars"].strip().replace(" ", ""):
            through = through or _holds(value)
            held = _held(value, path["name"] + steps)
            value = held if held is not None else value.dereference()
    except Outside:
        raise
    except (UlpfError, RuntimeError):
        # GDB says what is wrong, in the program's language.
        if not through:
            return None, False
        raise
    return value, through


def _leads_through(value, sign, member):
    """Does a step from this value lead to what a container holds, or an enum of Rust's?"""
    type = facade.plain(value.type)
    if facade.is_struct(type) and containers.is_enum(type):
        return containers.member(type, member) is None
    if containers.of(type) is None:
        return False
    return sign != "." or containers.member(type, member) is None


def _holds(value):
    """Is it a smart pointer or a cell?"""
    entry = containers.of(value.type)
    return entry is not None and entry["shape"] in ("one", "inline")


def _held(value, name):
    """The target of a smart pointer or cell, or None if the value is neither."""
    if not _holds(value):
        return None
    found = containers.held(name, value)
    if found is None:
        raise UlpfError(f"cannot follow {name}", f"{name} holds nothing now", "watch the variable itself, or set the watch later")
    return facade.value_at(found.address, found.type)


def _reached(value, member, name):
    """The value that has such a member: as Rust has it, what cells, pointers and enums hold on the way."""
    pointer = True
    for _ in range(_MOST_HELD):
        type = facade.plain(value.type)
        if facade.is_pointer(type) and pointer:
            value, pointer = value.dereference(), False
            continue
        if not facade.is_struct(type) or containers.member(type, member) is not None:
            return value
        variant = next((known for known, _, _, of_type, _ in facade.parts(type)
                        if known and containers.member(facade.plain(of_type), member) is not None), None) if containers.is_enum(type) else None
        held = value[variant] if variant else _held(value, name)
        if held is None:
            return value
        value, pointer = held, True
    return value


def _by_gdb(expression, what=None):
    """With `FILE.c:` and `OBJECT`` before it."""
    of_file = _FILE.match(expression)
    if of_file:
        return facade.evaluate(f"{of_file['stars']}'{of_file['file']}'::{of_file['name']}", what or expression)
    of_object = _OBJECT.match(expression)
    if of_object:
        found = names.variable_of(of_object["object"], of_object["name"])
        if found is None:
            raise UlpfError(f"cannot watch {expression}", f"there is no variable {of_object['name']} in {of_object['object']}, or that is not loaded",
                            "info sharedlibrary lists what is; names are known from debug information")
        facade.keep("ulpf_found", found)
        return facade.evaluate(f"{of_object['stars']}(*$ulpf_found){of_object['rest']}", what or expression)
    return facade.evaluate(expression, what)


def field(name):
    """Rust's `.0` is `__0` in the debug information."""
    return f"__{name}" if name and name.isdigit() else name


def step(value, match, name):
    arrow, member, index = match.groups()
    member = field(member)
    if index is not None and containers.of(value.type) is not None:
        at = int(facade.evaluate(index))
        found = containers.elements(name, value, at, at + 1)
        if not found:
            raise UlpfError(f"cannot watch {name}[{index}]", "it has no elements now", "watch the container itself")
        return facade.value_at(found[0].address, found[0].type)
    if arrow == "." and _leads_through(value, arrow, member):
        return _reached(value, member, name)[member]
    held = _held(value, name) if arrow and _leads_through(value, arrow, member) else None
    if held is not None:
        return held[member]
    if index is not None:
        return _indexed_value(value, int(facade.evaluate(index)), f"{name}[{index}]")
    if arrow == "->" or facade.is_pointer(facade.plain(value.type)):
        value = value.dereference()
    if arrow == "->" and facade.is_pointer(facade.plain(value.type)):
        value = value.dereference()
    if not facade.is_struct(facade.plain(value.type)):
        raise UlpfError(f"cannot watch {name}{arrow}{member}", f"{value.type} has no members", "ptype shows what it is")
    return value[member]


class Outside(UlpfError):
    """The array has no such element, whatever GDB makes of it."""


def _indexed_value(value, index, said):
    type = facade.plain(value.type)
    known = facade.bounds(type) if facade.is_array(type) else None
    # As for ranges, the index may exceed a trailing array of one or no element.
    if known and known[1] > known[0] and not known[0] <= index <= known[1]:
        raise Outside(f"cannot watch {said}", f"it has the elements {known[0]} to {known[1]}", "stay within them")
    return facade.element(value, index)
