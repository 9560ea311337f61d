"""Signals that instructions cause, sent by kill and the like: as without us."""

import subprocess

from lib.cases import Case
from lib.env import PATIENCE, ULPF, bare, example, ulpf_only
from lib.run import Json, ulpf


@ulpf_only
class Sent(Case):
    def test_delivered_blocked_fetched(self):
        """And the program's own signal of the number that we use ourselves."""
        status, expected = bare(example("sent"))
        self.assertEqual(status, 0)
        for spec in "watched", "count:rw":
            done = subprocess.run([ULPF, "run", "--quiet", "--no-summary", "--watch", spec, "--", example("sent")],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=60 * PATIENCE, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""), spec)

    def test_sizes_of_alternate_stacks(self):
        """The kernel takes what is too small for the largest state, unless the program has asked for that."""
        status, expected = bare(example("stack_sizes"))
        for watch in "counter", "heap":
            got, out, err = ulpf("run", "--quiet", "--no-summary", "--watch", watch, "--", example("stack_sizes"))
            self.assertEqual((got, out), (status, expected), f"{watch}: {err}")

    def test_what_the_program_is_told_of_its_signals(self):
        """The stub answers in the kernel's place: a write of the call all the same."""
        for watch, name, least in ("old", "rt_sigprocmask", 11), ("stack", "sigaltstack", 1):
            said = Json([watch], "sent")
            self.assertEqual([hit.get("syscall") for hit in said.hits].count(name), least, said.hits)

    def test_children_are_woken(self):
        """A parent sees that its child sleeps, and wakes it by a signal: it does not sleep in our code yet. And the other way
        round: while a child runs, its parent does not sleep in fork."""
        status, expected = bare(example("woken"))
        self.assertEqual((status, len(expected.splitlines())), (0, 29), expected)
        for options in ["--follow", "--watch", "heap"], ["--follow", "--watch", "counter"], ["--watch", "heap"]:
            status, out, err = ulpf("run", "--quiet", "--no-summary", *options, "--", example("woken"))
            self.assertEqual((status, out, err), (0, expected, ""), options)

    # On a busy machine, a process may sleep in the stub's code longer, so this test runs alone.
    test_children_are_woken.alone = True

    def test_lengths_that_the_kernel_refuses(self):
        """No buffer is taken for four gigabytes because its length is -1: each of these took minutes."""
        status, expected = bare(example("refused"))
        self.assertEqual((status, len(expected.splitlines())), (0, 16), expected)
        for kinds in "heap", "heap:rw":
            status, out, err = ulpf("run", "--quiet", "--no-summary", "--watch", kinds, "--", example("refused"))
            self.assertEqual((status, out, err), (0, expected, ""), kinds)
