//! The shadow of the checked heap: a bit for each byte, set if the byte is poisoned. These are the bits of the patches'
//! tables (`control/classes.rs` of the stub's task), in which stores and loads share one table while a heap is checked.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::*};

use super::arena::{self, ARENA, arena};
use super::regions;
use crate::patches;
use crate::runtime::memory;

/// The alias of the arena is contiguous within each window of this size.
pub const WINDOW: u64 = 1 << 30;

/// Distance of each window of the arena to its alias, or 0 if it has none.
static DISTANCES: [AtomicU64; (ARENA / WINDOW) as usize] =
    [const { AtomicU64::new(0) }; (ARENA / WINDOW) as usize];

/// Distance from an address of the arena or of another checked region to its alias; `None` if it is not watched.
fn distance(addr: u64) -> Option<u64> {
    if !arena::has(addr) {
        return regions::distance(addr).map(|(distance, _)| distance);
    }
    let window = addr.wrapping_sub(arena()) / WINDOW;
    let distance = DISTANCES.get(window as usize)?.load(Relaxed);
    (distance != 0).then_some(distance)
}

/// Sets the distance of a window for the stub's task. Returns `false` if it had another one before.
pub fn settle(addr: u64, distance: u64) -> bool {
    let window = addr.wrapping_sub(arena()) / WINDOW;
    let Some(slot) = DISTANCES.get(window as usize) else {
        return false;
    };
    let before = slot.swap(distance, Relaxed);
    before == 0 || before == distance
}

/// Forgets all aliases.
pub fn forget() {
    DISTANCES.iter().for_each(|d| d.store(0, Relaxed));
}

/// The address by which the bytes at `addr` can be accessed.
pub fn reachable(addr: u64) -> u64 {
    distance(addr).map_or(addr, |d| addr.wrapping_add(d))
}

/// The shadow byte with the bits of `addr`, which is a multiple of eight.
pub fn bits(addr: u64) -> Option<*mut u8> {
    let table = patches::table().tables.writes;
    let alias = addr.wrapping_add(distance(addr)?);
    (table != 0).then(|| table.wrapping_add(alias / 8) as *mut u8)
}

/// Prefetches the bits of `addr`.
pub fn expect(addr: u64) {
    if let Some(bits) = bits(addr & !7) {
        memory::expect(bits as u64);
    }
}

/// The end of the range in which the distance is the same.
fn end_of_window(at: u64) -> u64 {
    match arena::has(at) {
        true => (at - arena()) / WINDOW * WINDOW + WINDOW + arena(),
        false => regions::distance(at).map_or(at, |(_, end)| end),
    }
}

/// The first byte of `[addr, end)` that has a bit.
pub fn checked_from(addr: u64, end: u64) -> u64 {
    if regions::is_checked(addr) {
        return addr;
    }
    let last = end.saturating_sub(1);
    match arena::has(last) {
        true => arena(),
        false => regions::start_of(last).unwrap_or(end).max(addr),
    }
}

/// Calls `f` with the bits of `[addr, addr + len)`, window by window: the first byte, and how many bits. `addr` is a
/// multiple of eight.
fn each(addr: u64, len: u64, mut f: impl FnMut(*mut u8, u64)) {
    let (mut at, end) = (addr, addr + len);
    while at < end {
        let stop = end.min(end_of_window(at));
        let Some(bits) = bits(at) else { return };
        f(bits, stop - at);
        at = stop;
    }
}

/// Poisons `[addr, addr + len)`; `addr` is a multiple of eight. The rest of the last eight bytes is poisoned, too.
pub fn poison(addr: u64, len: u64) {
    each(addr, len, |bits, n| {
        // SAFETY: the bits of mapped memory of ours. Blocks are apart by more than eight bytes, so no other thread
        // writes to the same byte.
        unsafe { core::ptr::write_bytes(bits, 0xff, n.div_ceil(8) as usize) };
    });
}

/// Makes `[addr, addr + len)` addressable; `addr` is a multiple of eight. The rest of the last eight bytes is poisoned.
pub fn unpoison(addr: u64, len: u64) {
    each(addr, len, |bits, n| {
        let (whole, rest) = ((n / 8) as usize, n % 8);
        // SAFETY: as in `close`.
        unsafe {
            core::ptr::write_bytes(bits, 0, whole);
            if rest != 0 {
                *bits.add(whole) = 0xff << rest;
            }
        }
    });
}

