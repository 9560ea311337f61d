"""Properties that gdbserver's callers rely on: messages, exit statuses, transports, modes."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import tempfile
import unittest

from lib.cases import Case
from lib.env import PATIENCE, SERVER, STAND_IN, ULPF, NotBuilt, bare, example, ulpf_only
from lib.gdb import GdbTimeout
from lib.rsp import Rsp, wait_until
from lib.users import no_other_users


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def server(*args, seconds=20, **options):
    """Runs the server to its end: exit status and everything it said."""
    done = subprocess.run([*SERVER, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=seconds * PATIENCE, **options)
    return done.returncode, done.stdout.decode(errors="replace")


class Messages(Case):
    def test_says_what_tools_read(self):
        server = self.serve("five")
        self.assertRegex(server.said, r"Process .*five created; pid = \d+\n(.*\n)*Listening on port \d+\n")
        gdb = self.gdb()
        gdb(f"target remote {server.target}")
        server.wait_for(r"Remote debugging from host 127.0.0.1")
        gdb("continue")
        server.wait_for(r"Child exited with status 0")
        self.assertEqual(server.wait(), 0)

    def test_missing_program(self):
        status, said = server("127.0.0.1:0", "/nonexistent/program")
        self.assertEqual(status, 1)
        # The shell says it: bash in the first words, dash in the second.
        self.assertRegex(said, r"/nonexistent/program: (No such file or directory|not found)")

    def test_program_that_is_no_program(self):
        with tempfile.NamedTemporaryFile(suffix=".txt") as file:
            file.write(b"\x00\x01\x02 no program\n")
            file.flush()
            os.chmod(file.name, 0o644)
            status, said = server("127.0.0.1:0", file.name)
        self.assertEqual(status, 1)
        self.assertIn(os.path.basename(file.name), said)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            status, said = server(f"127.0.0.1:{taken.getsockname()[1]}", example("five"))
        self.assertEqual(status, 1)
        self.assertIn("Can't bind address: Address already in use.", said)

    def test_no_arguments(self):
        status, said = server()
        self.assertEqual(status, 1)
        self.assertIn("Usage", said)

    def test_unknown_option(self):
        status, said = server("--nonsense", "127.0.0.1:0", example("five"))
        self.assertEqual(status, 1)
        self.assertIn("--nonsense", said)

    def test_attach_to_nobody(self):
        status, said = server("--attach", "127.0.0.1:0", "4194304")  # no process can have this number
        self.assertEqual(status, 1)
        self.assertRegex(said, r"4194304.*No such process")

    def test_version_and_help(self):
        status, said = server("--version")
        self.assertEqual(status, 0)
        self.assertRegex(said, r"\d+\.\d+")
        status, said = server("--help")
        self.assertEqual(status, 0)
        for option in "--once", "--multi", "--attach", "--wrapper", "--no-startup-with-shell", "--disable-packet":
            self.assertIn(option, said)

    @ulpf_only
    def test_32_bit_program_is_refused(self):
        try:
            example("tiny32")
        except NotBuilt as why:
            self.skipTest(f"the assembler here has no i386: {why}")
        status, said = server("127.0.0.1:0", example("tiny32"))
        self.assertEqual(status, 1)
        self.assertRegex(said, r"32-bit")

    @ulpf_only
    def test_setuid_program_runs_as_the_caller(self):
        """An ordinary user may not control a program that runs as another user: as under any debugger,
        it runs without the other user's rights."""
        if why := no_other_users():
            self.skipTest(why)
        if subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("nobody may not read this system's libraries")
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            program, ulpf = os.path.join(folder, "setuid"), os.path.join(folder, "ulpf")
            subprocess.run(["cp", "/usr/bin/id", program], check=True)
            subprocess.run(["cp", SERVER[0], ulpf], check=True)
            os.chmod(program, 0o4755)
            gdb = self.gdb()
            said = gdb(f"target remote | setpriv --reuid 65534 --regid 65534 --clear-groups {ulpf} server - {program} -u") + gdb("continue")
        self.assertSays(said, r"65534", r"exited normally")


