"""Registers, libraries, and what else gdb shows of a program."""

import os

from lib.cases import Case
from lib.env import STAND_IN, cpu_flags, example, ulpf_only


class Registers(Case):
    def at_known_values(self):
        return self.session("registers", stop="stop_here")

    def test_general(self):
        gdb = self.at_known_values()
        for name, value in ("r8", 0x1111111111111111), ("r9", 0x2222222222222222), ("r10", 0x3333333333333333), \
                ("r11", 0x4444444444444444), ("r12", 0x5555555555555555), ("eax", 0x66666666):
            self.assertEqual(gdb.value(f"${name}"), value)
        self.assertSays(gdb("print $eflags"), r"CF")
        self.assertSays(gdb("info symbol $pc"), r"stop_here|main \+")
        gdb("set $r12 = 0x77")
        self.assertExits(gdb, 0, "registers: 77 5 2.50")

    def test_segments(self):
        gdb = self.at_known_values()
        self.assertEqual(gdb.value("$cs"), 0x33)
        self.assertNotEqual(gdb.value("$fs_base"), 0)
        # The first word of a thread's block points to itself.
        self.assertEqual(gdb.value("*(long*)$fs_base"), gdb.value("$fs_base"))
        self.assertEqual(gdb.value("$gs_base"), 0)

    def test_x87(self):
        gdb = self.at_known_values()
        self.assertSays(gdb("info float"), r"R7: Valid.*1\b|R6: Valid")
        self.assertSays(gdb("print $st0"), r"= 3.14159265")
        self.assertSays(gdb("print $st1"), r"= 1\b")

    def test_sse_and_avx(self):
        gdb = self.at_known_values()
        self.assertSays(gdb("print/x $xmm3.v16_int8"), r"\{0x1, 0x2, 0x3, .*0x10\}")
        if "avx" in cpu_flags():
            self.assertSays(gdb("print/x $ymm3.v32_int8"), r"\{0x1, 0x2, 0x3, .*0x20\}")
            gdb("set $ymm3.v8_int32[7] = 42")
            self.assertSays(gdb("print $ymm3.v8_int32[7]"), r"= 42")
            gdb("stepi")
            self.assertSays(gdb("print $ymm3.v8_int32[7]"), r"= 42")

    def test_avx512(self):
        if "avx512f" not in cpu_flags():
            self.skipTest("this processor has no AVX-512")
        gdb = self.at_known_values()
        gdb("set $zmm17.v8_int64[5] = 1234567")
        gdb("set $k3 = 77")
        gdb("stepi")
        self.assertEqual(gdb.value("$zmm17.v8_int64[5]"), 1234567)
        if not STAND_IN:  # gdbserver 13 forgets mask registers
            self.assertEqual(gdb.value("$k3"), 77)

    def test_all_at_once(self):
        gdb = self.at_known_values()
        out = gdb("info all-registers")
        for name in "rax", "rip", "eflags", "st0", "mxcsr":
            self.assertRegex(out, rf"(?m)^{name} ")

    @ulpf_only
    def test_registers_at_a_hit(self):
        """The stop is after the instruction: the registers are the program's, and the PC is right."""
        gdb = self.session("five")
        gdb("watch a")
        gdb("continue")
        out = gdb("x/2i $pc - 10")
        pc = gdb.value("$pc")
        # movl $0xb,a(%rip) has ten bytes.
        self.assertSays(out, r"movl +\$0xb,.*<a>", r"=> 0x0*" + f"{pc:x} ")


