"""Front ends with windows, on a screen that nobody sees, with `ulpf-gdb` for their GDB: Seer (Debian's seergdb), gede.

gede is packaged by no distribution: ULPF_GEDE names its program.
"""

import os
import re
import shutil
import time
import unittest

from editors.test_front_ends import FrontEnd, named
from lib.desktop import HERE, Desktop
from lib.env import example, ulpf_only
from lib.rsp import wait_until

FIELDS = ["total", *(f"scores[{n}]" for n in range(4))]


@ulpf_only
@unittest.skipUnless(HERE, "Xvfb and xdotool are not installed")
class Windows(FrontEnd):
    limit = 180

    def setUp(self):
        super().setUp()
        self.told = os.path.join(self.folder, "told")
        self.logged = os.path.join(self.folder, "gdb")
        with open(self.logged, "w") as file:
            file.write(f'#!/bin/sh\n"{self.gdb}" "$@" 2>&1 | tee -a "{self.told}"\n')
        os.chmod(self.logged, 0o755)

    def says(self, *patterns, seconds=30):
        """Waits until GDB has said all of them, in this order; the program's windows show what it says."""
        def told():
            if not os.path.exists(self.told):
                return ""
            with open(self.told, errors="replace") as file:
                return file.read()
        pattern = "(?s)" + ".*".join(patterns)
        self.assertTrue(wait_until(lambda: re.search(pattern, told()), seconds), f"GDB never said {pattern}:\n{told()}")

    @unittest.skipUnless(shutil.which("seergdb"), "seergdb is not installed")
    def test_seer(self):
        command = ["seergdb", "--gdb-program", self.logged, "--gdb-arguments", "--interpreter=mi", "--start", example("stray")]
        with Desktop(*command, env={"HOME": self.folder}) as desktop:
            self.says(r'\*stopped,reason="breakpoint-hit"', r"\^done,stack=")
            time.sleep(1)
            # The line for commands, below the source.
            desktop.click(540, 622)
            for number, field in enumerate(FIELDS, 2):
                desktop.line(f"watch game.{field}")
                self.says(rf"Hardware watchpoint {number}: game\.{re.escape(field)}", r"BreakpointTable")
            desktop.line("-exec-continue")
            self.says(r'reason="watchpoint-trigger",wpt=\{number="2",exp="game\.total"\},value=\{old="0",new="3"\}.*func="add"')

    @named("ULPF_GEDE")
    def test_gede(self):
        """It has no watchpoints of its own, and takes commands for the start."""
        project = os.path.join(self.folder, "gede.ini")
        with open(project, "w") as file:
            file.write(f'GdpPath="{self.logged}"\nInitCommands="{";".join(f"-break-watch game.{field}" for field in FIELDS)}"\n')
        command = [os.environ["ULPF_GEDE"], "--no-show-config", "--projconfig", project, "--args", example("stray")]
        with Desktop(*command, env={"HOME": self.folder}) as desktop:
            self.says(r'\*stopped,reason="breakpoint-hit"')
            time.sleep(1)
            desktop.do("key", "F5")
            self.says(r'reason="watchpoint-trigger",wpt=\{number="1",exp="game\.total"\},value=\{old="0",new="3"\}.*func="add"')
