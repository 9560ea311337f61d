"""`ulpf check --attach`: the heap of a process that runs already."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import zlib

from lib.env import PATIENCE, ULPF, find_tool, needs, ulpf_only
from lib.rsp import wait_until
from lib.run import program
from lib.server import sleeps

LIMIT = 60 * PATIENCE


class Checked:
    """`ulpf check --attach` of a process, until `leave`. `meanwhile` is called when the stub is in the program."""

    def __init__(self, pid, *options, meanwhile=None):
        self.log = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen([ULPF, "check", "--json", "-l", self.log.name, *options, "--attach", str(pid)], stderr=subprocess.PIPE, text=True)
        self.limit = threading.Timer(LIMIT, self.process.kill)
        self.limit.start()
        if meanwhile:
            if not wait_until(lambda: has_stub(pid)):
                raise AssertionError("no stub has come")
            meanwhile()
        end = time.monotonic() + LIMIT
        while not self.lines():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"nothing has begun: {self.process.communicate()[1]}")
            time.sleep(0.02)

    def lines(self):
        with open(self.log.name) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def notice(self):
        return next(line["text"] for line in self.lines() if line["type"] == "notice")

    def leave(self):
        """Ctrl-C, if the program has not ended: what was found, and the sums."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self):
        """The program has ended."""
        self.process.wait(LIMIT)
        self.limit.cancel()
        lines = self.lines()
        self.log.close()
        self.said = self.process.stderr.read()
        self.process.stderr.close()
        return [line for line in lines if line["type"] == "error"], lines[-1]


