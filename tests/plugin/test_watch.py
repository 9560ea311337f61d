"""`ulpf watch` in a real gdb: stops, messages, and watches that stay."""

import json
import re
import subprocess

from lib.cases import SEEN
from lib.env import ULPF, example, ulpf_only
from lib.plugin import LOADER, PluginCase


@ulpf_only
class Stops(PluginCase):
    def test_one_watch(self):
        gdb = self.begin()
        self.assertSays(gdb("ulpf watch total"), r"^Ulpf watch 1: total\n")
        self.assertStop(gdb("continue"), 1, "total", 0, 1)
        self.assertSays(gdb("backtrace 2"), r"add ", r"slowly ")
        self.assertStop(gdb("continue"), 1, "total", 1, 11)
        self.assertEqual(self.counted(gdb, 1), (2, 2))
        gdb("ulpf delete 1")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        self.assertSays(gdb("ulpf info watches"), r"No ulpf watches")
        self.assertExits(gdb)

    def test_beside_gdbs_own_on_the_same_bytes(self):
        gdb = self.begin()
        gdb("watch total")
        gdb("ulpf watch total")
        said = gdb("continue")
        self.assertChange(said, 3, "total", 0, 1)
        self.assertSays(said, r"Ulpf watch 1: total, by the same access\n")
        gdb("ulpf delete")
        self.assertChange(gdb("continue"), 3, "total", 1, 11)
        gdb("ulpf watch total")
        gdb("delete 3")
        self.assertStop(gdb("continue"), 2, "total", 11, 12)

    def test_reads(self):
        gdb = self.begin("reads", done=False)
        self.assertSays(gdb("ulpf watch table[2] :r"), r"Ulpf read watch 1: table\[2\]\n")
        self.assertSays(gdb("continue"), r"Ulpf read watch 1: table\[2\]\n\nValue = 300\n", r"middle \(\) at reads\.c:\d+")
        # The write between them is no read hit.
        self.assertSays(gdb("continue"), r"Ulpf read watch 1: table\[2\]\n\nValue = 301\n")
        gdb("ulpf delete 1")
        self.assertExits(gdb)

    def test_parts_are_named(self):
        gdb = self.begin("structs", done=False)
        gdb("ulpf watch shelf")
        gdb("ulpf watch box.flags.level")
        said = gdb("continue")
        # ready and dirty are in the same byte.
        self.assertStop(said, 2, "box.flags.level", 0, 33)
        self.assertStop(gdb("continue"), 1, "shelf[1].id", 0, 10)
        self.assertStop(gdb("continue"), 1, "shelf[2].id", 0, 20)

    def test_the_thread_is_named(self):
        gdb = self.begin()
        gdb("ulpf watch shared from worker")
        self.assertSays(gdb("continue", 60), r'Thread \d "filters" hit Ulpf watch 1: shared\n')

    def test_disable_and_enable(self):
        gdb = self.begin()
        gdb("ulpf watch total")
        gdb("continue")
        gdb("ulpf disable 1")
        gdb("break elsewhere")
        self.assertSays(gdb("continue"), r"Breakpoint \d, elsewhere")
        row = self.row(gdb, 1)
        self.assertEqual((row["Hits"], row["Lives"]), ("1", "disabled"))
        gdb("ulpf enable 1")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: total", r"elsewhere \(\) at filters.c")
        self.assertEqual(self.row(gdb, 1)["Hits"], "2")

    def test_another_run(self):
        """Static watches are set again where the program begins; those on the stack or heap are not, with a message."""
        gdb = self.begin(extended=True, done=False)
        gdb("break ready")
        gdb("ulpf watch total")
        gdb("ulpf watch first->*next.x")
        gdb("ulpf watch *(int *) ($sp + 64)")
        self.assertStop(gdb("continue"), 1, "total", 0, 1)
        said = gdb("run", 60)
        self.assertSays(said, r"ulpf: watch 3 \(\*\(int \*\) \(\$sp \+ 64\)\) is not set again: its memory went with", r"Breakpoint \d, ready")
        self.assertStop(gdb("continue"), 1, "total", 0, 1)
        self.assertEqual(self.row(gdb, 3)["Lives"], "ended")
        self.assertSays(gdb("ulpf why 3"), r"not armed: its memory went with")
        gdb("kill")
        self.assertSays(gdb("ulpf info watches"), r"the program is gone")
        self.assertSays(gdb("ulpf watch total"), r"^there is no program: ")

    def test_a_target_that_dies(self):
        gdb = self.begin()
        gdb("ulpf watch total")
        gdb.server.process.kill()
        gdb.server.process.wait()
        self.assertSays(gdb("ulpf watch flag"), r"ulpf does not answer: .*; stop the program first|there is no program")
        gdb("kill")
        self.assertSays(gdb("ulpf info watches"), r"^Num .*\n1 .* ended ")
        self.assertSays(gdb("ulpf delete"), r"^$")

    def test_thousands(self):
        """One command, ten thousand watches; gdb's part does not grow with them (the figure: BENCHMARKS.md)."""
        gdb = self.begin("bigarray", done=False, options=SEEN)
        self.assertSays(gdb("ulpf watch ((char (*)[2]) big)[0..10000][0]", 60), r"\(10000 places, 10000 bytes\)")
        gdb("stepi")
        watches = json.loads(re.search(r"{.*}", gdb("monitor ulpf stats", 60)).group())["watches"]
        self.assertEqual(len(watches), 10_000)
        before = gdb.server.said.count("Z4,")
        gdb("stepi")
        self.assertLessEqual(gdb.server.said.count("Z4,") - before, 1)
        self.assertSays(gdb("ulpf info watches", 60), r"\n1 +w +0 .* page .*\(10000 places\)")


@ulpf_only
class Loading(PluginCase):
    def test_ulpf_gdb_has_it(self):
        commands = "break ready\nrun\nulpf watch total\ncontinue\nkill\n"
        done = subprocess.run([ULPF, "gdb", "-nx", "-q", "-iex", "set debuginfod enabled off", "-iex", "set confirm off",
                               example("filters")], input=commands, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60)
        self.assertStop(done.stdout, 1, "total", 0, 1)

    def test_written_to_a_folder(self):
        server = self.serve("five")
        folder = server.dir.name
        done = subprocess.run([ULPF, "gdb-plugin", f"{folder}/plugin"], stdout=subprocess.PIPE, text=True, timeout=20)
        source = re.search(r"source (\S+)", done.stdout).group(1)
        gdb = self.gdb()
        self.assertEqual(gdb(f"source {source}\nsource {source}").strip(), "")
        self.assertSays(gdb("ulpf watch a"), r"^there is no program: ")
        done = subprocess.run([ULPF, "gdb-plugin", "/proc/none"], stderr=subprocess.PIPE, text=True, timeout=20)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"/proc/none cannot be written: .*\. Name another folder\.")

    def test_an_old_gdb(self):
        gdb = self.gdb()
        gdb("python gdb.VERSION = 'Debian 11.2-1'")
        self.assertSays(gdb(f"source {LOADER}"), r"^The ulpf commands are not loaded: they need GDB 12 or later, and this is Debian 11\.2-1\.")
        self.assertSays(gdb("ulpf watch a"), r"Undefined command")

    def test_another_target(self):
        """Under a plain gdb: the message says what to do."""
        gdb = self.gdb()
        gdb(f"source {LOADER}\nfile {example('five')}\nbreak ready\nrun")
        self.assertSays(gdb("ulpf watch a"), r"no program under ulpf: .*; start GDB as `ulpf gdb PROGRAM`")
        gdb("kill")
