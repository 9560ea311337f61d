"""Runs the console blocks of a page of documentation, as a reader would type them, and compares the output.

    ```console
    $ cc -g -o stray examples/stray.c
    $ ulpf gdb -q stray
    …
    (gdb) watch game.total
    Hardware watchpoint 1: game.total
    ```

All commands of a page run in one shell and one folder, in which `examples` is that of the source tree, and `ulpf` is
in PATH. The lines behind a command are its whole output. Blanks count as one; times, process numbers, addresses and
offsets into functions may differ; `…` is any text, and alone in a line any lines. A command without lines has no output.
Lines behind `(gdb)` and `(lldb)` are typed at the debugger's prompt. A block of another language with `file=NAME` is
written to that file before the commands below it run. `<!-- needs: PROGRAM … -->` names the programs that a page needs;
`<!-- where: COMMAND -->` before a block skips that block where the command fails.
"""

import os
import re
import select
import signal
import subprocess
import tempfile
import time

from .env import GO_CACHE, PATIENCE, ROOT, ULPF, find_tool

FENCE = re.compile(r"(?ms)^```(\w+)([^\n]*)\n(.*?)^```$")
PROMPTS = ("(gdb)", "(lldb)")
# Sent at each debugger's first prompt, because no user is there to answer its questions.
FIRST = {"(gdb)": ["set confirm off", "set width 0", "set debuginfod enabled off"], "(lldb)": ["settings set auto-confirm true", "settings set use-color false"]}
END = "\x01"
EXAMPLES = os.path.join(ROOT, "examples")


class Command:
    """One command of a page: the text typed at the debugger that it starts, and the expected output."""

    def __init__(self, text, line):
        self.text, self.line = text, line
        self.typed, self.said, self.prompt = [], [], None


def blocks(page):
    """The (language, attributes, text, line) of each fenced block."""
    for match in FENCE.finditer(page):
        yield match[1], match[2].strip(), match[3], page.count("\n", 0, match.start()) + 1


