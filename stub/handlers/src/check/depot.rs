//! The stack depot: call stacks of allocations and frees, as lists of return addresses. Each list is kept once and has
//! a number.
//!
//! ```text
//! | heads: a u32 for each value of the hash | entry: next, frames, thread, hash, return addresses… | entry … |
//! ```
//! Writers hold the lock. An entry never changes and is never removed, so readers need no lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::ring::MAX_FRAMES;
use ulpf_lib::ring::findings::Trace;

use super::arena;
use super::twin::Twin;

/// Bytes of address space for the depot.
pub const LEN: u64 = 512 << 20;
const HEADS: u64 = 1 << 17;
/// An entry before its addresses: four words of four bytes.
const HEAD: u64 = 16;

/// Base address of the depot, or 0 if it is not mapped.
pub static AT: AtomicU64 = AtomicU64::new(0);
/// Offset of the next entry from the base, in bytes.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Starts the depot in zeroed memory of [`LEN`] bytes.
pub fn begin(at: u64) {
    NEXT.store(HEADS * 4, Relaxed);
    AT.store(at, Relaxed);
}

/// Takes over the parent's depot in a forked child.
pub fn adopt(twin: Twin) {
    twin.take(&AT);
    twin.take(&NEXT);
}

/// Resets to the state before [`begin`].
#[cfg(test)]
pub fn reset() {
    AT.store(0, Relaxed);
}

fn word(at: u64) -> *mut u32 {
    (AT.load(Relaxed) + at) as *mut u32
}

fn get(at: u64) -> u32 {
    // SAFETY: within the depot.
    unsafe { AtomicU32::from_ptr(word(at)) }.load(Acquire)
}

fn put(at: u64, value: u32) {
    // SAFETY: within the depot, and under the lock.
    unsafe { AtomicU32::from_ptr(word(at)) }.store(value, Release);
}

fn hash(thread: u32, frames: &[u64]) -> u32 {
    let mut all = u64::from(thread) ^ (frames.len() as u64) << 32;
    for frame in frames {
        all = (all ^ frame).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        all ^= all >> 29;
    }
    (all ^ all >> 32) as u32
}

/// The frames of this entry.
fn frames<'a>(entry: u64) -> &'a [u64] {
    let n = get(entry + 4) as usize;
    // SAFETY: an entry of the depot, which never changes.
    unsafe { core::slice::from_raw_parts((AT.load(Relaxed) + entry + HEAD) as *const u64, n) }
}

/// The number of this list, entered if it is new; 0 if the depot is full or not mapped.
pub fn note(thread: u32, list: &[u64]) -> u32 {
    if AT.load(Relaxed) == 0 || list.is_empty() {
        return 0;
    }
    let hash = hash(thread, list);
    let head = u64::from(hash) % HEADS * 4;
    let find = || {
        let mut entry = u64::from(get(head)) * 8;
        while entry != 0 {
            if get(entry + 12) == hash && get(entry + 8) == thread && frames(entry) == list {
                break;
            }
            entry = u64::from(get(entry)) * 8;
        }
        Some((entry / 8) as u32).filter(|number| *number != 0)
    };
    if let Some(known) = find() {
        return known;
    }
    let _lock = arena::lock();
    if let Some(known) = find() {
        return known;
    }
    let entry = NEXT.load(Relaxed);
    let end = entry + HEAD + list.len() as u64 * 8;
    if end > LEN {
        return 0;
    }
    NEXT.store(end, Relaxed);
    put(entry, get(head));
    put(entry + 4, list.len() as u32);
    put(entry + 8, thread);
    put(entry + 12, hash);
    for (n, frame) in list.iter().enumerate() {
        // SAFETY: within the depot, and under the lock.
        unsafe { (word(entry + HEAD + n as u64 * 8) as *mut u64).write(*frame) };
    }
    put(head, (entry / 8) as u32);
    (entry / 8) as u32
}

/// Copies the call stack with this number to `to`.
pub fn tell(number: u32, to: &Trace) {
    let entry = u64::from(number) * 8;
    if AT.load(Relaxed) == 0 || entry < HEADS * 4 || entry >= NEXT.load(Relaxed) {
        return;
    }
    let list = frames(entry);
    to.note(
        get(entry + 8),
        list.get(..list.len().min(MAX_FRAMES)).unwrap_or_default(),
    );
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::tests::fixture::{Map, Statics};
    use super::*;

    fn read(number: u32) -> (u32, Vec<u64>) {
        let trace = Trace::default();
        tell(number, &trace);
        (trace.thread.load(Relaxed), trace.callers().collect())
    }

    #[test]
    fn without_memory_or_callers_nothing_is_noted() {
        let _statics = Statics::take();
        assert_eq!(note(1, &[2]), 0);
        let map = Map::new(LEN);
        begin(map.at);
        assert_eq!(note(1, &[]), 0);
        assert_ne!(note(1, &[2]), 0);
    }

    #[test]
    fn where_there_is_no_room_nothing_is_noted() {
        let _statics = Statics::take();
        let map = Map::new(LEN);
        begin(map.at);
        NEXT.store(LEN - HEAD - 16, Relaxed);
        assert_eq!(note(1, &[1, 2, 3]), 0);
        let last = note(1, &[1, 2]);
        assert_eq!(read(last), (1, vec![1, 2]));
        assert_eq!(note(1, &[4]), 0);
        assert_eq!(note(1, &[1, 2]), last);
    }

    #[test]
    fn a_number_that_is_none_says_nothing() {
        let _statics = Statics::take();
        let map = Map::new(LEN);
        begin(map.at);
        let one = note(7, &[1, 2]);
        assert_eq!(read(0), (0, vec![]));
        assert_eq!(read(one + 1000), (0, vec![]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn each_list_is_kept_once(all in vec((0u32..3, vec(0u64..4, 1..4)), 1..200)) {
            let _statics = Statics::take();
            let map = Map::new(LEN);
            begin(map.at);
            let mut known = HashMap::new();
            for one in &all {
                let number = note(one.0, &one.1);
                prop_assert_eq!(*known.entry(one).or_insert(number), number);
            }
            let mut numbers: Vec<u32> = known.values().copied().collect();
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(numbers.len(), known.len(), "two lists have one number");
            for (one, number) in known {
                prop_assert_eq!(&read(number), one);
            }
        }
    }
}
