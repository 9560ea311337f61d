"""Foreign text: control characters in names are shown, and not interpreted."""

import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import fcntl
import sys
import tempfile
import termios
import time
import unittest

from lib.env import PATIENCE, ROOT, ULPF, ulpf_only
from lib.rsp import wait_until

HERE = os.path.join(ROOT, "tests", "hostile")
TITLE = b"\x1b]0;AA\x07"
MARKS = {b"evil_x_": TITLE, b"cone": b"\xc2\x9b3m", b"bidi": b"\xe2\x80\xae!"}
# None of them in what ulpf writes. A terminal's own language has ESC [, but never with what follows here.
FORBIDDEN = [b"\x1b]", b"\x07", b"\xc2\x9b", b"\xe2\x80\xae"]


class Terminal:
    """A command in a terminal: the bytes that reach it."""

    def __init__(self, *words, **options):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                                        env=environment, **options)
        os.close(theirs)
        self.at, self.said = ours, b""

    def read(self, seconds, until=None, since=0):
        """For so long, or until its text from `since` on matches."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (until and re.search(until, self.said[since:])):
            if not select.select([self.at], [], [], 0.1)[0]:
                if self.process.poll() is not None:
                    break
                continue
            try:
                piece = os.read(self.at, 1 << 16)
            except OSError:
                break
            if not piece:
                break
            self.said += piece
        return self.said

    def resize(self, lines, columns):
        """All is drawn anew; otherwise only what has changed."""
        fcntl.ioctl(self.at, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.at)


@ulpf_only
class Mangled(unittest.TestCase):
    def test_names_that_take_for_ever(self):
        """They stay as they are, after a moment; names of many levels beside them are readable."""
        readable = "_Z1f" + "1aI" * 25 + "i" + "E" * 25
        explosive = ["_Zli1_DT" + "dl" * 40, "_ZL1a" + "L1a" * 60 + "NKS0_" + "S0_" * 30, "_ZcvDT" + "rs" * 40 + "ildl" * 40]
        names = [*explosive, readable]
        source = "long counter;\n" + "".join(
            f'__attribute__((noinline)) void f{n}(void) __asm__("{name}");\nvoid f{n}(void) {{ counter++; }}\n'
            for n, name in enumerate(names)) + "int main(void) { " + "".join(f"f{n}(); " for n in range(len(names))) + "}\n"
        with tempfile.TemporaryDirectory() as folder:
            program, log = os.path.join(folder, "names"), os.path.join(folder, "log.jsonl")
            subprocess.run(["cc", "-O1", "-xc", "-", "-o", program], input=source.encode(), check=True)
            done = subprocess.run([ULPF, "run", "--no-summary", "-w", "counter:8", "--log", log, program], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60 * PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout)
            with open(log) as lines:
                said = [line["function"] for line in map(json.loads, lines) if line["type"] == "hit"]
        self.assertEqual(said[:-1], explosive)
        self.assertEqual(said[-1].replace(" ", ""), "f(" + "a<" * 25 + "int" + ">" * 25 + ")")


@ulpf_only
class Names(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-text-")
        self.addCleanup(folder.cleanup)
        first = os.path.join(folder.name, "escapes")
        subprocess.run(["gcc", "-O0", "-g", "-gdwarf-5", "-no-pie", "-pthread", "-o", first, os.path.join(HERE, "escapes.c")], check=True)
        with open(first, "rb") as file:
            content = file.read()
        for mark, escape in MARKS.items():
            assert len(mark) == len(escape) and mark in content
            content = content.replace(mark, escape)
        # The program's own name is one of them, too.
        self.program = os.path.join(folder.name, "pro\x1b]0;B\x07gram")
        with open(self.program, "wb") as file:
            file.write(content)
        os.chmod(self.program, 0o755)

    def clean(self, said, *shown):
        for bytes in FORBIDDEN:
            at = said.find(bytes)
            self.assertEqual(at, -1, f"{bytes} in {said[max(0, at - 200):at + 100]}")
        for text in shown:
            self.assertIn(text, said)

    def test_a_log_on_a_terminal(self):
        with Terminal(ULPF, "run", "-b", "3", "-w", "plain", "--", self.program) as terminal:
            said = terminal.read(60)
        self.clean(said, rb"plain.\x1b]0;AA\x07field", rb"\x1b]0;AA\x07function+0x", rb"\x1b]0;AA\x07source.c:", rb"\u{9b}3m_green",
                   rb"\u{202e}!_field")

    def test_a_log_in_a_pipe_and_as_json(self):
        for options in [], ["--json"]:
            done = subprocess.run([ULPF, "run", *options, "-w", "plain", "--", self.program], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True)
            self.clean(done.stdout)
        hits = [hit for hit in map(json.loads, done.stdout.splitlines()) if hit["type"] == "hit"]
        # JSON has the names themselves.
        self.assertIn("plain.\x1b]0;AA\x07field", {hit["name"] for hit in hits})
        self.assertEqual({hit["function"] for hit in hits}, {"\x1b]0;AA\x07function"})

    def test_what_others_ask_of_a_session(self):
        with Terminal(ULPF, "run", "--quiet", "-w", "plain", "--", self.program, "stay") as terminal:
            name = f"@ulpf/{terminal.process.pid}\n"
            self.assertTrue(wait_until(lambda: name in open("/proc/net/unix").read(), 20))
            pid = int(subprocess.run(["pgrep", "-P", str(terminal.process.pid)], stdout=subprocess.PIPE).stdout)
            asked = {"do": "add", "pid": pid, "spec": "nonsense\x1b]0;C\x07"}
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(f"\0ulpf/{terminal.process.pid}")
                for spec in ("nonsense\x1b]0;C\x07", "0x10:8\x1b]0;D\x07", "plain if $new > \x1b]0;E\x07"):
                    control.send(json.dumps({**asked, "spec": spec}).encode() + b"\n")
                    self.clean(control.recv(1 << 16), b'"refused":', rb"\x1b")
            terminal.process.send_signal(signal.SIGINT)
            said = terminal.read(30)
        self.clean(said, b" plain\r\n")

    def test_looking_on(self):
        run = subprocess.Popen([ULPF, "run", "-w", "plain", "-w", "plain.colour", "--log", os.devnull, "--", self.program, "stay"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            control = f"@ulpf/{run.pid}\n"
            self.assertTrue(wait_until(lambda: control in open("/proc/net/unix").read(), 20))
            with Terminal(ULPF, "last", "plain", "-n", "5", "--pid", str(run.pid)) as terminal:
                self.clean(terminal.read(60), rb"\x1b]0;B\x07gram", rb"\x1b]0;AA\x07function")
            with Terminal(ULPF, "top", "--pid", str(run.pid)) as terminal:
                terminal.read(20, until=rb"function")
                for key, shows in ((b"2", rb"\[2 Sites"), (b"4", rb"\[4 Threads"), (b"5", rb"\[5 Hits"), (b"\r", rb"(?s)thread.*instructions")):
                    before = len(terminal.said)
                    os.write(terminal.at, key)
                    if key == b"\r":
                        terminal.resize(40, 80)  # There one hit takes the whole screen.
                    self.assertRegex(terminal.read(20, until=shows, since=before)[before:], shows)
                self.clean(terminal.said, rb"\x1b]0;AA\x07function")
            plain = subprocess.run([ULPF, "top", "--plain", "--count", "3", "--interval", "0.3", "--pid", str(run.pid)],
                                   input=b"sites\nthreads\nhits\n", stdout=subprocess.PIPE, timeout=60, check=True)
            self.clean(plain.stdout, rb"\x1b]0;AA\x07function")
            for form in "csv", "jsonl":
                done = subprocess.run([ULPF, "export", "-o", "-", "--format", form, "--for", "2", "--pid", str(run.pid)],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True)
                self.clean(done.stdout)
                self.assertIn(b"function", done.stdout)
        finally:
            run.terminate()
            run.wait()

    def test_a_server(self):
        with Terminal(ULPF, "server", "--once", "-", self.program) as terminal:
            # A debugger on standard input; it asks for nothing.
            terminal.read(20, until=b"Remote debugging using stdio")
        self.clean(terminal.said, rb"pro\x1b]0;B\x07gram created; pid = ", b"Remote debugging using stdio")

    def test_the_plugin(self):
        sys.path.insert(0, os.path.join(ROOT, "gdb-plugin"))
        from ulpf import foreign
        self.assertEqual(foreign.shown("a\x1b]0;é→\x07\n\x9b\u202e"), "a\\x1b]0;é→\\x07\\n\\u{9b}\\u{202e}")
        self.assertEqual(foreign.lines("a\n\tb\x1b"), "a\n\tb\\x1b")
        self.assertEqual(len(foreign.shown("x" * 10000)), foreign.LONGEST + 1)
        for letter in map(chr, range(0x110000)):
            self.assertTrue(foreign.shown(letter).isprintable() or not foreign._ANY.match(foreign.shown(letter)), hex(ord(letter)))
        names = {"name": "\x7f\x9b\u202e\U000e0001é"}
        quoted = foreign.quoted(json.dumps(names, ensure_ascii=False))
        self.assertEqual(json.loads(quoted), names)
        self.assertTrue(all(c.isprintable() for c in quoted))
