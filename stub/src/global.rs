//! The one structure that handlers and the stub's task share.
//!
//! What is atomic may be written by anybody. Everything else is written by the stub's task while
//! all program threads rest (or before the first one runs), and read by handlers without locks.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::agent;
use ulpf_lib::AliasAddr;
use ulpf_lib::guard::{Guards, PageMap};
use ulpf_lib::ring::{
    AREAS, AREAS_OFFSET, Area, COUNTER_SLOTS, COUNTERS_OFFSET, Counters, HEADS_OFFSET, Listed,
    ROSTER_OFFSET, Ring, RingHead, SharedHeader,
};
use ulpf_lib::watchlist::Watchlist;
use ulpf_lib::{TargetAddr, WatchId};

use crate::attributes::{self, Attributes};
use crate::inferior::AgentExpr;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::signals::{ActionTable, bit};
use crate::runtime::thread::{Registry, Thread};

pub struct Global {
    /// [first byte, end) of our image: system calls from here are our own.
    pub image: (u64, u64),
    pub pid: AtomicI32,
    pub stub_tid: AtomicI32,
    pub fsgsbase: bool,
    pub min_sigstack: u64,
    /// Nonzero: program threads have to rest.
    pub world: AtomicU32,
    /// Futex word of the stub's task: raised at everything that it should look at.
    pub event: AtomicU32,
    pub threads: Registry,
    pub actions: ActionTable,
    /// A debugger wants to hear of signals and hits.
    pub debugger: AtomicBool,
    /// LLDB decides about unchanged values itself.
    pub stop_at_silent: AtomicBool,
    /// Signals that pass without a stop (bit n-1 = signal n).
    pub pass_signals: AtomicU64,
    /// Program break, as far as known (0: not).
    pub brk: AtomicU64,
    /// Thread that is inside exec, or 0.
    pub exec_pending: AtomicU32,
    /// The thread that the stub's task is sending the park signal to.
    pub nudged: AtomicU32,
    /// What the command follows: `follows::` bits (see `control/follow.rs`).
    pub follows: AtomicU32,
    /// The command's word to the thread that waits to exec; 0: not given yet.
    pub exec_word: AtomicU32,
    pub shared: AtomicPtr<SharedHeader>,
    pub fork_word: AtomicPtr<AtomicU32>,
    /// What the fault handler knows of each page.
    pub page_map: PageMap,
    /// Some page has moved; some watch is armed.
    pub moved: AtomicBool,
    pub watching: AtomicBool,
    /// The whole heap is watched: calls that change it matter.
    pub heap_watched: AtomicBool,
    cells: Cells,
}

struct Cells {
    breakpoints: UnsafeCell<Vec<Breakpoint>>,
    guards: UnsafeCell<Option<Box<Guards>>>,
    watches: UnsafeCell<Watches>,
}

/// Bits of `Global::follows`.
pub mod follows {
    pub const EXEC: u32 = 1;
    pub const FORK: u32 = 2;
    pub const VFORK: u32 = 4;
    /// What vfork children execute, without a word about the children themselves.
    pub const SPAWN: u32 = 8;
}

/// In `Global::fork_go`: nobody is left who follows children.
pub const EVERYBODY: u32 = u32::MAX;

/// A software breakpoint that is in place.
pub struct Breakpoint {
    pub addr: u64,
    pub original: u8,
    pub conditions: Vec<AgentExpr>,
}

pub struct Watches {
    /// The list in force; owned by the stub's task (`control::Control::staged`).
    pub list: *const Watchlist,
    pub attributes: attributes::Table,
}

static EMPTY: Watchlist = Watchlist::new();

// SAFETY: see the head of this file.
unsafe impl Sync for Global {}

static mut GLOBAL: Global = Global {
    image: (0, 0),
    pid: AtomicI32::new(0),
    stub_tid: AtomicI32::new(0),
    fsgsbase: false,
    min_sigstack: 2048,
    world: AtomicU32::new(0),
    event: AtomicU32::new(0),
    threads: Registry::new(),
    actions: ActionTable::new(),
    debugger: AtomicBool::new(false),
    stop_at_silent: AtomicBool::new(false),
    pass_signals: AtomicU64::new(0),
    brk: AtomicU64::new(0),
    exec_pending: AtomicU32::new(0),
    nudged: AtomicU32::new(0),
    follows: AtomicU32::new(0),
    exec_word: AtomicU32::new(0),
    shared: AtomicPtr::new(null_mut()),
    fork_word: AtomicPtr::new(null_mut()),
    page_map: PageMap::new(),
    moved: AtomicBool::new(false),
    watching: AtomicBool::new(false),
    heap_watched: AtomicBool::new(false),
    cells: Cells {
        breakpoints: UnsafeCell::new(Vec::new()),
        guards: UnsafeCell::new(None),
        watches: UnsafeCell::new(Watches {
            list: &raw const EMPTY,
            attributes: attributes::Table::new(),
        }),
    },
};

