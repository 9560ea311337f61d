"""A JVM that runs already: `ulpf attach`, and gdb attached through the server.

It uses SIGSEGV itself (null pointers, safepoints), writes its own code, and stops its own threads.
"""

import json
import os
import re
import signal
import subprocess
import tempfile

from lib.cases import Case
from lib.env import PATIENCE, ULPF, find_tool, needs, ulpf_only
from lib.rsp import wait_until

LIMIT = 120 * PATIENCE

# Four threads that work until a line comes on stdin, and check what they compute.
JAVA = """import java.util.*;
import java.util.concurrent.*;

public class Busy {
    static volatile boolean over;
    static int depth(int n) { return n == 0 ? 0 : 1 + depth(n - 1); }
    static long work(int seed) {
        Map<String, Integer> words = new TreeMap<>();
        for (int i = 0; i < 300; i++) words.merge("w" + i % 37, i, Integer::sum);
        String nothing = seed < 0 ? "" : null;
        try { nothing.length(); } catch (NullPointerException e) { words.put("caught", depth(seed)); }
        long sum = 0;
        for (int n : words.values()) sum += n;
        return sum;
    }
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Boolean>> parts = new ArrayList<>();
        for (int t = 0; t < 4; t++) {
            parts.add(pool.submit(() -> {
                boolean right = true;
                for (int round = 1; !over; round++) {
                    right &= work(round % 50) == 300 * 299 / 2 + round % 50;
                    if (round % 500 == 0) System.gc();
                }
                return right;
            }));
        }
        System.out.println("ready");
        System.in.read();
        over = true;
        for (Future<Boolean> part : parts) System.out.println(part.get());
        System.exit(4);
    }
}
"""
RIGHT = "true\n" * 4


class Jvm(Case):
    def setUp(self):
        super().setUp()
        if find_tool("javac") is None:
            self.skipTest("javac is not installed")
        folder = tempfile.TemporaryDirectory(prefix="ulpf-jvm-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "Busy.java"), "w") as file:
            file.write(JAVA)
        subprocess.run([find_tool("javac"), "Busy.java"], cwd=self.folder, check=True, timeout=LIMIT)
        java = os.path.realpath(find_tool("java"))
        self.program = subprocess.Popen([java, "-Xmx64m", "-XX:+UseSerialGC", "-cp", self.folder, "Busy"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: (self.program.kill(), self.program.wait(), self.program.stdout.close(), self.program.stdin.close()))
        self.assertEqual(self.program.stdout.readline(), "ready\n")

    def ends_well(self):
        self.program.stdin.write("\n")
        self.program.stdin.flush()
        self.assertEqual(self.program.stdout.read(), RIGHT)
        self.assertEqual(self.program.wait(LIMIT), 4)

    @ulpf_only
    @needs("java")
    def test_ulpf_attach(self):
        """With its whole heap watched: left with Ctrl-C, and watched again to its end."""
        hits = []
        for last in False, True:
            log = os.path.join(self.folder, f"log{last}")
            attached = subprocess.Popen([ULPF, "attach", "--no-summary", "--json", "--log", log, "-w", "heap:w", str(self.program.pid)],
                                        stderr=subprocess.PIPE, text=True)
            self.addCleanup(lambda: (attached.kill(), attached.wait(), attached.stderr.close()))
            logged = lambda: os.path.exists(log) and os.path.getsize(log) > 100_000
            self.assertTrue(wait_until(logged, LIMIT), "no hits")
            if last:
                self.ends_well()
            else:
                attached.send_signal(signal.SIGINT)
            self.assertEqual((attached.wait(LIMIT), attached.stderr.read()), (4 if last else 0, ""))
            # Some hundred megabytes.
            with open(log, "rb") as file:
                for line in file:
                    pass
            summary = json.loads(line)
            hits.append(summary["watches"][0]["hits"])
        self.assertGreater(min(hits), 100)

    @needs("java")
    def test_gdb(self):
        """A watch on the young generation's first words; the rest of what a session does."""
        server = self.serve(options=("--attach", str(self.program.pid)), wait=True)
        gdb = self.gdb()
        gdb.server = server
        self.assertSays(gdb(f"target remote {server.target}", LIMIT), r"futex|Reading symbols|wait")
        gdb("handle SIGSEGV nostop noprint pass")
        threads = gdb("info threads", LIMIT)
        self.assertEqual(len(re.findall(r"pool-1-thread-[1-4]\"", threads)), 4, threads)
        with open(f"/proc/{self.program.pid}/maps") as maps:
            heap = next(line for line in maps if "rw-p" in line and int(line.split("-")[0], 16) >= 0xfc000000)
        gdb(f"watch *(long *)0x{heap.split('-')[0]}")
        for _ in range(3):
            self.assertSays(gdb("continue", LIMIT), r"Hardware watchpoint 1: ", r"Old value = ", r"New value = ")
        gdb("delete")
        self.assertSays(gdb("detach", LIMIT), r"detached")
        self.ends_well()
