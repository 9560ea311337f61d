//! Owner of the edits of code that come and go on their own: patched accesses and patched system calls.
//!
//! The table is `ulpf_stub_tables::edits`; the memory for trampolines comes from `code_caves.rs`. Before code
//! changes, its edits are undone here ([`Edits::restore`]). Breakpoints, and the jumps of functions and client
//! requests, stay until their owners remove them.

use super::code_caves;
use super::patches::Patches;
use super::sites::Sites;
use ulpf_stub_handlers::stopped::Stopped;

pub struct Edits {
    pub accesses: Patches,
    pub calls: Sites,
}

impl Edits {
    pub fn new() -> Edits {
        Edits {
            accesses: Patches::new(),
            calls: Sites::new(),
        }
    }

    /// The code in `[start, end)` is about to be changed, or something planted there: restores the original code.
    pub fn restore(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        self.calls.restore(stopped, start, end);
        self.accesses.restore(stopped, start, end);
    }

    /// The mappings of `[start, end)` are about to change. Forgets what is known of code there.
    pub fn forget(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        self.calls.forget(stopped, start, end);
        self.accesses.forget(stopped, start, end);
        let caves = stopped.tables().caves.iter();
        let gone = caves.filter(|cave| cave.start < end && start < cave.end);
        let gone: alloc::vec::Vec<_> = gone.map(|cave| (cave.start, cave.end)).collect();
        for (start, end) in gone {
            self.restore(stopped, start, end);
        }
        code_caves::give_back(stopped, start, end);
    }

    /// The program is left alone.
    pub fn leave(&mut self, stopped: &mut Stopped) {
        self.calls.remove_all(stopped);
        self.accesses.leave(stopped);
    }
}
