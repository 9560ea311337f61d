"""`ulpf check` on programs that tell of their memory: by Valgrind's client requests, AddressSanitizer's functions, libulpf's."""

import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from command.test_check import check
from command.test_check_attach import Checked, Server
from lib.env import PATIENCE, ULPF, find_tool, ulpf_only
from lib.run import program
from library import test_library

PROGRAM = "heap_requests"
# Glibc keeps the stacks of threads that have ended, with blocks of its own behind them.
OF_THREADS = "closed_by_thread"


def cases(test):
    """The function of each case, and the kind of its error."""
    listed = subprocess.run([program(PROGRAM)], capture_output=True, text=True)
    if listed.returncode == 77:
        test.skipTest("Valgrind's headers are not there (package valgrind)")
    return dict(line.split() for line in listed.stdout.splitlines())


def case(names, expected):
    names = [OF_THREADS if name == "write_there" else name for name in names]
    return next((name for name in names if name in expected), None)


def functions(places):
    return [place.get("function") for place in places]


def by_case(errors, expected):
    found = {}
    for error in errors:
        if error["error"] != "possibly-lost":
            places = [error.get("place", {}), *error["callers"]] if error.get("tid") else error["allocated_by"]
            found.setdefault(case(functions(places), expected), []).append(error)
    return found


@ulpf_only
class Requests(unittest.TestCase):
    def test_bad_ones_are_found(self):
        expected = cases(self)
        self.assertGreater(len(expected), 20)
        status, out, errors, heap = check(program(PROGRAM), "bad")
        self.assertEqual((status, out), (0, "well\n"))
        found = by_case(errors, expected)
        # (A copy may touch them with more than one of its instructions, by processor.)
        self.assertEqual({name: {e["error"] for e in of} for name, of in found.items()}, {name: {word} for name, word in expected.items()})
        for name, of in found.items():
            self.assertEqual(len({e.get("place", {}).get("pc") for e in of}), len(of), name)
        self.assertTrue(heap["searched"])
        # Reports name blocks of the program's own allocator, not the memory that they lie in.
        behind, cell, closed = (found[name][0] for name in ("behind_block", "freed_cell", "closed_part"))
        self.assertIn("0 bytes behind a block of 24 bytes", behind["what"])
        self.assertEqual(functions(behind["allocated_by"])[:2], ["own_alloc", "behind_block"])
        self.assertIn("0 bytes inside a freed block of 32 bytes", cell["what"])
        self.assertEqual(functions(cell["freed_by"])[:2], ["pool_free", "freed_cell"])
        self.assertEqual(functions(cell["allocated_by"])[:2], ["pool_alloc", "freed_cell"])
        self.assertIn("where the program itself forbids it, 23 bytes inside a block of 64 bytes", closed["what"])
        self.assertEqual(found["freed_twice"][0]["place"]["function"], "own_free")

    def test_good_ones_are_silent(self):
        cases(self)
        for word in ("good", "threads"):
            status, out, errors, heap = check(program(PROGRAM), word, options=["--no-leaks"])
            self.assertEqual((status, out, errors, heap["errors"]), (0, "well\n", [], 0), word)

    def test_registers_signals_and_children(self):
        """The program does not notice that its requests are served; those of a followed child are served, too."""
        cases(self)
        status, out, errors, heap = check(program(PROGRAM), "signals", options=["--no-leaks"])
        self.assertEqual((status, out, errors, heap["errors"]), (0, "well\n", [], 0))
        status, out, errors, _ = check(program(PROGRAM), "signals", options=["--no-leaks", "--follow"])
        self.assertEqual((status, out), (0, "well\n"))
        self.assertEqual([(e["error"], e["place"]["function"]) for e in errors], [("freed", "among_signals")])

    def test_memcheck_agrees(self):
        expected = cases(self)
        if not find_tool("valgrind"):
            self.skipTest("valgrind is not there")
        for word, names in ("bad", set(expected)), ("good", set()):
            with self.subTest(word), tempfile.TemporaryDirectory(prefix="ulpf-requests-") as folder:
                path = os.path.join(folder, "found.xml")
                command = ["valgrind", "--leak-check=full", "--xml=yes", f"--xml-file={path}", program(PROGRAM), word]
                subprocess.run(command, capture_output=True, timeout=120 * PATIENCE)
                found = {case([name.text for name in error.iterfind("stack/frame/fn")], expected) for error in ElementTree.parse(path).getroot().iterfind("error")}
                self.assertEqual(found, names)

    def test_what_is_lost_is_counted(self):
        cases(self)
        commands = [[ULPF, "check", "--no-leaks", program(PROGRAM), "leaks"]]
        if find_tool("valgrind"):
            commands.append(["valgrind", "-q", program(PROGRAM), "leaks"])
        for command in commands:
            with self.subTest(command[0]):
                done = subprocess.run(command, capture_output=True, text=True, timeout=120 * PATIENCE)
                self.assertEqual(done.stdout, "0 0 0 0 0 0 0 0\n420 90 70 0 6 1 1 0\n", done.stderr)
                if command[0] == ULPF:
                    self.assertEqual(done.stderr.count("the program asks what is lost by now: 3 blocks (120 bytes)"), 1, done.stderr)

    def test_suppressions(self):
        """Memcheck's own word for it, and ours, which is written."""
        cases(self)
        for kind in ("Memcheck:Addr1", "ulpf:poisoned"):
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(f"{{\n   it\n   {kind}\n   fun:closed_part\n}}\n")
                file.flush()
                _, _, errors, heap = check(program(PROGRAM), "closed_part", options=["--suppressions", file.name])
                self.assertEqual((errors, heap["suppressed"]), ([], 1))
        done = subprocess.run([ULPF, "check", "--gen-suppressions", program(PROGRAM), "closed_part"], capture_output=True, text=True, timeout=60 * PATIENCE)
        self.assertIn("   poisoned in closed_part\n   Memcheck:Addr1\n   fun:closed_part\n", done.stderr)

    def test_xml(self):
        cases(self)
        with tempfile.NamedTemporaryFile() as file:
            check(program(PROGRAM), "closed_part", options=["--xml", file.name])
            (error,) = ElementTree.parse(file.name).getroot().iterfind("error")
            self.assertEqual(error.findtext("kind"), "InvalidWrite")

    def test_memory_that_cannot_be_watched_is_named_once(self):
        cases(self)
        done = subprocess.run([ULPF, "check", "--no-leaks", program(PROGRAM), "good"], capture_output=True, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.stderr.count("tells of memory in which accesses cannot be looked at (a stack"), 1, done.stderr)

    def test_of_a_process_that_runs_already(self):
        """Blocks of earlier requests are unknown, and freeing them is no error."""
        expected = cases(self)
        server = Server(program(PROGRAM), "serve")
        for _ in range(2):
            checked = Checked(server.pid)
            for word in ("before", "behind_block", "before", "freed_cell", "threads", "closed_global"):
                server.order(word)
            found, _ = checked.leave()
            self.assertEqual([(e["error"], case(functions([e["place"], *e["callers"]]), expected)) for e in found], [(expected[w], w) for w in ("behind_block", "freed_cell", "closed_global")], found)
            for word in ("before", "threads", "behind_block"):
                server.order(word)
        self.assertEqual(server.end(), ("well\n", 0))


