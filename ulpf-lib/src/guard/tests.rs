//! Guards on real mappings of the test process. Regions are surrounded by inaccessible pages, so that
//! neighbours of one test are never memory of another.

use super::*;
use crate::watch::{WatchKind, WatchRange};
use crate::{AliasAddr, WatchId, Watchlist};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, MAP_SHARED};

const PAGE: usize = PAGE_SIZE as usize;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn new_guards() -> Guards {
    Guards::lazy(Box::leak(Box::new(PageMap::new())))
}

/// `pages` pages between two inaccessible ones.
fn region(pages: usize, prot: i32, flags: i32, fd: i32) -> u64 {
    // SAFETY: fresh mappings.
    unsafe {
        let len = (pages + 2) * PAGE;
        let base = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(base, libc::MAP_FAILED);
        let at = base.byte_add(PAGE);
        let got = libc::mmap(at, pages * PAGE, prot, flags | MAP_FIXED, fd, 0);
        assert_eq!(got, at, "{}", std::io::Error::last_os_error());
        at as u64
    }
}
pub(super) fn anonymous(pages: usize) -> u64 {
    region(pages, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1)
}
fn load(at: u64) -> u8 {
    // SAFETY: the tests load from their own mappings.
    unsafe { std::ptr::read_volatile(at as *const u8) }
}
fn store(at: u64, value: u8) {
    // SAFETY: the tests store to their own mappings.
    unsafe { std::ptr::write_volatile(at as *mut u8, value) }
}
/// Runs `f` in a child; the signal that it died of, or its exit status negated.
pub(super) fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only touches memory and leaves by _exit.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::_exit(f());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        if libc::WIFSIGNALED(status) {
            libc::WTERMSIG(status)
        } else {
            -libc::WEXITSTATUS(status)
        }
    }
}
fn store_faults(at: u64) -> bool {
    let end = in_child(|| {
        store(at, load(at));
        0
    });
    assert!(end == 0 || end == libc::SIGSEGV, "{end}");
    end != 0
}
fn load_faults(at: u64) -> bool {
    in_child(|| {
        load(at);
        0
    }) == libc::SIGSEGV
}
fn run(start: u64, pages: usize, guard: Guard) -> PageRun {
    PageRun {
        start: TargetAddr(start),
        end: TargetAddr(start + (pages * PAGE) as u64),
        guard,
    }
}
fn range(start: u64, len: u64) -> WatchRange {
    WatchRange::new(TargetAddr(start), len).unwrap()
}
fn armed(unarmed: Vec<Unarmed>) {
    assert!(unarmed.is_empty(), "{unarmed:?}");
}
fn alias_load(alias: Option<AliasAddr>) -> u8 {
    load(alias.unwrap().0)
}
fn mappings(from: u64, len: usize) -> Vec<maps::Vma> {
    let all = maps::Snapshot::read().unwrap().vmas;
    all.into_iter()
        .filter(|v| v.start < from + len as u64 && from < v.end)
        .collect()
}

#[test]
fn a_write_guard_faults_stores_and_the_alias_shows_the_same_bytes() {
    let mut g = new_guards();
    let at = anonymous(5);
    for i in 0..5 {
        store(at + i * PAGE_SIZE + 7, 10 + i as u8);
    }
    let wanted = [run(at + 2 * PAGE_SIZE, 1, Guard::NoWrite)];
    assert!(g.would_change(&wanted));
    armed(g.apply(wanted));
    assert!(!g.would_change(&wanted));
    assert!(g.would_change(&[]));
    assert!(g.would_change(&[run(at + 2 * PAGE_SIZE, 1, Guard::NoAccess)]));
    assert!(g.would_change(&[run(at + 2 * PAGE_SIZE, 2, Guard::NoWrite)]));
    assert!(g.would_change(&[run(at + PAGE_SIZE, 2, Guard::NoWrite)]));
    let page = at + 2 * PAGE_SIZE;
    assert!(store_faults(page + 7) && store_faults(page) && store_faults(page + 4095));
    assert!(!load_faults(page + 7));
    assert!(!store_faults(page - 1) && !store_faults(page + 4096));
    for i in 0..5 {
        assert_eq!(load(at + i * PAGE_SIZE + 7), 10 + i as u8);
    }
    assert_eq!(
        g.page_map().fault(TargetAddr(page + 7), AccessKind::Write),
        Fault::Guarded
    );
    assert_eq!(
        g.page_map().fault(TargetAddr(page + 7), AccessKind::Read),
        Fault::Stale
    );
    assert_eq!(
        g.page_map().fault(TargetAddr(at), AccessKind::Write),
        Fault::Foreign
    );
    // Through the alias, both ways.
    let alias = g.page_map().open(TargetAddr(page + 7), 1, true).unwrap();
    assert_eq!(load(alias.0), 12);
    store(alias.0, 99);
    assert_eq!(load(page + 7), 99);
    // Neighbours are moved, unguarded, and contiguous; the next ones are not.
    let map = g.page_map();
    let entry = map.entry(TargetAddr(page - 1));
    assert!(entry.moved() && entry.guard().is_none());
    assert!(
        map.entry(TargetAddr(page)).guards(AccessKind::Write)
            && !map.entry(TargetAddr(page)).guards(AccessKind::Read)
    );
    let straddle = map.open(TargetAddr(page - 4), 8, true).unwrap();
    assert_eq!(straddle.0 + 4 + 7, alias.0);
    assert!(map.open(TargetAddr(page + 4092), 8, true).is_some());
    assert!(!map.entry(TargetAddr(at)).moved());
    assert!(map.open(TargetAddr(at + 4092), 8, true).is_none());
    // The debugger's view.
    let mut buf = [0; 8192];
    assert_eq!(g.read(TargetAddr(page - 4096), &mut buf), 8192);
    assert_eq!((buf[7], buf[4096 + 7]), (11, 99));
    assert_eq!(g.write(TargetAddr(page + 4094), &[1, 2, 3, 4]), 4);
    assert_eq!((load(page + 4094), load(page + 4097)), (1, 4));
    assert_eq!(g.read(TargetAddr(at), &mut buf), 0);
    // And back.
    g.release_all().unwrap();
    assert!(!store_faults(page));
    assert_eq!(
        (load(page + 7), load(at + 7), load(page + 4097)),
        (99, 10, 4)
    );
    assert_eq!(
        mappings(at, 5 * PAGE).len(),
        1,
        "one mapping again, as before"
    );
    assert_eq!(g.page_map().entry(TargetAddr(page)), PageEntry::NONE);
}

