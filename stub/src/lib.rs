//! The image that ulpf loads into the watched program: no libc, no thread-local storage, nothing
//! shared with the program but its memory. See ARCHITECTURE.md. This crate has the start of the handlers and of the
//! task (`boot`), the heap, and the exits for when either cannot continue.
//!
#![doc = include_str!("../README.md")]
// The image is built with `panic = "abort"`. The lints check it in a profile that unwinds, which needs std.
#![cfg_attr(panic = "abort", no_std)]
extern crate alloc;

mod boot;
mod cshim;
mod heap;

#[cfg(panic = "abort")]
use ulpf_stub_handlers::say::{fatal, write_stderr};
#[cfg(panic = "abort")]
use ulpf_stub_task::control::rescue;

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    use core::fmt::Write;
    struct Err;
    impl Write for Err {
        fn write_str(&mut self, s: &str) -> core::fmt::Result {
            write_stderr(s);
            Ok(())
        }
    }
    let _ = writeln!(Err, "ulpf: {info}");
    if rescue::is_task() {
        rescue::leave();
    }
    fatal("panic")
}
