"""Children made in ways that need care: clone3 with all its flags, exec while signals strike."""

import contextlib
import errno
import glob
import os
import subprocess
import tempfile
import unittest

from lib.cases import Case
from lib.env import PATIENCE, ULPF, bare, example, ulpf_only
from lib.rsp import wait_until
from lib.run import ulpf


def has_child(pid):
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as stat:
            if stat.read().rsplit(") ", 1)[1].split()[1] == str(pid):
                return True
    return False


@ulpf_only
class Spawns(Case):
    def run_(self, spec, *arguments):
        return subprocess.run([ULPF, "run", "--quiet", "--no-summary", "--watch", spec, "--", example("spawns"), *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60 * PATIENCE, text=True)

    def test_clone3(self):
        """Also with the kernel's arguments and results on the watched page. A zombie child does not delay a
        stop-the-world."""
        status, expected = bare(example("spawns"))
        self.assertEqual(status, 0)
        for spec in "watched", "here.watched", "here.watched:rw", "here.pidfd", "here.parent_tid:rw":
            done = self.run_(spec)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""), spec)

    def test_who_inherits_orphans_has_no_child_of_ours(self):
        """The stub's task was one, for which the first process of a container waited for ever."""
        status, expected = bare(example("first_of_all"))
        if status == 77:
            raise unittest.SkipTest("no place of processes of its own may be made here")
        self.assertEqual((status, expected.count("ECHILD")), (0, 2), expected)
        status, out, err = ulpf("run", "--quiet", "--no-summary", "--follow", "--watch", "heap", "--", example("first_of_all"))
        self.assertEqual((status, out, err), (0, expected, ""))

    def test_exec_while_signals_strike(self):
        done = self.run_("here.watched", "storm", "500")
        self.assertEqual((done.returncode, done.stdout), (0, "storm: 0 programs began with signals blocked\n"))

    def test_detach_while_a_vfork_child_lives(self):
        """Each of the two gets its own signal handlers back."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "now")
            gdb = self.session("spawns", "late", path)
            gdb.send("continue")
            self.assertTrue(wait_until(lambda: has_child(gdb.server.program_pid)))
            gdb.interrupt()
            self.assertSays(gdb.answer(), r"SIGINT")
            self.assertSays(gdb("detach"), r"detached")
            open(path, "w").close()
            expected = bare(example("spawns"), "late", path)[1]
            self.assertSays(expected, r"late: 4\nSigCgt:")
            self.assertTrue(wait_until(lambda: "SigCgt" in gdb.server.stdout()))
            self.assertEqual(gdb.server.stdout(), expected)


@ulpf_only
class ForkedChildren(Case):
    def test_a_caught_system_call(self):
        """The child stops for no debugger."""
        gdb = self.session("children")
        gdb("catch syscall fork vfork clone clone3 exit_group")
        out = ""
        for _ in range(40):
            out = gdb("continue")
            if "exited" in out:
                break
        self.assertSays(out, r"exited normally")
        gdb.server.wait()
        self.assertIn("children: count 3, codes 3 4 5 6 -6", gdb.server.stdout())

    @unittest.skipIf(os.geteuid() != 0, "only root may chroot")
    def test_a_breakpoint_where_there_is_no_proc(self):
        with tempfile.TemporaryDirectory() as empty:
            gdb = self.session("spawns", "chroot", empty)
            gdb("break called")
            self.assertExits(gdb, 0, "chroot: 7")


@ulpf_only
class Sparse(unittest.TestCase):
    def test_more_memory_than_there_is(self):
        """On the build before, the child was ended: "out of memory?"."""
        with open("/proc/meminfo") as info:
            kilobytes = sum(int(line.split()[1]) for line in info if line.startswith(("MemTotal", "SwapTotal")))
        gigabytes = str(2 * (kilobytes >> 20) + 2)
        status, expected = bare(example("sparse"), gigabytes)
        self.assertEqual(status, 0, expected)
        for watch in "heap", "heap:rw":
            for follow in [], ["--follow"]:
                got, out, err = ulpf("run", "-q", "--no-summary", *follow, "-w", watch, "--", example("sparse"), gigabytes)
                self.assertEqual((got, out), (status, expected), err)


@ulpf_only
class Limited(unittest.TestCase):
    def test_a_fork_without_address_space_fails(self):
        """Alone it would succeed; with ulpf there is no room for it, and its parent hears so."""
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "limited")
            subprocess.run(["gcc", "-g", "-x", "c", "-", "-o", name], text=True, check=True, input="""
                #include <errno.h>
                #include <stdio.h>
                #include <sys/resource.h>
                #include <unistd.h>
                int counter;
                int main(void)
                {
                    struct rlimit limit = { 1 << 20, 1 << 20 };
                    counter++;
                    setrlimit(RLIMIT_AS, &limit);
                    pid_t child = fork();
                    if (child == 0) _exit(0);
                    printf("%d %d\\n", child, child < 0 ? errno : 0);
                    counter++;
                    return 5;
                }""")
            for options in ["-w", "counter"], ["-w", "heap", "-w", "counter"], ["--follow", "-w", "counter"]:
                with self.subTest(options):
                    status, said, err = ulpf("run", "-q", *options, "--", name)
                    self.assertEqual((status, said), (5, f"-1 {errno.ENOMEM}\n"), err)
                    self.assertRegex(err, r"\n +2 .* counter\n")
