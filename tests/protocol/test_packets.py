"""Broken, oversized and hostile packets: the server answers, ignores or hangs up; it lives."""

import os
import random
import re
import subprocess
import sys
import time
from xml.etree import ElementTree

from lib.cases import Case
from lib.env import STAND_IN, example, ulpf_only
from lib.rsp import Rsp, frame
from lib.server import address


class Packets(Case):
    def client(self, *program):
        self.server = self.serve(*(program or ["five"]))
        rsp = Rsp(self.server.target)
        self.addCleanup(rsp.close)
        return rsp

    def assertLives(self, rsp):
        self.assertRegex(rsp("?"), rb"^[TS]05")

    def test_wrong_checksum_is_refused_and_sent_again(self):
        rsp = self.client()
        rsp.raw(b"$?#00")
        self.assertEqual(rsp.byte(), b"-")
        rsp.raw(frame("?"))
        self.assertEqual(rsp.byte(), b"+")
        self.assertRegex(rsp.reply(), rb"^[TS]05")

    @ulpf_only
    def test_reports(self):
        """Counts and hits for a front end (docs/bridge.md), while the program runs as well, and without a program."""
        rsp = self.client("spin")
        rsp.no_ack()
        self.assertRegex(rsp("qUlpf.About"), rb"^acommands;stub;[0-9a-f]+$")
        self.assertEqual(rsp("qUlpf.Hits:3,10"), b"h3,0,0,0")
        for garbage in ("qUlpf.", "qUlpf.Counts:", "qUlpf.Counts:zz", "qUlpf.Hits:1", "qUlpf.Hits:1,2,3", "qUlpf.Levitate:0"):
            self.assertEqual(rsp(garbage), b"", garbage)
        rsp.raw(frame("vCont;c"))
        for _ in range(100):
            self.assertRegex(rsp(f"qUlpf.Counts:{2**64 - 1:x}"), b"^cffffffffffffffff,")
        # The interrupt is heard in between.
        rsp.raw(frame("qUlpf.Counts:0") + b"\x03" + frame("qUlpf.Hits:0,1"))
        replies = [rsp.reply() for _ in range(3)]
        self.assertEqual(sorted(reply[:1] for reply in replies), [b"T", b"c", b"h"])
        rsp.close()
        server = self.serve(options=["--multi"])
        idle = Rsp(server.target)
        self.addCleanup(idle.close)
        self.assertEqual(idle("qUlpf.Counts:0"), b"c0,0,0,0,0")

    def test_reply_is_repeated_after_a_nak(self):
        rsp = self.client()
        rsp.acks = False
        rsp.raw(frame("?"))
        first = rsp.reply()
        rsp.raw(b"-")
        self.assertEqual(rsp.reply(), first)
        rsp.raw(b"+")

    def test_an_interrupt_while_stopped_shows_at_the_next_chance(self):
        """gdb steps over its own breakpoint first; the user's Ctrl-C must not end with that step."""
        rsp = self.client("spin")
        rsp.no_ack()
        rsp("qSupported:multiprocess+;vContSupported+;swbreak+")
        rsp.raw(b"\x03")
        stop = rsp("vCont;s")
        if stop.startswith(b"T05"):
            stop = rsp("vCont;c")
        self.assertRegex(stop, rb"^T02")

    def test_no_ack_mode(self):
        rsp = self.client()
        self.assertEqual(rsp("QStartNoAckMode"), b"OK")
        rsp.acks = False
        rsp.raw(frame("?"))
        self.assertEqual(rsp.byte(), b"$")

    def test_unknown_packets_get_an_empty_reply(self):
        rsp = self.client()
        for packet in "jThreadsInfo", "qNonsense", "vNonsense", "QNonsense:1", "!nonsense" if not STAND_IN else "qX":
            self.assertEqual(rsp(packet), b"", packet)
        self.assertLives(rsp)

    def test_noise_between_packets(self):
        rsp = self.client()
        self.assertLives(rsp)
        rsp.raw(b"+++++hello\x00\xff\r\n----")
        rsp.raw(b"+")
        # Naks may have repeated something; what counts is that the next question is answered.
        rsp.raw(frame("qC"))
        self.assertRegex(rsp.reply(), rb"^(QC|$)")

    def test_byte_by_byte(self):
        rsp = self.client()
        for byte in frame("qSupported:multiprocess+"):
            rsp.raw(bytes([byte]))
        self.assertIn(b"PacketSize=", rsp.reply())

    def test_many_packets_at_once(self):
        rsp = self.client()
        rsp.no_ack()
        rsp.raw(frame("?") * 50)
        for _ in range(50):
            self.assertRegex(rsp.reply(), rb"^[TS]05")

    @ulpf_only
    def test_oversized_packet(self):
        """Far beyond PacketSize: an error or a hang-up, and the next client is served."""
        rsp = self.client()
        rsp.no_ack()
        try:
            rsp.raw(b"$m" + b"0" * (8 << 20) + b",4#00")
            rsp.raw(frame("?"))
            rsp.reply()
        except (ConnectionError, TimeoutError):
            pass
        rsp.close()
        again = Rsp(self.server.target)
        self.addCleanup(again.close)
        self.assertLives(again)

    @ulpf_only
    def test_endless_packet_does_not_eat_the_memory(self):
        rsp = self.client()
        try:
            rsp.raw(b"$")
            for _ in range(64):
                rsp.raw(b"A" * (1 << 20))
        except (ConnectionError, TimeoutError):
            pass
        with open(f"/proc/{self.server.process.pid}/status") as status:
            peak = next(int(l.split()[1]) for l in status if l.startswith("VmHWM"))
        self.assertLess(peak, 64 << 10, "kB resident")

    def test_vanishes_mid_packet(self):
        rsp = self.client()
        self.assertLives(rsp)
        rsp.raw(b"$qSupp")
        rsp.close()
        self.server.wait_for(r"(?s)Listening on port.*Listening on port")
        again = Rsp(self.server.target)
        self.addCleanup(again.close)
        self.assertLives(again)

    @ulpf_only
    def test_second_client_does_not_disturb_the_first(self):
        rsp = self.client()
        rsp.no_ack()
        try:
            other = Rsp(self.server.target, seconds=1)
            other.raw(frame("k"))
            other.close()
        except OSError:
            pass
        self.assertLives(rsp)

    def test_memory_reads_at_the_edges(self):
        rsp = self.client()
        rsp.no_ack()
        for packet in "m0,10", "m8,ffffffff", "mffffffffffffffff,2", "m7fffffffffff,2", "mffff800000000000,8", "m,", "m":
            self.assertRegex(rsp(packet), rb"^(E|$)", packet)
        self.assertLives(rsp)

    @ulpf_only
    def test_memory_writes_at_the_edges(self):
        rsp = self.client()
        rsp.no_ack()
        for packet in "M0,1:00", "Mffffffffffffffff,2:0000", "M10,4:00", "M10,1:zz", "X0,1:a", "M,:", "M", "X10,ffffffff:":
            self.assertEqual(rsp(packet), b"E01", packet)
        self.assertLives(rsp)

    @ulpf_only
    def test_registers_and_threads_that_do_not_exist(self):
        rsp = self.client()
        rsp.no_ack()
        refused = ["p", "P0", "Hgffff", "Hg0zz", "T0", "T-5", "Tp1.zz", "vCont;c:ffffff", "vCont;q", "vCont;", "vCont;s:p-5.1",
                   "qThreadExtraInfo,", "qThreadExtraInfo,zz", "qXfer:features:read:../../etc/passwd:0,100", "qXfer:auxv:read::0,",
                   "qRcmd,zz", "QPassSignals:zz", "D;ffff", "vKill;ffff", "vAttach;zz", "vRun;zz", "QCatchSyscalls:2", "QNonStop:zz", "X",
                   "qGetTLSAddr:0,0,0", "qGetTLSAddr:1", "qGetTLSAddr:"]
        unknown = ["qXfer:nonsense:read::0,10", "vFile:nonsense", "qCRC:0,ffffffffff", "qSearch:memory:0;ffffffff;aa"]
        # EINVAL and EBADF, as the file protocol says them; the rest of what is there is empty.
        other = {"pffff": b"E16", "Pffff=00": b"E16", "vFile:open:": b"F-1,16", "vFile:pread:63,10,0": b"F-1,9", "vFile:close:-1": b"F-1,16",
                 "qXfer:features:read:target.xml:ffffffff,10": b"l", "G00": b"OK", "G": b"OK", "QProgramSignals:": b"OK"}
        before = rsp("g")
        for packet, reply in {**dict.fromkeys(refused, b"E01"), **dict.fromkeys(unknown, b""), **other}.items():
            self.assertEqual(rsp(packet), reply, packet)
        self.assertRegex(rsp.monitor(""), r"(?s)^Unknown monitor command\..*set remote-debug.*E01$")
        self.assertRegex(rsp.monitor("set remote-debug 2"), r"(?i)unknown|E01|no ")
        for words, said in ("set debug 1", "Debug output enabled."), ("set debug 0", "Debug output disabled."), \
                ("set debug-format all", "All extra debug format options enabled."):
            self.assertEqual(rsp.monitor(words), said + "\n")
        # (G takes as many registers as it is given.)
        self.assertEqual(rsp("g")[2:], before[2:])
        self.assertLives(rsp)

    @ulpf_only
    def test_hostile_bytes(self):
        """A seeded storm of mangled packets (`kill`, `detach` and resumption left out)."""
        seed = int(os.environ.get("ULPF_TEST_SEED", "1"))
        rng = random.Random(seed)
        words = [b"m", b"M", b"p", b"P", b"g", b"G", b"X", b"Z0,", b"Z2,", b"Z3,", b"Z4,", b"z2,", b"Hg", b"T", b"qXfer:features:read:",
                 b"qXfer:threads:read::", b"qSupported:", b"qRcmd,", b"vFile:open:", b"vFile:pread:", b"qCRC:", b"qfThreadInfo", b"qSymbol:",
                 b"QPassSignals:", b"vCont?", b"qGetTLSAddr:", b"qThreadExtraInfo,", b"QThreadEvents:", b"jX"]
        rsp = self.client()
        rsp.no_ack()
        for _ in range(1500):
            body = rng.choice(words) + bytes(rng.choice(b"0123456789abcdef,;:=-}*$\x00\xff\x7fpzZ") for _ in range(rng.randrange(40)))
            body = body.replace(b"$", b"}\x04").replace(b"#", b"}\x03")
            rsp.raw(frame(body))
            if rng.random() < 0.1:
                rsp.raw(b"$" + bytes(rng.randrange(256) for _ in range(8)).replace(b"#", b"") + b"#zz")
        # Count replies is pointless after mangled frames; ask something with a known answer.
        rsp.raw(frame("qAttached"))
        while rsp.reply() != b"0":
            pass
        self.assertIsNone(self.server.process.poll(), f"seed {seed}")
        self.assertLives(rsp)


