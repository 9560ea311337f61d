"""tests/programs/languages in whatever this machine has compilers for: one small program in each of GDB's languages."""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field

from .env import GO_CACHE, ROOT, find_tool

SOURCES = os.path.join(ROOT, "tests", "programs", "languages")


@dataclass
class Language:
    # As `set language` calls it.
    name: str
    # The compiler, and the rest of its command line; it runs in a folder with copies of all sources.
    build: list
    # Expression that calls the functions `ready` and `add`.
    ready: str
    # Expressions: the counter, an element of the array, the array, a field; `None` in languages without them.
    total: str
    element: str = None
    array: str = None
    weight: str = None
    # The element that is written, as a part of the watched array; what a hit of it says.
    part: str = None
    # Holds for the counter's second change only.
    condition: str = "$new > 900"
    environment: dict = field(default_factory=dict)


LANGUAGES = [
    Language("rust", ["rustc", "--edition", "2024", "-g", "shelf.rs", "-o", "shelf"], "shelf::ready", "shelf::TOTAL",
             "shelf::NUMS[2]", "shelf::NUMS", None, "shelf::NUMS[2]", "$new > 900 && $old as i32 != 0"),
    Language("c++", ["c++", "-g", "shelf.cc", "-o", "shelf"], "ready", "shelf::total", "shelf::nums[2]", "shelf::nums",
             "shelf::box.weight", "shelf::nums[2]"),
    Language("go", ["go", "build", "-gcflags=-N -l", "-o", "shelf", "shelf.go"], "main.ready", "main.total", "main.nums[2]",
             "main.nums", "main.b.weight", "main.nums[2]", environment={"GOFLAGS": "-mod=mod", "GO111MODULE": "off"}),
    Language("fortran", ["gfortran", "-g", "shelf.f90", "-o", "shelf"], "ready", "shelf::total", "shelf::nums(3)", "shelf::nums",
             "shelf::b%weight", "shelf::nums(3)", "$new .gt. 900 .and. $old /= 0"),
    Language("ada", ["gnatmake", "-q", "-g", "counter.adb", "-o", "shelf"], "shelf.ready", "shelf.total", "shelf.nums(3)",
             "shelf.nums", "shelf.b.weight", "shelf.nums(3)"),
    Language("d", ["gdc", "-g", "shelf.d", "-o", "shelf"], "shelf.ready", "where.total"),
    Language("pascal", ["fpc", "-g", "-gw3", "-v0", "shelf.pas"], "ready", "total", "nums[3]", "nums", "b.weight", "nums[3]",
             "($new > 900) and ($old <> 0)"),
    Language("modula-2", ["gm2", "-g", "-fiso", "Shelf.mod", "-o", "shelf"], "ready", "total", "nums[3]", "nums", None, "nums[3]",
             "($new > 900) AND ($old # 0)"),
    Language("asm", ["cc", "-g", "shelf.S", "-o", "shelf"], "ready", "*(long *) &total"),
]

_built = {}


def binary(test, language):
    """The program in this language, built once; skips the test where there is no compiler."""
    if not find_tool(language.build[0]):
        test.skipTest(f"{language.build[0]} is not installed")
    if language.name not in _built:
        folder = tempfile.TemporaryDirectory(prefix="ulpf-languages-")
        here = os.path.join(folder.name, "sources")
        shutil.copytree(SOURCES, here)
        environment = {**os.environ, "GOCACHE": GO_CACHE, **language.environment}
        done = subprocess.run(language.build, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            test.skipTest(f"{language.build[0]} cannot build: {done.stdout[-200:]}")
        _built[language.name] = folder
    return os.path.join(_built[language.name].name, "sources", "shelf")


def everywhere(cls):
    """A test class whose `in_LANGUAGE` tests are made of its method `converse`, one for each language."""
    for language in LANGUAGES:
        def test(self, language=language):
            self.converse(language, binary(self, language))
        setattr(cls, "test_" + language.name.replace("+", "p").replace("-", "_"), test)
    return cls
