"""The bridge, with back ends that do not behave, and with debuggers that do not."""

import re
import subprocess
import time

from lib.bridge import FakeStub, Sim, needs_sim, static
from lib.cases import Case
from lib.env import PATIENCE, ulpf_only
from lib.rsp import Rsp, frame, wait_until

RUN = frame("vCont;c")


def nothing(fake, packet):
    """A step of a script: no reply."""


def gone(fake, packet):
    fake.close()
    fake.hang_up()


@ulpf_only
class BackEnds(Case):
    """A debugger on one side, on the other a fake stub: `script` says where it differs from a good one."""

    def connect(self, script=None, role=b"", **options):
        self.fake = FakeStub(script, role)
        self.addCleanup(self.fake.close)
        server = self.serve(options=["--backend", f"rsp:{self.fake.path}"], **options)
        rsp = Rsp(server.target)
        rsp.no_ack()
        self.addCleanup(rsp.close)
        return server, rsp

    def refused(self, script):
        fake = FakeStub(script)
        self.addCleanup(fake.close)
        server = self.serve(options=["--backend", f"rsp:{fake.path}"], wait=False)
        self.assertEqual(server.wait(), 1)
        return server.said

    def printed(self, rsp):
        """The next packet is text for the user."""
        return bytes.fromhex(rsp.reply()[1:].decode()).decode()

    def test_what_a_debugger_asks_arrives(self):
        """As it is; but watches that are set already, or that GDB only takes away and puts back."""
        _, rsp = self.connect({b"vCont;c": [b"T05thread:1;watch:2000;", b"W05"], b"QLevitate": [b"high"]})
        said = rsp("qSupported:swbreak+")
        self.assertRegex(said, rb"^PacketSize=4000;QStartNoAckMode\+;vContSupported\+;swbreak\+;hwbreak\+$")
        self.assertEqual(rsp("?"), b"T05thread:1;")
        self.assertEqual(len(rsp("g")), 2 * 164)
        self.assertEqual(rsp("m1000,4"), b"00000000")
        for packet in ("M1000,2:0102", "P0=0100000000000000", "Z0,1000,1", "Z1,1000,1", "z0,1000,1",
                       "Z2,2000,4", "Z2,2000,4", "Z3,3000,8"):
            self.assertEqual(rsp(packet), b"OK", packet)
        self.assertEqual(rsp("QLevitate:1"), b"high")
        self.assertEqual(rsp("vCont;c"), b"T05thread:1;watch:2000;")
        for packet in ("z2,2000,4", "z2,2000,4", "z3,3000,8", "Z2,2000,4"):
            self.assertEqual(rsp(packet), b"OK", packet)
        self.assertEqual(rsp("vCont;c"), b"W05")
        # (Registers and memory are for the hit.)
        self.assertEqual([packet for packet in self.fake.asked if packet not in (b"g", b"m2000,4")], [
            b"qSupported:swbreak+", b"?", b"m1000,4", b"M1000,2:0102", b"P0=0100000000000000", b"Z0,1000,1", b"Z1,1000,1",
            b"z0,1000,1", b"Z2,2000,4", b"Z3,3000,8", b"QLevitate:1", b"vCont;c", b"z3,3000,8", b"vCont;c"])

    def test_other_languages(self):
        said = self.refused({b"vMustReplyEmpty": [lambda f, p: f.raw(b'SSH-2.0-OpenSSH_9.2p1\r\n{"event":"stopped"}\n')]})
        self.assertSays(said, r"Something is at .*, but it does not answer as a remote stub does\. Start the stub there")
        said = self.refused({b"vMustReplyEmpty": [lambda f, p: f.raw(b"x" * (2 << 20))] * 1000})
        self.assertSays(said, r"No remote stub answers at .*: it says more than 1 MiB at a time")
        said = self.refused({b"vMustReplyEmpty": [lambda f, p: f.hang_up()] * 1000})
        # A port forwarder may listen before the stub does.
        self.assertSays(said, r"No remote stub answers at .*: it has closed the connection\. Start it first")
        said = self.refused({b"g": [b"00" * 60]})
        self.assertSays(said, r"has no registers of an x86-64 processor")
        said = self.refused({b"?": [b"OK"]})
        self.assertSays(said, r"does not say why its program has stopped")
        said = self.refused({b"qUlpf.About": [b"E.No: so. Go."]})
        self.assertSays(said, r"No: so\. Go\.")
    test_other_languages.idle = True

    def test_capabilities(self):
        """What a stub has beside the protocol it says by itself. A role that this ulpf does not know is not used."""
        for role, packet in ((b"", b"Z2,2000,4"), (b"levitates", b"Z2,2000,4"),
                             (b"watches", b"qRcmd," + b"ulpf watch 0x2000 4 w stop log".hex().encode()), (b"commands", b"Z2,2000,4")):
            _, rsp = self.connect(role=role)
            self.assertEqual(rsp("Z2,2000,4"), b"OK")
            self.assertEqual(self.fake.asked, [packet], role)
            rsp.close()

    def test_the_rest_of_a_conversation_with_somebody_else(self):
        """A port of virtio-serial has no connections: what is left of an earlier one is no reason to give up."""
        def rest(fake, packet):
            fake.raw(b"5thread:1;#00" + frame("T05thread:1;") + frame("OK"))
            fake.say(b"")
        _, rsp = self.connect({b"vMustReplyEmpty": [rest]})
        self.assertRegex(rsp("?"), rb"^T05thread:1;")
        self.assertEqual(rsp("m1000,4"), b"00000000")

    def test_one_that_answers_no_more(self):
        """Its machine has stopped, say, while the connection stands: the user hears of it, and Ctrl-C is heard."""
        _, rsp = self.connect({b"vCont;c": [nothing], b"qUlpf.Counts": [nothing], b"\x03": [b"T02thread:1;"]}, role=b"watches")
        rsp.raw(RUN)
        self.assertIn("The back end does not answer, though the connection is there", self.printed(rsp))
        self.assertIn("The back end answers again.", self.printed(rsp))
        rsp.raw(b"\x03")
        self.assertRegex(rsp.reply(), rb"^T02thread:1;")
    test_one_that_answers_no_more.idle = True

    def test_nobody_there(self):
        server = self.serve(options=["--backend", "rsp:127.0.0.1:1"], wait=False)
        self.assertEqual(server.wait(), 1)
        self.assertSays(server.said, r"No remote stub answers at 127.0.0.1:1: .*refused.* Start it first")
    test_nobody_there.idle = True

    def test_a_refused_watch(self):
        _, rsp = self.connect({b"Z2": [b"E22", b"E.nothing is mapped at 0x2000", b""]})
        self.assertRegex(rsp("Z2,2000,4"), rb"^E.The watch cannot be set: the remote stub refuses it \(E22\); it may have no")
        self.assertRegex(rsp("Z2,2000,4"), rb"^E.The watch cannot be set: nothing is mapped at 0x2000")
        self.assertRegex(rsp("Z2,2000,4"), rb"^E.The watch cannot be set: the remote stub has no watches of this kind")
        self.assertEqual(rsp("Z2,3000,4"), b"OK")
        rsp.close()

        def refuses(fake, packet):
            fake.print('{"refused":{"what":"The watch cannot be set","why":"nothing is mapped","what_to_do":"wait"}}\n')
            fake.say(b"OK")
        _, rsp = self.connect({b"qRcmd,": [refuses]}, role=b"watches")
        self.assertRegex(rsp("Z2,2000,4"), rb"^E.The watch cannot be set: nothing is mapped; wait")
        self.assertEqual(rsp("Z2,3000,4"), b"OK")

    def test_one_that_hangs(self):
        # It answers nothing, then late, then the next request.
        _, rsp = self.connect({b"m1000": [nothing]})
        self.assertRegex(rsp("m1000,4"), rb"^E.The back end has not answered `m1000` for 5 s")
        self.fake.say(b"ffffffff")
        self.assertEqual(rsp("m1000,4"), b"00000000")
    test_one_that_hangs.idle = True

    def test_one_that_does_not_stop(self):
        _, rsp = self.connect({b"vCont;c": [nothing]})
        rsp.raw(RUN)
        self.assertTrue(wait_until(lambda: b"vCont;c" in self.fake.asked))
        rsp.raw(b"\x03")
        self.assertIn("has been told to stop and has not for 10 s", self.printed(rsp))
        self.assertRegex(rsp.reply(), rb"^T02thread:1;")
        self.assertIn(b"\x03", self.fake.asked)
    test_one_that_does_not_stop.idle = True

    def test_one_that_dies(self):
        _, rsp = self.connect({b"vCont;c": [gone]})
        rsp.raw(RUN)
        self.assertIn("The connection to the back end is lost: it has closed the connection.", self.printed(rsp))
        self.assertEqual(rsp.reply(), b"X09")
        self.assertRegex(rsp("m1000,4"), rb"^E.There is no program")

    def test_one_that_comes_back(self):
        """A connection that broke is the end for its debugger. The next one has a new connection, and no watch of the
        former: not those that another program has in that place, either."""
        _, rsp = self.connect({b"m1000": [lambda f, p: f.hang_up()]})
        self.assertRegex(rsp("m1000,4"), rb"^E.The connection to the back end is lost")
        server = self.serve(options=["--backend", f"rsp:{self.fake.path}"])
        first = Rsp(server.target)
        first.no_ack()
        self.assertEqual(first("m1000,4"), b"00000000")
        self.assertIn('{"watch":1}', first.monitor("ulpf watch 0x2000 4 w stop"))
        first.close()
        server.wait_for(r"will reopen the connection")
        again = Rsp(server.target)
        self.addCleanup(again.close)
        again.no_ack()
        self.assertEqual(again("m1000,4"), b"00000000")
        self.assertIn('"watches":[]', again.monitor("ulpf stats"))
        self.assertEqual(self.fake.connections, 3)

    def test_who_sorts_hits(self):
        """A back end without filters stops for each hit, and reports an address. This side reads values, evaluates
        conditions and keeps the log. A stop that no watch wants is not reported."""
        def resumed(fake, packet):
            runs.append(packet)
            fake.say(b"T05thread:1;watch:2000;" if len(runs) < 6 else b"W00")

        def read(fake, packet):
            fake.say(b"%02x" % len(runs) + b"00" * (int(packet.split(b",")[1], 16) - 1))
        runs = []
        _, rsp = self.connect({b"vCont;c": [resumed] * 6, b"m": [read] * 100})
        # Only if the new value is above 3; GDB watches the byte by which the plugin hears of it.
        self.assertEqual(rsp.monitor("ulpf watch 0x2000 4 w stop log new > 3"), '{"watch":1}\n')
        self.assertEqual(self.fake.asked, [b"Z2,2000,4"])
        self.assertEqual(rsp("Z4,756c706600000000,1"), b"OK")
        self.assertRegex(rsp("vCont;c"), rb"^T05thread:1;.*awatch:756c706600000000;")
        self.assertEqual(len(runs), 4)
        self.assertIn('"old_bytes":"03000000","new_bytes":"04000000"', rsp.monitor("ulpf stop"))
        self.assertRegex(rsp.monitor("ulpf stats"), r'"hits":4,.*"filtered":3,.*"stops":1')
        self.assertEqual(rsp.monitor("ulpf log").count('"watch":1'), 1)
        self.assertRegex(rsp("vCont;c"), rb"^T05")
        self.assertEqual(rsp("vCont;c"), b"W00")

    def test_several_watches_of_the_same_bytes(self):
        """The stub has one of them, and each counts."""
        _, rsp = self.connect({b"vCont;c": [b"T05thread:1;watch:2000;"]})
        self.assertEqual(rsp("Z2,2000,4"), b"OK")
        self.assertIn('{"watch":2}', rsp.monitor("ulpf watch 0x2000 4 w stop"))
        self.assertEqual(rsp("vCont;c"), b"T05thread:1;watch:2000;")
        # The other one is a stop of its own.
        self.assertEqual(rsp("vCont;c"), b"T05thread:1;")
        self.assertEqual(self.fake.asked.count(b"vCont;c"), 1)
        rsp.monitor("ulpf unwatch 2")
        self.assertNotIn(b"z2,2000,4", self.fake.asked)
        self.assertEqual(self.fake.asked.count(b"Z2,2000,4"), 1)

    def test_what_cannot_be_had_is_refused_by_name(self):
        _, rsp = self.connect()
        for words, why in (("0x2000 4 w bt 3", "callers"), ("heap w", "heap"), ("0x2000 4 w debug-register", "debug registers"),
                           ("0x2000 4 w called from 0x1-0x2", "called"), ("0x2000 4 w if x zz", "bytecode"), ("0x2000 0 w", "length")):
            self.assertRegex(rsp.monitor(f"ulpf watch {words}"), rf'"refused".*{why}')
        for words in ("patch sites", "watches w at 0x2000:4", "filter total changed", "unwatch 3", "sites"):
            self.assertIn('"refused"', rsp.monitor(f"ulpf {words}"))
        self.assertSays(rsp.monitor("ulpf hits"), r"it keeps no hits")
        self.assertSays(rsp.monitor("ulpf stats json"), r"it has no counters of its own")
        self.assertSays(rsp.monitor("ulpf backend"), r"rsp: a remote stub", r"as many as the remote stub has")
        self.assertEqual(self.fake.asked, [])
        # Commands that are not ulpf's are the stub's.
        rsp.monitor("levitate")
        self.assertEqual(self.fake.asked, [b"qRcmd," + b"levitate".hex().encode()])

    def test_garbage_at_any_time(self):
        for says in (b"$00#ff", b"$0*\x01#00", b"$*!#4b"):
            _, rsp = self.connect({b"m1000": [lambda f, p, says=says: f.raw(says)]})
            self.assertRegex(rsp("m1000,4"), rb"^E.The connection to the back end is lost: it says what is no packet", says)
            self.assertRegex(rsp("g"), rb"^E.")
            rsp.close()
        for start, says in ((b"qUlpf.Counts:", b"c0,1"), (b"qUlpf.Counts:", b"c0,0,0,0,0;1,2"), (b"qUlpf.Hits:", b"h0,0,0,0;x")):
            _, rsp = self.connect({b"vCont;c": [b"T05thread:1;"], start: [says]}, role=b"watches")
            self.assertEqual(rsp("vCont;c"), b"T05thread:1;")
            self.assertRegex(rsp("m1000,4"), rb"^E.There is no program", says)
            rsp.close()

    def test_stop_after_stop(self):
        """A stub that reports stops without end, in place of an answer: it is given up, and memory stays bounded."""
        def flood(fake, packet):
            fake.raw(frame("T05thread:1;") * 100_000)
        _, rsp = self.connect({b"vCont;c": [nothing], b"qUlpf.Counts": [flood]}, role=b"watches")
        rsp.raw(RUN)
        self.assertEqual(rsp.reply(), b"T05thread:1;")
        self.assertRegex(rsp("m1000,4"), rb"^E.There is no program")


