//! One record per program thread, at the base of the alternate stack on which all our handlers run.
//!
//! ```text
//! block + BLOCK   ┌───────────────────────┐ ← handlers start here
//!                 │ stack                 │
//!                 ├───────────────────────┤
//!                 │ scratch (old values)  │
//! block + 0       └ Thread                ┘
//! ```
//! Blocks are aligned to their size, so a handler finds its record by masking rsp. This needs no thread-local storage
//! of the program and no system call.
//!
//! **Ownership.** Any thread may write the atomics. [`Own`] belongs to the thread itself while it runs ([`Current`]),
//! and to the stub's task while the thread waits for it (`State::Parked`, `State::Requesting`; `control/parked.rs`). A
//! thread in a system call may return at any moment, so the task uses only its atomics.

use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*,
};

use linux_raw_sys::errno::ESRCH;
use linux_raw_sys::general as k;
use ulpf_engine::exec::Site;
use ulpf_lib::place;
pub use ulpf_lib::ring::SystemCall as Call;
use ulpf_lib::sync::stop_the_world::Gate;
pub use ulpf_lib::sync::stop_the_world::State;
use ulpf_lib::sys;

use super::events::{Event, Events, Predicted, Request, Resume, Tid};
use super::frame::{SS_DISABLE, SigInfo, SigStack, UContext};
use super::library_state::LibraryState;
use super::mapped::{Locks, Mapped};
use super::seccomp_filters::Filters;
use super::sequences::{Registered, Section};
use super::waiting::Waiting;
use crate::rights::Published;
use crate::signals::actions::ActionTable;

pub const BLOCK: usize = 256 << 10;
pub const MAX_THREADS: usize = 1 << 15;
/// Old values of one access, and working memory of a system call.
pub const SCRATCH: usize = 48 << 10;

#[repr(C)]
pub struct Thread {
    pub state: AtomicU32,
    /// Futex word: set to 1 to let a parked thread continue.
    pub go: AtomicU32,
    pub tid: AtomicI32,
    /// Thread group; differs from the program's for vfork children.
    pub tgid: AtomicI32,
    pub serial: AtomicU64,
    /// The frame of the handler that is parked; valid while not Running.
    pub ctx: AtomicPtr<UContext>,
    /// A signal has struck while our own code ran, and may have left something to do.
    pub attention: AtomicU32,
    /// A signal that the debugger sends to the thread, and of which it wants no report; 0 if none.
    pub ordered_signal: AtomicI32,
    /// Its handler restores the program's alternate stack when it returns.
    pub gives_stack_back: AtomicBool,
    pub kicked: AtomicBool,
    /// The frame of the upcall that is being handled, as long as it lacks the program's signal mask
    /// (`crate::upcall`).
    pub unmasked: AtomicPtr<UContext>,
    /// The debugger changed the registers of a thread that is stopped in a system call.
    pub dirty: AtomicBool,
    /// Scheduler locking: park after the present system call.
    pub hold: AtomicBool,
    /// Number of the record, of its ring and of its area for patches.
    pub index: AtomicU32,
    /// Ring to which the kernel writes the matches of debug registers (`debug_registers`), or 0.
    pub trap_ring: AtomicU64,
    /// System call in progress, else -1.
    pub orig_rax: AtomicI64,
    pub fs_base: AtomicU64,
    /// The processor on which a parked thread last ran, or -1 if it is not known.
    pub core: AtomicI32,
    pub gs_base: AtomicU64,
    /// The debugger has changed the two bases.
    pub bases_dirty: AtomicBool,
    /// The debugger's single step is under way.
    pub stepping: AtomicBool,
    /// The step continues inside of `[start, end)`.
    range: [AtomicU64; 2],
    /// A step was cancelled while the thread was in a system call: the trap flag in its frame is not the program's.
    pub untrap: AtomicBool,
    /// The debugger has given another order: a step across the library's handlers is dropped.
    pub ordered: AtomicBool,
    /// We are detaching from the program.
    pub leaving: AtomicBool,
    /// It keeps locks of pages ([`crate::locks`]) until its stop is reported.
    pub keeps_locks: AtomicBool,
    /// A vfork child that the debugger has taken: it is stopped and examined like our own threads.
    pub adopted: AtomicBool,
    /// A process for the kernel, a thread for debuggers: it shares our memory, and its parent does not wait for it
    /// (clone(2) with CLONE_VM alone, which ptrace reports as PTRACE_EVENT_CLONE).
    pub kin: AtomicBool,
    /// The program's seccomp filters.
    pub filters: Filters,
    /// Its credentials after the last call that could change them.
    pub rights: Published,
    /// Head of its list of robust locks (set_robust_list), or 0.
    pub robust: AtomicU64,
    /// Its registration for restartable sequences ([`crate::sequences`]).
    pub sequences: Registered,
    /// The signal actions of a task that does not share those of its parent.
    pub own_actions: ActionTable,
    own: UnsafeCell<Own>,
}

