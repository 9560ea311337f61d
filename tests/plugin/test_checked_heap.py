"""Questions about a checked heap at gdb's prompt: `ulpf info block`, `ulpf leaks`, `ulpf who-points-at`."""

import re

from lib.env import ulpf_only
from lib.plugin import LOADER, PluginCase


@ulpf_only
class Questions(PluginCase):
    def at(self, word, function, **options):
        gdb = self.session("heap_errors", word, options=["--check"], stop="main", **options)
        gdb(f"source {LOADER}")
        gdb(f"break {function}")
        gdb("continue")
        return gdb

    def test_a_block_in_use_and_freed(self):
        gdb = self.at("free_twice", "free")
        block = gdb.value("$rdi")
        out = gdb(f"ulpf info block {block + 3}")
        self.assertSays(out, rf"{block + 3:#x} is 3 bytes inside a block of 10 bytes, which begins at {block:#x}", "allocated by",
                        "free_twice at heap_errors.c:31")
        self.assertNotIn("freed", out.replace("free_twice", ""))
        self.assertSays(gdb(f"ulpf info block (char *) {block} + 12"), "2 bytes behind a block of 10 bytes")
        self.assertSays(gdb("continue"), "Breakpoint")
        self.assertSays(gdb("ulpf info block $rdi"), "0 bytes inside a freed block of 10 bytes", r"freed by \(thread \d+\)\n", "free_twice", "allocated by")
        # As monitor commands, without the plugin.
        self.assertSays(gdb(f"monitor ulpf heap-block {block:#x}"), "0 bytes inside a freed block of 10 bytes")

    def test_what_is_no_block(self):
        gdb = self.at("free_twice", "free")
        self.assertSays(gdb("ulpf info block $sp"), r"no block at 0x[0-9a-f]+: the address is not in the checked heap; name")
        self.assertSays(gdb("ulpf info block"), "it does not say of what")
        self.assertSays(gdb("ulpf who-points-at &main"), "is not in the checked heap")

    def test_leaks_on_demand(self):
        """While the program runs, any number of times; the report at the end is unchanged."""
        gdb = self.at("lose", "lose")
        self.assertSays(gdb("ulpf leaks"), "ulpf: nothing is lost")
        gdb("break scrub")
        gdb("continue")
        gdb("finish")
        for _ in range(2):
            out = gdb("ulpf leaks")
            self.assertSays(out, r"ulpf: #1 1 block \(5000 bytes\) lost: nothing points there", r"allocated by\n +lose at",
                            r"ulpf: #2 1 block \(16 bytes\) lost with", r"ulpf: lost: 1 block \(5000 bytes\)")
        self.assertSays(gdb("continue"), r"ulpf: #1 1 block \(5000 bytes\) lost", r"ulpf: lost: 1 block \(5000 bytes\)", "exited with code 05")

    def test_who_points_there(self):
        gdb = self.at("use_after_realloc", "realloc")
        block = gdb.value("$rdi")
        out = gdb("ulpf who-points-at $rdi")
        self.assertSays(out, rf"\d+ pointers? to the block of 40 bytes at {block:#x}\n", r"rdi of thread \d+\n")
        self.assertEqual(int(out.split()[0]), len(re.findall("(?m)^    ", out)))

    def test_who_points_there_from_blocks_and_variables(self):
        gdb = self.session("heap_errors", "lose", options=["--check"], stop="main")
        gdb(f"source {LOADER}")
        gdb("break malloc if $rdi == 16")
        gdb("continue")
        gdb("finish")
        inner = gdb.value("$rax")
        gdb("next")
        gdb("next")
        outer = gdb.value("kept") if gdb.value("kept") else None
        out = gdb(f"ulpf who-points-at {inner}")
        self.assertSays(out, rf"to the block of 16 bytes at {inner:#x}")
        self.assertSays(out, r"0x[0-9a-f]+, 0 bytes inside the block of 5000 bytes")
        if outer:
            self.assertSays(gdb(f"ulpf who-points-at {outer}"), "kept at 0x")

    def test_without_a_check(self):
        gdb = self.begin("filters")
        for command in "ulpf leaks", "ulpf info block &limit", "ulpf who-points-at &limit":
            self.assertSays(gdb(command), "the heap is not checked; start the program with its heap checked: ulpf gdb --check PROGRAM")

    def test_while_it_runs(self):
        gdb = self.session("heap_errors", "lose", options=["--check"], stop="main")
        self.assertSays(gdb("monitor ulpf heap-error"), r'"heap_error":null')
