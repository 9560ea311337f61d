//! The code around a patch: read once, since each read is a system call, and a patch looks at it several times.

use alloc::vec::Vec;

use ulpf_lib::PAGE_SIZE;

use crate::control::text;

/// Number of bytes before an access that are read, and behind it.
const BEFORE: u64 = 160;
const BEHIND: u64 = 256;

/// The code around an access, without patches and breakpoints. It does not change while the program is stopped.
#[derive(Default)]
pub(super) struct Window {
    start: u64,
    code: Vec<u8>,
}

impl Window {
    /// Reads the code around `pc`.
    pub(super) fn open(&mut self, pc: u64) {
        // (Another page may not be readable.)
        self.start = pc.saturating_sub(BEFORE).max(pc & !(PAGE_SIZE - 1));
        self.code.resize((pc - self.start + BEHIND) as usize, 0);
        let n = text::read(self.start, &mut self.code);
        self.code.truncate(n);
    }

    /// Reads a page of code, and the bytes behind it that an instruction in it may need.
    pub(super) fn open_page(&mut self, page: u64) {
        self.start = page;
        self.code.resize((PAGE_SIZE + BEHIND) as usize, 0);
        let n = text::read(page, &mut self.code);
        self.code.truncate(n);
    }

    /// The code from its beginning on.
    pub(super) fn code(&self) -> &[u8] {
        &self.code
    }

    /// The code from `at` on, as far as it is known.
    pub(super) fn from(&self, at: u64) -> &[u8] {
        let offset = at.checked_sub(self.start).map(|n| n as usize);
        offset.and_then(|n| self.code.get(n..)).unwrap_or(&[])
    }

    /// The program goes on.
    pub(super) fn close(&mut self) {
        self.code.clear();
    }

    /// As [`text::read`].
    pub(super) fn read(&self, at: u64, to: &mut [u8]) -> usize {
        let offset = at.checked_sub(self.start).map(|n| n as usize);
        let known = offset.and_then(|n| self.code.get(n..n.checked_add(to.len())?));
        match known {
            Some(code) => {
                to.copy_from_slice(code);
                code.len()
            }
            None => text::read(at, to),
        }
    }
}
