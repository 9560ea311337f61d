"""Where things are, and what this machine has."""

import fcntl
import functools
import os
import shutil
import subprocess
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
# Programs to try ulpf on, and programs for tests only. The binaries are in bin/ of each.
PROGRAMS = [os.path.join(ROOT, "examples"), os.path.join(ROOT, "tests", "programs")]
SOURCES = ".c", ".cc", ".rs"
ULPF = os.environ.get("ULPF", os.path.join(ROOT, "target", "release", "ulpf"))

# ULPF_SERVER=gdbserver runs the same tests against the real gdbserver, which validates the tests
# themselves. Tests of features that only ulpf has are skipped then.
SERVER = os.environ.get("ULPF_SERVER", f"{ULPF} server").split()
STAND_IN = os.path.basename(SERVER[0]) != "ulpf"

GDB = os.environ.get("GDB", "/usr/bin/gdb")

# Machines differ; a limit that is hit on a slow one says nothing. Raise all of them at once.
PATIENCE = float(os.environ.get("ULPF_TEST_PATIENCE", "1"))

# Go's standard library is compiled once for all tests.
GO_CACHE = os.path.join(ROOT, "target", "go-cache")

# tests/run --long: large workloads, whole test-suites.
LONG = os.environ.get("ULPF_TEST_LONG") == "1"


class NotBuilt(Exception):
    """A program of the tests cannot be built here; says which command fails, and how."""


@functools.cache
def example(name):
    """Path of a program of examples/ or tests/programs/, which make builds if it is missing or older than its source."""
    sources = [os.path.join(folder, name + end) for folder in PROGRAMS for end in SOURCES]
    source = next((source for source in sources if os.path.exists(source)), None)
    for place in (os.path.join(folder, "bin", name) for folder in PROGRAMS):
        # (What another test builds just now may not be executed yet.)
        if os.access(place, os.X_OK) and (source is None or os.path.getmtime(source) <= os.path.getmtime(place)):
            return place
    # A program without a source of its name has a rule of its own in tests/programs.
    folder = os.path.dirname(source) if source else PROGRAMS[-1]
    build(folder, name)
    return os.path.join(folder, "bin", name)


def build(folder, name):
    """Builds one program of a folder; other tests that need it wait for the same build."""
    command = ["make", "-s", "-C", os.path.relpath(folder, ROOT), f"bin/{name}"]
    with open(os.path.join(folder, "Makefile")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise NotBuilt(f"`{' '.join(command)}` fails:\n{done.stdout}")


def source_of(name):
    """Path of the source of such a program."""
    places = [os.path.join(folder, name) for folder in PROGRAMS]
    return next((place for place in places if os.path.exists(place)), places[-1])


def find_tool(*names):
    """First of the programs that this machine has, or None."""
    for name in names:
        path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/bin:/usr/local/bin")
        if path:
            return path
    return None


def needs(*names):
    """Skips a test when none of the programs is there; the reason names the first."""
    return unittest.skipUnless(find_tool(*names), f"{names[0]} is not installed")


def debug_registers():
    """Why watches cannot live in debug registers here, or None."""
    said = subprocess.run([ULPF, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    line = next((l for l in said.splitlines() if "debug registers" in l), "debug registers not mentioned by ulpf doctor")
    return None if line.startswith("ok") else line.split("debug registers", 1)[1].strip()


def needs_registers(test):
    """Skips where the kernel gives no debug registers (perf events); asked when the test is about to run."""
    @functools.wraps(test)
    def run(self):
        why = debug_registers()
        if why:
            self.skipTest(f"debug registers: {why}")
        test(self)
    return run


ulpf_only = unittest.skipIf(STAND_IN, "only ulpf can do this; another server is standing in")


def cpu_flags():
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("flags"):
                return set(line.split(":")[1].split())
    return set()


def bare(*command, stdin=None, timeout=120, env=None):
    """Runs a program without us: (exit status, stdout)."""
    done = subprocess.run(command, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, timeout=timeout * PATIENCE, env=env)
    return done.returncode, done.stdout.decode(errors="replace")
