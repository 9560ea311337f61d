//! Compares the table with the kernel's smaps.

use alloc::vec::Vec;

use super::super::tests::{anonymous, in_child};
use super::*;
use crate::addr::PAGE_SIZE;

/// Random calls on a few pages, reported as the stub does: the table equals smaps, and most looks do not read smaps.
#[test]
fn what_does_not_show_is_known_by_the_calls() {
    const PAGES: u64 = 24;
    let at = anonymous(PAGES as usize + 8);
    let status = in_child(|| {
        flags::calls_are_reported();
        flags::locks_follow(false); // another test does
        let mut table = Inherited::new();
        let mut seed = 17u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) % n
        };
        let (mut known, mut flagged, mut locked) = (0, 0, 0);
        const ROUNDS: u64 = 600;
        for round in 0..ROUNDS {
            for _ in 0..random(3) + 1 {
                let from = random(PAGES);
                let (start, len) = (
                    at + from * PAGE_SIZE,
                    (random(PAGES - from) + 1) * PAGE_SIZE,
                );
                random_call(&mut random, start, len);
            }
            known += u64::from(flags::are_known());
            let still = Still::now();
            let mut said = Snapshot::read().unwrap();
            table.complete(&mut said, still, (0, 0), core::iter::empty());
            let mut is = Snapshot::read().unwrap();
            is.resolve();
            let here = |s: Snapshot| -> Vec<_> {
                let all = s.vmas.into_iter();
                all.filter(|v| (at..at + PAGES * PAGE_SIZE).contains(&v.start))
                    .collect()
            };
            let (said, is) = (here(said), here(is));
            assert_eq!(said, is, "round {round}");
            flagged += is.iter().filter(|v| v.in_child != InChild::Copy).count() as u64;
            locked += is.iter().filter(|v| v.locked).count() as u64;
        }
        assert!(flagged > ROUNDS && locked > ROUNDS, "{flagged} {locked}");
        assert!((ROUNDS / 2..ROUNDS).contains(&known), "{known}");
        7
    });
    assert_eq!(status, -7);
}

/// Some call about `[start, start + len)` that changes mappings, through [`flags::through`].
fn random_call(random: &mut impl FnMut(u64) -> u64, start: u64, len: u64) {
    use linux_raw_sys::general as k;
    let fixed = u64::from(k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED);
    let advice = [
        k::MADV_DONTFORK,
        k::MADV_DONTFORK,
        k::MADV_DOFORK,
        k::MADV_WIPEONFORK,
        k::MADV_KEEPONFORK,
        k::MADV_DONTNEED,
    ][random(6) as usize];
    let (nr, args) = match random(20) {
        0 => (k::__NR_munmap, [start, len, 0, 0, 0, 0]),
        1..4 => (k::__NR_mmap, [start, len, 3, fixed, u64::MAX, 0]),
        4..8 => (k::__NR_mprotect, [start, len, 1 + 2 * random(2), 0, 0, 0]),
        // It becomes shorter; or longer, where it is or elsewhere.
        8 => {
            let new = (random(4) + 1) * PAGE_SIZE;
            let moves = u64::from(k::MREMAP_MAYMOVE);
            (k::__NR_mremap, [start, PAGE_SIZE, new, moves, 0, 0])
        }
        9..12 => {
            let nr = [k::__NR_mlock, k::__NR_mlock2, k::__NR_munlock][random(3) as usize];
            (
                nr,
                [start + random(PAGE_SIZE), len - PAGE_SIZE + 1, 0, 0, 0, 0],
            )
        }
        _ => (k::__NR_madvise, [start, len, advice.into(), 0, 0, 0]),
    };
    let make = || {
        if matches!(nr, k::__NR_mlock | k::__NR_mlock2)
            || nr == k::__NR_madvise && flags::is_inheritance(advice)
        {
            flags::follow_reported();
        }
        // SAFETY: the test's own mappings, or where some were.
        unsafe {
            crate::sys::syscall6(
                nr.into(),
                args[0],
                args[1],
                args[2],
                args[3],
                args[4],
                args[5],
            )
        }
    };
    flags::through(make, |result| Change::by(nr.into(), &args, result, 0));
}
