"""The deliberate errors of tests/programs/heap_model.c, beside those that `ulpf check` has found: counts by place and kind.

For tests/command/test_check_model.py, and for tests/heap-model, which runs for a given number of accesses.
"""

import collections
import json
import os
import shutil
import subprocess
import tempfile

from .env import PATIENCE, ULPF, example, source_of

MIB = 1 << 20
FLAGS = ["-g", "-O1", "-fno-builtin", "-fno-optimize-sibling-calls", "-mno-red-zone", "-D_GNU_SOURCE", "-pthread", "-w"]


class Verdict:
    """`expected`: by place and kind, at least and at most so many; `found`: how many of these there were."""

    def __init__(self, accesses, expected, found, examples, heap):
        self.accesses, self.expected, self.found, self.heap = accesses, expected, found, heap
        self.differences = self.compare(examples)
        if heap.get("unreported"):
            self.differences.append(f"{heap['unreported']} of more places than there is room for")

    def compare(self, examples):
        """A line for each place and kind with too few of them, or too many."""
        lines = []
        for case in sorted({*self.expected, *self.found}):
            (least, most), found = self.expected.get(case, (0, 0)), self.found[case]
            if not least <= found <= most:
                lines.append(f"{' '.join(case)}: {least} to {most} expected, {found} found; {examples.get(case, '')}")
        return lines

    def errors(self):
        """Least number of expected errors, and number of errors found."""
        return sum(least for least, _ in self.expected.values()), sum(self.found.values())


def run(program, seed, threads=1, accesses=100_000, wrong=20, quarantine=64 * MIB, believed=None, overlaps=True, signals=False, options=(), env=None,
        seconds=200):
    """A run of the program, judged. `wrong`: of a thousand turns; `believed`: what the program takes for the quarantine;
    `overlaps`: copies between overlapping places are among the errors, which are not looked for everywhere;
    `signals`: a handler makes accesses, too."""
    arguments = [str(n) for n in (seed, threads, accesses, wrong, believed or quarantine)] + ["overlaps"] * overlaps + ["signals"] * signals
    with tempfile.TemporaryDirectory(prefix="ulpf-model-") as folder:
        sarif, log = os.path.join(folder, "sarif"), os.path.join(folder, "log")
        # (The number of times of each error is known at the end only, and only SARIF waits for it.)
        command = [ULPF, "check", "--no-leaks", "--json", "--log", log, "--sarif", sarif, "--quarantine", str(quarantine), *options]
        done = subprocess.run([*command, "--", program, *arguments], capture_output=True, text=True, timeout=seconds * PATIENCE,
                              env={**os.environ, **(env or {})})
        if done.returncode:
            raise AssertionError(f"{arguments}: status {done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}")
        with open(sarif) as file:
            results = json.load(file)["runs"][0]["results"]
        with open(log) as file:
            heap = json.loads(file.read().splitlines()[-1])
    expected, said = {}, [line.split() for line in done.stdout.splitlines()]
    for place, kind, least, most in said[:-1]:
        expected[place, kind] = int(least), int(most)
    places = {place for place, _ in expected}
    found, examples = collections.Counter(), {}
    for result in results:
        functions = [plain(frame["location"]) for frame in result["stacks"][0]["frames"]]
        place = next((name for name in functions if name in places), "<".join(functions))
        found[place, result["ruleId"]] += result["occurrenceCount"]
        examples.setdefault((place, result["ruleId"]), result["message"]["text"])
    return Verdict(int(said[-1][1]), expected, found, examples, heap)


def plain(location):
    """The function's name, without what C++ puts behind it."""
    names = location.get("logicalLocations", [{}])
    return names[0].get("fullyQualifiedName", "?").split("(")[0]


def built(folder, *flags, compiler="cc"):
    """The program, built otherwise; None: there is no such compiler."""
    made = os.path.join(folder, "-".join(["heap_model", compiler, *(flag.strip("-") for flag in flags)]))
    if not shutil.which(compiler):
        return None
    if not os.path.exists(made):
        subprocess.run([shutil.which(compiler), *FLAGS, *flags, "-o", made, source_of("heap_model.c")], check=True)
    return made


# By a name: the program, whether overlapping copies are found in it, and the processor's abilities that it does without.
def ways(folder):
    """All ways to run the program that there are here."""
    yield "C", example("heap_model"), True, ""
    yield "C++", example("heap_model_new"), True, ""
    yield "C, without AVX-512", example("heap_model"), True, "-AVX512F,-AVX512VL"
    yield "C, without AVX2", example("heap_model"), True, "-AVX2,-Prefer_No_VZEROUPPER,-BMI2"
    yield "static", built(folder, "-static"), False, ""
    for name, flags in ("musl", []), ("static musl", ["-static"]):
        if made := built(folder, *flags, compiler="musl-gcc"):
            yield name, made, not flags, ""
