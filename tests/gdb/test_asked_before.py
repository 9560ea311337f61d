"""Requests that gdb repeats at each stop are answered in advance, and the server settles its removals and insertions.
That must make no difference: each of these tests changes something in between."""

import os
import struct
import tempfile
import time

from lib.cases import Case, line
from lib.env import ulpf_only
from lib.rsp import Rsp, wait_until


def results(rounds=20, rewritten=10):
    total = 0
    for n in range(rounds):
        total = total * 3 + (1 if n < rewritten else 2)
    return (total + (1 << 31)) % (1 << 32) - (1 << 31)


class AskedBefore(Case):
    def files(self):
        folder = tempfile.mkdtemp(prefix="ulpf-asked-")
        shared, typed = os.path.join(folder, "shared"), os.path.join(folder, "typed")
        with open(shared, "wb") as file:
            file.write(bytes(8))
        os.mkfifo(typed)
        self.addCleanup(lambda: (os.unlink(shared), os.unlink(typed), os.rmdir(folder)))
        return shared, typed

    def test_the_debugger_writes(self):
        gdb = self.session("asked")
        gdb("watch counter")
        for n in range(5):
            self.assertChange(gdb("continue"), 2, "counter", n, n + 1)
            self.assertEqual(gdb.value("other"), 7 if n == 0 else 100 + n - 1)
            gdb(f"set var other = {100 + n}")
            self.assertEqual(gdb.value("other"), 100 + n)
        gdb("set var counter = 50")
        self.assertEqual(gdb.value("counter"), 50)
        self.assertChange(gdb("continue"), 2, "counter", 50, 51)
        gdb("set var counter = 52")
        # Written to the very value that comes next: no change, and none is reported.
        gdb("set var counter = 51")
        self.assertChange(gdb("continue"), 2, "counter", 51, 52)
        gdb("delete")
        self.assertExits(gdb, 0, f"asked: 65 0 - {results()}")

    def test_another_process_writes(self):
        shared, _ = self.files()
        gdb = self.session("asked", shared)
        gdb("watch *shared")
        seen, value = 0, 0
        for n in range(6):
            # GDB's old value is what it has seen at the stop before, with any server.
            self.assertChange(gdb("continue"), 2, "*shared", seen, value + 1)
            value += 1
            seen = value
            if n % 2:
                value = 1000 * n
                with open(shared, "r+b") as file:
                    file.write(struct.pack("<q", value))
                self.assertEqual(gdb.value("*shared"), value)
        gdb("delete")
        self.assertExits(gdb, 0, f"asked: 20 {value + 14} - ")

    @ulpf_only
    def test_a_system_call_writes(self):
        """gdbserver's stops interrupt the call; here it goes on, and gdb sees what it has read."""
        shared, typed = self.files()
        gdb = self.session("asked", shared, typed)
        gdb("watch counter")
        writer = os.open(typed, os.O_RDWR)
        self.addCleanup(os.close, writer)
        for n in range(4):
            self.assertChange(gdb("continue"), 2, "counter", n, n + 1)
            self.assertSays(gdb("print typed"), r"'-'")
            time.sleep(0.05)
        os.write(writer, b"x")
        for n in range(4, 16):
            if wait_until(lambda: "'x'" in gdb("print typed"), 2):
                break
            # A busy machine has not let it come to its call so far.
            self.assertChange(gdb("continue"), 2, "counter", n, n + 1)
        self.assertSays(gdb("print typed"), r"'x'")
        gdb("delete")
        self.assertExits(gdb, 0, f"asked: 20 20 x {results()}")

    def test_breakpoints_and_watches_come_and_go(self):
        gdb = self.session("asked")
        first = gdb("x/4xb tick").split(":", 1)[1]
        gdb("break tick")
        gdb("watch counter")
        for n in range(4):
            self.assertSays(gdb("continue"), r"Breakpoint 2, tick")
            self.assertEqual(gdb("x/4xb tick").split(":", 1)[1], first)
            self.assertChange(gdb("continue"), 3, "counter", n, n + 1)
            self.assertEqual(gdb("x/4xb tick").split(":", 1)[1], first)
        gdb("delete 2")
        self.assertChange(gdb("continue"), 3, "counter", 4, 5)
        gdb("break tick if counter == 7")
        self.assertChange(gdb("continue"), 3, "counter", 5, 6)
        self.assertChange(gdb("continue"), 3, "counter", 6, 7)
        self.assertSays(gdb("continue"), r"Breakpoint 4, tick")
        gdb("condition 4 counter == 9")
        gdb("delete 3")
        self.assertSays(gdb("continue"), r"Breakpoint 4, tick")
        self.assertEqual(gdb.value("counter"), 9)
        gdb("delete 4")
        gdb("hbreak tick")
        self.assertSays(gdb("continue"), r"Breakpoint 5, tick")
        gdb("delete 5")
        self.assertEqual(gdb("x/4xb tick").split(":", 1)[1], first)
        self.assertExits(gdb, 0, f"asked: 20 0 - {results()}")

    def test_the_same_address_in_hardware_and_in_software(self):
        gdb = self.session("asked")
        gdb("break tick")
        self.assertSays(gdb("continue"), r"Breakpoint 2, tick")
        gdb("delete 2")
        gdb("hbreak tick")
        self.assertSays(gdb("continue"), r"Breakpoint 3, tick")
        gdb("delete 3")
        gdb("break tick")
        self.assertSays(gdb("continue"), r"Breakpoint 4, tick")
        gdb("delete")
        self.assertExits(gdb, 0, f"asked: 20 0 - {results()}")

    @ulpf_only
    def test_code_is_written_anew_under_a_breakpoint(self):
        """gdbserver puts the byte of the old code back into the new one."""
        gdb = self.session("asked")
        gdb("watch counter")
        gdb("break *code")
        for n in range(20):
            self.assertChange(gdb("continue"), 2, "counter", n, n + 1)
            self.assertSays(gdb("continue"), r"Breakpoint 3, ")
            self.assertSays(gdb("x/1i $pc"), r"mov +\$0x1,%eax" if n < 10 else r"nop")
        gdb("delete")
        self.assertExits(gdb, 0, f"asked: 20 0 - {results()}")

    @ulpf_only
    def test_a_breakpoint_is_deleted_when_its_code_is_new(self):
        gdb = self.session("asked")
        gdb("break *code")
        for _ in range(10):
            self.assertSays(gdb("continue"), r"Breakpoint 2, ")
        # Its stop is between the new code and the next call.
        gdb("watch counter")
        self.assertChange(gdb("continue"), 3, "counter", 10, 11)
        gdb("delete")
        self.assertSays(gdb("x/1i code"), r"nop")
        self.assertExits(gdb, 0, f"asked: 20 0 - {results()}")

    def test_detach_with_unreported_removals(self):
        gdb = self.session("asked")
        gdb("break tick")
        gdb("watch counter")
        for _ in range(3):
            gdb("continue")
            gdb("continue")
        gdb("delete")
        self.assertSays(gdb("detach"), r"Detaching|detached")
        gdb.server.wait()
        self.assertIn(f"asked: 20 0 - {results()}", gdb.server.stdout())

    def test_kill_with_unreported_removals(self):
        gdb = self.session("asked")
        gdb("break tick")
        for _ in range(3):
            gdb("continue")
        gdb("delete")
        self.assertSays(gdb("kill"), r"killed")
        gdb.server.wait()

    def test_threads_are_reported_as_they_are(self):
        _, typed = self.files()
        with open(typed + "2", "wb") as file:
            file.write(bytes(8))
        self.addCleanup(os.unlink, typed + "2")
        gdb = self.session("asked", typed + "2", typed)
        gdb("watch counter")
        for n in range(3):
            self.assertChange(gdb("continue"), 2, "counter", n, n + 1)
            self.assertEqual(gdb("info threads").count("Thread "), 2)
        # The other thread goes.
        writer = os.open(typed, os.O_RDWR)
        self.addCleanup(os.close, writer)
        os.write(writer, b"x")
        gdb("delete 2")
        gdb(f"break {line('asked.c', 'pthread_join(')}")
        self.assertSays(gdb("continue"), r"Breakpoint 3, main")
        self.assertSays(gdb("next"), r"printf")
        self.assertEqual(gdb("info threads").count("Thread "), 1)
        self.assertExits(gdb, 0, "asked: 20 20 x ")


class Packets(Case):
    def test_questions_between_other_packets(self):
        server = self.serve("asked")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        rsp("qSupported:multiprocess+;vContSupported+;swbreak+")
        sp = 0
        for n in range(6):
            stop = rsp("vCont;s")
            self.assertEqual(stop[:3], b"T05")
            sp = int.from_bytes(rsp("p7")[:16] and bytes.fromhex(rsp("p7").decode()), "little") - 64
            self.assertEqual(len(rsp(f"m{sp:x},8")), 16)
            value = f"{n:02x}" * 8
            self.assertEqual(rsp(f"M{sp:x},8:{value}"), b"OK")
            self.assertEqual(rsp(f"m{sp:x},8"), value.encode())
            self.assertIn(b"<thread ", rsp("qXfer:threads:read::0,1000"))
            self.assertIn(b"<thread ", rsp("qXfer:threads:read::0,1000"))
            self.assertEqual(rsp(f"m{sp:x},8"), value.encode())
        # A word between server and stub, not for a debugger.
        self.assertEqual(rsp(f"vUlpfAhead;m{sp:x},8"), b"")
        self.assertEqual(rsp(f"m{sp:x},8"), b"05" * 8)
