//! Patched accesses, seen from the program's threads (what a patch is: `engine/src/patch`).
//!
//! A fault discovers a site; one that is hot is patched by the stub's task with the world at rest
//! (`control/patches.rs`). Correctness never depends on a patch: hits are `direct.rs`'s, what a body cannot
//! decide it leaves to `int3`, what it cannot reach faults, and the latter two end in `fault::again`, which
//! does what a fault on the original instruction does.
//!
//! A thread inside a body counts as running. Whatever interrupts it, [`leave`] turns its registers into
//! those of the original code, so nobody outside this file meets a PC in a body, no thread is in one
//! while the world rests, and tables and bodies may change then.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::errno::ENOMEM;
use linux_raw_sys::general as k;
use ulpf_engine::access::Insn;
use ulpf_engine::cpu::Gprs;
use ulpf_engine::patch::{IDLE_ROUND, IDLE_START, JUMP, Part, Phase, What};
use ulpf_lib::eflags;
use ulpf_lib::guard::PAGES;
use ulpf_lib::place::{self, MEMORY_LEN};
use ulpf_lib::ring::{Area, IDLE_COUNTS, Unpatched};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_lib::{PAGE_SIZE, TargetAddr};
use ulpf_stub_tables::patches::{MOST_ENTRIES, Patch, Table, tsc};
use ulpf_stub_tables::patience::By;

use crate::check::{entries, requests};
use crate::child;
use crate::direct_frame;
use crate::generated;
use crate::global::{g, tables};
use crate::locks::Held;
use crate::rest::AtRest;
use crate::runtime::areas::{GS_TAKEN, SOME, area, disable, gs, is_area, set_gs};
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::syscalls::sites;

pub fn table() -> &'static Table {
    &tables().patches
}

/// Takes the tables of pages away: no body is left that could look.
pub fn drop_tables(rest: &mut AtRest) {
    let t = &mut rest.tables_mut().patches;
    let of = core::mem::take(&mut t.tables);
    if of.classes == 0 {
        return;
    }
    // SAFETY: nobody looks any more.
    unsafe {
        g().page_map
            .use_classes(core::ptr::null_mut(), core::ptr::null_mut())
    };
    let memory = place::memory().start;
    place::unmap(of.classes - PAGE_SIZE, PAGES + PAGE_SIZE);
    place::unmap(of.writes.wrapping_add(memory / 8), BITS_LEN);
    if of.reads != of.writes {
        place::unmap(of.reads.wrapping_add(memory / 8), BITS_LEN);
    }
    place::unmap(of.tallies.wrapping_add(memory / PAGE_SIZE), TALLIES_LEN);
    place::unmap(of.whole - PAGE_SIZE, WHOLE_LEN);
}

/// Bytes of a table with a byte for each page of our place.
pub const TALLIES_LEN: u64 = MEMORY_LEN / PAGE_SIZE;
/// Bytes of the table of pages that are watched as a whole, and of the distances before it.
pub const WHOLE_LEN: u64 = PAGE_SIZE + 2 * PAGES;
/// Bytes of a table with a bit for each byte of our place.
pub const BITS_LEN: u64 = MEMORY_LEN / 8 + PAGE_SIZE;

/// Sites are looked for.
pub static ENABLED: AtomicBool = AtomicBool::new(true);
/// Accesses of a site to guarded pages that stop nobody, before it is patched.
pub static AFTER: AtomicU32 = AtomicU32::new(4);

pub fn touches(start: u64, end: u64) -> bool {
    SOME.load(Relaxed) && table().touches(start, end)
}

/// Is the access of the instruction at `pc` looked at by a body?
pub fn is_patched(pc: u64) -> bool {
    SOME.load(Relaxed) && table().at(pc).is_some_and(|p| p.group.checks(pc))
}

/// The patch in place that looks at the access of the instruction at `pc`, whose code is still there behind the jump: who
/// jumps to it faults.
fn before(pc: u64) -> Option<&'static Patch> {
    let looked_at = table().at(pc).filter(|p| p.group.checks(pc));
    looked_at.filter(|p| pc >= p.start() + JUMP as u64)
}