/// The part with a single owner at a time (see the head of this file).
pub struct Own {
    pub event: Cell<Event>,
    pub request: Cell<Request>,
    pub resume: Cell<Resume>,
    pub info: Cell<SigInfo>,
    /// Signals among `signals::HIDDEN` that the program believes to have blocked.
    pub hidden: Cell<u64>,
    /// The same for the call in progress, if it waits under another mask.
    pub hidden_meanwhile: Cell<Option<u64>>,
    /// The program's own alternate stack.
    pub alt: Cell<SigStack>,
    pub actions: Cell<&'static ActionTable>,
    /// Address that the kernel clears at exit (set_tid_address, CLONE_CHILD_CLEARTID).
    pub clear_tid: Cell<u64>,
    /// For a vfork child that must report itself: the thread that has created it.
    pub vfork_parent: Cell<Tid>,
    /// A vfork child whose exec the command may want to follow.
    pub spawned: Cell<bool>,
    /// It is such a child, and has asked to be traced by its parent (`crate::syscalls::tracing`).
    pub traced: Cell<bool>,
    /// A task besides the program's threads that traces one of them, or did (`super::tracer`).
    pub traces: Cell<bool>,
    /// Signals that arrived while our own code ran.
    pub deferred: [Cell<SigInfo>; DEFERRED],
    pub deferred_len: Cell<usize>,
    /// Signals that arrived although the program has them blocked.
    pub waiting: Waiting,
    /// The command's park signal is still on its way.
    pub booting: Cell<bool>,
    /// Our own single step (slow path, stepping over a breakpoint) is under way, with the signal mask to restore after
    /// it.
    pub own_step: Cell<Option<OwnStep>>,
    /// It executes a restartable sequence alone ([`crate::sequences`]).
    pub section: Cell<Option<Section>>,
    /// It resumes that after a step over a breakpoint.
    pub section_after: Cell<Option<Section>>,
    /// Address, length and signature of the area for such sequences that it had before we came.
    pub area_before: Cell<[u64; 3]>,
    /// The others are stopped for its store to a pointer that a watch follows.
    pub alone: Cell<bool>,
    /// Our handler runs under the program's own mask (see [`crate::signals::masks::close`]).
    pub open: Cell<bool>,
    /// The program's signal mask, while signals wait for the end of `direct`, or for the frame of an upcall.
    pub direct_mask: Cell<Option<u64>>,
    /// The mask of a call that waited under another one, for the handler of the signal that ended it.
    pub waited_under: Cell<Option<u64>>,
    /// The time when the call in progress was first made, or 0 if just now.
    pub begun: Cell<u64>,
    /// For a call on a socket with a limited wait: its start (0 for other calls), and whether it continues after we
    /// have interrupted it halfway.
    pub waits: Cell<(u64, bool)>,
    /// Bytes of a call that a slot has transferred already.
    pub already: Cell<i64>,
    /// Hits by the kernel, to be reported when the system call is complete.
    pub pending: Cell<Events>,
    /// Further events of the same instruction, after the present stop.
    pub later: Cell<Events>,
    /// The system call that made the hit which is being reported.
    pub call: Cell<Option<Call>>,
    /// The return address of a caught system call that must be made again, or 0.
    pub caught: Cell<u64>,
    /// Page whose watches should be placed again at the next opportunity, or 0.
    pub reconsider: Cell<u64>,
    /// Unknown code that a backtrace has reached, or 0.
    pub new_code: Cell<u64>,
    /// Bytes by which the checked heap must grow, or 0.
    pub needs_room: Cell<u64>,
    /// It is on its way from `operator new[]` to `operator new`, in a checked heap.
    pub asks_for_array: Cell<bool>,
    /// Not 0: the program wants no reports on errors of the checked heap.
    pub quiet: Cell<u32>,
    /// An error of the checked heap that was judged before the access was made.
    pub predicted: Cell<Predicted>,
    /// Address of a patch that must be removed, or 0.
    pub cool: Cell<u64>,
    /// A hot instruction and the page that it has accessed.
    pub hot: Cell<Option<(&'static Site, u64)>>,
    /// Address of an access whose loop should continue in the trampoline, or 0.
    pub visit: Cell<u64>,
    /// The fault handler must perform the access that a trampoline has left.
    pub unmade: Cell<bool>,
    /// Times in a row that it has not got a lock, and the start of the wait (CLOCK_MONOTONIC, nanoseconds; 0 if it does
    /// not wait).
    pub waited: Cell<(u32, u64)>,
    /// Changes of the mappings by a call, for the stub's task.
    pub mapped: Cell<Mapped>,
    /// The answer to [`Request::ChangeInPlace`].
    pub changed_in_place: Cell<bool>,
    /// The answer to [`Request::Segment`].
    pub segment: Cell<(u64, u64)>,
    pub locks: Cell<Locks>,
    /// A seccomp filter in the kernel decides about the call in progress.
    pub judged: Cell<bool>,
    /// The program uses syscall user dispatch itself: start and length of the exempt code, address of the selector.
    pub user_dispatch: Cell<Option<[u64; 3]>>,
    /// State with regard to the library by which the program watches itself.
    pub library: LibraryState,
}

impl Own {
    /// The program's own alternate stack, as rt_sigreturn(2) takes it.
    pub fn alternate(&self) -> SigStack {
        const SS_DISABLE: i32 = k::SS_DISABLE as i32;
        let alt = self.alt.get();
        match alt.size {
            0 => SigStack {
                flags: SS_DISABLE,
                ..alt
            },
            _ => alt,
        }
    }

