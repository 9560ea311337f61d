"""Unwanted connections: web pages, other users, silent clients."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import unittest
import urllib.request

from lib.bridge import SIM, Sim, needs_sim, static
from lib.cases import Case
from lib.dap import DapCase, Refused
from lib.env import GDB, PATIENCE, ULPF, example, find_tool, needs, ulpf_only
from lib.lldb import lldb
from lib.rsp import Rsp, frame, wait_until
from lib.users import ALICE, Place, as_root, becomes

# One that every user can run.
PYTHON = "/usr/bin/python3"

# Requests of browsers for fetch(…, {mode: "no-cors"}), a form, a picture, a WebSocket, and a page whose name resolves
# to this machine (DNS rebinding), which chooses even the method.
PAGE = "Host: 127.0.0.1:%d\r\nOrigin: http://evil.example\r\nReferer: http://evil.example/\r\nUser-Agent: Mozilla/5.0\r\n"


def requests(port, body):
    page = PAGE % port
    sent = f"Content-Type: text/plain;charset=UTF-8\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    return {
        "fetch": f"POST / HTTP/1.1\r\n{page}Sec-Fetch-Mode: no-cors\r\n{sent}",
        "form": f"POST /x HTTP/1.1\r\n{page}Sec-Fetch-Mode: navigate\r\n{sent}",
        "picture": f"GET /{body[:200].encode().hex()} HTTP/1.1\r\n{page}\r\n{body}",
        "websocket": f"GET / HTTP/1.1\r\n{page}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n{body}",
        "preflight": f"OPTIONS / HTTP/1.1\r\n{page}Access-Control-Request-Method: PUT\r\n\r\n{body}",
        "rebound": f"+ / HTTP/1.1\r\nHost: rebound.example:{port}\r\n{sent}",
        "http2": f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{body}",
        "tls": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + body,
    }


def say(port, text, half=True):
    """All that is answered until the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), 20 * PATIENCE) as client:
        heard = b""
        try:
            client.sendall(text.encode("latin-1") if isinstance(text, str) else text)
            if half:
                client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65536):
                heard += piece
        # It may have been dropped by now: at the sending, at the end of it (ENOTCONN), or at the hearing.
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
    return heard


class Started:
    """A command whose stderr is read up to a line that says it listens."""

    def __init__(self, case, *words, **options):
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)
        case.addCleanup(self.process.stderr.close)
        case.addCleanup(self.process.wait)
        case.addCleanup(self.process.terminate)

    def line(self):
        return self.process.stderr.readline()


@ulpf_only
class WebPage(Case):
    def test_no_request_writes_a_file(self):
        """A packet in a request is never interpreted, whatever the request is."""
        with tempfile.TemporaryDirectory() as folder:
            server = self.serve("spin")
            for name, request in requests(server.port, "").items():
                path = os.path.join(folder, name)
                packets = b"+" + frame(f"vFile:open:{path.encode().hex()},601,1b6") + frame("vFile:pwrite:0,0,evil")
                request = requests(server.port, packets.decode("latin-1"))[name]
                self.assertEqual(say(server.port, request), b"", name)
                self.assertFalse(os.path.exists(path), name)
            self.assertEqual(os.listdir(folder), [])
            server.wait_for(r"begins like HTTP, as a web page in a browser would, not like a debugger")
            server.wait_for(r"begins like TLS")
            # The program is there, and a debugger is served.
            rsp = Rsp(server.target)
            self.addCleanup(rsp.close)
            self.assertRegex(rsp("?"), rb"^T05")

    def test_methods_that_are_packets(self):
        """A page of a name that leads here chooses the method: letters, digits, $, # and +."""
        server = self.serve("spin")
        for method in "$k#6b", "+$k#6b", "$k#6b+", "$k#6b$m", "$k#6b" * 5000, "$D#44", "%x#78$k#6b":
            self.assertEqual(say(server.port, f"{method} / HTTP/1.1\r\nHost: rebound.example\r\n\r\n"), b"", method[:20])
        os.kill(server.program_pid, 0)
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        self.assertRegex(rsp("?"), rb"^T05")

    def test_lines_are_not_without_number(self):
        server = self.serve("spin")
        for _ in range(60):
            say(server.port, "GET / HTTP/1.1\r\n\r\n")
        server.wait_for("no more is said of such connections")
        self.assertLess(server.said.count("begins like"), 30)

    def test_what_debuggers_begin_with(self):
        """Bare clients as ever: acks first or not, an interrupt, byte by byte, a bad checksum."""
        for begins, heard in ((b"+$?#3f", rb"^\+\$T05"), (b"$?#3f", rb"^\+\$T05"), (b"$?#00", rb"^-"), (b"\x03$?#3f", rb"^\+\$T05"), (b"--+$?#3f\n", rb"^\+\$T05")):
            server = self.serve("spin")
            with socket.create_connection(("127.0.0.1", server.port), 20 * PATIENCE) as client:
                for byte in begins:
                    client.sendall(bytes([byte]))
                answer = b""
                while not re.search(heard, answer):
                    piece = client.recv(4096)
                    self.assertTrue(piece, (begins, answer))
                    answer += piece
            server.close()

    @needs("lldb-19", "lldb")
    def test_lldb(self):
        server = self.serve("five")
        answers, text = lldb(find_tool("lldb-19", "lldb"), [f"target create {example('five')}", f"gdb-remote {server.port}", "continue"])
        self.assertRegex(text, r"exited with status = 0", answers)

    def test_gdb_gets_libraries_and_files(self):
        server = self.serve("five")
        gdb = self.gdb()
        gdb("set sysroot target:")
        gdb(f"target remote {server.target}")
        gdb("break ready")
        self.assertSays(gdb("continue"), r"Breakpoint 1, ")
        self.assertSays(gdb("info sharedlibrary"), r"target:/\S*libc")
        with tempfile.TemporaryDirectory() as folder:
            gdb(f"remote put {example('five')} {folder}/copy")
            self.assertEqual(os.path.getsize(f"{folder}/copy"), os.path.getsize(example("five")))


