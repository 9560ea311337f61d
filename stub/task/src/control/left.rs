//! The mappings of ours that stay in the program after a detach, for the command to unmap
//! (`command/inject/src/remains.rs`).

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::*;

use ulpf_lib::PAGE_SIZE;
use ulpf_lib::boot::Left;
use ulpf_stub_handlers::check::{self, arena, entries, requests};
use ulpf_stub_handlers::global::{g, machine};
use ulpf_stub_handlers::ours::each;
use ulpf_stub_handlers::runtime::asm::ulpf_blocking_insn;
use ulpf_stub_handlers::syscalls::seccomp;

use super::check::books;

/// The command unmaps them one by one while the program waits.
const MOST: usize = 1 << 16;

/// Every mapping of ours that the program does not go on to use. The result is leaked: the list is one of them.
pub fn list() -> &'static [Left] {
    // (Memory whose alias the kernel still writes to stays moved.)
    if check::stays() && g().guarded() {
        return &[];
    }
    let kept = kept();
    // The list's own mapping is made before the lists of mappings are read.
    let mut all = Vec::with_capacity(MOST);
    let mut put = |start: u64, end: u64| {
        if start < end && all.len() < all.capacity() {
            let len = end - start;
            all.push(Left { start, len });
        }
    };
    let mut add = |mut start: u64, end: u64| {
        for kept in &kept {
            if kept.start < end && start < kept.end {
                put(start, kept.start);
                start = kept.end;
            }
        }
        put(start, end);
    };
    if arena::arena() != 0 {
        add(arena::arena(), arena::arena() + arena::ARENA);
    }
    each(|start, len| add(start, start + len));
    // Last, because the command finds the list through the image: it may have to start over.
    let (start, end) = machine().image;
    add(start, end);
    all.leak()
}

/// Mappings of ours that the program goes on to use, in ascending order.
fn kept() -> Vec<Range<u64>> {
    let mut all = Vec::new();
    let page = |at: u64| at & !(PAGE_SIZE - 1)..(at & !(PAGE_SIZE - 1)) + PAGE_SIZE;
    // Slots of the program may lead to these functions of ours, and it may have read them. (0: no such functions.)
    let functions = requests::FUNCTIONS.load(Relaxed);
    if functions != 0 {
        all.push(page(functions));
    }
    let (start, end) = machine().image;
    if gate() != 0 || check::stays() {
        all.push(start..end);
    }
    if check::stays() {
        all.push(arena::arena()..arena::arena() + arena::ARENA);
        all.extend(books().map(|(at, len)| at..at + len));
        let copies = (0..entries::MOST).filter_map(entries::own);
        let copies = copies.filter(|own| own.back != 0);
        let pages = copies.flat_map(|own| entries::copy_pages(own.back));
        all.extend(pages.map(page));
    }
    all.sort_unstable_by_key(|kept| kept.start);
    all.dedup();
    all
}

/// See [`ulpf_lib::boot::BootArgs::left_gate`].
pub fn gate() -> u64 {
    match seccomp::SOME.load(SeqCst) {
        true => ulpf_blocking_insn as *const () as u64,
        false => 0,
    }
}
