# SPDX-License-Identifier: MIT OR Apache-2.0
"""The commands, a file for each group; what they have in common is here."""

import importlib
import pkgutil
import traceback

from .. import facade, settings
from ..errors import UlpfError


class UlpfCommand(facade.Command):
    """A command `ulpf NAME`. Its documentation is its `help`; `run` does it."""

    name = ""
    prefix = False
    # What GDB completes; None: `complete` below does.
    completes = "COMPLETE_NONE"

    def __init__(self):
        how = getattr(facade.gdb, self.completes)
        super().__init__(f"ulpf {self.name}".strip(), facade.gdb.COMMAND_BREAKPOINTS, how, self.prefix)

    def invoke(self, argument, from_tty):
        self.dont_repeat()
        try:
            self.run(argument.strip())
        except UlpfError as e:
            raise facade.user_error(str(e)) from None
        except KeyboardInterrupt:
            raise
        except Exception as e:
            if settings.traceback():
                facade.say(traceback.format_exc())
            if facade.gdb_error(e):
                raise facade.user_error(f"ulpf {self.name}: {facade.error_text(e)}.") from None
            raise facade.user_error(f"ulpf {self.name}: unexpected {type(e).__name__}: {e}; `set ulpf traceback on` "
                                  "and the same again shows where.") from None

    def run(self, argument):
        raise NotImplementedError


def plain_class(cls):
    """Marks a command to be registered."""
    _commands.append(cls)
    return cls


_commands = []


def numbers(argument, what):
    """`1 3-5`: numbers of watches."""
    found = []
    for word in argument.replace(",", " ").split():
        first, dash, second = word.partition("-")
        try:
            found += range(int(first), int(second) + 1) if dash else [int(first)]
        except ValueError:
            raise UlpfError(f"ulpf {what}", f"{word} is no number of a watch", "ulpf info watches lists them") from None
    return found


def number_words(word):
    """Completion with the numbers of all watches."""
    from ..registry import watches

    return [str(n) for n in watches.all if str(n).startswith(word or "")]


def register():
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        importlib.import_module(f"{__name__}.{module.name}")
    _commands.sort(key=lambda c: len(c.name.split()))
    for command in _commands:
        command()
    from . import own

    own.hook()
