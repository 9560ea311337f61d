"""Filters: what a watch does not stop for is decided on the program's threads."""

import json
import re

from lib.cases import Case
from lib.env import needs_registers, ulpf_only

TOTAL = "filters: total 1050, flag 9, checked 99, hello, filters"


class FilterCase(Case):
    def begin(self, *options, **more):
        gdb = self.session("filters", options=options, **more)
        gdb("tbreak done")
        return gdb

    def answer(self, gdb, command):
        said = gdb(f"monitor ulpf {command}")
        return json.loads(re.search(r"{.*}", said).group())

    def watch(self, gdb, variable, words, kind="w"):
        at, size = gdb.value(f"(long)&{variable}"), gdb.value(f"sizeof({variable})")
        return self.answer(gdb, f"watch {at:#x} {size} {kind} {words}")["watch"]

    def to_the_end(self, gdb):
        """Counters of the watches when all has been written."""
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        watches = sorted(self.answer(gdb, "stats")["watches"], key=lambda watch: watch["id"])
        self.assertExits(gdb, 0, TOTAL)
        return watches

    def passed(self, gdb):
        """For each watch, the number of hits, and of those that passed its filter."""
        return [(w["hits"], w["hits"] - w["filtered"]) for w in self.to_the_end(gdb)]

    def function(self, gdb, name):
        """Its code, as a range."""
        lines = gdb(f"disassemble {name}")
        addresses = [int(a, 16) for a in re.findall(r"(?m)^\s*(?:=> )?(0x\w+) <\+\d+>", lines)]
        return f"{addresses[0]:#x}-{addresses[-1] + 1:#x}"


@ulpf_only
class ReadyMade(FilterCase):
    def test_changed(self):
        gdb = self.begin()
        self.watch(gdb, "flag", "changed")
        self.watch(gdb, "checked", "changed", "rw")
        # flag is 0 at the beginning; printf reads checked behind done().
        self.assertEqual(self.passed(gdb), [(100, 9), (100, 99)])

    def test_values(self):
        gdb = self.begin()
        for words in "new > 900", "old <= 11", "new == 7 mask 7", "new != 99 old >= 98", "old < 3 new > 1":
            self.watch(gdb, "checked", words)
        self.watch(gdb, "total", "new > 900")
        self.assertEqual(self.passed(gdb), [(100, 0), (100, 13), (100, 12), (100, 0), (100, 2), (210, 31)])

    def test_skip_and_count(self):
        gdb = self.begin()
        self.watch(gdb, "checked", "skip 90")
        self.watch(gdb, "checked", "count 7")
        # Of those that pass everything else.
        self.watch(gdb, "checked", "skip 3 count 4 new >= 50")
        self.watch(gdb, "checked", "count 0")
        self.assertEqual(self.passed(gdb), [(100, 10), (100, 7), (100, 4), (100, 0)])

    def test_threads(self):
        gdb = self.begin()
        self.watch(gdb, "shared", f"thread {gdb.server.program_pid}")
        self.watch(gdb, "shared", "thread 1")
        self.assertEqual(self.passed(gdb), [(300, 100), (300, 0)])

    def test_places(self):
        gdb = self.begin()
        add, elsewhere, slowly = (self.function(gdb, name) for name in ("add", "elsewhere", "slowly"))
        for words in (f"from {elsewhere}", f"outside {elsewhere}", f"from {elsewhere},{add}", "from none", "outside none",
                      f"called from {slowly}", f"called outside {slowly}", f"from {add} called outside {slowly}"):
            self.watch(gdb, "total", words)
        self.assertEqual(self.passed(gdb), [(210, n) for n in (10, 200, 210, 0, 210, 100, 110, 100)])

    def test_the_kernels_writes(self):
        """pc and caller are those of the system call."""
        gdb = self.begin(gdb_options={"libraries": True})  # functions of the C library's own
        fill = self.function(gdb, "fill")
        libc = re.search(r"(0x\w+) +(0x\w+) +\S+ .*libc\.so", gdb("info sharedlibrary"))
        libc = f"{libc.group(1)}-{libc.group(2)}"
        for words in (f"from {libc}", f"outside {libc}", f"called from {fill}", f"called outside {fill}",
                      "new == 0x6c6c6568 unit 4", "unit 4 old == 0 new == 0x6c6c6568", "new == 0x11"):
            self.watch(gdb, "buffer", words)
        # read(2), and memcpy, in one piece or several.
        watches = self.passed(gdb)
        hits = watches[0][0]
        self.assertGreaterEqual(hits, 2)
        begins = watches[4][1]
        self.assertGreaterEqual(begins, 2)
        # Since glibc 2.41 read(2) is called by functions of the C library's own.
        by_libc = int("in section" in gdb("info symbol __internal_syscall_cancel"))
        self.assertEqual(watches, [(hits, n) for n in (hits, 0, hits - by_libc, by_libc, begins, 2, 0)])

    def test_an_element_of_many(self):
        """memset writes all of them at once: some of them decide."""
        gdb = self.begin()
        self.watch(gdb, "table", "unit 2 new == 0x1111")
        self.watch(gdb, "table", "unit 2 new == 0xffff")
        self.watch(gdb, "table", "unit 2 old == 0xffcf")
        hits = self.passed(gdb)
        self.assertEqual([n for _, n in hits[1:]], [1, 1])
        self.assertEqual(hits[0][1], hits[0][0] - 100)

    def test_bad_words(self):
        gdb = self.begin()
        at = gdb.value("(long)&total")
        for words in ("perhaps", "thread", "thread x", "skip", "count many", "unit 9", "from", "from 5", "from 9-8",
                      "called", "called by 1-2", "new", "new = 5", "new == x", "mask 5", "if", "if 22", "if x", "if x 2",
                      "if x zz", "if x 30", "if x 22", "changed mask 3"):
            for command in f"watch {at:#x} 4 w {words}", f"filter at {at:#x} 4 {words}":
                self.assertIn("refused", self.answer(gdb, command), words)
        self.assertIn("refused", self.answer(gdb, "filter 0 changed"))
        self.assertIn("refused", self.answer(gdb, "filter at 5 changed"))
        self.assertEqual(self.answer(gdb, "stats")["watches"], [])


