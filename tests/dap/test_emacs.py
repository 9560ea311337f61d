"""Emacs' dap-mode with the configuration that docs/dap.md gives."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from lib.cases import Case
from lib.env import PATIENCE, ROOT, ULPF, example, ulpf_only

DRIVER = r"""
(package-initialize)
{configuration}
(setq said nil)
(defun say (what) (setq said what) (message "TOLD %s" what))
(defun await (what) (with-timeout (60 (message "TOLD nothing of %s" what) (kill-emacs 1))
  (while (not (equal said what)) (accept-process-output nil 0.1))))
(add-hook 'dap-stopped-hook (lambda (_) (say "stopped")))
(add-hook 'dap-terminated-hook (lambda (_) (say "terminated")))
(find-file "{source}")
(forward-line {line})
(dap-breakpoint-add)
(dap-debug '(:type "ulpf" :request "launch" :name "ulpf" :program "{program}"))
(await "stopped")
(dap-continue (dap--cur-session) 1)
(await "terminated")
"""


def has_dap_mode():
    found = shutil.which("emacs") and subprocess.run(
        ["emacs", "--batch", "--eval", "(progn (package-initialize) (require 'dap-mode))"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return bool(found) and found.returncode == 0


@ulpf_only
class Emacs(Case):
    @unittest.skipUnless(has_dap_mode(), "emacs-nox and elpa-dap-mode are not installed")
    def test_a_breakpoint(self):
        with open(os.path.join(ROOT, "docs/dap.md"), encoding="utf-8") as file:
            configuration = re.search(r"### Emacs: dap-mode\n```elisp\n(.*?)```", file.read(), re.S).group(1)
        configuration = configuration.replace('"ulpf" "dap"', f'"{ULPF}" "dap"')
        with open(os.path.join(ROOT, "examples/stray.c"), encoding="utf-8") as file:
            line = next(n for n, text in enumerate(file) if "one too far" in text)
        with tempfile.TemporaryDirectory() as folder:
            driver = os.path.join(folder, "driver.el")
            with open(driver, "w", encoding="utf-8") as file:
                file.write(DRIVER.format(configuration=configuration, source=os.path.join(ROOT, "examples/stray.c"),
                                         line=line, program=example("stray")))
            environment = dict(os.environ, HOME=folder)
            done = subprocess.run(["emacs", "--batch", "-l", driver], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=150 * PATIENCE, env=environment, check=False)
        self.assertRegex(done.stdout, r"(?s)TOLD stopped.*TOLD terminated")
