"""Variables that each thread has for itself: of the program, of its libraries, of libraries that come later."""

import os
import shutil
import subprocess
import tempfile
import unittest

from lib.cases import Case

LIBRARY = r"""
__thread long late = 70;
__thread long uninitialised[9];
long *of_library(void) { uninitialised[2] = 4; return &late; }
"""

PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#ifndef STATIC
#include <dlfcn.h>
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
struct big { char bytes[40]; long tail; } __attribute__((aligned(32)));
__thread int mine = 10;
__thread struct big wide = { "wide", 33 };
static pthread_barrier_t barrier;
static long *(*of_library)(void);
long sum;
__attribute__((noinline)) void ready(void) { __asm__ volatile(""); }
static void *work(void *n)
{
    long *theirs = of_library ? of_library() : &sum;
    mine += (long)n;
    wide.tail += (long)n;
    errno = (int)(long)n;
    if (of_library) *theirs += (long)n;
    pthread_barrier_wait(&barrier);
    if (n == (void *)2) ready();
    pthread_barrier_wait(&barrier);
    mine += 100;
    if (of_library) *theirs += 100;
    __atomic_fetch_add(&sum, mine, __ATOMIC_SEQ_CST);
    return NULL;
}
int main(int argc, char **argv)
{
#ifndef STATIC
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library) of_library = dlsym(library, "of_library");
#endif
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("sum %ld\n", sum);
    return 0;
}
"""


class ThreadLocals(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def build(self, name, *options, cc="cc", text=PROGRAM):
        binary = os.path.join(self.folder.name, name)
        subprocess.run([cc, "-g", "-O0", "-x", "c", "-", "-o", binary, *options], input=text.encode(), check=True)
        return binary

    def conversation(self, binary, *arguments, library=False):
        gdb = self.session(binary, *arguments, stop=None)
        gdb("break ready")
        self.assertSays(gdb("continue"), r"Breakpoint 1, ")
        gdb("up")
        n = "(long)n"
        self.assertSays(gdb(f"print mine == 10 + {n}"), r"= 1")
        self.assertSays(gdb(f"print wide.tail == 33 + {n}"), r"= 1")
        self.assertSays(gdb("print wide.bytes"), r'"wide"')
        self.assertSays(gdb("thread apply all print mine"), r"= 1[012]", r"= 1[012]", r"= 1[012]")
        if library:
            self.assertSays(gdb(f"print late == 70 + {n}"), r"= 1")
            self.assertSays(gdb("print uninitialised[2]"), r"= 4")
        self.assertSays(gdb("watch mine"), r"atchpoint 2: mine")
        self.assertSays(gdb("continue"), r"atchpoint 2: mine", r"Old value = 12\s+New value = 112")
        if library:
            self.assertSays(gdb("watch late"), r"atchpoint 3: late")
            self.assertSays(gdb("continue"), r"Old value = 72\s+New value = 172")
        gdb("delete")
        self.assertExits(gdb, 0, "sum 223")

    def test_of_a_program(self):
        self.conversation(self.build("dynamic", "-pthread"))

    def test_of_a_library_that_is_loaded_later(self):
        library = self.build("library.so", "-shared", "-fPIC", text=LIBRARY)
        self.conversation(self.build("loader", "-pthread", "-ldl"), library, library=True)

    def test_of_a_static_program(self):
        self.conversation(self.build("static", "-pthread", "-static", "-DSTATIC"))

    def test_errno(self):
        gdb = self.session(self.build("dynamic", "-pthread"), stop=None)
        gdb("break ready")
        gdb("continue")
        self.assertSays(gdb("print *(int *)__errno_location()"), r"= 2")

    def test_a_thread_that_has_not_used_the_library(self):
        library = self.build("library.so", "-shared", "-fPIC", text=LIBRARY)
        gdb = self.session(self.build("loader", "-pthread", "-ldl"), library, stop=None)
        gdb("break ready")
        gdb("continue")
        gdb("thread 1")
        self.assertSays(gdb("print late"), r"Cannot find thread-local storage")
        self.assertSays(gdb("print mine"), r"= 10")

    @unittest.skipUnless(shutil.which("musl-gcc"), "musl-tools are not installed")
    def test_of_musl(self):
        library = self.build("library.so", "-shared", "-fPIC", cc="musl-gcc", text=LIBRARY)
        self.conversation(self.build("musl", "-pthread", cc="musl-gcc"), library, library=True)
        self.conversation(self.build("musl-static", "-pthread", "-static", "-DSTATIC", cc="musl-gcc"))


if __name__ == "__main__":
    unittest.main()
