# SPDX-License-Identifier: MIT OR Apache-2.0
"""Under `ulpf gdb`, `run` starts the file that GDB has, also if `file` names it or another one later, as environments do that
speak MI. GDB alone requires a `set remote exec-file` then, or the server would start the earlier file."""

from . import facade

_PARAMETER = "remote exec-file"


class _Follower:
    """Keeps the user's own setting."""

    def __init__(self):
        self._told = facade.parameter(_PARAMETER)
        for event in "new_objfile", "executable_changed":
            # The second one came with GDB 14.
            registry = getattr(facade.gdb.events, event, None)
            if registry is not None:
                registry.connect(self._look)

    def _look(self, _event):
        if facade.parameter(_PARAMETER) != self._told:
            return
        name = _executable()
        if name and name != self._told:
            facade.execute(f"set {_PARAMETER} {name}")
            self._told = facade.parameter(_PARAMETER)


def follow():
    """Called by the script that `ulpf gdb` gives to GDB."""
    _Follower()

    class Named(facade.Command):
        """Says what GDB alone says where no program is named: else the error is about `remote exec-file`."""

        def __init__(self):
            super().__init__("maintenance ulpf-named", facade.gdb.COMMAND_MAINTENANCE)

        def invoke(self, _argument, _from_tty):
            if not facade.parameter(_PARAMETER):
                raise facade.user_error('No executable file specified.\nUse the "file" or "exec-file" command.')

    Named()
    for command in "run", "start", "starti":
        facade.before(command, "maintenance ulpf-named")


def _executable():
    """The file of the selected inferior."""
    space = facade.gdb.current_progspace()
    if hasattr(space, "executable_filename"):  # GDB 15
        return space.executable_filename
    head, *rows = facade.execute("info inferiors").splitlines()
    at = head.index("Executable")
    return next((row[at:].rstrip(" ") for row in rows if row.startswith("*")), None)
