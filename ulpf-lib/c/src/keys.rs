//! Protection keys: each thread opens and closes guarded pages for itself.
//!
//! Guarded pages have one of two keys (set by `guard/machine.rs` in ulpf-lib). PKRU, a register of each thread that is
//! written without a system call, determines which accesses a key forbids: stores, or all. So a step opens the pages for
//! one thread only, and a thread may lift its own guards for a while ([`crate::ffi::ulpf_suspend`]).
//!
//! The kernel gives signal handlers, and threads that existed before, a PKRU that forbids all accesses for all keys. Such
//! a thread faults once without reason, and its PKRU is then corrected (`close_frame`).

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::access::state;
use ulpf_engine::frame::{UContext, fpstate_len};
use ulpf_lib::guard::Keys;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;

use crate::error::Failure;

/// `si_code` of a fault that a key has caused.
pub const SEGV_PKUERR: i32 = 4;
const NO_ACCESS: u32 = 1;
const NO_WRITE: u32 = 2;
/// PKRU's place among the components of the extended state.
const COMPONENT: u32 = 9;

/// The bits of our keys in PKRU and their closed value, or 0 without keys. (mask << 32 | closed)
static BITS: AtomicU64 = AtomicU64::new(0);
/// The two keys; 0 is the default key of all pages. (no access << 32 | no write)
static KEYS: AtomicU64 = AtomicU64::new(0);

pub fn active() -> bool {
    BITS.load(Relaxed) != 0
}

fn alloc(rights: u32) -> Result<u32, Errno> {
    // SAFETY: changes a register of this thread, for a key that is not in use.
    unsafe { sys!(k::__NR_pkey_alloc, 0, rights) }.map(|key| key as u32)
}

fn free(key: u32) {
    // SAFETY: a key of ours that no page has.
    let _ = unsafe { sys!(k::__NR_pkey_free, key) };
}

fn refused(e: Errno) -> Failure {
    let why = match e.0 {
        libc::ENOSPC => {
            "this processor has no protection keys, the kernel does not let programs use them, or this program has \
             taken all of them"
        }
        libc::ENOSYS => "this kernel knows no protection keys (Linux 4.9 or later is needed)",
        _ => "the kernel gives no protection keys; a sandbox may forbid it",
    };
    Failure::new(
        libc::ENODEV,
        format!("{why}; ULPF_BACKEND=signal needs none"),
    )
}

/// Checks that keys can be allocated.
pub fn probe() -> Result<(), Failure> {
    if active() {
        return Ok(());
    }
    let one = alloc(NO_WRITE).map_err(refused)?;
    let two = alloc(NO_ACCESS | NO_WRITE).map_err(refused);
    free(one);
    two.map(free)
}

/// Takes two of them, for good.
pub fn take() -> Result<(), Failure> {
    if active() {
        return Ok(());
    }
    let one = alloc(NO_WRITE).map_err(refused)?;
    let two = alloc(NO_ACCESS | NO_WRITE)
        .inspect_err(|_| free(one))
        .map_err(refused)?;
    let bits = |key: u32, rights: u32| u64::from(rights) << (2 * key);
    let mask = bits(one, 3) | bits(two, 3);
    let closed = bits(one, NO_WRITE) | bits(two, NO_ACCESS | NO_WRITE);
    KEYS.store(u64::from(two) << 32 | u64::from(one), Release);
    BITS.store(mask << 32 | closed, Release);
    Ok(())
}

/// For the guards.
pub fn numbers() -> Option<Keys> {
    let keys = KEYS.load(Acquire);
    (keys != 0).then_some(Keys {
        no_write: keys as u32,
        no_access: (keys >> 32) as u32,
    })
}

fn with(pkru: u32, open: bool) -> u32 {
    let bits = BITS.load(Relaxed);
    let (mask, closed) = ((bits >> 32) as u32, bits as u32);
    pkru & !mask | if open { 0 } else { closed }
}

fn read() -> u32 {
    let pkru: u32;
    // SAFETY: the processor has the instruction, for there are keys.
    unsafe {
        asm!(".byte 0x0f, 0x01, 0xee", in("ecx") 0, out("eax") pkru, out("edx") _,
             options(nostack, preserves_flags))
    };
    pkru
}

fn write(pkru: u32) {
    // SAFETY: as above; only our own keys' bits change.
    unsafe {
        asm!(".byte 0x0f, 0x01, 0xef", in("ecx") 0, in("eax") pkru, in("edx") 0,
             options(nostack, preserves_flags))
    };
}

/// Closes (or opens) guarded pages for the calling thread, until it returns from the signal, if it is in one.
pub fn set_own(open: bool) {
    if active() {
        write(with(read(), open));
    }
}

/// As [`set_own`], for the interrupted thread, from its return on. Returns `false` if nothing changes.
pub fn set_frame(uc: &mut UContext, open: bool) -> bool {
    let Some((at, _)) = state::component(COMPONENT) else {
        return false;
    };
    const XSTATE_BV: usize = 512;
    // SAFETY: the frame's own image; both places lie in it.
    unsafe {
        let (_, len) = fpstate_len(uc.fpstate);
        if len < at as usize + 4 || len < XSTATE_BV + 8 {
            return false;
        }
        let bv = uc.fpstate.add(XSTATE_BV).cast::<u64>();
        let pkru = uc.fpstate.add(at as usize).cast::<u32>();
        let now = match *bv >> COMPONENT & 1 {
            1 => *pkru,
            _ => 0,
        };
        let then = with(now, open);
        *pkru = then;
        *bv |= 1 << COMPONENT;
        then != now
    }
}
