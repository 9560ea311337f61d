# SPDX-License-Identifier: MIT OR Apache-2.0
"""The parts of what `ulpf watch` takes. The server parses it (command/symbols/src/parsed_watch.rs)."""

from dataclasses import dataclass, field
from typing import Optional

from . import wire


@dataclass
class Spec:
    text: str = ""
    expression: str = ""
    kind: str = "w"
    condition: Optional[str] = None
    thread: Optional[int] = None
    # (called, inside, name)
    places: list = field(default_factory=list)
    # Clauses that name nothing of the program, as the stub takes them. Of two alike the last one counts.
    words: str = ""
    log: bool = False
    bt: int = 0
    follow: bool = False
    # Stay where the pointers lead now.
    snapshot: bool = False
    # Maximum number of places.
    most: Optional[int] = None
    placement: Optional[str] = None
    # More conditions, as bytecode: the plugin's own, which are in no language.
    codes: list = field(default_factory=list)


def parse(text):
    """The parts of a specification, or an error that says what is wrong with it."""
    return wire.ask(f"parse {text}", _read)


def _read(said):
    try:
        return Spec(**said)
    except TypeError:  # another version's words
        raise ValueError(said) from None
