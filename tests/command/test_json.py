"""docs/json.schema.json: it is a schema, it judges, it says what docs/json.md says, and the commands keep to it."""

import os
import re
import unittest

import jsonschema

from lib import schema
from lib.env import ROOT, ulpf_only
from lib.run import Json

START = {"type": "start", "pid": 7, "watches": 2}


class Schema(unittest.TestCase):
    def test_it_is_one(self):
        self.assertEqual(schema.lines()._kind, jsonschema.Draft7Validator)
        jsonschema.Draft7Validator.check_schema(schema.lines()._schema)

    def test_it_judges(self):
        schema.lines().check("run", [START])
        for wrong, why in [({**START, "pid": "7"}, "pid: '7' is not of type"), ({"type": "start", "pid": 7}, "'watches' is a required"),
                           ({**START, "colour": 1}, "colour is nowhere promised"), ({"type": "end"}, "no line of run is called so"), ({}, "no line")]:
            with self.assertRaisesRegex(AssertionError, why):
                schema.lines().check("run", [START, wrong])
        rows = {"type": "summary", "seconds": 1, "lost": 0, "faults": 0, "false_positives": 0, "false_positives_patched": 0, "slow": 0, "syscalls": 0, "unpatched": {}}
        with self.assertRaisesRegex(AssertionError, r"watches\[0\]: 'watch' is a required"):
            schema.lines().check("run", [{**rows, "watches": [{}]}])

    def test_in_words(self):
        """Each field of the schema is in docs/json.md, and each of a table there in the schema."""
        with open(os.path.join(ROOT, "docs", "json.md")) as file:
            text = file.read()
        fields = {name for definition in schema.lines().definitions.values() for name in definition.get("properties", {})}
        self.assertGreater(len(fields), 40)
        self.assertEqual({name for name in fields if f"`{name}`" not in text}, set())
        tables = {name for row in re.findall(r"(?m)^\| ((?:`\w+`(?:, )?)+) \|", text) for name in re.findall(r"`(\w+)`", row)}
        self.assertGreater(len(tables), 30)
        self.assertEqual(tables - fields, set())


@ulpf_only
class Run(unittest.TestCase):
    """Json() holds each line against the schema."""

    def seen(self, *runs):
        return {line["type"] for run in runs for line in run.lines}

    def test_every_kind_of_line(self):
        plain = Json(["total", "nonsense"], "filters", options=["--keep-going", "-b", "3"])
        self.assertEqual(self.seen(plain), {"start", "watch", "refused", "hit", "summary"})
        self.assertTrue(any("callers" in hit for hit in plain.hits))
        self.assertLessEqual({"hit", "fork", "summary"}, self.seen(Json(["shared_count"], "children", options=["--follow"])))
        self.assertLessEqual({"hit", "exec", "summary"}, self.seen(Json(["baton"], "relay", "3")))
