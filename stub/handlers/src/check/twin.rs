//! Another copy of our image in the same address space.

use core::sync::atomic::AtomicU64;

/// Clears all bytes of the static.
#[cfg(test)]
pub fn clear<T>(ours: &'static T) {
    // SAFETY: a static that consists of atomics, of which any pattern is valid; the fixture's owner alone uses it.
    unsafe { (ours as *const T as *mut T).write_bytes(0, 1) };
}

/// Another image of ours, which is not in use any more.
#[derive(Clone, Copy)]
pub struct Twin {
    /// Distance from our image to that one.
    pub away: u64,
}

impl Twin {
    pub fn of<T>(self, ours: &'static T) -> *const T {
        (ours as *const T as u64).wrapping_add(self.away) as *const T
    }

    /// Copies the value of the static `ours` from that image.
    pub fn take<T>(self, ours: &'static T) {
        // SAFETY: both are statics that consist of atomics, of which any pattern is valid; the world is stopped.
        unsafe { core::ptr::copy_nonoverlapping(self.of(ours), ours as *const T as *mut T, 1) };
    }

    /// The number `ours` of that image.
    pub fn number(self, ours: &'static AtomicU64) -> u64 {
        // SAFETY: a word of that image's data.
        unsafe { self.of(ours).cast::<u64>().read_volatile() }
    }

    /// True if the flag `ours` is set in that image.
    pub fn is_set<T>(self, ours: &'static T) -> bool {
        const { assert!(size_of::<T>() == 1) };
        // SAFETY: a byte of that image's data.
        unsafe { self.of(ours).cast::<u8>().read_volatile() != 0 }
    }

    /// Translates an address of our image into that one.
    pub fn theirs(self, ours: u64) -> u64 {
        ours.wrapping_add(self.away)
    }

    /// Translates an address of that image into ours.
    pub fn ours(self, there: u64) -> u64 {
        there.wrapping_sub(self.away)
    }
}
