"""ulpf log, last, why, stats, backend; the Python API; run, attach, connect; help and completion."""

import csv
import json
import subprocess

from lib.env import ULPF, example, ulpf_only
from lib.plugin import LOADER, PluginCase


@ulpf_only
class Log(PluginCase):
    def test_show_and_save(self):
        gdb = self.begin()
        gdb("ulpf watch total log bt 2")
        gdb("ulpf watch flag :rw log")
        self.assertSays(gdb("ulpf log show"), r"^No hits yet\.\n")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        said = gdb("ulpf log show 3 of 1")
        self.assertSays(said, r"^ +\d+\.\d+ \[\d+\] #1 (write |update) total: 1044 → 1045  add\+0x\w+ at filters\.c:\d+\n",
                        r" +called from (slowly|quickly)\+0x\w+ at filters\.c:\d+\n")
        self.assertEqual(said.count("#1"), 3)
        folder = gdb.server.dir.name
        self.assertSays(gdb(f"ulpf log save {folder}/a.jsonl of 1"), r"^210 hits saved in ")
        self.assertSays(gdb(f"ulpf log save {folder}/a.csv of 1 2"), r"^\d+ hits saved in ")
        self.assertSays(gdb(f"ulpf log save {folder}/a.txt 7"), r"^7 hits saved in ")
        with open(f"{folder}/a.jsonl") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual((lines[-1]["name"], lines[-1]["watch"], len(lines)), ("total", 1, 210))
        self.assertEqual([line["old"] for line in lines[1:]], [line["new"] for line in lines[:-1]])
        with open(f"{folder}/a.csv") as file:
            self.assertGreaterEqual(len([row for row in csv.DictReader(file) if row["name"] == "flag"]), 100)
        self.assertSays(gdb("ulpf log save /proc/none/x"), r"^the hits are not saved in /proc/none/x: .*; name another file")
        self.assertSays(gdb("ulpf log save /dev/full"), r"^the hits are not saved in /dev/full: No space left")
        self.assertSays(gdb("ulpf log show many"), r"^ulpf log show: many is no number of hits; ")
        self.assertSays(gdb("ulpf log save"), r"^ulpf log save: no file is named; ")
        self.assertExits(gdb)
        self.assertSays(gdb("ulpf log show"), r"^there is no program: ")

    def test_last(self):
        gdb = self.begin()
        gdb("watch total")
        gdb("ulpf watch table log")
        gdb("continue")
        self.assertSays(gdb("ulpf last total"), r"^ +\d+\.\d+ s ago \[\d+\] \w+ +total: 0 → 1  add\+0x\w+ at filters\.c:\d+\n")
        self.assertSays(gdb("ulpf last table[9]"), r"^table\[9\] has not been written since it is watched \(\d")
        gdb("delete 3\ncontinue")
        self.assertEqual(gdb("ulpf last table[3] -n 2").count("table[3]: "), 2)
        self.assertSays(gdb("ulpf last limit"), r"^nothing is known of limit: no watch looks at the 8 bytes at 0x")
        self.assertSays(gdb("ulpf last"), r"^ulpf last: it does not say of what; ")
        self.assertSays(gdb("ulpf last total -n x"), r"^ulpf last: x is no number of writes; ")

    def test_blame(self):
        gdb = self.begin()
        self.assertSays(gdb("ulpf blame total"), r"^nothing is known of total: no watch looks at the 4 bytes at 0x\w+; say: ulpf watch total log, or ulpf blame, ")
        self.assertSays(gdb("ulpf blame"), r"^From now on each byte of heap and data has its last writer: ulpf last EXPR\.\n")
        self.assertSays(gdb("ulpf last total"), r"^total has not been written since it is watched \(\d")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        for command in "ulpf last total", "ulpf blame total":
            self.assertSays(gdb(command), r"^ +\d+\.\d+ s ago \[\d+\] write  total: 4 bytes  (add|elsewhere)\+0x\w+ at filters\.c:\d+\n")
        self.assertEqual(gdb("python print([(h.length, h.pc > 0) for h in ulpf.blame(gdb.parse_and_eval('total'))])"), "[(4, True)]\n")
        self.assertSays(gdb("ulpf blame --by table"), r"^ +32 bytes in 1 place, the youngest \d+\.\d+ s ago  main\+0x\w+ at filters\.c:\d+\n")
        self.assertSays(gdb("ulpf last table"), r"^ +\d+\.\d+ s ago \[\d+\] write  table: 32 bytes  main\+0x\w+ at filters\.c:\d+\n")


@ulpf_only
class Reasons(PluginCase):
    def test_why_stats_backend(self):
        gdb = self.begin()
        gdb("ulpf watch flag if $new > 1000000")
        gdb("ulpf watch limit")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")
        self.assertSays(gdb("ulpf why 1"), r"On a guarded page", r"has not stopped the program: its filter has rejected every hit")
        self.assertSays(gdb("ulpf why 2"), r"It has not been hit\.", r"What a watch does not see")
        self.assertSays(gdb("ulpf why 9"), r"^no ulpf watch 9: ")
        gdb("ulpf watch *(long *) 0xffffffffff600000")
        self.assertSays(gdb("ulpf why"), r"0xffffffffff600000")
        self.assertSays(gdb("ulpf stats"), r"watches +2\n", r"hits +\d{3,}\n", r"faults +\d+\n")
        self.assertSays(gdb("ulpf backend"), r"^signal +page guards .*: 2 watches\n", r"patch +after 4 accesses", r"\ndebug registers ",
                        r"`ulpf doctor` says what this machine can do")


