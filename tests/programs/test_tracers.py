"""Programs that trace others with ptrace(2): what these report is what they report without us."""

import os
import re
import subprocess
import tempfile
import unittest

from lib.env import PATIENCE, ROOT, ULPF, bare, example, needs, ulpf_only
from lib.run import Json, ulpf

TRACED = "traceme", "traceme-exec", "seize", "seize-exec", "attach", "attach-works", "itself"
VFORK = "vfork", "vfork-fails"
WATCHES = ["counter"], ["heap:rw", "counter"]


def without_numbers(text):
    return re.sub(r"0x[0-9a-f]+|\b\d{3,}\b", "N", text)


@ulpf_only
class Tracers(unittest.TestCase):
    def check(self, how, watches, *options):
        status, expected = bare(example("tracer"), how)
        flags = [flag for watch in watches for flag in ("--watch", watch)]
        got, out, err = ulpf("run", "--quiet", "--no-summary", *options, *flags, "--", example("tracer"), how)
        self.assertEqual((got, out), (status, expected), f"{how} {watches}: {err}")
        self.assertNotIn("some memory of ulpf stays", err)
        self.assertNotIn("does not come to rest", err)
        return err

    def test_children(self):
        """On the build before, they hang, or their tracers see ulpf's signals and code."""
        for how in TRACED:
            for watches in WATCHES:
                with self.subTest(how=how, watches=watches):
                    err = self.check(how, watches, "--follow")
                    self.assertRegex(err, r"process \d+ is traced by (its parent|process \d+) \(ptrace\), and not watched any more")
                    err = self.check(how, watches)
                    self.assertNotIn("ptrace", err)

    def test_in_debug_registers_and_without_patches(self):
        for how in TRACED + VFORK:
            with self.subTest(how=how):
                self.check(how, ["counter"], "--follow", "--placement", "debug-register")
                self.check(how, ["counter"], "--follow", "--no-patch")

    def test_children_that_share_our_memory(self):
        for how in VFORK:
            for watches in WATCHES:
                with self.subTest(how=how, watches=watches):
                    err = self.check(how, watches, "--follow")
                    self.assertIn("traces a child itself (ptrace), which is not followed into what it executes", err)
                    self.check(how, watches)

    def test_a_task_that_stops_all_threads(self):
        """It maps memory meanwhile, stores to watched memory, and does not wait until other threads are stopped."""
        with tempfile.TemporaryDirectory() as folder:
            # LeakSanitizer does so, too, at the end.
            sanitized = os.path.join(folder, "sanitized")
            source = os.path.join(ROOT, "tests", "programs", "own_tracer.c")
            subprocess.run(["gcc", "-w", "-O1", "-g", "-pthread", "-fsanitize=address", source, "-o", sanitized], check=True)
            for program in example("own_tracer"), sanitized:
                status, expected = bare(program)
                for watches in ["heap"], ["heap:rw", "counter"]:
                    with self.subTest(program=os.path.basename(program), watches=watches):
                        flags = [flag for watch in watches for flag in ("--watch", watch)]
                        got, out, err = ulpf("run", "--quiet", "--no-summary", *flags, "--", program)
                        self.assertEqual((got, out), (status, expected), err)

    def test_what_such_a_task_has_mapped(self):
        """It is watched as soon as the threads have been let go, whichever of them sees to that."""
        for more in [], ["--no-patch"]:
            with self.subTest(more=more):
                said = Json(["heap"], "own_tracer", options=("--log-policy", "lossless", *more))
                self.assertEqual(said.status, 0, said.err)
                late = [hit for hit in said.hits if hit.get("function") == "marks" and hit["len"] == 1]
                self.assertEqual([int(hit["new_bytes"], 16) for hit in late], list(range(1, 51)), said.err)

    def test_a_parent_that_its_child_looks_at(self):
        """As crash handlers do. It goes on to its own end."""
        for watches in WATCHES:
            with self.subTest(watches=watches):
                err = self.check("parent", watches, "--follow")
                self.assertRegex(err, r"process (\d+) is traced by process (?!\1)\d+ \(ptrace\), and not watched any more")

    def test_hits_before_and_behind(self):
        """The tracer is watched to its end, the traced child up to where it is traced."""
        _, _, err = ulpf("run", "--follow", "-w", "counter", example("tracer"), "traceme")
        self.assertEqual(len(re.findall(r" write  counter: ", err)), 4, err)

    def test_who_asks_to_be_traced_has_nobody_who_would(self):
        """A program tests for debuggers with PTRACE_TRACEME, and finds none. Its parent, which is ulpf, traces no process."""
        program = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(0, 0, 0, 0), libc.ptrace(0, 0, 0, 0), ctypes.get_errno(), flush=True)
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
os.kill(os.getpid(), signal.SIGUSR1)
"""
        for follow in [], ["--follow"]:
            status, out, err = ulpf("run", "-q", "-w", "heap", *follow, "--", "/usr/bin/python3", "-c", program)
            self.assertEqual((status, out), (0, "0 -1 1\nhandled\n"), err)

    def same(self, *command, keep=without_numbers):
        def run(*around):
            done = subprocess.run([*around, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=60 * PATIENCE)
            return done.returncode, done.stdout, done.stderr
        expected, got = run(), run(ULPF, "run", "--follow", "-q", "--no-summary", "-w", "heap", "--")
        self.assertEqual((got[0], keep(got[1])), (expected[0], keep(expected[1])), got[2])
        return got

    @needs("strace")
    def test_strace(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            for how in [], ["--seccomp-bpf", "-e", "trace=execve,kill,exit_group"]:
                command = ["strace", "-f", *how, "-o", log, "sh", "-c", "true; ls /; sh -c 'kill -USR1 $$'; exit 3"]
                self.same(*command)
                with open(log) as file:
                    trace = file.read()
                bare(*command)
                with open(log) as file:
                    expected = file.read()
                self.assertEqual([trace.count(word) for word in ("execve(", "+++", "--- SIGUSR1", "SIGCHLD")],
                                 [expected.count(word) for word in ("execve(", "+++", "--- SIGUSR1", "SIGCHLD")], trace)
                self.assertNotRegex(trace, r"SIGSYS|SIGSEGV|SIGTRAP|SIGRT_31")

    @needs("gdb")
    def test_gdb(self):
        """A debugger that is watched."""
        status, out, _ = self.same("gdb", "-q", "-batch", "-nx", "-ex", "handle SIGUSR1 nostop noprint", "-ex", "break traced", "-ex", "run",
                                   "-ex", "bt", "-ex", "print counter", "-ex", "continue", "--args", example("tracer"), "traced")
        self.assertEqual(status, 0)
        self.assertIn("#1  0x", out)
        self.assertRegex(out, r"exited with code 05")

    @needs("ltrace")
    def test_ltrace(self):
        self.same("ltrace", "-o", "/dev/null", example("tracer"), "traced")