    /// Adds a hit to report when the system call is complete.
    pub fn report(&self, event: Event) {
        let mut all = self.pending.get();
        all.push(event);
        self.pending.set(all);
    }

    /// Keeps a signal until the thread leaves our own code.
    pub fn defer(&self, info: &SigInfo) {
        let n = self.deferred_len.get();
        if let Some(slot) = self.deferred.get(n) {
            slot.set(*info);
            self.deferred_len.set(n + 1);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OwnStepKind {
    Slow,
    OverBreakpoint,
    /// One of many steps ([`crate::sequences`]).
    Section,
}

#[derive(Clone, Copy)]
pub struct OwnStep {
    pub kind: OwnStepKind,
    /// The program steps itself, too.
    pub tf: bool,
    pub mask: u64,
    pub pc: u64,
}

pub const DEFERRED: usize = 8;

// SAFETY: see "Ownership" above.
unsafe impl Sync for Thread {}

/// The calling thread: the right to its own record. It cannot be given to another thread.
#[derive(Clone, Copy)]
pub struct Current(&'static Thread, PhantomData<*const ()>);

impl Deref for Current {
    type Target = Thread;
    #[inline(always)]
    fn deref(&self) -> &Thread {
        self.0
    }
}

impl Current {
    /// # Safety
    /// The caller is in a handler, on the block of a thread.
    #[inline(always)]
    pub unsafe fn get() -> Current {
        let rsp: usize;
        // SAFETY: reads rsp.
        unsafe {
            core::arch::asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack, preserves_flags))
        };
        // SAFETY: every handler runs on a block made by `Registry::create`.
        Current(
            unsafe { &*((rsp & !(BLOCK - 1)) as *const Thread) },
            PhantomData,
        )
    }

    /// # Safety
    /// The record is the calling thread's, or will be once the record is set up.
    pub unsafe fn with(t: &'static Thread) -> Current {
        Current(t, PhantomData)
    }

    #[inline(always)]
    pub fn own(self) -> &'static Own {
        // SAFETY: the thread runs, so only it uses this.
        unsafe { self.0.own() }
    }

    pub fn record(self) -> &'static Thread {
        self.0
    }
}

impl Thread {
    /// The part with a single owner at a time (see the head of this file).
    ///
    /// # Safety
    /// The caller is the thread itself; or it is the stub's task, and the thread waits for it; or the record is unused.
    #[inline(always)]
    pub unsafe fn own(&self) -> &Own {
        // SAFETY: the caller's duty. All of it is cells, so that references may overlap.
        unsafe { &*self.own.get() }
    }

