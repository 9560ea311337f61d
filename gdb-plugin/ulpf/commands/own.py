# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where GDB's commands for its own watches and breakpoints come upon ulpf's."""

import re

from .. import facade, own, settings
from ..registry import watches
from . import numbers
from .info import table_of

gdb = facade.gdb

_HIT = re.compile(r"^\tbreakpoint already hit \d+ times?$")


class InfoWatchpoints(facade.Command):
    """Status of specified watchpoints (all watchpoints if no argument).

GDB's own, with the hits that ulpf has decided without GDB among those that they were already hit; then those of `ulpf watch`."""

    name = "info watchpoints"

    def __init__(self):
        facade.Command.__init__(self, self.name, gdb.COMMAND_STATUS)

    def invoke(self, argument, _from_tty):
        of_gdb = [b.number for b in gdb.breakpoints() if b.visible and facade.is_watchpoint(b)]
        try:
            chosen = [n for n in numbers(argument, "info watchpoints") if n in of_gdb] if argument else of_gdb
        except Exception as e:
            raise facade.user_error(str(e)) from None
        if chosen:
            facade.say(true_hits(_listed(chosen)))
        elif argument:
            facade.say(f"No watchpoint matching '{argument}'.")
        else:
            facade.say("No watchpoints.")
        if watches.all and not argument:
            facade.say("\nOf `ulpf watch`, with numbers of their own (ulpf delete, disable, enable, commands NUM):")
            for line in table_of(list(watches.all.values())):
                facade.say(line)


# `info breakpoints` is asked by us.
_asking = False


def _listed(chosen):
    global _asking
    _asking = True
    try:
        return facade.execute("info breakpoints " + " ".join(map(str, chosen))).rstrip("\n")
    finally:
        _asking = False


def true_hits(text):
    """GDB's table with the hits that GDB has not counted."""
    found, current = [], None
    for line in text.split("\n"):
        head = re.match(r"^(\d+)\s", line)
        if head:
            found += _missing(current)
            current = own.watch(int(head.group(1)))
        if current is not None and current.unheard:
            if _HIT.match(line):
                found.append(_times(current))
                current = None
                continue
            if not head and not line.startswith("\tstop only"):
                found += _missing(current)
                current = None
        found.append(line)
    return "\n".join(found + _missing(current))


def _missing(of):
    return [_times(of)] if of is not None and of.unheard else []


def _times(of):
    hits = own.hits(of)
    return f"\tbreakpoint already hit {hits} time{'' if hits == 1 else 's'}"


def after(command):
    """What GDB's own command did not know."""
    try:
        for line in _after(command):
            facade.say(line)
    except Exception as e:  # not worth an error of GDB's command
        if settings.traceback():
            facade.say(f"ulpf: {type(e).__name__}: {e}")


def _after(command):
    of_gdb = [b for b in gdb.breakpoints() if b.visible]
    if command == "info breakpoints":
        if _asking:
            return
        for o in own.all():
            if o.unheard:
                yield (f"ulpf: watchpoint {o.number} was hit {own.hits(o)} times; {o.unheard} of these its ignore count took in the "
                       "program, and GDB has not counted them (info watchpoints has).")
        if watches.all:
            yield f"ulpf: {_those(watches.all)} {_are(watches.all)} listed by: info watchpoints, ulpf info watches"
        return
    armed = [w for w in watches.all.values() if w.enabled]
    if command == "delete" and watches.all and not of_gdb:
        yield f"ulpf: {_those(watches.all)} {_are(watches.all, 'stays', 'stay')} (to delete: ulpf delete)."
    elif command == "disable" and armed and not any(b.enabled for b in of_gdb):
        yield f"ulpf: {_those(armed)} {_are(armed, 'stays', 'stay')} armed (to disarm: ulpf disable)."
    elif command == "enable" and len(armed) < len(watches.all) and of_gdb and all(b.enabled for b in of_gdb):
        off = len(watches.all) - len(armed)
        yield f"ulpf: {_those(range(off))} {_are(range(off), 'stays', 'stay')} off (to arm: ulpf enable)."


def _those(of):
    return f"{len(of)} ulpf watch{'' if len(of) == 1 else 'es'}"


def _are(of, one="is", more="are"):
    return one if len(of) == 1 else more


def hook():
    """In the place of GDB's own command, and behind others: GDB lets a command of one's own follow each of its commands."""
    InfoWatchpoints()
    for define, command, do in (("info hookpost-breakpoints", "info breakpoints", "after"), ("hookpost-disable", "disable", "after"),
                                ("hookpost-enable", "enable", "after"), ("hook-delete", "delete", "soon_after")):
        facade.execute(f"define {define}\npython import ulpf.commands.own; ulpf.commands.own.{do}({command!r})\nend")


def soon_after(command):
    """What follows `delete` GDB does not run at its prompt; what goes before it, it does."""
    if watches.all and any(b.visible for b in gdb.breakpoints()):
        facade.later(lambda: after(command))
