"""The bridge into a machine of its own: `ulpf bridge` there, with the stub on the kernel module, gdb out here, over
a forwarded TCP port and over a port of virtio-serial; front ends that come and go, a machine that dies."""

import json
import signal
import subprocess
import time

from lib import vm
from lib.bridge import Front
from lib.cases import Case
from lib.env import ULPF, example, ulpf_only
from lib.guest import Guest
from lib.plugin import LOADER
from lib.rsp import Rsp, wait_until

PORT = "/dev/vport0p1"
TCP = "0.0.0.0:9000"


@ulpf_only
class Bridged(Case):
    """Each has a machine of its own."""

    limit = 300

    def setUp(self):
        super().setUp()
        try:
            self.guest = Guest(["five", "threads16", "spin"], limit=self.limit - 20, bridged=True)
        except vm.Unavailable as why:
            self.skipTest(str(why))
        self.addCleanup(self.guest.close)

    def offer(self, at, *program, backend="kernel"):
        """`ulpf bridge` in the guest; where it is to be reached from here."""
        self.guest.start("/ulpf", "bridge", at, "--backend", backend, "--", example(program[0]), *program[1:])
        place = self.guest.port if at == PORT else f"127.0.0.1:{self.guest.forwarded}"
        # A front end that connects before it listens gets no answer.
        Front(place, patient=60).close()
        return place

    def over(self, place, program="five", stop="ready"):
        """gdb, at a front end out here."""
        server = self.serve(options=["--backend", f"bridge:{place}"])
        gdb = self.gdb()
        gdb("set remotetimeout 60")
        gdb(f"file {example(program)}")
        self.assertSays(gdb(f"target remote {server.target}"), r"Remote debugging using")
        gdb(f"tbreak {stop}")
        self.assertSays(gdb("continue"), rf"{stop} \(")
        return server, gdb

    def ended(self):
        """Output of `ulpf bridge`, after it has ended by itself."""
        status, out, err = self.guest.ended()
        print(out, err)
        return status, out, err

    def test_tcp_with_the_kernel_module(self):
        """gdb's own watches, the plugin's conditions in the program, `ulpf top` out here; then the program's end."""
        place = self.offer(TCP, "five")
        server, gdb = self.over(place)
        # The stub there speaks for itself, once it has a watch.
        told = lambda: json.loads(gdb("monitor ulpf about;ulpf stats;ulpf backend").strip().splitlines()[-1])
        gdb("watch a")
        gdb("watch unwatched[5]")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        self.assertIn("/dev/ulpf is there", told()["why"])
        gdb("delete")
        gdb(f"source {LOADER}")
        gdb("ulpf watch e if $new > 50 log")
        gdb("ulpf watch unwatched[5] if $new > 70")
        self.assertSays(gdb("continue"), r"Ulpf watch 2: unwatched\[5\]\n\nOld value = 5\nNew value = 74")
        self.assertSays(gdb("ulpf log show"), r"#1 (write |update) e: 50 → 51  main\+0x\w+ at five")
        # Counters of the stub there, in the area of the front end here.
        top = subprocess.run([ULPF, "top", "--plain", "--count", "1", "--pid", str(server.process.pid)], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertSays(top.stdout, r"five", r"unwatched")
        gdb("ulpf delete")
        self.assertSays(gdb("continue"), r"exited normally")
        status, out, err = self.ended()
        self.assertEqual((status, out), (0, "five: done\n"))

    def test_a_port_of_virtio_serial(self):
        """Front ends come and go: one says goodbye, one is killed in the middle of a run; the program stays."""
        place = self.offer(PORT, "spin")
        server = self.serve(options=["--backend", f"bridge:{place}"])
        rsp = Rsp(server.target, seconds=60)
        rsp.no_ack()
        self.assertRegex(rsp("?"), rb"^T05thread:")
        rsp.raw(b"$vCont;c#a8")
        time.sleep(1)  # The program runs: that is the load.
        server.process.send_signal(signal.SIGKILL)
        server.wait()
        rsp.close()
        # The next front end finds it stopped, or ended.
        front = Front(place, patient=30)
        self.addCleanup(front.close)
        self.assertEqual(front.hello["backend"], "rsp")
        front("interrupt")
        self.assertTrue(wait_until(lambda: front("status")["state"] == "stopped", 30))
        session = front.hello["session"]
        front.close()
        again = Front(place, patient=30)
        self.addCleanup(again.close)
        self.assertEqual(again.hello["session"], session)
        again("kill")
        status, _, err = self.ended()
        self.assertEqual(status, 0, err)

    def dies(self, at):
        place = self.offer(at, "spin")
        _, gdb = self.over(place, program="spin", stop="turn")
        gdb("delete")
        gdb.send("continue")
        time.sleep(1)  # The program runs: that is the load.
        self.guest.pull_the_plug()
        self.assertSays(gdb.answer(30), r"The connection to the back end is lost: ")
        self.assertSays(gdb("info threads"), r"No threads")

    def test_a_machine_that_dies(self):
        """In the middle of a run: the debugger has its prompt back within seconds, and the reason."""
        self.dies(TCP)

    def test_a_machine_behind_a_port_that_dies(self):
        self.dies(PORT)
    test_a_machine_behind_a_port_that_dies.night = "one machine that dies is enough for a day"
