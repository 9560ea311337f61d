"""Non-stop mode, packet by packet; and a long conversation in which every store of every thread is known."""

import random
import re
import time

from lib.cases import Case
from lib.rsp import Rsp, wait_until
from lib.server import address, peek

FEATURES = "qSupported:multiprocess+;swbreak+;hwbreak+;vContSupported+;QThreadEvents+;no-resumed+"


class NonStopCase(Case):
    limit = 240

    def client(self, *program, features=FEATURES, on=True, server=None):
        self.server = server or self.serve(*program)
        rsp = Rsp(self.server.target)
        self.addCleanup(rsp.close)
        rsp.no_ack()
        self.assertIn(b"QNonStop+", rsp(features))
        if on:
            self.assertEqual(rsp("QNonStop:1"), b"OK")
        return rsp

    def stops(self, rsp, seconds=10):
        """All stops from the next notification on."""
        first = rsp.notification(seconds)
        self.assertIsNotNone(first, "no notification")
        self.assertTrue(first.startswith(b"Stop:"), first)
        all_ = [first[5:]]
        while (more := rsp("vStopped")) != b"OK":
            all_.append(more)
        return [stop.decode() for stop in all_]

    def stop(self, rsp, seconds=10):
        stops = self.stops(rsp, seconds)
        self.assertEqual(len(stops), 1, stops)
        return stops[0]

    def all_stopped(self, rsp):
        """What `?` tells."""
        all_ = [rsp("?")]
        while all_[-1] != b"OK":
            all_.append(rsp("vStopped"))
        return [stop.decode() for stop in all_[:-1]]

    def started(self, rsp, name, function):
        """The program, stopped at the beginning of a function; its number."""
        pid = self.server.program_pid
        at = address(pid, name, function)
        self.assertEqual(rsp(f"Z0,{at:x},1"), b"OK")
        self.assertEqual(rsp("vCont;c"), b"OK")
        self.assertRegex(self.stop(rsp), r"^T05.*swbreak:;")
        self.assertEqual(rsp(f"z0,{at:x},1"), b"OK")
        return pid


def plain(thread):
    """A thread's name without leading zeros: they may be there in one answer and not in another."""
    return re.sub(r"(?<=[p.])0+", "", thread)


def thread(stop):
    return plain(re.search(r"thread:(p[0-9a-f]+\.[0-9a-f]+);", stop).group(1))


def threads_of(rsp):
    return [plain(thread) for thread in rsp("qfThreadInfo").decode()[1:].split(",")]


