# SPDX-License-Identifier: MIT OR Apache-2.0
"""The watches of this session: past GDB's breakpoint table, so that GDB does nothing for them at a stop.

A watch that the user sets is one or many *places*; each place is a watch of the stub, with an id of its own.
Ids go with the stub: another program, or the same after exec, has none of them.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from . import bytecode, facade, filters, places, replies, scope, settings, stops, wire
from .errors import UlpfError
from .spec import Spec

# Number of places that are checked to decide whether a watch is static.
_FEW = 3


@dataclass
class Watch:
    number: int
    spec: Spec
    callback: Optional[Callable] = None
    places: list = field(default_factory=list)
    enabled: bool = True
    # Why it is not armed now, if it is not.
    ended: Optional[str] = None
    # The values' type as a whole, for conditions.
    type: Any = None
    # All that there is on the heap: the stub's own business.
    heap: bool = False
    # Can it be found again when the program is started anew?
    static: bool = False
    # Of a local: where its scope begins (scope.Home).
    scope: Any = None
    words: str = ""
    # Commands that GDB executes when it has stopped for the watch.
    commands: list = field(default_factory=list)
    # Counters from before it was last armed.
    before: dict = field(default_factory=dict)
    # True if its final counters could not be read.
    uncounted: bool = False

    @property
    def name(self):
        return self.spec.expression

    @property
    def bytes(self):
        return sum(p.length for p in self.places)

    @property
    def armed(self):
        return self.enabled and self.ended is None

    def ids(self):
        return [p.id for p in self.places if p.id is not None]


class Elsewhere(UlpfError):
    """Another process than that of the watches is selected."""


class Watches:
    def __init__(self):
        self.all = {}
        # The stub's id: (watch, place).
        self.by_id = {}
        self._last = 0
        # Of the stub that has the ids, and of which process that is.
        self.session = None
        self.pid = 0
        # The same for all watches that this program has had. Their log can be shown after they, or the program, have
        # ended, until another program begins.
        self.known = {}
        self._over = False

    def get(self, number):
        watch = self.all.get(number)
        if watch is None:
            raise UlpfError(f"no ulpf watch {number}", "there is none with that number", "ulpf info watches lists them")
        return watch

    def add(self, spec, callback=None):
        """Arms a new watch; raises if nothing of it can be."""
        facade.need_program()
        self.renew()
        watch = Watch(self._last + 1, spec, callback)
        _locate(watch)
        self._arm(watch)
        self._last = watch.number
        self.all[watch.number] = watch
        scope.bind(watch)
        return watch

    def remove(self, watch):
        self.remove_many([watch])

    def remove_many(self, chosen):
        self._disarm_all(chosen)
        for watch in chosen:
            scope.forget(watch)
        for watch in chosen:
            del self.all[watch.number]

    def disable(self, watch):
        if watch.enabled:
            self._keep_counts(watch)
            self._disarm(watch)
            watch.enabled = False

    def enable(self, watch):
        if not watch.enabled or watch.ended is not None:
            if watch.ended is not None:
                _locate(watch)
                watch.ended = None
            watch.enabled = True
            try:
                self._arm(watch)
            except UlpfError as e:
                watch.ended = e.why
                raise

    def renew(self):
        """Is it still the same stub? Else nothing is armed any more."""
        about = wire.ask("about")
        if about.session != self.session:
            if self.elsewhere():
                raise Elsewhere("no ulpf watch here", f"they are those of process {self.pid}, which has forked this one ({about.pid})",
                                "select it: info inferiors, inferior 1")
            if self.session is not None:
                self.forget("the program has executed another, or was started again")
            self._begin(about)
        return about

    def elsewhere(self):
        """Does GDB have the program that they are set in beside the one that is selected?"""
        return self.session is not None and self.pid != facade.pid() and self.pid in facade.pids()

    def over(self):
        """The program is gone; its server still knows what was counted and logged."""
        if self.session is None:
            return
        armed = [watch for watch in self.all.values() if watch.ids()]
        try:
            counted = counts(armed, gone=True) if armed else {}
            for watch in armed:
                watch.before = counted[watch.number]
        except UlpfError:
            # The connection has ended with the program.
            for watch in armed:
                watch.uncounted = True
        self._over = True
        self.forget("the program is gone")

    def _begin(self, about):
        """There is another stub."""
        if self._over:
            # A run counts from its beginning, as GDB's breakpoints do.
            for watch in self.all.values():
                watch.before, watch.uncounted = {}, False
        self._over = False
        self.known = {}
        self.session, self.pid = about.session, about.pid

    def forget(self, why):
        """The stub that had them is gone."""
        self.session = None
        self.by_id.clear()
        for watch in self.all.values():
            if watch.ended is None:
                watch.ended = why
            for place in watch.places:
                place.id = None

    def again(self, relocated):
        """Another program: what can be found in it is armed. Returns what cannot, each with a reason. `relocated`: all
        of it is where it will be."""
        self.forget("the program was started again")
        self._begin(wire.ask("about"))
        enabled = [w for w in self.all.values() if w.enabled]
        return [(watch, why) for watch in enabled if (why := self.retry(watch, relocated))]

    def retry(self, watch, relocated):
        """Arms a watch in another program, or has it armed later; why not, if it cannot be."""
        if watch.scope is not None and not watch.static:
            watch.ended = f"{watch.scope.function} has not been called yet"
            try:
                return scope.expect(watch) if relocated else watch.ended
            except UlpfError as e:
                watch.ended = e.why
                return e.why
        if not (watch.static or watch.heap):
            watch.ended = "its memory went with the program that it was set in"
            return watch.ended
        try:
            self.found(watch)
            return None
        except UlpfError as e:
            watch.ended = e.why
            return e.why

    def found(self, watch):
        """Arms a watch whose memory is there again."""
        _locate(watch)
        watch.ended = None
        self._arm(watch)

    def extend(self, watch, place):
        """One more place of a watch whose places come with time."""
        watch.places.append(place)
        if watch.armed:
            self._arm(watch, [place])

    def shrink(self, watch, place):
        """A place is gone; what it has counted is not."""
        alone = Watch(watch.number, watch.spec, places=[place], before=watch.before)
        watch.before = counts([alone])[watch.number]
        watch.places.remove(place)
        if place.id is not None:
            self.by_id.pop(place.id, None)
            wire.many([f"unwatch {place.id}"])

    def _arm(self, watch, only=None):
        """Arms the places of a watch, or only some."""
        stops.prepare()
        wanted = watch.places if only is None else only
        commands, by_server = _commands(watch, wanted)
        failed = self._heard(watch, wanted, wire.many(commands))
        if failed and only is not None:
            raise failed[0][1]
        if failed:
            self._some_refused(watch, failed)
        if by_server:
            self._by_server(watch)

    def _heard(self, watch, wanted, answers):
        """Takes the stub's answers for these places; the refused ones have their reasons."""
        failed = []
        for place, answer in zip(wanted, answers):
            if isinstance(answer, replies.Refused):
                place.id = None
                failed.append((place, answer.error()))
            else:
                place.id = answer.id
                self.by_id[place.id] = self.known[place.id] = (watch, place)
        return failed

    def add_many(self, asked):
        """Arms many watches with few words to the stub: (spec, places or None, callback) for each; a watch for
        each, or the error (of whatever kind) that says why not."""
        facade.need_program()
        self.renew()
        stops.prepare()
        results, wanted = [], []
        for spec, found, callback in asked:
            watch = Watch(self._last + 1, spec, callback)
            try:
                _locate(watch, found)
                commands, by_server = _commands(watch, watch.places)
                if by_server or watch.heap:
                    self._arm(watch)
                else:
                    wanted.append((watch, len(results), commands))
                self._last = watch.number
                results.append(watch)
            except Exception as e:  # GDB's own, say: the others are not to suffer
                results.append(e)
        answers = iter(wire.many(c for _, _, commands in wanted for c in commands))
        for watch, at, commands in wanted:
            failed = self._heard(watch, watch.places, [next(answers) for _ in commands])
            if failed:
                try:
                    self._some_refused(watch, failed)
                except UlpfError as e:
                    results[at] = e
        for watch in results:
            if isinstance(watch, Watch):
                self.all[watch.number] = watch
                if not watch.static:
                    scope.bind(watch)
        return results

    def _some_refused(self, watch, failed):
        """All or nothing: half a watch would miss silently."""
        self._disarm(watch)
        place, error = failed[0]
        if len(watch.places) == 1:
            raise error
        more = f"; so are {len(failed) - 1} more" if len(failed) > 1 else ""
        raise UlpfError(f"{watch.name} is not watched", f"{place.name} is refused ({error.why}){more}", error.what_to_do)

    def _by_server(self, watch):
        """A condition that GDB cannot compile: the server does, if it knows the variable by its name."""
        rest = f"{watch.name} {watch.words} if {watch.spec.condition}"
        # (What follows may be nowhere now, and is known by its number.)
        asked = [f"filter {place.id} of {rest}" for place in watch.places if place.path] or [f"filter {rest}"]
        filtered = set()
        for command in asked:
            try:
                answer = wire.change_by_name(command)
            except UlpfError as e:
                answer = str(e)
            filtered |= set(answer.ids) if isinstance(answer, replies.Filtered) else set()
        if not set(watch.ids()) <= filtered:
            self._disarm(watch)
            raise UlpfError(f"the condition {watch.spec.condition} cannot be used", _words(answer),
                            "use integers and pointers, or a global variable with its own name")

    def refilter(self, watch, spec):
        """Other filter words for a watch that stays where it is."""
        old, watch.spec = watch.spec, spec
        try:
            words, by_server = _filter(watch)
            answers = wire.many(f"filter {p.id}{_of_place(p, spec.kind)} {words}" for p in watch.places if p.id is not None)
            for answer in answers:
                if isinstance(answer, replies.Refused):
                    raise answer.error()
            watch.words = words
            if by_server and watch.ids():
                self._by_server(watch)
        except UlpfError:
            watch.spec = old
            raise

    def _disarm(self, watch):
        self._disarm_all([watch])

    def _disarm_all(self, chosen):
        ids = [id for watch in chosen for id in watch.ids()]
        for watch in chosen:
            for place in watch.places:
                place.id = None
        for id in ids:
            self.by_id.pop(id, None)
        if ids and facade.pid():
            try:
                wire.many(f"unwatch {id}" for id in ids)
            except UlpfError:
                if any(watch.ended is None for watch in chosen) and facade.pid():
                    raise

    def _keep_counts(self, watch):
        counted = counts([watch])[watch.number]
        watch.before = counted

    def end(self, watch, why):
        """It stays in the list with what it has counted."""
        self.pause(watch)
        watch.ended = why

    def now_at(self, id, address):
        """Where a place that follows pointers is; 0: nowhere."""
        _, place = self.by_id.get(id, (None, None))
        if place is not None:
            place.address = address

    def pin(self, watch):
        """A watch that follows stays where it is from here on."""
        self.pause(watch)
        watch.places = [replace(place, path="", base=0) for place in watch.places]
        self._arm(watch)

    def pause(self, watch):
        """Nothing is watched until `moved` says where."""
        self._keep_counts(watch)
        self._disarm(watch)

    def moved(self, watch, by):
        """The object is so many bytes further now: the places move with it."""
        for place in watch.places:
            place.address += by
        self._arm(watch)


