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

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::cpu::Gprs;
use ulpf_engine::patch::{
    CALM, CALM_START, CLASS_WRITES, Group, JUMP, Part, Phase, Tables, Trampoline, What,
};
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::PAGES;
use ulpf_lib::place::{self, MEMORY_LEN};
use ulpf_lib::ring::{Area, CALMS, Unpatched};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;

use crate::direct::{self, Known};
use crate::g;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::Thread;

/// A patch. One that has not paid is kept, so that it can be put back quickly.
pub struct Patch {
    /// The jump is there.
    pub in_place: AtomicBool,
    pub group: Group,
    pub jump: [u8; JUMP],
    /// The code may be read and executed, and nothing else: what its protection is after a change of the jump
    /// by the program's thread.
    pub plain_code: bool,
    pub at: u64,
    pub body: Trampoline,
    /// What a hit of each part is told, and who has met no guard there for a while ([`Known::of`]); the body
    /// has their address.
    pub _known: Box<[Known]>,
    /// Which of [`Area::calm`].
    pub calm: usize,
    /// Accesses to pages without guard, in a row, after which it goes.
    pub patience: AtomicU32,
    /// TSC when it has gone.
    pub gone_at: AtomicU64,
    /// How often somebody has jumped into its middle.
    pub landings: AtomicU32,
    /// How often somebody has gone from a fault to the body since the jump was there, or since a thread has
    /// met no guard there for a while.
    pub entries: AtomicU32,
}

/// Bounds of [`Patch::patience`] are [`CALM`] and this.
const MOST_PATIENCE: u32 = 1 << 16;
/// What it begins with.
pub static PATIENCE: AtomicU32 = AtomicU32::new(1 << 12);

pub fn is_patience(n: u64) -> bool {
    (CALM.into()..=MOST_PATIENCE.into()).contains(&n)
}
/// Nanoseconds that it takes to take a patch out and to put it back, about.
const SWITCH: u64 = 6_000;
/// The same of leaving a body, and coming back by a fault.
const VISIT: u64 = 2_500;
/// Visits that are not worth their faults, before the jump is put in.
const MOST_ENTRIES: u32 = 4;

impl Patch {
    pub fn start(&self) -> u64 {
        self.group.start()
    }
    pub fn end(&self) -> u64 {
        self.group.end()
    }
    pub fn is_in_place(&self) -> bool {
        self.in_place.load(Relaxed)
    }
    /// Its middle is where a loop goes, most likely: the signals cost more than it saves.
    pub fn hopeless(&self) -> bool {
        self.landings.load(Relaxed) >= MOST_LANDINGS
    }

    /// The jump is out. (Whoever calls has written the code.)
    pub fn has_gone(&self) {
        self.in_place.store(false, Relaxed);
        self.gone_at.store(tsc(), Relaxed);
        REMOVED.fetch_add(1, Relaxed);
    }

    /// The jump is in again.
    pub fn is_back(&self) {
        self.learn(SWITCH);
        self.entries.store(0, Relaxed);
        self.in_place.store(true, Relaxed);
        PLACED.fetch_add(1, Relaxed);
    }

    /// Somebody needs the body again. Had it gone too soon, given the nanoseconds that this costs, it stays for
    /// longer; had it been worth it, it goes sooner.
    fn learn(&self, cost: u64) {
        let Some(h) = g().header() else { return };
        let away = h
            .nanos(tsc())
            .saturating_sub(h.nanos(self.gone_at.load(Relaxed)));
        let patience = self.patience.load(Relaxed);
        let patience = if away < cost / 2 {
            patience * 2
        } else if away > cost {
            patience / 2
        } else {
            patience
        };
        self.patience
            .store(patience.clamp(CALM, MOST_PATIENCE), Relaxed);
    }
}

pub static PLACED: AtomicU64 = AtomicU64::new(0);
pub static REMOVED: AtomicU64 = AtomicU64::new(0);

fn tsc() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

const MOST_LANDINGS: u32 = 64;

