"""Conditions, threads and ignore counts of GDB's own watches, decided in the program: where GDB stops is the same as without ulpf."""

import os
import random
import re
import subprocess
import tempfile
import time

from lib.cases import SEEN
from lib.env import example, ulpf_only
from lib.plugin import LOADER, PluginCase

# Watched expressions, and conditions that are valid in ready()'s caller.
WATCHED = ["counter", "toggle", "sum", "bits", "boxes[1].a", "boxes[0].b", "at->a", "at", "table[3]", "-l counter", "counter + toggle",
           "round"]
CONDITIONS = ["counter == 7", "counter > 20 && toggle", "toggle == 1", "toggle == 0", "sum % 3 == 0", "bits & 8", "bits > 2000000000", "at->a > 10",
              "boxes[0].b == 1", "at == &boxes[1]", "counter != 9 || toggle", "(char) bits < 0", "counter - 50 < -40", "sum / counter > 2",
              "counter / toggle == 3", "round > 20", "round % 4 == 1", "$rax == 1", "!toggle", "counter << 2 == 48", "table[2] == 2", "at->c == 6",
              "sizeof(counter) == 4 && counter == 12", "-counter < -30"]
LOCAL = ["mine", "i"], ["mine > 5", "by % 2 == 0", "i == 1", "depth == 0", "mine < 3 && sum > 10", "depth > 0 && i < 2"]


def script(seed):
    """Commands from ready() on."""
    r = random.Random(seed)
    said, numbers = ["up"], []

    def watch():
        kind = r.choice(["watch"] * 6 + ["awatch"])
        of = r.choice(WATCHED[:5] if kind == "awatch" else WATCHED)
        asks = f" if {r.choice(CONDITIONS)}" if r.random() < 0.75 else ""
        said.append(f"{kind} {of}{asks}")
        numbers.append(len(numbers) + 2)
        if r.random() < 0.3:
            said.append(f"ignore {numbers[-1]} {r.choice([1, 2, 7, 30])}")

    for _ in range(r.choice([1, 1, 2, 3])):
        watch()
    # Gdb by itself has four debug registers.
    while sum(2 if "at->" in c or "+" in c.partition(" if ")[0] else 1 for c in said if "watch " in c) > 3:
        at = max(n for n, c in enumerate(said) if "watch " in c)
        del said[at:]
        numbers.pop()
    if r.random() < 0.4:
        said.append(f"break {r.choice(['flip', 'move', 'deeper'])} if {r.choice(CONDITIONS[:6])}")
        numbers.append(len(numbers) + 2)
    elif r.random() < 0.4:
        said += ["tbreak deeper", "continue", "next", "next"]
        numbers.append(len(numbers) + 2)
        said.append(f"watch {r.choice(LOCAL[0])} if {r.choice(LOCAL[1])}" if r.random() < 0.5 else f"watch sum if {r.choice(LOCAL[1])}")
        numbers.append(len(numbers) + 2)
    for _ in range(25):
        number = r.choice(numbers)
        said.append(r.choice(["continue"] * 9 + ["next", "step", "stepi", "finish", "next 5", "continue 3", "until"] + [
            f"condition {number} {r.choice(CONDITIONS)}", f"condition {number}", f"ignore {number} {r.choice([0, 1, 5, 40])}",
            f"disable {number}", f"enable {number}", "set var counter = 3", "set var toggle = 1", "print $_"]))
        if not said[-1].startswith(("condition", "ignore", "disable", "enable", "set")):
            said += ["info watchpoints", "bt 2", "p $pc"]
    return said