@ulpf_only
class Api(PluginCase):
    def test_callbacks(self):
        gdb = self.begin()
        gdb("python\nseen = []\ndef hit(h):\n    seen.append((int(h.old), int(h.new)))\n    return h.new > 30\nend")
        gdb("python w = ulpf.watch('total', callback=hit)")
        said = gdb("continue")
        self.assertStop(said, 1, "total", r"\d+", r"3[1-9]|[4-9]\d")
        self.assertSays(gdb("python print(len(seen) > 3, seen[0], ulpf.counts(w)['hits'] == len(seen))"), r"^True \(0, 1\) True")
        gdb("python w.callback = lambda h: nosuch")
        self.assertSays(gdb("continue"), r"ulpf: NameError: name 'nosuch' is not defined\n", r"Ulpf watch 1: total")
        gdb("python w.callback = None; ulpf.disable(w); ulpf.enable(1)")
        self.assertSays(gdb("continue"), r"Ulpf watch 1: total")
        self.assertSays(gdb("python print([h.name for h in ulpf.last('total', 2)], ulpf.log(1)[0].name, [w.number for w in ulpf.watches()])"),
                        r"^\['total', 'total'\] total \[1\]")
        gdb("python ulpf.watch('flag', kind='rw', condition='$new == 3', inside='main', log=True, skip=1)")
        self.assertSays(gdb("python ulpf.watch('nosuch')"), r"UlpfError('>)?: cannot watch nosuch: No symbol")
        gdb("python ulpf.delete(w); ulpf.delete(2)")
        self.assertSays(gdb("continue"), r"Temporary breakpoint")

    def test_help_and_completion(self):
        gdb = self.begin()
        for command in "watch", "info watches", "delete", "log show", "last", "why", "filter", "run":
            self.assertSays(gdb(f"help ulpf {command}"), rf"ulpf {command.split()[0]}")
        self.assertSays(gdb("help ulpf"), r"ulpf backend --", r"ulpf watch --")
        self.assertEqual(gdb("ulpf help"), gdb("help ulpf"))
        self.assertSays(gdb("ulpf nonsense"), r"^ulpf nonsense: there is no such command; help ulpf lists them")
        gdb("set max-completions unlimited")
        self.assertSays(gdb("complete ulpf wa"), r"^ulpf watch\n")
        self.assertSays(gdb("complete ulpf watch tot"), r"ulpf watch total\n")
        self.assertSays(gdb("complete ulpf watch total th"), r"^ulpf watch total thread\n")
        self.assertSays(gdb("complete ulpf watch total from elsew"), r"elsewhere")
        gdb("ulpf watch total")
        self.assertEqual(gdb("complete ulpf delete "), "ulpf delete 1\n")
        self.assertSays(gdb("complete set ulpf tr"), r"set ulpf traceback\n")
        self.assertSays(gdb("help set ulpf advice"), r"plain")


@ulpf_only
class Targets(PluginCase):
    def plain(self, file="five"):
        gdb = self.gdb(env={"ULPF": ULPF})
        gdb(f"source {LOADER}\nfile {example(file)}")
        return gdb

    def test_run(self):
        gdb = self.plain()
        gdb("break ready")
        self.assertSays(gdb("ulpf run", 60), r"Breakpoint 1, ready")
        left = gdb("python import ulpf.commands.target as t, os; print([f for _, f in t._started if os.path.exists(f)])")
        self.assertEqual(left.strip(), "[]")
        gdb("up\nulpf watch a")
        self.assertStop(gdb("continue"), 1, "a", 10, 11)
        self.assertSays(gdb("ulpf run"), r"Breakpoint 1, ready")
        self.assertStop(gdb("continue"), 1, "a", 10, 11)
        gdb("kill")

    def test_attach(self):
        with subprocess.Popen([example("spin")], stdout=subprocess.DEVNULL) as program:
            try:
                gdb = self.plain("spin")
                self.assertSays(gdb("ulpf attach 0"), r"^ulpf attach 0: there is no such process; ")
                self.assertSays(gdb("ulpf attach x"), r"^ulpf attach: it takes the number of a process; ")
                gdb(f"ulpf attach {program.pid}", 60)
                self.assertSays(gdb("ulpf backend"), r"signal +page guards")
                self.assertSays(gdb(f"ulpf attach {program.pid}"), r"is being debugged already, without ulpf|being debugged already; detach")
                gdb("detach")
            finally:
                program.kill()

    def test_connect(self):
        server = self.serve("five")
        gdb = self.plain()
        self.assertSays(gdb("ulpf connect"), r"^ulpf connect: it does not say where to; ")
        self.assertSays(gdb("set tcp auto-retry off\nulpf connect 127.0.0.1:1"), r"onnection refused|could not connect")
        gdb(f"set sysroot /\nulpf connect {server.target}")
        self.assertSays(gdb("ulpf watch a"), r"Ulpf watch 1: a\n")
        gdb("kill")
