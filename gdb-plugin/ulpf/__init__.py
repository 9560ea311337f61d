# SPDX-License-Identifier: MIT OR Apache-2.0
"""ulpf in GDB: the `ulpf` commands, and the same for scripts.

    python
    def hit(h):
        print(h.name, h.old, h.new, hex(h.pc), h.tid)
        return h.new > 900          # False: the program goes on
    w = ulpf.watch("total", condition="$new != $old", callback=hit)
    end
    python print(w.number, ulpf.counts(w)["hits"]); ulpf.delete(w)
"""

__all__ = ["watch", "watches", "counts", "delete", "enable", "disable", "last", "blame", "log", "UlpfError", "Hit"]

from .errors import UlpfError
from .spec import parse
from .stops import Hit

_loaded = False


def watch(expression, kind=None, condition=None, thread=None, inside=None, outside=None, changed=False, skip=None,
          count=None, log=False, bt=0, callback=None):
    """Arms a watch; `expression` is what `ulpf watch` takes, with its clauses or without.

    `callback(hit)` is asked at every hit that passes the filter; if it returns False, the program goes on.
    """
    from .registry import watches as all_watches

    spec = parse(expression)
    spec.kind = kind or spec.kind
    spec.condition = condition or spec.condition
    spec.thread = thread if thread is not None else spec.thread
    spec.places += [(False, True, inside)] if inside else []
    spec.places += [(False, False, outside)] if outside else []
    spec.log = spec.log or log
    spec.words += " changed" if changed else ""
    spec.words += f" skip {skip}" if skip is not None else ""
    spec.words += f" count {count}" if count is not None else ""
    spec.bt = bt or spec.bt
    if spec.kind not in ("r", "w", "rw"):
        raise UlpfError("ulpf.watch", f"{spec.kind} is no kind of access", "say r, w or rw")
    return all_watches.add(spec, callback)


def watches():
    """All watches, by their numbers."""
    from .registry import watches as all_watches

    return list(all_watches.all.values())


def _one(watch):
    from .registry import watches as all_watches

    return all_watches.get(watch) if isinstance(watch, int) else watch


def counts(watch):
    """What a watch has counted: hits, silent, filtered, false_positives, stops, traps, placements."""
    from .registry import counts as count

    watch = _one(watch)
    return count([watch])[watch.number]


def delete(watch):
    from .registry import watches as all_watches

    all_watches.remove(_one(watch))


def enable(watch):
    from .registry import watches as all_watches

    all_watches.enable(_one(watch))


def disable(watch):
    from .registry import watches as all_watches

    all_watches.disable(_one(watch))


def last(expression, most=1):
    """The last writes to the bytes of an expression or a gdb.Value, the youngest first. With records of last writers (`ulpf
    blame`): each stretch of bytes with one writer."""
    from . import history

    return history.last(expression, most)[1]


blame = last


def log(most=100):
    """The last hits of all watches, the oldest first."""
    from . import history

    return history.hits(most)[0]


def load():
    """Registers the commands; once."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from . import advice, arguments, commands, facade, ide, non_stop, own, program, refusals, screen, session, settings

    settings.register()
    commands.register()
    session.register()
    own.register()
    advice.register()
    refusals.register()
    non_stop.register()
    ide.register()
    # `python ulpf.watch(…)` needs no import.
    import __main__

    __main__.ulpf = __import__(__name__)
    assert facade.gdb is not None and arguments.offer and program.follow and screen.begin
