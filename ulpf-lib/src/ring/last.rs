//! Looking back: finds the last accesses to some bytes.
//!
//! Each ring keeps the recent past of its own thread; a busy thread's reaches less far. An access that is older than the
//! oldest record of a wrapped ring may have a lost successor. [`Found::reaches_back`] is the time from which on the
//! answer is complete.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Hit, MAX_VALUE, Progress, Reader, Rings, Start, hit_flags};

/// A query.
pub struct Asked {
    /// First byte.
    pub addr: u64,
    /// In bytes.
    pub len: u64,
    /// Include reads.
    pub reads: bool,
    /// Maximum number of accesses.
    pub most: usize,
}

/// The answer.
#[derive(Default, Debug)]
pub struct Found {
    /// The youngest first; each cut to the queried bytes.
    pub hits: Vec<Hit>,
    /// TSC before which accesses may have been overwritten, or `None` if all are there.
    pub reaches_back: Option<u64>,
}

/// Limit of a read, as a multiple of the ring's size, for a writer that is much faster.
const TURNS: usize = 16;

/// Searches all rings.
pub fn last(rings: &impl Rings, asked: &Asked) -> Found {
    look(rings, asked, true)
}

/// The same, with a record for each watch that one access has hit.
pub fn all(rings: &impl Rings, asked: &Asked) -> Found {
    look(rings, asked, false)
}

fn look(rings: &impl Rings, asked: &Asked, once: bool) -> Found {
    let mut found = Found::default();
    let mut reader = Reader::new(Start::Oldest);
    for ring in 0..rings.rings() {
        let slots = rings.slots(ring);
        let whole = rings.head(ring).0 <= slots;
        let (mut oldest, mut lost) = (None, 0);
        let mut kept: VecDeque<Hit> = VecDeque::new();
        let mut take = |hit: Hit| {
            if hit.lost > 0 || oldest.is_none() {
                oldest = Some(hit.time);
                lost = u64::saturating_add(lost, hit.lost);
            }
            let writes = hit.kind & 2 != 0;
            if !(writes || asked.reads) {
                return;
            }
            let Some(hit) = cut(hit, asked.addr, asked.len) else {
                return;
            };
            // One access that several watches have reported.
            let again = once
                && kept.back().is_some_and(|b| {
                    b.watch != hit.watch
                        && (b.pc, b.addr, b.len, b.kind) == (hit.pc, hit.addr, hit.len, hit.kind)
                        && (b.tid, &b.old, &b.new) == (hit.tid, &hit.old, &hit.new)
                });
            if again {
                return;
            }
            if kept.len() >= asked.most {
                kept.pop_front();
            }
            kept.push_back(hit);
        };
        // To its present end. A writer that overtakes us sets a new one, possibly again and again.
        let mut left = (slots as usize).saturating_mul(TURNS);
        for _ in 0..slots {
            let mut read = 0;
            let progress = reader.read(rings, ring, left, |hit| {
                read += 1;
                take(hit);
            });
            left -= read;
            match progress {
                Progress::Unfinished => reader.skip(ring),
                Progress::All | Progress::More => break,
            }
        }
        if !whole || lost > 0 {
            let from = oldest.unwrap_or(u64::MAX);
            found.reaches_back = found.reaches_back.max(Some(from));
        }
        found.hits.extend(kept.into_iter().rev());
    }
    // Stable: those of one thread stay in its order.
    found.hits.sort_by_key(|hit| core::cmp::Reverse(hit.time));
    found.hits.truncate(asked.most);
    found
}

/// Cuts a hit to `[addr, addr + len)`.
fn cut(mut hit: Hit, addr: u64, len: u64) -> Option<Hit> {
    let start = hit.addr.max(addr);
    let end = hit
        .addr
        .saturating_add(hit.len.into())
        .min(addr.saturating_add(len));
    if start >= end {
        return None;
    }
    let (skip, len) = ((start - hit.addr) as usize, (end - start) as u32);
    if (start, len) == (hit.addr, hit.len) {
        return Some(hit);
    }
    let known = hit.used().saturating_sub(skip).min(len as usize);
    let part = |from: &[u8; MAX_VALUE]| {
        let mut to = [0; MAX_VALUE];
        if let (Some(to), Some(from)) = (to.get_mut(..known), from.get(skip..skip + known)) {
            to.copy_from_slice(from);
        }
        to
    };
    (hit.old, hit.new) = (part(&hit.old), part(&hit.new));
    (hit.addr, hit.len) = (start, len);
    if hit.flags & hit_flags::INSIDE != 0 {
        hit.inside = hit.inside.saturating_add(skip as u64);
    }
    if hit.used() == len as usize {
        hit.flags &= !hit_flags::TRUNCATED;
    }
    if known < hit.used() {
        hit.flags |= hit_flags::UNKNOWN;
    } else if hit.kind & 2 != 0 && hit.old == hit.new && hit.used() == len as usize {
        hit.flags |= hit_flags::SILENT;
    }
    Some(hit)
}
