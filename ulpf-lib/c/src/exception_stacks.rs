//! Exception stacks: each thread that faults gets one of ours, and nested faults continue below.
//!
//! ```text
//! base + 256 KiB ┌────────────────────────────┐
//!                │ Block: this thread's record│
//!                ├────────────────────────────┤ ← the kernel puts the first signal frame here
//!                │ frame, handler, callback … │   (sigaltstack), the frame of a fault inside
//!                │              ↓             │   the callback below, and so on
//!         + 4096 ├────────────────────────────┤
//!                │ inaccessible               │
//!           base └────────────────────────────┘
//! ```
//! All blocks lie in one reservation, so the stack pointer alone tells whether the caller runs on one, and on which: a
//! handler needs no thread-local storage. A thread gets its block at its first fault (or when it sets a watch).
//! `entry.rs` switches to it, and the frame's return installs it for good.

use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::access::AccessList;
use ulpf_engine::frame::SigInfo;
use ulpf_lib::place;
use ulpf_lib::sys;

use crate::error::Failure;
use crate::hits::Pending;
use crate::mask::{self, OURS, bit};
use crate::shared::{Changer, S};
use crate::thread;

pub const STACK: u64 = 256 << 10;
const MOST: u64 = 4096;
const GUARD: u64 = 4096;
/// Bytes of old values that a thread can keep.
pub const OLD: usize = 12 << 10;

/// The fault that the thesis's handler asks about.
#[derive(Clone, Copy)]
pub struct FaultNow {
    pub addr: u64,
    /// The access touches watched bytes.
    pub watched: bool,
}

/// One step that a thread makes with its pages open (`slow.rs`).
pub struct Step {
    pub mask: u64,
    pub at: u64,
    pub list: AccessList,
    pub pending: Pending,
    pub changer: Changer,
}

/// The part of a thread's record that all threads may read.
#[repr(C, align(64))]
pub struct Block {
    pub thread: AtomicI32,
    /// Set between `change::enter` and `leave`.
    pub performing: AtomicU32,
    own: Own,
}

// SAFETY: what is not atomic is `own`, which only its thread can reach: through an `OwnBlock`.
unsafe impl Sync for Block {}

/// The part of a record that only its thread uses. Its handlers may nest, so no references to the fields exist, and each
/// field is read or written at once.
pub struct Own {
    /// Handlers of the program that are running, one inside the other.
    pub depth: Cell<u32>,
    /// The fault of the innermost of them.
    pub fault: Cell<Option<FaultNow>>,
    /// A fault that was not ours, with its generation: if it recurs, it is the program's own.
    pub foreign: Cell<(u64, u64, u64)>,
    /// A SIGTRAP is pending for the program, behind the instruction.
    pub stopping: Cell<bool>,
    /// Signals that the program's running handlers would have blocked. Of our own five only sent ones wait.
    pub blocked: Cell<u64>,
    stepping: Cell<bool>,
    step: UnsafeCell<MaybeUninit<Step>>,
    /// Old bytes of an access (`stub_report.rs`).
    old: UnsafeCell<MaybeUninit<[u8; OLD]>>,
    /// A bit for each of [`OURS`] that was sent at a bad moment, and its siginfo.
    put_off: AtomicU32,
    sent: [Cell<SigInfo>; OURS.len()],
}

/// The record of the calling thread: code that holds one runs on that thread.
#[derive(Clone, Copy)]
pub struct OwnBlock {
    block: &'static Block,
    /// It stays on its thread.
    here: PhantomData<*mut ()>,
}

impl Deref for OwnBlock {
    type Target = Own;
    fn deref(&self) -> &Own {
        &self.block.own
    }
}

