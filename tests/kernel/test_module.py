"""The kernel module in a machine of its own: each test of kernel/tests is one here.

One boot serves all of them. Whoever comes first boots, the others wait for what it says.
"""

import fcntl
import os
import re
import unittest

from lib import vm

PROGRAMS = [*vm.names("test_"), *vm.names("example_"), *vm.names("fuzz_")]


def told():
    """What the machine said in this run of tests/run (our parent); boots it if nobody has."""
    os.makedirs(vm.BUILD, exist_ok=True)
    with open(os.path.join(vm.BUILD, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(vm.BUILD, f"said-{os.getppid()}")
        if not os.path.exists(path):
            for name in os.listdir(vm.BUILD):
                if name.startswith("said-"):
                    os.unlink(os.path.join(vm.BUILD, name))
            try:
                said = vm.boot(PROGRAMS, limit=280)
            except vm.Unavailable as why:
                said = f"unavailable: {why}"
            with open(path + ".new", "w") as file:
                file.write(said)
            os.rename(path + ".new", path)
        with open(path) as file:
            said = file.read()
    if said.startswith("unavailable: "):
        raise unittest.SkipTest(said.removeprefix("unavailable: "))
    return said


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
