"""`ulpf run`: what is logged, what is counted, what is refused."""

import collections
import json
import os
import re
import subprocess
import tempfile
import unittest

from lib.cases import line
from lib.env import PATIENCE, ULPF, bare, example, source_of, ulpf_only
from lib.run import Json, run, ulpf


@ulpf_only
class Run(unittest.TestCase):
    maxDiff = None

    def test_every_store_with_its_place(self):
        said = Json(["a", "b", "c", "d", "e"], "five")
        self.assertEqual(said.changes(), [("a", "10", "11"), ("b", "20", "21"), ("b", "21", "21"), ("c", "30", "31"),
                                          ("d", "40", "41"), ("e", "50", "51"), ("a", "11", "12")])
        self.assertEqual([hit["silent"] for hit in said.hits], [False, False, True, False, False, False, False])
        self.assertEqual({hit["function"] for hit in said.hits}, {"main"})
        with open(source_of("five.c")) as source:
            lines = source.read().splitlines()
        self.assertEqual([lines[hit["line"] - 1].split(";")[0].strip() for hit in said.hits],
                         ["a = 11", "b = 21", "b = 21", "c = 31", "d = 41", "e = 51", "a = 12"])
        self.assertTrue(all(hit["file"].endswith("/five.c") for hit in said.hits))
        times = [hit["time"] for hit in said.hits]
        self.assertEqual(times, sorted(times))
        self.assertEqual((said.status, said.out), (0, "five: done\n"))

    def test_a_file_of_the_programs_name(self):
        """A name without a slash is looked for in PATH only, as by a shell: no file here takes its place."""
        with tempfile.TemporaryDirectory() as folder:
            def here(name):
                path = os.path.join(folder, name)
                with open(path, "w") as file:
                    file.write("#!/bin/sh\nexit 7\n")
                os.chmod(path, 0o755)

            def status(command, *words):
                done = subprocess.run([ULPF, command, *words], cwd=folder, capture_output=True, text=True, timeout=60 * PATIENCE)
                return done.returncode, done.stderr
            here("true")
            here("only-here")
            for command in ["run", "-q", "-w", "heap"], ["check", "--no-leaks"]:
                self.assertEqual(status(*command, "true")[0], 0)
                self.assertEqual(status(*command, "./true")[0], 7)
                code, err = status(*command, "only-here")
                self.assertEqual(code, 127)
                self.assertIn("cannot run only-here: it is not in PATH. To run the file in the current folder, write ./only-here", err)
            self.assertIn("write ./only-here", status("run", "only-here")[1])

    def test_addresses_are_random_unless_asked_for(self):
        """Also those of unwatched children."""
        with open("/proc/self/personality") as file:
            own = file.read()
        for command in ["run", "-q", "-w", "heap"], ["check", "--no-leaks"]:
            for words in ["cat", "/proc/self/personality"], ["sh", "-c", "cat /proc/self/personality; true"]:
                for options, expected in ([], own), (["--aslr"], own), (["--no-aslr"], "00040000\n"):
                    with self.subTest(command=command, words=words, options=options):
                        status, out, err = ulpf(*command, *options, "--", *words)
                        self.assertEqual((status, out), (0, expected), err)
        addresses = [{hit["addr"] for hit in Json(["a"], "five", options=options).hits} for options in [()] * 3 + [("--no-aslr",)] * 2]
        self.assertGreater(len(set.union(*addresses[:3])), 1)
        self.assertEqual(addresses[3], addresses[4])

    def test_text_for_people(self):
        status, out, err = run(["a", "b"], "five")
        self.assertEqual((status, out), (0, "five: done\n"))
        hits = re.findall(r"(?m)^ +\d+\.\d{6} \[\d+\] write  (\w): (.*?)  4 bytes  main\+0x[0-9a-f]+ at five\.c:(\d+)$", err)
        self.assertEqual(hits, [("a", "10 → 11", str(line("five.c", "a = 11;"))), ("b", "20 → 21", str(line("five.c", "b = 21;"))),
                                ("b", "21 (unchanged)", str(line("five.c", "silent: no stop"))),
                                ("a", "11 → 12", str(line("five.c", "a = 12;")))])
        self.assertRegex(err, r"ulpf: 4 hits on 2 watches, 1 silent store, \d+ false positives")
        self.assertRegex(err, r"\n +2 +1 +\d+  w +guard +0x[0-9a-f]+ +4  b\n")
        self.assertNotIn("\x1b", err)

    def test_kinds(self):
        said = Json(["a:rw", "c"], "five")
        self.assertEqual(said.status, 0)
        self.assertEqual([(h["spec"], h["old"], h["new"], h["access"]) for h in said.hits],
                         [("a:rw", 10, 11, "write"), ("c", 30, 31, "write"), ("a:rw", 11, 12, "write")])
        self.assertEqual([w["hits"] for w in said.summary["watches"]], [2, 1])
        self.assertEqual(said.summary["lost"], 0)
        self.assertGreater(said.hits[-1]["time"], 0)

    def test_quiet_is_about_the_terminal(self):
        """A log gets its lines."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.jsonl")
            status, _, err = ulpf("run", "-q", "--log", path, "--no-summary", "-w", "b", "--", example("five"))
            self.assertEqual((status, err), (0, ""))
            with open(path) as file:
                self.assertEqual([hit["new"] for hit in map(json.loads, file) if hit["type"] == "hit"], [21, 21])

    def test_for_a_time(self):
        """Then `run` ends the program, and `attach` leaves it."""
        status, _, err = ulpf("run", "--for", "0.3", "-q", "-w", "rounds", "--", example("spin"))
        self.assertEqual(status, -15)
        self.assertRegex(err, r"ulpf: [\d,]+ hits on 1 watch")
        with subprocess.Popen([example("spin")], stdout=subprocess.PIPE) as program:
            self.addCleanup(program.kill)
            program.stdout.readline()
            status, _, err = ulpf("attach", "--for", "0.3", "-q", "-w", "rounds", str(program.pid))
            self.assertEqual((status, program.poll()), (0, None))
            self.assertRegex(err, r"ulpf: [\d,]+ hits on 1 watch")
            _, _, err = ulpf("attach", "-w", "nothing", str(program.pid))
            self.assertIn("1 watch refused; nothing is watched (--keep-going watches the others)", err)
            program.kill()
        for wrong in "0", "x", "-1", "1e30":
            self.assertIn("that is no number of seconds", ulpf("run", f"--for={wrong}", "-w", "a", "--", example("five"))[2])

    def test_no_such_process(self):
        for words in [], ["-w", "x"]:
            self.assertEqual(ulpf("attach", *words, "4194304"), (2, "", "ulpf: there is no process 4194304\n"))

    def test_letters_in_the_others_place(self):
        _, _, err = ulpf("run", "-w", "toatl", "--", example("filters"))
        self.assertIn("there is no variable `toatl`; did you mean `total`?", err)

    def test_lines_are_the_programs_own(self):
        """Not those of the headers that are inlined there."""
        said = Json(["hits", "places[*]"], "own_lines", options=["--at", "work"])
        text = [line("own_lines.cc", mark) for mark in ("hits++", "hits += n", "places.at(2)")]
        self.assertEqual([(os.path.basename(hit["file"]), hit["line"]) for hit in said.hits], [("own_lines.cc", number) for number in text] * 3)

    def test_reads(self):
        hits = Json(["table[2]:r"], "reads").hits
        self.assertEqual([h["access"] for h in hits if h["object"] == "reads"][:2], ["read", "read"])
        self.assertIn(len(hits), (3, 4))

    def test_fields_elements_ranges(self):
        hits = Json(["box.id", "box.corner[1].y", "shelf[2].id", "chosen"], "structs").hits
        self.assertEqual([h["pc"] for h in hits], [h["pc"] for h in sorted(hits, key=lambda h: h["time"])])
        specs = [h["spec"] for h in hits]
        for spec in "box.id", "box.corner[1].y", "chosen":
            self.assertEqual(specs.count(spec), 1, specs)

    def test_address_and_length(self):
        symbols = subprocess.run(["nm", example("five_nopie")], stdout=subprocess.PIPE, text=True, check=True).stdout
        at = int(re.search(r"(\w+) D a\n", symbols).group(1), 16)
        said = Json([f"{at:#x}:4"], "five_nopie")
        self.assertEqual((said.status, said.out), (0, "five: done\n"))
        self.assertEqual([(int(h["addr"], 16), h["old_bytes"], h["new_bytes"]) for h in said.hits],
                         [(at, "0a000000", "0b000000"), (at, "0b000000", "0c000000")])

    def test_every_kind_of_executable(self):
        for name in "five_static", "five_static_pie", "five_nopie":
            with self.subTest(name):
                said = Json(["a", "b"], name)
                self.assertEqual((said.status, said.out), (0, "five: done\n"))
                self.assertEqual(said.changes(), [("a", "10", "11"), ("b", "20", "21"), ("b", "21", "21"), ("a", "11", "12")])
        self.assertGreaterEqual(len(Json(["WATCHED"], "rusty").hits), 1)
        self.assertEqual(run(["stdout"], "five_stripped")[:2], (0, "five: done\n"))

    def test_counts_without_lines(self):
        status, out, err = run(["a", "b"], "five", options=["--quiet"])
        self.assertEqual((status, out), (0, "five: done\n"))
        self.assertNotIn("→", err)
        self.assertIn("4 hits on 2 watches", err)
        _, _, err = run(["a"], "five", options=["--no-summary"])
        self.assertNotIn("ulpf:", err)
        _, _, err = run(["b"], "five", options=["--changes-only"])
        self.assertNotIn("unchanged", err)
        self.assertIn("2 hits on 1 watch, 1 silent store", err)

    def test_log_on_standard_output(self):
        status, out, err = run(["a"], "five", options=["--log", "-"])
        self.assertEqual(status, 0)
        self.assertRegex(out, r"write  a: 10 → 11")
        self.assertIn("five: done\n", out)
        self.assertIn("2 hits on 1 watch", err)

    def test_watch_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".watch") as file:
            file.write("# the first two\na\n  b:w   # with a comment\n\nunwatched[0..64]:rw\nc  # the third\nd\ne\n")
            file.flush()
            said = Json([], "five", options=["--watch-file", file.name])
        # Each += is a load and a store, and there are two plain stores.
        self.assertEqual([w["hits"] for w in said.summary["watches"]], [2, 2, 2002, 1, 1, 1])
        self.assertIn("unwatched[0]", {hit["name"] for hit in said.hits})

    def test_backtrace(self):
        said = Json(["a"], "five", options=["--backtrace", "4"])
        # main's caller is in libc; its name is known only where libc's symbols are installed.
        caller = said.hits[0]["callers"][0]
        self.assertIn("libc.so", caller["object"])
        self.assertRegex(caller.get("function", "libc_start"), "libc_start")
        _, _, err = run(["a"], "five", options=["--backtrace", "4"])
        self.assertRegex(err, r"\n +#1 .*(libc_start\S*\+0x|libc\.so)")
        self.assertIn("reset_scores", json.dumps(Json(["game.total"], "stray", options=["-b", "8"]).hits))

    def test_kernel_writes_name_the_call(self):
        said = Json(["buffer"], "sysread")
        self.assertEqual(said.status, 0)
        self.assertEqual((said.status, said.out), bare(example("sysread")))
        by_kernel = [hit["syscall"] for hit in said.hits if "syscall" in hit]
        for call in "read", "readv", "pread64", "uname":
            self.assertIn(call, by_kernel)
        first = next(hit for hit in said.hits if hit.get("syscall") == "read")
        self.assertEqual((first["name"], first["new"]), ("buffer[0..12]", "hello, watch"))
        self.assertRegex(first["call"], rf"^read\(\d+, {first['addr']}, 12\) = 12$")
        self.assertTrue(any(hit.get("syscall") for hit in Json(["buffer[0..12]"], "sysread").hits))
        _, _, err = run(["account.balance"], "overrun")
        self.assertRegex(err, r"write +account\.balance: 1000 → 1000000  8 bytes  by read\(\d+, 0x[0-9a-f]+, 24\) = 24, called from ")

    def test_threads_lose_nothing(self):
        said = Json(["cells[3]"], "threads16", "20000", options=["--quiet"])
        self.assertEqual((said.status, said.out), bare(example("threads16"), "20000"))
        self.assertEqual(said.summary["watches"][0]["hits"], 20000)

    def test_log_of_many_hits_is_whole_or_says_what_is_missing(self):
        said = Json(["cells[0..16]"], "threads16", "20000")
        self.assertEqual(said.summary["watches"][0]["hits"], 320000)
        self.assertEqual(len(said.hits) + said.summary["lost"], 320000)
        self.assertEqual(sum(line["count"] for line in said.lines if line["type"] == "lost"), said.summary["lost"])
        self.assertEqual({hit["name"] for hit in said.hits} - {f"cells[{i}]" for i in range(16)}, set())

    def test_thousands_of_threads_log_each_in_its_order(self):
        # More at once than have a large ring, and in the second wave rings are used again.
        threads, stores = 1500, 10
        said = Json(["cells[..]", "total"], "crowd", str(threads), "2", str(stores))
        self.assertEqual((said.status, said.out), (0, f"crowd: total {2 * threads * stores}\n"))
        self.assertEqual(said.summary["lost"], 0)
        by_thread = {}
        for hit in said.hits:
            by_thread.setdefault(hit["tid"], []).append(hit)
        self.assertEqual(len(by_thread), 2 * threads)
        for hits in by_thread.values():
            self.assertEqual([hit["new"] for hit in hits[:-1]], list(range(1, stores + 1)))
            self.assertEqual(len({hit["name"] for hit in hits[:-1]}), 1)
            self.assertEqual(hits[-1]["name"], "total")

    def test_the_log_is_in_order_of_time(self):
        said = Json(["cells[..]", "total"], "crowd", "40", "3", "200")
        self.assertEqual(len(said.hits) + said.summary["lost"], 40 * 3 * 201)
        times = [hit["time"] for hit in said.hits]
        self.assertEqual(times, sorted(times))
        totals = [hit["new"] for hit in said.hits if hit["name"] == "total"]
        self.assertEqual(len(totals), 120)

    def test_library_that_is_loaded_later(self):
        said = Json(["libplugin`plugin_state"], "plugins")
        self.assertEqual(said.changes(), [("plugin_state", "1", "11"), ("plugin_state", "11", "31")] * 2)
        self.assertIn("waits: `libplugin` is not loaded", said.err)
        self.assertEqual((said.status, said.out), bare(example("plugins")))
        said = Json(["libneverloaded`x"], "five")
        self.assertEqual(said.status, 0)
        self.assertIn("never loaded", said.summary["watches"][0]["refused"])

    def test_thread_locals_of_all_threads(self):
        """Those to come, too; the memory of an ended thread's copy is not watched."""
        for threads, rounds in (3, 2), (20, 5):
            said = Json(["counter", "state.depth", "*to"], "own_data", str(threads), str(rounds))
            self.assertEqual(said.status, 0, said.err)
            self.assertIn("each thread's copy is watched", said.err)
            by = collections.Counter((hit["name"], hit["old"], hit["new"]) for hit in said.hits if hit["name"] != "*to")
            ids = range(1, threads + 1)
            expected = {("counter", 5, 6): 1, ("counter", 6, 7): 1}
            for n in ids:
                expected |= {("counter", 5, 100 * n): rounds, ("counter", 100 * n, 100 * n + 1): rounds, ("state.depth", 0, n): rounds}
            self.assertEqual(by, expected)
            self.assertEqual(collections.Counter(hit["new"] for hit in said.hits if hit["name"] == "*to"), dict.fromkeys(ids, rounds))
            mine = [hit for hit in said.hits if hit["name"] == "counter" and hit["new"] in (100, 101)]
            self.assertEqual(len({hit["tid"] for hit in mine}), rounds)

    def test_thread_locals_however_they_come(self):
        source = ("#include <pthread.h>\n_Thread_local int mine = 1;\nstatic void *f(void *p) { mine = 50; return p; }\n"
                  "int main(void) { mine = 2; pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0);\n"
                  "mine = 3; return 0; }")
        with tempfile.TemporaryDirectory() as folder:
            for flags in ["-pthread"], ["-pthread", "-static"]:
                binary = os.path.join(folder, "local")
                subprocess.run(["cc", "-g", *flags, "-x", "c", "-", "-o", binary], input=source.encode(), check=True)
                every = [("mine", "1", "2"), ("mine", "1", "50"), ("mine", "2", "3")]
                said = Json(["mine"], binary)
                # A static program's C library may copy the first values when the copy is known already.
                said.hits = [hit for hit in said.hits if hit["function"] in ("main", "f")]
                self.assertEqual(said.changes(), every)
                self.assertEqual(Json(["mine if mine < 60"], binary, options=["--at", "main"]).changes(), every)
                said = Json(["mine snapshot"], binary, options=["--at", "main"])
                self.assertEqual(said.changes(), [("mine", "1", "2"), ("mine", "2", "3")])
                self.assertIn("main thread's copy", said.err)

    def test_watches_set_at_a_function(self):
        said = Json(["a"], "five", options=["--at", "ready"])
        self.assertEqual(said.changes(), [("a", "10", "11"), ("a", "11", "12")])
        status, _, err = run(["a"], "five", options=["--at", "nowhere"])
        self.assertEqual(status, 2)
        self.assertIn("no function `nowhere`", err)

    def test_watches_set_at_a_line(self):
        with open(source_of("five.c")) as file:
            lines = ["", *file.read().splitlines()]
        here = next(n for n, line in enumerate(lines) if "a = 12" in line)
        for place in [f"five.c:{here}", f"{source_of('five.c')}:{here}"]:
            with self.subTest(place):
                said = Json(["a"], "five", options=["--at", place])
                self.assertEqual(said.changes(), [("a", "11", "12")])
        blank = lines.index("int unwatched[64];") + 1
        for place, why in [(f"five.c:{blank}", f"no code at line {blank} of five.c; the next line with code is {blank + 2}"),
                           ("five.c:1000", "no code at line 1000 of five.c, or behind it"), ("ive.c:3", "no source file `ive.c`")]:
            with self.subTest(place):
                status, _, err = run(["a"], "five", options=["--at", place])
                self.assertEqual(status, 2)
                self.assertIn(why, err)

    def test_watches_set_at_a_line_of_many_places(self):
        """The first of them that is reached: instances of a template, of a generic function; what has been inlined, loops."""
        cplusplus = """int total;
            template<typename T> __attribute__((noinline)) void add(T much) {
                total = total + much; // here
            }
            volatile int which = 1;
            int main() {
                total = 1;
                if (which == 0) add(1.0f);
                for (int n = 0; n < 2; n++) add(10L);
                add('a');
            }"""
        rust = """static mut TOTAL: i32 = 0;
            #[inline(never)]
            fn add<T: Into<i32>>(much: T) {
                unsafe { TOTAL += much.into() } // here
            }
            fn main() {
                unsafe { TOTAL = 1 };
                if std::env::args().count() > 5 { add(true) }
                add(10i16);
                add(10i16);
                add(97u8);
            }"""
        inlined = """volatile int total;
            static inline __attribute__((always_inline)) void add(int much) {
                total = total + much; // here
            }
            int main(int argc, char **argv) {
                total = 1;
                if (argc > 1) add(5);
                for (int n = 0; n < 2; n++) add(10);
                add(97);
                return 0;
            }"""
        with tempfile.TemporaryDirectory() as folder:
            for name, source, build, watch in [("a.cc", cplusplus, ["g++", "-g"], "total"), ("a.rs", rust, ["rustc", "-g", "-Ccodegen-units=1"], "a::TOTAL"),
                                               ("a.c", inlined, ["gcc", "-g", "-O2"], "total")]:
                with self.subTest(name):
                    path, binary = os.path.join(folder, name), os.path.join(folder, "a")
                    with open(path, "w") as file:
                        file.write(source)
                    subprocess.run([*build, path, "-o", binary], check=True)
                    here = next(n for n, line in enumerate(source.splitlines(), 1) if "// here" in line)
                    said = Json([watch], binary, options=["--at", f"{name}:{here}"])
                    values = [(old, new) for _, old, new in said.changes()]
                    self.assertEqual(values, [("1", "11"), ("11", "21"), ("21", "118")])

    def test_thousands_of_watches(self):
        said = Json([f"unwatched+{i}:1" for i in range(256)] * 8, "five")
        self.assertEqual((said.status, len(said.summary["watches"])), (0, 2048))
        # The loop stores to each of the 64 words, twice more to the first two; each store touches four bytes.
        rounds = [len(range(word, 1000, 64)) for word in range(64)]
        rounds[0] += 1
        rounds[1] += 1
        self.assertEqual([w["hits"] for w in said.summary["watches"]], [rounds[i // 4] for i in range(256)] * 8)


@ulpf_only
class Refusals(unittest.TestCase):
    def refused(self, watches, name, *patterns):
        status, out, err = run(watches, name)
        self.assertEqual((status, out), (2, ""), err)
        for pattern in patterns:
            self.assertRegex(err, pattern)

    def test_nothing_runs_when_a_watch_is_refused(self):
        self.refused(["nonesuch"], "five", r"cannot watch `nonesuch`: .*; ")
        for bad, why in ("0xffff800000000000:8", "not in the program's half"), ("0xffffffffff600000:4", "not in the program's half"), \
                ("0x0:8", "no memory is mapped at 0x0"), ("main:8", "`main` is a function"), ("a:0", "its length is zero"):
            self.refused([bad], "five", why)
        self.refused(["a", "aa"], "five", r"no variable `aa`", r"1 watch refused; nothing was run")
        self.refused(["unwached"], "five", r"did you mean `unwatched`\?")
        self.refused(["a", "a["], "five", r"a number is missing")
        self.refused(["0x10:8"], "five", r"ulpf: .*0x10")
        self.refused(["main"], "five", r"`main` is a function")
        self.refused(["unwatched[64]"], "five", r"use 0 to 63")
        self.refused(["a"], "five_stripped", r"no debug information and no symbol table")
        self.refused(["counts"], "tiny32", r"32-bit")

    def test_programs_that_cannot_be_run(self):
        for name, expected, why in (("/nonexistent/program", 127, "No such file"), ("/etc/passwd", 126, "denied")):
            status, out, err = run(["counts"], name)
            self.assertEqual((status, out), (expected, ""))
            self.assertRegex(err, rf"ulpf: cannot run {name}: .*{why}")
        status, _, err = run([], "/nonexistent/program")
        self.assertEqual(status, 127)
        self.assertRegex(err, r"ulpf: cannot run /nonexistent/program: No such file")

    def test_the_others_with_keep_going(self):
        status, out, err = run(["a", "nonsense"], "five", options=["--keep-going"])
        self.assertEqual((status, out), (0, "five: done\n"))
        self.assertIn("`nonsense` was not watched", err)
        self.assertIn("2 hits on 2 watches", err)

    def test_json_on_standard_error_is_nothing_but_json(self):
        status, _, err = run(["a", "nonsense"], "five", options=["--keep-going", "--json"])
        self.assertEqual(status, 0)
        types = [json.loads(text)["type"] for text in err.splitlines()]
        self.assertEqual((types[-1], types.count("hit")), ("summary", 2))
        self.assertIn("refused", types)

    def test_what_is_no_watch_keeps_its_number(self):
        """A malformed SPEC is refused like any other, in its place; and all output is JSON."""
        status, _, err = run(["a[", "a"], "five", options=["--keep-going", "--json"])
        self.assertEqual(status, 0)
        lines = [json.loads(text) for text in err.splitlines()]
        self.assertEqual([(l["watch"], l["spec"]) for l in lines if l["type"] == "refused"], [(1, "a[")])
        self.assertEqual({l["watch"] for l in lines if l["type"] == "hit"}, {2})
        self.assertEqual([(w["watch"], "refused" in w) for w in lines[-1]["watches"]], [(1, True), (2, False)])
        self.assertEqual([l["watches"] for l in lines if l["type"] == "start"], [2])
        status, out, err = run(["a[", "a"], "five", options=["--json"])
        self.assertEqual((status, out, [json.loads(text)["type"] for text in err.splitlines()]), (2, "", ["message"]))

    def test_nobody_listens(self):
        script = '{ "$0" run -w "unwatched:rw" -w nonsense --keep-going -- "$1"; echo $? > "$2"; } 2>&1 >/dev/null | head -c 1'
        with tempfile.NamedTemporaryFile() as status:
            subprocess.run(["sh", "-c", script, ULPF, example("five"), status.name], stdout=subprocess.PIPE,
                           timeout=30 * PATIENCE, check=True)
            self.assertEqual(status.read(), b"0\n")

    def test_alone(self):
        done = subprocess.run([ULPF], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"Three things to try:\n  ulpf run PROGRAM .*\n  ulpf run -w .*\n  ulpf gdb ")

    def test_nothing_to_watch(self):
        """It says what there is, by size: with types, without debug information, of a running program, of a script."""
        status, out, err = ulpf("run", "--", example("stray"))
        self.assertEqual((status, out), (2, ""))
        self.assertRegex(err, r"nothing to watch: .* The variables of stray:\n(ulpf:   .*\n)*ulpf:   game +20 bytes +struct\n")
        self.assertIn(f"For example: ulpf run --watch game {example('stray')}", err)
        self.assertNotRegex(err, "__|completed")
        with tempfile.TemporaryDirectory() as folder:
            bare_of_debug = os.path.join(folder, "five")
            subprocess.run(["strip", "--strip-debug", "-o", bare_of_debug, example("five")], check=True)
            status, _, err = ulpf("run", "--", bare_of_debug)
            self.assertEqual(status, 2)
            self.assertRegex(err, r"\nulpf:   unwatched +\d+ bytes?\n")
            script = os.path.join(folder, "script")
            with open(script, "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
                file.write("#!/bin/sh\n")
            status, _, err = ulpf("run", "--", script)
            self.assertEqual(status, 2)
            self.assertIn(f"For example: ulpf run --watch heap {script}", err)
        with subprocess.Popen([example("five"), "sleep"], stdin=subprocess.PIPE) as process:
            status, _, err = ulpf("attach", str(process.pid))
            process.kill()
        self.assertEqual(status, 2)
        self.assertIn(f" {process.pid}", err)

    def test_log_that_cannot_be_written(self):
        status, out, err = run(["a"], "five", options=["--log", "/nonexistent/log"])
        self.assertEqual((status, out), (2, ""))
        self.assertIn("/nonexistent/log", err)
        status, out, err = run(["a"], "five", options=["--log", "/dev/full"])
        self.assertEqual((status, out), (0, "five: done\n"))
        self.assertIn("the log is incomplete", err)

    def test_a_disk_that_fills_up(self):
        """The log ends when the disk is full, with a message at once; the program and its counters continue."""
        with tempfile.TemporaryDirectory() as folder:
            small = f'mount -t tmpfs -o size=64k none {folder} && exec "$@" && cat {folder}/log'
            if subprocess.run(["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=64k none {folder}"], stderr=subprocess.PIPE).returncode:
                self.skipTest("nobody may mount a small disk here")
            command = [ULPF, "run", "-w", "bank.accounts[0..16]", "--json", "--log", f"{folder}/log", "--", example("bank"), "2", "1000"]
            done = subprocess.run(["unshare", "-m", "sh", "-c", small.replace("exec ", ""), "sh", *command], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"(?s)the log ends here: No space left on device.*; the program goes on.*the log is incomplete")
        said, _, log = done.stdout.partition('{"type":"start"')
        lines = ('{"type":"start"' + log).splitlines()
        self.assertGreater(len(lines), 100)
        # Nothing but the last line may be cut.
        self.assertTrue(all(json.loads(line) for line in lines[:-1]))
