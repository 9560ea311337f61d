// SPDX-License-Identifier: GPL-2.0-or-later
//! The event ring. Its memory is shared with forked children, so that a monitor can be one; behind the
//! slots lies the machine's own state: the position of read().
//!
//! ```text
//!   0       header, one page     4096      slots, 64 bytes each     …       position, end
//! ```

use crate::host::ready;
use crate::memory::PAGE;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ulpf_lib::device::abi::{self, Structure};

/// Events that a ring may hold.
pub const MOST: u32 = 1 << 16;
pub const SLOT: u64 = size_of::<abi::Event>() as u64;
const WORDS: usize = SLOT as usize / 8;

#[derive(Clone, Copy)]
pub struct Ring {
    pub(super) at: *mut u8,
    pub(super) records: u64,
    pub(super) watermark: u64,
    pub(super) latency_ns: u64,
    /// The process whose ring it is (pidfd).
    pub(super) owner: i32,
}

impl Ring {
    pub(super) fn length(&self) -> u64 {
        PAGE + self.records * SLOT
    }

    pub(super) fn cell(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the mapping is never undone, and as long as `make` has made it; offsets are aligned.
        unsafe { &*self.at.add(offset).cast::<AtomicU64>() }
    }

    pub(super) fn head(&self) -> &AtomicU64 {
        self.cell(offset_of!(abi::RingHeader, head))
    }

    /// The number that read() gives next.
    pub(super) fn next(&self) -> &AtomicU64 {
        self.cell(self.length() as usize)
    }

    pub(super) fn end(&self) -> &AtomicU64 {
        self.cell(self.length() as usize + 8)
    }

    /// The owner has another program.
    pub fn close(&self) {
        self.end().store(1, SeqCst);
    }

    /// Whether there will be no more events.
    pub(super) fn is_over(&self) -> bool {
        self.end().load(SeqCst) != 0 || ready(self.owner, libc::POLLIN, 0)
    }

    /// The bytes that `write` fills, as the words of which others see each as a whole.
    fn words<const N: usize>(write: impl FnOnce(&mut [u8])) -> [u64; N] {
        let mut words = [[0; 8]; N];
        write(words.as_flattened_mut());
        words.map(u64::from_le_bytes)
    }

    pub(super) fn begin(&self) {
        const HEADER: usize = size_of::<abi::RingHeader>() / 8;
        let header = abi::RingHeader {
            version: abi::VERSION,
            records: self.records as u32,
            data_offset: PAGE as u32,
            length: self.length() as u32,
            head: 0,
            dropped: 0,
        };
        let words: [u64; HEADER] = Ring::words(|to| header.write_to(to));
        for (n, word) in words.into_iter().enumerate() {
            self.cell(8 * n).store(word, SeqCst);
        }
    }

    pub(super) fn slot(&self, number: u64) -> abi::Event {
        let at = (PAGE + number % self.records * SLOT) as usize;
        let words: [u64; WORDS] = std::array::from_fn(|n| self.cell(at + 8 * n).load(SeqCst));
        abi::Event::from_bytes(words.map(u64::to_le_bytes).as_flattened()).unwrap_or_default()
    }

    /// The event's stamp is the ring's to give.
    pub(super) fn put(&self, event: &abi::Event) {
        let number = self.head().fetch_add(1, SeqCst);
        let at = (PAGE + number % self.records * SLOT) as usize;
        let words: [u64; WORDS] = Ring::words(|to| event.write_to(to));
        self.cell(at).store(0, SeqCst);
        for (n, word) in words.into_iter().enumerate().skip(1) {
            self.cell(at + 8 * n).store(word, SeqCst);
        }
        self.cell(at).store(number + 1, SeqCst);
    }

    /// Events that wait, and when the first of them came.
    pub(super) fn waiting(&self) -> (u64, u64) {
        let (head, next) = (self.head().load(SeqCst), self.next().load(SeqCst));
        let first = next.max(head.saturating_sub(self.records));
        (
            head - next,
            if head > first {
                self.slot(first).time
            } else {
                0
            },
        )
    }
}
