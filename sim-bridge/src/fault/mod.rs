// SPDX-License-Identifier: GPL-2.0-or-later
//! One access: the MMU's model looks at it, and if it faults, the handler is entered, and left.
//!
//! Unicorn cannot take back an instruction from within a hook: after a refused store it goes on to the
//! instruction's end. So a user-level fault is a transaction. The hook saves the processor's state,
//! which is that of the instruction's beginning (of the iteration's, in a string instruction), asks
//! Unicorn to stop, and every store until it does is noted with what was there before. Then memory and
//! processor are put back, and the handler is entered. What an instruction of several stores (MOVUPS
//! is two) has stored before the one that faults stays, as with micro-operations.
//!
//! `access.rs` looks at accesses and notes the fault, `deliver.rs` enters the handler and leaves it.

mod access;
pub mod deliver;

/// Who forbids the access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The user's tables, with this permission.
    User(u8),
    /// The same, for the instruction itself.
    Fetch(u8),
    /// The kernel's; the code of its SIGSEGV.
    Kernel(i32),
    /// A guard range.
    Guard,
}

/// A fault that waits for Unicorn to stop.
pub(crate) struct Abort {
    addr: u64,
    store: bool,
    cause: Cause,
    /// Address and what was there, in the order of the stores.
    undo: Vec<(u64, Vec<u8>)>,
}
