# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one facade to GDB's Python module.

Everything else of the plugin asks GDB through here, in our own terms, and gets our own errors. Outside of
GDB this module can be imported, too: then only what needs no debugger works, which is what unit tests use.
"""

import re

from . import foreign
from .errors import UlpfError

try:
    import gdb

    gdb.execute
except (ImportError, AttributeError):  # a folder of that name is none
    gdb = None

if gdb:
    Command, Parameter, Breakpoint, MICommand = gdb.Command, gdb.Parameter, gdb.Breakpoint, gdb.MICommand
else:
    Command = Parameter = Breakpoint = MICommand = object

NO_PROGRAM = "start the program (run, or ulpf run), or attach to it (ulpf attach PID)"
NO_ULPF = ("start GDB as `ulpf gdb PROGRAM`, or use ulpf run, ulpf attach PID, or ulpf connect HOST:PORT to a "
           "program under `ulpf server`")

# How long a memory read may be that only asks whether there is any.
_PROBE = 1


# ---- commands and values ----

def execute(command):
    """A GDB command; what it would have printed."""
    return gdb.execute(command, False, True)


def run_command(command, from_tty=False):
    """A GDB command that may run the program and prints for itself."""
    gdb.execute(command, from_tty)


def later(command):
    """A GDB command, when GDB has done what it is doing now."""
    def run():
        try:
            gdb.execute(command)
        except gdb.error as e:
            say(error_text(e))

    gdb.post_event(run)


def say(text=""):
    gdb.write(foreign.lines(text) + "\n")


def error_text(error):
    return str(error).strip().rstrip(".")


def gdb_error(error):
    """Is this GDB's own complaint (and not a defect of ours)?"""
    return gdb is not None and isinstance(error, (gdb.error, gdb.GdbError))


def mi_result(value):
    """A result of MI: tuples, lists and texts. Yes is 1, no 0; what is None is left out of its tuple."""
    if isinstance(value, dict):
        return {name: mi_result(of) for name, of in value.items() if of is not None}
    if isinstance(value, (list, tuple)):
        return [mi_result(of) for of in value]
    if isinstance(value, bool):
        return str(int(value))
    # A C string has no zero in it, and UTF-8 no half pairs.
    return str(value).replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def user_error(text):
    """What a command raises to print just this."""
    return gdb.GdbError(foreign.lines(text))


def evaluate(expression, what=None):
    """A gdb.Value; the user's mistakes become errors that say what to do."""
    what = what or expression
    try:
        return gdb.parse_and_eval(expression)
    except gdb.MemoryError as e:
        raise UlpfError(f"cannot watch {what}", error_text(e),
                        "a pointer on the way is stale or not set yet; watch the pointer itself, and this once it "
                        "points somewhere") from None
    except gdb.error as e:
        raise UlpfError(f"cannot watch {what}", error_text(e), _advice(str(e))) from None


def _advice(text):
    if "optimized out" in text:
        return "watch it where it has a place in memory, or compile with -Og"
    if "No symbol table" in text or "Use the \"file\" command" in text:
        return "compile with -g, or watch an address: *(long *)0x4040"
    if "No symbol" in text:
        return "a local is known only while its function is in the selected frame (see up, down, info locals)"
    if "No frame" in text or "no frame" in text or "No registers" in text:
        return NO_PROGRAM
    if "running" in text:
        return "stop the program first (Ctrl-C, or interrupt)"
    return "try it with print first"


def is_optimized_out(value):
    return value.is_optimized_out


def address_of(value):
    """Where a value is in memory, or None."""
    try:
        at = value.address
    except gdb.error:
        return None
    return None if at is None else int(at) & (2**64 - 1)


def value_at(address, type):
    """The lvalue of this type at an address."""
    return gdb.Value(address).cast(type.pointer()).dereference()


def value_of_bytes(data, type):
    return gdb.Value(bytes(data), type)


def shown(value):
    """A value in one line, as print shows it."""
    try:
        return value.format_string(max_elements=16, max_depth=3)
    except (gdb.error, TypeError):
        return str(value)


