//! Patched system-call sites, as the program's threads meet them.
//!
//! SIGSYS discovers a site ([`super::busy::note`]). The stub's task patches a busy one with the world stopped (`control/sites.rs`),
//! so that its calls reach a slot of `sites_code.rs` with a jump. A slot makes the calls that need no help of ours
//! under the program's own mask, and sends all others to dispatch. Correctness never depends on a patch.
//!
//! A thread inside a slot counts as running: a stop interrupts it like any other code. When it is interrupted,
//! [`leave`] changes its registers into those of the original code at that point. So no code outside this file meets a
//! PC in a slot or a trampoline. A call that our park signal has interrupted is made again. So no thread is in a slot
//! while the world is stopped, and slots, trampolines and tables may change then.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::eflags;
use ulpf_lib::sys::failure::EINTR;
use ulpf_lib::syscalls::NUMBERS;
use ulpf_stub_tables::calls::{Call, Phase, Reg, SLOT, SLOTS, SYSCALL, TRAMPOLINE};
use ulpf_stub_tables::edit::List;

use super::sites_code;
use crate::global::{g, tables};
use crate::runtime::areas;
use crate::runtime::asm::ulpf_slots;
use crate::runtime::clock;
use crate::runtime::frame::UContext;

/// The patched calls.
pub fn list() -> &'static List<Call> {
    &tables().edits.calls
}

/// There are patches.
pub static SOME: AtomicBool = AtomicBool::new(false);
/// Busy sites are looked for.
pub static ENABLED: AtomicBool = AtomicBool::new(true);
/// A site is patched when it has caused this many signals.
pub static AFTER: AtomicU32 = AtomicU32::new(32);

pub fn slots_base() -> u64 {
    ulpf_slots as *const () as u64
}

// ---- pages of ours -----------------------------------------------------------------------------

/// For each page number (by its low 16 bits): 1 if it or one of the pages after it may be ours. May have false
/// positives, but no false negatives.
pub struct Filter {
    pub near: [AtomicU8; 1 << 16],
    pub wide: [AtomicU8; 1 << 16],
}

pub static FILTER: Filter = Filter {
    near: [const { AtomicU8::new(0) }; 1 << 16],
    wide: [const { AtomicU8::new(0) }; 1 << 16],
};

/// Shifts of the two tables, and the reach in units of a buffer that the checks let pass.
const NEAR: (u32, u64) = (12, 16);
const WIDE: (u32, u64) = (16, 13);

impl Filter {
    /// Marks `[start, end)`.
    pub fn add(&self, start: u64, end: u64) {
        self.mark(start, end, 1);
    }
    /// Clears the marks of [`Filter::add`], and other marks at the same places.
    pub fn clear(&self, start: u64, end: u64) {
        self.mark(start, end, 0);
    }
    /// Writes only changes: the tables are large, and their untouched pages take no memory.
    fn mark(&self, start: u64, end: u64, mark: u8) {
        for (table, (shift, reach)) in [(&self.near, NEAR), (&self.wide, WIDE)] {
            let (first, last) = (start >> shift, (end - 1) >> shift);
            let count = (last - first + 1 + reach).min(1 << 16);
            for n in 0..count {
                let at = last.wrapping_sub(n) as usize & 0xffff;
                if let Some(b) = table.get(at) {
                    b.store(mark, Relaxed);
                }
            }
        }
    }
}

// ---- discovery ---------------------------------------------------------------------------------

const SEEN: usize = 1024;
/// Numbers that are distinguished: all that have a class.
pub const KNOWN: usize = NUMBERS.next_multiple_of(64);
pub type Numbers = [AtomicU64; KNOWN / 64];

/// A `syscall` instruction that dispatch has served.
pub struct Seen {
    pub insn: AtomicU64,
    pub count: AtomicU32,
    /// All calls from here that dispatch has served.
    pub signals: AtomicU32,
    /// It must not be patched.
    pub refused: AtomicBool,
    /// Numbers it was used with; and those of them that its slot makes, or will never make.
    pub met: Numbers,
    pub done: Numbers,
}

