# SPDX-License-Identifier: MIT OR Apache-2.0
"""Words with the stub: `monitor ulpf …` out, JSON lines back."""

import json

from . import door
from .errors import UlpfError, refused


def ask(command):
    """The one JSON object that answers a command; a refusal is an error."""
    answers = _objects(door.monitor(f"ulpf {command}"), command)
    if not answers:
        raise _garbled(command)
    # (Elsewhere a number has that name.)
    if isinstance(answers[0].get("refused"), dict):
        raise refused(answers[0])
    return answers[0]


def lines(command):
    """All JSON lines that answer a command."""
    return _objects(door.monitor(f"ulpf {command}"), command)


def text(command):
    """An answer in words."""
    return door.monitor(f"ulpf {command}").rstrip("\n")


def many(commands):
    """An answer to each of these, in order. As many commands as fit go in one packet."""
    answers, batch, length = [], [], 0
    for command in commands:
        command = f"ulpf {command}"
        if batch and length + len(command) > door.packet_room():
            answers += _batch(batch)
            batch, length = [], 0
        batch.append(command)
        length += len(command) + 1
    return answers + (_batch(batch) if batch else [])


def _batch(commands):
    answers = _objects(door.monitor(";".join(commands)), commands[0])
    if len(answers) != len(commands):
        raise _garbled(commands[0])
    return answers


def _objects(answer, command):
    found = []
    for line in answer.splitlines():
        if not line.startswith("{"):
            continue  # what else the server had to say meanwhile
        try:
            found.append(json.loads(line))
        except ValueError:
            raise _garbled(command) from None
    if not found and answer.strip() and "nknown" in answer:
        raise UlpfError(f"ulpf {command.split()[0]}", "the server does not know this command",
                        "the plugin and the server are of different versions: use the same ulpf for both")
    return found


def _garbled(command):
    return UlpfError(f"ulpf {command[:60]}", "the server's answer is not understood",
                     "see `monitor ulpf help`; the plugin and the server may be of different versions")
