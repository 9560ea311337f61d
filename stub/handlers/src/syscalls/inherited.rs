//! Effects of calls on properties of mappings that /proc/self/maps does not show ([`ulpf_lib::guard::flags`]).

use core::sync::atomic::Ordering::Relaxed;

use linux_raw_sys::general as k;
use ulpf_lib::guard::flags::{self, Change};

use super::call::{Args, raw};
use crate::global::g;

/// Makes a call that changes mappings.
pub fn through(nr: u64, a: &Args) -> i64 {
    let before = g().brk.load(Relaxed);
    let make = || {
        begin(nr, a);
        raw(nr, a)
    };
    flags::through(make, |result| Change::by(nr, a, result, before))
}

/// Makes a call that locks or unlocks memory.
pub fn locks(nr: u64, a: &Args, make: impl FnOnce() -> i64) -> i64 {
    let locks = match nr as u32 {
        k::__NR_munlock => false,
        k::__NR_mlock | k::__NR_mlock2 => true,
        // All memory.
        _ => return unreported(make),
    };
    let make = || {
        if locks {
            flags::follow_reported();
        }
        make()
    };
    flags::through(make, |result| Change::by(nr, a, result, 0))
}

/// Makes a call whose changes are not known: advice about memory of some process.
pub fn unreported(make: impl FnOnce() -> i64) -> i64 {
    let make = || {
        flags::follow();
        make()
    };
    flags::through(make, |_| Change::Unknown)
}

fn begin(nr: u64, a: &Args) {
    match nr as u32 {
        k::__NR_madvise if flags::is_inheritance(a[2] as u32) => flags::follow_reported(),
        // A droppable mapping is wiped, too.
        k::__NR_mmap
            if a[3] as u32 & k::MAP_TYPE == k::MAP_DROPPABLE
                || a[3] as u32 & k::MAP_LOCKED != 0 =>
        {
            flags::follow();
        }
        k::__NR_pkey_mprotect if a[3] as i32 > 0 => flags::follow(),
        _ => {}
    }
}
