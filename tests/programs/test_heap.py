"""Real programs and their own test-suites with a watch on every page of the heap: as without us.

Every access (`rw`) or store (`w`) to memory that the program has allocated is a fault, performed by
us, so small workloads go a long way here. `tests/run --long` takes the large ones.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

from lib.cpython import BY_DAY, CPYTHON
from lib.env import GO_CACHE, LONG, PATIENCE, ULPF, find_tool, needs, ulpf_only
from lib.rsp import wait_until


class Watched(unittest.TestCase):
    limit = 900 if LONG else 300
    larger = True

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-heap-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.env = {**os.environ, "TMPDIR": self.folder, "HOME": self.folder, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
        self.env.pop("PYTHONPATH", None)

    def command(self, spec, *program):
        self.log = os.path.join(self.folder, "log")
        return [ULPF, "run", "-q", "--no-summary", "--json", "--log", self.log, "-w", spec, "--", *program]

    def summary(self):
        with open(self.log) as log:
            return json.loads(log.read().splitlines()[-1])

    def run_it(self, command, stdin=None, cwd=None):
        """(status, stdout, stderr); nothing is left behind when it takes too long."""
        with open(stdin or os.devnull, "rb") as source, \
                subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env,
                                 cwd=cwd or self.folder, start_new_session=True) as process:
            try:
                out, err = process.communicate(timeout=self.limit * PATIENCE - 20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                self.fail(f"too long: {command}\n{out.decode(errors='replace')[-2000:]}{err.decode(errors='replace')[-2000:]}")
        return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")

    def as_bare(self, spec, *program, stdin=None, cwd=None, at_least=10_000, clean=lambda text: text, between=lambda: None):
        """The same output and status with the heap watched; the watch has seen `at_least` so many accesses."""
        bare = self.run_it(program, stdin, cwd)
        between()
        got = self.run_it(self.command(spec, *program), stdin, cwd)
        self.assertEqual(tuple(map(clean, got[1:])), tuple(map(clean, bare[1:])))
        self.assertEqual(got[0], bare[0])
        summary = self.summary()
        self.assertEqual(summary["lost"], 0)
        self.assertGreater(summary["watches"][0]["hits"], at_least, summary)
        return bare


@ulpf_only
class Sqlite(Watched):
    ROWS = 20_000 if LONG else 1000

    @needs("sqlite3")
    def test_script(self):
        script = os.path.join(self.folder, "script")
        with open(script, "w") as file:
            file.write(f"""
create table t (id integer primary key, name text, value real, data blob);
create index by_name on t (name);
begin;
with recursive n(i) as (select 1 union all select i + 1 from n where i < {self.ROWS})
  insert into t (name, value, data) select 'name ' || (i * 7919 % 10007), i * 0.5, zeroblob(i % 50) from n;
commit;
select count(*), sum(value), max(name), min(id), total(length(data)) from t;
select name, value from t order by name desc limit 5;
select a.id, b.id from t a join t b on a.name = b.name and a.id < b.id limit 3;
update t set value = value * 2, data = randomblob(0) || data where id % 7 = 0;
delete from t where id % 3 = 0;
create view v as select name, count(*) over (order by value) as place from t;
select * from v order by place limit 3;
select json_group_array(id) from (select id from t limit 5);
begin; delete from t; rollback;
vacuum;
select count(*), total(length(name)), total(value) from t;
pragma integrity_check;
""")
        self.as_bare("heap:rw", "/usr/bin/sqlite3", "-batch", os.path.join(self.folder, "db"), stdin=script, at_least=1_000_000,
                     between=lambda: os.unlink(os.path.join(self.folder, "db")))


@ulpf_only
class Python(Watched):
    def module(self, name):
        if not os.path.exists("/usr/lib/python3.11/test/test_fork1.py"):
            self.skipTest("libpython3.11-testsuite is not installed")
        tests = [f"test.{name}{'.' if part else ''}{part}" for part in ([""] if LONG else CPYTHON[name])]
        status, *_ = self.as_bare("heap:w", "/usr/bin/python3", "-m", "unittest", "-v", *tests, at_least=1_000_000, clean=verdicts)
        if not LONG:  # whole suites may fail here or there on their own
            self.assertEqual(status, 0)


def verdicts(text):
    """The tests, how many of them passed, and the last line's verdict. (Their output has times.)"""
    return (re.findall(r"(?m)^(\w+ \(test\.[\w.]+\))", text), len(re.findall(r"(?m)\bok$", text)),
            re.findall(r"(?m)^(?:Ran \d+ tests?|OK.*|FAILED.*)", text))


