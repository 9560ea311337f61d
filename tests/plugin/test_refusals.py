"""A plain `watch` of what can never be watched: refused when it is set, with its reason on the screen."""

from lib.env import ulpf_only
from lib.plugin import PluginCase

NEVER = (("*(long *) 0xffffffffff600000", r"is the kernel's vsyscall page"),
         ("*(long *) 0xffff800000000000", r"does not belong to the program"),
         ("*(long *) 0x8000000000001000", r"does not belong to the program"),
         ("-location *(long double *) ready", r"lies in executable memory"))


@ulpf_only
class Refusals(PluginCase):
    def test_at_once(self):
        gdb = self.begin(done=False)
        for n, (expression, why) in enumerate(NEVER, start=2):
            for command in "watch", "rwatch", "awatch":
                with self.subTest(f"{command} {expression}"):
                    said = gdb(f"{command} {expression}")
                    self.assertSays(said, r"atchpoint \d+: ", rf"\nulpf: cannot set a (write|read|access) watch on 0x.*{why}.*; ", r"\nulpf: Watchpoint \d+ is refused, and deleted\.")
        self.assertEqual(gdb("info watchpoints"), "No watchpoints.\n")
        gdb("watch total")
        self.assertChange(gdb("continue"), 14, "total", 0, 1)

    def test_what_can_be_watched_is_left_alone(self):
        gdb = self.begin(done=False)
        for expression in "total", "*(long *) 0x10000000000", "-location table", "table[3]":
            self.assertNotIn("ulpf", gdb(f"watch {expression}"))
        self.assertEqual(gdb("info watchpoints").count("hw watchpoint"), 4)
