//! Memory of ours in the program, and how all of it is removed when it is not needed any more.
//!
//! **A forked child** has a copy of our private memory. It has replaced moved pages and their aliases by memory of its
//! own. It shares only the page over which it reports that to its parent. Code cannot unmap itself and continue. So the
//! last instructions are written to the pad, a few unused bytes of executable memory at the end of the vDSO.
//!
//! ```text
//!     handler, on the thread's record     copies its frame to the boot stack, which is a part of the image
//!     ulpf_leave, on the boot stack       unmaps everything but the image; rt_sigreturn
//!     pad                                 munmap(image); rdi, rsi, rcx as the program has them; jump to the program
//! ```
//! The image stays in the child as private memory in these cases:
//! * There is no pad (no vDSO), or a seccomp filter of the program forbids the last munmap.
//! * The heap is checked: the child continues to use its blocks (`check`).
//! * The child has filters and gets a stub of its own: only from there can the command make calls that the filters
//!   forbid.
//!
//! **After a detach**, threads of the program may still be on their way out of our code, which only a tracer can see.
//! So the command unmaps the mappings that `left` of the stub's task names (`command/inject/src/remains.rs`). A program
//! that holds blocks of a checked heap is an exception (`check/left.rs`).

use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::boot::pad_code;
use ulpf_lib::{place, sys};

use crate::check;
use crate::child;
use crate::global::{g, machine, tables};
use crate::runtime::asm::ulpf_leave;
use crate::runtime::frame::UContext;
use crate::runtime::handler_frames::copy_frame;
use crate::runtime::thread::BLOCK;

/// `BootArgs::pad`
pub static PAD: AtomicU64 = AtomicU64::new(0);

/// Calls `f` with every mapping of ours except the image; those that contain the lists come last.
pub fn each(mut f: impl FnMut(u64, u64)) {
    g().guards().own_mappings().for_each(|(at, len)| f(at, len));
    // (Memory that the program has reserved stays, in its original state: `edits::remove_in_child`.)
    let caves = tables().caves.iter().filter(|cave| !cave.reserved);
    caves.for_each(|cave| f(cave.start, cave.len()));
    for t in g().threads.every() {
        f(t.base() as u64, BLOCK as u64);
    }
    place::each().for_each(|(at, len)| f(at, len));
}

/// Bytes of the `syscall` instruction at the beginning of the pad.
const SYSCALL_LEN: u64 = 2;

fn unmap(at: u64, len: u64) {
    // SAFETY: a mapping of ours in a process that has one thread and does not use it any more.
    let _ = unsafe { sys!(k::__NR_munmap, at, len) };
}

/// Called on the boot stack of a forked child.
#[unsafe(no_mangle)]
extern "C" fn ulpf_unmap_ours() {
    each(unmap);
}

/// Continues a forked child, whose memory is its own by now, at `uc`, without anything of ours. Returns if it cannot;
/// then the child keeps private copies. `permits` tells whether this call of the child from this address is allowed.
pub fn leave_child(uc: &UContext, permits: impl FnOnce(u64, u64, &[u64; 6]) -> bool) {
    if check::stays_in_child() {
        return;
    }
    let (start, end) = machine().image;
    // SAFETY: the boot stack at the end of the image, which is unused after boot.
    let Some(copy) = (unsafe { copy_frame(uc, end, 64 << 10) }) else {
        return;
    };
    let top = (copy as *mut UContext as u64 - 8) & !15;
    let pad = PAD.load(Relaxed);
    let back = pad_code([copy.gprs.rdi, copy.gprs.rsi, copy.gprs.rip]);
    // A seccomp filter of the program sees the last call.
    let last = [start, end - start, 0, 0, 0, 0];
    let permitted = permits(k::__NR_munmap.into(), pad + SYSCALL_LEN, &last);
    if pad != 0 && permitted && child::write_in_child(pad, &back) {
        copy.gprs.rip = pad;
        copy.gprs.rax = k::__NR_munmap.into();
        copy.gprs.rdi = start;
        copy.gprs.rsi = end - start;
    }
    // SAFETY: a signal frame on a stack that is unused after boot, with room below it.
    unsafe { ulpf_leave(copy, top) }
}
