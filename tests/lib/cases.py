"""The base classes of the tests."""

import re
import unittest

from .env import example, source_of
from .gdb import Gdb
from .rsp import wait_until
from .server import Server


# A server that shows each packet: see resume().
SEEN = ["--remote-debug"]


def line(name, text):
    """Number of the line of a program's source that contains `text`."""
    with open(source_of(name)) as lines:
        for number, content in enumerate(lines, start=1):
            if text in content:
                return number
    raise AssertionError(f"no line of {name} contains {text!r}")


class Case(unittest.TestCase):
    """Ends every server and debugger that a test has started, and shows their talk if it failed."""

    longMessage = True

    def setUp(self):
        self._servers, self._gdbs = [], []

    def tearDown(self):
        failed = not self._outcome.success
        for gdb in self._gdbs:
            if failed:
                print(f"--- gdb said:\n{gdb.transcript}{gdb._output.decode(errors='replace')}")
            gdb.close()
        for server in self._servers:
            if failed:
                print(f"--- {' '.join(server.command)} said:\n{server.said}--- its program said:\n{server.stdout()}")
            server.close()

    def serve(self, *program, **options):
        """A server with an example program (a bare name) or any program (a path)."""
        program = [example(program[0]) if program and "/" not in program[0] else program[0],
                   *program[1:]] if program else []
        server = Server(*map(str, program), **options)
        self._servers.append(server)
        return server

    def gdb(self, *args, **options):
        gdb = Gdb(*args, **options)
        self._gdbs.append(gdb)
        return gdb

    def session(self, *program, stop="ready", extended=False, gdb_options=None, **options):
        """gdb connected to a server with this program, run up to the function `stop`."""
        server = self.serve(*program, **options)
        gdb = self.gdb(**(gdb_options or {}))
        gdb(f"file {server.command[len(server.command) - len(program)]}")
        out = gdb(f"target {'extended-remote' if extended else 'remote'} {server.target}")
        self.assertRegex(out, r"Remote debugging using|_start|Reading")
        if stop:
            gdb(f"tbreak {stop}")
            self.assertSays(gdb("continue"), r"Temporary breakpoint 1, ")
            if stop == "ready":
                gdb("up")  # into its caller, so that the caller's variables are in scope
        gdb.server = server
        return gdb

    def resume(self, gdb, command="continue"):
        """Resumes, and waits until the server has been told. (Before that, Ctrl-C is for gdb alone: "Quit".)"""
        self.assertIn("--remote-debug", gdb.server.command, "the session needs options=SEEN")
        before = gdb.server.said.count("vCont;c")
        gdb.send(command)
        self.assertTrue(wait_until(lambda: gdb.server.said.count("vCont;c") > before, 30), "gdb did not resume")

    def assertSays(self, text, *patterns):
        """The patterns appear in this order."""
        at = 0
        for pattern in patterns:
            match = re.compile(pattern).search(text, at)
            if not match:
                self.fail(f"{pattern!r} is missing (in this place) from:\n{text}")
            at = match.end()

    def assertChange(self, text, number, expression, old, new):
        """The stop of `watch`: right watch, old and new value."""
        self.assertSays(text, rf"[Ww]atchpoint {number}: {re.escape(expression)}\n",
                        rf"Old value = {re.escape(str(old))}\n", rf"New value = {re.escape(str(new))}\n")

    def assertExits(self, gdb, code=0, text=None):
        """The program runs to its end, gdb sees the status, the server ends, the output is right."""
        out = gdb("continue", 60)
        self.assertSays(out, r"exited normally" if code == 0 else rf"exited with code 0{code:o}\]")
        gdb.server.wait()
        if text is not None:
            self.assertIn(text, gdb.server.stdout())
        return out
