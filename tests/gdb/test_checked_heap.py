"""`ulpf server --check`: gdb stops before errors of the heap, and says what they are."""

import os
import re
import subprocess
import tempfile

from command.test_check import ERRORS
from command.test_check_attach import Server as Running
from lib.cases import Case, line
from lib.env import PATIENCE, ULPF, example, find_tool, source_of, ulpf_only
from lib.lldb import lldb
from lib.run import program

# These are known when they have happened.
BEHIND = {"by_the_kernel"}
CALLS = {"free_twice", "free_inside", "realloc_of_freed", "realloc_inside", "free_of_stack"}
STOP = "received signal EXC_BAD_ACCESS, Could not access memory."


class Checked(Case):
    def checked(self, *program, **options):
        return self.session(*program, options=["--check"], stop="main", **options)

    def assertEnds(self, gdb, status=0, command="continue"):
        out = gdb(command, 60)
        self.assertSays(out, "exited normally" if status == 0 else rf"exited with code 0{status:o}\]")
        return out


@ulpf_only
class Errors(Checked):
    def test_each_error(self):
        """Its text, the stop, its thread; and the program continues as usual."""
        for word, (_, access, where) in ERRORS.items():
            if word in BEHIND:
                continue
            with self.subTest(word):
                gdb = self.checked("heap_errors", word)
                out = gdb("continue")
                self.assertSays(out, r"ulpf: #1 " + re.escape(access), re.escape(where), word, "" if word == "free_of_stack" else "allocated by", STOP)
                self.assertSays(gdb("backtrace"), r"#0 ", rf" {word} \(\)", r" main \(")
                if word in CALLS:
                    self.assertSays(gdb("info symbol $pc"), r"^(__libc_|__GI___libc_)?(free|cfree|realloc) in section")
                self.assertSays(self.assertEnds(gdb, 5), "ulpf: 1 error at 1 place")

    def test_nothing_is_written_yet(self):
        """The store has not been made when gdb stops, also that of a patched instruction; the debugger may prevent it."""
        for word, expression, before in ("write_behind", "p[24]", 0), ("last_of_many", "all[1000]", 0), ("use_after_realloc", "p[1]", 0):
            with self.subTest(word):
                gdb = self.checked("heap_errors", word)
                self.assertSays(gdb("continue"), STOP)
                at = gdb.address(expression)
                value = f"*({'char' if word == 'write_behind' else 'int'} *) {at}"
                self.assertEqual(gdb.value(value), before)
                self.assertSays(gdb("x/i $pc"), r"=> .*mov")
                gdb("stepi")
                self.assertEqual(gdb.value(value), {"write_behind": 1, "last_of_many": 1000, "use_after_realloc": 7}[word])
                self.assertEnds(gdb, 5)

    def test_an_access_to_another_block(self):
        """It stops before it, too, at each place once."""
        gdb = self.checked("heap_far", "bad", "write_int", "write_long")
        for word, size in ("write_int", 4), ("write_long", 8):
            self.assertSays(gdb("continue"), rf"write of {size} bytes at .* inside another one of 4000 bytes", "the other one allocated by", word, STOP)
            self.assertEqual(gdb.value("behind[2000]"), 0)
            self.assertSays(gdb("backtrace"), rf"#0 .* {word} \(bad=true\)")
            gdb("stepi")
        self.assertSays(self.assertEnds(gdb), "ulpf: 2 errors at 2 places")

    def test_a_store_that_is_left_out(self):
        """After the user sets another PC, the store is never made."""
        gdb = self.checked("heap_errors", "write_behind")
        self.assertSays(gdb("continue"), STOP)
        at = gdb.address("p[24]")
        behind = int(re.search(r"\n +0x([0-9a-f]+)", gdb("x/2i $pc")).group(1), 16)
        gdb(f"set $pc = {behind}")
        gdb("stepi")
        self.assertEqual(gdb.value(f"*(char *) {at}"), 0)
        self.assertSays(self.assertEnds(gdb, 5), "ulpf: 1 error at 1 place")

    def test_a_system_call_is_over_when_it_is_reported(self):
        with open(__file__, "rb") as text:
            gdb = self.checked("heap_errors", "by_the_kernel", stdin=text)
            self.assertSays(gdb("continue"), r"ulpf: #1 write of 8 bytes by read\(2\)", "0 bytes behind a block of 8 bytes", STOP)
            self.assertEqual(gdb.value("$rax"), 16)
            self.assertEnds(gdb, 5)

    def test_functions_of_another_kind(self):
        gdb = self.checked("new_errors", "delete_of_malloc")
        self.assertSays(gdb("continue"), r"ulpf: #1 delete of 0x[0-9a-f]+, which was allocated by malloc", STOP)
        self.assertSays(gdb("backtrace"), r"#0 .*operator delete", r" main \(")
        self.assertEnds(gdb, 5)

    def test_lost_blocks(self):
        gdb = self.checked("heap_errors", "lose")
        self.assertSays(self.assertEnds(gdb, 5), r"ulpf: #1 1 block \(5000 bytes\) lost", r"allocated by\n +lose at heap_errors.c",
                        r"ulpf: #2 1 block \(16 bytes\) lost with", r"ulpf: 0 errors at 0 places; 2 blocks allocated",
                        r"ulpf: lost: 1 block \(5000 bytes\)", "exited with")

    def test_no_error(self):
        """Threads and children that are right."""
        gdb = self.checked("heap_errors", "none")
        out = self.assertEnds(gdb)
        self.assertNotIn(STOP, out)
        self.assertSays(out, "ulpf: 0 errors at 0 places")

    def test_a_program_that_is_killed(self):
        gdb = self.checked("heap_errors", "write_behind")
        self.assertSays(gdb("continue"), STOP)
        gdb("kill")
        self.assertNotIn("ulpf:", gdb("info threads"))

    def test_a_program_that_is_let_go(self):
        """It continues with its heap, in all threads, unchecked."""
        gdb = self.checked("heap_stops")
        self.assertSays(gdb("continue", 60), STOP)
        gdb("detach")
        self.assertEqual(gdb.server.wait(), 0)
        self.assertIn("heap_stops: done", gdb.server.stdout())

    def test_the_program_begins_anew(self):
        """Each run of it is checked."""
        gdb = self.checked("heap_errors", "free_twice", extended=True)
        for _ in range(2):
            self.assertSays(gdb("continue"), "ulpf: #1 free of what was freed before", STOP)
            self.assertEnds(gdb, 5)
            gdb(f"set remote exec-file {gdb.server.command[-2]}")
            gdb("set args free_twice")
            gdb("tbreak main")
            self.assertSays(gdb("run"), r"Temporary breakpoint \d+, main")


