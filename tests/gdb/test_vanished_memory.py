"""Watched memory that goes away, is replaced, discarded, moved, and comes back."""

import unittest

from lib.cases import Case
from lib.env import bare, example, ulpf_only
from lib.run import Json, run


@ulpf_only
class VanishedMemory(Case):
    def expected(self):
        return bare(example("vanish"))

    def test_gdb_is_told(self):
        gdb = self.session("vanish")
        gdb("watch -l *number")
        at = gdb.value("number")
        watch = rf"ulpf: the watch on 8 bytes at {at:#x}: "
        out = gdb("continue")
        self.assertSays(out, watch + r"its memory is gone \(munmap\)", watch + r"its memory is back \(mmap\); it is armed again")
        self.assertChange(out, 2, "-location *number", 1, 2)
        out = gdb("continue")
        self.assertSays(out, rf"ulpf: {at:#x} written by mmap\(")
        self.assertChange(out, 2, "-location *number", 2, 0)
        self.assertChange(gdb("continue"), 2, "-location *number", 0, 3)
        out = gdb("continue")
        self.assertSays(out, rf"ulpf: {at:#x} written by madvise\(")
        self.assertChange(out, 2, "-location *number", 3, 0)
        for old, new in (0, 4), (4, 5):
            self.assertChange(gdb("continue"), 2, "-location *number", old, new)
        out = gdb("continue")
        self.assertSays(out, watch + r"its memory is gone \(mremap\)", watch + r"its memory is back \(mremap\)")
        self.assertChange(out, 2, "-location *number", 5, 6)
        out = self.assertExits(gdb, 0, self.expected()[1])
        self.assertEqual(out.count("asked for a part of io_uring"), 1, out)

    def test_the_log_is_told(self):
        status, out, err = run(["*number:8 snapshot"], "vanish", options=["--at", "ready"])
        self.assertEqual((status, out), self.expected())
        # Notices and hits come by different ways, each in its order.
        self.assertSays(err, r"its memory is gone \(munmap\)", r"its memory is back \(mmap\)", r"memory of `\*number:8 snapshot` was gone at the end")
        self.assertSays(err, r"2 → 0 .*by mmap\(", r"3 → 0 .*by madvise\(", r"5 → 6")
        said = Json(["*number:8 snapshot"], "vanish", options=["--at", "ready"])
        self.assertTrue(said.summary["watches"][0]["gone"])
        self.assertEqual(said.summary["watches"][0]["hits"], 7)

    def test_debug_registers(self):
        """Debug registers report vanished memory as guards do."""
        status, out, err = run(["*number:8 snapshot"], "vanish", options=["--at", "ready", "--placement=debug-register"])
        self.assertEqual((status, out), self.expected())
        self.assertSays(err, r"its memory is gone \(munmap\)", r"its memory is back \(mmap\)", r"memory of `\*number:8 snapshot` was gone at the end")
        self.assertSays(err, r"its memory is gone \(mremap\)", r"its memory is back \(mremap\)")
        self.assertSays(err, r"2 → 0 .*by mmap\(", r"3 → 0 .*by madvise\(", r"4 → 5", r"5 → 6")
        said = Json(["*number:8 snapshot"], "vanish", options=["--at", "ready", "--placement=debug-register"])
        self.assertTrue(said.summary["watches"][0]["gone"])
        self.assertEqual(said.summary["watches"][0]["hits"], 7)

    def test_what_children_get(self):
        """MADV_DONTFORK and MADV_WIPEONFORK, from before the watch and from after it, hold for guarded pages, for
        their children, and for the children's children, watched or not."""
        expected = bare(example("fork_zeroed"))
        self.assertSays(expected[1], r"child: 1 - 0 4 -")
        every = [f"*{name}:8" for name in ("plain", "nothing", "zeros", "shared", "shared_nothing")]
        for specs in [every], *[[[spec]] for spec in every]:
            for follow in [], ["--follow"]:
                status, out, err = run(specs[0], "fork_zeroed", options=["--at", "ready", "--quiet", *follow])
                self.assertEqual((status, out), expected, f"{specs} {follow}: {err}")

    def test_what_children_get_of_chunks(self):
        """The same of the heap of a collector, whose advice is followed by its calls: what is split, moved, given back and
        used again, and calls of two threads at once. On the build before, what had moved was forgotten when it was
        protected."""
        expected = bare(example("fork_chunks"))
        self.assertSays(expected[1], r"child: --cde--- -------\* ab\*d\*\*gh abcdefgh", r"child: -+ ----efgh a-cdefgh -+")
        for kind in "heap", "heap:rw":
            for follow in [], ["--follow"]:
                status, out, err = run([kind], "fork_chunks", options=["--quiet", *follow])
                self.assertEqual((status, out), expected[:2], f"{kind} {follow}: {err}")

    def test_locked_memory(self):
        """mlock and its like, from before the watch and from after it: what madvise says, how much counts against the
        limit. On the build before: memory that madvise had touched was no longer locked."""
        expected = bare(example("locked"))
        self.assertSays(expected[1], r"second locked: EINVAL 0 2", r"beyond the limit: ENOMEM")
        for specs in ["*first:8"], ["*second:8"], ["*second:8:rw"], ["*first:8", "*second:8", "heap"]:
            status, out, err = run(specs, "locked", options=["--at", "ready", "--quiet"])
            self.assertEqual((status, out), expected, f"{specs}: {err}")
        # Memory that it discards before it fails is a hit, too.
        hits = Json(["*first:8"], "locked", options=["--at", "ready"]).hits
        self.assertEqual([hit.get("syscall") for hit in hits].count("madvise"), 6, hits)

    def test_memory_to_come_is_locked(self):
        """mlockall(MCL_FUTURE) fills none of our sparse memory: what busy stores look up are 32 GiB of addresses."""
        expected = bare(example("locked_later"))
        if expected[0] == 77:
            raise unittest.SkipTest("so much may not be locked here")
        for kind in "heap", "heap:rw":
            self.assertEqual(run([kind], "locked_later", options=["--quiet", "--no-summary"]), (*expected, ""), kind)

    def test_robust_locks(self):
        """Locks on guarded pages whose owner ends, however it ends: the next one gets EOWNERDEAD, in this process and
        in others."""
        for how in "thread", "exit", "kill", "exec":
            expected = bare(example("legacy"), how)
            self.assertEqual(expected[1], 3 * "legacy: Owner died\n")
            for kind in "w", "rw":
                status, out, err = run([f"*word:8:{kind}"], "legacy", how, options=["--at", "ready", "--quiet"])
                self.assertEqual((status, out), expected, f"{how} {kind}: {err}")

    def test_memory_that_cannot_be_armed_again(self):
        gdb = self.session("vanish", "code")
        gdb("watch -l *(long (*)[2]) number")
        cannot = r"ulpf: cannot guard 0x10001000-0x10002000: .* executable memory"
        self.assertSays(self.assertExits(gdb), cannot)
        self.assertSays(run(["*number:16 snapshot"], "vanish", "code", options=["--at", "ready"])[2], cannot)

    def test_memory_that_only_a_debug_register_can_watch(self):
        """It takes over where memory cannot be guarded any more, if it can hold the watch."""
        status, _, err = run(["*number:8 snapshot"], "vanish", "code", options=["--at", "ready"])
        self.assertEqual(status, 0)
        self.assertSays(err, r"its memory is back \(mmap\); it is armed again", r" w     register  0x10001040 ")
        self.assertNotIn("cannot guard", err)

    def test_rarer_calls(self):
        """Shared segments, holes, protection keys, a mapping that is moved over the watched one."""
        status, out, err = run(["*number:8 snapshot"], "vanish", "others", options=["--at", "ready"])
        self.assertEqual((status, out), (0, "vanish: 4\n"))
        self.assertSays(err, r"its memory is gone \(munmap\)", r"its memory is back \(shmat\)")
        self.assertSays(err, r"0 → 1 ", r"1 → 0 .*by madvise\(", r"0 → 2 ", r"2 → 3 .*by mremap\(", r"3 → 4 ")

    def test_memory_that_must_be_accessible(self):
        """Locked, faulted in: as without us, also where the watch permits no access at all."""
        expected = bare(example("vanish"), "accessible")
        for spec in "*number:8 snapshot", "*number:8:rw snapshot":
            status, out, err = run([spec], "vanish", "accessible", options=["--at", "ready"])
            self.assertEqual((status, out), expected)
            self.assertSays(err, r"0 → 7 ", r"7 → 8 ")
