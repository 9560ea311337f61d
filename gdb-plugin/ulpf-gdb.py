# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loads the ulpf commands into GDB: `source ulpf-gdb.py`, or the same line in ~/.gdbinit.

`ulpf gdb` does it by itself, and says so by a variable, `ulpf_gdb`: it ends a GDB that is too old.
"""

import os
import re
import sys

OLDEST = 12


def load():
    import gdb

    version = re.search(r"\d+", gdb.VERSION)
    if version and int(version.group()) < OLDEST:
        if "ulpf_gdb" in globals():
            gdb.write(f"`ulpf gdb` needs GDB {OLDEST} or later, and this is {gdb.VERSION}. Start `ulpf server :2345 PROGRAM`, "
                      "and say `target remote :2345` in this one: plain `watch` works there.\n", gdb.STDERR)
            gdb.execute("quit 2")
        gdb.write(f"The ulpf commands are not loaded: they need GDB {OLDEST} or later, and this is {gdb.VERSION}. "
                  "Plain `watch` works with `ulpf server` all the same.\n")
        return
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:
        sys.path.insert(0, here)
    import ulpf

    ulpf.load()


load()
