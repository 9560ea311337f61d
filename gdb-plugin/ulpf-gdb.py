# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loads the ulpf commands into GDB: `source ulpf-gdb.py`, or the same line in ~/.gdbinit.

`ulpf gdb` does it by itself.
"""

import os
import sys


def load():
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:
        sys.path.insert(0, here)
    import ulpf

    ulpf.load()


load()
