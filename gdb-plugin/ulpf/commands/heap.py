# SPDX-License-Identifier: MIT OR Apache-2.0
"""Questions about a checked heap (`ulpf gdb --check`)."""

from .. import facade, places, replies, session, wire
from ..errors import UlpfError
from . import UlpfCommand, plain_class


def _tell(command):
    """Says what the server answers in words; a refusal is an error."""
    answer = wire.text(command)
    if answer.startswith("{"):
        raise replies.change(replies.objects(answer)[0]).error()
    facade.say(answer)


def _address(argument, command):
    if not argument:
        raise UlpfError(f"ulpf {command}", "it does not say of what", f"say: ulpf {command} p")
    value = places.value(argument)
    try:
        return int(value) & (1 << 64) - 1
    except Exception as e:
        if not facade.gdb_error(e):
            raise
        raise UlpfError(f"ulpf {command} {argument}", "its value is no address", f"say: ulpf {command} &{argument}") from None


@plain_class
class InfoBlock(UlpfCommand):
    """Say which block of a checked heap an address belongs to: ulpf info block ADDRESS

The block that has it, or the nearest one: its size, whether it is freed, and who has allocated and freed it.
For programs that run under `ulpf gdb --check`."""

    name, completes = "info block", "COMPLETE_EXPRESSION"

    def run(self, argument):
        session.check()
        facade.need_program()
        _tell(f"heap-block {_address(argument, 'info block'):#x}")


@plain_class
class Leaks(UlpfCommand):
    """List blocks of a checked heap that nothing leads to any more: ulpf leaks

As at the program's end: lost ones, those that only lost ones lead to, and those of which only the inside is pointed to.
For programs that run under `ulpf gdb --check`."""

    name = "leaks"

    def run(self, argument):
        session.check()
        facade.need_program()
        _tell("heap-leaks")


@plain_class
class WhoPointsAt(UlpfCommand):
    """List who points to a block of a checked heap, or into it: ulpf who-points-at ADDRESS

Registers, stacks, variables and other blocks: every aligned word that may be a pointer is one.
For programs that run under `ulpf gdb --check`."""

    name, completes = "who-points-at", "COMPLETE_EXPRESSION"

    def run(self, argument):
        session.check()
        facade.need_program()
        _tell(f"heap-pointers {_address(argument, 'who-points-at'):#x}")