/// As [`poison`], but exact to the byte: other threads may change other bits of the same shadow byte meanwhile.
pub fn poison_bytes(addr: u64, len: u64) {
    change_bytes(addr, len, true);
}

/// As [`unpoison`], but exact to the byte.
pub fn unpoison_bytes(addr: u64, len: u64) {
    change_bytes(addr, len, false);
}

fn change_bytes(addr: u64, len: u64, closed: bool) {
    let (mut at, end) = (addr, addr.saturating_add(len));
    // SAFETY: as in `close`; shadow bytes that are shared with other threads are changed atomically.
    let shared = |at: u64, mask: u8| unsafe {
        let Some(byte) = bits(at & !7) else { return };
        match closed {
            true => AtomicU8::from_ptr(byte).fetch_or(mask, Relaxed),
            false => AtomicU8::from_ptr(byte).fetch_and(!mask, Relaxed),
        };
    };
    let whole = (at.next_multiple_of(8), end & !7);
    if whole.0 > whole.1 {
        // Within one byte of the table.
        return shared(at, (0xff << (at & 7)) & !(0xffu8 << (end & 7)));
    }
    if at < whole.0 {
        shared(at, 0xff << (at & 7));
        at = whole.0;
    }
    if at < whole.1 {
        let all = if closed { 0xff } else { 0 };
        each(at, whole.1 - at, |bits, n| {
            // SAFETY: as in `close`.
            unsafe { core::ptr::write_bytes(bits, all, (n / 8) as usize) };
        });
    }
    if whole.1 < end {
        shared(whole.1, !(0xff << (end & 7)));
    }
}

/// The first poisoned byte of `[addr, addr + len)`.
pub fn first_poisoned(addr: u64, len: u64) -> Option<u64> {
    first(addr, len, 0)
}

/// The first addressable byte of `[addr, addr + len)`.
pub fn first_addressable(addr: u64, len: u64) -> Option<u64> {
    first(addr, len, !0)
}