/// Written by the stub's task while the world rests. (`in_place` also by the only thread that there is.)
pub struct Table {
    /// By their start.
    pub list: Vec<Patch>,
    /// (address of the body, start), by the former.
    pub bodies: Vec<(u64, u64)>,
    /// Stretches where bodies are.
    pub rooms: Vec<(u64, u64)>,
    /// What bodies look up; all zero: not yet mapped.
    pub tables: Tables,
    /// From pages to their aliases: those of all classes.
    pub distances: Vec<u64>,
    /// Sites that were tried, and why they were not patched.
    pub refused: BTreeMap<u64, Unpatched>,
}

struct Shared(UnsafeCell<Table>);
// SAFETY: written only while all program threads rest.
unsafe impl Sync for Shared {}

static TABLE: Shared = Shared(UnsafeCell::new(Table {
    list: Vec::new(),
    bodies: Vec::new(),
    rooms: Vec::new(),
    tables: Tables {
        classes: 0,
        writes: 0,
        reads: 0,
        tallies: 0,
    },
    distances: Vec::new(),
    refused: BTreeMap::new(),
}));

pub fn table() -> &'static Table {
    // SAFETY: see `Shared`.
    unsafe { &*TABLE.0.get() }
}

/// # Safety
/// The stub's task, with the world at rest.
#[allow(clippy::mut_from_ref)]
pub unsafe fn table_mut() -> &'static mut Table {
    // SAFETY: the caller's duty.
    unsafe { &mut *TABLE.0.get() }
}

/// Takes the tables of pages away (world at rest, nobody is left who could look).
///
/// # Safety
/// As for [`table_mut`].
pub unsafe fn drop_tables() {
    // SAFETY: the caller's duty.
    let t = unsafe { table_mut() };
    let of = core::mem::take(&mut t.tables);
    if of.classes == 0 {
        return;
    }
    // SAFETY: nobody looks any more.
    unsafe { g().page_map.use_classes(core::ptr::null_mut()) };
    let memory = place::memory().start;
    place::unmap(of.classes - PAGE_SIZE, PAGES + PAGE_SIZE);
    for bits in [of.writes, of.reads] {
        place::unmap(bits.wrapping_add(memory / 8), BITS_LEN);
    }
    place::unmap(of.tallies.wrapping_add(memory / PAGE_SIZE), TALLIES_LEN);
}

/// Bytes of a table with a byte for each page of our place.
pub const TALLIES_LEN: u64 = MEMORY_LEN / PAGE_SIZE;
/// Bytes of a table with a bit for each byte of our place.
pub const BITS_LEN: u64 = MEMORY_LEN / 8 + PAGE_SIZE;

/// Anything is patched, or was: threads may have their area in gs.
pub static SOME: AtomicBool = AtomicBool::new(false);
/// Sites are looked for.
pub static ENABLED: AtomicBool = AtomicBool::new(true);
/// False positives of a site before it is patched.
pub static AFTER: AtomicU32 = AtomicU32::new(16);
/// Some thread uses gs itself.
pub static GS_TAKEN: AtomicBool = AtomicBool::new(false);

impl Table {
    /// The patch that covers `pc`.
    pub fn at(&self, pc: u64) -> Option<&Patch> {
        let n = self.list.partition_point(|p| p.start() <= pc);
        let p = self.list.get(n.checked_sub(1)?)?;
        (p.is_in_place() && pc < p.end()).then_some(p)
    }
    /// Where a patch that looks at the access of the instruction at `pc` is in the list, in place or not.
    pub fn position(&self, pc: u64) -> Option<usize> {
        let after = self.list.partition_point(|p| p.start() <= pc);
        // Groups are shorter than that.
        let from = self.list.partition_point(|p| p.start() + 64 <= pc);
        let near = self.list.get(from..after)?;
        Some(from + near.iter().rposition(|p| p.group.checks(pc))?)
    }
    /// The patch whose body covers `pc`, and where in it.
    fn body(&self, pc: u64) -> Option<(&Patch, u16)> {
        if !self.rooms.iter().any(|r| pc >= r.0 && pc < r.1) {
            return None;
        }
        let n = self.bodies.partition_point(|b| b.0 <= pc);
        let (at, start) = *self.bodies.get(n.checked_sub(1)?)?;
        let p = self.list.binary_search_by_key(&start, |p| p.start()).ok();
        let p = self.list.get(p?)?;
        let offset = pc - at;
        (offset <= p.body.code.len() as u64).then_some((p, offset as u16))
    }
    /// Does anything patched, or a body, meet `[start, end)`?
    pub fn touches(&self, start: u64, end: u64) -> bool {
        let n = self.list.partition_point(|p| p.end() <= start);
        self.list.get(n).is_some_and(|p| p.start() < end)
            || self.rooms.iter().any(|r| r.0 < end && start < r.1)
    }
}

