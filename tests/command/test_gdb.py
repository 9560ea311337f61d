"""`ulpf gdb` in the place of gdb: the same words on the command line."""

import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

from command.test_endings import handlers
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.server import peek


@ulpf_only
class CommandLine(unittest.TestCase):
    def says(self, *words, status=0):
        """Output without a terminal."""
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

    def test_the_screen_is_gdbs(self):
        """But for one line of greeting; whatever is typed."""
        commands = ["break ready", "run", "next", "info breakpoints", "kill", "run", "delete", "continue", "start", "next", "quit"]
        gdb, ulpf = (self.screen(words, commands) for words in (["gdb"], [ULPF, "gdb"]))
        greetings = [line for line in ulpf if "help ulpf" in line]
        self.assertEqual(len(greetings), 1, ulpf)
        ulpf.remove(greetings[0])
        # GDB's own words about a library of its own, which is not used here.
        gdb = [line for line in gdb if "libthread_db" not in line]
        self.assertEqual(gdb, ulpf)

    def test_nobody_is_greeted_in_a_script(self):
        self.assertEqual(self.says("-ex", "print 1", example("filters")), "$1 = 1\n")

    def test_options_behind_the_program(self):
        """They are GDB's, as with GDB alone; one letter is the program's, and that is said."""
        self.assertEqual(self.says(example("filters"), "-ex", "print 2"), "$1 = 2\n")
        said = self.says("-ex", "show args", example("filters"), "-x", "5")
        self.assertIn("ulpf gdb: -x is the program's argument; options of GDB go before the program.\n", said)
        self.assertIn('when it is started is "-x 5".', said)

    def screen(self, words, commands):
        """Lines of a terminal, with numbers of processes and addresses of the stack left out."""
        pid, terminal = pty.fork()
        if pid == 0:
            # (Colours, and what GDB would fetch.)
            os.environ.update(TERM="dumb", LC_ALL="C.UTF-8", DEBUGINFOD_URLS="")
            os.execvp(words[0], [*words, "-nx", "-q", "-ex", "set confirm off", example("locals_again")])
        said = b""

        def heard(until):
            nonlocal said
            from_here, end = len(said), time.monotonic() + 30 * PATIENCE
            while time.monotonic() < end and not re.search(until, said[from_here:]):
                try:
                    piece = os.read(terminal, 1 << 16) if select.select([terminal], [], [], 0.2)[0] else b""
                except OSError:
                    return
                said += piece

        try:
            for command in commands:
                heard(rb"\(gdb\) $")
                os.write(terminal, command.encode() + b"\n")
            heard(rb"there is no such text")
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        finally:
            os.close(terminal)
        text = said.decode(errors="replace").replace("\r", "")
        text = re.sub(r"process \d+", "process N", re.sub(r"0x7ff\w+", "0x7ff", text))
        return [line.strip() for line in text.splitlines() if line.strip()]

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

    def run_with(self, *commands):
        """Output of a program that prints its arguments and its input, run by GDB's commands in a folder of its own."""
        with tempfile.TemporaryDirectory() as folder:
            for name in "a.c", "b.c", "two words.c":
                open(os.path.join(folder, name), "w").close()
            with open(os.path.join(folder, "input"), "w") as file:
                file.write("one line\n")
            words = [ULPF, "gdb", "-nx", "-q", "-batch", *(word for text in commands for word in ("-ex", text)), example("words")]
            out = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 cwd=folder, env=dict(os.environ, GREETING="good day", SHELL="/bin/sh"), timeout=60 * PATIENCE).stdout
            written = os.path.join(folder, "output")
            if os.path.exists(written):
                with open(written) as file:
                    out += "output:\n" + file.read()
            return [line for line in out.splitlines() if line.startswith(("[", "output:", "input:")) and "Inferior 1" not in line]

    def test_the_shell_reads_the_arguments(self):
        """Expansions, redirections and quotes are the shell's business, as under GDB alone."""
        files = ["[a.c]", "[b.c]", "[two words.c]"]
        for arguments, words in [
            ("*.c", files),
            ("'*.c' \"*.c\" \\*.c", ["[*.c]"] * 3),
            ("$GREETING", ["[good]", "[day]"]),
            ("\"$GREETING\" '$GREETING'", ["[good day]", "[$GREETING]"]),
            ("$(echo made `echo here`) ''", ["[made]", "[here]", "[]"]),
            ("- < input", ["[-]", "input: one line"]),
            ("- < input > output 2>&1", ["output:", "[-]", "input: one line"]),
            ("'<' input", ["[<]", "[input]"]),
        ]:
            with self.subTest(arguments):
                self.assertEqual(self.run_with(f"run {arguments}"), words)
        self.assertEqual(self.run_with("set args *.c", "run"), files)
        self.assertEqual(self.run_with("start *.c", "continue"), files)
        self.assertEqual(self.run_with("run *.c", "run"), files * 2)
        self.assertEqual(self.run_with("set startup-with-shell off", "run *.c '< input'"), ["[*.c]", "['<]", "[input']"])

    def test_nothing(self):
        """As in GDB alone, the program may come later, and be another one."""
        self.assertEqual(self.says("-ex", "run", status=1), 'No executable file specified.\nUse the "file" or "exec-file" command.\n')
        later = ["-ex", f"file {example('stray')}", "-ex", "start", "-ex", "kill", "-ex", f"file {example('five')}", "-ex", "start"]
        self.assertRegex(self.says(*later), r"(?s)stray\.c:27.*five\.c:\d+")


if __name__ == "__main__":
    unittest.main()
