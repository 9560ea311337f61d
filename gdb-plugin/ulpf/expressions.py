# SPDX-License-Identifier: MIT OR Apache-2.0
"""Evaluates expressions in the debugged language, by GDB, with the additions of `ulpf run`: `FILE.c:`, OBJECT`, and
names of which the beginning is left out.
"""

import re

from . import facade, names
from .errors import UlpfError

_FILE = re.compile(r"^(?P<file>[\w./+-]+\.\w+)\s*:(?!:)\s*(?P<stars>[*(&\s]*)(?P<name>[A-Za-z_$:].*)$", re.S)
_OBJECT = re.compile(r"^(?P<object>[\w./+-]+)`\s*(?P<stars>[*(&\s]*)(?P<name>[A-Za-z_$]\w*)(?P<rest>.*)$", re.S)
_SCOPED = re.compile(r"^(?P<stars>[*(&\s]*)(?P<name>[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)*)(?P<rest>(?!\s*::).*)$", re.S)


def evaluate(expression, what=None):
    """A gdb.Value. Not all languages know all signs, and GDB wants names whole."""
    try:
        return _by_gdb(expression, what)
    except UlpfError:
        found = _by_a_part_of_its_name(expression)
        if found is None:
            raise
        return found


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
