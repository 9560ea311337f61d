#!/usr/bin/env python3
"""Takes gem5's command line and answers at its remote port as gem5 v24.0 with sim-bridge/gem5 does: acknowledged
packets, the core's registers only, no Z2, monitor commands answered by the configuration script, no W at the end.
Its program changes 0x2002 once, as `add` does, and exits with 3."""

import socket
import sys
import time

port = sys.argv[sys.argv.index("--port") + 1]
program = sys.argv[sys.argv.index("--") + 1:]
assert "--listener-mode=on" in sys.argv and open(next(a for a in sys.argv if a.endswith("run.py"))).read()
if "dies" in program:
    sys.exit("fatal: this is no gem5")
listener = socket.socket(socket.AF_UNIX)
listener.bind(port)
listener.listen()
peer, _ = listener.accept()
held, watches, runs = b"", [], 0


def send(body):
    peer.sendall(b"$" + body + b"#%02x" % (sum(body) & 255))


def stop(rest=b""):
    send(b"T05core:1;thread:1;" + rest)


def monitor(words):
    if words[1] == "stats":
        return "cycles 1000\ninstructions 7\nfaults 1\n"
    if words[1] not in ("watch", "unwatch") or words[4] not in ("w", "r", "rw"):
        return "no such command\n"
    if int(words[2], 0) < 4096:
        return f"{words[3]} bytes at {words[2]} cannot be watched\n"
    (watches.append if words[1] == "watch" else watches.remove)(tuple(words[2:]))
    return "ok\n"


while data := peer.recv(4096):
    held += data
    while b"#" in held and len(held.split(b"#", 1)[1]) >= 2:
        packet, held = held.split(b"#", 1)
        held, packet = held[2:], packet[packet.index(b"$") + 1:]
        peer.sendall(b"+")
        name = packet[:1]
        if packet == b"?":
            stop()
        elif packet.startswith(b"qRcmd,"):
            send(b"O" + monitor(bytes.fromhex(packet[6:].decode()).decode().split()).encode().hex().encode())
            send(b"OK")
        elif packet == b"qfThreadInfo":
            send(b"m1")
        elif packet == b"qsThreadInfo":
            send(b"l")
        elif name == b"g":
            registers = bytearray(164)
            registers[128:136] = (0x1000 + 4 * runs).to_bytes(8, "little")
            send(registers.hex().encode())
        elif name == b"m":
            send(b"00" * int(packet.split(b",")[1], 16))
        elif name in b"GMH" or packet[:2] in (b"Z0", b"z0"):
            send(b"OK")
        elif name == b"s":
            runs += 1
            stop()
        elif name == b"c":
            runs += 1
            if runs > 1 or not watches:
                time.sleep(0.1)
                sys.exit(3)
            stop(b"watch:2002;ulpf-access:rw;")
        elif name == b"k":
            sys.exit(0)
        else:
            send(b"")
