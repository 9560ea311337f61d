# SPDX-License-Identifier: MIT OR Apache-2.0
"""What `ulpf watch` takes: EXPR [:r|w|rw] [if COND] [CLAUSE…], as text.

EXPR and COND are the debugged language's, so clauses are taken from the end, where they can be told from
both. Pure text: nothing here asks GDB.
"""

import re
from dataclasses import dataclass, field
from typing import Optional

from .errors import UlpfError

USAGE = ("say: ulpf watch EXPR [:r|w|rw] [if COND] [thread N] [from|outside FUNC|LIBRARY] [changed] [skip N] "
         "[count N] [log] [bt N] [follow] [snapshot] [most N]")

MOST_FRAMES = 16


@dataclass
class Spec:
    text: str = ""
    expression: str = ""
    kind: str = "w"
    condition: Optional[str] = None
    # More conditions, as bytecode: the plugin's own, which are in no language.
    codes: list = field(default_factory=list)
    thread: Optional[int] = None
    # (called, inside, name)
    places: list = field(default_factory=list)
    changed: bool = False
    skip: Optional[int] = None
    count: Optional[int] = None
    log: bool = False
    bt: int = 0
    follow: bool = False
    # Stay where the pointers lead now.
    snapshot: bool = False
    # Maximum number of places.
    most: Optional[int] = None
    placement: Optional[str] = None


# An operator before the word: it belongs to an expression.
_OPEN = re.compile(r"[-+*/%&|^!~<>=,?:(\[.]\s*$")
_FLAG = re.compile(r"\s+(log|changed|follow|snapshot)$")
_NUMBER = re.compile(r"\s+(bt|count|skip|thread|most)\s+(\S+)$")
_PLACE = re.compile(r"\s+(called\s+)?(from|outside)\s+(\S+)$")
_PLACEMENT = re.compile(r"\s+(auto|guard|debug-register)$")
_KIND = re.compile(r"\s*(?<!:):(r|w|rw)$")
# A word that begins a clause but has nothing behind it.
_DANGLING = re.compile(r"\s(bt|count|skip|thread|most|from|outside|called|if)$")


def parse(text):
    """The parts of a specification, or an error that says what is wrong with it."""
    text = text.strip()
    spec = Spec(text=text)
    rest = _clauses(text, spec)
    at = _find_if(rest)
    if at is not None:
        spec.condition = rest[at + 2:].strip()
        rest = _clauses(rest[:at].rstrip(), spec)
        if not spec.condition:
            raise _wrong("if is not followed by a condition")
    kind = _KIND.search(rest)
    if kind:
        spec.kind = kind.group(1)
        rest = rest[:kind.start()]
    elif re.search(r"\s:\S*$", rest):
        raise _wrong(f"{rest.split()[-1]} is no kind of access (r, w and rw are)")
    spec.expression = rest.strip()
    if not spec.expression:
        raise _wrong("it does not say what to watch")
    dangling = _DANGLING.search(spec.expression) or (spec.condition and _DANGLING.search(spec.condition))
    if dangling:
        raise _wrong(f"{dangling.group(1)} is not followed by anything")
    return spec


def _wrong(why):
    return UlpfError("ulpf watch", why, USAGE)


def _clauses(text, spec):
    """Takes clauses off the end; returns the text before them."""
    while True:
        for pattern, take in ((_FLAG, _flag), (_NUMBER, _number), (_PLACE, _place), (_PLACEMENT, _placement)):
            match = pattern.search(text)
            if match and not _OPEN.search(text[:match.start()]):
                take(spec, *match.groups())
                text = text[:match.start()]
                break
        else:
            return text


def _flag(spec, name):
    setattr(spec, name, True)


def _number(spec, name, value):
    try:
        number = int(value, 0)
    except ValueError:
        raise _wrong(f"{name} takes a number, and {value} is none") from None
    if number < 0 or name in ("thread", "most") and number == 0:
        raise _wrong(f"{name} takes a positive number")
    if name == "bt" and number > MOST_FRAMES:
        raise _wrong(f"bt takes at most {MOST_FRAMES} frames")
    setattr(spec, name, number)


def _place(spec, called, inside, name):
    spec.places.append((bool(called), inside == "from", name))


def _placement(spec, where):
    spec.placement = where


def _find_if(text):
    """Where the word `if` stands outside of brackets and quotes."""
    depth, quote, at = 0, None, 0
    while at < len(text):
        c = text[at]
        if quote:
            if c == "\\":
                at += 1
            elif c == quote:
                quote = None
        elif c in "\"'":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith("if", at) and (at == 0 or text[at - 1].isspace()) \
                and (at + 2 == len(text) or text[at + 2] in " \t("):
            return at
        at += 1
    return None
