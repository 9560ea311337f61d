"""What GDB takes for a stop and a resume with ten and with ten thousand ulpf watches, in turns:

    ulpf gdb -nx -q -batch -x benches/programs/plugin.py examples/bin/filters </dev/null
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
    for command in "set confirm off", "set pagination off", "break ready", "run", "delete":
        gdb.execute(command, to_string=True)
    ulpf.watch("total")  # the one that stops
    at = int(gdb.parse_and_eval(f"(unsigned long) malloc({2 * MANY})"))
    taken = {FEW: [], MANY: []}
    for _ in range(TURNS):
        for count in taken:
            start = time.perf_counter()
            many = ulpf.watch(f"((char (*)[2]) {at})[0..{count - 1}][0]")
            stops(2)  # they take effect
            print(f"{count} watches: set and in force after {1e3 * (time.perf_counter() - start):.0f} ms")
            taken[count] += stops(STOPS)
            ulpf.delete(many)
            stops(1)
    for count, all_of_them in taken.items():
        print(f"{count} watches: a stop and a resume take {1e3 * statistics.median(all_of_them):.2f} ms "
              f"(median of {len(all_of_them)}; least {1e3 * min(all_of_them):.2f})")
    gdb.execute("kill")


main()
