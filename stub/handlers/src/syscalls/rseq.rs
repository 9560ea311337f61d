//! rseq(2): the kernel writes to a registered area at any preemption, and kills the program when that area lies on a
//! guarded page. So watched programs go without restartable sequences; glibc and others know how.

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::sys::failure::EFAULT;

use super::call::{Args, ENOSYS, raw};
use crate::runtime::memory;

const UNREGISTER: u64 = 1;

/// cpu_id_start 0, cpu_id -1: no number of a CPU is known.
const NO_CPU: [u8; 8] = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

/// Answers a thread's rseq(2).
///
/// The C library ends the program when a thread cannot register whose creator could: one that was on its way while
/// somebody attached (`command/inject/src/rseq.rs` has unregistered its creator since). Such a thread asks first of
/// all, before it has a list of robust locks (glibc, nptl/pthread_create.c, `start_thread`); its area then says that
/// there is no number of a CPU, and the answer is that all is well.
pub fn restartable_sequences(nr: u64, a: &Args) -> i64 {
    if a[0] == 0 || a[2] & UNREGISTER != 0 {
        return raw(nr, a);
    }
    let (mut head, mut len) = (0u64, 0u64);
    // SAFETY: of the calling thread; the kernel writes to the two variables.
    let asked = unsafe { sys!(k::__NR_get_robust_list, 0, &raw mut head, &raw mut len) };
    if asked.is_err() || head != 0 {
        return ENOSYS;
    }
    match memory::write(a[0], &NO_CPU) {
        8 => 0,
        _ => EFAULT,
    }
}
