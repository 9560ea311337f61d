"""`ulpf run` and `ulpf attach`: watches without a debugger."""

import json
import os
import pty
import re
import signal
import subprocess
import tempfile
import time
import unittest

from lib.env import PATIENCE, ULPF, bare, example, needs, ulpf_only


def program(name):
    return name if "/" in name else example(name)


def ulpf(*args, stdin=b"", seconds=60, **options):
    """Runs the command to its end: status, standard output, standard error."""
    done = subprocess.run([ULPF, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=seconds * PATIENCE, **options)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def run(watches, name, *args, options=(), **more):
    flags = [flag for watch in watches for flag in ("--watch", watch)]
    return ulpf("run", *flags, *options, "--", program(name), *args, **more)


class Json:
    """The JSON lines of a run, by type."""

    def __init__(self, watches, name, *args, options=(), **more):
        with tempfile.NamedTemporaryFile(suffix=".json") as log:
            self.status, self.out, self.err = run(watches, name, *args, options=("--json", "--log", log.name, *options),
                                                  **more)
            self.lines = [json.loads(line) for line in log.read().decode().splitlines()]
        self.hits = [line for line in self.lines if line["type"] == "hit"]
        self.summary = next((line for line in self.lines if line["type"] == "summary"), None)

    def changes(self):
        return [(hit["name"], hit["old"], hit["new"]) for hit in self.hits]


@ulpf_only
class Run(unittest.TestCase):
    maxDiff = None

    def test_every_store_with_its_place(self):
        said = Json(["a", "b", "c", "d", "e"], "five")
        self.assertEqual(said.changes(), [("a", "10", "11"), ("b", "20", "21"), ("b", "21", "21"), ("c", "30", "31"),
                                          ("d", "40", "41"), ("e", "50", "51"), ("a", "11", "12")])
        self.assertEqual([hit["silent"] for hit in said.hits], [False, False, True, False, False, False, False])
        self.assertEqual({hit["function"] for hit in said.hits}, {"main"})
        with open(os.path.join(os.path.dirname(example("")), "..", "five.c")) as source:
            lines = source.read().splitlines()
        self.assertEqual([lines[hit["line"] - 1].split(";")[0].strip() for hit in said.hits],
                         ["a = 11", "b = 21", "b = 21", "c = 31", "d = 41", "e = 51", "a = 12"])
        self.assertTrue(all(hit["file"].endswith("/five.c") for hit in said.hits))
        times = [hit["time"] for hit in said.hits]
        self.assertEqual(times, sorted(times))
        self.assertEqual((said.status, said.out), (0, "five: done\n"))

    def test_text_for_people(self):
        status, out, err = run(["a", "b"], "five")
        self.assertEqual((status, out), (0, "five: done\n"))
        self.assertRegex(err, r"\n? +0\.\d{6} \[\d+\] write  a: 10 → 11  4 bytes  main\+0x[0-9a-f]+ at five\.c:\d+\n")
        self.assertIn("write  b: 21 (unchanged)", err)
        self.assertIn("ulpf: 4 hits on 2 watches, 1 silent store", err)
        self.assertRegex(err, r"\n +2 +1 +\d+  w +guard +0x[0-9a-f]+ +4  b\n")
        self.assertNotIn("\x1b", err)

    def test_every_kind_of_executable(self):
        for name in "five_static", "five_static_pie", "five_nopie":
            with self.subTest(name):
                said = Json(["b"], name)
                self.assertEqual((said.status, said.out), (0, "five: done\n"))
                self.assertEqual(said.changes(), [("b", "20", "21"), ("b", "21", "21")])

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
            file.write("# the first two\na\n  b:w   # with a comment\n\nunwatched[0..64]:rw\n")
            file.flush()
            said = Json([], "five", options=["--watch-file", file.name])
        self.assertEqual([w["hits"] for w in said.summary["watches"]][:2], [2, 2])
        # Each += is a load and a store, and there are two plain stores.
        self.assertEqual(said.summary["watches"][2]["hits"], 2002)
        self.assertIn("unwatched[0]", {hit["name"] for hit in said.hits})

    def test_backtrace(self):
        said = Json(["a"], "five", options=["--backtrace", "4"])
        # main's caller is in libc; its name is known only where libc's symbols are installed.
        caller = said.hits[0]["callers"][0]
        self.assertIn("libc.so", caller["object"])
        self.assertRegex(caller.get("function", "libc_start"), "libc_start")
        _, _, err = run(["a"], "five", options=["--backtrace", "4"])
        self.assertRegex(err, r"\n +#1 .*(libc_start\S*\+0x|libc\.so)")

    def test_kernel_writes_name_the_call(self):
        said = Json(["buffer"], "sysread")
        self.assertEqual(said.status, 0)
        self.assertEqual((said.status, said.out), bare(example("sysread")))
        by_kernel = [hit["syscall"] for hit in said.hits if "syscall" in hit]
        for call in "read", "readv", "pread64", "uname":
            self.assertIn(call, by_kernel)
        first = next(hit for hit in said.hits if hit.get("syscall") == "read")
        self.assertEqual((first["name"], first["new"]), ("buffer[0..12]", '"hello, watch"'))
        self.assertRegex(first["call"], rf"^read\(\d+, {first['addr']}, 12\) = 12$")
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

    def test_library_that_is_loaded_later(self):
        said = Json(["libplugin`plugin_state"], "plugins")
        self.assertEqual(said.changes(), [("plugin_state", "1", "11"), ("plugin_state", "11", "31")] * 2)
        self.assertIn("waits: `libplugin` is not loaded", said.err)
        self.assertEqual((said.status, said.out), bare(example("plugins")))
        said = Json(["libneverloaded`x"], "five")
        self.assertEqual(said.status, 0)
        self.assertIn("never loaded", said.summary["watches"][0]["refused"])

    def test_thread_locals_are_the_main_threads(self):
        source = ("#include <pthread.h>\n_Thread_local int mine = 1;\nstatic void *f(void *p) { mine = 50; return p; }\n"
                  "int main(void) { mine = 2; pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0);\n"
                  "mine = 3; return 0; }")
        with tempfile.TemporaryDirectory() as folder:
            for flags, options in (["-pthread"], []), (["-pthread", "-static"], ["--at", "main"]):
                binary = os.path.join(folder, "local")
                subprocess.run(["cc", "-g", *flags, "-x", "c", "-", "-o", binary], input=source.encode(), check=True)
                said = Json(["mine"], binary, options=options)
                self.assertEqual(said.changes(), [("mine", "1", "2"), ("mine", "2", "3")])
                self.assertIn("main thread's copy", said.err)

    def test_watches_set_at_a_function(self):
        said = Json(["a"], "five", options=["--at", "ready"])
        self.assertEqual(said.changes(), [("a", "10", "11"), ("a", "11", "12")])
        status, _, err = run(["a"], "five", options=["--at", "nowhere"])
        self.assertEqual(status, 2)
        self.assertIn("no function `nowhere`", err)

    def test_thousands_of_watches(self):
        flags = [f"unwatched+{i}:1" for i in range(256)] * 8
        said = Json(flags, "five")
        self.assertEqual((said.status, len(said.summary["watches"])), (0, 2048))
        self.assertGreater(said.summary["watches"][0]["hits"], 0)


@ulpf_only
class Endings(unittest.TestCase):
    def test_exit_statuses(self):
        for status in 0, 1, 7, 255:
            self.assertEqual(run(["libc`environ"], "exitcode", str(status))[0], status)

    def test_death_by_signal_is_ours_too(self):
        for how, number in ("segv", signal.SIGSEGV), ("abort", signal.SIGABRT), ("kill", signal.SIGKILL):
            with self.subTest(how):
                expected, _ = bare(example("crash"), how)
                status, _, err = run(["watched"], "crash", how)
                self.assertEqual(status, expected)
                if expected == -number:
                    self.assertIn("1 hit on 1 watch", err)

    def test_killed_from_outside_still_has_a_summary(self):
        process = subprocess.Popen([ULPF, "run", "--json", "-w", "other_rounds", "--", example("spin")], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        time.sleep(1.5 * PATIENCE)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], stdout=subprocess.PIPE).stdout.split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        _, err = process.communicate(timeout=20 * PATIENCE)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        lines = [json.loads(line) for line in err.splitlines()]
        hits = [line for line in lines if line["type"] == "hit"]
        self.assertGreater(len(hits), 10)
        self.assertIn(lines[-1]["watches"][0]["hits"] - len(hits), (0, 1))

    def test_a_dead_stub_is_no_silence(self):
        """Without its stub the program could wait for ever, and we with it."""
        process = subprocess.Popen([ULPF, "run", "--quiet", "-w", "other_rounds", "--", example("spin")], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdout.readline()
        program = int(subprocess.run(["pgrep", "-P", str(process.pid)], stdout=subprocess.PIPE).stdout)

        def memory(pid):
            try:
                with open(f"/proc/{pid}/maps") as maps:
                    return maps.read()
            except OSError:
                return None  # a zombie of another run
        named = subprocess.run(["pgrep", "-x", "ulpf-stub"], stdout=subprocess.PIPE).stdout.split()
        stubs = [int(p) for p in named if memory(int(p)) == memory(program)]
        self.assertEqual(len(stubs), 1)
        os.kill(stubs[0], signal.SIGKILL)
        _, err = process.communicate(timeout=30 * PATIENCE)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertIn(f"the watchpoint stub in process {program} has ended unexpectedly".encode(), err)
        self.assertIn(b" hits on 1 watch", err)

    def test_signals_reach_the_program(self):
        expected = bare(example("signals"))
        status, out, _ = run(["ticks"], "signals", options=["--quiet"])
        self.assertEqual((status, re.sub(r"\d+", "N", out)), (expected[0], re.sub(r"\d+", "N", expected[1])))

    def test_sigterm_is_handed_on(self):
        process = subprocess.Popen([ULPF, "run", "-w", "libc`environ", "--", "/bin/sleep", "60"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1.5 * PATIENCE)
        process.terminate()
        _, err = process.communicate(timeout=20 * PATIENCE)
        self.assertEqual(process.returncode, -signal.SIGTERM)
        self.assertIn(b"0 hits on 1 watch", err)

    def test_ctrl_c_ends_the_program_not_the_summary(self):
        main, other = pty.openpty()
        process = subprocess.Popen([ULPF, "run", "-w", "libc`environ", "--", "/bin/sleep", "60"], stdin=other,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                   preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0))
        time.sleep(1.5 * PATIENCE)
        os.write(main, b"\x03")
        _, err = process.communicate(timeout=20 * PATIENCE)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertIn(b"0 hits on 1 watch", err)

    def test_input_and_output_are_the_programs(self):
        status, out, _ = run(["libc`environ"], "/bin/cat", stdin=b"through and through\n")
        self.assertEqual((status, out), (0, "through and through\n"))

    def test_colours_only_on_a_terminal(self):
        main, other = pty.openpty()
        process = subprocess.Popen([ULPF, "run", "-w", "a", "--", example("five")], stdout=subprocess.DEVNULL,
                                   stderr=other, env={**os.environ, "TERM": "xterm", "NO_COLOR": ""})
        os.close(other)
        process.wait(20 * PATIENCE)
        text = os.read(main, 1 << 16).decode()
        self.assertIn("\x1b[33mwrite \x1b[0m", text)


@ulpf_only
class Refusals(unittest.TestCase):
    def refused(self, watches, name, *patterns):
        status, out, err = run(watches, name)
        self.assertEqual((status, out), (2, ""), err)
        for pattern in patterns:
            self.assertRegex(err, pattern)

    def test_nothing_runs_when_a_watch_is_refused(self):
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

    def test_nobody_listens(self):
        script = '{ "$0" run -w "unwatched:rw" -w nonsense --keep-going -- "$1"; echo $? > "$2"; } 2>&1 >/dev/null | head -c 1'
        with tempfile.NamedTemporaryFile() as status:
            subprocess.run(["sh", "-c", script, ULPF, example("five"), status.name], stdout=subprocess.PIPE,
                           timeout=30 * PATIENCE, check=True)
            self.assertEqual(status.read(), b"0\n")

    def test_nothing_to_watch(self):
        status, _, err = ulpf("run", "--", example("five"))
        self.assertEqual(status, 2)
        self.assertIn("nothing to watch", err)

    def test_log_that_cannot_be_written(self):
        status, out, err = run(["a"], "five", options=["--log", "/nonexistent/log"])
        self.assertEqual((status, out), (2, ""))
        self.assertIn("/nonexistent/log", err)
        status, out, err = run(["a"], "five", options=["--log", "/dev/full"])
        self.assertEqual((status, out), (0, "five: done\n"))
        self.assertIn("the log is incomplete", err)


@ulpf_only
class Attach(unittest.TestCase):
    def test_watch_a_running_program(self):
        source = ("#include <unistd.h>\n#include <stdio.h>\nint beats; int main(void)"
                  "{ for (int i = 0; i < 400; i++) { beats++; usleep(10000); } printf(\"%d\\n\", beats); }")
        with tempfile.TemporaryDirectory() as folder:
            binary = os.path.join(folder, "heart")
            subprocess.run(["cc", "-g", "-x", "c", "-", "-o", binary], input=source.encode(), check=True)
            heart = subprocess.Popen([binary], stdout=subprocess.PIPE)
            try:
                time.sleep(0.3)
                watcher = subprocess.Popen([ULPF, "attach", "--watch", "beats", str(heart.pid)],
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                time.sleep(1.5 * PATIENCE)
                watcher.send_signal(signal.SIGINT)
                _, err = watcher.communicate(timeout=20 * PATIENCE)
                self.assertEqual(watcher.returncode, 0, err)
                self.assertRegex(err.decode(), r"(write|update) +beats: \d+ → \d+  4 bytes  main\+0x")
                self.assertRegex(err.decode(), r"ulpf: \d+ hits on 1 watch")
                out, _ = heart.communicate(timeout=20 * PATIENCE)
                self.assertEqual((heart.returncode, out), (0, b"400\n"))
            finally:
                heart.kill()
                heart.wait()

    def test_no_such_process(self):
        status, _, err = ulpf("attach", "-w", "x", "4194303")
        self.assertEqual(status, 2)
        self.assertRegex(err, r"4194303")


@ulpf_only
class RealPrograms(unittest.TestCase):
    @needs("sqlite3")
    def test_sqlite3(self):
        script = b"create table t(a, b); insert into t select value, value * 2 from generate_series(1, 2000);" \
                 b"select count(*), sum(b) from t;\n"
        # A counter in the library: no debug information, only its dynamic symbols.
        said = Json(["libsqlite3`sqlite3_temp_directory:rw"], "/usr/bin/sqlite3", ":memory:", stdin=script)
        self.assertEqual((said.status, said.out), (0, "2000|4002000\n"))

    def test_program_that_becomes_another_one(self):
        status, out, err = run(["environ"], "/bin/sh", "-c", "exec sleep 1")
        self.assertEqual((status, out), (0, ""))
        self.assertRegex(err, r"has executed \S*/sleep; its watches ended there")

    @needs("python3")
    def test_python(self):
        said = Json(["environ:rw", "libc`environ"], "/usr/bin/python3", "-c", "import os; print(len(os.environ) > 0)",
                    options=["--quiet"])
        self.assertEqual((said.status, said.out), (0, "True\n"))
        self.assertGreater(said.summary["watches"][0]["hits"], 0)
