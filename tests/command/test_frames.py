"""`function::local` is watched in each call, from the function's entry to its return, wherever the stack is used besides."""

import os
import subprocess
import tempfile
import unittest

from lib.env import ROOT, ulpf_only
from lib.run import Json, run


PROGRAM = os.path.join(ROOT, "tests", "programs", "frames.c")


@ulpf_only
class Frames(unittest.TestCase):
    def noted(self, watches, name, *args, **more):
        """The program says itself what it has stored there; what it has found there before is any number."""
        said = Json(watches, name, *args, **more)
        self.assertEqual(said.status, 0, said.err)
        noted = [float(line) for line in said.out.split()]
        self.assertGreater(len(noted), 0)
        stored = [float(hit["new"]) for hit in said.hits]
        self.assertEqual(stored, noted)
        return said

    def test_each_call_of_a_recursion(self):
        said = self.noted(["recursion::mine"], "frames", "recursion")
        self.assertEqual({hit["name"] for hit in said.hits}, {"recursion::mine"})
        watch = said.summary["watches"][0]
        # 1 + 2 + 3 + 4 calls, which come and go.
        self.assertEqual((watch["hits"], watch["moved"], watch["addr"]), (16, 20, "0x0"))

    def test_of_deep_recursion(self):
        said = Json(["recursion::mine if $new > 500000"], "frames", "deep")
        self.assertEqual((said.status, [hit["new"] for hit in said.hits]), (0, [sum(range(1001))]))

    def test_left_by_longjmp(self):
        self.noted(["jumps::mine"], "frames", "jumps")

    def test_one_of_each_block(self):
        said = self.noted(["blocks::mine"], "frames", "blocks")
        self.assertEqual({hit["len"] for hit in said.hits}, {4, 8})
        note = run(["blocks::mine"], "frames", "blocks")[2]
        self.assertRegex(note, r"blocks\(\) has several variables `mine` \(lines \d+, \d+\): all of them are watched")

    def test_parts_and_what_is_pointed_to(self):
        said = self.noted(["parts::mine", "parts::table[..]", "parts::to->second"], "frames", "parts")
        names = [hit["name"] for hit in said.hits]
        self.assertEqual(names, ["parts::mine.first", "parts::mine.second", *(f"parts::table[{i}]" for i in range(4)), "parts::to->second"])

    def test_in_signal_handlers_on_another_stack(self):
        self.noted(["handled::mine"], "frames", "handlers")

    def test_in_several_threads(self):
        said = Json(["recursion::mine"], "frames", "threads")
        self.assertEqual(said.status, 0, said.err)
        noted = sorted(int(line) for line in said.out.split())
        self.assertEqual(sorted(hit["new"] for hit in said.hits), noted)
        self.assertEqual(len({hit["tid"] for hit in said.hits}), 3)

    def test_of_threads_that_leave_in_the_middle(self):
        self.noted(["leaves::mine", "recursion::mine"], "frames", "leaves")

    def test_in_children(self):
        said = Json(["recursion::mine"], "frames", "fork", options=["--follow"])
        self.assertEqual(said.status, 0, said.err)
        by = {}
        for hit in said.hits:
            by.setdefault(hit["pid"], []).append(hit["new"])
        self.assertEqual(sorted(by.values()), [[1, 0, 1], [2, 1, 0, 1, 3]])

    def test_children_that_are_not_followed_go_on(self):
        said = Json(["recursion::mine"], "frames", "fork")
        self.assertEqual((said.status, [hit["new"] for hit in said.hits]), (0, [2, 1, 0, 1, 3]))

    def test_main_from_its_first_instruction(self):
        for options in [], ["--at", "main"]:
            said = Json(["main::depth", "main::what"], "frames", "recursion", options=options)
            depths = [hit["new"] for hit in said.hits if hit["spec"] == "main::depth"]
            self.assertEqual(depths, [0, 1, 2, 3, 4], options)
            self.assertEqual(sum(hit["spec"] == "main::what" for hit in said.hits), 1, options)

    def test_left_by_exceptions(self):
        self.noted(["store::Pool::take::mine"], "frames_left", "exceptions")
        self.noted(["careful::mine", "take::mine"], "frames_left", "careful")

    def test_of_all_instances_of_a_template(self):
        said = self.noted(["twice::mine"], "frames_left", "templates")
        self.assertEqual([hit["len"] for hit in said.hits], [4, 4, 8, 8])
        said = Json(["twice<double>::mine"], "frames_left", "templates")
        self.assertEqual([hit["new"] for hit in said.hits], [2.5, 5.0])

    def test_references_and_vectors(self):
        self.noted(["refers::mine"], "frames_left", "references")
        said = self.noted(["grows::mine[*]"], "frames_left", "vectors")
        self.assertEqual([hit["name"] for hit in said.hits], ["grows::mine[1]", "grows::mine[2]", "grows::mine[1]", "grows::mine[8]"])

    def test_left_by_panics(self):
        self.noted(["take::mine"], "frames_panic")

    def test_however_it_is_built(self):
        for flags in "-g -gsplit-dwarf", "-gdwarf-2", "-gdwarf-4", "-g -fomit-frame-pointer", "-g -static", "-g -O2 -flto":
            with tempfile.TemporaryDirectory() as folder:
                out = os.path.join(folder, "frames")
                subprocess.run(["gcc", *flags.split(), "-w", "-pthread", "-o", out, PROGRAM], cwd=folder, check=True)
                self.noted(["recursion::mine"], out, "recursion")

    def test_refusals(self):
        for watch, why in [
            ("recursion::mine snapshot", "is somewhere else in each call"),
            ("aligned::mine", "aligns the stack"),
            ("recursion::yours", "there is no variable `recursion::yours`"),
            ("mine", r"say `\w+::mine`: it is watched in each call"),
        ]:
            status, _, err = run([watch], "frames", "aligned")
            self.assertEqual(status, 2, watch)
            self.assertRegex(err, why)

    def test_what_is_in_a_register(self):
        source = "__attribute__((noinline)) int f(int n) { int mine = n; while (n--) mine += mine; return mine; }\nint main(int n, char **v) { return f(n) == 0 || !v; }\n"
        with tempfile.TemporaryDirectory() as folder:
            file, out = os.path.join(folder, "quick.c"), os.path.join(folder, "quick")
            with open(file, "w") as to:
                to.write(source)
            self.assertEqual(os.system(f"gcc -g -O2 -o {out} {file}"), 0)
            status, _, err = run(["f::mine"], out)
        self.assertEqual(status, 2)
        self.assertRegex(err, r"the compiler keeps it in a register at least part of the time \(`mine` is a local variable of f\(\)\); build the program with -O0")
