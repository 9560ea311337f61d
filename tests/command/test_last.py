"""`ulpf last`: the last writers, from the rings of a running session."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from lib import schema
from lib.cases import Case, line
from lib.env import ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.run import ulpf
from lib.users import as_root


class Watched:
    """`ulpf run` on a program that stays when it has said its line."""

    def __init__(self, watches, *program, options=()):
        flags = [flag for watch in watches for flag in ("--watch", watch)]
        self.ulpf = subprocess.Popen([ULPF, "run", *flags, *options, "--log", os.devnull, "--", example(program[0]), *program[1:]],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.said = self.ulpf.stdout.readline()
        children = subprocess.run(["pgrep", "-P", str(self.ulpf.pid)], stdout=subprocess.PIPE, text=True).stdout.split()
        self.pid = int(children[0]) if children else 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ulpf.send_signal(signal.SIGTERM)
        self.ulpf.communicate()

    def last(self, what, *options):
        return ulpf("last", what, "--pid", str(self.pid), *options)

    def json(self, what, *options):
        """Exit status, the first line, the hits."""
        status, out, err = self.last(what, "--json", *options)
        lines = [json.loads(text) for text in (out or err).splitlines()]
        schema.lines().check("last", lines)
        return status, lines[0], lines[1:]


@ulpf_only
class Last(unittest.TestCase):
    maxDiff = None

    def test_who_wrote_it(self):
        with Watched(["cells[0..8]", "total"], "crowd", "4", "1", "10", "100", options=["-b", "2"]) as w:
            status, out, err = w.last("cells[2]", "-n", "3")
            self.assertEqual((status, err), (0, ""))
            self.assertRegex(out, rf"^cells\[2\], 8 bytes at 0x[0-9a-f]+ in process {w.pid} \(crowd\), watched for \d+\.\d{{3}} s:\n")
            at = line("crowd.c", "cells[index] = value;")
            hits = re.findall(rf"(?m)^ +\d+\.\d{{6}} s ago \[(\d+)\] write  cells\[2\]: (\d+ → \d+)  8 bytes  step\+\S+ at crowd\.c:{at}\n +#1 worker\+", out)
            self.assertEqual([change for _, change in hits], ["9 → 10", "8 → 9", "7 → 8"])
            self.assertEqual(len({thread for thread, _ in hits}), 1)
            # One is the default, and the ulpf that watches may be named instead of the program.
            status, out, _ = ulpf("last", "cells[2]", "-p", str(w.ulpf.pid))
            self.assertEqual((status, out.count(" → "), "9 → 10" in out), (0, 1, True))

    def test_json(self):
        with Watched(["cells[0..8]", "total"], "crowd", "4", "2", "10", "100") as w:
            status, head, hits = w.json("cells[1]", "-n", "100")
            self.assertEqual((status, head["type"], head["found"], head["pid"], head["len"]), (0, "last", 20, w.pid, 8))
            self.assertEqual((head["reaches_back"], head["unwatched_bytes"]), (None, 0))
            self.assertEqual([hit["new"] for hit in hits], list(range(10, 0, -1)) * 2)
            self.assertEqual({hit["function"] for hit in hits}, {"step"})
            self.assertEqual(len({hit["tid"] for hit in hits}), 2)
            ago = [hit["ago"] for hit in hits]
            self.assertEqual(ago, sorted(ago))
            self.assertLess(ago[-1], head["watched_since"])

    def test_a_part_of_what_is_watched(self):
        with Watched(["cells[0..8]"], "crowd", "4", "1", "300", "100") as w:
            address = int(w.json("cells[3]")[1]["addr"], 16)
            for what, old, new in (f"{address:#x}", "2b", "2c"), (f"{address + 1:#x}", "01", "01"), (f"{address:#x}:2", "2b01", "2c01"):
                _, _, [hit] = w.json(what)
                self.assertEqual((hit["old_bytes"], hit["new_bytes"], hit["silent"]), (old, new, old == new), what)
            # Beyond the end of the watch nothing is known.
            status, head, hits = w.json(f"{address + 4 * 8}:64")
            self.assertEqual((status, head["unwatched_bytes"], hits), (1, 56, []))
            self.assertIn("56 bytes of it not watched", w.last(f"{address + 4 * 8}:64")[1])

    def test_nobody(self):
        with Watched(["cells[0..8]"], "crowd", "4", "1", "10", "100") as w:
            status, out, err = w.last("cells[7]")
            self.assertEqual((status, err), (1, ""))
            self.assertRegex(out, r"\n  nobody has written it since the watch was set\n$")
            self.assertRegex(w.last("cells[2]", "-n", "50")[1], r"\n  that is all since the watch was set\n$")

    def test_a_ring_that_has_gone_round(self):
        with Watched(["cells[0..8]", "total"], "crowd", "2", "1", "100000", "100") as w:
            # Both threads have written more than their rings hold.
            status, head, hits = w.json("cells[1]", "-n", "1000000")
            self.assertEqual(status, 0)
            self.assertIsNotNone(head["reaches_back"])
            values = [hit["new"] for hit in hits]
            self.assertEqual(values, list(range(100000, 100000 - len(values), -1)))
            self.assertGreater(len(values), 50000)
            self.assertLess(len(values), 66000)
            status, out, _ = w.last("cells[5]")
            self.assertEqual(status, 1)
            self.assertRegex(out, r"known only for the last \d+\.\d{3} s: nobody has written it since then\)")
            self.assertEqual(len(w.json("total", "-n", "5")[2]), 2)

    def test_thousands_of_threads(self):
        with Watched(["cells[..]", "total"], "crowd", "1500", "1", "5", "100") as w:
            for n in 0, 700, 1499:
                _, _, hits = w.json(f"cells[{n}]", "-n", "100")
                self.assertEqual([hit["new"] for hit in hits], [5, 4, 3, 2, 1])
            _, head, hits = w.json("cells[..]", "-n", "100000")
            self.assertEqual((head["found"], len({hit["tid"] for hit in hits})), (7500, 1500))
            # The most recent hits of all threads.
            ago = [hit["ago"] for hit in hits]
            self.assertEqual(ago, sorted(ago))
            status, head, hits = w.json("total", "-n", "2000")
            self.assertEqual((status, len(hits)), (0, 1500), head)

    def test_while_it_writes(self):
        watched = Watched.__new__(Watched)
        watched.ulpf = subprocess.Popen([ULPF, "run", "-w", "cells[3]", "--log", os.devnull, "--", example("threads16"), "100000000"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with watched as w:
            def ask():
                status, out, err = ulpf("last", "cells[3]", "-n", "20", "--json", "-p", str(w.ulpf.pid))
                return status, err, [json.loads(text) for text in out.splitlines()]

            # It begins in its own time.
            self.assertTrue(wait_until(lambda: len(ask()[2]) == 21), ask())
            for _ in range(20):
                status, err, (head, *hits) = ask()
                self.assertEqual((status, err, len(hits)), (0, "", 20))
                # Where its writer has overtaken us, some are missing, and the answer says so.
                known = [hit for hit in hits if head["reaches_back"] is None or hit["ago"] <= head["reaches_back"]]
                for younger, older in zip(known, known[1:]):
                    self.assertEqual(younger["old_bytes"], older["new_bytes"])

    def test_what_cannot_be_answered(self):
        with Watched(["cells[0..8]"], "crowd", "4", "1", "10", "100") as w:
            for what, why in (("0x10:4", r"it is not watched in process \d+; watch it"), ("total", r"it is not watched"),
                              ("cellz", r"cellz"), ("heap", r"heap"), ("cells[", r"no watch|bracket|\]")):
                status, out, err = w.last(what)
                self.assertEqual((status, out), (2, ""), what)
                self.assertRegex(err, rf"^ulpf: .*({why})", what)
            status, head, _ = w.json("total")
            self.assertEqual((status, head["type"]), (2, "message"))
        with Watched(["total"], "crowd", "4", "1", "10", "100", options=["--quiet", "--json"]) as w:
            self.assertRegex(w.last("total")[2], r"only counts; watch it without --quiet")
        with Watched(["total:r"], "crowd", "4", "1", "10", "100") as w:
            self.assertRegex(w.last("total")[2], r"for reads only; ask with --reads")
            status, out, _ = w.last("total", "--reads")
            self.assertEqual(status, 0)
            self.assertRegex(out, r"\] (read|update) +total: ")

    def test_no_session(self):
        status, _, err = ulpf("last", "x", "--pid", str(os.getpid()))
        self.assertEqual(status, 2)
        self.assertRegex(err, r"^ulpf: process \d+ is not watched by any ulpf; start it with `ulpf run`")
        dead = subprocess.Popen(["true"])
        dead.wait()
        for pid in dead.pid, 0:
            status, _, err = ulpf("last", "x", "--pid", str(pid))
            self.assertEqual(status, 2)
            self.assertRegex(err, r"^ulpf: there is no process \d+")

    @as_root
    def test_somebody_else(self):
        with tempfile.TemporaryDirectory() as folder, Watched(["total"], "crowd", "4", "1", "10", "100") as w:
            os.chmod(folder, 0o755)
            mine = shutil.copy(ULPF, folder)
            os.chmod(mine, 0o755)  # root may have built it for itself alone
            nobody = {"user": 65534, "group": 65534, "extra_groups": []}
            try:
                subprocess.run([mine, "--version"], stdout=subprocess.DEVNULL, **nobody)
            except PermissionError:
                self.skipTest("nobody may not run anything in this system's temporary folder")
            done = subprocess.run([mine, "last", "total", "--pid", str(w.ulpf.pid)], **nobody,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("belongs to somebody else", done.stderr)

    def test_after_exec_and_fork(self):
        with Watched(["total"], "crowd", "4", "1", "10", "100", options=["--follow"]) as w:
            self.assertEqual(w.json("total", "-n", "10")[1]["found"], 4)


@ulpf_only
class Afterwards(unittest.TestCase):
    """When the program has ended, `ulpf last` asks what `ulpf run` has kept of it."""

    def run_one(self, folder, *command, options=()):
        env = {**os.environ, "XDG_CACHE_HOME": folder}
        with subprocess.Popen([ULPF, "run", *options, "--", example(command[0]), *command[1:]], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            process.communicate()
        # (Other tests watch programs at the same time.)
        sessions = os.path.join(folder, "ulpf")
        newest = max(os.listdir(sessions), key=lambda name: os.stat(os.path.join(sessions, name)).st_mtime_ns)
        return env, newest.split(".")[0]

    def test_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            env, pid = self.run_one(folder, "record", "types", options=["-w", "number", "-w", "colour"])
            status, out, err = ulpf("last", "number", "--pid", pid, env=env)
            self.assertEqual((status, err), (0, ""))
            self.assertRegex(out, r"^number, 4 bytes at 0x\w+ in process \d+ \(record, ended with status 0 \d+ s ago\), watched for \d+\.\d{3} s:\n"
                             r" +\d+\.\d{6} s ago \[\d+\] write  number: 0 → -7  4 bytes  types\+0x\w+ at record\.c:\d+\n$")
            status, out, _ = ulpf("last", "colour", "--json", "--pid", pid, env=env)
            lines = [json.loads(text) for text in out.splitlines()]
            schema.lines().check("last", lines)
            self.assertEqual((status, lines[0]["ended"], lines[1]["new"], lines[1]["pid"]), (0, True, "BLUE", lines[0]["pid"]))
            status, _, err = ulpf("last", "letter", "--pid", pid, env=env)
            self.assertEqual(status, 2)
            self.assertRegex(err, "it is not watched in process")
            # Others may not look at what was watched.
            [session] = os.listdir(os.path.join(folder, "ulpf"))
            self.assertEqual(os.stat(os.path.join(folder, "ulpf", session)).st_mode & 0o777, 0o600)
            self.assertEqual(os.stat(os.path.join(folder, "ulpf")).st_mode & 0o777, 0o700)

    def test_several_at_present_come_before_one_that_has_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            env, _ = self.run_one(folder, "record", "types", options=["-w", "number"])
            with Watched(["total"], "crowd", "4", "1", "10", "100") as one, Watched(["total"], "crowd", "4", "1", "10", "100") as other:
                for what in "total", "number":
                    status, out, err = ulpf("last", what, env=env)
                    self.assertEqual((status, out), (2, ""))
                    self.assertIn("several programs are watched; choose one with --pid:\n", err)
                    for watched in one, other:
                        self.assertIn(f"\n  {watched.pid} (crowd)", err)

    def test_a_crash(self):
        with tempfile.TemporaryDirectory() as folder:
            env, pid = self.run_one(folder, "record", "crash", options=["-w", "nodes[..]"])
            status, out, err = ulpf("last", "nodes[0].next", "--pid", pid, env=env)
            self.assertEqual((status, err), (0, ""))
            self.assertRegex(out, r"\(record, killed by SIGSEGV \d+ s ago\)")
            self.assertRegex(out, r"write  nodes\[0\]\.next: 0x0 → 0x10  8 bytes  lose\+0x")

    def test_a_folder_that_others_may_write_to(self):
        """Under sudo the home may be another user's: nothing is written behind a foreign link, or where one could be put."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
            env = {**os.environ, "XDG_CACHE_HOME": folder}
            run = [ULPF, "run", "-v", "-w", "number", "--", example("record"), "types"]
            os.symlink(elsewhere, os.path.join(folder, "ulpf"))
            said = subprocess.run(run, env=env, capture_output=True, text=True).stderr
            self.assertRegex(said, r"`ulpf last` will know nothing of process \d+ any more: ")
            self.assertEqual(os.listdir(elsewhere), [])
            os.remove(os.path.join(folder, "ulpf"))
            os.mkdir(os.path.join(folder, "ulpf"))
            os.chmod(os.path.join(folder, "ulpf"), 0o777)
            said = subprocess.run(run, env=env, capture_output=True, text=True).stderr
            self.assertRegex(said, r"ulpf belongs to another user, or others may write to it")
            self.assertEqual(os.listdir(os.path.join(folder, "ulpf")), [])

    def test_the_newest_eight_are_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(10):
                env, pid = self.run_one(folder, "record", "types", options=["-w", "number"])
            sessions = os.listdir(os.path.join(folder, "ulpf"))
            self.assertEqual(len(sessions), 8)
            # Nothing but what was written to: a run of a few hits is no 128 MiB.
            for name in sessions:
                self.assertLess(os.path.getsize(os.path.join(folder, "ulpf", name)), 4 << 20)
            pid = min(int(name.split(".")[0]) for name in sessions)
            self.assertIn(f"in process {pid} ", ulpf("last", "number", "--pid", str(pid), env=env)[1])
            # A run that only counts has nothing to keep; damage is no answer.
            self.run_one(folder, "record", "types", options=["-q", "-w", "number"])
            self.assertEqual(set(os.listdir(os.path.join(folder, "ulpf"))), set(sessions))
            path = os.path.join(folder, "ulpf", f"{pid}.session")
            with open(path, "r+b") as file:
                whole = file.read()
                for cut in 4, 12, 100, len(whole) // 2, len(whole) - 1:
                    file.truncate(0)
                    os.pwrite(file.fileno(), whole[:cut], 0)
                    status, _, err = ulpf("last", "number", "--pid", str(pid), env=env)
                    self.assertEqual(status, 2, cut)
                    self.assertRegex(err, "the last session cannot be read|there is no process", cut)


