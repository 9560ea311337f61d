"""`ulpf run --follow`, and exec under `ulpf run`."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from lib import schema
from lib.env import PATIENCE, ULPF, bare, example, ulpf_only
from lib.rsp import wait_until
from lib.run import Json, run, ulpf


@ulpf_only
class Follow(unittest.TestCase):
    OUTPUT = "children: count 3, codes 3 4 5 6 -6\n"

    def test_children(self):
        """Each hit names its process; parent and child count on their own, in their own memory."""
        said = Json(["shared_count"], "children", options=("--follow",))
        self.assertEqual((said.status, said.out), (0, self.OUTPUT))
        forks = [line for line in said.lines if line["type"] == "fork"]
        self.assertEqual(len(forks), 2)
        parent, child = forks[0]["parent"], forks[0]["pid"]
        of = {pid: [(h["old"], h["new"]) for h in said.hits if h["pid"] == pid] for pid in (parent, child)}
        self.assertEqual(of[parent], [(1, 2), (2, 3)])
        self.assertEqual(of[child], [(n, n + 1) for n in range(1, 1001)])
        counts = {line["pid"]: line["watches"][0]["hits"] for line in said.lines if line["type"] == "summary"}
        self.assertEqual(counts, {parent: 2, child: 1000, forks[1]["pid"]: 0})

    def test_the_first_process_of_a_container(self):
        """It ends all others by kill(-1), and waits until /proc shows none. The stub's task does not appear there."""
        status, expected = bare(example("first_process"))
        if status == 77:
            self.skipTest("no namespaces here")
        for watches in ["heap"], ["counter"]:
            with self.subTest(watches):
                said = Json(watches, "first_process", options=("--follow",))
                self.assertEqual((said.status, said.out), (status, expected), said.err)
                self.assertEqual([line for line in said.lines if line["type"] == "notice"], [])
        self.assertEqual([hit["new"] for hit in said.hits], list(range(1, 101)))

    def test_in_words(self):
        status, out, err = run(["shared_count"], "children", options=("--follow",))
        self.assertEqual((status, out), (0, self.OUTPUT))
        self.assertRegex(err, r"\[(\d+)/\1\] write  shared_count: 1000 → 1001")
        self.assertRegex(err, r"ulpf: process \d+ \(children\): 2 hits on 1 watch")
        self.assertRegex(err, r"ulpf: process \d+ \(children\), forked by \d+: 1000 hits on 1 watch")

    def test_without_follow_children_are_left_alone(self):
        said = Json(["shared_count"], "children")
        self.assertEqual((said.status, said.out), (0, self.OUTPUT))
        self.assertEqual(said.changes(), [("shared_count", "1", "2"), ("shared_count", "2", "3")])
        self.assertEqual({hit["pid"] for hit in said.hits}, {said.lines[0]["pid"]})

    def test_generations(self):
        """Children of children; the run ends with the last one, with the first one's status."""
        said = Json(["depth"], "family", "4", options=("--follow",))
        self.assertEqual(said.status, 4)
        self.assertEqual(sorted(h["new"] for h in said.hits), [0, 1, 2, 3, 4])
        self.assertEqual(len({h["pid"] for h in said.hits}), 5)

    def test_the_same_program_again(self):
        """After exec names mean the same only in the same program: its watches are set again there."""
        said = Json(["baton"], "relay", "3")
        self.assertEqual(said.status, 11)
        self.assertEqual([(h["old"], h["new"]) for h in said.hits],
                         [(0, 13), (13, 14), (0, 12), (12, 13), (0, 11), (11, 12), (0, 10), (10, 11)])
        order = [line["type"] for line in said.lines if line["type"] in ("hit", "exec")]
        self.assertEqual(order, ["hit", "hit", "exec"] * 3 + ["hit", "hit"])

    def test_at_a_function_again(self):
        said = Json(["baton"], "relay", "1", options=("--at", "ready"))
        self.assertEqual([h["new"] for h in said.hits], [11, 12, 10, 11])

    def test_generations_with_a_watched_heap(self):
        """Remains of its ancestors' stubs in a process are no heap, and do not interfere."""
        status, out, err = run(["heap:w"], "family", "6", options=["--follow", "--quiet"])
        self.assertEqual((status, out), (6, ""), err)
        self.assertEqual(len(re.findall(r"(?m)^ulpf: process .* hits? on 1 watch", err)), 7, err)

    def test_another_program(self):
        status, out, _ = run(["baton"], "relay", "0", "/bin/true")
        self.assertEqual((status, out), (0, "relay: leg 0, baton 11\n"))

    def test_spawned(self):
        """posix_spawn of the same program, generation after generation: each is watched from its beginning."""
        for options in [], ["--at", "ready"]:
            with self.subTest(options):
                said = Json(["generation"], "launch", "again", "3", options=("--follow", *options))
                self.assertEqual(said.status, 3)
                # The logs of two processes may overtake each other.
                hits = sorted(said.hits, key=lambda hit: -hit["new"])
                self.assertEqual([(h["old"], h["new"]) for h in hits], [(-1, n) for n in (3, 2, 1, 0)])
                pids = [h["pid"] for h in hits]
                self.assertEqual(len(set(pids)), 4)
                forks = [(line["parent"], line["pid"]) for line in said.lines if line["type"] == "fork"]
                self.assertEqual(forks, list(zip(pids, pids[1:])))
                self.assertEqual([line["pid"] for line in said.lines if line["type"] == "exec"], pids[1:])

    def test_spawned_by_threads(self):
        """Four at once, each of which spawns more."""
        said = Json(["generation"], "launch", "threads", example("launch"), "again", "1", options=("--follow",))
        self.assertEqual((said.status, said.out.splitlines()[-1:]), (0, ["launch: threads, status 1, in child 0"]))
        self.assertEqual(sorted(h["new"] for h in said.hits), [0] * 4 + [1] * 4)
        self.assertEqual(len({h["pid"] for h in said.hits}), 8)

    def test_spawned_other_programs_are_left_alone(self):
        said = Json(["launched"], "launch", "system", example("five"), options=("--follow",))
        self.assertEqual((said.status, said.out), (0, "five: done\nlaunch: system, status 0, in child 0\n"))
        self.assertEqual(said.changes(), [("launched", "0", "1")])
        self.assertEqual([line for line in said.lines if line["type"] in ("fork", "exec")], [])

    def test_terminated(self):
        """SIGTERM reaches the program, and ulpf ends as it does. ulpf still waits for a forked child until the second
        SIGTERM; then the child continues without ulpf."""
        process = subprocess.Popen([ULPF, "run", "--follow", "--watch", "depth", "--", example("family"), "1", "sleep"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        child = int(process.stdout.readline())
        self.addCleanup(lambda: os.path.exists(f"/proc/{child}") and os.kill(child, signal.SIGKILL))
        process.send_signal(signal.SIGTERM)
        self.assertFalse(wait_until(lambda: process.poll() is not None, 1), "it waits for the child")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20 * PATIENCE), -signal.SIGTERM)
        os.kill(child, 0)


