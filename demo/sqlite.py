"""Runs inside gdb: a thousand plain `watch` commands on sqlite3's heap."""

import os
import sys
import time

import gdb

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "tests", "lib"))
import in_gdb  # noqa: E402

WATCHES = int(os.environ["DEMO_WATCHES"])
EARLY = int(os.environ["DEMO_EARLY"])
SHOWN = 12


def say(command):
    print(f"  (gdb) {command}", flush=True)
    return gdb.execute(command, to_string=True)


def show(text):
    print(f"        {text}", flush=True)


for setting in "confirm off", "pagination off", "debuginfod enabled off", "width 0", "breakpoint pending on", "language c", \
        "sysroot /":
    gdb.execute(f"set {setting}")

say(f"target remote {os.environ['DEMO_TARGET']}")
say("break sqlite3_step")
gdb.execute(f"ignore 1 {EARLY + 10}", to_string=True)
say("continue")
show(f"sqlite3 has inserted about {EARLY} rows")
gdb.execute("delete")

blocks = [block for block, size in in_gdb.heap_blocks(64)]
chosen = blocks[:: max(1, len(blocks) // WATCHES)][:WATCHES]
start = time.monotonic()
for number, block in enumerate(chosen):
    command = f"watch *(long*){block:#x}"
    (say if number < 2 or number == len(chosen) - 1 else lambda c: gdb.execute(c, to_string=True))(command)
    if number == 2:
        print("        ...", flush=True)
show(f"{len(chosen):,} of {len(blocks):,} blocks are watched, after {time.monotonic() - start:.1f} s")


class Hits:
    """Every watch reports its first hit, then it is deleted; the others stay armed."""

    def __init__(self):
        self.count, self.gone, self.last = 0, False, None
        self.statements = 0
        gdb.events.stop.connect(self.stopped)
        gdb.events.exited.connect(self.exited)

    def stopped(self, event):
        self.last = event.breakpoints[0] if isinstance(event, gdb.BreakpointEvent) else None

    def exited(self, event):
        self.gone = True

    def report(self, said):
        self.count += 1
        if self.count <= SHOWN:
            lines = said.splitlines()
            old = next((l[12:] for l in lines if l.startswith("Old value = ")), "?")
            new = next((l[12:] for l in lines if l.startswith("New value = ")), "?")
            name = gdb.selected_frame().name() or "?"
            show(f"hit: {self.last.expression}: {old} -> {new}   in {name}, pc {gdb.selected_frame().pc():#x}")
        elif self.count == SHOWN + 1:
            show("...")

    def run(self, seconds):
        """Until a statement passes without a hit, or the time is over."""
        end = time.monotonic() + seconds
        while not self.gone and time.monotonic() < end:
            self.last = None
            said = gdb.execute("continue", to_string=True)
            if self.gone:
                return
            if self.last is None:
                raise gdb.GdbError(f"unexpected stop: {said}")
            if self.last.type == gdb.BP_BREAKPOINT:
                self.statements += 1
                if self.count == self.before:
                    return
                self.before = self.count
                continue
            self.report(said)
            self.last.delete()
        return


hits = Hits()
hits.before = -1
gdb.execute("break sqlite3_step", to_string=True)
step = gdb.breakpoints()[-1]
say("continue")if False else None
start = time.monotonic()
hits.run(45)
show(f"{hits.count} watches were hit within {hits.statements} statements, {time.monotonic() - start:.1f} s")

if not hits.gone:
    step.delete()
    before = hits.count
    armed = sum(1 for b in gdb.breakpoints())
    start = time.monotonic()
    hits.before = -1
    end = start + 60
    while not hits.gone and time.monotonic() < end:
        hits.last = None
        gdb.execute("continue", to_string=True)
        if hits.gone or hits.last is None:
            break
        hits.count += 1
        hits.last.delete()
    seconds = time.monotonic() - start
    show(f"the remaining inserts: {seconds:.1f} s, {hits.count - before} more hits; {sum(1 for b in gdb.breakpoints())} watches were armed to the end")
    print(f"figure run {seconds}")
    print(f"figure statements {hits.statements}")
    print(f"figure armed {armed}")
