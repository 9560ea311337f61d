# SPDX-License-Identifier: MIT OR Apache-2.0
"""Watches through the life of programs: started, started again, executing another, gone."""

from . import facade, heap, history, own, returns, scope, settings, stops, wire
from .errors import UlpfError
from .registry import Elsewhere, watches

# Where a program begins, the earliest first. At the first it may not be relocated yet, and a static one is
# there already when GDB first sees it.
_PLACES = "_start", "main"

_begins = []
# Where it was found out that there is no ulpf.
_not_ours = None
# Watches that could not be set at the first of them.
_lost = []


class _Begin(facade.Breakpoint):
    """Where a program begins: if it is not the one that the watches were set in, they are set anew."""

    def stop(self):
        own.begun()
        try:
            _begun(self is _begins[-1])
        except Exception as e:  # GDB would show a traceback
            facade.say(f"ulpf: the watches are not set again: {e}")
        return False


def _begun(at_last):
    if not watches.all or watches.elsewhere():
        return
    if wire.ask("about").session != watches.session:
        _lost[:] = watches.again(at_last)
    else:
        _lost[:] = [(watch, why) for watch, _ in _lost if (why := watches.retry(watch, at_last))]
    if at_last:
        for watch, why in _lost:
            facade.say(f"ulpf: watch {watch.number} ({watch.name}) is not set again: {why}.")
        _lost.clear()


def expect_another():
    """From the first watch on: programs that begin are noticed."""
    if _begins:
        return
    places = [name for name in _PLACES if facade.is_location(name)]
    if not places:  # a stripped program
        entry = facade.entry_point()
        places = [f"*{entry}"] if entry else []
    with facade.own_language():
        _begins.extend(_Begin(where, internal=True) for where in places)


def is_ready():
    """Is there nothing that has to be created for the first watch?"""
    return bool(_begins) and stops.is_ready()


def get_ready():
    """Creates what watches need before there is one, where that cannot be done when GDB tells of it."""
    global _not_ours
    if facade.may_create() or is_ready() or not facade.pid() or facade.pid() == _not_ours:
        return
    try:
        stops.prepare()
    except UlpfError:
        _not_ours = facade.pid()
        return
    expect_another()


def _stopped(event):
    get_ready()
    own.at_stop()
    returns.at_stop()
    try:
        if settings.show_hits():
            for line in history.since_then():
                facade.say(line)
        stops.show(event)
    except Exception as e:
        facade.say(f"ulpf: {e}")


def _exited(event):
    gone = getattr(event, "inferior", None)
    if gone is not None and gone.pid not in (0, watches.pid) and watches.pid in facade.pids():
        return  # a forked child
    watches.over()
    stops.rest()
    heap.rest()
    scope.rest()


def register():
    facade.on("stop", _stopped)
    facade.on("exited", _exited)
    facade.on("connection_removed", lambda _event: stops.rest())


def check():
    """Before watches are listed: are they still there?"""
    if facade.pid():
        try:
            watches.renew()
        except Elsewhere:
            pass
        except UlpfError:
            watches.forget("the program is not under ulpf any more")
