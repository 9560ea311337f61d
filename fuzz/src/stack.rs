//! A stack overflow is a finding like any other: libFuzzer's handler of SIGSEGV needs a stack of its own
//! to write the input down. Its main() is not Rust's, so Rust's runtime has not created one.

use std::mem::zeroed;

pub fn catch_overflow() {
    const SIZE: usize = 64 << 10;
    let stack: &'static mut [u8] = Box::leak(vec![0; SIZE].into_boxed_slice());
    // SAFETY: the alternate stack lives for ever. libFuzzer, which installs its handlers after this, keeps
    // SA_ONSTACK where it finds it, and SIG_DFL makes it install one at all.
    unsafe {
        let alternate = libc::stack_t {
            ss_sp: stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: SIZE,
        };
        libc::sigaltstack(&alternate, std::ptr::null_mut());
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
    }
}
