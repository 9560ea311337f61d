"""ulpf in a machine with our kernel module: the server runs there, the debugger here.

    python3 -m lib.guest        (in tests/) counts what a store beside a watch costs, by module and by signal

The machine's serial ports are sockets of the test. One carries commands for kernel/tests/agent.c, the other connects
gdb and the server.
"""

import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from . import vm
from .cases import Case
from .env import PATIENCE, ULPF, example

# The processor's SMAP makes QEMU 7 fault at an iretq in user mode, by which our handlers return.
WITHOUT_SMAP = ",smap=off"


def tree(paths, there=None):
    """These files, and what they are linked with, for an initramfs; `there` says where another file goes."""
    needed, folders, files = dict(there or {}), set(), []
    for path in paths:
        needed[path] = path
        said = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", said):
            needed[library] = os.path.realpath(library)
    for name, source in sorted(needed.items()):
        folder = os.path.dirname(name)
        above = [folder]
        while os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
            above.append(folder)
        for folder in reversed(above):
            if folder != "/" and folder not in folders:
                folders.add(folder)
                files.append((folder[1:], stat.S_IFDIR | 0o755, b""))
        with open(source, "rb") as content:
            files.append((name[1:], stat.S_IFREG | 0o755, content.read()))
    return files


def stripped(path, folder):
    """A copy without debug information, which the machine would only have to load."""
    to = os.path.join(folder, os.path.basename(path))
    subprocess.run(["strip", "-o", to, path], check=True)
    return to


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Guest:
    """A machine that has booted, with `ulpf` as /ulpf, and these example programs and other files at their places.

    With `bridged` it has a port of virtio-serial, whose socket is `port` (/dev/vport0p1 there), and its TCP port 9000 is
    our `forwarded`. `more` is for QEMU.
    """

    def __init__(self, programs, files=(), limit=280, options="", icount=False, bridged=False, kernel=None, more=()):
        kernel = kernel or vm.Kernel()
        # The version's first two numbers.
        self.version = tuple(map(int, kernel.name.split(".")[:2]))
        self.dir = tempfile.TemporaryDirectory(prefix="ulpf-guest-")
        self.said = None
        slim = stripped(ULPF, self.dir.name)
        files = tree([*(example(name) for name in programs), *files, ULPF], {"/ulpf": slim})
        files = [file for file in files if "/" + file[0] != ULPF]
        ports = [os.path.join(self.dir.name, port) for port in ("control", "data")]
        more = [*more, "-cpu", kernel.processor + WITHOUT_SMAP, "-m", "1024"]
        # A third one of the old kind would share the console's interrupt.
        more += ["-serial", f"unix:{ports[0]},server=on,wait=off", "-device", "pci-serial,chardev=data",
                 "-chardev", f"socket,id=data,path={ports[1]},server=on,wait=off"]
        self.data = ports[1]
        if bridged:
            files += kernel.drivers
            self.port = os.path.join(self.dir.name, "port")
            self.forwarded = free_port()
            more += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=port,path={self.port},server=on,wait=off",
                     "-device", "virtserialport,chardev=port,name=ulpf",
                     "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.forwarded}-:9000",
                     "-device", "virtio-net-pci,netdev=net,romfile="]
        self.thread = threading.Thread(target=self._boot, args=(kernel, files, more, limit, options, icount), daemon=True)
        self.thread.start()
        self.control = self._connect(ports[0], limit * PATIENCE)
        self._rest = b""
        self.control.settimeout(limit * PATIENCE)
        if self._line() != "here":
            raise AssertionError("the agent did not come up")

    def _boot(self, kernel, files, more, limit, options, icount):
        try:
            self.said = vm.boot(["agent"], limit, icount=icount, options=options, kernel=kernel, files=files, more=more, began=self._began)
        except BaseException as error:
            self.said = f"no machine: {error}"

    def _began(self, process):
        self.process = process

    def _connect(self, path, limit):
        end = time.monotonic() + limit
        while time.monotonic() < end and self.said is None:
            try:
                port = socket.socket(socket.AF_UNIX)
                port.connect(path)
                return port
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"the machine did not boot:\n{self.said}")

    def _more(self):
        try:
            chunk = self.control.recv(65536)
        except TimeoutError:
            chunk = b""
        if not chunk:
            raise AssertionError(f"the machine has ended:\n{self.said}")
        self._rest += chunk

    def _line(self):
        while b"\n" not in self._rest:
            self._more()
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()

    def _take(self, length):
        while len(self._rest) < length:
            self._more()
        text, self._rest = self._rest[:length], self._rest[length:]
        return text.decode(errors="replace")

    def start(self, *words, listens=""):
        """Starts a command; with `listens`, waits until its socket is connected with `data`."""
        self.control.sendall("|".join(["run", listens, *words]).encode() + b"\n")
        if listens:
            line = self._line()
            if line != "ready":
                raise AssertionError(f"{' '.join(words)}: {line}\n{self._ended(line)}")

    def ended(self):
        """The command's (status, standard output, standard error), when it has ended."""
        return self._ended(self._line())

    def _ended(self, line):
        status, out, err = map(int, line.split()[1:])
        return os.waitstatus_to_exitcode(status), self._take(out), self._take(err)

    def run(self, *words):
        self.start(*words)
        return self.ended()

    def leave(self):
        """No serial line says that the client has gone."""
        self.control.sendall(b"leave\n")

    def kill(self):
        self.control.sendall(b"kill\n")

    def pull_the_plug(self):
        """The machine is gone, at once."""
        self.process.terminate()
        self.thread.join(60 * PATIENCE)

    def close(self):
        """Ends it; what it has said. The kernel's complaints make it end with "failed"."""
        try:
            self.control.sendall(b"end\n")
        except OSError:
            pass
        self.thread.join(60 * PATIENCE)
        self.control.close()
        self.dir.cleanup()
        return self.said or "it did not end"


