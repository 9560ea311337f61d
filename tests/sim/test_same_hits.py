"""One program, one file, several back ends: the same hits in the same order."""

import os
import re
import struct
import subprocess
import unittest

from lib import vm
from lib.bridge import GEM5, SIM, needs_gem5, static
from lib.cases import Case
from lib.env import ulpf_only
from lib.guest import Guest, GuestServer
from lib.rsp import Rsp

# Each once: variable, its bytes, Z packet.
WATCHES = {
    "five": [("a", 4, 2), ("b", 4, 2), ("d", 4, 4), ("e", 4, 2), ("unwatched", 4, 2)],
    # (Reads that are followed by a stop of their own are in test_sim.)
    "alone": [("cells", 40000, 2), ("buf", 64, 2)],
}


def symbols(path):
    out = subprocess.run(["nm", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {words[2]: int(words[0], 16) for line in out.splitlines() if len(words := line.split()) == 3}


@ulpf_only
class SameHits(Case):
    def hits(self, name, *options):
        """(PC behind the access, kind, address, value there) of each stop, and how it ended."""
        return self.talk(name, self.serve(static(name), options=list(options)), options)

    def talk(self, name, server, options):
        known = symbols(static(name))
        rsp = Rsp(server.target, seconds=60)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        rsp("qSupported:swbreak+;hwbreak+")
        ready = known["ready"]
        self.assertEqual(rsp(f"Z0,{ready:x},1"), b"OK")
        self.assertRegex(rsp("vCont;c"), rb"^T05")
        self.assertEqual(rsp(f"z0,{ready:x},1"), b"OK")
        for variable, length, kind in WATCHES[name]:
            self.assertEqual(rsp(f"Z{kind},{known[variable]:x},{length:x}"), b"OK", f"{variable}: {options}")
        seen = []
        while (stop := self.go_on(rsp))[:1] == b"T":
            match = re.search(rb"(a?watch):([0-9a-f]+);", stop)
            self.assertTrue(match, stop)
            address = int(match.group(2), 16)
            # The watch that it is of, and all of its first bytes: back ends may name any byte of the access.
            variable, length, _ = next(w for w in WATCHES[name] if 0 <= address - known[w[0]] < w[1])
            value = rsp(f"m{known[variable]:x},{min(length, 512):x}")
            pc = struct.unpack_from("<Q", bytes.fromhex(rsp("g").decode()[:2 * 17 * 8]), 16 * 8)[0]
            seen.append((hex(pc), match.group(1).decode(), variable, value.decode()))
        rsp.close()  # a guest's serial line has one client at a time
        return seen, stop[:3]

    @staticmethod
    def go_on(rsp):
        """The next stop reply; console output before it is skipped."""
        stop = rsp("vCont;c")
        while stop[:1] == b"O" and len(stop) % 2:
            stop = rsp.reply()
        return stop

    def same(self, name):
        signal = self.hits(name, "--backend", "signal", "--no-patch")
        self.assertGreaterEqual(len(signal[0]), 3)
        self.assertEqual(self.hits(name, "--backend", "signal"), signal, "patched")
        return signal

    def compare(self, *options):
        for name in WATCHES:
            with self.subTest(name):
                self.assertEqual(self.hits(name, *options), self.same(name))

    def test_patches_change_nothing(self):
        for name in WATCHES:
            with self.subTest(name):
                self.same(name)

    @unittest.skipUnless(os.path.exists(SIM), "ulpf-sim is not built (`make sim`)")
    def test_the_simulated_processor(self):
        self.compare("--backend", "sim")

    def test_the_stub_behind_the_bridge(self):
        """With another server between them, as between a debugger's side and a guest."""
        for name in WATCHES:
            inner = self.serve(static(name))
            server = self.serve(options=["--backend", f"rsp:{inner.target}"])
            with self.subTest(name):
                self.assertEqual(self.talk(name, server, "the bridge"), self.same(name))

    def test_the_kernel_module(self):
        native = {name: self.same(name) for name in WATCHES}
        try:
            guest = Guest([], files=[static(name) for name in WATCHES])
        except vm.Unavailable as why:
            self.skipTest(str(why))
        self.addCleanup(guest.close)
        for name in WATCHES:
            server = GuestServer(guest, static(name), options=["--backend", "kernel"])
            try:
                with self.subTest(name):
                    self.assertEqual(self.talk(name, server, "the kernel module"), native[name])
            finally:
                server.close()

    test_the_kernel_module.limit = 240

    @needs_gem5
    def test_gem5(self):
        self.compare("--backend", "gem5", "--gem5", GEM5)