@ulpf_only
class Silence(Case):
    def test_who_says_nothing_blocks_nobody(self):
        server = self.serve("spin")
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
        for client in silent:
            self.addCleanup(client.close)
        silent[-1].sendall(b"+")
        silent[-2].sendall(b"$qSuppor")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        self.assertRegex(rsp("?"), rb"^T05")
        # Of all these the server keeps a few.
        self.assertLess(len(os.listdir(f"/proc/{server.process.pid}/fd")), 60)

    def test_a_port_that_is_looked_at_is_no_client(self):
        server = self.serve("five", options=["--once"])
        socket.create_connection(("127.0.0.1", server.port)).close()
        rsp = Rsp(server.target)
        self.assertRegex(rsp("?"), rb"^T05")
        rsp.close()
        self.assertEqual(server.wait(), 0)
        self.assertEqual(server.said.count("Remote debugging from"), 1)

    def test_bridge(self):
        """A server whose program is behind another remote port, at a socket."""
        inner = self.serve("five")
        place = os.path.join(inner.dir.name, "bridge")
        bridge = Started(self, ULPF, "server", "--backend", f"rsp:{inner.target}", place)
        self.assertIn("Listening on", bridge.line())
        for begins in b"", b"\n\n", b"$qSupp", b"GET / HTTP/1.1\r\n\r\n", b"nonsense\n", b"x" * 100_000:
            silent = socket.socket(socket.AF_UNIX)
            self.addCleanup(silent.close)
            silent.connect(place)
            try:
                silent.sendall(begins)
            except ConnectionError:
                pass
        rsp = Rsp(place)
        self.addCleanup(rsp.close)
        self.assertRegex(rsp("?"), rb"^T05")


@ulpf_only
@needs_sim
class Simulator(Case):
    def setUp(self):
        super().setUp()
        self.sim = Started(self, SIM, "--bridge", "127.0.0.1:0", "--", static("alone"), "spin")
        self.port = int(re.search(r"Listening on port (\d+)", self.sim.line()).group(1))

    def greets(self):
        rsp = Rsp(f"127.0.0.1:{self.port}")
        try:
            return rsp("qUlpf.About").startswith(b"awatches;unicorn;")
        finally:
            rsp.close()

    def test_a_web_page(self):
        for name, request in requests(self.port, "$k#6b").items():
            self.assertEqual(say(self.port, request), b"", name)
        self.assertIsNone(self.sim.process.poll())
        self.assertTrue(self.greets())

    def test_who_says_nothing_blocks_nobody(self):
        for begins in [b"", b"+", b"$qSuppor", b"x" * 100_000] * 8:
            silent = socket.create_connection(("127.0.0.1", self.port))
            self.addCleanup(silent.close)
            try:
                silent.sendall(begins)
            except ConnectionError:
                pass
        self.assertTrue(self.greets())

    @as_root
    def test_another_user(self):
        self.assertEqual(as_alice("127.0.0.1", self.port, "$k#6b"), "")
        self.assertIn("refused", self.sim.line())
        self.assertTrue(self.greets())

    def test_the_socket_is_its_owners(self):
        umask = os.umask(0)
        try:
            sim = Sim(static("alone"), "spin")
        finally:
            os.umask(umask)
        self.addCleanup(sim.close)
        self.assertTrue(wait_until(lambda: os.path.exists(sim.path)))
        self.assertEqual(stat.S_IMODE(os.stat(sim.path).st_mode) & 0o177, 0)
        self.assertEqual(os.listdir(sim.dir), ["sim"])


