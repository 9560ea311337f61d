"""Children that share our memory until they execute something: followed through vfork, posix_spawn,
system and popen into the new program."""

import os
import signal
import subprocess
import tempfile
import unittest

from lib.cases import Case
from lib.env import PATIENCE, ULPF, example, ulpf_only
from lib.rsp import Rsp, wait_until


class VforkChild(Case):
    FIVE = example("five")

    def follow(self, how, *program, **options):
        gdb = self.session("launch", how, *(program or [self.FIVE]), **options)
        gdb("set follow-fork-mode child")
        return gdb

    def assert_in_five(self, gdb):
        """gdb is in the child's new program, and watches there."""
        gdb("tbreak five.c:ready")
        self.assertSays(gdb("continue"), r"Attaching after .* (v?fork) to child",
                        r"is executing new program: .*/five", r"Temporary breakpoint 2.* ready")
        gdb("up")
        gdb("watch a")
        self.assertChange(gdb("continue"), 3, "a", 10, 11)
        gdb("delete")

    def assert_goes_on(self, gdb, how, status=0, in_child=0):
        """The parent, which is no longer debugged."""
        said = f"launch: {how}, status {status}, in child {in_child}"
        self.assertTrue(wait_until(lambda: said in gdb.server.stdout()), gdb.server.stdout())

    def test_into_the_new_program(self):
        for how, in_child in ("vfork", 3), ("spawn", 0):
            with self.subTest(how):
                gdb = self.follow(how)
                self.assert_in_five(gdb)
                self.assertSays(gdb("info inferiors"), r"  1 +<null>", r"\* 2 +process \d+ .*five")
                self.assertSays(gdb("continue"), r"Inferior 2 .* exited normally")
                self.assert_goes_on(gdb, how, in_child=in_child)

    def test_by_way_of_a_shell(self):
        """system() and popen(): the shell is followed first, and then what it executes."""
        for how in "system", "popen":
            with self.subTest(how):
                gdb = self.follow(how, f"exec {self.FIVE}")
                self.assert_in_five(gdb)
                self.assertSays(gdb("continue"), r"Inferior 2 .* exited normally")
                self.assert_goes_on(gdb, how)

    def test_an_exec_that_fails(self):
        """The child goes on as it is, and the next exec is followed."""
        for how, in_child in ("missing", 3), ("spawnp", 0):
            with self.subTest(how):
                gdb = self.follow(how)
                self.assert_in_five(gdb)
                gdb("continue")
                self.assert_goes_on(gdb, how, in_child=in_child)

    def test_catch_exec(self):
        gdb = self.follow("spawn")
        gdb("catch exec")
        self.assertSays(gdb("continue"), r"Thread 2.1 .* hit Catchpoint 2 \(exec'd .*/five\)")
        self.assertSays(gdb("info threads"), r"\* 2.1 ")
        gdb("delete")
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited normally")
        self.assert_goes_on(gdb, "spawn")

    def test_before_its_exec(self):
        """In its parent's memory it can be stopped, stepped, watched and looked at."""
        gdb = self.follow("vfork")
        gdb("break before_exec")
        gdb("watch in_child")
        self.assertSays(gdb("continue"), r"Breakpoint 2, before_exec \(how=2\)|hit Breakpoint 2, before_exec \(how=2\)")
        self.assertSays(gdb("info threads"), r"\* 2.1 ")
        self.assertSays(gdb("next"), r"in_child", r"Old value = 0", r"New value = 1")
        self.assertSays(gdb("continue"), r"in_child", r"Old value = 1", r"New value = 3")
        self.assertSays(gdb("print in_child"), r"= 3")
        self.assertSays(gdb("bt"), r"before_exec", r"vforked", r"main")
        gdb("set var in_child = 30")
        gdb("delete")
        self.assertSays(gdb("continue"), r"is executing new program", r"Inferior 2 .* exited normally")
        self.assert_goes_on(gdb, "vfork", in_child=30)

    def test_without_exec(self):
        gdb = self.follow("exit")
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited with code 07")
        self.assert_goes_on(gdb, "exit", status=7, in_child=3)

    def test_both(self):
        """`set detach-on-fork off`: the parent stays, and its watch fires when it is its turn."""
        gdb = self.follow("spawn", extended=True)
        gdb("set detach-on-fork off")
        self.assert_in_five(gdb)
        self.assertSays(gdb("info inferiors"), r"  1 +process \d+ .*launch", r"\* 2 +process \d+ .*five")
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited normally")
        self.assertSays(gdb("inferior 1"), r"Switching to inferior 1")
        gdb("watch launched")
        self.assertChange(gdb("continue"), 4, "launched", 0, 1)
        gdb("delete")
        self.assertSays(gdb("continue"), r"Inferior 1 .* exited normally")
        self.assert_goes_on(gdb, "spawn")

    def test_both_run(self):
        """`set schedule-multiple on`: the child is followed while the parent is the one in front."""
        gdb = self.session("launch", "vfork", self.FIVE, extended=True)
        gdb("set detach-on-fork off")
        gdb("set schedule-multiple on")
        gdb("break five.c:ready")
        gdb("watch launched")
        self.assertSays(gdb("continue"), r"New inferior 2", r"is executing new program", r"Thread 2.1 .* hit Breakpoint 2")
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited normally")
        self.assertSays(gdb("inferior 1"), r"Switching to inferior 1")
        self.assertChange(gdb("continue"), 3, "launched", 0, 1)
        gdb("delete")
        self.assertSays(gdb("continue"), r"Inferior 1 .* exited normally")
        self.assert_goes_on(gdb, "vfork", in_child=3)

    def test_one_of_many(self):
        """Four threads spawn at once; the first child is followed, and the others run unwatched."""
        gdb = self.follow("threads")
        self.assert_in_five(gdb)
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited normally")
        self.assert_goes_on(gdb, "threads")

    def test_kill_the_child(self):
        gdb = self.follow("vfork", extended=True)
        gdb("set detach-on-fork off")
        gdb("break before_exec")
        self.assertSays(gdb("continue"), r"Breakpoint 2.*before_exec")
        gdb("kill inferiors 2")
        self.assertSays(gdb("info inferiors"), r" 2 +<null>")
        gdb("inferior 1")
        gdb("delete")
        self.assertSays(gdb("continue"), r"Inferior 1 .* exited normally")
        self.assert_goes_on(gdb, "vfork", status=-9, in_child=0)

    def test_let_go_of_the_child(self):
        gdb = self.follow("vfork", extended=True)
        gdb("set detach-on-fork off")
        gdb("break before_exec")
        self.assertSays(gdb("continue"), r"Breakpoint 2.*before_exec")
        gdb("delete")
        gdb("detach inferiors 2")
        gdb("inferior 1")
        gdb("set detach-on-fork on")
        self.assertSays(gdb("continue"), r"Inferior 1 .* exited normally")
        self.assert_goes_on(gdb, "vfork", in_child=3)

    def test_ctrl_c(self):
        """It stops the new program; and before, the child in its parent's memory."""
        gdb = self.follow("spawn", "/bin/sleep", "100")
        gdb("catch exec")
        self.assertSays(gdb("continue"), r"Catchpoint 2 \(exec'd .*sleep\)")
        gdb("kill")
        self.assert_goes_on(gdb, "spawn", status=-9)

    @ulpf_only
    @unittest.skipUnless(os.stat("/bin/mount").st_mode & 0o4000, "mount is no set-user-ID program here")
    def test_what_cannot_be_followed(self):
        """A 32-bit program: the child runs on, the user sees a message, and its end is reported."""
        gdb = self.follow("vfork", example("tiny32"))
        out = gdb("continue")
        self.assertSays(out, r"tiny32 and runs on unwatched: .*32-bit program", r"Inferior 2 .* exited")

    def test_a_client_that_vanishes(self):
        """With the child followed, but not yet another program: both go on alone with the next client."""
        server = self.serve("launch", "vfork", self.FIVE, options=("--multi",))
        rsp = Rsp(server.target)
        rsp("qSupported:multiprocess+;fork-events+;vfork-events+;exec-events+")
        stop = rsp("vCont;c")
        self.assertRegex(stop, rb"T05.*vfork:p")
        child = stop.partition(b"vfork:")[2].partition(b";")[0]
        self.assertEqual(rsp(b"Hg" + child), b"OK")
        self.assertRegex(rsp("g"), rb"[0-9a-f]{300}")
        rsp.close()
        server.wait_for(r"reopen the connection")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        rsp("qSupported:multiprocess+")
        rsp("QPassSignals:14")  # SIGCHLD, as the protocol numbers it
        self.assertRegex(rsp("vCont;c"), rb"W00")
        self.assertIn("launch: vfork, status 0, in child 3", server.stdout())


