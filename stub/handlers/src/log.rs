//! Records of hits, in the ring of the thread that makes them (`ulpf_lib::ring`).
//!
//! Called in handlers, or from code that has saved its registers: no allocation and no lock. The only system call wakes a
//! reader that has found nothing for a while.

use core::sync::atomic::Ordering::*;

use ulpf_engine::cpu::Gprs;
use ulpf_lib::WatchId;
use ulpf_lib::ring::{Entry, Handshake, MAX_FRAMES, MAX_VALUE, Ring, SharedHeader, hit_flags};
use ulpf_lib::sync::futex;

use crate::cause::Cause;
use crate::global::g;
use crate::locks;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::unwind;
use ulpf_stub_tables::attributes::Attributes;

/// Logs that the bytes `[start, start + len)` of a watch were touched, with their old value. For a watch that moves,
/// `inside` is the number of its bytes before them.
pub fn hit(
    t: Current,
    gprs: &Gprs,
    c: &Cause,
    (id, start, len, inside): (WatchId, u64, u64, u64),
    old: Option<&[u8]>,
    silent: bool,
    attributes: &Attributes,
) {
    let mut flags = 0;
    if silent {
        flags |= hit_flags::SILENT;
    }
    if c.syscall.is_some() {
        flags |= hit_flags::KERNEL;
    }
    if locks::several() && !(c.locked && locks::in_chain(start, len)) {
        flags |= hit_flags::UNCHAINED;
    }
    let n = (len as usize).min(MAX_VALUE);
    if len as usize > n {
        flags |= hit_flags::TRUNCATED;
    }
    let known = c
        .new
        .and_then(|new| new.get((start - c.addr.0) as usize..)?.get(..n));
    // Never copied as a whole: bytes stored in words cannot be loaded in larger pieces at once (store forwarding
    // fails).
    let (mut old_words, mut new_words) = ([0; WORDS], [0; WORDS]);
    match known {
        Some(new) => words(new, &mut new_words),
        None => {
            let mut now = [0u8; MAX_VALUE];
            let now = now.get_mut(..n).unwrap_or_default();
            memory::look(start, now);
            words(now, &mut new_words);
        }
    }
    let old = match old.and_then(|o| o.get(..n)) {
        Some(old) => {
            words(old, &mut old_words);
            &old_words
        }
        None if c.kind.writes() => &old_words,
        None => &new_words,
    };
    let entry = Entry {
        pc: c.pc,
        addr: start,
        len: len as u32,
        watch: id.0,
        tid: t.tid() as u32,
        kind: c.kind as u8,
        flags,
        old,
        new: &new_words,
        inside,
        call: c.syscall,
        frames: &[],
    };
    match attributes.backtrace {
        0 if unwind::is_runtime(c.pc) => with_own_caller(t, gprs, entry),
        0 => write(t, &entry),
        most => with_frames(t, gprs, entry, most.into()),
    }
}

const WORDS: usize = MAX_VALUE / 8;

/// In memory order; words behind the bytes are unchanged.
fn words(bytes: &[u8], to: &mut [u64; WORDS]) {
    for (word, part) in to.iter_mut().zip(bytes.chunks(8)) {
        *word = match *part {
            [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
            [a, b] => u16::from_le_bytes([a, b]).into(),
            [a] => a.into(),
            _ => part.iter().rev().fold(0, |all, b| all << 8 | u64::from(*b)),
        };
    }
}

#[inline(never)]
fn with_frames(t: Current, gprs: &Gprs, entry: Entry, most: usize) {
    let mut frames = [0; MAX_FRAMES];
    let n = unwind::backtrace(t, gprs, &mut frames, most);
    let frames = frames.get(..n).unwrap_or_default();
    write(t, &Entry { frames, ..entry });
}

/// Adds the caller of `memcpy`, which has written, to the record.
#[inline(never)]
fn with_own_caller(t: Current, gprs: &Gprs, mut entry: Entry) {
    let mut frames = [0; MAX_FRAMES];
    let n = unwind::to_own_call(t, gprs, &mut frames);
    let frames = frames.get(..n).unwrap_or_default();
    if n > 0 {
        entry.flags |= hit_flags::CALLER;
    }
    write(t, &Entry { frames, ..entry });
}

/// If no record may be lost: waits for room for the records of one access, before the thread takes locks.
pub fn reserve(t: Current) {
    let Some(h) = g().header().filter(|h| h.lossless.load(Relaxed) != 0) else {
        return;
    };
    if let Some(ring) = g().ring(t.index.load(Relaxed))
        && !ring.has_room_for(AT_ONCE)
    {
        wait_for_room(h, &ring, AT_ONCE);
    }
}

/// Hits of one access: watches of the same bytes. (An access with more hits waits in the middle.)
const AT_ONCE: u64 = 32;

fn write(t: Current, entry: &Entry) {
    let Some(h) = g().header() else { return };
    let index = t.index.load(Relaxed);
    let Some(ring) = g().ring(index) else { return };
    if h.lossless.load(Relaxed) != 0 && !ring.has_room() {
        wait_for_room(h, &ring, 1);
    }
    if ring.is_new() {
        h.rings.fetch_max(index + 1, AcqRel);
    }
    // SAFETY: reads the time-stamp counter.
    ring.write(entry, || unsafe { core::arch::x86_64::_rdtsc() });
    if h.reader_waits.load(Relaxed) != 0 {
        wake(h);
    }
}

/// Waits until the reader has made room, if no record may be lost, or until the reader is dead. While it lives, the
/// reader increments `lossless`, also while it cannot write. If the count stands still for [`DEAD`] looks, the thread
/// takes the reader for dead, and no thread waits for it any more.
#[cold]
fn wait_for_room(h: &SharedHeader, ring: &Ring, records: u64) {
    let mut seen = h.lossless.load(Relaxed);
    let mut still = 0;
    while !ring.has_room_for(records) {
        let now = h.lossless.load(Relaxed);
        still = if now == seen { still + 1 } else { 0 };
        seen = now;
        if now == 0 {
            return;
        }
        if still > DEAD {
            // (The count may move at this moment: then the reader loses the next records, and reports it.)
            let _ = h.lossless.compare_exchange(now, 0, SeqCst, Relaxed);
            return;
        }
        let word = Handshake::of(h).announce();
        if ring.has_room_for(records) {
            return;
        }
        // The reader may have made room just before.
        futex::wait_for(&h.room, word, PAUSE);
    }
}

/// Nanoseconds between two looks while a thread waits for room.
const PAUSE: i64 = 1_000_000;
/// Looks without a sign of life until the reader is taken for dead: some seconds.
const DEAD: u32 = 3000;

/// Wakes the reader. This is not needed for each record: a reader that is awake polls for a while. A reader that begins
/// to wait in the very moment of the write is not seen. So the reader waits for limited time only, and writers need no
/// fence.
#[cold]
fn wake(h: &SharedHeader) {
    if h.reader_waits.swap(0, SeqCst) != 0 {
        h.wake.fetch_add(1, SeqCst);
        futex::wake_one(&h.wake);
    }
}