    pub fn range(&self) -> (u64, u64) {
        let [start, end] = &self.range;
        (start.load(Relaxed), end.load(Relaxed))
    }

    pub fn set_range(&self, range: (u64, u64)) {
        let [start, end] = &self.range;
        start.store(range.0, Relaxed);
        end.store(range.1, Relaxed);
    }

    pub fn state(&self) -> State {
        State::of(self.state.load(SeqCst))
    }
    /// The words by which it parks and continues.
    pub fn gate(&self) -> Gate<'_> {
        Gate {
            state: &self.state,
            go: &self.go,
        }
    }
    pub fn set_state(&self, s: State) {
        self.state.store(s as u32, SeqCst);
    }
    /// Sets the state to Dead, unless it is Dead already: then the record may belong to another thread by now, as
    /// `serial` shows.
    pub fn has_ended(&self, serial: u64) {
        let state = self.state.load(SeqCst);
        let alive = state != State::Dead as u32 && state != State::Free as u32;
        if alive && self.serial.load(SeqCst) == serial {
            let dead = State::Dead as u32;
            let _ = self.state.compare_exchange(state, dead, SeqCst, SeqCst);
        }
    }
    pub fn tid(&self) -> i32 {
        self.tid.load(Relaxed)
    }
    pub fn tgid(&self) -> i32 {
        self.tgid.load(Relaxed)
    }
    pub fn base(&self) -> usize {
        self as *const Thread as usize
    }
    pub fn stack_top(&self) -> u64 {
        (self.base() + BLOCK) as u64
    }
    pub fn scratch(&self) -> *mut u8 {
        (self.base() + size_of::<Thread>().next_multiple_of(4096)) as *mut u8
    }
    /// The block's stack, in the form for sigaltstack(2).
    pub fn our_stack(&self) -> SigStack {
        let low = self.scratch() as usize + SCRATCH;
        SigStack {
            sp: low as u64,
            flags: 0,
            pad: 0,
            size: (self.base() + BLOCK - low) as u64,
        }
    }
    /// True if it is stopped in a place where the debugger may examine it.
    pub fn is_stopped(&self) -> bool {
        self.state().is_stopped()
    }
    /// True if a detach has released it (`crate::signals::leaving`): the rest of its handler must not wait.
    pub fn has_left(&self) -> bool {
        self.leaving.load(SeqCst) && self.state() == State::Dead
    }
    /// True if the kernel has finished with it. Between Dead and this it may still run on its block. A thread inside
    /// exec(2) is Dead meanwhile, and may come back.
    pub fn gone(&self) -> bool {
        self.state() == State::Dead && gone(self)
    }
}

