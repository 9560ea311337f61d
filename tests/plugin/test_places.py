"""Expressions, ranges, lists, containers, heap blocks; what cannot be watched, and why."""

from lib.env import ulpf_only
from lib.plugin import PluginCase


@ulpf_only
class Many(PluginCase):
    def test_a_range_of_an_array(self):
        gdb = self.begin()
        self.assertSays(gdb("ulpf watch table[2..5]"), r"Ulpf watch 1: table\[2\.\.5\]\n")
        self.assertStop(gdb("continue"), 1, "table[2]", 0, r"\d+")
        self.assertStop(gdb("continue"), 1, "table[3]", 0, r"\d+")

    def test_a_field_of_each(self):
        gdb = self.begin("structs", done=False)
        self.assertSays(gdb("ulpf watch shelf[0..4].id"), r"Ulpf watch 1: shelf\[0\.\.4\]\.id \(4 places, 32 bytes\)")
        self.assertStop(gdb("continue"), 1, "shelf[1].id", 0, 10)
        self.assertStop(gdb("continue"), 1, "shelf[2].id", 0, 20)
        self.assertSays(gdb("ulpf watch shelf[*].corner[1].y"), r"watch 2: .* \(4 places, 8 bytes\)")

    def test_at(self):
        gdb = self.begin("structs", done=False)
        self.assertSays(gdb("ulpf watch *chosen@2"), r"Ulpf watch 1: \*chosen@2 \(\d+ bytes\)")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: chosen\[0\]\.id\n", r"New value = 20\n")

    def test_a_list(self):
        gdb = self.begin()
        self.assertSays(gdb("ulpf watch first->*next.x snapshot"), r"\(2 places, 8 bytes\)")
        self.assertStop(gdb("continue"), 1, "first->*next[0].x", 0, 1)
        gdb("ulpf delete 1")
        # A ring ends where it began; a NULL has no nodes.
        gdb("set var second.next = &first")
        self.assertSays(gdb("ulpf watch (&second)->*next.state"), r"\(2 places, 2 bytes\)")
        gdb("set var second.next = (struct node *) 16")
        self.assertSays(gdb("ulpf watch first->*next.x snapshot"), r"^cannot watch first->\*next\.x: the pointer `first->\*next\[1\]` is 0x10 now; set the watch later, or ")
        gdb("set var head = 0")
        self.assertSays(gdb("ulpf watch head->*next.x snapshot"), r"^cannot watch head->\*next\.x: it has no elements now; ")
        # A watch that follows waits for them.
        self.assertSays(gdb("ulpf watch head->*next.x"), r"^Ulpf watch \d+: head->\*next\.x$")
        self.assertSays(gdb("ulpf watch first->*nxt.x"), r"^cannot watch first->\*nxt\.x: .*no field `nxt`; did you mean `next`\?")

    def test_containers(self):
        gdb = self.begin("cpp_map", done=False)
        # (No pretty-printer is asked.)
        said = gdb("ulpf watch cells[*]", 60)
        self.assertSays(said, r"Ulpf watch 1: cells\[\*\]$")
        self.assertSays(gdb("ulpf watch cells[*] snapshot", 60), r"Ulpf watch 2: cells\[\*\] \(3200 bytes\)")
        # A watch that follows waits for its elements.
        self.assertSays(gdb("ulpf watch table[*].second"), r"Ulpf watch 3: table\[\*\]\.second$")
        self.assertSays(gdb("ulpf watch table[*] snapshot"), r"^cannot watch table\[\*\]: it has no elements now; ")
        self.assertSays(gdb("ulpf watch lock[*]"), r"^cannot watch lock\[\*\]: .*no pretty-printer")

    def test_the_heap(self):
        gdb = self.begin("heap1000", done=False)
        self.assertSays(gdb("ulpf watch heap"), r"^Ulpf watch 1: heap\n")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: 0x[0-9a-f]+\n\nOld value = .*\nNew value = ")
        self.assertSays(gdb("ulpf info watches"), r"\n1 +w .* heap\n")

    def test_too_many(self):
        gdb = self.begin("bigarray", done=False)
        gdb("set ulpf max-elements 100")
        self.assertSays(gdb("ulpf watch ((char (*)[2]) big)[0..=200][0]"), r"has more than 100 elements; .*say `most N`")
        self.assertSays(gdb("ulpf watch big[0..=200]"), r"Ulpf watch 1: big\[0\.\.=200\] \(201 bytes\)")
        self.assertSays(gdb("show ulpf max-elements"), r"100\.")


