"""Front ends of GDB, on `ulpf-gdb`: GDB's own screen, cgdb, gdb-dashboard, GEF, pwndbg, Neovim, and those that speak MI.

Those that no distribution packages are named by the environment: ULPF_GDB_DASHBOARD=…/.gdbinit, ULPF_GEF=…/gef.py,
ULPF_PWNDBG=…/gdbinit.py (with its PWNDBG_VENV_PATH), ULPF_NVIM_DAP=… (the folder of nvim-dap).
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from lib.cases import Case
from lib.env import PATIENCE, ROOT, ULPF, example, ulpf_only
from lib.tmux import Screen

SOURCE = os.path.join(ROOT, "examples", "stray.c")
CHANGE = r"Hardware watchpoint 2: game\.total"


def named(variable):
    """A file or folder that the environment names. Debian has none of these, so the test is one of `make nightly`."""
    path = os.environ.get(variable, "")

    def mark(test):
        test.night = f"{variable} names what Debian has not"
        return unittest.skipUnless(os.path.exists(path), f"{variable} names none")(test)
    return mark


class FrontEnd(Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.gdb = os.path.join(self.folder, "ulpf-gdb")
        os.symlink(ULPF, self.gdb)


@ulpf_only
@unittest.skipUnless(shutil.which("tmux"), "tmux is not installed")
class Screens(FrontEnd):
    def session(self, *command, prompt=r"\(gdb\)", shows=(), at_first=None):
        """Types a session: a breakpoint, a watch, two changes of the value, five watches more. At the first stop it must show
        `at_first`, at the others `shows`."""
        with Screen(*command, size=(120, 60), env={"HOME": self.folder, "TERM": "xterm-256color", "GDBHISTFILE": os.path.join(self.folder, "history")}) as screen:
            screen.shows(rf"{prompt} *$", seconds=30 * PATIENCE)
            screen.keys("break main", "Enter")
            screen.shows("Breakpoint 1 at")
            screen.keys("run", "Enter")
            screen.shows(r"for \(int i = 0; i < 4; i\+\+\)", *(shows if at_first is None else at_first))
            screen.keys("watch game.total", "Enter")
            screen.shows(CHANGE)
            screen.keys("continue", "Enter")
            screen.shows(r"add\b.*points", *shows)
            for n in range(4):
                screen.keys(f"watch game.scores[{n}]", "Enter")
            screen.shows(r"watchpoint 6: game\.scores\[3\]")
            screen.keys("print /d game.total + 100", "Enter")
            screen.shows(r"= 103$")

    def test_gdbs_own(self):
        self.session(self.gdb, "-nx", "-q", "-tui", "--args", example("stray"), shows=[r"stray\.c"])

    @unittest.skipUnless(shutil.which("cgdb"), "cgdb is not installed")
    def test_cgdb(self):
        self.session("cgdb", "-d", self.gdb, "-q", "--args", example("stray"), shows=[r"\d│ static void add"])

    @named("ULPF_GDB_DASHBOARD")
    def test_gdb_dashboard(self):
        self.session(self.gdb, "-nx", "-q", "-x", os.environ["ULPF_GDB_DASHBOARD"], "--args", example("stray"),
                     prompt=">>>", shows=[r"Assembly ─", r"\[0\] from 0x"])

    @named("ULPF_GEF")
    def test_gef(self):
        self.session(self.gdb, "-nx", "-q", "-x", os.environ["ULPF_GEF"], "--args", example("stray"),
                     prompt="gef➤", shows=[r"─ stack ─", r"\[#0\] 0x[0-9a-f]+ → "])

    @named("ULPF_PWNDBG")
    def test_pwndbg(self):
        # It says after `run` that there is no frame: over gdbserver, too.
        self.session(self.gdb, "-nx", "-q", "-x", os.environ["ULPF_PWNDBG"], "--args", example("stray"),
                     prompt="pwndbg>", shows=[r"─\[ STACK \]─", r"► 0 +0x[0-9a-f]+ "], at_first=[])


@ulpf_only
class Mi(FrontEnd):
    def test_as_integrated_environments_start_it(self):
        """Eclipse, CLion, Seer, cpptools: their only setting is the name of a GDB; the program is named later."""
        said = self.speaks("-gdb-set breakpoint pending on", f"-file-exec-and-symbols {example('stray')}", "-break-insert main", "-exec-run")
        self.assertRegex(said, r'\*stopped,reason="breakpoint-hit"')
        self.assertNotIn("^error", said)

    def test_another_program(self):
        said = self.speaks(f"-file-exec-and-symbols {example('stray')}", f"-file-exec-and-symbols {example('five')}", "-break-insert ready", "-exec-run")
        self.assertRegex(said, r'\*stopped,reason="breakpoint-hit".*file="five\.c"')

    def test_more_watches_than_registers(self):
        watches = [f"-break-watch game.scores[{n}]" for n in range(4)] + ["-break-watch game.total", "-break-watch -a game"]
        said = self.speaks(f"-file-exec-and-symbols {example('stray')}", "-break-insert main", "-exec-run", *watches, "-exec-continue")
        self.assertRegex(said, r'\*stopped,.*reason="(access-)?watchpoint-trigger"')
        self.assertEqual(len(re.findall(r"\^done,(hw-a)?wpt", said)), 6)
        self.assertNotIn("^error", said)

    def test_versions(self):
        """They ask before they start it."""
        for words in ["--version"], ["--configuration"]:
            of_gdb = subprocess.run(["gdb", *words], stdout=subprocess.PIPE, text=True, check=True).stdout
            ours = subprocess.run([self.gdb, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertEqual(ours, of_gdb)

    def speaks(self, *commands):
        """Sends each command when the one before has been answered, and -exec- ones have stopped."""
        with subprocess.Popen([self.gdb, "--interpreter=mi2", "-nx", "-q"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, cwd=self.folder) as gdb:
            said = self.until(gdb, r"\(gdb\) $")
            for command in commands:
                gdb.stdin.write(command + "\n")
                gdb.stdin.flush()
                said += self.until(gdb, r"\*stopped|\^error" if command.startswith("-exec-") else r"\^(done|error)")
            gdb.stdin.write("-gdb-exit\n")
            gdb.stdin.close()
            self.assertEqual(gdb.wait(timeout=30 * PATIENCE), 0, said)
        return said

    def until(self, gdb, pattern):
        said = ""
        for line in gdb.stdout:
            said += line
            if re.search(pattern, line.rstrip("\n")):
                return said
        self.fail(f"it ended without {pattern}: {said}")


@ulpf_only
class Neovim(FrontEnd):
    @named("ULPF_NVIM_DAP")
    @unittest.skipUnless(shutil.which("nvim"), "neovim is not installed")
    def test_nvim_dap(self):
        """With the configuration that docs/dap.md gives."""
        with open(os.path.join(ROOT, "docs/dap.md"), encoding="utf-8") as file:
            configuration = re.search(r"### Neovim: nvim-dap\n```lua\n(.*?)```", file.read(), re.S)[1]
        with open(SOURCE, encoding="utf-8") as file:
            line = next(n for n, text in enumerate(file, 1) if "add(game.scores" in text)
        driver = f"""