@ulpf_only
@needs_sim
class Debuggers(Case):
    """ulpf-sim with arbitrary clients."""

    def sim(self, *program):
        sim = Sim(*(program or (static("alone"), "spin")))
        self.addCleanup(sim.close)
        return sim

    def rsp(self, sim):
        rsp = sim.connect()
        self.addCleanup(rsp.close)
        return rsp

    def test_a_debugger_without_ulpf(self):
        """Any client of the remote protocol has the machine, with all watches that it wants."""
        sim = self.sim(static("five"))
        self.rsp(sim).close()
        gdb = self.gdb()
        gdb(f"file {static('five')}")
        gdb(f"target remote {sim.path}")
        gdb("tbreak ready")
        self.assertSays(gdb("continue"), r"Temporary breakpoint 1, ready")
        for name in "abcde":
            gdb(f"watch {name}")
        for number, (name, old, new) in enumerate([("a", 10, 11), ("b", 20, 21), ("c", 30, 31), ("d", 40, 41), ("e", 50, 51)], 2):
            self.assertChange(gdb("continue"), number, name, old, new)
        self.assertSays(gdb("print $xmm0"), r"v4_float")
        gdb("kill")
        self.assertEqual(sim.process.wait(10 * PATIENCE), 137)

    def test_garbage(self):
        rsp = self.rsp(self.sim())
        for says, reply in (("levitate", b""), ("mzz", b"E"), ("m10,4", b"E"), (f"m{2**64 - 1:x},{2**63:x}", b""), ("M10,2:0000", b"E"),
                            ("G00", b"E"), ("Z2,10,4", b"E"), (f"Z2,{2**64 - 1:x},9", b"E"), ("Z2,4a0000,0", b"E"), ("z2,4a0000,4", b"E"),
                            ("Z9,1,1", b""), ("vCont;q", b""), ("Hgzz", b""), ("qUlpf.Hits:1", b""), ("qUlpf.Levitate", b""),
                            ("D", b"E.The simulated machine lives for its debugger"), ("qRcmd,zz", b"OK")):
            self.assertRegex(rsp(says), b"^" + re.escape(reply), says)
        for command, said in (("x", "no command"), ("ulpf watch 0x10 4 w", "nothing is mapped at 0x10"),
                              ("ulpf watch 0x10 0 w", '"refused"'), ("ulpf unwatch 7", "there is no watch 7"), ("ulpf watch heap w", "ranges")):
            self.assertIn(said, rsp.monitor(command))
        self.assertEqual(rsp.monitor("ulpf watch 0x10 4 w;ulpf unwatch 9").count("refused"), 2)
        self.assertRegex(rsp("?"), rb"^T05thread:")
        rsp.acks = True
        rsp.raw(b"$?#00")
        self.assertRegex(rsp("?"), rb"^T05thread:")

    def test_a_packet_without_an_end(self):
        sim = self.sim()
        rsp = self.rsp(sim)
        rsp.raw(b"$" + b"x" * (5 << 20) + b"#00")
        self.assertRegex(rsp.reply(), rb"^E.The packet is too long")
        rsp.raw(b"$" + b"x" * (5 << 20))
        rsp.close()
        self.assertRegex(self.rsp(sim)("?"), rb"^T05")

    def test_while_it_runs(self):
        rsp = self.rsp(self.sim())
        rsp.raw(RUN)
        for packet in ("m1000,1", "qfThreadInfo", "vCont;s:1"):
            self.assertRegex(rsp(packet), rb"^E.The program runs")
        self.assertRegex(rsp("qUlpf.Counts:0"), rb"^c0,")
        self.assertRegex(rsp("qUlpf.Hits:0,1"), rb"^h0,")
        rsp.raw(b"\x03")
        self.assertRegex(rsp.reply(), rb"^T02")

    def test_a_debugger_that_comes_back(self):
        sim = self.sim()
        rsp = self.rsp(sim)
        rsp.raw(RUN)
        self.assertRegex(rsp("m1000,1"), rb"^E.The program runs")
        rsp.close()
        # A machine without a debugger stops.
        again = self.rsp(sim)
        self.assertRegex(again("?"), rb"^T05")
        self.assertRegex(again("g"), rb"^[0-9a-f]{1120}$")
        again.raw(frame("k"))
        self.assertEqual(sim.process.wait(10 * PATIENCE), 137)

    def test_nobody_comes(self):
        sim = self.sim()
        self.assertEqual(sim.process.wait(30 * PATIENCE), 125)
    test_nobody_comes.idle = True

    def test_a_program_that_cannot_be_loaded(self):
        rsp = self.rsp(self.sim("/bin/true"))
        self.assertRegex(rsp("?"), rb"^E.The program cannot be loaded: .*dynamic")

    def test_it_does_not_outlive_the_server(self):
        server = self.serve(static("alone"), "spin", options=["--backend", "sim"])
        pid = server.program_pid
        rsp = Rsp(server.target)
        rsp.raw(RUN)
        time.sleep(0.2)  # The program runs: that is the load.
        server.process.kill()
        gone = lambda: subprocess.run(["kill", "-0", str(pid)], stderr=subprocess.DEVNULL).returncode != 0
        self.assertTrue(wait_until(gone, 30))
    test_it_does_not_outlive_the_server.idle = True
