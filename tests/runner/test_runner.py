"""tests/run and tests/conftest.py, with little tests of their own."""

import functools
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from lib.env import PATIENCE, ROOT

VERDICTS = '''
import os, subprocess, sys, time, unittest

class Verdicts(unittest.TestCase):
    def test_passes(self):
        pass

    def test_fails(self):
        for number in range(1000):
            print(f"line {number} of what it says")
        self.assertEqual(1, 2)

    def test_a_part_fails(self):
        for part in "first", "second", "third":
            with self.subTest(part):
                self.assertNotEqual(part, "second")

    def test_a_clean_up_fails(self):
        self.addCleanup(self.fail, "in its clean-up")

    def test_skips(self):
        self.skipTest("the reason")

    @unittest.expectedFailure
    def test_a_known_failure(self):
        self.fail("as we know")

    @unittest.expectedFailure
    def test_a_failure_that_is_none(self):
        pass

    def test_dies(self):
        os._exit(0)


class Limits(unittest.TestCase):
    limit = 0.3

    def tearDown(self):
        print("its tearDown has run")

    def test_takes_too_long(self):
        try:
            time.sleep(100)
        except Exception:
            pass


class Leftovers(unittest.TestCase):
    def test_leaves_processes(self):
        for options in dict(start_new_session=True), dict(env={}):
            left = subprocess.Popen(["sleep", "1000"], **options)
            print(left.pid, file=open(f"left-{left.pid}", "w"))
'''

AGAIN = '''
import os, unittest

class Again(unittest.TestCase):
    def turns(self):
        with open("turns", "a+") as file:
            file.write("turn ")
            file.seek(0)
            return len(file.read().split())

    def test_unsteady(self):
        self.assertNotEqual(self.turns(), 2, "the second time")

    def test_steady(self):
        pass
'''

TIERS = '''
import unittest

class Day(unittest.TestCase):
    def test_by_day(self):
        pass

    def test_by_day_and_night(self):
        pass
    test_by_day_and_night.larger = True

class Night(unittest.TestCase):
    night = "the reason"

    def test_by_night(self):
        pass
'''

ORDER = '''
import json, time, unittest

class Order(unittest.TestCase):
    def tell(self):
        start = time.monotonic()
        time.sleep(0.2)
        with open("order", "a") as file:
            file.write(json.dumps([self._testMethodName, start, time.monotonic()]) + "\\\\n")
'''.replace("\\\\n", "\\n") + "".join(f'''
    def test_{name}(self):
        self.tell()
    {attributes and f"test_{name}.{attributes}"}
''' for name, attributes in [*((f"together_{n}", "") for n in range(6)), *((f"idle_{n}", "idle = True") for n in range(3)),
                             *((f"alone_{n}", "alone = True") for n in range(3)), ("z_long", "")])


