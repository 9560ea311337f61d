"""Data breakpoints in every language of GDB's that there is a compiler for."""

from lib.dap import DapCase
from lib.env import ulpf_only
from lib.languages import everywhere


@ulpf_only
@everywhere
class DataBreakpoints(DapCase):
    def converse(self, language, program):
        dap = self.adapter()
        dap.begin(program, at=language.ready)
        if language.name == "modula-2":
            # gm2's programs say that they are C.
            dap.ask("evaluate", expression="set language modula-2", context="repl")
        frame = dap.top()[0]["id"] if language.name == "d" else dap.caller()
        silent, = dap.set_watches(dap.watch(language.total, frame=frame, silent=True))
        self.assertHit(dap.cont(), silent, f"{language.total}: 0 → 5")
        if language.element:
            frame = dap.caller()
            second, = dap.set_watches(dap.watch(language.element, frame=frame, hitCondition="%2", silent=True))
            self.assertHit(dap.cont(), second, f"{language.element}: 4 → 5")
        dap.set_watches()
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0 if language.name == "modula-2" else 3)
