"""Other kernels: what ulpf does without any module, on each of those that Debian and Ubuntu have packaged, from the first one on
that can do it.

`tests/run --long test_kernels` boots them in a simulator (QEMU) with this machine's programs. The kernels come into build/kernel/of.
The table in docs/machines.md is of these tests.
"""

import os
import re
import sys
import traceback
import unittest

from kernel.test_backend import CASES, GDB_SESSIONS, ORACLE
from lib import vm
from lib.env import example, ulpf_only
from lib.guest import Guest, InGuest, run_sessions

TOOLS = ["/bin/bash", "/bin/sh", "/bin/sleep", "/usr/bin/perl"]
PROGRAMS = ["five", "structs", "locals", "reads", "heap1000", "bigarray", "crossing", "sysread", "barrage", "signals", "threads16",
            "registers", "children", "page_edge", "page_boundaries", "syscalls", "storm", "allocations", "uring", "uring_polled", "rseq", "spin"]


class Plain(InGuest):
    """Programs behave as without ulpf, in the machine."""

    def as_bare(self, specs, *program, options=(), without=None):
        """The same exit status and output, but for lines `without`."""
        def lines(said):
            return "\n".join(line for line in said.split("\n") if not without or not re.search(without, line))
        status, out, _ = self.guest.run(*program)
        expected = status, lines(out)
        watches = [word for spec in specs for word in ("-w", spec)]
        status, out, err = self.guest.run("/ulpf", "run", "-q", *options, *watches, "--", *program)
        out = lines(out)
        wrong = [f"bare: {a}\nulpf: {b}" for a, b in zip(expected[1].splitlines(), out.splitlines()) if a != b]
        self.assertFalse(wrong[:20], "\n".join(wrong[:20]))
        self.assertEqual((status, out), expected, err)
        return out, err

    def test_doctor(self):
        status, out, err = self.guest.run("/ulpf", "doctor")
        self.assertEqual(status, 0, out + err)
        self.assertSays(out, r"ok +kernel +Linux", "Watchpoints work on this machine")

    def test_programs(self):
        for program in "page_edge", "children", "threads16", "storm", "allocations":
            with self.subTest(program):
                self.as_bare(["heap:rw"], example(program))

    def test_patches_across_pages(self):
        _, err = self.as_bare(["counts:rw"], example("page_boundaries"))
        self.assertLess(int(re.search(r"([\d,]+) faults", err)[1].replace(",", "")), 2000, err)

    def test_system_calls(self):
        self.as_bare(["arena.hot:rw", "arena.alone:rw"], example("syscalls"))

    def test_io_uring(self):
        # Older ones register no buffers in shared memory, where ours are.
        fixed = r"^(un)?register: |^(read|write) fixed: " if self.guest.version < (5, 14) else None
        # Requests that nothing links complete in any order.
        for program, without in ("uring", fixed), ("uring_polled", r"^(nop|read|linked): "):
            for spec in "heap:rw", "watched:8192:rw":
                with self.subTest(program, spec=spec):
                    self.as_bare([spec], example(program), without=without)

    def test_restartable_sequences(self):
        with self.subTest("the C library's area"):
            self.as_bare(["shared.counts"], example("rseq"), "libc", "adds", "20")
        self.as_bare(["shared.counts"], example("rseq"), "own", "adds", "20", options=["--placement=guard"])

    def test_children_that_are_followed(self):
        self.as_bare(["heap:rw"], example("children"), options=["--follow"])

    def test_a_large_heap(self):
        script = "my %h; for my $n (1..3000) { $h{$n} = \"x\" x ($n % 50); } my $s = 0; $s += length $h{$_} for keys %h; print \"$s\\n\";"
        out, err = self.as_bare(["heap:rw"], "/usr/bin/perl", "-e", script)
        self.assertEqual(out, f"{sum(n % 50 for n in range(1, 3001))}\n")
        self.assertRegex(err, r"\d hits on 1 watch")

    def test_attach(self):
        script = (f"{example('spin')} & P=$!; sleep 1; /ulpf attach -q -w rounds $P 2>&1 & U=$!; sleep 4; "
                  "kill -TERM $U; wait $U; echo watched $?; sleep 1; kill -TERM $P; wait $P; echo ended $?")
        status, out, err = self.guest.run("/bin/bash", "-c", script)
        self.assertSays(out, "spin: up", "watched 0", "ended 143")
        hits = re.search(r"([\d,]+) hits? on 1 watch", out)
        self.assertGreater(int(hits[1].replace(",", "")), 20, out)

    def test_check(self):
        status, out, err = self.guest.run("/ulpf", "check", "--error-exitcode", "9", example("heap1000"))
        self.assertIn(status, (0, 9), err)
        self.assertSays(err, r"ulpf: .*errors?")

    def test_the_oracle(self):
        """Its fixed cases, and some random programs, judged in the machine: every hit is as it must be."""
        if not os.path.exists(ORACLE):
            self.skipTest("the oracle is not built (tests/all --only oracle)")
        for run in ["case", *CASES], ["one", "unicorn", "1"], ["one", "threads", "3"]:
            status, out, err = self.guest.run(ORACLE, "--ulpf", "/ulpf", *run)
            self.assertEqual(status, 0, out + err)


