"""Code that the program generates is patched; its writers and readers see it unchanged."""

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

    def faults(self, spec, program, *arguments):
        """It prints what it prints without ulpf; the faults that it took."""
        status, text = bare(example(program), *arguments)
        self.assertEqual(status, 0, text)
        said = Json([spec], program, *arguments, options=["--quiet"])
        self.assertEqual((said.status, said.out), (0, text), said.err)
        if spec != "heap":
            self.assertEqual(said.lines[-1]["watches"][0]["hits"], int(text.split()[0]))
        return said.lines[-1]["faults"]

    def test_code_that_is_moved(self):
        """A collector copies its code, which has no jump of ours then: V8's is known by its name."""
        self.assertLess(self.faults("cells", "moving", "1", "20", "20000"), 4000)
        self.assertLess(self.faults("cells", "moving", "4", "30", "20000"), 600000)

    def test_in_reserved_address_space(self):
        """Patches find room in address space that the program has reserved. It is unchanged for the program and for a child."""
        self.assertLess(self.faults("cells", "reserved"), 5000)

    def test_a_scattered_heap(self):
        """Chunks far from each other, more than we have room for large windows, that go and come again elsewhere."""
        self.assertLess(self.faults("heap", "scattered"), 30000)
        self.assertLess(self.faults("heap", "scattered", "300", "1", "4"), 30000)
