//! Maps a byte to its block in a form that trampolines read in a few instructions (`engine/src/patch/out_of_block.rs`).
//! Maintained only with [`super::out_of_block::GUESSES`].
//!
//! ```text
//!     owners   a word for each granule: 0 if slots share it, else the number of the large block's first one, plus 1
//!     lines    for each 16 bytes of a granule that slots share: the number of the slot
//! ```

use core::sync::atomic::{AtomicU64, Ordering::*};

use super::arena::{ARENA, GRANULE};

/// Slots begin at multiples of this.
const LINE: u64 = 16;
/// Bytes of both tables.
pub const OWNERS: u64 = ARENA / GRANULE * size_of::<u32>() as u64;
pub const LINES: u64 = ARENA / LINE * size_of::<u16>() as u64;

/// Addresses of the tables, or 0 if trampolines do not use them.
pub static OWNERS_AT: AtomicU64 = AtomicU64::new(0);
pub static LINES_AT: AtomicU64 = AtomicU64::new(0);

/// Resets to the state without the tables.
#[cfg(test)]
pub fn reset() {
    OWNERS_AT.store(0, Relaxed);
    LINES_AT.store(0, Relaxed);
}

/// Enters a granule in the tables: slots of this many bytes share it, or it belongs to a large block that begins
/// `before` granules earlier. The caller holds the lock of its shard.
pub fn settle(offset: u64, slots: Option<u64>, before: u64) {
    let (owners, lines) = (OWNERS_AT.load(Relaxed), LINES_AT.load(Relaxed));
    if owners == 0 || lines == 0 {
        return;
    }
    let number = offset / GRANULE;
    let owner = match slots {
        None => number.saturating_sub(before) + 1,
        Some(_) => 0,
    };
    // SAFETY: within the owners.
    unsafe {
        (owners as *mut u32)
            .add(number as usize)
            .write_volatile(owner as u32)
    };
    let Some(size) = slots else { return };
    let first = lines + offset / LINE * size_of::<u16>() as u64;
    for line in 0..GRANULE / LINE {
        let slot = (line * LINE).checked_div(size).unwrap_or(0);
        // SAFETY: within the lines.
        unsafe {
            (first as *mut u16)
                .add(line as usize)
                .write_volatile(slot as u16)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::{Granule, set_granule};
    use super::super::tests::fixture::{Heap, Map};
    use super::*;

    #[test]
    fn a_line_says_which_slot_it_is_in() {
        let _heap = Heap::new(1 << 20, 0);
        let (owners, lines) = (Map::new(OWNERS), Map::new(LINES));
        OWNERS_AT.store(owners.at, Relaxed);
        LINES_AT.store(lines.at, Relaxed);
        let owner = |n: u64| {
            // SAFETY: within the owners.
            unsafe { *(owners.at as *const u32).add(n as usize) }
        };
        set_granule(2 * GRANULE, Granule::Small(48), 0);
        assert_eq!(owner(2), 0);
        for line in 0..GRANULE / LINE {
            let at = 2 * GRANULE / LINE + line;
            // SAFETY: within the lines.
            let slot = unsafe { *(lines.at as *const u16).add(at as usize) };
            assert_eq!(u64::from(slot), line / 3);
        }
        set_granule(5 * GRANULE, Granule::Large(3), 0);
        set_granule(6 * GRANULE, Granule::Behind(1), 0);
        set_granule(7 * GRANULE, Granule::Behind(2), 0);
        assert_eq!([owner(5), owner(6), owner(7), owner(8)], [6, 6, 6, 0]);
    }
}
