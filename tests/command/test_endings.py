"""`ulpf run` and `ulpf attach`: how they end, and what the program sees of us."""

import json
import os
import pty
import re
import signal
import subprocess
import tempfile
import unittest

from lib.env import PATIENCE, ULPF, bare, example, needs, ulpf_only
from lib.rsp import wait_until
from lib.run import Json, run, ulpf
from lib.server import child_of, peek, poke, sleeps, stub_of


def hits_in(log):
    with open(log) as file:
        return file.read().count('"hit"')


@ulpf_only
class Endings(unittest.TestCase):
    def start(self, *arguments, **options):
        """`ulpf`, ended with the test."""
        process = subprocess.Popen([ULPF, *arguments], **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def test_exit_statuses(self):
        for status in 0, 1, 7, 255:
            self.assertEqual(run(["libc`environ"], "exitcode", str(status))[0], status)
        self.assertEqual(run(["stdout"], "exitcode", "7", options=["-q", "--no-summary"])[0], 7)

    def test_a_reader_that_has_gone(self):
        """Its end is no error of ours: no panic (101)."""
        with tempfile.TemporaryDirectory() as folder:
            for words in (["doctor"], ["doctor", "--report"], ["--help"], ["server", "--help"], ["server", "--nonsense"], ["gdb-plugin", folder],
                          ["gdb-plugin", "/dev/null/x"], ["pages", "/dev/null/x"], ["last"], ["find", "1", "--pid", "1"], ["gdb", "--no-such", "x"],
                          ["sim"], ["dap", "--no-such"], ["run", example("exitcode"), "0"]):
                for which in "stdout", "stderr":
                    with self.subTest(words, which=which):
                        reader, gone = os.pipe()
                        os.close(reader)
                        both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, which: gone}
                        done = subprocess.run([ULPF, *words], stdin=subprocess.DEVNULL, timeout=60, **both)
                        os.close(gone)
                        self.assertNotIn(b"panicked", (done.stdout or b"") + (done.stderr or b""))
                        self.assertNotEqual(done.returncode, 101)

    def test_death_by_signal_is_ours_too(self):
        for how, number in ("segv", signal.SIGSEGV), ("abort", signal.SIGABRT), ("kill", signal.SIGKILL):
            with self.subTest(how):
                expected, _ = bare(example("crash"), how)
                self.assertEqual(expected, -number)
                status, _, err = run(["watched"], "crash", how)
                self.assertEqual(status, expected)
                self.assertIn("1 hit on 1 watch", err)
                self.assertEqual(run(["watched"], "crash", how, options=["-q"])[0], expected)

    def test_killed_from_outside_still_has_a_summary(self):
        with tempfile.NamedTemporaryFile() as log:
            process = self.start("run", "--json", "-l", log.name, "-w", "other_rounds", "--", example("spin"))
            self.assertTrue(wait_until(lambda: hits_in(log.name) > 10, 30))
            os.kill(child_of(process.pid), signal.SIGKILL)
            process.communicate(timeout=20 * PATIENCE)
            self.assertEqual(process.returncode, -signal.SIGKILL)
            lines = [json.loads(line) for line in log.read().splitlines()]
        hits = [line for line in lines if line["type"] == "hit"]
        self.assertGreater(len(hits), 10)
        self.assertIn(lines[-1]["watches"][0]["hits"] - len(hits), (0, 1))

    def test_a_dead_stub_is_no_silence(self):
        """Without its stub the program could wait for ever, and we with it."""
        process = self.start("run", "--quiet", "-w", "other_rounds", "--", example("spin"))
        process.stdout.readline()
        program = child_of(process.pid)
        os.kill(stub_of(program), signal.SIGKILL)
        _, err = process.communicate(timeout=30 * PATIENCE)
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertIn(f"the watchpoint stub in process {program} has ended unexpectedly".encode(), err)
        self.assertIn(b" hits on 1 watch", err)

    def test_signals_reach_the_program(self):
        expected = bare(example("signals"))
        status, out, _ = run(["ticks"], "signals", options=["--quiet"])
        self.assertEqual((status, re.sub(r"\d+", "N", out)), (expected[0], re.sub(r"\d+", "N", expected[1])))

    def test_sigterm_is_handed_on(self):
        process = self.start("run", "-w", "libc`environ", "--", "/bin/sleep", "60")
        self.assertTrue(wait_until(lambda: sleeps(child_of(process.pid)), 30))
        process.terminate()
        _, err = process.communicate(timeout=20 * PATIENCE)
        self.assertEqual(process.returncode, -signal.SIGTERM)
        self.assertIn(b"0 hits on 1 watch", err)

    def test_ctrl_c_ends_the_program_not_the_summary(self):
        main, other = pty.openpty()
        process = self.start("run", "-w", "libc`environ", "--", "/bin/sleep", "60", stdin=other, start_new_session=True,
                             preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0))
        self.assertTrue(wait_until(lambda: sleeps(child_of(process.pid)), 30))
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