class NewerPackets(Case):
    """Packets that GDB 14 to 17 added, and clients that know fewer."""

    GDB = "qSupported:multiprocess+;swbreak+;hwbreak+;xmlRegisters=i386"

    def client(self, *program, **options):
        self.server = self.serve(*(program or ["five"]), **options)
        rsp = Rsp(self.server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        return rsp

    @ulpf_only
    def test_memory_as_it_is(self):
        rsp = self.client()
        self.assertIn(b"binary-upload+", rsp(self.GDB))
        stack = int.from_bytes(bytes.fromhex(rsp("p7").decode()), "little")
        self.assertEqual(rsp(f"x{stack:x},28"), b"b" + bytes.fromhex(rsp(f"m{stack:x},28").decode()))
        self.assertEqual(rsp("x0,8"), b"E01")
        # LLDB up to 19 asks by trying, and expects the bytes alone.
        self.assertEqual(rsp("x0,0"), b"OK")
        self.assertEqual(rsp(f"x{stack:x},28"), bytes.fromhex(rsp(f"m{stack:x},28").decode()))

    def test_registers_without_a_description(self):
        """A debugger that cannot read XML knows those registers that every x86-64 has: 560 bytes."""
        for greeting, few in (self.GDB, False), ("qSupported:multiprocess+;swbreak+", True), (None, True):
            with self.subTest(greeting):
                rsp = self.client()
                if greeting:
                    rsp(greeting)
                rsp("?")
                rsp("Hg0")
                self.assertEqual(len(rsp("g")) == 2 * 560, few)

    @ulpf_only
    def test_an_error_with_its_text(self):
        """`error-message+` (GDB 15): what is wrong with a monitor command is the error itself."""
        command = "qRcmd," + b"nonsense".hex()
        for greeting, error in (f"{self.GDB};error-message+", rb"^E\.There is no program, "), (self.GDB, rb"^O[0-9a-f]+$"):
            with self.subTest(greeting):
                rsp = self.client_without_program()
                self.assertIn(b"error-message+", rsp(greeting))
                self.assertRegex(rsp(command), error)

    @ulpf_only
    def test_the_arguments_of_the_command_line(self):
        rsp = self.client("five", "a b", "$c")
        prog, args = (bytes.fromhex(part.decode()) for part in rsp("qExecAndArgs").split(b";")[1:3])
        self.assertTrue(prog.endswith(b"/five"))
        self.assertEqual(args, rb"a\ b \$c")
        self.assertEqual(self.client_without_program()("qExecAndArgs"), b"U")

    def client_without_program(self):
        self.server = self.serve(options=["--multi"])
        rsp = Rsp(self.server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        rsp("!")
        return rsp

    @ulpf_only
    def test_one_text_for_all_arguments(self):
        """GDB 17 sends what the shell is to read; before that, each word is one."""
        text = "'two words' $((1 + 1))"
        for greeting, said in ("single-inf-arg+", "[two words]\n[2]\n"), ("", f"[{text}]\n"):
            with self.subTest(greeting):
                rsp = self.client_without_program()
                self.assertIn(b"single-inf-arg+", rsp(f"{self.GDB};{greeting}"))
                self.assertRegex(rsp(f"vRun;{example('words').encode().hex()};{text.encode().hex()}"), rb"^T05")
                self.assertRegex(rsp("vCont;c"), rb"^W00")
                self.assertIn(said, self.server.stdout())

    def test_libraries_of_a_program_run_by_the_dynamic_linker(self):
        """The file that the kernel has started has no list of libraries. The server says so, and GDB finds it by symbols."""
        rsp = self.client("/lib64/ld-linux-x86-64.so.2", example("five"))
        rsp(self.GDB)
        self.assertEqual(rsp("qXfer:libraries-svr4:read::0,1000"), b"E01")

    def test_tables_of_the_system(self):
        rsp = self.client()
        self.assertIn(b"qXfer:osdata:read+", rsp(self.GDB))

        def table(kind):
            text = b""
            while True:
                part = rsp(f"qXfer:osdata:read:{kind}:{len(text):x},ffb")
                text += part[1:]
                if part[:1] != b"m":
                    return text.decode()

        kinds = re.findall(r'<column name="Type">(\w+)<', table(""))
        self.assertLessEqual({"processes", "procgroups", "threads", "files", "sockets", "shm", "semaphores", "msg", "modules"},
                             set(kinds))
        for kind in kinds:
            ElementTree.fromstring(table(kind))
        own = [row for row in ElementTree.fromstring(table("processes")) if row[0].text == str(self.server.process.pid)]
        self.assertEqual([column.get("name") for column in own[0]], ["pid", "user", "command", "cores"])
        self.assertEqual(table("nothing"), "")


@ulpf_only
class Threads(Case):
    def test_a_step_that_came_second(self):
        """Another thread's breakpoint is reported first. The client then resumes the stepped thread without a step."""
        server = self.serve("threads16", "1000000000")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        rsp("qSupported:multiprocess+;vContSupported+;swbreak+")
        pid = int(re.match(rb"QCp([0-9a-f]+)", rsp("qC")).group(1), 16)
        worker = address(pid, "threads16", "worker")
        first = 0
        # On an idle machine the step comes first each time.
        for _ in range(os.cpu_count()):
            load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            self.addCleanup(load.wait)
            self.addCleanup(load.kill)
        for round_ in range(40):
            if first and round_ >= 10:
                break
            rsp.raw(frame("vCont;c"))
            time.sleep(0.05)  # The program runs: that is the load.
            rsp.raw(b"\x03")
            # Not SIGTRAP: that would be a step of the round before.
            self.assertRegex(rsp.reply(), rb"^T02")
            busy = []
            for thread in rsp("qfThreadInfo")[1:].split(b","):
                self.assertEqual(rsp(b"Hg" + thread), b"OK")
                pc = int.from_bytes(bytes.fromhex(rsp("p10").decode()), "little")
                if worker <= pc < worker + 128:
                    busy.append((thread, pc))
            if len(busy) < 2:
                continue
            # One that stands at the breakpoint, and one that is stepped.
            (hits, at), (steps, _) = busy[0], busy[-1]
            self.assertEqual(rsp(f"Z0,{at:x},1"), b"OK")
            stop = rsp(b"vCont;s:" + steps + b";c:" + hits)
            self.assertRegex(stop, rb"^T05")
            first += b"thread:" + hits in stop
            self.assertEqual(rsp(f"z0,{at:x},1"), b"OK")
        rsp.raw(frame("k"))
        if not first:
            self.skipTest("in 40 rounds this machine has run the stepped thread first each time")
