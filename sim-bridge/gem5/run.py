# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a static x86-64 program on a processor with user-level page faults.

    gem5.opt --listener-mode=on run.py [--port PLACE] [--cpu timing|atomic] [--stats] [--write-once RULE]
        [--watch ADDR:LEN[:KIND]]… PROG [ARGS…]

With --port (a number, or the path of a new socket) it waits there for a debugger. GDB itself finds breakpoints
and steps; watches it cannot set, because gem5 refuses its packets: `ulpf server --backend gem5` sets them with
`monitor ulpf watch`, which is answered here. The exit status is the program's."""

import argparse
import os
import signal
import struct
import sys

import m5
from m5.objects import *

parser = argparse.ArgumentParser()
parser.add_argument("--port", help="where to wait for a debugger")
parser.add_argument("--cpu", choices=["timing", "atomic"], default="timing")
parser.add_argument("--memory", default="2GiB")
parser.add_argument("--write-once", choices=["bit", "thesis", "corrected"], default="corrected",
                    help="what a handler that just returns has permitted: as the thesis first describes it, as in"
                         " its Figure 3.5, or so that every instruction ends")
parser.add_argument("--watch", action="append", default=[], metavar="ADDR:LEN[:KIND]")
parser.add_argument("--stats", action="store_true", help="counters to stderr at the end")
parser.add_argument("command", nargs=argparse.REMAINDER)
options = parser.parse_args()
command = options.command[1:] if options.command[:1] == ["--"] else options.command
if not command:
    parser.error("no program is named")


def fail(why):
    # (gem5 takes no text for an exit status.)
    print(why, file=sys.stderr)
    sys.exit(1)


def refused(path):
    """Why this is no program for us, or nothing."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64 or head[18:20] != b"\x3e\0":
                return f"{path} is no program for x86-64"
            offset, (size, count) = int.from_bytes(head[32:40], "little"), struct.unpack("<HH", head[54:58])
            file.seek(offset)
            headers = file.read(size * count)
    except OSError as error:
        return f"There is no program {path} that can be read: {error.strerror}"
    kinds = [int.from_bytes(headers[n:n + 4], "little") for n in range(0, len(headers), size or 1)]
    if 3 in kinds:  # PT_INTERP
        return f"{path} is dynamically linked, and here it has no libraries. Link it with -static"
    return None


def watched(spec):
    """(address, length, kind) of `ADDR:LEN[:KIND]`."""
    place, length, *kind = spec.split(":")
    if len(kind) > 1:
        raise ValueError
    return number(place), number(length), kind[0] if kind else "w"


def number(word):
    return int(word, 0)


if why := refused(command[0]):
    fail(f"{why}.")


class L1(Cache):
    size = "32KiB"
    assoc = 8
    tag_latency = 1
    data_latency = 1
    response_latency = 1
    mshrs = 4
    tgts_per_mshr = 20


system = System(mem_mode=options.cpu, mem_ranges=[AddrRange(options.memory)])
system.clk_domain = SrcClockDomain(clock="2GHz", voltage_domain=VoltageDomain())
system.cpu = X86TimingSimpleCPU() if options.cpu == "timing" else X86AtomicSimpleCPU()
system.cpu.mmu = UlpfMMU()
system.cpu.mmu.dtb.write_once = options.write_once
system.membus = SystemXBar()
system.cpu.icache, system.cpu.dcache = L1(), L1()
for cache, port in ((system.cpu.icache, system.cpu.icache_port), (system.cpu.dcache, system.cpu.dcache_port)):
    cache.cpu_side = port
    cache.mem_side = system.membus.cpu_side_ports
system.cpu.createInterruptController()
system.cpu.interrupts[0].pio = system.membus.mem_side_ports
system.cpu.interrupts[0].int_requestor = system.membus.cpu_side_ports
system.cpu.interrupts[0].int_responder = system.membus.mem_side_ports
system.memory = SimpleMemory(range=system.mem_ranges[0], port=system.membus.mem_side_ports)
system.system_port = system.membus.cpu_side_ports

tlb = system.cpu.mmu.dtb
system.workload = UlpfEmuLinux()
if options.port:
    system.workload.remote_gdb_port = int(options.port) if options.port.isdigit() else options.port
    system.workload.wait_for_remote_gdb = True
else:
    system.workload.remote_gdb_port = 0
process = Process(pid=100, cmd=command, executable=command[0])
process.drivers = [UlpfDriver(tlb=tlb)]
system.cpu.workload = process
system.cpu.createThreads()
root = Root(full_system=False, system=system)
# It says how long a tick is; the standard output is the program's.
sys.stdout.flush()
ours = os.dup(1)
os.dup2(2, 1)
m5.instantiate()
sys.stdout.flush()
os.dup2(ours, 1)
os.close(ours)


def monitor(text):
    """What `monitor TEXT` answers."""
    words = text.split()
    try:
        if words[:2] == ["ulpf", "stats"]:
            cycles = m5.curTick() // 500
            return f"cycles {cycles}\ninstructions {system.cpu.totalInsts()}\n{tlb.summary()}"
        if words[:1] == ["ulpf"] and len(words) == 5 and words[1] in ("watch", "unwatch"):
            change = tlb.watch if words[1] == "watch" else tlb.unwatch
            return change(number(words[2]), number(words[3]), words[4]) + "\n"
    except ValueError as error:
        return f"{error}\n"
    return "ulpf watch|unwatch ADDR LENGTH w|r|rw, ulpf stats\n"


for spec in options.watch:
    try:
        answer = tlb.watch(*watched(spec))
    except ValueError:
        answer = "this is no watch; ADDR:LEN or ADDR:LEN:KIND, with KIND w, r or rw"
    if answer != "ok":
        fail(f"--watch {spec}: {answer}")

while True:
    event = m5.simulate()
    cause = event.getCause()
    if not cause.startswith("GDB_MONITOR:"):
        break
    system.workload.sendToGdb(monitor(cause.removeprefix("GDB_MONITOR:")))

if options.stats:
    print(monitor("ulpf stats"), end="", file=sys.stderr)
if cause.startswith("SIGSEGV: "):
    print(f"{command[0]}: {cause}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)
if cause != "exiting with last active thread context":
    fail(f"gem5 ended: {cause}")
sys.exit(event.getCode())
