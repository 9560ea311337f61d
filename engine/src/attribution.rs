//! Finds the instruction that made an access. A debug register traps behind the access; hits name the access itself.
//!
//! x86 cannot be decoded backwards, so the candidates are instructions that end at the PC behind the access. Decoding
//! forwards synchronises with the true instructions within a few of them, wherever it begins. So code is decoded from
//! each of the bytes before the PC. Each beginning votes for the length of the last instruction; those further away
//! have more votes:
//!
//! ```text
//!   … 8b 45 f8 | 48 89 45 e8 | after        from 8b, 45, 48, …: four bytes  ✓✓✓
//!                  89 45 e8 | after        from 89: three                  ✓
//! ```
//! The candidate with the most votes that explains the match with the present registers is taken, with its prefixes.
//! Registers that an instruction changes are restored first (the stack pointer of a push, the pointers of a string
//! instruction). A load that has overwritten its own address explains a read. A call is found by its return address on
//! the stack. A return leaves no trace: its hit names the place it returned to.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::eflags;
use ulpf_lib::{AccessKind, TargetAddr, WatchKind, WatchRange};

use crate::access::{AccessList, Class, Insn};
use crate::cpu::{Cpu, Gprs};
use crate::frame::fpstate_len;

/// The program whose instruction is looked for.
pub trait Program {
    /// Copies memory, whatever guards it; how many bytes could be read.
    fn read(&self, addr: u64, to: &mut [u8]) -> usize;
    fn decode(&self, pc: u64, bytes: &[u8]) -> Option<Insn>;
}

/// The registers behind the instruction.
#[derive(Clone, Copy)]
pub struct State {
    /// General registers, with rip behind the instruction.
    pub gprs: Gprs,
    /// The processor's extended state as xsave writes it; null: not known.
    pub xsave: *mut u8,
    /// fs, gs.
    pub bases: (u64, u64),
}

/// Access of the trapping instruction, as far as it can be reconstructed.
pub struct Touch {
    /// The instruction, or the PC behind it if it cannot be found.
    pub pc: u64,
    /// First byte that the instruction shares with the watch.
    pub addr: TargetAddr,
    /// In bytes.
    pub len: u64,
    /// Read, write, or both.
    pub kind: AccessKind,
}

/// PCs and the lengths of the instructions before them: `pc << 8 | length`.
const REMEMBERED: usize = 256;
static LENGTHS: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

/// Finds the access to `range` by the instruction before `after` (at `pc`, if that is known). `None` if it has only
/// flushed the cache line.
pub fn touched(
    program: &impl Program,
    state: State,
    after: u64,
    pc: Option<u64>,
    range: WatchRange,
    kind: WatchKind,
) -> Option<Touch> {
    let mut look = Look::new(program, state, range, kind);
    let slot = LENGTHS.get(after as usize % REMEMBERED);
    let known = slot.map_or(0, |s| s.load(Relaxed));
    let known = (known >> 8 == after).then(|| after.wrapping_sub(known & 0xff));
    if let Some(pc) = pc.or(known)
        && let Some(touch) = look.at(pc, after).or_else(|| look.lost_address(pc, after))
    {
        return Some(touch);
    }
    let whole = |pc: u64, kind: AccessKind| Touch {
        pc,
        addr: range.start,
        len: range.len,
        kind,
    };
    if let Some(touch) = look.call(after, true) {
        return Some(touch);
    }
    let candidates = look.candidates(after);
    let mut found = None;
    for (n, len) in candidates.order.into_iter().enumerate() {
        let pc = after.wrapping_sub(len);
        if look.flushes(pc, after) {
            return None;
        }
        found = look.at(pc, after);
        if found.is_some() {
            let mut lost = candidates.order.iter().take(n).filter(|l| {
                candidates.votes(**l) >= candidates.votes(len).saturating_mul(LOST_IS_WORTH)
            });
            let lost = lost.find_map(|l| look.lost_address(after.wrapping_sub(*l), after));
            found = lost
                .or_else(|| {
                    look.with_prefixes(&candidates, len, after, |l, pc, after| {
                        l.at(pc, after).or_else(|| l.lost_address(pc, after))
                    })
                })
                .or(found);
            break;
        }
        if n == 0 {
            // A string instruction that is not through yet is likelier than the other lengths.
            found = look.at(after, after);
            // If the instruction before `after` does not continue there, control may have come by a call.
            if found.is_none() && look.ends(pc, after) {
                found = look.call(after, false);
            }
            if found.is_some() {
                break;
            }
        }
    }
    if found.is_none() {
        found = look.call(after, false);
    }
    if found.is_none() && !look.writes && look.returned(after) {
        return Some(whole(after, AccessKind::Read));
    }
    if found.is_none() {
        for len in candidates.order {
            found = look.lost_address(after.wrapping_sub(len), after);
            if found.is_some() {
                let longer = look.with_prefixes(&candidates, len, after, |l, pc, after| {
                    l.lost_address(pc, after)
                });
                found = longer.or(found);
                break;
            }
        }
    }
    Some(match found {
        Some(touch) => {
            let len = after.wrapping_sub(touch.pc);
            if let Some(s) = slot.filter(|_| (1..=15).contains(&len)) {
                s.store(after << 8 | len, Relaxed);
            }
            touch
        }
        None if look.writes => whole(pc.unwrap_or(after), AccessKind::Write),
        None => whole(pc.unwrap_or(after), AccessKind::ReadWrite),
    })
}

