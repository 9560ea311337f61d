"""The kernel module in a machine of its own: each test of kernel/tests is one here.

One boot serves all of them. Whoever comes first boots, the others wait for what it says.
"""

import os
import re
import unittest

from lib import vm

PROGRAMS = [*vm.names("test_"), *vm.names("example_"), *vm.names("fuzz_")]


def told():
    return vm.once("kernel", lambda: vm.boot(PROGRAMS, limit=280))


class Module(unittest.TestCase):
    limit = 1800 if os.environ.get("ULPF_KERNEL") == "debug" else 300
    # They only wait for one of them: that must not keep others from running.
    idle = True

    def test_the_kernel_does_not_complain(self):
        """It loads, unloads, loads again; no warning, no oops, no program that dies."""
        said = told()
        print(said)
        self.assertTrue(vm.is_well(said), "the last lines say why")


def case(program, test):
    def run(self):
        said = told()
        verdict, notes = vm.verdicts(said).get(program, {}).get(test, ("failed", "the machine ended before"))
        if verdict == "failed":
            print(said)
        if verdict == "skipped":
            self.skipTest(notes)
        self.assertEqual(verdict, "passed", notes)
    return run


def define():
    for program in PROGRAMS:
        with open(os.path.join(vm.KERNEL, "tests", program + ".c")) as source:
            tests = re.findall(r"^TEST\((\w+)\)", source.read(), re.M)
        name = program.removeprefix("test_").title().replace("_", "")
        members = {f"test_{test}": case(program, test) for test in tests}
        globals()[name] = type(name, (unittest.TestCase,), {"limit": Module.limit, "idle": True, "__module__": __name__, **members})


define()
