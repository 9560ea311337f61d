"""A Linux kernel that is a process: its variables are watched as any program's, while it boots and runs a program.

Debian's kernel has no names of variables, so its variable is found by its value, as one would by hand: `ulpf find`.
"""

import os
import re
import signal
import subprocess
import tempfile

from lib import vm
from lib.cases import Case
from lib.env import PATIENCE, ULPF, find_tool, needs, ulpf_only
from lib.rsp import wait_until

LIMIT = 120 * PATIENCE

# The first program there. It sets kernel.panic, a variable of the kernel's, three times: the last time as it was.
INIT = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <unistd.h>

static void set(const char *value)
{
	int fd = open("/proc/sys/kernel/panic", O_WRONLY);

	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		perror("/proc/sys/kernel/panic");
	close(fd);
}

int main(int argc, char **argv)
{
	mkdir("/proc", 0755);
	mount("proc", "/proc", "proc", 0, 0);
	set("1234567");
	puts("guest: set");
	fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "slowly"))
		sleep(600);
	set("7");
	set("7");
	puts("guest: done");
	fflush(stdout);
	reboot(RB_POWER_OFF);
	return 1;
}
"""


@ulpf_only
@needs("linux.uml", "cc")
class UserModeLinux(Case):
    """Debian's package user-mode-linux."""

    limit = 400

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="ulpf-uml-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        source, init = os.path.join(self.folder, "init.c"), os.path.join(self.folder, "init")
        with open(source, "w") as file:
            file.write(INIT)
        subprocess.run(["cc", "-static", "-O1", "-o", init, source], check=True)
        with open(init, "rb") as file:
            vm.archive(os.path.join(self.folder, "initrd"), [("dev", 0o040755, b""), ("init", 0o100755, file.read())])

    def kernel(self, *words):
        """Its command line. Its own files lie in the test's folder."""
        return [find_tool("linux.uml"), f"initrd={self.folder}/initrd", "mem=64M", "con=null", "con0=fd:0,fd:1", "rdinit=/init",
                f"uml_dir={self.folder}/", *words]

    def start(self, command, log):
        with open(log, "w") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**os.environ, "TMPDIR": self.folder})

        def end():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.addCleanup(end)
        return process, end

    def test_a_variable_of_the_kernel(self):
        log = os.path.join(self.folder, "log")

        def said():
            with open(log, errors="replace") as file:
                return file.read()
        process, end = self.start(self.kernel("slowly"), log)
        self.assertTrue(wait_until(lambda: "guest: set" in said() or process.poll() is not None, 120), said())
        if process.poll() is not None:
            self.skipTest(f"user-mode-linux does not boot here: {said()[-300:]}")
        found = subprocess.run([ULPF, "find", "--type", "i32", str(process.pid), "1234567"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, timeout=LIMIT).stdout
        end()
        # The variable is in the kernel's data. Buffers may contain the value, too.
        place = re.search(r"(?m)^ *(0x[0-9a-f]+) +1234567 +linux\.uml", found)
        self.assertTrue(place, found)
        process, _ = self.start([ULPF, "run", "-w", f"{place[1]}:4", "--", *self.kernel()], log)
        process.wait(timeout=LIMIT)
        text = said()
        self.assertIn("guest: done", text)
        self.assertEqual(re.findall(rf"(?:0x)?{int(place[1], 16):x}: (0x\w+ (?:→ 0x\w+|\(unchanged\)))", text), ["0x0 → 0x12d687", "0x12d687 → 0x7", "0x7 (unchanged)"], text)
        self.assertRegex(text, r"ulpf: 3 hits on 1 watch, 1 silent store")
        # It has ended as it ends alone.
        self.assertEqual(process.returncode, 0, text[-500:])
