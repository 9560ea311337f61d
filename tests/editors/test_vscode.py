"""The VS Code extension: its own tests (npm test), among them sessions with the real adapter, and its package."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import zipfile

from lib.env import PATIENCE, ROOT, ULPF, find_tool, ulpf_only

SOURCE = os.path.join(ROOT, "editors", "vscode")
UNREACHABLE = re.compile(r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|ECONNRESET|E403|E503")


def node():
    """Why there is no Node.js that will do, or None."""
    if not (find_tool("node") and find_tool("npm")):
        return "node or npm is not installed"
    version = subprocess.run(["node", "--version"], stdout=subprocess.PIPE, text=True).stdout.strip()
    return None if int(version.lstrip("v").split(".")[0]) >= 20 else f"node {version} is older than 20"


@ulpf_only
@unittest.skipIf(node(), node())
class Extension(unittest.TestCase):
    limit = 300

    def setUp(self):
        # One at a time: they build in the same folder.
        lock = os.open(SOURCE, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, there = (os.path.join(SOURCE, name) for name in ("package-lock.json", "node_modules/.package-lock.json"))
        if os.path.exists(there) and os.path.getmtime(there) >= os.path.getmtime(wanted):
            return
        got = self.npm("ci", "--no-audit", "--no-fund", "--ignore-scripts")
        if got.returncode and UNREACHABLE.search(got.stdout):
            self.skipTest("npm cannot fetch what the extension is built with")
        self.assertEqual(got.returncode, 0, got.stdout)

    @staticmethod
    def npm(*words, timeout=300):
        return subprocess.run(["npm", *words], cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=timeout * PATIENCE, env={**os.environ, "ULPF": ULPF, "NO_COLOR": "1"})

    def test_its_own(self):
        tested = self.npm("test")
        self.assertEqual(tested.returncode, 0, tested.stdout)
        self.assertGreaterEqual(int(re.search(r"pass (\d+)", tested.stdout)[1]), 11, tested.stdout)
        self.assertRegex(tested.stdout, r"skipped 0", tested.stdout)

    def test_package(self):
        made = self.npm("run", "package")
        self.assertEqual(made.returncode, 0, made.stdout)
        with zipfile.ZipFile(os.path.join(SOURCE, "ulpf.vsix")) as package:
            files = package.namelist()
        self.assertIn("extension/out/src/extension.js", files)
        self.assertIn("extension/icon.png", files)
        self.assertIn("extension/readme.md", [f.lower() for f in files])
        self.assertFalse([f for f in files if "node_modules" in f or "/test/" in f or f.endswith(".ts")], files)

    def test_in_a_workbench(self):
        """In VS Code itself: code-server (set CODE_SERVER to one that is not in PATH), in headless Chromium."""
        server, browser = os.environ.get("CODE_SERVER") or find_tool("code-server"), find_tool("chromium", "google-chrome")
        if not server or not browser:
            self.skipTest("code-server or chromium is not installed")
        with tempfile.TemporaryDirectory(prefix="ulpf-test-") as base:
            folder = os.path.join(base, "orders")
            os.mkdir(folder)
            shutil.copy(os.path.join(SOURCE, "test", "workbench", "orders.c"), folder)
            subprocess.run(["gcc", "-g", "-O0", "-o", "orders", "orders.c"], cwd=folder, check=True)
            made = self.npm("run", "package")
            self.assertEqual(made.returncode, 0, made.stdout)
            installed = subprocess.run([server, "--extensions-dir", os.path.join(base, "extensions"), "--user-data-dir",
                                        os.path.join(base, "user"), "--install-extension", os.path.join(SOURCE, "ulpf.vsix")],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
            self.assertIn("successfully installed", installed.stdout)
            led = subprocess.run(["node", os.path.join(SOURCE, "test", "workbench", "drive.mjs"), server, browser, ULPF, folder],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300 * PATIENCE)
            self.assertEqual(led.returncode, 0, led.stderr)
        seen = json.loads(led.stdout)
        self.assertEqual(seen["stopped"], "orders[17].amount: 19 → -1")
        self.assertTrue(seen["line"] and seen["logged"], seen)
        self.assertRegex(seen["watches"][0], r"^total64 hits · write, logged$")
        self.assertRegex(seen["watches"][1], r"^orders\[0\.\.63\]\.amount65 hits · .*write$")
        for entry in "Break on Value Change", "Break on Value Read", "Break on Value Access", "Watch This Range…", "Log Writes…":
            self.assertIn(entry, seen["menu"])
