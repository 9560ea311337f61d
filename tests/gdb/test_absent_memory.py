"""A watch of memory that is not there, or not yet: taken, and armed as soon as it is."""

import os
import subprocess
import tempfile

from lib.cases import Case
from lib.env import ulpf_only

POINTER = r"""
#include <stdlib.h>
#include <sys/mman.h>
struct node { long x, y; };
struct node *volatile p;
volatile long other;
__attribute__((noinline)) void ready(void) { __asm__ volatile(""); }
int main(void)
{
    ready();
    other++;                         /* p is NULL */
    p = calloc(1, sizeof *p);
    p->x = 5;
    p->x = 6;
    p = NULL;
    other++;
    volatile long *far = mmap((void *)0x10000000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    far[1] = 7;
    far[1] = 8;
    return 0;
}
"""


class AbsentMemory(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.binary = os.path.join(cls.folder.name, "pointer")
        subprocess.run(["cc", "-g", "-O0", "-x", "c", "-", "-o", cls.binary], input=POINTER.encode(), check=True)

    def program(self):
        return self.session(self.binary, stop="ready")

    def test_through_a_pointer(self):
        """GDB follows the pointer; what it points to may be nowhere."""
        for expression, values in ("p->x", ("0", "5")), ("*p", (r"\{x = 0, y = 0\}", r"\{x = 5, y = 0\}")):
            with self.subTest(expression):
                gdb = self.program()
                self.assertSays(gdb(f"watch {expression}"), r"atchpoint 2: ")
                self.assertSays(gdb("continue"), rf"Old value = <unreadable>\s+New value = {values[0]}")
                self.assertSays(gdb("continue"), rf"Old value = {values[0]}\s+New value = {values[1]}")
                self.assertSays(gdb("next"), r"New value = (6|\{x = 6, y = 0\})")
                self.assertSays(gdb("continue"), r"New value = <unreadable>")
                gdb("delete")
                self.assertExits(gdb, 0, "")

    @ulpf_only
    def test_an_address_that_is_mapped_later(self):
        gdb = self.program()
        self.assertSays(gdb("watch *(long *)0x10000000008"), r"atchpoint 2: ")
        self.assertSays(gdb("continue"), r"(Old value = <unreadable>\s+New value = 0|Old value = 0\s+New value = 7|New value = 7)")
        gdb("delete")
        self.assertExits(gdb, 0, "")
