"""tests/image finds what it says that it finds."""

import os
import subprocess
import sys
import tempfile
import unittest

from lib.env import ROOT

SOUND = "int ulpf_stub_handlers_begin(int n) { return n + 1; }\n"
UNSOUND = {
    "is undefined": "int other(void); __attribute__((visibility(\"default\"))) int ulpf_stub_handlers_begin(void) { return other(); }",
    "uses registers that are not saved": "long double ulpf_stub_handlers_begin(long double x) { return x * x; }",
    "uses storage of the program's": "static __thread int own; void set(int n) { own = n; } int ulpf_stub_handlers_begin(void) { return own; }",
    "handlers reach the allocator: ulpf_stub_handlers_begin > between > ___rust_alloc":
        "__attribute__((noinline)) void ___rust_alloc(void) { __asm__(\"\"); }"
        "__attribute__((noinline)) void between(void) { ___rust_alloc(); __asm__(\"\"); }"
        "void ulpf_stub_handlers_begin(void) { between(); __asm__(\"\"); }",
    "it has no code of the handlers": "int begin(int n) { return n + 1; }",
}


class Image(unittest.TestCase):
    def said(self, source):
        with tempfile.TemporaryDirectory(prefix="ulpf-image-") as folder:
            image = os.path.join(folder, "image.so")
            subprocess.run(["cc", "-x", "c", "-O1", "-fno-stack-protector", "-fPIC", "-shared", "-nostdlib", "-ftls-model=initial-exec",
                            "-Wl,-Bsymbolic", "-o", image, "-"], input=source, text=True, check=True)
            done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "image"), image], stdout=subprocess.PIPE, text=True)
            return done.returncode, done.stdout

    def test_what_is_sound(self):
        self.assertEqual(self.said(SOUND), (0, ""))

    def test_what_is_not(self):
        for expected, source in UNSOUND.items():
            with self.subTest(expected):
                status, said = self.said(source)
                self.assertEqual(status, 1, said)
                self.assertIn(expected, said)