pub fn touches(start: u64, end: u64) -> bool {
    SOME.load(Relaxed) && table().touches(start, end)
}

/// Is the access of the instruction at `pc` looked at by a body?
pub fn is_patched(pc: u64) -> bool {
    SOME.load(Relaxed) && table().at(pc).is_some_and(|p| p.group.checks(pc))
}

/// Why an access of the instruction at `pc` costs a fault.
pub fn why_not(pc: u64) -> Unpatched {
    let table = table();
    match table.at(pc) {
        _ if !ENABLED.load(Relaxed) => Unpatched::Off,
        Some(p) if p.group.checks(pc) => Unpatched::Page,
        Some(_) => Unpatched::Beneath,
        None => match table.refused.get(&pc) {
            Some(why) => *why,
            None if table.position(pc).is_some() => Unpatched::Cooled,
            None => Unpatched::Cold,
        },
    }
}

/// Puts the original bytes into what was read from `addr` on.
pub fn hide(addr: u64, buf: &mut [u8]) {
    if !SOME.load(Relaxed) {
        return;
    }
    let list = &table().list;
    let end = addr.saturating_add(buf.len() as u64);
    let mut n = list.partition_point(|p| p.end() <= addr);
    while let Some(p) = list.get(n).filter(|p| p.start() < end) {
        let jump = if p.is_in_place() { JUMP } else { 0 };
        for (at, byte) in (p.start()..).zip(p.group.bytes.iter().take(jump)) {
            if at >= addr
                && let Some(slot) = buf.get_mut((at - addr) as usize)
            {
                *slot = *byte;
            }
        }
        n += 1;
    }
}

// ---- a thread's area ---------------------------------------------------------------------------

/// What bodies keep for this thread.
pub fn area(t: &Thread) -> Option<&'static Area> {
    g().areas().get(t.index.load(Relaxed) as usize)
}

/// The program's gs base, given what the CPU has.
pub fn program_gs(t: &Thread, base: u64) -> u64 {
    match area(t) {
        Some(a) if base == a as *const Area as u64 => 0,
        _ => base,
    }
}

fn set_gs(base: u64) {
    // SAFETY: the program does not use gs, as far as this thread is concerned.
    unsafe {
        if g().fsgsbase {
            core::arch::asm!("wrgsbase {}", in(reg) base, options(nomem, nostack, preserves_flags));
        } else {
            let _ = sys!(k::__NR_arch_prctl, 0x1001, base);
        }
    }
}

fn gs() -> u64 {
    let mut base = 0u64;
    // SAFETY: reads this thread's own base.
    unsafe {
        if g().fsgsbase {
            core::arch::asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags));
        } else {
            let _ = sys!(k::__NR_arch_prctl, 0x1004, &mut base as *mut u64);
        }
    }
    base
}

/// From a page of this class to its alias, for stores.
pub fn distance(class: u64) -> u64 {
    let classes = table().tables.classes;
    if classes == 0 {
        return 0;
    }
    let at = classes.wrapping_add_signed(CLASS_WRITES.into()) + (class & 0xff) * 8;
    // SAFETY: the page before the classes.
    unsafe { *(at as *const u64) }
}

/// The address whose alias this is.
pub fn behind_alias(alias: u64) -> Option<u64> {
    let addresses = table().distances.iter().map(|d| alias.wrapping_sub(*d));
    addresses
        .into_iter()
        .find(|a| g().alias_of(*a).is_some_and(|found| found.0 == alias))
}

