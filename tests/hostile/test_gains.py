"""Programs that gain rights when they are executed, and what the program before them has left there for root's ulpf."""

import os
import shutil
import struct
import subprocess
import unittest

from lib.env import PATIENCE, ULPF, ulpf_only
from lib.users import ALICE, Place, as_root, becomes

HERE = os.path.dirname(os.path.abspath(__file__))
GAINS = f"user {ALICE}, effective 0\n"
THEN = f"then made, user {ALICE}, effective {ALICE}\n"
# linux/capability.h: revision 2, effective; CAP_SETUID permitted, nothing inheritable.
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 7, 0, 0, 0)


@ulpf_only
@as_root
class Gains(unittest.TestCase):
    def setUp(self):
        place = Place()
        self.addCleanup(place.__exit__)
        self.folder = place.path
        self.liar = os.path.join(self.folder, "liar")
        subprocess.run(["cc", "-g", "-O1", os.path.join(HERE, "forged_filters.c"), "-o", self.liar], check=True)
        os.chmod(self.liar, 0o755)
        if os.statvfs(self.folder).f_flag & os.ST_NOSUID:
            self.skipTest("set-user-ID means nothing in /tmp")

    def copy(self, name, mode=0o755):
        path = os.path.join(self.folder, name)
        shutil.copy(self.liar, path)
        os.chmod(path, mode)
        return path

    def follow(self, file, *options):
        """Output of the program that Alice's liar executes, and of root's ulpf, which follows it."""
        with subprocess.Popen(["liar", file], executable=self.liar, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              cwd="/", **becomes(ALICE)) as program:
            self.addCleanup(program.kill)
            self.assertEqual(program.stdout.readline(), "up\n")
            watcher = subprocess.Popen([ULPF, "attach", "--only", "*", *options, "-w", "counter", "--summary", str(program.pid)],
                                       stderr=subprocess.PIPE, text=True)
            self.addCleanup(watcher.stderr.close)
            self.addCleanup(watcher.kill)
            out = program.stdout.read()
            program.wait(30 * PATIENCE)
            err = watcher.communicate(timeout=30 * PATIENCE)[1]
        return out, err

    def test_a_forged_list_of_filters(self):
        """On the build before, `setuid` is answered without being made, in six of eight runs."""
        program = self.copy("honest", 0o4755)
        for _ in range(5):
            out, err = self.follow(program)
            self.assertEqual(out, GAINS + THEN, err)
            self.assertRegex(err, r"executed \S*honest and runs on unwatched: .*gains rights by its exec.*--follow-setuid")

    def test_nor_where_it_is_followed(self):
        program = self.copy("honest", 0o4755)
        for _ in range(5):
            out, err = self.follow(program, "--follow-setuid")
            self.assertEqual(out, GAINS + THEN, err)
            self.assertNotIn("runs on unwatched", err)
            self.assertRegex(err, r"counter: 0 → 1")
            self.assertRegex(err, r"counter: 1 → 2")

    def test_a_script_whose_interpreter_gains_rights(self):
        """The file that is named has no such bits: what has been executed counts."""
        script = os.path.join(self.folder, "script")
        with open(script, "w") as file:
            file.write(f"#!{self.copy('honest', 0o4755)}\n")
        os.chmod(script, 0o755)
        out, err = self.follow(script)
        self.assertEqual(out, GAINS + THEN, err)
        self.assertRegex(err, r"runs on unwatched: .*gains rights by its exec")

    def test_capabilities_of_a_file(self):
        program = self.copy("honest")
        try:
            os.setxattr(program, "security.capability", CAPABILITY)
        except OSError as why:
            self.skipTest(f"no file can have capabilities here: {why}")
        _, err = self.follow(program)
        self.assertRegex(err, r"runs on unwatched: .*gains rights by its exec")

    def test_a_group(self):
        program = self.copy("honest", 0o2755)
        _, err = self.follow(program)
        self.assertRegex(err, r"runs on unwatched: .*gains rights by its exec")

    def test_an_ordinary_program_is_followed_with_its_own_filters(self):
        """A forged filter is in no kernel: nothing is followed with it."""
        out, err = self.follow(self.copy("honest"))
        self.assertIn(f"then made, user {ALICE}, effective {ALICE}\n", out)
        self.assertRegex(err, r"counter: 0 → 1|its seccomp filters")
