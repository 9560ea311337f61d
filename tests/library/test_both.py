"""libulpf and ulpf watch the same program: each gets all hits of its own watches, exactly once."""

import os
import re
import subprocess
import unittest

from lib.cases import Case
from lib.env import PATIENCE, needs, needs_registers, ulpf_only
from lib.run import Json, run
from library.test_library import Library

BOTH = "examples/libulpf/both.c"
WATCHES = ["page.shared", "page.other", "page.seen", "far.shared"]


def hits_of(output):
    """Output of the program's own handler: (name, old, new)."""
    return [(name, int(old), int(new)) for name, old, new in re.findall(r"(?m)^(\w+) (-?\d+) (-?\d+)$", output)]


@ulpf_only
class Run(Library):
    def test_both_hear_of_the_same(self):
        program = self.build(BOTH)
        bare = self.says(program)
        log = Json(WATCHES, program)
        self.assertEqual((log.status, log.out), (0, bare), log.err)
        hits = lambda spec: [hit for hit in log.hits if hit["spec"] == spec]
        shared = hits("page.shared")
        mine = [hit for hit in hits_of(bare) if hit[0] == "shared"]
        self.assertEqual(len(mine), 13)
        self.assertEqual([hit["len"] for hit in shared], [8] * 3 + [1] * 8 + [8] * 2)
        whole = lambda hits, pick: [pick(hit) for hit in hits[:3] + hits[11:]]
        self.assertEqual(whole(shared, lambda h: (h["old"], h["new"])), whole(mine, lambda h: h[1:]))
        self.assertEqual([(h["old"], h["new"]) for h in hits("page.other")], [(0, 2)])
        self.assertEqual([(h["old"], h["new"]) for h in hits("page.seen")], [(0, 3)])
        # By a store; byte by byte, from a page of the library's.
        self.assertEqual([h["len"] for h in hits("far.shared")], [8] + [1] * 8)
        self.assertEqual([h["call"].split("(")[0] for h in shared if "call" in h], ["read"])
        self.assertEqual({h["function"] for h in log.hits if "call" not in h}, {"stores", "carry"})

    def test_threads(self):
        """Both guard the page of a busy counter, while guards of its neighbours come and go."""
        program = self.build(BOTH)
        for patches in [], ["--no-patch"]:
            log = Json(["page.shared", "far.shared"], program, "threads", options=patches)
            self.assertEqual((log.status, log.out), (0, "shared 2000, hits 2000\nboth: done\n"), log.err)
            for watch in "page.shared", "far.shared":
                # Old and new are what memory holds just before and after, so another thread's may be in between.
                values = [(h["old"], h["new"]) for h in log.hits if h["spec"] == watch]
                self.assertEqual((len(values), max(new for _, new in values)), (2000, 2000))
                self.assertTrue(all(old < new for old, new in values), values)

    def test_the_examples(self):
        """They do under ulpf what they do without it."""
        listing, sentry = self.build("examples/libulpf/listing.c"), self.build("examples/libulpf/sentry.c")
        for program, watch, *args in [[listing, "hits"]] + [[sentry, "heap", how] for how in
                                                            ("overflow", "smash", "leak", "invariant")]:
            with self.subTest(program=os.path.basename(program), args=args):
                bare = subprocess.run([program, *args], stdout=subprocess.PIPE, text=True, timeout=30 * PATIENCE)
                status, out, err = run([watch], program, *args, options=("--quiet",))
                self.assertEqual((status, re.sub(r"\d+ ms", "", out)),
                                 (bare.returncode, re.sub(r"\d+ ms", "", bare.stdout)), err)

    def test_a_program_that_steps_itself(self):
        """Its traps come where they come without us, also behind what is performed for a watch."""
        program = self.build(BOTH)
        bare = self.says(program, "steps")
        self.assertIn("traps", bare)
        for patches in [], ["--no-patch"]:
            status, out, err = run(["far.shared"], program, "steps", options=patches)
            self.assertEqual((status, out), (0, bare), err)

    def test_other_back_ends(self):
        """A back end that conflicts with ulpf is refused, and `auto` takes one that works."""
        program = self.build(BOTH)
        for backend in "debug-registers", "protection-keys", "device":
            status, _, err = run(["far.shared"], program, env={**os.environ, "ULPF_BACKEND": backend})
            self.assertEqual(status, 1)
            self.assertRegex(err, rf"being watched by ulpf.*`{backend}`.*`signal`")

    def test_heap(self):
        """The heap as a whole, with the library's watch on it."""
        program = self.build(BOTH)
        status, out, err = run(["heap"], program, options=("--quiet",))
        self.assertEqual((status, hits_of(out)), (0, hits_of(self.says(program))), err)


