//! The structure that handlers and the stub's task share.
//!
//! Any thread may write the atomics. All other fields are in [`Tables`]. The stub's task writes these while all program
//! threads are stopped (or before the first one runs), and handlers read them without locks.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::AliasAddr;
use ulpf_lib::boot::BootArgs;
use ulpf_lib::guard::{Guards, PageMap};
use ulpf_lib::ring::{
    AREAS, AREAS_OFFSET, Area, COUNTER_SLOTS, COUNTERS_OFFSET, Counters, HEADS_OFFSET, Listed,
    Ring, RingHead, SLOT_WORDS, SharedHeader, WATCH_TABLE_OFFSET, ring_place,
};
use ulpf_lib::watchlist::Watchlist;
use ulpf_lib::{TargetAddr, WatchId};
use ulpf_stub_tables::attributes::Attributes;
use ulpf_stub_tables::breakpoints::Breakpoint;
use ulpf_stub_tables::edit::List;
use ulpf_stub_tables::{Tables, Watches};

use crate::runtime::thread::{Registry, Thread};
use crate::signals::actions::ActionTable;
use crate::signals::numbers::bit;

pub struct Global {
    pub pid: AtomicI32,
    pub stub_tid: AtomicI32,
    /// Nonzero: program threads must park.
    pub world: AtomicU32,
    /// Futex word of the stub's task: raised at each event that the task must handle.
    pub event: AtomicU32,
    pub threads: Registry,
    pub actions: ActionTable,
    /// A debugger wants to be notified of signals and hits.
    pub debugger: AtomicBool,
    /// Conditions of the debugger's own watches are decided here (`control/conditions.rs`); otherwise the debugger
    /// decides.
    pub decides: AtomicBool,
    /// LLDB decides about unchanged values itself.
    pub stop_at_silent: AtomicBool,
    /// The debugger wants to be notified of threads that begin and end.
    pub thread_events: AtomicBool,
    /// Signals that pass without a stop (bit n-1 = signal n).
    pub pass_signals: AtomicU64,
    /// Program break, or 0 if it is not known.
    pub brk: AtomicU64,
    /// Threads of the program inside execve(2): their records may say Dead, but they return if the call fails.
    pub in_exec: AtomicU32,
    /// The thread that the stub's task is sending the park signal to.
    pub nudged: AtomicU32,
    /// The processes that the command follows: `follows::` bits (see `control/follow.rs`).
    pub follows: AtomicU32,
    /// The command's answer to the thread that waits to exec, or 0 before it is given.
    pub exec_word: AtomicU32,
    /// A thread that forks spins until its child runs (`vUlpfForkHold`).
    pub fork_held: AtomicBool,
    pub shared: AtomicPtr<SharedHeader>,
    /// The state of each page for the fault handler.
    pub page_map: PageMap,
    /// Some page has been moved; some watch is armed.
    pub moved: AtomicBool,
    pub watching: AtomicBool,
    /// The whole heap is watched: calls that change it matter.
    pub heap_watched: AtomicBool,
}

/// Bits of `Global::follows`.
pub mod follows {
    pub const EXEC: u32 = 1;
    pub const FORK: u32 = 2;
    pub const VFORK: u32 = 4;
    /// Programs that vfork children execute, without reports on the children themselves.
    pub const SPAWN: u32 = 8;
    /// The command is asked before the program traces a process.
    pub const TRACES: u32 = 16;
    /// The command lets go of this process before its parent traces it.
    pub const TRACED: u32 = 32;
}

/// Facts about the machine and the process, found once at boot.
pub struct Machine {
    /// [first byte, end) of our image: system calls from here are our own.
    pub image: (u64, u64),
    pub fsgsbase: bool,
    pub min_sigstack: u64,
    /// AT_RANDOM: an address at the upper end of the first thread's stack.
    pub random: u64,
}

static GLOBAL: Global = Global {
    pid: AtomicI32::new(0),
    stub_tid: AtomicI32::new(0),
    world: AtomicU32::new(0),
    event: AtomicU32::new(0),
    threads: Registry::new(),
    actions: ActionTable::new(),
    debugger: AtomicBool::new(false),
    decides: AtomicBool::new(false),
    stop_at_silent: AtomicBool::new(false),
    thread_events: AtomicBool::new(false),
    pass_signals: AtomicU64::new(0),
    brk: AtomicU64::new(0),
    in_exec: AtomicU32::new(0),
    nudged: AtomicU32::new(0),
    follows: AtomicU32::new(0),
    exec_word: AtomicU32::new(0),
    fork_held: AtomicBool::new(false),
    shared: AtomicPtr::new(null_mut()),
    page_map: PageMap::new(),
    moved: AtomicBool::new(false),
    watching: AtomicBool::new(false),
    heap_watched: AtomicBool::new(false),
};

#[inline(always)]
pub fn g() -> &'static Global {
    &GLOBAL
}

static BOOT: AtomicPtr<BootArgs> = AtomicPtr::new(null_mut());

/// The boot block, in the image; some of its fields are written later, by the command or by us.
pub fn boot_block() -> *mut BootArgs {
    BOOT.load(Relaxed)
}

/// Called before anything else.
pub fn set_boot_block(args: *mut BootArgs) {
    BOOT.store(args, Relaxed);
}

