#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the same program with the same watches on gem5 and on the machine on Unicorn, and prints a table.

    compare.py GEM5 ULPF-SIM [--write]

--write puts it into docs/notes/measurements.md. Ends with 1 if hits or false positives differ."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
PAGE = 4096
BEGIN, END = "<!-- begin gem5 -->\n", "<!-- end gem5 -->\n"

# Name, what the program does, the array, watches as (offset, length).
chance = random.Random(1)
CASES = [
    ("sweep, 16 random bytes on 4 pages (4.3)", "sweep", "block",
     [(page * PAGE + chance.randrange(PAGE), 1) for page in (3, 17, 30, 51) for _ in range(4)]),
    ("sweep, 64 random bytes on 16 pages (4.3)", "sweep", "block",
     [(4 * page * PAGE + chance.randrange(PAGE), 1) for page in range(16) for _ in range(4)]),
    ("sweep, 256 bytes 256 apart (4.4)", "sweep", "block", [(256 * n, 1) for n in range(256)]),
    ("sweep, one byte on each page (4.5)", "sweep", "block", [(PAGE * n, 1) for n in range(64)]),
    ("heap sort, 8 numbers", "sort", "numbers", [(4 * 1000 * n, 4) for n in range(8)]),
    ("binary tree, the root and 15 nodes", "tree", "nodes", [(16 * 500 * n, 16) for n in range(16)]),
    ("hash table, 64 slots", "table", "slots", [(8 * 128 * n, 8) for n in range(64)]),
]


def build(folder):
    program = os.path.join(folder, "patterns")
    subprocess.run(["gcc", "-O1", "-static", "-no-pie", "-o", program, os.path.join(HERE, "patterns.c")],
                   check=True)
    names = subprocess.run(["nm", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return program, {words[2]: int(words[0], 16) for line in names.splitlines() if len(words := line.split()) == 3}


def counters(command, lines):
    """The counters that a machine writes to stderr: `name value` lines, or one of JSON."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=600)
    if done.returncode != 0 or done.stdout != "patterns: done\n":
        sys.exit(f"{command[0]} has ended with {done.returncode}:\n{done.stderr}")
    if not lines:
        return json.loads(done.stderr[done.stderr.index("{"):])
    pairs = (line.split() for line in done.stderr.splitlines())
    return {words[0]: int(words[1]) for words in pairs if len(words) == 2 and words[1].isdigit()}


def on_gem5(gem5, folder, program, what, watches):
    flags = [flag for place, length in watches for flag in ("--watch", f"{place:#x}:{length}")]
    return counters([gem5, "--quiet", "--listener-mode=on", "--dot-config=", "--outdir", os.path.join(folder, "out"),
                     os.path.join(ROOT, "sim-bridge", "gem5", "run.py"), "--stats", *flags, "--", program, what], True)


def on_unicorn(simulator, program, what, watches):
    flags = [flag for place, length in watches for flag in ("--watch", f"{place:#x}:{length}")]
    return counters([simulator, "--json", "-", *flags, program, what], False)


def compare(gem5, simulator):
    """A row for each case: name, watches, hits and false positives on both, and cycles with and without."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program, places = build(folder)
        for name, what, array, offsets in CASES:
            watches = [(places[array] + offset, length) for offset, length in offsets]
            row = {"name": name, "watches": len(watches)}
            for machine, of in (("gem5", lambda w, what=what: on_gem5(gem5, folder, program, what, w)),
                                ("unicorn", lambda w, what=what: on_unicorn(simulator, program, what, w))):
                bare, watched = of([]), of(watches)
                row[machine] = {"hits": watched["hits"], "false_positives": watched["false_positives"],
                                "bare": bare["cycles"], "cycles": watched["cycles"]}
            rows.append(row)
    return rows


def table(rows):
    out = ["| program and watches (thesis's table) | hits: gem5 | Unicorn | false positives: gem5 | Unicorn"
           " | cycles without watches, gem5 : Unicorn | cycles a fault: gem5 | Unicorn | slowdown: gem5 | Unicorn |",
           "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        g, u = row["gem5"], row["unicorn"]
        cells = [row["name"]]
        cells += [f"{m[key]:,}" for key in ("hits", "false_positives") for m in (g, u)]
        cells += [f"{g['bare'] / u['bare']:.2f}"]
        cells += [f"{(m['cycles'] - m['bare']) / (m['hits'] + m['false_positives']):.0f}" for m in (g, u)]
        cells += [f"{m['cycles'] / m['bare']:.2f}" for m in (g, u)]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gem5")
    parser.add_argument("simulator")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = compare(options.gem5, options.simulator)
    text = table(rows)
    print(text, end="")
    if options.write:
        page = os.path.join(ROOT, "docs", "notes", "measurements.md")
        with open(page, encoding="utf-8") as file:
            whole = file.read()
        before, after = whole[:whole.index(BEGIN) + len(BEGIN)], whole[whole.index(END):]
        with open(page, "w", encoding="utf-8") as file:
            file.write(before + text + after)
    same = ("hits", "false_positives")
    sys.exit(any(row["gem5"][key] != row["unicorn"][key] for row in rows for key in same))


if __name__ == "__main__":
    main()
