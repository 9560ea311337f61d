"""Instructions of every shape store into watched memory; results equal the bare run."""

from lib.cases import Case
from lib.env import bare, example, ulpf_only


def number(value):
    """A long as gdb prints it, signed or not."""
    return f"({value}|{value % 2 ** 64})"


class Shapes(Case):
    def check_changes(self, program, expression, stops, seconds=30):
        """Continues through all changes of a value: each stop shows the value of the one before."""
        expected = bare(example(program))[1]
        gdb = self.session(program)
        gdb(f"watch {expression}")
        gdb("set print repeats unlimited")
        last, count = gdb.value(expression), 0
        while count < 1000:
            out = gdb("continue", seconds)
            if "exited" in out:
                break
            self.assertSays(out, r"Hardware watchpoint 2")
            self.assertRegex(out, rf"Old value = {number(last)}\n")
            now = gdb.value(expression)
            self.assertRegex(out, rf"New value = {number(now)}\n")
            self.assertNotEqual(now, last)
            last, count = now, count + 1
            if "_start" in gdb("info symbol $pc"):
                break
        gdb.server.wait()
        self.assertIn(expected, gdb.server.stdout())
        if stops is not None:
            self.assertEqual(count, stops)

    @ulpf_only
    def test_vector_stores(self):
        self.check_changes("shapes", "lanes[5]", None)

    @ulpf_only
    def test_rep_movs_stos_memset(self):
        self.check_changes("strings", "*(int*)&text[100]", None)

    @ulpf_only
    def test_compare_and_exchange_sixteen_bytes(self):
        self.check_changes("strings", "pair[1]", 1)

    @ulpf_only
    def test_locked_arithmetic(self):
        # xadd, xchg, inc, neg, not, rol
        self.check_changes("strings", "counter", 6)

    @ulpf_only
    def test_bit_strings_beyond_their_word(self):
        self.check_changes("strings", "bits[30]", 1)
        self.check_changes("strings", "bits[47]", 1)

    @ulpf_only
    def test_calls_on_a_watched_stack(self):
        expected = bare(example("strings"))[1]
        gdb = self.session("strings")
        gdb("set max-value-size unlimited")
        gdb("watch *(char(*)[65536])heap_stack if calls > 1000")
        self.assertExits(gdb, 0, expected)

    @ulpf_only
    def test_shared_memory_both_addresses(self):
        """A store through another mapping of the same memory is the program's own affair; ours is seen."""
        expected = bare(example("shared"))[1]
        gdb = self.session("shared")
        gdb("watch -l first[8]")
        gdb("watch -l private_copy[4096]")
        self.assertSays(gdb("continue"), r"watchpoint 2", r"New value = 97 'a'")
        self.assertSays(gdb("continue"), r"watchpoint 3", r"New value = 113 'q'")
        self.assertSays(gdb("continue"), r"watchpoint 2", r"New value = 100 'd'")
        gdb("delete")
        self.assertExits(gdb, 0, expected)
