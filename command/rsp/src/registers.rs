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

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

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

use component::*;

impl Layout {
    /// The registers of a machine with these components. `small_floats`: the client knows the types of 16-bit floating
    /// point.
    pub fn new(machine: Components, small_floats: bool) -> Layout {
        let mut registers = Vec::new();
        core_registers(&mut registers);
        sse(&mut registers);
        linux(&mut registers);
        let all = &mut registers;
        if let Some(at) = machine.avx {
            bank(
                all,
                AVX,
                "avx",
                "uint128",
                ("ymm", 0..16, "h"),
                (at, 16, 16),
            );
        }
        if let Some((k, zmm, hi16)) = machine.avx512 {
            let f = "avx512";
            bank(
                all,
                HI16_ZMM,
                f,
                "vec128",
                ("xmm", 16..32, ""),
                (hi16, 64, 16),
            );
            let ymm = hi16 + 16;
            bank(
                all,
                HI16_ZMM,
                f,
                "uint128",
                ("ymm", 16..32, "h"),
                (ymm, 64, 16),
            );
            bank(all, OPMASK, f, "uint64", ("k", 0..8, ""), (k, 8, 8));
            bank(
                all,
                ZMM_HI256,
                f,
                "v2ui128",
                ("zmm", 0..16, "h"),
                (zmm, 32, 32),
            );
            let high = hi16 + 32;
            bank(
                all,
                HI16_ZMM,
                f,
                "v2ui128",
                ("zmm", 16..32, "h"),
                (high, 64, 32),
            );
        }
        if let Some(at) = machine.pkru {
            let place = image(at, 4, PKRU);
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
    pub fn size(&self) -> usize {
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

/// Registers of one state component whose names are numbered. `name`: stem, numbers, tail. `place`: offset of the first
/// in the XSAVE image, distance to the next, size.
fn bank(
    out: &mut Vec<RegisterInfo>,
    bit: u8,
    feature: &'static str,
    kind: &'static str,
    name: (&str, core::ops::Range<usize>, &str),
    (at, step, size): (usize, usize, usize),
) {
    let (stem, numbers, tail) = name;
    for (i, n) in numbers.enumerate() {
        let place = image(at + step * i, size, bit);
        out.push(reg(format!("{stem}{n}{tail}"), place, size, kind, feature));
    }
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
    bank(out, X87, "core", "i387_ext", ("st", 0..8, ""), (32, 16, 10));
    // FXSAVE's legacy area, as gdbserver reads it (pointers in 32-bit form).
    let x87 = |at, width| image(at, width, X87);
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
    bank(out, SSE, "sse", "vec128", ("xmm", 0..16, ""), (160, 16, 16));
    let mxcsr = image(24, 4, SSE);
    out.push(reg("mxcsr".into(), mxcsr, 4, "i386_mxcsr", "sse"));
}

fn linux(out: &mut Vec<RegisterInfo>) {
    out.push(reg("orig_rax".into(), Place::OrigRax, 8, "int", "linux"));
    out.push(reg("fs_base".into(), Place::FsBase, 8, "int", "segments"));
    out.push(reg("gs_base".into(), Place::GsBase, 8, "int", "segments"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_has_the_registers_of_the_packet() {
        for (machine, count) in [
            (Components::default(), 60),
            (
                Components {
                    avx: Some(576),
                    avx512: Some((1088, 1152, 1664)),
                    pkru: Some(2688),
                },
                60 + 16 + 72 + 1,
            ),
        ] {
            let layout = Layout::new(machine, true);
            let sizes = layout.xml.split("bitsize=\"").skip(1);
            let bits: usize = sizes
                .map(|rest| rest.split('"').next().unwrap().parse::<usize>().unwrap())
                .sum();
            assert_eq!(bits, 8 * layout.size());
            assert_eq!(layout.xml.matches("<reg ").count(), count);
            assert_eq!(layout.registers.len(), count);
        }
        let plain = Layout::new(Components::default(), false);
        assert!(!plain.xml.contains("ieee_half") && plain.size() == 560);
    }
}