class Ends(Case):
    """The end of server and program, and their exit statuses."""

    def test_exit_code(self):
        gdb = self.session("exitcode", "7", stop=None)
        self.assertSays(gdb("continue"), r"exited with code 07")
        self.assertEqual(gdb.server.wait(), 0)
        self.assertIn("Child exited with status 7", gdb.server.said)

    def test_exit_from_a_thread(self):
        gdb = self.session("exitcode", "9", "group", stop=None)
        self.assertSays(gdb("continue"), r"exited with code 011")
        self.assertEqual(gdb.server.wait(), 0)

    def test_kill(self):
        gdb = self.session("spin", stop="turn")
        pid = gdb.server.program_pid
        self.assertSays(gdb("kill"), r"killed")
        self.assertEqual(gdb.server.wait(), 0)
        self.assertFalse(alive(pid))

    def test_detach_lets_the_program_go_on(self):
        gdb = self.session("five")
        gdb("watch a")
        self.assertSays(gdb("continue"), r"New value = 11")
        self.assertSays(gdb("detach"), r"detached")
        self.assertEqual(gdb.server.wait(), 0)
        self.assertTrue(wait_until(lambda: "five: done" in gdb.server.stdout()))

    def test_detach_from_what_was_killed_meanwhile(self):
        """There is nothing left to let go of, which is no failure."""
        gdb = self.session("five")
        os.kill(gdb.server.program_pid, signal.SIGKILL)
        self.assertSays(gdb("detach"), r"detached")
        gdb.server.wait()

    def test_monitor_exit_ends_program_and_server(self):
        gdb = self.session("spin", stop="turn")
        pid = gdb.server.program_pid
        gdb("monitor exit")
        gdb.server.wait()
        self.assertTrue(wait_until(lambda: not alive(pid)))

    def test_hangup_ends_program_and_server(self):
        server = self.serve("spin")
        pid = server.program_pid
        os.kill(server.process.pid, signal.SIGHUP)
        self.assertEqual(server.wait(), -signal.SIGHUP)
        self.assertTrue(wait_until(lambda: not alive(pid)))

    def test_server_that_is_killed_takes_its_program_along(self):
        server = self.serve("spin")
        pid = server.program_pid
        os.kill(server.process.pid, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: not alive(pid)))

    def test_parent_is_the_server(self):
        server = self.serve("spin")
        with open(f"/proc/{server.program_pid}/stat") as status:
            parent = int(status.read().rsplit(")", 1)[1].split()[1])
        self.assertEqual(parent, server.process.pid)

    def test_client_vanishes_and_the_next_one_goes_on(self):
        server = self.serve("five")
        first = Rsp(server.target)
        first("?")
        first.raw(b"+$qSup")
        first.close()
        server.wait_for(r"(?s)Listening on port.*Listening on port")
        gdb = self.gdb()
        gdb(f"file {example('five')}")
        gdb(f"target remote {server.target}")
        self.assertSays(gdb("continue"), r"exited normally")
        self.assertEqual(server.wait(), 0)

    def test_client_vanishes_with_once(self):
        server = self.serve("spin", options=["--once"])
        pid = server.program_pid
        client = Rsp(server.target)
        client("?")
        client.raw(b"+$qSup")
        client.close()
        server.wait()
        self.assertTrue(wait_until(lambda: not alive(pid)))

    @ulpf_only
    def test_client_vanishes_while_the_program_runs(self):
        """gdbserver notices only when the program stops for some other reason."""
        server = self.serve("spin", options=["--once"])
        pid = server.program_pid
        client = Rsp(server.target)
        client.no_ack()
        client("qSupported:multiprocess+;vContSupported+")
        client.raw(b"$vCont;c#a8")
        self.assertTrue(wait_until(lambda: "spin: up" in server.stdout()))
        client.close()
        server.wait()
        self.assertTrue(wait_until(lambda: not alive(pid)))


