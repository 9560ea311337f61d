"""libulpf's cases with the back ends that this machine need not have: in one of its own, with our kernel module."""

import os
import re
import subprocess
import tempfile
import unittest

from lib import vm
from library.test_library import ABOUT, CHECKS, HEADERS, LIBRARY, STATIC, WARNINGS, staged

BACKENDS = ("protection-keys", "device")


def booted():
    def boot():
        staged()
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "checks")
            subprocess.run(["cc", "-O1", "-s", "-static", *WARNINGS, "-pthread", f"-I{HEADERS}", *CHECKS,
                            "-o", program, os.path.join(LIBRARY, "libulpf.a"), *STATIC[:-1], "-lgcc_eh"], check=True)
            with open(program, "rb") as file:
                content = file.read()
        names = ["library_" + backend for backend in BACKENDS]
        return vm.boot(names, limit=Backends.limit - 20, files=[("tests/" + name, 0o100755, content) for name in names])
    return vm.once("library", boot)


class Backends(unittest.TestCase):
    limit = 400
    night = "a simulated machine of its own for cases that the day runs with signals, and another one for the module"
    costs = "whichever of them comes first boots a simulated machine, which runs all of them"

    def test_the_kernel_does_not_complain(self):
        said = booted()
        print(said)
        self.assertTrue(vm.is_well(said), "the last lines say why")


def about(line, backend):
    """Is a case that begins with this line one of this back end?"""
    kind, name = (re.match(r'(WITH_THE_USUAL_BACKEND|NEED_BACKEND|NOT_WITH)\("?([\w-]*)', line) or re.match("()()", line)).groups()
    return {"WITH_THE_USUAL_BACKEND": False, "NEED_BACKEND": name == backend, "NOT_WITH": name != backend}.get(kind, True)


for which in BACKENDS:
    members = {f"test_{name}": vm.case(booted, "library_" + which, name) for name, line in ABOUT.items() if about(line, which)}
    title = which.title().replace("-", "")
    globals()[title] = type(title, (unittest.TestCase,),
                            {"limit": Backends.limit, "costs": Backends.costs, "night": Backends.night, "__module__": __name__, **members})


if __name__ == "__main__":
    unittest.main()
