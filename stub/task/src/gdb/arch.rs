//! The registers of amd64-linux as gdbserver numbers and lays them out: 40 in the core, then SSE,
//! `orig_rax`, segment bases, and AVX, AVX-512 and protection keys where the machine has them.
//!
//! ```text
//! number   0 …  16  rax rbx rcx rdx rsi rdi rbp rsp r8 … r15 rip       64 bit
//!         17 …  23  eflags cs ss ds es fs gs                           32 bit
//!         24 …  31  st0 … st7                                          80 bit
//!         32 …  39  fctrl fstat ftag fiseg fioff foseg fooff fop       32 bit
//!         40 …  56  xmm0 … xmm15 mxcsr                                128, 32 bit
//!         57 …  59  orig_rax fs_base gs_base                           64 bit
//!   AVX   16 ×      ymm0h …                                           128 bit
//!   AVX-512         xmm16 … 31, ymm16h … 31h (128), k0 … 7 (64), zmm0h … 31h (256)
//!   PKU             pkru                                               32 bit
//! ```

use super::packet::ClientFeatures;
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::x86_64::_xgetbv;
use core::fmt::Write;
use core::num::NonZeroUsize;
use gdbstub::arch::{Arch, RegId, Registers};
use ulpf_engine::access::state::cpuid;

pub const RBP: usize = 6;
pub const RSP: usize = 7;
pub const RIP: usize = 16;

/// One register: where it lives in a stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Index into the protocol's order rax, rbx, … rip.
    Gpr(usize),
    Eflags,
    /// Selectors that 64-bit user code cannot usefully change.
    Selector(u32),
    OrigRax,
    FsBase,
    GsBase,
    /// Full x87 tag word; the image holds the abridged one.
    FTag,
    /// Bytes of the XSAVE image, in the state component `bit` of XSTATE_BV.
    Image {
        at: usize,
        width: usize,
        bit: u8,
    },
}

pub struct RegisterInfo {
    pub name: String,
    pub place: Place,
    /// Size in bytes as the protocol sends it.
    pub size: usize,
    kind: &'static str,
    group: Option<&'static str>,
    feature: &'static str,
}

/// The registers of this machine, in protocol order.
pub struct Layout {
    pub registers: Vec<RegisterInfo>,
    /// Offset of each register in the `g` packet, and its whole length at the end.
    pub offsets: Vec<usize>,
    pub xml: String,
}

/// State components (Intel SDM, vol. 1, 13.1): bit in XCR0 and XSTATE_BV.
pub mod component {
    pub const X87: u8 = 0;
    pub const SSE: u8 = 1;
    pub const AVX: u8 = 2;
    pub const OPMASK: u8 = 5;
    pub const ZMM_HI256: u8 = 6;
    pub const HI16_ZMM: u8 = 7;
    pub const PKRU: u8 = 9;
}

/// Where the standard format keeps the optional components; `None`: the machine lacks it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Components {
    pub avx: Option<usize>,
    /// Opmask, upper halves of zmm0…15, zmm16…31.
    pub avx512: Option<(usize, usize, usize)>,
    pub pkru: Option<usize>,
}

impl Components {
    pub fn of_this_machine() -> Components {
        const OSXSAVE: u32 = 1 << 27;
        if cpuid(1, 0).ecx & OSXSAVE == 0 {
            return Components::default();
        }
        // SAFETY: OSXSAVE says that the system has enabled XGETBV.
        #[allow(unsafe_code)]
        let xcr0 = unsafe { xcr0() };
        let at = |bit: u8| {
            let leaf = cpuid(0xd, u32::from(bit));
            (xcr0 >> bit & 1 == 1 && leaf.eax != 0).then_some(leaf.ebx as usize)
        };
        use component::*;
        Components {
            avx: at(AVX),
            avx512: at(OPMASK)
                .zip(at(ZMM_HI256))
                .zip(at(HI16_ZMM))
                .map(|((k, z), h)| (k, z, h)),
            pkru: at(PKRU),
        }
    }
}

/// # Safety
/// The machine must have OSXSAVE.
#[target_feature(enable = "xsave")]
#[allow(unsafe_code)]
unsafe fn xcr0() -> u64 {
    // SAFETY: register 0 always exists where XGETBV does.
    unsafe { _xgetbv(0) }
}

impl Layout {
    /// The registers that a client accepts in a description, or else knows: those of every x86-64.
    pub fn for_client(client: ClientFeatures) -> Layout {
        let machine = match client.descriptions {
            true => Components::of_this_machine(),
            false => Components::default(),
        };
        Layout::new(machine, client.small_floats)
    }

