"""`ulpf check --follow`: errors in the processes that a program forks, and in what is executed."""

import collections
import contextlib
import json
import os
import re
import subprocess
import tempfile
import unittest

from lib.env import PATIENCE, ULPF, find_tool, ulpf_only
from lib.run import program


def follow(*command, options=()):
    """Exit status, what the programs printed, errors and sums by process."""
    with tempfile.NamedTemporaryFile() as log:
        run = [ULPF, "check", "--follow", "--json", "-l", log.name, *options, "--", *command]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60 * PATIENCE)
        said = [json.loads(line) for line in log.read().splitlines()]
    errors, sums = collections.defaultdict(list), {}
    for line in said:
        if line["type"] == "error":
            errors[line["pid"]].append(line)
        elif line["type"] == "heap":
            sums.setdefault(line["pid"], line)
    return done.returncode, done.stdout, errors, sums


def is_there(pid):
    """True for a running process, false for a zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@ulpf_only
class Follow(unittest.TestCase):
    limit = 200

    def test_each_process(self):
        status, said, errors, sums = follow(program("heap_children"))
        self.assertEqual((status, said), (0, "a parent\n"))
        first = next(iter(sums))
        # The one that was started has no error.
        self.assertNotIn(first, errors)
        found = collections.Counter()
        for all_of_one in errors.values():
            made = [(error["error"], error["what"].split(" at 0x")[0].split(":")[0], error.get("place", error["callers"][0])["function"]) for error in all_of_one if error["error"] != "lost"]
            found[tuple(made)] += 1
        behind = ("outside", "write of 1 byte")
        self.assertEqual(
            found,
            {
                ((*behind, "forked"), (*behind, "forked")): 1,
                ((*behind, "forked_twice"),): 1,
                (("double-free", "free of what was freed before", "forked_twice"),): 1,
                ((*behind, "executed"),): 2,
            },
        )
        # A block of the parent's was allocated there. Remaining blocks of this kind are reported for the parent alone.
        (own,) = [all_of_one for all_of_one in errors.values() if len(all_of_one) == 3]
        self.assertEqual(own[0]["allocated_by"][0]["function"], "main")
        self.assertEqual((own[2]["error"], own[2]["len"], own[2]["allocated_by"][0]["function"]), ("lost", 5, "forked"))

    def test_no_error(self):
        """Four threads, and twenty children, which go on with the heap."""
        status, _, errors, sums = follow(program("heap_errors"), "none", options=["--no-leaks"])
        self.assertEqual((status, dict(errors)), (0, {}))
        self.assertEqual(len(sums), 21)
        self.assertTrue(all(heap["allocated"] > 10_000 for heap in sums.values()), sums)

    def test_of_cxx(self):
        """The allocator functions of the C++ library are served there as well, and no error is reported."""
        run = [ULPF, "check", "--follow", "--no-leaks", program("new_errors"), "forked"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertRegex(done.stderr, r"ulpf: #1 process \d+ \(new_errors\): free of 0x\w+, which was allocated by new\n")
        self.assertNotIn("(ulpf: ", done.stderr)

    def test_programs_of_others(self):
        script = "for i in 1 2 3 4; do x=$(echo $i; exit 3); done; echo $x $?; ls / | sort | wc -l; (y=$(echo a); (echo $y))"
        expected = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        status, said, errors, sums = follow(find_tool("bash"), "-c", script, options=["--no-leaks"])
        self.assertEqual((status, said, dict(errors)), (0, expected, {}))
        self.assertGreater(len(sums), 8)

    def test_text(self):
        run = [ULPF, "check", "--follow", "--error-exitcode", "9", program("heap_children")]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, 9)
        self.assertRegex(done.stderr, r"ulpf: #1 process \d+ \(heap_children\): write of 1 byte at 0x\w+, 0 bytes behind a block of 10 bytes\n {8}forked")
        self.assertRegex(done.stderr, r"ulpf: process \d+ \(heap_children\): 2 errors at 2 places; ")
        self.assertRegex(done.stderr, r"ulpf: nothing was found in \d+ process(es)? more\n$")

    def test_exit_on_first_error(self):
        """An error in any process ends all of them; without it they would wait for ever."""
        for who, ended in {"self": 1, "parent": 1, "child": 1, "child_ends": 1, "executed": 1, "orphan": 0}.items():
            for options, expected in ([], 1), (["--error-exitcode", "7"], 7):
                with self.subTest(who, expected=expected):
                    run = [ULPF, "check", "--follow", "--no-leaks", "--exit-on-first-error", *options, program("heap_family"), who]
                    done = subprocess.run(run, capture_output=True, text=True, timeout=60 * PATIENCE)
                    self.assertEqual(done.returncode, expected, done.stderr)
                    (pid,) = re.findall(r"#1 process (\d+) \(heap_family\): write of 1 byte at 0x\w+, 0 bytes behind a block of 8 bytes", done.stderr)
                    self.assertEqual(done.stderr.count("the program was ended at its first error (--exit-on-first-error)"), ended, done.stderr)
                    self.assertFalse(is_there(int(pid)))

    def test_files(self):
        """Numbers are those of all processes."""
        with tempfile.TemporaryDirectory(prefix="ulpf-follow-") as folder:
            xml, sarif = os.path.join(folder, "found.xml"), os.path.join(folder, "found.sarif")
            subprocess.run([ULPF, "check", "--follow", "--xml", xml, "--sarif", sarif, program("heap_children")], capture_output=True, timeout=60 * PATIENCE, check=True)
            with open(xml) as file:
                text = file.read()
            uniques = [line.split(">")[1].split("<")[0] for line in text.splitlines() if line.startswith("  <unique>")]
            self.assertEqual(len(uniques), len(set(uniques)))
            self.assertGreaterEqual(len(uniques), 7)
            with open(sarif) as file:
                self.assertEqual(len(json.load(file)["runs"][0]["results"]), len(uniques))


if __name__ == "__main__":
    unittest.main()