class Information(Case):
    def test_auxv(self):
        gdb = self.session("five")
        self.assertSays(gdb("info auxv"), r"AT_PHDR", r"AT_ENTRY", r"AT_EXECFN.*five")

    def test_proc(self):
        gdb = self.session("five")
        self.assertSays(gdb("info proc"), rf"process {gdb.server.program_pid}", r"five")
        self.assertSays(gdb("info proc mappings"), r"Start Addr", r"five", r"\[stack\]")

    def test_libraries(self):
        gdb = self.session("five")
        self.assertSays(gdb("info sharedlibrary"), r"0x[0-9a-f]+ +0x[0-9a-f]+ +Yes.*libc.so.6")

    def test_sysroot_from_the_target(self):
        """gdb's default: it reads program and libraries through the server (vFile)."""
        server = self.serve("five")
        gdb = self.gdb(sysroot=None)
        self.assertSays(gdb(f"target remote {server.target}", 60), r"Reading .* from remote target")
        gdb("break ready")
        self.assertSays(gdb("continue", 60), r"Breakpoint 1, .*ready")
        self.assertSays(gdb("info sharedlibrary", 60), r"Yes.*libc.so.6")
        self.assertSays(gdb("backtrace"), r"main \(\)")
        self.assertSays(gdb("continue"), r"exited normally")

    def test_remote_files(self):
        gdb = self.session("five", stop=None)
        path = gdb.server.dir.name
        self.assertSays(gdb(f"remote put {example('five')} {path}/copy"), r"Successfully sent")
        self.assertSays(gdb(f"remote get {path}/copy {path}/back"), r"Successfully fetched")
        with open(example("five"), "rb") as one, open(f"{path}/back", "rb") as other:
            self.assertEqual(one.read(), other.read())
        self.assertSays(gdb(f"remote delete {path}/copy"), r"Successfully deleted")

    def test_library_loaded_while_running(self):
        gdb = self.session("plugins", stop=None)
        gdb("break plugin_step")
        gdb("tbreak loaded")
        self.assertSays(gdb("continue"), r"loaded \(\)")
        self.assertSays(gdb("info sharedlibrary"), r"libplugin.so")
        gdb("watch plugin_state")
        self.assertSays(gdb("continue"), r"plugin_step \(by=10\)")
        self.assertSays(gdb("continue"), r"plugin_state", r"Old value = 1", r"New value = 11")
        gdb("delete")
        self.assertExits(gdb, 0, "plugins: 84")

    def test_catch_load(self):
        gdb = self.session("plugins", stop="main")
        gdb("catch load plugin")
        self.assertSays(gdb("continue"), r"Catchpoint 2", r"libplugin.so")
        gdb("delete")
        self.assertExits(gdb, 0, "plugins: 84")

    def test_generate_core(self):
        gdb = self.session("five")
        path = gdb.server.dir.name + "/core"
        self.assertSays(gdb(f"generate-core-file {path}", 60), r"Saved corefile")
        # The program is small, and our tables are not in it.
        self.assertLess(os.path.getsize(path), 64 << 20)
        other = self.gdb()
        self.assertSays(other(f"core-file {path}"), r"Core was generated by `\S+/five'", r"#0 ")
        other(f"file {example('five')}")
        self.assertEqual(other.value("a"), 10)

    def test_find_and_dump(self):
        gdb = self.session("structs")
        gdb("print box")
        self.assertSays(gdb('find &box, +sizeof(box), \'f\', \'i\', \'r\', \'s\', \'t\''), r"1 pattern found")

    def test_compare_sections(self):
        gdb = self.session("five_nopie")
        self.assertSays(gdb("compare-sections .text"), r"\.text.*: matched")

    def test_memory_that_is_not_there(self):
        gdb = self.session("five")
        self.assertSays(gdb("print *(int*)8"), r"Cannot access memory at address 0x8")
        self.assertSays(gdb("set var *(int*)8 = 1"), r"Cannot access memory")
        self.assertExits(gdb)


class Builds(Case):
    """The same conversation with every kind of executable."""

    def five(self, name):
        gdb = self.session(name)
        gdb("watch a")
        gdb("watch c")
        self.assertChange(gdb("continue"), 2, "a", 10, 11)
        self.assertChange(gdb("continue"), 3, "c", 30, 31)
        gdb("delete 2")
        self.assertExits(gdb, 0, "five: done")

    def test_static(self):
        self.five("five_static")

    def test_static_pie(self):
        self.five("five_static_pie")

    def test_fixed_address(self):
        self.five("five_nopie")

    def test_rust(self):
        gdb = self.session("rusty", stop="ready")
        gdb("set language c")
        self.assertSays(gdb("watch *(unsigned long*)&WATCHED"), r"Hardware watchpoint 2")
        self.assertSays(gdb("continue", 60), r"[Ww]atchpoint 2", r"New value = 45\n")
        gdb("delete")
        self.assertExits(gdb, 0, "rusty: sizes 2488")

    def test_stripped(self):
        gdb = self.session("five_stripped", stop=None)
        self.assertExits(gdb, 0, "five: done")