class Transports(Case):
    def test_stdio(self):
        gdb = self.gdb()
        gdb(f"file {example('five')}")
        self.assertSays(gdb(f"target remote | {' '.join(SERVER)} - {example('five')}"), r"Remote debugging using")
        gdb("break ready")
        self.assertSays(gdb("continue"), r"Breakpoint 1, ready")
        self.assertSays(gdb("continue"), r"exited normally")

    def test_stdio_by_name(self):
        gdb = self.gdb()
        gdb(f"target remote | {' '.join(SERVER)} stdio {example('exitcode')} 3")
        self.assertSays(gdb("continue"), r"exited with code 03")

    @ulpf_only
    def test_unix_socket(self):
        server = self.serve("five", comm="@dir/socket")
        mode = os.stat(server.comm).st_mode
        self.assertEqual(stat.S_IMODE(mode) & 0o077, 0, "others must not connect")
        gdb = self.gdb()
        gdb(f"file {example('five')}")
        gdb(f"target remote {server.target}")
        self.assertSays(gdb("continue"), r"exited normally")
        self.assertEqual(server.wait(), 0)

    def test_port_only(self):
        server = self.serve("five", comm=":0")
        gdb = self.gdb()
        gdb(f"target remote {server.target}")
        self.assertSays(gdb("continue"), r"exited normally")

    @ulpf_only
    def test_port_only_listens_on_loopback(self):
        server = self.serve("five", comm=":0")
        out = subprocess.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], stdout=subprocess.PIPE).stdout.decode()
        hosts = re.findall(rf"^ *\d+: ([0-9A-F]+):{server.port:04X} \S+ 0A", out, re.M)
        self.assertEqual(hosts, ["0100007F"])

    def test_standard_input_is_the_programs(self):
        read, write = os.pipe()
        os.write(write, b"line one\nline two\n")
        os.close(write)
        server = self.serve("/bin/cat", stdin=read)
        os.close(read)
        gdb = self.gdb()
        gdb(f"target remote {server.target}")
        self.assertSays(gdb("continue"), r"exited normally")
        server.wait()
        self.assertEqual(server.stdout(), "line one\nline two\n")


