"""Threads that race for the same bytes: the old value of each hit is the new value of the one before, or the hit says that
it may not be."""

import csv
import os
import subprocess
import tempfile
import unittest

from lib.env import LONG, ULPF, ulpf_only
from lib.run import Json, run

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
    "kernel": ("cell.number", 1),
}


class Memory:
    """Memory as the hits of a log leave it, in their order."""

    def __init__(self):
        self.bytes = {}
        self.unchained = self.hits = 0

    def hit(self, addr, old, new, unchained, what):
        if not unchained:
            before = bytes(self.bytes.get(addr + i, byte) for i, byte in enumerate(old))
            if before != old:
                raise AssertionError(f"hit {self.hits} finds {old.hex()}, and {before.hex()} was left there: {what}")
        self.bytes.update({addr + i: byte for i, byte in enumerate(new)})
        self.unchained += unchained
        self.hits += 1


@ulpf_only
class Chain(unittest.TestCase):
    limit = 900

    def chain(self, mode, stores, *options):
        watched, each = MODES[mode]
        said = Json([watched], "chain", mode, str(THREADS), str(stores), options=["--placement=guard", *options], seconds=150)
        self.assertEqual(said.status, 0, said.err)
        return said, each * THREADS * stores

    def check(self, mode, stores, *options):
        said, count = self.chain(mode, stores, *options)
        self.assertEqual(len(said.hits), count)
        memory = Memory()
        for hit in said.hits:
            old, new = (bytes.fromhex(hit[key]) for key in ("old_bytes", "new_bytes"))
            memory.hit(int(hit["addr"], 16), old, new, hit.get("unchained", False), f"{mode}: {hit}")
        if mode != "kernel":
            self.assertEqual(memory.unchained, 0)
            return
        # The kernel's own all say so; of the others those that were made meanwhile, which on a busy machine may be all.
        by_kernel = [hit for hit in said.hits if "syscall" in hit]
        self.assertEqual(len(by_kernel), 2 * stores)
        self.assertTrue(all(hit["unchained"] for hit in by_kernel))

    def test_patched(self):
        for mode in MODES:
            with self.subTest(mode):
                self.check(mode, (500 if mode == "string" else 20_000) // (1 if LONG else 4))
    test_patched.larger = True

    def test_by_faults(self):
        for mode in MODES:
            with self.subTest(mode):
                self.check(mode, 100 if mode == "string" else 2_000, "--no-patch")

    def test_debug_registers_do_not_promise_it(self):
        """They report an access when it has been made."""
        said = Json(["cell.number"], "chain", "locked", "2", "200", options=["--placement=debug-register"])
        self.assertEqual(said.status, 0, said.err)
        self.assertTrue(all(hit.get("unchained") for hit in said.hits if said.summary["watches"][0]["placement"] == "debug-register"))

    def test_one_thread_is_a_chain_by_itself(self):
        """Also where the kernel writes in between."""
        said = Json(["cell.number"], "chain", "kernel", "1", "200", options=["--placement=guard"])
        self.assertEqual(said.status, 0, said.err)
        self.assertEqual(len(said.hits), 200)

    def test_eight_threads(self):
        """From the compact log; ten million hits with --long."""
        for mode in "locked", "halves", "kernel":
            stores = 1_250_000 if LONG and mode == "locked" else 15_000
            with self.subTest(mode), tempfile.TemporaryDirectory() as folder:
                log = os.path.join(folder, "hits.ulpf")
                status, _, err = run(["cell.number"], "chain", mode, "8", str(stores),
                                     options=["--placement=guard", "--log", log, "--log-policy=lossless"], seconds=500)
                self.assertEqual(status, 0, err)
                memory = Memory()
                with subprocess.Popen([ULPF, "log", log, "--format", "csv"], stdout=subprocess.PIPE, text=True) as reader:
                    for row in csv.DictReader(reader.stdout):
                        old, new = (bytes.fromhex(row[key]) for key in ("old_bytes", "new_bytes"))
                        memory.hit(int(row["addr"], 16), old, new, row["unchained"] == "true", f"{mode}: {row}")
                self.assertEqual((reader.returncode, memory.hits), (0, 8 * stores))
                if mode != "kernel":
                    self.assertEqual(memory.unchained, 0)
