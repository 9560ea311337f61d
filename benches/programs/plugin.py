"""Times GDB's stop and resume with ten and with ten thousand ulpf watches, in turns.

GDB has the program `stores` at its ready(), under ulpf, and the plugin: `ulpf-bench --only plugin`.
"""

import statistics
import time

import gdb
import ulpf

FEW, MANY = 10, 10_000
TURNS, STOPS = 4, 20


def stops(count):
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        gdb.execute("continue", to_string=True)
        taken.append(time.perf_counter() - start)
    return taken


def main():
    ulpf.watch("page[0]")  # the one that stops
    at = int(gdb.parse_and_eval(f"((unsigned long (*)(unsigned long)) malloc)({2 * MANY})"))
    taken, armed = {FEW: [], MANY: []}, []
    for _ in range(TURNS):
        for count in taken:
            start = time.perf_counter()
            many = ulpf.watch(f"((char (*)[2]) {at})[0..{count - 1}][0]")
            stops(2)  # they take effect
            if count == MANY:
                armed.append(time.perf_counter() - start)
            taken[count] += stops(STOPS)
            ulpf.delete(many)
            stops(1)
    few, many = (1e3 * statistics.median(taken[count]) for count in (FEW, MANY))
    print(f"bench: few={few:f} many={many:f} armed={1e3 * statistics.median(armed):f}")


main()
