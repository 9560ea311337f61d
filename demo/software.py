"""Runs inside gdb, without any server: one software watch, a few statements."""

import os
import re
import time

import gdb

EARLY = int(os.environ["DEMO_EARLY"])
SECONDS = 20

for setting in "confirm off", "pagination off", "debuginfod enabled off", "width 0", "breakpoint pending on", "language c", \
        "can-use-hw-watchpoints 0", "startup-with-shell on":
    gdb.execute(f"set {setting}")

gdb.execute("file sqlite3", to_string=True)
gdb.execute("break sqlite3_step", to_string=True)
gdb.execute(f"ignore 1 {EARLY + 10}", to_string=True)
gdb.execute(f"run -batch :memory: < {os.environ['DEMO_SCRIPT']} > /dev/null", to_string=True)
gdb.execute("disable 1")

# How many instructions and stores has a statement? Step one by hand, and look at each.
instructions = stores = 0
store = re.compile(r"\s(?:mov\w*|add\w?|sub\w?|inc\w?|dec\w?|or\w?|and\w?|xor\w?|set\w+|v?mov\w+)\s+[^(]*,[^,]*\(%|\s(?:push|call)")
frame = gdb.selected_frame()
architecture = frame.architecture()
level_sp = int(gdb.parse_and_eval("(long)$sp"))
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    pc = gdb.selected_frame().pc()
    text = architecture.disassemble(pc)[0]["asm"]
    instructions += 1
    stores += bool(store.search(" " + text))
    gdb.execute("stepi", to_string=True)
    if int(gdb.parse_and_eval("(long)$sp")) > level_sp:  # sqlite3_step has returned
        break

gdb.execute("enable 1")
gdb.execute("continue", to_string=True)
gdb.execute("disable 1")
gdb.execute("watch *(long*)($sp - 4000000)", to_string=True)
gdb.execute("tbreak *(*(long*)$sp)", to_string=True)
start = time.monotonic()
gdb.execute("continue", to_string=True)
print(f"figure statement {time.monotonic() - start}")
print(f"figure instructions {instructions}")
print(f"figure stores {stores}")
gdb.execute("kill")