@ulpf_only
class Threads(Checked):
    PLACES = {"fill": r"write of 1 byte .* 0 bytes behind a block of 64 bytes", "reuses": r"write of 4 bytes .* inside a freed block",
              "frees_twice": r"free of what was freed before"}

    def test_each_thread_stops_at_its_own(self):
        """Three errors at the same time are three stops, each on the thread that makes it, with its own text."""
        gdb = self.checked("heap_stops")
        left = dict(self.PLACES)
        for number in 1, 2, 3:
            out = gdb("continue", 60)
            self.assertSays(out, rf"ulpf: #\d ({'|'.join(left.values())})", rf"Thread \d .*{STOP}")
            self.assertEqual(len(re.findall("ulpf: #", out)), 1, out)
            trace = gdb("backtrace")
            (name,) = [name for name in left if re.search(rf" {name} \(", trace)]
            self.assertSays(out, "ulpf: #\\d " + left.pop(name))
            self.assertIn(name, out)
        self.assertSays(self.assertEnds(gdb), "ulpf: 3 errors at 3 places")
        self.assertIn("heap_stops: done", gdb.server.stdout())

    def test_one_thread_at_a_time(self):
        """`set scheduler-locking on`: the others report theirs when they are let go."""
        gdb = self.checked("heap_stops")
        self.assertSays(gdb("continue", 60), STOP)
        gdb("set scheduler-locking on")
        gdb("stepi")
        gdb("set scheduler-locking off")
        for _ in 1, 2:
            self.assertSays(gdb("continue", 60), STOP)
        self.assertEnds(gdb)

    def test_non_stop(self):
        gdb = self.gdb()
        server = self.serve("heap_stops", options=["--check"])
        for command in "set non-stop on", f"file {server.command[-1]}", f"target remote {server.target}":
            gdb(command)
        gdb.send("continue&")
        gdb.answer()
        out = ""
        for _ in range(60):
            out += gdb("shell sleep 0.2")
            if len(re.findall(STOP, out)) == 3:
                break
        self.assertEqual(len(re.findall(STOP, out)), 3, out)
        self.assertEqual(len(re.findall("ulpf: #[123] ", server.said)), 3, server.said)
        gdb("continue -a&")
        for _ in range(60):
            out += gdb("shell sleep 0.2")
            if "exited normally" in out:
                break
        self.assertIn("exited normally", out)
        server.wait_for("ulpf: 3 errors at 3 places")