/// All records. A slot is reused once the kernel, too, has finished with its thread.
pub struct Registry {
    slots: AtomicPtr<AtomicPtr<Thread>>,
    high: AtomicUsize,
    serial: AtomicU64,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::new()
    }
}

impl Registry {
    pub const fn new() -> Registry {
        Registry {
            slots: AtomicPtr::new(null_mut()),
            high: AtomicUsize::new(0),
            serial: AtomicU64::new(1),
        }
    }

    pub fn init(&self) -> bool {
        let p = ulpf_lib::arena::map_anonymous(MAX_THREADS * 8);
        self.slots.store(p as *mut AtomicPtr<Thread>, Release);
        !p.is_null()
    }

    fn slots(&self) -> &[AtomicPtr<Thread>] {
        let p = self.slots.load(Acquire);
        if p.is_null() {
            return &[];
        }
        // SAFETY: mapped by `init`, never unmapped.
        unsafe { core::slice::from_raw_parts(p, self.high.load(Acquire)) }
    }

    /// Every record of a live thread.
    pub fn iter(&self) -> impl Iterator<Item = &'static Thread> + '_ {
        self.slots().iter().filter_map(|s| {
            // SAFETY: records are never unmapped.
            let t = unsafe { s.load(Acquire).as_ref() }?;
            (!matches!(t.state(), State::Free | State::Dead)).then_some(t)
        })
    }

    /// Every record, also those of threads that have ended.
    pub fn every(&self) -> impl Iterator<Item = &'static Thread> + '_ {
        let all = self.slots().iter();
        // SAFETY: records are never unmapped.
        all.filter_map(|s| unsafe { s.load(Acquire).as_ref() })
    }