#[inline(always)]
pub fn g() -> &'static Global {
    // SAFETY: shared as the head of this file says.
    unsafe { &GLOBAL }
}

/// # Safety
/// Only during boot, before anything else runs.
pub unsafe fn init(image: (u64, u64), fsgsbase: bool, min_sigstack: u64) {
    // SAFETY: nobody else runs yet.
    unsafe {
        let g = &raw mut GLOBAL;
        (*g).image = image;
        (*g).fsgsbase = fsgsbase;
        (*g).min_sigstack = min_sigstack;
    }
}

impl Global {
    pub fn guards(&self) -> &Guards {
        // SAFETY: set at boot; changed only while nobody reads.
        unsafe { (*self.cells.guards.get()).as_deref().unwrap_unchecked() }
    }
    /// # Safety
    /// The stub's task, with the world at rest.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn guards_mut(&self) -> &mut Guards {
        // SAFETY: the caller's duty.
        unsafe { (*self.cells.guards.get()).as_deref_mut().unwrap_unchecked() }
    }
    pub fn guarded(&self) -> bool {
        self.moved.load(Relaxed)
    }
    /// Must the kernel's own accesses be looked at?
    pub fn watches_kernel(&self) -> bool {
        self.guarded() || crate::runtime::debug_registers::active()
    }
    pub fn alias_of(&self, addr: u64) -> Option<AliasAddr> {
        self.page_map
            .entry(TargetAddr(addr))
            .alias(TargetAddr(addr))
    }
    /// Is any page of `[start, end)` ours?
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.guarded()
            && self
                .guards()
                .touches(TargetAddr(start), end.saturating_sub(start))
    }
    /// Is a guard wanted there that the program's own protection makes superfluous for now?
    pub fn wants(&self, nr: u64, start: u64, end: u64) -> bool {
        matches!(nr as u32, k::__NR_mprotect | k::__NR_pkey_mprotect)
            && self.has_watches()
            && self
                .guards()
                .wants(TargetAddr(start), end.saturating_sub(start))
    }
    /// # Safety
    /// During boot.
    pub unsafe fn set_guards(&self, guards: Guards) {
        // SAFETY: the caller's duty.
        unsafe { *self.cells.guards.get() = Some(Box::new(guards)) }
    }
    pub fn watches(&self) -> &Watches {
        // SAFETY: see the head of this file.
        unsafe { &*self.cells.watches.get() }
    }
    /// # Safety
    /// The stub's task, with the world at rest.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn watches_mut(&self) -> &mut Watches {
        // SAFETY: the caller's duty.
        unsafe { &mut *self.cells.watches.get() }
    }
    pub fn watchlist(&self) -> &Watchlist {
        // SAFETY: points to EMPTY or to the staged list, which lives as long as the stub's task.
        unsafe { &*self.watches().list }
    }
    pub fn attributes(&self, id: WatchId) -> &Attributes {
        self.watches().attributes.get(id)
    }
    pub fn has_watches(&self) -> bool {
        self.watching.load(Relaxed) || self.heap_watched.load(Relaxed)
    }
    pub fn breakpoints(&self) -> &Vec<Breakpoint> {
        // SAFETY: see the head of this file.
        unsafe { &*self.cells.breakpoints.get() }
    }
    /// # Safety
    /// The stub's task, with the world at rest.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn breakpoints_mut(&self) -> &mut Vec<Breakpoint> {
        // SAFETY: the caller's duty.
        unsafe { &mut *self.cells.breakpoints.get() }
    }
    pub fn has_breakpoints(&self) -> bool {
        !self.breakpoints().is_empty()
    }
    /// The breakpoint at exactly `addr`. The list is ordered by address.
    pub fn breakpoint_at(&self, addr: u64) -> Option<&Breakpoint> {
        let list = self.breakpoints();
        let at = list.binary_search_by_key(&addr, |b| b.addr).ok()?;
        list.get(at)
    }
    pub fn wants_stop(&self, sig: i32) -> bool {
        self.debugger.load(Relaxed) && self.pass_signals.load(Relaxed) & bit(sig) == 0
    }
    /// Is this watch one that the debugger's own table lacks?
    pub fn is_bulk(&self, id: WatchId) -> bool {
        self.attributes(id).bulk
    }
    pub fn header(&self) -> Option<&'static SharedHeader> {
        // SAFETY: mapped at boot for good.
        unsafe { self.shared.load(Relaxed).as_ref() }
    }
    pub fn counters(&self, id: WatchId) -> Option<&'static Counters> {
        let base = self.shared.load(Relaxed) as u64;
        let slot = (id.0 as u64).min(COUNTER_SLOTS - 1);
        // SAFETY: within the shared area.
        (base != 0).then(|| unsafe {
            &*((base + COUNTERS_OFFSET + slot * size_of::<Counters>() as u64) as *const Counters)
        })
    }
    /// The roster's line for a watch; none for the numbers that share a slot.
    pub fn listed(&self, id: WatchId) -> Option<&'static Listed> {
        let base = self.shared.load(Relaxed) as u64;
        let slot = u64::from(id.0);
        // SAFETY: within the shared area.
        (base != 0 && slot < COUNTER_SLOTS).then(|| unsafe {
            &*((base + ROSTER_OFFSET + slot * size_of::<Listed>() as u64) as *const Listed)
        })
    }
    /// The writing ends of all threads' rings.
    pub fn ring_heads(&self) -> &'static [RingHead] {
        let base = self.shared.load(Relaxed) as u64;
        if base == 0 {
            return &[];
        }
        // SAFETY: within the shared area.
        unsafe {
            core::slice::from_raw_parts((base + HEADS_OFFSET) as *const RingHead, AREAS as usize)
        }
    }
    /// The ring of the thread with that number.
    pub fn ring(&self, index: u32) -> Option<Ring<'static>> {
        let base = self.shared.load(Relaxed) as u64;
        let head = self.ring_heads().get(index as usize)?;
        Some(Ring::new(head, crate::log::ring_words(base, index)?))
    }
    /// What patches keep for each thread.
    pub fn areas(&self) -> &'static [Area] {
        let base = self.shared.load(Relaxed) as u64;
        if base == 0 {
            return &[];
        }
        // SAFETY: within the shared area.
        unsafe { core::slice::from_raw_parts((base + AREAS_OFFSET) as *const Area, AREAS as usize) }
    }
    pub fn count_syscall(&self) {
        if let Some(h) = self.header() {
            h.syscalls.fetch_add(1, Relaxed);
        }
    }
    /// Word in a page that forked children share.
    pub fn fork_done(&self) -> &'static AtomicU32 {
        // SAFETY: mapped at boot for good.
        unsafe { &*self.fork_word.load(Relaxed) }
    }
    /// Another word there: the process id of the forked child that may go on, or [`EVERYBODY`].
    pub fn fork_go(&self) -> &'static AtomicU32 {
        // SAFETY: as above; the page has room for many words.
        unsafe { &*self.fork_word.load(Relaxed).add(1) }
    }
    pub fn follows(&self, what: u32) -> bool {
        self.follows.load(SeqCst) & what != 0
    }
    /// Does memory that a call has just made accessible lie under a watch?
    pub fn watch_in_new_memory(&self, nr: u64, a: &[u64; 6], result: u64) -> bool {
        let (start, len) = match nr as u32 {
            k::__NR_mmap => (result, a[1]),
            k::__NR_mprotect | k::__NR_pkey_mprotect => (a[0], a[1]),
            k::__NR_shmat => (result, ulpf_lib::addr::USER_END), // the segment knows how long it is
            k::__NR_mremap => (result, a[2]),
            k::__NR_brk => {
                let before = self.brk.load(Relaxed);
                (before, result.saturating_sub(before))
            }
            _ => return false,
        };
        len != 0
            && self.watchlist().any_overlap(
                TargetAddr(start),
                len.min(ulpf_lib::addr::USER_END - start.min(ulpf_lib::addr::USER_END)),
            )
    }
    /// In a forked child: puts the original bytes back into its private copy of the text.
    pub fn remove_breakpoints_in_child(&self) {
        if self.has_breakpoints() {
            crate::control::text::restore_all(self.breakpoints());
        }
    }
}

impl Breakpoint {
    /// Evaluates the conditions on the thread that has hit the breakpoint.
    pub fn wants_stop(&self, t: &Thread, uc: &UContext) -> bool {
        if !t.is_debugged() {
            return false; // a vfork child that nobody follows
        }
        if !g().debugger.load(Relaxed) {
            return true;
        }
        self.conditions.is_empty()
            || self.conditions.iter().any(|c| {
                let mut machine = Machine { uc };
                agent::eval(c, &mut machine) != Ok(0)
            })
    }
}

/// Registers and memory for agent expressions.
struct Machine<'a> {
    uc: &'a UContext,
}

impl agent::AgentContext for Machine<'_> {
    fn reg(&mut self, n: u16) -> Option<u64> {
        agent::register(&self.uc.gprs, n)
    }
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        memory::read(addr, buf) == buf.len()
    }
}
