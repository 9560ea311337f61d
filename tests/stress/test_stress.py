"""Bounded stress: nothing is lost, nothing hangs, while everything happens at once.

None of these is timed: the counts are exact, and a hang is what the runner's limit finds.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

from lib.cases import SEEN, Case
from lib.env import PATIENCE, ULPF, bare, example, needs, ulpf_only
from lib.rsp import Rsp, wait_until
from lib.server import child_of, peek, stub_of


def counted(spec, *program, meanwhile=None):
    """(status, stdout, hits) of a run that only counts; `meanwhile(pid of the program)` happens to it."""
    with tempfile.NamedTemporaryFile() as log:
        with subprocess.Popen([ULPF, "run", "-q", "--no-summary", "--json", "--log", log.name, *[w for s in spec for w in ("-w", s)], "--",
                               example(program[0]), *program[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
            try:
                if meanwhile:
                    meanwhile(run, log.name)
                out = run.communicate(timeout=150 * PATIENCE)[0].decode()
            finally:
                if run.poll() is None:
                    run.kill()
        lines = [json.loads(line) for line in open(log.name)]
    hits = {}
    for watch in (w for line in lines if line["type"] == "summary" for w in line["watches"]):
        hits[watch["spec"]] = hits.get(watch["spec"], 0) + watch["hits"]  # each life after an exec has its own
    return run.returncode, out, hits


def pid_of(log):
    """The program's process ID, from the first line of the log."""
    text = []
    assert wait_until(lambda: text.append(open(log).readline()) or text[-1].endswith("\n"), 30)
    return json.loads(text[-1])["pid"]


@ulpf_only
class Stress(Case):
    limit = 200

    def test_watches_come_and_go_while_16_threads_store(self):
        """A real debugger sets and deletes watches on the neighbours; the watch that stays counts every store."""
        # How long a program of so many stores lives is the machine's affair.
        self.assertTrue(any(self.come_and_go(stores) > 10 for stores in (1_000_000, 10_000_000, 100_000_000)))

    def come_and_go(self, stores):
        """Number of watches deleted before the program's end."""
        gdb = self.session("threads16", str(stores))
        gdb("monitor ulpf placement guard")  # in debug registers most stores would not be seen at all
        said = gdb("monitor ulpf watch %#x 1 w" % gdb.address("cells[3]"))
        gdb("break _exit")
        deleted = 0
        for round in range(60):
            cell = (round * 7) % 16
            if cell == 3:
                continue
            gdb(f"watch cells[{cell}]")
            number = gdb.value("$bpnum")
            out = gdb("continue", 60)
            if "_exit" in out:
                break
            self.assertSays(out, rf"hit Hardware watchpoint {number}: cells\[{cell}\]")
            self.assertEqual(gdb.value("index"), cell)
            gdb(f"delete {number}")
            deleted += 1
        else:
            self.assertSays(gdb("continue", 120), r"_exit")
        stats = json.loads(gdb("monitor ulpf stats").strip())
        mine = [w["hits"] for w in stats["watches"] if w["id"] == json.loads(said.strip())["watch"]]
        self.assertEqual(mine, [stores])
        # Memory is as without watches: each cell holds its last store.
        self.assertExits(gdb, 0)
        self.assertEqual(gdb.server.stdout(), bare(example("threads16"), str(stores))[1])
        return deleted

    def test_200_threads(self):
        status, out, hits = counted(["count"], "thread_churn")
        self.assertEqual((status, out), bare(example("thread_churn")))
        self.assertEqual(hits["count"], 20 * sum(range(1, 11)))

    def test_200_threads_under_gdb(self):
        gdb = self.session("thread_churn")
        gdb("watch count if count > 300")
        for _ in range(3):
            out = gdb("continue", 90)
            self.assertGreater(int(re.search(r"New value = (\d+)", out).group(1)), 300, out)
        gdb("delete")
        self.assertExits(gdb, 0, "thread_churn: 200 threads, count 1100")

    def test_exec_and_exit_while_others_are_at_it(self):
        """One thread executes or ends the program while four others fault all the time."""
        for how, last, code in ("exec", "thread_churn: executed", 0), ("exit", "count 1100", 5):
            for watch in "count", "count:rw":
                with self.subTest(how=how, watch=watch):
                    status, out, hits = counted([watch], "thread_churn", how)
                    self.assertIn(last, out)
                    self.assertEqual(status, code, out)
                    self.assertGreater(hits[watch], 1100)

    def test_exit_and_exec_while_parked(self):
        """The program is killed, or made to exit, while all its threads rest."""
        gdb = self.session("thread_churn", "exec")
        gdb("watch spinning")
        self.assertSays(gdb("continue", 60), r"watchpoint 2: spinning")
        self.assertSays(gdb("info threads"), r"thread_churn")
        os.kill(gdb.server.program_pid, signal.SIGKILL)
        self.assertSays(gdb("continue", 30), r"Program terminated with signal SIGKILL")

    def test_signal_storm(self):
        """Alarms and a profiler's signals at 1 kHz, 2,000 queued signals in order, 4 threads that store."""
        stores = 20000
        status, out, hits = counted([f"cells[{n}][0]" for n in range(4)], "storm", str(stores))
        self.assertEqual(status, 0)
        self.assertEqual(out, f"storm: 2000 queued, 0 out of order, alarms seen, profiles seen, sum {4 * stores}\n")
        self.assertEqual(set(hits.values()), {stores}, hits)

    def test_signal_storm_under_gdb(self):
        """The same with a debugger that stops at watches now and then."""
        gdb = self.session("storm", "2000")
        gdb("handle all nostop noprint pass")
        gdb("watch cells[1][0] if cells[1][0] % 400 == 0")
        for value in 400, 800, 1200, 1600, 2000:
            self.assertSays(gdb("continue", 60), rf"New value = {value}")
        gdb("delete")
        self.assertExits(gdb, 0, "storm: 2000 queued, 0 out of order, alarms seen, profiles seen, sum 8000")

    def test_stopped_and_continued_from_outside(self):
        """kill -STOP and -CONT, again and again: the program goes on as before, and every store is counted."""
        stores = 5000

        def stop_and_go(run, log):
            pid = pid_of(log)
            for _ in range(25):
                if run.poll() is not None:
                    return
                try:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.01)
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    return
                time.sleep(0.01)

        status, out, hits = counted(["cells[3]"], "threads16", str(stores), meanwhile=stop_and_go)
        self.assertEqual((status, out), bare(example("threads16"), str(stores)))
        self.assertEqual(hits["cells[3]"], stores)


