"""The state of a program while clients come and go."""

import os
import resource
import signal
import time

from lib.cases import Case
from lib.env import ulpf_only
from lib.rsp import Rsp, wait_until
from lib.server import stub_of


def waits_in(pid, *numbers):
    """Is it in one of these system calls?"""
    try:
        with open(f"/proc/{pid}/syscall") as call:
            return call.read().split()[0] in map(str, numbers)
    except FileNotFoundError:
        return False


@ulpf_only
class Connections(Case):
    def test_a_dead_peer_is_found_out(self):
        """The kernel probes the connection (SO_KEEPALIVE), as gdbserver has it."""
        server = self.serve("spin")
        client = Rsp(server.target)
        client.no_ack()

        def timer():
            """02: the one that SO_KEEPALIVE starts."""
            with open("/proc/net/tcp") as table:
                rows = [line.split() for line in table]
            ours, = [row[5] for row in rows if row[1] == f"0100007F:{server.port:04X}" and row[3] == "01"]
            return ours.split(":")[0]
        self.assertTrue(wait_until(lambda: timer() == "02"), timer())
        client.close()

    def test_a_lack_of_descriptors_passes(self):
        server = self.serve("spin")
        pid = server.process.pid
        used = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        least = min(set(range(len(used) + 1)) - used)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (least, limits[1]))
        client = Rsp(server.target)
        server.wait_for(r"Cannot accept a connection: Too many open files")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        self.assertIn(b"PacketSize", client("qSupported:multiprocess+"))
        self.assertRegex(client("?"), rb"^T05")
        self.assertEqual(server.said.count("Cannot accept"), 1)
        client.close()

    def test_a_fork_that_nobody_hears_of(self):
        """The client has gone, and the stop that is to follow is that of a fork: the child goes on all the same."""
        read, write = os.pipe()
        server = self.serve("/bin/sh", "-c", "read line; (exit 3); echo $?", stdin=read, options=["--no-startup-with-shell"])
        os.close(read)
        pid = server.program_pid
        stub = stub_of(pid)
        client = Rsp(server.target)
        client("qSupported:multiprocess+;fork-events+;vfork-events+;vContSupported+")
        client.raw(b"$vCont;c#a8")
        self.assertTrue(wait_until(lambda: waits_in(pid, 0)))
        os.kill(stub, signal.SIGSTOP)
        os.write(write, b"\n")
        os.close(write)
        self.assertTrue(wait_until(lambda: waits_in(pid, 202)))  # for the stub: it wants to fork
        client.close()
        time.sleep(0.5)
        os.kill(stub, signal.SIGCONT)
        server.wait_for(r"(?s)Listening on port.*Listening on port", 30)
        client = Rsp(server.target, seconds=20)
        client("qSupported:multiprocess+;vContSupported+")
        self.assertEqual(client("QPassSignals:14"), b"OK")  # SIGCHLD
        self.assertRegex(client("vCont;c"), rb"^W00")
        self.assertEqual(server.stdout(), "3\n")
        client.close()
