"""A debugger that stops the program all the time: no wait of the program's ends early or with EINTR."""

import subprocess
import time

from lib.cases import Case
from lib.env import bare, example, ulpf_only
from lib.rsp import Rsp


class UnseenStops(Case):
    STOPS = 150

    def run_with(self, at_each=lambda rsp, n: None):
        """A stop every 10 ms or so, until there were enough of them."""
        expected = bare(example("timed_waits"))
        self.assertEqual(expected, (0, "timed_waits: 0 odd, 0 early, some rounds\n"))
        server = self.serve("timed_waits", "600")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        rsp("qSupported:swbreak+")
        rsp("QPassSignals:e;17")
        for stop in range(1, self.STOPS + 1):
            rsp.raw(b"$vCont;c#a8")
            time.sleep(0.01)  # The program runs: that is the load.
            rsp.raw(b"\x03")
            self.assertEqual(self.stopped(rsp)[:3], b"T02")
            at_each(rsp, stop)
        self.assertEqual(rsp(f"M{self.at('enough'):x},1:01"), b"OK")
        rsp.raw(b"$vCont;c#a8")
        self.assertEqual(self.stopped(rsp)[:3], b"W00")
        rsp.close()
        server.wait()
        self.assertEqual(server.stdout(), expected[1])

    def stopped(self, rsp):
        while (reply := rsp.reply())[:1] == b"O":
            pass
        return reply

    def at(self, variable):
        symbols = subprocess.run(["nm", example("timed_waits")], stdout=subprocess.PIPE, text=True, check=True).stdout
        return 0x555555554000 + next(int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(f" {variable}"))

    def test_stops(self):
        self.run_with()

    @ulpf_only
    def test_watches_that_come_and_go(self):
        """Each new watch makes the waiting calls begin again."""
        at = self.at("watched") + 2000
        self.run_with(lambda rsp, n: self.assertEqual(rsp(f"{'Z' if n % 2 else 'z'}2,{at:x},8"), b"OK"))
