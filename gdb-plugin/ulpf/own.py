# SPDX-License-Identifier: MIT OR Apache-2.0
"""GDB's own watches: their conditions, threads and ignore counts are decided by the program's threads.

GDB's protocol transmits only the bytes of a watch. The plugin reads the rest (`watch x if …`, `condition`, `ignore`,
`thread N`) from GDB's own breakpoint objects, and sends it to the stub (`monitor ulpf condition`). GDB does not notice,
and decides again at each hit that it receives.

    breakpoint_created, _modified, _deleted ─▶ refresh(): what do GDB's watches ask, where are they? ─▶ condition ADDR LEN …
    the plugin's byte is hit ─▶ stopped(): settle ─▶ GDB reads the values anew, ignore counts go down; it goes on

GDB decides where the stub cannot (`why`): nothing is missed, and each hit is a stop that GDB may discard.
"""

from . import facade, own_conditions, own_places, replies, wire
from .errors import UlpfError

gdb = facade.gdb

# Bytes of a value that a hit's record keeps.
_MOST_BYTES = 64


class Own:
    """One of GDB's watches."""

    def __init__(self, breakpoint):
        self.number, self.breakpoint = breakpoint.number, breakpoint
        self.asked = None
        # Hits that GDB has not counted: its ignore count would have taken them.
        self.unheard = 0
        # Why GDB decides, if it does; the stub's bytes if it does not.
        self.why, self.at = None, None
        self.expression, self.frame, self.unknown = None, None, None
        self.condition, self.not_compiled = None, None
        try:
            self.expression = own_places.Expression(breakpoint.expression or "")
            if self.expression.local and not self.expression.fixed:
                self.frame = own_conditions.Frame([path.symbol for path in self.expression.paths if path.local])
        except (own_places.Unknown, own_conditions.NotCompiled) as e:
            self.unknown = str(e)
        except (gdb.error, RuntimeError, ValueError) as e:
            self.unknown = facade.error_text(e)

    def look(self):
        """Reads the present condition. True if it has changed, apart from GDB's own counts."""
        b = self.breakpoint
        asked = (b.enabled, b.condition, b.thread, b.task, b.ignore_count)
        before, self.asked = self.asked, asked
        if before is None or before[1] != asked[1]:
            self._compile(b.condition)
        return before != asked

    def _compile(self, text):
        self.condition, self.not_compiled = None, None
        if text:
            try:
                self.condition = own_conditions.Condition(text)
            except own_conditions.NotCompiled as e:
                self.not_compiled = str(e)
            except (gdb.error, RuntimeError) as e:
                # Before the program runs, say, nothing has an address.
                self.not_compiled = facade.error_text(e)

    @property
    def asks(self):
        """Is there anything to decide?"""
        enabled, condition, thread, task, ignored = self.asked
        return enabled and (condition or thread is not None or task or ignored > 0)

    @property
    def kind(self):
        kinds = {gdb.BP_HARDWARE_WATCHPOINT: "w", gdb.BP_READ_WATCHPOINT: "r", gdb.BP_ACCESS_WATCHPOINT: "rw"}
        return kinds.get(self.breakpoint.type)

    @property
    def decided(self):
        return self.at is not None


_own = {}
# Watches set in the stub: (start, length, kind): (words, the watches).
_set = {}
# The stack pointer of the innermost function whose locals GDB watches, as the stub has it.
_locals = 0
_session = None
# Set while the plugin itself changes breakpoints, so that their events are ignored.
_busy = False


def watch(number):
    return _own.get(number)


def all():
    return [_own[number] for number in sorted(_own)]


def in_force():
    return bool(_set)


def _refusal(own, leaf):
    """Why GDB has to decide about the hits of a watch, if it has to."""
    b = own.breakpoint
    if own.kind is None:
        return "GDB watches it in single steps"
    if b.task:
        return "it is bound to an Ada task"
    if hasattr(b, "stop"):
        return "a script decides at each hit (stop)"
    if own.asked[1] and not own.condition:
        return own.not_compiled or "its condition is not compiled"
    if leaf is None:
        return "its value is not one piece of memory"
    if leaf[1] > _MOST_BYTES:
        return f"its value has more than {_MOST_BYTES} bytes"
    return None


