//! The mappings of ours that stay in the program after a detach, for the command to unmap
//! (`command/inject/src/remains.rs`).

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::PAGE_SIZE;
use ulpf_lib::boot::Left;
use ulpf_stub_handlers::check::{self, arena, requests};
use ulpf_stub_handlers::global::machine;
use ulpf_stub_handlers::ours::each;
use ulpf_stub_handlers::runtime::asm::ulpf_blocking_insn;
use ulpf_stub_handlers::syscalls::seccomp;

/// The command unmaps them one by one while the program waits.
const MOST: usize = 1 << 16;

/// Every mapping of ours that the program does not go on to use. The result is leaked: the list is one of them. It is
/// empty for a program that holds blocks of ours: it goes on to use the mappings, as a forked child does.
pub fn list() -> &'static [Left] {
    if check::stays() {
        return &[];
    }
    // Slots of the program may lead to these functions of ours, and it may have read them. (0: no such functions.)
    let stays = requests::FUNCTIONS.load(Relaxed);
    // The list's own mapping is made before the lists of mappings are read.
    let mut all = Vec::with_capacity(MOST);
    let mut add = |start: u64, end: u64| {
        for (from, to) in [(start, end.min(stays)), (start.max(stays + PAGE_SIZE), end)] {
            if from < to && all.len() < all.capacity() {
                let len = to - from;
                all.push(Left { start: from, len });
            }
        }
    };
    if gate() == 0 {
        let (start, end) = machine().image;
        add(start, end);
    }
    if arena::arena() != 0 {
        add(arena::arena(), arena::arena() + arena::ARENA);
    }
    each(|start, len| add(start, start + len));
    all.leak()
}

/// See [`ulpf_lib::boot::BootArgs::left_gate`].
pub fn gate() -> u64 {
    match seccomp::SOME.load(SeqCst) {
        true => ulpf_blocking_insn as *const () as u64,
        false => 0,
    }
}
