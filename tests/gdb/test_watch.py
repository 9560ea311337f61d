"""`watch` and its relatives, from stock gdb."""

from lib.cases import Case
from lib.env import ulpf_only


class Watch(Case):
    def test_one_watch(self):
        gdb = self.session("five")
        self.assertSays(gdb("watch a"), r"Hardware watchpoint 2: a")
        out = gdb("continue")
        self.assertChange(out, 2, "a", 10, 11)
        # The stop is after the store; the next line is the one to come.
        self.assertSays(out, r"main \(\) at .*five.c:\d+\n\d+\s+unwatched\[0\] = 1;")
        self.assertChange(gdb("continue"), 2, "a", 11, 12)
        self.assertExits(gdb, 0, "five: done")

    @ulpf_only
    def test_five_watches(self):
        gdb = self.session("five")
        for number, name in enumerate("abcde", start=2):
            self.assertSays(gdb(f"watch {name}"), rf"Hardware watchpoint {number}: {name}")
        for number, (name, old, new) in enumerate(
                [("a", 10, 11), ("b", 20, 21), ("c", 30, 31), ("d", 40, 41), ("e", 50, 51)], start=2):
            self.assertChange(gdb("continue"), number, name, old, new)
        self.assertChange(gdb("continue"), 2, "a", 11, 12)
        self.assertExits(gdb, 0, "five: done")

    def test_watch_set_during_the_run_and_deleted(self):
        gdb = self.session("five")
        gdb("watch a")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        gdb("watch d")
        gdb("delete 2")
        self.assertChange(gdb("continue"), 3, "d", 40, 41)
        gdb("delete 3")
        self.assertExits(gdb)

    def test_disable_and_enable(self):
        gdb = self.session("five")
        gdb("watch a")
        gdb("watch c")
        gdb("disable 2")
        self.assertChange(gdb("continue"), 3, "c", 30, 31)
        gdb("enable 2")
        # Disabled, it missed a's first store; gdb reads the value anew when it is enabled.
        self.assertSays(gdb("continue"), r"watchpoint 2: a", r"New value = 12")
        self.assertExits(gdb)

    def test_condition(self):
        gdb = self.session("five")
        gdb("watch unwatched[3] if unwatched[3] > 500")
        self.assertSays(gdb("continue"), r"watchpoint 2: unwatched\[3\]", r"New value = ")
        self.assertGreater(gdb.value("unwatched[3]"), 500)
        gdb("delete 2")
        self.assertExits(gdb)

    def test_ignore_count(self):
        gdb = self.session("five")
        gdb("watch unwatched[3]")
        gdb("ignore 2 5")
        self.assertSays(gdb("continue"), r"watchpoint 2: unwatched\[3\]")
        self.assertEqual(gdb.value("i"), 3 + 5 * 64)
        gdb("delete 2")
        self.assertExits(gdb)

    def test_commands(self):
        gdb = self.session("five")
        gdb("watch a")
        gdb('commands 2\nsilent\nprintf "a is now %d\\n", a\ncontinue\nend')
        out = gdb("continue")
        self.assertSays(out, r"a is now 11\n", r"a is now 12\n")
        self.assertSays(out, r"exited normally")
        gdb.server.wait()

    def test_location(self):
        gdb = self.session("structs")
        self.assertSays(gdb("watch -l chosen->id"), r"Hardware watchpoint 2: -location chosen->id")
        self.assertChange(gdb("continue"), 2, "-location chosen->id", 0, 20)
        gdb("delete 2")
        self.assertExits(gdb)

    def test_pointer_and_pointee(self):
        """Without -l, gdb watches the pointer as well as what it points to."""
        gdb = self.session("structs")
        gdb("watch chosen->id")
        self.assertChange(gdb("continue"), 2, "chosen->id", 0, 20)
        self.assertChange(gdb("continue"), 2, "chosen->id", 20, 0)   # chosen = &shelf[3]
        self.assertChange(gdb("continue"), 2, "chosen->id", 0, 30)
        gdb("delete 2")
        self.assertExits(gdb)

    def test_silent_store_does_not_stop(self):
        gdb = self.session("five")
        gdb("watch b")
        self.assertChange(gdb("continue"), 2, "b", 20, 21)
        self.assertSays(gdb("info watchpoints"), r"already hit 1 time")
        self.assertExits(gdb)

    def test_local_ends_with_its_scope(self):
        gdb = self.session("locals", stop="inner")
        gdb("next")
        self.assertSays(gdb("watch depth_sum"), r"Hardware watchpoint 2: depth_sum")
        for old, new in (0, 1), (1, 3), (3, 6):
            self.assertChange(gdb("continue"), 2, "depth_sum", old, new)
        self.assertSays(gdb("continue"), r"Watchpoint 2 deleted because the program has left the block")
        self.assertExits(gdb, 0, "locals: 6 10 30")

    def test_local_in_a_recursion(self):
        gdb = self.session("locals", stop="recurse if n == 2")
        gdb("next")
        gdb("watch here")
        self.assertChange(gdb("continue"), 2, "here", 4, 6)
        self.assertSays(gdb("continue"), r"Watchpoint 2 deleted")
        self.assertExits(gdb, 0, "locals: 6 10 30")

    @ulpf_only
    def test_struct(self):
        gdb = self.session("structs")
        self.assertSays(gdb("watch box"), r"Hardware watchpoint 2: box")
        self.assertSays(gdb("continue"), r"watchpoint 2: box", r"Old value = \{id = 1", r"New value = \{id = 2")
        self.assertSays(gdb("continue"), r"New value = \{id = 2, flags = \{ready = 1, dirty = 0")
        gdb("delete 2")
        self.assertExits(gdb)

    def test_bit_fields(self):
        gdb = self.session("structs")
        self.assertSays(gdb("watch box.flags.dirty"), r"Hardware watchpoint 2: box.flags.dirty")
        # ready and level lie in the same byte: their stores are no change of dirty.
        self.assertChange(gdb("continue"), 2, "box.flags.dirty", 0, 1)
        gdb("watch box.flags.count")
        self.assertChange(gdb("continue"), 3, "box.flags.count", 0, 777)
        gdb("delete")
        self.assertExits(gdb)

    def test_single_bytes(self):
        gdb = self.session("structs")
        gdb("watch box.value.bytes[3]")
        self.assertSays(gdb("continue"), r"box.value.bytes\[3\]", r"Old value = 0", r"New value = 63")
        self.assertSays(gdb("continue"), r"box.value.bytes\[3\]", r"Old value = 63", r"New value = 64")
        gdb("delete")
        self.assertExits(gdb)

    @ulpf_only
    def test_array(self):
        gdb = self.session("structs")
        self.assertSays(gdb("watch box.name"), r"Hardware watchpoint 2: box.name")
        self.assertSays(gdb("continue"), r"box.name", r'Old value = "first', r"New value = ")
        gdb("delete")
        self.assertExits(gdb)

    @ulpf_only
    def test_true_read_watch(self):
        gdb = self.session("reads")
        self.assertSays(gdb("rwatch table[2]"), r"Hardware read watchpoint 2: table\[2\]")
        self.assertSays(gdb("continue"), r"Hardware read watchpoint 2: table\[2\]", r"Value = 300", r"middle \(\)")
        # The store of 301 between the two calls is no read.
        self.assertSays(gdb("continue"), r"Value = 301", r"middle \(\)")
        # table[2] += 1 reads, in main.
        self.assertSays(gdb("continue"), r"Hardware read watchpoint 2", r"main \(\)")
        self.assertExits(gdb, 0, "reads: 1601")

    def test_access_watch(self):
        gdb = self.session("reads")
        self.assertSays(gdb("awatch table[2]"), r"Hardware access \(read/write\) watchpoint 2: table\[2\]")
        self.assertSays(gdb("continue"), r"Hardware access .*: table\[2\]", r"Value = 300", r"middle \(\)")
        self.assertSays(gdb("continue"), r"Old value = 300", r"New value = 301", r"main \(\)")
        self.assertSays(gdb("continue"), r"Value = 301", r"middle \(\)")
        gdb("delete")
        self.assertExits(gdb)

    @ulpf_only
    def test_read_write_and_access_together(self):
        gdb = self.session("reads")
        gdb("rwatch table[0]")
        gdb("watch table[2]")
        gdb("awatch table[3]")
        self.assertSays(gdb("continue"), r"read watchpoint 2: table\[0\]", r"Value = 100")
        self.assertSays(gdb("continue"), r"access .* watchpoint 4: table\[3\]", r"Value = 400")
        self.assertChange(gdb("continue"), 3, "table[2]", 300, 301)
        gdb("delete")
        self.assertExits(gdb)

    @ulpf_only
    def test_true_positive_on_the_last_instruction_of_a_page(self):
        """A range that crosses a page edge: stores on both sides are seen."""
        gdb = self.session("sysread")
        gdb("watch *(char(*)[6])&buffer[4093]")
        self.assertSays(gdb("continue"), r"New value = ")
        self.assertSays(gdb("print (char[6])buffer[4093]"), r"packet")
        gdb("delete")
        self.assertExits(gdb)

    def test_condition_with_a_call(self):
        gdb = self.session("registers", stop="main")
        gdb("watch out if add(1, 1) == 2")
        self.assertSays(gdb("continue"), r"watchpoint 2: out", r"New value = 6148914691236517205")
        self.assertExits(gdb)

    def test_register_expression_falls_back(self):
        """gdb itself single-steps for an expression with a register; the server must serve that."""
        gdb = self.session("locals", stop="inner")
        self.assertSays(gdb("watch $rbx + n"), r"Watchpoint 2: \$rbx \+ n")
        self.assertSays(gdb("continue", 60), r"Watchpoint 2")


