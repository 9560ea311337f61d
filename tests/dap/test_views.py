"""Views of an IDE beside data breakpoints: breakpoints in code, frames, variables, memory, modules."""

import base64
import re

from lib.cases import line
from lib.dap import DapCase, Refused, source
from lib.env import ulpf_only


@ulpf_only
class Breakpoints(DapCase):
    def at(self, dap, *breakpoints, file="filters.c"):
        return dap.ask("setBreakpoints", source=source(file), breakpoints=list(breakpoints))["breakpoints"]

    def test_lines_and_conditions(self):
        dap = self.adapter()
        dap.launch("filters")
        checked = line("filters.c", "checked = i")
        one, none = self.at(dap, {"line": checked, "condition": "i == 41"}, {"line": checked + 1, "condition": "nosuch"})
        self.assertEqual((one["verified"], one["line"], one["source"]["name"]), (True, checked, "filters.c"))
        self.assertFalse(none["verified"])
        self.assertIn("No symbol", none["message"])
        dap.ask("configurationDone")
        stop = dap.event("stopped")
        self.assertEqual((stop["reason"], stop["hitBreakpointIds"]), ("breakpoint", [one["id"]]))
        self.assertEqual((dap.top()[0]["line"], dap.value("i")), (checked, "41"))
        # The same breakpoint again keeps its ID; an empty list removes it.
        self.assertEqual(self.at(dap, {"line": checked, "condition": "i == 41"})[0]["id"], one["id"])
        self.assertEqual(self.at(dap), [])
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)

    def test_hit_conditions(self):
        for hit, wanted in (("3", [2]), (">= 98", [97, 98, 99]), ("< 3", [0, 1]), ("% 40", [39, 79])):
            with self.subTest(hit):
                dap = self.adapter()
                dap.launch("filters")
                self.at(dap, {"line": line("filters.c", "checked = i"), "hitCondition": hit})
                dap.ask("configurationDone")
                for number in wanted:
                    dap.event("stopped", reason="breakpoint")
                    self.assertEqual(dap.value("i"), str(number))
                    dap.ask("continue", threadId=1)
                self.assertEqual(dap.exited(), 0)

    def test_log_points(self):
        dap = self.adapter()
        dap.launch("filters")
        self.at(dap, {"line": line("filters.c", "checked = i"), "logMessage": "i is {i}, {nosuch}", "condition": "i % 50 == 3"})
        dap.ask("configurationDone")
        self.assertEqual(dap.exited(), 0)
        self.assertRegex(dap.outputs("console"), r'i is 3, <No symbol "nosuch".*>\ni is 53, <')

    def test_set_while_the_program_runs(self):
        dap = self.adapter()
        dap.launch("spin")
        dap.ask("configurationDone")
        one, = self.at(dap, {"line": line("spin.c", "rounds++")}, file="spin.c")
        self.assertTrue(one["verified"])
        self.assertEqual(dap.event("stopped")["hitBreakpointIds"], [one["id"]])
        self.assertFalse(dap.waiting("stopped"))
        self.assertFalse(dap.waiting("continued"))

    def test_instructions(self):
        dap = self.adapter()
        dap.begin("filters", at="slowly")
        code = dap.ask("disassemble", memoryReference=dap.top()[0]["instructionPointerReference"], instructionCount=3)["instructions"]
        one, = dap.ask("setInstructionBreakpoints", breakpoints=[{"instructionReference": code[2]["address"]}])["breakpoints"]
        stop = dap.cont()
        self.assertEqual((stop["reason"], stop["hitBreakpointIds"]), ("instruction breakpoint", [one["id"]]))
        self.assertEqual(dap.top()[0]["instructionPointerReference"], code[2]["address"])

    def test_cpp_exceptions(self):
        dap = self.adapter()
        dap.launch("unwind")
        answer = dap.ask("setExceptionBreakpoints", filters=["throw", "signals", "nosuch"])["breakpoints"]
        self.assertEqual([b["verified"] for b in answer], [True, True, False])
        dap.ask("configurationDone")
        stop = dap.event("stopped")
        self.assertEqual((stop["reason"], dap.ask("exceptionInfo", threadId=stop["threadId"])["exceptionId"]), ("exception", "throw"))
        self.assertTrue(any(f["name"].startswith("main") for f in dap.top(stop["threadId"])))
        dap.ask("setExceptionBreakpoints", filters=[])
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 0)

    def test_goto(self):
        dap = self.adapter()
        dap.begin("five", at="main")
        with_code = line("five.c", 'puts("five: done")')
        target, = dap.ask("gotoTargets", source=source("five.c"), line=with_code)["targets"][:1]
        dap.ask("goto", threadId=1, targetId=target["id"])
        dap.event("stopped", reason="goto")
        self.assertEqual(dap.top()[0]["line"], with_code)
        self.assertEqual(dap.ask("breakpointLocations", source=source("five.c"), line=with_code)["breakpoints"], [{"line": with_code}])


