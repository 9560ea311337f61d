"""Remote ports as back ends of the bridge: our own server's, gdbserver's, and gem5's."""

import os
import re
import subprocess

from lib.bridge import static
from lib.cases import Case
from lib.env import PATIENCE, ROOT, ULPF, needs, ulpf_only
from lib.rsp import Rsp, frame, wait_until

from .test_same_hits import symbols

GEM5 = os.path.join(ROOT, "tests", "sim", "gem5_stand_in.py")


@ulpf_only
class Servers(Case):
    """Servers that have a program: ours with the stub in it, which serves all of ulpf's commands itself, and gdbserver."""

    def test_the_plugin(self):
        inner = self.serve(static("five"))
        done = subprocess.run([ULPF, "gdb", "--backend", f"rsp:{inner.target}", "-nx", "-q", "-batch", "-ex", "tbreak ready",
                               "-ex", "continue", "-ex", "ulpf watch a if $new > 11", "-ex", "continue",
                               "-ex", "ulpf info watches", "-ex", "kill", static("five")], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertSays(done.stdout, r"Ulpf watch 1: a", r"(?s)Old value = 11.*New value = 12", r"puts")

    def five(self, inner, gdb, program):
        """More watches than registers, and the memory of the program."""
        gdb(f"file {program}")
        gdb(f"target remote {self.serve(options=['--backend', f'rsp:{inner.target}']).target}")
        gdb("tbreak ready")
        self.assertSays(gdb("continue"), r"Temporary breakpoint 1, ready")

    def test_our_own(self):
        program = static("five")
        inner, gdb = self.serve(program), self.gdb()
        self.five(inner, gdb, program)
        for name in "abcde":
            gdb(f"watch {name}")
        for number, (name, old, new) in enumerate(
                [("a", 10, 11), ("b", 20, 21), ("c", 30, 31), ("d", 40, 41), ("e", 50, 51)], start=2):
            self.assertChange(gdb("continue"), number, name, old, new)
        gdb("next")
        gdb("set var a = 5")
        self.assertEqual(gdb.value("a"), 5)
        # All commands go to the stub.
        self.assertSays(gdb("monitor ulpf backend"), r'"backend":"')
        self.assertSays(gdb("monitor ulpf patch"), r"patch")
        gdb("delete")
        self.assertSays(gdb("continue"), r"exited normally")
        self.assertIn("five: done", inner.stdout())

    def test_counts_of_our_own(self):
        """Counts and hits of the stub, in the area of the server in between, also while the program runs."""
        inner = self.serve(static("alone"), "spin")
        server = self.serve(options=["--backend", f"rsp:{inner.target}"])
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        rounds = symbols(static("alone"))["rounds"]
        self.assertIn('{"watch":0}', rsp.monitor(f"ulpf watch {rounds:#x} 4 w log"))
        rsp.raw(frame("vCont;c"))

        def says(pattern, *words):
            said = subprocess.run([ULPF, *words, "--pid", str(server.process.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=60).stdout
            return re.search(pattern, said)
        self.assertTrue(wait_until(lambda: says(r"rounds: [1-9][0-9,]* hits", "top", "--plain", "--count", "1"), 20))
        self.assertTrue(wait_until(lambda: says(r"rounds: \d+ → \d+", "last", "rounds"), 20))
        rsp.raw(b"\x03")
        self.assertRegex(rsp.reply(), rb"^T02")

    @needs("gdbserver")
    def test_gdbserver(self):
        """Conditions are evaluated by the server in between. gdbserver has four debug registers, and says so."""
        program = static("five")
        inner, gdb = Plain(program), self.gdb()
        self.addCleanup(inner.close)
        self.five(inner, gdb, program)
        gdb("watch b")
        self.assertIn('{"watch":1}', gdb(f"monitor ulpf watch {gdb.address('a'):#x} 4 w stop log new > 11"))
        self.assertChange(gdb("continue"), 2, "b", 20, 21)
        self.assertSays(gdb("continue"), r"SIGTRAP")
        self.assertEqual(gdb.value("a"), 12)
        self.assertSays(gdb("monitor ulpf stats"), r'"id":1,.*"hits":2,.*"filtered":1,.*"stops":1')
        self.assertSays(gdb("monitor ulpf backend"), r"rsp: a remote stub", r"conditions are evaluated here")
        addresses = [gdb.address(name) for name in "cde"]
        said = [gdb(f"monitor ulpf watch {at:#x} 4 w stop") for at in addresses]
        self.assertSays(said[-1], r"the remote stub refuses it|has no debug register left")
        gdb("kill")

    @needs("gdbserver")
    def test_an_interrupt_a_kill_and_a_detach(self):
        def connected(*program):
            inner = Plain(*program)
            self.addCleanup(inner.close)
            server = self.serve(options=["--backend", f"rsp:{inner.target}"])
            rsp = Rsp(server.target)
            self.addCleanup(rsp.close)
            rsp.no_ack()
            return inner, server, rsp
        inner, server, rsp = connected(static("alone"), "spin")
        for _ in range(3):
            rsp.raw(frame("vCont;c"))
            rsp.raw(b"\x03")
            self.assertRegex(rsp.reply(), rb"^T02")
        rsp.raw(frame("k"))
        self.assertEqual(server.wait(), 0)
        inner.process.wait(20 * PATIENCE)
        # After a detach the program goes on to its end, and gdbserver with it.
        inner, server, rsp = connected(static("five"))
        self.assertEqual(rsp("D"), b"OK")
        rsp.close()
        self.assertEqual(server.wait(), 0)
        inner.process.wait(20 * PATIENCE)

    def test_nothing_there(self):
        done = subprocess.run([ULPF, "gdb", "--backend", "rsp:127.0.0.1:1", "-nx", "-q", "-batch"], stdin=subprocess.DEVNULL,
                              stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, timeout=60)
        self.assertSays(done.stdout, r"No remote stub answers at 127.0.0.1:1")
    test_nothing_there.idle = True


class Plain:
    """A gdbserver of its own."""

    def __init__(self, *program):
        self.process = subprocess.Popen(["gdbserver", "127.0.0.1:0", *program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        port = next(re.search(r"port (\d+)", line).group(1) for line in self.process.stderr if "Listening" in line)
        self.target = f"127.0.0.1:{port}"

    def close(self):
        self.process.kill()
        self.process.communicate()


@ulpf_only
class Gem5(Case):
    """The adaptor, with a stand-in that answers as gem5 does. (test_same_hits has the real one, where there is one.)"""

    def options(self, gem5=GEM5):
        return ["--backend", "gem5", "--gem5", gem5]

    def test_watches_by_monitor_commands(self):
        server = self.serve("/bin/true", options=self.options())
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        self.assertRegex(rsp("?"), rb"^T05core:1;thread:1;")
        registers = rsp("g")
        self.assertEqual((len(registers), registers[256:272]), (328, b"0010000000000000"))
        self.assertEqual(rsp("Z2,2000,4"), b"OK")
        self.assertRegex(rsp("Z2,10,4"), rb"^E.The watch cannot be set: 4 bytes at 0x10 cannot be watched")
        self.assertEqual(rsp("Z0,1000,1"), b"OK")
        self.assertEqual(rsp("m2000,4"), b"00000000")
        self.assertIn("instructions 7", rsp.monitor("ulpf stats"))
        self.assertIn('"faults":1', rsp.monitor("ulpf stats json"))
        self.assertIn("gem5: ", rsp.monitor("ulpf backend"))
        # The port says which byte (0x2002); values, read afterwards, are of the whole watch.
        self.assertRegex(rsp("vCont;c"), rb"^T05core:1;thread:1;watch:2000;$")
        self.assertEqual(rsp("vCont;c"), b"W03")

    def test_what_was_done_to_a_watch(self):
        server = self.serve("/bin/true", options=self.options())
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        self.assertIn('{"watch":', rsp.monitor("ulpf watch 0x2000 4 w stop"))
        self.assertRegex(rsp("vCont;c"), rb"^T05core:1;thread:1;")
        # The write has read, too.
        self.assertIn('"access":"update"', rsp.monitor("ulpf stop"))

    def test_a_step_and_an_end(self):
        server = self.serve("/bin/true", options=self.options())
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        self.assertRegex(rsp("vCont;s:1"), rb"^T05core:1;thread:1;")
        self.assertEqual(rsp("g")[256:272], b"0410000000000000")
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
