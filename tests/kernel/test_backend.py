"""`--backend kernel`: the same sessions as everywhere, with the kernel module serving the faults.

The server and the program run in a machine of their own (lib/guest.py), gdb outside. One boot serves all tests:
the first one runs everything there, and the others wait for the verdicts.
"""

import glob
import json
import os
import re
import subprocess
import traceback
import unittest

from gdb import test_kernel_writes, test_signals, test_threads, test_watch
from lib import dap, vm
from lib.env import LONG, ROOT, example
from lib.guest import Guest, InGuest, run_sessions

ORACLE = os.path.join(ROOT, "target", "release", "ulpf-oracle")


# Those of the oracle that take too long in a machine that is emulated: a minute where each other one takes eight seconds.
LONG_CASES = {"made-code-after-patches-were-off.case"}


def cases():
    """The oracle's, but for those in debug registers: these need no guards."""
    for path in sorted(glob.glob(os.path.join(ROOT, "oracle", "cases", "*.case"))):
        with open(path) as text:
            if os.path.basename(path) not in LONG_CASES and "registers" not in text.read().splitlines():
                yield path


CASES = list(cases())
WIDER = os.path.join(vm.BUILD, "wider")
# Tools in the machine.
TOOLS = ["/bin/sh", "/bin/true", "/bin/sleep", "/bin/chmod", "/sbin/rmmod", "/usr/bin/setpriv"]
# Sessions in which gdb's output must be the same there as here. By day these are the most different of the basic sessions,
# and those that are special for this back end. Each takes two and a half seconds in the machine. The nightly tests run more
# of them, or all (None).
GDB_SESSIONS = {
    "Spine": (test_watch.Watch, None if LONG else ["test_local_in_a_recursion", "test_true_read_watch"]),
    "KernelWrites": (test_kernel_writes.KernelWrites, ["test_read_into_a_watched_buffer", "test_kernel_reads_are_reads", *([
        "test_every_call_is_a_hit", "test_the_call_is_named"] if LONG else [])]),
    "Signals": (test_signals.Delivery, ["test_a_fault_while_a_watched_page_is_written", *([
        "test_watch_on_the_alternate_stack", "test_step_into_a_handler", "test_watch_in_a_handler"] if LONG else [])]),
    "Threads": (test_threads.Threads, ["test_every_store_of_a_thread_is_counted_once"]),
    "Processes": (test_threads.Processes, None if LONG else ["test_children_with_many_watches"]),
}
PROGRAMS = ["five", "structs", "locals", "reads", "heap1000", "bigarray", "crossing", "sysread", "barrage", "signals",
            "threads16", "registers", "spin", "children", "page_edge", "syscalls", "storm", "allocations", "sweep"]


class WithModule(InGuest):
    options = ["--backend", "kernel"]

    def backend(self, gdb):
        return json.loads(gdb("monitor ulpf backend").strip().splitlines()[-1])

    def assertHits(self, said, at_least):
        hits = re.search(r"ulpf: ([\d,]+) hits? on", said)
        self.assertGreaterEqual(int(hits[1].replace(",", "")), at_least, said)


