//! The vsyscall page. The kernel itself makes a call to one of its three addresses, and ends the program if it cannot
//! write the result or read the stack. On guarded pages it cannot; then the call is made here.

use linux_raw_sys::general as k;

use super::call::{Args, EFAULT, arguments};
use super::ordinary::{ordinary, watches_kernel};
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::signals::masks::close;

/// VSYSCALL_ADDR of `<asm/vsyscall.h>`.
const PAGE: u64 = 0xffff_ffff_ff60_0000;
const CALLS: [(u64, u32); 3] = [
    (PAGE, k::__NR_gettimeofday),
    (PAGE + 0x400, k::__NR_time),
    (PAGE + 0x800, k::__NR_getcpu),
];

/// The kernel has not made the call at the PC (`emulate_vsyscall` in `arch/x86/entry/vsyscall`). Returns `true` if it
/// is made here.
pub fn serve(t: Current, uc: &mut UContext, info: &SigInfo) -> bool {
    let at = |(addr, _): &&(u64, u32)| *addr == uc.gprs.rip;
    let Some((_, nr)) = CALLS.iter().find(at) else {
        return false;
    };
    if info.code != k::SI_KERNEL as i32 || !watches_kernel() {
        return false;
    }
    let Some(back) = memory::get::<u64>(uc.gprs.rsp) else {
        return false;
    };
    let (nr, args): (u64, Args) = ((*nr).into(), arguments(uc));
    close(t, uc);
    let result = ordinary(t, uc, nr, &args);
    if result == EFAULT {
        return false;
    }
    uc.gprs.rax = result as u64;
    uc.gprs.rip = back;
    uc.gprs.rsp = uc.gprs.rsp.wrapping_add(8);
    super::settle(t, uc, false);
    true
}