class NotFollowed(Case):
    """vfork children that gdb lets go run through our breakpoints."""

    def test_one_after_the_other(self):
        gdb = self.session("busy_calls", "children")
        gdb("break _exit")
        self.assertSays(gdb("continue", 60), r"Breakpoint 2[.,].*_exit")
        self.assertIn("busy_calls: ok", gdb.server.stdout())
        gdb("delete")
        self.assertExits(gdb)

    def test_several_at_once(self):
        """Also where a watch and a breakpoint meet them, and their parent's threads step over both."""
        for events in "on", "off":
            with self.subTest(f"told of vfork: {events}"):
                gdb = self.gdb()
                gdb(f"set remote vfork-event-feature-packet {events}")
                server = self.serve("launch", "threads", example("five"))
                gdb.server = server
                gdb(f"file {example('launch')}")
                gdb(f"target remote {server.target}")
                gdb("tbreak ready")
                gdb("continue")
                gdb("break execve")
                gdb("watch launched")
                self.assertChange(gdb("continue"), 3, "launched", 0, 1)
                gdb("delete")
                self.assertExits(gdb, 0, "launch: threads, status 0")


class Attached(Case):
    def test_follow_from_an_attached_program(self):
        """The same for a process that ulpf has attached to."""
        program = subprocess.Popen(["/bin/sh", "-c", f"read line; exec {example('launch')} spawn {example('five')}"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(lambda: (program.kill(), program.wait(), program.stdout.close()))
        server = self.serve(options=("--attach", str(program.pid)), wait=True)
        gdb = self.gdb()
        gdb.server = server
        gdb(f"target remote {server.target}")
        program.stdin.write(b"go\n")
        program.stdin.close()
        gdb("set follow-fork-mode child")
        gdb("break five.c:ready")
        self.assertSays(gdb("continue", 60), r"is executing new program: .*/launch",
                        r"is executing new program: .*/five", r"Breakpoint 1.* ready")
        gdb("delete")
        self.assertSays(gdb("continue"), r"Inferior 2 .* exited normally")
        self.assertEqual(program.wait(60 * PATIENCE), 0)
        self.assertIn(b"launch: spawn, status 0", program.stdout.read())


@ulpf_only
class Orphan(Case):
    """The child goes on when its parent has been killed, as it does alone, though the stub's task ends with the parent."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="ulpf-test-")
        self.addCleanup(folder.cleanup)
        self.mark = os.path.join(folder.name, "mark")
        self.words = "/bin/sh", "-c", f"echo gone on > {self.mark}"

    def assert_goes_on(self):
        self.assertTrue(wait_until(lambda: os.path.exists(self.mark), 20), "the child does not go on")

    def stopped(self):
        """gdb has interrupted the parent in its vfork; the child has stopped with it."""
        gdb = self.session("orphan", *self.words)
        gdb("watch shared")
        gdb.send("continue")
        parent = int(gdb.server.wait_for(r"pid = (\d+)").group(1))
        self.assertTrue(wait_until(lambda: children_of(parent, "orphan"), 20))
        gdb.interrupt()
        self.assertSays(gdb.answer(), r"received signal SIGINT")
        return gdb

    def test_stopped(self):
        self.stopped()("kill")
        self.assert_goes_on()

    def test_stopped_when_the_server_ends(self):
        self.stopped().server.process.terminate()
        self.assert_goes_on()

    def test_stopped_when_the_server_is_killed(self):
        self.stopped().server.process.kill()
        self.assert_goes_on()

    def test_running(self):
        command = [ULPF, "run", "-q", "-w", "shared", "--log", os.devnull, "--", example("orphan"), *self.words]
        with subprocess.Popen(command) as run:
            program = []
            self.assertTrue(wait_until(lambda: program.extend(children_of(run.pid, "orphan")) or program, 20))
            self.assertTrue(wait_until(lambda: children_of(program[0], "orphan"), 20))
            os.kill(program[0], signal.SIGKILL)
        self.assertEqual(run.returncode, -signal.SIGKILL)
        self.assert_goes_on()


def children_of(pid, name):
    said = subprocess.run(["pgrep", "-x", "-P", str(pid), name], stdout=subprocess.PIPE, text=True).stdout
    return [int(word) for word in said.split()]
