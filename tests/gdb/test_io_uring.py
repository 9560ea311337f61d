"""io_uring under a watch: requests lead around the guards, completions are hits, what is in flight stays where it is."""

import unittest

from lib.cases import Case
from lib.env import bare, example, ulpf_only
from lib.run import Json, run


@ulpf_only
class IoUring(Case):
    def setUp(self):
        super().setUp()
        self.expected = bare(example("uring"))
        if "no io_uring" in self.expected[1]:
            raise unittest.SkipTest("this kernel has no io_uring, or does not permit it")

    def test_as_without_us(self):
        """Files, sockets, vectors, registered buffers, times, links, cancellation, threads, a fork: results, bytes and
        requests are those of a run without ulpf."""
        self.assertSays(self.expected[1], "read fixed: 12", "cancelled: -125", "nop by a second descriptor: 0", "child: 0")
        for spec in "heap", "heap:rw", "watched:12288", "watched:12288:rw", "watched[4096]:1", "block":
            status, out, err = run([spec], "uring", options=["--quiet"])
            self.assertEqual((status, out), self.expected, f"{spec}: {err}")

    def test_completions_are_hits(self):
        """The kernel's write for a request is a hit that names the request."""
        said = Json(["watched[4095]:1"], "uring")
        names = [hit.get("syscall") for hit in said.hits]
        for name in "io_uring read", "io_uring readv", "io_uring recv", "io_uring recvmsg":
            self.assertIn(name, names)

    def test_polled(self):
        """A ring with a polling thread: results of setup and of calls, requests, completions that a program waits for
        without a call; hits name the operation. The user sees no message."""
        expected = bare(example("uring_polled"))
        self.assertSays(expected[1], "on a processor that is none: Invalid", "recv: 8 received", "another thread: 0", "what was there: 0")
        for spec in "heap", "heap:rw", "watched:8192", "watched[4096]:1", "block":
            status, out, err = run([spec], "uring_polled", options=["--quiet"])
            self.assertEqual((status, out), expected, f"{spec}: {err}")
        said = Json(["watched[4095]:1", "watched[104]:1"], "uring_polled")
        names = [hit.get("syscall") for hit in said.hits]
        for name in "io_uring read", "io_uring recv":
            self.assertIn(name, names)

    def same(self, part, *more):
        """A part of io_uring works as without ulpf, whatever is watched, and the user sees no message."""
        expected = bare(example("uring_parts"), part)
        for spec in "heap", "heap:rw", "watched:8192", "watched:8192:rw", "watched[4096]:1", *more:
            status, out, err = run([spec], "uring_parts", part)
            self.assertEqual((status, out), expected, f"{spec}: {err}")
            self.assertNotIn("not served", err)
        return expected[1]

    def test_skipped_completions(self):
        """Requests that say nothing when they succeed: what they have written is a hit when one that is linked to them has
        ended."""
        self.assertSays(self.same("skipped", "block"), "only the nop: 1 skipped", "nothing else: 0", "sent: 106")
        said = Json(["watched[4095]:1", "watched[104]:1"], "uring_parts", "skipped")
        reads = [hit for hit in said.hits if hit.get("syscall") == "io_uring read"]
        self.assertEqual(len(reads), 2, said.hits)

    def test_registered_rings(self):
        """Rings by the number that a thread has registered, also when no descriptor is left."""
        self.assertSays(self.same("registered", "block"), "in another thread: -22", "read without a descriptor: 1", "gone: -9")

    def test_provided_buffers(self):
        """Buffers that requests take, given by requests and in a ring of descriptors that is watched itself: what has been
        written to one is a hit that names the operation."""
        self.assertSays(self.same("provided"), "recvmsg: 6, buffer 4", "three: 5, buffer 0, more 1", "the last: 4")
        self.assertSays(self.same("descriptors", "block", "descriptor_memory:12288:rw"), "multishot: 4, buffer 1: no39")
        said = Json(["watched[256]:2048"], "uring_parts", "provided")
        hits = [(hit["syscall"], hit["new"]) for hit in said.hits if hit.get("syscall", "").startswith("io_uring")]
        self.assertEqual([name for name, _ in hits], [f"io_uring {name}" for name in ("recv", "recv", "read", "readv", "recv")])

    def test_sends_that_do_not_copy(self):
        """Sends whose memory the kernel holds until a second completion: what they read is what the first has said."""
        self.same("zero_copy", "block")
        said = Json(["watched[4090]:10:rw"], "uring_parts", "zero_copy")
        sizes = [(hit["syscall"], hit["len"]) for hit in said.hits if hit.get("syscall", "").startswith("io_uring")]
        self.assertEqual(sizes, [("io_uring send_zc", 10), ("io_uring sendmsg_zc", 8)])

    def test_rarer_requests(self):
        """Messages between rings, also with the number of a request in flight; advice; extended attributes."""
        self.assertSays(self.same("others", "block"), "message: 33 arrives", "both: 9 e", "will need: 0 a", "get: ")

    def test_what_is_in_flight(self):
        """A watch on memory that a request may still write to is refused with the reason, and the request ends as it
        would have; one that was there before sees it."""
        gdb = self.session("uring", "flight")
        gdb("break in_flight")
        gdb("continue")
        gdb("watch -l watched[0]")
        out = gdb("continue")
        self.assertSays(out, r"cannot guard .*: requests of io_uring in flight may access this memory")
        status, out, err = run(["watched[0]:1"], "uring", "flight")
        self.assertEqual((status, out), bare(example("uring"), "flight"), err)
        self.assertSays(err, r"by io_uring recv\(")

    def test_what_is_not_served(self):
        status, out, err = run(["heap"], "uring", "refused")
        self.assertEqual((status, out), (0, "Invalid argument\n"))
        self.assertSays(err, "asked for a part of io_uring that is not served")
