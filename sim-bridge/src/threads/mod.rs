// SPDX-License-Identifier: GPL-2.0-or-later
//! Threads. They take turns on the machine's one processor, between two instructions, so each sees all
//! stores of the others. That is stronger than x86's order: a program with a missing fence runs here and
//! fails elsewhere, but a correct program is correct here. A turn lasts [`TURN`] instructions, or until
//! the thread waits, so a run is repeatable.
//!
//! Waiting is virtual, too: if no thread can run, time advances to the first deadline. The machine itself
//! waits only if a thread waits for something outside it (a descriptor, a child, a signal).

pub mod schedule;

use crate::write_once::Armed;
use unicorn_engine::Context;

pub const TURN: u64 = 20_000;
/// Of this process alone; the rest is a program that makes threads in a loop.
pub const MOST: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    No,
    Futex {
        addr: u64,
        bits: u32,
        deadline: Option<u64>,
    },
    Sleep {
        deadline: u64,
    },
    /// The call is made again when the descriptor is ready (poll(2)'s bits), or at the deadline.
    File {
        fd: i32,
        events: i16,
        deadline: Option<u64>,
    },
    /// The call is made again when something outside has happened: a child has ended, a signal has come.
    Outside,
}

pub struct Thread {
    pub id: u32,
    pub wait: Wait,
    /// The call before which it stands has waited, and is made again.
    pub again: bool,
    /// The processor's state, while others run.
    context: Option<Context>,
    /// Result of its system call, if it has waited.
    result: Option<i64>,
    /// CLONE_CHILD_CLEARTID.
    pub clear_id: u64,
    pub mask: u64,
    /// The mask that sigsuspend has replaced.
    pub suspended: Option<u64>,
    pub pending: u64,
    /// Alternate stack: base, length; empty: none.
    pub alternate: (u64, u64),
    /// The device's exception stack: base, length; empty: none.
    pub exceptions: (u64, u64),
    /// Handlers of the hardware that have not returned, and the permits of the write-once rule.
    frames: Vec<u64>,
    entered: u64,
    in_handler: u64,
    armed: Vec<Armed>,
}

impl Thread {
    pub fn new(id: u32) -> Thread {
        Thread {
            id,
            wait: Wait::No,
            again: false,
            context: None,
            result: None,
            clear_id: 0,
            mask: 0,
            suspended: None,
            pending: 0,
            alternate: (0, 0),
            exceptions: (0, 0),
            frames: vec![],
            entered: 0,
            in_handler: 0,
            armed: vec![],
        }
    }
}

/// Work that a system call leaves to be done between two instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Later {
    /// The call is made again when the wait is over.
    Again(Wait),
    /// The call ends with what ends the wait.
    Wait(Wait),
    Yield,
    /// Flags, stack, where the parent and the child want the number, thread-local storage.
    Clone([u64; 5]),
    ExitThread,
    SignalReturn,
}
