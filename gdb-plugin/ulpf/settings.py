# SPDX-License-Identifier: MIT OR Apache-2.0
"""`set ulpf …` and `show ulpf …`."""

import contextlib

from . import facade


def _get(name, default):
    if facade.gdb is None:
        return default
    try:
        return facade.parameter(f"ulpf {name}")
    except RuntimeError:
        return default


def traceback():
    return bool(_get("traceback", False))


# Limit given by the watch that is being set.
_most = None


@contextlib.contextmanager
def with_most(number):
    """Limits the elements of the watch that is set meanwhile to `number` (None: as configured)."""
    global _most
    before, _most = _most, number
    try:
        yield
    finally:
        _most = before


def most_elements():
    # GDB returns None for `unlimited`.
    return _most or _get("max-elements", 100_000) or 10**9


def show_hits():
    return bool(_get("show-hits", False))


def advice():
    return bool(_get("advice", True))


class _Prefix(facade.Command):
    """Settings of the ulpf commands."""

    allow = True

    def __init__(self, name):
        super().__init__(name, facade.gdb.COMMAND_SUPPORT, facade.gdb.COMPLETE_NONE, True)

    def invoke(self, _argument, _from_tty):
        facade.run_command("help " + ("set ulpf" if self.name == "set" else "show ulpf"))


class _Switch(facade.Parameter):
    def __init__(self, name, value, doc, says):
        self.__doc__, self.set_doc, self.show_doc = doc, says, says.replace("Set", "Show", 1)
        self._says = says.split(" ", 1)[1].rstrip(".")
        super().__init__(name, facade.gdb.COMMAND_SUPPORT, facade.gdb.PARAM_BOOLEAN)
        self.value = value

    def get_set_string(self):
        return ""

    def get_show_string(self, value):
        return f"{self._says[0].upper()}{self._says[1:]}: {value}."


class _Number(facade.Parameter):
    def __init__(self, name, value, doc, says):
        self.__doc__, self.set_doc, self.show_doc = doc, says, says.replace("Set", "Show", 1)
        self._says = says.split(" ", 1)[1].rstrip(".")
        super().__init__(name, facade.gdb.COMMAND_SUPPORT, facade.gdb.PARAM_UINTEGER)
        self.value = value

    def get_set_string(self):
        return ""

    def get_show_string(self, value):
        return f"{self._says[0].upper()}{self._says[1:]}: {value}."


def register():
    for verb in "set", "show":
        prefix = type("_Prefix", (_Prefix,), {"__doc__": "Settings of the ulpf commands.", "name": verb})
        prefix(f"{verb} ulpf")
    _Switch("ulpf traceback", False, "With it, an unexpected error of an ulpf command shows where in the plugin it happened.",
            "Set whether unexpected errors show a traceback.")
    _Switch("ulpf advice", True, "With it, a plain `watch` that GDB would serve by single-stepping, or not at all, says what to type instead.",
            "Set whether plain watch commands get advice.")
    _Switch("ulpf show-hits", False, "With it, what `log` watches have recorded while the program ran is shown whenever it stops, without being asked.",
            "Set whether hits of logging watches are shown when the program stops.")
    _Number("ulpf max-elements", 100_000, "A container or list with more elements than this is refused; 0 or unlimited takes all.",
            "Set how many elements one ulpf watch may have.")
