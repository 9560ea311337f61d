"""libulpf's cases with the back ends that this machine need not have: in one of its own, with our kernel module."""

import os
import subprocess
import tempfile
import unittest

from lib import vm
from library.test_library import CASES, CHECKS, HEADERS, LIBRARY, STATIC, WARNINGS, staged

BACKENDS = ("protection-keys", "device")


def told():
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
    # They only wait for one of them.
    idle = True

    def test_the_kernel_does_not_complain(self):
        said = told()
        print(said)
        self.assertTrue(vm.is_well(said), "the last lines say why")


for which in BACKENDS:
    members = {f"test_{name}": vm.case(told, "library_" + which, name) for name in CASES}
    title = which.title().replace("-", "")
    globals()[title] = type(title, (unittest.TestCase,),
                            {"limit": Backends.limit, "idle": True, "__module__": __name__, **members})


if __name__ == "__main__":
    unittest.main()