class Modes(Case):
    def test_multi_run_and_run_again(self):
        server = self.serve(options=["--multi"])
        gdb = self.gdb()
        gdb(f"file {example('five')}")
        gdb(f"target extended-remote {server.target}")
        gdb(f"set remote exec-file {example('five')}")
        gdb("break ready")
        for _ in range(3):
            self.assertSays(gdb("run"), r"Breakpoint 1, .*ready")
        self.assertSays(gdb("continue"), r"exited normally")
        self.assertSays(gdb("run"), r"Breakpoint 1, .*ready")
        self.assertIsNone(server.process.poll())
        gdb("monitor exit")
        server.wait()

    @ulpf_only
    def test_the_same_abilities_without_a_program(self):
        """A debugger asks once per connection, perhaps before there is a program."""
        said = []
        for server in self.serve("spin"), self.serve(options=["--multi"]):
            client = Rsp(server.target)
            said.append(sorted(client(
                "qSupported:multiprocess+;vContSupported+;swbreak+;hwbreak+;fork-events+;vfork-events+;exec-events+"
                ";QThreadEvents+;no-resumed+;memory-tagging+;xmlRegisters=i386").decode().split(";")))
            client.close()
        self.assertEqual(*said)

    def test_multi_run_with_arguments_and_environment(self):
        server = self.serve(options=["--multi"])
        gdb = self.gdb()
        gdb(f"target extended-remote {server.target}")
        gdb("set remote exec-file /bin/sh")
        gdb("file /bin/sh")
        gdb("set environment COLOUR blue")
        gdb("""set args -c 'echo "$COLOUR $0 $1"; exit 5' one 'two words'""")
        self.assertSays(gdb("run"), r"exited with code 05")
        self.assertTrue(wait_until(lambda: "blue one two words\n" in server.stdout()), server.stdout())
        gdb("monitor exit")

    def test_extended_restart_with_watches(self):
        gdb = self.session("five", extended=True)
        gdb("watch a")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        gdb("break ready")
        self.assertSays(gdb("run"), r"Breakpoint 3, .*ready")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        self.assertSays(gdb("continue"), r"New value = 12")
        self.assertSays(gdb("continue"), r"exited normally")
        gdb("monitor exit")

    def test_wrapper(self):
        server = self.serve("/bin/sh", "-c", "echo wrapped $COLOUR", options=["--wrapper", "env", "COLOUR=green", "--"])
        gdb = self.gdb()
        gdb(f"target remote {server.target}")
        self.assertSays(gdb("continue"), r"exited normally")
        server.wait()
        self.assertEqual(server.stdout(), "wrapped green\n")

    def test_the_shell_is_missing(self):
        """The message names the shell, not the program, which exists."""
        status, said = server("127.0.0.1:0", example("five"), env={**os.environ, "SHELL": "/missing/sh"})
        self.assertEqual(status, 1)
        self.assertIn(f"Cannot exec /missing/sh, the shell that is to start {example('five')}. "
                      "SHELL names another one; --no-startup-with-shell needs none\n", said)
        self.assertIn("No such file or directory", said)

    def test_no_startup_with_shell(self):
        server = self.serve("/bin/echo", "$HOME", "*", options=["--no-startup-with-shell"])
        gdb = self.gdb()
        gdb(f"target remote {server.target}")
        gdb("continue")
        server.wait()
        self.assertEqual(server.stdout(), "$HOME *\n")

    def test_address_randomisation_is_off_unless_asked_for(self):
        bases = set()
        for options in [], [], ["--no-disable-randomization"]:
            gdb = self.session("five", options=options)
            bases.add((bool(options), gdb.address("a")))
            gdb("kill")
        self.assertEqual(len({b for b in bases if not b[0]}), 1)

    def spinning(self):
        program = subprocess.Popen([example("spin")], stdout=subprocess.PIPE)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), b"spin: up\n")
        return program

    def attach(self, pid_first):
        program = self.spinning()
        if pid_first:
            server = self.serve(options=["--attach", str(program.pid)])
        else:
            server = self.serve(options=["--attach"], after=[str(program.pid)])
        gdb = self.gdb()
        gdb(f"file {example('spin')}")
        gdb(f"target remote {server.target}")
        gdb.server = server
        return program, gdb

    def check_attached(self, program, gdb):
        self.assertEqual(gdb("info threads").count("Thread "), 2)
        gdb("watch rounds")
        self.assertSays(gdb("continue"), r"watchpoint 1: rounds", r"New value = ")
        gdb("break turn")
        self.assertSays(gdb("continue"), r"turn \(\)")
        gdb("delete")
        gdb("set var leave = 1")
        self.assertSays(gdb("detach"), r"detached")
        self.assertEqual(program.wait(20 * PATIENCE), 9)
        self.assertEqual(gdb.server.wait(), 0)

    def test_attach_pid_after_comm(self):
        self.check_attached(*self.attach(pid_first=False))

    @ulpf_only
    def test_attach_pid_before_comm(self):
        self.check_attached(*self.attach(pid_first=True))

    @ulpf_only
    def test_attach_and_kill(self):
        program, gdb = self.attach(pid_first=False)
        self.assertSays(gdb("kill"), r"killed")
        self.assertEqual(program.wait(20 * PATIENCE), -signal.SIGKILL)

    def test_attach_through_extended_remote(self):
        program = self.spinning()
        server = self.serve(options=["--multi"])
        gdb = self.gdb()
        gdb(f"file {example('spin')}")
        gdb(f"target extended-remote {server.target}")
        gdb(f"attach {program.pid}")
        gdb("watch rounds")
        self.assertSays(gdb("continue"), r"watchpoint 1: rounds", r"New value = ")
        gdb("delete")
        gdb("set var leave = 1")
        gdb("detach")
        self.assertEqual(program.wait(20 * PATIENCE), 9)
        gdb("monitor exit")


class Monitor(Case):
    def test_help(self):
        gdb = self.session("five", stop=None)
        self.assertSays(gdb("monitor help"), r"(?i)commands", r"exit")

    def test_unknown(self):
        gdb = self.session("five", stop=None)
        self.assertRegex(gdb("monitor nonsense"), r"(?i)unknown|protocol error")
        self.assertSays(gdb("continue"), r"exited normally")


