"""Files that a hostile target names: root's ulpf reads them only if they do no harm, and its owner could."""

import os
import re
import signal
import struct
import subprocess
import tempfile
import threading
import unittest
import zlib

from lib.env import PATIENCE, ULPF
from lib.rsp import wait_until
from lib.users import ALICE, Place, as_root, becomes

HERE = os.path.dirname(os.path.abspath(__file__))
SEEN = r"counter: \d+"


def elf(**sections):
    """An ELF file of nothing but sections; `debug_info` is `.debug_info`."""
    names, data, headers = b"\0.names\0", b"", [bytes(64)]
    for name, content in sections.items():
        headers.append(struct.pack("<IIQQQQIIQQ", len(names), 1, 0, 0, 64 + len(data), len(content), 0, 0, 1, 0))
        names += b"." + name.encode() + b"\0"
        data += content
    headers.append(struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 64 + len(data), len(names), 0, 0, 1, 0))
    data += names
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, 0, 0, 64 + len(data), 0,
                       64, 0, 0, 64, len(headers), len(headers) - 1)
    return head + data + b"".join(headers)


def debug_link(name, crc=0):
    """Contents of a .gnu_debuglink section."""
    name = name.encode() + b"\0"
    return name + bytes(-len(name) % 4) + struct.pack("<I", crc)


class Hers(unittest.TestCase):
    """A program of Alice's in a folder of hers; root attaches to it."""

    limit = 180

    def setUp(self):
        self.place = Place(owner=ALICE)
        self.addCleanup(self.place.__exit__)
        self.program = self.path("names")
        self.cc("-g")

    def path(self, name):
        return os.path.join(self.place.path, name)

    def cc(self, *options):
        subprocess.run(["gcc", "-O1", *options, os.path.join(HERE, "names.c"), "-o", self.program], check=True)

    def strip_and_link(self, name, crc=0):
        """The program has no debug information any more, but says where that is."""
        with open(self.path("link"), "wb") as file:
            file.write(debug_link(name, crc))
        subprocess.run(["objcopy", "--strip-all", "--add-section", f".gnu_debuglink={self.path('link')}",
                        self.program], check=True)
        subprocess.run(["objcopy", "--set-section-alignment", ".gnu_debuglink=4", self.program], check=True)

    def start(self, *args):
        target = subprocess.Popen([self.program, *args], stdout=subprocess.PIPE, **becomes(ALICE))
        self.addCleanup(target.stdout.close)
        self.addCleanup(target.wait)
        self.addCleanup(target.kill)
        self.assertEqual(target.stdout.readline(), b"ready\n")
        return target


