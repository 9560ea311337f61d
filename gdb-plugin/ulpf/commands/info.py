# SPDX-License-Identifier: MIT OR Apache-2.0
from .. import facade, own, replies, session, table, wire
from ..registry import counts, watches
from . import UlpfCommand, number_words, numbers, plain_class

# Upper bound of one access's cost in microseconds: a fault, or a debug register's trap.
FAULT, TRAP = 2.5, 20


@plain_class
class InfoWatches(UlpfCommand):
    """List ulpf's watches with what they have counted: ulpf info watches [NUM...]

Hits      accesses to the watched bytes, with those that changed nothing (Silent) and those that the
          filter has rejected (Filtered)
False     accesses beside them on the same guarded page, as far as they cost a fault
?         it went with the connection, which `target remote` ends with the program (extended-remote keeps it)
What      as it was typed; one that follows pointers also says where they lead now, and how often it has moved
Lives on  page (guarded; hot instructions are patched) or register (a debug register); off, taken: switched
          off or taken away from outside (`ulpf top`)
Cost      what that took at most, in milliseconds; hits of patched instructions cost next to nothing"""

    name, completes = "info watches", "COMPLETE_NONE"

    def run(self, argument):
        session.check()
        chosen = [watches.get(n) for n in numbers(argument, "info watches")] if argument else list(watches.all.values())
        if not chosen:
            facade.say("No ulpf watches. ulpf watch EXPR sets one; GDB's own are in info watchpoints.")
        else:
            for line in table_of(chosen):
                facade.say(line)
        for line in () if argument else _of_gdb():
            facade.say(line)


def table_of(chosen):
    counted = counts(chosen)
    rows = [["Num", "Kind", "Hits", "Silent", "Filtered", "Stops", "False", "Lives on", "Cost", "What"]]
    for watch in chosen:
        rows.append(_row(watch, counted[watch.number]))
    return table.lines(rows, right={2, 3, 4, 5, 6, 8})


def _of_gdb():
    """Who decides about the hits of GDB's own watches, where there is something to decide."""
    for of in own.all():
        if of.asked and of.asks:
            who = "decided in the program" if of.decided else f"decided by GDB, a stop each: {of.why or 'the program does not run yet'}"
            yield f"GDB's watchpoint {of.number} ({of.breakpoint.expression}): {who}."


def _row(watch, n):
    spec = watch.spec
    kind = spec.kind + (" log" if spec.log else "")
    lives = "/".join(sorted({"guard": "page", "debug-register": "register"}[p] for p in n["placements"]))
    if not watch.enabled:
        lives = "disabled"
    elif watch.ended is not None:
        lives = "ended"
    elif n["off"] or n["taken"]:
        lives = "/".join([lives] * bool(lives) + ["off"] * bool(n["off"]) + ["taken"] * bool(n["taken"]))
    elif n["gone"]:
        lives = "gone"
    elif not lives:
        lives = "at resume"
    figures = [str(n[k]) for k in ("hits", "silent", "filtered", "stops", "false_positives")]
    if watch.uncounted:
        figures, cost = ["?"] * len(figures), "?"
    else:
        cost = _cost(n)
    return [str(watch.number), kind, *figures, lives, cost, what(watch) + _way(watch, n["moved"])]


def _way(watch, moved):
    """Where a watch that follows pointers is."""
    if moved is None:
        return ""
    at = watch.places[0].address
    return f" ({f'at {at:#x}' if at else 'nowhere'} now, moved {moved} {'time' if moved == 1 else 'times'})"


def _cost(n):
    in_register = n["placements"] == {"debug-register"}
    micros = n["traps"] * TRAP if in_register else (n["hits"] + n["false_positives"]) * FAULT + n["traps"] * TRAP
    return f"{micros / 1000:.1f}"


def what(watch):
    text = watch.spec.text
    if len(watch.places) > 1:
        text += f" ({len(watch.places)} places)"
    return text + (f" ({watch.ended})" if watch.ended else "")


@plain_class
class Stats(UlpfCommand):
    """Show what watching has cost this program so far: ulpf stats."""

    name = "stats"

    def run(self, argument):
        s = wire.ask("stats", replies.statistics)
        lists = s.watches
        hits = sum(w.hits for w in lists)
        rows = [("watches", len(lists)), ("hits", hits), ("silent stores among them", sum(w.silent for w in lists)),
                ("rejected by filters", sum(w.filtered for w in lists)), ("stops", sum(w.stops for w in lists)),
                ("false positives", s.false_positives), ("faults", s.faults),
                ("accesses on the slow path", s.slow), ("guarded and neighbouring pages", s.moved_pages),
                ("memory of the watchlist, bytes", s.watch_bytes),
                ("system calls by signal", s.syscalls), ("system-call sites patched", s.sites)]
        for line in table.lines([[name, str(value)] for name, value in rows], right={1}):
            facade.say(line)