struct Cells {
    machine: UnsafeCell<Machine>,
    tables: UnsafeCell<Tables>,
}

// SAFETY: see the head of this file; `machine` is written before any other task of ours runs.
unsafe impl Sync for Cells {}

static CELLS: Cells = Cells {
    machine: UnsafeCell::new(Machine {
        image: (0, 0),
        fsgsbase: false,
        min_sigstack: 2048,
        random: 0,
    }),
    tables: UnsafeCell::new(Tables::new()),
};

#[inline(always)]
pub fn machine() -> &'static Machine {
    // SAFETY: written by `init` alone.
    unsafe { &*CELLS.machine.get() }
}

/// # Safety
/// Only during boot, before anything else runs.
pub unsafe fn init(machine: Machine) {
    // SAFETY: the caller's duty.
    unsafe { *CELLS.machine.get() = machine }
}

#[inline(always)]
pub fn tables() -> &'static Tables {
    // SAFETY: written only while there are no readers.
    unsafe { &*CELLS.tables.get() }
}

/// # Safety
/// Called by the stub's task with the world stopped; or by the only thread of a forked child; or at boot.
pub(crate) unsafe fn tables_mut() -> &'static mut Tables {
    // SAFETY: the caller's duty.
    unsafe { &mut *CELLS.tables.get() }
}

impl Global {
    #[inline]
    pub fn guards(&self) -> &Guards {
        // SAFETY: set at boot, before the program's first handler.
        unsafe { tables().guards.as_deref().unwrap_unchecked() }
    }
    pub fn guarded(&self) -> bool {
        self.moved.load(Relaxed)
    }
    pub fn alias_of(&self, addr: u64) -> Option<AliasAddr> {
        self.page_map
            .entry(TargetAddr(addr))
            .alias(TargetAddr(addr))
    }
    /// True if a page of `[start, end)` is ours.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.guarded()
            && self
                .guards()
                .touches(TargetAddr(start), end.saturating_sub(start))
    }
    /// True if a guard is wanted there that is unnecessary for now, because of the program's own protection.
    pub fn wants(&self, nr: u64, start: u64, end: u64) -> bool {
        matches!(nr as u32, k::__NR_mprotect | k::__NR_pkey_mprotect)
            && self.has_watches()
            && self
                .guards()
                .wants(TargetAddr(start), end.saturating_sub(start))
    }
    pub fn watches(&self) -> &Watches {
        &tables().watches
    }
    #[inline]
    pub fn watchlist(&self) -> &Watchlist {
        // SAFETY: points to an empty list or to the staged one, which lives as long as the stub's task.
        unsafe { &*self.watches().list }
    }
    #[inline]
    pub fn attributes(&self, id: WatchId) -> &Attributes {
        self.watches().attributes.get(id)
    }
    pub fn has_watches(&self) -> bool {
        self.watching.load(Relaxed) || self.heap_watched.load(Relaxed)
    }
    pub fn breakpoints(&self) -> &List<Breakpoint> {
        &tables().edits.breakpoints
    }
    pub fn has_breakpoints(&self) -> bool {
        !self.breakpoints().is_empty()
    }
    /// The breakpoint at exactly `addr`.
    pub fn breakpoint_at(&self, addr: u64) -> Option<&Breakpoint> {
        self.breakpoints().at(addr)
    }
    pub fn wants_stop(&self, sig: i32) -> bool {
        self.debugger.load(Relaxed) && self.pass_signals.load(Relaxed) & bit(sig) == 0
    }
    /// True if the debugger's own table lacks this watch.
    pub fn is_out_of_band(&self, id: WatchId) -> bool {
        self.attributes(id).out_of_band
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
    /// The line of a watch in the shared table; `None` for the numbers that share a slot.
    pub fn listed(&self, id: WatchId) -> Option<&'static Listed> {
        let base = self.shared.load(Relaxed) as u64;
        let slot = u64::from(id.0);
        // SAFETY: within the shared area.
        (base != 0 && slot < COUNTER_SLOTS).then(|| unsafe {
            &*((base + WATCH_TABLE_OFFSET + slot * size_of::<Listed>() as u64) as *const Listed)
        })
    }
    /// The write positions of all threads' rings.
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
        Some(Ring::new(head, ring_words(base, index)?))
    }
    /// The per-thread areas of patches.
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
    pub fn follows(&self, what: u32) -> bool {
        self.follows.load(SeqCst) & what != 0
    }
}

/// The words of ring `index` in the shared area that begins at `base`.
pub fn ring_words(base: u64, index: u32) -> Option<&'static [AtomicU64]> {
    let index = u64::from(index);
    let (at, slots) = ring_place(index);
    // SAFETY: within the shared area, which is mapped for good.
    (base != 0 && index < AREAS).then(|| unsafe {
        let len = slots as usize * SLOT_WORDS;
        core::slice::from_raw_parts((base + at) as *const AtomicU64, len)
    })
}

impl Thread {
    /// True for a thread of the program, rather than of a child that only shares its memory.
    pub fn is_programs(&self) -> bool {
        self.tgid() == g().pid.load(Relaxed)
    }
    /// True if events of this thread are reported to the debugger.
    pub fn is_debugged(&self) -> bool {
        self.is_programs() || self.adopted.load(Relaxed) || self.kin.load(Relaxed)
    }
}
