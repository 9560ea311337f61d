//! Patched accesses, as the program's threads meet them (`engine/src/patch` defines a patch).
//!
//! A fault discovers a site; the stub's task patches a hot one with the world stopped (`control/patches.rs`).
//! Correctness never depends on a patch. Hits are accounted for by `direct.rs`. Cases that a trampoline cannot decide
//! raise its `int3`, and accesses that it cannot reach fault. Both of these end in `fault::again`, which does the same
//! as a fault on the original instruction.
//!
//! A thread inside a trampoline counts as running. When it is interrupted, [`leave`] changes its registers into those
//! of the original code, so no code outside this file meets a PC in a trampoline. While the world is stopped no thread
//! is in one, so tables and trampolines may change.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::errno::ENOMEM;
use linux_raw_sys::general as k;
use ulpf_engine::cpu::Gprs;
use ulpf_engine::patch::{IDLE_ROUND, IDLE_START, JUMP, Part, Phase};
use ulpf_lib::eflags;
use ulpf_lib::guard::PAGES;
use ulpf_lib::place::{self, MEMORY_LEN};
use ulpf_lib::ring::{Area, IDLE_COUNTS, Unpatched};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_lib::{PAGE_SIZE, TargetAddr, WatchId};
use ulpf_stub_tables::back_off::By;
use ulpf_stub_tables::edit::{Edit, List};
use ulpf_stub_tables::patches::{Known, MOST_ENTRIES, Patch, Table, tsc};

use crate::check::{entries, regions};
use crate::direct_frame;
use crate::global::{g, tables};
use crate::locks::Held;
use crate::runtime::areas::{GS_TAKEN, SOME, area, gs, is_area, set_gs};
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::stopped::Stopped;

pub fn table() -> &'static Table {
    &tables().patches
}

/// The patches.
pub fn list() -> &'static List<Patch> {
    &tables().edits.accesses
}

/// Removes the tables of pages: no trampoline is left that could read them.
pub fn drop_tables(stopped: &mut Stopped) {
    let t = &mut stopped.tables_mut().patches;
    let of = core::mem::take(&mut t.tables);
    if of.classes == 0 {
        return;
    }
    // SAFETY: there are no readers any more.
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

/// Bytes of a table with a byte for each page of the place's memory.
pub const TALLIES_LEN: u64 = MEMORY_LEN / PAGE_SIZE;
/// Bytes of the table of pages that are watched as a whole, including the distances before it.
pub const WHOLE_LEN: u64 = PAGE_SIZE + 2 * PAGES;
/// Bytes of a table with a bit for each byte of the place's memory.
pub const BITS_LEN: u64 = MEMORY_LEN / 8 + PAGE_SIZE;

/// Hot sites are looked for.
pub static ENABLED: AtomicBool = AtomicBool::new(true);
/// Accesses of a site to guarded pages, without a stop, before it is patched.
pub static AFTER: AtomicU32 = AtomicU32::new(4);

/// True if a trampoline checks the access of the instruction at `pc`.
pub fn is_patched(pc: u64) -> bool {
    SOME.load(Relaxed) && list().covering(pc).is_some_and(|p| p.group.checks(pc))
}

/// The patch in place that checks the access of the instruction at `pc`, if the instruction's code is still there
/// behind the jump. A jump to this code meets the guard and faults.
fn before(pc: u64) -> Option<&'static Patch> {
    let looked_at = list().covering(pc).filter(|p| p.group.checks(pc));
    looked_at.filter(|p| pc >= p.start() + JUMP as u64)
}

/// True if jumps to the instruction at `pc`, behind a patch, have often faulted, and this is not known to be unavoidable.
pub fn is_entered_behind(pc: u64) -> bool {
    has_been_entered(pc, AFTER.load(Relaxed))
}

/// True if a jump to the instruction at `pc`, behind a patch, has ever faulted.
pub fn may_be_entered_behind(pc: u64) -> bool {
    has_been_entered(pc, 1)
}

fn has_been_entered(pc: u64, least: u32) -> bool {
    let often = |p: &Patch| p.entered.load(Relaxed) >= least;
    before(pc).is_some_and(often) && table().refused.get(&pc) != Some(&Unpatched::Entered)
}

