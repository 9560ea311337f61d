"""Memory from other processes: areas of other users that pretend to be a session, and of programs that forge their
own records."""

import contextlib
import fcntl
import functools
import os
import re
import struct
import subprocess
import tempfile
import unittest
import urllib.request

from lib.env import PATIENCE, ROOT, ULPF, example, ulpf_only
from lib.rsp import wait_until
from lib.together import failures
from lib.users import ALICE, Place, as_root, becomes

HERE = os.path.join(ROOT, "tests", "hostile")

# linux/fcntl.h
F_GET_SEALS, SEALS = 1034, 0x1 | 0x2 | 0x4  # seal, shrink, grow


def build(source, file, *options):
    subprocess.run(["gcc", "-O1", "-g", "-pthread", *options, "-o", file, os.path.join(HERE, source)], check=True)
    os.chmod(file, 0o755)
    return file


def limited(*words, seconds=40, memory=3 << 29, stdin=subprocess.DEVNULL):
    """A command of ulpf's with 1.5 GiB at most: status, all that it said."""
    # (Not preexec_fn, which may not be used beside other threads.)
    command = ["prlimit", f"--data={memory}", "--core=0", ULPF, *words]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            said, _ = process.communicate(timeout=seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"ulpf {' '.join(words)} has not ended after {seconds} s") from None
    return process.returncode, said.decode(errors="replace")


def area_of(pid):
    """The file of the area that a session shares with its program."""
    found = []

    def look():
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:ulpf-shared"):
                    found.append(f"/proc/{pid}/fd/{fd}")
            except OSError:
                pass
        return found
    assert wait_until(look, 20), "no shared area"
    return found[0]