class Said:
    """Result of tests/run for a suite: its output, its exit status, the files that it wrote {name: text}."""

    def __init__(self, source, *options, costs=None):
        with tempfile.TemporaryDirectory(prefix="ulpf-test-") as folder:
            self.run(folder, source, options, costs)
            written = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
            self.files = {str(path.relative_to(folder)): path.read_text(errors="replace") for path in written}

    def run(self, folder, source, options, costs):
        tests = os.path.join(folder, "tests")
        os.makedirs(os.path.join(tests, "little"))
        for name in "pyproject.toml", "tests/run", "tests/conftest.py":
            shutil.copy(os.path.join(ROOT, name), os.path.join(folder, name))
        os.symlink(os.path.join(ROOT, "tests", "lib"), os.path.join(tests, "lib"))
        with open(os.path.join(tests, "little", "test_little.py"), "w") as file:
            file.write(source)
        with open(os.path.join(tests, "little", "__init__.py"), "w"):
            pass
        with open(os.path.join(tests, "costs.json"), "w") as file:
            json.dump(costs or {}, file)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("ULPF_TEST_RUN", "PYTEST_"))}
        done = subprocess.run([sys.executable, os.path.join(tests, "run"), *options], cwd=folder, env=env, timeout=60 * PATIENCE,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.text, self.status = done.stdout, done.returncode

    def lines(self, start):
        return [line for line in self.text.splitlines() if line.startswith(start)]

    def read(self, *names):
        return self.files[os.path.join(*names)]

    @property
    def last(self):
        return self.text.splitlines()[-1]


class RunnerCase(unittest.TestCase):
    """Each suite runs once for the tests of a class."""

    @classmethod
    @functools.cache
    def said(cls, *options):
        return Said(cls.SUITE, *options, costs=getattr(cls, "COSTS", None))


class Verdicts(RunnerCase):
    SUITE = VERDICTS

    @classmethod
    def all(cls):
        return cls.said("--junit-xml=told.xml")

    def test_each_is_counted(self):
        said = self.all()
        self.assertEqual(said.last, "2 passed, 6 failed, 2 skipped", said.text)
        self.assertEqual(said.status, 1)
        names = [line.rsplit("::", 1)[1] for line in said.lines("failed: tests/little/test_little.py::")]
        self.assertEqual(names, ["test_takes_too_long", "test_a_clean_up_fails", "test_a_failure_that_is_none", "test_a_part_fails",
                                 "test_dies", "test_fails"], said.text)

    def test_a_skip_says_why(self):
        self.assertRegex(self.all().text, r"SKIPPED \[1\] .*the reason")

    def test_what_failed_tests_said(self):
        """All of it is written down, its end is shown."""
        said = self.all()
        self.assertNotIn("\nline 1 of what it says\n", said.text)
        self.assertIn("\nline 999 of what it says\n", said.text)
        written = said.read("target", "failed-tests", "little.test_little.Verdicts.test_fails")
        for expected in "1 != 2", "line 1 of what it says\n", "line 999 of what it says\n":
            self.assertIn(expected, written)
        self.assertIn("'second'", said.read("target", "failed-tests", "little.test_little.Verdicts.test_a_part_fails"))
        self.assertIn("in its clean-up", said.read("target", "failed-tests", "little.test_little.Verdicts.test_a_clean_up_fails"))

    def test_a_limit(self):
        """The limit stops a test that catches its exception, and its tearDown runs."""
        written = self.all().read("target", "failed-tests", "little.test_little.Limits.test_takes_too_long")
        self.assertRegex(written, r"Timeout >0\.\d+s|Timeout \(>0\.\d+s\)")
        self.assertIn("its tearDown has run", written)

    def test_nothing_is_left_running(self):
        said = self.all()
        left = [int(name.removeprefix("left-")) for name in said.files if name.startswith("left-")]
        self.assertEqual(len(left), 2)
        for pid in left:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), said.text)
            self.assertIn(f"sleep ({pid})", said.text)
        self.assertIn("left behind, and ended: ", said.text)

    def test_junit(self):
        suite, = xml.etree.ElementTree.fromstring(self.all().read("told.xml"))
        bad = {case.get("name") for case in suite.iter("testcase") if {part.tag for part in case} & {"failure", "error"}}
        self.assertEqual(bad, {"test_takes_too_long", "test_a_clean_up_fails", "test_a_failure_that_is_none", "test_a_part_fails",
                               "test_dies", "test_fails"})
        self.assertEqual(suite.get("skipped"), "2")

    def test_words(self):
        one = "little.test_little.Limits.test_takes_too_long\n"
        for word in "Limits", "little.test_little.Limits", "tests/little/test_little.py::Limits::test_takes_too_long":
            self.assertEqual(Said(VERDICTS, "--list", word).text, one)
        said = Said(VERDICTS, "-j", "1", "there.is.none")
        self.assertEqual(said.last, "0 passed, 0 failed, 0 skipped")
        self.assertNotEqual(said.status, 0)

    def test_a_file_that_cannot_be_loaded(self):
        said = Said("import there_is_none", "-j", "1")
        self.assertEqual(said.last, "0 passed, 1 failed, 0 skipped", said.text)
        self.assertNotEqual(said.status, 0)

    def test_list(self):
        said = Said(VERDICTS, "--list", "Limits", "Leftovers")
        self.assertEqual((said.text, said.status), ("little.test_little.Leftovers.test_leaves_processes\n"
                                                    "little.test_little.Limits.test_takes_too_long\n", 0))