class Beyond(Case):
    """A server that other machines reach."""

    @ulpf_only
    def test_files_are_off_and_it_is_said(self):
        for options, files in ([], False), (["--allow-files"], True):
            server = self.serve("spin", comm="0.0.0.0:0", options=options)
            server.wait_for(r"whoever reaches 0\.0\.0\.0:\d+ has the program and can start others as you: there is no password")
            rsp = Rsp(server.target)
            self.assertEqual(rsp(f"vFile:open:{b'/etc/passwd'.hex()},0,0"), b"F0" if files else b"")
            self.assertEqual(rsp("vFile:setfs:0"), b"F0" if files else b"")
            rsp.close()

    @ulpf_only
    def test_gdb_without_files(self):
        server = self.serve("five", comm="0.0.0.0:0")
        gdb = self.gdb()
        gdb(f"file {example('five')}")
        gdb(f"target remote {server.target}")
        gdb("tbreak ready")
        self.assertSays(gdb("continue"), r"Temporary breakpoint 1, ready")
        gdb("up")
        gdb("watch a")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)

    @ulpf_only
    def test_no_file_has_its_owners_rights(self):
        """Set-user-ID, set-group-ID and sticky bits of a mode are left out."""
        with tempfile.TemporaryDirectory() as folder:
            server = self.serve("spin")
            rsp = Rsp(server.target)
            self.addCleanup(rsp.close)
            path = os.path.join(folder, "made")
            self.assertEqual(rsp(f"vFile:open:{path.encode().hex()},201,fff"), b"F0")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o7000, 0)

    @ulpf_only
    @as_root
    @needs("unshare")
    def test_a_containers_links_stay_in_it(self):
        """A process in another mount namespace can make any links; the server has the rights of root."""
        with Place(static("alone")) as place, tempfile.NamedTemporaryFile() as ours:
            ours.write(b"of the host")
            ours.flush()
            with open(os.path.join(place.path, "theirs"), "w") as file:
                file.write("of the container")
            for name, to in ("out", ours.name), ("up", "../../../.." + ours.name), ("in", "/theirs"), ("magic", "/proc/1/root" + ours.name):
                os.symlink(to, os.path.join(place.path, name))
            container = subprocess.Popen(["unshare", "-m", "--propagation", "unchanged", "chroot", place.path, "/alone", "spin"], stdout=subprocess.DEVNULL)
            self.addCleanup(container.wait)
            self.addCleanup(container.kill)
            self.assertTrue(wait_until(lambda: os.readlink(f"/proc/{container.pid}/exe").endswith("alone")))
            server = self.serve("spin")
            rsp = Rsp(server.target)
            self.addCleanup(rsp.close)
            self.assertEqual(rsp(f"vFile:setfs:{container.pid:x}"), b"F0")
            path = lambda name: f"/{name}".encode().hex()
            for name in "out", "up", "magic":
                self.assertRegex(rsp(f"vFile:open:{path(name)},0,0"), rb"^F-1,", name)
                self.assertRegex(rsp(f"vFile:stat:{path(name)}"), rb"^F-1,", name)
            self.assertEqual(rsp(f"vFile:open:{path('in')},0,0"), b"F0")
            self.assertEqual(rsp("vFile:pread:0,100,0"), b"F10;of the container")
            self.assertEqual(rsp(f"vFile:readlink:{path('out')}"), b"F%x;" % len(ours.name) + ours.name.encode())
            self.assertEqual(rsp(f"vFile:unlink:{path('out')}"), b"F0")
            self.assertFalse(os.path.lexists(os.path.join(place.path, "out")))
            self.assertTrue(os.path.exists(ours.name))

    @ulpf_only
    def test_sockets_that_are_there(self):
        """A link at a socket's path is not followed, another user's socket not connected to, a foreign file not removed."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "socket")
            os.symlink("/nonexistent/elsewhere", path)
            server = self.serve("five", comm=path, wait=False)
            self.assertEqual(server.wait(), 1)
            self.assertIn("not a socket", server.said)
            os.unlink(path)
            server = self.serve("five", comm=path)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o177, 0)
            os.unlink(path)
            with open(path, "w"):
                pass
            os.killpg(server.process.pid, signal.SIGTERM)
            server.process.wait(20)
            self.assertTrue(os.path.exists(path))


CONNECT = """
import socket, sys
client = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) if sys.argv[2] != '-' else socket.socket(socket.AF_UNIX)
if sys.argv[2] == '-':
    client.connect(sys.argv[1])
