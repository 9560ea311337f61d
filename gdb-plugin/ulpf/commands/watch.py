# SPDX-License-Identifier: MIT OR Apache-2.0
from .. import facade, heap, session
from ..spec import parse
from ..registry import watches
from . import UlpfCommand, UlpfError, number_words, numbers, plain_class


@plain_class
class Watch(UlpfCommand):
    """Watch bytes of memory: ulpf watch EXPR [:r|w|rw] [if COND] [CLAUSE]...

EXPR is an expression of the program's language, or one of these:
  arr[0..1024]          elements 0 to 1023 (arr[0..=1023] says the same); arr[..] all; arr[0..10].x a field of each
  *ptr@len              GDB's own way to say it
  list->*next.refcount  a field of each node of a list (the whole node: list->*next)
  map[*]  vec[*].x      each element of an array or container, or a field of each
  heap                  all that the program allocates, now and later
  blocks TYPE           each live heap block of the size of TYPE
  blocks @FUNCTION      what this function allocates from now on, until it is freed

Kind: w (writes, the default), r (reads), rw (both).
COND is evaluated by the program's own threads, without a stop. It may name globals, members, registers and
$old $new (values) $addr $len $tid $pid $kind $reads $writes $hits $pc of the hit. A local in it means the one of this frame.
Clauses:
  thread N              only hits of this thread (GDB's number)
  from F, outside F     only from code of a function or library, or only from elsewhere
  called from F         the same for where the function was called
  changed               only if the value changes
  skip N, count N       not the first N; only N
  log                   record hits and do not stop (ulpf log show)
  bt N                  with the return addresses of N callers
  follow                end with the heap object at free, move with it at realloc
  snapshot              stay where the pointers in EXPR lead now (else p->x goes where p points)
  most N                so many places it may have (else as `set ulpf max-elements` says)
  guard, debug-register where it lives

These watches cost GDB nothing at a stop, however many there are."""

    name = "watch"

    def __init__(self):
        # Without a completer of GDB's, `complete` is asked.
        facade.Command.__init__(self, "ulpf watch", facade.gdb.COMMAND_BREAKPOINTS)

    def complete(self, text, word):
        if word is None:  # GDB asks first how words are told apart
            word = "" if not text or text[-1].isspace() else text.split()[-1]
        before = text[:len(text) - len(word)]
        words = before.split()
        if words and words[-1] in ("from", "outside"):
            return facade.functions(word)
        if words and before[-1:].isspace() and words[-1] != "if":
            return [clause for clause in _clauses() if clause.startswith(word)] + (["heap"] if not words else [])
        return facade.gdb.COMPLETE_EXPRESSION

    def run(self, argument):
        spec = parse(argument)
        watch = watches.add(spec)
        session.expect_another()
        say = f"Ulpf {_kind(spec)}watch {watch.number}: {watch.name}{_size(watch)}"
        if spec.log:
            say += ", logged"
        facade.say(say)
        if spec.follow:
            heap.follow(watch)


def _clauses():
    """The first words of clauses, as the help has them."""
    _, _, listed = Watch.__doc__.partition("\nClauses:\n")
    lines = listed.partition("\n\n")[0].splitlines()
    heads = ",".join(line[2:24] for line in lines)
    return ["if", *(head.split()[0] for head in heads.split(",")), "auto", ":r", ":w", ":rw"]


def _kind(spec):
    return {"w": "", "r": "read ", "rw": "access "}[spec.kind]


def _size(watch):
    if watch.heap:
        return ""
    if len(watch.places) > 1:
        return f" ({len(watch.places)} places, {watch.bytes} bytes)"
    return f" ({watch.bytes} bytes)" if watch.bytes > 8 else ""


class _ByNumber(UlpfCommand):
    def complete(self, _text, word):
        return number_words(word)

    def chosen(self, argument):
        """The watches that are named; all if none is."""
        if not argument:
            return list(watches.all.values())
        return [watches.get(n) for n in numbers(argument, self.name)]

    def __init__(self):
        # Without a completer of GDB's, `complete` is asked.
        facade.Command.__init__(self, f"ulpf {self.name}", facade.gdb.COMMAND_BREAKPOINTS)


@plain_class
class Delete(_ByNumber):
    """Take watches away: ulpf delete [NUM...]. Without numbers: all."""

    name = "delete"

    def run(self, argument):
        for watch in self.chosen(argument):
            heap.unfollow(watch)
            heap.forget(watch)
            watches.remove(watch)


@plain_class
class Disable(_ByNumber):
    """Disarm watches for a while: ulpf disable [NUM...]. What they have counted stays."""

    name = "disable"

    def run(self, argument):
        for watch in self.chosen(argument):
            watches.disable(watch)


@plain_class
class Enable(_ByNumber):
    """Arm watches again: ulpf enable [NUM...]. Their expressions are evaluated anew."""

    name = "enable"

    def run(self, argument):
        session.check()
        for watch in self.chosen(argument):
            watches.enable(watch)


@plain_class
class Filter(UlpfCommand):
    """Change which hits of a watch matter: ulpf filter NUM [if COND] [CLAUSE]... Without clauses: all hits.

The clauses are those of `ulpf watch`; the watch keeps what it watches, and whether it logs or stops."""

    name = "filter"

    def run(self, argument):
        number, _, rest = argument.partition(" ")
        if not number.isdigit():
            raise UlpfError("ulpf filter", "it takes the number of a watch first", "say: ulpf filter 3 if $new > 900 skip 10")
        watch = watches.get(int(number))
        new = parse(f"{watch.name} {rest}")
        if new.expression != watch.name:
            raise UlpfError(f"ulpf filter {number}", f"{new.expression[len(watch.name):].strip()} says nothing about hits", "say: ulpf filter 3 if $new > 900 skip 10")
        old = watch.spec
        new.kind, new.log, new.bt, new.placement = old.kind, old.log, old.bt, old.placement
        new.follow, new.snapshot, new.most = old.follow, old.snapshot, old.most
        watches.refilter(watch, new)


@plain_class
class Commands(_ByNumber):
    """Say what GDB does when it has stopped for a watch: ulpf commands NUM [COMMAND [; COMMAND]...]

As `commands` does for GDB's own: `silent` as the first one shows nothing of the stop, `continue` as the last one goes on.
A command that needs more lines is defined first (help define). Without commands there are none any more."""

    name = "commands"

    def run(self, argument):
        number, _, rest = argument.partition(" ")
        if not number.isdigit():
            raise UlpfError("ulpf commands", "it takes the number of a watch first", "say: ulpf commands 3 backtrace 2; continue")
        watches.get(int(number)).commands = [c.strip() for c in rest.split(";") if c.strip()]
