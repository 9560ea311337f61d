"""Which accesses were hot is kept for the next run."""

import glob
import os
import random
import re
import stat
import struct
import tempfile
import unittest

from lib.env import bare, example, needs, ulpf_only
from lib.run import ulpf

MAGIC, ENTRY = b"ulpfhot1", struct.Struct("<Q")
WORK = ["/usr/bin/sqlite3", ":memory:", """create table t(a integer primary key, b text); create index i on t(b);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 300) insert into t select x, printf('%d', x * 7919 % 300) from n;
select count(*), sum(length(b)) from t where b like '1%';"""]


@ulpf_only
@needs("sqlite3")
class Hot(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-hot-")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "ulpf")
        self.env = {**os.environ, "XDG_CACHE_HOME": folder.name, "ULPF_HOT_CACHE": "on"}

    def run_once(self, *program, watch="heap:rw", **env):
        """What it has printed, the hits, the faults. The output is as without ulpf."""
        program = program or WORK
        status, out, err = ulpf("run", "-q", "-w", watch, "--", *program, env={**self.env, **env})
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
            self.assertTrue(said.startswith(MAGIC))
            offsets = [entry & 0xffffffff for entry, in ENTRY.iter_unpack(said[len(MAGIC):])]
            self.assertEqual(offsets, sorted(set(offsets)))
        again, fewer = self.run_once()
        self.assertEqual(again, hits)
        self.assertLess(fewer, faults / 2)
        # What only stores is watched for: no load is patched for that.
        stores, of_stores = self.run_once(watch="heap", ULPF_HOT_CACHE="off")
        again, fewer = self.run_once(watch="heap")
        self.assertEqual(again, stores)
        self.assertLess(fewer, of_stores)

    def test_of_a_program_that_is_executed(self):
        """By whoever executes it, and by itself before it executes another one."""
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
            return lambda said: MAGIC + b"".join(ENTRY.pack(change(entry) % 2**64) for entry, in ENTRY.iter_unpack(said[len(MAGIC):]))

        def torn(said):
            return bytes(byte ^ (1 << rng.randrange(8)) if rng.random() < 0.05 else byte for byte in said)

        for damage in (entries(lambda entry: entry + 1), entries(lambda entry: entry ^ 1 << 40), entries(lambda _: rng.getrandbits(64)),
                       entries(lambda entry: entry & 0xffffffff), torn, lambda said: said[:-3], lambda _: b"", lambda said: said + bytes(2 << 20)):
            for path, said in kept.items():
                with open(path, "wb") as file:
                    file.write(damage(said))
            self.assertEqual(self.run_once()[0], hits)
