//! One record per program thread, at the base of the alternate stack on which all our handlers run.
//!
//! ```text
//! block + BLOCK   ┌───────────────────────┐ ← handlers start here
//!                 │ stack                 │
//!                 ├───────────────────────┤
//!                 │ scratch (old values)  │
//! block + 0       └ Thread                ┘
//! ```
//! Blocks are aligned to their size, so a handler finds its record by masking rsp: no thread-local
//! storage of the program's is touched and no system call is made.
//!
//! Who writes what: what is atomic, anybody. [`Own`] belongs to the thread itself while it runs ([`Current`]), and to
//! the stub's task while the thread waits for that (`State::Parked`, `State::Requesting`; `control/parked.rs`). A
//! thread in a system call may come out of it at any moment, so of that the task has only what is atomic.

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
use ulpf_lib::sync::rest::Gate;
pub use ulpf_lib::sync::rest::State;
use ulpf_lib::sys;

use super::events::{Event, Events, Foreseen, Request, Resume, Tid};
use super::filters::Filters;
use super::frame::{SS_DISABLE, SigInfo, SigStack, UContext};
use super::library_state::LibraryState;
use super::mapped::{Locks, Mapped};
use super::sequences::{Registered, Section};
use super::waiting::Waiting;
use crate::rights::Published;
use crate::signals::actions::ActionTable;

pub const BLOCK: usize = 256 << 10;
pub const MAX_THREADS: usize = 1 << 15;
/// Old values of one access, and what a system call needs beside the program's memory.
pub const SCRATCH: usize = 48 << 10;

#[repr(C)]
pub struct Thread {
    pub state: AtomicU32,
    /// Futex word: set to 1 to let a resting thread go on.
    pub go: AtomicU32,
    pub tid: AtomicI32,
    /// Thread group; differs from the program's for vfork children.
    pub tgid: AtomicI32,
    pub serial: AtomicU64,
    /// The frame of the handler that rests; valid while not Running.
    pub ctx: AtomicPtr<UContext>,
    /// A signal has struck while our own code ran, and may have left something to do.
    pub attention: AtomicU32,
    /// A signal that the debugger sends to the thread, and does not want to be told of; 0: none.
    pub ordered_signal: AtomicI32,
    /// It gets the program's alternate stack back when its handler returns.
    pub gives_stack_back: AtomicBool,
    pub kicked: AtomicBool,
    /// The frame of the upcall that is being handled, as long as it lacks the program's signal mask
    /// (`crate::upcall`).
    pub unmasked: AtomicPtr<UContext>,
    /// The debugger changed the registers of a thread that rests in a system call.
    pub dirty: AtomicBool,
    /// Scheduler locking: rest after the present system call.
    pub hold: AtomicBool,
    /// Number of the record, of its ring and of its area for patches.
    pub index: AtomicU32,
    /// Where the kernel writes down which debug registers have matched (`debug_registers`), or 0.
    pub trap_ring: AtomicU64,
    /// System call in progress, else -1.
    pub orig_rax: AtomicI64,
    pub fs_base: AtomicU64,
    /// The processor that a parked thread has run on last; -1: not known.
    pub core: AtomicI32,
    pub gs_base: AtomicU64,
    /// The debugger has changed the two.
    pub bases_dirty: AtomicBool,
    /// The debugger's single step is under way.
    pub stepping: AtomicBool,
    /// The step goes on inside of `[start, end)`.
    range: [AtomicU64; 2],
    /// It was to step when it went into a system call, and is not any more: the trap flag in its frame is not the
    /// program's.
    pub untrap: AtomicBool,
    /// The debugger has given another order: a step across the library's handlers is forgotten.
    pub ordered: AtomicBool,
    /// The program is left alone.
    pub leaving: AtomicBool,
    /// It keeps locks of pages ([`crate::locks`]) until its stop is reported.
    pub keeps_locks: AtomicBool,
    /// A vfork child that the debugger has taken: it is stopped and looked at like our own threads.
    pub adopted: AtomicBool,
    /// A process to the kernel, a thread to debuggers: it shares our memory and nobody else's wait (clone(2) with CLONE_VM
    /// alone, as ptrace tells it: PTRACE_EVENT_CLONE).
    pub kin: AtomicBool,
    /// The program's seccomp filters.
    pub filters: Filters,
    /// Its credentials after the last call that could change them.
    pub rights: Published,
    /// Head of its list of robust locks (set_robust_list), or 0.
    pub robust: AtomicU64,
    /// What it has registered for restartable sequences ([`crate::sections`]).
    pub sequences: Registered,
    /// The signal actions of a task that does not share those of its parent.
    pub own_actions: ActionTable,
    own: UnsafeCell<Own>,
}

