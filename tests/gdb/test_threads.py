"""Threads: seen, stopped together, stepped alone, and named in the stop of a watch."""

import re

from lib.cases import SEEN, Case
from lib.env import LONG, ulpf_only


class Threads(Case):
    limit = 180

    def test_list_and_select(self):
        gdb = self.session("cpp_map", stop="worker if id == 15")
        self.assertGreaterEqual(gdb("info threads").count("Thread "), 2)
        self.assertSays(gdb("thread 1"), r"Switching to thread 1")
        self.assertSays(gdb("backtrace"), r"main")
        gdb("delete")
        self.assertExits(gdb, 0, "cpp_map: 500 keys, sum dc3e4af7411c472, thrown 43219, writes 27430")

    def test_scheduler_locking(self):
        gdb = self.session("spin", stop="turn")
        gdb("set scheduler-locking on")
        before = gdb.value("other_rounds")
        for _ in range(4):
            gdb("next")
        self.assertEqual(gdb.value("other_rounds"), before)
        gdb("set scheduler-locking off")
        gdb("break turn")
        gdb("continue")
        self.assertSays(gdb("continue"), r"turn \(\)")
        self.assertGreater(gdb.value("other_rounds"), before)
        gdb("kill")

    def test_step_lets_the_others_run(self):
        gdb = self.session("spin", stop="turn")
        gdb("set scheduler-locking off")
        before = gdb.value("other_rounds")
        gdb("finish")
        for _ in range(50):
            gdb("next")  # over the nap, again and again
            if gdb.value("other_rounds") > before:
                break
        self.assertGreater(gdb.value("other_rounds"), before)
        gdb("kill")

    def test_breakpoint_for_one_thread(self):
        gdb = self.session("spin", stop="other")
        gdb("break nanosleep thread 2")  # both threads sleep, again and again
        for _ in range(3):
            self.assertSays(gdb("continue"), r"Thread 2 .* hit Breakpoint 2, ")
        gdb("kill")

    @ulpf_only
    def test_watch_names_the_thread(self):
        gdb = self.session("threads16", "3")
        numbers = {}
        for i in range(16):
            gdb(f"watch cells[{i}]")
        for _ in range(16 * 3):
            out = gdb("continue")
            match = re.search(r'Thread (\d+) "threads16" hit Hardware watchpoint (\d+): cells\[(\d+)\]', out)
            self.assertTrue(match, out)
            thread, number, cell = map(int, match.groups())
            self.assertEqual(number, cell + 2)
            self.assertEqual(gdb.value("index"), cell, "the selected thread is the one that stored")
            numbers.setdefault(cell, set()).add(thread)
        self.assertEqual(len(numbers), 16)
        self.assertTrue(all(len(threads) == 1 for threads in numbers.values()))
        self.assertExits(gdb, 0, "threads16: 16 x 3 stores")

    @ulpf_only
    def test_every_store_of_a_thread_is_counted_once(self):
        gdb = self.session("threads16", "200")
        gdb("watch cells[3]")
        gdb("ignore 2 1000000")
        self.assertExits(gdb, 0, "threads16: 16 x 200 stores")
        self.assertSays(gdb("info watchpoints"), r"already hit 200 times")

    @ulpf_only
    def test_every_change_is_a_stop(self):
        """Four threads race for one number: each stop shows one change, and no other store comes between."""
        for mode in "locked", "plain":
            with self.subTest(mode):
                gdb = self.session("chain", mode, "4", "50", stop="race")
                gdb("watch cell.number")
                values = [0]
                for _ in range(200):
                    out = gdb("continue")
                    self.assertSays(out, rf"Old value = {values[-1]}\n", r"New value = \d+")
                    values.append(int(re.search(r"New value = (\d+)", out).group(1)))
                if mode == "locked":
                    self.assertEqual(values, list(range(201)))
                self.assertEqual(len(set(values)), 201)
                gdb("delete")
                self.assertExits(gdb, 0, "chain: 200" if mode == "locked" else "chain: done")

    def test_watch_for_one_thread(self):
        gdb = self.session("spin", stop="other")
        gdb("watch other_rounds thread 2")
        self.assertSays(gdb("continue"), r"Thread 2 .* hit Hardware watchpoint 2: other_rounds")
        gdb("kill")

    def test_a_condition_stops_every_thread_once(self):
        """All threads meet the breakpoint all the time, also while GDB steps one of them over it."""
        gdb = self.session("crossing")
        gdb("break cross if round == 499")
        threads = set()
        for _ in range(16):
            out = gdb("continue", 60)
            self.assertSays(out, r"hit Breakpoint 2, cross \(thread=\d+, round=499\)")
            threads.add(gdb.value("thread"))
        self.assertEqual(len(threads), 16)
        gdb("delete")
        self.assertExits(gdb, 0, "crossing: sum 1996000")

    def interrupted(self, gdb):
        gdb.interrupt()
        return gdb.answer()

    def test_threads_at_one_breakpoint_have_their_turns(self):
        gdb = self.session("turns", options=SEEN)
        hit = []
        for _ in range(4):
            gdb("break *spot")
            out = gdb("continue")
            self.assertSays(out, r'Thread [23] "turns" hit Breakpoint \d+, ')
            hit.append(int(re.search(r"Thread (\d) ", out).group(1)))
            gdb("delete")
            self.resume(gdb, "continue")
            # As a terminal's signal, which goes to the main thread.
            self.assertSays(self.interrupted(gdb), r'Thread 1 "turns" received signal SIGINT')
        self.assertEqual(set(hit), {2, 3})
        gdb("kill")

    def test_the_debugger_is_heard_while_threads_step_over_breakpoints_without_end(self):
        """Each thread meets a condition that is false with each instruction, and the others rest while it goes on."""
        gdb = self.session("turns", "20", options=SEEN)
        gdb("break *spot if zero")
        for _ in range(3):
            self.resume(gdb, "continue")
            self.assertSays(self.interrupted(gdb), r"received signal SIGINT")
        gdb("set var zero = 1")
        self.assertSays(gdb("continue"), r'"turns" hit Breakpoint 2, ')
        gdb("kill")

    def test_watch_while_threads_come_and_go(self):
        gdb = self.session("cpp_map")
        gdb(f"watch thrown if *(long*)&thrown > {40000 if LONG else 8000}")
        out = gdb("continue", 120)
        self.assertSays(out, r"watchpoint 2: thrown")
        gdb("delete")
        self.assertExits(gdb, 0, "cpp_map: 500 keys, sum dc3e4af7411c472, thrown 43219, writes 27430")
    test_watch_while_threads_come_and_go.larger = True
    test_watch_while_threads_come_and_go.costs = "gdb judges 8,000 hits itself, by night 40,000, one stop each"

    @ulpf_only
    def test_thread_local_variable_of_another_thread(self):
        """A guarded page may hold the stack and the thread descriptor of a thread."""
        gdb = self.session("threads16", "500", stop="worker if argument == 5")
        gdb("watch -l *(long*)($fs_base + 0x600)")
        gdb("watch -l *(long*)($sp + 64)")
        gdb("continue", 60)
        gdb("delete")
        out = gdb("continue", 60)
        self.assertSays(out + gdb.server.stdout(), r"threads16: 16 x 500 stores")


class Processes(Case):
    def test_children_live_unwatched(self):
        gdb = self.session("children")
        gdb("watch shared_count")
        self.assertChange(gdb("continue"), 2, "shared_count", 1, 2)
        self.assertChange(gdb("continue"), 2, "shared_count", 2, 3)
        self.assertExits(gdb, 0, "children: count 3, codes 3 4 5 6 -6")

    @ulpf_only
    def test_children_with_many_watches(self):
        gdb = self.session("children")
        gdb("set max-value-size unlimited")
        gdb("rwatch big_block[5000]")
        gdb("watch big_block[8191]")
        self.assertSays(gdb("continue"), r"big_block\[8191\]", r"New value = 7")
        gdb("delete 3")
        self.assertSays(gdb("continue"), r"read watchpoint 2", r"Value = 7")
        gdb("delete")
        self.assertExits(gdb, 0, "children: count 3, codes 3 4 5 6 -6")
