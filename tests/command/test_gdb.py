"""`ulpf gdb` in the place of gdb: the same words on the command line."""

import os
import signal
import subprocess
import tempfile
import unittest

from command.test_endings import handlers
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.server import peek


@ulpf_only
class CommandLine(unittest.TestCase):
    def says(self, *words, status=0):
        """What is on the screen of somebody who has no terminal."""
        done = subprocess.run([ULPF, "gdb", "-nx", "-q", "-batch", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def spin(self):
        program = subprocess.Popen([example("spin")], stdout=subprocess.PIPE, start_new_session=True)
        for clean in program.stdout.close, program.wait, program.kill:
            self.addCleanup(clean)
        program.stdout.readline()
        return program

    def test_a_process(self):
        """It is attached to, watched, let go at the end, and goes on as before; whichever way its number is given."""
        for name in "-p PID", "--pid=PID", "-pid PID", "PROG PID", "--pid PID PROG":
            with self.subTest(name):
                program = self.spin()
                before = handlers(program.pid)
                words = name.replace("PID", str(program.pid)).replace("PROG", example("spin")).split()
                commands = ["-ex", "watch rounds", "-ex", "continue"]
                out = self.says(*commands, *words) if name.startswith("PROG") else self.says(*words[:2], *commands, *words[2:])
                self.assertRegex(out, r"Hardware watchpoint 1: rounds\s+Old value = \d+\s+New value = \d+")
                self.assertNotIn(".sock", out)
                self.assertTrue(wait_until(lambda: handlers(program.pid) == before, 20))
                at = int.from_bytes(peek(program.pid, "spin", "rounds"), "little")
                self.assertTrue(wait_until(lambda: int.from_bytes(peek(program.pid, "spin", "rounds"), "little") > at, 20))
                self.assertIsNone(program.poll())

    def test_a_process_that_is_not_there(self):
        program = self.spin()
        program.kill()
        program.wait()
        self.assertEqual(self.says("-p", str(program.pid), status=1), f"ulpf gdb: There is no process {program.pid}.\n")
        self.assertRegex(self.says("-p", "soon", status=1), "`soon` is no number of a process")

    def test_a_core_file(self):
        with tempfile.TemporaryDirectory() as folder:
            core = os.path.join(folder, "core")
            program = self.spin()
            subprocess.run(["gdb", "-nx", "-q", "-batch", "-p", str(program.pid), "-ex", f"generate-core-file {core}"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60 * PATIENCE, check=True)
            program.send_signal(signal.SIGKILL)
            out = self.says("-ex", "print rounds > 0", "-c", core, example("spin"))
            self.assertRegex(out, r"a core file runs no more, so there is nothing to watch")
            self.assertIn("$1 = 1", out)

    def test_non_stop(self):
        """Switched on before GDB has connected, and at its prompt, when it has long been."""
        for where in ["-iex", "-ex"]:
            with self.subTest(where):
                out = self.says(where, "set non-stop on", "-ex", "break ready", "-ex", "run", "-ex", "info inferiors",
                                "-ex", "show non-stop", "-ex", "watch stored", "-ex", "thread 4", "-ex", "interrupt",
                                "-ex", "info threads", "-ex", "kill", example("independent"))
                self.assertIn("extended-remote", out)
                self.assertRegex(out, r"non-stop mode is on")
                self.assertRegex(out, r"hit Breakpoint 1, ready|Breakpoint 1, ready")
                self.assertRegex(out, r"Hardware watchpoint 2: stored")
                self.assertRegex(out, r"\(running\)")
                self.assertNotRegex(out, "(?i)error|cannot|unexpected")

    def test_nothing(self):
        self.assertRegex(self.says(status=1), r"Write: ulpf gdb \[GDB OPTIONS\] PROGRAM \[ARGS\], or ulpf gdb --pid=PID\.")


if __name__ == "__main__":
    unittest.main()