def transcript(program, said, target=None):
    """GDB's output for these commands, from the first stop at ready() on, and the time it took."""
    with tempfile.NamedTemporaryFile("w", suffix=".gdb") as file:
        # An error in a command of the list does not end the list.
        lines = "\n".join(f"python talk({c!r})" for c in said)
        file.write("set pagination off\nset confirm off\nset width 0\n"
                   "python\ndef talk(c):\n    gdb.write('(gdb) ' + c + '\\n')\n    try:\n        gdb.execute(c)\n    except gdb.error as e:\n        "
                   "gdb.write(str(e) + '\\n')\nend\nbreak ready\n"
                   + (f"target remote {target}\nsource {LOADER}\ncontinue\n" if target else "run\n") + "echo begins\\n\n" + lines + "\npython talk('kill')\n")
        file.flush()
        begun = time.monotonic()
        done = subprocess.run(["gdb", "-nx", "-q", "-batch", "-iex", "set debuginfod enabled off", "-x", file.name, program], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    text = done.stdout.partition("begins\n")[2]
    return plain(text), time.monotonic() - begun


def plain(text):
    """Without what differs between a remote program and one of GDB's own."""
    text = re.sub(r"\[Inferior 1 \((?:process \d+|Remote target)\) ", "[Inferior 1 ", text)
    # GDB's message about a watch of several locations depends on the order in which it finds them.
    text = re.sub(r"^warning: location number not found.*\n", "", text, flags=re.M)
    # The program's own output is interleaved differently.
    return re.sub(r"^-?\d+ -?\d+ \d+\n", "", text, flags=re.M)


@ulpf_only
class LikeGdb(PluginCase):
    limit = 600

    def compare(self, seeds):
        program = example("own_watches")
        for seed in seeds:
            said = script(seed)
            server = self.serve("own_watches")
            with self.subTest(seed=seed):
                ours, _ = transcript(program, said, server.target)
                native, _ = transcript(program, said)
                if ours != native:
                    both = os.path.join(tempfile.gettempdir(), f"own-{seed}")
                    for name, text in ("ulpf", ours), ("gdb", native):
                        with open(f"{both}.{name}", "w") as file:
                            file.write(text)
                self.assertEqual(ours, native, f"seed {seed}: see {tempfile.gettempdir()}/own-{seed}.*")

    def test_random_scripts(self):
        self.compare(range(12))

    def test_more_random_scripts(self):
        self.compare(range(100, 112))
    test_more_random_scripts.night = "more of the same"


@ulpf_only
class InTheProgram(PluginCase):
    """Conditions decided by the program, and messages about conditions that are not."""

    def decided(self, gdb, number):
        said = gdb("ulpf info watches")
        match = re.search(rf"^GDB's watchpoint {number} \(.*\): (.*)\.$", said, re.M)
        self.assertIsNotNone(match, said)
        return match.group(1)

    def resumptions(self, gdb, do):
        before = gdb.server.said.count("vCont;")
        said = do()
        return said, gdb.server.said.count("vCont;") - before

    def test_a_condition(self):
        gdb = self.begin("own_watches", options=SEEN)
        gdb("watch counter if counter == 40")
        self.assertEqual(self.decided(gdb, 3), "decided in the program")
        said, resumed = self.resumptions(gdb, lambda: gdb("continue"))
        self.assertChange(said, 3, "counter", 39, 40)
        # To look at the places, to settle the value, and for the hit; each continuation may begin with a step.
        self.assertLessEqual(resumed, 5)
        self.assertSays(gdb("info watchpoints"), r"\n3 +hw watchpoint .* counter\n\tstop only if counter == 40\n\tbreakpoint already hit 1 time(?!s)")
        gdb("condition 3 counter == 44")
        said, resumed = self.resumptions(gdb, lambda: gdb("continue"))
        self.assertChange(said, 3, "counter", 43, 44)
        self.assertLessEqual(resumed, 5)
        gdb("condition 3")
        self.assertChange(gdb("continue"), 3, "counter", 44, 42)

    def test_in_a_gdb_that_creates_no_breakpoints_meanwhile(self):
        """From version 15 on GDB ends if a breakpoint is created while it tells of a new watch."""
        gdb = self.begin("own_watches", options=SEEN)
        gdb("python import ulpf.facade, ulpf.session; ulpf.facade.CREATES_ANYWHERE = False; ulpf.session.get_ready()")
        known = gdb("maint info breakpoints")
        gdb("watch counter if counter == 40")
        self.assertEqual(self.decided(gdb, 3), "decided in the program")
        own = len(re.findall(r"^-\d+ ", known, re.M))
        self.assertGreater(own, 0)
        self.assertEqual(len(re.findall(r"^-\d+ ", gdb("maint info breakpoints"), re.M)), own)
        self.assertChange(gdb("continue"), 3, "counter", 39, 40)

    def test_a_value_that_comes_back(self):
        """The value that GDB saw last is there again, after a change that GDB did not see."""
        gdb = self.begin("own_watches", options=SEEN)
        gdb("watch toggle if toggle == 0 && round > 30")
        said, resumed = self.resumptions(gdb, lambda: gdb("continue"))
        self.assertChange(said, 3, "toggle", 1, 0)
        self.assertGreater(resumed, 0)
        self.assertSays(gdb("up\nprint round"), r"= 31")

    def test_an_ignore_count(self):
        gdb = self.begin("own_watches", options=SEEN)
        gdb("watch counter")
        gdb("ignore 3 30")
        self.assertEqual(self.decided(gdb, 3), "decided in the program")
        said, resumed = self.resumptions(gdb, lambda: gdb("continue"))
        self.assertSays(said, r"watchpoint 3: counter\n\nOld value")
        self.assertLessEqual(resumed, 5)
        self.assertSays(gdb("info watchpoints"), r"\tbreakpoint already hit 31 times\n")
        self.assertSays(gdb("info breakpoints"), r"ulpf: watchpoint 3 was hit 31 times; 30 of these")
        gdb("ignore 3 1000")
        gdb("continue")
        self.assertSays(gdb("info watchpoints"), r"already hit \d\d times\n\tignore next 9\d\d hits\n")

    def test_an_ignore_count_until_the_end(self):
        """The way of GDB's manual: ignore many, look at the count after the end, ignore one less the next time."""
        gdb = self.begin("own_watches", done=False)
        gdb("watch counter")
        gdb("ignore 2 100000")
        self.assertSays(gdb("continue"), r"exited normally")
        native = transcript(example("own_watches"), ["watch counter", "ignore 2 100000", "continue", "info watchpoints"])[0]
        times = re.search(r"already hit (\d+) times", native).group(1)
        self.assertSays(gdb("info watchpoints"), rf"already hit {times} times\n\tignore next {100000 - int(times)} hits")

    def test_two_on_the_same_bytes(self):
        gdb = self.begin("own_watches", options=SEEN)
        gdb("watch counter if counter == 20")
        gdb("watch counter if counter == 15")
        self.assertEqual(self.decided(gdb, 3), self.decided(gdb, 4))
        said, resumed = self.resumptions(gdb, lambda: gdb("continue"))
        self.assertChange(said, 4, "counter", 14, 15)
        self.assertLessEqual(resumed, 5)
        gdb("watch counter")
        self.assertSays(self.decided(gdb, 3), r"decided by GDB, a stop each: watchpoint 5 watches the same bytes")
        self.assertSays(gdb("continue"), r"watchpoint 5: counter")
        gdb("delete 5")
        self.assertEqual(self.decided(gdb, 3), "decided in the program")

    def test_a_local_in_the_condition(self):
        gdb = self.begin("own_watches", done=False, options=SEEN)
        gdb("tbreak deeper")
        gdb("continue")
        gdb("next")
        gdb("watch sum if i == 2 && depth == 2")
        self.assertEqual(self.decided(gdb, 3), "decided in the program")
        self.assertSays(gdb("continue"), r"watchpoint 3: sum")
        self.assertSays(gdb("print $_siginfo.si_signo, i"), r"= 2")

    def test_what_stays_with_gdb(self):
        gdb = self.begin("own_watches")
        for condition, why in ("flip(0), counter == 3", "it may call a function"), ("sum * 1.5 > 3", "nvalid combination|nsupported"), \
                ("counter << toggle", "it shifts by a variable"), ("$foo == 3", r"convenience variables"):
            gdb(f"watch counter if {condition}")
            number = gdb("output $bpnum").strip()
            with self.subTest(condition=condition):
                self.assertSays(self.decided(gdb, number), rf"^decided by GDB, a stop each: .*(?:{why})")
            gdb(f"delete {number}")

    def test_what_gdb_cannot_compile(self):
        """GDB meets errors of its own there, and would end."""
        gdb = self.begin("wide")
        for condition, why in ("big == 5", "more than 64 bits"), ("row[1] == 2", "more than 64 bits"), ("boxed.wide == 3", "no bytecode"), \
                ("(__int128) step * step == 4", "more than 64 bits"), ("(int128) step == 4", "more than 64 bits"), \
                ("pair.count == 70", "no bytecode"), ("at->count == 70", "no bytecode"):
            gdb(f"watch step if {condition}")
            number = gdb("output $bpnum").strip()
            with self.subTest(condition=condition):
                self.assertSays(self.decided(gdb, number), rf"^decided by GDB, a stop each: .*{why}")
                self.assertSays(gdb("maint show internal-error quit"), r'is "?ask')
            gdb(f"delete {number}")
        gdb("watch step if pair.count == 70 && at->count == 70")
        self.assertSays(gdb("continue"), r"Old value = 7\n", r"New value = 8\n")

    def test_from_python(self):
        gdb = self.begin("own_watches", options=SEEN)
        gdb("python w = gdb.Breakpoint('counter', gdb.BP_WATCHPOINT)")
        gdb("python w.condition = 'counter == 33'")
        said, resumed = self.resumptions(gdb, lambda: gdb("continue"))
        self.assertChange(said, 3, "counter", 32, 33)
        self.assertLessEqual(resumed, 5)
        gdb("python w.condition = None; w.ignore_count = 2")
        gdb("continue")
        self.assertSays(gdb("info watchpoints"), r"already hit 4 times")
        # A script that decides at each hit is asked at each.
        gdb("python w.delete()")
        gdb("python\nclass W(gdb.Breakpoint):\n    n = 0\n    def stop(self):\n        W.n += 1\n        return W.n > 3\nend")
        gdb("python v = W('counter', gdb.BP_WATCHPOINT); v.ignore_count = 1")
        gdb("continue")
        # (The first hit is the one that is ignored, whatever the script says of it.)
        self.assertSays(gdb("python print(W.n)"), r"^4$")

    def test_from_mi(self):
        gdb = self.begin("own_watches", options=SEEN)
        gdb('interpreter-exec mi "-break-watch counter"')
        gdb('interpreter-exec mi "-break-condition 3 counter == 25"')
        self.assertEqual(self.decided(gdb, 3), "decided in the program")
        said, resumed = self.resumptions(gdb, lambda: gdb("continue"))
        self.assertChange(said, 3, "counter", 24, 25)
        self.assertLessEqual(resumed, 5)

    def test_a_thread(self):
        gdb = self.begin("filters")
        gdb("watch shared thread 1")
        self.assertEqual(self.decided(gdb, 3), "decided in the program")
        said = gdb("continue", 60)
        self.assertNotIn("Thread 2", said)

    def test_it_is_fast(self):
        """A hit that its condition rejects is no stop: ten thousand hits, and the program is resumed a few times."""
        gdb = self.begin("filters", done=False, options=SEEN)
        gdb("watch total if total == 123456789")
        said, resumed = self.resumptions(gdb, lambda: gdb("continue", 120))
        self.assertSays(said, r"exited normally")
        self.assertLessEqual(resumed, 5)


@ulpf_only
class OneKind(PluginCase):
    """GDB's watches and ulpf's beside each other."""

    def test_both_ways_is_one_stop(self):
        gdb = self.begin("own_watches")
        gdb("watch counter")
        gdb("ulpf watch counter")
        said = gdb("continue")
        self.assertChange(said, 3, "counter", 0, 1)
        self.assertSays(said, r"Ulpf watch 1: counter, by the same access\n\nOld value = 0\nNew value = 1")
        said = gdb("continue")
        self.assertChange(said, 3, "counter", 1, 2)
        # GDB's does not stop: ulpf's does.
        gdb("condition 3 counter == 1000")
        self.assertStop(gdb("continue"), 1, "counter", 2, 3)
        self.assertStop(gdb("continue"), 1, "counter", 3, 4)
        gdb("condition 3 counter == 4 + $_exitcode * 0 || 1")
        self.assertEqual(gdb("ulpf info watches 1").count("\n1 "), 1)

    def test_lists_and_deletion(self):
        gdb = self.begin("own_watches", done=False)
        gdb("watch counter")
        gdb("ulpf watch toggle")
        self.assertSays(gdb("info watchpoints"), r"\n2 +hw watchpoint .*counter", r"Of `ulpf watch`, with numbers of their own", r"\n1 +w +0 .*toggle")
        self.assertSays(gdb("info breakpoints"), r"ulpf: 1 ulpf watch is listed by: info watchpoints")
        self.assertSays(gdb("disable"), r"ulpf: 1 ulpf watch stays armed \(to disarm: ulpf disable\)")
        gdb("ulpf disable")
        self.assertSays(gdb("enable"), r"ulpf: 1 ulpf watch stays off \(to arm: ulpf enable\)")
        gdb("ulpf enable")
        self.assertSays(gdb("delete"), r"ulpf: 1 ulpf watch stays \(to delete: ulpf delete\)")
        self.assertSays(gdb("info watchpoints"), r"^No watchpoints\.\n\nOf `ulpf watch`")

    def test_commands(self):
        gdb = self.begin("own_watches", done=False)
        gdb("ulpf watch counter if $new == 5")
        gdb("ulpf commands 1 silent; print counter * 100")
        said = gdb("continue")
        self.assertSays(said, r"= 500")
        self.assertNotIn("Ulpf watch", said)
        gdb("ulpf commands 1")
        gdb("ulpf filter 1 if $new == 7")
        said = gdb("continue")
        self.assertStop(said, 1, "counter", 6, 7)
        self.assertNotIn("= 700", said)

    def test_hits_are_shown(self):
        gdb = self.begin("own_watches")
        gdb("ulpf watch counter log")
        gdb("set ulpf show-hits on")
        gdb("watch bits if counter == 4")
        said = gdb("continue")
        self.assertSays(said, r"#1 update counter: 2 → 3|#1 write  counter: 2 → 3", r"counter: 4 → 2|counter: 3 → 4")
        self.assertNotIn("counter: 0 → 1", gdb("continue"))