class NonStop(NonStopCase):
    def test_stopped_threads_are_reported(self):
        rsp = self.client("five")
        self.assertRegex(rsp("?"), rb"^T05.*thread:p")
        self.assertEqual(rsp("vStopped"), b"OK")
        self.assertEqual(rsp("vStopped"), b"OK", "once too often")
        self.assertEqual(rsp("QNonStop:2"), b"E01")
        self.assertRegex(rsp("vCont?"), rb";t")

    def test_a_resume_is_answered_at_once_and_the_end_is_a_notification(self):
        rsp = self.client("five")
        self.assertEqual(rsp("vCont;c"), b"OK")
        self.assertRegex(self.stop(rsp), r"^W00;process:")

    def test_threads_stop_one_by_one(self):
        rsp = self.client("independent")
        pid = self.started(rsp, "independent", "ready")
        threads = threads_of(rsp)
        self.assertEqual(len(threads), 4)
        self.assertEqual([thread(stop) for stop in self.all_stopped(rsp)], threads[:1], "the others run")
        for one in threads[1:3]:
            self.assertEqual(rsp(f"vCont;t:{one}"), b"OK")
            stop = self.stop(rsp)
            self.assertTrue(stop.startswith("T00"), stop)
            self.assertEqual(thread(stop), one)
            self.assertEqual(rsp(f"vCont;t:{one}"), b"OK", "it is stopped already")
        count = peek(pid, "independent", "counts", 16)
        time.sleep(0.1)  # Nothing happens in it.
        self.assertEqual(peek(pid, "independent", "counts", 16), count)
        self.assertEqual([thread(stop) for stop in self.all_stopped(rsp)], threads[:3])
        # Registers of a thread that is stopped; a step of it while another one runs.
        self.assertEqual(rsp(f"Hg{threads[1]}"), b"OK")
        self.assertGreater(len(rsp("g")), 500)
        self.assertEqual(rsp(f"vCont;s:{threads[1]}"), b"OK")
        stop = self.stop(rsp)
        self.assertTrue(stop.startswith("T05"), stop)
        self.assertEqual(thread(stop), threads[1])
        self.assertEqual(rsp("vCont;c"), b"OK")
        self.assertTrue(wait_until(lambda: peek(pid, "independent", "counts", 16) != count))
        self.assertEqual(self.all_stopped(rsp), [])
        self.assertEqual(rsp("vCtrlC"), b"OK")
        self.assertTrue(self.stop(rsp).startswith("T02"))

    def test_a_stop_that_nobody_has_seen_is_not_resumed(self):
        """GDB's "continue everything" may cross a stop: it was meant for what runs."""
        rsp = self.client("independent")
        pid = self.started(rsp, "independent", "ready")
        at = address(pid, "independent", "turn")
        self.assertEqual(rsp(f"Z0,{at:x},1"), b"OK")
        first = rsp.notification(10)
        self.assertRegex(first, rb"^Stop:T05.*swbreak")
        time.sleep(0.2)  # the second one is at the breakpoint by now
        self.assertEqual(rsp("vCont;c"), b"OK")
        seen = [first[5:].decode()]
        while (more := rsp("vStopped")) != b"OK":
            seen.append(more.decode())
        self.assertEqual(len(seen), 2, "each of both threads once")
        self.assertEqual(len({thread(stop) for stop in seen}), 2)
        self.assertEqual(rsp(f"z0,{at:x},1"), b"OK")
        self.assertEqual(rsp("vCont;c"), b"OK")
        self.assertEqual(self.all_stopped(rsp), [])

    def test_new_threads_and_those_that_end(self):
        rsp = self.client("independent")
        self.assertEqual(rsp("QThreadEvents:1"), b"OK")
        self.all_stopped(rsp)
        self.assertEqual(rsp("vCont;c"), b"OK")
        born = []
        while len(born) < 3:
            for stop in self.stops(rsp):
                self.assertIn("create:;", stop)
                born.append(thread(stop))
                self.assertEqual(rsp(f"vCont;c:{born[-1]}"), b"OK")
        pid = self.server.program_pid
        leave = address(pid, "independent", "leave")
        self.assertEqual(rsp(f"M{leave:x},4:01000000"), b"OK", "while it runs")
        gone = self.stop(rsp)
        self.assertIn(plain(gone), [f"w00;{one}" for one in born])
        one = plain(gone)[4:]
        self.assertTrue(wait_until(lambda: one not in threads_of(rsp)))
        self.assertEqual(rsp(f"vCont;t:{one}"), b"OK")
        self.assertEqual(self.stop(rsp), gone, "nobody waits in vain for its stop")

    def test_no_resumed_thread_is_left(self):
        rsp = self.client("independent")
        pid = self.started(rsp, "independent", "ready")
        threads = threads_of(rsp)
        for one in threads[2:]:
            self.assertEqual(rsp(f"vCont;t:{one}"), b"OK")
            self.assertEqual(thread(self.stop(rsp)), one)
        leave = address(pid, "independent", "leave")
        self.assertEqual(rsp(f"M{leave:x},4:01000000"), b"OK")
        self.assertEqual(self.stop(rsp), "N")

    def test_no_resumed_thread_is_left_in_all_stop_mode(self):
        for features, answer in [(FEATURES, b"N"), ("qSupported:multiprocess+;swbreak+", b"E.No thread is left")]:
            rsp = self.client("independent", on=False, features=features)
            pid = self.server.program_pid
            at = address(pid, "independent", "ready")
            self.assertEqual(rsp(f"Z0,{at:x},1"), b"OK")
            self.assertTrue(rsp("vCont;c").startswith(b"T05"))
            leave = address(pid, "independent", "leave")
            self.assertEqual(rsp(f"M{leave:x},4:01000000"), b"OK")
            one = threads_of(rsp)[1]
            self.assertTrue(rsp(f"vCont;c:{one}").startswith(answer))
            self.assertEqual(len(rsp("qfThreadInfo").split(b",")), 3)
            self.assertEqual(rsp("vKill;%x" % pid), b"OK")

    def test_the_next_debugger_finds_everything_stopped(self):
        rsp = self.client("independent")
        pid = self.started(rsp, "independent", "ready")
        rsp.close()
        self.assertTrue(wait_until(lambda: "reopen" in self.server.said))
        count = peek(pid, "independent", "counts", 16)
        time.sleep(0.1)  # Nothing happens in it.
        self.assertEqual(peek(pid, "independent", "counts", 16), count)
        rsp = self.client(server=self.server, on=False)
        self.assertRegex(rsp("?"), rb"^T05")
        rsp.raw(b"$vCont;c#a8")
        self.assertTrue(wait_until(lambda: peek(pid, "independent", "counts", 16) != count))
        rsp.raw(b"\x03")
        self.assertRegex(rsp.reply(), rb"^T02")
        self.assertEqual(rsp("QNonStop:1"), b"OK")
        self.assertEqual(len(self.all_stopped(rsp)), 1, "the others run, as after gdbserver's --attach")
        self.assertEqual(rsp("QNonStop:0"), b"OK")
        self.assertRegex(rsp("?"), rb"^T05")
        self.assertEqual(rsp("vKill;%x" % pid), b"OK")


