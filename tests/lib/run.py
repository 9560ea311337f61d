"""`ulpf run` and the other commands, run to their end."""

import glob
import json
import re
import subprocess
import tempfile

from . import schema
from .env import PATIENCE, ULPF, example


def program(name):
    """An example by its name, any other program by its path."""
    return name if "/" in name else example(name)


def ulpf(*args, **options):
    """Runs the command to its end: status, standard output, standard error."""
    return command(ULPF, *args, **options)


def command(*words, stdin=b"", seconds=60, **options):
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            out, err = process.communicate(stdin, seconds * PATIENCE)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{late}\n{threads(process.pid)}") from None
        finally:
            process.kill()
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def threads(pid):
    """The position of all threads of a process, of its children and of all stubs, to investigate a hang."""
    found = []
    for which in ["-P", str(pid)], ["-x", "ulpf-stub"]:
        found += subprocess.run(["pgrep", *which], stdout=subprocess.PIPE, text=True).stdout.split()
    lines = []
    for task in (task for pid in [str(pid), *found] for task in sorted(glob.glob(f"/proc/{pid}/task/*"))):
        try:
            said = {name: open(f"{task}/{name}").read() for name in ("comm", "status", "syscall", "wchan")}
        except OSError:
            continue
        status = re.findall(r"(?m)^(?:State|SigPnd|SigBlk):.*", said["status"])
        lines.append(f"{task} {said['comm'].strip()}, {' '.join(status)}, call {said['syscall'].strip()}, in {said['wchan']}")
    return "\n".join(lines)


def run(watches, name, *args, options=(), **more):
    flags = [flag for watch in watches for flag in ("--watch", watch)]
    return ulpf("run", *flags, *options, "--", program(name), *args, **more)


class Json:
    """The JSON lines of a run, by type; each is as docs/json.md promises."""

    def __init__(self, watches, name, *args, options=(), **more):
        with tempfile.NamedTemporaryFile(suffix=".json") as log:
            self.status, self.out, self.err = run(watches, name, *args, options=("--json", "--log", log.name, *options),
                                                  **more)
            self.lines = [json.loads(line) for line in log.read().decode().splitlines()]
        schema.lines().check("run", self.lines)
        self.hits = [line for line in self.lines if line["type"] == "hit"]
        self.summary = next((line for line in self.lines if line["type"] == "summary"), None)

    def changes(self):
        """Values as texts."""
        return [(hit["name"], str(hit["old"]), str(hit["new"])) for hit in self.hits]