/// Finds the access to `range` by the instruction at `pc`, which another of its accesses has identified.
pub fn touched_too(
    program: &impl Program,
    state: State,
    after: u64,
    pc: u64,
    range: WatchRange,
    kind: WatchKind,
) -> Option<Touch> {
    Look::new(program, state, range, kind).at(pc, after)
}

/// Bytes before the PC that are read for votes.
const BEFORE: usize = 64;
/// A beginning has one more vote for each such distance in bytes from the PC.
const FAR: u32 = 16;

/// Lengths from 1 to 15, the likeliest first.
type Order = [u64; 15];

struct Candidates {
    order: Order,
    /// Of each length.
    votes: [u32; 16],
}

impl Candidates {
    fn votes(&self, len: u64) -> u32 {
        self.votes.get(len as usize).copied().unwrap_or(0)
    }
}

/// A prefix is seldom the end of the instruction before: unless it has this many times fewer votes, the
/// longer one is right.
const PREFIX_IS_WORTH: u32 = 4;

/// One that has lost its address explains any read: it is right only with so many times the votes of one that
/// explains this one.
const LOST_IS_WORTH: u32 = 4;

struct Look<'a, P> {
    program: &'a P,
    state: State,
    range: WatchRange,
    /// Only a write can have matched.
    writes: bool,
}

