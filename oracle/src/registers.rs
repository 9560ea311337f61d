//! Comparison of hits by debug registers (docs/limits.md, "Watches in debug registers"). They give the same hits
//! in the same order, one for each watch that an instruction touches, but the trap comes behind the access.

use crate::hits::{Actual, Difference, Expected, Hit};
use crate::program::Program;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

/// Compares; the number of hits that are equal, or the first difference.
pub fn compare(p: &Program, expected: &Expected, actual: &Actual) -> Result<u64, Box<Difference>> {
    let mut equal = 0;
    for (n, epoch) in expected.epochs.iter().enumerate() {
        let want = epoch.get(&0).map(|s| fold(&s.hits, &s.ends));
        let want = want.unwrap_or_default();
        let none = vec![];
        let got = actual.get(n).and_then(|a| a.get(&0)).unwrap_or(&none);
        let mut from = 0;
        for group in &want {
            let to = (from + group.len()).min(got.len());
            let mut have = got[from..to].to_vec();
            have.sort_by_key(|h| h.watch);
            let same =
                have.len() == group.len() && group.iter().zip(&have).all(|(w, h)| w.same(h, p));
            if !same {
                return Err(Box::new(Difference {
                    epoch: n,
                    thread: 0,
                    expected: group.iter().map(|w| w.hit).collect(),
                    got: got[from..(to + 2).min(got.len())].to_vec(),
                    what: format!("hit {from} (got {})", got.len()),
                }));
            }
            from = to;
        }
        if from < got.len() {
            return Err(Box::new(Difference {
                epoch: n,
                thread: 0,
                expected: vec![],
                got: got[from..(from + 3).min(got.len())].to_vec(),
                what: format!("{} hits too many", got.len() - from),
            }));
        }
        equal += from as u64;
    }
    Ok(equal)
}

/// One watch that an instruction has touched.
struct Touched {
    hit: Hit,
    /// By several operands.
    several: bool,
}

fn fold(hits: &[Hit], ends: &[usize]) -> Vec<Vec<Touched>> {
    let mut from = 0;
    let mut out = vec![];
    for &end in ends {
        let mut group: Vec<Touched> = vec![];
        for hit in &hits[from..end] {
            match group.iter_mut().find(|t| t.hit.watch == hit.watch) {
                // The kernel's accesses are no traps.
                Some(t) if hit.syscall.is_none() => {
                    t.several = true;
                    t.hit.kind |= hit.kind;
                }
                _ => group.push(Touched {
                    hit: *hit,
                    several: false,
                }),
            }
        }
        group.sort_by_key(|t| t.hit.watch);
        out.push(group);
        from = end;
    }
    out
}

impl Touched {
    fn same(&self, got: &Hit, p: &Program) -> bool {
        let want = &self.hit;
        if want.syscall.is_some() {
            return want == got;
        }
        let Some(i) = instruction(p, want.pc) else {
            return false;
        };
        if want.watch != got.watch || got.syscall.is_some() {
            return false;
        }
        // An instruction that has jumped is reported with the address of its target.
        if matches!(
            i.flow_control(),
            FlowControl::Return | FlowControl::IndirectBranch | FlowControl::IndirectCall
        ) && want.kind & 1 != 0
        {
            return true;
        }
        if want.kind != got.kind {
            return false;
        }
        if want.pc != got.pc {
            return follows_data(p, &i) && same_but_prefixes(p, &i, got.pc);
        }
        if self.several || forgets(&i) {
            return true;
        }
        want == got
    }
}

fn instruction(p: &Program, pc: u64) -> Option<Instruction> {
    let code = p.code.get(pc.checked_sub(p.code_at)? as usize..)?;
    Some(Decoder::with_ip(64, code, pc, DecoderOptions::NONE).decode())
}

/// Whether a random number ends before it. Its last bytes may look like prefixes, or swallow them.
fn follows_data(p: &Program, i: &Instruction) -> bool {
    instruction(p, i.ip().wrapping_sub(10)).is_some_and(|i| i.code() == Code::Mov_r64_imm64)
}

/// Whether both instructions end with the same bytes, the opcode among them, or the number's last bytes are
/// prefixes, even if the instruction cannot have these.
fn same_but_prefixes(p: &Program, i: &Instruction, pc: u64) -> bool {
    let number = |at: u64| (at - p.code_at) as usize;
    let between = (pc < i.ip())
        .then(|| p.code.get(number(pc)..number(i.ip())))
        .flatten();
    let prefix = |b: &u8| {
        matches!(
            b,
            0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
        )
    };
    let near = pc.abs_diff(i.ip()) <= 4;
    near && (between.is_some_and(|b| b.iter().all(prefix))
        || instruction(p, pc)
            .is_some_and(|o| o.next_ip() == i.next_ip() && o.mnemonic() == i.mnemonic()))
}

/// Whether it changes the registers of its own address. Then the part of the watch that it touched is lost.
fn forgets(i: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    let changed = |r: Register| {
        info.used_registers().iter().any(|u| {
            u.register().full_register() == r.full_register()
                && !matches!(u.access(), OpAccess::Read | OpAccess::CondRead)
        })
    };
    let pops_rsp =
        i.mnemonic() == Mnemonic::Pop && i.op0_register().full_register() == Register::RSP;
    pops_rsp
        || !i.is_stack_instruction()
            && !i.is_string_instruction()
            && info.used_memory().iter().any(|m| {
                [m.base(), m.index()]
                    .into_iter()
                    .any(|r| r != Register::None && changed(r))
            })
}

/// Whether the processor may read only half of the operand. A debug register matches what it really reads; a
/// guard takes the operand as it is documented.
pub fn reads_half(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic());
    let shift = ["Psll", "Psrl", "Psra"];
    let unpack = ["Punpck", "Unpck"];
    let by_operand = i.op_count() == 2 && i.op1_kind() == OpKind::Memory;
    by_operand && shift.iter().chain(&unpack).any(|n| name.starts_with(n))
}