class ManyWatches(Case):
    limit = 180

    @ulpf_only
    def test_a_thousand_heap_blocks(self):
        gdb = self.session("heap1000")
        gdb("python\nfor i in range(1000): gdb.execute('watch -l blocks[%d]->value' % i, to_string=True)\nend", 60)
        self.assertSays(gdb("info watchpoints"), r"1001 +hw watchpoint")
        for i in range(0, 1000, 100):
            out = gdb("continue", 60)
            self.assertChange(out, i + 2, f"-location blocks[{i}]->value", 0, i + 1)
        gdb("delete")
        self.assertExits(gdb, 0, "heap1000: 7010")

    def a_megabyte(self, expression):
        gdb = self.session("bigarray")
        gdb("set max-value-size unlimited")
        gdb("set print elements 4")
        self.assertSays(gdb(f"watch {expression}"), r"Hardware watchpoint 2: ")
        for i in range(12):
            self.assertIn(f"watchpoint 2: {expression}\n", gdb("continue", 60))
            self.assertEqual(gdb.value("i"), i)
        gdb("delete")
        self.assertExits(gdb, 0, "bigarray: sum 11471")

    @ulpf_only
    def test_a_megabyte(self):
        self.a_megabyte("*(long (*)[131072])big")

    @ulpf_only
    def test_a_megabyte_of_characters(self):
        self.a_megabyte("big")
    test_a_megabyte_of_characters.night = "gdb itself takes six seconds to print two such arrays (repetitions are looked for in all of it)"

    @ulpf_only
    def test_above_max_value_size_is_explained(self):
        """gdb accepts the watch and would never report it, so the server explains that."""
        gdb = self.session("bigarray")
        out = gdb("watch big") + gdb("continue", 60)
        self.assertSays(out, r"max-value-size")
