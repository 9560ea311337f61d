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
    except UlpfError:  # no server of ulpf's, or a running program: GDB asks when it is to go on
        return
    if refusal is None:
        return
    facade.say(f"ulpf: {refusal}")
    facade.say(f"ulpf: Watchpoint {breakpoint.number} is refused, and deleted.")
    # GDB is in the middle of making it, and a script goes on before what is to be done later.
    breakpoint.enabled = False
    facade.later(lambda: breakpoint.is_valid() and breakpoint.delete())


def _refusal(breakpoint):
    kind = facade.watched_accesses(breakpoint)
    if kind is None or not breakpoint.expression:
        return None
    value = facade.evaluate(breakpoint.expression.removeprefix("-location "))
    at, size = facade.address_of(value), value.type.sizeof
    if at is None or not size:
        return None
    answer, = wire.many([f"check {at:#x} {size} {kind}"])
    return answer.error() if isinstance(answer, replies.Refused) else None


def register():
    facade.on("breakpoint_created", _created)
