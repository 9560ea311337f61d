//! What of ours lies in the program's memory, and how it goes away: all of it, when nobody needs it any more.
//!
//! **A forked child** has a copy of our private memory; of what parent and child would share it has nothing but
//! moved pages and their aliases (which it has replaced by memory of its own by now), and the page over which
//! it tells its parent so. Code cannot unmap itself and go on; so the last instructions are written to the pad,
//! a few bytes of executable memory that nobody uses: the end of the vDSO.
//! ```text
//!  handler, on the thread's record     copies its frame to the boot stack, which is a part of the image
//!  ulpf_leave, on the boot stack       unmaps everything but the image; rt_sigreturn
//!  pad                                 munmap(image); rdi, rsi, rcx as the program has them; jump to the program
//! ```
//! Without a pad (no vDSO), or where a seccomp filter of the program's forbids the last munmap, the image stays in the child,
//! as private memory. So it does where the heap is checked, whose blocks the child goes on to use (`check`), and where the child has filters and gets a stub of its own: from there alone the command can
//! make what the filters forbid.
//!
//! **After a detach** (but of a program that holds blocks of a checked heap, `check/left.rs`) threads of the program may still be on their way out of our code,
//! which only a tracer can tell. So the command unmaps what `left` of the stub's task names (`command/inject/src/remains.rs`).

use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::boot::PAD_LEN;
use ulpf_lib::{place, sys};

use crate::check;
use crate::child;
use crate::global::{g, machine};
use crate::patches;
use crate::runtime::asm::ulpf_leave;
use crate::runtime::frame::UContext;
use crate::runtime::frames::copy_frame;
use crate::runtime::thread::BLOCK;
use crate::syscalls::sites;

/// `BootArgs::pad`
pub static PAD: AtomicU64 = AtomicU64::new(0);

/// Calls `f` with every mapping of ours but the image, those last in which the lists are.
pub fn each(mut f: impl FnMut(u64, u64)) {
    g().guards().own_mappings().for_each(|(at, len)| f(at, len));
    // (What the program has reserved stays, and is as it was: `patches::remove_in_child`.)
    let reserved = &patches::table().reserved;
    let caves = patches::table().caves.iter();
    for &(start, end) in caves.filter(|cave| !reserved.contains(cave)) {
        f(start, end - start);
    }
    for &page in sites::table().near.iter().filter(|p| **p != 0) {
        f(page, 4096);
    }
    for t in g().threads.every() {
        f(t.base() as u64, BLOCK as u64);
    }
    place::each().for_each(|(at, len)| f(at, len));
}

/// Bytes of the `syscall` instruction with which the pad begins.
const SYSCALL_LEN: u64 = 2;

fn unmap(at: u64, len: u64) {
    // SAFETY: a mapping of ours in a process that has no other thread and uses it no more.
    let _ = unsafe { sys!(k::__NR_munmap, at, len) };
}

/// On the boot stack of a forked child.
#[unsafe(no_mangle)]
extern "C" fn ulpf_unmap_ours() {
    each(unmap);
}

/// A forked child, whose memory is its own by now, goes on as `uc` says, without anything of ours. Comes back if it
/// cannot; then it keeps private copies. `permits`: may this call of the child from this address be made?
pub fn leave_child(uc: &UContext, permits: impl FnOnce(u64, u64, &[u64; 6]) -> bool) {
    if check::stays_in_child() {
        return;
    }
    let (start, end) = machine().image;
    // SAFETY: the boot stack, the end of the image, which nobody uses after boot.
    let Some(copy) = (unsafe { copy_frame(uc, end, 64 << 10) }) else {
        return;
    };
    let top = (copy as *mut UContext as u64 - 8) & !15;
    let pad = PAD.load(Relaxed);
    let back = pad_code(&copy.gprs);
    // A seccomp filter of the program's sees the last call.
    let last = [start, end - start, 0, 0, 0, 0];
    let permitted = permits(k::__NR_munmap.into(), pad + SYSCALL_LEN, &last);
    if pad != 0 && permitted && child::write_in_child(pad, &back) {
        copy.gprs.rip = pad;
        copy.gprs.rax = k::__NR_munmap.into();
        copy.gprs.rdi = start;
        copy.gprs.rsi = end - start;
    }
    // SAFETY: a signal frame on a stack that nobody uses after boot, with room below it.
    unsafe { ulpf_leave(copy, top) }
}

/// What a fork leaves of the registers, after a munmap in its place: the result 0, and what the `syscall` instruction
/// has written down.
fn pad_code(gprs: &ulpf_engine::cpu::Gprs) -> [u8; PAD_LEN as usize] {
    let mut code = [0u8; PAD_LEN as usize];
    let constants = [
        (&[0x0f, 0x05, 0xb8, 0, 0, 0, 0, 0x48, 0xbf][..], gprs.rdi), // syscall; mov eax, 0; mov rdi, …
        (&[0x48, 0xbe][..], gprs.rsi),                               // mov rsi, …
        (&[0x48, 0xb9][..], gprs.rip),                               // mov rcx, …
    ];
    let bytes = constants.iter().flat_map(|(opcode, value)| {
        let value = value.to_le_bytes();
        opcode.iter().copied().chain(value)
    });
    let jump = [0xff, 0xe1]; // jmp rcx
    for (to, byte) in code.iter_mut().zip(bytes.chain(jump)) {
        *to = byte;
    }
    code
}