SESSIONS = {"Plain": (Plain, None)} | GDB_SESSIONS
Plain.__test__ = False  # It runs in the guest only.


@ulpf_only
class Kernels(unittest.TestCase):
    limit = 900
    night = "a dozen kernels in a simulator take an hour"

    def boot(self, archive, suite, version, options=""):
        try:
            kernel = vm.Foreign(archive, suite, version)
        except vm.Unavailable as why:
            self.skipTest(str(why))
        print(kernel.name, options)
        files = [*TOOLS, *([*CASES, ORACLE] if os.path.exists(ORACLE) else [])]
        return Guest(PROGRAMS, files, limit=self.limit - 30, options=options, kernel=kernel)

    def works(self, archive, suite, version, options=""):
        guest, verdicts = self.boot(archive, suite, version, options), {}
        try:
            verdicts.update(run_sessions(guest, SESSIONS, InGuest))
        except BaseException:
            verdicts["machine"] = ["failed", traceback.format_exc()]
        said = guest.close()
        counts = {what: sum(verdict == what for verdict, _ in verdicts.values()) for what in ("passed", "failed", "skipped")}
        print(f"{version}: {counts}", file=sys.stderr)
        failed = [f"{name}: {why}" for name, (verdict, why) in verdicts.items() if verdict == "failed"]
        self.assertFalse(failed, "\n".join(failed))
        self.assertTrue(vm.is_well(said), said)

    def test_memory_that_is_kept(self):
        """/proc/PID/mem changes nothing that is read-only, for debuggers neither."""
        self.works("debian", "trixie", "6.12", "proc_mem.force_override=never")

    def test_yama(self):
        """Permission to trace: yama's ptrace_scope, for root and for others."""
        guest = self.boot("ubuntu", "noble-updates", "6.8")
        nobody = ["/usr/bin/perl", "-e", '$( = 65534; $) = "65534 65534"; $< = 65534; $> = 65534; exec @ARGV']
        # (3 stays until the next boot.)
        for scope in range(4):
            guest.run("/bin/bash", "-c", f"echo {scope} > /proc/sys/kernel/yama/ptrace_scope")
            for who in [], nobody:
                with self.subTest(scope=scope, who=who[:1]):
                    status, _, err = guest.run(*who, "/ulpf", "run", "-q", "-w", "a", example("five"))
                    if scope < 2 or scope == 2 and not who:
                        self.assertRegex(err, "hits? on 1 watch")
                        continue
                    self.assertEqual(status, 2, err)
                    self.assertRegex(err, f"No program can be traced here: .*ptrace_scope is {scope}")
                    status, out, _ = guest.run(*who, "/ulpf", "doctor")
                    self.assertEqual(status, 1, out)
                    self.assertRegex(out, f"(no  |FAIL) +attaching .*ptrace_scope (is )?{scope}")
        self.assertTrue(vm.is_well(guest.close()))

    def refuses(self, archive, suite, version):
        """It says what is missing, and does not start the program."""
        guest = self.boot(archive, suite, version)
        status, out, err = guest.run("/ulpf", "run", "-q", "-w", "a", example("five"))
        doctor = guest.run("/ulpf", "doctor")
        said = guest.close()
        self.assertEqual((status, out), (2, ""), err)
        self.assertRegex(err, r"Linux 5\.11 or later")
        self.assertEqual(doctor[0], 1, doctor)
        self.assertRegex(doctor[1], r"Linux 5\.11 or later")
        self.assertTrue(vm.is_well(said), said)


WORKS = [
    ("ubuntu", "focal-updates", "5.11"),
    ("ubuntu", "focal-updates", "5.13"),
    ("ubuntu", "jammy-updates", "5.15"),
    ("ubuntu", "jammy-updates", "5.19"),
    ("debian", "bookworm", "6.1"),
    ("ubuntu", "jammy-updates", "6.2"),
    ("ubuntu", "jammy-updates", "6.5"),
    ("ubuntu", "noble-updates", "6.8"),
    ("ubuntu", "noble-updates", "6.11"),
    ("debian", "trixie", "6.12"),
    ("ubuntu", "noble-updates", "6.14"),
    ("ubuntu", "noble-updates", "6.17"),
    ("ubuntu", "noble-updates", "7.0"),
    ("debian", "trixie-backports", "7.1"),
    ("debian", "trixie-backports", "7.2"),
    ("debian", "trixie-backports", "7.3"),
]
REFUSES = [("ubuntu", "focal-updates", "5.4"), ("debian", "bullseye", "5.10")]


def define():
    for does, kernels in ("works", WORKS), ("refuses", REFUSES):
        for archive, suite, version in kernels:
            def test(self, does=does, kernel=(archive, suite, version)):
                getattr(self, does)(*kernel)
            setattr(Kernels, f"test_{version.replace('.', '_')}", test)


define()
