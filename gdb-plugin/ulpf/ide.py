# SPDX-License-Identifier: MIT OR Apache-2.0
"""MI commands for a debug adapter (`ulpf dap`).

    12-ulpf-remove "{\\"numbers\\": [3]}"      arguments by their names, as JSON
    12^done,removed=["3"]                     a tuple of MI (`facade.mi_result`); command/dap/src/plugin.rs reads it

Data breakpoints are watches like those of `ulpf watch`, and are in the same list.
"""

import dataclasses
import json

from . import bytecode, disassembly, facade, foreign, history, places, replies, session, stops, completed
from .errors import UlpfError
from .registry import COUNTED, watches
from .spec import Spec, parse

_ACCESS = {"read": "r", "write": "w", "readWrite": "rw"}
# Places that have been asked about, for a client that wants to watch them: locals, what pointers lead to.
_places = {}
# Every place that has been armed, by the stub's number. Hits are reported after the program's end, too.
_known = {}
# Watches that the adapter knows to have ended.
_ended = set()


class _Command(facade.MICommand):
    """`-ulpf-NAME [ARGUMENTS]`, for one of the functions below."""

    def __init__(self, verb):
        self._verb = verb
        super().__init__("-ulpf-" + verb.__name__.replace("_", "-"))

    def invoke(self, argv):
        try:
            asked = json.loads(argv[0]) if argv else {}
            return facade.mi_result(self._verb(**asked))
        except Exception as e:
            raise facade.user_error(_why(e)) from None


def register():
    for verb in _VERBS:
        _Command(verb)


def _why(error):
    if isinstance(error, UlpfError):
        return str(error)
    return facade.error_text(error) if facade.gdb_error(error) else f"{type(error).__name__}: {error}"


# ---- data breakpoints ----

def info(expression=None, address=None, bytes=None):
    """Data for a client: the arguments that set a watch, and the text to show."""
    if address is not None:
        length = 1 if bytes is None else int(bytes)
        _readable(address, length)
        return {"id": f"a:{address:#x}:{length}", "name": f"{length} bytes at {address:#x}", "persist": False}
    if places.is_heap(expression) or expression.startswith("blocks "):
        return {"id": f"e:{expression}", "name": expression, "persist": True}
    found = places.find(expression) if bytes else places.locate(expression)
    if bytes:
        found = [_of_length(expression, found, int(bytes))]
        _readable(found[0].address, found[0].length)
    name = expression + (f", {bytes} bytes" if bytes else _size(found))
    if all(facade.is_static(p.anchor[0]) for p in found[:3]):
        return {"id": f"b:{bytes}:{expression}" if bytes else f"e:{expression}", "name": name, "persist": True}
    key = f"p:{len(_places)}:{expression}"
    _places[key] = found
    return {"id": key, "name": name, "persist": False}


def _size(found):
    total = sum(p.length for p in found)
    if len(found) > 1:
        return f" ({len(found)} places, {total} bytes)"
    return f" ({total} bytes)" if total > 8 else ""


def _of_length(expression, found, length):
    """`length` bytes from the address of an expression, also of a pointer or an array."""
    if len(found) > 1:
        raise UlpfError(f"cannot watch {length} bytes at {expression}", "it is in several places", "name one of them")
    first = found[0]
    if length == first.length:
        return first
    return places.Place(f"{expression}, {length} bytes", first.address, length)


def _readable(address, length):
    if not 0 < length <= 1 << 40:
        raise UlpfError(f"cannot watch {length} bytes", "that is no size", "say how many bytes")
    if address < 1 << 47 and not (facade.readable(address) and facade.readable(address + length - 1)):
        raise UlpfError(f"cannot watch {length} bytes at {address:#x}", "there is no memory at all of them", "look at the address and the size")


def _found(id):
    """(expression, places or None) of an id that `info` has made."""
    kind, _, rest = id.partition(":")
    if kind == "e":
        return rest, None
    if kind == "b":
        length, _, expression = rest.partition(":")
        return expression, [_of_length(expression, places.find(expression), int(length))]
    if kind == "a":
        address, _, length = rest.partition(":")
        address, length = int(address, 0), int(length)
        _readable(address, length)
        return f"{length} bytes at {address:#x}", [places.Place(f"{address:#x}", address, length)]
    found = _places.get(id)
    if found is None:
        raise UlpfError(f"{rest.partition(':')[2]} is not watched", "it was on the stack or heap of another run", "set it anew where it exists")
    return rest.partition(":")[2], found


class _Every:
    """A hit condition that the program's threads cannot check: of those that pass the filter, each N-th."""

    def __init__(self, of):
        self.of, self.passed = of, 0

    def __call__(self, _hit):
        self.passed += 1
        return self.passed % self.of == 0


def _asked(id, access="write", condition=None, hit=None, log=False, silent=False, bt=0):
    expression, found = _found(id)
    spec = Spec(text=expression, expression=expression, kind=_ACCESS[access], condition=condition or None, log=log, bt=bt)
    # A write watch reports changes of the value; reads and accesses have no changes.
    spec.words = "changed" if spec.kind == "w" and not silent else ""
    if spec.kind == "w" and silent and not log:
        # A write that changes nothing never stops a write watch, but it stops an access watch.
        spec.kind = "rw"
        spec.codes.append(bytecode.no_read())
    callback = None
    if hit:
        operator, number = hit
        if operator == "==":
            spec.words += f" skip {number - 1} count 1"
        elif operator == ">=":
            spec.words += f" skip {number - 1}"
        elif operator == "<=":
            spec.words += f" count {number}"
        elif spec.condition is None and not spec.codes and "changed" not in spec.words:
            spec.codes.append(bytecode.each(number))
        elif log:
            raise UlpfError(f"{expression} is not logged", f"%{number} beside a condition needs a stop", "use one of both")
        else:
            callback = _Every(number)
    return spec, [_copy(p) for p in found] if found else None, callback