def _words(answer):
    """Why a filter was not set, as the server says it."""
    if isinstance(answer, replies.Refused):
        answer = answer.error()
    return str(answer).strip().rstrip(".")


def _locate(watch, found=None):
    """Finds the places of a watch, if they are not known already."""
    if found:
        watch.places = found
    elif places.is_heap(watch.spec.expression):
        watch.heap, watch.places = True, [places.Place("heap", 0, 0)]
        return
    elif watch.spec.expression.startswith("blocks "):
        from . import heap

        of = watch.spec.expression.split(None, 1)[1]
        if of.startswith("@"):
            heap.expect(watch, of[1:].strip())
            return
        watch.places = heap.blocks(of)
    else:
        stays = watch.spec.snapshot or watch.spec.follow
        with settings.with_most(watch.spec.most):
            watch.places = (places.find if stays else places.locate)(watch.spec.expression)
    watch.type = watch.places[0].type
    watch.static = all(facade.is_static(p.anchor[0]) for p in watch.places[:_FEW])


def _commands(watch, wanted):
    """The stub's commands for these places of a watch, and whether the server has to add the condition."""
    spec = watch.spec
    mode = "log" if spec.log else "stop log"
    tail = f"{spec.kind} {mode}" + (f" bt {spec.bt}" if spec.bt else "") + (f" {spec.placement}" if spec.placement else "")
    words, by_server = _filter(watch)
    watch.words = words
    if watch.heap:
        return [f"watch heap {tail} {words}"], by_server
    return [f"watch {p.path or hex(p.address)} {p.length} {tail}{_of_place(p, spec.kind)} {words}" for p in wanted], by_server