/// Notes a fault of the instruction at `pc` on this page. Returns the reason why its access caused a fault.
pub fn has_faulted(pc: u64, page: TargetAddr) -> Unpatched {
    // The page has a class, so a trampoline would not have met the guard.
    if g().page_map.class(page) != 0
        && let Some(p) = before(pc)
    {
        p.entered.fetch_add(1, Relaxed);
        return Unpatched::Entered;
    }
    why_not(pc)
}

/// The reason why an access of the instruction at `pc` faults.
pub fn why_not(pc: u64) -> Unpatched {
    let table = table();
    match list().covering(pc) {
        _ if !ENABLED.load(Relaxed) => Unpatched::Off,
        Some(p) if p.group.checks(pc) => match table.refused.get(&pc) {
            Some(Unpatched::Entered) => Unpatched::Entered,
            _ => Unpatched::Page,
        },
        Some(_) => Unpatched::Beneath,
        None => match table.refused.get(&pc) {
            Some(why) => *why,
            None if list().checking(pc).is_some() => Unpatched::Cooled,
            None => Unpatched::Cold,
        },
    }
}

/// Gives the calling thread its area, so that trampolines stop faulting on it. Returns `false` if the program uses gs.
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

/// The address whose alias is `alias`.
pub fn behind_alias(alias: u64) -> Option<u64> {
    let addresses = table().distances.iter().map(|d| alias.wrapping_sub(*d));
    addresses
        .into_iter()
        .find(|a| g().alias_of(*a).is_some_and(|found| found.0 == alias))
}

/// The patch whose trampoline covers `pc`, and the offset in it.
fn trampoline(pc: u64) -> Option<(&'static Patch, u16)> {
    let (edit, offset) = tables().caves.edit_of(pc)?;
    Some((list().at(edit)?, offset as u16))
}

// ---- interrupted inside a trampoline -------------------------------------------------------------

/// The place where a thread has left a trampoline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// At an instruction whose access the trampoline checks.
    Access,
    /// At any other instruction.
    Elsewhere,
}

fn register(gprs: &mut Gprs, n: u8) -> Option<&mut u64> {
    gprs.get_mut(n)
}

/// Restores the program's values of the three registers that a trampoline uses.
fn restore(area: &Area, uc: &mut UContext, a: u8, b: u8) -> Option<()> {
    *register(&mut uc.gprs, b)? = area.other.load(Relaxed);
    uc.gprs.rcx = area.rcx.load(Relaxed);
    *register(&mut uc.gprs, a)? = area.address.load(Relaxed);
    Some(())
}

fn add(count: &AtomicU64, n: u64) {
    count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
}

/// The counter that the trampoline uses at present.
fn tally<'a>(area: &Area, counts: &'a [AtomicU64]) -> Option<&'a AtomicU64> {
    counts.get(area.tally.load(Relaxed) as usize)
}

/// True if the access that a trampoline has just made left the value unchanged.
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

/// True if the values are equal, as far as the store of `part` goes, of 4 or 8 bytes.
fn is_same(value: u64, old: u64, part: &Part) -> bool {
    let size = part.access().map_or(8, |access| access.mem().size);
    (value ^ old) << (64 - 8 * u32::from(size.clamp(1, 8))) == 0
}

