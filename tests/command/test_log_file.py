"""The compact log: what `ulpf run --log FILE.ulpf` writes, `ulpf log` tells as the other logs would have."""

import csv
import json
import os
import random
import signal
import subprocess
import tempfile
import unittest

from lib import schema
from lib.env import ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.run import run, ulpf

# Fields that differ from run to run.
VOLATILE = {"time", "pid", "tid"}
TYPES = ["number", "large", "flag", "half", "third", "colour", "letter", "list", "only", "pointer", "bits.high", "pair", "text"]


def steady(line):
    return {name: value for name, value in line.items() if name not in VOLATILE}


@ulpf_only
class LogFile(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def record(self, watches, name, *args, options=(), log="hits.ulpf", **more):
        status, out, err = run(watches, name, *args, options=["--log", self.path(log), *options], **more)
        self.assertEqual(status, 0, err)
        return out, err

    def read(self, *options, name="hits.ulpf", status=0):
        found, out, err = ulpf("log", self.path(name), *options)
        self.assertEqual(found, status, err)
        return out, err

    def lines(self, *options, **more):
        return [json.loads(line) for line in self.read("--json", *options, **more)[0].splitlines()]

    def test_it_says_what_the_other_logs_say(self):
        """The same lines of JSON, the same table, the same text, whatever is watched."""
        for what, options in ("types", []), ("copies", ["--backtrace", "2"]), ("copies", []), ("types", ["--changes-only"]):
            with self.subTest(what, options=options):
                for name in "hits.ulpf", "hits.jsonl", "hits.csv", "hits.txt":
                    self.record(TYPES, "record", what, options=[*options, "--no-aslr"], log=name)
                expected = [json.loads(line) for line in open(self.path("hits.jsonl"))]
                lines = self.lines()
                schema.lines().check("run", lines)
                hits = [steady(line) for line in lines if line["type"] == "hit"]
                self.assertGreater(len(hits), 5)
                self.assertEqual(hits, [steady(line) for line in expected if line["type"] == "hit"])
                kinds = lambda lines: sorted(line["type"] for line in lines if line["type"] != "hit")
                self.assertEqual(kinds(lines), kinds(expected))
                table = list(csv.DictReader(self.read("--format", "csv")[0].splitlines()))
                with open(self.path("hits.csv"), newline="") as file:
                    self.assertEqual([steady(row) for row in table], [steady(row) for row in csv.DictReader(file)])
                text = [line.split("]", 1)[-1] for line in self.read()[0].splitlines()]
                self.assertEqual(text, [line.split("]", 1)[-1] for line in open(self.path("hits.txt")).read().splitlines()])

    def test_a_trace(self):
        self.record(["total"], "filters")
        self.read("-o", self.path("hits.trace.json"))
        with open(self.path("hits.trace.json")) as file:
            events = json.load(file)
        hits = [event for event in events if event["ph"] == "i"]
        self.assertEqual(len(hits), 210)
        self.assertEqual([event["ts"] for event in hits], sorted(event["ts"] for event in hits))
        self.assertEqual((hits[0]["name"], hits[0]["cat"]), ("total", "write"))
        self.assertEqual(events[0]["args"]["name"], "filters")

    def test_threads_are_one_order_and_nothing_is_lost(self):
        """Four threads that race: each old value is the new value of the hit before."""
        self.record(["cell.number"], "chain", "locked", "4", "50000", options=["--placement=guard", "--log-policy=lossless"], seconds=150)
        hits = [line for line in self.lines() if line["type"] == "hit"]
        self.assertEqual([hit["old"] for hit in hits], list(range(200_000)))
        self.assertEqual(len({hit["tid"] for hit in hits}), 4)
        self.assertLess(os.path.getsize(self.path("hits.ulpf")), 10 * len(hits))

    def test_who_wrote_it_before(self):
        self.record(["cell.number"], "chain", "locked", "2", "20000", options=["--placement=guard", "--log-policy=lossless"])
        hits = [line for line in self.lines() if line["type"] == "hit"]
        middle = hits[25_000]
        last = self.lines("--who", "cell.number", "-n", "3")
        self.assertEqual([line["new"] for line in last], [40_000, 39_999, 39_998])
        before = self.lines("--who", middle["addr"] + ":8", "--before", f"{middle['time'] + 1e-6:.6f}", "-n", "5")
        self.assertLessEqual(before[0]["time"], middle["time"])
        self.assertEqual(before, hits[before[0]["new"] - 1:before[0]["new"] - 6:-1])
        text, _ = self.read("--who", "cell.number")
        self.assertIn("39999 → 40000", text)
        _, err = self.read("--who", "0x1000", status=1)
        self.assertIn("nobody has written `0x1000`", err)
        _, err = self.read("--who", "cell.nothing", status=2)
        self.assertIn("no part of what this log is about: `cell.number`", err)
        self.read("--who", "cell.number", "--before", "0", status=1)

    def test_who_wrote_an_element(self):
        self.record(["list"], "record", "types")
        hit, = self.lines("--who", "list[2]")
        self.assertEqual((hit["name"], hit["new"]), ("list[2]", 9))

    def test_children(self):
        """Each process has its own watches and hits."""
        self.record(["shared_count"], "children", options=["--follow"])
        lines = self.lines()
        schema.lines().check("run", lines)
        parent, child = next((line["parent"], line["pid"]) for line in lines if line["type"] == "fork")
        of = lambda pid: [(line["old"], line["new"]) for line in lines if line["type"] == "hit" and line["pid"] == pid]
        self.assertEqual(of(parent), [(1, 2), (2, 3)])
        self.assertEqual(of(child), [(n, n + 1) for n in range(1, 1001)])
        self.assertRegex(self.read()[0], r"\[(\d+)/\1\] write  shared_count: 1000 → 1001")

    def test_what_cannot_be_read(self):
        with open(self.path("other.ulpf"), "w") as file:
            file.write('{"type": "start"}\n')
        _, err = self.read(name="other.ulpf", status=2)
        self.assertIn("is no log", err)
        _, err = self.read(name="none.ulpf", status=2)
        self.assertIn("cannot read", err)
        status, _, err = run(["total"], "filters", options=["--json", "--log", self.path("hits.ulpf")])
        self.assertEqual(status, 2)
        self.assertIn("leave --json out", err)

    def test_cut_short_anywhere(self):
        """Everything before the cut is reported, and that something is missing."""
        self.record(["total"], "filters")
        whole = open(self.path("hits.ulpf"), "rb").read()
        hits = [line for line in self.lines() if line["type"] == "hit"]
        seen = set()
        for cut in sorted(random.Random(7).sample(range(8, len(whole)), 25)):
            with open(self.path("cut.ulpf"), "wb") as file:
                file.write(whole[:cut])
            _, out, err = ulpf("log", self.path("cut.ulpf"), "--json")
            self.assertIn("has no end", err)
            some = [line for line in map(json.loads, out.splitlines()) if line["type"] == "hit"]
            self.assertEqual([hit["new"] for hit in some], [hit["new"] for hit in hits[:len(some)]])
            seen.add(len(some))
        self.assertIn(len(hits), seen)

    def has_hits(self):
        """More than ten, so far."""
        return ulpf("log", self.path("hits.ulpf"), "--json")[1].count('"type":"hit"') > 10

    def test_a_killed_ulpf_leaves_what_it_had(self):
        command = [ULPF, "run", "--log", self.path("hits.ulpf"), "-w", "bank.transfers", example("bank"), "2", "500"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as process:
            self.assertTrue(wait_until(self.has_hits, 30))
            process.kill()
        found, out, err = ulpf("log", self.path("hits.ulpf"), "--json")
        self.assertEqual(found, 3, err)
        self.assertIn("has no end", err)
        hits = [line for line in map(json.loads, out.splitlines()) if line["type"] == "hit"]
        self.assertGreater(len(hits), 10)
        self.assertEqual({(hit["name"], hit["function"]) for hit in hits}, {("bank.transfers", "transfer")})

    def test_it_is_read_while_it_is_written(self):
        command = [ULPF, "run", "--log", self.path("hits.ulpf"), "-w", "bank.transfers", example("bank"), "2", "500"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as process:
            self.assertTrue(wait_until(self.has_hits, 30))
            found, out, err = ulpf("log", self.path("hits.ulpf"), "--json")
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        self.assertEqual(found, 3, err)
        self.assertGreater(out.count('"type":"hit"'), 10)
