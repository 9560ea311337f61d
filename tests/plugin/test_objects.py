"""Objects on the heap, and programs that become others."""

from lib.env import ulpf_only
from lib.plugin import PluginCase


@ulpf_only
class Objects(PluginCase):
    def test_a_list_on_the_heap(self):
        gdb = self.begin("objects")
        self.assertSays(gdb("ulpf watch list->*next.refcount"), r"^Ulpf watch 1: list->\*next\.refcount$")
        for n in range(5):
            self.assertStop(gdb("continue"), 1, f"list->*next[{n}].refcount", 4 - n, 14 - n)
        self.assertSays(gdb("continue"), r"Temporary breakpoint")

    def test_blocks_of_a_type(self):
        gdb = self.begin("objects")
        self.assertSays(gdb("ulpf watch blocks struct node log"), r"^Ulpf watch 1: blocks struct node \(5 places, 240 bytes\), logged")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        self.assertEqual(self.counted(gdb, 1), (5, 0))
        self.assertEqual(gdb("ulpf log show").count(".refcount: "), 5)
        self.assertSays(gdb("ulpf watch blocks nosuch"), r"^no type nosuch: ")
        self.assertSays(gdb("ulpf watch blocks struct box"), r"^no type struct box: ")

    def test_blocks_of_a_function(self):
        gdb = self.begin("objects", done=False, stop="block_in_between")
        gdb("break done")
        self.assertSays(gdb("ulpf watch blocks @main log"), r"^Ulpf watch 1: blocks @main, logged")
        self.assertSays(gdb("ulpf watch blocks @block_in_between"), r"^Ulpf watch 2: ")
        self.assertSays(gdb("ulpf watch blocks @nosuch"), r"^cannot watch the blocks of nosuch: no function has that name; ")
        self.assertSays(gdb("continue"), r"Breakpoint \d, done")
        # other[0] = 77, in the block that main has from malloc.
        self.assertSays(gdb("ulpf log show 1 of 1"), r"#1 write  block of 100000 bytes at 0x\w+.*main\+")
        self.assertSays(gdb("ulpf info watches"), r"\n1 .* blocks @main log\n", r"2 .* blocks @block_in_between\n")
        self.assertExits(gdb)

    def test_following_an_object(self):
        gdb = self.begin("objects")
        gdb("ulpf watch table->used follow")
        gdb("ulpf watch table->slots[2] follow")
        gdb("ulpf watch list->name follow")
        self.assertStop(gdb("continue"), 1, "table->used", 0, 1)
        said = gdb("continue", 60)
        self.assertSays(said, r"ulpf: watch 1 \(table->used\) follows its object from 0x\w+ to 0x\w+\.")
        self.assertSays(said, r"ulpf: watch 2 \(table->slots\[2\]\) follows its object from 0x\w+ to 0x\w+\.")
        self.assertStop(said, 1, "table->used", 1, 2)
        self.assertStop(gdb("continue"), 1, "table->used", 2, 3)
        # A store to a later object at the same address is no hit.
        said = gdb("continue")
        self.assertSays(said, r"ulpf: watch 1 \(table->used\) has ended: the object was freed by drop\.", r"Temporary breakpoint")
        self.assertEqual([self.row(gdb, n)["Lives"] for n in (1, 2, 3)], ["ended", "ended", "page"])
        self.assertExits(gdb, 0, "objects: kept 3, 91")

    def test_exec(self):
        """The same program again: its statics are watched again."""
        gdb = self.begin("relay", "1", done=False)
        gdb("ulpf watch baton")
        self.assertStop(gdb("continue"), 1, "baton", 0, 11)
        self.assertStop(gdb("continue"), 1, "baton", 11, 12)
        self.assertStop(gdb("continue", 60), 1, "baton", 0, 10)
        self.assertStop(gdb("continue"), 1, "baton", 10, 11)

    def test_a_child_is_none_of_its_business(self):
        gdb = self.begin("children", done=False)
        gdb("ulpf watch heap log")
        self.assertSays(gdb("continue", 60), r"exited")

    def test_a_child_that_gdb_holds(self):
        """The watches are the parent's: said in the child, and whole when the parent is selected again."""
        gdb = self.begin("children", done=False, extended=True)
        gdb("ulpf watch shared_count")
        gdb("set detach-on-fork off\ncatch fork")
        self.assertSays(gdb("continue"), r"Catchpoint \d+ \(forked process \d+\)")
        gdb("stepi")
        self.assertSays(gdb("info inferiors"), r"\* 1 +process \d+", r"  2 +process \d+")
        gdb("inferior 2")
        self.assertSays(gdb("ulpf watch big_block"), r"^no ulpf watch here: they are those of process \d+, which has forked this one \(\d+\); select it")
        self.assertSays(gdb("ulpf info watches"), r"\n1 +w .* shared_count\n")
        gdb("kill inferiors 2\ninferior 1")
        self.assertEqual(self.row(gdb, 1)["Lives"], "page")
        gdb("set detach-on-fork on\ndelete 3\ncatch fork")
        self.assertSays(gdb("ulpf watch big_block"), r"Ulpf watch 2: big_block")

    def test_a_local_ends_with_its_function(self):
        gdb = self.begin("locals", done=False, stop="recurse")
        gdb("break recurse\ncontinue\ncontinue")
        self.assertSays(gdb("info args"), r"n = 3")
        gdb("delete\nup")
        gdb("ulpf watch here")
        gdb("down\nulpf watch n :rw count 0")
        self.assertSays(gdb("frame"), r"n=3")
        said = gdb("continue")
        # n of the inner one ends first; here of the outer one is written when that has returned.
        self.assertSays(said, r"ulpf: watch 2 \(n\) has ended: the function that had it has returned\.", r"Ulpf watch 1: here\n\nOld value = 8\nNew value = \d+")
        said = gdb("continue")
        self.assertSays(said, r"ulpf: watch 1 \(here\) has ended", r"exited normally")
        self.assertEqual(said.count("Ulpf watch"), 0)