def _copy(place):
    return dataclasses.replace(place, id=None)


def add(breakpoints):
    """Arms these; for each its number, or why not."""
    asked, results = [], []
    for one in breakpoints:
        try:
            asked.append(_asked(**one))
            results.append(None)
        except Exception as e:  # a client may keep ids of another version, say; the others are not to suffer
            results.append(e)
    armed = iter(watches.add_many(asked))
    said = []
    for result in results:
        result = result or next(armed)
        if isinstance(result, Exception):
            said.append({"error": _why(result)})
            continue
        _know(result)
        said.append({"number": result.number, "log": result.spec.log})
    if any("number" in s for s in said):
        session.expect_another()
    return {"breakpoints": said}


def _know(watch):
    for place in watch.places:
        if place.id is not None:
            _known[place.id] = (watch, place)


def remove(numbers):
    there = [n for n in numbers if n in watches.all]
    watches.remove_many([watches.get(n) for n in there])
    _ended.difference_update(numbers)
    return {"removed": there}


def watch(text):
    """`ulpf watch TEXT`, for a client's own commands."""
    watch = watches.add(parse(text))
    session.expect_another()
    _know(watch)
    return {"number": watch.number}


# ---- stops and hits ----

def stop():
    """The hit of the present stop, if it is one of ours, and which watches have ended since."""
    hit, stops.shown = stops.shown, None
    ended = [{"number": w.number, "why": w.ended} for w in watches.all.values() if w.ended is not None and w.number not in _ended]
    _ended.update(e["number"] for e in ended)
    _ended.intersection_update(n for n, w in watches.all.items() if w.ended is not None)
    said = {"ended": ended}
    if hit is not None:
        said["hit"] = _hit(hit)
    return said


def _hit(hit):
    said = {"watch": hit.watch.number if hit.watch else None, "name": hit.name, "access": hit.access, "tid": hit.tid,
            "old": hit.shown(hit.old), "new": hit.shown(hit.new), "silent": hit.silent, "asked": json.dumps(completed.asked(hit))}
    if hit.call:
        said["call"] = hit.call
    ids = hit.watch.ids() if hit.watch else []
    return {**said, "ids": ids[:1000]}


def lines(records):
    """Hits out of the rings, as the stub would tell of them: the line of each without the place in the code, and what the
    adapter completes it from. The program may be running, and its server is not asked."""
    for watch in watches.all.values():
        if watch.spec.log:
            _know(watch)
    said = []
    for line in records:
        record = replies.record(json.loads(line))
        watch, place = _known.get(record.watch, (None, None))
        hit = stops.Hit(watch, place, record)
        said.append({"text": foreign.shown(history.begin(hit)), "asked": json.dumps(completed.asked(hit))})
    return {"lines": said}


def logging():
    """The stub's numbers of the watches that log, and is there any such watch?"""
    those = [w for w in watches.all.values() if w.spec.log]
    for w in those:
        _know(w)
    return {"ids": [id for w in those for id in w.ids()], "any": bool(those), "pid": watches.pid}


def listed(running=False):
    """All watches with the stub's numbers of their places; what they count is read from the shared area."""
    if facade.pid() and not running:
        session.check()
    said = []
    for w in watches.all.values():
        spec = w.spec
        _know(w)
        said.append({"number": w.number, "text": spec.text, "name": w.name, "kind": spec.kind, "log": spec.log,
                     "condition": spec.condition, "bytes": w.bytes, "places": len(w.places), "ids": w.ids(),
                     "enabled": w.enabled, "ended": w.ended, "before": {name: w.before.get(name, 0) for name in COUNTED}})
        if w.places and not w.heap:
            said[-1]["address"] = f"{w.places[0].address:#x}"
    return {"watches": said, "pid": watches.pid}


# ---- facts that MI does not report ----

def summary(expression):
    """Text of the pretty-printer of an expression's type for the whole value."""
    return {"text": facade.summary(facade.evaluate(expression))}


def writer(expression):
    """The last writer of an expression, in a few words; None: it has none, or is no memory."""
    try:
        _, hits, answers = history.last(expression, 1)
    except UlpfError:
        return {"text": None}
    if not hits or not any(answer.stretches for answer in answers):
        return {"text": None}
    who = {said["who"]: hit for hit, said in zip(hits, completed.of(hits))}
    if len(who) > 1:
        return {"text": f"{len(who)} writers: ulpf blame {expression}"}
    [(place, hit)] = who.items()
    call = f"{hit.call} in " if hit.call else ""
    return {"text": foreign.shown(f"{call}{place}, {hit.ago:.3f} s ago in thread {hit.tid}")}


def globals():
    """Names of the variables of this frame's file."""
    return {"names": facade.globals_here()}


def lines_of(file, line):
    """Where code of a source line begins."""
    return {"addresses": facade.code_at(file, line)}


def disassemble(address, before, count):
    return {"instructions": disassembly.instructions(address, before, count)}


_VERBS = info, summary, writer, add, remove, watch, stop, lines, listed, logging, globals, lines_of, disassemble
