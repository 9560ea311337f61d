"""`ulpf gdb` leaves breakpoints and watches in place while the program is stopped."""

import subprocess
import unittest

from command.test_endings import handlers
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.server import peek


@ulpf_only
class Stops(unittest.TestCase):
    def says(self, *words, status=0):
        done = subprocess.run([ULPF, "gdb", "-nx", "-q", "-batch", "-iex", "set debuginfod enabled off", *words],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def commands(self, *all):
        return [word for command in all for word in ("-ex", command)]

    def test_stops_and_a_rerun(self):
        """Each stop is as with gdb alone; no int3 is visible; a second run has all breakpoints."""
        at_a_stop = ["continue", "x/2xb tick", "continue"]
        out = self.says(*self.commands("set confirm off", "break tick", "run", "watch counter", "x/2xb tick", "continue", *at_a_stop,
                                       "delete 2", "run", "continue", "delete", "x/2xb tick", "continue"), example("asked"))
        self.assertEqual(out.count("Breakpoint 1, tick"), 4, out)
        self.assertEqual(out.count("Hardware watchpoint 2: counter\n\nOld value = "), 2, out)
        bytes_seen = {row.split(":")[1].strip() for row in out.splitlines() if "<tick>:" in row}
        self.assertEqual(len(bytes_seen), 1, bytes_seen)
        self.assertNotIn("0xcc", bytes_seen.pop())
        self.assertIn("asked: 20 0 - ", out)
        self.assertRegex(out, r"exited normally")

    def test_the_user_decides(self):
        self.assertIn("is on", self.says("-ex", "show breakpoint always-inserted", example("asked")))
        off = self.says("-iex", "set breakpoint always-inserted off", "-ex", "show breakpoint always-inserted", example("asked"))
        self.assertIn("is off", off)

    def test_gdb_is_killed(self):
        """A process that it had attached to continues without the breakpoints."""
        program = subprocess.Popen([example("spin")], stdout=subprocess.PIPE, start_new_session=True)
        for clean in program.stdout.close, program.wait, program.kill:
            self.addCleanup(clean)
        program.stdout.readline()
        before = handlers(program.pid)
        out = self.says(*self.commands("break turn", "watch rounds", "continue", "continue",
                                       "python import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
                        f"--pid={program.pid}", status=137)
        self.assertIn("Hardware watchpoint 2: rounds", out)
        self.assertTrue(wait_until(lambda: handlers(program.pid) == before, 20))
        rounds = int.from_bytes(peek(program.pid, "spin", "rounds"), "little")
        self.assertTrue(wait_until(lambda: int.from_bytes(peek(program.pid, "spin", "rounds"), "little") > rounds, 20))
        self.assertIsNone(program.poll())