/// See the head of this file.
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
    /// A vfork child that is to report itself: the thread that has made it.
    pub vfork_parent: Cell<Tid>,
    /// A vfork child whose exec the command may want to follow.
    pub spawned: Cell<bool>,
    /// It is such a child, and has asked to be traced by its parent (`crate::syscalls::tracing`).
    pub traced: Cell<bool>,
    /// A task beside the program's threads that traces one of them, or did (`super::tracer`).
    pub traces: Cell<bool>,
    /// Signals that arrived while our own code ran.
    pub deferred: [Cell<SigInfo>; DEFERRED],
    pub deferred_len: Cell<usize>,
    /// Signals that arrived although the program has them blocked.
    pub waiting: Waiting,
    /// The command's park signal is still on its way.
    pub booting: Cell<bool>,
    /// Our own single step (slow path, stepping over a breakpoint) is under way; signal mask to
    /// restore after it.
    pub own_step: Cell<Option<OwnStep>>,
    /// It makes a restartable sequence alone ([`crate::sections`]).
    pub section: Cell<Option<Section>>,
    /// It does so again when it has stepped over a breakpoint.
    pub section_after: Cell<Option<Section>>,
    /// Address, length and signature of the area for such sequences that it had before we came.
    pub area_before: Cell<[u64; 3]>,
    /// The others rest for its store to a pointer that a watch follows.
    pub alone: Cell<bool>,
    /// Our handler runs under the program's own mask (see [`crate::signals::masks::close`]).
    pub open: Cell<bool>,
    /// The program's signal mask, while signals wait for the end of `direct`, or for the frame of an upcall.
    pub direct_mask: Cell<Option<u64>>,
    /// The mask of a call that waited under another one, for the handler of what has ended it.
    pub waited_under: Cell<Option<u64>>,
    /// When the call in progress was first made, if not just now (0).
    pub begun: Cell<u64>,
    /// A call on a socket whose wait may be limited: when it began (0: it is none), and whether it goes on
    /// after we have interrupted it halfway.
    pub waits: Cell<(u64, bool)>,
    /// What a slot has done of it.
    pub already: Cell<i64>,
    /// Hits by the kernel, to be reported when the system call is complete.
    pub pending: Cell<Events>,
    /// What the same instruction is to be reported for after the present stop.
    pub later: Cell<Events>,
    /// The system call that made the hit which is being reported.
    pub call: Cell<Option<Call>>,
    /// Where a caught system call returns to that is to be made again, or 0.
    pub caught: Cell<u64>,
    /// Page whose watches should be placed anew at the next opportunity, or 0.
    pub reconsider: Cell<u64>,
    /// Code that a backtrace has come to and did not know; 0: none.
    pub new_code: Cell<u64>,
    /// Not 0: the checked heap has no room for what it asks for; bytes.
    pub needs_room: Cell<u64>,
    /// It is on its way from `operator new[]` to `operator new`, in a checked heap.
    pub asks_for_array: Cell<bool>,
    /// Not 0: the program wants to hear of no error of the checked heap.
    pub quiet: Cell<u32>,
    /// An error of the checked heap that was judged before it was made.
    pub foreseen: Cell<Foreseen>,
    /// Not 0: the patch there is to go.
    pub cool: Cell<u64>,
    /// A hot instruction and the page that it has met.
    pub hot: Cell<Option<(&'static Site, u64)>>,
    /// Not 0: the access there is one of a loop that is to go on in the body of a patch.
    pub visit: Cell<u64>,
    /// What a patch's body has come to is left to the fault's handler.
    pub unmade: Cell<bool>,
    /// How often in a row it has not got a lock, and since when (CLOCK_MONOTONIC, nanoseconds; 0: it has not waited).
    pub waited: Cell<(u32, u64)>,
    /// What a call has done to the mappings, for the stub's task.
    pub mapped: Cell<Mapped>,
    /// The answer to [`Request::ChangeInPlace`].
    pub changed_in_place: Cell<bool>,
    pub locks: Cell<Locks>,
    /// A seccomp filter in the kernel is to decide about the call in progress.
    pub judged: Cell<bool>,
    /// The program dispatches its calls itself: start and length of the code that is exempt, address of the selector.
    pub user_dispatch: Cell<Option<[u64; 3]>>,
    /// With the library by which the program watches itself.
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

    /// One more hit to report when the system call is complete.
    pub fn report(&self, event: Event) {
        let mut all = self.pending.get();
        all.push(event);
        self.pending.set(all);
    }

    /// Keeps a signal until our own code is left.
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
    /// One of many ([`crate::sections`]).
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

// SAFETY: see "Who writes what" above.
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
    /// In a handler, on the block of a thread.
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
    /// The record is the calling thread's, or will be once that has been set up.
    pub unsafe fn with(t: &'static Thread) -> Current {
        Current(t, PhantomData)
    }

    #[inline(always)]
    pub fn own(self) -> &'static Own {
        // SAFETY: the thread runs, so this is its own alone.
        unsafe { self.0.own() }
    }

    pub fn record(self) -> &'static Thread {
        self.0
    }
}

