"""The base of gs and the time-stamp counter, where the program has them for itself."""

from lib.cases import Case
from lib.env import bare, example, ulpf_only
from lib.run import ulpf


@ulpf_only
class Bases(Case):
    def check(self, how):
        status, expected = bare(example("bases"), how)
        self.assertEqual(status, 0)
        for options in [], ["--no-patch"]:
            for watch in "counter", "heap:w", "heap:rw":
                with self.subTest(options=options, watch=watch):
                    got, out, err = ulpf("run", "--quiet", "--no-summary", *options, "--watch", watch, "--", example("bases"), how)
                    self.assertEqual((got, out), (status, expected), err)

    def test_gs_of_the_program(self):
        """On the build before, a wrgsbase among patched instructions ended the program (SIGSEGV)."""
        self.check("gs")

    def test_a_forbidden_time_stamp_counter(self):
        """Hits have a time all the same; the program's own rdtsc is its SIGSEGV."""
        self.check("tsc")
