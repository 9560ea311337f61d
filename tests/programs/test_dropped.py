"""A daemon that has given up root: /proc/PID/mem then belongs to root, and the stub in the daemon may not open it."""

import json
import os
import re
import signal
import subprocess
import tempfile

from lib.cases import Case
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.users import as_root

LIMIT = 60 * PATIENCE


@ulpf_only
@as_root
class Dropped(Case):
    def setUp(self):
        super().setUp()
        self.program = subprocess.Popen([example("dropped")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        self.addCleanup(self.program.communicate)
        self.addCleanup(self.program.kill)
        self.assertEqual(self.program.stdout.readline(), "ready\n")
        self.assertEqual(os.stat(f"/proc/{self.program.pid}/mem").st_uid, 0)

    def order(self, letter):
        self.program.stdin.write(letter)
        self.program.stdin.flush()
        return self.program.stdout.readline()

    def attached(self, *words):
        """Begins `ulpf WORDS PID`; returns what ends it, and gives the lines of its log and its messages."""
        log = self.enterContext(tempfile.NamedTemporaryFile())
        ulpf = subprocess.Popen([ULPF, words[0], "--json", "-l", log.name, *words[1:], str(self.program.pid)],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(ulpf.stderr.close)
        self.addCleanup(ulpf.kill)
        wait_until(lambda: os.path.getsize(log.name) or ulpf.poll() is not None, LIMIT)

        def leave():
            ulpf.send_signal(signal.SIGINT)
            said = ulpf.communicate(timeout=LIMIT)[1]
            with open(log.name) as file:
                return [json.loads(line) for line in file], said
        return leave

    def test_its_heap_is_checked(self):
        leave = self.attached("check", "--attach")
        self.assertEqual(self.order("e"), "e 0\n")
        lines, said = leave()
        errors = [line["error"] for line in lines if line["type"] == "error"]
        self.assertEqual(errors, ["freed"], said)
        self.assertEqual(self.order("s"), "s 100000\n")

    def test_and_that_of_its_children(self):
        leave = self.attached("check", "--follow", "--attach")
        self.assertEqual(self.order("f"), "f 0\n")
        lines, said = leave()
        self.assertEqual([line["error"] for line in lines if line["type"] == "error"], ["freed"], said)

    def test_its_hot_instructions_are_patched(self):
        ulpf = subprocess.Popen([ULPF, "attach", "-q", "-w", "counter", str(self.program.pid)], stderr=subprocess.PIPE, text=True)
        self.addCleanup(ulpf.stderr.close)
        self.addCleanup(ulpf.kill)
        with open(f"/proc/{self.program.pid}/maps") as maps:
            self.assertTrue(wait_until(lambda: maps.seek(0) or maps.read().count("memfd:ulpf") > 3, LIMIT))
        for round in range(1, 4):
            self.assertEqual(self.order("s"), f"s {round}00000\n")
        ulpf.send_signal(signal.SIGINT)
        said = ulpf.communicate(timeout=LIMIT)[1]
        hits, faults = (int(re.search(rf"(\d+) {word}", said).group(1)) for word in ("hits", "faults"))
        self.assertGreaterEqual(hits, 100_000, said)
        self.assertLess(faults, 20_000, said)

    def test_breakpoints(self):
        gdb = subprocess.Popen([ULPF, "gdb", "-p", str(self.program.pid), "-batch", "-ex", "break advance", "-ex", "continue",
                                "-ex", "print counter", "-ex", "delete", "-ex", "watch counter", "-ex", "continue", "-ex", "detach"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(gdb.kill)
        said = ""
        while "Breakpoint 1 at" not in said:
            line = gdb.stdout.readline()
            self.assertTrue(line, said)
            said += line
        self.program.stdin.write("s")
        self.program.stdin.flush()
        said += gdb.communicate(timeout=LIMIT)[0]
        self.assertRegex(said, r"Breakpoint 1(\.1)?, advance \(\)(.|\n)*New value = ")
        self.assertEqual(self.program.stdout.readline(), "s 100000\n", said)