@plain_class
class Backend(UlpfCommand):
    """Show what serves the watches here: ulpf backend."""

    name = "backend"

    def run(self, argument):
        facade.need_program()
        lists = wire.ask("stats", replies.statistics).watches
        on = {name: sum(1 for w in lists if w.placement == name) for name in ("guard", "debug-register")}
        served = wire.ask("backend", replies.backend)
        if served.backend not in ("kernel", "signal"):
            # The program is on another machine: simulated, or behind the bridge.
            facade.say(f"{served.backend:<17}{served.name}: {len(lists)} watches")
            facade.say(f"{'':<17}{served.why}")
            return
        patches, registers = wire.ask("patch", replies.patching), wire.ask("placement", replies.placement)
        name = {"kernel": "kernel module   ", "signal": "signal          "}
        facade.say(f"{name[served.backend]} page guards and a fault handler inside the program: {on['guard']} watches")
        if served.backend == "signal" and served.what_to_do is not None:
            facade.say(f"kernel module    not used: {served.why}; {served.what_to_do}")
        if patches.enabled:
            facade.say(f"patch            after {patches.after} accesses an instruction checks for itself: {patches.patches} are patched now")
        else:
            facade.say("patch            off (monitor ulpf patch on)")
        if registers.unavailable:
            facade.say(f"debug registers  none: {registers.unavailable}")
        else:
            facade.say(f"debug registers  {registers.used} of {registers.registers} in use, by {on['debug-register']} watches; "
                     f"new watches go: {registers.placement}")
        facade.say("`ulpf doctor` says what this machine can do.")


@plain_class
class Why(UlpfCommand):
    """Say why something was refused, or what a watch costs and why: ulpf why [NUM]"""

    name = "why"

    def __init__(self):
        facade.Command.__init__(self, "ulpf why", facade.gdb.COMMAND_BREAKPOINTS)

    def complete(self, _text, word):
        return number_words(word)

    def run(self, argument):
        session.check()
        if not argument:
            facade.need_program()
            facade.say(wire.text("why"))
            return
        for number in numbers(argument, "why"):
            for line in _reasons(watches.get(number)):
                facade.say(line)


def _reasons(watch):
    yield f"Ulpf watch {watch.number}: {what(watch)}"
    if not watch.enabled:
        yield f"  It is disabled: ulpf enable {watch.number} arms it."
        return
    if watch.ended is not None:
        yield f"  It is not armed: {watch.ended}. ulpf enable {watch.number} evaluates it anew."
        return
    n = counts([watch])[watch.number]
    if n["off"]:
        yield f"  {n['off']} of its places switched off from outside (`ulpf top`): ulpf disable {watch.number}, ulpf enable {watch.number} arms all of it."
    if n["taken"]:
        yield f"  {n['taken']} of its places taken away from outside (`ulpf top`): ulpf disable {watch.number}, ulpf enable {watch.number} arms all of it."
    if n["gone"]:
        yield f"  The memory of {n['gone']} of its places is gone; they are armed again if it comes back."
    if "debug-register" in n["placements"]:
        yield (f"  In a debug register: each hit is a trap ({n['traps']} so far, some {TRAP} µs each), and nothing else on its "
               "page costs anything. A busy page brought it there, or debug-register did.")
    if "guard" in n["placements"]:
        yield f"  On a guarded page. {n['hits']} hits; {n['false_positives']} accesses beside it have cost a fault (some {FAULT} µs each)."
        if n["false_positives"] > 10 * (n["hits"] + 100):
            yield ("  Most are beside it: what writes there cannot be patched (string instructions, code made at run time), or is not "
                   "hot yet. `debug-register` behind a small watch, or --placement, moves it.")
    if n["hits"] and n["stops"] == 0 and not watch.spec.log:
        silent = n["silent"]
        if n["filtered"] == n["hits"]:
            yield "  It has not stopped the program: its filter has rejected every hit."
        elif silent == n["hits"]:
            yield "  It has not stopped the program: every write left the value as it was."
    if not n["hits"]:
        yield ("  It has not been hit. Writes by other processes, through another mapping of the same memory, and by devices are "
               "not seen (docs/limits.md, \"What a watch does not see\").")
