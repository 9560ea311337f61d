//! One hit in a ring, and how it is written.
//!
//! ```text
//! slot 0, 64 bytes                                                    slots 1, 2, …
//! | stamp | time | pc | addr | tid:watch | what:len | old 8 | new 8 | old … new … | call | frames |
//! ```
//! A hit of up to eight bytes without frames and without system call is one slot, one cache line. Further data follow
//! without gaps, in whole words:
//!
//! * Old and new values beyond eight bytes, up to [`MAX_VALUE`].
//! * For an access that begins inside a watch that moves: its offset in the watch.
//! * For the kernel's accesses: the call's number, its six arguments, its result.
//! * Return addresses, innermost first.
//!
//! The stamp is written last. It contains the position in the ring, so that a reader recognises incomplete records and
//! those of an earlier round. It also contains the record's number, so that a reader can count missed records.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::layout::{MAX_FRAMES, MAX_VALUE, RingHead, SLOT_WORDS, hit_flags};
use crate::sync::Atomic;

pub(super) const VALUE_WORDS: usize = MAX_VALUE / 8;
const CALL_WORDS: usize = 8;
/// Slots of the longest record.
pub const MOST_SLOTS: usize =
    (2 * (VALUE_WORDS - 1) + 1 + CALL_WORDS + MAX_FRAMES).div_ceil(SLOT_WORDS) + 1;

/// A system call that the kernel has carried out.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Its number on x86-64.
    pub nr: u64,
    /// Its arguments, as they were in the registers.
    pub args: [u64; 6],
    /// Its result, or a negative errno.
    pub result: i64,
}

/// One hit, as it is written and as it is read.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Hit {
    /// TSC at the hit.
    pub time: u64,
    /// Address of the instruction that made the access.
    pub pc: u64,
    /// First byte that the access shares with the watch.
    pub addr: u64,
    /// Watched bytes of the access; more than [`MAX_VALUE`] with `hit_flags::TRUNCATED`.
    pub len: u32,
    /// Number of the watch ([`crate::WatchId`]).
    pub watch: u32,
    /// Linux thread id.
    pub tid: u32,
    /// `watch::AccessKind`.
    pub kind: u8,
    /// `hit_flags`.
    pub flags: u8,
    /// Values in memory order; [`Hit::used`] bytes of each are valid.
    pub old: [u8; MAX_VALUE],
    /// After the access.
    pub new: [u8; MAX_VALUE],
    /// For a watch that moves: number of its bytes before `addr` (`hit_flags::INSIDE`).
    pub inside: u64,
    /// With `hit_flags::KERNEL`.
    pub call: Option<Box<SystemCall>>,
    /// Return addresses, the innermost first; up to [`MAX_FRAMES`].
    pub frames: Vec<u64>,
    /// Records of the same ring just before this one that were overwritten unread.
    pub lost: u64,
}

/// A hit as its writer passes it, without allocation.
pub struct Entry<'a> {
    /// As [`Hit::pc`].
    pub pc: u64,
    /// As [`Hit::addr`].
    pub addr: u64,
    /// As [`Hit::len`].
    pub len: u32,
    /// As [`Hit::watch`].
    pub watch: u32,
    /// As [`Hit::tid`].
    pub tid: u32,
    /// As [`Hit::kind`].
    pub kind: u8,
    /// As [`Hit::flags`].
    pub flags: u8,
    /// As [`Hit::old`], in words.
    pub old: &'a [u64; VALUE_WORDS],
    /// As [`Hit::new`], in words.
    pub new: &'a [u64; VALUE_WORDS],
    /// As [`Hit::inside`].
    pub inside: u64,
    /// As [`Hit::call`].
    pub call: Option<&'a SystemCall>,
    /// As [`Hit::frames`]; those beyond [`MAX_FRAMES`] are dropped.
    pub frames: &'a [u64],
}

impl Hit {
    /// Number of valid bytes of the values.
    pub fn used(&self) -> usize {
        used(self.len)
    }
}

/// Bytes of an access whose values are kept.
pub(super) fn used(len: u32) -> usize {
    (len as usize).min(MAX_VALUE)
}

/// Words of a value beyond the first.
pub(super) fn more_words(len: u32) -> usize {
    used(len).div_ceil(8).saturating_sub(1)
}

/// The lower half of the stamp at a position. Odd multiples of different positions differ, and resemble no other content
/// of a slot.
pub(super) fn mark(at: u64) -> u32 {
    (at as u32).wrapping_add(1).wrapping_mul(0x9e37_79b1)
}

/// The part of the last word before the values.
pub(super) struct What {
    pub len: u32,
    pub kind: u8,
    pub flags: u8,
    pub frames: u8,
    pub slots: u8,
}

