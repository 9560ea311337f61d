"""Hot accesses are cached for the next run."""

import glob
import os
import random
import re
import stat
import struct
import subprocess
import tempfile
import unittest

from lib.env import ROOT, bare, example, needs, ulpf_only
from lib.run import ulpf

MAGIC, PAGE, ENTRY = b"ulpfhot2", struct.Struct("<IIQ"), struct.Struct("<Q")
WORK = ["/usr/bin/sqlite3", ":memory:", """create table t(a integer primary key, b text); create index i on t(b);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 300) insert into t select x, printf('%d', x * 7919 % 300) from n;
select count(*), sum(length(b)) from t where b like '1%';"""]


def pages(said):
    """Contents of a file: (offset of a page, hash of its code, its entries)."""
    assert said.startswith(MAGIC)
    at, found = len(MAGIC), []
    while at < len(said):
        offset, count, code = PAGE.unpack_from(said, at)
        at += PAGE.size
        found.append((offset, code, [entry for entry, in ENTRY.iter_unpack(said[at:at + count * ENTRY.size])]))
        at += count * ENTRY.size
    return found


def packed(all_pages):
    return MAGIC + b"".join(PAGE.pack(offset, len(entries), code) + b"".join(ENTRY.pack(entry % 2**64) for entry in entries)
                            for offset, code, entries in all_pages)


def hash_of_instruction(code):
    value = 0xcbf29ce484222325
    for byte in code:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return (value ^ value >> 23 ^ value >> 46) & 0x7fffff


def hash_of_page(code):
    value = 0xcbf29ce484222325
    for word, in struct.iter_unpack("<Q", code):
        value = (value ^ word) * 0x100000001b3 % 2**64
        value ^= value >> 29
    return value ^ len(code)


