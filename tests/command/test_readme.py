"""The README's first session, as it stands there: each command is run, and what it says is compared."""

import os
import re
import subprocess
import unittest

from lib.env import GDB, PATIENCE, ROOT, ULPF, ulpf_only


def blocks():
    """The console blocks of "A session", each as (command, lines of output) pairs."""
    with open(os.path.join(ROOT, "README.md")) as file:
        section = file.read().split("\n## A session\n")[1].split("\n## ")[0]
    for block in re.findall(r"```console\n(.*?)```", section, re.S):
        said = []
        for line in block.splitlines():
            command = re.match(r"(\$|\(gdb\)) (.*)", line)
            if command:
                said.append((command.group(1), command.group(2), []))
            elif said:
                said[-1][2].append(line)
        yield said


def pattern(lines):
    """What is printed, with any times and process numbers; blanks count as one, and `…` is any lines."""
    text = re.escape(" ".join(" ".join(lines).split()))
    text = re.sub(r"\d+\\\.\d{6}", r"[\\d.]+", text)
    text = re.sub(r"\\\[\d{3,}\\\]", r"\\[\\d+\\]", text)
    return text.replace("…", ".*")


@ulpf_only
class Readme(unittest.TestCase):
    def setUp(self):
        self.blocks = list(blocks())

    def shell(self, command):
        environment = {**os.environ, "PATH": f"{os.path.dirname(ULPF)}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE)
        return " ".join(done.stdout.split())

    def test_what_is_run_in_a_shell(self):
        commands = [(command, lines) for block in self.blocks for prompt, command, lines in block
                    if prompt == "$" and command.startswith("ulpf run")]
        self.assertEqual(len(commands), 2)
        for command, lines in commands:
            with self.subTest(command):
                self.assertRegex(self.shell(command), pattern(lines))

    def test_what_is_typed_at_gdb(self):
        begin, watch = ([(command, lines) for prompt, command, lines in block if prompt == "(gdb)"]
                        for block in self.blocks if any(prompt == "(gdb)" for prompt, _, _ in block))
        # The second goes on where the first began.
        for talk in begin, begin[:2] + watch:
            self.assertGreater(len(talk), 4)
            commands = " ".join(f"-ex '{command}'" for command, _ in talk)
            said = self.shell(f"ulpf gdb -q -nx -ex 'set confirm off' -ex 'set width 0' -ex 'set debuginfod enabled off' {commands} examples/bin/stray")
            self.assertRegex(said, ".*".join(pattern(lines) for _, lines in talk if lines))

    def test_the_program_is_there(self):
        """What the session needs is what the README's first command makes."""
        with open(os.path.join(ROOT, "README.md")) as file:
            readme = file.read()
        self.assertLess(readme.index("$ make build examples && sudo make install"), readme.index("$ ulpf gdb examples/bin/stray"))
        self.assertTrue(os.path.exists(GDB))