def left_out(page):
    """The lines of blocks that cannot be tried on this machine, each with the command that says so."""
    found, end = {}, 0
    for match in FENCE.finditer(page):
        where = re.search(r"<!-- where: (.*?) -->\s*$", page[end:match.start()])
        if where and subprocess.run(where[1], shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            found[page.count("\n", 0, match.start()) + 1] = where[1]
        end = match.end()
    return found


def commands(text, line):
    """Those of one console block. A command that ends in a backslash goes on in the next line."""
    found = []
    for number, words in enumerate(text.splitlines(), start=line + 1):
        prompt = next((p for p in PROMPTS if words.startswith(p)), None)
        if found and found[-1].text.endswith("\\") and not found[-1].said:
            found[-1].text += "\n" + words
        elif words.startswith("$ "):
            found.append(Command(words[2:], number))
        elif not found:
            raise AssertionError(f"line {number}: a console block begins with a command: {words!r}")
        elif prompt:
            found[-1].prompt = prompt
            found[-1].typed.append(words[len(prompt):].strip())
            # Output between two prompts is compared at its position.
            found[-1].said.append("")
        else:
            found[-1].said.append(words)
    return found


def patterns(lines):
    """Regular expressions for the text between the `…`."""
    text = re.escape(" ".join(" ".join(lines).split()))
    text = re.sub(r"0x[0-9a-f]{5,}|(?<=\+)0x[0-9a-f]+", "0x[0-9a-f]+", text)
    text = re.sub(r"\d+\\\.\d{3,}", r"\\d+\\.\\d+", text)
    text = re.sub(r"\\\[\d{3,}\\\]", r"\\[\\d+\\]", text)
    text = re.sub(r"(pid\\ =\\ |[Pp]rocess\\ )\d+", r"\1\\d+", text)
    # Blanks beside a gap are part of it.
    return [part.replace("\\ ", " ") for part in re.split(r"(?:\\ )*…(?:\\ )*", text)]


def fits(parts, said):
    """True if these parts are the whole output, in this order, with any text between them. (A single regular expression would
    try all ways.)"""
    first, *rest = parts
    if not rest:
        return re.fullmatch(first, said) is not None
    match = re.match(first, said)
    for part in rest[:-1]:
        match = match and re.compile(part).search(said, match.end())
    return bool(match and re.compile(f"(?:{rest[-1]})$").search(said, match.end()))


def compiler_of_rust():
    """The rustc of the selected toolchain, or None. rustup's proxy of that name needs the user's HOME, which a page does not have."""
    if not (proxy := find_tool("rustc")):
        return None
    root = subprocess.run([proxy, "--print", "sysroot"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    compiler = os.path.join(root, "bin", "rustc")
    return compiler if root and os.path.exists(compiler) else None


class Shell:
    """A shell that separates the output of its commands."""

    def __init__(self, folder, ulpf, library):
        self.folder = folder
        places = os.path.join(folder, ".bin")
        os.mkdir(places)
        os.symlink(ulpf, os.path.join(places, "ulpf"))
        for name, tool in {"lldb": find_tool("lldb", "lldb-19", "lldb-14"), "go": find_tool("go"), "rustc": compiler_of_rust()}.items():
            if tool:
                os.symlink(tool, os.path.join(places, name))
        environment = {"PATH": f"{places}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": folder, "LC_ALL": "C.UTF-8", "TERM": "dumb",
                       "SHELL": "/bin/sh", "GOCACHE": GO_CACHE, "PKG_CONFIG_PATH": os.path.join(library, "pkgconfig"),
                       "LD_LIBRARY_PATH": library}
        self.process = subprocess.Popen(["bash", "--norc", "--noprofile"], cwd=folder, env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def __call__(self, command, typed="", seconds=60):
        """The command's output, to its end."""
        if typed:
            name = os.path.join(self.folder, ".typed")
            with open(name, "w") as file:
                file.write(typed)
            command += f" <{name}"
        self.process.stdin.write(f"{{ {command}\n}} 0</dev/null\necho '{END}'\n".encode())
        self.process.stdin.flush()
        said, until = b"", time.monotonic() + seconds * PATIENCE
        while END.encode() not in said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            read = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not read:
                raise AssertionError(f"{command}: {'the shell has ended' if ready else 'no end'}: {said.decode(errors='replace')}")
            said += read
        return said.decode(errors="replace").replace(END, "")

    def close(self):
        """With all that it has left running."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def run(shell, command):
    """Output of the command, without the debugger's prompts and echo."""
    if not command.prompt:
        return shell(command.text)
    typed = "".join(line + "\n" for line in FIRST[command.prompt] + command.typed)
    if command.prompt == "(gdb)":
        return shell(command.text, typed).replace("(gdb) ", "")
    # lldb waits for a stop only where it reads its commands from a file; it repeats each.
    script = os.path.join(shell.folder, ".script")
    with open(script, "w") as file:
        file.write(typed)
    said = shell(f"{command.text} --no-lldbinit --batch -s {script}")
    return re.sub(r"(?m)^\(lldb\) .*\n", "", said)


def try_page(path, examples=EXAMPLES, ulpf=ULPF, library=None):
    """Runs all console blocks of the page; how many commands there were. An AssertionError names the first that differs.

    `library` is the folder of libulpf.so and of pkgconfig; where none is given, it is installed for the page.
    """
    with open(path, encoding="utf-8") as file:
        page = file.read()
    count = 0
    with tempfile.TemporaryDirectory(prefix="ulpf-page-") as folder:
        os.symlink(examples, os.path.join(folder, "examples"))
        if "$(pkg-config" in page and not library:
            subprocess.run(["make", "-s", "-C", os.path.join(ROOT, "ulpf-lib", "c"), "install", f"PREFIX={folder}/.library"], check=True)
        without = left_out(page)
        shell = Shell(folder, ulpf, library or os.path.join(folder, ".library", "lib"))
        try:
            for language, attributes, text, line in blocks(page):
                if name := re.search(r"file=(\S+)", attributes):
                    with open(os.path.join(folder, name[1]), "w") as file:
                        file.write(text)
                if language != "console" or line in without:
                    continue
                for command in commands(text, line):
                    said = " ".join(run(shell, command).split())
                    expected = patterns(command.said)
                    if not fits(expected, said):
                        raise AssertionError(f"{os.path.relpath(path, ROOT)}:{command.line}: $ {command.text}\nsays:     {said}\nexpected: {' … '.join(expected)}")
                    count += 1
        finally:
            shell.close()
    return count


def missing(path):
    """Programs that the page needs and this machine lacks."""
    with open(path, encoding="utf-8") as file:
        named = re.findall(r"<!-- needs: (.*?) -->", file.read())
    return [name for words in named for name in words.split() if not (find_tool(name) or name == "lldb" and find_tool("lldb-19", "lldb-14"))]


def pages():
    """All pages with console blocks, below docs/ and at the root."""
    found = [os.path.join(ROOT, "README.md")]
    for folder, _, names in sorted(os.walk(os.path.join(ROOT, "docs"))):
        found += [os.path.join(folder, name) for name in sorted(names) if name.endswith(".md")]
    return [path for path in found if any(language == "console" for language, *_ in blocks(open(path, encoding="utf-8").read()))]