def _refuse_all(of, why):
    for own in of:
        own.why = own.why or why


def _wanted():
    """The watches and conditions to set in the stub."""
    enabled = [own for own in _own.values() if own.asked and own.asked[0]]
    asking = [own for own in enabled if own.asks]
    for own in _own.values():
        own.why, own.at = None, None
    if not asking:
        return {}
    if gdb.parameter("non-stop"):
        _refuse_all(asking, "in non-stop mode GDB decides")
        return {}
    if len(gdb.inferiors()) > 1 and len(facade.pids()) > 1:
        _refuse_all(asking, "there are several processes")
        return {}
    # (A watch of some bits has no address, and is unknown.)
    pieces, leaves, unknown = {}, {}, {}
    for own in enabled:
        try:
            if own.unknown:
                raise own_places.Unknown(own.unknown)
            pieces[own.number], leaves[own.number] = own.expression.pieces()
        except (own_places.Unknown, gdb.error, RuntimeError) as e:
            unknown[own.number] = facade.error_text(e)
    if unknown:
        for own in asking:
            own.why = unknown.get(own.number)
        number, why = next(iter(unknown.items()))
        _refuse_all(asking, f"it may share its bytes with watchpoint {number}, of which nobody can tell what GDB watches ({why})")
        return {}
    chosen = {}
    for own in asking:
        own.why = _refusal(own, leaves[own.number])
        if not own.why:
            chosen.setdefault((*leaves[own.number], own.kind), []).append(own)
    wanted = {}
    for key, those in chosen.items():
        start, length, kind = key
        numbers = {own.number for own in those}
        others = [n for n, some in pieces.items() if n not in numbers and any(_overlap(p, (start, length)) for p in some)]
        same = [n for n in others if (start, length) in pieces[n] and _own[n].kind == kind]
        if same or others and kind == "r":
            for own in those:
                own.why = f"watchpoint {(same or others)[0]} watches the same bytes"
            continue
        words = _words(those, kind, alone=not others and len(those) == 1)
        if words is None:
            continue
        for own in those:
            own.at = key
        wanted[key] = (words, sorted(numbers))
    return wanted


def _overlap(a, b):
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]


def _words(those, kind, alone):
    ignored = [own for own in those if own.asked[4] > 0]
    framed = those[0].frame or those[0].condition and those[0].condition.frame
    skips = alone and ignored and not framed
    questions = []
    for own in those:
        lwp = None
        if own.asked[2] is not None:
            lwp = next((t.ptid[1] for t in gdb.selected_inferior().threads() if t.global_num == own.asked[2]), None)
            if lwp is None:
                own.why = f"there is no thread {own.asked[2]} any more"
                return None
        questions.append(own_conditions.Question(own.condition, lwp, own.frame))
    if not skips and not any(q.condition or q.lwp is not None for q in questions):
        those[0].why = "its ignore count depends on another watch of these bytes, or on a frame"
        return None
    words = ""
    if skips:
        words += (" changed" if kind == "w" else "") + f" skip {those[0].asked[4]}"
    if any(q.condition or q.lwp is not None for q in questions):
        code = own_conditions.any_of(questions)
        if len(code) > 60000:
            those[0].why = "its condition is too long"
            return None
        words += " if x " + code.hex()
    return words


def refresh():
    """Says to the stub what has changed."""
    global _session, _busy, _locals
    if _busy or not facade.pid():
        return
    _busy = True
    try:
        _recompile_if_new()
        wanted = _wanted()
        if not wanted and not _set:
            return
        commands = []
        locals = min((own.frame.rsp for own in _own.values() if own.frame and own.asked[0]), default=0)
        if wanted and locals != _locals:
            wire.many([f"locals {locals:#x}"])
            _locals = locals
        for key in [k for k in _set if k not in wanted]:
            commands.append((key, ""))
        for key, (words, _numbers) in wanted.items():
            if key not in _set or _set[key] != wanted[key]:
                commands.append((key, words))
        if not commands:
            return
        if wanted:
            from . import stops

            stops.prepare()
        answers = wire.many(f"condition {start:#x} {length} {kind}{words}" for (start, length, kind), words in commands)
        for (key, words), answer in zip(commands, answers):
            if isinstance(answer, replies.Refused):
                for number in wanted.get(key, ("", []))[1]:
                    _own[number].why, _own[number].at = answer.why, None
                _set.pop(key, None)
            elif words:
                _set[key] = wanted[key]
            else:
                _set.pop(key, None)
    finally:
        _busy = False