@ulpf_only
class Bytecode(FilterCase):
    # const16 900, getv new, ext 32, less_signed, end
    ABOVE_900 = "if x 230384" + "2cff01" + "1620" + "14" + "27"

    def test_a_condition(self):
        gdb = self.begin()
        self.watch(gdb, "total", self.ABOVE_900)
        # hits % 10 == 0: getv hits, const8 10, rem_unsigned, log_not, end
        self.watch(gdb, "total", "if x 2cff07220a080e27")
        # tid != pid: getv tid, getv pid, equal, log_not, end
        self.watch(gdb, "shared", "if x 2cff042cff05130e27")
        # kind == 2 and len == 4; kind == 1
        self.watch(gdb, "total", "if x 2cff0622021327 if x 2cff0322041327")
        self.watch(gdb, "total", "if x 2cff0622011327")
        # new - old == -5, in 32 bits
        self.watch(gdb, "total", "if x 2cff012cff00031620" + "25fffffffffffffffb" + "1327")
        self.assertEqual(self.passed(gdb), [(210, 31), (210, 21), (300, 200), (210, 210), (210, 0), (210, 10)])

    def test_registers_and_memory(self):
        gdb = self.begin()
        limit = gdb.value("(long)&limit")
        # *(long *)&limit < new
        self.watch(gdb, "total", f"if x 25{limit:016x}1a2cff011427")
        # $pc is behind the instruction, the variable at it: reg 16 - getv pc is 2 to 15
        self.watch(gdb, "total", "if x 2600102cff0803220f" + "1427")
        self.assertEqual(self.passed(gdb), [(210, 31), (210, 210)])

    def test_stops_only_for_what_passes(self):
        gdb = self.begin()
        at = gdb.value("(long)&total")
        self.assertEqual(self.answer(gdb, f"filter at {at:#x} 4 {self.ABOVE_900} count 2"), {"filtered": []})
        gdb("watch total")
        self.assertSays(gdb("continue"), r"Hardware watchpoint 3: total", r"Old value = 0\n", r"New value = 906\n")
        self.assertSays(gdb("backtrace 2"), r"add ", r"(slowly|quickly) ")
        self.assertSays(gdb("continue"), r"Hardware watchpoint 3: total", r"Old value = 906\n", r"New value = 907\n")
        watch, = self.to_the_end(gdb)
        self.assertEqual((watch["hits"], watch["filtered"], watch["stops"]), (210, 208, 2))

    def test_changing_it(self):
        gdb = self.begin()
        gdb("watch total")
        self.assertChange(gdb("continue"), 3, "total", 0, 1)
        watch, = self.answer(gdb, "stats")["watches"]
        self.assertEqual(self.answer(gdb, f"filter {watch['id']} skip 50"), {"filtered": [watch["id"]]})
        self.assertSays(gdb("continue"), r"New value = 265\n")
        self.assertEqual(self.answer(gdb, f"filter {watch['id']} keep skip 51 count 1"), {"filtered": [watch["id"]]})
        self.assertSays(gdb("continue"), r"New value = 266\n")
        self.answer(gdb, f"filter {watch['id']} new > 1000")
        self.assertSays(gdb("continue"), r"New value = 1001\n")
        self.answer(gdb, f"filter {watch['id']}")
        self.assertSays(gdb("continue"), r"New value = 1011\n")
        gdb("delete")
        self.assertExits(gdb)

    def test_errors_count_as_true(self):
        """As a breakpoint's condition in gdb; the reason is reported once."""
        gdb = self.begin()
        at, zero = gdb.value("(long)&checked"), gdb.value("(long)&zero")
        # 50 / zero == 10: true where zero is 5, not known where it is 0.
        self.answer(gdb, f"filter at {at:#x} 4 if x 223225{zero:016x}1905220a1327")
        gdb("watch checked")
        said, values = "", []
        for _ in range(4):
            out = gdb("continue")
            said += out
            values += re.findall(r"New value = (\d+)\n", out)
        # The first one stores what was there (0), and does not stop.
        self.assertEqual(values, ["5", "10", "15", "20"])
        self.assertEqual(len(re.findall(r"cannot be evaluated for the access at 0x\w+: division by zero", said)), 1, said)
        gdb("delete")
        self.assertExits(gdb)

    def test_unreadable_memory(self):
        gdb = self.begin()
        self.watch(gdb, "checked", "if x 22101a27")
        self.watch(gdb, "checked", "if x 26004027")
        self.watch(gdb, "checked", "if x 2cff2027")
        self.watch(gdb, "checked", "if x 210000")
        out = gdb("continue")
        self.assertSays(out, r"memory at 0x10 cannot be read", r"there is no register 64", r"variable 0xff20 is not known",
                        r"takes more than 10000 steps")
        self.assertEqual([w["filtered"] for w in self.answer(gdb, "stats")["watches"]], [0] * 4)
        self.assertExits(gdb, 0, TOTAL)