    fn new(machine: Components, small_floats: bool) -> Layout {
        let mut registers = Vec::new();
        core_registers(&mut registers);
        sse(&mut registers);
        linux(&mut registers);
        if let Some(at) = machine.avx {
            for i in 0..16 {
                let place = image(at + 16 * i, 16, component::AVX);
                registers.push(reg(numbered("ymm", i, "h"), place, 16, "uint128", "avx"));
            }
        }
        if let Some(at) = machine.avx512 {
            avx512(&mut registers, at);
        }
        if let Some(at) = machine.pkru {
            let place = image(at, 4, component::PKRU);
            registers.push(reg("pkru".into(), place, 4, "uint32", "pkeys"));
        }
        let mut offsets = Vec::with_capacity(registers.len() + 1);
        let mut end = 0;
        for r in &registers {
            offsets.push(end);
            end += r.size;
        }
        offsets.push(end);
        let views = match small_floats {
            true => &VEC128[..],
            false => &VEC128[2..],
        };
        let xml = target_xml(&registers, views);
        Layout {
            registers,
            offsets,
            xml,
        }
    }

    /// Bytes in a `g` packet.
    pub fn len(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }
}

fn image(at: usize, width: usize, bit: u8) -> Place {
    Place::Image { at, width, bit }
}

fn reg(
    name: String,
    place: Place,
    size: usize,
    kind: &'static str,
    feature: &'static str,
) -> RegisterInfo {
    let group = match name.as_str() {
        "fctrl" | "fstat" | "ftag" | "fiseg" | "fioff" | "foseg" | "fooff" | "fop" => Some("float"),
        "mxcsr" => Some("vector"),
        _ => None,
    };
    RegisterInfo {
        name,
        place,
        size,
        kind,
        group,
        feature,
    }
}

fn numbered(stem: &str, i: usize, tail: &str) -> String {
    let mut name = String::new();
    let _ = write!(name, "{stem}{i}{tail}");
    name
}

fn core_registers(out: &mut Vec<RegisterInfo>) {
    const GPR: [&str; 17] = [
        "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15", "rip",
    ];
    for (i, name) in GPR.iter().enumerate() {
        let kind = match i {
            RBP | RSP => "data_ptr",
            RIP => "code_ptr",
            _ => "int64",
        };
        out.push(reg((*name).into(), Place::Gpr(i), 8, kind, "core"));
    }
    out.push(reg(
        "eflags".into(),
        Place::Eflags,
        4,
        "i386_eflags",
        "core",
    ));
    // Linux's user selectors (arch/x86/include/asm/segment.h: __USER_CS, __USER_DS).
    for (name, value) in [
        ("cs", 0x33),
        ("ss", 0x2b),
        ("ds", 0),
        ("es", 0),
        ("fs", 0),
        ("gs", 0),
    ] {
        out.push(reg(name.into(), Place::Selector(value), 4, "int32", "core"));
    }
    for i in 0..8 {
        out.push(reg(
            numbered("st", i, ""),
            image(32 + 16 * i, 10, component::X87),
            10,
            "i387_ext",
            "core",
        ));
    }
    // FXSAVE's legacy area, as gdbserver reads it (pointers in 32-bit form).
    let x87 = |at, width| image(at, width, component::X87);
    for (name, place) in [
        ("fctrl", x87(0, 2)),
        ("fstat", x87(2, 2)),
        ("ftag", Place::FTag),
        ("fiseg", x87(12, 2)),
        ("fioff", x87(8, 4)),
        ("foseg", x87(20, 2)),
        ("fooff", x87(16, 4)),
        ("fop", x87(6, 2)),
    ] {
        out.push(reg(name.into(), place, 4, "int", "core"));
    }
}

fn sse(out: &mut Vec<RegisterInfo>) {
    for i in 0..16 {
        out.push(reg(
            numbered("xmm", i, ""),
            image(160 + 16 * i, 16, component::SSE),
            16,
            "vec128",
            "sse",
        ));
    }
    out.push(reg(
        "mxcsr".into(),
        image(24, 4, component::SSE),
        4,
        "i386_mxcsr",
        "sse",
    ));
}

fn linux(out: &mut Vec<RegisterInfo>) {
    out.push(reg("orig_rax".into(), Place::OrigRax, 8, "int", "linux"));
    out.push(reg("fs_base".into(), Place::FsBase, 8, "int", "segments"));
    out.push(reg("gs_base".into(), Place::GsBase, 8, "int", "segments"));
}

fn avx512(out: &mut Vec<RegisterInfo>, (opmask, zmm_hi, hi16): (usize, usize, usize)) {
    use component::*;
    let mut push = |name, place, size, kind| out.push(reg(name, place, size, kind, "avx512"));
    for i in 0..16 {
        push(
            numbered("xmm", 16 + i, ""),
            image(hi16 + 64 * i, 16, HI16_ZMM),
            16,
            "vec128",
        );
    }
    for i in 0..16 {
        push(
            numbered("ymm", 16 + i, "h"),
            image(hi16 + 64 * i + 16, 16, HI16_ZMM),
            16,
            "uint128",
        );
    }
    for i in 0..8 {
        push(
            numbered("k", i, ""),
            image(opmask + 8 * i, 8, OPMASK),
            8,
            "uint64",
        );
    }
    for i in 0..16 {
        push(
            numbered("zmm", i, "h"),
            image(zmm_hi + 32 * i, 32, ZMM_HI256),
            32,
            "v2ui128",
        );
    }
    for i in 0..16 {
        push(
            numbered("zmm", 16 + i, "h"),
            image(hi16 + 64 * i + 32, 32, HI16_ZMM),
            32,
            "v2ui128",
        );
    }
}

