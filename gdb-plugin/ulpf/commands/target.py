# SPDX-License-Identifier: MIT OR Apache-2.0
import os
import shutil
import subprocess
import tempfile
import time

from .. import arguments, facade
from ..errors import UlpfError
from . import UlpfCommand, plain_class

# Servers that this GDB has started (kept, so that Python does not warn of them), and their folders.
_started = []
# Directories to delete when this GDB ends.
_folders = []


def _under_ulpf():
    """Is the present target a server of ulpf?"""
    try:
        text = facade.execute("monitor help")
    except Exception as e:
        if not facade.gdb_error(e):
            raise
        return False
    return "ulpf" in text


def _ulpf():
    """The command: ULPF says where it is, or PATH does."""
    found = os.environ.get("ULPF") or shutil.which("ulpf")
    if not found:
        raise UlpfError("ulpf is not started", "there is no ulpf in PATH", "install it (cargo install, make install), or set ULPF=/path/to/ulpf")
    return found


def _serve(options):
    """Starts a server on a socket of ours; the server and the socket's path."""
    folder = tempfile.mkdtemp(prefix="ulpf-gdb-")
    path = os.path.join(folder, "gdb")
    log = open(os.path.join(folder, "log"), "w+b")
    try:
        server = subprocess.Popen([_ulpf(), "server", *options, path], stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
    except OSError as e:
        raise UlpfError("ulpf is not started", e.strerror or str(e), "set ULPF=/path/to/ulpf") from None
    _started.append((server, folder))
    end = time.monotonic() + 20
    # Its socket is there before it listens. (The server writes at the offset of this open file: it must not move.)
    while b"Listening on " not in (said := os.pread(log.fileno(), 65536, 0)):
        if server.poll() is not None or time.monotonic() > end:
            server.kill()
            lines = said.decode(errors="replace").strip().splitlines()
            raise UlpfError("ulpf server does not serve", lines[-1].rstrip(".") if lines else "it says nothing", "see what `ulpf doctor` says")
        time.sleep(0.01)
    return server, path


def _connect(kind, options):
    """Connects to a server that is started for it, whose socket is of use only until then."""
    server, path = _serve(options)
    try:
        facade.execute("set sysroot /")
        facade.run_command(f"target {kind} {path}")
    except BaseException:
        # It would wait for its first client for ever.
        server.kill()
        raise
    finally:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def _end(_event=None):
    """GDB leaves; it still has to end the program, or to let it go. A server ends when GDB's connection does."""
    for _server, folder in _started:
        shutil.rmtree(folder, ignore_errors=True)
    _started.clear()
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)
    _folders.clear()


@plain_class
class Run(UlpfCommand):
    """Start the program under ulpf: ulpf run [ARGUMENTS]

Where `ulpf gdb` has connected already, this is `run`. The program reads nothing from the terminal otherwise."""

    name = "run"

    def run(self, argument):
        if not _under_ulpf():
            if facade.pid():
                raise UlpfError("ulpf run", "a program is being debugged already, without ulpf", "kill it first, or: ulpf attach")
            file = facade.gdb.current_progspace().filename
            if not file:
                raise UlpfError("ulpf run", "no program is chosen", "say: file PROGRAM")
            folder = tempfile.mkdtemp(prefix="ulpf-gdb-")
            # It goes when GDB does.
            _folders.append(folder)
            asked_at = os.path.join(folder, "arguments")
            arguments.offer(asked_at)
            _connect("extended-remote", ["--multi", "--once", f"--ask-arguments={asked_at}"])
            facade.execute(f"set remote exec-file {os.path.abspath(file)}")
        facade.run_command(f"run {argument}".strip())


@plain_class
class Attach(UlpfCommand):
    """Attach to a running process with ulpf: ulpf attach PID"""

    name = "attach"

    def run(self, argument):
        if not argument.isdigit():
            raise UlpfError("ulpf attach", "it takes the number of a process", "say: ulpf attach 1234")
        if not os.path.exists(f"/proc/{argument}"):
            raise UlpfError(f"ulpf attach {argument}", "there is no such process", "ps -e lists them")
        if facade.pid():
            raise UlpfError("ulpf attach", f"process {facade.pid()} is being debugged already", "detach from it first")
        if _under_ulpf():
            facade.run_command(f"attach {argument}")
            return
        # (A `target remote` would end with the program, and with it what the watches have learned.)
        _connect("extended-remote", ["--multi", "--once"])
        facade.run_command(f"attach {argument}")


@plain_class
class Connect(UlpfCommand):
    """Connect to `ulpf server`: ulpf connect HOST:PORT or ulpf connect SOCKET"""

    name, completes = "connect", "COMPLETE_FILENAME"

    def run(self, argument):
        if not argument:
            raise UlpfError("ulpf connect", "it does not say where to", "say: ulpf connect localhost:2345")
        facade.run_command(f"target extended-remote {argument}")
        if not _under_ulpf():
            raise UlpfError(f"{argument} is no ulpf server", "it does not know ulpf's commands", "the connection stays; ulpf watch will not work over it")


if facade.gdb:
    if hasattr(facade.gdb.events, "gdb_exiting"):
        facade.on("gdb_exiting", _end)
    else:
        import atexit

        atexit.register(_end)
