# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one facade to GDB's Python module.

Everything else of the plugin asks GDB through here, in our own terms, and gets our own errors. Outside of
GDB this module can be imported, too: then only what needs no debugger works, which is what unit tests use.
"""

import contextlib
import re

from . import foreign, replies
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

CREATES_ANYWHERE = gdb is not None and int(gdb.VERSION.split(".")[0]) < 15

# How long a memory read may be that only asks whether there is any.
_PROBE = 1
# Elements and levels of a value in one line; of larger arrays so many are looked at.
ELEMENTS, _DEPTH = 16, 3


# ---- commands and values ----

def execute(command):
    """A GDB command; what it would have printed."""
    return gdb.execute(command, False, True)


def run_command(command, from_tty=False):
    """A GDB command that may run the program and prints for itself."""
    gdb.execute(command, from_tty)


def may_create():
    """Can a breakpoint be created while GDB tells of a new watch? From version 15 on it ends with an internal error if the
    watch is not the last of its list then (watch_command_1, breakpoint.c)."""
    return CREATES_ANYWHERE


def later(call):
    """When GDB is done with what it does now."""
    gdb.post_event(call)


def after(prefix, name, command):
    """From now on this command follows whenever `PREFIX NAME` has been carried out."""
    gdb.execute(f"define {prefix} hookpost-{name}\n{command}\nend", False, True)


def before(name, command):
    """From now on this command goes before `NAME`, unless the user has one that does."""
    try:
        execute(f"show user hook-{name}")
    except gdb.error:
        gdb.execute(f"define hook-{name}\n{command}\nend", False, True)


def is_extended_remote():
    """Is there a server that stays when its program ends?"""
    connection = gdb.selected_inferior().connection
    return connection is not None and connection.type == "extended-remote"


def packet(text):
    """The server's answer to a packet."""
    said = gdb.execute(f"maintenance packet {text}", False, True)
    match = re.search(r'received: "(.*)"', said)
    return match.group(1) if match else ""


def say(text=""):
    gdb.write(foreign.lines(text) + "\n")


def error_text(error):
    return str(error).strip().rstrip(".")


def gdb_error(error):
    """Is this GDB's own complaint (and not a defect of ours)?"""
    return gdb is not None and isinstance(error, (gdb.error, gdb.GdbError))


def mi_result(value):
    """A result of MI: tuples, lists and texts. Yes is 1, no 0; a field that is None is left out of its tuple."""
    if isinstance(value, dict):
        return {name: mi_result(of) for name, of in value.items() if of is not None}
    if isinstance(value, (list, tuple)):
        return [mi_result(of) for of in value]
    if isinstance(value, bool):
        return str(int(value))
    # A C string has no zero in it, and UTF-8 no half pairs.
    return str(value).replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def user_error(text):
    """The exception that makes a command print exactly this text."""
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


def keep(name, value):
    """A convenience variable."""
    gdb.set_convenience_variable(name, value)


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


@contextlib.contextmanager
def own_language():
    """For expressions that the plugin has written itself: they are C, which the user's language may not know.

    Breakpoints and conditions that are set in it stay in C: GDB keeps the language with each.
    """
    language = gdb.parameter("language")
    if language == "c":
        yield
        return
    execute("set language c")
    try:
        yield
    finally:
        # (`auto` takes the frame's again.)
        execute(f"set language {language}")


def own_number(expression, what=None):
    """The number that an expression of the plugin's own is."""
    with own_language():
        return int(evaluate(expression, what))


def register(name):
    """Of the newest frame, as an unsigned number."""
    return int(gdb.newest_frame().read_register(name)) & (2**64 - 1)


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


def shown(value):
    """A value in one line, as print shows it."""
    try:
        return value.format_string(max_elements=ELEMENTS, max_depth=_DEPTH)
    except (gdb.error, TypeError):
        pass
    try:
        return str(value)
    except Exception as e:  # a pretty-printer's, on memory that makes no sense
        return f"<{error_text(e)}>"


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


def array_of(type, count):
    return type.array(count - 1)


def is_pointer(type):
    return type.code == gdb.TYPE_CODE_PTR


def is_struct(type):
    return type.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION)


def is_float(type):
    return type.code == gdb.TYPE_CODE_FLT