@ulpf_only
class Forged(unittest.TestCase):
    """Files that lead into the middle of an instruction. A program that root runs may be of a build ID that others chose."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-hot-")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "ulpf")
        os.mkdir(self.folder, 0o700)
        self.env = {**os.environ, "XDG_CACHE_HOME": folder.name, "ULPF_HOT_CACHE": "on"}
        self.program = os.path.join(folder.name, "inside")
        self.id = "0123456789abcdef0123456789abcdef01234567"
        self.build()

    def build(self, *options):
        source = os.path.join(ROOT, "tests", "hostile", "inside.c")
        subprocess.run(["gcc", "-O1", "-g", f"-Wl,--build-id=0x{self.id}", *options, "-o", self.program, source], check=True)
        with open(self.program, "rb") as file:
            self.code = file.read()
        # mov %al,(%rdi), as a part of a constant.
        self.at = self.code.find(bytes.fromhex("48b88807")) + 2

    def page(self, at, code=None):
        """The page of code that holds this offset: where it begins, its hash."""
        start = at & ~0xfff
        return start, hash_of_page((code or self.code)[start:start + 4096].ljust(4096, b"\0"))

    def put(self, *found):
        with open(os.path.join(self.folder, self.id + ".hot"), "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(packed(found))

    def entry(self, at, length):
        return at | length << 32 | 1 << 40 | hash_of_instruction(self.code[at:at + length]) << 41

    def run_once(self):
        status, out, err = ulpf("run", "-q", "-w", "counter", "-w", "heap:rw", "--", self.program, env=self.env)
        self.assertEqual((status, out), bare(self.program), err)
        return int(re.search(r"(\d+) hits on", err)[1]), int(re.search(r"(\d+) faults", err)[1])

    def test_as_it_should_be(self):
        """The helper writes valid files: right entries spare faults, others do not."""
        self.run_once()  # libraries have files of their own from here on
        _, faults = self.run_once()
        listed = subprocess.run(["objdump", "-d", "--no-show-raw-insn", self.program], stdout=subprocess.PIPE, check=True, text=True).stdout
        late = listed.partition("<late>:\n")[2].partition("\n\n")[0]
        begins = [(int(at, 16), "<counter>" in rest) for at, rest in re.findall(r"^ *([0-9a-f]+):(.*)", late, re.MULTILINE)]
        right = [self.entry(at, behind - at) for (at, is_store), (behind, _) in zip(begins, begins[1:]) if is_store]
        start, code = self.page(begins[0][0])
        self.put((start, code, right))
        self.assertLess(self.run_once()[1], faults)
        self.put((start, code ^ 1, right))
        self.assertEqual(self.run_once()[1], faults)

    def test_in_a_constant(self):
        hits, _ = self.run_once()
        start, code = self.page(self.at)
        self.put((start, code, [self.entry(self.at, 2)]))
        self.assertEqual(self.run_once()[0], hits)
        # And with what is patched rightly beside it.
        first = self.at - 2
        self.put((start, code, [self.entry(first, 10), self.entry(self.at, 2), self.entry(self.at + 8, 1)]))
        self.assertEqual(self.run_once()[0], hits)

    def test_in_code_without_unwind_tables(self):
        self.build("-fno-asynchronous-unwind-tables", "-fno-exceptions")
        hits, _ = self.run_once()
        start, code = self.page(self.at)
        self.put((start, code, [self.entry(self.at, 2)]))
        self.assertEqual(self.run_once()[0], hits)

    def test_of_other_code_with_that_build_id(self):
        """Of another build, where an instruction begins there."""
        own = self.code, self.at
        self.build("-DINSTEAD")
        other, self.code, self.at = self.code, *own
        start, code = self.page(self.at, other)
        self.assertNotEqual(code, self.page(self.at)[1])
        with open(self.program, "wb") as file:
            file.write(self.code)
        self.put((start, code, [self.entry(self.at, 2)]))
        self.run_once()


@ulpf_only
@needs("sqlite3")
class Hot(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-hot-")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "ulpf")
        self.env = {**os.environ, "XDG_CACHE_HOME": folder.name, "ULPF_HOT_CACHE": "on"}

    def run_once(self, *program, watch="heap:rw", **env):
        """Returns the hits and the faults. The output must be as without ulpf."""
        program = program or WORK
        status, out, err = ulpf("run", "--no-aslr", "-q", "-w", watch, "--", *program, env={**self.env, **env})
        self.assertEqual((status, out), bare(*program), err)
        hits = re.search(r"(\d+) hits on 1 watch, (\d+) silent", err).groups()
        return hits, int(re.search(r"(\d+) faults", err).group(1))

    def files(self):
        return sorted(glob.glob(os.path.join(self.folder, "*.hot")))

    def test_the_next_run_has_fewer_faults(self):
        hits, faults = self.run_once()
        files = self.files()
        self.assertGreater(len(files), 2)
        for path in [self.folder, *files]:
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o077, 0, path)
            self.assertRegex(os.path.basename(path), r"^(ulpf|[0-9a-f]{40}\.hot)$")
        for path in files:
            with open(path, "rb") as file:
                said = file.read()
            found = pages(said)
            self.assertEqual(packed(found), said)
            offsets = [entry & 0xffffffff for *_, entries in found for entry in entries]
            self.assertEqual(offsets, sorted(set(offsets)))
            self.assertTrue(all(entry & 0xfffff000 == offset for offset, _, entries in found for entry in entries))
        again, fewer = self.run_once()
        self.assertEqual(again, hits)
        self.assertLess(fewer, faults / 2)
        # With a write watch on the heap, no load is patched.
        stores, of_stores = self.run_once(watch="heap", ULPF_HOT_CACHE="off")
        again, fewer = self.run_once(watch="heap")
        self.assertEqual(again, stores)
        self.assertLess(fewer, of_stores)

    def test_of_a_program_that_is_executed(self):
        """A program's hot accesses are saved before it executes another program."""
        command = ["/bin/sh", "-c", 'n=0; while [ $n -lt 300 ]; do n=$((n + 1)); v="$v $n"; done; exec true']
        self.run_once(*command)
        self.assertGreater(len(self.files()), 0)

    def test_a_checked_heap(self):
        said = [ulpf("check", "--", *WORK, env=self.env) for _ in range(2)]
        self.assertEqual(*said)
        self.assertGreater(len(self.files()), 1)
        _, _, err = ulpf("check", "--", example("heap_errors"), "overflow", env=self.env)
        twice = ulpf("check", "--", example("heap_errors"), "overflow", env=self.env)[2]
        number = re.compile(r"0x[0-9a-f]+|\b\d{3,}\b")
        self.assertEqual(number.sub("N", twice), number.sub("N", err))

    def test_nothing_is_kept(self):
        before = self.run_once(ULPF_HOT_CACHE="off")
        self.assertEqual(self.files(), [])
        self.assertEqual(self.run_once(ULPF_HOT_CACHE="off"), before)

    def test_others_have_no_say(self):
        """A folder or a file that others may write to, a link, something that is no file: as if there were none."""
        hits, faults = self.run_once()
        os.chmod(self.folder, 0o777)
        self.assertEqual(self.run_once(), (hits, faults))
        os.chmod(self.folder, 0o700)
        for path in self.files():
            os.chmod(path, 0o666)
        self.assertEqual(self.run_once()[0], hits)
        for path in self.files():
            os.rename(path, path + ".old")
            os.symlink(path + ".old", path)
        self.assertGreater(self.run_once()[1], faults * 3 / 4)
        for path in self.files():
            os.remove(path)
            os.mkfifo(path)
        self.assertGreater(self.run_once()[1], faults * 3 / 4)

    def test_damaged_files(self):
        """Whatever stands there: the program does what it does, and each access is counted."""
        hits, _ = self.run_once()
        kept = {}
        for path in self.files():
            with open(path, "rb") as file:
                kept[path] = file.read()
        rng = random.Random(21)

        def entries(change):
            return lambda said: packed((offset, code, [change(entry) for entry in all]) for offset, code, all in pages(said))

        def other_code(said):
            return packed((offset, code ^ 1, entries) for offset, code, entries in pages(said))

        def torn(said):
            return bytes(byte ^ (1 << rng.randrange(8)) if rng.random() < 0.05 else byte for byte in said)

        for damage in (entries(lambda entry: entry + 1), other_code, entries(lambda entry: entry ^ 1 << 40), entries(lambda _: rng.getrandbits(64)),
                       entries(lambda entry: entry & 0xffffffff), torn, lambda said: said[:-3], lambda _: b"", lambda said: said + bytes(2 << 20)):
            for path, said in kept.items():
                with open(path, "wb") as file:
                    file.write(damage(said))
            self.assertEqual(self.run_once()[0], hits)
