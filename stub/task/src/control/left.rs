//! After a detach: what of ours is left in the program, for the command to unmap (`command/inject/src/remains.rs`).

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::boot::Left;
use ulpf_stub_handlers::check;
use ulpf_stub_handlers::global::machine;
use ulpf_stub_handlers::ours::each;
use ulpf_stub_handlers::runtime::asm::ulpf_blocking_insn;
use ulpf_stub_handlers::syscalls::seccomp;

/// Every mapping of ours. For good: the list is one of them. None of a program whose blocks are ours: it goes on to use them, as a
/// forked child does.
pub fn list() -> &'static [Left] {
    if check::stays_in_child() {
        return &[];
    }
    // Its own mapping is made before the lists are read.
    let mut all = Vec::with_capacity(1 << 16);
    if gate() == 0 {
        let (start, end) = machine().image;
        all.push(Left {
            start,
            len: end - start,
        });
    }
    each(|start, len| {
        if all.len() < all.capacity() {
            all.push(Left { start, len });
        }
    });
    all.leak()
}

/// See [`ulpf_lib::boot::BootArgs::left_gate`].
pub fn gate() -> u64 {
    match seccomp::SOME.load(SeqCst) {
        true => ulpf_blocking_insn as *const () as u64,
        false => 0,
    }
}