/// Gives the calling thread its area, so that its bodies stop faulting.
pub fn enable(t: &Thread) {
    let Some(a) = area(t) else { return };
    let base = a as *const Area as u64;
    a.entry.store(direct::entry(), Relaxed);
    a.stack.store(direct::frame(t), Relaxed);
    if let Some(h) = g().header() {
        h.areas.fetch_max(t.index.load(Relaxed) + 1, Release);
    }
    if gs() != base {
        set_gs(base);
    }
}

/// The calling task goes on without its (or its parent's) area.
pub fn disable() {
    let areas = g().areas().as_ptr_range();
    if SOME.load(Relaxed) && areas.contains(&(gs() as *const Area)) {
        set_gs(0);
    }
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
    let What::Checked(insn) = &part.what else {
        return false;
    };
    let size = insn.mem.size as usize;
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

/// If the context is inside a body, makes it that of the original code.
pub fn leave(t: &Thread, uc: &mut UContext) -> Option<Left> {
    if !SOME.load(Relaxed) {
        return None;
    }
    let area = area(t)?;
    direct::leave(area, uc);
    let (p, offset) = table().body(uc.gprs.rip)?;
    let mark = p.body.mark(offset)?;
    let n = mark.part as usize;
    let part = p.group.parts.get(n)?;
    let after = part.at + u64::from(part.len);
    let (a, b) = (
        p.body.address.get(n).copied().unwrap_or(0),
        p.body.other.get(n).copied().unwrap_or(0),
    );
    match mark.phase {
        Phase::Before => uc.gprs.rip = part.at,
        Phase::Saved | Phase::Closer | Phase::Counted | Phase::Tallied => {
            if mark.phase == Phase::Closer {
                uc.gprs.r11 = area.r11.load(Relaxed);
            }
            restore(area, uc, a, b)?;
            match mark.phase {
                Phase::Counted => add(&area.passed, u64::MAX),
                Phase::Tallied => add(tally(area, &area.hits)?, u64::MAX),
                _ => {}
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
    let checked = matches!(part.what, What::Checked(_));
    Some(if checked && uc.gprs.rip == part.at {
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
pub fn trap(t: &Thread, uc: &mut UContext, at: u64) -> bool {
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
    if ours || direct::is_trap(at) {
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
pub fn landed(t: &Thread, uc: &mut UContext) -> Option<Landing> {
    let (p, copy) = copy_of(uc.gprs.rip)?;
    LANDINGS.fetch_add(1, Relaxed);
    p.landings.fetch_add(1, Relaxed);
    let i = t.inner();
    let may_ask = !i.stepping && i.own_step.is_none() && t.tgid() == g().pid.load(Relaxed);
    if p.hopeless() && may_ask {
        return Some(Landing::Often(p.start()));
    }
    uc.gprs.rip = copy;
    Some(Landing::Copy)
}

/// The last that a handler does: a thread that goes on behind a patched instruction need not land, and one that
/// goes round in a small loop ([`visit`]) may do so in the body.
pub fn skip(t: &Thread, uc: &mut UContext) {
    const TRAP_FLAG: u64 = 0x100;
    let visited = core::mem::take(&mut t.inner().visit);
    if uc.gprs.rflags & TRAP_FLAG != 0 {
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
    let table = table();
    let p = table.list.get(table.position(pc)?)?;
    let may = !p.is_in_place() && p.group.loops() && ENABLED.load(Relaxed);
    (may && !GS_TAKEN.load(Relaxed) && !taken(p.start(), p.end())).then_some(p)
}

/// The access at `pc` has met a guard again: the handler is to go on in the body, which needs no change of any
/// code. `false`: its loop, if there is one, is too short for that.
pub fn visit(t: &Thread, pc: u64) -> bool {
    let Some(p) = loop_at(pc).filter(|p| p.entries.load(Relaxed) < MOST_ENTRIES) else {
        return false;
    };
    p.entries.fetch_add(1, Relaxed);
    p.learn(VISIT);
    t.inner().visit = pc;
    true
}

// ---- in and out --------------------------------------------------------------------------------

/// Does something that is no patch of an access stand in `[start, end)`?
pub fn taken(start: u64, end: u64) -> bool {
    crate::syscalls::sites::touches(start, end)
        || g()
            .breakpoints()
            .iter()
            .any(|b| b.addr >= start && b.addr < end)
}

/// The only thread of the program that there is: the stub's task waits for it before it touches what is
/// shared, and nobody else runs the code.
fn alone(t: &Thread) -> bool {
    let i = t.inner();
    t.tgid() == g().pid.load(Relaxed)
        && !i.stepping
        && i.own_step.is_none()
        && g().threads.iter().nth(1).is_none()
}

/// Puts the patch of the instruction at `pc` back (or takes it out), without the stub's task. `false`: that
/// has to do it.
pub fn switch(t: &Thread, pc: u64, on: bool) -> bool {
    let table = table();
    let Some(p) = table.position(pc).and_then(|n| table.list.get(n)) else {
        return false;
    };
    if p.is_in_place() == on {
        return true;
    }
    let may = p.plain_code && !p.hopeless() && ENABLED.load(Relaxed) && !GS_TAKEN.load(Relaxed);
    if !may || !alone(t) || on && taken(p.start(), p.end()) {
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
        p.is_back();
    } else {
        p.has_gone();
    }
    true
}

/// The system lets no code be written where it is executed.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Writes code that this thread does not run at present, and nobody else. It is [`Patch::plain_code`].
fn overwrite(at: u64, bytes: &[u8]) -> bool {
    let page = at & !(PAGE_SIZE - 1);
    let len = (at + bytes.len() as u64 - page).next_multiple_of(PAGE_SIZE);
    if FORBIDDEN.load(Relaxed) {
        return false;
    }
    // SAFETY: private file pages that may be read and executed (`control::patches` has made sure, and is told
    // of every change), and are again. A system that forbids the first change leaves all as it is.
    unsafe {
        if let Err(why) = sys!(k::__NR_mprotect, page, len, 7) {
            // ENOMEM: too many mappings, for now.
            FORBIDDEN.store(why != Errno(12), Relaxed);
            return false;
        }
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
        let _ = sys!(k::__NR_mprotect, page, len, 5);
    }
    true
}

/// What becomes of a patch that has met no guard for [`CALM`] times.
pub enum Calm {
    Stays,
    Gone,
    /// It is to go, by the stub's task.
    ToGo,
}

/// The body has met none at the instruction at `pc`.
pub fn calm(t: &Thread, area: &Area, pc: u64) -> Calm {
    let table = table();
    let Some(p) = table.position(pc).and_then(|n| table.list.get(n)) else {
        return Calm::Stays;
    };
    let Some(word) = area.calm.get(p.calm) else {
        return Calm::Stays;
    };
    let times = (word.load(Relaxed) >> 32) + 1;
    if times * u64::from(CALM) < u64::from(p.patience.load(Relaxed)) {
        word.store(times << 32 | CALM_START as u64, Relaxed);
        return Calm::Stays;
    }
    word.store(CALM_START as u64, Relaxed);
    if !p.is_in_place() {
        p.entries.store(0, Relaxed);
        p.gone_at.store(tsc(), Relaxed);
        return Calm::Gone;
    }
    match switch(t, pc, false) {
        true => Calm::Gone,
        false => Calm::ToGo,
    }
}

/// The offset of a word of [`Area::calm`].
pub fn calm_at(n: usize) -> usize {
    core::mem::offset_of!(Area, calm) + n % CALMS * size_of::<AtomicU64>()
}

pub static LANDINGS: AtomicU64 = AtomicU64::new(0);

/// In a forked child: the original bytes come back.
pub fn remove_in_child() {
    if SOME.load(Relaxed) {
        disable();
        ENABLED.store(false, SeqCst);
        crate::control::text::restore_patches(&table().list);
        SOME.store(false, SeqCst);
    }
    // SAFETY: the child has one thread, and it is this one.
    unsafe { drop_tables() };
}
