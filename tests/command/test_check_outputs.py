"""`ulpf check`: suppressed errors, and reports for other programs."""

import json
import os
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from command.test_check import check
from lib.env import PATIENCE, ULPF, find_tool, ulpf_only
from lib.run import program

# An error of each kind of tests/programs/heap_errors.c, and what memcheck calls it in XML.
KINDS = {
    "write_behind": "InvalidWrite",
    "use_after_free": "InvalidRead",
    "by_the_kernel": "SyscallParam",
    "free_twice": "InvalidFree",
    "free_inside": "InvalidFree",
    "lose": "Leak_DefinitelyLost",
}

# Of tests/programs/heap_leaks.c: by what each block is allocated, its size, and what memcheck's versions call that.
LEAKS = {
    "malloc": (11, "malloc"),
    "calloc": (12, "calloc"),
    "realloc": (13, "realloc"),
    "realloc_of_nothing": (14, "realloc malloc"),
    "reallocarray": (15, "reallocarray realloc malloc"),
    "aligned_alloc": (64, "aligned_alloc memalign"),
    "memalign": (17, "memalign"),
    "posix_memalign": (18, "posix_memalign memalign"),
    "valloc": (19, "valloc memalign"),
    "strdup": (20, "malloc"),
}


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ulpf-check-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, text=""):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def run_check(self, *words):
        return subprocess.run([ULPF, "check", *words], input="0123456789abcdefghij", capture_output=True, text=True, timeout=60 * PATIENCE)


def entry(kind, *lines):
    return "\n".join(["# why", "{", "  a name", f"  {kind}", *lines, "}", ""])