class Again(RunnerCase):
    SUITE = AGAIN

    def test_a_test_that_failed_once_has_failed(self):
        said = Said(AGAIN, "-j", "1", "--again=3", "--beside=1", "Again")
        self.assertEqual((said.last, said.status), ("1 passed, 1 failed, 0 skipped", 1), said.text)
        self.assertEqual(len(said.lines("passed  little.test_little.Again.test_unsteady")), 2, said.text)
        self.assertEqual(said.lines("failed: "), ["failed: tests/little/test_little.py::Again::test_unsteady"])
        self.assertIn("turn 3 of 3", said.text)

    def test_nothing_is_tried_again_unasked(self):
        said = Said(AGAIN.replace("NotEqual(self.turns(), 2", "NotEqual(self.turns(), 1"), "-j", "1")
        self.assertEqual((said.last, said.status), ("1 passed, 1 failed, 0 skipped", 1), said.text)
        self.assertEqual(said.read("turns"), "turn ")


class Tiers(RunnerCase):
    SUITE = TIERS

    def ran(self, *options):
        return sorted(line.split()[1].rsplit(".", 1)[1] for line in self.said("-j", "1", *options).lines("passed  "))

    def test_by_day(self):
        self.assertEqual(self.ran(), ["test_by_day", "test_by_day_and_night"])

    def test_by_night(self):
        self.assertEqual(self.ran("--nightly"), ["test_by_day_and_night", "test_by_night"])

    def test_who_names_one_gets_it(self):
        self.assertEqual(self.ran("Night"), ["test_by_night"])

    def test_costs_are_recorded(self):
        said = Said(TIERS.replace("pass", "__import__('time').sleep(1.2)", 1), "-j", "1", "--record",
                    costs={"little.test_little.Day.test_by_day_and_night": 7, "other.test": 3})
        self.assertEqual(json.loads(said.read("tests", "costs.json")), {"little.test_little.Day.test_by_day": 1, "other.test": 3})


class Order(RunnerCase):
    SUITE = ORDER
    COSTS = {"little.test_little.Order.test_z_long": 100}

    def intervals(self, said):
        return {name: (start, end) for name, start, end in map(json.loads, said.read("order").splitlines())}

    def overlapping(self, one, other):
        return one[0] < other[1] and other[0] < one[1]

    def test_side_by_side(self):
        said = self.said()
        self.assertEqual(said.last, "13 passed, 0 failed, 0 skipped", said.text)
        ran = self.intervals(said)
        for name, times in ran.items():
            beside = [other for other in ran if other != name and self.overlapping(times, ran[other])]
            if "alone" in name:
                self.assertEqual(beside, [], ran)
            if "idle" in name:
                self.assertFalse([other for other in beside if "idle" in other], ran)
            if "together" in name:
                # Of two workers and the one beside them.
                self.assertTrue(all(re.match("test_(together|idle|z_long)", other) for other in beside), ran)
        self.assertTrue(any(self.overlapping(ran[f"test_together_{n}"], ran["test_idle_0"]) for n in range(6)), ran)
        last = max(end for name, (_, end) in ran.items() if "alone" not in name)
        self.assertTrue(all(ran[f"test_alone_{n}"][0] >= last for n in range(3)), ran)

    def test_a_long_one_starts_first(self):
        # Among the first of the four workers, whichever of them begins first.
        ran = self.intervals(self.said())
        self.assertLess(sorted(ran, key=lambda name: ran[name][0]).index("test_z_long"), 4)

    def test_one_worker(self):
        said = Said(ORDER, "-j", "1")
        self.assertEqual(said.last, "13 passed, 0 failed, 0 skipped", said.text)
        times = sorted(self.intervals(said).values())
        self.assertTrue(all(one[1] <= other[0] for one, other in zip(times, times[1:])))


class Costs(unittest.TestCase):
    def test_a_long_test_says_why_it_may(self):
        with open(os.path.join(ROOT, "tests", "costs.json")) as file:
            costs = json.load(file)
        for test in (test for test, seconds in costs.items() if seconds > 20):
            module, case, name = test.rsplit(".", 2)
            case = getattr(importlib.import_module(module), case)
            with self.subTest(test):
                self.assertTrue(getattr(getattr(case, name), "costs", getattr(case, "costs", None)), "has no `costs`")
