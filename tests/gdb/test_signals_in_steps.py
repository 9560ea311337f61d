"""Signals and the debugger's steps: what gdbserver does, and what a program may rely on."""

import os
import subprocess
import tempfile

from lib.cases import Case

PROGRAM = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
volatile int n, handled, slept;
static void handler(int signal) { (void)signal; handled++; }
static void *sleeper(void *none)
{
    struct timespec left = { 600, 0 };
    while (nanosleep(&left, &left) && !handled) {}
    slept = 1;
    return none;
}
__attribute__((noinline)) void ready(void) { __asm__ volatile(""); }
int main(int argc, char **argv)
{
    struct sigaction action = { .sa_handler = handler };
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    pthread_t thread;
    if (argc > 1) pthread_create(&thread, NULL, sleeper, NULL), usleep(100000);
    ready();
    if (argc > 1) { pthread_join(thread, NULL); printf("slept %d, handled %d\n", slept, handled); return 0; }
    n++;
    n++;
    n++;
    while (n < 1000) n++;
    printf("n %d, handled %d\n", n, handled);
    return 0;
}
"""


class SignalsInSteps(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.binary = os.path.join(cls.folder.name, "steps")
        source = cls.binary + ".c"
        with open(source, "w") as file:
            file.write(PROGRAM)
        subprocess.run(["cc", "-g", "-O0", "-pthread", source, "-o", cls.binary], check=True)

    def test_a_signal_that_is_sent_along(self):
        """The handler's frame has no trap flag of the debugger's: no SIGTRAP comes out of nowhere afterwards."""
        gdb = self.session(self.binary)
        gdb("handle SIGUSR1 stop print pass")
        gdb("break handler")
        self.assertSays(gdb("signal SIGUSR1"), r"Breakpoint 2, handler")
        gdb("delete")
        gdb("stepi")
        self.assertExits(gdb, 0, "n 1000, handled 1")

    def test_a_step_passes_over_a_handler(self):
        """GDB sees a signal that comes within a step, also one that it passes on."""
        gdb = self.session(self.binary)
        gdb("handle SIGALRM nostop noprint pass")
        gdb("next")
        gdb("call (int)raise(14)")
        gdb("call (unsigned)alarm(0)")
        for _ in range(3):
            self.assertSays(gdb("next"), r"\d+\s+(n\+\+|while)")
        gdb("delete")
        self.assertExits(gdb, 0, "n 1000")

    def test_to_a_thread_in_a_system_call(self):
        """As any signal: the call is interrupted, the handler runs, what was called goes on."""
        gdb = self.session(self.binary, "threads")
        gdb("handle SIGUSR1 stop print pass")
        gdb("thread 2")
        self.assertSays(gdb("queue-signal SIGUSR1"), r"^$")
        gdb("thread 1")
        self.assertExits(gdb, 0, "slept 1, handled 1")

    def test_a_called_function_that_returns_to_the_stack(self):
        """Where nothing can be executed: a fault, which GDB knows for its breakpoint."""
        gdb = self.session(self.binary)
        gdb("handle SIGSEGV nostop noprint pass")
        gdb("handle SIGILL nostop noprint pass")
        gdb("set unwindonsignal on")
        self.assertSays(gdb("print (int)getpid() > 0"), r"= 1")
        gdb("delete")
        self.assertExits(gdb, 0, "n 1000, handled 0")

    def test_calls_are_caught_with_their_returns(self):
        """vfork's, for which GDB takes its catchpoints away for a while, and of numbers that no kernel knows."""
        text = ("#define _GNU_SOURCE\n#include <sys/wait.h>\n#include <unistd.h>\nint main() { int p = vfork(); if (!p) _exit(0);"
                " waitpid(p, 0, 0); syscall(123456789); return 0; }")
        binary = os.path.join(self.folder.name, "calls")
        subprocess.run(["cc", "-g", "-x", "c", "-", "-o", binary], input=text.encode(), check=True)
        gdb = self.session(binary, stop="main")
        gdb("catch syscall vfork 123456789")
        self.assertSays(gdb("continue"), r"call to syscall '?vfork")
        self.assertSays(gdb("continue"), r"returned from syscall '?vfork")
        self.assertSays(gdb("continue"), r"call to syscall '?123456789")
        self.assertSays(gdb("continue"), r"returned from syscall '?123456789")
        gdb("delete")
        self.assertExits(gdb, 0)