def is_integer(type):
    return type.code in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_CHAR, gdb.TYPE_CODE_BOOL, gdb.TYPE_CODE_ENUM, gdb.TYPE_CODE_RANGE)


def is_character(type):
    """Of a text: GDB takes one byte with a character's name for one, C's own `char` among them."""
    return type.code == gdb.TYPE_CODE_CHAR or type.code == gdb.TYPE_CODE_INT and type.sizeof == 1 and "char" in str(type)


def is_bool(type):
    return type.code == gdb.TYPE_CODE_BOOL


def is_enum(type):
    return type.code == gdb.TYPE_CODE_ENUM


def is_function(type):
    return type.code in (gdb.TYPE_CODE_FUNC, gdb.TYPE_CODE_METHOD)


def bounds(type):
    """First and last index of an array type; None if they are not known."""
    low, high = type.range()
    return (low, high) if high >= low else None


def strides(value):
    """Distances of an array's elements, the outermost dimension's first: other memory may lie between them."""
    found, type = [], plain(value.type)
    try:
        while is_array(type):
            element, (low, high) = plain(type.target()), bounds(type)
            first = value[low]
            found.append(int(value[low + 1].address) - int(first.address) if high > low else element.sizeof)
            value, type = first, element
    except (gdb.error, TypeError):
        return []  # it has no memory, or no bounds
    return found


def dimensions(type):
    """Of an array type; 0 of any other."""
    count = 0
    while is_array(type):
        count, type = count + 1, plain(type.target())
    return count


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


def find_type(name):
    """The type of this name, as the selected frame has it; None if there is none."""
    try:
        block = [gdb.selected_frame().block()]
    except (gdb.error, RuntimeError):
        block = []
    def look():
        for tag in "", "struct ", "union ", "enum ":
            try:
                return gdb.lookup_type(tag + name, *block)
            except gdb.error:
                pass
        return None
    found = look()
    if found is None:
        with own_language():
            found = look()
    return found


def integer_type(size, signed):
    """An integer type of so many bytes."""
    return gdb.selected_inferior().architecture().integer_type(8 * size, signed)


def lookup_type(name):
    try:
        return gdb.lookup_type(name)
    except gdb.error as e:
        raise UlpfError(f"no type {name}", error_text(e), "info types lists what there is") from None


# ---- the program ----

def pc_here():
    """An address in the block of the selected frame, or None."""
    try:
        frame = gdb.selected_frame()
        # (Of a caller it is behind the call.)
        return frame.pc() - (frame.newer() is not None)
    except gdb.error:
        return None


def pid():
    """Process ID of the inferior, or 0 if it has no process."""
    return gdb.selected_inferior().pid


def pids():
    """Of all processes that GDB has."""
    return {inferior.pid for inferior in gdb.inferiors() if inferior.pid}


def need_program():
    if not pid():
        raise UlpfError("there is no program", "nothing is being debugged", NO_PROGRAM)


def readable(address):
    return read_memory(address, _PROBE) is not None


def read_memory(address, length):
    """The bytes, or None. GDB takes room for all of them at once, so they are to be few."""
    try:
        return bytes(gdb.selected_inferior().read_memory(address, length))
    except (gdb.error, OverflowError):
        return None


def _about_address(command, address):
    """Output of a command for an address. Languages write numbers in many ways, and some support only small ones; all
    support this variable."""
    gdb.set_convenience_variable("_ulpf_address", gdb.Value(address))
    return execute(f"{command} $_ulpf_address")


def symbol_at(address):
    """`add+12`, or None."""
    text = _about_address("info symbol", address)
    # (C++ names have blanks in them: `store(long*, unsigned long)`.)
    match = re.match(r"(.+?)(?: \+ (\d+))? in section", text)
    return match and match.group(1) + (f"+{int(match.group(2)):#x}" if match.group(2) else "")


def is_static(address):
    """Is this in a file's data, so that it is there again when the program is started anew?"""
    return "in section" in _about_address("info symbol", address)


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
        lines = re.findall(r"^(?:=>)?\s*(0x[0-9a-f]+) <", _about_address("disassemble", at), re.M)
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


def in_thread(thread, ask):
    """The answer of a function while this thread is selected."""
    now = gdb.selected_thread()
    if now is None or now.ptid == thread.ptid:
        return ask()
    frame = gdb.selected_frame()
    thread.switch()
    try:
        return ask()
    finally:
        now.switch()
        frame.select()


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
    return at, value.type