/// Blocks that were ever given out lie below this number.
static HIGH: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Reserves room for the stacks.
pub fn prepare() -> Result<(), Failure> {
    if S.stacks.load(Acquire) != 0 {
        return Ok(());
    }
    let mut result = Err(Failure::new(libc::ENOMEM, ""));
    for count in [MOST, 256, 32] {
        let len = (count + 1) * STACK;
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
        // SAFETY: a fresh mapping.
        match unsafe {
            sys!(
                k::__NR_mmap,
                place::hint(len),
                len,
                k::PROT_NONE,
                flags,
                -1i64,
                0
            )
        } {
            Ok(at) => {
                COUNT.store(count, Release);
                S.stacks_len.store(count * STACK, Release);
                S.stacks.store(at.next_multiple_of(STACK), Release);
                return Ok(());
            }
            Err(e) => {
                result = Err(Failure::os(
                    e,
                    "no address space for exception stacks; raise the limit (ulimit -v)",
                ))
            }
        }
    }
    result
}

/// Block number `index`, of those whose memory has been made.
fn block(index: u64) -> *mut Block {
    let base = S.stacks.load(Acquire) + index * STACK;
    (base + STACK - size_of::<Block>() as u64) as *mut Block
}

impl OwnBlock {
    /// The block on whose stack the caller runs.
    pub fn here() -> Option<OwnBlock> {
        let base = S.stacks.load(Acquire);
        let at = thread::stack().wrapping_sub(base);
        if base == 0 || at >= S.stacks_len.load(Acquire) {
            return None;
        }
        // SAFETY: a stack on which code runs has been made.
        let block = unsafe { &*block(at / STACK) };
        Some(OwnBlock::of(block))
    }

    /// For the calling thread's own block, as the caller has verified.
    fn of(block: &'static Block) -> OwnBlock {
        OwnBlock {
            block,
            here: PhantomData,
        }
    }

    /// The block of the calling thread, made if needed; `None` if all are taken.
    pub fn claim() -> Option<OwnBlock> {
        let me = thread::id();
        let count = COUNT.load(Acquire) as u32;
        let known = HIGH.load(SeqCst);
        for index in 0..known {
            // SAFETY: mapped, see below.
            let block = unsafe { &*block(index.into()) };
            if block.thread.load(Acquire) == me {
                return Some(OwnBlock::of(block));
            }
        }
        for index in 0..known {
            if let Some(block) = OwnBlock::take(index, 0, me) {
                return Some(block);
            }
        }
        for index in known..count {
            let base = S.stacks.load(Acquire) + index as u64 * STACK;
            // SAFETY: within the reservation.
            unsafe {
                sys!(
                    k::__NR_mprotect,
                    base + GUARD,
                    STACK - GUARD,
                    k::PROT_READ | k::PROT_WRITE
                )
            }
            .ok()?;
            let block = OwnBlock::take(index, 0, me);
            HIGH.fetch_max(index + 1, SeqCst);
            if block.is_some() {
                return block;
            }
        }
        // Threads that have ended say nothing.
        (0..count).find_map(|index| {
            // SAFETY: all are mapped by now.
            let owner = unsafe { &*block(index.into()) }.thread.load(Acquire);
            if owner != 0 && alive(owner) {
                return None;
            }
            OwnBlock::take(index, owner, me)
        })
    }

    /// Passes a block of thread `owner` to the calling thread, which is `me`.
    fn take(index: u32, owner: i32, me: i32) -> Option<OwnBlock> {
        // SAFETY: mapped by the caller; what is zero, or was written here, is a block.
        let block = unsafe { &*block(index.into()) };
        block
            .thread
            .compare_exchange(owner, me, AcqRel, Acquire)
            .ok()?;
        block.performing.store(0, Release);
        // As little work as possible: it runs on the stack that the signal has found. That may be an alternate one of a
        // few kilobytes, most of them taken by the frame.
        let own = OwnBlock::of(block);
        own.outermost();
        own.stopping.set(false);
        own.stepping.set(false);
        own.put_off.store(0, Relaxed);
        Some(own)
    }