@contextlib.contextmanager
def session():
    """A ulpf at work; its area, open."""
    ulpf = subprocess.Popen([ULPF, "run", "-w", "bank.fees", "--log", os.devnull, "--", example("bank"), "60", "2000"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with open(area_of(ulpf.pid), "r+b", buffering=0) as area:
            assert wait_until(lambda: fcntl.fcntl(area, F_GET_SEALS) & SEALS == SEALS), "not sealed"
            yield area
    finally:
        ulpf.terminate()
        ulpf.wait()


@functools.cache
def length_of_areas():
    with session() as area:
        return os.fstat(area.fileno()).st_size


class Pretender:
    """A process of another user that looks like a ulpf at work."""

    def __init__(self, *kind):
        self.place = Place()
        self.program = build("pretender.c", os.path.join(self.place.path, "ulpf"))
        self.kind = kind

    def __enter__(self):
        self.process = subprocess.Popen([self.program, str(length_of_areas()), *self.kind], stdout=subprocess.PIPE, cwd="/", **becomes(ALICE))
        assert self.process.stdout.readline() == b"ready\n"
        self.pid = self.process.pid
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self.place.__exit__()


KINDS = [["random"], ["full"], ["moving"], ["truncated"], ["unsealed"], ["sockets", "endless"], ["sockets", "stars"]]


@as_root
@ulpf_only
class OfAnotherUser(unittest.TestCase):
    limit = 400

    def test_nobody_elses_sessions_unless_asked_for(self):
        for kind in KINDS:
            with self.subTest(kind), Pretender(*kind) as pretender:
                pid = str(pretender.pid)
                # (There may be sessions of one's own.)
                status, said = limited("top", "--plain", "--count", "1")
                self.assertEqual(status, 0, said)
                self.assertNotIn(f"({pid}),", said)
                status, said = limited("top", "--plain", "--count", "1", "--pid", pid)
                self.assertEqual(status, 0, said)
                self.assertRegex(said, f"No ulpf of yours watches process {pid}; --all-users")
                for words in (["last", "0x1000"], ["export", "-o", "-", "--for", "1"]):
                    status, said = limited(*words, "--pid", pid)
                    self.assertEqual(status, 2, said)
                    self.assertRegex(said, f"process {pid} belongs to another user; --all-users")

    def test_whoever_asks_gets_an_answer_all_the_same(self):
        length_of_areas()

        def check(kind):
            with Pretender(*kind) as pretender:
                pid = str(pretender.pid)
                sealed = kind[0] not in ("truncated", "unsealed")
                status, said = limited("top", "--plain", "--all-users", "--count", "1", "--pid", pid)
                self.assertEqual(status, 0, said[-2000:])
                self.assertEqual(f"({pid})," in said, sealed, said[-2000:])
                status, said = limited("last", "0x1000", "--all-users", "--pid", pid)
                self.assertIn(status, (0, 1, 2), said[-2000:])
                status, said = limited("export", "-o", "-", "--format", "csv", "--for", "3", "--all-users", "--pid", pid)
                self.assertEqual(status, 0 if sealed else 2, said[-2000:])
        # Side by side: each waits for three seconds.
        self.assertEqual(failures(check, [(kind,) for kind in KINDS]), "")
    test_whoever_asks_gets_an_answer_all_the_same.idle = True
    test_whoever_asks_gets_an_answer_all_the_same.costs = "three commands for each kind of forged session"

    def test_a_session_of_ones_own_is_found_beside_them(self):
        with Pretender("full") as pretender, tempfile.TemporaryDirectory() as folder:
            forger = build("forger.c", os.path.join(folder, "forger"))
            ulpf = subprocess.Popen([ULPF, "run", "-w", "counter", "--log", os.devnull, "--", forger],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            try:
                self.assertEqual(ulpf.stdout.readline(), b"forged\n")
                status, said = limited("last", "counter")
                if "several programs are watched" in said:  # by other tests, as the same user
                    self.assertNotIn(f"{pretender.pid} ", said)
                    status, said = limited("last", "counter", "--pid", re.search(r"(\d+) \(forger\)", said)[1])
                self.assertEqual(status, 0, said)
                self.assertRegex(said, r"counter: \d+ → \d+")
            finally:
                ulpf.terminate()
                ulpf.communicate()


    def test_an_answer_of_many_small_values(self):
        """16 MB of JSON that would be 1.7 GB of values."""
        with Pretender("sockets", "objects") as pretender:
            status, said = limited("top", "--plain", "--all-users", "--count", "4", "--pid", str(pretender.pid), memory=300 << 20)
            self.assertEqual(status, 0, said[-2000:])
            self.assertIn(f"({pretender.pid}),", said)
    test_an_answer_of_many_small_values.idle = True


@as_root
@ulpf_only
class Claims(unittest.TestCase):
    """Sessions that say that they are another process's."""

    limit = 180

    def setUp(self):
        length_of_areas()
        # An unwatched process of root's.
        self.victim = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
        self.addCleanup(self.victim.wait)
        self.addCleanup(self.victim.kill)

    def refused(self, pid, by, *options):
        """No command shows the process's name, maps or symbols as those of a watched one."""
        why = f"process {by} has a session that claims to watch process {pid}, but the kernel does not confirm that"
        for words in ["last", "0x1000"], ["export", "-o", "-", "--for", "1"]:
            status, said = limited(*words, "--pid", str(pid), *options)
            self.assertEqual(status, 2, said)
            self.assertIn(why, said)
        status, said = limited("top", "--plain", "--count", "1", "--pid", str(pid), *options)
        self.assertEqual(status, 0, said)
        self.assertIn(why, said)
        status, said = limited("top", "--plain", "--count", "1", *options)
        self.assertNotIn(f"({pid}),", said)

    def test_of_a_stranger(self):
        with Pretender("claims", str(self.victim.pid)) as pretender:
            self.refused(self.victim.pid, pretender.pid, "--all-users")

    def test_metrics(self):
        with Pretender("claims", str(self.victim.pid)):
            with subprocess.Popen([ULPF, "export", "--metrics", "0", "--all-users", "--pid", str(self.victim.pid)], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as export:
                try:
                    address = re.search(r"http://\S+", export.stderr.readline())[0]
                    with urllib.request.urlopen(address, timeout=20 * PATIENCE) as answer:
                        said = answer.read().decode()
                finally:
                    export.terminate()
            self.assertNotIn("{", said)

    def test_of_a_process_that_has_mapped_what_it_was_sent(self):
        """A display server, say: its clients send it memory."""
        program = "import mmap, os, sys; f = os.open(sys.argv[1], os.O_RDWR); m = mmap.mmap(f, 4096); print(flush=True); input()"
        with Pretender("full") as pretender:
            area = area_of(pretender.pid)
            with subprocess.Popen(["python3", "-c", program, area], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
                server.stdout.readline()
                with open(area, "r+b", buffering=0) as header:
                    header.seek(32)
                    header.write(struct.pack("<I", server.pid))
                self.refused(server.pid, pretender.pid, "--all-users")
                server.communicate()

    def test_of_a_program_that_root_watches(self):
        """It writes another process's number into the area of its own session."""
        with Place() as place:
            forger = build("forger.c", os.path.join(place.path, "forger"))
            with subprocess.Popen([forger, "wait", str(self.victim.pid)], stdout=subprocess.PIPE, cwd="/", **becomes(ALICE)) as target, \
                    subprocess.Popen([ULPF, "attach", "-w", "counter", "--log", os.devnull, str(target.pid)],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ulpf:
                try:
                    self.assertEqual(target.stdout.readline(), b"forged\n")
                    self.refused(self.victim.pid, ulpf.pid)
                finally:
                    ulpf.terminate()
                    target.kill()


@ulpf_only
class Sealed(unittest.TestCase):
    def test_nobody_takes_the_area_away(self):
        with session() as area:
            for length in 0, os.fstat(area.fileno()).st_size * 2:
                with self.assertRaises(PermissionError):
                    os.ftruncate(area.fileno(), length)


@ulpf_only
class Forged(unittest.TestCase):
    def test_a_hit_from_the_future_withholds_nothing(self):
        with Place() as place:
            forger = build("forger.c", os.path.join(place.path, "forger"))
            with subprocess.Popen([ULPF, "run", "-w", "counter", "--log", f"{place.path}/log", "--", forger],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ulpf:
                self.forges(ulpf.stdout, ulpf, f"{place.path}/log")

    @as_root
    def test_nor_does_another_users(self):
        with Place() as place:
            forger = build("forger.c", os.path.join(place.path, "forger"))
            with subprocess.Popen([forger, "wait"], stdout=subprocess.PIPE, cwd="/", **becomes(ALICE)) as target, \
                    subprocess.Popen([ULPF, "attach", "-w", "counter", "--log", f"{place.path}/log", str(target.pid)],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ulpf:
                self.forges(target.stdout, ulpf, f"{place.path}/log")
                target.kill()

    def forges(self, said, ulpf, log):
        try:
            self.assertEqual(said.readline(), b"forged\n")

            def text():
                with open(log, encoding="utf-8") as lines:
                    return lines.read()
            # (More than two hundred there were before.)
            self.assertTrue(wait_until(lambda: len(re.findall(r"(?:update|write) +counter: ", text())) > 700, 30), text()[-2000:])
            self.assertIsNone(ulpf.poll())
            self.assertEqual(len(re.findall(r"has written over the memory in which its hits are kept", text())), 1)
        finally:
            ulpf.terminate()
