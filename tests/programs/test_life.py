"""Random calls about memory around allocation (tests/programs/life.c), watched and checked, beside the same run alone: results,
errors, faults, contents and the exit status are the same."""

import subprocess

from lib.cases import Case
from lib.env import LONG, PATIENCE, ULPF, bare, example, ulpf_only

WATCHED = ["run", "--quiet", "--no-summary"]
WAYS = {
    "check": ["check", "--no-leaks"],
    "heap": [*WATCHED, "-w", "heap"],
    "heap, read and written": [*WATCHED, "-w", "heap:rw"],
    "area": [*WATCHED, "-w", "area"],
    "area and heap": [*WATCHED, "-w", "area:rw", "-w", "heap"],
    "last writers": [*WATCHED, "--blame"],
    "two bytes": [*WATCHED, "-w", "area[9000]", "-w", "area[123456]:rw"],
}


@ulpf_only
class Life(Case):
    limit = 7200 if LONG else 120
    larger = True
    CALLS = 1000
    SEEDS = 170 if LONG else 3

    def compare(self, first, ways, *more, calls=CALLS):
        for seed in range(first, first + self.SEEDS):
            words = [example("life"), str(seed), str(calls), *more]
            status, expected = bare(*words)
            self.assertIn("\nend ", expected)
            for way in ways:
                done = subprocess.run([ULPF, *WAYS[way], "--", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE)
                with self.subTest(seed=seed, way=way):
                    self.assertMultiLineEqual(done.stdout, expected, done.stderr[-2000:])
                    self.assertEqual(done.returncode, status, done.stderr[-2000:])

    def test_heap(self):
        """With mappings of a file beside watched memory."""
        self.compare(1, ["check", "heap", "heap, read and written"])
    test_heap.costs = "the oracle of life: three programs of a thousand random calls, each in three ways"

    def test_heap_of_threads(self):
        self.compare(1001, ["check", "heap", "heap, read and written"], "3", calls=200)

    def test_area(self):
        """The memory of the calls is itself watched."""
        self.compare(2001, ["area", "area and heap", "last writers", "two bytes"], "0", "plain")

    def test_a_limit_of_data(self):
        """RLIMIT_DATA covers what the program allocates, none of the tables of ulpf."""
        status, expected = bare(example("data_limit"))
        self.assertEqual(expected, "large: yes, brk: yes\n")
        for way in ("check", "heap", "heap, read and written"):
            done = subprocess.run([ULPF, *WAYS[way], "--", example("data_limit")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE)
            with self.subTest(way=way):
                self.assertEqual((done.stdout, done.returncode), (expected, status), done.stderr)