@ulpf_only
class Refused(PluginCase):
    def test_what_cannot_be_watched(self):
        gdb = self.begin()
        for expression, why in (
                ("nosuch", r'No symbol "nosuch" in current context; a local is known'),
                ("head->x snapshot", r"there is no memory at 0x8; the pointer is stale"),
                ("head->next->x snapshot", r"Cannot access memory at address 0x0; a pointer on the way is stale"),
                ("3 + 4", r"it has no address"),
                ("$rax", r"it has no address: it lives in a register"),
                ("add", r"it is code, .*; use break"),
                ("table[0..17]", r"`table` has 16 elements, and 16 is not among them; use 0 to 15"),
                ("table[17]", r"cannot watch table\[17\]: `table` has 16 elements, and 17 is not among them; use 0 to 15"),
                ("table[3..3]", r"the range 3\.\.3 is empty: `\.\.` excludes its end, `\.\.=` includes it"),
                ("head[..]", r"the number of elements of `head` is not known"),
                ("table[5..2]", r"the range 5\.\.2 ends before it begins"),
                ("total[0..3]", r"`total` is a int, no array"),
                ("table[0..x]", r'No symbol "x"'),
                ("first->*next->x->y", r"is a struct node, no pointer; use `\.` instead of `->`"),
                ("*(long *) 0xffffffffff600000", r"vsyscall|kernel|no memory"),
                ("*(struct node *) 5", r"no memory at 0x5")):
            with self.subTest(expression):
                self.assertSays(gdb(f"ulpf watch {expression}"), r"^[^\n]*" + why)
        self.assertSays(gdb("ulpf watch"), r"^ulpf watch: it does not say what to watch; say: ulpf watch EXPR")
        self.assertSays(gdb("ulpf info watches"), r"No ulpf watches")

    def test_optimised_out(self):
        """A variable without a place: said so, and nothing is watched."""
        gdb = self.begin("optimised", done=False)
        self.assertSays(gdb("info locals"), r"gone = <optimized out>", r"constant = 7")
        self.assertSays(gdb("ulpf watch gone"), r"optimi[sz]ed out.*(-Og|place in memory)")
        self.assertSays(gdb("ulpf watch constant"), r"it has no address|optimi[sz]ed out|is a constant|lives in")
        self.assertSays(gdb("ulpf info watches"), r"No ulpf watches")
        self.assertExits(gdb, 0, "optimised: ")

    def test_tracebacks_only_if_asked(self):
        gdb = self.begin()
        gdb("python import ulpf.places; ulpf.places.locate = None")
        said = gdb("ulpf watch total")
        self.assertSays(said, r"^ulpf watch: unexpected TypeError: .*; `set ulpf traceback on`")
        self.assertNotIn("Traceback", said)
        gdb("set ulpf traceback on")
        self.assertSays(gdb("ulpf watch total"), r"Traceback \(most recent call last\)", r"unexpected TypeError")


@ulpf_only
class Advice(PluginCase):
    def test_software_watches(self):
        gdb = self.begin()
        self.assertSays(gdb("watch $rax"), r"\nulpf: GDB will single-step the program for this watch")
        gdb("delete 3")
        gdb("set can-use-hw-watchpoints 0")
        self.assertSays(gdb("watch total"), r"single-step.*\n +Type: delete 4\n +ulpf watch total\n")
        gdb("set ulpf advice off")
        self.assertNotIn("ulpf", gdb("watch flag"))

    def test_large_objects(self):
        gdb = self.begin("bigarray", done=False)
        self.assertSays(gdb("watch big"), r"ulpf: GDB will never report a hit of this watch: big has 1048576 bytes", r"ulpf watch big\n")
        gdb("delete 2")
        self.assertSays(gdb("ulpf watch big"), r"Ulpf watch 1: big \(1048576 bytes\)\n")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: big\[\d+\]\n\nOld value = 0 .*\nNew value = 1 ")
        self.assertNotIn("ulpf", gdb("watch big[3]"))
