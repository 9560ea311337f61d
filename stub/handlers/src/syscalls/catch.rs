//! `catch syscall`: threads park before and after the calls that the debugger catches.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use crate::global::g;
use crate::runtime::events::Event;
use crate::runtime::frame::UContext;
use crate::runtime::park::park;
use crate::runtime::thread::Current;
use ulpf_lib::sys::failure::ENOSYS;
const NUMBERS: usize = 512;

/// Some calls are caught.
static SOME: AtomicBool = AtomicBool::new(false);
/// All calls are caught, including those beyond the table.
static ALL: AtomicBool = AtomicBool::new(false);
/// Caught numbers beyond the table, which no kernel has.
static BEYOND: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
static WANTED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// Sets the calls that the debugger catches: none, all, or some. Called with the world stopped.
pub fn set(on: bool, numbers: &[u64]) {
    for (n, word) in WANTED.iter().enumerate() {
        let bit = |nr: &u64| {
            if *nr / 64 == n as u64 {
                1 << (nr % 64)
            } else {
                0
            }
        };
        let bits = match numbers {
            [] => u64::MAX,
            some => some.iter().map(bit).fold(0, |all, bit| all | bit),
        };
        word.store(bits, SeqCst);
    }
    let mut beyond = numbers.iter().filter(|nr| **nr >= NUMBERS as u64);
    for slot in &BEYOND {
        slot.store(beyond.next().copied().unwrap_or(0), SeqCst);
    }
    ALL.store(numbers.is_empty(), SeqCst);
    SOME.store(on, SeqCst);
}

pub fn active() -> bool {
    SOME.load(SeqCst)
}

pub fn wanted(t: Current, nr: u64) -> bool {
    let listed = || match WANTED.get(nr as usize / 64) {
        Some(w) => w.load(Relaxed) >> (nr % 64) & 1 != 0,
        None => BEYOND.iter().any(|n| n.load(Relaxed) == nr),
    };
    SOME.load(Relaxed)
        && (ALL.load(Relaxed) || listed())
        && g().debugger.load(Relaxed)
        && t.is_debugged()
}

/// Parks before a caught call. Returns `false` if the call must not be made (now).
pub fn enter(t: Current, uc: &mut UContext, nr: u64) -> bool {
    let i = t.own();
    let after = uc.gprs.rip;
    if !wanted(t, nr) || i.caught.take() == after {
        return true; // a call that is made again has been seen
    }
    // The value that the kernel shows at this point.
    uc.gprs.rax = ENOSYS as u64;
    crate::runtime::park::end_step(t, uc);
    park(t, uc, Event::Syscall { nr, entry: true });
    if t.leaving.load(Relaxed) {
        // The program makes the call by itself.
        uc.gprs.rip = after.wrapping_sub(2);
        uc.gprs.rax = nr;
        return false;
    }
    // A thread that was moved does not make the call.
    uc.gprs.rip == after
}

/// Parks after a caught call; `again` if it will be made once more, without another stop.
pub fn leave(t: Current, after: u64, nr: u64, again: bool) {
    let i = t.own();
    // GDB removes its catchpoints until it is notified that the vfork child is done: the thread checks again then
    // (`fault::stop_for`).
    let asked_again = i.pending.get().iter().any(|e| e == Event::VforkDone);
    if wanted(t, nr) || asked_again {
        if again {
            i.caught.set(after);
        } else {
            i.report(Event::Syscall { nr, entry: false });
        }
    }
}
