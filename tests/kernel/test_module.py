"""The kernel module in a machine of its own: each test of kernel/tests is one here.

One boot serves all of them. The first test boots the machine, and the others wait for its output.
"""

import os
import unittest

from lib import vm

# Once more where no function of the kernel can be traced.
LATE = ["test_faults@late", "test_flush@late", "test_kernel@late", "test_life@late", "test_remote@late"]
# This test has the kernel's code patched while it is executed. If each of QEMU's processors is a thread, it
# sometimes executes the old code (seen: an int3 that was gone). So the processors take turns.
PATCHING = ["test_early"]
PROGRAMS = [*(name for name in vm.names("test_") if name not in PATCHING), *LATE, *vm.names("example_"), *vm.names("fuzz_")]


def booted():
    return vm.once("kernel", lambda: vm.boot(PROGRAMS, limit=280))


def booted_for_patching():
    return vm.once("patching", lambda: vm.boot(PATCHING, limit=120, more=["-accel", "tcg,thread=single"]))


class Module(unittest.TestCase):
    limit = 1800 if os.environ.get("ULPF_KERNEL") == "debug" else 300
    costs = "whichever of them comes first boots two simulated machines, which run all of them"

    def test_the_kernel_does_not_complain(self):
        """It loads, unloads, loads again; no warning, no oops, no program that dies."""
        for machine in booted, booted_for_patching:
            said = machine()
            print(said)
            self.assertTrue(vm.is_well(said), "the last lines say why")


def define():
    for program in [*PROGRAMS, *PATCHING]:
        machine = booted_for_patching if program in PATCHING else booted
        name = program.removeprefix("test_").title().replace("_", "").replace("@", "")
        members = {f"test_{test}": vm.case(machine, program, test) for test in vm.tests(program.split("@")[0])}
        globals()[name] = type(name, (unittest.TestCase,), {"limit": Module.limit, "__module__": __name__, **members})


define()
