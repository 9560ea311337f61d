"""Runs inside gdb: a thousand plain `watch` commands on sqlite3's heap."""

import os
import sys
import time

import gdb

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "tests", "lib"))
import in_gdb

WATCHES = int(os.environ["DEMO_WATCHES"])
SHOWN = 12


def say(command):
    print(f"  (gdb) {command}", flush=True)
    return gdb.execute(command, to_string=True)


def show(text):
    print(f"        {text}", flush=True)


for setting in "confirm off", "pagination off", "debuginfod enabled off", "width 0", "breakpoint pending on", "language c", \
        "sysroot /":
    gdb.execute(f"set {setting}")

# As `ulpf gdb` has it: GDB leaves its watches in place at a stop, instead of two packets for each.
say("set breakpoint always-inserted on")
say(f"target remote {os.environ['DEMO_TARGET']}")
say("break sqlite3_busy_timeout")
say("continue")
show("sqlite3 has inserted its first rows")
mark = gdb.breakpoints()[0]

blocks = list(in_gdb.heap_blocks(64))
words = [start + offset for offset in range(0, 4096, 8) for start, size in blocks if offset + 8 <= size]
chosen = sorted(words[:WATCHES])
started = time.monotonic()
for number, word in enumerate(chosen):
    command = f"watch *(long*){word:#x}"
    if number < 2 or number == len(chosen) - 1:
        say(command)
    else:
        gdb.execute(command, to_string=True)
    if number == 2:
        show("...")
show(f"{len(chosen):,} watches on {len(blocks):,} live heap blocks, set in {time.monotonic() - started:.1f} s")


def value(address):
    return int.from_bytes(gdb.selected_inferior().read_memory(address, 8).tobytes(), "little", signed=True)


class Hits:
    """Every watch reports its first hit, then it is deleted; the others stay armed."""

    def __init__(self):
        self.count, self.gone, self.last = 0, False, None
        self.before = {word: value(word) for word in chosen}
        gdb.events.stop.connect(self.stopped)
        gdb.events.exited.connect(self.exited)

    def stopped(self, event):
        self.last = event.breakpoints[0] if isinstance(event, gdb.BreakpointEvent) else None

    def exited(self, event):
        self.gone = True

    def report(self):
        self.count += 1
        if self.count <= SHOWN:
            word = int(self.last.expression.rsplit(")", 1)[1], 16)
            pc = gdb.selected_frame().pc()
            where = gdb.execute(f"info symbol {pc}", to_string=True).split(" in section")[0].strip()
            show(f"hit: {self.last.expression}: {self.before[word]} -> {value(word)}   at {where if 'No symbol' not in where else hex(pc)}")
        elif self.count == SHOWN + 1:
            show("...")
        self.last.delete()

    def to_the_mark(self):
        """Seconds until the program comes to its next mark."""
        started = time.monotonic()
        while not self.gone:
            self.last = None
            gdb.execute("continue", to_string=True)
            if self.last == mark:
                break
            if self.last is None:
                raise gdb.GdbError("a stop that nobody asked for")
            self.report()
        return time.monotonic() - started


hits = Hits()
print("  (gdb) continue", flush=True)
seconds = hits.to_the_mark()
show(f"{hits.count:,} watches were hit, and deleted then; {seconds:.1f} s with their stops")
armed, before = len(gdb.breakpoints()) - 1, hits.count
print("  (gdb) continue", flush=True)
seconds = hits.to_the_mark()
show(f"the next inserts, with {armed:,} watches armed: {seconds:.1f} s, {hits.count - before} more hits")
say("delete")
say("continue")
print(f"figure run {seconds}")
print(f"figure armed {armed}")
