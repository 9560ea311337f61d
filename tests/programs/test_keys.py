"""Protection keys: the program's rights are unchanged, and the stub does not depend on them."""

from lib.cases import Case
from lib.env import bare, example, ulpf_only
from lib.run import Json, ulpf


@ulpf_only
class Keys(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.status, cls.expected = bare(example("keys"))

    def setUp(self):
        super().setUp()
        if self.status == 77:
            self.skipTest("this machine has no protection keys (pku)")
        self.assertEqual(self.status, 0)

    def test_as_without_us(self):
        """On the build before, the program began with all keys open, memory that may only be executed took seconds, a key on
        watched memory was lost, and the signal's si_pkey was 0."""
        for options in [], ["--no-patch"], ["--placement=guard"], ["--follow"]:
            for watch in "counter", "counter:rw", "heap:w", "heap:rw", "signo":
                with self.subTest(options=options, watch=watch):
                    got, out, err = ulpf("run", "--quiet", "--no-summary", *options, "--watch", watch, "--", example("keys"))
                    self.assertEqual((got, out), (self.status, self.expected), err)

    def test_code_that_may_only_be_executed(self):
        """Its instructions are decoded all the same."""
        hits = Json(["counter"], "keys", options=["--placement=guard", "--no-patch"]).hits
        by_code = [hit for hit in hits if hit["len"] == 4]
        self.assertEqual([int.from_bytes(bytes.fromhex(hit["new_bytes"]), "little") for hit in by_code], list(range(1, 1001)))

    def test_memory_with_a_key_of_its_own_is_refused(self):
        _, _, err = ulpf("run", "--quiet", "--at", "thread", "--watch", "*keyed:16", "--", example("keys"))
        self.assertIn("protection key of its own (pkey_mprotect)", err)
