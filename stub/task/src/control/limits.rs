//! What a program has met that it would not have met without us: the user is told once.

use core::sync::atomic::AtomicBool;

use ulpf_stub_handlers::syscalls::{IO_URING, legacy, seccomp, tracing};

/// How many there are.
pub const COUNT: usize = 5;

/// What the handlers note, and what is said of it.
pub static ALL: [(&AtomicBool, &str); COUNT] = [
    (
        &IO_URING,
        "ulpf: the program has asked for io_uring and got ENOSYS: its kernel threads would write past the \
         watches. Most programs go on with ordinary calls; one that does not cannot be watched.\n",
    ),
    (
        &seccomp::UNSUPERVISED,
        "ulpf: a seccomp filter asks a supervisor or a tracer about a call that ulpf has to make itself (memory, \
         threads, signals, exec). It was made without asking.\n",
    ),
    (
        &legacy::REFUSED,
        "ulpf: the program has made a call of 32-bit programs (int 0x80) that changes its memory, its threads or its \
         signals, and got ENOSYS.\n",
    ),
    (
        &tracing::UNFOLLOWED,
        "ulpf: the program traces a child itself (ptrace), which is not followed into what it executes.\n",
    ),
    (
        &seccomp::TOO_LONG,
        "ulpf: the program has installed a seccomp filter of more than 4,079 instructions and got EINVAL: with \
         those that let ulpf's own calls pass, it is longer than the kernel takes.\n",
    ),
];