#[test]
fn memory_that_the_kernel_knows_by_its_address_stays() {
    let mut g = new_guards();
    let at = anonymous(3);
    g.stay_where(|_, _| true);
    let unarmed = g.apply([run(at, 1, Guard::NoWrite)]);
    assert!(unarmed.iter().any(|u| u.refusal.why.contains("io_uring")));
    assert!(!store_faults(at) && !g.touches(TargetAddr(at), 4096));
    g.stay_where(|_, _| false);
    armed(g.apply([run(at, 1, Guard::NoWrite)]));
    assert!(store_faults(at));
    g.release_all().unwrap();
}

#[test]
fn a_full_guard_faults_loads_and_guards_change_in_place() {
    let mut g = new_guards();
    let at = anonymous(8);
    store(at, 5);
    armed(g.apply([run(at, 8, Guard::NoAccess)]));
    assert!(load_faults(at) && store_faults(at + 7 * PAGE_SIZE));
    assert_eq!(
        alias_load(g.page_map().open(TargetAddr(at), 8 * PAGE_SIZE, true)),
        5
    );
    armed(g.apply([
        run(at, 3, Guard::NoWrite),
        run(at + 5 * PAGE_SIZE, 1, Guard::NoAccess),
    ]));
    assert!(!load_faults(at) && store_faults(at));
    assert!(!store_faults(at + 3 * PAGE_SIZE) && load_faults(at + 5 * PAGE_SIZE));
    armed(g.apply([]));
    assert!((0..8).all(|i| !store_faults(at + i * PAGE_SIZE)));
    g.release_all().unwrap();
}

