"""The bridge into a machine of its own: `ulpf server` there, with the stub on the kernel module, and another one out here
with gdb, over a forwarded TCP port and over a port of virtio-serial; servers that come and go, a machine that dies. And
a machine from outside: its whole kernel, at QEMU's own remote port."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

from lib import vm
from lib.cases import Case
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.guest import Guest
from lib.plugin import LOADER
from lib.rsp import Rsp

PORT = "/dev/vport0p1"
TCP = "0.0.0.0:9000"


def answered(place, patience=60):
    """A client of the remote port there. A port forwarder accepts connections before anything listens behind it."""
    end = time.monotonic() + patience * PATIENCE
    while True:
        rsp = None
        try:
            rsp = Rsp(place, seconds=5)
            if rsp("?").startswith(b"T"):
                return rsp
        except OSError:
            pass
        if rsp:
            rsp.close()
        if time.monotonic() > end:
            raise AssertionError(f"nothing answers at {place}")
        time.sleep(0.2)


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
        """`ulpf server` in the guest; where it is to be reached from here."""
        # There is no shell.
        self.guest.start("/ulpf", "server", "--no-startup-with-shell", "--backend", backend, at, example(program[0]), *program[1:])
        place = self.guest.port if at == PORT else f"127.0.0.1:{self.guest.forwarded}"
        answered(place).close()
        return place

    def over(self, place, program="five", stop="ready"):
        """gdb, at a server out here."""
        server = self.serve(options=["--backend", f"rsp:{place}"])
        gdb = self.gdb()
        gdb("set remotetimeout 60")
        gdb(f"file {example(program)}")
        self.assertSays(gdb(f"target remote {server.target}"), r"Remote debugging using")
        gdb(f"tbreak {stop}")
        self.assertSays(gdb("continue"), rf"{stop} \(")
        return server, gdb

    def ended(self):
        """Output of the server there, after it has ended by itself."""
        status, out, err = self.guest.ended()
        print(out, err)
        return status, out, err

    def test_tcp_with_the_kernel_module(self):
        """gdb's own watches, the plugin's conditions in the program, `ulpf top` out here; then the program's end."""
        place = self.offer(TCP, "five")
        server, gdb = self.over(place)
        # The stub there speaks for itself, once it has a watch.
        answer = lambda: json.loads(gdb("monitor ulpf about;ulpf stats;ulpf backend").strip().splitlines()[-1])
        gdb("watch a")
        gdb("watch unwatched[5]")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        self.assertIn("/dev/ulpf is there", answer()["why"])
        gdb("delete")
        gdb(f"source {LOADER}")
        gdb("ulpf watch e if $new > 50 log")
        gdb("ulpf watch unwatched[5] if $new > 70")
        self.assertSays(gdb("continue"), r"Ulpf watch 2: unwatched\[5\]\n\nOld value = 5\nNew value = 74")
        self.assertSays(gdb("ulpf log show"), r"#1 (write |update) e: 50 → 51  main\+0x\w+ at five")
        # Counters of the stub there, in the area of the server here.
        top = subprocess.run([ULPF, "top", "--plain", "--count", "1", "--pid", str(server.process.pid)], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertSays(top.stdout, r"five", r"unwatched")
        gdb("ulpf delete")
        self.assertSays(gdb("continue"), r"exited normally")
        status, out, err = self.ended()
        self.assertEqual((status, out), (0, "five: done\n"))

    def test_a_port_of_virtio_serial(self):
        """Servers come and go, one of them killed in the middle of a run; the program stays."""
        place = self.offer(PORT, "spin")
        server = self.serve(options=["--backend", f"rsp:{place}"])
        rsp = Rsp(server.target, seconds=60)
        rsp.no_ack()
        self.assertRegex(rsp("?"), rb"^T05thread:")
        rsp.raw(b"$vCont;c#a8")
        time.sleep(1)  # The program runs: that is the load.
        server.process.send_signal(signal.SIGKILL)
        server.wait()
        rsp.close()
        # The next client finds it stopped.
        for _ in range(2):
            again = answered(place, patience=30)
            self.assertGreater(len(again("g")), 2 * 164)
            again.close()
        last = answered(place, patience=30)
        self.addCleanup(last.close)
        last.raw(b"$k#6b")
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


@ulpf_only
class WholeKernel(Case):
    """QEMU's remote port has the machine, not a program: any variable of the kernel can be watched."""

    limit = 240
    VARIABLES = ("total_forks", "nr_threads", "jiffies_64", "panic_timeout", "system_state", "pid_max")

    def test_more_watches_than_registers(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-test-")
        self.addCleanup(folder.cleanup)
        port = os.path.join(folder.name, "gdb")
        try:
            guest = Guest([], files=["/bin/grep", "/bin/true"], limit=self.limit - 20, more=["-gdb", f"unix:{port},server=on,wait=off"])
        except vm.Unavailable as why:
            self.skipTest(str(why))
        self.addCleanup(guest.close)
        patterns = [word for name in self.VARIABLES for word in ("-e", f" {name}$")]
        _, found, _ = guest.run("/bin/grep", *patterns, "/proc/kallsyms")
        known = {name: int(address, 16) for address, name in re.findall(r"^(\w+) \w (\w+)$", found, re.M)}
        self.assertEqual(set(known), set(self.VARIABLES))
        server = self.serve(options=["--backend", f"rsp:{port}"])
        gdb = self.gdb()
        gdb("set remotetimeout 60")
        gdb("set architecture i386:x86-64")
        self.assertSays(gdb(f"target remote {server.target}"), r"Remote debugging using")
        self.assertSays(gdb("monitor ulpf backend"), r"rsp: a remote stub", r"as many as the remote stub has")
        # Five watches that do not fire, and the one that does, when a process begins: more than a processor has registers.
        for name in self.VARIABLES:
            if name != "jiffies_64":
                self.assertSays(gdb(f"watch *(unsigned int *) {known[name]:#x}"), r"Hardware watchpoint")
        before = gdb.value(f"*(unsigned int *) {known['total_forks']:#x}")
        gdb.send("continue")
        guest.start("/bin/true")
        said = gdb.answer(60)
        while f"{known['total_forks']:#x}" not in said:
            said = gdb("continue", 60)
        self.assertSays(said, rf"Old value = {before}\n", rf"New value = {before + 1}\n")
        gdb("delete")
        # A condition, which this server evaluates at every tick of the machine's clock.
        self.assertIn('{"watch":', gdb(f"monitor ulpf watch {known['jiffies_64']:#x} 8 w stop log skip 20"))
        self.assertSays(gdb("continue", 60), r"SIGTRAP|received signal")
        self.assertSays(gdb("monitor ulpf stats"), r'"hits":21,.*"filtered":20,.*"stops":1')
        self.assertSays(gdb("monitor ulpf log"), r'"watch":')
        # The kernel goes on as if nothing had been.
        self.assertSays(gdb("detach"), r"detached")
        self.assertEqual(guest.ended()[0], 0)