def handlers(pid):
    """Caught, blocked and ignored signals. The park signal stays ignored: one may still be on its way."""
    park = 1 << (63 - 1)
    with open(f"/proc/{pid}/status") as status:
        return [(l[:6], int(l[8:], 16) & ~park) for l in status if l.startswith(("SigCgt", "SigBlk", "SigIgn"))]


@ulpf_only
class Attach(unittest.TestCase):
    def watch(self, pid, log, *options):
        """Attaches until there are three hits in the log; what was said beside it."""
        watcher = subprocess.Popen([ULPF, "attach", *options, "-l", log, "-w", "rounds", str(pid)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (watcher.kill(), watcher.communicate()))
        self.assertTrue(wait_until(lambda: len(open(log).readlines()) >= 4, 20), open(log).read())
        watcher.send_signal(signal.SIGINT)
        _, err = watcher.communicate(timeout=20 * PATIENCE)
        self.assertEqual(watcher.returncode, 0, err)
        return err.decode()

    def test_a_running_program(self):
        """Watched twice, by one after the other; then it goes on to its own end."""
        program = subprocess.Popen([example("spin")], stdout=subprocess.PIPE)
        self.addCleanup(lambda: (program.kill(), program.communicate()))
        self.assertEqual(program.stdout.readline(), b"spin: up\n")
        before = handlers(program.pid)

        def rounds():
            return int.from_bytes(peek(program.pid, "spin", "rounds"), "little")
        for options, hit in (["--json"], r'"type":"hit".*"rounds"'), ([], r"(?:write|update) +rounds: \d+ → \d+  8 bytes  turn\+0x"):
            with tempfile.NamedTemporaryFile() as log:
                err = self.watch(program.pid, log.name, *options)
                text = log.read().decode()
            self.assertGreaterEqual(len(re.findall(hit, text)), 3, text)
            self.assertRegex(text + err, r'ulpf: \d+ hits on 1 watch|"type":"summary"')
            # The program continues without ulpf, with its own signal handlers and nothing guarded.
            self.assertIsNone(program.poll())
            self.assertEqual(handlers(program.pid), before)
            first = rounds()
            self.assertTrue(wait_until(lambda: rounds() > first + 10))
        poke(program.pid, "spin", "leave", b"\1")
        out, _ = program.communicate(timeout=20 * PATIENCE)
        self.assertEqual((program.returncode, out), (9, b"spin: done\n"))

    def test_threads_that_begin_later(self):
        """The C library registered the threads that we find for restartable sequences (rseq); new ones must not fail
        where those did not, and the kernel must not write to an area beside which we guard.
        """
        for what in "started", None:
            with self.subTest(what), tempfile.NamedTemporaryFile() as log:
                program = subprocess.Popen([example("late_threads")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                self.addCleanup(lambda program=program: (program.kill(), program.communicate()))
                turns = program.stdout.readline().decode().strip()
                before = handlers(program.pid)
                watcher = subprocess.Popen([ULPF, "attach", "-l", log.name, "-w", what or f"{turns}:8", str(program.pid)],
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.addCleanup(lambda watcher=watcher: (watcher.kill(), watcher.communicate()))
                # Then it rests, until its watches are armed.
                self.assertTrue(wait_until(lambda program=program, before=before: handlers(program.pid) != before, 20))
                out, _ = program.communicate(b"\n", timeout=20 * PATIENCE)
                self.assertEqual((program.returncode, out), (0, b"8 threads\n"))
                _, err = watcher.communicate(timeout=20 * PATIENCE)
                hits = int(re.search(r"ulpf: ([\d,]+) hits", err.decode()).group(1).replace(",", ""))
                self.assertGreaterEqual(hits, 8, err)

    def test_no_such_process(self):
        status, _, err = ulpf("attach", "-w", "x", "4194304")  # no process can have this number
        self.assertEqual(status, 2)
        self.assertRegex(err, r"4194304")


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