def children(value):
    """Of a container with a pretty-printer: its display hint and (name, gdb.Value) pairs; None without one."""
    printer = gdb.default_visualizer(value)
    if printer is None or not hasattr(printer, "children"):
        return None
    hint = printer.display_hint() if hasattr(printer, "display_hint") else None
    return hint, printer.children()


def summary(value):
    """The text of a value's pretty-printer, without its children; None without one."""
    printer = gdb.default_visualizer(value)
    text = printer.to_string() if printer is not None and hasattr(printer, "to_string") else None
    return None if text is None else str(text)


# ---- types ----

def plain(type):
    """Without typedefs, const and references."""
    type = type.strip_typedefs()
    if type.code in (gdb.TYPE_CODE_REF, getattr(gdb, "TYPE_CODE_RVALUE_REF", -1)):
        type = type.target().strip_typedefs()
    return type.unqualified()


def is_array(type):
    return type.code == gdb.TYPE_CODE_ARRAY


def is_pointer(type):
    return type.code == gdb.TYPE_CODE_PTR


def is_struct(type):
    return type.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION)


def is_union(type):
    return type.code == gdb.TYPE_CODE_UNION


def is_float(type):
    return type.code == gdb.TYPE_CODE_FLT


def is_function(type):
    return type.code in (gdb.TYPE_CODE_FUNC, gdb.TYPE_CODE_METHOD)


def bounds(type):
    """First and last index of an array type; None if they are not known."""
    low, high = type.range()
    return (low, high) if high >= low else None


def is_signed(type):
    """Of an integer type; GDB 12 has no attribute for it."""
    if hasattr(type, "is_signed"):
        return type.is_scalar and type.is_signed
    return int(gdb.Value(-1).cast(type)) < 0


def members(type):
    """(name, bit offset, bits or 0, type) of a structure's data members, bases included."""
    for f in type.fields():
        if hasattr(f, "bitpos"):
            yield (None if f.is_base_class else f.name), f.bitpos, f.bitsize, f.type


def lookup_type(name):
    try:
        return gdb.lookup_type(name)
    except gdb.error as e:
        raise UlpfError(f"no type {name}", error_text(e), "info types lists what there is") from None


# ---- the program ----

def pid():
    """Its process, or 0 when there is none."""
    return gdb.selected_inferior().pid


def pids():
    """Of all processes that GDB has."""
    return {inferior.pid for inferior in gdb.inferiors() if inferior.pid}


def need_program():
    if not pid():
        raise UlpfError("there is no program", "nothing is being debugged", NO_PROGRAM)


def readable(address):
    try:
        gdb.selected_inferior().read_memory(address, _PROBE)
        return True
    except gdb.error:
        return False


def read_memory(address, length):
    try:
        return bytes(gdb.selected_inferior().read_memory(address, length))
    except gdb.error:
        return None


def symbol_at(address):
    """`add+12`, or None."""
    text = execute(f"info symbol {address:#x}")
    match = re.match(r"(\S+)(?: \+ (\d+))? in section", text)
    return match and match.group(1) + (f"+{int(match.group(2)):#x}" if match.group(2) else "")


def is_static(address):
    """Is this in a file's data, so that it is there again when the program is started anew?"""
    return "in section" in execute(f"info symbol {address:#x}")


def line_at(pc):
    """`stray.c:22`, or None."""
    found = gdb.find_pc_line(pc)
    return f"{found.symtab.filename.rsplit('/', 1)[-1]}:{found.line}" if found.symtab and found.line else None


def file_at(pc):
    """(path, line), or None."""
    found = gdb.find_pc_line(pc) if pc is not None else None
    return (found.symtab.fullname(), found.line) if found and found.symtab and found.line else None


def globals_here():
    """Names of the variables of the selected frame's source file, its static ones first."""
    try:
        block = gdb.selected_frame().block()
    except (gdb.error, RuntimeError):
        return []
    names = []
    for scope in block.static_block, block.global_block:
        for symbol in scope or ():
            if symbol.is_variable and symbol.name not in names:
                names.append(symbol.name)
    return names