/// Has that happened often, and is it not known that it must be so?
pub fn is_entered_behind(pc: u64) -> bool {
    has_been_entered(pc, AFTER.load(Relaxed))
}

/// Has it happened at all?
pub fn may_be_entered_behind(pc: u64) -> bool {
    has_been_entered(pc, 1)
}

fn has_been_entered(pc: u64, least: u32) -> bool {
    let often = |p: &Patch| p.entered.load(Relaxed) >= least;
    before(pc).is_some_and(often) && table().refused.get(&pc) != Some(&Unpatched::Entered)
}

/// A fault of the instruction at `pc`, on this page. Why its access has cost one.
pub fn has_faulted(pc: u64, page: TargetAddr) -> Unpatched {
    // With a class a body would not have met the guard.
    if g().page_map.class(page) != 0
        && let Some(p) = before(pc)
    {
        p.entered.fetch_add(1, Relaxed);
        return Unpatched::Entered;
    }
    why_not(pc)
}

/// Why an access of the instruction at `pc` costs a fault.
pub fn why_not(pc: u64) -> Unpatched {
    let table = table();
    match table.at(pc) {
        _ if !ENABLED.load(Relaxed) => Unpatched::Off,
        Some(p) if p.group.checks(pc) => match table.refused.get(&pc) {
            Some(Unpatched::Entered) => Unpatched::Entered,
            _ => Unpatched::Page,
        },
        Some(_) => Unpatched::Beneath,
        None => match table.refused.get(&pc) {
            Some(why) => *why,
            None if table.of(pc).is_some() => Unpatched::Cooled,
            None => Unpatched::Cold,
        },
    }
}

/// Reads code as it is without patches: as much of it as can be read.
pub fn original(addr: u64, to: &mut [u8]) -> &mut [u8] {
    let n = memory::look(addr, to);
    let code = to.get_mut(..n).unwrap_or(&mut []);
    hide(addr, code);
    code
}

/// Puts the original bytes into what was read from `addr` on.
pub fn hide(addr: u64, buf: &mut [u8]) {
    if !SOME.load(Relaxed) {
        return;
    }
    let table = table();
    let end = addr.saturating_add(buf.len() as u64);
    let first = table.before(addr).map_or(addr, |p| p.start());
    for p in table.within(first..end) {
        let jump = if p.is_in_place() { JUMP } else { 0 };
        for (at, byte) in (p.start()..).zip(p.group.bytes.iter().take(jump)) {
            if at >= addr
                && let Some(slot) = buf.get_mut((at - addr) as usize)
            {
                *slot = *byte;
            }
        }
    }
}

/// Gives the calling thread its area, so that its bodies stop faulting. `false`: gs is the program's.
pub fn enable(t: Current) -> bool {
    let Some(a) = area(t) else { return true };
    let base = a as *const Area as u64;
    a.entry.store(direct_frame::entry(), Relaxed);
    a.stack.store(direct_frame::frame(t), Relaxed);
    if let Some(h) = g().header() {
        h.areas.fetch_max(t.index.load(Relaxed) + 1, Release);
    }
    match gs() {
        at if at == base => {}
        at if at == 0 || is_area(at) => set_gs(base),
        _ => {
            GS_TAKEN.store(true, SeqCst);
            return false;
        }
    }
    true
}

/// The address whose alias this is.
pub fn behind_alias(alias: u64) -> Option<u64> {
    let addresses = table().distances.iter().map(|d| alias.wrapping_sub(*d));
    addresses
        .into_iter()
        .find(|a| g().alias_of(*a).is_some_and(|found| found.0 == alias))
}

// ---- interrupted inside a body -----------------------------------------------------------------

/// A thread has been taken out of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It stands before an instruction whose access is looked at there.
    Access,
    /// Anywhere else.
    Elsewhere,
}

fn register(gprs: &mut Gprs, n: u8) -> Option<&mut u64> {
    gprs.get_mut(n)
}

