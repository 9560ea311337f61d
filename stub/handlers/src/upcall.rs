//! A forbidden access that the kernel module reports here without a signal (`/dev/ulpf`).
//!
//! ```text
//! program ─ forbidden access ─▶ ulpf_upcall: registers, vector state → the frame that a SIGSEGV would have
//!                                  └▶ ulpf_upcall_made ─▶ entry::fault, as ever ─▶ ulpf_restorer ─▶ program
//! ```
//! So a handler may do the same here as in a signal (park, deliver signals, take the slow path), and returns by
//! rt_sigreturn(2) if it must. One part of a signal frame is not available without a system call: the program's signal
//! mask. It is needed only if a signal strikes, or if signals are about to be blocked; the code of both cases writes it
//! to the frame ([`mask_known`], [`interrupted`]).
//!
//! The module puts its frame where the kernel puts signal frames, on the thread's block.

use core::arch::global_asm;
use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::access::state::cpuid;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::sys;

use crate::runtime::asm::{gprs_asm, store_gprs};
use crate::runtime::frame::{FP_XSTATE_MAGIC1, SW_RESERVED, UContext, fpstate_len};
use crate::runtime::thread::{BLOCK, Current, Thread};

/// In `UContext::link`: the program's signal mask is missing in the frame.
const UNMASKED: u64 = 2;
/// Room for a context below the vector state, which is aligned to 64 bytes.
const CONTEXT: usize = size_of::<UContext>().next_multiple_of(64);
/// The header of an XSAVE image.
const HEADER: usize = 512;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;

/// Bytes for the vector state, a multiple of 64, or 0 if it is not known yet.
static ROOM: AtomicU32 = AtomicU32::new(0);
/// Data that the kernel writes besides the vector state in its own frames (`struct _fpx_sw_bytes`): the total length,
/// the components (low, high), and the image's length.
static SOFTWARE: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];
/// The program uses something that our frames cannot hold: see [`no_more`].
static NO_MORE: AtomicBool = AtomicBool::new(false);

gprs_asm!(
    ".text",
    ".globl ulpf_upcall",
    "ulpf_upcall:",
    "push rax",
    "push rcx",
    "push rdx",
    "lea rcx, [rsp+24]",
    "mov eax, [rip+{room}]",
    "sub rsp, rax",
    "and rsp, -64",
    "xor eax, eax",
    "mov [rsp+{header}], rax",
    "mov [rsp+{header}+8], rax",
    "mov [rsp+{header}+16], rax",
    "mov [rsp+{header}+24], rax",
    "mov [rsp+{header}+32], rax",
    "mov [rsp+{header}+40], rax",
    "mov [rsp+{header}+48], rax",
    "mov [rsp+{header}+56], rax",
    "mov eax, -1",
    "mov edx, -1",
    "xsave64 [rsp]",
    "mov rdx, rsp",
    "sub rsp, {context}",
    "mov [rsp+{fpstate}], rdx",
    store_gprs!(),
    "mov rax, [rcx-8]",
    "mov [rsp+{gprs}+{rax}], rax",
    "mov rax, [rcx-16]",
    "mov [rsp+{gprs}+{rcx}], rax",
    "mov rax, [rcx-24]",
    "mov [rsp+{gprs}+{rdx}], rax",
    "mov qword ptr [rsp+{link}], {unmasked_bit}",
    "mov rax, rsp",
    "and rax, -{block}",
    "mov rdx, [rax+{unmasked}]",
    "mov [rax+{unmasked}], rsp",
    ".globl ulpf_upcall_saved",
    "ulpf_upcall_saved:",
    "mov rdi, rsp",
    "mov rsi, rcx",
    "call ulpf_upcall_made",
    "jmp ulpf_restorer",
    room = sym ROOM,
    header = const HEADER,
    context = const CONTEXT,
    block = const BLOCK,
    unmasked = const offset_of!(Thread, unmasked),
    unmasked_bit = const UNMASKED,
    link = const offset_of!(UContext, link),
    fpstate = const offset_of!(UContext, fpstate),
    gprs = const offset_of!(UContext, gprs),
);

unsafe extern "C" {
    fn ulpf_upcall();
    fn ulpf_upcall_saved();
}

