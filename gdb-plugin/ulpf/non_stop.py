# SPDX-License-Identifier: MIT OR Apache-2.0
"""`set non-stop on` at the prompt of `ulpf gdb`.

GDB tells a server about non-stop mode when it connects. `ulpf gdb` has connected before its user can type, so the
plugin tells the server when the setting changes. (GDB allows a change only while no program runs.)
"""

from . import facade
from .errors import UlpfError

# Prefix and name of each setting's command, and the command that turns the setting off again.
_SETTINGS = [("set", "non-stop", "set non-stop off"),
             ("maintenance set", "target-non-stop", "maintenance set target-non-stop auto")]


def _wanted():
    target = facade.execute("maintenance show target-non-stop")
    return "is on" in facade.execute("show non-stop") or "is on" in target


def changed(back):
    """Tells the server; `back` is the command that takes the setting back."""
    if not facade.is_extended_remote():
        return  # GDB says it itself when it connects
    wanted = _wanted()
    if facade.packet(f"QNonStop:{wanted:d}") == "OK" or not wanted:
        return
    facade.execute(back)
    error = UlpfError("non-stop mode", "the program's back end can only stop all threads together",
                      "go on in all-stop mode; to debug one thread alone, say set scheduler-locking on")
    raise facade.user_error(str(error))


def register():
    for prefix, name, back in _SETTINGS:
        facade.after(prefix, name, f"python __import__('ulpf.non_stop').non_stop.changed({back!r})")