/// The first byte of `[addr, addr + len)` whose bit is not that of `other`. A byte without a bit is addressable and
/// ends the search.
fn first(addr: u64, len: u64, other: u8) -> Option<u64> {
    let (mut at, end) = (addr, addr.saturating_add(len));
    while at < end {
        let Some(bits) = bits(at & !7) else {
            return (other != 0).then_some(at);
        };
        let (start, stop) = (at & !7, end.min(end_of_window(at)));
        while at < stop {
            // SAFETY: the bits of mapped memory of ours; the bits of a window are contiguous.
            let byte = unsafe { *bits.add(((at - start) / 8) as usize) };
            let rest = (byte ^ other) >> (at & 7);
            if rest != 0 {
                let found = at + u64::from(rest.trailing_zeros());
                // (It may be one behind the end.)
                return (found < end).then_some(found);
            }
            at = (at | 7) + 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::tests::fixture::Statics;
    use super::*;

    /// Bytes on both sides of the boundary between two windows.
    const HALF: u64 = 256;
    const ALL: u64 = 2 * HALF;
    const ARENA_AT: u64 = 1 << 40;
    const FROM: u64 = ARENA_AT + 3 * WINDOW - HALF;

    /// Two windows of an arena whose aliases, and so whose bits, lie apart.
    struct Bits {
        // (Dropped first.)
        _statics: Statics,
        bits: Box<[u8]>,
    }

    impl Bits {
        fn new() -> Bits {
            let statics = Statics::take();
            arena::START.store(ARENA_AT, Relaxed);
            let mut bits = vec![0u8; 4 * (HALF / 8) as usize].into_boxed_slice();
            // The table's address is that of the bits of address 0.
            let table = bits.as_mut_ptr() as u64;
            let alias = 1u64 << 30;
            statics.use_bits(table - alias / 8);
            // The second window's aliases come first, and between them is a gap.
            assert!(settle(FROM, (alias + 2 * HALF).wrapping_sub(FROM)));
            assert!(settle(FROM + HALF, alias.wrapping_sub(FROM + HALF)));
            Bits {
                _statics: statics,
                bits,
            }
        }

        fn is_closed(&self, n: u64) -> bool {
            let at = match n < HALF {
                true => n + 2 * HALF,
                false => n - HALF,
            };
            self.bits[at as usize / 8] >> (at % 8) & 1 == 1
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Close(u64, u64),
        Open(u64, u64),
        CloseBytes(u64, u64),
        OpenBytes(u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let range = (0..ALL).prop_flat_map(|at| (Just(at), 0..=ALL - at));
        let blocks = (0..ALL / 8).prop_flat_map(|at| (Just(at * 8), 0..=ALL - at * 8));
        prop_oneof![
            blocks.clone().prop_map(|(at, len)| Op::Close(at, len)),
            blocks.prop_map(|(at, len)| Op::Open(at, len)),
            range.clone().prop_map(|(at, len)| Op::CloseBytes(at, len)),
            range.prop_map(|(at, len)| Op::OpenBytes(at, len)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn the_bits_are_those_of_a_list_of_bytes(ops in vec(op(), 1..40), look in vec((0..ALL, 0..ALL), 20)) {
            let bits = Bits::new();
            let mut model = vec![false; ALL as usize];
            for op in ops {
                let mut set = |from: u64, to: u64, closed| model[from as usize..to as usize].fill(closed);
                match op {
                    Op::Close(at, len) => {
                        poison(FROM + at, len);
                        set(at, (at + len).next_multiple_of(8), true);
                    }
                    Op::Open(at, len) => {
                        unpoison(FROM + at, len);
                        set(at, (at + len).next_multiple_of(8), true);
                        set(at, at + len, false);
                    }
                    Op::CloseBytes(at, len) => {
                        poison_bytes(FROM + at, len);
                        set(at, at + len, true);
                    }
                    Op::OpenBytes(at, len) => {
                        unpoison_bytes(FROM + at, len);
                        set(at, at + len, false);
                    }
                }
                for n in 0..ALL {
                    prop_assert_eq!(bits.is_closed(n), model[n as usize], "byte {}", n);
                }
            }
            for (at, len) in look {
                let len = len.min(ALL - at);
                let find = |closed| (at..at + len).find(|n| model[*n as usize] == closed);
                prop_assert_eq!(first_poisoned(FROM + at, len).map(|a| a - FROM), find(true));
                prop_assert_eq!(first_addressable(FROM + at, len).map(|a| a - FROM), find(false));
            }
        }
    }

    #[test]
    fn a_window_keeps_its_distance() {
        let _bits = Bits::new();
        let before = reachable(FROM);
        assert!(settle(FROM, before.wrapping_sub(FROM)));
        assert!(!settle(FROM, 4096));
        forget();
        assert_eq!(reachable(FROM), FROM);
        assert_eq!(bits(FROM), None);
    }

    #[test]
    fn what_has_no_bits_may_be_touched() {
        let _bits = Bits::new();
        let none = ARENA_AT + 9 * WINDOW;
        poison(none, 64);
        assert_eq!(first_poisoned(none, 64), None);
        assert_eq!(first_addressable(none, 64), Some(none));
        assert_eq!(first_poisoned(64, 64), None);
    }

    #[test]
    fn a_range_is_checked_from_where_the_arena_or_a_region_begins() {
        let _bits = Bits::new();
        let (at, end) = (1 << 20, 1 << 21);
        assert!(regions::add_region((at, end), 0, true));
        assert_eq!(checked_from(at + 5, at + 9), at + 5);
        assert_eq!(checked_from(at - 5, at + 9), at);
        assert_eq!(checked_from(at - 5, at), at);
        assert_eq!(checked_from(end, end + 9), end + 9);
        assert_eq!(checked_from(ARENA_AT - 8, ARENA_AT + 8), ARENA_AT);
        assert_eq!(checked_from(ARENA_AT - 8, ARENA_AT), ARENA_AT);
        assert_eq!(checked_from(ARENA_AT + 8, ARENA_AT + 16), ARENA_AT + 8);
    }
}