impl<'a, P: Program> Look<'a, P> {
    fn new(program: &'a P, state: State, range: WatchRange, kind: WatchKind) -> Look<'a, P> {
        Look {
            program,
            state,
            range,
            writes: kind == WatchKind::Write,
        }
    }

    fn word(&self, addr: u64) -> Option<u64> {
        let mut bytes = [0u8; 8];
        (self.program.read(addr, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }

    fn decode(&self, pc: u64) -> Option<Insn> {
        let mut bytes = [0u8; 15];
        let n = self.program.read(pc, &mut bytes);
        self.program.decode(pc, bytes.get(..n)?)
    }

    /// How long the instruction that ends at `end` may be.
    fn candidates(&self, end: u64) -> Candidates {
        let mut bytes = [0u8; BEFORE + 15];
        let mut start = end.wrapping_sub(BEFORE as u64);
        // The page before may not be there.
        if self
            .program
            .read(start, bytes.get_mut(..1).unwrap_or(&mut []))
            == 0
        {
            start = end & !(ulpf_lib::PAGE_SIZE - 1);
        }
        let before = end.wrapping_sub(start) as usize;
        let n = self
            .program
            .read(start, bytes.get_mut(..before + 15).unwrap_or(&mut []));
        // Length of the last instruction when reading begins at each byte; 0: `end` is not met.
        let mut last = [0u8; BEFORE];
        let mut votes = [0u32; 16];
        for at in (0..before).rev() {
            let code = bytes.get(at..n.min(at + 15)).unwrap_or(&[]);
            let Some(insn) = self.program.decode(start + at as u64, code) else {
                continue;
            };
            let next = at + insn.len as usize;
            let ends_with = match next.cmp(&before) {
                core::cmp::Ordering::Equal => insn.len,
                core::cmp::Ordering::Less => last.get(next).copied().unwrap_or(0),
                core::cmp::Ordering::Greater => 0,
            };
            if let (Some(l), Some(v)) = (last.get_mut(at), votes.get_mut(ends_with as usize)) {
                *l = ends_with;
                // From far away it is more certain: constants near the end may look like code.
                *v += 1 + (before - at) as u32 / FAR;
            }
        }
        let mut order: Order = core::array::from_fn(|i| 15 - i as u64);
        // Stable: of equals the longer one, whose prefix the shorter one lacks.
        insertion_sort(&mut order, |len| {
            votes.get(*len as usize).copied().unwrap_or(0)
        });
        Candidates { order, votes }
    }

    /// Given that the instruction of `len` bytes explains the match, finds a longer one, with prefixes before it, that
    /// does so, too.
    fn with_prefixes(
        &mut self,
        candidates: &Candidates,
        mut len: u64,
        after: u64,
        explain: impl Fn(&mut Self, u64, u64) -> Option<Touch>,
    ) -> Option<Touch> {
        let mut found = None;
        for longer in len + 1..=15 {
            let votes = candidates.votes(longer);
            if votes.saturating_mul(PREFIX_IS_WORTH) < candidates.votes(len).max(1) {
                continue;
            }
            let pc = after.wrapping_sub(longer);
            let insn = self.decode(pc);
            if !insn.is_some_and(|i| adds_prefixes(&i, (longer - len) as usize)) {
                continue;
            }
            if let Some(touch) = explain(self, pc, after) {
                found = Some(touch);
                len = longer;
            }
        }
        found
    }

    /// Whether the instruction at `pc` flushes the cache line. Debug registers treat that as a read.
    fn flushes(&self, pc: u64, after: u64) -> bool {
        let insn = self.decode(pc);
        insn.is_some_and(|i| i.class == Class::Flush && pc.wrapping_add(i.len.into()) == after)
    }

    /// Whether the instruction at `pc` always leads elsewhere, for any flags.
    fn ends(&self, pc: u64, after: u64) -> bool {
        self.decode(pc).is_some_and(|i| {
            let jump =
                i.layout.legacy() && i.layout.map == 0 && matches!(i.layout.opcode, 0xe9 | 0xeb);
            pc.wrapping_add(i.len.into()) == after && (jump || matches!(i.class, Class::Ret))
        })
    }

    /// Whether a `ret` has read the range.
    fn returned(&self, after: u64) -> bool {
        let at = self.state.gprs.rsp.wrapping_sub(8);
        self.range.overlaps(TargetAddr(at), 8) && self.word(at) == Some(after)
    }

    /// A load, or an exchange, at `pc` that has overwritten a register of its own address.
    fn lost_address(&self, pc: u64, after: u64) -> Option<Touch> {
        let insn = self.decode(pc)?;
        let ends = pc.wrapping_add(insn.len.into()) == after;
        let plain = insn.class == Class::Plain && insn.layout.has_mem() && insn.mem.kind.reads();
        let (len, kind) = match insn.class {
            _ if plain => (insn.mem.size.into(), insn.mem.kind),
            Class::Xlat => (1, AccessKind::Read),
            Class::Pop if pops_rsp(&insn) => (insn.stack_size(), AccessKind::Read),
            _ => return None,
        };
        let lost = if kind.writes() {
            exchanges(&insn)
        } else {
            !self.writes && (!plain || loads_address(&insn))
        };
        (ends && lost).then_some(Touch {
            pc,
            addr: self.range.start,
            len: self.range.len.min(len).max(1),
            kind,
        })
    }

    /// The access of the instruction at `pc`, if it ends at `after` (or repeats there) and touches
    /// the range.
    fn at(&mut self, pc: u64, after: u64) -> Option<Touch> {
        let insn = self.decode(pc)?;
        let ends = pc.wrapping_add(insn.len.into()) == after;
        // Behind a return stands whatever it returned to; the next function, when that is called.
        let goes = matches!(insn.class, Class::Ret | Class::FarRet | Class::Iret);
        if goes || !(ends || pc == after && insn.is_rep()) {
            return None;
        }
        self.access(&insn)
    }

    /// A call whose return address is what matched, or the place that it read its target from. `direct`:
    /// only one that says where it went, which is certain.
    fn call(&mut self, after: u64, direct: bool) -> Option<Touch> {
        let rsp = self.state.gprs.rsp;
        if direct && !self.range.overlaps(TargetAddr(rsp), 8) {
            return None;
        }
        let back = self.word(rsp)?;
        for len in self.candidates(back).order {
            let Some(insn) = self.decode(back.wrapping_sub(len)) else {
                continue;
            };
            if u64::from(insn.len) != len || !matches!(insn.class, Class::Call | Class::CallMem) {
                continue;
            }
            let to = match *insn.code() {
                [0xe8, a, b, c, d] => {
                    Some(back.wrapping_add(i32::from_le_bytes([a, b, c, d]) as u64))
                }
                _ => None,
            };
            if to.is_some_and(|to| to != after) || direct && to.is_none() {
                continue;
            }
            return self.access(&insn);
        }
        None
    }

    fn access(&mut self, insn: &Insn) -> Option<Touch> {
        let mut before = self.state.gprs;
        self.rewind(insn, &mut before);
        // SAFETY: the frame's own image.
        let (_, xsave_len) = unsafe { fpstate_len(self.state.xsave) };
        let cpu = Cpu {
            gprs: &mut before,
            fs_base: self.state.bases.0,
            gs_base: self.state.bases.1,
            xsave: self.state.xsave,
            xsave_len,
        };
        let mut list = AccessList::new();
        insn.accesses(&cpu, &mut list);
        let mut found: Option<Touch> = None;
        for a in list.iter() {
            if !self.range.overlaps(a.addr, a.len) || self.writes && !a.kind.writes() {
                continue;
            }
            let start = a.addr.0.max(self.range.start.0);
            let end = (a.addr.0 + a.len).min(self.range.end().0);
            match &mut found {
                Some(f) if f.kind != a.kind => f.kind = AccessKind::ReadWrite,
                Some(_) => {}
                None => {
                    found = Some(Touch {
                        pc: insn.pc,
                        addr: TargetAddr(start),
                        len: end - start,
                        kind: a.kind,
                    })
                }
            }
        }
        found
    }

    /// The registers that address memory, as they were before the instruction.
    fn rewind(&self, insn: &Insn, g: &mut Gprs) {
        use Class::*;
        match insn.class {
            Push | PushMem | Pushf | Call | CallMem => {
                g.rsp = g.rsp.wrapping_add(insn.stack_size());
            }
            Pop | PopMem | Popf | Ret => g.rsp = g.rsp.wrapping_sub(insn.stack_size()),
            Leave => g.rbp = g.rsp.wrapping_sub(insn.stack_size()),
            Enter => {
                let slot = insn.stack_size();
                let (room, level) = insn.enter_operands();
                let pushed = slot * if level == 0 { 1 } else { u64::from(level) + 1 };
                g.rsp = g.rsp.wrapping_add(pushed + u64::from(room));
                // The word that it pushed first.
                let old = self.word(g.rsp.wrapping_sub(slot)).unwrap_or(g.rbp);
                g.rbp = if slot == 2 {
                    g.rbp & !0xffff | old & 0xffff
                } else {
                    old
                };
            }
            Movs | Stos | Lods | Scas | Cmps => {
                let step = if g.rflags & eflags::DF != 0 {
                    insn.string_size().wrapping_neg()
                } else {
                    insn.string_size()
                };
                if !matches!(insn.class, Lods) {
                    g.rdi = g.rdi.wrapping_sub(step);
                }
                if !matches!(insn.class, Stos | Scas) {
                    g.rsi = g.rsi.wrapping_sub(step);
                }
                if insn.is_rep() {
                    g.rcx = g.rcx.wrapping_add(1);
                }
            }
            _ => {}
        }
    }
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;

/// Whether it may load a register of its operand's address. (`mul` and the like write rax and rdx, pcmpestri and
/// pcmpistri rcx.)
fn loads_address(insn: &Insn) -> bool {
    let l = &insn.layout;
    let address = |r| [insn.mem.base, insn.mem.index].contains(&r);
    let finds = l.map == 3 && matches!(l.opcode, 0x61 | 0x63);
    address(l.reg)
        || !l.legacy() && address(l.vvvv)
        || address(RAX)
        || address(RDX)
        || finds && address(RCX)
}

/// Whether it writes memory and a register of its operand's address.
fn exchanges(insn: &Insn) -> bool {
    let l = &insn.layout;
    let address = |r| [insn.mem.base, insn.mem.index].contains(&r);
    match (l.map, l.opcode) {
        _ if !l.legacy() => false,
        // xchg; xadd
        (0, 0x86 | 0x87) | (1, 0xc0 | 0xc1) => address(l.reg),
        // cmpxchg
        (1, 0xb0 | 0xb1) => address(RAX),
        // cmpxchg8b, cmpxchg16b
        (1, 0xc7) => l.modrm & 0x38 == 0x08 && (address(RAX) || address(RDX)),
        _ => false,
    }
}

/// `pop rsp`: where it popped from is gone.
fn pops_rsp(insn: &Insn) -> bool {
    insn.code().last() == Some(&0x5c) && insn.layout.rex & 1 == 0
}

/// Whether the first `count` bytes are prefixes of the instruction that follows.
fn adds_prefixes(insn: &Insn, count: usize) -> bool {
    let legacy = |b: u8| {
        matches!(
            b,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
        )
    };
    let rex = |b: u8| b & 0xf0 == 0x40;
    let Some((added, [next, ..])) = insn.code().split_at_checked(count) else {
        return false;
    };
    // A REX prefix counts only where the opcode follows.
    let rex_counts = !legacy(*next) && !rex(*next);
    added
        .iter()
        .enumerate()
        .all(|(n, b)| legacy(*b) || rex(*b) && n + 1 == count && rex_counts)
}

/// Largest key first; equals keep their order. (The library's sort may allocate.)
fn insertion_sort(list: &mut Order, key: impl Fn(&u64) -> u32) {
    for i in 1..list.len() {
        let mut at = i;
        while at > 0
            && let [.., a, b] = list.get(..=at).unwrap_or(&[])
            && key(a) < key(b)
        {
            list.swap(at - 1, at);
            at -= 1;
        }
    }
}
