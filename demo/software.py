"""Runs inside gdb, without any server: one software watch, a few statements."""

import os
import re
import time

import gdb

SECONDS = 20

for setting in "confirm off", "pagination off", "debuginfod enabled off", "width 0", "breakpoint pending on", "language c", \
        "can-use-hw-watchpoints 0", "startup-with-shell on":
    gdb.execute(f"set {setting}")

gdb.execute("file sqlite3", to_string=True)
gdb.execute("break sqlite3_busy_timeout", to_string=True)
gdb.execute(f"run -batch :memory: < {os.environ['DEMO_SCRIPT']} > /dev/null", to_string=True)
gdb.execute("break sqlite3_step", to_string=True)
gdb.execute("continue", to_string=True)
gdb.execute("delete")

# How many instructions and stores has a statement? Step one by hand, and look at each.
stores = 0
path = []
store = re.compile(r"\s(?:mov\w*|add\w?|sub\w?|inc\w?|dec\w?|or\w?|and\w?|xor\w?|set\w+|v?mov\w+)\s+[^(]*,[^,]*\(%|\s(?:push|call)")
architecture = gdb.selected_frame().architecture()
level = int(gdb.parse_and_eval("(long)$sp"))
end = time.monotonic() + SECONDS
while time.monotonic() < end and int(gdb.parse_and_eval("(long)$sp")) <= level:  # until sqlite3_step has returned
    pc = gdb.selected_frame().pc()
    path.append(pc)
    stores += bool(store.search(" " + architecture.disassemble(pc)[0]["asm"]))
    gdb.execute("stepi", to_string=True)


def statement(watches, instructions):
    """Seconds of the next statement, or of its first instructions, under so many software watches."""
    gdb.execute("delete")
    gdb.execute("break sqlite3_step", to_string=True)
    gdb.execute("continue", to_string=True)
    gdb.execute("delete")
    for number in range(watches):
        gdb.execute(f"watch *(long*)($sp - {4_000_000 + 8 * number})".replace("$sp", str(level)), to_string=True)
    if instructions < len(path):
        gdb.execute(f"tbreak *{path[instructions]}", to_string=True)
    else:
        gdb.execute("tbreak *(*(long*)$sp)", to_string=True)
    start = time.monotonic()
    gdb.execute("continue", to_string=True)
    return time.monotonic() - start


print(f"figure statement {statement(1, len(path))}")
# An address on the way that is met once only, so that the slice's length is known.
slice_end = next(i for i in range(150, len(path)) if path.count(path[i]) == 1)
many = statement(int(os.environ["DEMO_WATCHES"]), slice_end)
print(f"figure many {many / slice_end * len(path)}")
print(f"figure slice {slice_end}")
print(f"figure instructions {len(path)}")
print(f"figure stores {stores}")
gdb.execute("kill")