vim.opt.runtimepath:append("{os.environ["ULPF_NVIM_DAP"]}")
{configuration.replace('command = "ulpf"', f'command = "{ULPF}"')}
local function say(text) io.stdout:write(text .. "\\n") end
local watched = false
dap.listeners.after.event_stopped["test"] = function(session, body)
  session:request("stackTrace", {{ threadId = body.threadId }}, function(_, trace)
    say("TOLD stopped " .. trace.stackFrames[1].name)
    local command = watched and "ulpf delete" or "ulpf watch game.total"
    watched = true
    dap.clear_breakpoints()
    session:evaluate(command, function(problem) say("TOLD " .. (problem and problem.message or command)) dap.continue() end)
  end)
end
dap.listeners.after.event_terminated["test"] = function() say("TOLD terminated") vim.cmd("qa!") end
vim.cmd("edit {SOURCE}")
vim.api.nvim_win_set_cursor(0, {{ {line}, 0 }})
dap.set_breakpoint()
dap.run(vim.tbl_extend("force", dap.configurations.c[1], {{ program = "{example("stray")}" }}))
"""
        path = os.path.join(self.folder, "driver.lua")
        with open(path, "w", encoding="utf-8") as file:
            file.write(driver)
        done = subprocess.run(["nvim", "--headless", "-u", "NONE", "-n", "-S", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE, env={**os.environ, "HOME": self.folder}, check=False)
        self.assertEqual(re.findall(r"TOLD (.*)", done.stdout), ["stopped main", "ulpf watch game.total", "stopped add", "ulpf delete", "terminated"], done.stdout)