@ulpf_only
class Watchdog(Case):
    """Threads that cannot be stopped are named, and the debugger gets an answer."""

    limit = 180
    idle = True  # it waits for what the watchdogs wait for

    def state(self, pid):
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(") ", 1)[1][0]

    def interrupted_while_stopped(self):
        """Ctrl-C for a program that was stopped from outside (SIGSTOP): its threads cannot be stopped by the stub."""
        # Busy: what rests in a system call needs no help.
        gdb = self.session("threads16", "4000000000", options=SEEN)
        pid = gdb.server.program_pid
        self.resume(gdb)
        stored = bytearray(16)

        def all_have_stored():
            stored[:] = map(int.__or__, stored, peek(pid, "threads16", "cells", 16))
            return all(stored)
        self.assertTrue(wait_until(all_have_stored))
        os.kill(pid, signal.SIGSTOP)
        self.assertTrue(wait_until(lambda: self.state(pid) == "T"))
        gdb.interrupt()
        return gdb, pid

    def test_a_stopped_program_is_named(self):
        gdb, pid = self.interrupted_while_stopped()
        out = gdb.answer(60)
        self.assertSays(out, r"does not come to rest", rf"thread \d+ \(threads16\) is stopped by a signal \(T\): kill -CONT {pid}")
        # gdb has its prompt back although the program cannot come to rest; once it can, all is well.
        self.assertSays(out, rf"Process {pid} has not answered for \d+ s: .*kill -CONT {pid}")
        os.kill(pid, signal.SIGCONT)
        self.assertTrue(wait_until(lambda: "rip" in gdb("info registers rip"), 30), gdb.transcript)
        gdb("kill")

    def test_sigcont_in_time(self):
        gdb, pid = self.interrupted_while_stopped()
        time.sleep(1)  # A part of the ten seconds that are waited for it.
        os.kill(pid, signal.SIGCONT)
        self.assertSays(gdb.answer(30), r"SIGINT|Interrupt|stopped")
        self.assertSays(gdb("info threads"), r"Thread")
        gdb("kill")

    def test_a_hung_stub_does_not_hang_gdb(self):
        gdb = self.session("five")
        pid = gdb.server.program_pid
        stub = stub_of(pid)
        os.kill(stub, signal.SIGSTOP)
        out = gdb("x/2x $sp-3000", 60)
        self.assertSays(out, r"Cannot access memory")
        gdb.server.wait_for(rf"Process {pid} has not answered for \d+ s: the stub's task {stub} is stopped by a signal")
        os.kill(stub, signal.SIGCONT)
        # It answers again, and its late answer is ignored.
        self.assertEqual(gdb.value("a"), 10)
        os.kill(stub, signal.SIGSTOP)
        self.assertSays(gdb("kill", 60), r"killed")
        self.assertTrue(wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 20))

    def test_a_hung_stub_with_watches_does_not_hang_gdb(self):
        """gdb takes its watches away at each stop; what the stub has to hear of that does not keep gdb."""
        gdb = self.session("five")
        pid = gdb.server.program_pid
        stub = stub_of(pid)
        gdb("watch a")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        os.kill(stub, signal.SIGSTOP)
        self.assertSays(gdb("kill", 60), r"killed")
        self.assertTrue(wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 20))

    def test_a_resume_waits_for_a_hung_stub(self):
        """It has to hear of a removal first. Once it answers the program runs; until then the user can interrupt."""
        server = self.serve("spin")
        stub = stub_of(server.program_pid)
        client = Rsp(server.target, seconds=30)
        client("qSupported:vContSupported+")
        sp = int.from_bytes(bytes.fromhex(client("p7").decode()), "little")
        watch = f"2,{sp + 64:x},4"
        for interrupt in True, False:
            self.assertEqual((client("Z" + watch), client("z" + watch)), (b"OK", b"OK"))
            os.kill(stub, signal.SIGSTOP)
            said = bytes.fromhex(client("vCont;c")[1:].decode()).decode()
            self.assertRegex(said, rf"has not answered for \d+ s: the stub's task {stub} is stopped by a signal")
            if interrupt:
                client.raw(b"\3")
                self.assertRegex(bytes.fromhex(client.reply()[1:].decode()), b"Registers are not known until it answers")
                self.assertRegex(client.reply(), rb"^T02")
            os.kill(stub, signal.SIGCONT)
            if interrupt:
                self.assertEqual(client("p7"), sp.to_bytes(8, "little").hex().encode())
        self.assertTrue(wait_until(lambda: "spin: up" in server.stdout()))
        client.close()

    def test_a_late_answer_is_nobodys(self):
        """The server's own requests give up, too, and what comes later is not taken for another answer."""
        server = self.serve("five")
        pid = server.program_pid
        stub = stub_of(pid)
        client = Rsp(server.target, seconds=100)
        features = client("qSupported:multiprocess+")
        self.assertIn(b"PacketSize", features)
        os.kill(stub, signal.SIGSTOP)
        client("qSupported:multiprocess+")
        os.kill(stub, signal.SIGCONT)
        self.assertEqual(client("qSupported:multiprocess+"), features)
        self.assertRegex(client("qC"), rb"^QC")
        client.close()

    def test_a_stop_that_comes_late_is_nobodys(self):
        """The debugger vanishes while the program runs, and the stub does not bring it to rest in time."""
        server = self.serve("spin")
        pid = server.program_pid
        stub = stub_of(pid)
        client = Rsp(server.target)
        client("qSupported:multiprocess+;vContSupported+")
        client.raw(b"$vCont;c#a8")
        self.assertTrue(wait_until(lambda: "spin: up" in server.stdout()))
        os.kill(stub, signal.SIGSTOP)
        client.close()
        server.wait_for(r"(?s)Listening on port.*Listening on port", 60)
        os.kill(stub, signal.SIGCONT)
        client = Rsp(server.target, seconds=100)
        self.assertIn(b"PacketSize", client("qSupported:multiprocess+;vContSupported+"))
        self.assertRegex(client("?"), rb"^T02")
        self.assertRegex(client("qC"), rb"^QC")
        client.close()

    @needs("python3")
    def test_a_vfork_parent_rests(self):
        """Its child waits before its exec, until a pipe is opened. The parent is inside the kernel and cannot be
        moved, but the debugger has its prompt."""
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            gdb = self.session("/usr/bin/python3", "-c",
                               f"import os\nchild = os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, '{pipe}', os.O_RDONLY, 0)])\n"
                               "print(os.waitpid(child, 0)[1], 'waited')", stop=None, options=SEEN)
            pid = gdb.server.program_pid
            self.resume(gdb)
            self.assertTrue(wait_until(lambda: child_of(pid), 30))
            gdb.interrupt()
            self.assertSays(gdb.answer(), r"SIGINT")
            self.assertSays(gdb("info threads"), r"Thread")
            gdb.send("continue")
            open(pipe, "w").close()
            self.assertSays(gdb.answer(), r"exited normally")
            gdb.server.wait()
            self.assertEqual(gdb.server.stdout(), "0 waited\n")
