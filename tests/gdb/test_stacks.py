"""Watches on stacks: locals of any frame and thread, return addresses, red zones, signal frames,
growth, coroutines, unwinding."""

from lib.cases import Case
from lib.env import bare, example, ulpf_only


class StackCase(Case):
    def stacks(self, *arguments, stop="ready", **options):
        gdb = self.session("stacks", *arguments, stop=None, **options)
        gdb("handle SIGUSR1 SIGUSR2 SIGALRM nostop noprint pass")
        gdb(f"tbreak {stop}")
        self.assertSays(gdb("continue"), r"Temporary breakpoint 1, ")
        if stop == "ready":
            gdb("finish")
        return gdb

    def assertAsBare(self, gdb, name="stacks"):
        gdb("delete")
        self.assertExits(gdb, 0, bare(example(name))[1])


@ulpf_only
class Locals(StackCase):
    def test_of_the_caller_while_the_callee_runs(self):
        gdb = self.stacks()
        gdb("watch local")
        for value in range(3):
            self.assertChange(gdb("continue"), 2, "local", value, value + 1)
        self.assertSays(gdb("backtrace"), r"#0 +main ")
        self.assertAsBare(gdb)

    def test_of_the_frame_that_runs(self):
        gdb = self.stacks(stop="recurse if depth == 5 && bytes == 100")
        gdb("next")
        gdb("watch result")
        out = gdb("continue")
        self.assertSays(out, r"watchpoint 2: result", r"New value = ")
        self.assertEqual(gdb.value("depth"), 5)
        self.assertAsBare(gdb)

    def test_of_another_thread(self):
        """main waits in pthread_join while the thread's local changes; its stack is an arena of pthread's."""
        gdb = self.stacks("thread")
        self.assertSays(gdb("thread"), r"Current thread is 2 ")
        gdb("watch mine")
        gdb("thread 1")
        for turn in range(3):
            out = gdb("continue")
            self.assertSays(out, r"Thread 2 .*hit Hardware watchpoint 2: mine", r"Old value", r"New value")
            self.assertEqual(gdb.value("i"), turn)
        self.assertAsBare(gdb)


@ulpf_only
class Words(StackCase):
    def test_return_address(self):
        """Written by `call`, read by `ret`."""
        gdb = self.stacks()
        gdb("watch -l *return_slot")
        gdb("set variable *return_slot = 0")
        out = gdb("continue")
        self.assertSays(out, r"watchpoint 2: -location \*return_slot", r"Old value = .*0x0", r"New value = .*<main\+")
        self.assertSays(out, r"called \(n=0\)")
        gdb("delete")
        gdb("rwatch -l *return_slot")
        self.assertSays(gdb("continue"), r"read watchpoint 3: -location \*return_slot", r"Value = .*<main\+")
        self.assertSays(gdb("frame"), r"main ")
        self.assertAsBare(gdb)

    def test_red_zone(self):
        gdb = self.stacks(stop="red_zone")
        for number, (offset, value) in enumerate([(8, 11), (64, 22), (120, 33)], start=2):
            gdb(f"watch -l *(long*)($sp - {offset})")
            self.assertSays(gdb("continue"), rf"watchpoint {number}: ", rf"New value = {value}\n")
        self.assertAsBare(gdb)

    def test_signal_frame_on_the_alternate_stack(self):
        """The handler's own stores are hits; the signal frame, which the kernel would have pushed, is not."""
        gdb = self.stacks()
        gdb("set max-value-size unlimited")
        gdb("watch *(char(*)[131072])alternate")
        self.assertSays(gdb("continue"), r"watchpoint 2: ", r"on_signal|memset")
        self.assertSays(gdb("backtrace"), r"on_signal ", r"<signal handler called>", r"main ")
        self.assertAsBare(gdb)

    def test_coroutine(self):
        gdb = self.stacks(stop="generator")
        gdb("next")
        gdb("watch -l value")
        for old, new in (0, 1), (1, 4), (4, 13):
            out = gdb("continue")
            self.assertSays(out, rf"Old value = {old}\n", rf"New value = {new}\n", r"generator \(\)")
        self.assertAsBare(gdb)

    def test_step_and_finish_on_a_watched_stack(self):
        gdb = self.stacks(gdb_options={"libraries": True})
        gdb("watch -l *(long*)main_area")
        gdb("break called")
        self.assertSays(gdb("continue"), r"Breakpoint 3, called \(n=0\)")
        self.assertSays(gdb("finish"), r"Value returned is \$\d+ = 1")
        gdb("delete 3")
        gdb("stepi 40")
        # At a line, or in a function without any.
        self.assertRegex(gdb("next"), r"(?m)^\d+\t|^0x[0-9a-f]+ in |^\w+ \(.*\) (at|from) ")
        self.assertSays(gdb("print called(41)"), r"= 42")
        self.assertAsBare(gdb)


@ulpf_only
class Unwinding(StackCase):
    def test_exceptions_through_watched_frames(self):
        gdb = self.session("unwind")
        gdb("watch -l *deep_slot")
        for _ in range(3):
            out = gdb("continue")
            self.assertSays(out, r"watchpoint 2: -location \*deep_slot", r"~Guard")
        self.assertAsBare(gdb, "unwind")
