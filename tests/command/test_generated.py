"""Code that the program generates is patched, and is what it was to all who write to it or read it."""

from lib.cases import Case
from lib.env import bare, example, ulpf_only
from lib.run import Json, ulpf


@ulpf_only
class Generated(Case):
    def counted(self, *arguments):
        """Its code makes the stores that it says, and returns what it was made to return: else it says so, and fails."""
        status, text = bare(example("generated"), *arguments)
        self.assertEqual(status, 0, text)
        said = Json(["cells"], "generated", *arguments, options=["--quiet"])
        self.assertEqual((said.status, said.out), (0, text), said.err)
        summary = said.lines[-1]
        stores = int(text.split()[0])
        self.assertEqual(summary["watches"][0]["hits"], stores)
        self.assertEqual(summary["slow"], 0)
        return summary["faults"], stores

    def test_code_that_stays(self):
        faults, stores = self.counted("1", "8", "40000")
        self.assertLess(faults, stores / 2)

    def test_code_that_changes(self):
        for threads, rounds in (1, 64), (2, 48), (4, 64), (8, 24):
            self.counted(str(threads), str(rounds))

    def test_by_several_threads(self):
        faults, stores = self.counted("4", "4", "20000")
        self.assertLess(faults, stores / 2)

    def test_beside_other_watches(self):
        status, text = bare(example("generated"), "3", "32")
        for spec in "heap", "heap:rw", "cells:rw":
            done = ulpf("run", "--quiet", "--no-summary", "--watch", spec, "--", example("generated"), "3", "32")
            self.assertEqual(done, (status, text, ""), spec)
