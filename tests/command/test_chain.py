"""Threads that race for the same bytes: the old value of each hit is the new value of the one before."""

import unittest

from lib.env import ulpf_only
from lib.run import Json

THREADS = 4
# Watched, hits of one store.
MODES = {
    "locked": ("cell.number", 1),
    "plain": ("cell.number", 1),
    "unlocked": ("cell.number", 1),
    "exchange": ("cell.number", 1),
    "halves": ("cell.number", 1),
    "vector": ("cell.wide", 1),
    "string": ("cell.text[0..24]", 24),
}


@ulpf_only
class Chain(unittest.TestCase):
    limit = 200

    def chain(self, mode, stores, *options):
        watched, each = MODES[mode]
        said = Json([watched], "chain", mode, str(THREADS), str(stores), options=["--placement=guard", *options], seconds=150)
        self.assertEqual(said.status, 0, said.err)
        return said, each * THREADS * stores

    def check(self, mode, stores, *options):
        said, count = self.chain(mode, stores, *options)
        self.assertEqual(len(said.hits), count)
        memory = {}
        for n, hit in enumerate(said.hits):
            at = int(hit["addr"], 16)
            old, new = (bytes.fromhex(hit[key]) for key in ("old_bytes", "new_bytes"))
            before = bytes(memory.get(at + i, old[i]) for i in range(len(old)))
            self.assertEqual(before, old, f"{mode}, hit {n}: {hit}")
            memory.update({at + i: byte for i, byte in enumerate(new)})

    def test_patched(self):
        for mode in MODES:
            with self.subTest(mode):
                self.check(mode, 500 if mode == "string" else 20_000)

    def test_by_faults(self):
        for mode in MODES:
            with self.subTest(mode):
                self.check(mode, 100 if mode == "string" else 2_000, "--no-patch")
