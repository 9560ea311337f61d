//! Reading rings while their threads write.
//!
//! A reader copies a piece, and then checks how far the writer has come: it discards what the writer had begun to
//! overwrite by then. A reader that was overtaken moves to a position with some room before the writer, and finds the
//! next record by its stamp.
//!
//! The writer may be hostile: it may write anything, at any time, also to its heads. So the reader reads a number from
//! there once and then checks it. A cursor only moves forward. Each read ends after a limited number of records, and of
//! slots without a record, however the heads move meanwhile.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use core::sync::atomic::Ordering;

use super::layout::{MAX_VALUE, SLOT_WORDS, hit_flags};
use super::record::{Hit, MOST_SLOTS, SystemCall, VALUE_WORDS, What, mark, more_words};
use crate::sync::Atomic;

/// Source of rings: a mapping, or another process's memory.
pub trait Rings {
    /// Number of rings.
    fn rings(&self) -> usize;
    /// Slots of a ring; a power of two.
    fn slots(&self, ring: usize) -> u64;
    /// `RingHead::taken` and `RingHead::records`.
    fn head(&self, ring: usize) -> (u64, u64);
    /// Copies whole slots from `slot` on, which do not wrap. Reads words in ascending order, each after the one before
    /// it. Returns `false` if the memory is not readable.
    fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool;
}

/// Copies whole slots of a ring in memory, as [`Rings::copy`] has to.
pub fn copy_slots<A: Atomic<u64>>(words: &[A], slot: u64, to: &mut [u64]) -> bool {
    let from = words.get(slot as usize * SLOT_WORDS..);
    let Some(from) = from.filter(|from| from.len() >= to.len()) else {
        return false;
    };
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.load(Ordering::Acquire);
    }
    true
}

/// Position at which a reader begins with a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The first record; overwritten records count as lost.
    First,
    /// The oldest record that is still there.
    Oldest,
    /// The first record in this number of last slots.
    Tail(u64),
}

/// Progress of a reader in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// All records have been read.
    All,
    /// There is more.
    More,
    /// The next record's writer has not finished.
    Unfinished,
}

#[derive(Clone, Copy)]
struct Cursor {
    /// The next slot.
    at: u64,
    /// Number of records before; unknown until one has been seen.
    records: Option<u64>,
    /// `at` may not be the beginning of a record.
    searching: bool,
}

/// Reads all rings, with a cursor for each.
pub struct Reader {
    cursors: Vec<Cursor>,
    start: Start,
    buffer: Vec<u64>,
    /// For each ring, the slot from which on nothing more is read.
    ends: Option<Vec<u64>>,
}

/// Slots that are copied at once.
const PIECE: u64 = 64;
/// Limit of the search for a record, as a multiple of the ring's size.
const SEARCH: u64 = 4;

impl Reader {
    /// A reader that has read nothing yet.
    pub fn new(start: Start) -> Reader {
        Reader {
            cursors: Vec::new(),
            start,
            buffer: vec![0; PIECE as usize * SLOT_WORDS],
            ends: None,
        }
    }

    /// Limits reading to the present records, and for each ring to its size. So reading ends, even if the writers
    /// continue.
    pub fn finish(&mut self, rings: &impl Rings) {
        if self.ends.is_some() {
            return;
        }
        let mut ends = vec![0; rings.rings()];
        for (ring, end) in ends.iter_mut().enumerate() {
            // Makes the cursor.
            self.read(rings, ring, 0, |_| {});
            let (head, size) = (rings.head(ring).0, rings.slots(ring));
            if let Some(cursor) = self.cursors.get_mut(ring) {
                if head.saturating_sub(cursor.at) > size {
                    cursor.jump(head, size);
                }
                *end = head.min(cursor.at.saturating_add(size));
            }
        }
        self.ends = Some(ends);
    }

    /// Number of slots of a ring that have been taken and may be read.
    fn end(&self, rings: &impl Rings, ring: usize) -> u64 {
        let end = rings.head(ring).0;
        let most = |ends: &Vec<u64>| ends.get(ring).copied().unwrap_or(0);
        end.min(self.ends.as_ref().map_or(u64::MAX, most))
    }

