//! The crate as a Rust program uses it.
// Raw memory is what watches are about.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libulpf::{Access, Watch, alias, insert_all};

/// A page of this test alone.
fn page() -> &'static mut [u64; 512] {
    #[repr(align(4096))]
    struct Page([u64; 512]);
    &mut Box::leak(Box::new(Page([0; 512]))).0
}

fn address(of: &u64) -> usize {
    of as *const u64 as usize
}

fn store(at: &mut u64, value: u64) {
    unsafe { std::ptr::write_volatile(at, value) };
}

#[test]
fn a_handler_sees_old_and_new_value() {
    static SEEN: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    let page = page();
    let watched = Watch::new(address(&page[3]), 8, Access::Write)
        .handler(|hit| {
            let value = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap());
            SEEN[0].fetch_add(1, Relaxed);
            SEEN[1].store(value(hit.old_value()), Relaxed);
            SEEN[2].store(value(hit.new_value()), Relaxed);
            SEEN[3].store(hit.addr() as u64, Relaxed);
            // The program's allocator is free for it, unless the fault was inside that.
            assert!(hit.pc() != 0 && hit.access() == Access::Write && hit.len() == 8);
        })
        .insert()
        .unwrap();
    store(&mut page[3], 7);
    store(&mut page[3], 9);
    store(&mut page[4], 1);
    let seen: Vec<u64> = SEEN.iter().map(|s| s.load(Relaxed)).collect();
    assert_eq!(seen, [2, 7, 9, address(&page[3]) as u64]);
    let counts = watched.delete().unwrap();
    assert_eq!((counts.hits, counts.silent), (2, 0));
    store(&mut page[3], 10);
    assert_eq!(SEEN[0].load(Relaxed), 2);
}

#[test]
fn many_at_once_and_dropped() {
    let page = page();
    let wanted: Vec<Watch> = page
        .iter()
        .step_by(2)
        .map(|word| Watch::new(address(word), 8, Access::Write))
        .collect();
    let watches = insert_all(&wanted).unwrap();
    for word in page.iter_mut() {
        store(word, 1);
    }
    assert!(watches.iter().all(|w| w.counts().hits == 1));
    assert_ne!(alias(address(&page[0]), 4096), Some(address(&page[0])));
    drop(watches);
    store(&mut page[0], 2);
}

#[test]
fn refusals_have_an_errno_and_a_sentence() {
    let refused = Watch::new(0x1000, 8, Access::Write).insert().unwrap_err();
    assert_eq!(refused.errno, libc::EFAULT);
    assert!(refused.to_string().contains("0x1000"), "{refused}");
}

/// A thread whose alternate stack holds a signal's frame and little more: so are those that Rust gives its
/// threads, on processors with large registers.
#[test]
fn a_small_alternate_stack() {
    let page = page();
    let watch = Watch::new(address(&page[3]), 8, Access::Write)
        .insert()
        .unwrap();
    let at = address(&page[3]);
    let thread = std::thread::spawn(move || unsafe {
        // Where it overflows, it never ends.
        libc::alarm(100);
        let size = libc::getauxval(libc::AT_MINSIGSTKSZ) as usize + 2048;
        let whole = size.next_multiple_of(4096) + 4096;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let room = libc::mmap(std::ptr::null_mut(), whole, 3, flags, -1, 0);
        assert_ne!(room, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(room, 4096, 0), 0);
        let stack = libc::stack_t {
            ss_sp: room.byte_add(whole - size),
            ss_flags: 0,
            ss_size: size,
        };
        assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
        std::ptr::write_volatile(at as *mut u64, 1);
        libc::alarm(0);
    });
    thread.join().unwrap();
    assert_eq!(watch.counts().hits, 1);
}

#[test]
fn allocation_heavy_threads_beside_changes() {
    let workers: Vec<_> = (0..3)
        .map(|n| {
            std::thread::spawn(move || {
                (0..20_000u64)
                    .map(|i| vec![i ^ n; (i % 50) as usize + 1].iter().sum::<u64>())
                    .fold(0, u64::wrapping_add)
            })
        })
        .collect();
    let boxes: Vec<Box<[u64; 16]>> = (0..64).map(|_| Box::new([0; 16])).collect();
    for b in &boxes {
        // On the allocator's own pages.
        let watch = Watch::new(address(&b[0]), 8, Access::Both)
            .insert()
            .unwrap();
        unsafe { std::ptr::read_volatile(&b[0]) };
        assert!(watch.counts().hits >= 1);
    }
    for worker in workers {
        assert_ne!(worker.join().unwrap(), 0);
    }
}
