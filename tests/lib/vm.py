"""Debian's kernel in a simulator, with our module and programs: builds, boots, and tells what was said.

    python3 tests/lib/vm.py [--icount] [--limit SECONDS] [--cpus N] [--kernel KIND] PROGRAM…

runs programs of kernel/tests there, shows what they say, and ends with 1 if anything was not right.
KIND (or the environment's ULPF_KERNEL): `packaged` is the kernel that the installed headers are for,
`newer` that of Debian's backports, `debug` one that looks for mistakes and is built here.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
KERNEL = os.path.join(ROOT, "kernel")
BUILD = os.path.join(ROOT, "build", "kernel")
# As lib/env.py has it, which this file does without where it is a program.
PATIENCE = float(os.environ.get("ULPF_TEST_PATIENCE", "1"))


class Unavailable(Exception):
    """This machine cannot boot a kernel; the text says why."""


KINDS = ("packaged", "newer", "debug")


def unpacked(script, *words):
    """Output of a script of .ci: a kernel's version, the folder that modules are built in, its image."""
    if not shutil.which("qemu-system-x86_64"):
        raise Unavailable("qemu-system-x86_64 is not installed")
    os.makedirs(BUILD, exist_ok=True)
    # One at a time: two that unpack into one folder take each other's files away.
    with open(os.path.join(BUILD, f"lock-{script}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([os.path.join(ROOT, ".ci", script), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=7200)
    if done.returncode:
        raise Unavailable((done.stderr.strip() or f"{script} failed").splitlines()[-1])
    return done.stdout.split()


class Kernel:
    """One to boot: its `name`, the `folder` that a module is built in (None: it gets none), and its `image`."""

    def __init__(self, kind=None):
        self.kind = kind or os.environ.get("ULPF_KERNEL") or KINDS[0]
        if self.kind not in KINDS:
            raise Unavailable(f"no kernel is called {self.kind}: one of {', '.join(KINDS)}")
        # The one for debugging is built the first time.
        self.name, self.folder, self.image = unpacked("kernel-image" if self.kind == "packaged" else f"kernel-{self.kind}")

    @property
    def processor(self):
        """QEMU's. That of Debian 12 makes wrong flags of cmpxchg16b now and then, which newer kernels use at each allocation."""
        return "max" if self.kind in ("packaged", "debug") else "max,-cx16"

    @property
    def drivers(self):
        """Of a machine in QEMU, as files for `archive`: ports of virtio-serial, a network."""
        folder = os.path.join(BUILD, f"drivers-{self.name}")
        if not os.path.isdir(folder):
            raise Unavailable(f"the drivers of {self.name} are not here")
        files = [("drivers", 0o040755, b"")]
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                files.append((f"drivers/{name}", 0o100644, file.read()))
        return files

    @property
    def slow(self):
        """Factor of the time limit, relative to a usual kernel."""
        return 6 if self.kind == "debug" else 1


class Foreign(Kernel):
    """Another system's, for which no module is built."""

    def __init__(self, archive, suite, version):
        self.kind = f"{suite}-{version}"
        self.name, _, self.image = unpacked("kernel-of", archive, suite, version)
        self.folder = None


def make(*arguments):
    done = subprocess.run(["make", "-s", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    if done.returncode:
        raise AssertionError(f"make {' '.join(arguments)}:\n{done.stdout}")
    return done.stdout


REACH = os.path.join(KERNEL, "tests", "reach")


def build_module(kernel, name="ulpf", top=KERNEL):
    """Path of the module for this kernel. A warning is an error."""
    sources = {}
    for folder in top, os.path.join(top, "include", "uapi"):
        for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if file.endswith((".c", ".h")) and not file.endswith(".mod.c") or file == "Kbuild":
                with open(os.path.join(folder, file), "rb") as text:
                    sources[os.path.relpath(os.path.join(folder, file), top)] = text.read()
    # Beside the sources, the kernel's build would leave its files among them. Always anew: it does not notice
    # all that has changed.
    digest = hashlib.sha256(repr([kernel.name, sources]).encode()).hexdigest()[:16]
    prefix = f"{name}-{kernel.kind}-"
    folder = os.path.join(BUILD, prefix + digest)
    built = os.path.join(folder, "built")
    if not os.path.exists(built):
        for old in os.listdir(BUILD):
            if old.startswith(prefix):
                shutil.rmtree(os.path.join(BUILD, old))
        for file, text in sources.items():
            os.makedirs(os.path.dirname(os.path.join(folder, file)), exist_ok=True)
            with open(os.path.join(folder, file), "wb") as out:
                out.write(text)
        make("-C", kernel.folder, f"M={folder}", "W=1", "KCFLAGS=-Werror",
             # Type information for BPF would need pahole, and we have no use for it.
             "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
        open(built, "w").close()
    return os.path.join(folder, f"{name}.ko")


def archive(path, files):
    """An initramfs: a cpio archive of (name, mode, content)."""
    with open(path, "wb") as out:
        for number, (name, mode, content) in enumerate([*files, ("TRAILER!!!", 0, b"")], start=1):
            encoded = name.encode() + b"\0"
            fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
            head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
            out.write(head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4))


def initramfs(kernel, programs, files=()):
    modules = {"ulpf.ko": build_module(kernel), "ulpf_reach.ko": build_module(kernel, "ulpf_reach", REACH)} if kernel.folder else {}
    folder = os.path.join(BUILD, "programs")
    os.makedirs(folder, exist_ok=True)
    make("-C", os.path.join(KERNEL, "tests"), f"OUT={folder}")

    def executable(name, source):
        with open(source, "rb") as file:
            return name, 0o100755, file.read()
    # Of its own: another machine may boot meanwhile.
    descriptor, path = tempfile.mkstemp(prefix=f"initramfs-{kernel.kind}-", dir=BUILD)
    os.close(descriptor)
    # NAME@late is NAME, run in another way (kernel/tests/init.c).
    programs = {name.split("@")[0] for name in programs}
    given = {name for name, _, _ in files}
    archive(path, [("tests", 0o040755, b""), *(executable(*module) for module in modules.items()),
                   executable("init", os.path.join(folder, "init")),
                   *(executable("tests/" + name, os.path.join(folder, name)) for name in sorted(programs)
                     if "tests/" + name not in given), *files])
    return path


def names(prefix):
    """Programs of kernel/tests."""
    return sorted(f[:-2] for f in os.listdir(os.path.join(KERNEL, "tests")) if f.startswith(prefix) and f.endswith(".c"))


def boot(programs, limit=300, cpus=2, icount=False, options="", show=None, kernel=None, files=(), more=(), began=None):
    """Boots, runs the programs, and returns what the machine said; ends with it after `limit` seconds at the latest (times
    ULPF_TEST_PATIENCE, as the limits of tests).

    `kernel` is one of KINDS, or a Kernel. `files` are for its file system, as `archive` takes them (programs may be among them: tests/NAME), `more` is for QEMU,
    `began` is given its process.
    """
    if not isinstance(kernel, Kernel):
        kernel = Kernel(kernel)
    os.makedirs(BUILD, exist_ok=True)
    with open(os.path.join(BUILD, "building"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        image = initramfs(kernel, programs, files)
    limit *= kernel.slow * PATIENCE
    command = ["timeout", "-k", "5", str(limit), "qemu-system-x86_64", "-machine", "q35", "-cpu", kernel.processor, "-m", "512" if kernel.slow == 1 else "1536", "-display", "none",
               "-nodefaults", "-serial", "stdio", "-no-reboot", "-smp", str(1 if icount else cpus),
               "-kernel", kernel.image, "-initrd", image, "-append",
               "console=ttyS0 loglevel=3 panic=-1 oops=panic reboot=t no_timer_check random.trust_cpu=on nmi_watchdog=0 "
               f"ulpf.slow={kernel.slow} {options} ulpf.run={','.join(programs)}"]
    if icount:
        command += ["-icount", "shift=0"]
    command += more
    said = []
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if began:
        began(process)
    for line in process.stdout:
        line = line.decode(errors="replace").replace("\r", "").rstrip("\n")
        said.append(line)
        if show:
            show(line)
    status = process.wait()
    os.unlink(image)
    if status == 124:
        said.append(f"ulpf-vm: no end after {limit:.0f} s")
    return "\n".join(said)


def once(key, boot):
    """Output of a machine in this run of the tests (ULPF_TEST_RUN). The first test boots it; skips without a machine."""
    os.makedirs(BUILD, exist_ok=True)
    with open(os.path.join(BUILD, f"lock-{key}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(BUILD, f"told-{key}-{os.environ['ULPF_TEST_RUN']}")
        if not os.path.exists(path):
            for name in os.listdir(BUILD):
                if name.startswith(f"told-{key}-"):
                    os.unlink(os.path.join(BUILD, name))
            try:
                said = boot()
            except Unavailable as why:
                said = f"unavailable: {why}"
            with open(path + ".new", "w") as file:
                file.write(said)
            os.rename(path + ".new", path)
        with open(path) as file:
            said = file.read()
    if said.startswith("unavailable: "):
        raise unittest.SkipTest(said.removeprefix("unavailable: "))
    return said


def verdicts(said):
    """{program: {test: (verdict, notes)}} of what a machine said in KTAP."""
    found, notes, program = {}, [], None
    for line in said.splitlines():
        begin = re.match(r"ulpf-vm: begin (\S+)", line)
        if begin:
            program, notes = found.setdefault(begin[1], {}), []
        elif line.startswith("# "):
            notes.append(line[2:])
        result = re.match(r"(not ok|ok) \d+ (\w+)( # SKIP)?$", line)
        if result and program is not None:
            program[result[2]] = "skipped" if result[3] else "passed" if result[1] == "ok" else "failed", "\n".join(notes)
            notes = []
    return found


def case(machine, program, test):
    """A test method that reports the result of this test on the machine."""
    def run(self):
        said = machine()
        verdict, notes = verdicts(said).get(program, {}).get(test, ("failed", "the machine ended before"))
        if verdict == "failed":
            print(said)
        if verdict == "skipped":
            self.skipTest(notes)
        self.assertEqual(verdict, "passed", notes)
    return run


def tests(program):
    """The names of a program's tests."""
    with open(os.path.join(KERNEL, "tests", program + ".c")) as source:
        return re.findall(r"^TEST\((\w+)\)", source.read(), re.M)


def is_well(said):
    return said.rstrip().endswith("ulpf-vm: ok") or "\nulpf-vm: ok\n" in said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--icount", action="store_true", help="one processor that counts: time is instructions")
    parser.add_argument("--limit", type=int, default=600)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--options", action="append", default=[], help="for the kernel's command line")
    parser.add_argument("--kernel", choices=KINDS)
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()
    try:
        said = boot(args.programs, args.limit, args.cpus, args.icount, " ".join(args.options), lambda line: print(line, flush=True),
                    args.kernel)
    except Unavailable as why:
        print(f"no machine: {why}", file=sys.stderr)
        return 1
    return 0 if is_well(said) else 1


if __name__ == "__main__":
    sys.exit(main())
