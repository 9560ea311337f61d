"""Processes left by tests: a mark in the environment, which children inherit, identifies the test of a process."""

import contextlib
import os
import signal
import time

NAME = "ULPF_TEST_MARK"
_leads = False


def mark(value, session=False):
    """Whatever this process starts from now on carries the mark. (The process itself does not: its environment in
    /proc is the one that it was started with.) With `session`, it leads one of its own, which belongs to it as well."""
    global _leads
    _leads = session
    os.environ[NAME] = value


def own():
    return os.environ[NAME]


def _session(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[3])


def _alive(wanted):
    """{pid: name} of what carries the mark, and of what shares the session that this process leads."""
    found, self = {}, os.getpid()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        # Processes come and go, and some are not ours to look at.
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as environ:
                marked = b"\0" + wanted in b"\0" + environ.read()
            if pid != self and (marked or _leads and _session(pid) == self):
                with open(f"/proc/{pid}/stat") as stat:
                    name, state = stat.read().split("(", 1)[1].rsplit(") ", 1)
                if state[0] not in "ZX":
                    found[pid] = name
    return found


def end(value, grace=0.0):
    """Kills what carries a mark that begins so and is still there after `grace` seconds; "NAME (PID)" of each."""
    wanted = f"{NAME}={value}".encode()
    until = time.monotonic() + grace
    while (found := _alive(wanted)) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in found:
        _reap(pid)
    return [f"{name} ({pid})" for pid, name in sorted(found.items())]


def _reap(pid, seconds=2):
    """A child of ours does not stay as a zombie."""
    until = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.02)
