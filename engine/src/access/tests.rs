//! The judge is iced-x86: what it says about the memory that an instruction uses.

use super::*;
use crate::corpus::{self, Rng, Shape};
use crate::cpu::{Cpu, Gprs};
use iced_x86::{InstructionInfoFactory, OpAccess, Register, UsedMemory};
use ulpf_lib::AccessKind;

const SHAPE: Shape = Shape { target: 0x4000_1000, pc: 0x4000_0000 };

fn image() -> Vec<u64> {
    vec![0; 1024]
}

/// What iced says, as accesses sorted by address. Elements of gathers are one access each.
fn judge(bytes: &[u8], gprs: &Gprs) -> Option<(iced_x86::Instruction, Vec<(u64, u64, AccessKind)>)> {
    let insn = iced_x86::Decoder::with_ip(64, bytes, SHAPE.pc, 0).decode();
    if insn.is_invalid() {
        return None;
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(&insn);
    let mut list = Vec::new();
    for m in info.used_memory() {
        let kind = match m.access() {
            OpAccess::Read | OpAccess::CondRead => AccessKind::Read,
            OpAccess::Write | OpAccess::CondWrite => AccessKind::Write,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => AccessKind::ReadWrite,
            _ => continue,
        };
        list.push((address(m, gprs), m.memory_size().size() as u64, kind));
    }
    Some((insn, list))
}

fn address(m: &UsedMemory, gprs: &Gprs) -> u64 {
    m.virtual_address(0, |reg, _, _| {
        Some(match reg {
            Register::GS => 0x1_0000,
            Register::FS => 0x2_0000,
            r if r.is_segment_register() => 0,
            r if r.is_gpr() => {
                let full = gprs.get(r.full_register().number() as u8);
                match r.size() {
                    8 => full,
                    4 => full & 0xffff_ffff,
                    2 => full & 0xffff,
                    _ if matches!(r, Register::AH | Register::BH | Register::CH | Register::DH) => full >> 8 & 0xff,
                    _ => full & 0xff,
                }
            }
            _ => 0,
        })
    })
    .unwrap_or(0)
}

fn registers(rng: &mut Rng) -> Gprs {
    let mut g = Gprs::default();
    for r in 0..16 {
        if let Some(p) = g.get_mut(r) {
            *p = if rng.chance(3) { rng.next() } else { rng.below(1 << 40) };
        }
    }
    g.rip = SHAPE.pc;
    g.rflags = 0x202;
    g
}

#[test]
fn every_opcode() {
    let decoder = Decoder::new().unwrap();
    let mut rng = Rng(0x1234_5678_9abc_def1);
    let mut image = image();
    let mut seen = 0;
    let mut wrong = std::collections::BTreeMap::new();
    let mut never = Vec::new();
    for code in corpus::codes() {
        let mut made = 0;
        for _ in 0..60 {
            let Some(bytes) = corpus::make(code, &mut rng, SHAPE) else { continue };
            made += 1;
            let mut gprs = registers(&mut rng);
            let Some((iced, expected)) = judge(&bytes, &gprs) else { continue };
            let cpu = Cpu {
                gprs: &mut gprs,
                fs_base: 0x2_0000,
                gs_base: 0x1_0000,
                xsave: image.as_mut_ptr().cast(),
                xsave_len: image.len() * 8,
            };
            seen += 1;
            let insn = match decoder.decode(SHAPE.pc, &bytes) {
                Ok(i) => i,
                Err(e) => {
                    wrong.entry(format!("{code:?}")).or_insert(format!("{bytes:02x?} {iced}: {e:?}"));
                    continue;
                }
            };
            let mut insn = insn;
            // The judge does not know masks: compare with everything enabled.
            if matches!(insn.class, Class::MaskedEvex | Class::BroadcastEvex | Class::Packed | Class::MaskedVex) {
                insn.class = Class::Plain;
            }
            let mut list = AccessList::new();
            insn.accesses(&cpu, &mut list);
            let got: Vec<_> = list.iter().map(|a| (a.addr.0, a.len, a.kind)).collect();
            if got != expected || insn.len as usize != iced.len() {
                wrong.entry(format!("{code:?}")).or_insert(format!(
                    "{bytes:02x?} {iced}\n      want {expected:x?}\n      got  {got:x?} {:?} len {}", insn.class, insn.len
                ));
            }
        }
        if made == 0 {
            never.push(code);
        }
    }
    println!("{seen} instructions, {} codes differ", wrong.len());
    for (c, w) in &wrong {
        println!("{c}: {w}");
    }
    println!("never made: {}", never.len());
}