/// The three registers of a body are the program's again.
fn restore(area: &Area, uc: &mut UContext, a: u8, b: u8) -> Option<()> {
    *register(&mut uc.gprs, b)? = area.other.load(Relaxed);
    uc.gprs.rcx = area.rcx.load(Relaxed);
    *register(&mut uc.gprs, a)? = area.address.load(Relaxed);
    Some(())
}

fn add(count: &AtomicU64, n: u64) {
    count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
}

/// What a body counts for at present.
fn tally<'a>(area: &Area, counts: &'a [AtomicU64]) -> Option<&'a AtomicU64> {
    counts.get(area.tally.load(Relaxed) as usize)
}

/// Has the access that a body has just made left everything as it was?
fn unchanged(area: &Area, uc: &mut UContext, part: &Part, a: u8, b: u8) -> bool {
    let Some(access) = part.access() else {
        return false;
    };
    let size = access.mem().size as usize;
    let mut now = [0u8; 64];
    let Some(now) = now.get_mut(..size) else {
        return false;
    };
    let alias = register(&mut uc.gprs, a).map_or(0, |r| *r);
    if memory::read(alias, now) != size {
        return false;
    }
    let mut old = [0u8; 64];
    if size <= 8 {
        let value = register(&mut uc.gprs, b).map_or(0, |r| *r);
        if let Some(to) = old.first_chunk_mut() {
            *to = value.to_le_bytes();
        }
    } else {
        for (to, from) in old.chunks_exact_mut(8).zip(&area.old) {
            to.copy_from_slice(&from.load(Relaxed).to_le_bytes());
        }
    }
    old.get(..size) == Some(now)
}

/// Are these the same, as far as the store of `part` goes, of 4 or 8 bytes?
fn is_same(value: u64, old: u64, part: &Part) -> bool {
    let size = part.access().map_or(8, |access| access.mem().size);
    (value ^ old) << (64 - 8 * u32::from(size.clamp(1, 8))) == 0
}

/// If the context is inside a body, makes it that of the original code.
pub fn leave(t: Current, uc: &mut UContext) -> Option<Left> {
    if entries::leave(uc) {
        return Some(Left::Elsewhere);
    }
    if !SOME.load(Relaxed) {
        return None;
    }
    let area = area(t)?;
    direct_frame::leave(area, uc);
    let (p, offset) = table().body(uc.gprs.rip)?;
    let mark = p.body.mark(offset)?;
    let n = mark.part as usize;
    let part = p.group.parts.get(n)?;
    let after = part.next(area.target.load(Relaxed));
    if mark.moved {
        uc.gprs.rsp = area.rsp.load(Relaxed);
    }
    let (a, b) = (
        p.body.address.get(n).copied().unwrap_or(0),
        p.body.other.get(n).copied().unwrap_or(0),
    );
    match mark.phase {
        Phase::Before => uc.gprs.rip = part.at,
        Phase::Saved
        | Phase::Closer
        | Phase::Counted
        | Phase::Tallied
        | Phase::Runs
        | Phase::Locking
        | Phase::Locked => {
            let locked = match mark.phase {
                Phase::Locking => uc.gprs.rcx as u32 == 0,
                other => other == Phase::Locked,
            };
            if locked {
                Held::by_body(*register(&mut uc.gprs, a)?).give_back();
            }
            if matches!(mark.phase, Phase::Closer | Phase::Runs) {
                uc.gprs.r11 = area.r11.load(Relaxed);
            }
            restore(area, uc, a, b)?;
            match mark.phase {
                Phase::Counted => add(&area.passed, u64::MAX),
                Phase::Tallied => add(tally(area, &area.hits)?, u64::MAX),
                Phase::Runs => {
                    let runs = area.value.load(Relaxed);
                    add(tally(area, &area.hits)?, runs.wrapping_neg());
                }
                _ => {}
            }
            uc.gprs.rip = part.at;
        }
        Phase::Asked | Phase::AskedTallied => {
            uc.gprs.rcx = area.rcx.load(Relaxed);
            *register(&mut uc.gprs, a)? = area.address.load(Relaxed);
            if mark.phase == Phase::AskedTallied {
                let of = area.idle_count.get(p.idle_count)?.load(Relaxed);
                add(area.hits.get(of as usize)?, u64::MAX);
            }
            uc.gprs.rip = part.at;
        }
        Phase::Fresh | Phase::Compare | Phase::Silent | Phase::Rest => {
            if mark.phase == Phase::Fresh {
                area.rcx.store(uc.gprs.rcx, Relaxed);
            }
            let silent = match mark.phase {
                Phase::Silent => true,
                Phase::Rest => false,
                _ => unchanged(area, uc, part, a, b),
            };
            if silent {
                add(tally(area, &area.silent)?, 1);
            }
            restore(area, uc, a, b)?;
            uc.gprs.rip = after;
        }
        Phase::Stored | Phase::StoredRcx | Phase::StoredSilent => {
            let rcx = uc.gprs.rcx;
            let silent = match mark.phase {
                Phase::StoredSilent => true,
                Phase::StoredRcx => is_same(rcx, area.old.first()?.load(Relaxed), part),
                _ => rcx == 0,
            };
            if silent {
                let of = area.idle_count.get(p.idle_count)?.load(Relaxed);
                add(area.silent.get(of as usize)?, 1);
            }
            uc.gprs.rcx = area.rcx.load(Relaxed);
            *register(&mut uc.gprs, a)? = area.address.load(Relaxed);
            uc.gprs.rip = after;
        }
        Phase::HitSaved => {
            restore(area, uc, a, b)?;
            uc.gprs.rip = area.entry.load(Relaxed);
        }
        Phase::Hit => {
            *register(&mut uc.gprs, a)? = area.address.load(Relaxed);
            uc.gprs.rip = area.entry.load(Relaxed);
        }
        Phase::Done => {
            *register(&mut uc.gprs, a)? = area.address.load(Relaxed);
            uc.gprs.rip = after;
        }
        Phase::After => uc.gprs.rip = after,
        Phase::Pushed => {
            uc.gprs.rsp = uc.gprs.rsp.wrapping_add(8);
            uc.gprs.rip = part.at;
        }
    }
    Some(if part.is_looked_at() && uc.gprs.rip == part.at {
        Left::Access
    } else {
        Left::Elsewhere
    })
}