@ulpf_only
class Names(FilterCase):
    """The command translates what names variables and functions."""

    def test_the_users_own_terms(self):
        gdb = self.begin()
        self.assertEqual(self.answer(gdb, "filter total if $new > limit skip 2"), {"filtered": []})
        gdb("watch total")
        self.assertSays(gdb("continue"), r"Hardware watchpoint 3: total", r"New value = 917\n")
        self.assertEqual(self.answer(gdb, "filter total from elsewhere"), {"filtered": [0]})
        self.assertSays(gdb("continue"), r"Old value = 917\n", r"New value = 945\n")
        self.assertSays(gdb("monitor ulpf filter total if limmit > 3"), r"no variable `limmit`; did you mean `limit`\?",
                        r"column 10, at `limmit > 3`")
        self.assertSays(gdb("monitor ulpf filter heap changed"), r"say ulpf filter NUMBER")
        self.answer(gdb, "filter total")
        self.assertSays(gdb("continue"), r"Old value = 945\n", r"New value = 946\n")
        gdb("delete")
        self.assertExits(gdb, 0, TOTAL)


@ulpf_only
class Paths(FilterCase):
    """The same hits pass, whatever way they come."""

    def test_patched_sites(self):
        gdb = self.begin("--placement=guard")
        gdb("monitor ulpf patch on after 1")
        self.watch(gdb, "checked", "new > 89")
        self.watch(gdb, "total", Bytecode.ABOVE_900)
        self.assertEqual(self.passed(gdb), [(100, 10), (210, 31)])

    @needs_registers
    def test_debug_registers(self):
        gdb = self.begin("--placement=debug-register")
        self.watch(gdb, "checked", "new > 89")
        self.watch(gdb, "total", Bytecode.ABOVE_900)
        self.watch(gdb, "flag", "changed old < 4")
        add = self.function(gdb, "add")
        self.watch(gdb, "total", f"outside {add}")
        watches = self.to_the_end(gdb)
        self.assertEqual([(w["hits"], w["hits"] - w["filtered"]) for w in watches],
                         [(100, 10), (210, 31), (100, 4), (210, 10)])
        self.assertEqual([w["placement"] for w in watches], ["debug-register"] * 4)

    def test_the_heap(self):
        gdb = self.session("allocations")
        watch = self.answer(gdb, "watch heap w unit 8 new >= 0x6d61726b00000000 new < 0x6d61726b00001000")["watch"]
        gdb("catch syscall exit_group")
        self.assertSays(gdb("continue"), r"exit_group")
        counted = next(w for w in self.answer(gdb, "stats")["watches"] if w["id"] == watch)
        self.assertEqual(counted["hits"] - counted["filtered"], 11)
        self.assertGreater(counted["filtered"], 100)
        self.answer(gdb, f"filter {watch} skip 5")
        gdb("delete")
        self.assertExits(gdb)