/// The handler's address, if upcalls can be served.
pub fn entry() -> Option<u64> {
    let able = ROOM.load(SeqCst) != 0 && !NO_MORE.load(SeqCst);
    able.then_some(ulpf_upcall as *const () as u64)
}

/// Learns the layout of our frames from a frame of the kernel.
pub fn learn(uc: &UContext) {
    if ROOM.load(Relaxed) != 0 {
        return;
    }
    // SAFETY: the kernel's own frame.
    let (total, image) = unsafe { fpstate_len(uc.fpstate) };
    if image <= HEADER || total != image + 4 || has_shadow_stack() {
        return NO_MORE.store(true, SeqCst);
    }
    for (i, word) in SOFTWARE.iter().enumerate() {
        // SAFETY: within the frame's legacy area.
        let value =
            unsafe { (uc.fpstate.add(SW_RESERVED + 4 + 4 * i) as *const u32).read_unaligned() };
        word.store(value, SeqCst);
    }
    // The maximum that XSAVE may write, including components that the kernel leaves out of its frames (AMX).
    let most = cpuid(0xd, 0).ebx.max(image as u32);
    ROOM.store((most + 4).next_multiple_of(64), SeqCst);
}

/// Turns upcalls off: frames of ours would lose state (AMX), or a return address (shadow stacks).
pub fn no_more() {
    NO_MORE.store(true, SeqCst);
}

fn has_shadow_stack() -> bool {
    let ssp: u64;
    // SAFETY: reads the shadow stack's pointer, or does nothing.
    unsafe {
        core::arch::asm!("xor {0:e}, {0:e}", "rdsspq {0}", out(reg) ssp, options(nomem, nostack))
    };
    ssp != 0
}

pub(crate) fn software_bytes(fpstate: *mut u8) {
    let word = |i: usize| SOFTWARE.get(i).map_or(0, |w| w.load(Relaxed));
    let image = word(3) as usize;
    // SAFETY: the legacy area and the image's end are in the room that `learn` has measured.
    unsafe {
        let at = fpstate.add(SW_RESERVED) as *mut u32;
        at.write(FP_XSTATE_MAGIC1);
        for i in 0..4 {
            at.add(1 + i).write(word(i));
        }
        for i in 5..12 {
            at.add(i).write(0);
        }
        (fpstate.add(image) as *mut u32).write_unaligned(FP_XSTATE_MAGIC2);
    }
}

/// Our own code has met a guard (`ulpf_copy`): signals may be blocked by now, so the mask is read from the kernel.
#[cold]
pub(crate) fn within_ourselves(t: Current, uc: &mut UContext, before: *mut UContext) {
    let noted = (uc.link & UNMASKED == 0).then_some(uc.sigmask);
    let mut mask = 0u64;
    // SAFETY: reads the mask.
    let _ = unsafe {
        sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_BLOCK,
            0,
            &mut mask as *mut u64,
            8
        )
    };
    mask_known(t, uc, mask);
    // SAFETY: the frame of the interrupted upcall, further up on this stack.
    match (noted, unsafe { before.as_mut() }) {
        (Some(mask), Some(outer)) => mask_known(t, outer, mask),
        _ => t.unmasked.store(before, Relaxed),
    }
}

/// Sets the program's mask in a frame that lacks it.
pub fn mask_known(t: Current, uc: &mut UContext, mask: u64) {
    if uc.link & UNMASKED != 0 {
        uc.sigmask = mask;
        uc.link &= !UNMASKED;
        t.unmasked.store(null_mut(), Relaxed);
    }
}

/// A signal has struck our own code under the program's mask, and is put off.
pub fn interrupted(t: Current, rip: u64, mask: u64) {
    let (start, reported) = (
        ulpf_upcall as *const () as u64,
        ulpf_upcall_saved as *const () as u64,
    );
    if (start..reported).contains(&rip) {
        let known = t.own().direct_mask.get();
        t.own().direct_mask.set(known.or(Some(mask)));
        return;
    }
    // SAFETY: the frame of an upcall that is being handled. Frames of earlier upcalls are cleared when a signal
    // interrupts the program (`forget`).
    if let Some(uc) = unsafe { t.unmasked.load(Relaxed).as_mut() } {
        mask_known(t, uc, mask);
    }
}

/// Called when the program runs, so no upcall is being handled.
pub fn forget(t: Current) {
    t.unmasked.store(null_mut(), Relaxed);
}
