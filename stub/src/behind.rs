//! Which instruction was it? A debug register traps behind the access; hits name the access itself.
//!
//! x86 cannot be read backwards, so the instruction is searched: of all that end at the PC behind it, the
//! one that explains the match with the registers of the moment. Those that an instruction changes are
//! turned back first (the stack pointer of a push, the pointers of a string instruction). Two may
//! explain it, when the bytes before an instruction look like a prefix of it; the longer one is taken.
//! A call has left its return address on the stack, which tells where it was.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_engine::access::{AccessList, Class, Insn};
use ulpf_engine::cpu::{Cpu, Gprs};
use ulpf_lib::{AccessKind, TargetAddr, WatchKind, WatchRange};

use crate::fault;
use crate::runtime::debug_registers::Touch;
use crate::runtime::frame::{UContext, fpstate_len};
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::Thread;

/// PCs and the lengths of the instructions before them: `pc << 8 | length`.
const REMEMBERED: usize = 256;
static LENGTHS: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

/// What the instruction before `after` (at `pc`, if that is known) did to `range`.
pub fn touched(
    t: &Thread,
    uc: &mut UContext,
    after: u64,
    pc: Option<u64>,
    range: WatchRange,
    kind: WatchKind,
) -> Touch {
    let (fs_base, gs_base) = park::bases(t);
    let mut look = Look {
        gprs: uc.gprs,
        xsave: uc.fpstate,
        bases: (fs_base, gs_base),
        range,
        writes: kind == WatchKind::Write,
    };
    let slot = LENGTHS.get(after as usize % REMEMBERED);
    let known = slot.map_or(0, |s| s.load(Relaxed));
    let known = (known >> 8 == after).then(|| after.wrapping_sub(known & 0xff));
    if let Some(pc) = pc.or(known)
        && let Some(touch) = look.at(pc, after)
    {
        return touch;
    }
    for len in (1..=15u64).rev() {
        if let Some(touch) = look.at(after.wrapping_sub(len), after) {
            if let Some(s) = slot {
                s.store(after << 8 | len, Relaxed);
            }
            return touch;
        }
    }
    // A string instruction that is not through yet; a call.
    if let Some(touch) = look.at(after, after).or_else(|| look.call(after)) {
        return touch;
    }
    Touch {
        pc: pc.unwrap_or(after),
        addr: range.start,
        len: range.len,
        kind: if look.writes {
            AccessKind::Write
        } else {
            AccessKind::ReadWrite
        },
    }
}

struct Look {
    /// Behind the instruction.
    gprs: Gprs,
    xsave: *mut u8,
    bases: (u64, u64),
    range: WatchRange,
    /// Only a write can have matched.
    writes: bool,
}

impl Look {
    fn decode(&self, pc: u64) -> Option<Insn> {
        let mut bytes = [0u8; 15];
        let n = memory::read(pc, &mut bytes);
        fault::decode(pc, bytes.get(..n)?)
    }

    /// The access of the instruction at `pc`, if it ends at `after` (or repeats there) and touches
    /// the range.
    fn at(&mut self, pc: u64, after: u64) -> Option<Touch> {
        let insn = self.decode(pc)?;
        let ends = pc.wrapping_add(insn.len.into()) == after;
        if !(ends || pc == after && insn.is_rep()) {
            return None;
        }
        self.access(&insn)
    }

    /// A call whose return address is what matched.
    fn call(&mut self, after: u64) -> Option<Touch> {
        let rsp = self.gprs.rsp;
        if !self.range.overlaps(TargetAddr(rsp), 8) {
            return None;
        }
        let back = memory::get::<u64>(rsp)?;
        for len in 2..=15u64 {
            let Some(insn) = self.decode(back.wrapping_sub(len)) else {
                continue;
            };
            if u64::from(insn.len) != len || !matches!(insn.class, Class::Call | Class::CallMem) {
                continue;
            }
            if let [0xe8, a, b, c, d] = *insn.code()
                && back.wrapping_add(i32::from_le_bytes([a, b, c, d]) as u64) != after
            {
                continue;
            }
            return self.access(&insn);
        }
        None
    }

    fn access(&mut self, insn: &Insn) -> Option<Touch> {
        let mut before = self.gprs;
        rewind(insn, &mut before);
        // SAFETY: the frame's own image.
        let (_, xsave_len) = unsafe { fpstate_len(self.xsave) };
        let cpu = Cpu {
            gprs: &mut before,
            fs_base: self.bases.0,
            gs_base: self.bases.1,
            xsave: self.xsave,
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
}

/// The registers that address memory, as they were before the instruction.
fn rewind(insn: &Insn, g: &mut Gprs) {
    use Class::*;
    match insn.class {
        Push | PushMem | Pushf | Call | CallMem => {
            g.rsp = g.rsp.wrapping_add(insn.stack_size());
        }
        Pop | PopMem | Popf | Ret => g.rsp = g.rsp.wrapping_sub(insn.stack_size()),
        Leave => g.rbp = g.rsp.wrapping_sub(insn.stack_size()),
        Movs | Stos | Lods | Scas | Cmps => {
            let step = if g.rflags & 0x400 != 0 {
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