def _filter(watch):
    """The filter's words, and whether the server has to add the condition."""
    words = filters.words(watch.spec, watch.type)
    if watch.spec.condition:
        try:
            words.append(filters.condition(watch.spec.condition, watch.type))
        except (filters.NotByGdb, bytecode.Unsupported) as e:
            if len(watch.places) > 1 or watch.heap:
                raise UlpfError(f"the condition {watch.spec.condition} cannot be used", f"GDB cannot compile it: {e}",
                                "use integers and pointers") from None
            return " ".join(words), True
    return " ".join(words), False


def _of_place(place, kind):
    words = ""
    if place.mask:
        words += f" if x {bytecode.bits_changed(place.mask, kind).hex()}"
    if place.unit and (place.unit != place.length or place.many is not None):
        words += f" unit {place.unit}"
    return words


COUNTED = "hits", "silent", "filtered", "false_positives", "stops", "traps"


def counts(watches, gone=False):
    """For each watch by its number: the sum of its places' counters, and their placements. Also the number of places
    that are gone with their memory, or that `ulpf top` has switched off or removed. `gone`: the program has ended, and its
    server answers."""
    found = {w.number: {**{name: w.before.get(name, 0) for name in COUNTED}, "placements": set(), "gone": 0, "off": 0, "taken": 0, "moved": None}
             for w in watches}
    wanted = {p.id: w.number for w in watches for p in w.places if p.id is not None}
    if wanted and (gone or facade.pid() and not _registry.elsewhere()):
        stats = wire.ask("stats", replies.statistics)
        for counted in stats.watches:
            number = wanted.pop(counted.id, None)
            if number is None:
                continue
            sums = found[number]
            for name in COUNTED:
                sums[name] += getattr(counted, name)
            sums["gone"] += counted.gone
            if counted.moved is not None:
                sums["moved"] = counted.moved
                _registry.now_at(counted.id, counted.start)
            if counted.off:
                sums["off"] += 1
            else:
                sums["placements"].add(counted.placement)
        for id, number in wanted.items():
            # Others take effect when the program goes on.
            found[number]["taken"] += id < stats.next
    return found


watches = _registry = Watches()