@ulpf_only
class Suppressions(WithFolder):
    def test_what_is_made_suppresses(self):
        """And nothing else."""
        made = {}
        for word in KINDS:
            _, _, found, _ = check(program("heap_errors"), word, options=["--gen-suppressions"])
            made[word] = self.file(word, "".join(error["suppression"] for error in found))
        for word in KINDS:
            with self.subTest(word):
                own = ["--suppressions", made[word], "--error-exitcode", "9"]
                status, _, found, heap = check(program("heap_errors"), word, options=own)
                self.assertEqual((status, found, heap["errors"], heap["lost"]), (5, [], 0, [0, 0]))
                hidden = (heap["suppressed"], heap["suppressed_blocks"])
                self.assertEqual(hidden, (0, [2, 5016]) if word == "lose" else (1, [0, 0]))
                others = [option for other in KINDS if other != word for option in ("--suppressions", made[other])]
                _, _, found, heap = check(program("heap_errors"), word, options=others)
                self.assertEqual((len(found), heap["suppressed"]), (2 if word == "lose" else 1, 0))

    def test_each_way_to_name_a_place(self):
        for word, text, hides in (
            ("write_behind", entry("Memcheck:Addr1", "fun:write_*"), True),
            ("write_behind", entry("Memcheck:Addr8", "fun:write_behind", "fun:main"), True),
            ("write_behind", entry("Memcheck:Addr8", "fun:main"), False),
            ("write_behind", entry("Memcheck:Cond", "fun:write_behind"), False),
            ("write_behind", entry("Helgrind:Race", "whatever it has", "fun:write_behind"), False),
            ("write_behind", entry("ulpf:outside", "obj:*/heap_errors"), True),
            ("write_behind", entry("ulpf:outside", "obj:heap_error?"), True),
            ("write_behind", entry("ulpf:freed", "obj:heap_errors"), False),
            ("write_behind", entry("ulpf:*", "src:heap_errors.c"), True),
            ("write_behind", entry("ulpf:*", "src:heap_errors.c:1"), False),
            ("copy_behind", entry("Memcheck:Addr1", "fun:memcpy", "fun:copy_behind"), True),
            ("by_the_kernel", entry("Memcheck:Param", "read(buf)", "...", "fun:main"), True),
            ("by_the_kernel", entry("Memcheck:Param", "write(buf)", "...", "fun:main"), False),
            ("free_twice", entry("Memcheck:Free", "fun:free", "fun:free_twice"), True),
            ("realloc_of_freed", entry("Memcheck:Free", "fun:realloc", "fun:realloc_of_freed"), True),
            ("realloc_of_freed", entry("Memcheck:Free", "fun:free", "fun:realloc_of_freed"), False),
            ("lose", entry("Memcheck:Leak", "fun:malloc", "fun:lose"), True),
            ("lose", entry("Memcheck:Leak", "match-leak-kinds: definite,indirect", "fun:malloc", "...", "fun:main"), True),
            ("lose", entry("Memcheck:Leak", "match-leak-kinds: possible,reachable", "fun:malloc", "fun:lose"), False),
        ):
            with self.subTest(word, text=text):
                _, _, found, _ = check(program("heap_errors"), word, options=["--suppressions", self.file("one", text)])
                self.assertEqual(not found, hides, found)

    def test_functions_that_allocate_are_told_apart(self):
        """A suppression of calloc hides what calloc has allocated; and one that is made, what it is made from."""
        leaks = [program("heap_leaks")]
        _, _, found, heap = check(*leaks, options=["--gen-suppressions"])
        made = {error["allocated_by"][0]["function"].removeprefix("by_"): error["suppression"] for error in found}
        made["strdup"] = next(error["suppression"] for error in found if "fun:by_strdup" in error["suppression"])
        self.assertEqual(len(found), heap["lost"][0], found)
        self.assertLessEqual(set(LEAKS), set(made))

        def hidden(text):
            _, _, left, _ = check(*leaks, options=["--suppressions", self.file("one", text)])
            return {error["size"] for error in found} - {error["size"] for error in left}

        for word, (size, names) in LEAKS.items():
            with self.subTest(word):
                self.assertEqual(hidden(made[word]), {size}, made[word])
                for name in names.split():
                    self.assertEqual(hidden(entry("Memcheck:Leak", f"fun:{name}", "...", f"fun:by_{word}")), {size}, name)
        for name in "malloc", "calloc", "realloc", "posix_memalign", "valloc":
            with self.subTest(name):
                self.assertEqual(hidden(entry("Memcheck:Leak", f"fun:{name}")), {size for size, names in LEAKS.values() if name in names.split()})

    def test_memcheck_calls_leaks_by_the_same_names(self):
        if not find_tool("valgrind"):
            self.skipTest("valgrind is not there")
        valgrind = ["valgrind", "--leak-check=full", "--gen-suppressions=all", program("heap_leaks")]
        done = subprocess.run(valgrind, capture_output=True, text=True, timeout=120 * PATIENCE)
        entries = re.findall(r"^\{$.*?^\}$", done.stderr, re.M | re.S)
        self.assertEqual(len(entries), len(LEAKS))
        _, _, found, heap = check(program("heap_leaks"), options=["--suppressions", self.file("theirs", "\n".join(entries))])
        self.assertEqual((found, heap["suppressed_blocks"][0]), ([], len(LEAKS)))

    def test_short_programs(self):
        """Errors just before the program's end have names, in libraries, too."""
        library, loads = os.path.join(self.folder, "lib.so"), os.path.join(self.folder, "loads")
        source = self.file("lib.c", "#include <stdlib.h>\nvoid last(void) { volatile char *p = malloc(8); p[8] = 1; }\n")
        subprocess.run(["cc", "-g", "-O0", "-shared", "-fPIC", "-o", library, source], check=True)
        text = f'#include <dlfcn.h>\nint main(void) {{ void (*last)(void) = dlsym(dlopen("{library}", RTLD_NOW), "last"); last(); return 0; }}\n'
        subprocess.run(["cc", "-g", "-O0", "-o", loads, self.file("loads.c", text), "-ldl"], check=True)
        hidden = self.file("hidden", entry("ulpf:outside", "fun:last", "fun:main") + entry("ulpf:lost", "fun:malloc", "fun:last"))
        for _ in range(10):
            _, _, found, heap = check(loads, options=["--suppressions", hidden])
            self.assertEqual((found, heap["suppressed"], heap["suppressed_blocks"]), ([], 1, [1, 8]))

    def test_code_without_names(self):
        stripped = os.path.join(self.folder, "nameless")
        subprocess.run(["strip", "-s", "-o", stripped, program("heap_errors")], check=True)
        _, _, (error,), _ = check(stripped, "write_behind", options=["--gen-suppressions"])
        self.assertRegex(error["suppression"], r"ulpf:outside\n   at:nameless\+0x[0-9a-f]+\n")
        made = self.file("made", error["suppression"])
        self.assertEqual(check(stripped, "write_behind", options=["--suppressions", made])[2], [])
        self.assertEqual(len(check(stripped, "write_before", options=["--suppressions", made])[2]), 1)

    def test_memcheck_reads_and_writes_the_same(self):
        if not find_tool("valgrind"):
            self.skipTest("valgrind is not there")
        command = [program("heap_errors"), "write_behind"]
        _, _, (error,), _ = check(*command, options=["--gen-suppressions"])
        ours = self.file("ours", error["suppression"])
        valgrind = ["valgrind", "--error-exitcode=9", "--gen-suppressions=all"]
        done = subprocess.run([*valgrind, *command], capture_output=True, text=True, timeout=120 * PATIENCE)
        self.assertEqual(done.returncode, 9, done.stderr)
        theirs = self.file("theirs", re.search(r"^\{$.*?^\}$", done.stderr, re.M | re.S).group())
        self.assertEqual(check(*command, options=["--suppressions", theirs])[2], [])
        done = subprocess.run([*valgrind, f"--suppressions={ours}", *command], capture_output=True, text=True, timeout=120 * PATIENCE)
        self.assertEqual(done.returncode, 5, done.stderr)

    def test_what_is_wrong_in_a_file_says_where(self):
        for text, line, why in (
            (entry("Memcheck:Lek", "fun:f"), 4, "Memcheck has no kind Lek"),
            (entry("ulpf:freed", "f"), 5, "expected fun:, obj:, src:, at: or ..., and here is f"),
            ("{\n  a name\n", 1, "this { has no }"),
            ("\x1b[31m\n", 1, r"expected {, and here is \x1b[31m"),
            (entry("ulpf:*", "..."), 2, "names no function"),
        ):
            with self.subTest(text):
                path = self.file("wrong", text)
                done = self.run_check("--suppressions", path, program("heap_errors"), "none")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(f"{path}:{line}: ", done.stderr)
                self.assertIn(why, done.stderr)
        for path, why in (("/nowhere", "No such file"), ("/dev/zero", "longer than 4 MiB"), (self.folder, "directory")):
            done = self.run_check("--suppressions", path, program("heap_errors"), "none")
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)


