"""Real programs with hundreds of watches armed: same output, same exit status as bare."""

import os
import re
import subprocess
import tempfile

from lib.cases import Case
from lib.cpython import BY_DAY, CPYTHON
from lib.env import LONG, PATIENCE, ROOT, STAND_IN, bare, example, find_tool, needs
from lib.rsp import wait_until

IN_GDB = os.path.join(ROOT, "tests", "lib", "in_gdb.py")
MANY = 3 if STAND_IN else 400


class Programs(Case):
    limit = 600 if LONG else 300
    larger = True

    def under_watch(self, *program, stop, addresses, stdin=None, ignore=0, seconds=500, cwd=None, env=None):
        """Runs up to the `ignore`-th call of `stop`, sets MANY watches, runs to the end.

        `addresses` is a Python expression, evaluated inside gdb.
        """
        server = self.serve(*program, stdin=stdin or subprocess.DEVNULL, cwd=cwd, env=env, options=["--no-startup-with-shell"])
        gdb = self.gdb()
        gdb("handle all nostop noprint pass\nhandle SIGINT nostop noprint pass")
        # gdb would stop at each of thousands of forks, and set all its watches again (gdb.test_follow does that).
        gdb("set remote fork-event-feature-packet off\nset remote vfork-event-feature-packet off")
        gdb(f"target remote {server.target}")
        gdb(f"source {IN_GDB}")
        gdb(f"break {stop}")
        gdb(f"ignore 1 {ignore}")
        self.assertSays(gdb("continue", 120), r"Breakpoint 1, ")
        gdb("delete")
        said = gdb(f"python print('armed', watch(list({addresses})[:{MANY}]))", 120)
        self.assertSays(said, rf"armed {MANY}")
        return server, gdb

    def to_the_end(self, server, gdb, seconds=500):
        out = gdb("python run_to_the_end()", seconds)
        match = re.search(r"hits \d+, still armed \d+, status (\d+)", out)
        self.assertTrue(match, out)
        server.wait()
        return int(match.group(1)), server.stdout()

    @needs("sqlite3")
    def test_sqlite_100_000_inserts(self):
        script = "\n".join([
            "create table t (id integer primary key, name text, value real);",
            "create index by_name on t (name);",
            *(f"insert into t (name, value) values ('early {i}', {i}.5);" for i in range(50)),
            "begin;",
            *(f"insert into t (name, value) values ('name {i * 7919 % 100003}', {i} * 0.5);" for i in range(100_000)),
            "commit;",
            "select count(*), sum(value), max(name), min(id) from t;",
            "select name, value from t order by name limit 5;",
            "delete from t where id % 3 = 0;",
            "select count(*), total(length(name)) from t;",
            "pragma integrity_check;",
        ]).encode()
        with tempfile.TemporaryFile() as file:
            file.write(script)
            file.flush()
            file.seek(0)
            expected = bare("/usr/bin/sqlite3", "-batch", ":memory:", stdin=file)
            file.seek(0)
            got = self.to_the_end(*self.under_watch(
                "/usr/bin/sqlite3", "-batch", ":memory:", stdin=file, stop="sqlite3_step", ignore=40,
                # All but the last page: every statement works there, 16 million false positives in all (the
                # others have nine million).
                addresses=f"on_few_pages({MANY + MANY // 7 + 8})"))
        self.assertEqual(got, expected)

    PYTHON_TESTS = ["test_json", "test_threading", "test_subprocess", "test_dict", "test_list", "test_re", "test_struct",
                    "test_zlib", "test_heapq", "test_bytes", "test_mmap", "test_weakref"]

    def python(self, module):
        if not os.path.exists("/usr/lib/python3.11/test/test_json"):
            self.skipTest("libpython3.11-testsuite is not installed")
        command = ["/usr/bin/python3", "-m", "test", module]
        if not LONG:
            command += [word for part in CPYTHON.get(module, []) if part
                        for word in ("-m", f"*.{part}" if ".test_" in part else f"*.{part}.*")]
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "TMPDIR": folder, "PYTHONHASHSEED": "0", "HOME": folder}
            env.pop("PYTHONPATH", None)
            status, text = bare(*command, timeout=300, env=env)
            self.assertNotRegex(text, r"NO TESTS? RUN")
            got = self.to_the_end(*self.under_watch(
                *command, stop="Py_RunMain", env=env,
                addresses=f"on_few_pages({MANY})"))
        self.assertEqual(got[0], status)
        self.assertEqual(summary(got[1]), summary(text))

    @needs("redis-check-rdb")
    def test_redis_under_its_benchmark(self):
        with tempfile.TemporaryDirectory() as folder:
            # redis-server is the same file under another name; the package of that name would start a service.
            program = os.path.join(folder, "redis-server")
            os.symlink(find_tool("redis-check-rdb"), program)
            results = []
            for watched in False, True:
                socket = os.path.join(folder, f"socket{watched:d}")
                command = [program, "--port", "0", "--unixsocket", socket, "--save", "", "--daemonize", "no", "--dir", folder]
                if watched:
                    server, gdb = self.under_watch(*command, stop="epoll_wait", ignore=0,
                                                   addresses="words(*mapping('redis-check-rdb'), 64)")
                    gdb.send("python run_to_the_end()")
                else:
                    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    self.addCleanup(lambda: (process.kill(), process.wait()))
                self.assertTrue(wait_until(lambda: os.path.exists(socket), 30))
                results.append(self.benchmark(socket))
                if watched:
                    out = gdb.answer(60)
                    results[-1].append("status 0" in out)
                    server.wait()
                else:
                    results[-1].append(process.wait(30 * PATIENCE) == 0)
        self.assertEqual(results[1], results[0])

    def benchmark(self, socket):
        cli = [find_tool("redis-cli"), "-s", socket]
        run = subprocess.run([find_tool("redis-benchmark"), "-s", socket, "-n", "10000", "-q", "-t", "set,get,incr,lpush,rpop,sadd,hset,spop,zadd,mset",
                              "-d", "100"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300 * PATIENCE)
        commands = ["set greeting hello", "append greeting -world", "get greeting", "incrby number 41", "incr number", "rpush list a b c d",
                    "lrange list 0 -1", "zadd scores 3 three 1 one 2 two", "zrange scores 0 -1 withscores", "dbsize",
                    "get counter:__rand_int__", "llen mylist", "eval 'return {1,2,redis.call(\"get\",\"number\")}' 0"]
        said = subprocess.run(cli, input="\n".join(commands).encode(), stdout=subprocess.PIPE, timeout=60 * PATIENCE).stdout.decode()
        subprocess.run([*cli, "shutdown", "nosave"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60 * PATIENCE)
        return [run.returncode, re.sub(r"[\d.]+ requests.*", "", run.stdout.decode().replace("\r", "\n")).count(": \n") > 0, said]

    def test_cpp_map_exceptions_threads(self):
        expected = bare(example("cpp_map"))
        got = self.to_the_end(*self.under_watch(example("cpp_map"), stop="ready",
                                                addresses="(block for block, size in heap_blocks(32))"))
        self.assertEqual(got, expected)

    def test_rust(self):
        expected = bare(example("rusty"))
        server, gdb = self.under_watch(example("rusty"), stop="ready", addresses="words(*mapping('[heap]'), 64)")
        self.assertEqual(self.to_the_end(server, gdb), expected)


def python_test(module):
    def test(self):
        self.python(module)
    test.__name__ = f"test_python_{module}"
    if module not in BY_DAY:
        test.night = "one of these modules takes up to a minute"
    return test


for module in Programs.PYTHON_TESTS:
    setattr(Programs, f"test_python_{module}", python_test(module))


def summary(text):
    """Output of `python3 -m test`, without its times and the like."""
    text = re.sub(r"\d+:\d+:\d+( load avg: [\d.]+)?", "", text)
    text = re.sub(r"(in )?[\d.]+ (ms|sec|min)( [\d.]+ sec)?", "TIME", text)
    return [l for l in text.splitlines() if not re.match(r"==|Using random seed|.*build-|test_\w+ passed", l)]
