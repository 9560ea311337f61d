"""Hot accesses are patched: they stop faulting, and nothing else changes."""

import json
import os
import re
import signal
import subprocess

from lib.cases import Case
from lib.env import ULPF, bare, example, ulpf_only
from lib.rsp import wait_until

SIZE = 256 * 4096


@ulpf_only
class PatchedAccesses(Case):
    def sweep(self, *arguments, after=16, options=(), watches=256, at=2048):
        """A byte of each page is watched, and only counted."""
        gdb = self.session("sweep", *arguments, options=["--placement=guard", *options])
        self.block = gdb.value("(long)block")
        if after is not None:
            gdb(f"monitor ulpf patch on after {after}")
        for page in range(watches):
            gdb(f"monitor ulpf watch {self.block + page * 4096 + at} 1 w")
        return gdb

    def answer(self, gdb, command):
        return json.loads(re.search(r"{.*}", gdb(f"monitor ulpf {command}")).group())

    def end(self, gdb, *arguments):
        status, text = bare(example("sweep"), *arguments)
        self.assertExits(gdb, status, text.strip())

    def at_the_end(self, gdb, *arguments):
        gdb("tbreak printf")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        stats, patches = self.answer(gdb, "stats"), self.answer(gdb, "patch")
        self.end(gdb, *arguments)
        return stats, patches

    def assertCounted(self, stats, rounds):
        self.assertEqual([w["hits"] for w in stats["watches"]], [rounds] * 256)
        self.assertEqual(stats["false_positives"], rounds * (SIZE - 256))

    def test_every_access_counts(self):
        stats, patches = self.at_the_end(self.sweep("4"), "4")
        self.assertCounted(stats, 4)
        self.assertLess(stats["faults"], 4000)
        self.assertGreaterEqual(patches["placed"], 1)

    def test_jumps_across_pages(self):
        said = subprocess.run([ULPF, "run", "-q", "-w", "counts:rw", "--", example("page_boundaries")], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout, "page_boundaries: 3000\n" * 4)
        self.assertLess(int(re.search(r"([\d,]+) faults", said.stderr)[1].replace(",", "")), 2000, said.stderr)

    def test_off(self):
        """--no-patch: the code stays as it is."""
        gdb = self.session("sweep", "1", options=["--no-patch", "--placement=guard"])
        block = gdb.value("(long)block")
        gdb(f"monitor ulpf watch {block} 1 w")
        stats, patches = self.at_the_end(gdb, "1")
        self.assertEqual((patches["enabled"], patches["placed"]), (False, 0))
        self.assertEqual(stats["faults"], 4096)

    def test_stops(self):
        """A watch that stops, on the page of a patched store."""
        gdb = self.sweep("3")
        gdb(f"watch *(char *){self.block + 5 * 4096 + 7}")
        for old, new in (0, 1), (1, 2), (2, 3):
            self.assertSays(gdb("continue"), r"Hardware watchpoint 2: ", rf"Old value = {old} ", rf"New value = {new} ")
            self.assertEqual(gdb.value("(long)$rdi ? rounds_done : rounds_done"), old)
            self.assertSays(gdb("x/2i $pc"), r"=> 0x\w+ <fill\+\d+>:\s+inc ")
        self.assertGreaterEqual(self.answer(gdb, "patch")["patches"], 1)
        gdb("delete")
        self.end(gdb, "3")

    def test_code_looks_as_it_was(self):
        gdb = self.sweep("6")
        before = gdb("disassemble /r fill")
        gdb(f"watch *(char *){self.block + 9}")
        gdb("continue")
        gdb("continue")
        self.assertGreaterEqual(self.answer(gdb, "patch")["patches"], 1)
        self.assertEqual(re.sub("=>", "  ", gdb("disassemble /r fill")), re.sub("=>", "  ", before))

    def test_steps_and_breakpoints(self):
        """At the patched instruction, behind it and through it."""
        gdb = self.sweep("6")
        gdb(f"watch *(char *){self.block + 9}")
        gdb("continue")
        gdb("continue")
        gdb("delete")
        self.assertGreaterEqual(self.answer(gdb, "patch")["patches"], 1)
        # stopped behind the store: inc, cmp, jne, store, inc
        names = []
        for _ in range(9):
            names.append(re.search(r"<fill\+\d+>:\s+(\w+)", gdb("x/i $pc")).group(1))
            gdb("stepi")
        self.assertEqual(names, ["inc", "cmp", "jne", "mov", "inc", "cmp", "jne", "mov", "inc"])
        store = int(re.search(r"(0x\w+) <\+\d+>:\s+mov +%\w+,\(%r", gdb("disassemble fill")).group(1), 16)
        for address in store, store + 2:
            gdb(f"tbreak *{address:#x}")
            self.assertSays(gdb("continue"), r"Temporary breakpoint")
            self.assertEqual(gdb.value("(long)$pc"), address)
        # A conditional breakpoint is evaluated in the program, and stepped over each time.
        gdb(f"break *{store:#x} if (long)$rdi == 0")
        gdb(f"tbreak *{store + 2:#x}")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        gdb("delete")
        self.end(gdb, "6")

    def test_jumps_into_the_middle(self):
        stats, patches = self.at_the_end(self.sweep("2", "into"), "2", "into")
        self.assertEqual([w["hits"] for w in stats["watches"]], [2] * 256)
        self.assertEqual(stats["false_positives"], 2 * (SIZE // 2 - 256))
        self.assertGreater(patches["displaced_entries"], 0)
        # Each costs a signal: a patch in whose middle a loop begins is given up, and so are the few that
        # might take its place.
        self.assertLess(patches["displaced_entries"], 6 * 64)

    def test_jumps_over_a_store(self):
        """The instructions behind it stay unchanged then."""
        stats, patches = self.at_the_end(self.sweep("4", "over", at=2049), "4", "over")
        self.assertEqual([w["hits"] for w in stats["watches"]], [4] * 256)
        self.assertEqual(stats["false_positives"], 4 * (SIZE // 2 - 256))
        self.assertLess(patches["displaced_entries"], 200)
        self.assertEqual((patches["patches"], patches["preceded"]), (1, 0))
        self.assertLess(stats["faults"], 4000)

    def test_jumps_over_a_store_to_another_one(self):
        """Both are hot: what is before the first one moves, not what is behind it."""
        stats, patches = self.at_the_end(self.sweep("4", "both", at=2049), "4", "both")
        self.assertEqual([w["hits"] for w in stats["watches"]], [8] * 256)
        self.assertEqual(stats["false_positives"], 4 * (SIZE // 2 + SIZE - 2 * 256))
        self.assertLess(patches["displaced_entries"], 200)
        self.assertEqual((patches["patches"], patches["preceded"]), (2, 1))
        self.assertLess(stats["faults"], 4000)

    def test_a_loop_entered_behind_its_patch(self):
        """Its second store gets a patch of its own."""
        stats, patches = self.at_the_end(self.sweep("4", "behind"), "4", "behind")
        self.assertCounted(stats, 4)
        self.assertEqual(patches["displaced_entries"], 0)
        self.assertLess(stats["faults"], 4000)

    def test_stores_that_are_jumped_to(self):
        """A C library's memcpy has such ones, and no room for a jump there: the jumps to them lead to the trampoline."""
        rounds = 40000
        said = subprocess.run([ULPF, "run", "-q", "-w", "copied", "--placement=guard", "--", example("small_copies"), str(rounds)], capture_output=True, text=True, check=True)
        self.assertEqual((0, said.stdout), bare(example("small_copies"), str(rounds)))
        self.assertLess(int(re.search(r"([\d,]+) faults", said.stderr)[1].replace(",", "")), 1000, said.stderr)

    def test_a_patch_of_several_threads_goes_when_it_meets_no_guard(self):
        """All rest for that, and for its way back; but a million accesses for nothing cost more."""
        said = subprocess.run([ULPF, "run", "-q", "-w", "watched", "--placement=guard", "--", example("rarely"), "60"], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout, "rarely: 60\n")
        self.assertIn("120 hits on 1 watch", said.stderr)
        self.assertGreater(int(re.search(r"([\d,]+) faults", said.stderr)[1].replace(",", "")), 30, said.stderr)

    def test_jumps_past_a_lock(self):
        """A C library's: only one of the two ways to the instruction goes by its prefix."""
        stats, _ = self.at_the_end(self.sweep("1", "past"), "1", "past")
        self.assertCounted(stats, 1)

    def test_with_a_mask(self):
        """A vector instruction of AVX-512 that stores to some of the bytes it names, or to none."""
        rounds = 20000
        status, text = bare(example("masked"), str(rounds))
        if "no AVX-512" in text:
            self.skipTest("this processor has no AVX-512")
        stored, silent = map(int, re.findall(r"\d+", text))
        gdb = self.session("masked", str(rounds), options=["--placement=guard"])
        gdb(f"monitor ulpf watch {gdb.value('(long)&block')} {3 * 4096} w")
        gdb("tbreak printf")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        stats = self.answer(gdb, "stats")
        watch = stats["watches"][0]
        self.assertEqual((watch["hits"], watch["silent"]), (stored, silent))
        # Those across two pages, and those of two stretches.
        self.assertLess(stats["faults"], rounds / 4)
        self.assertExits(gdb, status, text.strip())

    def loads_with_masks(self, start, length):
        rounds = 20000
        arguments = [str(n) for n in (rounds, start, length)]
        status, text = bare(example("masked_loads"), *arguments)
        if "no AVX-512" in text:
            self.skipTest("this processor has no AVX-512")
        gdb = self.session("masked_loads", *arguments, options=["--placement=guard"])
        gdb(f"monitor ulpf watch {gdb.value('(long)&block') + start} {length} r")
        gdb("tbreak printf")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        stats = self.answer(gdb, "stats")
        self.assertEqual(stats["watches"][0]["hits"], int(re.search(r"\d+", text).group()))
        self.assertExits(gdb, status, text.strip())
        return stats["faults"] / rounds

    def test_loads_with_a_mask(self):
        """Each stretch of what the mask selects is a hit, and nothing else."""
        faults = self.loads_with_masks(0, 3 * 4096)
        # Those across two pages.
        self.assertLess(faults, 1 / 10)

    def test_loads_with_a_mask_of_little(self):
        faults = self.loads_with_masks(5000, 7)
        self.assertLess(faults, 1 / 4)

    def test_through_fs(self):
        stats, _ = self.at_the_end(self.sweep("4", "fs"), "4", "fs")
        self.assertCounted(stats, 4)
        self.assertLess(stats["faults"], 4000)

    def neighbours(self, *arguments):
        """Two stores under one jump, and one whose body must lie far away, in a program that leaves little place."""
        gdb = self.session("neighbours", *arguments, options=["--placement=guard"])
        gdb(f"monitor ulpf watch {gdb.value('(long)&pairs[5]')} 8 w")
        gdb("tbreak printf")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        stats, patches = self.answer(gdb, "stats"), self.answer(gdb, "patch")
        said = gdb("monitor ulpf patch sites 3")
        rounds = int(arguments[0])
        self.assertEqual(stats["watches"][0]["hits"], rounds * 4)
        self.assertEqual(stats["false_positives"], rounds * (3 * 512 - 4))
        status, text = bare(example("neighbours"), *arguments)
        self.assertExits(gdb, status, text.strip())
        return stats, patches, [json.loads(line) for line in re.findall(r"{.*}", said)]

    def test_stores_under_one_jump(self):
        stats, patches, sites = self.neighbours("64")
        self.assertLess(stats["faults"], 300)
        self.assertEqual(patches["patches"], 2)
        # Sites that still fault, sorted by faults, each with its reason.
        self.assertEqual(len(sites), 3)
        self.assertEqual(sites, sorted(sites, key=lambda s: -s["faults"]))
        self.assertIn("first access to a page", sites[0]["why"])

    def test_bodies_make_way_for_the_break(self):
        """They lie where the program break will come, and leave before it does."""
        stats, patches, _ = self.neighbours("64", "grow")
        self.assertGreaterEqual(patches["removed"], 1)
        self.assertLess(stats["faults"], 64 * 512)

    def test_a_child_has_its_own_code(self):
        gdb = self.sweep("2", "fork")
        self.end(gdb, "2", "fork")

    def test_gs_belongs_to_the_program(self):
        stats, patches = self.at_the_end(self.sweep("4", "gs", watches=2), "4", "gs")
        self.assertFalse(patches["enabled"])
        self.assertEqual([w["hits"] for w in stats["watches"]], [4] * 2)

    def test_locked_memory(self):
        stats, patches = self.at_the_end(self.sweep("4", "lock", watches=2), "4", "lock")
        self.assertFalse(patches["enabled"])
        self.assertEqual([w["hits"] for w in stats["watches"]], [4] * 2)

    def test_a_patch_that_does_not_pay_goes(self):
        stats, patches = self.at_the_end(self.sweep("3", "leave"), "3", "leave")
        self.assertEqual([w["hits"] for w in stats["watches"]], [1] * 256)
        self.assertGreaterEqual(patches["removed"], 1)
        self.assertEqual(patches["patches"], 0)

    def test_a_small_loop_goes_round_in_the_body(self):
        """A page of 256 is watched: each time, the loop needs its patch again, and no code is written for that."""
        stats, patches = self.at_the_end(self.sweep("100", watches=1), "100")
        self.assertEqual(stats["watches"][0]["hits"], 100)
        self.assertEqual(stats["false_positives"], 100 * 4095)
        self.assertLess(stats["faults"], 600)
        self.assertLess(patches["placed"], 10)
        self.assertEqual(patches["patches"], 0)

    def test_code_keeps_its_protection(self):
        """Code that can be executed but not read is not made readable when a patch goes."""
        stats, patches = self.at_the_end(self.sweep("3", "hide"), "3", "hide")
        self.assertEqual([w["hits"] for w in stats["watches"]], [1] * 256)
        self.assertGreaterEqual(patches["removed"], 1)

    def test_code_without_a_block_device(self):
        """A file system such as tmpfs, btrfs or overlayfs, as in containers."""
        there = "mount -t tmpfs none /mnt && cp \"$1\" /mnt && shift && exec \"$@\""
        command = ["unshare", "-rm", "sh", "-c", there, "sh", example("sweep"),
                   ULPF, "run", "-q", "--json", "--log", "/dev/stdout", "--placement=guard", "-w", "rounds_done", "--watch", "heap:w", "--",
                   "/mnt/sweep", "4"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if "unshare:" in done.stderr:
            self.skipTest(f"no name spaces to be had: {done.stderr.strip()}")
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"type":"summary"'))
        self.assertGreaterEqual(sum(w["hits"] for w in summary["watches"]), 4 * SIZE)
        self.assertLess(summary["faults"], 20_000)

    def test_detach(self):
        gdb = self.sweep("1000000000")
        gdb(f"watch *(char *){self.block + 9}")
        gdb("continue")
        gdb("continue")
        self.assertGreaterEqual(self.answer(gdb, "patch")["patches"], 1)
        code, length = gdb.value("(long)fill"), 32
        with open(example("sweep"), "rb") as file:
            image = file.read()
        pid = gdb.server.program_pid
        gdb("detach")
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(code)
            self.assertIn(memory.read(length), image)
            self.assertTrue(wait_until(lambda: memory.seek(self.block + 9) and memory.read(1)[0] > 5))

    def test_bad_words(self):
        gdb = self.session("sweep", "1")
        for words in "perhaps", "on after", "on after x", "on before 3", "on patience 63", "on after 3 patience":
            self.assertIn("say: ulpf patch", gdb(f"monitor ulpf patch {words}"))
