//! Malicious debug information. Without limits each case ends the tests by a stack overflow, takes minutes, or takes
//! all memory.

use super::*;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use ulpf_host::rights::thread_time;

/// Address of the crafted code.
const CODE: u64 = 0x7f00_0000_0000;

struct Zeros;

impl Memory for Zeros {
    fn read(&self, _: u64, buf: &mut [u8]) -> bool {
        buf.fill(0x41);
        true
    }
    fn thread_pointer(&self) -> Option<u64> {
        None
    }
}

/// Abbreviations for all cases; each is (tag, children, attributes with forms).
const ABBREVIATIONS: &str = "
    .uleb128 1; .uleb128 0x11; .byte 1; .uleb128 0x11, 0x01, 0x12, 0x07, 0, 0   # unit: low_pc, high_pc
    .uleb128 2; .uleb128 0x39; .byte 1; .uleb128 0x03, 0x08, 0, 0               # namespace: name
    .uleb128 3; .uleb128 0x34; .byte 0; .uleb128 0x03, 0x08, 0x49, 0x13, 0x02, 0x18, 0, 0   # variable: name, type, location
    .uleb128 4; .uleb128 0x26; .byte 0; .uleb128 0x49, 0x13, 0, 0               # const: type
    .uleb128 5; .uleb128 0x1d; .byte 1; .uleb128 0x11, 0x01, 0x12, 0x07, 0, 0   # inlined: low_pc, high_pc
    .uleb128 6; .uleb128 0x2e; .byte 1; .uleb128 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0, 0   # function: name, low_pc, high_pc
    .uleb128 7; .uleb128 0x0f; .byte 0; .uleb128 0x49, 0x13, 0, 0               # pointer: type
    .uleb128 8; .uleb128 0x13; .byte 1; .uleb128 0x0b, 0x0b, 0, 0               # structure: byte_size
    .uleb128 9; .uleb128 0x0d; .byte 0; .uleb128 0x49, 0x13, 0x38, 0x0b, 0, 0   # member: type, offset
    .uleb128 10; .uleb128 0x33; .byte 1; .uleb128 0, 0                          # variant part
    .uleb128 11; .uleb128 0x19; .byte 1; .uleb128 0, 0                          # variant
    .uleb128 12; .uleb128 0x01; .byte 1; .uleb128 0x49, 0x13, 0, 0              # array: type
    .uleb128 13; .uleb128 0x21; .byte 0; .uleb128 0x37, 0x0b, 0, 0              # subrange: count
    .uleb128 14; .uleb128 0x24; .byte 0; .uleb128 0x0b, 0x0b, 0, 0              # base type: byte_size
";

/// A program with these entries, given as assembly. References are relative to the unit's start.
fn crafted(entries: &str) -> Program {
    crafted_with(ABBREVIATIONS, entries)
}