#[test]
fn memory_that_was_just_mapped_is_guarded_without_a_look_at_the_mappings() {
    let mut g = new_guards();
    let reserved = region(4, libc::PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    let before = anonymous(4);
    let all = |more: &[u64]| {
        let mut all: Vec<u64> = [&[reserved, before], more].concat();
        all.sort_unstable();
        all.into_iter().map(|at| run(at, 4, Guard::NoWrite))
    };
    let fresh = |at| Some((at, at + 4 * PAGE_SIZE));
    armed(g.apply(all(&[])));
    let wants = |g: &Guards, at| g.wants(TargetAddr(at), PAGE_SIZE);
    assert_eq!(
        (g.unlooked, wants(&g, reserved), wants(&g, before)),
        (0, true, false)
    );

    let first = anonymous(4);
    store(first, 3);
    let mut flags = flags::any();
    g.has_mapped(fresh(first));
    armed(g.apply(all(&[first])));
    flags |= flags::any();
    // (Kernels before 6.11 cannot be asked for one mapping. Nor is a look spared while another test has locked memory.)
    let spared = u32::from(maps::mapping_at(before).is_some());
    assert!(g.unlooked == spared || flags, "{}", g.unlooked);
    assert!(wants(&g, reserved));
    assert!([before, first].into_iter().all(store_faults));
    assert_eq!(load(first), 3);

    // More has come than was said: all is looked at.
    let (second, third) = (anonymous(4), anonymous(4));
    g.has_mapped(fresh(second));
    armed(g.apply(all(&[first, second, third])));
    assert_eq!(g.unlooked, 0);
    assert!([first, second, third].into_iter().all(store_faults));

    // A run that waits for memory is examined when the memory comes.
    // SAFETY: memory of this test.
    let made = unsafe { libc::mprotect(reserved as *mut _, 4 * PAGE, RW) };
    assert_eq!(made, 0);
    g.has_mapped(fresh(reserved));
    armed(g.apply(all(&[first, second, third])));
    assert_eq!((g.unlooked, wants(&g, reserved)), (0, false));
    assert!(store_faults(reserved));
    g.release_all().unwrap();
}

static mut GLOBAL: Aligned = Aligned([3; 3 * PAGE]);
#[repr(align(4096))]
struct Aligned(#[allow(dead_code)] [u8; 3 * PAGE]);

#[test]
fn globals_are_private_file_pages() {
    let mut g = new_guards();
    let at = &raw const GLOBAL as u64;
    assert_eq!(load(at + PAGE_SIZE), 3);
    g.check(range(at + PAGE_SIZE, 8), WatchKind::Write).unwrap();
    armed(g.apply([run(at + PAGE_SIZE, 1, Guard::NoWrite)]));
    assert!(store_faults(at + PAGE_SIZE));
    assert_eq!(
        alias_load(g.page_map().open(TargetAddr(at + PAGE_SIZE + 100), 1, true)),
        3
    );
    g.release_all().unwrap();
    store(at + PAGE_SIZE, 4);
    assert_eq!(
        (
            load(at + PAGE_SIZE),
            load(at + PAGE_SIZE - 1),
            load(at + PAGE_SIZE + 1)
        ),
        (4, 3, 3)
    );
}

#[test]
fn shared_mappings_are_duplicated_and_stay_shared() {
    let mut g = new_guards();
    let at = region(4, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    store(at + PAGE_SIZE, 1);
    armed(g.apply([run(at + PAGE_SIZE, 1, Guard::NoWrite)]));
    assert!(store_faults(at + PAGE_SIZE));
    let alias = g
        .page_map()
        .open(TargetAddr(at + PAGE_SIZE - 2), 4, true)
        .unwrap();
    assert_eq!(load(alias.0 + 2), 1);
    assert!(g.page_map().entry(TargetAddr(at + PAGE_SIZE)).shared());
    // Another process that shares the memory writes to it.
    assert_eq!(
        in_child(|| {
            store(alias.0 + 2, 77);
            0
        }),
        0
    );
    assert_eq!(load(at + PAGE_SIZE), 77);
    assert!(
        g.touches(TargetAddr(at + 3 * PAGE_SIZE), 1),
        "the duplicate covers the whole mapping"
    );
    g.release_all().unwrap();
    assert!(!store_faults(at + PAGE_SIZE));
    assert_eq!(mappings(alias.0, 1).len(), 0, "the duplicate is gone");
    assert_eq!(
        in_child(|| {
            store(at, 78);
            0
        }),
        0
    );
    assert_eq!(load(at), 78, "still shared");
}

#[test]
fn read_only_shared_files_are_watched_for_reads() {
    use std::os::fd::AsRawFd;
    let path = std::env::temp_dir().join(format!("ulpf-lib-test-{}", std::process::id()));
    std::fs::write(&path, vec![9u8; 2 * PAGE]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut g = new_guards();
    let at = region(2, libc::PROT_READ, MAP_SHARED, file.as_raw_fd());
    armed(g.apply([run(at, 1, Guard::NoAccess)]));
    assert!(load_faults(at));
    assert_eq!(alias_load(g.page_map().open(TargetAddr(at), 4, false)), 9);
    assert_eq!(
        alias_load(g.page_map().open(TargetAddr(at + 4094), 4, false)),
        9
    );
    assert!(g.page_map().open(TargetAddr(at), 4, true).is_none());
    assert_eq!(g.write(TargetAddr(at), &[1]), 0);
    g.release_all().unwrap();
    assert_eq!(load(at), 9);
}

/// Calls itself until the stack is `depth` KiB deeper.
#[inline(never)]
fn recurse(depth: usize) -> u8 {
    let mut block = [depth as u8; 1024];
    std::hint::black_box(&mut block);
    if depth == 0 {
        block[5]
    } else {
        recurse(depth - 1).wrapping_add(block[7])
    }
}

#[test]
fn the_main_stack_is_guarded_and_still_grows() {
    // The harness runs tests on other threads; the child of a fork of one is on that thread's stack.
    // So this looks at the main stack from outside: its mapping is the process's own.
    let status = in_child(|| {
        let mut g = new_guards();
        let vmas = maps::Snapshot::read().unwrap().vmas;
        let stack = vmas.iter().find(|v| v.kind == VmaKind::Stack).unwrap();
        let (bottom, top) = (stack.start, stack.end);
        // In the middle: moved, neighbours too. At the bottom: the stack is made longer first.
        let middle = (bottom + (top - bottom) / 2) & !(PAGE_SIZE - 1);
        let before = load(top - 9);
        if !g
            .apply([
                run(bottom, 1, Guard::NoWrite),
                run(middle, 1, Guard::NoWrite),
            ])
            .is_empty()
        {
            return 1;
        }
        let map = g.page_map();
        if !map.entry(TargetAddr(bottom)).guards(AccessKind::Write)
            || !map.entry(TargetAddr(middle)).moved()
        {
            return 2;
        }
        // Growth: the kernel extends what is left below.
        let deep = bottom - 20 * PAGE_SIZE;
        store(deep, 1);
        if load(deep) != 1 || load(top - 9) != before {
            return 3;
        }
        // The new lowest page is still recognised, though its mapping has no name any more.
        if !g
            .apply([run(deep & !(PAGE_SIZE - 1), 1, Guard::NoWrite)])
            .is_empty()
        {
            return 4;
        }
        store(deep - 30 * PAGE_SIZE, 1);
        if g.release_all().is_err() || load(deep) != 1 {
            return 5;
        }
        store(deep - 60 * PAGE_SIZE, 1);
        // Parts of the stack do not grow together again; a new start must not take one for another sort.
        let mut g = new_guards();
        let lowest = (deep - 60 * PAGE_SIZE) & !(PAGE_SIZE - 1);
        if !g.apply([run(lowest, 1, Guard::NoWrite)]).is_empty() {
            return 6;
        }
        store(lowest - 40 * PAGE_SIZE, 1);
        0
    });
    assert_eq!(status, 0);
}

#[test]
fn a_threads_own_stack_is_guarded_under_its_feet() {
    let mut g = new_guards();
    std::thread::spawn(move || {
        recurse(100);
        let local = [1u8; 64];
        // Far below the frames in use, so that this thread itself does not fault.
        let at = (&raw const local as u64 - 64 * 1024) & !(PAGE_SIZE - 1);
        armed(g.apply([run(at, 1, Guard::NoWrite)]));
        assert!(store_faults(at));
        assert_eq!(
            in_child(|| {
                recurse(100);
                0
            }),
            libc::SIGSEGV
        );
        g.release_all().unwrap();
        assert_eq!(recurse(100), (0..=100).fold(0u8, |a, d| a.wrapping_add(d)));
    })
    .join()
    .unwrap();
}

#[test]
fn untouched_pages_stay_holes() {
    let mut g = new_guards();
    let at = anonymous(256);
    store(at + 100 * PAGE_SIZE, 1);
    let untouched = |g: &Guards| g.data_pages(at, at + 256 * PAGE_SIZE);
    armed(g.apply([run(at, 256, Guard::NoWrite)]));
    assert_eq!(untouched(&g), 1, "one page has content");
    assert_eq!(load(at + 100 * PAGE_SIZE), 1);
    g.release_all().unwrap();
    assert_eq!(load(at + 100 * PAGE_SIZE), 1);
    assert_eq!(
        g.file.as_ref().unwrap().pages(),
        0,
        "nothing is left in the file"
    );
}

#[test]
fn ten_thousand_scattered_pages() {
    let mut g = new_guards();
    let (count, step) = (10_000u64, 4u64);
    let at = anonymous((count * step) as usize);
    for i in 0..count {
        store(at + i * step * PAGE_SIZE + 5, i as u8 | 1);
    }
    let watches = || (0..count).map(|i| run(at + i * step * PAGE_SIZE, 1, Guard::NoWrite));
    armed(g.apply(watches()));
    assert!(mappings(at, (count * step) as usize * PAGE).len() < 20_010);
    for i in (0..count).step_by(997) {
        let page = at + i * step * PAGE_SIZE;
        assert!(store_faults(page));
        assert_eq!(
            alias_load(g.page_map().open(TargetAddr(page + 5), 1, true)),
            i as u8 | 1
        );
    }
    armed(g.apply(watches()));
    g.release_all().unwrap();
    assert!((0..count).all(|i| load(at + i * step * PAGE_SIZE + 5) == i as u8 | 1));
    assert_eq!(mappings(at, (count * step) as usize * PAGE).len(), 1);
}

#[test]
fn more_pages_than_mappings_are_guarded_coarsely() {
    let mut g = new_guards();
    g.prepare().unwrap();
    g.max_map_count = 4000;
    let (count, step) = (3000u64, 3u64);
    let at = anonymous((count * step) as usize);
    armed(g.apply((0..count).map(|i| run(at + i * step * PAGE_SIZE, 1, Guard::NoWrite))));
    assert!(mappings(at, (count * step) as usize * PAGE).len() < 3000);
    let map = g.page_map();
    assert!((0..count).all(|i| {
        map.entry(TargetAddr(at + i * step * PAGE_SIZE))
            .guards(AccessKind::Write)
    }));
    g.release_all().unwrap();
}

#[test]
fn the_programs_own_protection_counts() {
    let mut g = new_guards();
    let at = anonymous(4);
    let page = at + PAGE_SIZE;
    store(page, 1);
    armed(g.apply([run(page, 1, Guard::NoWrite)]));
    // Read-only: a store is the program's own fault now.
    g.set_prot(TargetAddr(at), 4 * PAGE_SIZE, PROT_READ)
        .unwrap();
    let entry = g.page_map().entry(TargetAddr(page));
    assert!(
        entry.guards(AccessKind::Write)
            && !entry.permits(AccessKind::Write)
            && entry.permits(AccessKind::Read)
    );
    assert!(store_faults(at) && store_faults(page) && !load_faults(page));
    assert_eq!(
        g.page_map().fault(TargetAddr(page), AccessKind::Write),
        Fault::Forbidden
    );
    assert!(g.page_map().open(TargetAddr(page), 1, true).is_none());
    g.set_prot(TargetAddr(page), PAGE_SIZE, 0).unwrap();
    assert!(
        load_faults(page)
            && !g
                .page_map()
                .entry(TargetAddr(page))
                .permits(AccessKind::Read)
    );
    assert!(g.set_prot(TargetAddr(at - PAGE_SIZE), PAGE_SIZE, 0).is_ok());
    g.set_prot(TargetAddr(at), 4 * PAGE_SIZE, PROT_READ | PROT_WRITE)
        .unwrap();
    assert!(store_faults(page) && !store_faults(at));
    g.set_prot(TargetAddr(page), PAGE_SIZE, PROT_READ).unwrap();
    g.release_all().unwrap();
    assert!(
        store_faults(page) && load(page) == 1,
        "protection survives the way back"
    );
}

#[test]
fn read_only_memory_is_latent_until_it_becomes_writable() {
    let mut g = new_guards();
    let at = region(3, libc::PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    g.check(range(at + 8, 8), WatchKind::Write).unwrap();
    let wanted = [run(at, 1, Guard::NoWrite)];
    armed(g.apply(wanted));
    assert!(!g.page_map().entry(TargetAddr(at)).moved());
    assert!(g.wants(TargetAddr(at), 1) && !g.wants(TargetAddr(at + PAGE_SIZE), 1));
    g.set_prot(TargetAddr(at), 3 * PAGE_SIZE, PROT_READ | PROT_WRITE)
        .unwrap();
    armed(g.apply(wanted));
    assert!(store_faults(at) && !g.wants(TargetAddr(at), 1));
    g.release_all().unwrap();
}

#[test]
fn what_is_locked_stays_locked() {
    flags::locks_follow(true); // other tests look for locks, too, and find none meanwhile
    let locks = |at: u64| {
        let mut snapshot = maps::Snapshot::read().unwrap();
        snapshot.resolve();
        let lock = |i| snapshot.at(at + i * PAGE_SIZE).unwrap().locked;
        [0, 1, 2, 3].map(lock)
    };
    let mut g = new_guards();
    let at = anonymous(4);
    // SAFETY: the test's own mapping.
    let done = unsafe { libc::mlock((at + PAGE_SIZE) as *const _, PAGE) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    armed(g.apply([run(at, 4, Guard::NoWrite)]));
    assert_eq!(locks(at), [false, true, false, false]);
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::munlock((at + PAGE_SIZE) as *const _, PAGE), 0);
        assert_eq!(libc::mlock((at + 2 * PAGE_SIZE) as *const _, PAGE), 0);
    }
    g.look_at_locks(TargetAddr(at), 4 * PAGE_SIZE).unwrap();
    g.set_locks(TargetAddr(at + 3 * PAGE_SIZE), PAGE_SIZE, true);
    g.release_all().unwrap();
    assert_eq!(locks(at), [false, false, true, true]);
}

#[test]
fn what_the_program_does_to_its_mappings_is_followed() {
    let mut g = new_guards();
    let at = anonymous(6);
    store(at + 2 * PAGE_SIZE, 7);
    let wanted = [run(at + PAGE_SIZE, 4, Guard::NoWrite)];
    armed(g.apply(wanted));
    // MADV_DONTNEED
    g.discard(TargetAddr(at + 2 * PAGE_SIZE), PAGE_SIZE)
        .unwrap();
    assert_eq!(load(at + 2 * PAGE_SIZE), 0);
    assert!(store_faults(at + 2 * PAGE_SIZE));
    // munmap, then something new in its place
    // SAFETY: the test's own mapping.
    unsafe {
        assert_eq!(libc::munmap((at + 3 * PAGE_SIZE) as *mut _, PAGE), 0);
    }
    g.forget(TargetAddr(at + 3 * PAGE_SIZE), PAGE_SIZE);
    armed(g.apply(wanted));
    assert!(g.wants(TargetAddr(at + 3 * PAGE_SIZE), 1));
    assert!(!g.page_map().entry(TargetAddr(at + 3 * PAGE_SIZE)).moved());
    // SAFETY: the place is free.
    unsafe {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        libc::mmap((at + 3 * PAGE_SIZE) as *mut _, PAGE, RW, flags, -1, 0);
    }
    armed(g.apply(wanted));
    assert!(store_faults(at + 3 * PAGE_SIZE));
    // Part of it goes back for a call that cannot be imitated, and is armed again after it.
    store(
        g.page_map()
            .open(TargetAddr(at + 4 * PAGE_SIZE), 1, true)
            .unwrap()
            .0,
        8,
    );
    g.release(TargetAddr(at + 4 * PAGE_SIZE), PAGE_SIZE)
        .unwrap();
    assert!(!store_faults(at + 4 * PAGE_SIZE) && load(at + 4 * PAGE_SIZE) == 8);
    assert!(store_faults(at + PAGE_SIZE));
    armed(g.apply(wanted));
    assert!(store_faults(at + 4 * PAGE_SIZE) && load(at + 4 * PAGE_SIZE) == 8);
    g.release_all().unwrap();
}

#[test]
fn a_forked_child_gets_private_memory_without_guards() {
    let mut g = new_guards();
    let private = anonymous(6);
    let shared = region(2, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    store(private + 2 * PAGE_SIZE, 3);
    armed(g.apply([run(private + PAGE_SIZE, 4, Guard::NoAccess)]));
    armed(g.apply({
        let mut runs = vec![
            run(private + PAGE_SIZE, 4, Guard::NoAccess),
            run(shared, 1, Guard::NoWrite),
        ];
        runs.sort_by_key(|r| r.start);
        runs
    }));
    g.prepare_fork();
    let status = in_child(|| {
        if g.privatize_in_child().is_err() || load(private + 2 * PAGE_SIZE) != 3 {
            return 1;
        }
        store(private + 2 * PAGE_SIZE, 4);
        store(private + 4 * PAGE_SIZE, 4);
        store(shared, 5);
        (g.page_map().entry(TargetAddr(private + PAGE_SIZE)) != PageEntry::NONE) as i32 * 2
    });
    assert_eq!(status, 0);
    assert_eq!(
        alias_load(
            g.page_map()
                .open(TargetAddr(private + 2 * PAGE_SIZE), 1, false)
        ),
        3,
        "the child's own copy"
    );
    assert_eq!(
        alias_load(
            g.page_map()
                .open(TargetAddr(private + 4 * PAGE_SIZE), 1, false)
        ),
        0
    );
    assert_eq!(load(shared), 5, "shared stays shared");
    assert!(
        load_faults(private + PAGE_SIZE),
        "the parent's guards stand"
    );
    g.release_all().unwrap();
}

#[test]
fn accesses_across_windows_are_contiguous() {
    let mut g = new_guards();
    let border = 0x3123_4000_0000u64; // a multiple of a gibibyte
    // SAFETY: a place that nothing uses.
    unsafe {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = (border - 4 * PAGE_SIZE) as *mut libc::c_void;
        assert_eq!(libc::mmap(at, 8 * PAGE, RW, flags, -1, 0), at);
    }
    store(border, 2);
    armed(g.apply([run(border - 3 * PAGE_SIZE, 6, Guard::NoAccess)]));
    let map = g.page_map();
    let alias = map.open(TargetAddr(border - 32), 64, true).unwrap();
    assert_eq!(load(alias.0 + 32), 2);
    store(alias.0 + 40, 9);
    assert_eq!(alias_load(map.open(TargetAddr(border + 8), 1, true)), 9);
    g.release_all().unwrap();
    assert_eq!(load(border + 8), 9);
}

#[test]
fn what_cannot_be_guarded_is_refused_with_a_reason() {
    let mut g = new_guards();
    let mut why = |start: u64, len: u64| {
        let refusal = g.check(range(start, len), WatchKind::Write).unwrap_err();
        assert!(!refusal.what.is_empty() && !refusal.what_to_do.is_empty());
        refusal.why
    };
    let hole = anonymous(3);
    // SAFETY: the test's own mapping.
    unsafe { libc::munmap((hole + PAGE_SIZE) as *mut _, PAGE) };
    assert!(why(hole + 4090, 10).contains("no memory is mapped"));
    assert!(why(0, 8).contains("no memory is mapped"));
    assert!(why(0xffff_8000_0000_0000, 8).contains("does not belong to the program"));
    assert!(why(USER_END - 4, 8).contains("does not belong"));
    assert!(why(0xffff_ffff_ff60_0000, 8).contains("vsyscall"));
    assert!(why(store_faults as *const () as u64, 4).contains("executable"));
    let vdso = maps::Snapshot::read()
        .unwrap()
        .vmas
        .into_iter()
        .find(|v| v.kind == VmaKind::Kernel)
        .unwrap();
    assert!(why(vdso.start, 8).contains("vdso"));
    let ours = anonymous(2);
    g.resumed();
    g.exclude(TargetAddr(ours), 100);
    assert!(
        g.check(range(ours + 50, 8), WatchKind::Read)
            .unwrap_err()
            .why
            .contains("ulpf keeps its own memory")
    );
    assert!(g.check(range(ours + PAGE_SIZE, 8), WatchKind::Read).is_ok());
    // apply says the same of what only it is shown.
    let unarmed = g.apply([run(ours, 2, Guard::NoWrite)]);
    assert_eq!(unarmed.len(), 1);
    assert_eq!(
        (unarmed[0].run.start.0, unarmed[0].run.end.0),
        (ours, ours + PAGE_SIZE)
    );
    assert!(store_faults(ours + PAGE_SIZE) && !store_faults(ours));
    g.release_all().unwrap();
}

#[test]
fn no_room_for_an_alias_leaves_everything_as_it_was() {
    let at = anonymous(3);
    store(at, 1);
    let status = in_child(|| {
        let mut g = new_guards();
        let limit = libc::rlimit {
            rlim_cur: 1 << 20,
            rlim_max: 1 << 20,
        };
        // SAFETY: a limit of this child only.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
        let unarmed = g.apply([run(at, 3, Guard::NoWrite)]);
        store(at, 2);
        (unarmed.len() != 1 || g.moved_pages() != 0 || load(at) != 2) as i32
    });
    assert_eq!(status, 0);
}

#[test]
fn limits_of_file_size_and_descriptors() {
    let status = in_child(|| {
        let soft = libc::rlimit {
            rlim_cur: 1 << 20,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: limits of this child only.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &soft) };
        let at = anonymous(1);
        if new_guards().check(range(at, 1), WatchKind::Write).is_err() {
            return 1;
        }
        let hard = libc::rlimit {
            rlim_cur: 1 << 20,
            rlim_max: 1 << 20,
        };
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &hard) };
        match new_guards().check(range(at, 1), WatchKind::Write) {
            Err(r) if r.why.contains("file size limit") => {}
            _ => return 2,
        }
        0
    });
    assert_eq!(status, 0);
    let status = in_child(|| {
        let at = anonymous(1);
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: a limit of this child only.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) };
        match new_guards().check(range(at, 1), WatchKind::Write) {
            Err(r) if r.why.contains("memory file") => 0,
            _ => 1,
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn a_watchlist_arms_what_it_needs() {
    let mut g = new_guards();
    let at = anonymous(300);
    let mut list = Watchlist::new();
    list.insert(WatchId(0), range(at + 100, 1 << 20), WatchKind::Write);
    list.insert(WatchId(1), range(at + 260 * PAGE_SIZE, 1), WatchKind::Read);
    armed(g.apply(list.pages()));
    assert!(
        store_faults(at + (1 << 20))
            && !store_faults(at + 259 * PAGE_SIZE)
            && load_faults(at + 260 * PAGE_SIZE)
    );
    g.release_all().unwrap();
}

#[test]
fn little_address_space_means_small_windows() {
    let at = anonymous(3);
    store(at, 1);
    let status = in_child(|| {
        let mut g = new_guards();
        let pages: u64 = std::fs::read_to_string("/proc/self/statm")
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let limit = pages * PAGE_SIZE + (16 << 20);
        let limit = libc::rlimit {
            rlim_cur: limit,
            rlim_max: limit,
        };
        // SAFETY: a limit of this child only.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
        if !g.apply([run(at, 3, Guard::NoWrite)]).is_empty() {
            return 1;
        }
        if g.windows.values().any(|w| w.len >= 1 << 30) {
            return 2;
        }
        (alias_load(g.page_map().open(TargetAddr(at), 1, true)) != 1) as i32
    });
    assert_eq!(status, 0);
}

#[test]
fn huge_pages_and_devices_are_refused() {
    // SAFETY: a fresh mapping; without reserved huge pages it may not be touched, and is not.
    let huge = unsafe {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), 2 << 20, RW, flags, -1, 0)
    };
    let mut g = new_guards();
    if huge == libc::MAP_FAILED {
        eprintln!("skipped: this kernel gives no huge pages");
    } else {
        let refusal = g
            .check(range(huge as u64 + 64, 8), WatchKind::Write)
            .unwrap_err();
        assert!(refusal.why.contains("huge pages"), "{refusal}");
        let unarmed = g.apply([run(huge as u64, 1, Guard::NoWrite)]);
        assert_eq!(unarmed.len(), 1);
    }
}

#[test]
fn a_mapping_beyond_the_end_of_its_file_is_refused_where_there_is_nothing() {
    use std::os::fd::AsRawFd;
    let path = std::env::temp_dir().join(format!("ulpf-lib-test-eof-{}", std::process::id()));
    std::fs::write(&path, vec![9u8; PAGE + 10]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut g = new_guards();
    let at = region(4, RW, MAP_PRIVATE, file.as_raw_fd());
    let unarmed = g.apply([run(at, 4, Guard::NoWrite)]);
    assert_eq!(
        unarmed
            .iter()
            .map(|u| (u.run.start.0 - at) / PAGE_SIZE)
            .collect::<Vec<_>>(),
        [2, 3]
    );
    assert!(store_faults(at) && store_faults(at + PAGE_SIZE + 20));
    assert_eq!(
        (load(at + PAGE_SIZE + 9), load(at + PAGE_SIZE + 10)),
        (9, 0)
    );
    assert_eq!(
        in_child(|| load(at + 2 * PAGE_SIZE) as i32),
        libc::SIGBUS,
        "as without us"
    );
    g.release_all().unwrap();
}

#[test]
fn pages_without_guards_go_back_when_there_are_many() {
    let mut g = new_guards();
    let at = anonymous(5000);
    armed(g.apply([run(at, 4000, Guard::NoWrite)]));
    armed(g.apply([run(at, 1, Guard::NoWrite)]));
    assert!(g.moved_pages() < 100);
    assert!(store_faults(at) && !store_faults(at + 2000 * PAGE_SIZE));
    g.release_all().unwrap();
}

#[test]
fn without_pagemap_pages_of_zeros_are_not_copied() {
    let mut g = new_guards();
    g.prepare().unwrap();
    g.pagemap = None;
    let at = anonymous(100);
    store(at + 17 * PAGE_SIZE + 4095, 1);
    store(at + 99 * PAGE_SIZE, 2);
    assert_eq!(load(at + 50 * PAGE_SIZE), 0);
    armed(g.apply([run(at, 100, Guard::NoWrite)]));
    assert_eq!(g.file.as_ref().unwrap().pages(), 2);
    assert_eq!(load(at + 17 * PAGE_SIZE + 4095), 1);
    assert_eq!(load(at + 99 * PAGE_SIZE), 2);
    g.release_all().unwrap();
    assert_eq!(load(at + 99 * PAGE_SIZE), 2);
}

#[test]
fn with_strict_overcommit_moved_pages_have_memory_at_once() {
    let mut g = new_guards();
    g.prepare().unwrap();
    g.strict = true;
    let at = anonymous(10);
    store(at + PAGE_SIZE, 1);
    armed(g.apply([run(at, 10, Guard::NoWrite)]));
    assert_eq!(g.file.as_ref().unwrap().pages(), 10);
    g.discard(TargetAddr(at), 10 * PAGE_SIZE).unwrap();
    assert_eq!(g.file.as_ref().unwrap().pages(), 10);
    assert_eq!(load(at + PAGE_SIZE), 0);
    g.release_all().unwrap();
}

#[test]
fn shared_mappings_that_cannot_be_duplicated_are_refused() {
    // SAFETY: perf_event_open and a fresh mapping of its buffer, which may not grow.
    let buffer = unsafe {
        let mut attr = [0u64; 16];
        attr[0] = 1 | (128 << 32); // PERF_TYPE_SOFTWARE, size
        attr[1] = 9; // PERF_COUNT_SW_DUMMY
        attr[5] = 1 << 5 | 1 << 6; // exclude_kernel, exclude_hv
        let fd = libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 0);
        libc::mmap(std::ptr::null_mut(), 2 * PAGE, RW, MAP_SHARED, fd as i32, 0)
    };
    if buffer == libc::MAP_FAILED {
        eprintln!("skipped: perf events are not permitted here");
        return;
    }
    let mut g = new_guards();
    let refusal = g
        .check(range(buffer as u64, 8), WatchKind::Write)
        .unwrap_err();
    assert!(refusal.why.contains("device"), "{refusal}");
    assert_eq!(g.apply([run(buffer as u64, 1, Guard::NoWrite)]).len(), 1);
}

#[test]
fn a_program_that_has_used_up_its_mappings() {
    let at = anonymous(3);
    store(at + PAGE_SIZE, 1);
    let limit = maps::read_number(c"/proc/sys/vm/max_map_count").unwrap();
    if limit > 100_000 {
        eprintln!("skipped: vm.max_map_count is {limit}, too many to use up");
        return;
    }
    let status = in_child(|| {
        let mut g = new_guards();
        if g.prepare().is_err() {
            return 1;
        }
        // SAFETY: fresh mappings; every second page differs, so that they do not merge.
        unsafe {
            // The allocator of this test must get by without new mappings.
            libc::mallopt(libc::M_MMAP_MAX, 0);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
            drop(std::hint::black_box(vec![1u8; 24 << 20]));
            let len = (limit as usize + 10) * PAGE;
            let base = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS,
                -1,
                0,
            );
            for i in (0..limit as usize).step_by(2) {
                if libc::mprotect(base.byte_add(i * PAGE), PAGE, libc::PROT_READ) != 0 {
                    break;
                }
            }
            let unarmed = g.apply([run(at + PAGE_SIZE, 1, Guard::NoWrite)]);
            if unarmed.is_empty() || unarmed[0].refusal.what_to_do.is_empty() {
                return 2;
            }
            store(at + PAGE_SIZE, 2);
            libc::munmap(base, len);
        }
        if !g.apply([run(at + PAGE_SIZE, 1, Guard::NoWrite)]).is_empty() {
            return 3;
        }
        (load(at + PAGE_SIZE) != 2
            || !g
                .page_map()
                .entry(TargetAddr(at + PAGE_SIZE))
                .guards(AccessKind::Write)) as i32
            * 4
    });
    assert_eq!(status, 0);
}

#[test]
fn guard_regions_stay_what_they_are() {
    const MADV_GUARD_INSTALL: i32 = 102;
    let at = anonymous(4);
    // SAFETY: the test's own mapping.
    if unsafe { libc::madvise((at + PAGE_SIZE) as *mut _, PAGE, MADV_GUARD_INSTALL) } != 0 {
        eprintln!("skipped: this kernel has no guard regions");
        return;
    }
    let mut g = new_guards();
    let unarmed = g.apply([run(at + 2 * PAGE_SIZE, 1, Guard::NoWrite)]);
    armed(unarmed);
    assert!(load_faults(at + PAGE_SIZE) && store_faults(at + 2 * PAGE_SIZE));
    assert_eq!(g.apply([run(at, 4, Guard::NoWrite)]).len(), 1);
    assert!(load_faults(at + PAGE_SIZE) && store_faults(at) && store_faults(at + 3 * PAGE_SIZE));
    g.release_all().unwrap();
}

#[test]
fn a_large_run_moves_and_returns_in_pieces() {
    let mut g = new_guards();
    let pages = 3 * (apply::CHUNK / PAGE_SIZE) as usize / 2;
    let at = anonymous(pages);
    let last = at + (pages as u64 - 1) * PAGE_SIZE;
    for page in [at, at + apply::CHUNK - PAGE_SIZE, at + apply::CHUNK, last] {
        store(page, 5);
    }
    armed(g.apply([run(at, pages, Guard::NoWrite)]));
    assert_eq!(mappings(at, pages * PAGE).len(), 1);
    assert!(store_faults(last));
    g.release_all().unwrap();
    assert_eq!(mappings(at, pages * PAGE).len(), 1);
    assert_eq!(
        (
            load(at),
            load(at + apply::CHUNK - PAGE_SIZE),
            load(at + apply::CHUNK),
            load(last)
        ),
        (5, 5, 5, 5)
    );
}

/// Random changes, checked against a model after each.
mod model {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 24;

    #[derive(Clone, Debug)]
    enum Op {
        /// The wanted guard of each page: 0 none, 1 no write, 2 no access.
        Apply(Vec<u8>),
        Write(u64, u8),
        SetProt(usize, usize, u8),
        Release(usize, usize),
        Discard(usize, usize),
        Unmap(usize, usize),
        Map(usize, usize),
    }

    fn ops() -> impl Strategy<Value = Op> {
        let span = || (0..PAGES, 1usize..6).prop_map(|(s, n)| (s, (s + n).min(PAGES)));
        prop_oneof![
            6 => proptest::collection::vec(prop_oneof![3 => Just(0u8), 2 => Just(1), 1 => Just(2)], PAGES).prop_map(Op::Apply),
            4 => (0..(PAGES * PAGE) as u64, 1u8..).prop_map(|(a, v)| Op::Write(a, v)),
            2 => (span(), prop_oneof![Just(0u8), Just(1), Just(3)]).prop_map(|((s, e), p)| Op::SetProt(s, e, p)),
            1 => span().prop_map(|(s, e)| Op::Release(s, e)),
            1 => span().prop_map(|(s, e)| Op::Discard(s, e)),
            1 => span().prop_map(|(s, e)| Op::Unmap(s, e)),
            2 => span().prop_map(|(s, e)| Op::Map(s, e)),
        ]
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Page {
        mapped: bool,
        prot: u8,
        /// One byte of content, and where.
        content: (u64, u8),
        want: u8,
    }

    /// Memory at an address that the kernel gives to no other caller: the test makes holes in it, and tests that run
    /// beside it map memory all the time.
    fn apart(pages: usize) -> u64 {
        static NEXT: std::sync::atomic::AtomicU64 =
            std::sync::atomic::AtomicU64::new(0x1200_0000_0000);
        let place = NEXT.fetch_add(1 << 24, std::sync::atomic::Ordering::Relaxed);
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a fresh mapping; an occupied place is an error.
        let got = unsafe { libc::mmap(place as *mut _, pages * PAGE, RW, flags, -1, 0) };
        assert_eq!(got as u64, place);
        place
    }

    fn runs_of(at: u64, want: &[u8]) -> Vec<PageRun> {
        let mut runs: Vec<PageRun> = Vec::new();
        for (i, &w) in want.iter().enumerate().filter(|(_, w)| **w > 0) {
            let guard = if w == 1 {
                Guard::NoWrite
            } else {
                Guard::NoAccess
            };
            let new = run(at + (i * PAGE) as u64, 1, guard);
            match runs.last_mut() {
                Some(last) if last.end == new.start && last.guard == guard => last.end = new.end,
                _ => runs.push(new),
            }
        }
        runs
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
        #[test]
        fn guards_follow_the_program(ops in proptest::collection::vec(ops(), 1..40)) {
            let mut g = new_guards();
            let at = apart(PAGES);
            let addr = |page: usize| TargetAddr(at + (page * PAGE) as u64);
            let fresh = Page { mapped: true, prot: 3, content: (0, 0), want: 0 };
            let mut model = [fresh; PAGES];
            for op in ops {
                match op {
                    Op::Apply(want) => {
                        armed(g.apply(runs_of(at, &want)));
                        for (page, want) in model.iter_mut().zip(want) { page.want = want }
                    }
                    Op::Write(offset, value) => {
                        let page = &mut model[offset as usize / PAGE];
                        let place = TargetAddr(at + offset);
                        let writable = page.mapped && page.prot == 3;
                        if writable && (page.content.1 == 0 || page.content.0 == offset) {
                            match g.page_map().open(place, 1, true) {
                                Some(alias) => store(alias.0, value),
                                None => {
                                    prop_assert!(!g.page_map().entry(place).moved());
                                    store(place.0, value);
                                }
                            }
                            page.content = (offset, value);
                        } else if !writable {
                            prop_assert!(g.page_map().open(place, 1, true).is_none());
                        }
                    }
                    Op::SetProt(s, e, prot) => {
                        if model[s..e].iter().all(|p| p.mapped) {
                            g.set_prot(addr(s), ((e - s) * PAGE) as u64, prot).unwrap();
                            for page in &mut model[s..e] { page.prot = prot }
                            let want: Vec<u8> = model.iter().map(|p| p.want).collect();
                            armed(g.apply(runs_of(at, &want)));
                        }
                    }
                    Op::Release(s, e) => {
                        g.release(addr(s), ((e - s) * PAGE) as u64).unwrap();
                        for page in s..e {
                            prop_assert!(!g.page_map().entry(addr(page)).moved());
                        }
                        let want: Vec<u8> = model.iter().map(|p| p.want).collect();
                        armed(g.apply(runs_of(at, &want)));
                    }
                    Op::Discard(s, e) => {
                        if model[s..e].iter().all(|p| p.mapped) {
                            g.discard(addr(s), ((e - s) * PAGE) as u64).unwrap();
                            for page in &mut model[s..e] {
                                page.content = (0, 0);
                            }
                        }
                    }
                    Op::Unmap(s, e) | Op::Map(s, e) => {
                        let len = (e - s) * PAGE;
                        let gone = matches!(op, Op::Unmap(..));
                        // SAFETY: within the test's own region.
                        unsafe {
                            if gone {
                                libc::munmap(addr(s).0 as *mut _, len);
                            } else {
                                libc::mmap(addr(s).0 as *mut _, len, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
                            }
                        }
                        g.forget(addr(s), len as u64);
                        for page in &mut model[s..e] {
                            *page = Page { mapped: !gone, want: page.want, ..fresh };
                        }
                        let want: Vec<u8> = model.iter().map(|p| p.want).collect();
                        armed(g.apply(runs_of(at, &want)));
                    }
                }
                // Every page: mapped as it should be, with the right protection and content.
                let snapshot = maps::Snapshot::read().unwrap();
                for (i, page) in model.iter().enumerate() {
                    let entry = g.page_map().entry(addr(i));
                    let vma = snapshot.at(addr(i).0);
                    prop_assert_eq!(vma.is_some(), page.mapped, "page {}", i);
                    if !page.mapped {
                        prop_assert!(!entry.moved());
                        continue;
                    }
                    let effective = match (page.want, page.prot) {
                        (1, p) => p & !PROT_WRITE,
                        (2, _) => 0,
                        (_, p) => p,
                    };
                    prop_assert_eq!(vma.unwrap().prot, effective, "page {} {:?}", i, page);
                    if page.want > 0 && (page.prot == 3 || page.want == 2 && page.prot > 0) {
                        prop_assert_eq!(entry.guard(), Some(if page.want == 1 { Guard::NoWrite } else { Guard::NoAccess }));
                    }
                    if entry.moved() {
                        prop_assert_eq!(entry.prot(), page.prot);
                        let mut byte = [0];
                        g.read(TargetAddr(at + (i * PAGE) as u64 + page.content.0 % PAGE_SIZE), &mut byte);
                        prop_assert_eq!(byte[0], page.content.1);
                    } else if effective & 1 != 0 {
                        prop_assert_eq!(load(at + (i * PAGE) as u64 + page.content.0 % PAGE_SIZE), page.content.1);
                    }
                }
            }
            g.release_all().unwrap();
            for (i, page) in model.iter().enumerate().filter(|(_, p)| p.mapped && p.prot & 1 != 0) {
                prop_assert_eq!(load(at + (i * PAGE) as u64 + page.content.0 % PAGE_SIZE), page.content.1);
            }
        }
    }
}

#[test]
fn the_memory_file_is_no_program_and_keeps_its_length() {
    let file = os::File::memfd(c"ulpf-test", 8 * PAGE as u64).unwrap();
    let path = format!("/proc/self/fd/{}", file.number());
    let again = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(again.metadata().unwrap().len(), 8 * PAGE as u64);
    assert!(again.set_len(PAGE as u64).is_err());
    assert!(again.set_len(16 * PAGE as u64).is_err());
    // Kernels before Linux 6.3 have no such setting.
    if std::path::Path::new("/proc/sys/vm/memfd_noexec").exists() {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(again.metadata().unwrap().permissions().mode() & 0o111, 0);
    }
    // Code of the program that is watched stays code.
    let at = anonymous(1);
    file.map_over(at, PAGE as u64, 7, 0).unwrap();
    store(at, 0xc3);
    // SAFETY: the page holds a `ret`.
    unsafe { std::mem::transmute::<u64, extern "C" fn()>(at)() };
}