/// Changes a context inside a trampoline into that of the original code. Returns `None` for other contexts.
pub fn leave(t: Current, uc: &mut UContext) -> Option<Left> {
    if entries::leave(uc) {
        return Some(Left::Elsewhere);
    }
    if !SOME.load(Relaxed) {
        return None;
    }
    let area = area(t)?;
    direct_frame::leave(area, uc);
    let (p, offset) = trampoline(uc.gprs.rip)?;
    let mark = p.trampoline.mark(offset)?;
    let n = mark.part as usize;
    let part = p.group.parts.get(n)?;
    let after = part.next(area.target.load(Relaxed));
    if mark.moved {
        uc.gprs.rsp = area.rsp.load(Relaxed);
    }
    let (a, b) = (
        p.trampoline.address.get(n).copied().unwrap_or(0),
        p.trampoline.other.get(n).copied().unwrap_or(0),
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
                Held::by_trampoline(*register(&mut uc.gprs, a)?).give_back();
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
        Phase::Address | Phase::Own => {
            let saved = match mark.phase {
                Phase::Own => part.own_register()?,
                _ => a,
            };
            *register(&mut uc.gprs, saved)? = area.address.load(Relaxed);
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

/// A thread has jumped to where an instruction was before a patch.
pub enum DisplacedEntry {
    /// The thread continues at the copy.
    Copy,
    /// The thread is still there. The patch at this address must be removed before it continues.
    Often(u64),
}

/// Handles the `int3` at `at` if it belongs to a trampoline: then the context becomes that of the original instruction,
/// whose access must be performed.
pub fn trap(t: Current, uc: &mut UContext, at: u64) -> bool {
    let ours = SOME.load(Relaxed) && trampoline(at).is_some_and(|(p, o)| p.trampoline.traps(o));
    if ours {
        uc.gprs.rip = at;
        leave(t, uc);
    }
    ours
}

/// Executes the `int3` of a trampoline again. A SIGTRAP sent by a process may have replaced its trap.
pub fn untrap(uc: &mut UContext) {
    let at = uc.gprs.rip.wrapping_sub(1);
    let ours = SOME.load(Relaxed) && trampoline(at).is_some_and(|(p, o)| p.trampoline.traps(o));
    if ours || direct_frame::is_trap(at) {
        uc.gprs.rip = at;
    }
}

/// The copy of the instruction that was at `pc` before a patch, if the instruction is not there any more.
fn copy_of(pc: u64) -> Option<(&'static Patch, u64)> {
    if !SOME.load(Relaxed) {
        return None;
    }
    let p = list().covering(pc).filter(|p| p.start() != pc)?;
    let n = p.group.entered(pc)?;
    // Behind the jump, the original code is unchanged.
    if pc >= p.start() + JUMP as u64 {
        return None;
    }
    Some((p, p.at + u64::from(*p.trampoline.parts.get(n)?)))
}

/// Handles a jump of the thread to where an instruction was before a patch.
pub fn enter_displaced(t: Current, uc: &mut UContext) -> Option<DisplacedEntry> {
    let (p, copy) = copy_of(uc.gprs.rip)?;
    DISPLACED_ENTRIES.fetch_add(1, Relaxed);
    p.displaced_entries.fetch_add(1, Relaxed);
    let i = t.own();
    let may_ask = !t.stepping.load(Relaxed)
        && i.own_step.get().is_none()
        && t.tgid() == g().pid.load(Relaxed);
    if p.hopeless() && may_ask {
        return Some(DisplacedEntry::Often(p.start()));
    }
    uc.gprs.rip = copy;
    Some(DisplacedEntry::Copy)
}

/// The last action of a handler: a thread that continues behind a patched instruction is sent to the copy at once, so
/// that it need not land. A thread in a small loop ([`visit`]) may enter the trampoline.
pub fn skip(t: Current, uc: &mut UContext) {
    let visited = t.own().visit.take();
    if uc.gprs.rflags & eflags::TF != 0 {
        return;
    }
    if visited != 0
        && let Some(p) = loop_at(visited)
        && let Some(n) = p.group.part(uc.gprs.rip)
        && let Some(copy) = p.trampoline.parts.get(n)
    {
        uc.gprs.rip = p.at + u64::from(*copy);
    } else if let Some((_, copy)) = copy_of(uc.gprs.rip) {
        uc.gprs.rip = copy;
    }
}

/// The patch of the access at `pc`, if its jump is removed, but a loop may run in its trampoline.
fn loop_at(pc: u64) -> Option<&'static Patch> {
    let p = list().checking(pc)?;
    let may = !p.is_in_place() && p.group.loops() && ENABLED.load(Relaxed);
    (may && !GS_TAKEN.load(Relaxed) && !taken(p.start(), p.end())).then_some(p)
}

/// The access at `pc` has met a guard again: the handler should continue in the trampoline, which needs no code change.
/// Returns `false` if there is no loop, or a loop that is too short for that.
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

// ---- switching patches on and off ----------------------------------------------------------------

/// True if `[start, end)` contains a change of code that is not a patch of an access.
pub fn taken(start: u64, end: u64) -> bool {
    tables().edits.others_touch(start, end)
}

/// True if this is the only thread of the program. Then the stub's task waits for it before it changes shared state,
/// and no other thread runs the code.
fn alone(t: Current) -> bool {
    let i = t.own();
    let only = || g().threads.iter().nth(1).is_none();
    // (Asked twice: a thread whose execve has failed is alive again before it is removed from the count.)
    t.tgid() == g().pid.load(Relaxed)
        && !t.stepping.load(Relaxed)
        && i.own_step.get().is_none()
        && only()
        && g().in_exec.load(SeqCst) == 0
        && only()
}

/// True if this thread may write the jump itself.
fn may_switch(t: Current, p: &Patch) -> bool {
    let may = p.plain_code && !p.hopeless() && ENABLED.load(Relaxed) && !GS_TAKEN.load(Relaxed);
    may && alone(t)
}

/// Writes the jump of the patch of the instruction at `pc` (or removes it) without the stub's task. Returns `false` if
/// the task must do it.
pub fn switch(t: Current, pc: u64, on: bool) -> bool {
    let Some(p) = list().checking(pc) else {
        return false;
    };
    if p.is_in_place() == on {
        return true;
    }
    if !may_switch(t, p) || on && taken(p.start(), p.end()) {
        return false;
    }
    let bytes = match on {
        true => p.ours(),
        false => p.original(),
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

/// The system does not allow writing to code where it is executed.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Writes code that no thread runs at present. It is [`Patch::plain_code`].
fn overwrite(at: u64, bytes: &[u8]) -> bool {
    const READ_EXEC: u32 = k::PROT_READ | k::PROT_EXEC;
    let page = at & !(PAGE_SIZE - 1);
    let len = (at + bytes.len() as u64 - page).next_multiple_of(PAGE_SIZE);
    if FORBIDDEN.load(Relaxed) {
        return false;
    }
    // SAFETY: private file pages that are readable and executable (`control::patches` has checked that, and follows
    // every change), and are so again afterwards. If the system forbids the first change, nothing has changed.
    unsafe {
        if let Err(why) = sys!(k::__NR_mprotect, page, len, READ_EXEC | k::PROT_WRITE) {
            // Too many mappings for now.
            FORBIDDEN.store(why != Errno(ENOMEM as i32), Relaxed);
            return false;
        }
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
        let _ = sys!(k::__NR_mprotect, page, len, READ_EXEC);
    }
    true
}

/// The fate of a patch that has met no guard for [`IDLE_ROUND`] times.
pub enum Idle {
    Stays,
    Removed,
    /// The stub's task must remove it.
    ToRemove,
}

/// The trampoline has met no guard at the instruction at `pc`.
pub fn idle(t: Current, area: &Area, pc: u64) -> Idle {
    let Some(p) = list().checking(pc) else {
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

/// The watch that counts all stores to the page of `addr`, if there is only one, and it does no more.
pub fn counting(addr: u64) -> Option<WatchId> {
    let (map, tallies) = (&g().page_map, table().tables.tallies);
    if tallies == 0 || map.class(TargetAddr(addr)) == 0 || regions::is_checked(addr) {
        return None;
    }
    let alias = g().alias_of(addr)?.0;
    // SAFETY: a page with a class has its alias in our place, which the table covers.
    let tally = unsafe { *((tallies + alias / PAGE_SIZE) as *const u8) };
    let watch = g().header()?.tallies.get(usize::from(tally))?.load(Relaxed);
    watch.checked_sub(1).filter(|_| tally != 0).map(WatchId)
}

/// Counts as trampolines do: the one of `known` has met a guard, or none. Returns `Some` after [`IDLE_ROUND`] times in a
/// row without a guard.
pub fn count_idle(t: Current, area: &Area, known: &Known, guarded: bool) -> Option<Idle> {
    let word = area.idle_count.get(known.idle_count as usize)?;
    if guarded {
        word.store(IDLE_START as u64, Relaxed);
        return None;
    }
    let n = word.load(Relaxed);
    let low = (n as u32).wrapping_add(1);
    word.store(n >> 32 << 32 | u64::from(low), Relaxed);
    (low & 0xff == 0).then(|| idle(t, area, known.pc))
}

/// The offset of a word of [`Area::idle_count`].
pub fn idle_count_at(n: usize) -> usize {
    core::mem::offset_of!(Area, idle_count) + n % IDLE_COUNTS * size_of::<AtomicU64>()
}

pub static DISPLACED_ENTRIES: AtomicU64 = AtomicU64::new(0);

/// Restores a cave of ours to the state in which the program had reserved it: empty, and not accessible.
pub fn close_reserved(start: u64, len: u64) {
    // SAFETY: no thread is in the cave, or will be.
    unsafe {
        let _ = sys!(k::__NR_madvise, start, len, k::MADV_DONTNEED);
        let _ = sys!(k::__NR_mprotect, start, len, k::PROT_NONE);
    }
}