class Server:
    """A program that takes orders, a line each."""

    def __init__(self, *command, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        self.limit = threading.Timer(2 * LIMIT, self.process.kill)
        self.limit.start()
        self.pid = int(self.process.stdout.readline().split()[1])

    def say(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def done(self):
        """The program has executed its orders."""
        for line in self.process.stdout:
            if line.startswith("done"):
                return
        raise AssertionError(f"it has ended: {self.process.wait(LIMIT)}")

    def order(self, word):
        self.say(word)
        self.done()

    def end(self):
        """Its last words and its status."""
        out, _ = self.process.communicate("end\n", LIMIT)
        self.limit.cancel()
        return out, self.process.returncode


def has_stub(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return "/memfd:ulpf-" in maps.read()


def size(pid):
    """Of a program: mappings, and kilobytes of address space."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/status") as status:
        return len(maps.readlines()), next(int(line.split()[1]) for line in status if line.startswith("VmSize"))


def memory(pid):
    """Of a program: what is mapped, as (start, end) that do not touch, and the code of its files."""
    ranges, code = [], {}
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps.read().splitlines():
            place, rights, *_ = line.split()
            start, end = (int(part, 16) for part in place.split("-"))
            if "[" not in line:
                if ranges and ranges[-1][1] == start:
                    start = ranges.pop()[0]
                ranges.append((start, end))
            if "x" in rights and "/" in line and "memfd" not in line:
                mem.seek(int(place.split("-")[0], 16))
                code[line.split()[-1]] = zlib.crc32(mem.read(end - int(place.split("-")[0], 16)))
    return ranges, code


def differences(now, before):
    """For a message: what is there more, and whose code has changed."""
    return [tuple(map(hex, r)) for r in now[0] if r not in before[0]], [name for name in now[1] if now[1][name] != before[1].get(name)]


def short(found):
    return [(error["error"], error["callers"][0].get("function") if error["error"].endswith("free") else error["place"].get("function")) for error in found]


NEW = {"new_behind": "outside", "new_freed": "freed", "new_twice": "double-free"}
OLD = {"old_behind": "outside", "old_freed": "freed", "old_twice": "double-free"}
# It reads and writes behind the block, and frees and reads.
OLD_FOUND = [("outside", "old_behind"), ("outside", "old_behind"), ("freed", "old_freed_now"), ("double-free", "old_twice")]


@ulpf_only
class Attached(unittest.TestCase):
    def test_errors_in_new_blocks(self):
        server = Server(program("heap_attached"))
        checked = Checked(server.pid)
        for word in ("harmless", *NEW, "threads", "harmless"):
            server.order(word)
        self.assertEqual(server.end(), ("well\n", 0))
        found, heap = checked.end()
        found = [error for error in found if "lost" not in error["error"]]
        self.assertEqual(short(found), [(kind, word) for word, kind in NEW.items()], found)
        self.assertGreater(heap["allocated"], 1000)
        self.assertTrue(heap["searched"])

    def test_little_address_space(self):
        """Blocks lie elsewhere where what is free is ulpf's own place."""
        server = Server("setarch", "-R", program("heap_attached"), "crowded")
        checked = Checked(server.pid)
        server.order("new_behind")
        found, _ = checked.leave()
        self.assertEqual(short(found), [("outside", "new_behind")], found)
        self.assertEqual(server.end(), ("well\n", 0))

    def test_errors_in_blocks_from_before(self):
        """Those of glibc's heaps, of all threads."""
        server = Server(program("heap_attached"))
        checked = Checked(server.pid)
        self.assertRegex(checked.notice(), r"^[0-9]{2,} blocks \([0-9]{5,} bytes\) that the program has already are checked, too")
        for word in ("harmless", *OLD, "threads"):
            server.order(word)
        found, _ = checked.leave()
        self.assertEqual(short(found), OLD_FOUND, found)
        behind, _, inside, twice = found
        self.assertIn("0 bytes behind a block of 40 bytes", behind["what"])
        self.assertIn("16 bytes inside a freed block of 200 bytes", inside["what"])
        self.assertEqual(inside["freed_by"][0]["function"], "old_freed_now")
        self.assertEqual(inside["allocated_by"], [])
        # The allocator gets what was freed meanwhile, once.
        for word in ("harmless", "threads", "harmless"):
            server.order(word)
        self.assertEqual(server.end(), ("well\n", 0))

    def test_a_heap_that_does_not_fit_together(self):
        """Is left alone, and said to be so."""
        server = Server(program("heap_attached"))
        server.order("break")
        checked = Checked(server.pid)
        self.assertIn("glibc's heap does not fit together", checked.notice())
        server.order("new_behind")
        found, _ = checked.leave()
        self.assertEqual(short(found), [("outside", "new_behind")])
        server.order("mend")
        self.assertEqual(server.end(), ("well\n", 0))

    def test_detach_leaves_every_block_valid(self):
        """A second attach checks again, despite the remains of the first one."""
        server = Server(program("heap_attached"))
        for _ in range(3):
            checked = Checked(server.pid)
            for word in ("harmless", "threads", "new_behind"):
                server.order(word)
            found, heap = checked.leave()
            self.assertEqual(short(found), [("outside", "new_behind")])
            self.assertFalse(heap["searched"])
            for word in ("harmless", "threads", "harmless"):
                server.order(word)
        self.assertEqual(server.end(), ("well\n", 0))

    def test_nothing_is_left_without_blocks(self):
        """A program that holds no block of ours has nothing of ours, whatever ends ulpf: its functions begin as they did."""
        with subprocess.Popen(["sleep", "600"]) as sleeper:
            try:
                self.assertTrue(wait_until(lambda: sleeps(sleeper.pid)))
                before = memory(sleeper.pid)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
                    with self.subTest(number):
                        checked = Checked(sleeper.pid)
                        checked.process.send_signal(number)
                        checked.end()
                        self.assertTrue(wait_until(lambda: memory(sleeper.pid) == before, 5), differences(memory(sleeper.pid), before))
            finally:
                sleeper.kill()

    @needs("c++")
    def test_a_static_program_gets_its_functions_back(self):
        """Also an `operator new[]` that only jumps to `operator new`, which the command names."""
        source = """#include <cstdio>
            #include <unistd.h>
            int main() {
                char *block = new char[40];
                printf("pid %d\\n", getpid());
                fflush(stdout);
                for (char line[16]; fgets(line, sizeof line, stdin) && line[0] != 'e';) {
                    delete[] block;
                    block = new char[40];
                    puts("done");
                    fflush(stdout);
                }
                delete[] block;
                puts("well");
            }"""
        with tempfile.TemporaryDirectory() as folder:
            built = os.path.join(folder, "arrays")
            subprocess.run(["c++", "-O1", "-static", "-x", "c++", "-o", built, "-"], input=source, text=True, check=True)
            server = Server(built)
            server.order("once")
            before = memory(server.pid)
            Checked(server.pid).leave()
            self.assertTrue(wait_until(lambda: memory(server.pid) == before, 5), differences(memory(server.pid), before))
            server.order("again")
            self.assertEqual(server.end(), ("well\n", 0))

    def test_one_heap_is_left_however_often(self):
        """Each check takes over the heap that the last one has left."""
        server = Server(program("heap_attached"))
        first = None
        for _ in range(10):
            checked = Checked(server.pid)
            for word in ("harmless", "threads", "new_behind"):
                server.order(word)
            self.assertEqual(short(checked.leave()[0]), [("outside", "new_behind")])
            server.order("threads")
            now = size(server.pid)
            first = first or now
            # The program's own mappings may differ: its threads come and go.
            self.assertLess(now[0], first[0] + 12)
            self.assertLess(now[1], first[1] + (512 << 10))
        server.order("threads")
        self.assertEqual(server.end(), ("well\n", 0))

    def test_blocks_of_an_earlier_check(self):
        """They are known to the next one, with their stacks; so are blocks that were freed under the first."""
        server = Server(program("heap_attached"))
        for word, kind, function in (("keep", "kept_behind", "keep"), ("keep_freed", "kept_freed", "keep_freed")):
            checked = Checked(server.pid)
            server.order(word)
            self.assertEqual(checked.leave()[0], [])
            server.order("harmless")
            checked = Checked(server.pid)
            server.order(kind)
            (found,), _ = checked.leave()
            self.assertEqual(found["place"]["function"], kind)
            stack = found["freed_by" if word == "keep_freed" else "allocated_by"]
            self.assertEqual(stack[0]["function"], function)
        self.assertEqual(server.end(), ("well\n", 0))

    def test_an_attach_in_the_midst_of_an_allocation(self):
        """A thread is in what an earlier check has left, on its way to the program's allocator or back: the attach waits for
        it. No access to the block that it gets is an error."""
        server = Server(program("heap_attached"))
        checked = Checked(server.pid)
        server.order("keep")
        checked.leave()
        for quarter in range(5):
            with self.subTest(quarter):
                server.order(f"hold {quarter}")
                with self.assertRaisesRegex(AssertionError, "some thread is always in its allocator.*try again"):
                    Checked(server.pid)
                checked = Checked(server.pid, meanwhile=lambda: server.order("release"))
                server.order("new_behind")
                self.assertEqual(short(checked.leave()[0]), [("outside", "new_behind")])
        self.assertEqual(server.end(), ("well\n", 0))

    def test_other_allocators(self):
        """Their blocks from before are unknown, and not reported."""
        for name in ("libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"):
            library = f"/usr/lib/x86_64-linux-gnu/{name}"
            if not os.path.exists(library):
                continue
            with self.subTest(name):
                server = Server(program("heap_attached"), environment={"LD_PRELOAD": library})
                checked = Checked(server.pid)
                first = checked.notice()
                for word in ("harmless", *NEW, "threads", "harmless"):
                    server.order(word)
                # The malloc of Debian 13's tcmalloc cannot be replaced, and a message says so.
                found, _ = checked.leave()
                refused = "tcmalloc" in name and "cannot take the place of this tcmalloc" in checked.said
                says = "the heap is not checked" if refused else "are not known, because its allocator is not glibc's"
                self.assertIn(says, first)
                self.assertEqual(short(found), [] if refused else [(kind, word) for word, kind in NEW.items()], found)
                server.order("harmless")
                self.assertEqual(server.end(), ("well\n", 0))

    def test_python(self):
        """It has a heap of its own above malloc, forks, and continues after the detach."""
        python = find_tool("python3")
        if not python:
            self.skipTest("no python3")
        work = "\n".join([
            "import os, sys, threading, zlib",
            "kept = [bytes(n) for n in range(500, 1500)]",
            "print('ready', os.getpid(), flush=True)",
            "for line in sys.stdin:",
            "    if line == 'end\\n': break",
            "    kept = [zlib.compress(b'abc' * len(k))[:0] + k for k in kept]",
            "    threads = [threading.Thread(target=lambda: sorted(str(n) for n in range(3000))) for _ in range(4)]",
            "    [t.start() for t in threads], [t.join() for t in threads]",
            "    child = os.fork()",
            "    if child == 0: kept = [k + b'1' for k in kept]; os._exit(len(kept) % 200)",
            "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(kept) % 200",
            "    print('done', flush=True)",
            "print('well')",
        ])  # fmt: skip
        server = Server(python, "-c", work, environment={"PYTHONMALLOC": "malloc"})
        checked = Checked(server.pid)
        for _ in range(3):
            server.order("work")
        found, heap = checked.leave()
        self.assertEqual(found, [])
        self.assertGreater(heap["allocated"], 10_000)
        server.order("work")
        self.assertEqual(server.end(), ("well\n", 0))

    def test_a_server_with_traffic(self):
        """The server and its clients do not notice the check, and no error is reported."""
        nginx = find_tool("nginx") or find_tool("/usr/sbin/nginx")
        if not nginx:
            self.skipTest("no nginx")
        with tempfile.TemporaryDirectory(prefix="ulpf-nginx-") as folder:
            os.chmod(folder, 0o755)
            with open(os.path.join(folder, "page"), "w") as page:
                page.write("0123456789" * 5000)
            place = os.path.join(folder, "socket")
            config = f"""
                daemon off; master_process off; pid {folder}/pid; error_log {folder}/error; events {{ }}
                http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
                    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; gzip on; gzip_types *; gzip_min_length 1;
                    server {{ listen unix:{place}; root {folder}; }} }}"""
            with open(os.path.join(folder, "config"), "w") as file:
                file.write(config)
            with subprocess.Popen([nginx, "-c", f"{folder}/config", "-p", folder], stderr=subprocess.DEVNULL) as server:
                try:
                    self.serve(server.pid, place)
                finally:
                    server.kill()

    def serve(self, pid, place):
        def ask(times):
            for n in range(times):
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(LIMIT)
                    s.connect(place)
                    s.sendall(b"GET /page HTTP/1.0\r\nAccept-Encoding: %s\r\n\r\n" % (b"gzip" if n % 2 else b"none"))
                    answer = b"".join(iter(lambda: s.recv(1 << 16), b""))
                head, body = answer.split(b"\r\n\r\n", 1)
                self.assertIn(b"200 OK", head)
                self.assertEqual(zlib.decompress(body, 31) if b"gzip" in head else body, b"0123456789" * 5000)

        end = time.monotonic() + LIMIT
        while not os.path.exists(place) and time.monotonic() < end:
            time.sleep(0.02)
        ask(20)
        for _ in range(2):
            checked = Checked(pid)
            self.assertIn("are checked, too", checked.notice())
            ask(20)
            found, heap = checked.leave()
            self.assertEqual(found, [])
            self.assertGreater(heap["allocated"], 50)
            ask(20)

    @needs("redis-check-rdb")
    def test_redis_under_its_benchmark(self):
        """ulpf attaches in the midst of it, and detaches, twice. The benchmark notices nothing, and no error is reported."""
        with tempfile.TemporaryDirectory(prefix="ulpf-redis-") as folder:
            # redis-server is the same file under another name.
            command, place = os.path.join(folder, "redis-server"), os.path.join(folder, "socket")
            os.symlink(find_tool("redis-check-rdb"), command)
            command = [command, "--port", "0", "--unixsocket", place, "--save", "", "--daemonize", "no", "--dir", folder]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
                try:
                    self.benchmark(server.pid, place)
                    subprocess.run([find_tool("redis-cli"), "-s", place, "shutdown", "nosave"], capture_output=True, timeout=LIMIT)
                    self.assertEqual(server.wait(LIMIT), 0)
                finally:
                    server.kill()

    def benchmark(self, pid, place):
        end = time.monotonic() + LIMIT
        while not os.path.exists(place) and time.monotonic() < end:
            time.sleep(0.02)
        kinds = "set,get,incr,lpush,rpop,sadd,hset,spop,zadd,mset"
        run = [find_tool("redis-benchmark"), "-s", place, "-n", "10000", "-q", "-t", kinds, "-d", "100", "-r", "1000"]
        with subprocess.Popen([*run, "-l"], stdout=subprocess.DEVNULL) as traffic:
            try:
                for _ in range(2):
                    checked = Checked(pid)
                    time.sleep(2)  # The traffic is the load.
                    found, heap = checked.leave()
                    self.assertEqual(found, [])
                    self.assertGreater(heap["allocated"], 1000)
                self.assertIsNone(traffic.poll())
            finally:
                traffic.kill()
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT)

    def test_what_does_not_go_together(self):
        for options in (["--attach", "1", "prog"], ["--attach", "1", "--aslr"], ["--attach", "1", "--exit-on-first-error"]):
            done = subprocess.run([ULPF, "check", *options], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 2, options)