@ulpf_only
class RunControl(Checked):
    def test_steps_and_breakpoints_at_the_functions_that_are_served(self):
        gdb = self.checked("heap_errors", "free_twice")
        gdb("break free_twice")
        gdb("continue")
        gdb("break malloc if bytes == 10" if "bytes" in gdb("info scope malloc") else "break malloc")
        gdb("break free")
        self.assertSays(gdb("continue"), r"Breakpoint \d+(\.1)?, .*malloc")
        self.assertSays(gdb("backtrace"), "#1 .* free_twice")
        self.assertSays(gdb("stepi"), "free_twice")
        self.assertNotEqual(gdb.value("$rax"), 0)
        self.assertSays(gdb("continue"), r"Breakpoint \d+(\.1)?, .*free")
        self.assertSays(gdb("finish"), "free_twice")
        # The breakpoint there comes first, then what is wrong with the call.
        self.assertSays(gdb("continue"), r"Breakpoint \d+(\.1)?, .*free")
        gdb("delete")
        self.assertSays(gdb("continue"), "ulpf: #1 free of what was freed before", STOP)
        self.assertSays(gdb("finish"), "free_twice")
        self.assertEnds(gdb, 5)

    def test_next_over_an_error(self):
        """A step ends at it."""
        gdb = self.checked("heap_errors", "copy_behind")
        gdb("break copy_behind")
        gdb("continue")
        self.assertSays(gdb("next"), "ulpf: #1 write of 3 bytes", STOP)
        self.assertSays(gdb("backtrace"), "#1 .* copy_behind")
        self.assertEnds(gdb, 5)

    def test_a_breakpoint_at_the_instruction(self):
        gdb = self.checked("heap_errors", "write_behind")
        at = re.search(r"0x([0-9a-f]+).*movb", gdb("disassemble write_behind"))
        if not at:
            self.skipTest("the compiler writes another way")
        gdb(f"break *0x{at.group(1)}")
        self.assertSays(gdb("continue"), "Breakpoint 2, ")
        self.assertSays(gdb("continue"), "ulpf: #1 write of 1 byte", STOP)
        self.assertEnds(gdb, 5)

    def test_a_breakpoint_in_the_middle_of_a_served_function(self):
        """No instruction begins there any more: it is met at the function's beginning, and the call is made as ever."""
        for inside in 4, 11:
            with self.subTest(inside):
                gdb = self.checked("heap_errors", "write_behind")
                gdb(f"break *((char *) malloc + {inside})")
                self.assertSays(gdb("continue"), r"Breakpoint 2, ")
                self.assertSays(gdb("stepi"), "write_behind|_IO_|malloc|main")
                gdb("delete")
                self.assertSays(gdb("continue"), "ulpf: #1 write of 1 byte", STOP)
                self.assertEnds(gdb, 5)

    def test_watches_go_along(self):
        """A watch on a block's bytes, and the error behind it."""
        gdb = self.checked("heap_errors", "last_of_many")
        gdb(f"break {line('heap_errors.c', 'for (int i = 0; i <= 1000')}")
        self.assertSays(gdb("continue"), r"Breakpoint 2(\.1)?, ")
        gdb("delete")
        gdb("watch -l all[999]")
        self.assertSays(gdb("continue"), r"Hardware watchpoint 3: -location all\[999\]", "New value = 999")
        self.assertSays(gdb("continue"), "ulpf: #1 write of 4 bytes", STOP)
        self.assertEnds(gdb, 5)


