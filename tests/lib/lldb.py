"""Real lldb, with a list of commands: it is synchronous only when it reads them from a file."""

import os
import subprocess
import tempfile

from .env import PATIENCE


def lldb(program, commands, seconds=90):
    """Runs the commands; returns what lldb printed for each, in order, and the whole transcript."""
    with tempfile.NamedTemporaryFile("w", suffix=".lldb") as script:
        script.write("\n".join(["settings set use-color false", *commands]) + "\n")
        script.flush()
        done = subprocess.run([program, "--no-lldbinit", "--batch", "-s", script.name], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds * PATIENCE,
                              env={**os.environ, "TERM": "dumb", "LC_ALL": "C.UTF-8"})
    text = done.stdout.decode(errors="replace")
    # It echoes every command behind its prompt.
    answers, rest = [], text
    for number, command in enumerate(commands):
        at = rest.find(f"(lldb) {command}\n")
        if at < 0:
            raise AssertionError(f"lldb did not get to {command!r}:\n{text}")
        rest = rest[at + len(command) + 8:]
        following = [rest.find(f"(lldb) {c}\n") for c in commands[number + 1:number + 2]]
        answers.append(rest[:following[0]] if following and following[0] >= 0 else rest)
    return answers, text
