"""`ulpf check`: errors of the heap in unmodified programs."""

import json
import os
import subprocess
import tempfile
import unittest

from lib.env import PATIENCE, ROOT, ULPF, bare, find_tool, ulpf_only
from lib.run import program

# Each error of tests/programs/heap_errors.c, with its report.
ERRORS = {
    "write_behind": ("outside", "write of 1 byte", "0 bytes behind a block of 24 bytes"),
    "write_before": ("outside", "write of 1 byte", "1 byte before a block of 24 bytes"),
    "read_behind": ("outside", "read of 1 byte", "3 bytes behind a block of 1000 bytes"),
    "last_of_many": ("outside", "write of 4 bytes", "0 bytes behind a block of 4000 bytes"),
    "copy_behind": ("outside", "write of 3 bytes", "0 bytes behind a block of 10 bytes"),
    "copy_from_behind": ("outside", "read of 4 bytes", "0 bytes behind a block of 20 bytes"),
    "large_behind": ("outside", "write of 1 byte", "5 bytes behind a block of 3145728 bytes"),
    "by_the_kernel": ("outside", "write of 8 bytes by read(2)", "0 bytes behind a block of 8 bytes"),
    "use_after_free": ("freed", "read of 4 bytes", "12 bytes inside a freed block of 40 bytes"),
    "use_after_realloc": ("freed", "write of 4 bytes", "4 bytes inside a freed block of 40 bytes"),
    "free_twice": ("double-free", "free of what was freed before", ""),
    "free_inside": ("invalid-free", "free of", "1 byte inside a block of 10 bytes"),
    "realloc_of_freed": ("double-free", "realloc of what was freed before", ""),
    "realloc_inside": ("invalid-free", "realloc of", "1 byte inside a block of 10 bytes"),
    "free_of_stack": ("invalid-free", "free of", "where no block begins"),
}

# Of tests/programs/heap_elements.cc: container and index.
ELEMENTS = {
    "behind": ("std::vector<int>", 24),
    "before": ("std::vector<int>", -1),
    "points": ("std::vector<Point>", 4),
    "freed": ("std::vector<long>", 3),
    "text": ("std::string", 101),
    "array": ("short[]", 10),
    "strings": ("std::vector<std::string>", 5),
    "pointers": ("std::vector<Point*>", 5),
    "node": None,
    "alone": None,
}


def check(*command, options=(), stdin="0123456789abcdefghij"):
    """Exit status, what the program printed, and what was found."""
    with tempfile.NamedTemporaryFile() as log:
        run = [ULPF, "check", "--json", "-l", log.name, *options, "--", *command]
        done = subprocess.run(run, input=stdin, capture_output=True, text=True, timeout=60 * PATIENCE)
        said = [json.loads(line) for line in log.read().splitlines()]
    return done.returncode, done.stdout, [line for line in said if line["type"] == "error"], said[-1]