    /// The first slot of a ring that has not been read.
    pub fn position(&self, ring: usize) -> u64 {
        self.cursors.get(ring).map_or(0, |c| c.at)
    }

    /// Whether a record is unread.
    pub fn any(&self, rings: &impl Rings) -> bool {
        (0..rings.rings()).any(|n| {
            let at = self.cursors.get(n).map_or(0, |c| c.at);
            self.end(rings, n) > at
        })
    }

    /// Reads up to about `most` records of a ring.
    pub fn read(
        &mut self,
        rings: &impl Rings,
        ring: usize,
        most: usize,
        mut out: impl FnMut(Hit),
    ) -> Progress {
        let size = rings.slots(ring);
        let mut end = self.end(rings, ring);
        while self.cursors.len() <= ring {
            let n = self.cursors.len();
            let slots = match self.start {
                Start::Tail(most) => rings.slots(n).min(most),
                _ => rings.slots(n),
            };
            let begin = rings.head(n).0.saturating_sub(slots);
            self.cursors.push(match self.start {
                Start::Oldest | Start::Tail(_) if begin > 0 => Cursor {
                    at: begin,
                    records: None,
                    searching: true,
                },
                _ => Cursor {
                    at: 0,
                    records: Some(0),
                    searching: false,
                },
            });
        }
        let last = match &self.ends {
            Some(ends) => ends.get(ring).copied().unwrap_or(0),
            None => u64::MAX,
        };
        let Some(cursor) = self.cursors.get_mut(ring) else {
            return Progress::All;
        };
        let mut left = most;
        let mut search = size.saturating_mul(SEARCH).saturating_add(PIECE);
        while cursor.at < end {
            if left == 0 || search == 0 {
                return Progress::More;
            }
            if end - cursor.at > size {
                cursor.jump(end, size);
            }
            let from = cursor.at;
            let Some((words, n)) = copy(rings, ring, size, from, end, &mut self.buffer) else {
                return Progress::All;
            };
            let now = rings.head(ring).0;
            if now.saturating_sub(from) > size {
                cursor.jump(now, size);
                end = now.min(last);
                search = search.saturating_sub(PIECE);
                continue;
            }
            let before = cursor.at;
            while cursor.at < from + n && left > 0 && search > 0 {
                let at = (cursor.at - from) as usize * SLOT_WORDS;
                let record = words.get(at..).unwrap_or(&[]);
                match decode(cursor.at, record) {
                    Decoded::Hit(mut hit, count, slots) => {
                        hit.lost = cursor.lost_before(count);
                        cursor.at = cursor.at.saturating_add(slots);
                        cursor.searching = false;
                        left -= 1;
                        out(hit);
                    }
                    Decoded::Cut => break,
                    Decoded::None if cursor.searching => {
                        cursor.at += 1;
                        search -= 1;
                    }
                    Decoded::None => return Progress::Unfinished,
                }
            }
            if cursor.at == before {
                // A record with a length beyond the end is invalid.
                cursor.searching = true;
                cursor.at += 1;
                search = search.saturating_sub(1);
            }
        }
        Progress::All
    }

    /// Skips all but about the last `slots` slots of a ring, for samples whose cost must not grow with the number of
    /// hits. The next record says how many were skipped.
    pub fn keep_last(&mut self, rings: &impl Rings, ring: usize, slots: u64) {
        let end = rings.head(ring).0;
        // Makes the cursor.
        self.read(rings, ring, 0, |_| {});
        if let Some(c) = self.cursors.get_mut(ring)
            && end.saturating_sub(c.at) > slots
        {
            c.at = end - slots;
            c.searching = true;
        }
    }

    /// Continues behind a record whose writer will not finish.
    pub fn skip(&mut self, ring: usize) {
        if let Some(c) = self.cursors.get_mut(ring) {
            c.searching = true;
            c.at = c.at.saturating_add(1);
        }
    }

    /// Number of slots until the writer overtakes us.
    pub fn room(&self, rings: &impl Rings, ring: usize) -> u64 {
        let at = self.cursors.get(ring).map_or(0, |c| c.at);
        let ahead = rings.head(ring).0.saturating_sub(at);
        rings.slots(ring).saturating_sub(ahead)
    }

