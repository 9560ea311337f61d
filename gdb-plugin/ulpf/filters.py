# SPDX-License-Identifier: MIT OR Apache-2.0
"""From what the user says about hits to the filter words of the stub, which its threads check themselves."""

import re

from . import bytecode, facade
from .errors import UlpfError

_VARIABLE = re.compile(r"\$(old|new|addr|len|tid|pid|kind|hits|pc|reads|writes)\b")
_NAME = re.compile(r"(?<![\w.$>:])(?<!->)([A-Za-z_]\w*)\b(?!\s*\()")
# GDB's messages for an expression that is wrong, and not only beyond its bytecode.
_MISTAKE = re.compile(r"No symbol|yntax error|no member|Junk|Invalid (number|character)|Unmatched|No (registers|frame)|running")
# GDB's numbers of the convenience variables for a hit's values. They stay once they are created.
_numbers = {}


class NotByGdb(Exception):
    """GDB cannot compile this condition; the server may."""


def words(spec, type):
    """Filter words without the condition's; `type` is that of the values."""
    said = spec.words.split()
    if spec.thread is not None:
        lwp = facade.lwp_of(spec.thread)
        if lwp is None:
            raise UlpfError(f"no thread {spec.thread}", "the program has no such thread", "info threads lists them")
        said.append(f"thread {lwp}")
    for called, inside, name in spec.places:
        said.append(("called " if called else "") + ("from " if inside else "outside ") + _ranges(name))
    return said + [f"if x {code.hex()}" for code in spec.codes]


def condition(text, type):
    """`if x BYTECODE`, compiled by GDB."""
    code = _in_the_users_language(text, type)
    if code is None:
        code = bytecode.assemble(_listing(_prepared(text, type), text), _meant(), _behind())
    return "if x " + code.hex()


def _meant():
    """GDB's numbers of variables, and the stub's."""
    return {number: bytecode.VARIABLES[name] for name, number in _numbers.items()}


def _behind():
    """Bytecode that turns a hit's kind into whether it reads, and whether it writes."""
    return {_numbers[name]: bytecode.has_bit(bit) for name, bit in (("reads", 1), ("writes", 2)) if name in _numbers}


def _in_the_users_language(text, type):
    """A condition in a language whose operators are not those of C; None where that one is asked as C++: the
    hit's values are no plain numbers there, or a local is to be this one, which takes a cast."""
    if facade.is_c() or any(facade.local_address(name) for name in _NAME.findall(text)):
        return None
    used = _VARIABLE.findall(text)
    as_number = None
    if "old" in used or "new" in used:
        element = _element(type)
        if element is None or not facade.is_integer(element) or not (element.sizeof in (1, 2, 4) or facade.is_signed(element)):
            return None
        as_number = bytecode.as_number(element.sizeof, facade.is_signed(element))
    for name in used:
        _variable(name)
    behind = _behind() | {_numbers[name]: as_number for name in ("old", "new") if as_number and name in _numbers}
    try:
        listing = facade.compile_condition(_VARIABLE.sub(r"$ulpf_\1", text), as_c=False)
        return bytecode.assemble(listing, _meant(), behind)
    except bytecode.Unsupported:
        return None
    except Exception as e:
        if not facade.gdb_error(e):
            raise
        # Ada, for one, knows no type of such a variable. C++ may do, and says more clearly what is wrong.
        return None


def _element(type):
    """Of an array that of its elements."""
    while type is not None and facade.is_array(type):
        type = facade.plain(type.target())
    return type


def _listing(expression, text):
    try:
        return facade.compile_condition(expression)
    except Exception as e:
        if not facade.gdb_error(e):
            raise
        why = facade.error_text(e)
        if not _MISTAKE.search(why):
            raise NotByGdb(why) from None
        raise UlpfError(f"the condition {text} cannot be used", why,
                        "it may name globals, members, registers, and $old, $new, $addr, $len, $tid, $pid, $kind, $reads, $writes, $hits, $pc of the hit") from None


def _prepared(text, type):
    """The condition with what GDB would understand otherwise put so that it means the same at every hit."""
    if "__int128" in text:
        raise NotByGdb("bytecode computes with 64 bits")
    for name in _VARIABLE.findall(text):
        _variable(name)
    text = _VARIABLE.sub(lambda m: _typed(m.group(1), type), text)
    return _NAME.sub(_local, text)


def _variable(name):
    if name not in _numbers:
        facade.make_variable(f"ulpf_{name}")
        number = bytecode.variable_number(facade.compile_condition(f"$ulpf_{name}"))
        if number is None:
            raise NotByGdb("no trace state variables")
        _numbers[name] = number


def _typed(name, type):
    """GDB takes these variables for 64-bit integers."""
    variable = f"$ulpf_{name}"
    if name not in ("old", "new") or type is None:
        return variable
    type = _element(type)
    if facade.is_float(type):
        raise NotByGdb("floating-point numbers")
    if facade.is_integer(type) and type.sizeof > 8:
        raise NotByGdb(f"{type} has more than 64 bits")
    if facade.is_pointer(type):
        return f"(({type}) {variable})" if facade.is_c() else variable
    if facade.is_struct(type) or type.sizeof not in _SIZES:
        return variable
    return f"(({_in_c(type)}) {variable})"


_SIZES = {1: "char", 2: "short", 4: "int", 8: "long"}


def _in_c(type):
    """C's name for an integer type, whatever its own language calls it."""
    sign = "signed" if facade.is_signed(type) else "unsigned"
    return f"{sign} {_SIZES[type.sizeof]}"


def _local(match):
    """A local means this one, in this frame, wherever the hit is."""
    found = facade.local_address(match.group(1))
    if found is None:
        return match.group(1)
    address, type = found
    if facade.is_integer(facade.plain(type)) and type.sizeof in _SIZES:
        return f"(*({_in_c(facade.plain(type))} *) {address:#x})"
    type = str(type)
    if "{" in type or "[" in type or "(" in type:
        raise UlpfError(f"a condition cannot use {match.group(1)}", f"it is a local of type {type}", "use a scalar, or a global")
    return f"(*({type} *) {address:#x})"


def _ranges(name):
    if re.fullmatch(r"0x[0-9a-f]+-0x[0-9a-f]+(,0x[0-9a-f]+-0x[0-9a-f]+)*|none", name):
        return name
    found = facade.code_of(name)
    if not found:
        raise UlpfError(f"no code is called {name}", "it is neither a function nor a loaded library",
                        "see info functions and info sharedlibrary; a library's name may be a part of its file's name")
    return ",".join(f"{start:#x}-{end:#x}" for start, end in found)