@ulpf_only
class Variables(DapCase):
    def scope(self, dap, name, frame=None):
        scopes = dap.ask("scopes", frameId=frame or dap.top()[0]["id"])["scopes"]
        return next(s["variablesReference"] for s in scopes if s["name"] == name)

    def all(self, dap, reference, **more):
        return {v["name"]: v for v in dap.ask("variables", variablesReference=reference, **more)["variables"]}

    def test_arguments_locals_and_frames(self):
        dap = self.adapter()
        dap.begin("locals", at="recurse")
        for _ in range(3):
            dap.ask("stepIn", threadId=1)
            dap.event("stopped")
        frames = dap.top()
        self.assertEqual(frames[-1]["name"], "main")
        self.assertEqual(self.all(dap, self.scope(dap, "Arguments", frames[-2]["id"]))["n"]["value"], "5")
        self.assertEqual(set(self.all(dap, self.scope(dap, "Locals", frames[-1]["id"]))), {"first", "second", "third"})
        some = dap.ask("stackTrace", threadId=1, startFrame=1, levels=1)
        self.assertEqual([f["id"] for f in some["stackFrames"]], [frames[1]["id"]])
        self.assertEqual(some["totalFrames"], len(frames))

    def test_a_structure_its_pages_and_changing_it(self):
        dap = self.adapter()
        dap.begin("structs", at="ready")
        box = dap.ask("evaluate", expression="box", context="watch", frameId=dap.caller())
        fields = self.all(dap, box["variablesReference"])
        self.assertEqual(fields["id"]["value"], "1")
        corner = self.all(dap, fields["corner"]["variablesReference"])
        self.assertEqual(list(corner), ["[0]", "[1]", "[2]"])
        self.assertEqual(list(self.all(dap, fields["corner"]["variablesReference"], filter="indexed", start=1, count=1)), ["[1]"])
        said = dap.ask("setVariable", variablesReference=box["variablesReference"], name="id", value="40 + 2")
        self.assertEqual((said["value"], dap.value("box.id")), ("42", "42"))
        self.assertEqual(dap.ask("setExpression", expression="shelf[1].id", value="7")["value"], "7")
        self.assertEqual(dap.value("shelf[1].id,x"), "0x7")
        with self.assertRaises(Refused):
            dap.ask("setVariable", variablesReference=box["variablesReference"], name="id", value="nosuch")
        with self.assertRaisesRegex(Refused, "No symbol"):
            dap.value("nosuch", "hover")
        # References from before the program has run again are invalid.
        dap.ask("next", threadId=1)
        dap.event("stopped")
        with self.assertRaisesRegex(Refused, "gone"):
            dap.ask("variables", variablesReference=box["variablesReference"])

    def test_a_large_array(self):
        dap = self.adapter()
        dap.begin("bigarray", at="ready")
        big = dap.ask("evaluate", expression="big", context="watch", frameId=dap.caller())
        self.assertEqual(big["indexedVariables"], 1 << 20)
        some = self.all(dap, big["variablesReference"], filter="indexed", start=1_000_000, count=3)
        self.assertEqual(list(some), ["[1000000]", "[1000001]", "[1000002]"])

    def test_registers_and_hex(self):
        dap = self.adapter()
        dap.begin("five", at="ready")
        registers = self.all(dap, self.scope(dap, "Registers"))
        self.assertIn("rax", registers)
        self.assertEqual(registers["rip"]["value"].split()[0], dap.top()[0]["instructionPointerReference"])
        reference = self.scope(dap, "Globals of this file")
        self.assertEqual(self.all(dap, reference, format={"hex": True})["a"]["value"], "0xa")
        self.assertEqual(self.all(dap, reference)["e"]["value"], "50")

    def test_containers_of_cpp(self):
        dap = self.adapter()
        dap.begin("cpp_map", at="ready")
        names = self.all(dap, self.scope(dap, "Globals of this file", dap.caller()))
        self.assertRegex(names["table"]["value"], "std::map with 0 elements")
        cells = names["cells"]
        self.assertRegex(cells["value"], r"std::vector of length \d+")
        count = int(re.search(r"length (\d+)", cells["value"]).group(1))
        self.assertEqual(len(self.all(dap, cells["variablesReference"])), count)


