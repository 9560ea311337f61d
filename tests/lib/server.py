"""One `ulpf server` (or its stand-in) with one program."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time

from .env import PATIENCE, SERVER, example


class Server:
    """Starts the server and waits until it listens.

    The program's standard output goes to a file of its own, so that a test can tell it from what
    the server says. `port` and `comm` are what a client connects to.
    """

    def __init__(self, *program, options=(), comm="127.0.0.1:0", stdin=subprocess.DEVNULL, env=None,
                 cwd=None, wait=True, preexec=None, after=(), server=SERVER):
        self.dir = tempfile.TemporaryDirectory(prefix="ulpf-test-")
        self.comm = comm.replace("@dir", self.dir.name)
        self.command = [*server, *options, self.comm, *after, *program]
        self.stdout_path = os.path.join(self.dir.name, "stdout")
        self.port = None
        self.said = ""
        with open(self.stdout_path, "wb") as out:
            self.process = subprocess.Popen(self.command, stdin=stdin, stdout=out, stderr=subprocess.PIPE,
                                            env=env, cwd=cwd, start_new_session=True, preexec_fn=preexec)
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self.wait_until_listening()

    def _read(self):
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            with self._changed:
                self.said += chunk.decode(errors="replace")
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, pattern, seconds=20):
        """Waits until the server has said `pattern`; returns the match."""
        end = time.monotonic() + seconds * PATIENCE
        with self._changed:
            while not (match := re.search(pattern, self.said)):
                left = end - time.monotonic()
                if left <= 0 or not (self._reader.is_alive() or re.search(pattern, self.said)):
                    raise AssertionError(f"the server never said {pattern!r}:\n{self.said}")
                self._changed.wait(min(left, 0.2))
            return match

    def wait_until_listening(self):
        if self.comm.startswith("/"):
            end = time.monotonic() + 20 * PATIENCE
            while not os.path.exists(self.comm):
                if time.monotonic() > end or self.process.poll() is not None:
                    raise AssertionError(f"no socket at {self.comm}:\n{self.said}")
                time.sleep(0.01)
        else:
            self.port = int(self.wait_for(r"Listening on port (\d+)").group(1))

    @property
    def target(self):
        """What `target remote` takes."""
        return self.comm if self.comm.startswith("/") else f"127.0.0.1:{self.port}"

    @property
    def program_pid(self):
        return int(self.wait_for(r"Process .*? created; pid = (\d+)").group(1))

    def wait(self, seconds=20):
        """Exit status of the server (negative: signal)."""
        status = self.process.wait(seconds * PATIENCE)
        self._reader.join(5)
        return status

    def stdout(self):
        with open(self.stdout_path, "rb") as out:
            return out.read().decode(errors="replace")

    def close(self):
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
        self._reader.join(2)
        self.process.stderr.close()
        self.dir.cleanup()


def address(pid, name, variable):
    """Where a variable of a running example is."""
    symbols = subprocess.run(["nm", example(name)], stdout=subprocess.PIPE, check=True).stdout.decode()
    offset = int(re.search(rf"([0-9a-f]+) \w {variable}\n", symbols).group(1), 16)
    with open(f"/proc/{pid}/maps") as maps:
        base = int(next(l for l in maps if l.rstrip().endswith(f"/{name}")).split("-")[0], 16)
    return base + offset


def peek(pid, name, variable, size=8):
    """The variable's bytes, read from the program itself, without a debugger."""
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(address(pid, name, variable))
        return memory.read(size)


def poke(pid, name, variable, value):
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(address(pid, name, variable))
        memory.write(value)


def child_of(pid):
    """Its only child, or None."""
    children = subprocess.run(["pgrep", "-P", str(pid)], stdout=subprocess.PIPE).stdout.split()
    return int(children[0]) if len(children) == 1 else None


def sleeps(pid):
    """Is it in nanosleep or clock_nanosleep?"""
    try:
        with open(f"/proc/{pid}/syscall") as call:
            return call.read().split()[0] in ("35", "230")
    except FileNotFoundError:
        return False


def stub_of(pid):
    """The stub's task of a program. It is no child of the program, but shares its memory."""
    def area(pid):
        try:
            with open(f"/proc/{pid}/maps") as maps:
                return next((line.split()[4] for line in maps if "memfd:ulpf-shared" in line), None)
        except OSError:
            return None
    named = subprocess.run(["pgrep", "-x", "ulpf-stub"], stdout=subprocess.PIPE).stdout.split()
    ours = [int(p) for p in named if area(int(p)) == area(pid) is not None]
    if len(ours) != 1:
        raise AssertionError(f"the stub's tasks of process {pid}: {ours}")
    return ours[0]