pub static SEEN_SITES: [Seen; SEEN] = [const {
    Seen {
        insn: AtomicU64::new(0),
        count: AtomicU32::new(0),
        signals: AtomicU32::new(0),
        refused: AtomicBool::new(false),
        met: [const { AtomicU64::new(0) }; KNOWN / 64],
        done: [const { AtomicU64::new(0) }; KNOWN / 64],
    }
}; SEEN];

pub fn has(set: &Numbers, nr: u64) -> bool {
    set.get(nr as usize / 64)
        .is_some_and(|w| w.load(Relaxed) >> (nr % 64) & 1 != 0)
}

pub fn put(set: &Numbers, nr: u64) {
    if let Some(w) = set.get(nr as usize / 64) {
        w.fetch_or(1 << (nr % 64), Relaxed);
    }
}

pub fn seen(insn: u64) -> Option<&'static Seen> {
    let first = (insn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize;
    for n in 0..8 {
        let s = SEEN_SITES.get((first + n) % SEEN)?;
        let at = s.insn.load(Relaxed);
        if at == insn {
            return Some(s);
        }
        if at == 0 {
            match s.insn.compare_exchange(0, insn, SeqCst, SeqCst) {
                Ok(_) => return Some(s),
                Err(now) if now == insn => return Some(s),
                Err(_) => {}
            }
        }
    }
    None
}

// ---- interrupted inside a slot -----------------------------------------------------------------

/// A thread has been taken out of a slot.
#[derive(Clone, Copy)]
pub struct Left {
    pub nr: u16,
    pub insn: u64,
    /// The call returned EINTR because of the signal that has just come, and may be made again.
    pub interrupted: bool,
    /// The result and arguments of a call that had just been made when the signal came. (It may be partial.)
    pub result: Option<(i64, [u64; 6])>,
    /// When a call with a time-out began (CLOCK_MONOTONIC), or 0.
    pub begun: u64,
}

impl Left {
    fn nothing(site: &Call) -> Left {
        Left {
            nr: 0,
            insn: site.insn,
            interrupted: false,
            result: None,
            begun: 0,
        }
    }

    /// A signal that the program does not handle has interrupted the call: moves the context back before the call, as
    /// long as the thread may have to park.
    pub fn rewind(&self, uc: &mut UContext) {
        if self.interrupted && uc.gprs.rip == self.insn + SYSCALL && uc.gprs.rax == EINTR as u64 {
            uc.gprs.rip = self.insn;
            uc.gprs.rax = self.nr as u64;
        }
    }
}

/// Clears the register's upper half, and returns the time that it held.
fn unstamp(uc: &mut UContext, r: Option<Reg>) -> u64 {
    let Some(reg) = r.map(|r| argument_mut(uc, r)) else {
        return 0;
    };
    let then = (*reg >> 32) as u32;
    *reg &= 0xffff_ffff;
    // SAFETY: reads the time-stamp counter.
    let now = (unsafe { core::arch::x86_64::_rdtsc() } >> sites_code::STAMP_SHIFT) as u32;
    // One unit too little, so that no wait ends early.
    let ticks = (now.wrapping_sub(then) as u64).saturating_sub(1) << sites_code::STAMP_SHIFT;
    let mult = g().header().map_or(0, |h| h.tsc_mult);
    let nanos = ((ticks as u128 * mult as u128) >> 32) as u64;
    clock::now().saturating_sub(nanos).max(1)
}

fn argument_mut(uc: &mut UContext, r: Reg) -> &mut u64 {
    match r {
        Reg::Rdx => &mut uc.gprs.rdx,
        Reg::R10 => &mut uc.gprs.r10,
        Reg::Rsi => &mut uc.gprs.rsi,
        Reg::Rdi => &mut uc.gprs.rdi,
        Reg::R8 => &mut uc.gprs.r8,
        Reg::R9 => &mut uc.gprs.r9,
    }
}

fn arguments(uc: &UContext) -> [u64; 6] {
    let r = &uc.gprs;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
}

/// Restores the registers of a futex call: rdi may have the `alias` of its word, and rsi has the class of its page in
/// the upper half.
fn original_word(uc: &mut UContext, alias: bool) {
    let class = uc.gprs.rsi >> 32;
    uc.gprs.rsi &= 0xffff_ffff;
    if alias {
        uc.gprs.rdi = uc.gprs.rdi.wrapping_sub(areas::distance(class));
    }
}

