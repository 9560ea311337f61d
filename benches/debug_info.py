#!/usr/bin/env python3
"""A program with a gigabyte of debug information, and how long the first name in it takes: ulpf, and gdb beside it.

    benches/debug_info.py [UNITS [FOLDER]]      (160 units are 1.1 GB; the folder takes three times that)

One unit is compiled; the others are copies of it in which all names of its own have changed, for compiling each would take
half an hour.
"""

import os
import re
import subprocess
import sys
import tempfile
import time

ULPF = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "target", "release", "ulpf")
CLASS = """
struct K{j} {{ int k; bool operator<(const K{j} &o) const {{ return k < o.k; }} }};
struct S{j} {{
    int a_xxx_{j};
    std::map<K{j}, std::vector<K{j}>> q; std::list<K{j}> l; std::deque<K{j}> d; std::shared_ptr<K{j}> p;
    std::map<std::string, std::vector<int>> m; std::unordered_map<int, std::string> u;
    S{j} *next; long n[{j} + 1];
    virtual ~S{j}() {{}}
    int run(int k) {{ int s = 0; for (int x = 0; x < k; x++) s += n[x % ({j} + 1)]++ + a_xxx_{j}; return s; }}
}};
S{j} s{j}_of_xxx;
static int counter{j};
int work{j}(int k) {{
    auto &s = s{j}_of_xxx;
    counter{j}++;
    s.q[K{j}{{k}}].push_back(K{j}{{k}}); s.l.push_back(K{j}{{k}}); s.d.push_back(K{j}{{k}}); s.p = std::make_shared<K{j}>();
    s.m[std::to_string(k)].push_back(k);
    return s.run(k) + counter{j};
}}
"""
CLASSES = 40


def build(folder, units):
    def run(*command):
        subprocess.run(command, cwd=folder, check=True)
    names = [chr(97 + n // 676 % 26) + chr(97 + n // 26 % 26) + chr(97 + n % 26) for n in range(units)]
    with open(f"{folder}/unit.cpp", "w") as file:
        file.write("#include <bits/stdc++.h>\nnamespace unit_xxx {\n" + "".join(CLASS.format(j=j) for j in range(CLASSES)))
        file.write("int all(int k) { return 0" + "".join(f" + work{j}(k)" for j in range(CLASSES)) + "; }\n}\n")
    with open(f"{folder}/main.cpp", "w") as file:
        file.write("".join(f"namespace unit_{n} {{ int all(int); }}\n" for n in names) + "int the_counter;\nint main() {\n")
        file.write("".join(f"    the_counter += unit_{n}::all(3);\n" for n in names) + "    return 0;\n}\n")
    run("g++", "-std=c++20", "-g", "-c", "unit.cpp", "main.cpp")
    with open(f"{folder}/unit.o", "rb") as file:
        unit = file.read()
    for name in names:
        with open(f"{folder}/of_{name}.o", "wb") as file:
            file.write(re.sub(rb"(unit|_of|a)_xxx", rb"\1_" + name.encode(), unit))
    run("g++", "-o", "big", "main.o", *(f"of_{name}.o" for name in names))
    for name in names:
        os.unlink(f"{folder}/of_{name}.o")
    sizes = subprocess.run(["size", "-A", "big"], cwd=folder, check=True, capture_output=True, text=True).stdout
    print(f"{sum(int(n) for n in re.findall(r'^[.]debug_.*? +([0-9]+)', sizes, re.M)) / 1e9:.2f} GB of debug information")
    return names


def anonymous(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return int(re.search(r"RssAnon:\s+(\d+)", file.read())[1])
    except (OSError, TypeError):
        return 0


def measured(what, folder, *command):
    began, most = time.monotonic(), 0
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        most = max(most, anonymous(process.pid))
        time.sleep(0.02)
    wall = time.monotonic() - began
    said = process.stdout.read().strip().splitlines()
    print(f"{what:44} {wall:6.1f} s, {usage.ru_utime + usage.ru_stime:6.1f} s of processor time, {most / 1e6:5.2f} GB: {said[-1][:90] if said else status}")


def main():
    units = int(sys.argv[1]) if len(sys.argv) > 1 else 160
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        last = build(folder, units)[-1]
        watches = ["the_counter", f"unit_{last}::s5_of_{last}.a_{last}_5", f"unit_{last}::counter3", "counter3", "no_such_name"]
        os.environ["XDG_CACHE_HOME"] = folder
        measured("(gdb: into the page cache)", folder, "gdb", "-q", "-batch", "-ex", "info line main", "big")
        for watch in watches:
            measured(f"ulpf run -w {watch}", folder, ULPF, "run", "-q", "-w", watch, "--", "./big")
            measured("once more, with what the first run has kept", folder, ULPF, "run", "-q", "-w", watch, "--", "./big")
            measured(f"gdb, watch {watch}", folder, "gdb", "-q", "-batch", "-ex", f"watch {watch}", "big")


if __name__ == "__main__":
    main()
