//! Waiting for room in a ring whose records may not be lost ([`SharedHeader::lossless`]).
//!
//! ```text
//! writer                              reader
//! word = room                         read = slot
//! writer_waits = 1                    writer_waits? then writer_waits = 0, room += 1,
//! no room? futex_wait(room, word)                        futex_wake(room)
//! ```
//! Each side writes its own cell before it reads the other's, so one of them sees the other. `room` is read before
//! the flag is set, so a wake between flag and wait changes the word and the wait returns.

use core::sync::atomic::{AtomicU32, Ordering};

use super::layout::SharedHeader;
use crate::sync::Atomic;

/// The two cells of the handshake, which all rings share. `A` is another cell in models alone.
pub struct Handshake<'a, A = AtomicU32> {
    /// Futex word: [`SharedHeader::room`].
    pub room: &'a A,
    /// [`SharedHeader::writer_waits`].
    pub writer_waits: &'a A,
}

impl<'a> Handshake<'a> {
    /// Those of a shared area.
    pub fn of(header: &'a SharedHeader) -> Handshake<'a> {
        Handshake {
            room: &header.room,
            writer_waits: &header.writer_waits,
        }
    }
}

impl<A: Atomic<u32>> Handshake<'_, A> {
    /// Announces a writer that is about to wait, and returns the value of `room` to wait on. The writer looks for room
    /// once more before it waits.
    pub fn announce(&self) -> u32 {
        let word = self.room.load(Ordering::SeqCst);
        self.writer_waits.store(1, Ordering::SeqCst);
        word
    }

    /// Marks a ring's slots before `slot` as read; `read` is [`super::RingHead::read`]. If the result is `true`, the
    /// caller wakes all waiters on `room`.
    pub fn make<B: Atomic<u64>>(&self, read: &B, slot: u64) -> bool {
        if read.swap(slot, Ordering::SeqCst) == slot
            || self.writer_waits.load(Ordering::SeqCst) == 0
        {
            return false;
        }
        self.writer_waits.store(0, Ordering::SeqCst);
        self.room.fetch_add(1, Ordering::SeqCst);
        true
    }
}
