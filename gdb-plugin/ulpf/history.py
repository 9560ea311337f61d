# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hits that are still in the rings of the program's threads: the log, and the last writers."""

import os

from . import places, replies, completed, wire
from .errors import UlpfError
from .stops import Hit, hit_of

# Maximum number of hits in one answer of the stub.
MOST = 20_000
_VERBS = {"read": "read  ", "write": "write ", "update": "update", "access": "access"}


def hits(most, numbers=()):
    """The last hits of watches that log or stop, the oldest first; and since when nothing is missing."""
    # Of some watches only: others may have filled the end.
    since, records = wire.log(MOST if numbers else min(most, MOST))
    found = [hit_of(r) for r in records]
    if numbers:
        found = [hit for hit in found if hit.watch is not None and hit.watch.number in numbers][-most:]
    return found, since


# When the youngest hit that `since_then` has shown was.
_shown = 0.0
# Maximum number of hits shown at once.
_MOST_SHOWN = 20


def since_then():
    """Lines: what watches that log have recorded since this was asked the last time."""
    global _shown
    from .registry import watches

    if not any(watch.spec.log for watch in watches.all.values()):
        return
    _, records = wire.log(10 * _MOST_SHOWN)
    if records and records[-1].time < _shown:
        _shown = 0.0  # another program's clock
    young = [hit for hit in map(hit_of, records) if hit.time > _shown and hit.watch is not None and hit.watch.spec.log]
    if not young:
        return
    _shown = young[-1].time
    if len(young) > _MOST_SHOWN:
        yield f"{len(young) - _MOST_SHOWN} or more hits before these: ulpf log show"
    yield from lines(young[-_MOST_SHOWN:])


def last(expression, most):
    """The place of an expression (or a value), the last writes to it (the youngest first), and the stub's whole answer."""
    found = places.find(expression) if isinstance(expression, str) else [places.of_value(expression)]
    hits, answers = [], []
    for place in found:
        answer = wire.ask(f"last {place.address:#x} {place.length} {most}", replies.last)
        answers.append(answer)
        hits += [Hit(None, place, hit) for hit in answer.last]
    if any(answer.stretches for answer in answers):
        return found, sorted(hits, key=lambda hit: hit.address), answers
    hits.sort(key=lambda hit: hit.ago)
    return found, hits[:most], answers


def record_writers():
    """From now on each byte of heap and data has its last writer."""
    wire.ask("last-writers")


def lines(hits):
    """Lines of hits, as `ulpf run` writes them."""
    for hit, said in zip(hits, completed.of(hits)):
        yield from completed.lines(said, begin(hit))


def by_writer(hits):
    """Lines: each writer of these stretches, the one of most bytes first."""
    writers = {}
    for hit, said in zip(hits, completed.of(hits)):
        writer = writers.setdefault((said["who"], hit.call), [0, 0, hit.ago])
        writer[:] = writer[0] + hit.length, writer[1] + 1, min(writer[2], hit.ago)
    for (who, call), (length, stretches, ago) in sorted(writers.items(), key=lambda item: (-item[1][0], item[1][2])):
        by = f"  by {call}" if call else ""
        yield f"{_bytes(length):>16} in {stretches} {'places' if stretches > 1 else 'place'}, the youngest {ago:.6f} s ago{by}  {who}"


def begin(hit):
    """The line of a hit, without the place in the code."""
    when = f"{hit.time:11.6f}" if hit.time is not None else f"{hit.ago:12.6f} s ago"
    number = f"#{hit.watch.number} " if hit.watch else ""
    call = f"  by {hit.call}" if hit.call else ""
    if hit.bytes == (None, None) and not hit.reads:
        # (From the records of last writers.)
        return f"{when} [{hit.tid}] {number}{_VERBS.get(hit.access, hit.access)} {hit.name}: {_bytes(hit.length)}{call}"
    if hit.reads:
        values = hit.shown(hit.new)
    else:
        values = f"{hit.shown(hit.old)} → {hit.shown(hit.new)}" + (" (silent)" if hit.silent else "")
    return f"{when} [{hit.tid}] {number}{_VERBS.get(hit.access, hit.access)} {hit.name}: {values}{call}"


def _bytes(length):
    return f"{length} byte{'s' if length != 1 else ''}"


# Format of a file, by the suffix of its name (command/session/src/suffix.rs).
_FORMS = {".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".txt": "text", ".log": "text", ".out": "text", ".err": "text", "": "text"}


def form(file):
    """Format of a file of this name."""
    end = os.path.splitext(file)[1].lower()
    if end not in _FORMS:
        raise UlpfError(f"the hits are not saved in {file}", f"ulpf has no format for a file called {end}",
                        "call it .jsonl (an object on each line), .csv (a table), .txt or .log (lines as ulpf log show has them)")
    return _FORMS[end]


def save(found, file):
    """Writes hits to a file: JSON lines, CSV, or text, by its name."""
    how = form(file)
    with open(file, "w", encoding="utf-8", newline="") as out:
        if how == "json":
            for said in completed.of(found):
                out.write(completed.line(said["hit"]) + "\n")
        elif how == "csv":
            out.writelines(completed.table(found))
        else:
            out.writelines(line + "\n" for line in lines(found))
