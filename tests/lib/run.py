"""`ulpf run` and the other commands, run to their end."""

import json
import subprocess
import tempfile

from .env import PATIENCE, ULPF, example


def program(name):
    """An example by its name, any other program by its path."""
    return name if "/" in name else example(name)


def ulpf(*args, stdin=b"", seconds=60, **options):
    """Runs the command to its end: status, standard output, standard error."""
    done = subprocess.run([ULPF, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=seconds * PATIENCE, **options)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def run(watches, name, *args, options=(), **more):
    flags = [flag for watch in watches for flag in ("--watch", watch)]
    return ulpf("run", *flags, *options, "--", program(name), *args, **more)


class Json:
    """The JSON lines of a run, by type."""

    def __init__(self, watches, name, *args, options=(), **more):
        with tempfile.NamedTemporaryFile(suffix=".json") as log:
            self.status, self.out, self.err = run(watches, name, *args, options=("--json", "--log", log.name, *options),
                                                  **more)
            self.lines = [json.loads(line) for line in log.read().decode().splitlines()]
        self.hits = [line for line in self.lines if line["type"] == "hit"]
        self.summary = next((line for line in self.lines if line["type"] == "summary"), None)

    def changes(self):
        return [(hit["name"], hit["old"], hit["new"]) for hit in self.hits]
