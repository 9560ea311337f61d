# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loads the ulpf commands into GDB: `source ulpf-gdb.py`, or the same line in ~/.gdbinit.

`ulpf gdb` does it by itself.
"""

import os
import re
import sys

OLDEST = 12


def load():
    import gdb

    version = re.search(r"\d+", gdb.VERSION)
    if version and int(version.group()) < OLDEST:
        gdb.write(f"The ulpf commands are not loaded: they need GDB {OLDEST} or later, and this is {gdb.VERSION}. "
                  "Plain `watch` works with `ulpf server` all the same.\n")
        return
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:
        sys.path.insert(0, here)
    import ulpf

    ulpf.load()


load()
