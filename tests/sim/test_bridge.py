"""The bridge, with back ends that do not behave, and with front ends that do not."""

import subprocess
import time

from lib.bridge import FakeBackEnd, Front, Sim, needs_sim, static
from lib.cases import Case
from lib.env import PATIENCE, ulpf_only
from lib.rsp import Rsp, wait_until

RUN = {"thread": 1, "pc": 0x1000}


@ulpf_only
class BackEnds(Case):
    """A debugger on one side, on the other a fake back end: `script` says where it differs from a good one."""

    def connect(self, script=None, **options):
        self.fake = FakeBackEnd(script)
        self.addCleanup(self.fake.close)
        server = self.serve(options=["--backend", f"bridge:{self.fake.path}"], **options)
        rsp = Rsp(server.target)
        rsp.no_ack()
        self.addCleanup(rsp.close)
        return server, rsp

    def refused(self, script):
        fake = FakeBackEnd(script)
        self.addCleanup(fake.close)
        server = self.serve(options=["--backend", f"bridge:{fake.path}"], wait=False)
        self.assertEqual(server.wait(), 1)
        return server.said

    def test_what_a_debugger_asks_arrives(self):
        _, rsp = self.connect({"resume": [lambda f, a: (f.say(id=a["id"], reply="done"),
                                                        f.stopped(reason="exited", status=5))]})
        self.assertRegex(rsp("?"), rb"^T05thread:1;")
        self.assertEqual(len(rsp("g")), 2 * 560)
        self.assertEqual(rsp("m1000,4"), b"00000000")
        self.assertEqual(rsp("M1000,2:0102"), b"OK")
        self.assertEqual(rsp("P0=0100000000000000"), b"OK")
        for packet in ("Z0,1000,1", "Z1,1000,1", "z0,1000,1", "Z2,2000,4", "Z2,2000,4", "z2,2000,4"):
            self.assertEqual(rsp(packet), b"OK")
        self.assertEqual(rsp("vCont;c"), b"W05")
        ops = [a for a in self.fake.asked if a["op"] not in ("hello", "status", "registers")]
        for ask in ops:
            ask.pop("id")
        self.assertEqual(ops, [
            {"op": "read", "addr": 0x1000, "len": 4},
            {"op": "write", "addr": 0x1000, "data": "0102"},
            {"op": "set-registers", "thread": 1, "registers": "01" + "00" * 163},
            {"op": "breakpoints", "insert": [0x1000], "remove": []},
            {"op": "breakpoints", "insert": [0x1000], "remove": []},
            # The hardware breakpoint is still there.
            {"op": "breakpoints", "insert": [0x1000], "remove": []},
            {"op": "watch", "watches": [{"addr": 0x2000, "len": 4, "kind": "write"}]},
            {"op": "watch", "watches": [{"addr": 0x2000, "len": 4, "kind": "write"}]},
            {"op": "unwatch", "ids": [1]},
            {"op": "resume", "how": "continue", "signal": 0},
        ])

    def test_other_languages_and_versions(self):
        said = self.refused({"hello": [b"SSH-2.0-OpenSSH_9.2p1\r\n"]})
        self.assertSays(said, r"says what is no message of the bridge \(`SSH-2.0")
        said = self.refused({"hello": [lambda f, a: f.say(id=a["id"], reply="hello", version=7, backend="x", name="",
                                                          session="", capabilities={"registers": "amd64-core"})]})
        self.assertSays(said, r"The back end speaks version 7 of the bridge, this ulpf 1 to 2\. Build both")
        said = self.refused({"hello": [lambda f, a: f.say(id=a["id"], error={"what": "No", "why": "so", "todo": "Go."})]})
        self.assertSays(said, r"No: so\. Go\.")
        said = self.refused({"hello": [b"x" * (5 << 20)]})
        self.assertSays(said, r"a line has more than")
        said = self.refused({"hello": [lambda f, a: f.hang_up()] * 1000})
        # A port forwarder may listen before the back end does.
        self.assertSays(said, r"No back end answers at .*: it has closed the connection\. Start it first")
        said = self.refused({"hello": [lambda f, a: None]})
        self.assertSays(said, r"Something is at .*, but it does not answer `hello`\. Start the back end there \(in a guest: `ulpf bridge`\)")
    test_other_languages_and_versions.idle = True

    def test_the_end_of_a_line_that_was_for_somebody_else(self):
        """A port of virtio-serial has no connections: what is left of an earlier one is no reason to give up."""
        def rest(fake, ask):
            fake.peer.sendall(b'opped","stop":{"thread":1}}\n')
            fake.stopped(reason="breakpoint")
            fake.say(id=ask["id"], reply="hello", version=1, backend="fake", name="a fake", session="one",
                     capabilities={"registers": "amd64-core"})
        _, rsp = self.connect({"hello": [rest]})
        self.assertRegex(rsp("?"), rb"^T05thread:1;")

    def test_one_that_answers_no_more(self):
        """Its machine has stopped, say, while the connection stands: the user hears of it, and Ctrl-C is heard."""
        silent = lambda f, a: None
        _, rsp = self.connect({"resume": [lambda f, a: f.say(id=a["id"], reply="done")], "status": [None, silent],
                               "interrupt": [lambda f, a: (f.say(id=a["id"], reply="done"), f.stopped(reason="interrupted"))]})
        rsp.raw(b"$vCont;c#a8")
        text = bytes.fromhex(rsp.reply()[1:].decode()).decode()
        self.assertIn("The back end does not answer, though the connection is there", text)
        text = bytes.fromhex(rsp.reply()[1:].decode()).decode()
        self.assertIn("The back end answers again.", text)
        rsp.raw(b"\x03")
        self.assertRegex(rsp.reply(), rb"^T02thread:1;")
    test_one_that_answers_no_more.idle = True

    def test_nobody_there(self):
        server = self.serve(options=["--backend", "bridge:127.0.0.1:1"], wait=False)
        self.assertEqual(server.wait(), 1)
        self.assertSays(server.said, r"No back end answers at 127.0.0.1:1: .*refused.* Start it first")
    test_nobody_there.idle = True

    def test_a_refused_watch(self):
        why = {"what": "The watch cannot be set", "why": "nothing is mapped at 0x2000", "todo": ""}
        _, rsp = self.connect({"watch": [lambda f, a: f.say(id=a["id"], reply="watched", watches=[{"refused": why}])]})
        self.assertRegex(rsp("Z2,2000,4"), rb"^E.The watch cannot be set: nothing is mapped at 0x2000")
        self.assertEqual(rsp("Z2,3000,4"), b"OK")

    def test_one_that_hangs(self):
        # It answers nothing, then late, then the next request.
        late = []
        _, rsp = self.connect({"read": [lambda f, a: late.append(a["id"])]})
        self.assertRegex(rsp("m1000,4"), rb"^E.The back end has not answered `read` for 5 s")
        self.fake.say(id=late[0], reply="data", data="ffffffff")
        self.assertEqual(rsp("m1000,4"), b"00000000")
    test_one_that_hangs.idle = True

    def test_one_that_does_not_stop(self):
        _, rsp = self.connect({"resume": [lambda f, a: f.say(id=a["id"], reply="done")]})
        rsp.raw(b"$vCont;c#a8")
        self.assertTrue(wait_until(lambda: "resume" in self.fake.ops()))
        rsp.raw(b"\x03")
        text = bytes.fromhex(rsp.reply()[1:].decode()).decode()
        self.assertIn("has been told to stop and has not for 10 s", text)
        self.assertRegex(rsp.reply(), rb"^T02thread:1;")
        self.assertIn("interrupt", self.fake.ops())
    test_one_that_does_not_stop.idle = True

    def test_one_that_dies(self):
        _, rsp = self.connect({"resume": [lambda f, a: (f.say(id=a["id"], reply="done"), f.close(), f.hang_up())]})
        rsp.raw(b"$vCont;c#a8")
        text = bytes.fromhex(rsp.reply()[1:].decode()).decode()
        self.assertIn("The connection to the back end is lost: it has closed the connection.", text)
        self.assertEqual(rsp.reply(), b"X09")
        self.assertRegex(rsp("m1000,4"), rb"^E.There is no program")

    def test_one_that_comes_back(self):
        hits = {"reason": "interrupted", **RUN}
        _, rsp = self.connect({
            "read": [lambda f, a: f.hang_up()],
            "status": [None, None, lambda f, a: f.say(id=a["id"], reply="status", state="stopped", stop=hits)],
            "resume": [lambda f, a: (f.say(id=a["id"], reply="done"), f.hang_up())]})
        # Requests without side effects are repeated.
        self.assertEqual(rsp("m1000,4"), b"00000000")
        self.assertEqual(self.fake.asked[-2]["session"], "one")
        self.fake.script["status"].pop(0)
        self.assertRegex(rsp("vCont;c"), rb"^T02thread:1;")
        self.assertEqual(self.fake.connections, 3)

    def test_another_one_in_its_place(self):
        def replaced(fake, _):
            fake.session = "two"
            fake.hang_up()
        _, rsp = self.connect({"read": [replaced]})
        self.assertRegex(rsp("m1000,4"), rb"^E.The back end has been started anew")

    def hit(self, **more):
        return {"sequence": 1, "watch": 1, "pc": 0x1000, "thread": 1, "write": True, "addr": 0x2000, "len": 4,
                "old": "", "new": "", **more}

    def test_who_sorts_hits(self):
        """A back end without filters stops for each hit, and reports an address. This side reads values, evaluates
        conditions and keeps the log. A stop that no watch wants is not reported."""
        def resumed(fake, ask):
            fake.say(id=ask["id"], reply="done")
            runs.append(ask)
            if len(runs) < 6:
                fake.stopped(reason="watch", kind="write", hit=self.hit(sequence=len(runs)))
            else:
                fake.stopped(reason="exited", status=0)
        def read(fake, ask):
            fake.say(id=ask["id"], reply="data", data=f"{len(runs):02x}" + "00" * (ask["len"] - 1))
        runs = []
        _, rsp = self.connect({"resume": [resumed] * 6, "read": [read] * 100})
        # Only if the new value is above 3; GDB watches the byte by which the plugin hears of it.
        self.assertEqual(rsp.monitor("ulpf watch 0x2000 4 w stop log new > 3"), '{"watch":1}\n')
        self.assertEqual(self.fake.asked[-1]["watches"], [{"addr": 0x2000, "len": 4, "kind": "write"}])
        self.assertEqual(rsp("Z4,756c706600000000,1"), b"OK")
        self.assertRegex(rsp("vCont;c"), rb"^T05thread:1;.*awatch:756c706600000000;")
        self.assertEqual(len(runs), 4)
        self.assertIn('"old_bytes":"03000000","new_bytes":"04000000"', rsp.monitor("ulpf stop"))
        self.assertRegex(rsp.monitor("ulpf stats"), r'"hits":4,.*"filtered":3,.*"stops":1')
        self.assertEqual(rsp.monitor("ulpf log").count('"watch":1'), 1)
        self.assertRegex(rsp("vCont;c"), rb"^T05")
        self.assertEqual(rsp("vCont;c"), b"W00")

    def test_what_cannot_be_had_is_refused_by_name(self):
        _, rsp = self.connect()
        for words, why in (("0x2000 4 w bt 3", "callers"), ("heap w", "heap"), ("0x2000 4 w debug-register", "debug registers"),
                           ("0x2000 4 w called from 0x1-0x2", "called"), ("0x2000 4 w if x zz", "bytecode"), ("0x2000 0 w", "length")):
            self.assertRegex(rsp.monitor(f"ulpf watch {words}"), rf'"refused".*{why}')
        for words in ("patch sites", "watches w at 0x2000:4", "filter total changed", "unwatch 3", "sites"):
            self.assertIn('"refused"', rsp.monitor(f"ulpf {words}"))
        self.assertNotIn("watch", self.fake.ops())

    def test_garbage_at_any_time(self):
        for says in (b"{}\n", b"[]\n", b"\xff\xfe\n", b'{"id":1}\n', b'{"event":"stopped"}\n', b"\0" * 100 + b"\n"):
            _, rsp = self.connect({"read": [says]})
            self.assertRegex(rsp("m1000,4"), rb"^E.The connection to the back end is lost: it says what is no message", says)
            self.assertRegex(rsp("g"), rb"^E.")
            rsp.close()


