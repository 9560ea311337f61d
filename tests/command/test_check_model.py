"""`ulpf check` beside a model: programs allocate, free and access at random, with deliberate errors, and list these.
`ulpf check` must find each error, with its kind, place and count, and nothing else.

`tests/heap-model` does the same for a given number of accesses (a part of `make soak`).
"""

import subprocess
import tempfile
import unittest

from lib import heap_model
from lib.env import PATIENCE, example, needs, ulpf_only
from lib.heap_model import MIB


@ulpf_only
class Model(unittest.TestCase):
    limit = 200

    def agree(self, program, seed, threads, **more):
        verdict = heap_model.run(program, seed, threads, **more)
        self.assertEqual(verdict.differences, [])
        self.assertGreater(verdict.errors()[0], 50)
        self.assertGreaterEqual(verdict.accesses, more.get("accesses", 100_000))

    def test_one_thread(self):
        for seed in 1, 2:
            self.agree(example("heap_model"), seed, 1, accesses=100_000)

    def test_four_threads(self):
        for seed in 3, 4:
            self.agree(example("heap_model"), seed, 4, accesses=100_000)

    def test_under_signals(self):
        for threads in 1, 4:
            self.agree(example("heap_model"), 15, threads, accesses=100_000, signals=True)

    def test_new_and_delete(self):
        for seed, threads in (5, 1), (6, 4):
            self.agree(example("heap_model_new"), seed, threads, accesses=100_000)

    def test_blocks_that_are_used_again_soon(self):
        self.agree(example("heap_model"), 7, 4, quarantine=MIB, accesses=100_000)

    def test_a_larger_gap(self):
        self.agree(example("heap_model"), 8, 2, options=["--gap", "256"])
        self.agree(example("heap_model"), 8, 2, options=["--gap", "16..512"])

    def test_older_processors(self):
        """Other functions of the C library."""
        for without in "-AVX2,-Prefer_No_VZEROUPPER,-BMI2", "-AVX512F,-AVX512VL":
            with self.subTest(without):
                self.agree(example("heap_model"), 9, 2, env={"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={without}"})

    def of(self, seed, *flags, compiler="cc"):
        with tempfile.TemporaryDirectory(prefix="ulpf-model-") as folder:
            self.agree(heap_model.built(folder, *flags, compiler=compiler), seed, 4, overlaps="-static" not in flags)

    def test_static(self):
        self.of(10, "-static")

    @needs("musl-gcc")
    def test_musl(self):
        self.of(11, compiler="musl-gcc")
        self.of(12, "-static", compiler="musl-gcc")

    def test_it_notices(self):
        """A model that is wrong about the quarantine differs from what is found; so does one more error, and one less."""
        try:
            differences = heap_model.run(example("heap_model"), 13, 1, accesses=200_000, quarantine=0, believed=256 * MIB).differences
        except AssertionError as said:  # The model's own block has been written to.
            differences = [said]
        self.assertNotEqual(differences, [])
        right = heap_model.run(example("heap_model"), 13, 1, accesses=200_000)
        self.assertEqual(right.differences, [])
        right.found["store8", "outside"] += 1
        del right.found["store1", "outside"]
        self.assertEqual([line.split(":")[0] for line in right.compare({})], ["store1 outside", "store8 outside"])

    def test_alone(self):
        """Without errors it runs by itself, and its blocks keep what is stored in them."""
        for program in "heap_model", "heap_model_new":
            done = subprocess.run([example(program), "14", "4", "300000", "0", "0"], capture_output=True, text=True, timeout=100 * PATIENCE)
            self.assertEqual((done.returncode, done.stderr, done.stdout.split()[:1]), (0, "", ["accesses"]))


if __name__ == "__main__":
    unittest.main()
