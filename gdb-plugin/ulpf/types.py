# SPDX-License-Identifier: MIT OR Apache-2.0
"""Types in words that the server reads (command/symbols/src/described.rs), and GDB's own for what it answers."""

from . import facade


def described(type, targets=False, seen=(), strides=()):
    """A type with what its values need, those in the bytes `seen`; with `targets` instead what a way from a variable of it
    needs. `strides`: those of an array of Fortran (`facade.strides`)."""
    whole, type = type, facade.plain(type)
    said = {"name": str(type), "size": type.sizeof, "is": "other"}
    if facade.is_array(type):
        bounds = facade.bounds(type)
        array = {"of": described(type.target(), targets, seen, strides[1:]), "first": bounds[0] if bounds else 0}
        if strides and bounds:
            array |= {"count": bounds[1] - bounds[0] + 1, "stride": strides[0]}
        said["is"] = {"array": array}
    elif facade.is_pointer(type):
        target = type.target()
        known = targets and not facade.is_function(facade.plain(target)) and facade.plain(target).sizeof
        said["is"] = {"pointer": described(target, True) if known else None}
    elif facade.is_bool(type):
        said["is"] = "bool"
    elif facade.is_enum(type):
        # (There may be thousands.)
        values = {int.from_bytes(data[at:at + type.sizeof], "little", signed=signed) for data in seen for signed in (False, True)
                  for at in range(0, len(data), type.sizeof)}
        said["is"] = {"enum": [[field.name, _signed(field.enumval)] for field in type.fields() if field.enumval in values]}
    elif facade.is_character(type):
        said["is"] = {"char": facade.is_signed(type)}
    elif facade.is_integer(type):
        said["is"] = {"int": facade.is_signed(type)}
    elif facade.is_float(type):
        said["is"] = "float"
    elif facade.is_struct(type):
        said["name"] = type.name or whole.name or said["name"]
        said["is"] = {"struct": None if targets else _only_member(type, seen)}
    return said


def _signed(number):
    return number - (1 << 64) if number >= 1 << 63 else number


def _only_member(type, seen):
    """The member that fills a whole structure."""
    sized = [(position, bits, of) for _, position, bits, of in facade.members(type) if of.sizeof]
    alone = len(sized) == 1 and sized[0][:2] == (0, 0) and sized[0][2].sizeof == type.sizeof
    return described(sized[0][2], seen=seen) if alone else None


def named(said):
    """GDB's type for the server's name of it; None if GDB knows none."""
    if said is None:
        return None
    if "pointer" in said:
        target = named(said["pointer"]) or facade.find_type("void")
        return target and target.pointer()
    if "array" in said:
        array = said["array"]
        element = named(array["of"])
        return element and element.array(array["first"], array["first"] + array["count"] - 1)
    found, size = facade.find_type(said["type"]["name"]), said["type"]["size"]
    if found is None or facade.plain(found).sizeof == size:
        return found
    # (Go's `int` has eight bytes, and GDB finds one of its own.)
    plain = facade.plain(found)
    return facade.integer_type(size, facade.is_signed(plain)) if facade.is_integer(plain) and size in (1, 2, 4, 8) else None