@ulpf_only
class Check(unittest.TestCase):
    def test_each_error(self):
        for word, (kind, access, where) in ERRORS.items():
            with self.subTest(word):
                status, _, found, heap = check(program("heap_errors"), word)
                self.assertEqual(status, 5)
                self.assertEqual([error["error"] for error in found], [kind], found)
                (error,) = found
                self.assertIn(access, error["what"])
                self.assertIn(where, error["what"])
                places = [error.get("place", {}), *error["callers"]]
                self.assertIn(word, [place.get("function") for place in places], error)
                if error.get("block"):
                    self.assertEqual(error["allocated_by"][0]["function"], word)
                if kind in ("freed", "double-free"):
                    self.assertEqual(error["freed_by"][0]["function"], word)
                self.assertEqual((heap["errors"], heap["searched"]), (1, True))

    def test_memory_of_large_blocks(self):
        """Freed blocks are joined again: blocks of all sizes that come and go do not take more and more memory."""
        status, said, found, _ = check(program("heap_large"), "30000", options=["--quarantine", "16M"])
        self.assertEqual((status, found), (0, []))
        self.assertLess(int(said), 200 << 10)

    def test_more_than_there_is(self):
        """A request for more than the heap can ever have fails, and the program continues; the user sees a message."""
        with tempfile.NamedTemporaryFile("r") as log:
            run = [ULPF, "check", "--log", log.name, "--", program("heap_limit"), hex(1 << 35), "3"]
            done = subprocess.run(run, capture_output=True, text=True, timeout=60 * PATIENCE)
            said = log.read() + done.stderr
        self.assertEqual((done.returncode, done.stdout), (0, "not so much\ndone\n"))
        self.assertEqual(said.count("the checked heap cannot grow by"), 1, said)

    def test_elements_of_containers(self):
        """Functions that are inlined in one another say what a block was allocated for, and where."""
        for name in "heap_elements", "heap_elements_optimised":
            for word, element in ELEMENTS.items():
                with self.subTest(f"{name} {word}"):
                    status, _, found, _ = check(program(name), word, options=["--frames", "16"])
                    (error,) = found
                    self.assertEqual(status, 0)
                    of = error.get("element")
                    self.assertEqual(of and (of["container"], of["index"]), element, error)
                    if element:
                        self.assertTrue(error["what"].endswith(f": [{element[1]}] of {element[0]}"), error["what"])
                    # Also where all others are inlined in it, at its own line.
                    own = [place for place in error["allocated_by"] if place["function"] == f"{word}()" and "inlined" not in place]
                    self.assertEqual([os.path.basename(place["file"]) for place in own], ["heap_elements.cc"], error)

    def test_patched_accesses_are_judged_as_well(self):
        """The last of a thousand stores of one instruction, which is patched by then."""
        _, _, found, _ = check(program("heap_errors"), "last_of_many", options=["--frames", "1"])
        self.assertEqual([(error["error"], error["count"]) for error in found], [("outside", 1)])

    def test_lost_blocks(self):
        status, _, found, heap = check(program("heap_errors"), "lose", options=["--error-exitcode", "9"])
        self.assertEqual(status, 9)
        lost = {error["error"]: (error["count"], error["len"], error["allocated_by"][0]["function"]) for error in found}
        self.assertEqual(lost, {"lost": (1, 5000, "lose"), "indirectly-lost": (1, 16, "lose")})
        self.assertEqual((heap["lost"], heap["indirectly_lost"]), ([1, 5000], [1, 16]))
        _, _, found, heap = check(program("heap_errors"), "lose", options=["--no-leaks"])
        self.assertEqual((found, heap["searched"]), ([], False))

    def test_no_error(self):
        """Four threads, and children that go on with the heap."""
        status, _, found, heap = check(program("heap_errors"), "none", options=["--quarantine", "1M"])
        # (The loader keeps the inside of what it allocates for each thread.)
        found = [error for error in found if error["error"] != "possibly-lost"]
        self.assertEqual((status, found, heap["errors"]), (0, [], 0))
        self.assertGreater(heap["allocated"], 50_000)

    def test_threads_free_what_others_have_allocated(self):
        """All are counted, and no block has two owners at a time, whenever it is used again."""
        held, all_of_them = 12 * 200, 12 * 200 * 20
        for quarantine in "0", "100K", "64M":
            with self.subTest(quarantine):
                status, out, found, heap = check(program("heap_threads"), options=["--quarantine", quarantine, "--no-leaks"])
                self.assertEqual((status, out, found), (0, "well\n", []))
                self.assertIn(heap["allocated"] - all_of_them, range(100), heap)
                self.assertIn(heap["freed"] - all_of_them, range(100), heap)
                # each of the eight shards may be behind by 4 KiB; the C library has some blocks of its own.
                self.assertIn(heap["most"] - held * 1000, range(-8 * 4096, 32 << 10), heap)

    def test_random_gaps(self):
        """Blocks of one size have slots of many sizes."""
        for gap, least, most in (("16", 1, 1), ("64", 1, 1), ("16..512", 8, 33)):
            with self.subTest(gap):
                status, out, found, _ = check(program("heap_gaps"), options=["--redzone", gap, "--no-leaks"])
                self.assertEqual((status, found), (0, []))
                self.assertIn(int(out), range(least, most + 1))

    def test_operator_new(self):
        for word, says in {
            "free_of_new": "free of {}, which was allocated by new",
            "delete_of_malloc": "delete of {}, which was allocated by malloc",
            "delete_of_array": "delete of {}, which was allocated by new[]",
        }.items():
            with self.subTest(word):
                _, _, (error,), _ = check(program("new_errors"), word)
                self.assertEqual(error["what"], says.format(error["addr"]))
        self.assertEqual(check(program("new_errors"), "none")[2], [])

    def test_programs_of_others(self):
        """They behave as alone, and no error is reported."""
        for command in (
            ["/bin/bash", "-c", "for i in 1 2 3 4 5 6 7 8; do x=$(echo $i; exit 3); done; echo $x $?"],
            ["git", "-C", os.path.dirname(ULPF), "--version"],
            ["sort", "-n", __file__],
            ["sqlite3", ":memory:", "create table t(a); insert into t values (3), (1); select a from t order by a;"],
        ):
            with self.subTest(command[0]):
                if not find_tool(command[0]):
                    continue
                expected, out = bare(*command)
                status, said, found, heap = check(*command, options=["--no-leaks"])
                self.assertEqual((status, said, found), (expected, out, []))
                self.assertGreater(heap["allocated"], 0)

    def test_text(self):
        done = subprocess.run([ULPF, "check", program("heap_errors"), "use_after_free"], capture_output=True, text=True, timeout=60 * PATIENCE)
        lines = done.stderr.splitlines()
        self.assertRegex(lines[0], r"^ulpf: #1 read of 4 bytes at 0x[0-9a-f]+, 12 bytes inside a freed block of 40 bytes$")
        self.assertRegex(lines[1], r"^ {8}use_after_free\+0x[0-9a-f]+ at heap_errors.c:\d+$")
        self.assertIn("    freed by", lines)
        self.assertIn("    allocated by", lines)
        self.assertIn("ulpf: 1 error at 1 place; ", done.stderr)

    def test_more_places_than_there_is_room_for(self):
        """The sums are those of all blocks."""
        with tempfile.TemporaryDirectory(prefix="ulpf-check-") as folder:
            source, many = os.path.join(folder, "many.c"), os.path.join(folder, "many")
            with open(source, "w") as file:
                file.write("#include <stdlib.h>\nvoid *volatile kept;\nint main(void) {\n" + "kept = malloc(8);\n" * 1200 + "kept = NULL; return 0; }\n")
            subprocess.run(["cc", "-O0", "-fno-builtin", "-o", many, source], check=True)
            _, _, found, heap = check(many)
            self.assertEqual(len(found), 1024)
            left = [heap[kind] for kind in ("lost", "indirectly_lost", "possibly_lost", "reachable")]
            self.assertEqual([sum(column) for column in zip(*left)], [1200, 9600])
            self.assertGreater(heap["lost"][0], 1024)
            done = subprocess.run([ULPF, "check", many], capture_output=True, text=True, timeout=60 * PATIENCE)
            self.assertIn("ulpf: (of these, 176 blocks (1408 bytes) of more places than there is room for)", done.stderr)

    def test_what_cannot_be_checked_says_so(self):
        with tempfile.TemporaryDirectory(prefix="ulpf-check-") as folder:
            static = os.path.join(folder, "static")
            subprocess.run(["strip", "-o", static, program("five_static")], check=True)
            done = subprocess.run([ULPF, "check", static], capture_output=True, text=True, timeout=60 * PATIENCE)
            begins, ends = done.stderr.splitlines()[0], done.stderr.splitlines()[-1]
            self.assertEqual(done.returncode, 0)
            self.assertRegex(begins, "^ulpf: nothing is checked: .* no function called malloc, or no symbols any more; say .* --allocator")
            self.assertIn("no allocator was found in the program, so nothing was checked", ends)
            with tempfile.NamedTemporaryFile() as log:
                subprocess.run([ULPF, "check", "--json", "-l", log.name, static], capture_output=True, timeout=60 * PATIENCE)
                notice, heap = map(json.loads, log.read().splitlines())
        self.assertEqual((notice["type"], heap["allocated"]), ("notice", 0))
        self.assertIn("nothing is checked", notice["text"])
        done = subprocess.run([ULPF, "check", "/nowhere"], capture_output=True, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, 127)