fn crafted_with(abbreviations: &str, entries: &str) -> Program {
    let folder = super::tests::folder().join(format!("{:x}", entries.len()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = format!(
        ".text\n.globl f\n.type f, @function\nf: .skip 4096, 0x90\n.size f, . - f\n.data\n.globl d\nd: .quad 0, 0\n\
         .section .debug_abbrev\n{abbreviations}\n.byte 0\n.section .debug_info\nunit: .long end - begin\nbegin: \
         .short 4\n.long 0\n.byte 8\n{entries}\nend:\n"
    );
    let (from, to) = (folder.join("crafted.s"), folder.join("crafted.so"));
    std::fs::write(&from, source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-nostdlib", "-shared", "-o"]).args([&to, &from]);
    let done = gcc.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}", &said[..said.len().min(2000)]);
    let object = object::ObjectFile::open(&to).unwrap();
    let code = object.segments.iter().find(|s| s.executable).unwrap();
    let maps = format!(
        "{:x}-{:x} r-xp {:08x} 08:01 1    /crafted\n",
        CODE + (code.vaddr & !0xfff),
        CODE + (1 << 30),
        code.offset & !0xfff
    );
    let object = std::cell::Cell::new(Some(object));
    let mut program = Program::default();
    program.refresh(maps.as_bytes(), Path::new("/crafted"), |_| {
        object.take().ok_or(String::new())
    });
    let _ = std::fs::remove_dir_all(folder);
    assert_eq!(program.modules.len(), 1);
    program
}

const UNIT: &str = ".uleb128 1; .quad f, 4096\n";
/// An expression with an address.
const AT_D: &str = ".uleb128 9; .byte 3; .quad d\n";

fn resolve(program: &Program, spec: &str) -> Result<Watched, Problem> {
    let before = thread_time();
    let found = program.resolve(&Spec::parse(spec).unwrap(), &Zeros);
    let took = thread_time() - before;
    assert!(took < Duration::from_secs(30), "{spec}: {took:?}");
    found.map(|mut places| places.remove(0))
}

#[test]
fn a_type_that_is_made_of_itself() {
    let program = crafted(&format!(
        "{UNIT}
        const: .uleb128 4; .long const - unit
        pointer: .uleb128 7; .long const - unit
        .uleb128 3; .asciz \"p\"; .long pointer - unit; {AT_D}
        .uleb128 3; .asciz \"c\"; .long const - unit; {AT_D}
        .byte 0"
    ));
    assert_eq!(resolve(&program, "p").unwrap().len, 8);
    assert!(resolve(&program, "c").is_err());
    assert!(resolve(&program, "*p").is_err());
}

#[test]
fn functions_inlined_in_one_another() {
    let mut text = format!("{UNIT}.uleb128 6; .asciz \"f\"; .quad f, 4096\n");
    for _ in 0..50_000 {
        text += ".uleb128 5; .quad f, 4096\n";
    }
    let program = crafted(&(text + ".skip 50002"));
    let at = program.modules[0].object.symbols().find("f")[0].addr + CODE;
    // The symbol remains available without the lines. Test threads have a stack of two megabytes, as the runtime's do.
    let text = program.locate(at + 5).to_string();
    assert!(text.starts_with("f+0x5"), "{text}");
}

#[test]
fn namespaces_in_one_another() {
    let mut text = UNIT.to_string();
    for n in 0..20_000 {
        let _ = write!(
            text,
            ".uleb128 2; .asciz \"n{n}\"\n.uleb128 3; .asciz \"v{n}\"; .long 0; {AT_D}"
        );
    }
    let program = crafted(&(text + ".skip 20001"));
    assert!(resolve(&program, "v3:4").is_ok());
    assert!(resolve(&program, "n1::n2::n3::v3:4").is_ok());
    assert!(resolve(&program, "v19999:4").is_ok());
}

#[test]
fn members_that_are_in_each_other_twice() {
    let mut text = format!("{UNIT}base: .uleb128 14; .byte 8\n");
    let mut inner = "base".to_string();
    for n in 0..60 {
        let _ = write!(
            text,
            "s{n}: .uleb128 8; .byte 8\n.uleb128 9; .long {inner} - unit; .byte 0\n\
             .uleb128 9; .long {inner} - unit; .byte 0\n.byte 0\n"
        );
        inner = format!("s{n}");
    }
    let program = crafted(&format!(
        "{text}.uleb128 3; .asciz \"v\"; .long {inner} - unit; {AT_D}.byte 0"
    ));
    assert_eq!(resolve(&program, "v").unwrap().len, 8);
    assert!(resolve(&program, "v.nosuch").is_err());
}

/// Each structure is shallow when it is reached, because its inner ones are known by then.
#[test]
fn types_that_nest_for_ever() {
    let mut text = format!("{UNIT}base: .uleb128 14; .byte 8\n");
    let mut inner = "base".to_string();
    let mut all = String::new();
    for n in 0..20_000 {
        let _ = write!(
            text,
            "t{n}: .uleb128 12; .long {inner} - unit\n.uleb128 13; .byte 1\n.byte 0\n"
        );
        inner = format!("t{n}");
        let _ = writeln!(all, ".uleb128 9; .long {inner} - unit; .byte 0");
    }
    let program = crafted(&format!(
        "{text}whole: .uleb128 8; .byte 8\n{all}.byte 0
        .uleb128 3; .asciz \"v\"; .long whole - unit; {AT_D}.byte 0"
    ));
    let watched = resolve(&program, "v").unwrap();
    let (_, part) = watched.part(0, 8);
    part.render(&[1; 8], 8, &mut String::new());
}

#[test]
fn variants_in_one_another() {
    let parts = ".uleb128 10; .uleb128 11\n".repeat(50_000);
    let program = crafted(&format!(
        "{UNIT}whole: .uleb128 8; .byte 8\n{parts}.skip 100001
        .uleb128 3; .asciz \"v\"; .long whole - unit; {AT_D}.byte 0"
    ));
    assert_eq!(resolve(&program, "v").unwrap().len, 8);
}

#[test]
fn arrays_of_endless_dimensions() {
    let ranges = ".uleb128 13; .byte 1\n".repeat(100_000);
    let program = crafted(&format!(
        "{UNIT}base: .uleb128 14; .byte 8\narray: .uleb128 12; .long base - unit\n{ranges}.byte 0
        .uleb128 3; .asciz \"v\"; .long array - unit; {AT_D}.byte 0"
    ));
    assert!(resolve(&program, "v").is_err());
}

/// Attributes that take no bytes: 40,000 of them for each byte of the entries.
#[test]
fn endless_attributes() {
    let flags = ".uleb128 0x3c, 0x19\n".repeat(40_000);
    let program = crafted_with(
        &format!("{ABBREVIATIONS}.uleb128 15; .uleb128 0x0d; .byte 0\n{flags}.uleb128 0, 0\n"),
        &format!("{UNIT}.fill 1000000, 1, 15\n.byte 0"),
    );
    let problem = resolve(&program, "nosuch").unwrap_err();
    assert!(
        problem.to_string().contains("too many attributes"),
        "{problem}"
    );
}

#[test]
fn sections_that_claim_to_be_large() {
    use ::object::read::{CompressedData, CompressionFormat};
    let unpack = |format, data: &'static [u8], size| {
        let image = image::Image::of_bytes(Vec::new());
        let section = CompressedData {
            format,
            data,
            uncompressed_size: size,
        };
        image.unpacked(section).map(<[u8]>::len)
    };
    assert_eq!(unpack(CompressionFormat::None, b"abc", 3), Some(3));
    assert_eq!(unpack(CompressionFormat::Zlib, &[0; 1000], 8 << 30), None);
    // A frame without a checksum, with blocks that encode 128 KiB of the same byte in four bytes each.
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    let block = (128u32 << 10) << 3 | 1 << 1;
    let repeat = [block as u8, (block >> 8) as u8, (block >> 16) as u8, b'a'];
    let mut bomb: Vec<u8> = head.to_vec();
    bomb.extend(repeat.repeat(100_000));
    let last = (block | 1).to_le_bytes();
    bomb.extend([last[0], last[1], last[2], b'a']);
    let bomb: &'static [u8] = Box::leak(bomb.into_boxed_slice());
    assert_eq!(unpack(CompressionFormat::Zstandard, bomb, 1000), None);
    let mut good: Vec<u8> = head.to_vec();
    good.extend([last[0], last[1], last[2], b'a']);
    let good: &'static [u8] = Box::leak(good.into_boxed_slice());
    assert_eq!(
        unpack(CompressionFormat::Zstandard, good, 128 << 10),
        Some(128 << 10)
    );
}
