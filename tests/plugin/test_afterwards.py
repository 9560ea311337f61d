"""The data of a session survives the program; another run finds its watches."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from lib.env import GDB, ULPF, example, ulpf_only
from lib.plugin import LOADER, PluginCase


@ulpf_only
class Afterwards(PluginCase):
    def test_counters_and_log(self):
        gdb = self.begin("locals_again", done=False, extended=True)
        gdb("ulpf watch total")
        gdb("ulpf watch all log")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: total\n\nOld value = 0\nNew value = 6\n")
        self.assertSays(gdb("continue"), r"exited normally")
        row = self.row(gdb, 1)
        self.assertEqual((row["Hits"], row["Stops"], row["Lives"]), ("1", "1", "ended"))
        self.assertEqual(self.row(gdb, 2)["Hits"], "1")
        said = gdb("ulpf log show")
        self.assertSays(said, r"#2 (update|write ) all: 2 → 6  sum\+0x\w+ at locals_again.c:\d+", r"#1 (update|write ) total: 0 → 6 ")
        folder = gdb.server.dir.name
        self.assertSays(gdb(f"ulpf log save {folder}/a.csv"), r"^2 hits saved in ")
        with open(f"{folder}/a.csv") as file:
            self.assertEqual([row["name"] for row in csv.DictReader(file)], ["all", "total"])
        self.assertSays(gdb(f"ulpf log save {folder}/a.jsonl of 1"), r"^1 hits saved in ")
        with open(f"{folder}/a.jsonl") as file:
            self.assertEqual([json.loads(line)["new"] for line in file], [6])
        self.assertSays(gdb("ulpf last total"), r"s ago \[\d+\] \w+ +total: 0 → 6 ")
        self.assertSays(gdb("ulpf stats"), r"hits +\d+\n")
        # Commands that need a program say so.
        self.assertSays(gdb("ulpf watch total"), r"^there is no program: ")

    def test_after_a_kill_and_a_detach(self):
        for end in "kill", "detach":
            with self.subTest(end):
                gdb = self.begin("locals_again", done=False, extended=True)
                gdb("ulpf watch total")
                gdb("continue")
                gdb(end)
                self.assertEqual(self.counted(gdb, 1), (1, 1))
                self.assertSays(gdb("ulpf log show"), r"#1 (update|write ) total: 0 → 6 ")

    def test_a_connection_that_ends_with_the_program(self):
        """No server is left to answer, and the plugin does not report that as zero hits."""
        gdb = self.begin("locals_again", done=False)
        gdb("ulpf watch total")
        gdb("continue")
        self.assertExits(gdb)
        row = self.row(gdb, 1)
        self.assertEqual((row["Hits"], row["Stops"], row["Lives"]), ("?", "?", "ended"))

    def test_locals_in_another_run(self):
        gdb = self.begin("locals_again", done=False, extended=True)
        gdb("ulpf watch all")
        gdb("ulpf watch twice")
        gdb("up")
        gdb("ulpf watch mine log")
        gdb("continue")
        gdb("kill")
        for _ in range(2):
            said = gdb("run")
            self.assertNotIn("not set again", said)
            # Now from where they come into being.
            self.assertSays(said, r"Ulpf watch 2: twice\n\nOld value = \d+\nNew value = 2\n")
            self.assertSays(gdb("continue"), r"Ulpf watch 1: all\n\nOld value = 0\nNew value = 2\n")
            self.assertSays(gdb("continue"), r"Ulpf watch 2: twice\n\nOld value = 2\nNew value = 4\n")
            self.assertSays(gdb("continue"), r"Ulpf watch 1: all\n\nOld value = 2\nNew value = 6\n")
            said = gdb("continue")
            self.assertSays(said, r"watch \d \(\w+\) has ended: the function that had it has returned\.", r"exited normally")
            self.assertSays(gdb("ulpf log show 9 of 3"), r" mine: 1 → 7 ", r" mine: 7 → 9 ")
        # A run counts from its beginning.
        self.assertEqual(self.row(gdb, 2)["Stops"], "2")
        gdb("ulpf delete 1 2")
        self.assertSays(gdb("run"), r"exited normally")

    def test_a_local_of_another_thread(self):
        """It lasts as long as its function, whichever thread stops."""
        gdb = self.begin("local_of_thread", done=False)
        self.assertSays(gdb("ulpf watch mine"), r"Ulpf watch 1: mine")
        gdb("break tick")
        said = [gdb("continue") for _ in range(7)]
        stops = [re.search(r"Breakpoint \d+, tick|Old value = \d+\nNew value = \d+|exited normally", text)[0] for text in said]
        self.assertEqual([stop for stop in stops if "value" in stop], ["Old value = 0\nNew value = 1", "Old value = 1\nNew value = 3"], said)
        self.assertEqual(sum("tick" in stop for stop in stops), 4, said)
        self.assertEqual("".join(said).count("has ended: the function that had it has returned"), 1, said)

    def test_a_kill_while_a_local_is_watched(self):
        for kind in "ulpf watch", "watch":
            with self.subTest(kind):
                gdb = self.begin("locals_again", done=False, extended=True)
                gdb(f"{kind} all")
                self.assertNotIn("ulpf", gdb("kill"))
                gdb("break ready")
                self.assertSays(gdb("run"), r"Breakpoint \d+, ready|Old value")

    def ulpf_run(self, *commands, ulpf=ULPF):
        """What GDB prints until the last process that it has started has closed its output."""
        done = subprocess.run([GDB, "-nx", "-q", "-batch", "-ex", f"source {LOADER}", "-ex", "break ready", "-ex", "ulpf run",
                               *(word for command in commands for word in ("-ex", command)), "-ex", "quit", example("locals_again")],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, env={**os.environ, "ULPF": ulpf})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_leaving_after_ulpf_run(self):
        for last in "run", "ulpf run", "kill", "info watchpoints":
            with self.subTest(last):
                self.assertNotRegex(self.ulpf_run("ulpf watch total", last), "reset|rror|ignoring|roken")

    def server_like(self, text):
        """A command of this Python program, which finds its own last argument, the socket's path, as `path`."""
        folder = tempfile.mkdtemp(prefix="ulpf-test-")
        self.addCleanup(shutil.rmtree, folder)
        file = os.path.join(folder, "server")
        with open(file, "w") as out:
            out.write(f"#!{sys.executable}\nimport os, socket, sys, time\npath = sys.argv[-1]\n{text}")
        os.chmod(file, 0o700)
        return file

    def test_a_server_that_is_slow_to_listen(self):
        server = self.server_like(f"""
early = socket.socket(socket.AF_UNIX)
early.bind(path)
time.sleep(1)
os.execv({ULPF!r}, [{ULPF!r}, *sys.argv[1:]])
""")
        said = self.ulpf_run("info watchpoints", "next", ulpf=server)
        self.assertSays(said, r"Breakpoint 1, ready ")
        self.assertNotRegex(said, "refused|rror")

    def test_a_server_that_does_not_listen(self):
        server = self.server_like("""
sys.stderr.write(f"Listening on {path}\\n")
sys.stderr.flush()
time.sleep(1000)
""")
        self.assertSays(self.ulpf_run("info watchpoints", ulpf=server), r"No such file or directory|Connection refused")
