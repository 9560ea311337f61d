"""Remote ports as back ends of the bridge: `ulpf bridge` before our own stub, and gem5's."""

import os
import subprocess

from lib.bridge import static
from lib.cases import Case
from lib.env import ROOT, ULPF, ulpf_only
from lib.rsp import Rsp

GEM5 = os.path.join(ROOT, "tests", "sim", "gem5_stand_in.py")


@ulpf_only
class Offered(Case):
    def offered(self, *program):
        """The place of an `ulpf bridge` whose remote port is a server with the stub."""
        inner = self.serve(*program)
        place = os.path.join(inner.dir.name, "bridge")
        bridge = subprocess.Popen([ULPF, "bridge", place, inner.target], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(bridge.communicate)
        self.addCleanup(bridge.kill)
        self.assertIn("Listening on", bridge.stderr.readline())
        return place, inner

    def test_the_plugin_over_the_bridge(self):
        place, _ = self.offered(static("five"))
        done = subprocess.run([ULPF, "gdb", "--backend", f"bridge:{place}", "-nx", "-q", "-batch", "-ex", "tbreak ready",
                               "-ex", "continue", "-ex", "ulpf watch a if $new > 11", "-ex", "continue",
                               "-ex", "ulpf info watches", "-ex", "kill", static("five")], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertSays(done.stdout, r"Ulpf watch 1: a", r"(?s)Old value = 11.*New value = 12", r"puts")

    def test_the_stub_behind_the_bridge(self):
        program = static("five")
        place, inner = self.offered(program)
        server = self.serve(options=["--backend", f"bridge:{place}"])
        gdb = self.gdb()
        gdb(f"file {program}")
        gdb(f"target remote {server.target}")
        gdb("tbreak ready")
        self.assertSays(gdb("continue"), r"Temporary breakpoint 1, ready")
        for name in "abcde":
            gdb(f"watch {name}")
        for number, (name, old, new) in enumerate(
                [("a", 10, 11), ("b", 20, 21), ("c", 30, 31), ("d", 40, 41), ("e", 50, 51)], start=2):
            self.assertChange(gdb("continue"), number, name, old, new)
        gdb("next")
        gdb("set var a = 5")
        self.assertEqual(gdb.value("a"), 5)
        self.assertSays(gdb("monitor ulpf backend"), r"rsp: the remote port at")
        # Commands that the bridge does not know go to the stub.
        self.assertSays(gdb("monitor ulpf patch"), r"patch")
        gdb("delete")
        self.assertSays(gdb("continue"), r"exited normally")
        self.assertIn("five: done", inner.stdout())

    def test_nothing_behind_it(self):
        done = subprocess.run([ULPF, "bridge", ":0", "127.0.0.1:1"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, timeout=30)
        self.assertEqual(done.returncode, 1)
        self.assertSays(done.stderr, r"127.0.0.1:1 cannot be reached: .*Start `ulpf server` there first")


@ulpf_only
class Gem5(Case):
    """The proxy, with a stand-in that answers as gem5 does. (test_same_hits has the real one, where there is one.)"""

    def options(self, gem5=GEM5):
        return ["--backend", "gem5", "--gem5", gem5]

    def test_watches_by_monitor_commands(self):
        server = self.serve("/bin/true", options=self.options())
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        self.assertRegex(rsp("?"), rb"^T05thread:1;")
        registers = rsp("g")
        self.assertEqual((len(registers), registers[256:272], registers[328:332]), (1120, b"0010000000000000", b"xxxx"))
        self.assertEqual(rsp("Z2,2000,4"), b"OK")
        self.assertRegex(rsp("Z2,10,4"), rb"^E.The remote port refuses this: 4 bytes at 0x10 cannot be watched")
        self.assertEqual(rsp("Z0,1000,1"), b"OK")
        self.assertEqual(rsp("m2000,4"), b"00000000")
        self.assertIn("instructions 7", rsp.monitor("ulpf stats"))
        self.assertIn('"faults":1', rsp.monitor("ulpf stats json"))
        self.assertIn("gem5: ", rsp.monitor("ulpf backend"))
        # The port says which byte (0x2002); values, read afterwards, are of the whole watch.
        self.assertRegex(rsp("vCont;c"), rb"^T05thread:1;.*10:0410000000000000;watch:2000;$")
        self.assertEqual(rsp("vCont;c"), b"W03")

    def test_what_was_done_to_a_watch(self):
        server = self.serve("/bin/true", options=self.options())
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        self.assertIn('{"watch":', rsp.monitor("ulpf watch 0x2000 4 w stop"))
        self.assertRegex(rsp("vCont;c"), rb"^T05thread:1;")
        # The write has read, too.
        self.assertIn('"access":"update"', rsp.monitor("ulpf stop"))

    def test_a_step_and_an_end(self):
        server = self.serve("/bin/true", options=self.options())
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        self.assertRegex(rsp("vCont;s:1"), rb"^T05thread:1;.*10:0410")
        rsp.raw(b"$k#6b")
        server.wait()

    def refused(self, *words, options):
        server = self.serve(*words, options=options, wait=False)
        self.assertEqual(server.wait(), 1)
        return server.said

    def test_without_gem5(self):
        self.assertSays(self.refused("/bin/true", options=self.options("/nowhere/gem5.opt")),
                        r"There is no gem5 at /nowhere/gem5.opt\. sim-bridge/gem5/README.md")
        if not any(os.path.exists(os.path.join(folder, "gem5.opt")) for folder in os.environ["PATH"].split(":")):
            self.assertSays(self.refused("/bin/true", options=["--backend", "gem5"]),
                            r'The backend "gem5" needs gem5, and there is no gem5.opt in PATH')
        self.assertSays(self.refused("/bin/true", "dies", options=self.options()),
                        r"this is no gem5", r"gem5 has ended \(exit status: 1\) before its remote port")
        self.assertSays(self.refused("/bin/true", options=["--gem5", GEM5]), r"--gem5 goes with --backend gem5")