@unittest.skipIf(STAND_IN or os.path.exists("/dev/ulpf"), "about machines without the kernel module")
class BackEnds(Case):
    def test_without_the_module_it_is_signals(self):
        gdb = self.session("five")
        answer = json.loads(gdb("monitor ulpf backend").strip())
        self.assertEqual(answer["backend"], "signal")
        self.assertIn("the kernel module is not loaded", answer["why"])
        gdb("watch a")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)

    def test_asked_for_it_is_refused(self):
        status, said = server("--backend", "kernel", "127.0.0.1:0", example("five"))
        self.assertEqual(status, 1)
        self.assertRegex(said, r'backend "kernel" cannot be used: there is no /dev/ulpf: .*not loaded; build and load it')
        done = subprocess.run([ULPF, "run", "--backend", "kernel", "-w", "a", example("five")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no /dev/ulpf", done.stdout)
        self.assertNotIn("five: done", done.stdout)


class Limits(Case):
    """A machine that is short of something: work, or say what is missing; never hang, never lie."""

    def explains(self, limit, sentence):
        """The program is not started, and the server says what was missing, and what to do."""
        with self.assertRaises(AssertionError) as failed:
            self.session("five", preexec=limit, stop=None)
        self.assertNotIsInstance(failed.exception, GdbTimeout)
        self.assertRegex(str(failed.exception), sentence + r"[^\n]*\nExiting\n")

    def works(self, limit):
        gdb = self.session("five", preexec=limit)
        gdb("watch a")
        self.assertSays(gdb("continue"), r"New value = 11")
        gdb("delete")
        self.assertExits(gdb, 0, "five: done")

    @ulpf_only
    def test_address_space_limit(self):
        import resource
        for megabytes in 64, 1024:
            with self.subTest(megabytes):
                self.explains(lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20,) * 2),
                              r"The stub did not start in process \d+: Cannot allocate memory \(os error 12\)\. "
                              r"The program is short of memory; raise its limits \(ulimit -v\)\.")
        self.works(lambda: resource.setrlimit(resource.RLIMIT_AS, (64 << 30,) * 2))

    @ulpf_only
    def test_file_size_limit(self):
        import resource
        self.explains(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2),
                      r"The memory file for hits and counters cannot be made: File too large\. "
                      r"A limit on file size \(ulimit -f, RLIMIT_FSIZE\) is in the way; .* Raise it to at least 2 GiB\.")

    @ulpf_only
    def test_no_memfd(self):
        self.explains(forbid_memfd, r"The memory file for hits and counters cannot be made: Function not implemented\. "
                                    r"memfd_create is forbidden here, by a container's seccomp filter as a rule; allow it\.")

    @ulpf_only
    def test_few_descriptors(self):
        import resource
        self.explains(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)), r"Cannot [\w ]+: Too many open files\.")
        self.works(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))


def forbid_memfd():
    """memfd_create answers ENOSYS from here on (seccomp)."""
    import ctypes
    import struct
    program = b"".join(struct.pack("HBBI", *step) for step in [
        (0x20, 0, 0, 0),              # load the system call's number
        (0x15, 0, 1, 319),            # memfd_create?
        (0x06, 0, 0, 0x00050000 | 38),  # yes: ENOSYS
        (0x06, 0, 0, 0x7FFF0000),     # no: go on
    ])
    steps = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(steps)))
    libc = ctypes.CDLL(None)
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, filters, 0, 0):
        os._exit(99)


class Bare(Case):
    """The environment, the arguments and the descriptors are as without us."""

    def as_bare(self, *program):
        status, expected = bare(*program)
        server = self.serve(*program, options=["--no-startup-with-shell"])
        gdb = self.gdb()
        gdb(f"target remote {server.target}")
        out = gdb("continue")
        server.wait()
        self.assertSays(out, "exited normally" if status == 0 else rf"exited with code 0{status:o}")
        return expected, server.stdout()

    @ulpf_only
    def test_arguments(self):
        program = ["/usr/bin/printf", "[%s]\n", "a b", "", "c'd", '"', "\\", "$x", "*"]
        expected, got = self.as_bare(*program)
        self.assertEqual(got, expected)

    def test_environment(self):
        ignore = r"^(LINES|COLUMNS|_|SHLVL|OLDPWD|PWD)="
        expected, got = ([l for l in sorted(text.splitlines()) if not re.match(ignore, l)]
                         for text in self.as_bare("/usr/bin/env"))
        self.assertEqual(got, expected)

    @ulpf_only
    def test_descriptors(self):
        _, got = self.as_bare("/bin/ls", "-1", "/proc/self/fd")
        self.assertEqual(got.split(), ["0", "1", "2", "3"])

    @ulpf_only
    def test_signals_and_threads(self):
        """/proc/self/status: signal masks, handlers, thread count, seccomp as without us."""
        keep = r"^(Threads|SigQ|SigPnd|ShdPnd|SigIgn|NoNewPrivs|Seccomp|TracerPid):"
        expected, got = ([l for l in text.splitlines() if re.match(keep, l) and not l.startswith("SigQ")]
                         for text in self.as_bare("/bin/cat", "/proc/self/status"))
        self.assertEqual(got, expected)