@ulpf_only
class Chosen(unittest.TestCase):
    """--only and --skip: programs behind wrappers."""

    def watch(self, *command, what="a", options=("--only", "five"), status=0):
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "log.jsonl")
            said = ulpf("run", *options, "--log", name, "-w", what, "--", *command)
            with open(name) as file:
                lines = [json.loads(line) for line in file]
        schema.lines().check("run", lines)
        self.assertEqual(said[0], status, said)
        return lines, said[2]

    def changes(self, lines):
        return [(hit["old"], hit["new"]) for hit in lines if hit["type"] == "hit"]

    def test_wrappers(self):
        five = example("five")
        for command in (["env", "X=1", five], ["sh", "-c", f"exec {five}"], ["sh", "-c", f"{five}; true"], ["nice", "-n", "1", five],
                        *([example("wrapped"), how, five] for how in ("exec", "fork", "vfork", "spawn"))):
            with self.subTest(command):
                lines, err = self.watch(*command)
                self.assertEqual(self.changes(lines), [(10, 11), (11, 12)], err)
                summaries = [line for line in lines if line["type"] == "summary"]
                self.assertEqual([summary["program"] for summary in summaries], ["five"])
                self.assertRegex(err, r"ulpf: process \d+ \(five\)(, forked by \d+| after exec): 2 hits on 1 watch")

    def test_ranks(self):
        """As the launchers of MPI programs tell them."""
        five = example("five")
        for name in "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID":
            lines, err = self.watch("sh", "-c", f"{name}=1 {five}; {name}=0 {five}; {five}")
            self.assertEqual([line.get("rank") for line in lines if line["type"] == "summary"], [1, 0, None])
            self.assertRegex(err, r"ulpf: rank 1: process \d+ \(five\).*: 2 hits on 1 watch")

    def test_an_mpi_program(self):
        if missing := [name for name in ("mpirun", "mpicc") if not shutil.which(name)]:
            self.skipTest(f"needs {' and '.join(missing)} (openmpi-bin, libopenmpi-dev)")
        if subprocess.run(["mpicc", "-E", "-include", "mpi.h", "-x", "c", os.devnull], capture_output=True).returncode:
            self.skipTest("needs mpi.h (libopenmpi-dev)")
        source = """#include <mpi.h>
        int residual;
        int main(int n, char **v) { int rank; MPI_Init(&n, &v); MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        residual = 100 + rank; MPI_Barrier(MPI_COMM_WORLD); MPI_Finalize(); return 0; }"""
        with tempfile.TemporaryDirectory() as folder:
            solver = os.path.join(folder, "solver")
            subprocess.run(["mpicc", "-g", "-x", "c", "-", "-o", solver], input=source.encode(), check=True)
            lines, err = self.watch("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", solver, what="residual",
                                    options=("--only", "solver"))
        values = {hit["new"]: hit["pid"] for hit in lines if hit["type"] == "hit"}
        ranks = {line["rank"]: line["pid"] for line in lines if line["type"] == "summary"}
        self.assertEqual((values, sorted(ranks)), ({100 + rank: pid for rank, pid in ranks.items()}, [0, 1, 2]), err)

    def test_a_script(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "run.sh")
            with open(script, "w") as file:
                file.write(f"#!/bin/sh\n{example('five')}\n{example('five')}\nexit 3\n")
            os.chmod(script, 0o755)
            lines, err = self.watch(script, status=3)
            self.assertEqual(self.changes(lines), [(10, 11), (11, 12)] * 2)
            self.assertEqual(len({hit["pid"] for hit in lines if hit["type"] == "hit"}), 2)
            self.assertRegex(err, r"\nulpf: all 2 processes: 4 hits, 0 silent stores, \d+ false positives\n$")

    def test_make(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "Makefile"), "w") as file:
                file.write("check: one two\none two:\n\t%s\n" % example("five"))
            lines, _ = self.watch("make", "-s", "-j2", "-C", folder, "check")
            self.assertEqual(sorted(self.changes(lines)), sorted([(10, 11), (11, 12)] * 2))

    def test_skip(self):
        lines, _ = self.watch("env", example("five"), options=["--skip", "env"])
        self.assertEqual(self.changes(lines), [(10, 11), (11, 12)])

    def test_none_is_meant(self):
        lines, err = self.watch("env", "true")
        self.assertEqual(self.changes(lines), [])
        self.assertRegex(err, "nothing was watched: no program was started that --only and --skip mean")
        status, _, err = ulpf("run", "--only", "[", "-w", "a", "--", "true")
        self.assertEqual(status, 2)
        self.assertRegex(err, "`\\[` is no pattern of file names")