    /// Number of records of a ring that were never seen, after all readable ones have been read.
    pub fn lost_at_end(&mut self, rings: &impl Rings, ring: usize) -> u64 {
        let records = rings.head(ring).1;
        let Some(c) = self.cursors.get_mut(ring) else {
            return 0;
        };
        let seen = c.records.replace(records);
        seen.map_or(0, |seen| records.saturating_sub(seen))
    }
}

impl Cursor {
    fn jump(&mut self, end: u64, size: u64) {
        self.at = end - size + size / 16;
        self.searching = true;
    }

    /// Number of lost records before record `count`, of which only the lower half is known.
    fn lost_before(&mut self, count: u32) -> u64 {
        let expected = self.records.unwrap_or(u64::from(count));
        let lost = count.wrapping_sub(expected as u32);
        self.records = Some(expected.wrapping_add(u64::from(lost)).wrapping_add(1));
        u64::from(lost)
    }
}

/// Copies slots from `from` on that are taken, as many as fit into the buffer; returns their number.
fn copy<'a>(
    rings: &impl Rings,
    ring: usize,
    size: u64,
    from: u64,
    end: u64,
    buffer: &'a mut [u64],
) -> Option<(&'a [u64], u64)> {
    let n = (end - from).min(PIECE).min(size);
    let first = from & (size - 1);
    let straight = n.min(size - first);
    let words = buffer.get_mut(..n as usize * SLOT_WORDS)?;
    let (a, b) = words.split_at_mut(straight as usize * SLOT_WORDS);
    let whole = rings.copy(ring, first, a) && (b.is_empty() || rings.copy(ring, 0, b));
    whole.then_some((words, n))
}

#[allow(clippy::large_enum_variant)] // lives on the stack, for a moment
enum Decoded {
    /// A hit with its number and its slots.
    Hit(Hit, u32, u64),
    /// No complete record begins here.
    None,
    /// The record continues behind the piece.
    Cut,
}

fn decode(at: u64, words: &[u64]) -> Decoded {
    let [stamp, time, pc, addr, who, what, old, new, tail @ ..] = words else {
        return Decoded::Cut;
    };
    if *stamp as u32 != mark(at) || *stamp == 0 {
        return Decoded::None;
    }
    let w = What::unpack(*what);
    if w.slots == 0 || usize::from(w.slots) > MOST_SLOTS {
        return Decoded::None;
    }
    let Some(mut tail) = tail.get(..(usize::from(w.slots) - 1) * SLOT_WORDS) else {
        return Decoded::Cut;
    };
    let mut take = |n: usize| {
        let (a, b) = tail.split_at_checked(n).unwrap_or((&[], &[]));
        tail = b;
        a
    };
    let more = more_words(w.len);
    let old = value(*old, take(more));
    let new = value(*new, take(more));
    let inside = match w.flags & hit_flags::INSIDE {
        0 => 0,
        _ => take(1).first().copied().unwrap_or(0),
    };
    let call = (w.flags & hit_flags::KERNEL != 0).then(|| {
        let mut c = SystemCall::default();
        if let [nr, a, b, d, x, y, z, result] = take(8) {
            c.nr = *nr;
            c.args = [*a, *b, *d, *x, *y, *z];
            c.result = *result as i64;
        }
        Box::new(c)
    });
    let frames = take(w.frames.into()).to_vec();
    let hit = Hit {
        time: *time,
        pc: *pc,
        addr: *addr,
        len: w.len,
        watch: *who as u32,
        tid: (*who >> 32) as u32,
        kind: w.kind,
        flags: w.flags,
        old,
        new,
        inside,
        call,
        frames,
        lost: 0,
    };
    Decoded::Hit(hit, (*stamp >> 32) as u32, w.slots.into())
}

fn value(first: u64, more: &[u64]) -> [u8; MAX_VALUE] {
    let mut out = [0; MAX_VALUE];
    let words = core::iter::once(&first).chain(more).take(VALUE_WORDS);
    for (to, word) in out.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    out
}
