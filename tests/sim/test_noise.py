"""Random messages on each side of the bridge: no crash, no hang, and valid messages work afterwards."""

import json
import random

from lib.bridge import FakeBackEnd, Front, Sim, needs_sim, static
from lib.cases import Case
from lib.env import ulpf_only
from lib.rsp import Rsp, frame

OPS = ["hello", "status", "threads", "registers", "set-registers", "read", "write", "breakpoints", "watch", "unwatch",
       "interrupt", "hits", "statistics", "auxv", "monitor", "detach", "levitate"]
NUMBERS = [0, 1, 2, 7, 8, 4095, 4096, 0x401000, 0x4a0000, 2**31, 2**47, 2**63, 2**64 - 1, -1, 1.5, 2**64]


def value(rng, deep=2):
    """A value that is valid in a message, or not."""
    kind = rng.randrange(9 if deep else 5)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.choice(["", "00", "0", "zz", "write", "read", "access", "continue", "x" * 1000, "\0", "ä"])
    if kind == 4:
        return rng.choice([None, True, False])
    if kind < 7:
        return [value(rng, deep - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["addr", "len", "kind", "id", "x"]): value(rng, deep - 1) for _ in range(rng.randrange(4))}


def spec(rng):
    return {"addr": 0x4a0000 + rng.randrange(1 << 13), "len": rng.choice([1, 4, 8, 100, 5000, 0, 2**63]),
            "kind": rng.choice(["write", "read", "access"])}


def request(rng):
    op = rng.choice(OPS)
    fields = {"addr": rng.choice(NUMBERS), "len": rng.choice(NUMBERS), "data": rng.choice(["", "00ff", "0"]),
              "thread": rng.choice([0, 1, 2**64 - 1]), "registers": rng.choice(["", "00" * 560, "ff" * 560, "ff" * 10]),
              "insert": [rng.choice(NUMBERS[:13])], "remove": [rng.choice(NUMBERS[:13])], "ids": [rng.randrange(40)],
              "watches": [spec(rng) for _ in range(rng.randrange(3))], "since": rng.choice(NUMBERS[:13]),
              "most": rng.choice(NUMBERS[:13]), "command": "x", "versions": [1, 1], "client": ""}
    # Registers that are nonsense would end the program's run, not the machine; memory that is, likewise.
    if rng.randrange(3) == 0:
        fields[rng.choice(list(fields))] = value(rng)
    if rng.randrange(5) == 0:
        del fields[rng.choice(list(fields))]
    return {"op": op, **fields}


@ulpf_only
class Noise(Case):
    @needs_sim
    def test_a_machine_that_is_asked_anything(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                sim = Sim(static("alone"))
                self.addCleanup(sim.close)
                front = Front(sim.path)
                self.addCleanup(front.close)
                for _ in range(400):
                    if rng.randrange(10) == 0:
                        text = json.dumps({"id": 1, **request(rng)}).encode()
                        cut = rng.randrange(len(text))
                        front.raw(text[:cut] + bytes([rng.choice(b"\0 \"{}x\xff")]) + text[cut + 1:] + b"\n")
                        front.line()
                        continue
                    ask = request(rng)
                    said = front(ask.pop("op"), **ask)
                    self.assertTrue("reply" in said or said["error"]["what"], said)
                    if rng.randrange(20) == 0 and "error" not in front("resume", how="step"):
                        front.stop()
                self.assertIn(front("status")["state"], ("stopped",))
                self.assertEqual(front("kill")["reply"], "done")

    def test_a_back_end_that_says_anything(self):
        for seed in range(25):
            with self.subTest(seed=seed):
                rng = random.Random(seed)

                def answer(fake, ask):
                    text = json.dumps({"id": rng.choice([ask["id"], ask["id"], 0]),
                                       rng.choice(["reply", "reply", "error", "event"]):
                                           rng.choice(["data", "done", "watched", "stopped", "hello", value(rng)]),
                                       **{key: value(rng) for key in ("data", "watches", "stop", "threads")}})
                    fake.peer.sendall(text.encode() + b"\n")
                    if rng.randrange(2):
                        fake.hang_up()

                fake = FakeBackEnd({op: [answer] for op in ("read", "registers", "watch", "threads")})
                self.addCleanup(fake.close)
                server = self.serve(options=["--backend", f"bridge:{fake.path}"])
                rsp = Rsp(server.target, seconds=30)
                rsp.no_ack()
                for packet in ("m1000,4", "g", "Z2,2000,4", "qfThreadInfo"):
                    rsp(packet)
                rsp.close()
                self.assertIsNone(server.process.poll())
                server.close()
                self._servers.remove(server)

    def test_a_debugger_that_sends_anything(self):
        words = [b"vCont;", b"c", b"s", b":1", b"Z0,", b"Z2,", b"z2,", b"Z9,", b"m", b"M", b"X", b"g", b"G", b"p", b"P", b"H",
                 b"qXfer:", b"features:read:target.xml:", b"auxv:read::", b"exec-file:read:", b"qRcmd,", b"756c7066", b"vRun;", b"1000", b",", b"4", b";",
                 b":", b"=", b"ffffffffffffffff", b"-1", b"}", b"*", b"\xff", b"qC", b"T", b"QStartNoAckMode", b"vFile:", b"open:", b"D"]
        fake = FakeBackEnd()
        self.addCleanup(fake.close)
        server = self.serve(options=["--backend", f"bridge:{fake.path}"])
        rng = random.Random(5)
        for _ in range(6):
            rsp = Rsp(server.target)
            rsp.no_ack()
            for _ in range(300):
                packet = b"".join(rng.choices(words, k=rng.randrange(1, 5)))
                # These are answered when the program stops, which the fake never does.
                if packet[:1] not in b"csCS" and not packet.startswith(b"vCont;"):
                    rsp.raw(frame(packet))
                    rsp.reply()
            rsp.close()
            self.assertIsNone(server.process.poll())
        again = Rsp(server.target)
        again.no_ack()
        self.assertEqual(again("m1000,4"), b"00000000")
        again.close()