@ulpf_only
class UnderGdb(Case):
    def test_gdbs_own_watches(self):
        gdb = self.session("five")
        gdb("watch b")
        self.assertChange(gdb("continue"), 2, "b", 20, 21)
        at = gdb.value("(long)&b")
        said = json.loads(re.search(r"{.*}", gdb(f"monitor ulpf last {at:#x} 4 5")).group())
        self.assertEqual((said["addr"], said["len"], said["reaches_back"]), (f"{at:#x}", 4, None))
        self.assertGreater(said["watched_since"], 0)
        [hit] = said["last"]
        self.assertEqual((hit["old_bytes"], hit["new_bytes"], hit["access"], hit["silent"]), ("14000000", "15000000", "write", False))
        self.assertIn("five.c:17", gdb(f"info line *{hit['pc']}").replace('Line 17 of "five.c"', "five.c:17"))
        # The same from outside, while gdb has the program stopped.
        status, out, err = ulpf("last", "b", "-p", str(gdb.server.program_pid))
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"write  b: 20 → 21  4 bytes  main\+\S+ at five\.c:17")
        # Hits that gdb does not stop for are recorded, too.
        gdb("tbreak 21")
        gdb("continue")
        said = json.loads(re.search(r"{.*}", gdb(f"monitor ulpf last {at:#x} 4 5")).group())
        self.assertEqual([hit["silent"] for hit in said["last"]], [True, False])
        nothing = json.loads(re.search(r"{.*}", gdb("monitor ulpf last 0x10")).group())
        self.assertEqual((nothing["watched_since"], nothing["last"]), (None, []))
        self.assertIn("refused", gdb("monitor ulpf last"))
        self.assertIn("refused", gdb(f"monitor ulpf last {at:#x} nonsense"))