class Own(WithModule):
    def test_accesses_come_without_a_signal(self):
        gdb = self.session("five", options=["--no-patch"])
        gdb("watch a")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        self.assertChange(gdb("continue"), 2, "a", 11, 12)
        backend = self.backend(gdb)
        self.assertEqual(backend["backend"], "kernel")
        self.assertGreaterEqual(backend["upcalls"], 2)
        self.assertExits(gdb, 0, "five: done")

    def run_there(self, *words):
        status, out, err = self.guest.run("/ulpf", "run", *words)
        print(out, err)
        return status, out, err

    def test_hot_stores_are_patched(self):
        """Code that lies where there is no block device, and pages of the device."""
        gdb = self.session("sweep", "4", options=["--placement=guard"])
        block = gdb.value("(long)block")
        for page in range(256):
            gdb(f"monitor ulpf watch {block + page * 4096 + 7} 1 w")
        gdb("tbreak printf")
        self.assertSays(gdb("continue", 200), r"Temporary breakpoint")
        stats, patches = (json.loads(re.search(r"{.*}", gdb(f"monitor ulpf {what}")).group()) for what in ("stats", "patch"))
        self.assertEqual([w["hits"] for w in stats["watches"]], [4] * 256)
        self.assertEqual(stats["false_positives"], 4 * 256 * 4095)
        self.assertGreaterEqual(patches["patches"], 1)
        self.assertLess(stats["faults"], 10_000)
        self.assertSays(gdb("continue"), r"exited normally")

    def test_run_says_which_it_is(self):
        status, out, err = self.run_there("--backend", "kernel", "-v", "-q", "-w", "a", example("five"))
        self.assertEqual((status, out), (0, "five: done\n"), err)
        self.assertIn("backend kernel: /dev/ulpf is there", err)
        self.assertIn("backend kernel: ", self.run_there("-v", "-q", "-w", "a", example("five"))[2])
        self.assertIn("backend signal: it was asked for",
                      self.run_there("--backend", "signal", "-v", "-q", "-w", "a", example("five"))[2])

    def counts(self, backend, patching):
        status, out, err = self.run_there("--backend", backend, *patching, "--json", "-q", "--log", "-", "-w", "unwatched:rw",
                                          "-w", "a:rw", "-w", "e", example("five"))
        self.assertEqual(status, 0, err)
        summary = next(json.loads(line) for line in out.splitlines() if line.startswith('{"type":"summary"'))
        return [{key: watch[key] for key in ("spec", "hits", "silent")} for watch in summary["watches"]]

    def test_the_same_hits_as_by_signals(self):
        for patching in [], ["--no-patch"]:
            counted = self.counts("kernel", patching)
            self.assertEqual(len(counted), 3)
            self.assertEqual(counted, self.counts("signal", patching))

    def as_bare(self, specs, program, at_least=1):
        expected = self.guest.run(example(program))[:2]
        watches = [word for spec in specs for word in ("-w", spec)]
        status, out, err = self.run_there("--backend", "kernel", "-q", *watches, example(program))
        wrong = [f"bare: {a}\nulpf: {b}" for a, b in zip(expected[1].splitlines(), out.splitlines()) if a != b]
        self.assertFalse(wrong[:20], "\n".join(wrong[:20]))
        self.assertEqual((status, out), expected)
        self.assertHits(err, at_least)

    def test_system_calls_are_as_bare(self):
        """The kernel reads and writes closed pages by the alias: nothing fails, nothing is short."""
        self.as_bare(["arena.hot:rw", "arena.alone:rw"], "syscalls")

    def test_programs_are_as_bare_with_their_heap_watched(self):
        for program in ["page_edge", "children", "threads16", *(["storm", "allocations"] if LONG else [])]:
            with self.subTest(program):
                self.as_bare(["heap:rw"], program, 0)

    def test_the_oracle(self):
        """A random program, by night more and its fixed cases, judged in the machine: every hit is as it must be."""
        if not os.path.exists(ORACLE):
            self.skipTest("the oracle is not built (tests/all --only oracle)")
        runs = [["one", "threads", "3"], *([["one", "unicorn", "1"], ["case", *CASES]] if LONG else [])]
        for run in runs:
            status, out, err = self.guest.run(ORACLE, "--ulpf", "/ulpf", *run)
            self.assertEqual(status, 0, f"{run}\n{out}\n{err}")

    def test_doctor_knows_it(self):
        said = self.guest.run("/ulpf", "doctor")[1]
        self.assertSays(said, r"ok +/dev/ulpf +there, and it may be used", r"backend `kernel`")


class Others(WithModule):
    """Programs that run beside a shell."""

    def shell(self, script):
        """Result of a shell in the machine: (status, standard output, standard error)."""
        status, out, err = self.guest.run("/bin/sh", "-c", script)
        print(script, status, out, err, sep="\n")
        return status, out, err

    def until_written(self, file):
        """A command of the shell that waits for a first line in this file, or for a minute, on a machine that keeps its time."""
        return f"N=0; while [ $N -lt 300 ] && ! read -r line <{file}; do N=$((N+1)); /bin/sleep 0.2; done; "

    def until_logged(self, file, count):
        """The same for so many lines."""
        return (f"N=0; while [ $N -lt 300 ]; do L=0; while read -r line; do L=$((L+1)); done <{file}; "
                f"[ $L -ge {count} ] && break; N=$((N+1)); /bin/sleep 0.2; done; ")

    def test_attach(self):
        """A program that runs already gets its pages from the device, and lives on without them."""
        status, out, err = self.shell(
            f"{example('spin')} & P=$!; sleep 1; /ulpf attach --backend kernel -v -l /tmp/hits -w rounds $P 2>/tmp/attached & U=$!; "
            + self.until_written("/tmp/attached") + self.until_logged("/tmp/hits", 100) +
            "kill -TERM $U; wait $U; echo watched $?; sleep 1; kill -TERM $P; wait $P; echo ended $?; "
            "while read -r said; do echo \"$said\" >&2; done </tmp/attached")
        self.assertIn("backend kernel: /dev/ulpf is there", err)
        self.assertHits(err, 100)
        self.assertEqual(out, "spin: up\nwatched 0\nended 143\n")
        self.assertEqual(status, 0)

    def test_the_module_stays_while_a_program_is_watched(self):
        status, out, err = self.shell(
            f"/ulpf run --backend kernel -v -l /tmp/run.log -w rounds {example('spin')} 2>/tmp/run & U=$!; " + self.until_written("/tmp/run") +
            self.until_logged("/tmp/run.log", 100) + "/sbin/rmmod ulpf; echo rmmod $?; sleep 1; kill -TERM $U; wait $U; echo ended $?; "
            "while read -r said; do echo \"$said\" >&2; done </tmp/run")
        self.assertIn("Module ulpf is in use", err)
        self.assertIn("backend kernel: ", err)
        self.assertHits(err, 100)
        self.assertEqual(out, "spin: up\nrmmod 1\nended 143\n")
        self.assertEqual(status, 0)


