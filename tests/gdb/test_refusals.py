"""GDB without the plugin, whose versions before 15 show no reason of a refusal: the server says it, and the program stays."""

import os
import subprocess
import tempfile

from lib.cases import Case
from lib.env import ulpf_only

NEVER = r"ulpf: cannot set a write watch on 0xffffffffff600000 \(8 bytes\): .*vsyscall page.*; .*\.\nulpf: The program does not go on before this watch is deleted or disabled\.\n"

LATER = r"""
long word = 1, *pointer = &word;
__attribute__((noinline)) void ready(void) { __asm__ volatile(""); }
int main(void)
{
    ready();
    word = 2;
    pointer = (long *)0xffff800000000000;
    word = 3;
    pointer = &word;
    return 0;
}
"""


@ulpf_only
class Refusals(Case):
    def test_the_program_does_not_go_on(self):
        gdb = self.session("filters")
        gdb("watch *(long *) 0xffffffffff600000")
        gdb("frame 0")
        at = gdb("info registers rip")
        for command in "continue", "next", "stepi", "finish", "until":
            with self.subTest(command):
                self.assertSays(gdb(command), NEVER, r"stopped\.")
                self.assertEqual(gdb("info registers rip"), at)
        # Another one, which is there, is no way around.
        gdb("watch total")
        self.assertSays(gdb("continue"), NEVER)
        gdb("disable 2")
        self.assertChange(gdb("continue"), 3, "total", 0, 1)
        gdb("enable 2")
        self.assertSays(gdb("continue"), NEVER)
        gdb("watch *(long *) 0xffffffffff600100")
        self.assertSays(gdb("continue"), r"0xffffffffff600000", r"0xffffffffff600100", r"before these watches are deleted")
        gdb("delete 2 4")
        self.assertChange(gdb("continue"), 3, "total", 1, 11)
        gdb("delete")
        self.assertExits(gdb)

    def test_another_run(self):
        gdb = self.session("filters", extended=True)
        gdb("watch *(long *) 0xffffffffff600000")
        self.assertSays(gdb("kill") + gdb("run"), NEVER)
        gdb("delete")
        self.assertSays(gdb("continue"), r"exited normally")

    def test_where_a_pointer_leads_later(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "later")
            subprocess.run(["cc", "-g", "-O0", "-x", "c", "-", "-o", program], input=LATER.encode(), check=True)
            gdb = self.session(program)
            gdb("watch *pointer")
            self.assertChange(gdb("continue"), 2, "*pointer", 1, 2)
            self.assertSays(gdb("continue"), r"Old value = 2\s+New value = <(unreadable|error: Cannot access memory at address 0xffff800000000000)>")
            said = gdb("continue")
            self.assertSays(said, r"\nulpf: cannot set a write watch on 0xffff800000000000 .*does not belong to the program", r"stopped\.")
            gdb("delete")
            self.assertExits(gdb)
