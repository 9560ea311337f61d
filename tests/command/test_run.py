"""`ulpf run`, `attach`, `gdb` and `doctor`: the command without a debugger of one's own."""

import json
import os
import re
import subprocess
import tempfile
import unittest

from lib.cases import line
from lib.env import PATIENCE, ULPF, bare, example, ulpf_only
from lib.rsp import wait_until


def ulpf(*args, seconds=60, **options):
    """Exit status, standard output and standard error."""
    done = subprocess.run([ULPF, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=seconds * PATIENCE, **options)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def log_of(*args, seconds=60):
    """Runs with --json; returns the exit status, the hits and the summary."""
    with tempfile.NamedTemporaryFile() as file:
        status, _, said = ulpf("run", "--json", "-l", file.name, *args, seconds=seconds)
        records = [json.loads(l) for l in file.read().decode().splitlines()]
    return status, [r for r in records if r["type"] == "hit"], next((r for r in records if r["type"] == "summary"), said)


@ulpf_only
class Run(unittest.TestCase):
    def test_text(self):
        status, out, said = ulpf("run", "-w", "a", "-w", "b", "--", example("five"))
        self.assertEqual(status, 0)
        self.assertEqual(out, "five: done\n")
        hits = re.findall(r"(?m)^ +\d+\.\d+ \[\d+\] write +(\w): (.*?)  4 bytes  main\+0x\w+ at five\.c:(\d+)$", said)
        first = line("five.c", "a = 11;")
        self.assertEqual(hits, [("a", "10 → 11", str(first)), ("b", "20 → 21", str(line("five.c", "b = 21;"))),
                                ("b", "21 (unchanged)", str(line("five.c", "silent: no stop"))),
                                ("a", "11 → 12", str(line("five.c", "a = 12;")))])
        self.assertRegex(said, r"4 hits on 2 watches, 1 silent store, \d+ false positives")

    def test_json(self):
        status, hits, summary = log_of("-w", "a:rw", "-w", "c", "--", example("five"))
        self.assertEqual(status, 0)
        self.assertEqual([(h["spec"], h["old"], h["new"], h["access"]) for h in hits],
                         [("a:rw", "10", "11", "write"), ("c", "30", "31", "write"), ("a:rw", "11", "12", "write")])
        self.assertEqual([w["hits"] for w in summary["watches"]], [2, 1])
        self.assertEqual(summary["lost"], 0)
        times = [h["time"] for h in hits]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[-1], 0)

    def test_fields_elements_ranges(self):
        _, hits, _ = log_of("-w", "box.id", "-w", "box.corner[1].y", "-w", "shelf[2].id", "-w", "chosen", "--", example("structs"))
        self.assertEqual([h["pc"] for h in hits], [h["pc"] for h in sorted(hits, key=lambda h: h["time"])])
        specs = [h["spec"] for h in hits]
        for spec in "box.id", "box.corner[1].y", "chosen":
            self.assertEqual(specs.count(spec), 1, specs)

    def test_reads(self):
        _, hits, _ = log_of("-w", "table[2]:r", "--", example("reads"))
        self.assertEqual([h["access"] for h in hits if h["object"] == "reads"][:2], ["read", "read"])
        self.assertIn(len(hits), (3, 4))

    def test_address_and_length(self):
        _, hits, _ = log_of("-w", "0x555555558018:4", "--", example("five"))
        addresses = {h["addr"] for h in hits}
        self.assertLessEqual(len(addresses), 1)

    def test_watch_file(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# five counters\na\nb\n\nc  # the third\nd\ne\n")
            file.flush()
            _, hits, summary = log_of("--watch-file", file.name, "--", example("five"))
        self.assertEqual(len(summary["watches"]), 5)
        self.assertEqual(len(hits), 7)

    def test_kernel_writes(self):
        _, hits, _ = log_of("-w", "buffer[0..12]", "--", example("sysread"))
        self.assertTrue(any(h.get("syscall") for h in hits), hits)

    def test_backtrace(self):
        _, hits, _ = log_of("-b", "8", "-w", "game.total", "--", example("stray"))
        self.assertIn("reset_scores", json.dumps(hits))

    def test_exit_status_and_signals(self):
        self.assertEqual(ulpf("run", "-q", "--no-summary", "-w", "stdout", "--", example("exitcode"), "7")[0], 7)
        self.assertEqual(ulpf("run", "-q", "-w", "watched", "--", example("crash"), "abort")[0], -6)
        self.assertEqual(ulpf("run", "-q", "-w", "watched", "--", example("crash"), "segv")[0], -11)

    def test_refused(self):
        status, out, said = ulpf("run", "-w", "nonesuch", "--", example("five"))
        self.assertEqual((status, out), (2, ""))
        self.assertRegex(said, r"cannot watch `nonesuch`: .*; ")
        for bad in "0xffff800000000000:8", "0x0:8", "main:8", "a:0", "0xffffffffff600000:4":
            status, _, said = ulpf("run", "-w", bad, "--", example("five"))
            self.assertEqual(status, 2, bad)
            self.assertRegex(said, r"cannot watch|refused|no ", bad)

    def test_static_and_stripped_and_rust(self):
        _, hits, _ = log_of("-w", "a", "--", example("five_static"))
        self.assertEqual(len(hits), 2)
        _, hits, _ = log_of("-w", "WATCHED", "--", example("rusty"))
        self.assertGreaterEqual(len(hits), 1)
        self.assertEqual(ulpf("run", "-w", "stdout", "--", example("five_stripped"))[1], "five: done\n")

    def test_as_bare(self):
        for program in ("signals",), ("children",), ("sysread",), ("shapes",), ("strings",), ("shared",), ("plugins",), ("locals",), ("heap1000",):
            with self.subTest(program[0]):
                self.assertEqual(ulpf("run", "-q", "--no-summary", "-w", "environ:rw", "--", example(program[0]))[:2], bare(example(program[0])))

    def test_whole_objects_as_bare(self):
        for program, what in (("children", "big_block"), ("sysread", "buffer:rw"), ("shapes", "lanes:rw"), ("strings", "text:rw"),
                              ("bigarray", "big[0..4096]"), ("signals", "ticks:rw")):
            with self.subTest(program):
                self.assertEqual(ulpf("run", "-q", "--no-summary", "-w", what, "--", example(program))[:2], bare(example(program)))


@ulpf_only
class Exactness(unittest.TestCase):
    limit = 600
    alone = True

    def test_sixteen_threads_a_million_stores_each(self):
        """Every store to the watched byte is counted, none twice, and memory ends as without us."""
        expected = bare(example("threads16"))
        status, out, said = ulpf("run", "-q", "-w", "cells[3]", "--", example("threads16"), seconds=550)
        self.assertEqual((status, out), expected)
        self.assertRegex(said, r"1000000 hits on 1 watch, 0 silent stores, [1-9]\d* false positives")

    def test_signals_strike_meanwhile(self):
        expected = bare(example("barrage"))
        status, out, said = ulpf("run", "-q", "--summary", "-w", "page.in_handler", "--", example("barrage"), seconds=100)
        self.assertEqual((status, out), expected)
        hits = int(re.search(r"(\d+) hits on 1 watch", said).group(1))
        self.assertGreaterEqual(hits, 20000, "each handler stores once")

    def test_sixteen_watches(self):
        status, out, said = ulpf("run", "-q", "--summary", "-w", "cells[0..16]", "-w", "cells[7]", "--", example("threads16"), "20000", seconds=200)
        self.assertEqual((status, out), bare(example("threads16"), "20000"))
        self.assertRegex(said, r"(?m)^ +320000 +0 +0 +w .* cells\[0\.\.16\]$")
        self.assertRegex(said, r"(?m)^ +20000 +0 +0 +w .* cells\[7\]$")


def handlers(pid):
    """Caught, blocked and ignored signals. The park signal stays ignored: one may still be on its way."""
    park = 1 << (63 - 1)
    with open(f"/proc/{pid}/status") as status:
        return [(l[:6], int(l[8:], 16) & ~park) for l in status if l.startswith(("SigCgt", "SigBlk", "SigIgn"))]


@ulpf_only
class Attach(unittest.TestCase):
    def test_attach(self):
        program = subprocess.Popen([example("spin")], stdout=subprocess.PIPE)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        program.stdout.readline()
        before = handlers(program.pid)
        with tempfile.NamedTemporaryFile() as log:
            watcher = subprocess.Popen([ULPF, "attach", "--json", "-l", log.name, "-w", "rounds", str(program.pid)],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.addCleanup(watcher.stdout.close)
            self.addCleanup(watcher.wait)
            self.addCleanup(watcher.kill)
            self.assertTrue(wait_until(lambda: open(log.name).read().count('"hit"') >= 3, 20), open(log.name).read())
            watcher.send_signal(2)
            watcher.wait(20)
        # The program goes on without us, with its own signal handlers and nothing guarded.
        self.assertIsNone(program.poll())
        self.assertEqual(handlers(program.pid), before)
        first = rounds(program.pid)
        self.assertTrue(wait_until(lambda: rounds(program.pid) > first + 10))


def rounds(pid):
    """The variable of a running examples/spin.c."""
    symbols = subprocess.run(["nm", example("spin")], stdout=subprocess.PIPE).stdout.decode()
    offset = int(re.search(r"([0-9a-f]+) B rounds", symbols).group(1), 16)
    with open(f"/proc/{pid}/maps") as maps:
        base = int(next(l for l in maps if l.rstrip().endswith("/spin")).split("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(base + offset)
        return int.from_bytes(memory.read(8), "little")


@ulpf_only
class Faces(unittest.TestCase):
    def test_gdb(self):
        status, out, said = ulpf("gdb", "-nx", "-batch", "-ex", "break ready", "-ex", "run", "-ex", "watch a", "-ex", "continue", example("five"))
        self.assertRegex(out + said, r"(?s)Breakpoint 1, .*Hardware watchpoint 2: a.*New value = 11")

    def test_doctor(self):
        status, out, _ = ulpf("doctor")
        self.assertEqual(status, 0)
        self.assertRegex(out, r"(?m)^ok +memfd")
        self.assertIn("Watchpoints work on this machine", out)

    def test_help(self):
        for command in "server", "run", "attach", "gdb", "doctor":
            status, out, said = ulpf(command, "--help")
            self.assertEqual(status, 0, command)
            self.assertRegex(out + said, r"(?i)usage", command)

    def test_nonsense(self):
        for args in [], ["nonsense"], ["run"], ["run", "--nonsense"], ["attach"], ["attach", "zz"]:
            self.assertNotEqual(ulpf(*args)[0], 0, args)
