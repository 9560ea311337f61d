//! The right to change what handlers read without locks.

use ulpf_lib::guard::Guards;
use ulpf_stub_tables::Tables;

use crate::global::{tables, tables_mut};

/// The world rests: every thread of the program waits in our code, or in a system call after which it will, except the
/// one that has asked for it, and that one waits too or runs alone between its `…Begin` and its `End`.
///
/// There is one at a time, and whoever has it lets nobody go. So what it lends for change is read by nobody else.
pub struct AtRest(());

impl AtRest {
    /// # Safety
    /// The world rests, for as long as the token lives, and there is no other one. A forked child rests as well: it
    /// has one thread, which is the caller.
    pub unsafe fn claim() -> AtRest {
        AtRest(())
    }

    pub fn tables(&self) -> &Tables {
        tables()
    }

    pub fn tables_mut(&mut self) -> &mut Tables {
        // SAFETY: the token's own promise.
        unsafe { tables_mut() }
    }

    pub fn guards(&mut self) -> &mut Guards {
        let guards = self.tables_mut().guards.as_deref_mut();
        // SAFETY: set at boot, before the first token is made.
        unsafe { guards.unwrap_unchecked() }
    }
}
