# SPDX-License-Identifier: MIT OR Apache-2.0
"""Escapes foreign text (names of symbols, files and threads), so that it is only text.

It follows command/host/src/foreign/text.rs: control characters, and characters that change the reading of their neighbours, are shown.
"""

import re

# So much of one name is shown.
LONGEST = 4096
# Control characters (C0, DEL, C1); soft hyphen; marks, embeddings, overrides and isolates of direction;
# separators of lines and paragraphs, invisible operators; byte order mark, annotations, tags; half pairs.
_NOT_PLAIN = ("\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
              "\U000e0000-\U000e0fff\ud800-\udfff")
_ANY = re.compile(f"[{_NOT_PLAIN}]")
_BUT_LINES = re.compile(f"(?![\n\t])[{_NOT_PLAIN}]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escaped(match):
    c = match.group()
    return _NAMED.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 0x80 else f"\\u{{{ord(c):x}}}")


def quoted(json):
    """JSON as json.dumps writes it without ensure_ascii: letters stay, the rest is escaped as JSON wants it."""
    def unit(match):
        pair = match.group().encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{pair[at:at + 4]}" for at in range(0, len(pair), 4))
    return _ANY.sub(unit, json)


def shown(text):
    """A foreign text on one line."""
    return _ANY.sub(_escaped, text[:LONGEST]) + ("…" if len(text) > LONGEST else "")


def lines(text):
    """Lines of our own that may contain foreign text, escaped."""
    return _BUT_LINES.sub(_escaped, text)
