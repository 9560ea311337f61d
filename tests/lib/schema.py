"""Checks messages against the Debug Adapter Protocol's published JSON schema.

The schema is not ours: debugpy (PyPI) carries it. ULPF_DAP_SCHEMA names a newer one, where there is one.
"""

import functools
import glob
import json
import os
import subprocess
import sys

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


@functools.cache
def load():
    """A `Schema`, or None where there is none."""
    file = path()
    if file is None:
        return None
    with open(file, encoding="utf-8") as text:
        return Schema(json.load(text)["definitions"])


class Schema:
    def __init__(self, definitions):
        self.definitions = definitions

    def problems(self, message):
        """What is wrong with a message; nothing is known of requests and events that are not in the schema."""
        kind = message.get("type")
        if kind == "response" and not message.get("success"):
            yield from self._check(message, {"$ref": "#/definitions/Response"}, "error")
            return
        name = message.get("command") or message.get("event") or ""
        definition = name[:1].upper() + name[1:] + {"request": "Request", "response": "Response", "event": "Event"}.get(kind, "")
        if definition in self.definitions:
            yield from self._check(message, self.definitions[definition], definition)

    def _check(self, value, rule, at):
        if "$ref" in rule:
            yield from self._check(value, self.definitions[rule["$ref"].rsplit("/", 1)[1]], at)
        for part in rule.get("allOf", []):
            yield from self._check(value, part, at)
        for choice in "oneOf", "anyOf":
            if choice in rule and all(list(self._check(value, part, at)) for part in rule[choice]):
                yield f"{at}: fits none of {choice}"
        types = rule.get("type")
        if types and not any(_is(value, t) for t in ([types] if isinstance(types, str) else types)):
            yield f"{at}: {value!r} is no {types}"
            return
        if "enum" in rule and value not in rule["enum"]:
            yield f"{at}: {value!r} is none of {rule['enum']}"
        if isinstance(value, dict):
            for name in rule.get("required", []):
                if name not in value:
                    yield f"{at}: {name} is missing"
            for name, part in rule.get("properties", {}).items():
                if name in value:
                    yield from self._check(value[name], part, f"{at}.{name}")
        if isinstance(value, list) and isinstance(rule.get("items"), dict):
            for number, item in enumerate(value[:200]):
                yield from self._check(item, rule["items"], f"{at}[{number}]")


def _is(value, name):
    if name in ("integer", "number"):
        return isinstance(value, (int, float) if name == "number" else int) and not isinstance(value, bool)
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}[name])