@ulpf_only
class Requests(Checked):
    def requests(self, word):
        if subprocess.run([program("heap_requests")], capture_output=True).returncode == 77:
            self.skipTest("Valgrind's headers are not there (package valgrind)")
        return self.checked(program("heap_requests"), word)

    def test_what_the_program_says_itself(self):
        """A stop before the store that it forbids."""
        gdb = self.requests("closed_global")
        self.assertSays(gdb("continue"), "ulpf: #1 write of 1 byte at .*where the program itself forbids it", STOP)
        self.assertEqual(gdb.value("(int)globals[149]"), 0)
        self.assertSays(gdb("backtrace"), r"#0 .*closed_global", "main")
        self.assertSays(self.assertEnds(gdb), "ulpf: 1 error at 1 place")

    def test_a_request_is_one_step(self):
        """And its bytes are what they were; breakpoints are met at it, and in its middle."""
        gdb = self.requests("freed_twice")
        code = gdb("disassemble own_free")
        begin = int(re.search(r"(0x\w+) <\+\d+>:\s+rol +\$0x3,%rdi", code)[1], 16)
        gdb(f"break *{begin:#x}")
        self.assertSays(gdb("continue"), "Breakpoint 2")
        self.assertSays(gdb("x/5i $pc"), r"rol +\$0x3,%rdi", r"rol +\$0xd,%rdi", r"rol +\$0x3d,%rdi", r"rol +\$0x33,%rdi", r"xchg +%rbx,%rbx")
        gdb("stepi")
        self.assertEqual(gdb.value("(long)$pc"), begin + 19)
        gdb("delete 2")
        gdb(f"break *{begin + 8:#x}")
        self.assertSays(gdb("continue"), "Breakpoint 3")
        self.assertSays(gdb("continue"), "ulpf: #1 the program's own freeing of what was freed before", STOP)
        self.assertSays(self.assertEnds(gdb), "ulpf: 1 error at 1 place")


@ulpf_only
class Options(Checked):
    """Those of `ulpf check`."""

    def suppressed(self, *functions):
        with tempfile.NamedTemporaryFile("w", suffix=".supp", delete=False) as file:
            self.addCleanup(os.unlink, file.name)
            for function in functions:
                file.write(f"{{\n   not ours\n   ulpf:*\n   ...\n   fun:{function}\n}}\n")
        return file.name

    def test_nobody_stops_for_what_is_suppressed(self):
        hidden = self.suppressed("write_int*", "lose")
        gdb = self.session("heap_far", "bad", "write_int", "write_long", options=["--check", "--suppressions", hidden], stop="main")
        out = gdb("continue")
        self.assertNotIn("write_int", out)
        self.assertSays(out, r"ulpf: #2 write of 8 bytes", "write_long", STOP)
        self.assertSays(self.assertEnds(gdb), r"ulpf: 1 error at 1 place", r"ulpf: suppressed: 1 error, 0 blocks")

    def test_a_step_over_what_is_suppressed(self):
        """It comes to its end as if there were no error."""
        hidden = self.suppressed("write_behind")
        for non_stop in "off", "on":
            with self.subTest(non_stop=non_stop):
                gdb = self.gdb()
                gdb.server = self.serve("heap_errors", "write_behind", options=["--check", f"--suppressions={hidden}"])
                for command in f"set non-stop {non_stop}", f"file {example('heap_errors')}", f"target remote {gdb.server.target}", "break write_behind":
                    gdb(command)
                self.assertSays(gdb("continue"), "Breakpoint 1, write_behind")
                # (The call of malloc, the store itself and what is between.)
                for _ in range(40):
                    self.assertNotIn(STOP, gdb("nexti"))
                    if "write_behind ()" not in gdb("frame"):
                        break
                self.assertNotIn("write_behind ()", gdb("frame"))
                self.assertSays(self.assertEnds(gdb, 5), "exited with")
                gdb.server.close()
                self.assertEqual(len(re.findall("ulpf: #", gdb.server.said + gdb.transcript)), 0)

    def test_lost_blocks_that_are_suppressed(self):
        gdb = self.session("heap_errors", "lose", options=["--check", "--suppressions", self.suppressed("lose")], stop="main")
        out = self.assertEnds(gdb, 5)
        self.assertNotIn("#1", out)
        self.assertSays(out, r"suppressed: 0 errors, 2 blocks \(5016 bytes\)")

    def test_guesses(self):
        """With --base it stops for a byte's index, too."""
        for options, stops in ([], False), (["--base"], True):
            gdb = self.session("heap_far_optimised", "bad", "write_char", options=["--check", *options], stop="main")
            out = gdb("continue")
            self.assertSays(out, "another one" if stops else "exited normally")
            self.assertEqual(STOP in out, stops)

    def test_the_place_between_blocks_and_lost_ones(self):
        gdb = self.session("heap_errors", "lose", options=["--gap=256", "--no-leaks", "--check"], stop="lose")
        ends = [gdb.value(f"(long) malloc({size})") + size for size in (64, 64)]
        self.assertGreaterEqual(abs(ends[1] - ends[0]), 256)
        out = self.assertEnds(gdb, 5)
        self.assertNotIn("lost", out)

    def test_a_static_program(self):
        """A function without a dynamic symbol is found by the symbol table, or by its name."""
        with tempfile.TemporaryDirectory() as folder:
            built = os.path.join(folder, "heap_errors")
            subprocess.run(["cc", "-g", "-static", "-pthread", "-w", "-o", built, source_of("heap_errors.c")], check=True)
            gdb = self.session(built, "write_behind", options=["--check"], stop="main")
            self.assertSays(gdb("continue"), "ulpf: #1 write of 1 byte", "allocated by", STOP)
            self.assertSays(self.assertEnds(gdb, 5), "ulpf: 1 error at 1 place")


