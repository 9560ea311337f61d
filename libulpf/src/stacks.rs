//! Exception stacks: each thread that faults has one of ours, and nested faults go on below.
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
//! All blocks lie in one reservation, so "am I on one of ours, and on which?" is arithmetic on the
//! stack pointer: no thread-local storage in a handler. A thread gets its block at its first fault (or
//! when it sets a watch): `entry.rs` switches to it, the frame's return installs it for good.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::access::AccessList;
use ulpf_engine::frame::SigInfo;
use ulpf_lib::place;
use ulpf_lib::sys;

use crate::above::OLD;
use crate::change;
use crate::error::Failure;
use crate::handler::FaultNow;
use crate::shared::S;
use crate::signals::{self, OURS, bit};

pub const STACK: u64 = 256 << 10;
const MOST: u64 = 4096;
const GUARD: u64 = 4096;

/// One step that a thread makes with its pages open (`slow.rs`).
pub struct Step {
    pub mask: u64,
    pub at: u64,
    pub list: AccessList,
    pub pending: crate::hits::Pending,
}

/// A thread's record. Only its thread uses what is not atomic.
#[repr(C, align(64))]
pub struct Block {
    pub thread: AtomicI32,
    /// Between [`crate::change::enter`] and `leave`.
    pub performing: AtomicU32,
    /// Handlers of the program that are running, one inside the other.
    pub depth: u32,
    pub fault: *const FaultNow,
    /// A fault that was not ours, at this generation: the second time it is the program's own.
    pub foreign: (u64, u64, u64),
    /// A SIGTRAP waits for the program, behind the instruction.
    pub stopping: bool,
    stepping: bool,
    step: MaybeUninit<Step>,
    /// What an access is about to change (`above.rs`).
    pub old: MaybeUninit<[u8; OLD]>,
    /// What the program's handlers that are running would have blocked: of our signals only those that are sent.
    pub blocked: u64,
    /// A bit for each of [`OURS`] that somebody has sent at a bad moment, and its siginfo.
    put_off: u32,
    sent: [MaybeUninit<SigInfo>; OURS.len()],
}

/// Blocks that were ever given out lie below this number.
static HIGH: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

