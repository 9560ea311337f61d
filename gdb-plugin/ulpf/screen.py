# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes the screen of `ulpf gdb` look like that of GDB alone."""

from . import facade

_LOADING = "print symbol-loading"


def begin():
    """Called by the script that `ulpf gdb` gives to GDB."""
    facade.before("attach", "python ulpf.screen.attaches()")


def attaches():
    """GDB tells of each file whose symbols it reads at an `attach` over a connection; of its own it does not."""
    before = facade.parameter(_LOADING)
    facade.execute(f"set {_LOADING} off")
    _once("before_prompt", lambda: facade.execute(f"set {_LOADING} {before}"))


def _once(event, call):
    """At the next event of this kind only."""
    registry = getattr(facade.gdb.events, event)

    def heard(*_said):
        registry.disconnect(heard)
        call()
    registry.connect(heard)