def _recompile_if_new():
    """Another program: its addresses are others, and nothing is set in it."""
    global _session
    if _session is not None or not any(own.asked and own.asked[1] for own in _own.values()):
        return
    _session = wire.ask("about").session
    for own in _own.values():
        own._compile(own.asked and own.asked[1])


def forget():
    """The program is gone."""
    global _session, _locals
    _session, _locals = None, 0
    _set.clear()
    for own in _own.values():
        own.at = None


def begun():
    """A program begins."""
    forget()
    for own in _own.values():
        own.unheard = 0
    _guarded(refresh)


def stopped():
    """The plugin's byte was hit, or GDB has stopped. True: there was something that GDB has not heard of."""
    if not _set:
        return False
    settle = wire.ask("settle", replies.settle)
    for one in settle.of:
        _settle(one)
    if settle.look:
        _guarded(refresh)
    return bool(settle.of) or settle.look


def at_stop():
    """GDB has stopped, and its user may step: from here on it knows all."""
    if _set and facade.pid():
        _guarded(stopped)


def _settle(one):
    global _busy
    key = one.address, one.length, one.kind
    numbers = _set[key][1] if key in _set else []
    data = facade.read_memory(one.address, one.length)
    _busy = True
    try:
        for number in numbers:
            own = _own.get(number)
            if own is None or not own.breakpoint.is_valid():
                continue
            b = own.breakpoint
            if one.skipped:
                b.ignore_count = max(0, b.ignore_count - one.skipped)
                own.unheard += one.skipped
                own.asked = own.asked[:4] + (b.ignore_count,)
                _set[key] = (_set[key][0], numbers)
            if own.kind == "rw" and b.enabled:
                # GDB forgets the values of other watches only.
                b.enabled = False
                b.enabled = True
        if data is not None:
            # The same bytes again: nothing is written, but GDB reads them anew before the program goes on.
            facade.gdb.selected_inferior().write_memory(one.address, data)
    finally:
        _busy = False


def _guarded(do):
    """Runs `do`. An error must not disturb GDB; then GDB decides about its watches again."""
    try:
        do()
    except UlpfError as e:
        if _set:
            facade.say(f"ulpf: {e} What was said of conditions before stays in force until the program stops.")
    except (gdb.error, RuntimeError, ValueError) as e:
        facade.say(f"ulpf: {type(e).__name__}: {e}")


def _created(breakpoint):
    if _busy or breakpoint.number < 0 or not facade.is_watchpoint(breakpoint):
        return
    own = _own[breakpoint.number] = Own(breakpoint)
    own.look()
    if own.asks or _set or any(o.asks for o in _own.values()):
        from . import session

        if facade.may_create() or session.is_ready():
            _looked(own)
        else:
            # Its condition is GDB's until then.
            facade.later(lambda: _looked(own))


def _looked(own):
    """Sends the condition of a watch to the stub."""
    from . import session

    if own.asks and own.breakpoint.is_valid():
        session.expect_another()
    _guarded(refresh)


def _modified(breakpoint):
    own = _own.get(breakpoint.number)
    if own is None or _busy:
        return
    if own.look() and (own.asks or _set):
        from . import session

        session.expect_another()
        _guarded(refresh)


def _deleted(breakpoint):
    if _own.pop(breakpoint.number, None) is not None and (_set or _own):
        _guarded(refresh)


def _written(_event):
    if _set and not _busy:
        _guarded(refresh)


def hits(own):
    """How often GDB would say that its breakpoint was hit."""
    return own.breakpoint.hit_count + own.unheard


def register():
    for breakpoint in gdb.breakpoints():
        _created(breakpoint)
    facade.on("breakpoint_created", _created)
    facade.on("breakpoint_modified", _modified)
    facade.on("breakpoint_deleted", _deleted)
    facade.on("memory_changed", _written)
    facade.on("exited", lambda _event: forget())