def code_at(file, line):
    """Addresses where code of a line begins."""
    try:
        places = gdb.decode_line(f"{file}:{line}")[1] or ()
    except gdb.error as e:
        raise UlpfError(f"no code at {file}:{line}", error_text(e), "choose a line with code") from None
    return [place.pc for place in places if place.pc is not None and place.line == line]


def instructions(address, before, count):
    """Of so many instructions from the one `before` ahead of an address: address, bytes, text, symbol, line."""
    found = _ahead(address, before) if before > 0 else []
    start = address
    if before <= 0:
        # The first of them are not wanted.
        found, count = [], count - before
    left = count - len(found)
    if left > 0:
        found += _decoded(start, left)
    return found[-before:] if before < 0 else found[:count]


def _decoded(start, count=None, end=None):
    """What is decoded from an address on; less if the memory ends."""
    how = {"count": count} if end is None else {"end_pc": end - 1}
    try:
        frames = gdb.selected_inferior().architecture().disassemble(start, **how)
    except (gdb.error, AttributeError, RuntimeError):
        # One that cannot be read spoils all.
        frames = []
        for _ in range(count or 0):
            try:
                frames += gdb.selected_inferior().architecture().disassemble(start, count=1)
            except (gdb.error, RuntimeError):
                break
            start = frames[-1]["addr"] + frames[-1]["length"]
    return [_instruction(f) for f in frames]


def _instruction(f):
    data = read_memory(f["addr"], f["length"]) or b""
    line = gdb.find_pc_line(f["addr"])
    said = {"address": f["addr"], "bytes": data.hex(" "), "text": f["asm"].replace("\t", " "), "symbol": symbol_at(f["addr"])}
    if line.symtab and line.line and line.pc == f["addr"]:
        said.update(file=line.symtab.fullname(), line=line.line)
    return said


def _ahead(address, before):
    """The instructions ahead of an address, from functions' beginnings on; fewer if there are none."""
    found, end = [], address
    while len(found) < before:
        symbol = symbol_at(end - 1)
        offset = re.search(r"\+(0x[0-9a-f]+)$", symbol or "")
        start = end - 1 - (int(offset.group(1), 16) if offset else 0)
        if symbol is None or end - start > 1 << 16:
            break
        some = [i for i in _decoded(start, end=end) if i["address"] < end]
        if not some:
            break
        found, end = some + found, start
    return found[-before:]


def code_of(name):
    """Ranges of addresses of a function or a library, or None."""
    return _function(name) or _library(name)


def _function(name):
    try:
        value = gdb.parse_and_eval(name)
        if not is_function(plain(value.type)) and value.type.code != gdb.TYPE_CODE_INTERNAL_FUNCTION:
            return None
        at = int(value.address)
        block = gdb.block_for_pc(at)
        while block and not block.function:
            block = block.superblock
        if block:
            return [(block.start, block.end)]
        lines = re.findall(r"^(?:=>)?\s*(0x[0-9a-f]+) <", execute(f"disassemble {at:#x}"), re.M)
        return [(int(lines[0], 16), int(lines[-1], 16) + 1)] if lines else None
    except (gdb.error, TypeError):
        return None


def _library(name):
    """Executable sections of the files whose name contains this."""
    found, file = [], ""
    for line in execute("info files").splitlines():
        whole = re.match(r"^\s*`(.+)', file type", line)
        file = whole.group(1) if whole else file
        match = re.match(r"^\s*(0x[0-9a-f]+) - (0x[0-9a-f]+) is (\.(?:text|plt|init|fini)\S*)(?: in (.*))?$", line)
        if match and name in (match.group(4) or file).rsplit("/", 1)[-1]:
            found.append((int(match.group(1), 16), int(match.group(2), 16)))
    return found


def functions(word):
    """Names of functions that begin so."""
    head = "break "
    return [line[len(head):] for line in execute(f"complete {head}{word}").splitlines() if line.startswith(head)]


