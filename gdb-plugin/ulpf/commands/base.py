# SPDX-License-Identifier: MIT OR Apache-2.0
from .. import facade
from . import UlpfCommand, plain_class


@plain_class
class Ulpf(UlpfCommand):
    """Watch any number of ranges of any size, exactly (ulpf).

ulpf watch EXPR …      watch an expression, a range, a list, a container, the heap
ulpf info watches      all of them, with what they have counted
ulpf log show          the last hits
ulpf last EXPR         who wrote it last
ulpf why [NUM]         why something is refused, trapped or slow
ulpf info block ADDRESS, ulpf leaks, ulpf who-points-at ADDRESS
                       of a program whose heap is checked (`ulpf gdb --check`)
ulpf run, ulpf attach PID, ulpf connect ADDRESS
                       get a program under ulpf (`ulpf gdb PROGRAM` has it there)"""

    name, prefix = "", True

    def run(self, argument):
        if argument.strip() not in ("", "help"):
            from ..errors import UlpfError

            raise UlpfError(f"ulpf {argument.split()[0]}", "there is no such command", "help ulpf lists them")
        facade.run_command("help ulpf")


@plain_class
class Info(UlpfCommand):
    """Show what ulpf watches: ulpf info watches."""

    name, prefix = "info", True

    def run(self, argument):
        facade.run_command("ulpf info watches")


@plain_class
class Log(UlpfCommand):
    """The hits that watches have logged: ulpf log show, ulpf log save FILE."""

    name, prefix = "log", True

    def run(self, argument):
        facade.run_command("ulpf log show")