pub fn thread_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { sys!(k::__NR_gettid) }.unwrap_or(0) as i32
}

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
        match unsafe { sys!(k::__NR_mmap, place::hint(len), len, 0, flags, -1i64, 0) } {
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

impl Block {
    /// The block whose stack holds this address.
    pub fn holding(sp: u64) -> Option<&'static mut Block> {
        let base = S.stacks.load(Acquire);
        let at = sp.wrapping_sub(base);
        if base == 0 || at >= S.stacks_len.load(Acquire) {
            return None;
        }
        // SAFETY: a stack that code runs on has been made; the record is the thread's own.
        Some(unsafe { &mut *Block::at(at / STACK) })
    }

    fn at(index: u64) -> *mut Block {
        let base = S.stacks.load(Acquire) + index * STACK;
        (base + STACK - size_of::<Block>() as u64) as *mut Block
    }

    /// The block of the calling thread, made if need be; `None`: all are taken.
    pub fn claim() -> Option<&'static mut Block> {
        let me = thread_id();
        let count = COUNT.load(Acquire) as u32;
        let known = HIGH.load(SeqCst);
        for index in 0..known {
            // SAFETY: mapped, see below.
            let block = unsafe { &mut *Block::at(index as u64) };
            if block.thread.load(Acquire) == me {
                return Some(block);
            }
        }
        for index in 0..known {
            if let Some(block) = Block::take(index, 0, me) {
                return Some(block);
            }
        }
        for index in known..count {
            let base = S.stacks.load(Acquire) + index as u64 * STACK;
            // SAFETY: within the reservation.
            unsafe { sys!(k::__NR_mprotect, base + GUARD, STACK - GUARD, 3) }.ok()?;
            let block = Block::take(index, 0, me);
            HIGH.fetch_max(index + 1, SeqCst);
            if block.is_some() {
                return block;
            }
        }
        // Threads that have ended say nothing.
        (0..count).find_map(|index| {
            // SAFETY: all are mapped by now.
            let owner = unsafe { &*Block::at(index as u64) }.thread.load(Acquire);
            if owner != 0 && alive(owner) {
                return None;
            }
            Block::take(index, owner, me)
        })
    }

    fn take(index: u32, owner: i32, me: i32) -> Option<&'static mut Block> {
        // SAFETY: mapped by the caller; the record becomes ours only if the exchange succeeds.
        unsafe {
            let block = Block::at(index as u64);
            (*block)
                .thread
                .compare_exchange(owner, me, AcqRel, Acquire)
                .ok()?;
            (*block).performing.store(0, Release);
            (*block).depth = 0;
            (*block).fault = core::ptr::null();
            // As little as can be: it runs on whatever stack the signal has found, which may be an
            // alternate one of a few kilobytes, most of them taken by the frame.
            (*block).stopping = false;
            (*block).stepping = false;
            (*block).put_off = 0;
            (*block).blocked = 0;
            Some(&mut *block)
        }
    }

    pub fn step(&self) -> Option<&Step> {
        // SAFETY: set together.
        self.stepping
            .then(|| unsafe { self.step.assume_init_ref() })
    }

    pub fn take_step(&mut self) -> Option<Step> {
        let stepping = core::mem::take(&mut self.stepping);
        // SAFETY: set together, and read once.
        stepping.then(|| unsafe { self.step.assume_init_read() })
    }

    pub fn begin_step(&mut self, step: Step) {
        self.step.write(step);
        self.stepping = true;
    }

    /// A signal that was sent, not raised by what the thread does, finds it within a change, a step, the serving of
    /// a fault, or a handler that blocks it: it comes afterwards. As with the kernel, one of each number waits.
    pub fn puts_off(&mut self, signo: i32, info: &SigInfo) -> bool {
        let busy = self.performing.load(Relaxed) != 0 || change::is_mine();
        if info.by_kernel() || !(busy || self.blocked & bit(signo) != 0) {
            return false;
        }
        if let Some(n) = OURS.iter().position(|&s| s == signo) {
            self.sent[n].write(*info);
            self.put_off |= 1 << n;
        }
        true
    }

    /// What was put off comes as soon as the mask is as it was, which is when our handler returns.
    pub fn send_again(&mut self) {
        let waiting = core::mem::take(&mut self.put_off);
        let each = || (0..OURS.len()).filter(|n| waiting & 1 << n != 0);
        if waiting != 0 {
            change::block(each().fold(0, |mask, n| mask | bit(OURS[n])));
        }
        for n in each() {
            // SAFETY: written with its bit.
            signals::to_myself(unsafe { self.sent[n].assume_init_ref() });
        }
    }

    /// No handler is under way, however an earlier one was left.
    pub fn outermost(&mut self) {
        self.depth = 0;
        self.blocked = 0;
        self.fault = core::ptr::null();
    }

    /// Where the stack begins.
    pub fn top(&self) -> u64 {
        self as *const Block as u64 & !63
    }

    pub fn contains(&self, sp: u64) -> bool {
        let base = self.base();
        base < sp && sp <= base + STACK
    }

    fn base(&self) -> u64 {
        let base = S.stacks.load(Acquire);
        base + (self as *const Block as u64 - base) / STACK * STACK
    }

    /// Where the stack lies: from its lowest address to behind the highest.
    pub fn bounds(&self) -> [u64; 2] {
        let base = self.base();
        [base, base + STACK]
    }

    /// What sigaltstack(2) is to be told.
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
        // SAFETY: mapped, see `claim`; only atomics are looked at.
        let block = unsafe { &*Block::at(index) };
        if block.thread.load(Acquire) != 0 {
            f(block);
        }
    }
}

/// In the child of a fork: the other threads are not here, and this one has another number.
pub fn after_fork(mine: &mut Block) {
    mine.put_off = 0; // sent to the parent
    each(|b| {
        b.performing.store(0, Release);
        let me = core::ptr::eq(mine, b);
        b.thread.store(if me { thread_id() } else { 0 }, Release);
    });
}
