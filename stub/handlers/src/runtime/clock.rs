//! The clock by which waits are measured.

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::{PR_GET_TSC, PR_SET_TSC, PR_TSC_ENABLE};
use ulpf_lib::sys;

use super::frame::{SigInfo, UContext};

/// CLOCK_MONOTONIC, in nanoseconds.
pub fn now() -> u64 {
    let mut t = [0u64; 2];
    // SAFETY: fills `t`.
    let _ = unsafe { sys!(k::__NR_clock_gettime, k::CLOCK_MONOTONIC, t.as_mut_ptr()) };
    t[0] * 1_000_000_000 + t[1]
}

/// A fault of our own code: if the thread may not read the time-stamp counter (PR_SET_TSC of prctl(2)), lets it read
/// the counter once. Returns `false` for other faults.
pub fn forbidden(uc: &mut UContext, info: &SigInfo) -> bool {
    const RDTSC: [u8; 2] = [0x0f, 0x31];
    // SAFETY: our own code, which was about to be executed.
    let code = unsafe { (uc.gprs.rip as *const [u8; 2]).read() };
    if info.code != k::SI_KERNEL as i32 || code != RDTSC {
        return false;
    }
    let mut mode = 0u32;
    // SAFETY: the thread's own setting, which is restored afterwards.
    let ticks = unsafe {
        if sys!(k::__NR_prctl, PR_GET_TSC, &raw mut mode).is_err()
            || sys!(k::__NR_prctl, PR_SET_TSC, PR_TSC_ENABLE).is_err()
        {
            return false;
        }
        let ticks = core::arch::x86_64::_rdtsc();
        let _ = sys!(k::__NR_prctl, PR_SET_TSC, mode);
        ticks
    };
    uc.gprs.rax = ticks & 0xffff_ffff;
    uc.gprs.rdx = ticks >> 32;
    uc.gprs.rip += RDTSC.len() as u64;
    true
}