/// A thread at a place where an instruction was before a patch.
pub enum Landing {
    /// It is on the way to the copy.
    Copy,
    /// It stands there. The patch at this address is to go before the thread may go on.
    Often(u64),
}

/// Is the `int3` at `at` a body's, which wants its access looked at? Then the context is that of the original
/// instruction.
pub fn trap(t: Current, uc: &mut UContext, at: u64) -> bool {
    let ours = SOME.load(Relaxed) && table().body(at).is_some_and(|(p, o)| p.body.traps(o));
    if ours {
        uc.gprs.rip = at;
        leave(t, uc);
    }
    ours
}

/// A SIGTRAP that somebody has sent may have taken the place of an `int3`'s: then that is executed anew.
pub fn untrap(uc: &mut UContext) {
    let at = uc.gprs.rip.wrapping_sub(1);
    let ours = SOME.load(Relaxed) && table().body(at).is_some_and(|(p, o)| p.body.traps(o));
    if ours || direct_frame::is_trap(at) {
        uc.gprs.rip = at;
    }
}

/// The copy of the instruction that was at `pc` before a patch, if that is no longer there.
fn copy_of(pc: u64) -> Option<(&'static Patch, u64)> {
    if !SOME.load(Relaxed) {
        return None;
    }
    let p = table().at(pc).filter(|p| p.start() != pc)?;
    let n = p.group.entered(pc)?;
    // Behind the jump stands what always stood there.
    if pc >= p.start() + JUMP as u64 {
        return None;
    }
    Some((p, p.at + u64::from(*p.body.parts.get(n)?)))
}

/// Has the thread jumped to where an instruction was before a patch?
pub fn landed(t: Current, uc: &mut UContext) -> Option<Landing> {
    let (p, copy) = copy_of(uc.gprs.rip)?;
    LANDINGS.fetch_add(1, Relaxed);
    p.landings.fetch_add(1, Relaxed);
    let i = t.own();
    let may_ask = !t.stepping.load(Relaxed)
        && i.own_step.get().is_none()
        && t.tgid() == g().pid.load(Relaxed);
    if p.hopeless() && may_ask {
        return Some(Landing::Often(p.start()));
    }
    uc.gprs.rip = copy;
    Some(Landing::Copy)
}