/// Named bits of a flags type: name and bit number.
const MXCSR: [(&str, u32); 14] = [
    ("IE", 0),
    ("DE", 1),
    ("ZE", 2),
    ("OE", 3),
    ("UE", 4),
    ("PE", 5),
    ("DAZ", 6),
    ("IM", 7),
    ("DM", 8),
    ("ZM", 9),
    ("OM", 10),
    ("UM", 11),
    ("PM", 12),
    ("FZ", 15),
];
/// A view of a 128-bit register: type, element, count, name of the view.
type View = (&'static str, &'static str, u32, &'static str);
/// The first two are for clients that know their elements.
const VEC128: [View; 8] = [
    ("v8bf16", "bfloat16", 8, "v8_bfloat16"),
    ("v8h", "ieee_half", 8, "v8_half"),
    ("v4f", "ieee_single", 4, "v4_float"),
    ("v2d", "ieee_double", 2, "v2_double"),
    ("v16i8", "int8", 16, "v16_int8"),
    ("v8i16", "int16", 8, "v8_int16"),
    ("v4i32", "int32", 4, "v4_int32"),
    ("v2i64", "int64", 2, "v2_int64"),
];

fn target_xml(registers: &[RegisterInfo], views: &[View]) -> String {
    let mut x = String::with_capacity(16 << 10);
    x.push_str(concat!(
        "<?xml version=\"1.0\"?>\n<!DOCTYPE target SYSTEM \"gdb-target.dtd\">\n<target>\n",
        "  <architecture>i386:x86-64</architecture>\n  <osabi>GNU/Linux</osabi>\n"
    ));
    let mut feature = "";
    for (number, r) in registers.iter().enumerate() {
        if r.feature != feature {
            if !feature.is_empty() {
                x.push_str("  </feature>\n");
            }
            feature = r.feature;
            let _ = writeln!(x, "  <feature name=\"org.gnu.gdb.i386.{feature}\">");
            types(&mut x, feature, views);
        }
        let bits = r.size * 8;
        let _ = write!(
            x,
            "    <reg name=\"{}\" bitsize=\"{bits}\" type=\"{}\" regnum=\"{number}\"",
            r.name, r.kind
        );
        if let Some(group) = r.group {
            let _ = write!(x, " group=\"{group}\"");
        }
        x.push_str("/>\n");
    }
    x.push_str("  </feature>\n</target>\n");
    x
}

/// The types that the registers of a feature use.
fn types(x: &mut String, feature: &str, views: &[View]) {
    match feature {
        "core" => flags(x, "i386_eflags", &ulpf_lib::eflags::NAMES),
        "sse" => {
            vec128(x, views);
            flags(x, "i386_mxcsr", &MXCSR);
        }
        "avx512" => {
            vec128(x, views);
            x.push_str("    <vector id=\"v2ui128\" type=\"uint128\" count=\"2\"/>\n");
        }
        _ => {}
    }
}

fn flags(x: &mut String, id: &str, bits: &[(&str, u32)]) {
    let _ = writeln!(x, "    <flags id=\"{id}\" size=\"4\">");
    for (name, bit) in bits {
        let _ = writeln!(
            x,
            "      <field name=\"{name}\" start=\"{bit}\" end=\"{bit}\" type=\"bool\"/>"
        );
    }
    x.push_str("    </flags>\n");
}

fn vec128(x: &mut String, views: &[View]) {
    for (id, kind, count, _) in views {
        let _ = writeln!(
            x,
            "    <vector id=\"{id}\" type=\"{kind}\" count=\"{count}\"/>"
        );
    }
    x.push_str("    <union id=\"vec128\">\n");
    for (id, _, _, view) in views {
        let _ = writeln!(x, "      <field name=\"{view}\" type=\"{id}\"/>");
    }
    x.push_str("      <field name=\"uint128\" type=\"uint128\"/>\n    </union>\n");
}

/// gdbstub's view of all this: which registers exist is the target's affair ([`Layout`]), here they
/// are numbers and bytes.
pub enum Amd64 {}

impl Arch for Amd64 {
    type Usize = u64;
    type Registers = RegisterBytes;
    type BreakpointKind = usize;
    type RegId = RegisterNumber;
}

/// The `g` packet; `None` for a byte that is not available.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterBytes(pub Vec<Option<u8>>);

impl Registers for RegisterBytes {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        0 // gdbstub keeps it for implicit breakpoints only, which we do not use
    }
    fn gdb_serialize(&self, write_byte: impl FnMut(Option<u8>)) {
        self.0.iter().copied().for_each(write_byte);
    }
    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.0 = bytes.iter().copied().map(Some).collect();
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterNumber(pub usize);

impl RegId for RegisterNumber {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        Some((RegisterNumber(id), None))
    }
    fn to_raw_id(&self) -> Option<usize> {
        Some(self.0)
    }
}
