//! `catch syscall`: threads rest before and after the calls that the debugger wants to see.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use crate::global::g;
use crate::runtime::events::Event;
use crate::runtime::frame::UContext;
use crate::runtime::park::park;
use crate::runtime::thread::Current;
use ulpf_lib::sys::failure::ENOSYS;
const NUMBERS: usize = 512;

/// Some call is to be caught.
static SOME: AtomicBool = AtomicBool::new(false);
/// All are to be caught, also those beyond the table.
static ALL: AtomicBool = AtomicBool::new(false);
/// Numbers beyond the table, which no kernel knows.
static BEYOND: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
static WANTED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// What the debugger wants, with the world at rest: none, all, or some.
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

/// Before a call. `false`: it is not to be made (now).
pub fn enter(t: Current, uc: &mut UContext, nr: u64) -> bool {
    let i = t.own();
    let after = uc.gprs.rip;
    if !wanted(t, nr) || i.caught.take() == after {
        return true; // a call that is made again has been seen
    }
    // As the kernel shows it at this point.
    uc.gprs.rax = ENOSYS as u64;
    crate::runtime::park::end_step(t, uc);
    park(t, uc, Event::Syscall { nr, entry: true });
    if t.leaving.load(Relaxed) {
        // The program makes the call by itself.
        uc.gprs.rip = after.wrapping_sub(2);
        uc.gprs.rax = nr;
        return false;
    }
    // Sent elsewhere, the thread leaves the call behind.
    uc.gprs.rip == after
}

/// After a call, `again`: which will be made once more, without another stop.
pub fn leave(t: Current, after: u64, nr: u64, again: bool) {
    let i = t.own();
    // GDB takes its catchpoints away until it has been told that the vfork child is done: it is asked again then
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