    pub fn find(&self, tid: i32) -> Option<&'static Thread> {
        self.iter().find(|t| t.tid() == tid)
    }

    /// A fresh record in state `Starting`; `None` if there is no memory. Callable in a handler.
    pub fn create(&self, actions: &'static ActionTable) -> Option<&'static Thread> {
        for slot in self.slots() {
            // SAFETY: records are never unmapped.
            let Some(t) = (unsafe { slot.load(Acquire).as_ref() }) else {
                continue;
            };
            // Claimed first, then checked: another thread may have used the record meanwhile, and ended.
            let claim = |from: State, to: State| {
                let state = &t.state;
                state.compare_exchange(from as u32, to as u32, SeqCst, SeqCst)
            };
            if claim(State::Dead, State::Free).is_err() {
                continue;
            }
            if gone(t) {
                self.reset(t, actions);
                return Some(t);
            }
            t.set_state(State::Dead);
        }
        let raw = ulpf_lib::arena::map_unlisted(2 * BLOCK);
        if raw.is_null() {
            return None;
        }
        let base = (raw as usize).next_multiple_of(BLOCK);
        // SAFETY: trims the mapping to the aligned block.
        unsafe {
            let head = base - raw as usize;
            if head > 0 {
                let _ = sys!(k::__NR_munmap, raw, head);
            }
            let _ = sys!(k::__NR_munmap, base + BLOCK, BLOCK - head);
        }
        let next = |n| (n < MAX_THREADS).then_some(n + 1);
        let Ok(at) = self.high.fetch_update(AcqRel, Acquire, next) else {
            place::forget_outside(raw as u64);
            // SAFETY: our own mapping, which is not in use yet.
            let _ = unsafe { sys!(k::__NR_munmap, base, BLOCK) };
            return None;
        };
        place::forget_outside(raw as u64);
        place::note_outside(base as u64, BLOCK as u64);
        // SAFETY: zeroed memory is a valid Thread but for the enums, which `reset` writes.
        let t = unsafe { &*(base as *const Thread) };
        self.reset(t, actions);
        t.index.store(at as u32, Relaxed);
        let p = self.slots.load(Acquire);
        // SAFETY: within the table.
        unsafe { (*p.add(at)).store(base as *mut Thread, Release) };
        Some(t)
    }

    /// Changes a record in state `Free`, which is unused, to state `Starting`.
    fn reset(&self, t: &'static Thread, actions: &'static ActionTable) {
        t.tid.store(0, Relaxed);
        t.go.store(0, Relaxed);
        t.ctx.store(null_mut(), Relaxed);
        t.attention.store(0, Relaxed);
        t.ordered_signal.store(0, Relaxed);
        t.gives_stack_back.store(false, Relaxed);
        t.kicked.store(false, Relaxed);
        t.unmasked.store(null_mut(), Relaxed);
        t.dirty.store(false, Relaxed);
        t.hold.store(false, Relaxed);
        t.trap_ring.store(0, Relaxed);
        t.orig_rax.store(-1, Relaxed);
        t.core.store(-1, Relaxed);
        t.fs_base.store(0, Relaxed);
        t.gs_base.store(0, Relaxed);
        t.robust.store(0, Relaxed);
        t.sequences.set(0, 0, 0);
        t.filters.clear();
        t.set_range((0, 0));
        for flag in [
            &t.bases_dirty,
            &t.stepping,
            &t.untrap,
            &t.ordered,
            &t.leaving,
            &t.adopted,
            &t.kin,
            &t.keeps_locks,
        ] {
            flag.store(false, Relaxed);
        }
        t.own_actions.renew();
        t.serial.store(self.serial.fetch_add(1, Relaxed), Relaxed);
        // SAFETY: a record in state Free has no other user.
        unsafe {
            t.own.get().write(Own {
                event: Cell::new(Event::None),
                request: Cell::new(Request::None),
                resume: Cell::new(Resume::Continue { signal: None }),
                info: Cell::new(SigInfo::zeroed()),
                hidden: Cell::new(0),
                hidden_meanwhile: Cell::new(None),
                alt: Cell::new(SigStack {
                    sp: 0,
                    flags: SS_DISABLE,
                    pad: 0,
                    size: 0,
                }),
                actions: Cell::new(actions),
                clear_tid: Cell::new(0),
                vfork_parent: Cell::new(0),
                spawned: Cell::new(false),
                traced: Cell::new(false),
                traces: Cell::new(false),
                deferred: [const { Cell::new(SigInfo::zeroed()) }; DEFERRED],
                deferred_len: Cell::new(0),
                waiting: Waiting::none(),
                booting: Cell::new(false),
                own_step: Cell::new(None),
                section: Cell::new(None),
                section_after: Cell::new(None),
                area_before: Cell::new([0; 3]),
                alone: Cell::new(false),
                open: Cell::new(false),
                direct_mask: Cell::new(None),
                waited_under: Cell::new(None),
                begun: Cell::new(0),
                waits: Cell::new((0, false)),
                already: Cell::new(0),
                pending: Cell::new(Events::none()),
                later: Cell::new(Events::none()),
                call: Cell::new(None),
                caught: Cell::new(0),
                reconsider: Cell::new(0),
                new_code: Cell::new(0),
                needs_room: Cell::new(0),
                asks_for_array: Cell::new(false),
                quiet: Cell::new(0),
                predicted: Cell::new(Predicted::default()),
                cool: Cell::new(0),
                hot: Cell::new(None),
                visit: Cell::new(0),
                unmade: Cell::new(false),
                waited: Cell::new((0, 0)),
                mapped: Cell::new(Mapped::default()),
                changed_in_place: Cell::new(false),
                segment: Cell::new((0, 0)),
                locks: Cell::new(Locks::default()),
                judged: Cell::new(false),
                user_dispatch: Cell::new(None),
                library: LibraryState::none(),
            })
        };
        t.set_state(State::Starting);
    }
}

/// True if the kernel has finished with a thread whose record says Dead. (It runs on the block until then.)
fn gone(t: &Thread) -> bool {
    // SAFETY: signal 0 only asks. (A task that was never created has no number.)
    t.tid() == 0
        || unsafe { sys!(k::__NR_tgkill, t.tgid(), t.tid(), 0) == Err(sys::Errno(ESRCH as i32)) }
}
