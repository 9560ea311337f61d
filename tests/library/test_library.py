"""libulpf: programs that watch themselves, in C, linked both ways."""

import functools
import os
import re
import subprocess
import tempfile
import unittest

from lib.env import PATIENCE, ROOT, needs

LIBRARY = os.path.join(ROOT, "target", "libulpf")
HEADERS = os.path.join(ROOT, "ulpf-lib", "c", "include")
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
STATIC = ["-lpthread", "-ldl", "-lm", "-lgcc_s"]
HERE = os.path.dirname(os.path.abspath(__file__))
# checks.c has main().
CHECKS = [os.path.join(HERE, name) for name in sorted(os.listdir(HERE)) if name.endswith(".c")]
# {case: what it is about: a macro of checks.h}
ABOUT = dict(re.findall(r"(?m)^CASE\((\w+)\)\n\{\n\s*(?:/\*.*\*/\s*)?(.*)", "".join(open(source).read() for source in CHECKS)))
CASES = list(ABOUT)


@functools.cache
def staged():
    """The library as it is installed, built if it is not there (`make -C ulpf-lib/c` after a change)."""
    if not os.path.exists(f"{LIBRARY}/libulpf.so.0"):
        subprocess.run(["make", "-s", "-C", os.path.join(ROOT, "ulpf-lib", "c"), "stage"], check=True)


def compiled(folder, *sources, static=False, how=()):
    """A program of C sources; the first one names it. `how`: more of the compiler's options."""
    program = os.path.join(folder, os.path.basename(sources[0]).split(".")[0])
    with_library = ([os.path.join(LIBRARY, "libulpf.a"), *STATIC] if static else
                    [f"-L{LIBRARY}", "-lulpf", f"-Wl,-rpath,{LIBRARY}"])
    subprocess.run(["cc", "-g", "-O1", *WARNINGS, "-pthread", f"-I{HEADERS}", *how,
                    *(os.path.join(ROOT, source) for source in sources), "-o", program, *with_library], check=True)
    return program


@functools.cache
def checks(static):
    """The program with all cases, and its folder, which lasts as long."""
    folder = tempfile.TemporaryDirectory()
    return compiled(folder.name, *CHECKS, static=static), folder


class Library(unittest.TestCase):
    def setUp(self):
        staged()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def build(self, *sources, **options):
        return compiled(self.folder, *sources, **options)

    def checks(self, static=False):
        return checks(static)[0]

    def says(self, *command, status=0, **options):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60 * PATIENCE, **options)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout


class Examples(Library):
    """examples/libulpf."""

    def test_listing_4_2(self):
        said = ("10 hits, 0 false positives, sum 45, last at +900\n"
                "1 hit, 15 false positives, xxxxxxxxxxxxxxxx\n"
                "1 hit, 0 false positives, xxxxxxAAAAxxxxxx\n"
                "1 hit after USER_RW, unregistered\n")
        self.assertEqual(self.says(self.build("examples/libulpf/listing.c")), said)
        self.assertEqual(self.says(self.build("examples/libulpf/listing.c", static=True)), said)

    def test_overflow(self):
        said = self.says(self.build("examples/libulpf/sentry.c"), "overflow")
        self.assertEqual(said, "hello, precisely\noverflow at byte 10\n")

    def test_smash(self):
        said = self.says(self.build("examples/libulpf/sentry.c"), "smash", status=3)
        self.assertEqual(said, "greeted, letters: 3\nreturn address overwritten, byte 0\n")

    def test_leak(self):
        said = self.says(self.build("examples/libulpf/sentry.c"), "leak")
        self.assertEqual(re.findall(r"leaked\? object (\d+), 0 accesses", said), ["7", "17", "27", "37", "47"])
        self.assertEqual(said.count("\n"), 5)

    def test_invariant(self):
        said = self.says(self.build("examples/libulpf/sentry.c"), "invariant")
        self.assertEqual(said, "balance below the limit: -130\nit was -70\n")

    def test_list(self):
        said = self.says(self.build("examples/libulpf/list.c"))
        self.assertEqual(re.findall(r"next of node (\d+) clobbered: 1 bytes, now '(.)'", said),
                         [("42", letter) for letter in "an it sh"])
        self.assertIn("100 links, 8 clobbering stores, all by the writer\n", said)

    def test_kinds(self):
        self.assertEqual(self.says(self.build("examples/libulpf/kinds.c")),
                         "read watch: 3 hits, 3 reads\n"
                         "counting: 500 hits, 0 told\n"
                         "one shot: 1 hit, 1 told\n"
                         "changes: 6 hits, 2 told\n"
                         "this thread: 3 hits, others: 7 hits\n"
                         "back end: signal\n")


class Promises(Library):
    """The C sources beside this file: one test for each of their cases."""

    def check(self, name):
        self.outcome(self.says(self.checks(), name))

    def outcome(self, said):
        if said.startswith("skip: "):
            self.skipTest(said.removeprefix("skip: ").strip())
        self.assertEqual(said, "ok\n")


for case in CASES:
    setattr(Promises, f"test_{case}", lambda self, case=case: self.check(case))


