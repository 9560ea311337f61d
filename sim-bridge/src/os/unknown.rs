// SPDX-License-Identifier: GPL-2.0-or-later
//! Calls that the machine does not know: they end the run, by name.

use super::numbers::*;
use crate::errno::EPERM;
use crate::state::State;

/// Names of calls that programs make and that the machine does not know.
const UNKNOWN: [(u64, &str); 19] = [
    (SYS_shmget, "shmget"),
    (SYS_socket, "socket"),
    (SYS_connect, "connect"),
    (SYS_bind, "bind"),
    (SYS_socketpair, "socketpair"),
    (SYS_clone, "clone"),
    (SYS_ptrace, "ptrace"),
    (SYS_setresuid, "setresuid"),
    (SYS_delete_module, "delete_module"),
    (SYS_epoll_create, "epoll_create"),
    (SYS_epoll_wait, "epoll_wait"),
    (SYS_signalfd, "signalfd"),
    (SYS_epoll_create1, "epoll_create1"),
    (SYS_perf_event_open, "perf_event_open"),
    (SYS_process_vm_readv, "process_vm_readv of another process"),
    (
        SYS_process_vm_writev,
        "process_vm_writev of another process",
    ),
    (SYS_execveat, "execveat"),
    (SYS_io_uring_setup, "io_uring_setup"),
    (SYS_clone3, "clone3"),
];

/// Ends the run: the machine does not know what the program asks for.
pub fn unknown(s: &mut State, number: u64, more: &str) {
    let name = UNKNOWN.iter().find(|u| u.0 == number).map_or("", |u| u.1);
    let comma = if name.is_empty() { "" } else { ", " };
    s.fail(format!("system call {number}{comma}{name}{more}"));
}

pub fn no_processes(s: &mut State, number: u64, error: i64) -> i64 {
    if error == EPERM {
        unknown(s, number, " (fork): this machine has one process");
    }
    error
}