class Refused(WithModule):
    """The device is there, and may not be opened."""

    def setUp(self):
        super().setUp()
        self.assertEqual(self.guest.run("/bin/chmod", "600", "/dev/ulpf")[0], 0)
        self.addCleanup(self.guest.run, "/bin/chmod", "666", "/dev/ulpf")

    def as_somebody(self, *words):
        return self.guest.run("/usr/bin/setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "/ulpf", *words)

    def test_asked_for_it_is_refused(self):
        for command in ["run", "-w", "a", example("five")], ["server", "/tmp/refused", example("five")]:
            with self.subTest(command[0]):
                status, out, err = self.as_somebody(command[0], "--backend", "kernel", *command[1:])
                self.assertEqual(status, {"run": 2, "server": 1}[command[0]])
                self.assertRegex(err, "cannot be used: /dev/ulpf may not be opened by this user; join the group that owns it")
                self.assertNotIn("five: done", out)

    def test_auto_falls_back_and_says_why(self):
        status, out, err = self.as_somebody("run", "-v", "-q", "-w", "a", example("five"))
        self.assertEqual((status, out), (0, "five: done\n"), err)
        self.assertIn("backend signal: /dev/ulpf may not be opened by this user", err)
        self.assertHits(err, 2)
        self.assertSays(self.as_somebody("doctor")[1], r"/dev/ulpf +may not be opened by this user")


class Settings(WithModule):
    """Settings of the administrator."""

    NOEXEC = "/proc/sys/vm/memfd_noexec"
    EARLY = "/sys/module/ulpf/parameters/early"

    def write(self, path, value):
        self.assertEqual(self.guest.run("/bin/sh", "-c", f"echo {value} > {path}"), (0, "", ""))

    def there(self, path):
        return self.guest.run("/bin/sh", "-c", f"test -e {path}")[0] == 0

    def test_doctor_says_whether_upcalls_come_early(self):
        if not self.there(self.EARLY):
            self.skipTest("this kernel cannot trace functions")
        self.addCleanup(self.write, self.EARLY, "Y")
        for value, said in ("N", r"-     early upcalls +off .*\n.*echo Y . sudo tee " + self.EARLY), ("Y", r"ok    early upcalls +on "):
            self.write(self.EARLY, value)
            status, out, _ = self.guest.run("/ulpf", "doctor")
            self.assertEqual(status, 0)
            self.assertSays(out, said)

    def test_memory_files_that_shall_not_be_executed(self):
        """vm.memfd_noexec: 1 changes nothing for us; with 2 we work, or say that this is why not."""
        if not self.there(self.NOEXEC):
            self.skipTest("this kernel has no vm.memfd_noexec (6.3 or later: make kernel-test KERNEL=newer)")
        # Programs with a handler and without take turns here, and each turn would patch the kernel's code. If each of
        # QEMU's processors is a thread, it sometimes executes the old code (seen: an int3 that was gone).
        if self.there(self.EARLY):
            self.write(self.EARLY, "N")
            self.addCleanup(self.write, self.EARLY, "Y")
        self.addCleanup(self.write, self.NOEXEC, "0")
        for value in "1", "2":
            self.write(self.NOEXEC, value)
            for backend in "kernel", "signal":
                for patching in [], ["--no-patch"]:
                    status, out, err = self.guest.run("/ulpf", "run", "--backend", backend, *patching, "-q", "-w", "a", example("five"))
                    if value == "2" and status:
                        self.assertIn("vm.memfd_noexec", err)
                        continue
                    self.assertEqual((status, out), (0, "five: done\n"), err)
                    self.assertHits(err, 2)
            self.assertSays(self.guest.run("/ulpf", "doctor")[1], r"memfd +available" if value == "1" else r"memfd ")


class State(WithModule):
    def test_a_program_that_asks_for_more_state_gets_signals_again(self):
        """The processor here has no AMX, and refuses; the request alone is what counts."""
        gdb = self.session(WIDER, stop="main", options=["--no-patch", "--placement=guard"])
        gdb("watch a")
        gdb("ignore 2 19")
        gdb("continue")
        self.assertEqual(gdb.value("a"), 20)
        backend = self.backend(gdb)
        self.assertEqual(backend["backend"], "kernel")
        self.assertNotIn("come by a signal", backend["why"])
        before = backend["upcalls"]
        self.assertGreaterEqual(before, 39)
        gdb("continue")
        self.assertEqual(gdb.value("a"), 21)
        backend = self.backend(gdb)
        self.assertIn("accesses come by a signal, because the program's state (AMX", backend["why"])
        gdb("ignore 2 18")
        gdb("continue")
        self.assertEqual(gdb.value("a"), 40)
        # Upcalls from before the request.
        self.assertLess(self.backend(gdb)["upcalls"] - before, 5)
        gdb("delete")
        self.assertExits(gdb, 0, "wider: refused")


class Adapter(WithModule):
    """`ulpf dap` out here, the server with the module in the machine."""

    def test_data_breakpoints(self):
        server = self.serve("five")
        adapter = dap.Adapter()
        self.addCleanup(adapter.close)
        adapter.initialize()
        adapter.ask("attach", address=server.target, program=example("five"), gdbArgs=["-nx"],
                    initCommands=["set remotetimeout 60"])
        adapter.event("initialized")
        watch, = adapter.set_watches(adapter.watch("a"))
        adapter.ask("configurationDone")
        for text in "a: 10 → 11", "a: 11 → 12":
            stop = adapter.event("stopped")
            self.assertEqual((stop["reason"], stop.get("hitBreakpointIds")), ("data breakpoint", [watch]), stop)
            self.assertIn(text, stop["text"])
            said = adapter.ask("evaluate", expression="monitor ulpf backend", context="repl")["result"]
            self.assertEqual(json.loads(said.strip().splitlines()[-1])["backend"], "kernel")
            adapter.ask("continue", threadId=1)
        self.assertEqual(adapter.exited(), 0)
        self.assertEqual(adapter.wrong, [])


SESSIONS = GDB_SESSIONS | {case.__name__: (case, None) for case in (Own, Others, Refused, Settings, State, Adapter)}




def run_all():
    """{"Spine.test_one_watch": [verdict, what was said]}, and what the machine said at its end."""
    verdicts = {}
    subprocess.run(["cc", "-O1", "-g", "-o", WIDER, os.path.join(ROOT, "tests", "kernel", "wider.c")], check=True)
    files = [*TOOLS, WIDER, *([*CASES, ORACLE] if os.path.exists(ORACLE) else [])]
    # (Well before that of the test, so that what a machine said is seen.)
    guest = Guest(PROGRAMS, files, limit=Backend.limit * 2 / 3)
    try:
        verdicts.update(run_sessions(guest, SESSIONS, WithModule))
    except BaseException:
        verdicts["machine"] = ["failed", traceback.format_exc()]
    return verdicts, guest.close()


def all_verdicts():
    """Its answer of this run of the tests."""
    return json.loads(vm.once("backend", lambda: json.dumps(run_all())))


class Backend(unittest.TestCase):
    limit = 600
    larger = True
    costs = "whichever of them comes first boots a simulated machine, which runs all of them"

    def test_the_kernel_does_not_complain(self):
        """No warning, and the module can be unloaded when all programs have ended."""
        verdicts, said = all_verdicts()
        print(said)
        self.assertNotIn("machine", verdicts, verdicts.get("machine"))
        self.assertTrue(vm.is_well(said), "the last lines say why")


def case(group, name):
    def run(self):
        verdicts, said = all_verdicts()
        verdict, why = verdicts.get(f"{group}.{name}", ("failed", f"the machine ended before\n{said}"))
        if verdict == "skipped":
            self.skipTest(why)
        self.assertEqual(verdict, "passed", why)
    return run


def define():
    for group, (inside, wanted) in SESSIONS.items():
        if inside.__module__ == __name__:
            inside.__test__ = False  # It runs in the guest only.
        members = {name: case(group, name) for name in wanted or unittest.defaultTestLoader.getTestCaseNames(inside)}
        globals()["Backend" + group] = type("Backend" + group, (unittest.TestCase,),
                                            {"limit": Backend.limit, "larger": True, "__module__": __name__, **members})


define()
