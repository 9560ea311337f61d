# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the rings of the program's threads still know: the log, and who wrote something last."""

import csv
import json

from . import facade, foreign, places, replies, wire
from .stops import Hit, hit_of

# What the stub gives at once.
MOST = 20_000
_VERBS = {"read": "read  ", "write": "write ", "update": "update", "access": "access"}


def hits(most, numbers=()):
    """The last hits of watches that log or stop, the oldest first; and since when nothing is missing."""
    # Of some watches only: others may have filled the end.
    since, records = wire.log(MOST if numbers else min(most, MOST))
    found = [hit_of(record) for record in records]
    if numbers:
        found = [hit for hit in found if hit.watch is not None and hit.watch.number in numbers][-most:]
    return found, since


def last(expression, most):
    """The place of an expression, the last writes to it (the youngest first), and the stub's whole answer."""
    found = places.find(expression)
    hits, answers = [], []
    for place in found:
        answer = wire.ask(f"last {place.address:#x} {place.length} {most}", replies.last)
        answers.append(answer)
        for record in answer.last:
            hits.append(Hit(None, place, record))
    hits.sort(key=lambda hit: hit.ago)
    return found, hits[:most], answers


def line(hit, when):
    """One line, as `ulpf run` writes it."""
    number = f"#{hit.watch.number} " if hit.watch else ""
    if hit.reads:
        values = hit.shown(hit.new)
    else:
        values = f"{hit.shown(hit.old)} → {hit.shown(hit.new)}" + (" (silent)" if hit.silent else "")
    where = f"  by {hit.call}" if hit.call else ""
    if hit.pc is not None:
        where += "  " + at(hit.pc)
    return foreign.shown(f"{when} [{hit.tid}] {number}{_VERBS.get(hit.access, hit.access)} {hit.name}: {values}{where}")


def at(pc):
    source = facade.line_at(pc)
    return (facade.symbol_at(pc) or f"{pc:#x}") + (f" at {source}" if source else "")


def frames(hit):
    """The callers, if the watch has bt N. A return address is behind its call."""
    return [foreign.shown(f"{'':14}  called from {at(pc - 1)}") for pc in hit.callers]


def _plain(hit):
    return {"time": hit.time, "watch": hit.watch.number if hit.watch else None, "name": hit.name, "tid": hit.tid,
            "access": hit.access, "addr": f"{hit.address:#x}", "len": hit.length,
            "old": hit.shown(hit.old), "new": hit.shown(hit.new), "silent": hit.silent,
            "pc": f"{hit.pc:#x}" if hit.pc is not None else None, "where": at(hit.pc) if hit.pc is not None else None,
            "call": hit.call, "callers": [at(pc - 1) for pc in hit.callers]}


def save(found, file):
    """Writes hits to a file: JSON lines, CSV, or text, by its name."""
    with open(file, "w", encoding="utf-8", newline="") as out:
        if file.endswith((".json", ".jsonl")):
            for hit in found:
                out.write(foreign.quoted(json.dumps(_plain(hit), ensure_ascii=False)) + "\n")
        elif file.endswith(".csv"):
            rows = [_plain(hit) for hit in found]
            for row in rows:
                row["callers"] = " < ".join(row["callers"])
                row.update({key: foreign.shown(value) for key, value in row.items() if isinstance(value, str)})
            names = list(rows[0]) if rows else ["time"]
            writer = csv.DictWriter(out, names)
            writer.writeheader()
            writer.writerows(rows)
        else:
            for hit in found:
                out.write("\n".join([line(hit, f"{hit.time:11.6f}"), *frames(hit)]) + "\n")