class Ways(Library):
    """How it is linked, installed and run."""

    def functions(self):
        """The names of all functions that the header declares."""
        with open(os.path.join(HEADERS, "ulpf.h")) as file:
            return set(re.findall(r"\b(ulpf_\w+)\(", re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)))

    def test_every_case_is_a_test(self):
        self.assertEqual(sorted(self.says(self.checks()).split()), sorted(CASES))

    def test_statically_linked(self):
        program = self.checks(static=True)
        for case in CASES:
            with self.subTest(case):
                self.assertRegex(self.says(program, case), r"^(ok|skip: .+)\n$")

    @needs("pkg-config")
    def test_installed(self):
        root = os.path.join(self.folder, "root")
        subprocess.run(["make", "-s", "-C", os.path.join(ROOT, "ulpf-lib", "c"), "install", f"PREFIX={root}"], check=True)
        asked = {**os.environ, "PKG_CONFIG_PATH": f"{root}/lib/pkgconfig"}
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "ulpf"], env=asked, stdout=subprocess.PIPE, text=True,
                               check=True).stdout.split()
        program = os.path.join(self.folder, "listing")
        subprocess.run(["cc", os.path.join(ROOT, "examples/libulpf/listing.c"), "-o", program, *flags], check=True)
        self.assertIn("10 hits", self.says(program, env={**os.environ, "LD_LIBRARY_PATH": f"{root}/lib"}))
        needed = subprocess.run(["readelf", "-d", program], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertIn("[libulpf.so.0]", needed)
        pages = f"{root}/share/man/man3"
        self.assertEqual({"ulpf.3", *(f"{name}.3" for name in self.functions())} - set(os.listdir(pages)), set())
        for name in sorted(os.listdir(pages)):
            with open(os.path.join(pages, name)) as file:
                page = re.fullmatch(r"\.so man3/(\w+\.3)\n", file.read())
            self.assertTrue(page is None or os.path.exists(os.path.join(pages, page[1])), name)

    def test_every_function_has_a_manual_page(self):
        functions = self.functions()
        exported = subprocess.run(["nm", "-D", "--defined-only", f"{LIBRARY}/libulpf.so"], stdout=subprocess.PIPE, text=True,
                                  check=True).stdout
        self.assertEqual(functions, set(re.findall(r" T (ulpf_\w+)", exported)))
        pages = os.path.join(ROOT, "ulpf-lib", "c", "man")
        text = "".join(open(os.path.join(pages, name)).read() for name in sorted(os.listdir(pages)))
        self.assertEqual({f for f in functions if not re.search(rf"(?m)^\.BI? .*\b{f}\(", text)}, set(), "no synopsis")
        names = re.findall(r"(?m)^\.SH NAME\n(.*) \\- ", text)
        self.assertEqual(functions - set(re.findall(r"\w+", " ".join(names))), set(), "no page names it")

    @needs("groff")
    def test_manual_pages_are_well_formed(self):
        pages = os.path.join(ROOT, "ulpf-lib", "c", "man")
        for name in sorted(os.listdir(pages)):
            said = subprocess.run(["groff", "-man", "-ww", "-z", os.path.join(pages, name)], capture_output=True, text=True)
            self.assertEqual((said.returncode, said.stderr), (0, ""), name)

    def test_cplusplus(self):
        source = os.path.join(self.folder, "a.cc")
        with open(source, "w") as file:
            file.write("#include <ulpf_names.h>\nint main() { ulpf_watchpoint w = ULPF_WATCHPOINT_INIT; return w.flags; }\n")
        program = os.path.join(self.folder, "a")
        subprocess.run(["g++", *WARNINGS, f"-I{HEADERS}", source, "-o", program, f"-L{LIBRARY}", "-lulpf",
                        f"-Wl,-rpath,{LIBRARY}"], check=True)
        self.says(program)

    def test_a_back_end_that_is_not_there(self):
        said = self.says(self.build("examples/libulpf/listing.c"), status=1,
                         env={**os.environ, "ULPF_BACKEND": "telepathy"})
        self.assertRegex(said, "ULPF_BACKEND=telepathy: .*`signal`")

    def test_a_back_end_by_name(self):
        """A program behaves with debug registers as with page guards, within the number of registers."""
        program = self.build("examples/libulpf/kinds.c")
        usual = self.says(program)
        said = self.says(program, env={**os.environ, "ULPF_BACKEND": "debug-registers"}, status=None)
        if "debug registers" in said and "for programs" in said:
            self.skipTest(said.strip())
        # Sixteen bytes are too many for one.
        self.assertEqual(said, usual.replace("counting: 500 hits", "counting: 0 hits").replace("signal", "debug-registers"))

    @needs("gdb")
    def test_a_stop_under_gdb(self):
        said = self.says("gdb", "-q", "-nx", "-batch", "-ex", "handle SIGSEGV nostop noprint pass", "-ex", "run", "-ex",
                         "x/i $pc", "-ex", "print target[0]", "-ex", "signal 0", "--args",
                         self.checks(), "stops", env={**os.environ, "STOP_FOR_THE_DEBUGGER": "1"})
        self.assertRegex(said, r"received signal SIGTRAP(?s:.*)=> 0x\w+ <stops\+\d+>:\tlea (?s:.*)\$1 = 5 '")
        self.assertIn("exited normally", said)

    @needs("valgrind")
    def test_valgrind(self):
        program = self.checks()
        for case in "bad_input", "plis":
            said = self.says("valgrind", "--error-exitcode=9", "--leak-check=full", program, case)
            self.assertIn("ok\n", said)
            self.assertIn("no leaks are possible", said)
    test_valgrind.night = "two cases take 40 seconds in its simulated processor"


if __name__ == "__main__":
    unittest.main()