def python_test(name):
    return lambda self: self.module(name)


for module in CPYTHON:
    method = python_test(module)
    if module not in BY_DAY:
        method.night = "six of these modules would take two minutes of a day's run"
    setattr(Python, f"test_python_{module}", method)
# Their own tests are about time.
Python.test_python_test_signal.alone = Python.test_python_test_threading.alone = True


def listens(path):
    """Between bind(2) and listen(2) the socket is there, and refuses."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


@ulpf_only
class Redis(Watched):
    REQUESTS = 2000 if LONG else 50

    @needs("redis-check-rdb")
    def test_all_commands(self):
        program = os.path.join(self.folder, "redis-server")
        os.symlink(find_tool("redis-check-rdb"), program)  # the same file under another name
        results = []
        for watched in False, True:
            where = os.path.join(self.folder, f"socket{watched:d}")
            command = [program, "--port", "0", "--unixsocket", where, "--save", "", "--daemonize", "no", "--dir", self.folder]
            with subprocess.Popen(self.command("heap:rw", *command) if watched else command, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, start_new_session=True) as server:
                try:
                    self.assertTrue(wait_until(lambda: listens(where), 60))
                    run = subprocess.run([find_tool("redis-benchmark"), "-s", where, "-n", str(self.REQUESTS), "-c", "5", "-r", "100", "--csv"],
                                         stdout=subprocess.PIPE, timeout=(self.limit - 60) * PATIENCE)
                    names = re.findall(r'(?m)^"([^"]+)"', run.stdout.decode())
                    said = subprocess.run([find_tool("redis-cli"), "-s", where], input=COMMANDS, stdout=subprocess.PIPE, timeout=60 * PATIENCE).stdout
                    subprocess.run([find_tool("redis-cli"), "-s", where, "shutdown", "nosave"], timeout=60 * PATIENCE, stderr=subprocess.DEVNULL)
                    results.append((run.returncode, names, said, server.wait(60 * PATIENCE)))
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(server.pid, signal.SIGKILL)
        self.assertEqual(results[1], results[0])
        self.assertGreater(len(results[0][1]), 15, "the benchmark's commands")
        self.assertGreater(self.summary()["watches"][0]["hits"], 100_000)


COMMANDS = b"""set greeting hello
append greeting -world
getrange greeting 2 7
incrby number 41
incr number
rpush list a b c d
linsert list before c x
lrange list 0 -1
zadd scores 3 three 1 one 2 two
zrange scores 0 -1 withscores
hset map k1 v1 k2 v2
hgetall map
sadd one 1 2 3
sadd two 2 3 4
sinter one two
setbit bits 7 1
bitcount bits
xadd stream 1-1 field value
xlen stream
eval 'local t = {} for i = 1, 50 do t[i] = i * i end return t' 0
"""


@ulpf_only
class Git(Watched):
    FILES = 300 if LONG else 40

    @needs("git")
    def test_repository(self):
        self.env.update(GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@example.org", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@example.org",
                        GIT_AUTHOR_DATE="2020-01-01T00:00:00Z", GIT_COMMITTER_DATE="2020-01-01T00:00:00Z", GIT_CONFIG_NOSYSTEM="1",
                        GIT_PAGER="cat")
        outcomes = []
        for watched in False, True:
            top = os.path.join(self.folder, f"w{watched:d}")
            os.makedirs(os.path.join(top, "work"))
            self.seen = 0
            outcomes.append([self.git(watched, top, *words) for words in self.steps(top)])
            head = subprocess.run(["git", "-C", os.path.join(top, "clone"), "rev-parse", "HEAD", "HEAD^{tree}"], stdout=subprocess.PIPE, env=self.env)
            outcomes[-1].append(head.stdout)
            self.assertEqual(subprocess.run(["git", "-C", os.path.join(top, "clone"), "fsck", "--full"], stderr=subprocess.DEVNULL, env=self.env).returncode, 0)
        self.assertEqual(outcomes[1], outcomes[0])
        self.assertTrue(all(status == 0 for status, *_ in outcomes[0][:-1]), outcomes[0])
        self.assertGreater(self.seen, 100_000)

    def steps(self, top):
        work = os.path.join(top, "work")
        yield "work", "init", "-q"
        for n in range(self.FILES):
            path = os.path.join(work, f"dir{n % 7}", f"file{n}")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.writelines(f"line {n * i} of {n}\n" for i in range(20 + n))
        yield "work", "add", "."
        yield "work", "commit", "-q", "-m", "first"
        for n in range(0, self.FILES, 3):
            with open(os.path.join(work, f"dir{n % 7}", f"file{n}"), "a") as file:
                file.write("more\n")
        yield "work", "diff", "--stat"
        yield "work", "commit", "-q", "-a", "-m", "second"
        yield "work", "log", "-p", "--stat"
        yield "work", "gc", "-q"
        yield "", "clone", "-q", "work", "clone"
        yield "clone", "fsck", "--full"
        yield "clone", "blame", "dir0/file0"

    def git(self, watched, top, where, *words):
        command = [find_tool("git"), *words]
        status, out, err = self.run_it(self.command("heap:rw", *command) if watched else command, cwd=os.path.join(top, where))
        if watched:
            self.seen += self.summary()["watches"][0]["hits"]
        return status, out.replace(top, ""), err.replace(top, "")


@ulpf_only
class Nginx(Watched):
    REQUESTS = 3000 if LONG else 150

    @needs("/usr/sbin/nginx", "nginx")
    def test_under_load(self):
        nginx = find_tool("/usr/sbin/nginx", "nginx")
        with open(os.path.join(self.folder, "large"), "wb") as file:
            file.write(bytes(range(256)) * 1000)
        with open(os.path.join(self.folder, "small"), "w") as file:
            file.write("small\n")
        answers = []
        for watched in False, True:
            where = os.path.join(self.folder, f"socket{watched:d}")
            with open(os.path.join(self.folder, "conf"), "w") as conf:
                conf.write(CONF.replace("SOCKET", where).replace("ROOT", self.folder))
            command = [nginx, "-p", self.folder, "-c", os.path.join(self.folder, "conf"), "-e", os.path.join(self.folder, "errors")]
            with subprocess.Popen(self.command("heap:rw", *command) if watched else command, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, start_new_session=True) as server:
                try:
                    self.assertTrue(wait_until(lambda: self.listens(where), 60))
                    answers.append(self.load(where))
                    subprocess.run([*command, "-s", "quit"], timeout=60 * PATIENCE, check=True)
                    answers[-1].append(server.wait(60 * PATIENCE))
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(server.pid, signal.SIGKILL)
        self.assertEqual(answers[1], answers[0])
        self.assertEqual(answers[0][-1], 0)
        self.assertGreater(self.summary()["watches"][0]["hits"], 50_000)

    def listens(self, where):
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(where) == 0

    def load(self, where):
        """Four clients at once, new and kept connections; a digest of all answers."""
        answers = [None] * 4

        def client(number):
            got = []
            connection = UnixConnection(where)
            for n in range(self.REQUESTS // 4):
                path = ("/small", "/large", "/nothing", "/moved", "/small?x=1")[n % 5]
                headers = {"Range": "bytes=100-199"} if n % 10 == 6 else {"Accept-Encoding": "gzip"} if n % 3 == 0 else {}
                connection.request("HEAD" if n % 7 == 6 else "GET", path, headers=headers)
                answer = connection.getresponse()
                got.append((answer.status, len(answer.read()), answer.getheader("Content-Type")))
                if n % 20 == 19:
                    connection.close()
            answers[number] = got

        clients = [threading.Thread(target=client, args=(n,)) for n in range(4)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join(self.limit * PATIENCE)
        self.assertNotIn(None, answers, "a client has failed")
        return answers


class UnixConnection(http.client.HTTPConnection):
    """A port that is free now may be taken when nginx asks for it; a name in our folder is ours."""

    def __init__(self, where):
        super().__init__("localhost", timeout=60 * PATIENCE)
        self.where = where

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.where)


CONF = """
daemon off; master_process off; worker_processes 1; pid ROOT/pid;
events { worker_connections 64; }
http {
  access_log ROOT/access; gzip on; gzip_types *; gzip_min_length 1;
  client_body_temp_path ROOT/body; proxy_temp_path ROOT/proxy; fastcgi_temp_path ROOT/fastcgi;
  uwsgi_temp_path ROOT/uwsgi; scgi_temp_path ROOT/scgi;
  server { listen unix:SOCKET; root ROOT; location = /moved { return 301 /small; } }
}
"""


@ulpf_only
class Runtimes(Watched):
    """Programs that bring their own memory management, signal handlers and system calls."""

    @needs("go")
    def test_go(self):
        source = os.path.join(self.folder, "main.go")
        with open(source, "w") as file:
            file.write(GO % (20000 if LONG else 300))
        program = os.path.join(self.folder, "main")
        env = {**os.environ, "HOME": self.folder, "GOCACHE": GO_CACHE, "GOFLAGS": "-mod=mod", "GO111MODULE": "off",
               "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        built = subprocess.run([find_tool("go"), "build", "-o", program, source], env=env, stderr=subprocess.PIPE, timeout=self.limit * PATIENCE)
        if built.returncode:
            self.skipTest(f"go cannot build: {built.stderr.decode()[-200:]}")
        for spec in "heap:w", "heap:rw":
            with self.subTest(spec):
                self.as_bare(spec, program, at_least=5000)
        with self.subTest("a variable of a package, and a field of one"):
            self.as_bare("main.sum:w", program, at_least=7)
            self.as_bare("main.sum.of:w", program, at_least=7)

    @needs("java")
    def test_jvm(self):
        with open(os.path.join(self.folder, "Main.java"), "w") as file:
            file.write(JAVA)
        if find_tool("javac") is None:
            self.skipTest("javac is not installed")
        subprocess.run([find_tool("javac"), "Main.java"], cwd=self.folder, check=True, timeout=self.limit * PATIENCE)
        java = os.path.realpath(find_tool("java"))
        self.as_bare("heap:w", java, "-Xmx64m", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", self.folder, "Main", at_least=100_000)


GO = """package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