@ulpf_only
class Life(unittest.TestCase):
    """Correct programs end as they do alone, and are checked to their end."""

    def test_calls_about_the_code_of_the_c_library(self):
        for what in ("shmdt", "shmat", "mremap", "mprotect", "writable", "pkey_mprotect", "dontfork", "dofork", "dontneed", "populate",
                     "mlock", "now", "future", "both"):
            with self.subTest(what):
                status, said, found, _ = check(program("heap_code"), what, options=("--no-leaks",))
                self.assertEqual((status, said), (0, "fine\n"))
                self.assertEqual([(error["error"], error["count"]) for error in found], [("outside", 1)])

    def test_requests_that_no_heap_can_serve(self):
        for compiler in ("gcc",), ("gcc", "-static"), ("musl-gcc",), ("musl-gcc", "-static"):
            with self.subTest(compiler), tempfile.TemporaryDirectory() as folder:
                if not find_tool(compiler[0]):
                    self.skipTest(f"{compiler[0]} is not installed")
                name = os.path.join(folder, "heap_errno")
                source = os.path.join(ROOT, "tests", "programs", "heap_errno.c")
                subprocess.run([*compiler, "-w", "-g", "-o", name, source], check=True)
                alone = subprocess.run([name], stdout=subprocess.PIPE, text=True, check=True).stdout
                status, said, found, _ = check(name, options=("--no-leaks",))
                self.assertEqual((status, said, found), (0, alone, []))

    def test_a_thread_of_real_time_priority(self):
        """It waits for locks of threads that run only while it sleeps."""
        status, said, found, _ = check(program("real_time"), "3000", options=("--no-leaks",))
        if status == 77:
            self.skipTest("real-time priorities need CAP_SYS_NICE")
        self.assertEqual((status, said, found), (0, "done\n", []))

    def test_a_program_that_executes_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "again")
            subprocess.run(["gcc", "-g", "-x", "c", "-", "-o", name], text=True, check=True, input="""
                #define _GNU_SOURCE
                #include <fcntl.h>
                #include <stdio.h>
                #include <stdlib.h>
                #include <unistd.h>
                extern char **environ;
                int main(int argc, char **argv)
                {
                    int times = atoi(argv[1]);
                    free(malloc(10));
                    if (times == 0) { volatile char *p = malloc(20); p[20] = 1; puts("fine"); return 4; }
                    char *next[] = { "another name", times == 1 ? "0" : "1", 0 };
                    if (times == 2) execv("/proc/self/exe", next);
                    fexecve(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), next, environ);
                    return 9;
                }""")
            for times in "1", "2":
                for options in ("--no-leaks",), ("--no-leaks", "--follow"):
                    with self.subTest(times=times, options=options):
                        status, said, found, _ = check(name, times, options=options)
                        self.assertEqual((status, said, len(found)), (4, "fine\n", 1))

    def test_a_table_that_looks_like_code_of_the_program(self):
        """A library that is bound lazily: before relocation, its table holds addresses that look like the executable's."""
        with tempfile.TemporaryDirectory() as folder:
            library, name = os.path.join(folder, "libtable.so"), os.path.join(folder, "table")
            build = lambda *words, text: subprocess.run(["gcc", "-x", "c", "-", "-o", *words], input=text, text=True, check=True)
            build(library, "-shared", "-fPIC", "-Wl,-z,lazy", text="""
                #include <string.h>
                static int x;
                void *table[200000] = { [0 ... 199999] = &x };
                void copy(char *to, const char *from, unsigned long n) { memcpy(to, from, n); }""")
            build(name, "-no-pie", "-Wl,-z,lazy", "-x", "none", library, f"-Wl,-rpath,{folder}", text="""
                #include <stdio.h>
                void copy(char *, const char *, unsigned long);
                __asm__(".text\\n.fill 3000000, 1, 0xcc\\n");
                int main(void) { char a[20]; volatile unsigned long n = 6; copy(a, "hello", n); puts(a); return 0; }""")
            self.assertEqual(check(name)[:3], (0, "hello\n", []))


if __name__ == "__main__":
    unittest.main()