@as_root
class Named(Hers):
    """Files that the program names while it runs."""

    def attach(self, target, spec):
        """ulpf that watches, and what it says."""
        ulpf = subprocess.Popen([ULPF, "attach", "-w", spec, str(target.pid)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        ulpf.said = b""
        def read():
            for line in ulpf.stdout:
                ulpf.said += line
        reader = threading.Thread(target=read)
        reader.start()
        def end():
            ulpf.kill()
            ulpf.wait()
            reader.join()
            ulpf.stdout.close()
        self.addCleanup(end)
        return ulpf

    def said(self, ulpf, pattern):
        return wait_until(lambda: re.search(pattern, ulpf.said.decode(errors="replace")), 20)

    def ends(self, ulpf, number, seconds=5):
        ulpf.send_signal(number)
        try:
            ulpf.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.fail(f"ulpf goes on after {signal.Signals(number).name}")

    def lives(self, target):
        """The target goes on, and ulpf has left it."""
        self.assertIsNone(target.poll())
        with open(f"/proc/{target.pid}/status") as status:
            self.assertIn("TracerPid:\t0\n", status.read())

    def memory(self, ulpf):
        """The most that it has had, in MiB."""
        try:
            with open(f"/proc/{ulpf.pid}/status") as status:
                return int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) >> 10
        except (FileNotFoundError, TypeError):
            return 0

    def ticks(self, ulpf):
        """Its processor time so far, in hundredths of a second."""
        try:
            with open(f"/proc/{ulpf.pid}/stat") as stat:
                return int(stat.read().rpartition(") ")[2].split()[11])
        except FileNotFoundError:
            return 0

    def test_a_mapped_file_becomes_a_fifo(self):
        library = self.path("library.so")
        with open("/proc/self/exe", "rb") as whatever, open(library, "wb") as file:
            file.write(whatever.read(1 << 16))
        os.chmod(library, 0o644)
        target = self.start(library)
        os.unlink(library)
        os.mkfifo(library, 0o666)
        ulpf = self.attach(target, "counter")
        self.assertTrue(self.said(ulpf, SEEN), ulpf.said)
        self.ends(ulpf, signal.SIGINT)
        self.lives(target)

    def test_the_debug_file_is_a_fifo(self):
        self.strip_and_link("names.debug")
        os.mkfifo(self.path("names.debug"), 0o666)
        target = self.start()
        ulpf = self.attach(target, "counter")
        self.assertTrue(self.said(ulpf, "no variable.*FIFO"), ulpf.said)
        self.ends(ulpf, signal.SIGTERM)
        self.lives(target)

    def test_the_debug_file_is_endless(self):
        for name in ["/dev/zero", "zero.debug", "../../../../dev/zero"]:
            with self.subTest(name=name):
                self.cc("-g")
                self.strip_and_link(name)
                if name == "zero.debug":
                    os.symlink("/dev/zero", self.path(name))
                target = self.start()
                ulpf = self.attach(target, "counter")
                most = []
                answered = wait_until(lambda: most.append(self.memory(ulpf)) or b"no variable" in ulpf.said
                                      or most[-1] > 2000, 20)
                self.assertTrue(answered and b"no variable" in ulpf.said, ulpf.said)
                self.assertLess(max(most), 500)

    def test_a_sparse_debug_file(self):
        self.strip_and_link("names.debug")
        with open(self.path("names.debug"), "wb") as file:
            file.write(elf())
            file.truncate(200 << 30)
        target = self.start()
        ulpf = self.attach(target, "counter")
        self.assertTrue(self.said(ulpf, "no variable.*too large"), ulpf.said)

    def debug_file(self, name, mode=0o644):
        """The program's debug information goes to a file of root's."""
        subprocess.run(["objcopy", "--only-keep-debug", self.program, name], check=True)
        os.chmod(name, mode)
        with open(name, "rb") as file:
            return zlib.crc32(file.read())

    def test_a_link_to_a_file_of_roots(self):
        with Place() as root:
            secret = os.path.join(root.path, "secret.debug")
            crc = self.debug_file(secret, 0o600)
            os.symlink(secret, self.path("names.debug"))
            self.strip_and_link("names.debug", crc)
            target = self.start()
            ulpf = self.attach(target, "counter")
            self.assertTrue(self.said(ulpf, "no variable"), ulpf.said)
            ulpf.wait(20 * PATIENCE)
            # A file that Alice may read is read.
            os.chmod(secret, 0o644)
            ulpf = self.attach(target, "counter")
            self.assertTrue(self.said(ulpf, SEEN), ulpf.said)

    def test_debug_information_beside_the_program(self):
        crc = self.debug_file(self.path("names.debug"))
        self.strip_and_link("names.debug", crc)
        ulpf = self.attach(self.start(), "counter")
        self.assertTrue(self.said(ulpf, SEEN), ulpf.said)

    def test_signals_end_it_while_it_reads(self):
        # 150 MB of entries without contents: DW_TAG_member, nothing else.
        count = 150 << 20
        abbrev = bytes([1, 0x11, 1, 0, 0, 2, 0x0d, 0, 0, 0, 0])
        info = struct.pack("<IHIB", 7 + 1 + count, 4, 0, 8) + b"\1" + b"\2" * count
        data = elf(debug_abbrev=abbrev, debug_info=info)
        with open(self.path("names.debug"), "wb") as file:
            file.write(data)
        self.strip_and_link("names.debug", zlib.crc32(data))
        for number in [signal.SIGINT, signal.SIGTERM]:
            with self.subTest(number=number):
                target = self.start()
                ulpf = self.attach(target, "counter")
                # The file has been read, and its entries are being looked at: it has used the processor since.
                wait_until(lambda: self.memory(ulpf) > count >> 20)
                read = self.ticks(ulpf)
                wait_until(lambda: ulpf.poll() is not None or self.ticks(ulpf) > read + 30)
                if ulpf.poll() is not None:
                    self.skipTest("this machine is too fast for it")
                self.ends(ulpf, number, 2)
                self.lives(target)

    def test_a_file_that_shrinks_while_it_is_read(self):
        with open(self.path("names.debug"), "wb") as file:
            file.write(elf(debug_info=bytes(64 << 20)))
        self.strip_and_link("names.debug")
        over = threading.Event()
        def shrink():
            while not over.wait(0.001):
                os.truncate(self.path("names.debug"), 100)
                os.truncate(self.path("names.debug"), 64 << 20)
        thread = threading.Thread(target=shrink)
        thread.start()
        try:
            for _ in range(5):
                ulpf = self.attach(self.start(), "counter")
                self.assertTrue(self.said(ulpf, "no variable"), ulpf.said)
                self.assertGreaterEqual(ulpf.wait(20 * PATIENCE), 0, "killed by a signal")
        finally:
            over.set()
            thread.join()

    def test_a_program_that_only_runs(self):
        """Alice may execute, not read, a program of root's: neither may root for her."""
        os.chown(self.program, 0, 0)
        os.chmod(self.program, 0o711)
        target = self.start()
        ulpf = self.attach(target, "counter")
        self.assertTrue(self.said(ulpf, "no variable|may not|cannot"), ulpf.said)


@as_root
class Afterwards(Hers):
    """Files that `ulpf last` opens after the end of a program of Alice's that root has watched."""

    def setUp(self):
        super().setUp()
        cache = tempfile.TemporaryDirectory(prefix="ulpf-last-")
        self.addCleanup(cache.cleanup)
        self.env = {**os.environ, "XDG_CACHE_HOME": cache.name}

    def watched(self):
        """The number of a process that was watched and has ended."""
        target = self.start()
        ulpf = subprocess.Popen([ULPF, "attach", "-w", "counter", str(target.pid)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.env)
        with ulpf:
            self.addCleanup(ulpf.kill)
            self.assertTrue(any(re.search(SEEN, line.decode()) for line in ulpf.stdout))
            target.kill()
            ulpf.stdout.read()
        return target.pid

    def last(self, what, pid):
        done = subprocess.run([ULPF, "last", what, "--pid", str(pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=self.env, timeout=60 * PATIENCE)
        return done.returncode, done.stdout.decode()

    def test_its_names(self):
        status, said = self.last("counter", self.watched())
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"counter: \d+ → \d+")

    def test_a_file_of_roots_in_its_place(self):
        with Place() as root:
            secret = os.path.join(root.path, "secret")
            source = os.path.join(root.path, "secret.c")
            with open(source, "w") as text:
                text.write("int hidden; int main(void) { return hidden; }")
            subprocess.run(["gcc", "-g", "-o", secret, source], check=True)
            os.chmod(secret, 0o600)
            # Its owner can give the program the same time.
            at = os.stat(secret)
            os.utime(self.program, ns=(at.st_atime_ns, at.st_mtime_ns))
            pid = self.watched()
            os.unlink(self.program)
            os.symlink(secret, self.program)
            status, said = self.last("hidden", pid)
            self.assertEqual(status, 2)
            self.assertNotIn("cannot tell who", said)
            # A file that Alice may read is read.
            os.chmod(secret, 0o644)
            self.assertIn("cannot tell who", self.last("hidden", pid)[1])

    def test_a_fifo_in_its_place(self):
        pid = self.watched()
        at = os.stat(self.program)
        os.unlink(self.program)
        os.mkfifo(self.program, 0o666)
        os.utime(self.program, ns=(at.st_atime_ns, at.st_mtime_ns))
        self.assertEqual(self.last("counter", pid)[0], 2)


class Specs(unittest.TestCase):
    def test_deep_ones_are_refused(self):
        many, nested, long = b"more than 100 signs, brackets and fields in one another", b"too deeply nested", b"the condition is too long"
        for spec, why in [("*" * 20000 + "p", many), ("(" * 20000 + "p", many), ("p" + ".a" * 20000, many), ("p" + "[1]" * 20000, many),
                          ("p if " + "(" * 20000, nested), ("p if " + "!" * 20000 + "1", nested), ("p if a" + ".b" * 20000, long),
                          ("p if (int " + "*" * 20000 + ")1", nested)]:
            with self.subTest(spec=spec[:10]):
                done = subprocess.run([ULPF, "run", "-w", spec, "/bin/true"], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, timeout=60 * PATIENCE)
                self.assertEqual(done.returncode, 2)
                self.assertIn(why, done.stdout)


if __name__ == "__main__":
    unittest.main()