@ulpf_only
class Outputs(WithFolder):
    def test_xml(self):
        for word, kind in KINDS.items():
            with self.subTest(word):
                path = self.file("xml")
                self.run_check("--xml", path, "--gen-suppressions", program("heap_errors"), word)
                root = ElementTree.parse(path).getroot()
                self.assertEqual(root.tag, "valgrindoutput")
                self.assertEqual((root.findtext("protocolversion"), root.findtext("protocoltool"), root.findtext("tool")), ("4", "memcheck", "memcheck"))
                self.assertEqual([exe.text for exe in root.iterfind("args/argv/*")], [program("heap_errors"), word])
                self.assertEqual([state.text for state in root.iterfind("status/state")], ["RUNNING", "FINISHED"])
                for number in "pid", "ppid":
                    self.assertGreater(int(root.findtext(number)), 0)
                error = root.find("error")
                self.assertEqual(error.findtext("kind"), kind)
                functions = [name.text for name in error.iterfind("stack[1]/frame/fn")]
                self.assertIn(word, functions)
                frame = next(frame for frame in error.iterfind("stack/frame") if frame.findtext("fn") == word)
                self.assertEqual(frame.findtext("obj"), program("heap_errors"))
                self.assertEqual(frame.findtext("file"), "heap_errors.c")
                self.assertTrue(os.path.isfile(os.path.join(frame.findtext("dir"), "heap_errors.c")))
                self.assertRegex(frame.findtext("line"), r"^\d+$")
                self.assertRegex(frame.findtext("ip"), r"^0x[0-9A-F]+$")
                self.assertTrue(error.findtext("suppression/skind").startswith("Memcheck:"))
                self.assertIn("{\n", error.findtext("suppression/rawtext"))
                unique = error.findtext("unique")
                counted = {pair.findtext("unique"): pair.findtext("count") for pair in root.iterfind("errorcounts/pair")}
                if word == "lose":
                    self.assertEqual((error.findtext("xwhat/leakedbytes"), error.findtext("xwhat/leakedblocks")), ("5000", "1"))
                    self.assertEqual((error.find("what"), counted), (None, {}))
                else:
                    self.assertTrue(error.findtext("what"))
                    self.assertEqual(counted, {unique: "1"})
                if word == "use_after_free":
                    said = [what.text for what in error.iterfind("auxwhat")]
                    self.assertRegex(said[0], "^Freed by")
                    self.assertRegex(said[1], "^Allocated by")
                    self.assertEqual(len(error.findall("stack")), 3)

    def test_names_in_xml_are_texts(self):
        strange = os.path.join(self.folder, "a<b>&\"c\x1b[31m")
        os.symlink(program("heap_errors"), strange)
        path = self.file("xml")
        self.run_check("--xml", path, strange, "write_behind")
        (exe,) = ElementTree.parse(path).getroot().iterfind("args/argv/exe")
        self.assertEqual(exe.text, os.path.join(self.folder, "a<b>&\"c\\x1b[31m"))

    def test_suppressions_are_counted_in_xml(self):
        path, hidden = self.file("xml"), self.file("hidden", entry("ulpf:outside", "fun:write_behind"))
        self.run_check("--xml", path, "--suppressions", hidden, program("heap_errors"), "write_behind")
        root = ElementTree.parse(path).getroot()
        self.assertEqual(root.findall("error"), [])
        (pair,) = root.iterfind("suppcounts/pair")
        self.assertEqual((pair.findtext("count"), pair.findtext("name")), ("1", "a name"))

    def test_sarif(self):
        for word, rule, level in (
            ("write_behind", "outside", "error"),
            ("use_after_free", "freed", "error"),
            ("free_twice", "double-free", "error"),
            ("lose", "lost", "warning"),
        ):
            with self.subTest(word):
                path = self.file("sarif")
                self.run_check("--sarif", path, program("heap_errors"), word)
                with open(path) as file:
                    sarif = json.load(file)
                self.assertEqual(sarif["version"], "2.1.0")
                self.assertIn("sarif-2.1.0", sarif["$schema"])
                (run,) = sarif["runs"]
                rules = run["tool"]["driver"]["rules"]
                self.assertEqual(run["tool"]["driver"]["name"], "ulpf check")
                result = run["results"][0]
                self.assertEqual((result["ruleId"], result["level"]), (rule, level))
                self.assertEqual(rules[result["ruleIndex"]]["id"], rule)
                self.assertTrue(result["message"]["text"])
                (location,) = result["locations"]
                where = location["physicalLocation"]
                self.assertTrue(where["artifactLocation"]["uri"].endswith("tests/programs/heap_errors.c"), where)
                self.assertGreater(where["region"]["startLine"], 0)
                self.assertEqual(location["logicalLocations"][0]["fullyQualifiedName"], word)
                self.assertEqual(result["occurrenceCount"], 1)
                stacks = [stack["message"]["text"] for stack in result["stacks"]]
                expected = {"lose": ["allocated by"], "write_behind": ["the error", "allocated by"]}
                self.assertEqual(stacks, expected.get(word, ["the error", "freed by", "allocated by"]))
                self.assertNotIn("suppressions", result)

    def test_sarif_of_a_checkout(self):
        """Names are relative to where the command was started; suppressed results are there as such."""
        path, hidden = self.file("sarif"), self.file("hidden", entry("ulpf:outside", "fun:write_behind"))
        words = [ULPF, "check", "--sarif", path, "--suppressions", hidden, program("heap_errors"), "write_behind"]
        folder = os.path.dirname(os.path.dirname(program("heap_errors")))
        subprocess.run(words, cwd=folder, capture_output=True, timeout=60 * PATIENCE)
        with open(path) as file:
            (run,) = json.load(file)["runs"]
        (result,) = run["results"]
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        self.assertEqual(artifact, {"uri": "heap_errors.c", "uriBaseId": "SRCROOT"})
        self.assertEqual(run["originalUriBaseIds"]["SRCROOT"]["uri"], f"file://{folder}/")
        self.assertEqual(result["suppressions"], [{"kind": "external", "justification": "a name"}])

    def test_exit_on_first_error(self):
        # (It would wait for its input after the error for ever.)
        source = self.file("waits.c", "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { volatile char *p = malloc(8); p[8] = 1; pause(); }\n")
        waits = os.path.join(self.folder, "waits")
        subprocess.run(["cc", "-g", "-O0", "-o", waits, source], check=True)
        for options, status in (([], 1), (["--error-exitcode", "7"], 7)):
            done = self.run_check("--exit-on-first-error", *options, waits)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn("0 bytes behind a block of 8 bytes", done.stderr)
            self.assertIn("the program was ended at its first error", done.stderr)
        # A program that ends by itself was not ended by ulpf.
        source = self.file("ends.c", "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { volatile char *p = malloc(8); p[8] = 1; _exit(3); }\n")
        ends = os.path.join(self.folder, "ends")
        subprocess.run(["cc", "-g", "-O0", "-o", ends, source], check=True)
        for _ in range(10):
            done = self.run_check("--json", "--exit-on-first-error", ends)
            self.assertEqual(done.returncode, 1, done.stderr)
            error, heap = map(json.loads, done.stderr.splitlines())
            self.assertEqual((error["error"], heap["errors"]), ("outside", 1))
            text = self.run_check("--exit-on-first-error", "--no-leaks", ends).stderr
            self.assertIn("0 bytes behind a block of 8 bytes", text)
        # Nor was a program that another process kills.
        source = self.file("killed.c", "#include <signal.h>\n#include <unistd.h>\nint main(void) { kill(getpid(), SIGKILL); }\n")
        killed = os.path.join(self.folder, "killed")
        subprocess.run(["cc", "-g", "-O0", "-o", killed, source], check=True)
        done = self.run_check("--exit-on-first-error", killed)
        self.assertEqual(done.returncode, -9)
        self.assertNotIn("first error", done.stderr)
        # A suppressed error does not end the program.
        hidden = self.file("hidden", entry("ulpf:outside", "fun:write_behind"))
        done = self.run_check("--exit-on-first-error", "--suppressions", hidden, program("heap_errors"), "write_behind")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("ulpf: suppressed: 1 error, 0 blocks (0 bytes) that are left", done.stderr)

    def test_files(self):
        path = self.file("found")
        done = self.run_check("--log-file", path, program("heap_errors"), "write_behind")
        self.assertEqual(done.stderr, "")
        with open(path) as file:
            self.assertIn("0 bytes behind a block of 24 bytes", file.read())
        for option in "--xml", "--sarif":
            done = self.run_check(option, "/nowhere/file", program("heap_errors"), "none")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("cannot write /nowhere/file: No such file", done.stderr)


if __name__ == "__main__":
    unittest.main()
