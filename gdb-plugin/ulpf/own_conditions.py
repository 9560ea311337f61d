# SPDX-License-Identifier: MIT OR Apache-2.0
"""Conditions of GDB's own watches as bytecode that may pass too much, and never too little.

GDB evaluates the condition again at each hit that passes. So wherever the bytecode could mean something else than GDB
does (another frame of the function, an error), it passes.
"""

import re

from . import bytecode, facade

gdb = facade.gdb

_NAME = re.compile(r"(?<![\w.$>])(?<!->)(\$?[A-Za-z_]\w*)\b")
_CALL = re.compile(r"[A-Za-z_]\w*\s*\(")
_LANGUAGES = "c", "c++", "asm", "minimal"
# GDB 13 has rules of its own for what is shifted too far.
_SHIFT = re.compile(r"<<|>>")
_CONSTANT_SHIFT = re.compile(r"(?:<<|>>)\s*\d{1,2}\b(?!\s*[.\w])")
_LETTER = re.compile(r"(?<![\w'])'([ !#-&(-\[\]-~])'")
_TYPES = {"char", "short", "int", "long", "unsigned", "signed", "sizeof", "struct", "union", "enum"}
_MOST_BLOCK = 16 << 10
_RBP, _RSP, _RIP = 6, 7, 16
_TID = bytecode.VARIABLES["tid"]


class NotCompiled(Exception):
    """GDB decides; why."""


class Frame:
    """A frame, by which code that runs in it can be told: where its function is, its registers, its thread."""

    def __init__(self, symbols):
        frame = gdb.selected_frame()
        if frame.level() != 0 or frame.type() != gdb.NORMAL_FRAME:
            raise NotCompiled("it has a local of a function that has called another one")
        self.rsp, self.rbp = (int(frame.read_register(name)) for name in ("rsp", "rbp"))
        self.lwp = gdb.selected_thread().ptid[1]
        block = frame.block()
        names = {symbol.name for symbol in symbols}
        while block and not names & {symbol.name for symbol in block}:
            block = block.superblock
        if not block or not block.start <= frame.pc() < block.end or block.end - block.start > _MOST_BLOCK:
            raise NotCompiled("it has a local whose function cannot be told")
        self.start, self.end = block.start, block.end
        for pc in range(self.start, self.end):
            if not _within(gdb.block_for_pc(pc), block):
                raise NotCompiled("it has a local of a block that lies in pieces")

    def guards(self, code):
        """Another frame than this one has: that passes."""
        code.add(_reg(_RIP) + _const(self.start) + _LESS).passes()
        code.add(_reg(_RIP) + _const(self.end) + _LESS + _NOT).passes()
        for value, wanted in (_reg(_RSP), self.rsp), (_reg(_RBP), self.rbp), (_getv(_TID), self.lwp):
            code.add(value + _const(wanted) + _EQUAL + _NOT).passes()


def _is_wide(type):
    """Is it an integer that bytecode, which computes with 64 bits, cannot hold, or a pointer to one or an array of them?"""
    while type.code in (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_ARRAY):
        type = type.target().strip_typedefs()
    return type.code in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_ENUM, gdb.TYPE_CODE_BOOL) and type.sizeof > 8


def _found_by(symbol):
    return symbol.name, symbol.symtab and symbol.symtab.fullname(), symbol.line


def _within(inner, outer):
    while inner:
        if (inner.start, inner.end) == (outer.start, outer.end):
            return True
        inner = inner.superblock if not inner.function else None
    return False


def _reg(number):
    return b"\x26" + number.to_bytes(2, "big")


def _const(value):
    return b"\x25" + (value & (2**64 - 1)).to_bytes(8, "big")


def _getv(number):
    return b"\x2c" + number.to_bytes(2, "big")


_EQUAL, _LESS, _NOT, _IF_GOTO, _END = b"\x13", b"\x15", b"\x0e", b"\x20", b"\x27"
_ZERO, _ONE = b"\x22\x00", b"\x22\x01"


