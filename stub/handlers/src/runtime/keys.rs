//! Memory protection keys of the program (pkeys(7)), and the rights of our code.
//!
//! PKRU, a register of each thread, selects the keys whose memory it may touch, in user mode and (through the kernel's
//! copies) in system calls. The kernel starts each signal handler with a default that allows key 0 only. A handler of
//! ours performs the program's accesses and system calls, so it takes the program's rights ([`begin`]). Code that reads
//! the program for another purpose (its code, the bytes of a hit) has all rights ([`with_all`]). Our own memory has key
//! 0.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering::*};

use ulpf_engine::access::state::{component, cpuid, xcr0};
use ulpf_engine::frame::{Pkru, UC_FP_XSTATE, UContext};

/// PKRU's number among the components of the extended state.
const COMPONENT: u32 = 9;
/// The two bits of key 0.
const OWN: u32 = 3;

/// Offset of PKRU in an XSAVE image, or 0 if this machine does not have it.
static AT: AtomicU32 = AtomicU32::new(0);
/// The PKRU with which the kernel starts signal handlers: at first Linux's default (`init_pkru`).
static DEFAULT: AtomicU32 = AtomicU32::new(0x5555_5554);

/// Called before the first handler of ours, and once the engine knows the machine.
pub fn init() {
    const OSPKE: u32 = 1 << 4;
    if cpuid(7, 0).ecx & OSPKE != 0 && xcr0() & 1 << COMPONENT != 0 {
        let at = component(COMPONENT).map_or(0, |(offset, _)| offset);
        AT.store(at as u32, Relaxed);
    }
}

fn any() -> bool {
    AT.load(Relaxed) != 0
}

/// Reads PKRU. Only on machines that have it.
fn get() -> u32 {
    let pkru: u32;
    // SAFETY: RDPKRU, which exists where the system has turned keys on.
    unsafe {
        asm!(".byte 0x0f, 0x01, 0xee", in("ecx") 0, out("eax") pkru, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    pkru
}

/// Writes PKRU. Only on machines that have it.
fn set(pkru: u32) {
    // SAFETY: WRPKRU, as for `get`. Accesses before and after it stay there: no `nomem`.
    unsafe {
        asm!(".byte 0x0f, 0x01, 0xef", in("ecx") 0, in("eax") pkru, in("edx") 0,
            options(nostack, preserves_flags));
    }
}

/// The program's PKRU in its frame, if present.
fn of(uc: &UContext) -> Option<Pkru> {
    let at = AT.load(Relaxed) as usize;
    (at != 0 && uc.flags & UC_FP_XSTATE != 0 && !uc.fpstate.is_null()).then_some(Pkru(at))
}

/// Called when a signal handler of ours begins: takes the rights of the interrupted code.
#[inline]
pub fn begin(uc: &UContext) {
    if !any() {
        return;
    }
    let default = get();
    if default != DEFAULT.load(Relaxed) {
        DEFAULT.store(default, Relaxed);
    }
    if let Some(pkru) = of(uc) {
        // SAFETY: the kernel's own frame.
        set(unsafe { pkru.read(uc.fpstate) } & !OWN);
    }
}

/// Makes a system call of the program that may change the thread's rights (pkey_alloc(2), mprotect(2) to execute-only).
/// From then on the program has these rights.
#[inline]
pub fn through<R>(uc: &mut UContext, call: impl FnOnce(&mut UContext) -> R) -> R {
    if !any() {
        return call(uc);
    }
    let before = get();
    let result = call(uc);
    let after = get();
    if after != before
        && let Some(pkru) = of(uc)
    {
        // SAFETY: the kernel's own frame.
        unsafe { pkru.write(uc.fpstate, after) };
    }
    result
}

/// Runs `look` with all rights, for memory that the thread's rights may not allow. `None` if the thread has all rights
/// already.
pub fn with_all<R>(look: impl FnOnce() -> R) -> Option<R> {
    if !any() {
        return None;
    }
    let rights = get();
    if rights == 0 {
        return None;
    }
    set(0);
    let result = look();
    set(rights);
    Some(result)
}

/// The rights with which the program's signal handlers begin.
pub fn for_handlers(uc: &UContext) -> Option<(Pkru, u32)> {
    of(uc).map(|pkru| (pkru, DEFAULT.load(Relaxed)))
}