@ulpf_only
class Others(Checked):
    def test_ulpf_gdb(self):
        commands = ["run", "backtrace", "continue"]
        done = subprocess.run([ULPF, "gdb", "--check", "-nx", "-q", "-batch", *(word for c in commands for word in ("-ex", c)),
                               "--args", example("heap_errors"), "use_after_free"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE)
        self.assertSays(done.stdout, "ulpf: #1 read of 4 bytes", "freed by", "allocated by")
        self.assertSays(done.stdout, STOP, "#0 ", "use_after_free")
        self.assertSays(done.stdout, "exited with code 05")

    def test_what_cannot_be_checked(self):
        for words, why in ((["--backend=sim", example("heap_errors")], "The heap is checked in programs of this machine"),
                           (["--gap=7", example("heap_errors")], "--gap takes a number from 16 to 4096, or two of them, as 16..256, not `7`"),
                           (["--suppressions", "/no/such/file", example("heap_errors")], "cannot read /no/such/file")):
            done = subprocess.run([ULPF, "gdb", "--check", "-batch", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(why, done.stdout)

    def test_a_process_that_runs_already(self):
        """Its new blocks and those of before are checked; the debugger goes, and it runs on."""
        running = Running(program("heap_attached"))
        server = self.serve(options=("--check", "--attach", str(running.pid)), wait=True)
        self.assertIn("that the program has already are checked, too", server.said)
        gdb = self.gdb()
        gdb(f"file {program('heap_attached')}")
        gdb(f"target remote {server.target}")
        for word, what, function in ("new_behind", "write of 1 byte", "new_behind"), ("old_freed", "read of 1 byte", "old_freed_now"):
            gdb.send("continue")
            running.say(word)
            self.assertSays(gdb.answer(60 * PATIENCE), "ulpf: #", what, STOP)
            self.assertSays(gdb("backtrace"), rf"#0 .*{function} \(")
        read, size = re.search(r"at (0x[0-9a-f]+), 16 bytes inside a freed block of (\d+) bytes", gdb.transcript).groups()
        self.assertSays(gdb(f"monitor ulpf heap-block {read}"), f"{read} is 16 bytes inside a freed block of {size} bytes", "freed by", "old_freed_now")
        self.assertSays(gdb("monitor ulpf heap-block 0x1000"), "no block at 0x1000", "is not in the checked heap")
        gdb("detach")
        running.done()
        self.assertEqual(running.end(), ("well\n", 0))

    def test_lldb(self):
        """The error is the reason of its stop."""
        debugger = next((name for name in ("lldb-19", "lldb", "lldb-14") if find_tool(name)), None)
        if not debugger:
            self.skipTest("no lldb")
        server = self.serve("heap_errors", "write_behind", options=["--check"])
        answers, text = lldb(debugger, [f"target create {example('heap_errors')}", f"gdb-remote {server.port}", "process continue",
                                        "thread list", "process continue"])
        self.assertSays(text, "stop reason = write of 1 byte at 0x[0-9a-f]+, 0 bytes behind a block of 24 bytes", "write_behind",
                        "exited with status = 5")
        self.assertIn("allocated by", text)
