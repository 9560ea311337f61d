"""`ulpf server --backend sim`: real gdb on the simulated processor."""

import subprocess
import tempfile

from lib.bridge import needs_sim, static
from lib.cases import Case
from lib.env import ULPF, example, ulpf_only
from lib.machine import Machine
from lib.rsp import Rsp, frame

SIM = ["--backend", "sim"]


def symbol(path, name):
    for text in subprocess.run(["nm", path], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        if text.endswith(f" {name}"):
            return int(text.split()[0], 16)
    raise AssertionError(f"no {name} in {path}")


@ulpf_only
@needs_sim
class Sim(Machine, Case):
    OPTIONS = SIM

    def test_what_the_kernel_writes(self):
        gdb = self.session(static("alone"), options=SIM)
        gdb("watch -location *(char (*)[64])buf")
        self.assertSays(gdb("continue"), r"watchpoint 2: ", r"New value = ")
        self.assertSays(gdb("monitor ulpf hits 1"), r"1 hits", r"\+4 .*\(system call\)")
        gdb("delete")
        self.assertExits(gdb, 3, "alone: done")

    def test_monitor(self):
        gdb = self.session(static("five"), options=SIM)
        gdb("watch a")
        gdb("watch unwatched[70]")
        self.assertSays(gdb("print $xmm0"), r"v4_float")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        self.assertSays(gdb("monitor ulpf backend"), r"unicorn: ulpf-sim .*simulated", r"as many as there is memory for")
        out = gdb("monitor ulpf stats")
        self.assertSays(out, r"instructions +\d+", r"tlb misses +\d+", r"faults +[1-9]")
        self.assertSays(gdb("monitor ulpf stats json"), r'\{.*"cycles":\d+.*"watches":2')
        out = gdb("monitor ulpf hits")
        self.assertSays(out, r"1 hits", r"write 0x[0-9a-f]+ \+4  0a000000 -> 0b000000")
        self.assertSays(gdb("monitor ulpf levitate"), r"no command `ulpf levitate`", r"ulpf help")
        address = gdb.address("b")
        self.assertSays(gdb(f"monitor ulpf watch {address:#x} 4 w stop"), r'"watch":3')
        self.assertSays(gdb("continue"), r"SIGTRAP", r"main")
        self.assertEqual(gdb.value("b"), 21)
        gdb("monitor ulpf unwatch 3")
        self.assertSays(gdb("monitor ulpf unwatch 3"), r"no such watch")
        self.assertSays(gdb("monitor ulpf watch 0x10 4 w"), r"nothing is mapped at 0x10")

    def test_ten_thousand_watches(self):
        program = static("alone")
        server = self.serve(program, options=SIM)
        rsp = Rsp(server.target, seconds=60)
        rsp.no_ack()
        cells = symbol(program, "cells")
        for n in range(10000):
            self.assertEqual(rsp(f"Z2,{cells + 4 * n:x},4"), b"OK")
        for n in (1234, 9999):
            self.assertRegex(rsp("vCont;c"), rb"^T05.*watch:%x;" % (cells + 4 * n))
            # Taken away and put back, as gdb does at every stop: the machine hears nothing of it.
            for letter in "zZ":
                for m in range(10000):
                    rsp.raw(frame(f"{letter}2,{cells + 4 * m:x},4"))
                rsp.expect(frame("OK"), 10000)
        self.assertIn('"watches":10000', rsp.monitor("ulpf stats json"))
        for n in range(10000):
            self.assertEqual(rsp(f"z2,{cells + 4 * n:x},4"), b"OK")
        self.assertEqual(rsp("vCont;c"), b"W03")
        self.assertIn('"watches":0', rsp.monitor("ulpf stats json"))

    def test_a_debugger_that_has_gone_leaves_nothing(self):
        program = static("five")
        server = self.serve(program, options=SIM)
        rsp = Rsp(server.target)
        rsp.no_ack()
        for packet in (f"Z0,{symbol(program, 'ready'):x},1", f"Z1,{symbol(program, 'main'):x},1", f"Z2,{symbol(program, 'a'):x},4"):
            self.assertEqual(rsp(packet), b"OK")
        rsp.close()
        server.wait_for(r"will reopen the connection")
        again = Rsp(server.target)
        self.addCleanup(again.close)
        again.no_ack()
        self.assertEqual(again("vCont;c"), b"W00")

    def test_run_and_run_again(self):
        server = self.serve(options=[*SIM, "--multi"])
        gdb = self.gdb()
        program = static("five")
        gdb(f"file {program}")
        gdb(f"target extended-remote {server.target}")
        gdb(f"set remote exec-file {program}")
        gdb("break ready")
        for _ in range(2):
            self.assertSays(gdb("run"), r"Breakpoint 1, ready")
        gdb("watch a")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        self.assertSays(gdb("kill"), r"killed")

    def test_ulpf_gdb(self):
        done = subprocess.run([ULPF, "gdb", "--backend", "sim", "-nx", "-q", "-batch", "-ex", "set debuginfod enabled off",
                               "-ex", "break ready", "-ex", "run", "-ex", "watch a", "-ex", "continue", "-ex", "kill",
                               static("five")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertSays(done.stdout, r"Breakpoint 1, ready", r"Hardware watchpoint 2: a", r"Old value = 10", r"New value = 11")


@ulpf_only
class Refusals(Case):
    def refused(self, *words, env=None):
        server = self.serve(*words, options=SIM, wait=False, env=env)
        self.assertEqual(server.wait(), 1)
        return server.said

    @needs_sim
    def test_programs_that_it_cannot_run(self):
        self.assertSays(self.refused(example("five")), r"The program cannot be loaded: .*dynamic")
        self.assertSays(self.refused(example("tiny32")), r"The program cannot be loaded: ")
        self.assertSays(self.refused("/nowhere/program"), r"There is no program /nowhere/program")

    def test_no_simulator(self):
        with tempfile.TemporaryDirectory() as elsewhere:
            alone = f"{elsewhere}/ulpf"
            subprocess.run(["cp", ULPF, alone], check=True)
            done = subprocess.run([alone, "server", *SIM, "127.0.0.1:0", example("five_static")],
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=30,
                                  env={"PATH": "/usr/bin:/bin"})
        self.assertEqual(done.returncode, 1)
        self.assertSays(done.stderr, r'The backend "sim" needs ulpf-sim, .* `make sim`')

    def test_what_does_not_go_with_it(self):
        server = self.serve(options=[*SIM, "--attach"], after=["1"], wait=False)
        self.assertEqual(server.wait(), 1)
        self.assertSays(server.said, r"--attach goes with the programs of this machine")