class GuestServer:
    """An `ulpf server` in a guest, for tests that know lib.server.Server."""

    def __init__(self, guest, *program, options=()):
        self.guest = guest
        # There is no shell.
        self.command = ["/ulpf", "server", "--no-startup-with-shell", *options, "/tmp/server", *program]
        self.target = guest.data
        self.said, self._out, self.status = "", "", None
        guest.start(*self.command, listens="/tmp/server")

    def wait(self, seconds=20):
        if self.status is None:
            self.guest.leave()
            self.status, self._out, self.said = self.guest.ended()
        return self.status

    def stdout(self):
        """The program's output, to its end."""
        self.close()
        return self._out

    def close(self):
        if self.status is None:
            self.guest.kill()
            self.status, self._out, self.said = self.guest.ended()


class InGuest(Case):
    """Tests that run in a guest: the server is there, and started with these options."""

    guest, options = None, []

    def serve(self, *program, options=(), **_):
        path = example(program[0]) if "/" not in program[0] else program[0]
        server = GuestServer(self.guest, path, *program[1:], options=[*self.options, *options])
        self._servers.append(server)
        return server

    def gdb(self, *args, **options):
        gdb = super().gdb(*args, **options)
        # A packet that gdb repeats because the machine is slow would be answered twice.
        gdb("set remotetimeout 60")
        return gdb


def run_sessions(guest, groups, inside):
    """Runs tests in the guest: `groups` gives each class, and which of its tests (None: all). Classes that are not of `inside`
    are run as such ones. {"Group.test": [verdict, what was said]}"""
    verdicts = {}
    for group, (case, wanted) in groups.items():
        there = case if issubclass(case, inside) else type(group, (inside, case), {})
        there.guest = guest
        for name in wanted or unittest.defaultTestLoader.getTestCaseNames(case):
            result = unittest.TestResult()
            there(name).run(result)
            bad = result.failures + result.errors
            verdicts[f"{group}.{name}"] = (["skipped", result.skipped[0][1]] if result.skipped else
                                           ["failed", "\n".join(text for _, text in bad)] if bad else ["passed", ""])
            print(group, name, verdicts[f"{group}.{name}"][0], file=sys.stderr, flush=True)
    return verdicts


def main():
    program = os.path.join(vm.BUILD, "stores")
    subprocess.run(["cc", "-O1", "-g", "-o", program, os.path.join(vm.ROOT, "tests", "kernel", "stores.c")], check=True)
    guest = Guest([], [program], icount=True)
    print("instructions for a store that is not watched, on a page that is (no patches):")
    print(f"  bare    {guest.run(program)[1].strip()}")
    for backend in "kernel", "signal":
        status, out, err = guest.run("/ulpf", "run", "-q", "--no-patch", "--placement", "guard", "--backend", backend,
                                     "-w", "page[0]", program)
        print(f"  {backend}  {out.strip() if status == 0 else err}")
    return 0 if vm.is_well(guest.close()) else 1


if __name__ == "__main__":
    sys.exit(main())
