"""`set ulpf …`, the words without a command behind them, the pager; all that scripts may call."""

from lib.env import ULPF, example, needs, ulpf_only
from lib.plugin import PluginCase
from lib.tmux import Screen


@ulpf_only
class Settings(PluginCase):
    def test_each_is_shown_and_set(self):
        gdb = self.begin()
        for name, default, other, shown in (("traceback", "off", "on", "on"), ("advice", "on", "off", "off"),
                                            ("max-elements", "100000", "7", "7"), ("max-elements", "7", "unlimited", "unlimited")):
            with self.subTest(name, other=other):
                self.assertSays(gdb(f"show ulpf {name}"), rf"(?i)[^\n]*: ({default}|{'True' if default == 'on' else 'False'})\.\n")
                self.assertEqual(gdb(f"set ulpf {name} {other}").strip(), "")
                self.assertSays(gdb(f"show ulpf {name}"), rf"(?i)[^\n]*: ({shown}|None|0|{'True' if shown == 'on' else 'False'})\.\n")
                self.assertSays(gdb(f"help set ulpf {name}"), r"^Set (whether|how many) ")
        self.assertSays(gdb("set ulpf traceback perhaps"), r'"on" or "off" expected')
        self.assertSays(gdb("set ulpf max-elements many"), r"No symbol \"many\"|[Ii]nvalid|[Aa]rgument")
        self.assertSays(gdb("set ulpf"), r"set ulpf advice -- ", r"set ulpf max-elements -- ", r"set ulpf traceback -- ")
        self.assertSays(gdb("show ulpf"), r"show ulpf advice -- |advice: ")
        gdb("set max-completions unlimited")
        self.assertSays(gdb("complete show ulpf "), r"show ulpf advice\n", r"show ulpf max-elements\n", r"show ulpf traceback\n")

    def test_words_alone(self):
        gdb = self.begin()
        self.assertSays(gdb("ulpf"), r"ulpf watch -- ")
        self.assertSays(gdb("ulpf info"), r"No ulpf watches\.")
        self.assertSays(gdb("ulpf log"), r"No hits yet\.")
        self.assertSays(gdb("ulpf delete 1 x"), r"^(ulpf delete: x is no number of a watch|no ulpf watch 1)")
        gdb("ulpf watch total")
        gdb("ulpf watch flag")
        gdb("ulpf watch limit")
        self.assertSays(gdb("ulpf disable 1-2"), r"^$")
        self.assertEqual([self.row(gdb, n)["Lives"] for n in (1, 2)], ["disabled"] * 2)
        gdb("ulpf delete 1,2")
        self.assertSays(gdb("ulpf info watches 1"), r"^no ulpf watch 1: ")
        self.assertSays(gdb("ulpf info watches 3"), r"\n3 +w ")
        gdb("ulpf delete")
        self.assertSays(gdb("ulpf info watches"), r"No ulpf watches\.")

    def test_every_command_has_help_and_a_name(self):
        gdb = self.begin()
        said = gdb("help ulpf") + gdb("help ulpf log") + gdb("help ulpf info")
        commands = gdb("python from ulpf import commands; print('|'.join(c.name for c in commands._commands))").strip().split("|")
        self.assertGreater(len(commands), 15)
        for name in filter(None, commands):
            self.assertIn(f"ulpf {name} --", said)
            self.assertSays(gdb(f"help ulpf {name}"), r"\w{3}")

    @needs("tmux")
    def test_the_pager(self):
        """A long list stops at each screenful, and `q` ends it without a word of Python's."""
        command = [ULPF, "gdb", "-nx", "-q", "-ex", "set confirm off", "-ex", "set debuginfod enabled off", "-ex", "break ready", "-ex", "run",
                   example("filters")]
        with Screen(*command, env={"HOME": "/nonexistent"}) as screen:
            screen.shows(r"Breakpoint 1, ready", r"^\(gdb\) ?$")
            screen.keys("set height 0", "Enter", "python for n in range(40): ulpf.watch(f'buffer[{n}]')", "Enter")
            screen.keys("set height 10", "Enter", "ulpf info watches", "Enter")
            screen.shows(r"^1 +w .* buffer\[0\]", r"Type <RET> for more")
            screen.keys("Enter")
            screen.shows(r"buffer\[1[0-9]\]$", r"Type <RET> for more")
            screen.keys("q", "Enter")
            screen.keys("print 40 + 2", "Enter")
            text = screen.shows(r"\$1 = 42")[0].string
            self.assertNotIn("Traceback", text)
            self.assertNotIn("Exception", text)
            self.assertNotIn("unexpected", text)
            screen.keys("kill", "Enter", "quit", "Enter")
            screen.shows(r"exit status 0")


@ulpf_only
class Scripts(PluginCase):
    def test_all_that_is_promised_is_there(self):
        gdb = self.begin()
        self.assertSays(gdb("python print(all(hasattr(ulpf, n) for n in ulpf.__all__), ' '.join(sorted(ulpf.__all__)))"),
                        r"^True Hit UlpfError blame counts delete disable enable last log watch watches")
        gdb("python w = ulpf.watch('table[3]', changed=True, count=2)\npython v = ulpf.watch('total', outside='add', bt=2)")
        self.assertSays(gdb("python print([x.number for x in ulpf.watches()], w.name, v.bytes)"), r"^\[1, 2\] table\[3\] 4")
        gdb("python ulpf.disable(2)")
        self.assertEqual(self.row(gdb, 2)["Lives"], "disabled")
        gdb("python ulpf.enable(v)")
        self.assertNotEqual(self.row(gdb, 2)["Lives"], "disabled")
        gdb("python ulpf.delete(v)")
        for call, why in (("ulpf.watch('total', kind='x')", r"UlpfError('>)?: ulpf\.watch: x is no kind of access; say r, w or rw"),
                          ("ulpf.delete(9)", r"UlpfError('>)?: no ulpf watch 9"), ("ulpf.counts(9)", r"UlpfError('>)?: no ulpf watch 9"),
                          ("ulpf.last('nosuch')", r"UlpfError('>)?: .*nosuch")):
            with self.subTest(call):
                self.assertSays(gdb(f"python {call}"), why)
        out = gdb("continue")
        self.assertSays(out, r"Ulpf watch 1: table\[3\]")
        self.assertSays(gdb("python h = ulpf.log(1)[0]; print(type(h) is ulpf.Hit, h.name, int(h.old) != int(h.new), h.tid > 0, h.pc > 0)"),
                        r"^True table\[3\] True True True")
