# SPDX-License-Identifier: MIT OR Apache-2.0
"""Values out of the bytes that a hit tells, never larger than GDB makes them."""

from . import facade

# A value of more bytes is never made as a whole, whatever GDB's max-value-size says: a hit is shown in a line.
_LARGEST = 1 << 16


def max_value_size():
    """Of how many bytes GDB's values may be; None: there is no limit."""
    limit = facade.gdb.parameter("max-value-size")
    # (That of some versions is -1.)
    return None if limit is None or limit < 0 else limit


def largest_value():
    """Of how many bytes the plugin makes values."""
    limit = max_value_size()
    return _LARGEST if limit is None else min(limit, _LARGEST)


def value_of_bytes(data, type):
    """A gdb.Value, or None if GDB has none so large, or none without its memory.

    (Of a structure of Fortran with an allocatable component GDB 13 ends with an internal error.) Here the limit is to be asked about before: GDB (13) throws its error through Python's own frames, and ends.
    """
    size = type.sizeof
    if getattr(type, "dynamic", False):
        return None
    if size is None or not 0 < size <= min(largest_value(), len(data)):
        return None
    return facade.gdb.Value(bytes(data), type)


def shown_bytes(data, type, length):
    """Bytes of an access of this length that are no value of GDB's: of an array the first elements, else
    hexadecimal digits."""
    if type is not None and facade.is_array(type):
        element = facade.plain(type.target())
        size = element.sizeof
        count = min(facade.ELEMENTS, len(data) // size) if size else 0
        value = value_of_bytes(data[:count * size], facade.array_of(element, count)) if count else None
        if value is not None:
            return facade.shown(value) + ("..." if count * size < length else "")
    if len(data) == length == 8:
        return f"{int.from_bytes(data, 'little'):#x}"
    some = " ".join(f"{b:02x}" for b in data[:2 * facade.ELEMENTS])
    return some + (f" … ({length} bytes)" if len(data[:2 * facade.ELEMENTS]) < length else "")
