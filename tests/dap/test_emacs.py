"""Emacs' dap-mode and dape with the configurations that docs/dap.md gives.

dape needs Emacs 29. Where no package has it (elpa-dape), ULPF_DAPE names its folder.
"""

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

DAPE = r""";; -*- lexical-binding: t -*-
(package-initialize)
(unless (string= "{folder}" "") (add-to-list 'load-path "{folder}"))
(require 'dape)
{configuration}
(setq watched nil)
(defun say (&rest words) (message "TOLD %s" (string-join words " ")))
(cl-defmethod dape-handle-event :after (conn (_event (eql stopped)) body)
  (dape-request conn :stackTrace (list :threadId (plist-get body :threadId))
    (lambda (trace &rest _)
      (say "stopped" (plist-get (aref (plist-get trace :stackFrames) 0) :name))
      (let ((command (if watched "ulpf delete" "ulpf watch game.total")))
        (setq watched t)
        (dape-breakpoint-remove-all)
        (dape-request conn :evaluate (list :expression command :context "repl")
          (lambda (_ problem) (say (or problem command)) (dape-continue conn)))))))
(cl-defmethod dape-handle-event :after (_conn (_event (eql terminated)) _body)
  (say "terminated") (kill-emacs 0))
(find-file "{source}")
(forward-line {line})
(dape-breakpoint-toggle)
(dape (dape--config-eval 'ulpf '(:program "{program}")))
(with-timeout (60 (say "nothing more")) (while t (accept-process-output nil 0.1)))
"""
SOURCE = os.path.join(ROOT, "examples/stray.c")


def line_of(text):
    with open(SOURCE, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file) if text in line)


def configuration(name):
    """The configuration from docs/dap.md."""
    with open(os.path.join(ROOT, "docs/dap.md"), encoding="utf-8") as file:
        return re.search(rf"### Emacs: {name}\n```elisp\n(.*?)```", file.read(), re.S)[1]


DAPE_FOLDER = os.environ.get("ULPF_DAPE", "")


def has(package, least=0):
    """Whether there is an Emacs, at least that new, with this package."""
    found = shutil.which("emacs") and subprocess.run(
        ["emacs", "--batch", *(["-L", DAPE_FOLDER] if DAPE_FOLDER else []), "--eval",
         f"(progn (package-initialize) (unless (and (>= emacs-major-version {least}) (require '{package} nil t)) (kill-emacs 1)))"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return bool(found) and found.returncode == 0


@ulpf_only
class Emacs(Case):
    def speaks(self, driver):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "driver.el")
            with open(path, "w", encoding="utf-8") as file:
                file.write(driver)
            return subprocess.run(["emacs", "--batch", "-l", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  stdin=subprocess.DEVNULL, timeout=150 * PATIENCE, env={**os.environ, "HOME": folder}, check=False).stdout

    @unittest.skipUnless(has("dap-mode"), "emacs-nox and elpa-dap-mode are not installed")
    def test_dap_mode(self):
        said = self.speaks(DRIVER.format(configuration=configuration("dap-mode").replace('"ulpf" "dap"', f'"{ULPF}" "dap"'),
                                         source=SOURCE, line=line_of("one too far"), program=example("stray")))
        self.assertRegex(said, r"(?s)TOLD stopped.*TOLD terminated")

    @unittest.skipUnless(has("dape", 29), "Emacs 29 and dape are not installed")
    def test_dape(self):
        said = self.speaks(DAPE.format(configuration=configuration("dape").replace('command "ulpf"', f'command "{ULPF}"'),
                                       folder=DAPE_FOLDER, source=SOURCE, line=line_of("add(game.scores"), program=example("stray")))
        self.assertEqual(re.findall(r"TOLD (.*)", said), ["stopped main", "ulpf watch game.total", "stopped add", "ulpf delete", "terminated"], said)
