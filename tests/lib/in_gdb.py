"""Sourced into gdb by the tests, the demo and the benchmarks: many watches at once.

Only plain gdb commands are used: `watch`, `delete`, `continue`.
"""

import struct

import gdb


def mapping(name):
    """(start, end) of the first writable mapping whose line ends with `name`."""
    for line in gdb.execute("info proc mappings", to_string=True).splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[0].startswith("0x") and fields[-1].endswith(name) and "w" in "".join(fields[4:-1] or "w"):
            return int(fields[0], 16), int(fields[1], 16)
    raise gdb.GdbError(f"no mapping {name}")


def heap_blocks(smallest=32, largest=1 << 20):
    """Live blocks of the main heap: walks glibc's chunk headers.

        chunk - 8   | size, lowest bits are flags: 1 = the chunk before is in use |
        chunk       | what malloc returned ...                                    |
    """
    start, end = mapping("[heap]")
    heap = gdb.selected_inferior().read_memory(start, end - start).tobytes()
    # The first block holds malloc's own free lists: it changes at every call.
    at = struct.unpack_from("<Q", heap, 8)[0] & ~7
    while at + 16 < len(heap):
        size = struct.unpack_from("<Q", heap, at + 8)[0] & ~7
        if size < 32 or at + size + 16 > len(heap):
            return  # the top chunk, or no heap of glibc
        in_use = struct.unpack_from("<Q", heap, at + size + 8)[0] & 1
        if in_use and smallest <= size <= largest:
            yield start + at + 16, size - 8
        at += size


def words(start, end, step=8):
    return range((start + 7) & ~7, end - 7, step)


def on_few_pages(count, pages=8, name="[heap]"):
    """`count` words on `pages` pages, evenly spread over a mapping.

    A guarded page costs a fault for every store to it, so how many pages matters, not how many
    watches. A real session watches a few objects; so do the tests of whole programs.
    """
    start, end = mapping(name)
    total = (end - start) // 4096
    chosen = [start + 4096 * (total * i // pages) for i in range(1, pages)] + [end - 4096]
    each = -(-count // len(chosen))
    return [page + 8 * (512 * i // each) for page in chosen for i in range(each)][:count]


def watch(addresses):
    """One plain `watch` command for each address; returns how many gdb took."""
    gdb.execute("set language c")
    for address in addresses:
        gdb.execute(f"watch *(long*){address:#x}", to_string=True)
    return len(list(addresses))


class Run:
    """Continues until the program is gone.

    Each watch that is hit is deleted, the rest stay armed. `hits` holds what was watched.
    """

    def __init__(self, most=10 ** 9):
        self.hits, self.hit, self.exit_code, self.gone = [], None, None, False
        gdb.events.stop.connect(self.stopped)
        gdb.events.exited.connect(self.exited)
        try:
            while not self.gone:
                self.hit = None
                gdb.execute("continue", to_string=True)
                if self.hit is None:
                    break
                self.hits.append(self.hit.expression)
                self.hit.delete()
                if len(self.hits) == most:
                    gdb.execute("delete")
        finally:
            gdb.events.stop.disconnect(self.stopped)
            gdb.events.exited.disconnect(self.exited)

    def stopped(self, event):
        if isinstance(event, gdb.BreakpointEvent):
            self.hit = event.breakpoints[0]

    def exited(self, event):
        self.gone, self.exit_code = True, getattr(event, "exit_code", None)


def run_to_the_end():
    run = Run()
    left = sum(1 for b in gdb.breakpoints() if b.type == gdb.BP_HARDWARE_WATCHPOINT)
    print(f"hits {len(run.hits)}, still armed {left}, status {run.exit_code if run.gone else 'none'}")