    /// The part that other threads see.
    pub fn block(&self) -> &'static Block {
        self.block
    }

    /// Upper end of the stack.
    pub fn top(&self) -> u64 {
        core::ptr::from_ref(self.block) as u64 & !63
    }

    pub fn contains(&self, sp: u64) -> bool {
        let base = self.base();
        base < sp && sp <= base + STACK
    }

    fn base(&self) -> u64 {
        let base = S.stacks.load(Acquire);
        base + (core::ptr::from_ref(self.block) as u64 - base) / STACK * STACK
    }

    /// Bounds of the stack: its lowest address, and the address behind the highest.
    pub fn bounds(&self) -> [u64; 2] {
        let base = self.base();
        [base, base + STACK]
    }

    /// Address and size for sigaltstack(2).
    pub fn signal_stack(&self) -> (u64, u64) {
        (self.base() + GUARD, self.top() - self.base() - GUARD)
    }

    /// Makes it the calling thread's alternate stack, if the thread does not run on the present one.
    pub fn install(&self) {
        let (sp, size) = self.signal_stack();
        let stack = [sp, 0, size];
        // SAFETY: three words are a `stack_t`.
        let _ = unsafe { sys!(k::__NR_sigaltstack, stack.as_ptr(), 0) };
    }

    /// Defers a signal that was sent (not raised by the thread's own instruction), if it arrives at a bad moment. Those
    /// are a change, a step, the serving of a fault, or a handler that blocks it. As in the kernel, one signal of each
    /// number is kept.
    pub fn puts_off(&self, signo: i32, info: &SigInfo) -> bool {
        let busy = self.block.performing.load(Relaxed) != 0 || S.is_changer();
        if info.by_kernel() || !(busy || self.blocked.get() & bit(signo) != 0) {
            return false;
        }
        if let Some(n) = OURS.iter().position(|&s| s == signo) {
            self.sent[n].set(*info);
            self.put_off.fetch_or(1 << n, Relaxed);
        }
        true
    }
}

impl Own {
    pub fn is_stepping(&self) -> bool {
        self.stepping.get()
    }

    /// Ends the current step.
    pub fn take_step(&self) -> Option<Step> {
        // SAFETY: set together, and read once.
        self.stepping
            .replace(false)
            .then(|| unsafe { (*self.step.get()).assume_init_read() })
    }

    /// Begins a step while no other one is in progress.
    pub fn begin_step(&self, step: Step) {
        // SAFETY: no references to it exist: every reader takes it out.
        unsafe { (*self.step.get()).write(step) };
        self.stepping.set(true);
    }

    /// [`OLD`] bytes.
    pub fn old(&self) -> *mut u8 {
        self.old.get().cast()
    }

    /// Sends deferred signals again. They arrive when the mask is restored, as our handler returns.
    pub fn send_again(&self) {
        if self.put_off.load(Relaxed) == 0 {
            return;
        }
        let waiting = self.put_off.swap(0, Relaxed);
        let each = || (0..OURS.len()).filter(|n| waiting & 1 << n != 0);
        mask::block(each().fold(0, |mask, n| mask | bit(OURS[n])));
        for n in each() {
            thread::send(&self.sent[n].get());
        }
    }

    /// Resets the record: no handler is running, however an earlier one was left.
    pub fn outermost(&self) {
        self.depth.set(0);
        self.blocked.set(0);
        self.fault.set(None);
    }
}

fn alive(thread: i32) -> bool {
    // SAFETY: signal 0 asks only.
    unsafe {
        let pid = sys!(k::__NR_getpid).unwrap_or(0);
        sys!(k::__NR_tgkill, pid, thread, 0).is_ok()
    }
}

/// Calls `f` for each block that has an owner.
pub fn each(mut f: impl FnMut(&Block)) {
    for index in 0..HIGH.load(Acquire) as u64 {
        // SAFETY: mapped, see `claim`.
        let block = unsafe { &*block(index) };
        if block.thread.load(Acquire) != 0 {
            f(block);
        }
    }
}

/// In the child of a fork: the other threads do not exist, and this one has another id.
pub fn after_fork(mine: OwnBlock) {
    mine.put_off.store(0, Relaxed); // sent to the parent
    each(|b| {
        b.performing.store(0, Release);
        let me = core::ptr::eq(mine.block, b);
        b.thread.store(if me { thread::id() } else { 0 }, Release);
    });
}