class EveryStore(NonStopCase):
    """16 threads store 1, 2, 3, … each into a byte of its own. Each store is one stop of its thread, whatever other
    requests arrive: watches and breakpoints that come and go, single threads that stop and step, memory."""

    STORES = 24

    def test_each_is_one_stop(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                self.conversation(random.Random(seed))

    def conversation(self, rng):
        rsp = self.client("threads16", str(self.STORES))
        pid = self.started(rsp, "threads16", "ready")
        cells = address(pid, "threads16", "cells")
        worker = address(pid, "threads16", "worker")
        for n in range(16):
            self.assertEqual(rsp(f"Z2,{cells + n:x},1"), b"OK")
        value, owner, stopped, stepping, bystanders = [0] * 16, {}, [], set(), []
        self.assertEqual(rsp("vCont;c"), b"OK")
        while True:
            for stop in self.stops(rsp) if not stopped or rsp.notified(0) else []:
                if stop.startswith("W"):
                    self.assertEqual(value, [self.STORES] * 16)
                    return
                one = thread(stop)
                self.assertNotIn(one, stopped, "it was stopped")
                stopped.append(one)
                watch = re.search(r";watch:([0-9a-f]+);", stop)
                if not watch and re.search(r";[ar]watch:", stop):
                    # At the end the first thread adds up all that there is.
                    self.assertEqual(sum(value), 16 * self.STORES)
                elif not watch:
                    # A step, or a stop that was asked for.
                    self.assertTrue(stop.startswith("T05") and one in stepping or stop.startswith("T00"), stop)
                stepping.discard(one)
                if not watch:
                    continue
                n = int(watch.group(1), 16) - cells
                value[n] += 1
                self.assertEqual(owner.setdefault(n, one), one)
                self.assertEqual(int(rsp(f"m{cells + n:x},1"), 16), value[n])
            for _ in range(rng.randrange(3)):
                self.disturb(rsp, rng, cells, worker, bystanders, stopped)
            while stopped and rng.random() < 0.7:
                one = stopped.pop(rng.randrange(len(stopped)))
                how = "s" if rng.random() < 0.2 else "c"
                if how == "s":
                    stepping.add(one)
                self.assertEqual(rsp(f"vCont;{how}:{one}"), b"OK")

    def disturb(self, rsp, rng, cells, worker, bystanders, stopped):
        what = rng.randrange(5)
        if what == 0:
            point = f"{rng.choice('234')},{cells + 64 + rng.randrange(4000):x},{rng.choice([1, 2, 4, 8])}"
            self.assertEqual(rsp("Z" + point), b"OK")
            bystanders.append(point)
        elif what == 1 and bystanders:
            self.assertEqual(rsp("z" + bystanders.pop(rng.randrange(len(bystanders)))), b"OK")
        elif what == 2:
            self.assertEqual(rsp(f"M{cells + 32 + rng.randrange(16):x},1:55"), b"OK")
        elif what == 3:
            # In a function that is no longer called.
            self.assertEqual(rsp(f"{rng.choice('Zz')}0,{worker:x},1"), b"OK")
        else:
            threads = threads_of(rsp)
            one = rng.choice(threads[1:] or threads)
            if one not in stopped and one != threads[0]:
                self.assertEqual(rsp(f"vCont;t:{one}"), b"OK")
