//! The judge is iced-x86: what its tables say about the memory that an instruction uses.
//!
//! Every mask is set in these tests, because iced does not know register values; which elements a
//! mask leaves alone is compared with the CPU itself in `exec::tests`.

use super::*;
use crate::cpu::{Cpu, Gprs};
use crate::tests::corpus::{self, Rng, Shape};
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register, UsedMemory};
use std::collections::BTreeMap;
use ulpf_lib::AccessKind;

const SHAPE: Shape = Shape {
    target: 0x4000_1000,
    pc: 0x4000_0000,
};
const FS: u64 = 0x2_0000;
const GS: u64 = 0x1_0000;

type Found = (u64, u64, AccessKind);

/// Registers and an XSAVE image for one instruction.
struct Bench {
    gprs: Gprs,
    image: Vec<u64>,
}

impl Bench {
    fn new(rng: &mut Rng) -> Bench {
        let mut gprs = Gprs::default();
        for r in 0..16 {
            if let Some(p) = gprs.get_mut(r) {
                *p = if rng.chance(3) {
                    rng.next()
                } else {
                    rng.below(1 << 40)
                };
            }
        }
        gprs.rip = SHAPE.pc;
        gprs.rflags = 0x202;
        let mut image: Vec<u64> = (0..512).map(|_| rng.next()).collect();
        image[0] = 0;
        image[64] = state::xcr0() & 0xe7;
        Bench { gprs, image }
    }

    fn cpu(&mut self) -> Cpu<'_> {
        Cpu {
            gprs: &mut self.gprs,
            fs_base: FS,
            gs_base: GS,
            xsave: self.image.as_mut_ptr().cast(),
            xsave_len: self.image.len() * 8,
        }
    }

    /// Sets every mask that the instruction has.
    fn enable(&mut self, iced: &Instruction) {
        for k in 0..8 {
            self.cpu().set_opmask(k, u64::MAX);
        }
        for i in 0..iced.op_count() {
            let r = iced.op_register(i);
            if r.is_vector_register() && r != iced.memory_index() {
                for at in 0..8 {
                    self.cpu().set_vector(r.number() as u8, at * 8, 8, u64::MAX);
                }
            }
            if r.is_mm() {
                self.image[4 + r.number() * 2] = u64::MAX;
            }
        }
    }
}

/// Accesses by iced-x86. Elements of gathers and scatters are one access each.
fn judge(iced: &Instruction, bench: &mut Bench) -> Vec<Found> {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(iced);
    let mut list = Vec::new();
    for m in info.used_memory() {
        let kind = match m.access() {
            OpAccess::Read | OpAccess::CondRead => AccessKind::Read,
            OpAccess::Write | OpAccess::CondWrite => AccessKind::Write,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => AccessKind::ReadWrite,
            _ => continue,
        };
        let mut size = m.memory_size().size() as u64;
        if size == 0 && iced.is_string_instruction() {
            // iced says "unknown" for repeated ones; one iteration is meant here.
            size = iced.memory_size().size() as u64;
        }
        if iced.code() == iced_x86::Code::Movsxd_r16_rm16 && state::is_amd() {
            size = 4;
        }
        let elements = if m.vsib_size() != 0 {
            // As many as there are indices and as there is room for in the register.
            let data = (0..iced.op_count())
                .map(|i| iced.op_register(i))
                .find(|r| r.is_vector_register())
                .map_or(0, |r| r.size());
            (m.index().size() / m.vsib_size() as usize).min(data / size.max(1) as usize)
        } else {
            1
        };
        for e in 0..elements {
            list.push((address(m, e, bench), size, kind));
        }
    }
    list
}

fn address(m: &UsedMemory, element: usize, bench: &mut Bench) -> u64 {
    let cpu = bench.cpu();
    m.virtual_address(element, |reg, element, size| {
        Some(match reg {
            Register::GS => GS,
            Register::FS => FS,
            r if r.is_segment_register() => 0,
            r if r.is_vector_register() => {
                let raw = cpu.vector(r.number() as u8, (element * size) as u64, size as u64);
                if size == 4 {
                    i64::from(raw as i32) as u64
                } else {
                    raw
                }
            }
            r => {
                let full = cpu.gprs.get(r.full_register().number() as u8);
                match r.size() {
                    8 => full,
                    4 => full & 0xffff_ffff,
                    2 => full & 0xffff,
                    _ => full & 0xff,
                }
            }
        })
    })
    .unwrap_or(0)
}

/// Sorted, with neighbours of one kind joined: how an access is cut up does not matter.
fn normal(mut list: Vec<Found>) -> Vec<Found> {
    list.sort_by_key(|a| a.0);
    let mut out: Vec<Found> = Vec::new();
    for a in list {
        match out.last_mut() {
            Some(last) if last.2 == a.2 && last.0.wrapping_add(last.1) == a.0 => last.1 += a.1,
            _ => out.push(a),
        }
    }
    out
}

/// Where iced and we differ by intention.
fn excepted(insn: &Insn, iced: &Instruction) -> Option<&'static str> {
    let name = format!("{:?}", iced.code());
    Some(match insn.class {
        Class::Unsupported => {
            "privileged, a device portal, tiles or shadow stacks: left to the slow path"
        }
        Class::BitString => "iced names the word of bit 0, the CPU goes where the register says",
        Class::Xsave | Class::Xsavec | Class::Xrstor => {
            "iced knows no size; ours follows the requested components"
        }
        Class::Clzero => "iced does not say that clzero writes",
        Class::Flush => "iced calls cache line flushes reads; no data is used",
        Class::None if name.starts_with("Umonitor") => {
            "iced calls arming the monitor a read; no data is used"
        }
        Class::None if iced.is_jcc_short_or_near() => {
            "branches without memory; 66 shortens them on AMD only"
        }
        Class::None if name.starts_with("Bnd") => "nops since the kernel dropped MPX",
        _ => return None,
    })
}

