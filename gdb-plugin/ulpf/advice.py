# SPDX-License-Identifier: MIT OR Apache-2.0
"""Advice for a plain `watch` that GDB would serve badly, or not at all."""

from . import facade, settings, values


def _created(breakpoint):
    try:
        text = _of(breakpoint)
    except Exception:  # advice is never worth an error
        return
    if text:
        facade.say(text)


def _of(breakpoint):
    if not settings.advice() or breakpoint.number < 0 or not breakpoint.expression:
        return None
    kind = facade.is_watchpoint(breakpoint)
    if kind is None:
        return None
    expression = breakpoint.expression
    if kind == "software":
        return _software(breakpoint, expression)
    size = facade.evaluate(expression).type.sizeof
    limit = values.max_value_size()
    if limit is not None and size > limit:
        return (f"ulpf: GDB will never report a hit of this watch: {expression} has {size} bytes, more than its "
                f"max-value-size ({limit}).\n"
                f"      Type: delete {breakpoint.number}\n"
                f"            ulpf watch {expression}")
    return None


def _software(breakpoint, expression):
    if not facade.pid():
        return None  # decided when the program runs
    head = "ulpf: GDB will single-step the program for this watch, many thousand times slower: "
    value = facade.evaluate(expression)
    if facade.address_of(value) is None:
        return head + f"{expression} is in no memory.\n      Watch the variables that it is made of: ulpf watch VARIABLE if CONDITION"
    return head + f"it takes it for none that the hardware can do.\n      Type: delete {breakpoint.number}\n            ulpf watch {expression}"


def register():
    facade.on("breakpoint_created", _created)
