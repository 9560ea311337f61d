"""`ulpf top` in a real terminal, on real programs."""

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import termios
import tempfile
import unittest
import urllib.error
import urllib.request

from lib import schema
from lib.cases import Case, line
from lib.env import ROOT, ULPF, example, needs, ulpf_only
from lib.rsp import wait_until
from lib.run import program, ulpf
from lib.tmux import Screen
from lib.users import as_root

FIVE = ["bank.accounts[0..16]", "bank.fees", "bank.transfers", "audits:rw"]


def watches(*specs):
    return [word for spec in specs for word in ("-w", spec)]


class Running:
    """`ulpf run` on examples/bank, which has begun."""

    def __init__(self, *specs, options=(), program=("bank", "60", "2000")):
        self.ulpf = subprocess.Popen([ULPF, "run", *watches(*specs), *options, "--log", os.devnull, "--no-summary", "--",
                                      example(program[0]), *program[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pattern = f"/{program[0]}"
        find = lambda: [p for p in subprocess.run(["pgrep", "-P", str(self.ulpf.pid)], stdout=subprocess.PIPE, text=True).stdout.split()
                        if os.path.realpath(f"/proc/{p}/exe").endswith(pattern)]
        found = []
        assert wait_until(lambda: found.extend(find()) or found, 20), "the program has not begun"
        self.pid = int(found[0])
        # The control socket opens a moment later.
        control = f"@ulpf/{self.ulpf.pid}\n"
        assert wait_until(lambda: control in open("/proc/net/unix").read(), 20), "the control socket stays closed"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ulpf.send_signal(signal.SIGTERM)
        self.ulpf.wait()


@contextlib.contextmanager
def checked():
    """`ulpf check` of a small server: its process, and what gives it orders."""
    command = [ULPF, "check", "--no-leaks", "--log", os.devnull, "--", program("heap_attached")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ulpf:
        def order(word):
            ulpf.stdin.write(word + "\n")
            ulpf.stdin.flush()
            assert any(line.startswith("done") for line in ulpf.stdout), word

        ready = ulpf.stdout.readline().split()
        assert ready[0] == "ready", ready
        try:
            yield int(ready[1]), order
        finally:
            os.kill(int(ready[1]), signal.SIGKILL)


@needs("tmux")
@ulpf_only
class Top(Case):
    maxDiff = None

    def top(self, *words, **options):
        return Screen(ULPF, "top", *words, **options)

    def test_a_session(self):
        with Running(*FIVE) as bank, self.top("--pid", bank.pid) as screen:
            at = line("bank.c", "bank.accounts[to] += amount;")
            screen.shows(rf"^ ulpf top  bank \({bank.pid}\) +\[1 Watches\]", r"hits [\d,]{3,}  \S+/s",
                         r"^   2 bank\.fees +w +[\d.]+ +[\d,]+", r"^   4 audits:rw +rw ",
                         r"write  bank\.accounts\[\d+\]: -?\d+ → -?\d+  transfer\+0x\w+ at bank")
            screen.keys("2")
            screen.shows(r"\[2 Sites\]", rf"^transfer\+0x\w+ +bank\.c:{at} +(trap|patched) ", r"^charge\+")
            screen.keys("4")
            screen.shows(r"\[4 Threads\]", r"\d+ anna +(sleeps|runs|in kernel) ", r" carla ")
            screen.keys("3")
            screen.shows(r"page map", r"^0x[0-9a-f]+000 +4 ")
            screen.keys("q")
            screen.shows(r"exit status 0")

    def test_one_hit_closely(self):
        with Running("bank.fees", options=["-b", "4"]) as bank, self.top("--pid", bank.pid) as screen:
            at = line("bank.c", "bank.fees += 1;")
            screen.keys("5")
            screen.shows(r"write  bank\.fees +\d+ → \d+ +charge\+")
            screen.keys("Enter")
            screen.shows(r"^── (write|update) of bank\.fees", r"^   #1 teller\+0x\w+ at bank\.c:\d+", rf"^ ▶ +{at}      bank\.fees \+= 1;")
            screen.resize(160, 50)
            screen.shows(r"where   ", r"▶ 0x[0-9a-f]+  \w+ .*\(%rip\)|▶ 0x[0-9a-f]+  \w+ .*0x[0-9a-f]+")
            screen.resize(80, 24)
            screen.keys("Escape")
            screen.shows(r"time access watch")

    def test_it_starts_the_program(self):
        with self.top("-w", "game.total", "--", example("stray")) as screen:
            # The program ends before the first reading of its counters, and no hit is missed.
            screen.shows(r"^ ulpf top  stray \(", r"^   1 game\.total +w ", r"game\.total: 9 → 0  reset_scores\+0x24",
                         r"the program has ended: these are its last figures")
            screen.keys("q")
            screen.shows(r"exit status 0")

    def test_what_the_demo_prints(self):
        """The command at the demo's end, as it stands there, shows hits; README has the same one."""
        with open(os.path.join(ROOT, "demo", "run")) as demo, open(os.path.join(ROOT, "README.md")) as readme:
            command = re.search(r'print\("  (target/release/ulpf top .*?)\\n"\)', demo.read()).group(1)
            self.assertIn(command.replace("target/release/", "$ "), readme.read())
        example("bank")
        words = [os.path.join(ROOT, word) if word.startswith("examples/") else word for word in shlex.split(command)]
        with self.top(*words[2:]) as screen:
            screen.shows(r"^ ulpf top  bank \(", r"^   1 bank\.accounts", r"^   2 bank\.fees +w +[\d.]+ +[1-9]", r"(write|update) +bank\.accounts\[\d+\]: ")
            screen.keys("q")
            screen.shows(r"exit status 0")

    def test_a_program_that_fails(self):
        for words, says in ((["exitcode", "7"], r"the program has ended with status \d+"), (["crash"], r"the program was killed by signal 11")):
            with self.top("--", example(words[0]), *words[1:]) as screen:
                screen.shows(says, r"no watch yet: press a to add one")
        with self.top("-w", "nonsense", "--", example("bank")) as screen:
            screen.shows(r"there is no variable `nonsense`", r"exit status 2")
        with self.top("--", "/nowhere/at/all") as screen:
            screen.shows(r"No such file", r"exit status 2")

    def test_quitting_ends_what_it_has_started(self):
        with self.top("-w", "audits", "--", example("bank"), "1000") as screen:
            pid = int(screen.shows(r"bank \((\d+)\)")[0].group(1))
            screen.keys("q")
            screen.shows(r"exit status 0")
            self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_the_terminal_goes_away(self):
        with self.top("-w", "audits", "--", example("bank"), "1000") as screen:
            pid = int(screen.shows(r"bank \((\d+)\)")[0].group(1))
            run = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], stdout=subprocess.PIPE, text=True).stdout.strip()
            top = subprocess.run(["ps", "-o", "ppid=", "-p", run], stdout=subprocess.PIPE, text=True).stdout.strip()
            screen.close()
            for which in pid, top:
                self.assertTrue(wait_until(lambda: not os.path.exists(f"/proc/{which}"), 20), "it is still there")

    def test_the_terminal_goes_away_without_a_signal(self):
        """As for a command that is not in the terminal's foreground, or in another session."""
        terminal, end = os.openpty()
        termios.tcsetwinsize(end, (24, 80))
        with Running("bank.fees") as bank:
            top = subprocess.Popen([ULPF, "top", "--pid", str(bank.pid)], stdin=end, stdout=end, stderr=end,
                                   env={**os.environ, "TERM": "xterm"}, start_new_session=True)
            os.close(end)
            said = b""
            while b"bank.fees" not in said:
                said += os.read(terminal, 4096)
            os.close(terminal)
            self.assertEqual(top.wait(20), 0)

    def test_watches_from_the_screen(self):
        with Running("bank.fees") as bank, self.top("--pid", bank.pid) as screen:
            screen.shows(r"^   1 bank\.fees +w ")
            screen.keys("a", "bank.transfers if $new > 100", "Enter")
            screen.shows(r"watching bank\.transfers if \$new > 100", r"^   2 bank\.transfer\S+ +w +[\d.k]+ +[1-9]", r"update bank\.transfers: ")
            screen.keys("d")
            screen.shows(r"watch 1 is off", r"^   1 bank\.fees .* off")
            before = int(screen.shows(r"^   1 bank\.fees +w +0 +([\d,]+)")[0].group(1).replace(",", ""))
            screen.keys("d")
            screen.shows(r"watch 1 is on")
            # It has not forgotten what it had counted.
            self.assertTrue(wait_until(lambda: int(re.search(r"bank\.fees +w +\S+ +([\d,]+)", screen.text()).group(1).replace(",", "")) > before))
            screen.keys("Down", "D")
            screen.shows(r"delete watch 2, bank\.transfers if .*\? y deletes it")
            screen.keys("y")
            screen.shows(r"watch 2 is deleted")
            self.assertTrue(wait_until(lambda: not re.search(r"^   2 ", screen.text(), re.M)))
            screen.keys("a", "bank.nothing", "Enter")
            screen.shows(r"^ .*bank.*nothing.*has no|^ .*no (member|field|variable)")
            # The program has come through all of it.
            self.assertIsNone(bank.ulpf.poll())

    def test_filter_and_pause(self):
        with Running(*FIVE) as bank, self.top("--pid", bank.pid) as screen:
            screen.keys("5", "f", "charge fees", "Enter")
            screen.shows(r"write +bank\.fees|update +bank\.fees")
            self.assertTrue(wait_until(lambda: "bank.accounts" not in screen.text()))
            screen.keys("p")
            screen.shows("feed paused")
            still = screen.shows(r"(?s)where\n(.*)\n ")[0].group(1)
            hits = lambda: int(screen.shows(r"hits ([\d,]+)")[0].group(1).replace(",", ""))
            before = hits()
            # Counting goes on.
            self.assertTrue(wait_until(lambda: hits() > before))
            self.assertEqual(screen.shows(r"(?s)where\n(.*)\n ")[0].group(1), still)

    def test_sizes(self):
        with Running("bank.fees") as bank, self.top("--pid", bank.pid, size=(20, 5)) as screen:
            screen.shows(r"20x5 is too small", r"needs 40x10")
            screen.resize(80, 24)
            screen.shows(r"^   1 bank\.fees")
            screen.resize(160, 50)
            screen.shows(r"· ulpf run", r"address +length +moved", r"0x[0-9a-f]{6,} +8 +-$")
            screen.resize(20, 5)
            screen.shows(r"20x5 is too small")
            screen.keys("q")
            screen.resize(80, 24)
            screen.shows(r"exit status 0")

    def test_no_colour(self):
        with Running("bank.fees") as bank:
            for env, coloured in (({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
                with self.top("--pid", bank.pid, env=env) as screen:
                    screen.shows(r"^   1 bank\.fees")
                    colours = re.findall(r"\x1b\[(?:[34]8;5;\d|[34][0-7])", screen.text(colours=True))
                    self.assertEqual(bool(colours), coloured, env)

    def test_nobody_and_then_somebody(self):
        # A name of its own: other tests have sessions, too.
        with self.top("--pid", "2147480000") as screen:
            screen.shows(r"No ulpf watches process 2147480000", r"ulpf attach --watch SPEC")
            screen.keys("a", "x", "Enter")
            screen.shows(r"no program is watched")
            screen.keys("q")
            screen.shows(r"exit status 0")

    def test_the_end_while_it_looks(self):
        with Running("bank.fees") as bank, self.top("--pid", bank.pid) as screen:
            screen.shows(r"^   1 bank\.fees")
            os.kill(bank.pid, signal.SIGKILL)
            screen.shows(r"the program has ended: these are its last figures", r"^   1 bank\.fees")
            screen.keys("a", "audits", "Enter")
            screen.shows(r"the program has ended")
            screen.keys("5", "Enter", "Escape", "2", "q")
            screen.shows(r"exit status 0")

    def test_the_end_of_the_one_that_watches(self):
        with Running("bank.fees", program=("bank", "30")) as bank, self.top("--pid", bank.pid) as screen:
            screen.shows(r"^   1 bank\.fees")
            bank.ulpf.kill()
            screen.shows(r"(the program has ended|has let go of the program): these are its last figures")
            screen.keys("q")
            screen.shows(r"exit status 0")
            subprocess.run(["kill", "-9", str(bank.pid)], stderr=subprocess.DEVNULL)

    def test_a_slow_terminal(self):
        """Its output is not read: the program comes to its end all the same."""
        master, slave = pty.openpty()
        program = Running("bank.transfers", program=("bank", "3", "0"))
        top = subprocess.Popen([ULPF, "top", "--interval", "0.05", "--pid", str(program.pid)], stdin=slave, stdout=slave, stderr=slave,
                               env={**os.environ, "TERM": "xterm"}, start_new_session=True)
        try:
            os.close(slave)
            self.assertEqual(program.ulpf.wait(60), 0)
            self.assertIsNone(top.poll())
        finally:
            top.kill()
            top.wait()
            os.close(master)
            program.ulpf.kill()
            program.ulpf.wait()

    def test_sites_are_known(self):
        """How instructions are served, and what share of their faults is beside every watch."""
        with Running(*FIVE, options=["--no-patch"]) as bank, self.top("--pid", bank.pid, size=(160, 50)) as screen:
            screen.keys("2")
            screen.shows(r"^transfer\+0x\w+ +bank\.c:\d+ +trap +\S+ +\d+% +[\d,.M]+ +\d+% 0x", r"because  +patching is off", r"traps    +\d+, \d+ of them beside every watch")
        with Running(*FIVE, program=("bank", "60", "100")) as bank, self.top("--pid", bank.pid) as screen:
            screen.keys("2")
            screen.shows(r"^transfer\+0x\w+ +bank\.c:\d+ +patched ")

    def test_a_checked_heap(self):
        """Errors as they come, and the contents of the heap on request."""
        with checked() as (server, order):
            order("new_behind")
            with self.top("--pid", server, size=(160, 50)) as screen:
                screen.keys("6")
                screen.shows(r"heap_attached \(\d+\) · ulpf check +.*\[6 Heap\]", r"^ errors 1  blocks [\d,]+  bytes [\d,.MG]+  most [\d,.MG]+  quarantine [\d,.MG]+",
                             r"^outside +1 .*write of 1 byte, 0 b.* new_behind at heap_a", r"^ *what +write of 1 byte at 0x|what +write of 1 byte at 0x",
                             r"allocated by:")
                order("new_behind")
                screen.shows(r"^ errors 2 ", r"^outside +2 ")
                screen.keys("b")
                screen.shows(r"^reachable +\d+ +[\d,.M]+ blocks, allocated by +\w+ at heap_att")
                screen.keys("1")
                screen.shows(r"\[1 Watches\]")
                screen.keys("q")
                screen.shows(r"exit status 0")

    def test_export_from_the_screen(self):
        with tempfile.TemporaryDirectory() as folder, Running(*FIVE) as bank, self.top("--pid", bank.pid) as screen:
            screen.shows(r"update bank\.transfers: ")
            for name, has in (("a.jsonl", '"type":"counters"'), ("a.csv", "time,ago,pid,tid,"), ("a.trace.json", '"ph":"C"')):
                path = os.path.join(folder, name)
                screen.keys("e", "C-u", path, "Enter")
                # The file before it had the same message but for its name.
                screen.shows(rf"\d+ hits and the counters are in .*{re.escape(name)}")
                self.assertIn(has, open(path).read())
            if os.path.exists("/dev/full"):
                os.symlink("/dev/full", os.path.join(folder, "full.csv"))
                screen.keys("e", "C-u", os.path.join(folder, "full.csv"), "Enter")
                screen.shows(r"cannot write .*full\.csv")
            screen.keys("e", "C-u", "x.doc", "Enter")
            screen.shows(r"cannot tell what to write to x\.doc")

    def test_under_a_debugger(self):
        """gdb's own watches are shown by name, and are gdb's to change."""
        gdb = self.session("five")
        gdb("watch b")
        self.assertChange(gdb("continue"), 2, "b", 20, 21)
        with self.top("--pid", gdb.server.program_pid) as screen:
            screen.shows(r"^ ulpf top  five \(", r"^ +\d+ b +w .* 21 ", r"write  b: 20 → 21  main\+")
            screen.keys("d")
            screen.shows(r"^ .*debugger.*there")


@ulpf_only
class Export(unittest.TestCase):
    def test_every_hit(self):
        """The export of a program that has been held says what its own log says."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "hits.jsonl")
            with Running(*FIVE, program=("bank", "2", "1000")) as bank:
                status, out, err = ulpf("export", "-o", path, "--pid", str(bank.pid))
                bank.ulpf.wait()
            self.assertEqual((status, out), (0, ""))
            self.assertRegex(err, r"^ulpf: \d+ hits written to .*hits\.jsonl\n$")
            lines = [json.loads(text) for text in open(path)]
            schema.lines().check("export", lines)
            hits = [l for l in lines if l["type"] == "hit"]
            counters = {l["watch"]: l["hits"] for l in lines if l["type"] == "counters"}
            self.assertEqual(len(hits), sum(counters.values()))
            self.assertEqual(sum(l["name"] == "bank.fees" for l in hits), counters["bank.fees"])
            self.assertEqual([l["time"] for l in hits], sorted(l["time"] for l in hits))
            self.assertEqual((lines[0]["type"], lines[0]["program"]), ("session", "bank"))

    def test_formats(self):
        with tempfile.TemporaryDirectory() as folder, Running(*FIVE) as bank:
            for name in "hits.csv", "hits.trace.json":
                path = os.path.join(folder, name)
                status, _, err = ulpf("export", "-o", path, "--for", "0.5", "-p", str(bank.pid))
                self.assertEqual(status, 0, err)
                text = open(path).read()
                if name.endswith("csv"):
                    self.assertRegex(text.splitlines()[1], r"^\d+\.\d{6},,\d+,\d+,\d+,[^,]+,[\w.\[\]]+,(write|update|read),0x\w+,8,long,-?\d+,-?\d+,\w{16},\w{16},(true|false),false,,,,0x\w+,\w+,\d+,")
                else:
                    events = json.loads(text)
                    self.assertEqual({e["ph"] for e in events}, {"M", "i", "C"})
                    self.assertIn("anna", {e["args"].get("name") for e in events if e["ph"] == "M"})
            status, out, _ = ulpf("export", "-o", "-", "--for", "0.3", "-p", str(bank.pid))
            self.assertTrue(all(json.loads(text)["type"] for text in out.splitlines()))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_a_full_disk(self):
        with Running(*FIVE, program=("bank", "60", "100")) as bank:
            status, _, err = ulpf("export", "-o", "/dev/full", "--format", "csv", "-p", str(bank.pid))
            self.assertEqual(status, 2)
            self.assertRegex(err, r"^ulpf: cannot write /dev/full: .*No space left on device")
            # The error is the export's alone.
            self.assertIsNone(bank.ulpf.poll())

    def test_metrics(self):
        with Running(*FIVE) as bank:
            server = subprocess.Popen([ULPF, "export", "--metrics", "0", "--pid", str(bank.pid)], stderr=subprocess.PIPE, text=True)
            try:
                url = re.search(r"http://\S+", server.stderr.readline()).group()
                with urllib.request.urlopen(url, timeout=20) as reply:
                    self.assertIn("openmetrics-text", reply.headers["Content-Type"])
                    text = reply.read().decode()
                self.assertRegex(text, rf'(?m)^ulpf_watch_hits_total{{pid="{bank.pid}",program="bank",watch="bank\.fees",kind="w"}} \d+$')
                self.assertTrue(text.endswith("# EOF\n"))
                with self.assertRaises(urllib.error.HTTPError):
                    urllib.request.urlopen(url + "/else", timeout=20)
            finally:
                server.terminate()
                server.wait()
                server.stderr.close()
        status, _, err = ulpf("export", "--metrics", "0.0.0.0:0")
        self.assertEqual(status, 2)
        self.assertIn("use a loopback address", err)


@ulpf_only
class Plain(unittest.TestCase):
    def test_lines(self):
        with Running(*FIVE) as bank:
            status, out, err = ulpf("top", "--plain", "--count", "3", "--interval", "0.3", "--pid", str(bank.pid))
            self.assertEqual((status, err), (0, ""))
            self.assertNotIn("\x1b", out)
            self.assertEqual(len(re.findall(rf"(?m)^bank \({bank.pid}\), \d+ seconds: [\d,]+ hits, \S+ per second, [\d,]+ silent, ", out)), 3, out)
            self.assertRegex(out, r"(?m)^  watch 2, bank\.fees: [\d,]+ hits, \S+ per second, value \d+$")
            self.assertRegex(out, r"(?m)^  write at \d+\.\d{6} s by thread \d+: bank\.accounts\[\d+\]: -?\d+ to -?\d+, transfer\+0x\w+ at bank\.c:\d+$")

    def test_commands(self):
        with Running("bank.fees") as bank:
            top = subprocess.Popen([ULPF, "top", "--plain", "--pid", str(bank.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            heard = []

            def until(pattern):
                while not (heard and re.search(pattern, heard[-1])):
                    text = top.stdout.readline()
                    self.assertTrue(text, f"no {pattern!r} in {''.join(heard)}")
                    heard.append(text)

            def say(text):
                top.stdin.write(text + "\n")
                top.stdin.flush()

            until(r"^  watch 1, bank\.fees: ")
            say("add bank.transfers")
            until(r"^watching bank\.transfers")
            until(r"^  watch 2, bank\.transfers: ")
            say("off 1")
            until(r"^watch 1 is off")
            say("threads")
            until(r"^thread \d+, name anna, state ")
            say("add bank.nothing")
            until(r"nothing")
            say("what?")
            until(r"^commands: ")
            say("quit")
            self.assertEqual(top.wait(20), 0)
            top.stdin.close()
            top.stdout.close()

    def test_a_checked_heap(self):
        with checked() as (server, order):
            order("new_behind")
            top = subprocess.Popen([ULPF, "top", "--plain", "--pid", str(server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            said = []

            def ask(*commands):
                """Output up to the answer to the last command, which lists the commands."""
                top.stdin.write("".join(f"{command}\n" for command in (*commands, "what?")))
                top.stdin.flush()
                for text in top.stdout:
                    said.append(text)
                    if text.startswith("filter WORDS"):
                        return "".join(said)
                self.fail("".join(said))

            def says(pattern):
                self.assertTrue(wait_until(lambda: re.search(pattern, ask("heap")), 60), "".join(said))

            with top:
                says(r"(?m)^kind outside, count 1, .*, where new_behind at heap_attached\.c:\d+$")
                ask("blocks")
                says(r"(?m)^the program rests while its blocks are looked for$")
                says(r"(?m)^kind reachable, count [\d,]+, bytes [\d,]+, what blocks, allocated by, where ")
                says(r"(?m)^  heap: 1 errors; [\d,]+ blocks of [\d,.M]+ bytes, [\d,.M]+ bytes kept of freed ones$")
                top.stdin.write("quit\n")
                top.stdin.flush()
                self.assertEqual(top.wait(60), 0)

    def test_a_pipe_is_plain(self):
        status, out, err = ulpf("top", "-w", "game.total", "--", example("stray"))
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"(?m)^stray \(\d+\), 0 seconds: [\d,]+ hits, .*; the program has ended$")
        self.assertIn("game.total: 9 to 0, reset_scores+0x24", out)

    @as_root
    def test_somebody_else(self):
        with tempfile.TemporaryDirectory() as folder, Running("bank.fees") as bank:
            os.chmod(folder, 0o755)
            mine = shutil.copy(ULPF, folder)
            os.chmod(mine, 0o755)
            nobody = {"user": 65534, "group": 65534, "extra_groups": []}
            try:
                subprocess.run([mine, "--version"], stdout=subprocess.DEVNULL, **nobody)
            except PermissionError:
                self.skipTest("nobody may not run anything in this system's temporary folder")
            done = subprocess.run([mine, "top", "--plain", "--count", "1"], **nobody, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, r"of another user is at work; only that user and root may look into it")
            # Nor does the control socket open: the socket is there for everybody, its owner answers its own user only,
            # and others without hearing them.
            ask = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('\\0ulpf/' + sys.argv[1]); "
                   "print(s.recv(1000).decode())")
            done = subprocess.run(["python3", "-c", ask, str(bank.ulpf.pid)], cwd="/", **nobody, stdout=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(json.loads(done.stdout), {"refused": "this session belongs to another user"})

    def test_garbage_at_the_control_socket(self):
        ask = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('\\0ulpf/' + sys.argv[1]); "
               "s.sendall(b'nonsense\\n[]\\n{\"do\":\"delete\",\"pid\":1,\"watch\":7}\\n{\"do\":\"delete\",\"pid\":' + sys.argv[2].encode() + b',\"watch\":7}\\n'); "
               "f = s.makefile(); [print(f.readline(), end='') for _ in range(4)]; s.sendall(b'x' * (1 << 20))")
        with Running("bank.fees") as bank:
            self.assertTrue(wait_until(lambda: ulpf("top", "--plain", "--count", "1", "--pid", str(bank.pid))[0] == 0))
            said = subprocess.run(["python3", "-c", ask, str(bank.ulpf.pid), str(bank.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
            answers = [json.loads(text)["refused"] for text in said.stdout.splitlines()]
            self.assertEqual(len(answers), 4, said)
            self.assertIn("is not watched here", answers[2])
            self.assertEqual(answers[3], "there is no watch 7")
            self.assertIsNone(bank.ulpf.poll())
