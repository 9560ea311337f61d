// SPDX-License-Identifier: GPL-2.0-or-later
//! Calls that the machine does not know: they end the run, by name.

use crate::errno::EPERM;
use crate::state::State;

/// Names of calls that programs make and that the machine does not know.
const UNKNOWN: [(u64, &str); 19] = [
    (29, "shmget"),
    (41, "socket"),
    (42, "connect"),
    (49, "bind"),
    (53, "socketpair"),
    (56, "clone"),
    (101, "ptrace"),
    (117, "setresuid"),
    (176, "delete_module"),
    (213, "epoll_create"),
    (232, "epoll_wait"),
    (282, "signalfd"),
    (291, "epoll_create1"),
    (298, "perf_event_open"),
    (310, "process_vm_readv of another process"),
    (311, "process_vm_writev of another process"),
    (322, "execveat"),
    (425, "io_uring_setup"),
    (435, "clone3"),
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
