// SPDX-License-Identifier: GPL-2.0-or-later
//! One access: the MMU's model looks at it, and if it faults, the handler is entered, and left.
//!
//! Unicorn cannot undo an instruction from within a hook: after a refused store it continues to the
//! instruction's end. So a user-level fault is a transaction. The hook saves the processor's state at
//! the beginning of the instruction (of the iteration, in a string instruction) and asks Unicorn to
//! stop. Every store until it does is noted with the old bytes. Then memory and processor are
//! restored, and the handler is entered. If an instruction makes several stores (MOVUPS makes two),
//! those before the one that faults stay, as with micro-operations.
//!
//! `access.rs` looks at accesses and notes the fault, `deliver.rs` enters the handler and leaves it.

mod access;
pub mod deliver;

/// Origin of a refused access.
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