try:
    client.sendall(sys.argv[3].encode())
    print(client.recv(1000).decode())
except ConnectionError:
    print()
"""


def as_alice(host, port, text):
    done = subprocess.run([PYTHON, "-c", CONNECT, host, str(port), text], cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60 * PATIENCE, **becomes(ALICE))
    return (done.stdout + done.stderr).strip()


@ulpf_only
@as_root
@unittest.skipUnless(os.access(PYTHON, os.X_OK), f"{PYTHON} is not there")
class OtherUsers(Case):
    def test_a_port_of_this_machine(self):
        server = self.serve("spin")
        self.assertEqual(as_alice("127.0.0.1", server.port, "+$?#3f"), "")
        server.wait_for(rf"a connection from 127\.0\.0\.1:\d+ was refused: it is user {ALICE}'s, and only root may connect\. --any-user")
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        self.assertRegex(rsp("?"), rb"^T05")

    def test_who_closes_at_once_is_not_taken_for_root(self):
        """The kernel says of a closed socket that it is root's."""
        server = self.serve("spin")
        hasty = ("import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
                 "s.sendall(b'$k#6b'); s.close()")
        os.kill(server.process.pid, signal.SIGSTOP)
        for _ in range(5):
            subprocess.run([PYTHON, "-c", hasty, str(server.port)], check=True, timeout=20, **becomes(ALICE))
        os.kill(server.process.pid, signal.SIGCONT)
        rsp = Rsp(server.target)
        self.addCleanup(rsp.close)
        self.assertRegex(rsp("?"), rb"^T05")

    def test_any_user(self):
        server = self.serve("spin", options=["--any-user"])
        self.assertRegex(as_alice("127.0.0.1", server.port, "+$?#3f"), r"^\+\$?")

    def test_ipv6(self):
        server = self.serve("spin", comm="[::1]:0")
        self.assertEqual(as_alice("::1", server.port, "+$?#3f"), "")
        server.wait_for(f"it is user {ALICE}'s")

    def test_alices_own_server(self):
        """It is not root's: alice and root are served there."""
        with Place(ULPF, example("spin")) as place:
            server = Started(self, f"{place.path}/ulpf", "server", ":0", f"{place.path}/spin", cwd="/", **becomes(ALICE))
            port = None
            while not port:
                port = re.search(r"Listening on port (\d+)", server.line())
            port = int(port.group(1))
            self.assertRegex(as_alice("127.0.0.1", port, "+$?#3f"), r"^\+")
            rsp = Rsp(f"127.0.0.1:{port}")
            self.addCleanup(rsp.close)
            self.assertRegex(rsp("?"), rb"^T05")

    def test_a_strangers_socket_in_our_place(self):
        """One whose owner never accepts would keep us for ever."""
        with Place(owner=ALICE) as place:
            path = os.path.join(place.path, "socket")
            squat = ("import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(0)\n"
                     "c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1]); print('there', flush=True); time.sleep(100)")
            squatter = subprocess.Popen([PYTHON, "-c", squat, path], stdout=subprocess.PIPE, text=True, **becomes(ALICE))
            self.addCleanup(squatter.stdout.close)
            self.addCleanup(squatter.wait)
            self.addCleanup(squatter.kill)
            self.assertEqual(squatter.stdout.readline(), "there\n")
            server = self.serve("five", comm=path, wait=False)
            self.assertEqual(server.wait(), 1)
            self.assertIn(f"this socket belongs to user {ALICE}", server.said)

    def test_a_runtime_folder_that_is_not_ours(self):
        """sudo keeps its user's XDG_RUNTIME_DIR: what root's gdb sources must not lie there."""
        with Place(owner=ALICE) as place:
            os.chmod(place.path, 0o700)
            show = "python import os; print('plugin in', os.path.dirname(os.path.dirname(ulpf.__file__)))"
            done = subprocess.run([ULPF, "gdb", "-nx", "-q", "-batch", "-ex", show, example("five")], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE,
                                  env={**os.environ, "XDG_RUNTIME_DIR": place.path})
            self.assertIn("plugin in /", done.stdout)
            self.assertNotIn(place.path, done.stdout)

    def test_the_plugin_is_not_written_to_a_strangers_folder(self):
        with Place(owner=ALICE) as place:
            done = subprocess.run([ULPF, "gdb-plugin", place.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"belongs to another user, and GDB runs what lies there")
            self.assertEqual(os.listdir(place.path), [])


@ulpf_only
class Adapter(DapCase):
    """`ulpf dap --listen`"""

    def listening(self, *words, **options):
        adapter = Started(self, ULPF, "dap", "--listen", *words, **options)
        said = adapter.line()
        self.assertIn("Listening on", said)
        port = re.search(r"port (\d+)", said)
        return adapter, port and int(port.group(1))

    def test_a_web_page_runs_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            adapter, port = self.listening("0")
            mark = os.path.join(folder, "mark")
            launch = {"program": "/bin/true", "gdb": GDB, "initCommands": [f"shell touch {mark}"]}
            messages = ""
            for seq, (command, arguments) in enumerate((("initialize", {"adapterID": "x"}), ("launch", launch)), 1):
                body = json.dumps({"seq": seq, "type": "request", "command": command, "arguments": arguments})
                messages += f"Content-Length: {len(body)}\r\n\r\n{body}"
            for name, request in requests(port, messages).items():
                self.assertEqual(say(port, request, half=False), b"", name)
            # Nor does a client that speaks the protocol without a token.
            self.assertIn(b"token", say(port, messages, half=False))
            time.sleep(0.5)  # Nothing happens in it.
            self.assertFalse(os.path.exists(mark))
            self.assertIsNone(adapter.process.poll())

    def test_the_token(self):
        adapter, port = self.listening("0")
        token = re.search(r'"token": "([0-9a-f]{32})"', adapter.line()).group(1)
        connect = lambda: self.adapter(connect=socket.create_connection(("127.0.0.1", port)))
        for given in {}, {"token": ""}, {"token": token[:-1]}, {"token": token.upper() + " "}, {"token": [token]}:
            dap = connect()
            dap.initialize()
            with self.assertRaisesRegex(Refused, "token of this adapter"):
                dap.ask("launch", {"program": example("five"), "gdb": GDB, **given}, 20)
            # One attempt a connection.
            self.assertTrue(wait_until(lambda: dap._over))
        dap = connect()
        dap.initialize()
        with self.assertRaisesRegex(Refused, "evaluate needs the token"):
            dap.ask("evaluate", expression="shell true", context="repl")
        dap = connect()
        dap.begin("five", at="ready", token=token)
        self.assertEqual(dap.value("a"), "10")
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)

    def test_a_stranger_is_not_heard_for_long(self):
        _, port = self.listening("0")
        body = b'{"seq":1,"type":"request","command":"initialize","arguments":{"adapterID":"x"}}'
        message = b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        heard = say(port, message * 1000, half=False)
        self.assertLess(heard.count(b'"success":true'), 20)
        self.assertIn(b"too long", say(port, b"Content-Length: 200000000\r\n\r\n"))

    def test_a_file_with_the_token(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "token")
            adapter, port = self.listening("0", "--token-file", path)
            self.assertIn(path, adapter.line())
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            with open(path) as file:
                token = file.read().strip()
            dap = self.adapter(connect=socket.create_connection(("127.0.0.1", port)))
            dap.begin("five", at="ready", token=token)
            dap.disconnect(terminateDebuggee=True)
            os.chmod(path, 0o644)
            done = subprocess.run([ULPF, "dap", "--listen", "0", "--token-file", path], stderr=subprocess.PIPE, text=True, timeout=20)
            self.assertEqual(done.returncode, 1)
            self.assertIn("nobody else can read", done.stderr)

    def test_a_socket_needs_none(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "dap")
            self.listening(path)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o177, 0)
            client = socket.socket(socket.AF_UNIX)
            client.connect(path)
            dap = self.adapter(connect=client)
            dap.begin("five", at="ready")
            self.assertEqual(dap.value("a"), "10")
            dap.ask("continue", threadId=1)
            self.assertEqual(dap.exited(), 0)

    @as_root
    def test_another_user(self):
        adapter, port = self.listening("0")
        body = '{"seq":1,"type":"request","command":"initialize","arguments":{"adapterID":"x"}}'
        self.assertEqual(as_alice("127.0.0.1", port, f"Content-Length: {len(body)}\r\n\r\n{body}"), "")
        adapter.line()
        self.assertIn(f"it is user {ALICE}'s", adapter.line())