type node struct{ left, right *node }

func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{tree(depth - 1), tree(depth - 1)}
}
func (n *node) count() int {
	if n.left == nil {
		return 1
	}
	return 1 + n.left.count() + n.right.count()
}
func broken() (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("nil pointer caught")
		}
	}()
	var n *node
	return fmt.Errorf("%%d", n.count())
}

var sum struct{ parts, of int }

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	fmt.Println(<-signals)
	var wait sync.WaitGroup
	results := make(chan int, 8)
	for g := 0; g < 8; g++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			words := map[string]int{}
			for i := 0; i < %d; i++ {
				words[fmt.Sprint(i %% 50)] += i
			}
			results <- words["7"] + tree(6).count()
		}()
	}
	wait.Wait()
	close(results)
	for r := range results {
		sum.of += r
	}
	runtime.GC()
	time.Sleep(5 * time.Millisecond)
	fmt.Println(sum.of, broken())
	os.Exit(3)
}
"""

JAVA = """import java.util.*;
import java.util.concurrent.*;

public class Main {
    static int depth(int n) { return n == 0 ? 0 : 1 + depth(n - 1); }
    public static void main(String[] args) throws Exception {
        Map<String, Integer> words = new TreeMap<>();
        for (int i = 0; i < 2000; i++) words.merge("w" + i % 37, i, Integer::sum);
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Integer>> parts = new ArrayList<>();
        for (int t = 0; t < 4; t++) {
            final int from = t * 100;
            parts.add(pool.submit(() -> { int s = 0; for (int i = from; i < from + 100; i++) s += depth(i % 50); return s; }));
        }
        int sum = 0;
        for (Future<Integer> part : parts) sum += part.get();
        pool.shutdown();
        String nothing = args.length > 5 ? "" : null;
        try { System.out.println(nothing.length()); } catch (NullPointerException e) { System.out.println("caught"); }
        System.gc();
        System.out.println(words.get("w5") + " " + sum);
        System.exit(4);
    }
}
"""