@ulpf_only
class Functions(unittest.TestCase):
    def test_of_address_sanitizer(self):
        """Weak references to them lead somewhere."""
        alone = subprocess.run([program("heap_asan_interface"), "bad"], capture_output=True, text=True, timeout=60)
        self.assertEqual(alone.stdout, "well\n")
        status, out, errors, _ = check(program("heap_asan_interface"), options=["--no-leaks"])
        self.assertEqual((status, out, errors), (0, "0 1 1 10\nwell\n", []))
        _, _, errors, _ = check(program("heap_asan_interface"), "bad", options=["--no-leaks"])
        self.assertEqual([(e["error"], e["place"]["function"], e["callers"][0]["function"]) for e in errors], [("poisoned", "use", "main")])
        self.assertIn("39 bytes inside a block of 100 bytes", errors[0]["what"])



@ulpf_only
class Libulpf(test_library.Library):
    """As memcheck, too, has it."""

    def test_macros(self):
        self.poisons(program("heap_requests_library"))

    def test_functions(self):
        self.poisons(self.build("tests/programs/heap_requests_library.c", how=["-DULPF_LIBRARY", "-fno-builtin"]))

    def poisons(self, command):
        status, out, errors, _ = check(command, options=["--no-leaks"])
        self.assertEqual((status, out, errors), (0, "well\n", []))
        _, _, errors, _ = check(command, "bad", options=["--no-leaks"])
        self.assertEqual([(e["error"], e["place"]["function"]) for e in errors], [("poisoned", "use")])
        if find_tool("valgrind"):
            for words, status in ([], 0), (["bad"], 3):
                done = subprocess.run(["valgrind", "-q", "--error-exitcode=3", command, *words], capture_output=True, timeout=120 * PATIENCE)
                self.assertEqual(done.returncode, status, done.stderr)
