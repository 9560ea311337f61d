"""Entries to the kernel that are not `syscall`: as without us, on guarded pages too."""

from lib.cases import Case
from lib.env import bare, example, ulpf_only
from lib.run import Json, ulpf


@ulpf_only
class Entries(Case):
    def test_as_without_us(self):
        """On the build before: SIGSEGV in the vsyscall page, and int 0x80's number taken for another call's."""
        status, expected = bare(example("entries"))
        for watch in "now", "now:rw", "fds", "*buffer:4096:rw":
            at = ["--at", "pipe"] if watch.startswith("*") else []
            got, out, err = ulpf("run", "--quiet", "--no-summary", *at, "--watch", watch, "--", example("entries"))
            self.assertEqual((got, out), (status, expected), f"{watch}: {err}")

    def test_what_they_write_is_a_hit(self):
        hits = Json(["now"], "entries").hits
        if "gettimeofday" not in [hit.get("syscall") for hit in hits]:
            maps = open("/proc/self/maps").read()
            if "[vsyscall]" not in maps:
                self.skipTest("the kernel has no vsyscall page (vsyscall=none)")
        self.assertEqual([hit.get("syscall") for hit in hits], ["gettimeofday"], hits)

    def test_a_program_that_dispatches_its_calls_itself(self):
        """Its handler gets what its selector blocks, from busy instructions too. On the build before: EPERM."""
        status, expected = bare(example("dispatched"))
        self.assertEqual(status, 0)
        for watch in "selector", "selector:rw", "heap":
            got, out, err = ulpf("run", "--quiet", "--no-summary", "--watch", watch, "--", example("dispatched"))
            self.assertEqual((got, out), (status, expected), f"{watch}: {err}")
