//! The right to change what handlers read without locks.

use ulpf_lib::guard::Guards;
use ulpf_stub_tables::Tables;

use crate::global::{tables, tables_mut};

/// Stop-the-world token. Every thread of the program waits in our code, or in a system call after which it will wait.
/// The thread that has asked for the stop is an exception: it waits, too, or runs alone between its `…Begin` and its
/// `End`.
///
/// There is one token at a time, and its owner lets no thread continue. So data that it lends for change have no other
/// reader.
pub struct Stopped(());

impl Stopped {
    /// # Safety
    /// The world must be stopped while the token lives, and there must be no other token. In a forked child the only
    /// thread may claim it.
    pub unsafe fn claim() -> Stopped {
        Stopped(())
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
