"""Validates JSON output against schemas: our own (docs/json.schema.json), and the Debug Adapter Protocol's.

debugpy (PyPI) carries the protocol's. ULPF_DAP_SCHEMA can name a newer one.
"""

import functools
import glob
import json
import os
import subprocess
import sys

import jsonschema

from .env import ROOT

# Where pip puts it for the tests; `target` is not in the repository.
PLACE = os.path.join(ROOT, "target", "debugpy")
_INSIDE = "debugpy/_vendored/pydevd/_pydevd_bundle/_debug_adapter/debugProtocol.json"


def path(fetch=False):
    """The schema's file, or None."""
    named = os.environ.get("ULPF_DAP_SCHEMA")
    if named:
        return named
    for folder in [PLACE, *sys.path]:
        if os.path.exists(os.path.join(folder, _INSIDE)):
            return os.path.join(folder, _INSIDE)
    if not fetch:
        return None
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", PLACE, "debugpy"], timeout=60,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = glob.glob(os.path.join(PLACE, _INSIDE))
    return found[0] if found else None


# Number of elements of an array that are checked; the others are alike.
MANY = 200


class Schema:
    def __init__(self, file):
        with open(file, encoding="utf-8") as text:
            self._schema = json.load(text)
        self.definitions = self._schema["definitions"]
        self._kind = jsonschema.validators.validator_for(self._schema)
        self._judges = {}

    def against(self, definition, value):
        """Violations of a definition by a value."""
        if definition not in self._judges:
            self._judges[definition] = self._kind({"allOf": [{"$ref": f"#/definitions/{definition}"}], "definitions": self.definitions})
        for error in self._judges[definition].iter_errors(_cut(value)):
            yield f"{definition}{error.json_path[1:]}: {error.message[:300]}"


class Protocol(Schema):
    """The adapter's messages."""

    def problems(self, message):
        """Violations in a message. Requests and events that are not in the schema are not checked."""
        kind = message.get("type")
        if kind == "response" and not message.get("success"):
            yield from self.against("Response", message)
            return
        name = message.get("command") or message.get("event") or ""
        definition = name[:1].upper() + name[1:] + {"request": "Request", "response": "Response", "event": "Event"}.get(kind, "")
        if definition in self.definitions:
            yield from self.against(definition, message)


class Lines(Schema):
    """JSON lines of `ulpf run`, `ulpf last` or `ulpf export`, as docs/json.md promises them; hits of other faces: `saved` by the
    plugin, `completed` by the debug adapter and to Python."""

    def check(self, form, lines):
        """A test fails if a line is not as promised, or has a field that is not. Of many hits, the first are looked at."""
        hits = 0
        for line in lines:
            definition = f"{form}-{line.get('type')}"
            hits += line.get("type") == "hit"
            if line.get("type") == "hit" and hits > MANY:
                continue
            if definition not in self.definitions:
                raise AssertionError(f"no line of {form} is called so: {line}")
            wrong = [*self.against(definition, line), *self._unknown(self.definitions[definition], line)]
            if wrong:
                raise AssertionError("\n".join([f"against docs/json.schema.json: {line}", *wrong]))

    def _unknown(self, definition, value):
        if "allOf" in definition:
            definition = definition["allOf"][0]
        if "$ref" in definition:
            definition = self.definitions[definition["$ref"].rsplit("/", 1)[1]]
        if isinstance(value, list):
            for element in value[:MANY]:
                yield from self._unknown(definition.get("items", {}), element)
        elif isinstance(value, dict) and "properties" in definition:
            for name, part in value.items():
                if name in definition["properties"]:
                    yield from self._unknown(definition["properties"][name], part)
                else:
                    yield f"{name} is nowhere promised"


@functools.cache
def load():
    """The protocol's schema, or None if it is not installed."""
    file = path()
    return Protocol(file) if file else None


@functools.cache
def lines():
    return Lines(os.path.join(ROOT, "docs", "json.schema.json"))


def _cut(value):
    if isinstance(value, list):
        return [_cut(element) for element in value[:MANY]]
    return {name: _cut(part) for name, part in value.items()} if isinstance(value, dict) else value
