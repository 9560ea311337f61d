"""Random packets on each side of the bridge: no crash, no hang, and valid packets work afterwards."""

import random

from lib.bridge import FakeStub, Sim, needs_sim, static
from lib.cases import Case
from lib.env import ulpf_only
from lib.rsp import Rsp, frame

NUMBERS = [0, 1, 2, 7, 8, 4095, 4096, 0x401000, 0x4a0000, 2**31, 2**47, 2**63, 2**64 - 1, 2**64]
COMMANDS = ["ulpf watch {} {} w stop log", "ulpf watch {} {} rw log", "ulpf watch {} {} r stop changed", "ulpf unwatch {}", "ulpf filter {} skip {}",
            "ulpf watch {} {} w if x 22012227", "ulpf stats", "ulpf watch {} {} w;ulpf unwatch {}", "x", "ulpf levitate"]
# (Registers that are nonsense would end the program's run, not the machine; memory that is, likewise.)
PACKETS = ["?", "g", "m{:x},{:x}", "Z0,{:x},1", "z0,{:x},1", "Z1,{:x},1", "z1,{:x},1", "Z2,{:x},{:x}", "z2,{:x},{:x}", "Z3,{:x},{:x}",
           "Z4,{:x},{:x}", "Hg{:x}", "T{:x}", "qfThreadInfo", "qsThreadInfo", "qC", "qUlpf.About", "qUlpf.Counts:{:x}", "qUlpf.Hits:{:x},{:x}",
           "qSupported:multiprocess+", "qXfer:auxv:read::{:x},{:x}", "qXfer:features:read:target.xml:{:x},{:x}", "qXfer:exec-file:read::{:x},{:x}",
           "vCont?", "vMustReplyEmpty", "qOffsets", "G00", "P0=00", "levitate"]


def packet(rng):
    if rng.randrange(4) == 0:
        words = rng.choice(COMMANDS)
        low = [n for n in NUMBERS if n < 2**20]
        words = words.format(*(rng.choice([*NUMBERS, 0x4a0000 + rng.randrange(1 << 13), *low]) for _ in range(3)))
        return b"qRcmd," + words.encode().hex().encode()
    words = rng.choice(PACKETS)
    return words.format(*(rng.choice([*NUMBERS, 0x4a0000 + rng.randrange(1 << 13)]) for _ in range(3))).encode()


def asked(rsp, body):
    """The reply behind the text that it prints."""
    rsp.raw(frame(body))
    while (reply := rsp.reply())[:1] == b"O" and len(reply) % 2:
        pass
    return reply


@ulpf_only
class Noise(Case):
    @needs_sim
    def test_a_machine_that_is_asked_anything(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                sim = Sim(static("alone"))
                self.addCleanup(sim.close)
                rsp = sim.connect()
                self.addCleanup(rsp.close)
                for _ in range(400):
                    body = packet(rng)
                    if rng.randrange(10) == 0:
                        cut = rng.randrange(len(body))
                        body = body[:cut] + bytes([rng.choice(b"\0 \"{}x\xff")]) + body[cut + 1:]
                        # Packets that resume or end the program are asked below, or elsewhere.
                        body = body.replace(b"#", b"").replace(b"$", b"")
                        if body[:1] in b"csCSk":
                            continue
                    asked(rsp, body)
                    if rng.randrange(20) == 0 and not asked(rsp, b"vCont;s:1").startswith(b"T"):
                        break
                self.assertRegex(asked(rsp, b"?"), b"^(T05|W00)")
                self.assertRegex(asked(rsp, b"qUlpf.Counts:0"), b"^c0,")

    def test_a_back_end_that_says_anything(self):
        words = [b"OK", b"E01", b"E.no", b"", b"T05thread:1;", b"T05watch:2000;", b"W00", b"m1", b"l", b"c0,0,0,0,0", b"h0,1,0,1", b"h0",
                 b";1,1,1,1,w,2000,4,00,01", b"0" * 700, b"zz", b"\xff", b"}", b"*", b"O4141", b"1", b",", b";", b"ffffffffffffffffff",
                 b'{"watch":1}'.hex().encode()]
        for seed in range(25):
            with self.subTest(seed=seed):
                rng = random.Random(seed)

                def answer(fake, packet):
                    body = b"".join(rng.choices(words, k=rng.randrange(1, 4)))
                    fake.raw(rng.choice([frame(body), frame(body), frame(body), b"$" + body + b"#00", frame(body) * 3]))
                    if rng.randrange(4) == 0:
                        fake.hang_up()

                # (Behind the greeting.)
                starts = (b"m1000", b"qUlpf.C", b"qUlpf.H", b"qRcmd", b"Z2", b"Hg", b"vCont;", b"qfThreadInfo", b"p")
                fake = FakeStub({start: [answer] * 3 for start in starts}, rng.choice([b"", b"watches", b"commands"]))
                self.addCleanup(fake.close)
                server = self.serve(options=["--backend", f"rsp:{fake.path}"])
                rsp = Rsp(server.target, seconds=60)
                rsp.no_ack()
                for body in (b"m1000,4", b"Z2,2000,4", b"qfThreadInfo", b"p10", b"qRcmd," + b"ulpf stats".hex().encode()):
                    asked(rsp, body)
                # A stop, or the interrupt that is not answered.
                rsp.raw(frame(b"vCont;c"))
                rsp.raw(b"\x03")
                while (reply := rsp.reply())[:1] == b"O":
                    pass
                self.assertRegex(reply, b"^[TSWXEN]")
                rsp.close()
                server.close()
                self._servers.remove(server)
    test_a_back_end_that_says_anything.idle = True

    def test_a_debugger_that_sends_anything(self):
        words = [b"vCont;", b"c", b"s", b":1", b"Z0,", b"Z2,", b"z2,", b"Z9,", b"m", b"M", b"X", b"g", b"G", b"p", b"P", b"H",
                 b"qXfer:", b"features:read:target.xml:", b"auxv:read::", b"exec-file:read:", b"qRcmd,", b"756c7066", b"vRun;", b"1000", b",", b"4", b";",
                 b":", b"=", b"ffffffffffffffff", b"-1", b"}", b"*", b"\xff", b"qC", b"T", b"QStartNoAckMode", b"vFile:", b"open:", b"qUlpf.", b"Counts:"]
        fake = FakeStub()
        self.addCleanup(fake.close)
        server = self.serve(options=["--backend", f"rsp:{fake.path}"])
        rng = random.Random(5)
        for _ in range(6):
            rsp = Rsp(server.target)
            rsp.no_ack()
            for _ in range(300):
                body = b"".join(rng.choices(words, k=rng.randrange(1, 5)))
                # The fake never stops, so a resume has no reply. After a detach there is no program.
                if body[:1] not in b"csCS" and not body.startswith((b"vCont;", b"D")) and b"m" not in body[:1]:
                    rsp.raw(frame(body))
                    rsp.reply()
            rsp.close()
            self.assertIsNone(server.process.poll())
        again = Rsp(server.target)
        again.no_ack()
        self.assertEqual(again("m1000,4"), b"00000000")
        again.close()
