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
use ulpf_engine::patch::{Body, Group, JUMP, Phase, What};
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::{OUR_PLACE, OUR_PLACE_LEN, PAGES};
use ulpf_lib::ring::{Area, Unpatched};
use ulpf_lib::sys;

use crate::direct::{self, Known};
use crate::g;
use crate::runtime::frame::UContext;
use crate::runtime::thread::Thread;

/// A patch. One that has not paid is kept, so that it can be put back quickly.
pub struct Patch {
    /// The jump is there.
    pub in_place: bool,
    pub group: Group,
    pub jump: [u8; JUMP],
    pub at: u64,
    pub body: Body,
    /// What a hit of each part is told; the body has their address.
    pub known: Box<[Known]>,
    /// How often somebody has jumped into its middle.
    pub landings: AtomicU32,
}

impl Patch {
    pub fn start(&self) -> u64 {
        self.group.start()
    }
    pub fn end(&self) -> u64 {
        self.group.end()
    }
    /// Its counter: `Target::patience`.
    pub fn patience(&self) -> u64 {
        self.known.first().map_or(0, |k| k.patience)
    }
    /// Its middle is where a loop goes, most likely: the signals cost more than it saves.
    pub fn hopeless(&self) -> bool {
        self.landings.load(Relaxed) >= MOST_LANDINGS
    }
}

const MOST_LANDINGS: u32 = 64;

/// Written by the stub's task while the world rests.
pub struct Table {
    /// By their start.
    pub list: Vec<Patch>,
    /// (address of the body, start), by the former.
    pub bodies: Vec<(u64, u64)>,
    /// Stretches where bodies are.
    pub rooms: Vec<(u64, u64)>,
    /// What a thread's area begins with: classes, writes, reads.
    pub tables: [u64; 3],
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
    tables: [0; 3],
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
    let [classes, writes, reads] = core::mem::take(&mut t.tables);
    if classes == 0 {
        return;
    }
    // SAFETY: our own mappings, as `control::patches` has made them.
    unsafe {
        g().page_map.use_classes(core::ptr::null_mut());
        let _ = sys!(k::__NR_munmap, classes - PAGE_SIZE, PAGES + PAGE_SIZE);
        for b in [writes, reads] {
            let _ = sys!(k::__NR_munmap, b.wrapping_add(OUR_PLACE / 8), BITS_LEN);
        }
    }
}

/// Bytes of a table with a bit for each byte of our place.
pub const BITS_LEN: u64 = OUR_PLACE_LEN / 8 + PAGE_SIZE;

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
        (p.in_place && pc < p.end()).then_some(p)
    }
    /// Where a patch that looks at the access of the instruction at `pc` is in the list, in place or not.
    pub fn position(&self, pc: u64) -> Option<usize> {
        let after = self.list.partition_point(|p| p.start() <= pc);
        let from = after.saturating_sub(JUMP);
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
        let p = self.at(start)?;
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
        let jump = if p.in_place { JUMP } else { 0 };
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
    let [classes, writes, reads] = table().tables;
    a.classes.store(classes, Relaxed);
    a.writes.store(writes, Relaxed);
    a.reads.store(reads, Relaxed);
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
        Phase::Saved | Phase::Closer | Phase::Counted => {
            if mark.phase == Phase::Closer {
                uc.gprs.r11 = area.r11.load(Relaxed);
            }
            *register(&mut uc.gprs, b)? = area.other.load(Relaxed);
            uc.gprs.rcx = area.rcx.load(Relaxed);
            *register(&mut uc.gprs, a)? = area.address.load(Relaxed);
            if mark.phase == Phase::Counted {
                area.passed
                    .store(area.passed.load(Relaxed).wrapping_sub(1), Relaxed);
            }
            uc.gprs.rip = part.at;
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

/// What an `int3` was about.
pub enum Trap {
    /// None of ours.
    Foreign,
    /// A body wants its access looked at; the context is that of the original instruction.
    Look,
    /// As `Look`, and the patch at that address has not paid for a while.
    Cold(u64),
}

/// A thread at a place where an instruction was before a patch.
pub enum Landing {
    /// It is on the way to the copy.
    Copy,
    /// It stands there. The patch at this address is to go before the thread may go on.
    Often(u64),
}

/// `int3` at `at`: a body's?
pub fn trap(t: &Thread, uc: &mut UContext, at: u64) -> Trap {
    if !SOME.load(Relaxed) {
        return Trap::Foreign;
    }
    let Some((p, offset)) = table().body(at).filter(|(p, o)| p.body.traps(*o)) else {
        return Trap::Foreign;
    };
    let cold = p.body.cold.contains(&offset);
    let start = p.start();
    uc.gprs.rip = at;
    leave(t, uc);
    if cold { Trap::Cold(start) } else { Trap::Look }
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
    let n = p.group.parts.iter().position(|x| x.at == pc)?;
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

/// The last that a handler does: a thread that goes on behind a patched instruction need not land.
pub fn skip(uc: &mut UContext) {
    const TRAP_FLAG: u64 = 0x100;
    if let Some((_, copy)) = copy_of(uc.gprs.rip)
        && uc.gprs.rflags & TRAP_FLAG == 0
    {
        uc.gprs.rip = copy;
    }
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