/// The last that a handler does: a thread that goes on behind a patched instruction need not land, and one that
/// goes round in a small loop ([`visit`]) may do so in the body.
pub fn skip(t: Current, uc: &mut UContext) {
    let visited = t.own().visit.take();
    if uc.gprs.rflags & eflags::TF != 0 {
        return;
    }
    if visited != 0
        && let Some(p) = loop_at(visited)
        && let Some(n) = p.group.part(uc.gprs.rip)
        && let Some(copy) = p.body.parts.get(n)
    {
        uc.gprs.rip = p.at + u64::from(*copy);
    } else if let Some((_, copy)) = copy_of(uc.gprs.rip) {
        uc.gprs.rip = copy;
    }
}

/// The patch of the access at `pc`, if its jump is out, but a loop may go on in its body.
fn loop_at(pc: u64) -> Option<&'static Patch> {
    let p = table().of(pc)?;
    let may = !p.is_in_place() && p.group.loops() && ENABLED.load(Relaxed);
    (may && !GS_TAKEN.load(Relaxed) && !taken(p.start(), p.end())).then_some(p)
}

/// The access at `pc` has met a guard again: the handler is to go on in the body, which needs no change of any
/// code. `false`: its loop, if there is one, is too short for that.
pub fn visit(t: Current, pc: u64) -> bool {
    let Some(p) = loop_at(pc).filter(|p| p.entries.load(Relaxed) < MOST_ENTRIES) else {
        return false;
    };
    p.entries.fetch_add(1, Relaxed);
    if let Some(h) = g().header() {
        p.learn(By::Visit, h);
    }
    t.own().visit.set(pc);
    true
}

// ---- in and out --------------------------------------------------------------------------------

/// Does something that is no patch of an access stand in `[start, end)`?
pub fn taken(start: u64, end: u64) -> bool {
    sites::touches(start, end)
        || requests::touches(start, end)
        || g()
            .breakpoints()
            .iter()
            .any(|b| b.addr >= start && b.addr < end)
}

/// The only thread of the program that there is: the stub's task waits for it before it touches what is
/// shared, and nobody else runs the code.
fn alone(t: Current) -> bool {
    let i = t.own();
    let only = || g().threads.iter().nth(1).is_none();
    // (Asked twice: a thread whose execve has failed is alive again before it is not counted any more.)
    t.tgid() == g().pid.load(Relaxed)
        && !t.stepping.load(Relaxed)
        && i.own_step.get().is_none()
        && only()
        && g().in_exec.load(SeqCst) == 0
        && only()
}

/// May this thread write the jump itself?
fn may_switch(t: Current, p: &Patch) -> bool {
    let may = p.plain_code && !p.hopeless() && ENABLED.load(Relaxed) && !GS_TAKEN.load(Relaxed);
    may && alone(t)
}

/// Puts the patch of the instruction at `pc` back (or takes it out), without the stub's task. `false`: that
/// has to do it.
pub fn switch(t: Current, pc: u64, on: bool) -> bool {
    let Some(p) = table().of(pc) else {
        return false;
    };
    if p.is_in_place() == on {
        return true;
    }
    if !may_switch(t, p) || on && taken(p.start(), p.end()) {
        return false;
    }
    let bytes = match on {
        true => p.jump.as_slice(),
        false => p.group.bytes.get(..JUMP).unwrap_or(&[]),
    };
    if !overwrite(p.start(), bytes) {
        return false;
    }
    if on {
        p.is_back(g().header(), By::Thread);
    } else {
        p.has_gone();
    }
    true
}

