//! Restrictions that a program met only because of ulpf; each is reported to the user once.

use core::sync::atomic::AtomicBool;

use ulpf_stub_handlers::runtime::deferred;
use ulpf_stub_handlers::syscalls::{legacy, seccomp, tracing};
use ulpf_stub_handlers::uring::queries;

/// Number of restrictions.
pub const COUNT: usize = 8;

/// Flags that the handlers set, and the message for each.
pub static ALL: [(&AtomicBool, &str); COUNT] = [
    (
        &queries::REFUSED,
        "ulpf: the program has asked for a part of io_uring that is not served to it (memory of the program \
         for the rings, some provided buffers, some operations) and got an error, as on an older \
         kernel. Most programs go on without it.
",
    ),
    (
        &queries::UNKNOWN,
        "ulpf: the program uses an io_uring that it has not made under ulpf, or from another process: requests that \
         lead to watched pages fail there with EFAULT, and what they write elsewhere is not seen.
",
    ),
    (
        &queries::TAKEN,
        "ulpf: the program has changed the mapping of memory that requests of io_uring in flight may write to: what \
         they write may not arrive.
",
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
        &deferred::FULL,
        "ulpf: a task that holds the program's threads by ptrace has mapped memory more than 256 times meanwhile: the \
         rest of it is not watched.\n",
    ),
    (
        &seccomp::TOO_LONG,
        "ulpf: the program has installed a seccomp filter of more than 4,078 instructions and got EINVAL: with \
         those that let ulpf's own calls pass, it is longer than the kernel takes.\n",
    ),
];
