"""Programs that put themselves into a sandbox with seccomp(2): as without us, and watched."""

import os
import re
import signal
import subprocess

from lib.cases import Case
from lib.env import PATIENCE, ULPF, bare, example, ulpf_only
from lib.rsp import wait_until
from lib.run import Json, ulpf
from lib.users import ALICE, Place, as_root, becomes

HOW = "narrow-forks", "lineage", "unmappable", "errnos", "arguments", "places", "traps", "narrow", "killed", "strict", "strict-end", "threads", "supervised", "unsupervised", "forks", "executes", "raced", "refused"
# In the buffer, into which the kernel writes, and beside the counter; whatever is read, too; in no page of its own.
WATCHES = ["counter"], ["buffer:rw", "counter"], ["heap:rw", "counter"]


@ulpf_only
class Sandbox(Case):
    def check(self, how, watches, *options):
        status, expected = bare(example("sandbox"), how)
        flags = [flag for watch in watches for flag in ("--watch", watch)]
        got, out, err = ulpf("run", "--quiet", "--no-summary", *options, *flags, "--", example("sandbox"), how)
        self.assertEqual((got, out), (status, expected), f"{how} {watches}: {err}")
        return err

    def test_as_without_us(self):
        """On the build before: killed by SIGSYS, or the filter saw ulpf's calls and pointers."""
        for how in HOW:
            for watches in WATCHES:
                with self.subTest(how=how, watches=watches):
                    self.check(how, watches)

    def test_in_debug_registers_and_without_patches(self):
        for how in HOW:
            with self.subTest(how=how):
                self.check(how, ["counter"], "--placement", "debug-register")
                self.check(how, ["counter"], "--no-patch")

    def test_followed(self):
        for how in HOW:
            with self.subTest(how=how):
                err = self.check(how, ["counter"], "--follow")
                self.assertEqual("runs on unwatched: Its own seccomp filters let no memory be mapped" in err, how == "unmappable", err)
                self.assertNotIn("is not watched", err)
                self.check(how, ["heap:rw", "counter"], "--follow", "--no-patch")
                self.check(how, ["counter"], "--follow", "--placement", "debug-register")

    def test_hits_of_children_and_of_what_they_execute(self):
        """On the build before, nothing was followed that has a filter."""
        for how, counts in (("forks", [1, 1, 1, 5]), ("traps", [4]), ("executes", [1, 2]), ("narrow-forks", [1, 2, 2, 2]),
                            ("lineage", [1, 1, 2, 2, 3]), ("unmappable", [2])):
            with self.subTest(how=how):
                # A process that executes something is another one, as the log counts.
                lives = []
                for hit in Json(["counter"], "sandbox", how, options=("--follow",)).hits:
                    pid, old = hit["pid"], hit["old"]
                    if old == 0 or not any(life[0] == pid for life in lives):
                        lives.append([pid, 0])
                    next(life for life in reversed(lives) if life[0] == pid)[1] += 1
                self.assertEqual(sorted(life[1] for life in lives), counts)

    @as_root
    def test_children_with_numbers_of_their_own(self):
        """On the build before, the first of them was not watched."""
        self.check("places-of-its-own", ["counter"], "--follow")
        hits = Json(["counter"], "sandbox", "places-of-its-own", options=("--follow",)).hits
        # (Those of one process are in order.)
        self.assertEqual(sorted(hit["new"] for hit in hits if hit["new"] > 2), [12, 112])

    def test_a_child_that_we_leave(self):
        """The image stays there; nothing else does, and its filters hold."""
        with subprocess.Popen([ULPF, "run", "--quiet", "--follow", "-w", "counter", example("sandbox"), "waits-forked"],
                              stdout=subprocess.PIPE, text=True) as watching:
            child = int(watching.stdout.readline())
            try:
                self.assertEqual(watching.stdout.readline(), "ready\n")
                self.assertIn("ulpf", open(f"/proc/{child}/maps").read())
                # It is heard when the first process has ended.
                self.assertTrue(wait_until(lambda: watching.send_signal(signal.SIGINT) or watching.poll() is not None))
                self.assertEqual(watching.returncode, 0)
                left = re.findall(r"(?m)^7e[8-e]\S+ .*$", open(f"/proc/{child}/maps").read())
                self.assertFalse([line for line in left if "ulpf-" in line], left)
                self.assertTrue(self.runs(child))
            finally:
                os.kill(child, signal.SIGKILL)

    def test_hits(self):
        """Each store is one, before the filter and behind it, those of handlers and of the kernel too."""
        for how, count in (("narrow", 1001), ("traps", 4), ("threads", 3), ("strict", 1001)):
            with self.subTest(how=how):
                self.assertEqual(len(Json(["counter"], "sandbox", how).hits), count)
        hits = Json(["buffer"], "sandbox", "arguments").hits
        self.assertEqual([hit.get("syscall") for hit in hits], ["read", "read"])

    def test_gdb(self):
        gdb = self.session("sandbox", "narrow", stop="main")
        gdb("watch counter")
        self.assertSays(gdb("continue"), r"New value = 1\n")
        self.assertSays(gdb("continue"), r"New value = 2\n")
        gdb("delete")
        gdb("break say")
        self.assertSays(gdb("continue"), r"say \(text=.*narrow")
        self.assertSays(gdb("next"), r"call|write|\d+")
        gdb("delete")
        self.assertSays(gdb("continue"), r"exited with code 07")

    def test_gdb_follows_a_child(self):
        gdb = self.session("sandbox", "narrow-forks", stop="main")
        gdb("set follow-fork-mode child")
        gdb("break say")
        self.assertSays(gdb("continue"), r"say \(text=.*a child")
        gdb("watch counter")
        gdb("delete 2")
        self.assertSays(gdb("continue"), r"Old value = 2\n.*New value = 3\n")

    def test_gdb_hears_of_the_signal(self):
        gdb = self.session("sandbox", "traps", stop="main")
        self.assertSays(gdb("continue"), r"received signal SIGSYS")
        self.assertSays(gdb("print $_siginfo.si_code"), r"= 1\n")
        self.assertSays(gdb("print $rax"), r"= 110\n")
        gdb("delete")
        self.assertSays(gdb("signal 0"), r"received signal SIGSYS")

    def test_detached(self):
        """The calls that unmap the stub's memory are allowed, too."""
        with subprocess.Popen([example("sandbox"), "late"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            try:
                watching = subprocess.Popen([ULPF, "attach", "--quiet", "-w", "counter", str(program.pid)],
                                            stderr=subprocess.PIPE, text=True)
                self.assertEqual(program.stdout.readline(), b"begun\n")
                wait_until(lambda: "ulpf" in open(f"/proc/{program.pid}/maps").read())
                program.stdin.write(b"\n")
                program.stdin.flush()
                self.assertEqual(program.stdout.readline(), b"ready\n")
                watching.send_signal(signal.SIGINT)
                _, err = watching.communicate(timeout=20 * PATIENCE)
                self.assertEqual(watching.returncode, 0, err)
                self.assertIsNone(program.poll())
                left = re.findall(r"(?m)^7e[8-e]\S+ .*$", open(f"/proc/{program.pid}/maps").read())
                self.assertFalse([line for line in left if "ulpf-" in line], left)
                self.assertTrue(self.runs(program.pid))
            finally:
                program.kill()

    def runs(self, pid):
        def sleeps():
            return int(re.search(r"voluntary_ctxt_switches:\s*(\d+)", open(f"/proc/{pid}/status").read())[1])
        before = sleeps()
        return wait_until(lambda: sleeps() > before + 3)

    def attached(self, how, attach):
        with subprocess.Popen([example("sandbox"), how], stdout=subprocess.PIPE) as program:
            try:
                self.assertEqual(program.stdout.readline(), b"ready\n")
                done = attach(program.pid)
                self.assertIsNone(program.poll(), done)
                self.assertTrue(self.runs(program.pid))
                return done
            finally:
                program.kill()

    def test_attaching_to_a_sandbox(self):
        """The filter forbids calls that the stub needs: ulpf begins nothing that would end the program."""
        status, _, err = self.attached("waits", lambda pid: ulpf("attach", "-w", "counter", str(pid)))
        self.assertEqual(status, 2, err)
        if os.geteuid() == 0:
            self.assertRegex(err, r"Cannot attach to process \d+: it has put itself into a sandbox \(seccomp\) that forbids munmap, ")
        else:
            self.assertRegex(err, r"and only root can look")

    @as_root
    def test_attaching_to_a_sandbox_as_an_ordinary_user(self):
        with Place(ULPF, example("sandbox")) as place:
            program, command = os.path.join(place.path, "sandbox"), os.path.join(place.path, "ulpf")
            with subprocess.Popen([program, "waits"], stdout=subprocess.PIPE, **becomes(ALICE)) as process:
                try:
                    self.assertEqual(process.stdout.readline(), b"ready\n")
                    status, _, err = ulpf("attach", "-w", "counter", str(process.pid), executable=command, **becomes(ALICE))
                    self.assertEqual(status, 2, err)
                    self.assertRegex(err, r"sandbox \(seccomp\), which may forbid .* only root can\s+look")
                    self.assertIsNone(process.poll())
                finally:
                    process.kill()