/// The system lets no code be written where it is executed.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Writes code that this thread does not run at present, and nobody else. It is [`Patch::plain_code`].
fn overwrite(at: u64, bytes: &[u8]) -> bool {
    const READ_EXEC: u32 = k::PROT_READ | k::PROT_EXEC;
    let page = at & !(PAGE_SIZE - 1);
    let len = (at + bytes.len() as u64 - page).next_multiple_of(PAGE_SIZE);
    if FORBIDDEN.load(Relaxed) {
        return false;
    }
    // SAFETY: private file pages that may be read and executed (`control::patches` has made sure, and is told
    // of every change), and are again. A system that forbids the first change leaves all as it is.
    unsafe {
        if let Err(why) = sys!(k::__NR_mprotect, page, len, READ_EXEC | k::PROT_WRITE) {
            // Too many mappings, for now.
            FORBIDDEN.store(why != Errno(ENOMEM as i32), Relaxed);
            return false;
        }
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
        let _ = sys!(k::__NR_mprotect, page, len, READ_EXEC);
    }
    true
}

/// What becomes of a patch that has met no guard for [`IDLE_ROUND`] times.
pub enum Idle {
    Stays,
    Removed,
    /// It is to go, by the stub's task.
    ToRemove,
}

/// The body has met none at the instruction at `pc`.
pub fn idle(t: Current, area: &Area, pc: u64) -> Idle {
    let Some(p) = table().of(pc) else {
        return Idle::Stays;
    };
    let Some(word) = area.idle_count.get(p.idle_count) else {
        return Idle::Stays;
    };
    let times = (word.load(Relaxed) >> 32) + 1;
    let by = p.by(may_switch(t, p));
    if !p.is_idle(times * u64::from(IDLE_ROUND), by, g().header()) {
        word.store(times << 32 | IDLE_START as u64, Relaxed);
        return Idle::Stays;
    }
    word.store(IDLE_START as u64, Relaxed);
    if !p.is_in_place() {
        p.entries.store(0, Relaxed);
        p.gone_at.store(tsc(), Relaxed);
        return Idle::Removed;
    }
    match switch(t, pc, false) {
        true => Idle::Removed,
        false => Idle::ToRemove,
    }
}

/// The string instruction at `pc`, which a body has come to.
pub fn repeated(pc: u64) -> Option<&'static Insn> {
    let p = table().of(pc)?;
    match &p.group.parts.get(p.group.part(pc)?)?.what {
        What::Repeated(insn) => Some(insn),
        _ => None,
    }
}

/// As bodies count: the one at `pc` has met a guard, or none. `Some`: none for [`IDLE_ROUND`] times in a row.
pub fn count_idle(t: Current, area: &Area, pc: u64, guarded: bool) -> Option<Idle> {
    let p = table().of(pc)?;
    let word = area.idle_count.get(p.idle_count)?;
    if guarded {
        word.store(IDLE_START as u64, Relaxed);
        return None;
    }
    let n = word.load(Relaxed);
    let low = (n as u32).wrapping_add(1);
    word.store(n >> 32 << 32 | u64::from(low), Relaxed);
    (low & 0xff == 0).then(|| idle(t, area, pc))
}

/// The offset of a word of [`Area::idle_count`].
pub fn idle_count_at(n: usize) -> usize {
    core::mem::offset_of!(Area, idle_count) + n % IDLE_COUNTS * size_of::<AtomicU64>()
}

pub static LANDINGS: AtomicU64 = AtomicU64::new(0);

/// In a forked child: the original bytes come back.
pub fn remove_in_child(rest: &mut AtRest) {
    if SOME.load(Relaxed) {
        disable();
        ENABLED.store(false, SeqCst);
        let list = table().list.values().filter(|p| p.is_in_place());
        child::put_back(list.map(|p| (p.start(), p.group.bytes.get(..JUMP).unwrap_or(&[]))));
        generated::open_in_child();
        for (start, end) in &table().reserved {
            close_reserved(*start, end - start);
        }
        SOME.store(false, SeqCst);
    }
    drop_tables(rest);
}

/// A cave of ours becomes what the program had reserved: empty, and not accessible.
pub fn close_reserved(start: u64, len: u64) {
    // SAFETY: nobody is in the cave, nor will be.
    unsafe {
        let _ = sys!(k::__NR_madvise, start, len, k::MADV_DONTNEED);
        let _ = sys!(k::__NR_mprotect, start, len, k::PROT_NONE);
    }
}
