"""`heap`: all that a program allocates, now and later."""

import contextlib
import json
import os
import re
import subprocess
import tempfile
import unittest

from lib.cases import Case
from lib.env import PATIENCE, ROOT, ULPF, bare, example, needs, ulpf_only

MARK = 0x6d61726b00000000  # tests/programs/allocations.c
# Marks on the heap: small and large blocks, moved and grown ones, another thread's arena, reserved
# memory that is made accessible later or mapped again, the program break.
HEAP = set(range(1, 12))


def marks(*spec, options=(), program=None):
    program = program or example("allocations")
    with tempfile.NamedTemporaryFile() as log:
        done = subprocess.run([ULPF, "run", "--json", "-l", log.name, *options, *spec, "--", program],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * PATIENCE)
        records = [json.loads(line) for line in log.read().decode().splitlines()]
    hits = [r for r in records if r["type"] == "hit" and r["object"] == os.path.basename(program)]
    values = [int.from_bytes(bytes.fromhex(h["new_bytes"]), "little") for h in hits]
    return (done.returncode, done.stdout.decode()), [v - MARK for v in values if 0 <= v - MARK < 1000], records


@ulpf_only
class Heap(unittest.TestCase):
    def test_heap_and_nothing_else(self):
        for spec in "heap", "[heap]:rw":
            with self.subTest(spec):
                ended, seen, records = marks("-w", spec)
                self.assertEqual(ended, bare(example("allocations")))
                writes = [m for m in seen if m in HEAP]
                self.assertEqual(set(seen), HEAP)
                self.assertEqual(len(writes), len(set(writes)), "each store is one hit")
                summary = records[-1]
                self.assertEqual((summary["type"], summary["lost"]), ("summary", 0))
                self.assertEqual(len(summary["watches"]), 1)

    def test_calls_and_stacks_on_the_heap_are_patched(self):
        """Calls through memory that is watched, and a stack there, cost no faults but where fib() returns into a patch; the
        return addresses stay what they are.
        """
        hits = []
        for options, most in ([], 25_000), (["--no-patch"], None):
            done = subprocess.run([ULPF, "run", "--no-aslr", "-q", "-v", *options, "-w", "heap:rw", "--", example("calls")],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=60 * PATIENCE)
            self.assertEqual((done.returncode, done.stdout), bare(example("calls")))
            hits.append(re.search(r"(\d+) hits on 1 watch, (\d+) silent", done.stderr).groups())
            faults = int(re.search(r"(\d+) faults", done.stderr).group(1))
            if most:
                self.assertLess(faults, most)
        self.assertEqual(*hits)

    def test_memory_is_changed_where_it_is(self):
        """How often a thread waits for the stub's task: never where nothing changes, once for a change of what has moved, and
        three times for memory that is mapped, written and unmapped.
        """
        for command in ["run", "-q", "-w", "heap"], ["run", "-q", "-w", "heap:rw"], ["check", "--no-leaks"]:
            with self.subTest(command=command):
                done = subprocess.run([ULPF, *command, "--", example("changed_in_place"), "counts", "1000"], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE)
                self.assertEqual(done.returncode, 0, done.stderr)
                waits = {name: int(n) for name, n in (line.split() for line in done.stdout.splitlines())}
                for name, most in ("detach", 2000), ("unmap", 3300), ("same", 50), ("free", 50), ("protect", 1100), ("discard", 1100):
                    self.assertLess(waits[name], most, waits)

    def test_memory_that_is_changed_where_it_is(self):
        """Results of the calls, contents and faults are those of the program alone."""
        for seed, sort in [(str(seed), sort) for seed in range(1, 7) for sort in ("random", "unmapped")]:
            expected = bare(example("changed_in_place"), sort, seed, "3000")
            for command in ["run", "-q", "-w", "heap"], ["run", "-q", "-w", "heap:rw"], ["run", "-q", "--no-patch", "-w", "heap:rw"], \
                    ["check", "--no-leaks"]:
                with self.subTest(seed=seed, sort=sort, command=command):
                    done = subprocess.run([ULPF, *command, "--", example("changed_in_place"), sort, seed, "3000"],
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          timeout=60 * PATIENCE)
                    self.assertEqual((done.returncode, done.stdout), expected, done.stderr[-2000:])

    def test_from_a_function_on(self):
        """Set later, the heap is what is mapped by then and what comes."""
        ended, seen, _ = marks("-w", "heap", options=["--at", "ready"])
        self.assertEqual(set(seen), HEAP)
        self.assertEqual(ended, bare(example("allocations")))

    def test_what_the_kernel_has_merged_with_memory_of_threads(self):
        self.merged(example("merged"))

    @needs("musl-gcc")
    def test_what_the_kernel_has_merged_with_memory_of_musls_threads(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "merged")
            source = os.path.join(ROOT, "tests", "programs", "merged.c")
            subprocess.run(["musl-gcc", "-g", "-O0", "-static", source, "-o", program], check=True)
            # (musl has nothing of its own on a stack that the program has allocated, so that is heap.)
            self.merged(program, [200, 200])

    def merged(self, program, more=()):
        ended, seen, _ = marks("-w", "heap", options=["--at", "ready"], program=program)
        self.assertEqual(sorted(seen), [*range(1, 11 + 64), *more])
        self.assertEqual(ended, bare(program))

    def test_no_heap_yet(self):
        """A static program has not even a program break when the watch is set."""
        with tempfile.NamedTemporaryFile() as log:
            subprocess.run([ULPF, "run", "-q", "--json", "-l", log.name, "-w", "heap", "--", example("five_static")],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60 * PATIENCE)
            summary = json.loads(log.read().decode().splitlines()[-1])
        self.assertGreater(summary["watches"][0]["hits"], 20, summary)

    @needs("cc")
    def test_a_variable_of_that_name_comes_first(self):
        """The program's own, or one that a library exports; a library's private variable does not count."""
        sets = "long heap; void set(void) { heap = 7; }"
        libraries = {"": sets, "static ": "static " + sets}
        folder = tempfile.TemporaryDirectory(prefix="ulpf-heap-")
        self.addCleanup(folder.cleanup)
        with contextlib.chdir(folder.name):
            for name, text in {"lib.c": "void set(void) {}", "own.c": f"static {sets} int main(void) {{ set(); }}",
                               "main.c": "#include <stdlib.h>\nvoid set(void); int main(void) { set(); *(int *)malloc(8) = 1; }"}.items():
                with open(name, "w") as file:
                    file.write(text)
            subprocess.run(["cc", "-g", "-o", "own", "own.c"], check=True)
            programs = {"own": 1}
            for keeps, text in libraries.items():
                name = "kept" if keeps else "exported"
                with open("lib.c", "w") as file:
                    file.write(text)
                subprocess.run(["cc", "-g", "-shared", "-fPIC", "-o", f"lib{name}.so", "lib.c"], check=True)
                subprocess.run(["cc", "-g", "-o", name, "main.c", f"./lib{name}.so"], check=True)
                programs[name] = 0 if keeps else 1
            for name, variable in programs.items():
                with self.subTest(name):
                    done = subprocess.run([ULPF, "run", "--json", "-l", "log", "-w", "heap", "--", f"./{name}"], stdin=subprocess.DEVNULL,
                                          capture_output=True, text=True, timeout=60 * PATIENCE)
                    with open("log") as file:
                        summary = json.loads(file.read().splitlines()[-1])
                    (watch,) = summary["watches"]
                    self.assertEqual(watch["len"] == 8, bool(variable), (done.stderr, watch))
                    if variable:
                        self.assertEqual(watch["hits"], 1, watch)

    def test_beside_another_watch(self):
        _, seen, records = marks("-w", "data", "-w", "heap")
        self.assertEqual(set(seen), HEAP | {100})
        self.assertEqual([w["spec"] for w in records[-1]["watches"]], ["data", "heap"])

    def test_refused_parts(self):
        for bad in "[heap]:8", "libc`[heap]":
            done = subprocess.run([ULPF, "run", "-w", bad, "--", example("five")], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * PATIENCE)
            self.assertEqual(done.returncode, 2)
            self.assertIn("the heap is watched as a whole", done.stderr.decode())

    def test_our_own_memory_stays_out_of_the_way(self):
        """The stub's mappings are neither heap nor adjacent to the program's mappings."""
        script = "print(open('/proc/self/maps').read())"
        done = subprocess.run([ULPF, "run", "--no-aslr", "-q", "--no-summary", "-w", "environ", "--", "/usr/bin/python3", "-c", script],
                              stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60 * PATIENCE)
        maps = [(line.split("-")[0], line.split("/", 1)[-1]) for line in done.stdout.decode().splitlines() if "/" in line]
        self.assertTrue(any(start.startswith("7fff") and "libc.so" in name for start, name in maps), maps)
        # The moved page itself is of our file; the shared area, generated code and the alias are elsewhere.
        ours = [start for start, name in maps if name.startswith("memfd:ulpf-")]
        self.assertGreaterEqual(len(ours), 3, maps)
        self.assertFalse([start for start in ours if start.startswith("7fff")], maps)


class HeapInGdb(Case):
    @ulpf_only
    def test_monitor(self):
        gdb = self.session("allocations")
        said = gdb("monitor ulpf watch heap w")
        self.assertSays(said, r'\{"watch":(\d+),"heap":\d+\}')
        number = int(re.search(r'"watch":(\d+)', said).group(1))
        self.assertSays(gdb("monitor ulpf unwatch %d" % number), r'"unwatched":\{"heap":true\}')
        self.assertSays(gdb("monitor ulpf watch heap w"), r'"watch":\d+')
        gdb("break _exit")
        self.assertSays(gdb("continue"), r"Breakpoint 2[.\d]*, ")
        stats = json.loads(gdb("monitor ulpf stats").strip())
        self.assertEqual(len(stats["watches"]), 1)
        self.assertGreater(stats["watches"][0]["hits"], len(HEAP))
        self.assertGreater(stats["watches"][0]["heap"], 128 << 10)
        self.assertSays(gdb("monitor ulpf unwatch 999"), r"no watch with that number")