@needs("gdb")
@ulpf_only
class Gdb(Case, Library):
    def setUp(self):
        Case.setUp(self)
        Library.setUp(self)

    def test_watch(self):
        gdb = self.session(self.build(BOTH))
        for number, watch in enumerate(["page.shared", "page.other", "far.shared", "*heap"], start=2):
            self.assertSays(gdb(f"watch {watch}"), f"Hardware watchpoint {number}: ")
        # An access that only the library watches, or one that leaves the value, causes no stop.
        for number, watch, old, new in [(2, "page.shared", 0, 1), (3, "page.other", 0, 2), (4, "far.shared", 0, 4),
                                        (5, r"\*heap", 0, 5), (2, "page.shared", 1, 6), (2, "page.shared", 6, 4)]:
            self.assertSays(gdb("continue"),
                            rf"Hardware watchpoint {number}: {watch}\n\nOld value = {old}\nNew value = {new}\n")
            self.assertSays(gdb("bt"), r"(?:stores|carry) \(.*\n(?:.*\n)?.* main \(")
        self.assertSays(gdb("x/i $pc"), r"=> .* <carry\+\d+>:\trep movs")
        gdb("delete 4")
        # The kernel's, which the library carries over.
        self.assertSays(gdb("continue"), r"Old value = 4\nNew value = 7523094288207667809\n")
        self.assertSays(gdb("continue"), r"Old value = 7523094288207667809\nNew value = 0\n")
        gdb("delete")
        self.assertExits(gdb, 0, "both: done")
        self.assertEqual(hits_of(gdb.server.stdout()), hits_of(self.says(self.build(BOTH))))

    def test_steps_and_breakpoints(self):
        """The library's handler is not stepped into; breakpoints on the instruction that it performs are no part of it."""
        gdb = self.session(self.build(BOTH))
        gdb("break stores")
        self.assertSays(gdb("continue"), r"Breakpoint 2, stores")
        lines = []
        for _ in range(8):
            said = gdb("next")
            self.assertNotIn("SIG", said)
            lines += [int(n) for n in re.findall(r"(?m)^(\d+)\t", said)]
        self.assertEqual(lines, sorted(set(lines)))
        self.assertSays(gdb("frame"), r"stores \(")
        self.assertEqual(hits_of(gdb.server.stdout())[:3], [("shared", 0, 1), ("shared", 1, 1), ("seen", 0, 3)])
        gdb("delete")
        self.assertExits(gdb, 0, "both: done")

    def test_a_breakpoint_at_a_store(self):
        gdb = self.session(self.build(BOTH))
        code = gdb("disassemble stores")
        store = re.search(r"(0x[0-9a-f]+) <\+\d+>:\tmov[lq] +\$0x1,", code)
        gdb(f"break *{store.group(1)}")
        gdb("watch page.shared")
        self.assertSays(gdb("continue"), r"Breakpoint 2, ")
        self.assertSays(gdb("stepi"), r"Old value = 0\nNew value = 1")
        gdb("delete")
        self.assertExits(gdb, 0, "both: done")
        self.assertEqual(hits_of(gdb.server.stdout())[0], ("shared", 0, 1))

    def test_its_own_fault_is_told_once(self):
        gdb = self.session(self.build(BOTH), "crash")
        gdb("watch page.shared")
        self.assertSays(gdb("continue"), r"New value = 1")
        self.assertSays(gdb("continue"), r"Program received signal SIGSEGV")
        self.assertSays(gdb("continue"), r"Program terminated with signal SIGSEGV")

    def started(self, **env):
        program = subprocess.Popen([self.build(BOTH), "wait"], stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, **env})
        self.addCleanup(lambda: (program.kill(), program.wait(), program.stdout.close()))
        self.assertEqual(program.stdout.readline(), "waiting\n")
        return program

    def attached(self, program):
        server = self.serve(options=("--attach", str(program.pid)), wait=True)
        gdb = self.gdb()
        gdb(f"file {program.args[0]}")
        gdb(f"target remote {server.target}")
        return gdb

    def test_attach_and_leave(self):
        """The library is at work already when we come, and goes on when we leave."""
        program = self.started()
        gdb = self.attached(program)
        gdb("watch page.shared")
        gdb("watch far.shared")
        gdb("set var page.beside = 1")
        self.assertSays(gdb("continue"), r"Hardware watchpoint 1: page.shared\n\nOld value = 0\nNew value = 1\n")
        self.assertSays(gdb("continue"), r"Hardware watchpoint 2: far.shared\n\nOld value = 0\nNew value = 4\n")
        self.assertSays(gdb("detach"), r"detached")
        out, _ = program.communicate(timeout=30 * PATIENCE)
        self.assertEqual(program.returncode, 0)
        mine = [hit for hit in hits_of(self.says(program.args[0])) if hit[0] == "shared"]
        self.assertEqual(hits_of(out), mine)

    @needs_registers
    def test_attach_to_debug_registers(self):
        """The library would miss accesses that ulpf performs for its own watches, so these are refused."""
        gdb = self.attached(self.started(ULPF_BACKEND="debug-registers"))
        gdb("watch far.shared")
        self.assertSays(gdb("continue"), r"ulpf: cannot watch 8 bytes at 0x\w+: .*libulpf, by debug registers")
        self.assertSays(gdb("monitor ulpf why"), r"libulpf, by debug registers.*ULPF_BACKEND=signal")


if __name__ == "__main__":
    unittest.main()