impl Thread {
    /// The part that only one side uses at a time (see the head of this file).
    ///
    /// # Safety
    /// The thread is the caller; or the caller is the stub's task, and the thread waits for it; or the record is one
    /// that nobody uses yet.
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
    /// The cells by which it comes to rest and goes on.
    pub fn gate(&self) -> Gate<'_> {
        Gate {
            state: &self.state,
            go: &self.go,
        }
    }
    pub fn set_state(&self, s: State) {
        self.state.store(s as u32, SeqCst);
    }
    /// Dead, unless it is so already: then the record may stand for another thread by now, which
    /// `serial` tells.
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
    /// What sigaltstack(2) is told about the block.
    pub fn our_stack(&self) -> SigStack {
        let low = self.scratch() as usize + SCRATCH;
        SigStack {
            sp: low as u64,
            flags: 0,
            pad: 0,
            size: (self.base() + BLOCK - low) as u64,
        }
    }
    /// Rests in a place where the debugger may look at it.
    pub fn rests(&self) -> bool {
        self.state().rests()
    }
    /// A detach has let it go (`crate::signals::leaving`): what is left of its handler has nobody to wait for.
    pub fn has_left(&self) -> bool {
        self.leaving.load(SeqCst) && self.state() == State::Dead
    }
    /// Has the kernel finished with it? Between Dead and this it may still run on its block (and a
    /// thread inside exec(2), Dead for as long, may come back).
    pub fn gone(&self) -> bool {
        self.state() == State::Dead && gone(self)
    }
}

/// All records. Slots are reused once their thread is gone for the kernel, too.
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

    /// Every record that stands for a live thread.
    pub fn iter(&self) -> impl Iterator<Item = &'static Thread> + '_ {
        self.slots().iter().filter_map(|s| {
            // SAFETY: records are never unmapped.
            let t = unsafe { s.load(Acquire).as_ref() }?;
            (!matches!(t.state(), State::Free | State::Dead)).then_some(t)
        })
    }

    /// Every record, also of threads that have ended.
    pub fn every(&self) -> impl Iterator<Item = &'static Thread> + '_ {
        let all = self.slots().iter();
        // SAFETY: records are never unmapped.
        all.filter_map(|s| unsafe { s.load(Acquire).as_ref() })
    }

    pub fn find(&self, tid: i32) -> Option<&'static Thread> {
        self.iter().find(|t| t.tid() == tid)
    }

    /// A fresh record in state `Starting`; `None` without memory. Callable in a handler.
    pub fn create(&self, actions: &'static ActionTable) -> Option<&'static Thread> {
        for slot in self.slots() {
            // SAFETY: records are never unmapped.
            let Some(t) = (unsafe { slot.load(Acquire).as_ref() }) else {
                continue;
            };
            // Claimed first, then looked at: another thread may have had the record meanwhile, and have ended.
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
            // SAFETY: our own mapping, of which nobody knows yet.
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

    /// Makes a record in state `Free`, which nobody looks at, one in state `Starting`.
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
        // SAFETY: nobody else uses a record in state Free.
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
                foreseen: Cell::new(Foreseen::default()),
                cool: Cell::new(0),
                hot: Cell::new(None),
                visit: Cell::new(0),
                unmade: Cell::new(false),
                waited: Cell::new((0, 0)),
                mapped: Cell::new(Mapped::default()),
                changed_in_place: Cell::new(false),
                locks: Cell::new(Locks::default()),
                judged: Cell::new(false),
                user_dispatch: Cell::new(None),
                library: LibraryState::none(),
            })
        };
        t.set_state(State::Starting);
    }
}

/// Has the kernel finished with a thread whose record says Dead? (It runs on the block until then.)
fn gone(t: &Thread) -> bool {
    // SAFETY: signal 0 only asks. (A task that was never made has no number.)
    t.tid() == 0
        || unsafe { sys!(k::__NR_tgkill, t.tgid(), t.tid(), 0) == Err(sys::Errno(ESRCH as i32)) }
}