@ulpf_only
class Console(DapCase):
    def test_commands_and_completion(self):
        dap = self.adapter()
        dap.begin("filters", at="slowly")
        frame = dap.top()[0]["id"]

        def say(text):
            return dap.ask("evaluate", expression=text, context="repl", frameId=frame)["result"]
        self.assertRegex(say("bt"), r"#0 +slowly.*\n#1.*main")
        self.assertEqual(say("print limit"), "$1 = 900")
        self.assertEqual(say("limit"), "900")
        self.assertIn("Ulpf watch 1: total", say("ulpf watch total"))
        self.assertRegex(say("ulpf info watches"), r"1 +w +0")
        with self.assertRaisesRegex(Refused, "No symbol"):
            say("print nosuch")
        with self.assertRaisesRegex(Refused, "says nothing|no kind|No symbol"):
            say("ulpf watch nosuch")
        labels = [t["label"] for t in dap.ask("completions", text="ulpf wat", column=9, frameId=frame)["targets"]]
        self.assertEqual(labels, ["watch"])
        # A command that runs the program.
        dap.ask("evaluate", expression="continue", context="repl", frameId=frame)
        dap.event("continued")
        stop = dap.event("stopped")
        self.assertIn("total: 0 → 1", stop["text"])

    def test_pause_and_what_needs_rest(self):
        dap = self.adapter()
        dap.launch("spin")
        dap.ask("configurationDone")
        with self.assertRaisesRegex(Refused, "notStopped"):
            dap.top()
        self.assertGreaterEqual(len(dap.ask("threads")["threads"]), 1)
        self.assertIn("No ulpf watches", dap.ask("evaluate", expression="ulpf info watches", context="repl")["result"])
        dap.event("output", output="spin: up\n")
        dap.ask("pause", threadId=1)
        stop = dap.event("stopped", reason="pause")
        self.assertTrue(dap.top(stop["threadId"]))
        self.assertEqual(len(dap.ask("threads")["threads"]), 2)
        dap.ask("setExpression", expression="leave", value="1")
        dap.ask("continue", threadId=1)
        self.assertEqual(dap.exited(), 9)


@ulpf_only
class Machine(DapCase):
    def test_memory(self):
        dap = self.adapter()
        dap.begin("structs", at="ready")
        at = dap.ask("evaluate", expression="&box.name", context="watch", frameId=dap.caller())["memoryReference"]
        said = dap.ask("readMemory", memoryReference=at, count=6)
        self.assertEqual(base64.b64decode(said["data"]), b"first\0")
        dap.ask("writeMemory", memoryReference=at, offset=1, data=base64.b64encode(b"u").decode())
        self.assertEqual(base64.b64decode(dap.ask("readMemory", memoryReference=at, count=3, offset=0)["data"]), b"fur")
        nothing = dap.ask("readMemory", memoryReference="0x10", count=16)
        self.assertEqual((nothing["unreadableBytes"], "data" in nothing), (16, False))
        with self.assertRaisesRegex(Refused, "no address"):
            dap.ask("readMemory", memoryReference="box", count=1)

    def test_disassembly(self):
        dap = self.adapter()
        dap.begin("filters", at="slowly")
        at = dap.top()[0]["instructionPointerReference"]
        code = dap.ask("disassemble", memoryReference=at, instructionOffset=-3, instructionCount=10, resolveSymbols=True)["instructions"]
        self.assertEqual(len(code), 10)
        self.assertEqual(code[3]["address"], at)
        addresses = [int(i["address"], 16) for i in code]
        self.assertEqual(addresses, sorted(addresses))
        for before, after in zip(code[3:], code[4:]):
            self.assertEqual(int(after["address"], 16) - int(before["address"], 16), len(before["instructionBytes"].split()))
        self.assertEqual(code[3]["location"]["path"], source("filters.c")["path"])
        far = dap.ask("disassemble", memoryReference=at, instructionOffset=5, instructionCount=2)["instructions"]
        self.assertEqual(far[0]["address"], code[8]["address"])
        none = dap.ask("disassemble", memoryReference="0x10", instructionCount=4)["instructions"]
        self.assertEqual([i["presentationHint"] for i in none], ["invalid"] * 4)

    def test_modules_and_sources(self):
        dap = self.adapter()
        dap.begin("five", at="ready")
        modules = dap.ask("modules")
        names = [m["name"] for m in modules["modules"]]
        self.assertIn("five", names)
        self.assertTrue(any(re.match(r"libc\.so", n) for n in names), names)
        self.assertEqual(modules["totalModules"], len(names))
        self.assertIn(source("five.c")["path"], [s["path"] for s in dap.ask("loadedSources")["sources"]])

    def test_a_source_that_is_missing(self):
        import os
        import shutil
        import subprocess
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "here.c")
            shutil.copy(source("five.c")["path"], file)
            subprocess.run(["cc", "-g", "-o", os.path.join(folder, "here"), file], check=True)
            os.remove(file)
            dap = self.adapter()
            dap.begin(os.path.join(folder, "here"), at="ready")
            answer = dap.top()[0]["source"]
            self.assertGreater(answer["sourceReference"], 0)
            text = dap.ask("source", source=answer, sourceReference=answer["sourceReference"])["content"]
            self.assertIn("not on this machine", text)
            self.assertIn("Dump of assembler code for function ready", text)
            dap.disconnect()
