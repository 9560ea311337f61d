"""`--blame`: the last writer of each byte of heap and data; the report of a crash."""

import json
import re
import subprocess
import unittest

from lib import schema
from lib.env import ULPF, example, ulpf_only
from lib.run import Json, ulpf

SIZE = 12288
# In the order of their numbers (last_writers.c).
WRITERS = ("store_1", "store_2", "store_4", "store_8", "constant", "vector", "real", "add", "exchange", "loop", "copy", "move", "fill", "string",
           "rep_movs", "rep_stos", "reading", "scattered")
NUMBERS = dict(enumerate(WRITERS, 1)) | {254: "forget", 255: "main"}


class Recorded:
    """`ulpf run --blame` on a program that stays when it has said its lines."""

    def __init__(self, lines, program, *args, options=()):
        self.ulpf = subprocess.Popen([ULPF, "run", "--blame", "--no-summary", *options, "--", example(program), *args],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = [self.ulpf.stdout.readline().strip() for _ in range(lines)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ulpf.terminate()
        self.ulpf.communicate()

    def last(self, what, *options):
        return ulpf("last", what, "--pid", str(self.ulpf.pid), *options)

    def writers(self, what):
        """The lines of `ulpf last --json`."""
        status, out, err = self.last(what, "--json")
        lines = [json.loads(text) for text in (out or err).splitlines()]
        schema.lines().check("last", lines)
        assert status == 0, err
        return lines


@ulpf_only
class Blame(unittest.TestCase):
    maxDiff = None

    def check(self, rounds, seed, *options):
        """Each byte has the writer and the thread that the program has noted."""
        with Recorded(7, "last_writers", str(rounds), str(seed), options=options) as of:
            tids = [int(tid) for tid in of.said[6].split()]
            wrong = []
            for memory in range(3):
                noted, threads = (bytes.fromhex(line) for line in of.said[2 * memory:2 * memory + 2])
                self.assertEqual(len(noted), SIZE)
                expected = [(NUMBERS[number], tids[thread - 1]) for number, thread in zip(noted, threads)]
                found = of.writers(f"*memory[{memory}]:{SIZE}")
                first = min(int(line["addr"], 16) for line in found)
                told = [None] * SIZE
                for line in found:
                    at = int(line["addr"], 16) - first
                    told[at:at + line["len"]] = [(line["function"], line["tid"])] * line["len"]
                wrong += [(memory, at, *pair) for at, pair in enumerate(zip(expected, told)) if pair[0] != pair[1]]
            self.assertEqual((len(wrong), wrong[:5]), (0, []))

    def test_each_byte_has_its_last_writer(self):
        self.check(200_000, 1)

    def test_without_patches(self):
        self.check(5_000, 2, "--no-patch")

    def test_which_system_call(self):
        with Recorded(7, "last_writers", "20000") as of:
            calls = {line["function"]: line.get("call") for memory in range(3) for line in of.writers(f"*memory[{memory}]:{SIZE}")}
        self.assertEqual((calls["reading"], calls["scattered"], calls["copy"], calls["add"]), ("read", "readv", None, None))

    def test_what_has_no_records(self):
        with Recorded(7, "last_writers", "1000") as of:
            status, out, err = of.last("0x1000:8")
            self.assertEqual((status, out), (2, ""))
            self.assertRegex(err, r"it is neither heap nor data of an executable or library, or its memory cannot be read")
            status, out, _ = of.last("done")
            self.assertEqual(status, 1)
            self.assertRegex(out, r"^  \(4 bytes not written since records began, \d+\.\d+ s ago\)\n$")

    def crash(self, how, signal, *options):
        status, _, err = ulpf("run", "--blame", "--no-summary", *options, "--", example("blamed"), how)
        self.assertIn(f"killed by {signal} ", err)
        return re.sub(r"0x[0-9a-f]{10,}", "ADDR", err)

    def test_who_wrote_the_pointer(self):
        for how, writer in (("loop", "rename_by_loop"), ("strcpy", "rename_by_strcpy"), ("null", "forget_peer"), ("call", "overwrite"),
                            ("static", "set_statically"), ("list", "cut_list"), ("thread", "rename_by_loop"), ("read", "read in receive")):
            said = self.crash(how, "SIGSEGV")
            self.assertRegex(said, rf"(?m)^ulpf: (0x\w+|ADDR) lies at ADDR(, `statically`)?, which was written by:\n +\d\.\d+ s \[\d+\] {writer}\+0x\w+ at blamed\.c:\d+$", how)

    def test_who_wrote_the_header_of_a_block(self):
        for how, writer in (("block-loop", "overflow_by_loop"), ("block-memset", "overflow_by_memset"), ("block-size", "one_word_too_far"), ("arena", "overflow_by_loop")):
            said = self.crash(how, "SIGABRT")
            self.assertRegex(said, rf"(?m)^ulpf: the size of the heap's chunk at ADDR has been overwritten with (0x\w+|ADDR), which was written by:\n"
                                   rf" +\d\.\d+ s \[\d+\] {writer}\+0x\w+ at blamed\.c:\d+$", how)

    def test_as_json(self):
        run = Json([], "blamed", "strcpy", options=["--blame"])
        [crash] = [line for line in run.lines if line["type"] == "crash"]
        origin = crash["origin"]
        self.assertEqual(int(origin["pointer"], 16).to_bytes(8, "little"), b"oo long\0")
        self.assertEqual((origin["writer"]["function"], origin["writer"]["tid"]), ("rename_by_strcpy", crash["tid"]))

    def test_without_it_nothing_is_recorded(self):
        _, _, err = ulpf("run", "--no-summary", "-w", "session", "--", example("blamed"), "null")
        self.assertNotIn("lies at", err)

    def test_a_child_has_its_parents_past(self):
        said = self.crash("null", "SIGSEGV", "--follow")
        self.assertIn("forget_peer+", said)
        # A program that a shell starts has records of its own.
        _, _, err = ulpf("run", "--blame", "--follow", "--only", "blamed", "--no-summary", "--", "/bin/sh", "-c", f"{example('blamed')} loop; true")
        self.assertRegex(err, r"rename_by_loop\+0x")

    def test_attached(self):
        program = subprocess.Popen([example("last_writers"), "100000000"], stdout=subprocess.DEVNULL)
        watcher = subprocess.Popen([ULPF, "attach", "--blame", "--no-summary", str(program.pid)], stderr=subprocess.PIPE, text=True)
        try:
            # (Until it has written something since.)
            for _ in range(200):
                status, out, _ = ulpf("last", "--pid", str(program.pid), "--json", f"*memory[1]:{SIZE}")
                names = {json.loads(line)["function"] for line in out.splitlines()} if status == 0 else set()
                if len(names) > 3:
                    break
            self.assertLessEqual(names, {*WRITERS, "main"})
            self.assertGreater(len(names), 3)
        finally:
            watcher.terminate()
            watcher.communicate()
            self.assertIsNone(program.poll())
            program.kill()
            program.wait()


if __name__ == "__main__":
    unittest.main()
