# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hits as the server completes them: the objects and rows of docs/json.md, and where the code is, as texts."""

import json

from . import facade, foreign, types, wire


def asked(hit):
    """What is known of a hit here (command/session/src/hit/completed.rs)."""
    old, new = hit.bytes
    return {"time": hit.time, "ago": hit.ago, "pid": _pid() or None, "tid": hit.tid, "watch": hit.watch.number if hit.watch else None,
            "spec": hit.watch.spec.text if hit.watch else f"{hit.address:#x}:{hit.length}", "name": hit.name, "access": hit.access,
            "addr": hit.address, "len": hit.length,
            "old": None if old is None else old.hex(), "new": None if new is None else new.hex(), "silent": hit.silent, "unchained": hit.unchained,
            "call": hit.call, "pc": hit.pc, "callers": hit.callers, "through": hit.through, "part": _part(hit)}


def _pid():
    from .registry import watches

    return watches.pid or facade.pid()


def _part(hit):
    _, at, type, _ = hit.part()
    if type is None:
        return None
    mask = hit.place.mask if hit.place is not None else 0
    return {"type": types.described(type, seen=[data for data in hit.bytes if data is not None]), "inside": max(0, hit.address - at), "mask": mask or None}


def of(hits):
    """The server's answers for hits."""
    return wire.tell([asked(hit) for hit in hits])


def line(record):
    """The object of a hit in one line."""
    return foreign.quoted(json.dumps(record, ensure_ascii=False))


def table(hits):
    """Lines of CSV, the heads of the columns first."""
    return [said["csv"] for said in wire.tell([asked(hit) for hit in hits], csv=True)]


def lines(said, before):
    """The writer behind `before`, and the callers if the watch has bt N."""
    yield foreign.shown(f"{before}  {said['who']}" if said["who"] else before)
    for caller in said["callers"]:
        yield foreign.shown(f"{'':14}  called from {caller}")
