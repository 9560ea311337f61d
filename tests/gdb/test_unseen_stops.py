"""A debugger that stops the program all the time: no wait of the program's ends early or with EINTR."""

import subprocess
import time

from lib.cases import Case
from lib.env import bare, example, ulpf_only
from lib.rsp import Rsp


class UnseenStops(Case):
    def run_with(self, work):
        expected = bare(example("naps"))
        self.assertEqual(expected, (0, "naps: 0 odd, 0 early, some rounds\n"))
        server = self.serve("naps")
        with_us = Rsp(server.target)
        with_us.no_ack()
        with_us("qSupported:swbreak+")
        with_us("QPassSignals:e;17")
        stops = work(with_us)
        self.assertGreater(stops, 20)
        server.wait()
        self.assertEqual(server.stdout(), expected[1])

    def go(self, rsp, at_each=lambda n: None):
        """Runs the program to its end, with a stop every 10 ms; how many."""
        stops = 0
        while True:
            rsp.raw(b"$vCont;c#a8")
            time.sleep(0.01)
            rsp.raw(b"\x03")
            while (reply := rsp.reply())[:1] == b"O":
                pass
            if reply[:1] in b"WX":
                self.assertEqual(reply[:3], b"W00")
                rsp.close()
                return stops
            stops += 1
            at_each(stops)

    def test_stops(self):
        self.run_with(self.go)

    @ulpf_only
    def test_watches_that_come_and_go(self):
        """Each new watch makes the waiting calls begin again."""
        symbols = subprocess.run(["nm", example("naps")], stdout=subprocess.PIPE, text=True, check=True).stdout
        offset = next(int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" watched"))
        at = 0x555555554000 + offset

        def work(rsp):
            def change(n):
                packet = f"{'Z' if n % 2 else 'z'}2,{at + 2000:x},8"
                self.assertEqual(rsp(packet), b"OK")
            return self.go(rsp, change)
        self.run_with(work)
