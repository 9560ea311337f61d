# SPDX-License-Identifier: MIT OR Apache-2.0
"""Numbers in the program's memory, and how its types are aligned, for what finds elements of containers."""

from . import facade

_WORD = 8
# No program has so much memory.
_MOST_BYTES = 1 << 47


class Senseless(Exception):
    """The memory does not hold a container: not constructed yet, or already destroyed."""


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


def word(address):
    return int.from_bytes(read(address, _WORD), "little")


def read(address, size):
    data = facade.read_memory(address, size) if facade.readable(address) else b""
    if len(data) != size:
        raise Senseless
    return data


def sensible(count, element):
    if not element.sizeof or count * element.sizeof >= _MOST_BYTES:
        raise Senseless
