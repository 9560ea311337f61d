// SPDX-License-Identifier: GPL-2.0-or-later
//! Signals: handlers, masks, alternate stacks, frames as Linux lays them out. Where they come from: the
//! program's own instructions (faults, traps), its own kill and tgkill, and other processes, whose
//! signals the simulator's process receives in the program's stead (`processes/`).
//!
//! ```text
//!   sp ─▶ 0   restorer          what the handler returns to
//!         8   ucontext: flags, link, stack, registers (+40), trap, address, pointer to fpstate (+224),
//!             mask (+296)
//!       312   siginfo, 128 bytes
//!       440…  fpstate, 512 bytes as FXSAVE has them, aligned to 64
//! ```
//!
//! Here is what is known of signals, and what this process receives; `deliver.rs` enters handlers and leaves them,
//! `calls.rs` has the program's system calls.

pub mod calls;
pub mod deliver;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use unicorn_engine::uc_engine;

pub const SIGILL: u32 = libc::SIGILL as u32;
pub const SIGTRAP: u32 = libc::SIGTRAP as u32;
pub const SIGBUS: u32 = libc::SIGBUS as u32;
pub const SIGFPE: u32 = libc::SIGFPE as u32;
pub const SIGKILL: u32 = libc::SIGKILL as u32;
pub const SIGSEGV: u32 = libc::SIGSEGV as u32;
const SIGSTOP: u32 = libc::SIGSTOP as u32;
const SIGCHLD: u32 = libc::SIGCHLD as u32;

const SA_SIGINFO_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = libc::SA_ONSTACK as u64;
const SA_RESTART: u64 = libc::SA_RESTART as u64;
const SA_NODEFER: u64 = libc::SA_NODEFER as u64;
const SA_RESETHAND: u64 = libc::SA_RESETHAND as u32 as u64;

#[derive(Clone, Copy, Default)]
pub struct Action {
    pub handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// siginfo's first words: code, and what follows it.
#[derive(Clone, Copy, Default)]
pub struct Info {
    pub code: i32,
    /// The address of a fault; the sender's process and user else.
    pub value: u64,
    pub trap: u64,
    /// Of a page fault: 1 forbidden (else not mapped), 2 a store, 4 by the user, 16 a fetch.
    pub error: u64,
}

pub struct Signals {
    pub actions: [Action; 65],
    /// To the process as a whole.
    pub pending: u64,
    info: [Info; 65],
}

impl Default for Signals {
    fn default() -> Signals {
        Signals {
            actions: [Action::default(); 65],
            pending: 0,
            info: [Info::default(); 65],
        }
    }
}

/// Signals that this process has received, and the machine that is to stop for them.
static RECEIVED: AtomicU64 = AtomicU64::new(0);
static MACHINE: AtomicPtr<uc_engine> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn received(signal: i32) {
    RECEIVED.fetch_or(1 << (signal - 1), Ordering::SeqCst);
    let machine = MACHINE.load(Ordering::SeqCst);
    if !machine.is_null() {
        STOPPED.store(true, Ordering::SeqCst);
        // SAFETY: it is there as long as its address is here. All it does is to set two flags.
        unsafe { unicorn_engine::uc_emu_stop(machine) };
    }
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whether a signal has stopped the machine since the last look.
pub fn has_stopped() -> bool {
    STOPPED.swap(false, Ordering::SeqCst)
}

pub fn has_received() -> bool {
    RECEIVED.load(Ordering::Relaxed) != 0
}

/// The machine looks for signals by itself from now on. (Stopped between two instructions that have hooks,
/// Unicorn may go on at the one before.)
pub fn polled() {
    MACHINE.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// Signals of this process are the machine's from now on.
pub fn adopt(machine: *mut uc_engine) {
    MACHINE.store(machine, Ordering::SeqCst);
}

/// Signals that instructions of the program raise; this process's own are bugs.
fn is_synchronous(signal: u32) -> bool {
    matches!(signal, SIGILL | SIGTRAP | SIGBUS | SIGFPE | SIGSEGV)
}

fn ignored_by_default(signal: u32) -> bool {
    matches!(signal, SIGCHLD | 18 | 23 | 28)
}

pub fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}