#[derive(Default)]
struct Tally {
    compared: u64,
    excepted: BTreeMap<&'static str, u64>,
    by_iced: BTreeMap<String, u64>,
    wrong: BTreeMap<String, String>,
}

fn compare(decoder: &Decoder, bytes: &[u8], rng: &mut Rng, tally: &mut Tally) {
    let iced = iced_x86::Decoder::with_ip(64, bytes, SHAPE.pc, 0).decode();
    if iced.is_invalid() {
        return;
    }
    let name = format!("{:?}", iced.code());
    let mut bench = Bench::new(rng);
    bench.enable(&iced);
    let insn = match decoder.decode(SHAPE.pc, bytes) {
        Ok(i) => i,
        Err(e) => {
            tally
                .wrong
                .entry(name)
                .or_insert(format!("{bytes:02x?} {iced}: {e:?}"));
            return;
        }
    };
    let length = insn.layout.length();
    if length.is_some_and(|n| n != iced.len()) {
        let wrong = format!("{bytes:02x?} {iced}: {length:?} by its layout");
        tally.wrong.entry(name.clone()).or_insert(wrong);
    }
    if !decoder
        .capstone(SHAPE.pc, bytes)
        .is_some_and(|d| d.fits(&insn.layout))
    {
        *tally.by_iced.entry(name.clone()).or_default() += 1;
    }
    // Masks live in state that only some processors have.
    let has_masks = match insn.layout.wrap {
        layout::Wrap::Evex => state::xcr0() & 0xe0 == 0xe0,
        layout::Wrap::Vex => state::xcr0() & state::AVX != 0,
        _ => true,
    };
    if !has_masks {
        *tally
            .excepted
            .entry("this processor has no such masks")
            .or_default() += 1;
        return;
    }
    if let Some(why) = excepted(&insn, &iced) {
        *tally.excepted.entry(why).or_default() += 1;
        return;
    }
    let want = normal(judge(&iced, &mut bench));
    let mut list = AccessList::new();
    insn.accesses(&bench.cpu(), &mut list);
    let got = normal(list.iter().map(|a| (a.addr.0, a.len, a.kind)).collect());
    tally.compared += 1;
    if got != want || insn.len as usize != iced.len() {
        tally.wrong.entry(name).or_insert(format!(
            "{bytes:02x?} {iced}\n      want {want:x?} len {}\n      got  {got:x?} {:?} len {}",
            iced.len(),
            insn.class,
            insn.len
        ));
    }
}

impl Tally {
    fn report(&self) {
        println!(
            "{} compared, {} codes differ",
            self.compared,
            self.wrong.len()
        );
        for (why, n) in &self.excepted {
            println!("  {n} not compared: {why}");
        }
        println!(
            "  {} codes decoded by iced alone: {:?}",
            self.by_iced.len(),
            self.by_iced.keys().collect::<Vec<_>>()
        );
        for (c, w) in &self.wrong {
            println!("{c}: {w}");
        }
        assert!(self.wrong.is_empty());
    }
}

/// Every opcode iced can encode in 64-bit mode with a memory operand or an implicit one.
#[test]
fn every_opcode() {
    let decoder = Decoder::new().unwrap();
    let mut rng = Rng(0x1234_5678_9abc_def1);
    let mut tally = Tally::default();
    let mut made = 0;
    for code in corpus::codes() {
        let mut any = false;
        for _ in 0..40 {
            if let Some(bytes) = corpus::make(code, &mut rng, SHAPE) {
                compare(&decoder, &bytes, &mut rng, &mut tally);
                any = true;
            }
        }
        made += usize::from(any);
    }
    println!("{made} opcodes");
    assert!(made > 3000);
    tally.report();
}

/// Bytes that no assembler would produce: redundant prefixes, ignored bits, odd lengths.
#[test]
fn random_bytes() {
    let decoder = Decoder::new().unwrap();
    let mut rng = Rng(0xfeed_beef_1234_5677);
    let mut tally = Tally::default();
    for _ in 0..400_000 {
        let mut bytes: Vec<u8> = Vec::new();
        for _ in 0..rng.below(3) {
            bytes.push(
                [
                    0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x64, 0x65, 0x2e, 0x3e, 0x48, 0x41, 0x4f,
                ][rng.below(12) as usize],
            );
        }
        match rng.below(6) {
            0 => bytes.push(0x0f),
            1 => bytes.extend([0x0f, 0x38]),
            2 => bytes.extend([0x0f, 0x3a]),
            3 => bytes.extend([0xc4, rng.next() as u8 & 0xe3, rng.next() as u8]),
            4 => bytes.extend([
                0x62,
                rng.next() as u8 & 0xf7,
                rng.next() as u8 | 4,
                rng.next() as u8,
            ]),
            _ => {}
        }
        while bytes.len() < 15 {
            bytes.push(rng.next() as u8);
        }
        compare(&decoder, &bytes, &mut rng, &mut tally);
    }
    tally.report();
}
