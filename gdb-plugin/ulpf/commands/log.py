# SPDX-License-Identifier: MIT OR Apache-2.0
import os
import shlex

from .. import facade, history, session
from ..errors import UlpfError
from ..registry import watches
from . import UlpfCommand, numbers, plain_class


@plain_class
class LogShow(UlpfCommand):
    """Show the last hits: ulpf log show [COUNT] [of NUM...]

All watches' hits that logged or stopped, GDB's own among them; 20 unless COUNT says otherwise."""

    name = "log show"

    def run(self, argument):
        session.check()
        most, chosen = _asked(argument, "log show", 20)
        found, since = history.hits(most, chosen)
        if not found:
            facade.say("No hits yet.")
        for line in history.lines(found):
            facade.say(line)
        if since is not None and found and found[0].time <= since:
            facade.say(f"Some hits before {since} s have been overwritten by later ones.")


@plain_class
class LogSave(UlpfCommand):
    """Save the last hits to a file: ulpf log save FILE [COUNT] [of NUM...]

FILE.jsonl gets a JSON object on each line (docs/json.md), FILE.csv a table of the same, FILE.txt and FILE.log the lines of
`ulpf log show`.
At most 20,000 hits."""

    name, completes = "log save", "COMPLETE_FILENAME"

    def run(self, argument):
        session.check()
        words = shlex.split(argument)
        if not words:
            raise UlpfError("ulpf log save", "no file is named", "say: ulpf log save hits.csv")
        file = os.path.expanduser(words[0])
        most, chosen = _asked(" ".join(words[1:]), "log save", history.MOST)
        history.form(file)
        found, _ = history.hits(most, chosen)
        try:
            history.save(found, file)
        except OSError as e:
            raise UlpfError(f"the hits are not saved in {file}", e.strerror or str(e), "name another file") from None
        facade.say(f"{len(found)} hits saved in {file}.")


def _asked(argument, what, most):
    count, of, rest = argument.partition("of ")
    count = count.strip()
    if count:
        if not count.isdigit() or int(count) == 0:
            raise UlpfError(f"ulpf {what}", f"{count} is no number of hits", f"say: ulpf {what}{' FILE' if 'save' in what else ''} 100 of 1 2")
        most = int(count)
    chosen = numbers(rest, what) if of else []
    return most, {watches.get(n).number for n in chosen}


@plain_class
class Blame(UlpfCommand):
    """Record from now on who writes each byte of heap and data last: ulpf blame; ulpf blame [--by] EXPR

`ulpf blame EXPR`, which is `ulpf last EXPR`, then says it of any expression, without a watch: a line for each stretch of
bytes with one writer. With --by it is a line for each writer, the one of most bytes first. It costs as much as a watch of the heap. `ulpf gdb --blame` records from the program's entry on."""

    name, completes = "blame", "COMPLETE_EXPRESSION"

    def run(self, argument):
        if argument.strip():
            return who_wrote(argument)
        session.check()
        history.record_writers()
        facade.say("From now on each byte of heap and data has its last writer: ulpf last EXPR.")


@plain_class
class Last(UlpfCommand):
    """Say who wrote something last: ulpf last [--by] EXPR [-n COUNT]

EXPR is any expression whose bytes are watched, also by GDB's own watch, or a part of it. With `ulpf blame` it is any in
heap and data."""

    name, completes = "last", "COMPLETE_EXPRESSION"

    def run(self, argument):
        who_wrote(argument)


def who_wrote(argument):
    """`ulpf last ARGUMENT`."""
    argument, by = argument.removeprefix("--by "), argument.startswith("--by ")
    expression, flag, count = argument.rpartition(" -n ")
    if not flag:
        expression, count = argument, "1"
    if not expression:
        raise UlpfError("ulpf last", "it does not say of what", "say: ulpf last total -n 5")
    if not count.strip().isdigit() or int(count) == 0:
        raise UlpfError("ulpf last", f"{count} is no number of writes", "say: ulpf last total -n 5")
    found, hits, answers = history.last(expression, int(count))
    since = max((a.watched_since for a in answers if a.watched_since is not None), default=None)
    if by and hits and not any(a.stretches for a in answers):
        raise UlpfError("ulpf last --by", "it is about the last writers of all bytes, and a watch knows single writes", "say: ulpf blame, and ask again after a while")
    for line in history.by_writer(hits) if by else history.lines(hits):
        facade.say(line)
    if since is None:
        place = found[0]
        raise UlpfError(f"nothing is known of {expression}", f"no watch looks at the {place.length} bytes at {place.address:#x}",
                        f"say: ulpf watch {expression} log, or ulpf blame, and ask again after a while")
    if not hits:
        facade.say(f"{expression} has not been written since it is watched ({since:.3f} s).")
    elif any(a.stretches for a in answers):
        left = sum(a.length for a in answers) - sum(hit.length for hit in hits)
        if left > 0:
            facade.say(f"{left} of its bytes have not been written since records began ({since:.3f} s ago).")
    back = [a.reaches_back for a in answers if a.reaches_back is not None]
    if back and len(hits) < int(count):
        facade.say(f"What happened more than {min(back):.3f} s ago has been overwritten by later hits.")
