"""Front ends with windows, on a virtual screen, with `ulpf-gdb` for their GDB: Seer (Debian's seergdb), DDD, gede.

gede is packaged by no distribution: ULPF_GEDE names its program.
"""

import os
import re
import shutil
import time
import unittest

from editors.test_front_ends import FrontEnd, named
from lib.desktop import HERE, Desktop
from lib.env import PATIENCE, example, ulpf_only
from lib.rsp import wait_until

FIELDS = ["total", *(f"scores[{n}]" for n in range(4))]


@ulpf_only
@unittest.skipUnless(HERE, "Xvfb and xdotool are not installed")
class Windows(FrontEnd):
    limit = 180

    def setUp(self):
        super().setUp()
        self.log = os.path.join(self.folder, "output")
        self.logged = os.path.join(self.folder, "gdb")
        with open(self.logged, "w") as file:
            file.write(f'#!/bin/sh\n"{self.gdb}" "$@" 2>&1 | tee -a "{self.log}"\n')
        os.chmod(self.logged, 0o755)

    def so_far(self):
        """GDB's output so far."""
        if not os.path.exists(self.log):
            return ""
        with open(self.log, errors="replace") as file:
            return file.read()

    def says(self, *patterns, seconds=30):
        """Waits until GDB has said all of them, in this order; the program's windows show what it says."""
        pattern = "(?s)" + ".*".join(patterns)
        self.assertTrue(wait_until(lambda: re.search(pattern, self.so_far()), seconds), f"GDB never said {pattern}:\n{self.so_far()}")

    @unittest.skipUnless(shutil.which("seergdb"), "seergdb is not installed")
    def test_seer(self):
        command = ["seergdb", "--gdb-program", self.logged, "--gdb-arguments", "--interpreter=mi", "--start", example("stray")]
        with Desktop(*command, env={"HOME": self.folder}) as desktop:
            self.says(r'\*stopped,reason="breakpoint-hit"', r"\^done,stack=")
            time.sleep(PATIENCE)
            # The line for commands, below the source.
            desktop.click(540, 622)
            for number, field in enumerate(FIELDS, 2):
                desktop.line(f"watch game.{field}")
                self.says(rf"Hardware watchpoint {number}: game\.{re.escape(field)}", r"\^done,BreakpointTable")
            desktop.line("-exec-continue")
            self.says(r'reason="watchpoint-trigger",wpt=\{number="2",exp="game\.total"\},value=\{old="0",new="3"\}.*func="add"')

    @unittest.skipUnless(shutil.which("ddd"), "ddd is not installed")
    def test_ddd(self):
        log = self.so_far
        # DDD's log has strings, as they came: a line may be in several.
        self.so_far = lambda: "".join(re.findall(r'(?m)^(?:<- |   )"(.*)"$', log())).replace(r"\n", "\n")
        self.log = os.path.join(self.folder, ".ddd", "log")
        os.mkdir(os.path.dirname(self.log))
        with open(os.path.join(self.folder, ".ddd", "init"), "w") as file:
            file.write("Ddd*dddinitVersion: 3.3.12\nDdd*startupTips: off\nDdd*splashScreen: off\n")
        with Desktop("ddd", "--debugger", self.gdb, "--gdb", example("stray"), env={"HOME": self.folder}) as desktop:
            self.says("This GDB has ulpf", "Select and print stack frame called by this one")
            time.sleep(2 * PATIENCE)
            # Keys typed before the window is ready are lost.
            for _ in range(5):
                # The console, below the source.
                desktop.click(300, 560)
                desktop.line("break main")
                if wait_until(lambda: "Breakpoint 1 at" in self.so_far(), 10):
                    break
            self.says("Breakpoint 1 at")
            desktop.line("run")
            self.says(r"Breakpoint 1, .*main \(\)")
            for number, field in enumerate(FIELDS, 2):
                desktop.line(f"watch game.{field}")
                # It asks for the list then.
                self.says(rf"{number} +hw watchpoint +keep y +game\.{re.escape(field)}")
            desktop.line("continue")
            self.says("Old value = 0", "New value = 3")

    @named("ULPF_GEDE")
    def test_gede(self):
        """It has no watchpoints of its own, and takes commands for the start."""
        project = os.path.join(self.folder, "gede.ini")
        with open(project, "w") as file:
            file.write(f'GdpPath="{self.logged}"\nInitCommands="{";".join(f"-break-watch game.{field}" for field in FIELDS)}"\n')
        command = [os.environ["ULPF_GEDE"], "--no-show-config", "--projconfig", project, "--args", example("stray")]
        with Desktop(*command, env={"HOME": self.folder}) as desktop:
            self.says(r'\*stopped,reason="breakpoint-hit"', r"\^done,variables=")
            time.sleep(3 * PATIENCE)
            desktop.click(600, 400)
            desktop.do("key", "F8")
            self.says(r'reason="watchpoint-trigger",wpt=\{number="1",exp="game\.total"\},value=\{old="0",new="3"\}.*func="add"')
