# SPDX-License-Identifier: MIT OR Apache-2.0
"""Words with the stub: `monitor ulpf …` out, JSON lines back, which `replies` reads."""

import json

from . import facade, replies
from .errors import UlpfError


def ask(command, kind=replies.change):
    """The one answer to a command, as the function of `replies` reads it; a refusal is an error."""
    answers = _objects(facade.monitor(f"ulpf {command}"), command)
    if not answers:
        raise _garbled(command)
    return _read(answers[0], kind, command)


def log(most):
    """The last records of all watches, the oldest first, behind since when nothing is missing (or None)."""
    command = f"log {most}"
    answers = _objects(facade.monitor(f"ulpf {command}"), command)
    head = _read(answers[0], replies.log_head, command) if answers else None
    return head and head.reaches_back, [_read(answer, replies.record, command) for answer in answers[1:]]


def stop_rest():
    """The other hits of the instruction that has made the present stop; no stop tells of them any more."""
    command = "stop rest"
    records = [_read(answer, replies.stop, command) for answer in _objects(facade.monitor(f"ulpf {command}"), command)]
    return [record for record in records if record is not None]


def places(asked):
    """The places of a watch, with `decided`: only the server can tell them. A `problem` is the error that says why there
    are none."""
    said = ask(f"places {json.dumps(asked)}", dict)
    if "problem" in said:
        said["problem"] = replies.change(said["problem"]).error()
    return said


def tell(hits, csv=False):
    """The server's words for hits, in order. As many hits as fit go in one packet."""
    answers, batch, length = [], [], 0
    for hit in [json.dumps(hit) for hit in hits] + [None]:
        if batch and (hit is None or length + len(hit) > facade.packet_room()):
            answer = _objects(facade.monitor(f'ulpf tell {{"csv":{json.dumps(csv)},"hits":[{",".join(batch)}]}}'), "tell")
            # (Every table has heads, and this is one.)
            answers += answer[1:] if csv and answers else answer
            batch, length = [], 0
        if hit is not None:
            batch.append(hit)
            length += len(hit) + 1
    return answers


def text(command):
    """An answer in words."""
    return facade.monitor(f"ulpf {command}").rstrip("\n")


def change_by_name(command):
    """The server's answer to a command that names a variable: a change, or text."""
    answer = text(command)
    try:
        found = replies.objects(answer)
        return replies.change(found[0]) if found else answer
    except ValueError:
        return answer


def many(commands):
    """Results of these commands, in order. As many commands as fit go in one packet."""
    answers, batch, length = [], [], 0
    for command in commands:
        command = f"ulpf {command}"
        if batch and length + len(command) > facade.packet_room():
            answers += _batch(batch)
            batch, length = [], 0
        batch.append(command)
        length += len(command) + 1
    return answers + (_batch(batch) if batch else [])


def _batch(commands):
    answers = _objects(facade.monitor(";".join(commands)), commands[0])
    if len(answers) != len(commands):
        raise _garbled(commands[0])
    try:
        return [replies.change(answer) for answer in answers]
    except ValueError:
        raise _garbled(commands[0]) from None


def _read(object, kind, command):
    try:
        # (Elsewhere a number has that name.)
        if isinstance(object.get("refused"), dict):
            raise replies.change(object).error()
        return kind(object)
    except ValueError:
        raise _garbled(command) from None


def _objects(answer, command):
    try:
        found = replies.objects(answer)
    except ValueError:
        raise _garbled(command) from None
    if not found and answer.strip() and "nknown" in answer:
        raise UlpfError(f"ulpf {command.split()[0]}", "the server does not know this command",
                        "the plugin and the server are of different versions: use the same ulpf for both")
    return found


def _garbled(command):
    return UlpfError(f"ulpf {command[:60]}", "the server's answer is not understood",
                     "see `monitor ulpf help`; the plugin and the server may be of different versions")
