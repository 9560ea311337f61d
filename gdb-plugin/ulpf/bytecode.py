# SPDX-License-Identifier: MIT OR Apache-2.0
"""Agent bytecode out of what `maint agent-eval` prints.

GDB compiles any expression of the debugged language to the bytecode that the program's threads evaluate, but
has no way to send it for a watch. It prints it, though, an instruction a line:

      0  const64 93824992248000
      9  ref32
     10  ext 32

Opcodes and the sizes of their arguments are those of GDB's gdbsupport/ax.def.
"""

import re

# name: (opcode, bytes of the argument)
OPCODES = {
    "add": (0x02, 0), "sub": (0x03, 0), "mul": (0x04, 0), "div_signed": (0x05, 0), "div_unsigned": (0x06, 0),
    "rem_signed": (0x07, 0), "rem_unsigned": (0x08, 0), "lsh": (0x09, 0), "rsh_signed": (0x0a, 0),
    "rsh_unsigned": (0x0b, 0), "log_not": (0x0e, 0), "bit_and": (0x0f, 0), "bit_or": (0x10, 0),
    "bit_xor": (0x11, 0), "bit_not": (0x12, 0), "equal": (0x13, 0), "less_signed": (0x14, 0),
    "less_unsigned": (0x15, 0), "ext": (0x16, 1), "ref8": (0x17, 0), "ref16": (0x18, 0), "ref32": (0x19, 0),
    "ref64": (0x1a, 0), "if_goto": (0x20, 2), "goto": (0x21, 2), "const8": (0x22, 1), "const16": (0x23, 2),
    "const32": (0x24, 4), "const64": (0x25, 8), "reg": (0x26, 2), "end": (0x27, 0), "dup": (0x28, 0),
    "pop": (0x29, 0), "zero_ext": (0x2a, 1), "swap": (0x2b, 0), "getv": (0x2c, 2), "pick": (0x32, 1),
    "rot": (0x33, 0),
}

# Names of a hit's values in conditions, with their numbers in the stub (stub/README.md, "Filters").
VARIABLES = {"old": 0xff00, "new": 0xff01, "addr": 0xff02, "len": 0xff03, "tid": 0xff04, "pid": 0xff05,
             "kind": 0xff06, "hits": 0xff07, "pc": 0xff08,
             # The kind, reduced by the code in `behind`.
             "reads": 0xff06, "writes": 0xff06}

_LINE = re.compile(r"^ *(\d+)  (\w+)(?: (-?\d+))?$")


class Unsupported(Exception):
    """GDB has used an instruction that the stub does not know."""


def assemble(listing, variables, behind=None, base=0):
    """Returns the bytes. `variables` maps GDB's numbers of trace state variables to the stub's. `behind` has code to add
    where one of them is read, by GDB's number, too. `base` is the length of the code before this one."""
    taken = []
    length = 0
    for line in listing.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        at, name, argument = int(match.group(1)), match.group(2), match.group(3)
        if name not in OPCODES:
            raise Unsupported(name)
        if at != length:
            raise Unsupported(f"a listing with a gap at {length}")
        opcode, size = OPCODES[name]
        value = int(argument) if size else None
        more = b""
        if name == "getv":
            more = (behind or {}).get(value, b"")
            value = variables.get(value, value)
        taken.append((at, name, opcode, size, value, more))
        length += 1 + size
    if not taken:
        raise Unsupported("an empty listing")
    # Where an instruction is, with what has been put behind those before it.
    places, moved = {}, 0
    for at, _, _, _, _, more in taken:
        places[at] = at + moved
        moved += len(more)
    code = bytearray()
    for _, name, opcode, size, value, more in taken:
        if name in ("goto", "if_goto"):
            value = places[value] + base
        code.append(opcode)
        if size:
            code += (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")
        code += more
    return bytes(code)


def as_number(size, signed):
    """Behind a value of so many bytes: the number that it is."""
    return b"" if size == 8 else bytes([OPCODES["ext" if signed else "zero_ext"][0], 8 * size])


def has_bit(bit):
    """Behind a number: 1 if it has this bit, else 0."""
    return bytes([OPCODES["const8"][0], bit, OPCODES["bit_and"][0], OPCODES["log_not"][0], OPCODES["log_not"][0]])


def variable_number(listing):
    """GDB's number of the variable that is all of an expression."""
    match = re.search(r"\bgetv (\d+)$", listing, re.M)
    return int(match.group(1)) if match else None


def bits_changed(mask, kind="w"):
    """A condition that is true if one of these bits has changed, and for reads if reads are watched. (A bit-field shares
    its bytes with others, and an instruction does not show which bits it reads.)"""
    old, new = (b"\x2c" + VARIABLES[name].to_bytes(2, "big") for name in ("old", "new"))
    reads = b"" if kind == "w" else b"\x2c" + VARIABLES["kind"].to_bytes(2, "big") + b"\x22\x01\x0f\x10"
    return old + new + b"\x11\x25" + mask.to_bytes(8, "big") + b"\x0f" + reads + b"\x27"


def no_read():
    """A condition that holds unless the access only reads."""
    return b"\x2c" + VARIABLES["kind"].to_bytes(2, "big") + b"\x22\x01\x13\x0e\x27"


def each(of):
    """A condition that holds at each hit of so many."""
    return b"\x2c" + VARIABLES["hits"].to_bytes(2, "big") + b"\x25" + of.to_bytes(8, "big") + b"\x08\x0e\x27"