@ulpf_only
class Metrics(Case):
    def setUp(self):
        super().setUp()
        self.begin()

    def begin(self, *options):
        self.metrics = Started(self, ULPF, "export", "--metrics", "0", *options)
        self.port = int(re.search(r"http://127.0.0.1:(\d+)/", self.metrics.line()).group(1))

    def get(self, *fields, target="/metrics"):
        return say(self.port, "\r\n".join([f"GET {target} HTTP/1.1", *fields, "", ""]), half=False).decode()

    def test_names_of_this_machine(self):
        for host in "localhost", f"localhost:{self.port}", "127.0.0.1", "[::1]:1":
            self.assertRegex(self.get(f"Host: {host}"), r"^HTTP/1.1 200 (?s:.*)# EOF\n$")
        for fields in ["Host: rebound.example"], ["Host: localhost.rebound.example"], ["Host: localhost", "Host: rebound.example"], [], ["Host:"]:
            self.assertRegex(self.get(*fields), r"^HTTP/1.1 421 ", fields)
        self.assertRegex(self.get("Host: localhost", target="/else"), r"^HTTP/1.1 404 ")
        self.assertRegex(self.get("Host: box.example"), r"^HTTP/1.1 421 ")
        self.begin("--allow-host", "box.example")
        self.assertRegex(self.get("Host: Box.Example:80"), r"^HTTP/1.1 200 ")

    def test_a_program_names_no_figures(self):
        """Quotes and backslashes in a label are escaped, and no control character reaches a terminal."""
        with tempfile.TemporaryDirectory() as folder:
            name = 'b"\\\x1b[2J'
            program = shutil.copy(example("bank"), os.path.join(folder, name))
            watched = subprocess.Popen([ULPF, "run", "-w", "bank.fees", "--log", os.devnull, "--no-summary", "--", program, "60", "2000"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(watched.wait)
            self.addCleanup(watched.terminate)
            text = [""]
            self.assertTrue(wait_until(lambda: text.append(self.get("Host: localhost")) or "[2J" in text[-1], 20), text[-1])
            for line in text[-1].partition("\r\n\r\n")[2].splitlines():
                self.assertRegex(line, r'^(#|ulpf_\w+\{(\w+="([^"\\\x00-\x1f]|\\["\\n])*",?)+\} \d+$)')

    def test_who_is_slow_stands_in_nobodys_way(self):
        """Not by silence, nor by a byte now and then, nor by not reading; and each connection has its end."""
        def is_open(client):
            with contextlib.suppress(BlockingIOError):
                return client.recv(1, socket.MSG_DONTWAIT) != b""
            return True

        def answered_before_their_end():
            slow = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(8)]
            for client in slow:
                self.addCleanup(client.close)
                client.sendall(b"GET /metrics HTTP/1.1\r\n")
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20 * PATIENCE) as reply:
                self.assertTrue(reply.read().endswith(b"# EOF\n"))
            return slow if all(map(is_open, slow)) else None
        # On a machine that is busy, their end may come first once.
        slow = answered_before_their_end() or answered_before_their_end() or answered_before_their_end()
        self.assertTrue(slow, "others are answered only when the slow clients are gone")
        slow[0].settimeout(0.5)
        # A byte now and then does not keep the connection, or this test exceeds its limit.
        while True:
            try:
                slow[0].sendall(b"X")
                if slow[0].recv(1) == b"":
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
    test_who_is_slow_stands_in_nobodys_way.idle = True

    def test_many_and_much(self):
        many = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(100)]
        for client in many:
            self.addCleanup(client.close)
        time.sleep(0.5)
        with open(f"/proc/{self.metrics.process.pid}/status") as status:
            threads = int(re.search(r"Threads:\s+(\d+)", status.read()).group(1))
        self.assertLess(threads, 40)
        for client in many:
            client.close()
        self.assertTrue(wait_until(lambda: "200 OK" in self.get("Host: localhost")))
        self.assertEqual(say(self.port, b"GET /" + b"x" * 100_000, half=False), b"")


if __name__ == "__main__":
    unittest.main()
