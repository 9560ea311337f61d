"""System-call sites that ulpf has patched (tests/programs/busy_calls.c): nothing but their cost changes."""

import json
import re
import subprocess
import time

from lib.cases import SEEN, Case
from lib.env import ulpf_only
from lib.rsp import wait_until


@ulpf_only
class PatchedCalls(Case):
    def patching(self, *arguments, how="on after 1", **options):
        gdb = self.session("busy_calls", *arguments, **options)
        self.assertSays(gdb(f"monitor ulpf patch-syscalls {how}"), r'"patch_syscalls":(true|false)')
        return gdb

    def sites(self, gdb, number):
        """(address, how it is patched, signals) of the sites that were used with this system call."""
        lines = re.findall(r"(0x\w+) ([\w ]+), (\d+) signals,(.*)", gdb("monitor ulpf sites"))
        return [(int(at, 16), how, int(signals)) for at, how, signals, numbers in lines
                if re.search(rf" \(?{number}\)?( |$)", numbers)]

    def code(self, gdb, at, count=8):
        """The real bytes in the program's memory."""
        with open(f"/proc/{gdb.server.program_pid}/mem", "rb") as memory:
            memory.seek(at)
            return memory.read(count)

    def test_a_busy_site_costs_no_more_signals(self):
        gdb = self.patching()
        gdb("tbreak patched")
        gdb("continue")
        sites = self.sites(gdb, 110)  # getppid: its own function, and syscall()
        self.assertEqual({how for _, how, _ in sites}, {"near jump", "punned jump"})
        for _, _, signals in sites:
            self.assertLess(signals, 10)
        self.assertExits(gdb, 0, "busy_calls: ok")

    def test_off(self):
        gdb = self.patching(how="off")
        gdb("tbreak patched")
        gdb("continue")
        self.assertNotIn("jump", gdb("monitor ulpf sites"))
        self.assertExits(gdb, 0, "busy_calls: ok")

    def test_off_brings_the_code_back(self):
        gdb = self.patching()
        gdb("tbreak patched")
        gdb("continue")
        at = self.sites(gdb, 107)[0][0]  # geteuid
        self.assertEqual(self.code(gdb, at - 5, 1), b"\xe9")
        gdb("monitor ulpf patch-syscalls off")
        self.assertEqual(self.code(gdb, at - 5, 7), b"\xb8\x6b\0\0\0\x0f\x05")
        self.assertExits(gdb, 0, "busy_calls: ok")

    def test_the_debugger_sees_the_original_code(self):
        gdb = self.patching()
        gdb("tbreak patched")
        gdb("continue")
        near = next(at for at, how, _ in self.sites(gdb, 110) if how == "near jump")
        punned = next(at for at, how, _ in self.sites(gdb, 110) if how == "punned jump")
        self.assertEqual(self.code(gdb, near - 5, 1), b"\xe9")
        self.assertNotEqual(self.code(gdb, punned, 2), b"\x0f\x05")
        self.assertSays(gdb(f"x/2i {near - 5}"), r"mov +\$0x6e,%eax", r"syscall")
        self.assertSays(gdb(f"x/i {punned}"), r"syscall")

    def test_a_breakpoint_on_a_patched_site(self):
        gdb = self.patching()
        gdb("tbreak patched")
        gdb("continue")
        near = next(at for at, how, _ in self.sites(gdb, 110) if how == "near jump")
        gdb(f"break *{near - 5}")
        self.assertSays(gdb("continue"), r"Breakpoint \d, .*getppid")
        gdb("stepi")
        self.assertSays(gdb(f"print $rax == 110 && $pc == {near}"), r"= 1")
        gdb("stepi")
        self.assertSays(gdb(f"print $rax == {gdb.server.process.pid} && $pc == {near + 2}"), r"= 1")
        gdb("delete")
        self.assertExits(gdb, 0, "busy_calls: ok")

    def test_a_breakpoint_behind_a_patched_site(self):
        gdb = self.patching()
        gdb("tbreak patched")
        gdb("continue")
        punned = next(at for at, how, _ in self.sites(gdb, 110) if how == "punned jump")
        gdb(f"break *{punned + 2}")
        self.assertSays(gdb("continue"), r"Breakpoint \d, .*syscall")
        self.assertSays(gdb(f"print $rax == {gdb.server.process.pid} && $rcx == $pc"), r"= 1")
        gdb("delete")
        self.assertExits(gdb, 0, "busy_calls: ok")

    def test_stepping_through_patched_sites(self):
        gdb = self.patching()
        gdb("tbreak patched")
        gdb("continue")
        gdb("display/i $pc")
        walk = gdb("python\nfor i in range(80): gdb.execute('stepi')\nend", 60)
        # Both instructions of the one, the one of the other, and nothing else's code.
        self.assertSays(walk, r"<\w*getppid>:\s+mov +\$0x6e,%eax", r"<\w*getppid\+5>:\s+syscall", r"<\w*getppid\+7>:\s+ret",
                        r"<syscall\+\d+>:\s+syscall", r"<syscall\+\d+>:\s+cmp")
        self.assertNotRegex(walk, r"=> 0x\w+:")
        gdb("undisplay 1")
        self.assertExits(gdb, 0, "busy_calls: ok")

    def test_the_kernel_writes_to_a_watch(self):
        gdb = self.patching("reads")
        gdb("watch -l watched[1]")
        for value, before in (49, 0), (99, 49), (149, 99):
            self.assertChange(gdb("continue"), 2, "-location watched[1]", before, value)
        self.assertIn("jump", [how for _, how, _ in self.sites(gdb, 0)][-1])
        gdb("delete")
        self.assertExits(gdb, 0, "busy_calls: ok")

    def storm(self, how):
        gdb = self.patching("storm", "800", how=how, options=SEEN)
        gdb("handle SIGALRM nostop noprint pass")
        gdb("watch -l watched[0]")
        for _ in range(4):
            self.resume(gdb)
            time.sleep(0.1)  # let it storm
            gdb.interrupt()
            if "exited normally" in gdb.answer(30):
                break
        else:
            self.assertExits(gdb)
        gdb.server.wait()
        self.assertIn("busy_calls: ok", gdb.server.stdout())

    def test_a_storm_of_signals(self):
        self.storm("on after 1")

    def test_a_storm_of_signals_unpatched(self):
        self.storm("off")

    def test_a_stopped_wait_waits_out_its_rest(self):
        # Since glibc 2.41 a function of the C library's own makes the call.
        gdb = self.patching("wait", "6000", options=SEEN, gdb_options={"libraries": True})
        gdb("tbreak patched")
        gdb("continue")
        self.assertIn("near jump", [how for _, how, _ in self.sites(gdb, 232)])
        def waits(seconds):
            process = subprocess.Popen(["/bin/sleep", str(seconds)])
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            return process
        nearly_whole = waits(5)
        self.resume(gdb)
        time.sleep(3)  # half of the wait
        gdb.interrupt()
        self.assertSays(gdb.answer(), r"SIGINT", r"epoll_wait|__internal_syscall_cancel")
        again = waits(6)
        self.resume(gdb)
        self.assertSays(gdb.answer(60), r"exited normally")
        self.assertEqual(nearly_whole.poll(), 0, "it has waited less")
        self.assertIsNone(again.poll(), "it has waited from the beginning again")
        gdb.server.wait()
    test_a_stopped_wait_waits_out_its_rest.idle = True

    def test_code_that_comes_and_goes(self):
        self.assertExits(self.patching("code"), 0, "busy_calls: ok")

    def test_children_have_the_original_code(self):
        self.assertExits(self.patching("children"), 0, "busy_calls: ok")

    def test_threads_are_stopped_in_patched_calls(self):
        gdb = self.patching("threads")
        gdb("watch -l watched[0] if watched[0] == 200")
        self.assertChange(gdb("continue", 60), 2, "-location watched[0]", 199, 200)
        threads = gdb("info threads")
        self.assertEqual(threads.count("Thread "), 5)
        self.assertNotRegex(threads, r"\?\? \(\)|0x0*7ea")
        gdb("delete")
        self.assertExits(gdb, 0, "busy_calls: ok")

    def relay(self, how):
        """Threads wake each other by a word that is watched, with signals in between."""
        gdb = self.patching("relay", "10000", how=how, options=SEEN)
        gdb("handle SIGALRM nostop noprint pass")
        word = gdb.value("(long)baton")
        gdb(f"monitor ulpf watch {word} 4 w")
        gdb("tbreak patched")
        self.assertSays(gdb("continue", 60), r"Temporary breakpoint")
        stats = json.loads(re.search(r"{.*}", gdb("monitor ulpf stats")).group())
        self.assertEqual(stats["watches"][0]["hits"], 20000)
        sites = {how: signals for _, how, signals in self.sites(gdb, 202)}
        self.assertExits(gdb, 0, "busy_calls: ok")
        return sites

    def test_a_wake_on_a_watched_page_costs_no_signal(self):
        self.assertLess(self.relay("on after 1")["near jump"], 1000)

    def test_a_wake_on_a_watched_page_unpatched(self):
        self.assertNotIn("near jump", self.relay("off"))

    def test_detach_brings_the_code_back(self):
        gdb = self.patching("wait", "3000")
        gdb("tbreak patched")
        gdb("continue")
        at = next(at for at, how, _ in self.sites(gdb, 232) if how == "near jump")
        self.assertEqual(self.code(gdb, at - 5, 1), b"\xe9")
        pid = gdb.server.program_pid
        self.assertSays(gdb("detach"), r"detached|Detaching")
        with open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(at - 5)
            # mov $232, %eax, or how glibc loads the number since 2.41: mov 16(%rsp), %rax
            self.assertIn(memory.read(7), [b"\xb8\xe8\0\0\0\x0f\x05", b"H\x8bD$\x10\x0f\x05"])
        self.assertTrue(wait_until(lambda: "busy_calls: ok" in gdb.server.stdout(), 60))
