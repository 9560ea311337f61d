//! The bits of the arena: may nobody touch this byte? They are the bits of the patches' tables
//! (`control/classes.rs` of the stub's task), in which stores and loads share one table while a heap is checked.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::*};

use super::arena::{self, ARENA, arena};
use super::regions;
use crate::patches;
use crate::runtime::memory;

/// The arena's alias is looked up once for each of these.
pub const WINDOW: u64 = 1 << 30;

/// By window of the arena: how far its alias is; 0: it has none.
static DISTANCES: [AtomicU64; (ARENA / WINDOW) as usize] =
    [const { AtomicU64::new(0) }; (ARENA / WINDOW) as usize];

/// From an address of the arena, or of what is watched of an older heap, to its alias; `None`: nobody watches it.
fn distance(addr: u64) -> Option<u64> {
    if !arena::has(addr) {
        return regions::distance(addr).map(|(distance, _)| distance);
    }
    let window = addr.wrapping_sub(arena()) / WINDOW;
    let distance = DISTANCES.get(window as usize)?.load(Relaxed);
    (distance != 0).then_some(distance)
}

/// The distance of a window, from the stub's task. `false`: it was another one before.
pub fn settle(addr: u64, distance: u64) -> bool {
    let window = addr.wrapping_sub(arena()) / WINDOW;
    let Some(slot) = DISTANCES.get(window as usize) else {
        return false;
    };
    let before = slot.swap(distance, Relaxed);
    before == 0 || before == distance
}

/// There are no aliases any more.
pub fn forget() {
    DISTANCES.iter().for_each(|d| d.store(0, Relaxed));
}

/// Where the bytes at `addr` can be touched.
pub fn reachable(addr: u64) -> u64 {
    distance(addr).map_or(addr, |d| addr.wrapping_add(d))
}

/// The byte that has the bit of `addr`, which is a multiple of eight.
pub fn bits(addr: u64) -> Option<*mut u8> {
    let table = patches::table().tables.writes;
    let alias = addr.wrapping_add(distance(addr)?);
    (table != 0).then(|| table.wrapping_add(alias / 8) as *mut u8)
}

/// The bits of `addr` change soon.
pub fn expect(addr: u64) {
    if let Some(bits) = bits(addr & !7) {
        memory::expect(bits as u64);
    }
}

/// So far an alias is as far away as here.
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

/// Nobody may touch `[addr, addr + len)`, of which the beginning is a multiple of eight. The rest of the last eight bytes
/// is taken along.
pub fn close(addr: u64, len: u64) {
    each(addr, len, |bits, n| {
        // SAFETY: the bits of mapped memory of ours; blocks are apart by more than eight bytes, so nobody else
        // writes to the same byte.
        unsafe { core::ptr::write_bytes(bits, 0xff, n.div_ceil(8) as usize) };
    });
}

/// The program may touch `[addr, addr + len)`, of which the beginning is a multiple of eight. The rest of the last eight
/// bytes is closed.
pub fn open(addr: u64, len: u64) {
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

/// As [`close`], to the byte: who else has bits in the same byte of the table may change them meanwhile.
pub fn close_bytes(addr: u64, len: u64) {
    change_bytes(addr, len, true);
}

/// As [`open`], to the byte.
pub fn open_bytes(addr: u64, len: u64) {
    change_bytes(addr, len, false);
}

fn change_bytes(addr: u64, len: u64, closed: bool) {
    let (mut at, end) = (addr, addr.saturating_add(len));
    // SAFETY: as in `close`; bytes that are shared with others are changed as a whole.
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

/// The first byte of `[addr, addr + len)` that nobody may touch.
pub fn first_closed(addr: u64, len: u64) -> Option<u64> {
    first(addr, len, 0)
}

/// The first byte of `[addr, addr + len)` that may be touched.
pub fn first_open(addr: u64, len: u64) -> Option<u64> {
    first(addr, len, !0)
}

/// The first byte of `[addr, addr + len)` whose bit is not that of `other`. A byte that has no bit may be touched, and
/// nobody looks behind it.
fn first(addr: u64, len: u64, other: u8) -> Option<u64> {
    let (mut at, end) = (addr, addr.saturating_add(len));
    while at < end {
        let Some(bits) = bits(at & !7) else {
            return (other != 0).then_some(at);
        };
        let (start, stop) = (at & !7, end.min(end_of_window(at)));
        while at < stop {
            // SAFETY: the bits of mapped memory of ours; those of a window lie side by side.
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