impl What {
    fn pack(&self) -> u64 {
        u64::from(self.len)
            | u64::from(self.kind) << 32
            | u64::from(self.flags) << 40
            | u64::from(self.frames) << 48
            | u64::from(self.slots) << 56
    }
    pub fn unpack(word: u64) -> What {
        What {
            len: word as u32,
            kind: (word >> 32) as u8,
            flags: (word >> 40) as u8,
            frames: (word >> 48) as u8,
            slots: (word >> 56) as u8,
        }
    }
}

/// A thread's ring, as its writer sees it. Only models use another cell for `A`.
pub struct Ring<'a, A = AtomicU64> {
    head: &'a RingHead<A>,
    /// The ring's words; its number of slots is a power of two.
    words: &'a [A],
}

impl<'a, A: Atomic<u64>> Ring<'a, A> {
    /// The ring of a head; `words` are a power of two of slots, all of its [`super::ring_place`].
    pub fn new(head: &'a RingHead<A>, words: &'a [A]) -> Ring<'a, A> {
        Ring { head, words }
    }

    /// Whether no record has been written yet.
    pub fn is_new(&self) -> bool {
        self.head.taken.load(Ordering::Relaxed) == 0
    }

    /// Whether one more record fits before the first unread one.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_room_for(1)
    }

    /// As [`Ring::has_room`], for several records, but for no more than half of the ring.
    pub fn has_room_for(&self, records: u64) -> bool {
        let taken = self.head.taken.load(Ordering::Relaxed);
        let read = self.head.read.load(Ordering::Acquire);
        let slots = (self.words.len() / SLOT_WORDS) as u64;
        let wanted = (records * MOST_SLOTS as u64).min((slots / 2).max(MOST_SLOTS as u64));
        taken.wrapping_sub(read).saturating_add(wanted) <= slots
    }

    /// Writes one record. `now` is called after the room has been taken. So a reader that finds the room not taken knows
    /// that the record will be younger (see `command/session/src/merge.rs`).
    #[inline]
    pub fn write(&self, e: &Entry, now: impl FnOnce() -> u64) {
        let more = more_words(e.len);
        let frames = e.frames.len().min(MAX_FRAMES);
        let call = e.call.filter(|_| e.flags & hit_flags::KERNEL != 0);
        let inside = (e.inside != 0).then_some(e.inside);
        let flags = match inside {
            Some(_) => e.flags | hit_flags::INSIDE,
            None => e.flags,
        };
        let tail = 2 * more
            + usize::from(inside.is_some())
            + if call.is_some() { CALL_WORDS } else { 0 }
            + frames;
        let slots = 1 + tail.div_ceil(SLOT_WORDS);
        let at = self.head.taken.load(Ordering::Relaxed);
        let count = self.head.records.load(Ordering::Relaxed);
        self.head.taken.store(at + slots as u64, Ordering::Relaxed);
        self.head.records.store(count + 1, Ordering::Relaxed);
        let first = at as usize * SLOT_WORDS;
        self.put(first, 0);
        // Release order: take the slots, invalidate the record there, then write the words of the new one.
        A::fence(Ordering::Release);
        self.put(first + 1, now());
        self.put(first + 2, e.pc);
        self.put(first + 3, e.addr);
        self.put(first + 4, u64::from(e.watch) | u64::from(e.tid) << 32);
        let what = What {
            len: e.len,
            kind: e.kind,
            flags,
            frames: frames as u8,
            slots: slots as u8,
        };
        self.put(first + 5, what.pack());
        self.put(first + 6, e.old[0]);
        self.put(first + 7, e.new[0]);
        if slots > 1 {
            let values = e.old.iter().skip(1).take(more);
            let values = values.chain(e.new.iter().skip(1).take(more)).copied();
            let values = values.chain(inside);
            let mut to = first + SLOT_WORDS;
            for word in values {
                self.put(to, word);
                to += 1;
            }
            if let Some(c) = call {
                let [a, b, d, x, y, z] = c.args;
                for word in [c.nr, a, b, d, x, y, z, c.result as u64] {
                    self.put(to, word);
                    to += 1;
                }
            }
            for frame in e.frames.iter().take(frames) {
                self.put(to, *frame);
                to += 1;
            }
        }
        let stamp = u64::from(mark(at)) | (count << 32);
        if let Some(word) = self.words.get(first & self.words.len().wrapping_sub(1)) {
            word.store(stamp, Ordering::Release);
        }
    }

    #[inline(always)]
    fn put(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at & self.words.len().wrapping_sub(1)) {
            word.store(value, Ordering::Relaxed);
        }
    }
}
