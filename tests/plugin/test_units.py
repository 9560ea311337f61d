"""Parts of the plugin that need no gdb."""

import dataclasses
import glob
import json
import os
import re
import sys
import unittest

from lib.env import ROOT

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "gdb-plugin"))

from ulpf import bytecode, facade, replies, table  # noqa: E402


class BitFields(unittest.TestCase):
    def test_bit_fields(self):
        """command/symbols/src/condition/bits.rs makes the same."""
        mask = 0b1111111 << 3
        self.assertEqual(bytecode.bits_changed(mask).hex(), "2cff002cff01112500000000000003f80f27")
        self.assertEqual(bytecode.bits_changed(mask, "rw").hex(), "2cff002cff01112500000000000003f80f2cff0622010f1027")


class Answers(unittest.TestCase):
    def test_records_of_mi(self):
        """GDB 18's form of an answer where it speaks MI."""
        said = '{"name":"a\\tb \\\\ \\303\\244 ä","id":7}\n{"id":8}\n'
        wrapped = '@"{\\"name\\":\\"a\\\\tb \\\\\\\\ \\\\303\\\\244 ä\\",\\"id\\":7}\\n"\n@"{\\"id\\":8}\\n"\n'
        self.assertEqual(replies.unwrapped(wrapped), said)
        self.assertEqual(replies.unwrapped('@"\\303\\244\\033[1m\\e"\n'), "ä\033[1m\033")
        for plain in "", said, '@"open', '@"one"\nand more\n':
            self.assertEqual(replies.unwrapped(plain), plain)


class Bytecode(unittest.TestCase):
    LISTING = """Scope: 0x7ffff7fe4b70
Reg mask: 00
  0  const64 93824992248000
  9  ref32
 10  ext 32
 12  getv 1
 15  const16 64536
 18  ext 16
 20  less_signed
 21  if_goto 30
 24  goto 30
 27  reg 16
 30  end
"""

    def test_a_listing(self):
        code = bytecode.assemble(self.LISTING, {1: 0xff01})
        self.assertEqual(code.hex(), "25" + "00005555555580c0" + "19" + "1620" + "2cff01" + "23fc18" + "1610" + "14" + "20001e" + "21001e" + "260010" + "27")

    def test_what_is_no_listing(self):
        for text in "", "  0  ref_float\n", "  0  ref8\n  5  end\n":
            with self.assertRaises(bytecode.Unsupported):
                bytecode.assemble(text, {})

    def test_variables(self):
        self.assertEqual(bytecode.variable_number("  0  getv 7\n  3  end\n"), 7)
        self.assertIsNone(bytecode.variable_number("  0  const8 7\n"))


class Tables(unittest.TestCase):
    def test_columns(self):
        rows = [["Num", "Hits", "What"], ["1", "12345", "a"], ["10", "3", "bb"]]
        self.assertEqual(list(table.lines(rows, right={1})), ["Num   Hits  What", "1    12345  a", "10       3  bb"])


class Replies(unittest.TestCase):
    """The table of replies (tests/replies.json); ulpf-lib's unit tests read it, too."""

    READ = {"change": replies.change, "stop": replies.stop, "settle": replies.settle, "last": replies.last, "log head": replies.log_head,
            "record": replies.record, "statistics": replies.statistics, "patching": replies.patching,
            "placement": replies.placement, "backend": replies.backend}

    def setUp(self):
        with open(os.path.join(ROOT, "tests", "replies.json")) as file:
            self.table = json.load(file)

    def test_what_is_read(self):
        for case in self.table["cases"]:
            if case["of"] not in self.READ:
                continue
            with self.subTest(case["line"]):
                [object] = replies.objects(f"the server says\n{case['line']}\n")
                said, wanted = self.READ[case["of"]](object), case["is"]
                if case["of"] == "change":
                    self.assertEqual(type(said).__name__, wanted.pop("type"))
                self.assertEqual(said and dataclasses.asdict(said), wanted)

    def test_what_is_no_reply(self):
        for of, lines in self.table["bad"].items():
            for line in lines:
                if of in self.READ:
                    with self.subTest(line), self.assertRaises(ValueError):
                        self.READ[of](json.loads(line))

    def test_a_refusal_is_an_error(self):
        self.assertEqual(str(replies.Refused("a", "b", "c.").error()), "a: b; c.")


class Machine(unittest.TestCase):
    def test_results(self):
        said = facade.mi_result({"a": True, "b": None, "c": [1, {"d": "x\0", "e": ()}], "f": "\udc80 →"})
        self.assertEqual(said, {"a": "1", "c": ["1", {"d": "x\\x00", "e": []}], "f": "\\udc80 →"})


class Versions(unittest.TestCase):
    """GDB 12 is old enough to be rare, and new enough to be promised."""

    # Of gdb/NEWS: what came to the Python interface with 13 and later.
    LATER = ("add_history", "history_count", "format_address", "current_language", "print_options", "BreakpointLocation", "disassembler",
             "Disassemble", "notify_mi", "execute_mi", "main_name", "ValuePrinter", "interrupt", "executable_filename", "symbol_file",
             "missing_debug", "executable_changed", "new_progspace", "free_progspace", "is_scalar_or_string", "set_env", "clear_env")

    def test_nothing_newer_is_used(self):
        files = glob.glob(os.path.join(ROOT, "gdb-plugin", "**", "*.py"), recursive=True)
        self.assertGreater(len(files), 15)
        used = re.compile(rf"\.(?:({'|'.join(self.LATER)})\b|language\(\)|locations\b)")
        found = []
        for file in files:
            with open(file) as text:
                code = text.read()
            # A name that the same file checks with hasattr may be missing.
            found += [f"{os.path.relpath(file, ROOT)}: {match[0]}" for match in used.finditer(code)
                      if not re.search(rf'hasattr\(\w+, "{match[1]}"\)', code)]
        self.assertEqual(found, [])
