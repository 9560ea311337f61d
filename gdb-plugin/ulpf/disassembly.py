# SPDX-License-Identifier: MIT OR Apache-2.0
"""Instructions around an address, as a debug adapter shows them."""

import re

from . import facade


def instructions(address, before, count):
    """Of so many instructions from the one `before` ahead of an address: address, bytes, text, symbol, line."""
    found = _ahead(address, before) if before > 0 else []
    start = address
    if before <= 0:
        # The first of them are not wanted.
        found, count = [], count - before
    left = count - len(found)
    if left > 0:
        found += _decoded(start, left)
    return found[-before:] if before < 0 else found[:count]


def _decoded(start, count=None, end=None):
    """Decoded instructions from an address on; fewer if the memory ends."""
    how = {"count": count} if end is None else {"end_pc": end - 1}
    try:
        frames = facade.gdb.selected_inferior().architecture().disassemble(start, **how)
    except (facade.gdb.error, AttributeError, RuntimeError):
        # One that cannot be read spoils all.
        frames = []
        for _ in range(count or 0):
            try:
                frames += facade.gdb.selected_inferior().architecture().disassemble(start, count=1)
            except (facade.gdb.error, RuntimeError):
                break
            start = frames[-1]["addr"] + frames[-1]["length"]
    return [_instruction(f) for f in frames]


def _instruction(f):
    data = facade.read_memory(f["addr"], f["length"]) or b""
    line = facade.gdb.find_pc_line(f["addr"])
    said = {"address": f["addr"], "bytes": data.hex(" "), "text": f["asm"].replace("\t", " "), "symbol": facade.symbol_at(f["addr"])}
    if line.symtab and line.line and line.pc == f["addr"]:
        said.update(file=line.symtab.fullname(), line=line.line)
    return said


def _ahead(address, before):
    """The instructions before an address, decoded from the beginnings of functions; fewer if no function covers them."""
    found, end = [], address
    while len(found) < before:
        symbol = facade.symbol_at(end - 1)
        offset = re.search(r"\+(0x[0-9a-f]+)$", symbol or "")
        start = end - 1 - (int(offset.group(1), 16) if offset else 0)
        if symbol is None or end - start > 1 << 16:
            break
        some = [i for i in _decoded(start, end=end) if i["address"] < end]
        if not some:
            break
        found, end = some + found, start
    return found[-before:]