def language_now():
    """The user's: what is set, or the selected frame's."""
    language = gdb.parameter("language")
    if language in ("auto", "local"):
        language = re.search(r"currently ([^\s\"]+?)[\".]*$", execute("show language"), re.M)
        language = language.group(1) if language else "c"
    return language


def is_c():
    """Is the user's language one in which C's casts and operators mean what they mean in C?"""
    return language_now() in ("c", "c++", "asm", "minimal", "objective-c")


def compile_condition(expression, as_c=True):
    """GDB's listing of an expression's bytecode; C++, or the user's own language.

    GDB meets internal errors of its own where a value has more than 8 bytes (gen_fetch, ax-gdb.c) and where a member is
    one of a virtual base. It would ask whether to end, and end. Here such an error is a gdb.error as any other.
    """
    with _living_through_internal_errors():
        try:
            return execute(("with language c++ -- " if as_c and not is_c() else "") + f"maint agent-eval {expression}")
        except KeyboardInterrupt as e:
            # That is how GDB ends the command after an internal error. (It calls Ctrl-C "Quit".)
            if "aborted" not in str(e):
                raise
    raise gdb.error("GDB has no bytecode for a value of it: one of more than 8 bytes, or of a virtual base")


@contextlib.contextmanager
def _living_through_internal_errors():
    """Makes GDB continue without a question when it meets an internal error."""
    before = {}
    for what, wanted in ("quit", "no"), ("corefile", "no"), ("backtrace", "off"):
        try:
            said = re.search(r'is "?(\w+)"?\.$', execute(f"maint show internal-error {what}").strip())
            execute(f"maint set internal-error {what} {wanted}")
        except gdb.error:
            continue  # GDB 11 prints no backtrace
        if said:
            before[what] = said.group(1)
    try:
        yield
    finally:
        for what, was in before.items():
            execute(f"maint set internal-error {what} {was}")


def make_variable(name):
    execute(f"tvariable ${name}")


# ---- ulpf's server ----

def monitor(command):
    """The answer of the server to `monitor COMMAND`."""
    _tell_which()
    try:
        return replies.unwrapped(execute(f"monitor {command}"))
    except gdb.error as e:
        # (A server that has stayed answers for a program that is gone.)
        need_program()
        text = error_text(e)
        if "not supported by this target" in text or "Protocol error" in text or "Target does not support" in text:
            raise UlpfError("this is no program under ulpf", "its target has no monitor commands of ulpf", NO_ULPF) from None
        raise UlpfError("ulpf does not answer", text, "stop the program first, or see whether it is still there") from None


def _tell_which():
    """With several processes, has GDB tell the server which one is selected: it does so with the next read only."""
    if len(pids()) > 1:
        try:
            gdb.selected_inferior().read_memory(gdb.selected_frame().pc(), 1)
        except gdb.error:
            pass  # What follows says what is wrong.


def packet_room():
    """How long a monitor command may be."""
    return 30_000


# ---- events ----

def on(event, handler):
    """Calls a function at an event of GDB's, if there is such an event. No error leaves it: GDB is in the middle of
    something, and would print Python's words for it."""
    def guarded(said):
        try:
            handler(said)
        except Exception as e:
            say(f"ulpf: {e if isinstance(e, UlpfError) or gdb_error(e) else type(e).__name__ + ': ' + str(e)}")
    registry = getattr(gdb.events, event, None)
    if registry is not None:
        registry.connect(guarded)


def access_watch():
    """Arguments that make a gdb.Breakpoint an internal `awatch`."""
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


def arguments():
    """The arguments of `run` or `set args`, as bytes."""
    inferior = gdb.selected_inferior()
    if hasattr(inferior, "arguments"):  # GDB 14
        text = inferior.arguments or ""
    else:
        # gdb.parameter("args") returns only the value of `set args`.
        shown = gdb.execute("show args", False, True)
        text = shown[shown.index('"') + 1:shown.rindex('"')]
    return text.encode(gdb.host_charset())


def frame_line():
    """Where the program is, as GDB shows it at a stop."""
    return re.sub(r"\A#\d+\s+", "", execute("frame").rstrip("\n"))