/// Changes a context inside a slot or a trampoline into that of the original code.
pub fn leave(uc: &mut UContext) -> Option<Left> {
    if !SOME.load(Relaxed) {
        return None;
    }
    let in_slots = uc.gprs.rip.wrapping_sub(slots_base());
    if in_slots < (SLOT * SLOTS) as u64 {
        let slot = in_slots as usize / SLOT;
        let site = list().iter().find(|site| site.slot == slot)?;
        return Some(leave_slot(uc, site, (in_slots as usize % SLOT) as u16));
    }
    let (site, offset) = at_trampoline(uc.gprs.rip)?;
    // Behind the trampoline's jump is the `syscall` of a site whose own one is displaced.
    uc.gprs.rip = match offset {
        0 => site.start,
        TRAMPOLINE => site.insn,
        _ => site.next(),
    };
    Some(Left::nothing(site))
}

fn leave_slot(uc: &mut UContext, site: &Call, at: u16) -> Left {
    let mut left = Left::nothing(site);
    let mark = site.marks.iter().find(|m| at < m.end);
    match mark.map_or(Phase::Mov, |m| m.phase) {
        Phase::Mov => uc.gprs.rip = site.start,
        Phase::Before => uc.gprs.rip = site.insn,
        Phase::Call { nr, stamped } => {
            unstamp(uc, stamped);
            uc.gprs.rax = nr as u64;
            uc.gprs.rip = site.insn;
        }
        Phase::Lost { nr } => {
            uc.gprs.rdx = uc.gprs.r11;
            uc.gprs.rax = nr as u64;
            uc.gprs.rip = site.insn;
        }
        Phase::Word { alias } => {
            original_word(uc, alias);
            uc.gprs.rip = site.insn;
        }
        Phase::AfterWord { nr, alias } => {
            original_word(uc, alias);
            uc.gprs.rip = site.next();
            uc.gprs.rcx = site.next();
            uc.gprs.r11 = uc.gprs.rflags;
            left.nr = nr;
        }
        Phase::After { nr, stamped, just } => {
            left.begun = unstamp(uc, stamped);
            uc.gprs.rip = site.next();
            uc.gprs.rcx = site.next();
            uc.gprs.r11 = uc.gprs.rflags;
            left.nr = nr;
            left.interrupted = just
                && uc.gprs.rax == EINTR as u64
                && sites_code::class(nr as u64).is_some_and(|c| c.restart);
            left.result = just.then(|| (uc.gprs.rax as i64, arguments(uc)));
        }
    }
    left
}

/// The site of the trampoline that contains `rip`, and the offset in it.
fn at_trampoline(rip: u64) -> Option<(&'static Call, u64)> {
    let (edit, offset) = tables().caves.edit_of(rip)?;
    Some((list().at(edit)?, offset))
}

/// The result of a single step over the patched instruction.
pub enum Stepped {
    No,
    /// The instruction that loads the number has been executed.
    Mov,
    /// The `syscall` must be dispatched now: the context is the one behind it.
    Syscall,
    /// The instruction before the `syscall` is next, at the beginning of the slot.
    First,
}

/// The trap flag has stopped a thread at a trampoline: executes one original instruction.
pub fn step(uc: &mut UContext) -> Stepped {
    if !SOME.load(Relaxed) {
        return Stepped::No;
    }
    let Some((site, 0)) = at_trampoline(uc.gprs.rip) else {
        return Stepped::No;
    };
    if site.first {
        uc.gprs.rip = slots_base() + (site.slot * SLOT) as u64;
        return Stepped::First;
    }
    match site.mov {
        Some(nr) => {
            if site.xor() {
                uc.gprs.rflags = uc.gprs.rflags & !eflags::STATUS | eflags::ZF | eflags::PF;
            }
            uc.gprs.rax = nr as u64;
            uc.gprs.rip = site.insn;
            Stepped::Mov
        }
        None => {
            uc.gprs.rip = site.next();
            Stepped::Syscall
        }
    }
}