@ulpf_only
@needs_sim
class FrontEnds(Case):
    """ulpf-sim with arbitrary clients."""

    def sim(self, *program):
        sim = Sim(*(program or (static("alone"), "spin")))
        self.addCleanup(sim.close)
        return sim

    def front(self, sim, **options):
        front = Front(sim.path, **options)
        self.addCleanup(front.close)
        return front

    def test_garbage(self):
        front = self.front(self.sim(), hello=False)
        # (A client whose first byte is not a brace is no front end.)
        for says in (b"{garbage\n", b"garbage\n", b"\xff\n", b"[]\n", b"{}\n", b'{"id":1}\n', b'{"id":1,"op":"levitate"}\n',
                     b'{"id":1,"op":"hello","versions":[9,9],"client":""}\n', b'{"id":1,"op":"kill"}\n'):
            front.raw(says)
            self.assertIn("error", front.line(), says)
        self.assertIn("both sides speak", str(front("hello", versions=[5, 9], client="x")))
        for versions, spoken in ([1, 1], 1), ([1, 9], 2):
            self.assertEqual(front("hello", versions=versions, client="x")["version"], spoken)
        for op, fields in (("read", {"addr": 2**64 - 1, "len": 2**63}), ("write", {"addr": 2**64 - 1, "data": "0000"}),
                           ("watch", {}), ("unwatch", {"ids": [7]}), ("registers", {"thread": 9}),
                           ("set-registers", {"thread": 1, "registers": "00"}), ("monitor", {"command": "x"}),
                           ("write", {"addr": 4096, "data": "0"}), ("read", {"addr": -1, "len": 1})):
            self.assertIn("error", front(op, **fields), op)
        refused = front("watch", watches=[{"addr": 16, "len": 4, "kind": "write"}, {"addr": 2**64 - 1, "len": 9, "kind": "read"},
                                          {"addr": 16, "len": 0, "kind": "access"}])["watches"]
        self.assertTrue(all("refused" in w for w in refused), refused)
        self.assertEqual(front("status")["state"], "stopped")

    def test_a_line_without_an_end(self):
        sim = self.sim()
        front = self.front(sim)
        try:
            front.raw(b"{}\n" + b"x" * (5 << 20))
            self.assertIn("error", front.line())
            self.assertIn("more than", str(front.line()))
        except OSError:
            pass
        self.assertEqual(self.front(sim)("status")["state"], "stopped")

    def test_while_it_runs(self):
        front = self.front(self.sim())
        self.assertEqual(front("resume", how="continue")["reply"], "done")
        self.assertEqual(front("status")["state"], "running")
        for op, fields in (("read", {"addr": 4096, "len": 1}), ("threads", {}), ("resume", {"how": "step"})):
            self.assertIn("the program runs", str(front(op, **fields)))
        front("interrupt")
        self.assertEqual(front.stop()["reason"], "interrupted")

    def test_a_front_end_that_comes_back(self):
        sim = self.sim()
        front = self.front(sim)
        session = front.hello["session"]
        front("resume", how="continue")
        front.close()
        # A machine without a front end stops.
        again = self.front(sim)
        self.assertEqual(again.hello["session"], session)
        self.assertTrue(wait_until(lambda: again("status")["state"] == "stopped"))
        self.assertEqual(again("kill")["reply"], "done")
        # The interruption may have been told already, or not.
        reasons = [again.stop()["reason"]]
        if reasons == ["interrupted"]:
            reasons.append(again.stop()["reason"])
        self.assertEqual(reasons[-1], "killed")
        self.assertEqual(sim.process.wait(10 * PATIENCE), 137)

    def test_nobody_comes(self):
        sim = self.sim()
        self.assertEqual(sim.process.wait(30 * PATIENCE), 125)
    test_nobody_comes.idle = True

    def test_a_program_that_cannot_be_loaded(self):
        front = self.front(self.sim("/bin/true"), hello=False)
        self.assertIn("dynamic", str(front("hello", versions=[1, 1], client="x")))

    def test_it_does_not_outlive_the_server(self):
        server = self.serve(static("alone"), "spin", options=["--backend", "sim"])
        pid = server.program_pid
        rsp = Rsp(server.target)
        rsp.raw(b"$vCont;c#a8")
        time.sleep(0.2)  # The program runs: that is the load.
        server.process.kill()
        gone = lambda: subprocess.run(["kill", "-0", str(pid)], stderr=subprocess.DEVNULL).returncode != 0
        self.assertTrue(wait_until(gone, 30))
    test_it_does_not_outlive_the_server.idle = True