def frame_with(address, most):
    """The frame of this thread whose part of the stack has this address, if it is one of the first so many."""
    try:
        frame = gdb.newest_frame()
        for _ in range(most):
            older = frame.older()
            low = int(frame.read_register("rsp"))
            if older is None or address < low - 128:
                return None
            # (Its red zone, too.)
            if frame.type() == gdb.NORMAL_FRAME and address < int(older.read_register("rsp")):
                return frame
            frame = older
    except gdb.error:
        pass
    return None


def is_location(name):
    """Can a breakpoint be set there? (GDB asks its user when it cannot.)"""
    try:
        gdb.decode_line(name)
        return True
    except gdb.error:
        return False


def entry_point():
    match = re.search(r"Entry point: (0x[0-9a-f]+)", execute("info files"))
    return match and int(match.group(1), 16)


def lwp_of(number):
    """Linux id of GDB's thread, or None."""
    for thread in gdb.selected_inferior().threads():
        if thread.num == number:
            return thread.ptid[1] or thread.ptid[2]
    return None


def thread_of(lwp):
    """GDB's number and the name of a Linux thread, and how many threads there are."""
    threads = gdb.selected_inferior().threads()
    for thread in threads:
        if lwp in (thread.ptid[1], thread.ptid[2]):
            return thread.num, thread.name, len(threads)
    return None, None, len(threads)


def local_address(name):
    """Of a variable in the selected frame: its address and type; None if the name is nothing of the kind."""
    try:
        frame = gdb.selected_frame()
        symbol, _ = gdb.lookup_symbol(name, frame.block())
        if symbol is None or not symbol.needs_frame or not (symbol.is_variable or symbol.is_argument):
            return None
        value = symbol.value(frame)
    except (gdb.error, RuntimeError):
        return None
    at = address_of(value)
    if at is None or value.is_optimized_out:
        raise UlpfError(f"a condition cannot use {name}", "it has no place in memory here (a register, or optimised out)",
                        "write its present value instead, or compile with -Og")
    return at, str(value.type)


def compile_condition(expression):
    """What GDB prints of an expression's bytecode."""
    language = gdb.parameter("language")
    language = execute("show language") if language in ("auto", "local") else language
    foreign = not re.search(r"\b(c|c\+\+|asm|minimal)\b", str(language))
    return execute(("with language c++ -- " if foreign else "") + f"maint agent-eval {expression}")


def make_variable(name):
    execute(f"tvariable ${name}")


# ---- ulpf's server ----

def monitor(command):
    """The answer of the server to `monitor COMMAND`."""
    try:
        return execute(f"monitor {command}")
    except gdb.error as e:
        need_program()
        text = error_text(e)
        if "not supported by this target" in text or "Protocol error" in text or "Target does not support" in text:
            raise UlpfError("this is no program under ulpf", "its target has no monitor commands of ulpf", NO_ULPF) from None
        raise UlpfError("ulpf does not answer", text, "stop the program first, or see whether it is still there") from None


def packet_room():
    """How long a monitor command may be."""
    return 30_000


# ---- events ----

def on(event, handler):
    registry = getattr(gdb.events, event, None)
    if registry is not None:
        registry.connect(handler)


def access_watch():
    """What makes a gdb.Breakpoint an internal `awatch`."""
    return {"type": gdb.BP_WATCHPOINT, "wp_class": gdb.WP_ACCESS, "internal": True}


def is_watchpoint(breakpoint):
    """`software`, `hardware`, or None."""
    if breakpoint.type == gdb.BP_WATCHPOINT:
        return "software"
    if breakpoint.type in (gdb.BP_HARDWARE_WATCHPOINT, gdb.BP_READ_WATCHPOINT, gdb.BP_ACCESS_WATCHPOINT):
        return "hardware"
    return None


def parameter(name):
    return gdb.parameter(name)


def frame_line():
    """Where the program is, as GDB shows it at a stop."""
    return re.sub(r"\A#\d+\s+", "", execute("frame").rstrip("\n"))