class _Code:
    """Bytecode whose end is not known yet, to which some of it jumps."""

    def __init__(self):
        self.bytes = bytearray()
        self._to_end = []

    def add(self, bytes):
        self.bytes += bytes
        return self

    def jump(self):
        """If there is something on top of the stack other than 0; where the jump's operand is."""
        self.bytes += _IF_GOTO + b"\0\0"
        return len(self.bytes) - 2

    def passes(self):
        """If there is something on top of the stack other than 0, the hit passes."""
        self._to_end.append(self.jump())

    def lands(self, at):
        """The jump at `at` leads to what comes next."""
        self.bytes[at:at + 2] = len(self.bytes).to_bytes(2, "big")

    def done(self):
        self.bytes += _ZERO + _END
        for at in self._to_end:
            self.lands(at)
        self.bytes += _ONE + _END
        return bytes(self.bytes)


class Condition:
    """A condition that was typed now, in the selected frame."""

    def __init__(self, text):
        # GDB has no bytecode for the letter itself.
        self.text = text = _LETTER.sub(lambda m: f"((char) {ord(m.group(1))})", text)
        self.frame = None
        language = str(gdb.parameter("language"))
        if language in ("auto", "local"):
            language = re.search(r'"(?:auto|local); currently ([^"]+)"', facade.execute("show language"))
            language = language.group(1) if language else ""
        if language not in _LANGUAGES:
            raise NotCompiled(f"conditions in {language or 'this language'} are not compiled")
        if _CALL.search(re.sub(r"\bsizeof\s*\(", "", text)):
            raise NotCompiled("it may call a function")
        if "__int128" in text:
            raise NotCompiled("it computes with more than 64 bits")
        if len(_SHIFT.findall(text)) != len(_CONSTANT_SHIFT.findall(text)):
            raise NotCompiled("it shifts by a variable")
        self.symbols = {}
        locals = []
        for name in set(_NAME.findall(text)) - _TYPES:
            if name.startswith("$"):
                continue  # a register, or GDB cannot compile it
            symbol = gdb.lookup_symbol(name)[0]
            if symbol is None:
                raise NotCompiled(f"{name} is not known here")
            type = symbol.type.strip_typedefs() if symbol.type else None
            if type is not None and _is_wide(type):
                raise NotCompiled(f"{name} has more than 64 bits")
            if type is not None and type.code in (gdb.TYPE_CODE_REF, getattr(gdb, "TYPE_CODE_RVALUE_REF", -1)):
                raise NotCompiled(f"{name} is a reference")
            if symbol.needs_frame:
                if "multi-location" in facade.execute(f"info address {name}"):
                    raise NotCompiled(f"{name} is not always in the same place")
                locals.append(symbol)
            elif symbol.is_variable and symbol.addr_class != gdb.SYMBOL_LOC_STATIC:
                raise NotCompiled(f"each thread has its own {name}")
            elif gdb.lookup_global_symbol(name) is None and len(gdb.lookup_static_symbols(name)) > 1:
                raise NotCompiled(f"several files have a {name}")
            self.symbols[name] = symbol
        if locals:
            self.frame = Frame(locals)
        self.listing = None
        self.compile()

    def compile(self):
        """Compiles for the program's present addresses. Its names must still refer to the same variables."""
        newest = gdb.newest_frame()
        for name, symbol in self.symbols.items():
            here = gdb.lookup_symbol(name, newest.block())[0]
            if here is None or _found_by(here) != _found_by(symbol):
                raise NotCompiled(f"{name} means something else here")
        try:
            self.listing = facade.compile_condition(self.text, as_c=False)
            bytecode.assemble(self.listing, {})
        except bytecode.Unsupported as e:
            raise NotCompiled(f"GDB compiles it to {e}") from None
        except gdb.error as e:
            raise NotCompiled(facade.error_text(e)) from None


class Question:
    """The condition, the thread and the variables' places of one of GDB's watches."""

    def __init__(self, condition=None, lwp=None, frame=None):
        self.condition, self.lwp, self.frame = condition, lwp, frame

    def add_to(self, code):
        for frame in self.frame, self.condition and self.condition.frame:
            if frame:
                frame.guards(code)
        elsewhere = None
        if self.lwp is not None:
            elsewhere = code.add(_getv(_TID) + _const(self.lwp) + _EQUAL + _NOT).jump()
        if self.condition:
            code.add(bytecode.assemble(self.condition.listing, {}, len(code.bytes))[:-1])
        else:
            code.add(_ONE)
        code.passes()
        if elsewhere is not None:
            code.lands(elsewhere)


def any_of(questions):
    """Bytecode that holds where one of these lets a hit pass."""
    code = _Code()
    for question in questions:
        question.add_to(code)
    return code.done()
