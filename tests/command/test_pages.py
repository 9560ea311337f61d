"""Files generated from the definition of the command line: manual pages, completions, `ulpf help`."""

import os
import re
import subprocess
import tempfile
import unittest

from lib.env import PATIENCE, ULPF, needs, ulpf_only
from lib.run import ulpf
from lib.tmux import Screen

# `sim` is another program, which is not in every package: its page says how to ask it.
OTHERS = {"sim"}


def options(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", text))


def plain(roff):
    """The words of a manual page's source."""
    text = re.sub(r"\\f[BIR]", "", roff)
    return text.replace("\\-", "-").replace("\\&", "").replace("\\(bu", "*")


@ulpf_only
class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.share = os.path.join(folder.name, "share")
        status, out, err = ulpf("pages", cls.share)
        assert (status, out, err) == (0, "", ""), (status, out, err)

    def page(self, name):
        with open(os.path.join(self.share, "man", "man1", f"{name}.1")) as file:
            return file.read()

    def subcommands(self):
        """As `ulpf --help` lists them."""
        _, out, _ = ulpf("--help")
        listed = out.split("\nCommands:\n")[1].split("\n\n")[0]
        names = re.findall(r"(?m)^  ([a-z-]+) ", listed)
        self.assertGreater(len(names), 14)
        return [name for name in names if name != "help"]

    def shell(self, *words, **options):
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60 * PATIENCE, **options)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_each_subcommand_has_a_page_with_all_its_options(self):
        whole = plain(self.page("ulpf"))
        for name in self.subcommands():
            with self.subTest(name):
                self.assertIn(f"ulpf-{name}(1)", whole)
                page = plain(self.page(f"ulpf-{name}"))
                if name in OTHERS:
                    self.assertIn(f"ulpf {name} --help", page)
                    continue
                _, out, _ = ulpf(name, "--help")
                named = options(out) - {"--version"} if name != "server" else options(out)
                self.assertTrue(named, out)
                self.assertEqual(named - options(page), set())
        self.assertEqual(len(os.listdir(os.path.join(self.share, "man", "man1"))), len(self.subcommands()) + 1)

    def test_tables_stay_tables(self):
        self.assertRegex(plain(self.page("ulpf-run")), r"(?m)^\.SH \"WATCHES \(SPEC\)\"\n\.nf\n  counter {17}a variable")

    @needs("man")
    def test_man_shows_them_without_a_warning(self):
        folder = os.path.join(self.share, "man", "man1")
        for name in sorted(os.listdir(folder)):
            with self.subTest(name):
                done = subprocess.run(["man", "--warnings", "-l", os.path.join(folder, name)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      stdin=subprocess.DEVNULL, text=True, env={**os.environ, "MANWIDTH": "130", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"})
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, r"(?m)^SYNOPSIS\n +ulpf")

    def test_a_folder_that_is_not_ours_alone_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            status, _, err = ulpf("pages", folder)
            self.assertEqual(status, 1)
            self.assertRegex(err, r"can be written to by everybody, and shells run what lies there. Name another folder\.")
            self.assertEqual(os.listdir(folder), [])

    def test_help_of_a_subcommand_is_its_help(self):
        for name in self.subcommands():
            with self.subTest(name):
                self.assertEqual(ulpf("help", name), ulpf(name, "--help"))
        self.assertEqual(ulpf("help"), ulpf("--help"))
        status, _, err = ulpf("help", "rum")
        self.assertEqual(status, 2)
        self.assertIn("unrecognized subcommand 'rum'", err)

    @needs("bash")
    def test_bash_completes(self):
        file = os.path.join(self.share, "bash-completion", "completions", "ulpf")
        for words, expected in ((["ulpf", "ru"], {"run"}), (["ulpf", "run", "--pl"], {"--placement"}),
                                (["ulpf", "run", "--placement", "d"], {"debug-register"}), (["ulpf", "server", "--on"], {"--once"}),
                                (["ulpf", "gdb", "--back"], {"--backend"}), (["ulpf", "help", "las"], {"last"})):
            with self.subTest(" ".join(words)):
                script = (f"source {file}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
                          f"_ulpf ulpf {words[-1]} {words[-2]}; printf '%s\\n' \"${{COMPREPLY[@]}}\"; complete -p ulpf")
                said = self.shell("bash", "--norc", "-c", script).splitlines()
                self.assertEqual(set(said[:-1]), expected)
                self.assertIn("-F _ulpf", said[-1])

    @needs("fish")
    def test_fish_completes(self):
        with tempfile.TemporaryDirectory() as home:
            environment = {"HOME": home, "XDG_DATA_DIRS": self.share, "PATH": f"{os.path.dirname(ULPF)}:/usr/bin:/bin"}
            for line, expected in (("ulpf ru", "run"), ("ulpf run --pl", "--placement"), ("ulpf run --placement d", "debug-register"),
                                   ("ulpf server --on", "--once")):
                with self.subTest(line):
                    said = self.shell("fish", "-N", "-c", f"source {self.share}/fish/vendor_completions.d/ulpf.fish; complete -C '{line}'",
                                      env=environment)
                    # fish 4 also offers words with the letters inside.
                    offered = [l.split("\t")[0] for l in said.splitlines()]
                    self.assertEqual([word for word in offered if word.startswith(line.split()[-1])], [expected])

    @needs("zsh")
    @needs("tmux")
    def test_zsh_completes(self):
        with tempfile.TemporaryDirectory() as home, Screen("env", f"HOME={home}", f"ZDOTDIR={home}", "zsh", "-f", size=(100, 40)) as screen:
            screen.keys(f"PS1='> '; fpath=({self.share}/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D; clear; echo rea''dy", "Enter")
            screen.shows("^ready$")
            for typed, becomes in (("ulpf ru", "> ulpf run *$"), ("ulpf run --plac", "> ulpf run --placement[= ]*$"),
                                   ("ulpf server --onc", "> ulpf server --once *$")):
                with self.subTest(typed):
                    screen.keys(typed, "Tab")
                    screen.shows(becomes)
                    screen.keys("C-u")
