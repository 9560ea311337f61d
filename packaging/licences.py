"""The licences of all that ends up in ulpf's binaries: the crates that `cargo metadata` knows, with their texts."""

import json
import os
import re
import subprocess

# What packages contain. The stub is inside the command.
OURS = ["ulpf", "libulpf", "ulpf-stub"]
SIMULATOR = ["ulpf-sim-bridge"]
TEXTS = re.compile(r"(?i)^(licen[sc]e|copying|notice|unlicense|copyright)")


def metadata(root):
    metadata = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"],
                          cwd=root, stdout=subprocess.PIPE, check=True)
    return json.loads(metadata.stdout)


def linked(metadata, ours):
    """The packages of others that are linked into `ours`: what ours need to run, not to be built or tested."""
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
             for node in metadata["resolve"]["nodes"]}
    left = [package["id"] for package in metadata["packages"] if package["source"] is None and package["name"] in ours]
    seen = set()
    while left:
        which = left.pop()
        if which not in seen:
            seen.add(which)
            left += needs[which]
    others = [packages[which] for which in seen if packages[which]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """Of its licences, by file name. Those of C code that it brings lie deeper."""
    top = os.path.dirname(package["manifest_path"])
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in ("tests", "target", ".git"))
        for name in sorted(names):
            if TEXTS.match(name) and not name.endswith((".rs", ".py", ".c", ".h")):
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                    yield os.path.relpath(os.path.join(folder, name), top), file.read().strip()


def licences(root, ours=OURS):
    """The whole text. Each licence's text is there once, below the names of all who have it."""
    packages = linked(metadata(root), ours)
    lines = ["What ulpf contains of others, each under its licence.", ""]
    shared = {}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        lines.append(f"{name}: {package['license'] or 'see its text'}  {package['repository'] or ''}".rstrip())
        for file, text in texts(package):
            shared.setdefault(" ".join(text.split()), (text, []))[1].append(f"{name}, {file}")
    for text, names in shared.values():
        lines += ["", "=" * 100, *names, "-" * 100, "", text]
    return "\n".join(lines) + "\n"
