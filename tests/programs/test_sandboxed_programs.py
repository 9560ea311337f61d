"""Real programs whose processes put themselves into sandboxes, all of them followed: as without us."""

import os
import pwd
import re
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from lib.env import PATIENCE, ULPF, find_tool, needs, ulpf_only
from lib.rsp import wait_until
from lib.users import ALICE, Place, as_root, becomes

WATCHED = [ULPF, "run", "--follow", "-q", "--no-summary", "-w", "heap", "--"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def is_served(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@ulpf_only
class Sandboxed(unittest.TestCase):
    limit = 300

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.chmod(self.folder, 0o755)

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def serve(self, around, *command):
        """A server, and what it has said at its end."""
        said = open(os.path.join(self.folder, "said"), "w+")
        self.addCleanup(said.close)
        server = subprocess.Popen([*around, *command], stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)

        def end():
            if server.poll() is None:
                server.kill()
            server.wait()
        self.addCleanup(end)
        return server, said

    def ended(self, server, number):
        server.send_signal(number)
        status = server.wait(30 * PATIENCE)
        with open(os.path.join(self.folder, "said")) as said:
            text = said.read()
        for notice in "not watched", "unwatched", "not followed", "ENOSYS", "does not come to rest", "bug of ulpf":
            self.assertNotIn(notice, text)
        return status

    @as_root
    @needs("sshd")
    @needs("ssh")
    def test_sshd(self):
        """Before authentication, a child with next to no rights talks to the client."""
        for name in "host", "identity":
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(self.folder, name)], check=True)
        os.makedirs("/run/sshd", exist_ok=True)

        def log_in(port, *options):
            done = subprocess.run(["ssh", "-F", "none", "-q", "-p", str(port), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
                                   "-o", "UserKnownHostsFile=/dev/null", *options, "root@127.0.0.1", "echo here; id -u; exit 5"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60 * PATIENCE, text=True)
            return done.returncode, done.stdout

        results = []
        for around in [], WATCHED:
            port = free_port()
            config = self.write("config", "\n".join([
                f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {self.folder}/host", "PidFile none", "UsePAM no", "StrictModes no",
                "PermitRootLogin prohibit-password", f"AuthorizedKeysFile {self.folder}/identity.pub"]))
            server, _ = self.serve(around, find_tool("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", config)
            self.assertTrue(wait_until(lambda: is_served(port), 30))
            with_key = [log_in(port, "-i", f"{self.folder}/identity", "-o", "IdentitiesOnly=yes") for _ in range(3)]
            without = log_in(port, "-o", "PubkeyAuthentication=no")
            results.append((with_key, without, self.ended(server, signal.SIGTERM)))
        self.assertEqual(results[1], results[0])
        self.assertEqual(results[0][0], [(5, "here\n0\n")] * 3)
        self.assertEqual(results[0][1], (255, ""))

    @as_root
    @needs("nginx")
    def test_nginx(self):
        """Workers of another user; others in their place after SIGHUP."""
        self.write("index.html", "a page\n")
        self.write("mime.types", "types { text/html html; }\n")

        def get(port, path):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30 * PATIENCE) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, b""

        results = []
        for around in [], WATCHED:
            port = free_port()
            user = pwd.getpwnam("nobody")
            config = self.write("config", f"""
                daemon off; worker_processes 2; user nobody nogroup; pid {self.folder}/pid; error_log {self.folder}/errors;
                events {{ worker_connections 64; }}
                http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {self.folder}; }} }}""")
            self.assertTrue(user.pw_uid)
            server, _ = self.serve(around, find_tool("nginx"), "-p", self.folder, "-c", config)
            self.assertTrue(wait_until(lambda: is_served(port), 30))
            got = [get(port, "index.html") for _ in range(20)] + [get(port, "nothing")]
            with open(os.path.join(self.folder, "pid")) as file:
                master = int(file.read())

            def workers():
                with open(f"/proc/{master}/task/{master}/children") as children:
                    return set(children.read().split())
            before = workers()
            os.kill(master, signal.SIGHUP)
            self.assertTrue(wait_until(lambda: workers() and not workers() & before, 30))
            got.append(get(port, "index.html"))
            os.kill(master, signal.SIGQUIT)
            status = server.wait(30 * PATIENCE)
            with open(os.path.join(self.folder, "said")) as said:
                text = said.read()
            results.append((got, len(before), status, re.findall("not watched|unwatched|ENOSYS", text)))
        self.assertEqual(results[1], results[0])
        self.assertEqual(results[0][0][-3:], [(200, b"a page\n"), (404, b""), (200, b"a page\n")])

    @as_root
    @needs("chromium")
    def test_chromium(self):
        """Processes with numbers of their own, behind filters, where no /proc is. A small watch: stores to its heap are too many."""
        program = "/usr/lib/chromium/chromium"
        if not os.path.exists(program):
            self.skipTest(f"{program} is not there")
        page = "data:text/html,<script>document.write(6*7)</script>"
        with Place(ULPF) as place:
            results = []
            for around in [], [os.path.join(place.path, "ulpf"), *WATCHED[1:4], "--no-summary", "-w", "environ", "--"]:
                home = os.path.join(self.folder, f"home{len(around)}")
                os.mkdir(home)
                os.chown(home, ALICE, ALICE)
                done = subprocess.run([*around, program, "--headless", "--disable-gpu", f"--user-data-dir={home}/data", "--dump-dom", page],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120 * PATIENCE,
                                      text=True, env={**os.environ, "HOME": home}, cwd=home, **becomes(ALICE))
                results.append((done.returncode, done.stdout))
                if not around and done.returncode:
                    self.skipTest(f"chromium does not run here: {done.stderr[-200:]}")
        self.assertEqual(results[1], results[0], done.stderr)
        self.assertIn("<body>42</body>", results[0][1])
        self.assertNotIn("is not watched: Cannot take hold", done.stderr)
        self.assertNotIn("runs on unwatched", done.stderr)
