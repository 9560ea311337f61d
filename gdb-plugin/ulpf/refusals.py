# SPDX-License-Identifier: MIT OR Apache-2.0
"""A plain `watch` of what can never be watched is refused when it is set, and its user told why.

GDB itself would find out when the program is to go on, say that there may be too many watches, and not let it. (What
is refused then, because a pointer leads there only later, the server says: command/server/src/refused.rs.)
"""

from . import facade, replies, wire
from .errors import UlpfError


def _created(breakpoint):
    if breakpoint.number < 0 or not facade.pid():
        return
    try:
        refusal = _refusal(breakpoint)
    except Exception as e:  # no server of ulpf's, a running program, no value: GDB asks when it is to go on
        if isinstance(e, UlpfError) or facade.gdb_error(e):
            return
        raise
    if refusal is None:
        return
    facade.say(f"ulpf: {refusal}")
    facade.say(f"ulpf: Watchpoint {breakpoint.number} is refused, and deleted.")
    # GDB is in the middle of making it, and a script goes on before what is to be done later.
    breakpoint.enabled = False
    facade.later(lambda: breakpoint.is_valid() and breakpoint.delete())


def _refusal(breakpoint):
    kind = _accesses(breakpoint)
    if kind is None or not breakpoint.expression:
        return None
    value = facade.evaluate(_watched(breakpoint.expression))
    at, size = facade.address_of(value), value.type.sizeof
    if at is None or not size:
        return None
    answer, = wire.many([f"check {at:#x} {size} {kind}"])
    return answer.error() if isinstance(answer, replies.Refused) else None


def _watched(expression):
    """Without the option of `watch` that GDB keeps in front of it."""
    option = "-location "
    return expression[len(option):] if expression.startswith(option) else expression


def _accesses(breakpoint):
    """Of a hardware watchpoint: r, w or rw; None of anything else."""
    return {facade.gdb.BP_HARDWARE_WATCHPOINT: "w", facade.gdb.BP_READ_WATCHPOINT: "r", facade.gdb.BP_ACCESS_WATCHPOINT: "rw"}.get(breakpoint.type)


def register():
    facade.on("breakpoint_created", _created)
