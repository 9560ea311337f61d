# SPDX-License-Identifier: MIT OR Apache-2.0
"""Variables by what a user calls them, where GDB wants to be told more: an object, or the whole of a name."""

import contextlib
import os
import re

from . import facade

gdb = facade.gdb

# Frames that are looked at for the name of a crate.
_FRAMES = 16


def is_variable(name):
    """Does the name mean a variable here?"""
    try:
        symbol = gdb.lookup_symbol(name)[0]
    except gdb.error:  # no frame, so no locals
        symbol = gdb.lookup_global_symbol(name) or gdb.lookup_static_symbol(name)
    return symbol is not None and (symbol.is_variable or symbol.is_argument)


def variable_of(object, name):
    """A pointer to the variable of that name in an executable or library, or None. The file may be named by the
    beginning of its name."""
    for file in gdb.objfiles():
        base = os.path.basename(file.filename or "")
        if base != object and file.filename != object and not base.startswith((object + ".", object + "-")):
            continue
        symbol = file.lookup_global_symbol(name) or file.lookup_static_symbol(name)
        if symbol is not None and symbol.is_variable:
            return symbol.value().address
    return None


def variable_by_part(name):
    """A pointer to the only static variable of that name, which may have further names before it. None if no variable,
    or more than one, has it."""
    function, _, last = name.rpartition("::")
    found = _static_of(function, last) if function else None
    if found is None:
        said = gdb.execute(rf"info variables -q \(^\|::\){name}$", to_string=True)
        whole = set(re.findall(r"(?<![\w:])((?:\w+(?:<[^;]*>)?::)*" + re.escape(name) + r")(?=[\[);]|: )", said))
        # (GDB shows no names for Rust: what the code here belongs to is tried.)
        found = _of_one(whole) if whole else _of_one(f"{crate}::{name}" for crate in _crates())
    return None if found is None or facade.address_of(found) is None else found.address


def _of_one(names):
    """The value that has one of these names, if just one of them is known."""
    found = []
    for name in names:
        with contextlib.suppress(gdb.error):
            found.append(gdb.parse_and_eval(name))
    return found[0] if len(found) == 1 else None


def _crates():
    """First parts of the names of the functions on the stack."""
    try:
        frame = gdb.selected_frame()
    except gdb.error:
        return set()
    names = set()
    for _ in range(_FRAMES):
        if frame is None:
            break
        names.add((frame.name() or "").partition("::")[0])
        frame = frame.older()
    return names - {"", "main", "std", "core", "alloc"}


def _static_of(function, name):
    """A static variable of a function."""
    try:
        lines = gdb.decode_line(function)[1] or ()
    except gdb.error:
        return None
    for line in lines:
        block = gdb.block_for_pc(line.pc)
        while block is not None and block.function is None:
            block = block.superblock
        for symbol in block or ():
            if symbol.name == name and symbol.is_variable and not symbol.needs_frame:
                return symbol.value()
    return None
