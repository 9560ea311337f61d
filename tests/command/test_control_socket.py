"""Changes by other clients while a debugger has the program: `ulpf top` beside gdb, both real."""

import json
import os
import re
import signal
import socket
import threading

from lib.cases import SEEN, line
from lib.env import ULPF, needs, ulpf_only
from lib.plugin import PluginCase
from lib.rsp import wait_until
from lib.tmux import Screen


def ask(by, pid, **words):
    """One request to the ulpf `by`, and its answer. (Its program runs before it listens.)"""
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(30)
        wait_until(lambda: control.connect_ex(f"\0ulpf/{by}") == 0)
        control.sendall(json.dumps({"pid": pid, **words}).encode() + b"\n")
        return json.loads(control.makefile().readline())


def listed(by, pid):
    """The watches, by their numbers."""
    return {w["watch"]: w for w in ask(by, pid, do="list")["watches"]}


@ulpf_only
class ControlSocket(PluginCase):
    def control(self, gdb, **words):
        return ask(gdb.server.process.pid, gdb.server.program_pid, **words)

    def listed(self, gdb):
        return listed(gdb.server.process.pid, gdb.server.program_pid)

    def counted_through(self, gdb, number):
        return int(self.row(gdb, number)["Hits"])

    @needs("tmux")
    def test_from_the_screen_while_it_runs(self):
        gdb = self.session("bank", "1000", "2000", options=SEEN)
        gdb("watch audits if audits < 0")
        self.resume(gdb)
        with Screen(ULPF, "top", "--pid", gdb.server.program_pid) as screen:
            screen.shows(r"^ +\d+ audits +rw? |^ +\d+ audits +w ")
            screen.keys("a", "bank.transfers if $new > 100", "Enter")
            screen.shows(r"watching bank\.transfers if \$new > 100", r"^ +2 bank\.transfer\S+ +w +[\d.k]+ +[1-9]", r"update bank\.transfers: ")
            # gdb's own.
            screen.keys("d")
            screen.shows(r"the debugger's own: change it there")
            screen.keys("Down")
            off = lambda: (screen.keys("d"), screen.shows(r"watch 2 is off|try again in a moment"))[1][0].group().endswith("off")
            self.assertTrue(wait_until(off), "the list never comes")
            screen.shows( r"^ +2 bank\.transfer\S+ .* off")
            screen.keys("d")
            screen.shows(r"watch 2 is on", r"^ +2 bank\.transfer\S+ +w +[\d.k]+ +[1-9]")
            screen.keys("D", "y")
            screen.shows(r"watch 2 is deleted")
            self.assertTrue(wait_until(lambda: not re.search(r"^ +2 ", screen.text(), re.M)))
            screen.keys("a", "bank.nothing", "Enter")
            screen.shows(r"^ .*bank.*nothing.*has no|^ .*no (member|field|variable)")
        # gdb has heard nothing of all this, and stops when its user wants.
        gdb.interrupt()
        self.assertSays(gdb.answer(), r"received signal SIGINT")
        self.assertNotIn("ulpfhalt", gdb.transcript)
        self.assertGreater(gdb.value("bank.transfers"), 0)

    @needs("tmux")
    def test_from_the_screen_while_gdb_has_stopped_it(self):
        gdb = self.session("five")
        with Screen(ULPF, "top", "--pid", gdb.server.program_pid) as screen:
            screen.shows(r"^ ulpf top  five \(")
            screen.keys("a", "b", "Enter")
            screen.shows(r"watching b", r"^ +1 b +w .* waiting|^ +1 b +w .*from when the program goes on")
            gdb("watch c")
            self.assertChange(gdb("continue"), 2, "c", 30, 31)
            screen.shows(r"^ +1 b +w .* 21 ", r"write  b: 20 → 21  main\+")
            screen.keys("d")
            screen.shows(r"watch 1 is off", r"^ +1 b +w .* off")
        self.assertExits(gdb, 0, "five: done")

    def test_the_plugins_watches(self):
        """They keep their numbers, counters and callbacks; the plugin shows what has become of them."""
        gdb = self.begin("five", done=False)
        gdb("ulpf watch a")
        gdb("ulpf watch b")
        gdb("ulpf watch c")
        self.assertStop(gdb("continue"), 1, "a", 10, 11)
        entries = self.listed(gdb)
        self.assertEqual([w["state"] for w in entries.values()], ["armed"] * 3)
        a, b, c = entries
        self.assertEqual(self.control(gdb, do="off", watch=b), {"watch": b})
        self.assertEqual(self.listed(gdb)[b]["state"], "off")
        self.assertEqual(self.row(gdb, 2)["Lives"], "off")
        self.assertStop(gdb("continue"), 3, "c", 30, 31)
        self.assertEqual((self.counted(gdb, 1), self.counted(gdb, 2)), ((1, 1), (0, 0)))
        self.assertEqual(self.control(gdb, do="delete", watch=c), {"watch": c})
        self.assertEqual(self.control(gdb, do="off", watch=a), {"watch": a})
        self.assertEqual(self.control(gdb, do="on", watch=a), {"watch": a})
        self.assertStop(gdb("continue"), 1, "a", 11, 12)
        self.assertEqual(self.counted(gdb, 1), (2, 2))
        self.assertEqual(self.row(gdb, 3)["Lives"], "taken")
        self.assertSays(gdb("ulpf why 3"), "taken away from outside", "ulpf disable 3, ulpf enable 3")
        self.assertNotIn(c, self.listed(gdb))
        # The plugin can still let go of them all.
        gdb("ulpf delete")
        self.assertSays(gdb("ulpf info watches"), "No ulpf watches")
        self.assertExits(gdb, 0, "five: done")

    def test_refusals(self):
        gdb = self.session("five")
        gdb("watch b")
        self.assertChange(gdb("continue"), 2, "b", 20, 21)
        self.assertEqual(self.listed(gdb), {})
        for what in "off", "delete", "on":
            self.assertIn("watch 1 is the debugger's own: change it there", self.control(gdb, do=what, watch=1)["refused"])
            self.assertIn("there is no watch 7", self.control(gdb, do=what, watch=7)["refused"])
            self.assertIn("there is no watch 0", self.control(gdb, do=what, watch=0)["refused"])
        self.assertIn("there is no variable `nonsense`", self.control(gdb, do="add", spec="nonsense")["refused"])
        self.assertIn("is not watched here", ask(gdb.server.process.pid, 1, do="list")["refused"])
        gdb("delete 2")
        self.assertExits(gdb, 0, "five: done")

    def test_through_exec(self):
        """The executed program has another stub: no watches, and the control socket is open."""
        gdb = self.session("relay", "1")
        self.assertIn("watch", self.control(gdb, do="add", spec="environ"))
        gdb("catch exec")
        self.assertSays(gdb("continue"), r"Catchpoint \d+ \(exec'd ")
        self.assertEqual(self.listed(gdb), {})
        self.assertIn("watch", self.control(gdb, do="add", spec="environ"))
        self.assertEqual([w["spec"] for w in self.listed(gdb).values()], ["environ"])

    def test_the_program_is_gone(self):
        gdb = self.session("five", extended=True)
        pid = gdb.server.program_pid
        gdb("kill")
        answer = ask(gdb.server.process.pid, pid, do="list")
        self.assertRegex(answer["refused"], r"has ended|is not watched here")

    def test_a_storm_of_changes(self):
        """Every answer reaches its client, whatever gdb does meanwhile: breakpoints, steps, watches of its own,
        interrupts."""
        gdb = self.session("bank", "1000", "0", options=SEEN)
        at = line("bank.c", "bank.fees += 1;")
        gdb(f"break {at}")
        done, seen, wrong = threading.Event(), [0], []

        def change():
            try:
                while not done.is_set():
                    new = self.control(gdb, do="add", spec="bank.transfers")["watch"]
                    for what in "off", "on", "off", "delete":
                        if self.control(gdb, do=what, watch=new) != {"watch": new}:
                            wrong.append((what, new))
                    seen[0] += 1
            except Exception as e:
                wrong.append(e)

        threads = [threading.Thread(target=change) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                self.assertSays(gdb("continue"), rf"reakpoint 2, charge .*:{at}\n")
                self.assertSays(gdb("stepi"), rf"\b{at}\s|reakpoint 2, ")
            gdb("delete")
            gdb("watch bank.fees")
            for _ in range(20):
                # (Two tellers may have charged, before the first of them has stopped all.)
                self.assertSays(gdb("continue"), r"atchpoint 3: bank\.fees\n", r"Old value = \d+\n", r"New value = \d+\n", r"charge \(|bank\.c:49|\b49\s")
            gdb("delete")
            for _ in range(10):
                self.resume(gdb)
                gdb.interrupt()
                self.assertSays(gdb.answer(), r"received signal SIGINT")
            self.resume(gdb)
            before = seen[0]
            self.assertTrue(wait_until(lambda: seen[0] > before + 5 or wrong, 60), "nothing is changed while it runs")
            gdb.interrupt()
            self.assertSays(gdb.answer(), r"received signal SIGINT")
        finally:
            done.set()
            for thread in threads:
                thread.join(60)
        self.assertEqual(wrong, [])
        self.assertGreater(seen[0], 0)

    def test_the_programs_own_sigint(self):
        """A signal that strikes while a change is made is the debugger's to hear of."""
        gdb = self.session("bank", "1000", "0", options=SEEN)
        for _ in range(20):
            self.resume(gdb)
            thread = threading.Thread(target=lambda: self.control(gdb, do="add", spec="bank.transfers"))
            thread.start()
            os.kill(gdb.server.program_pid, signal.SIGINT)
            self.assertSays(gdb.answer(), r"received signal SIGINT")
            thread.join(30)
            # It was the program's: gdb can hand it on, or not.
            gdb("handle SIGINT nopass")
        self.assertEqual(gdb.value("bank.transfers") > 0, True)
