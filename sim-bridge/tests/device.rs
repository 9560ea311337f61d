// SPDX-License-Identifier: GPL-2.0-or-later
//! The kernel module's own tests, on the machine: programs for `/dev/ulpf` run unchanged. Tests that
//! cannot pass here are listed with the reason, and have to fail: if one passes, remove its line.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Program, test, why not.
const NOT_HERE: [(&str, &str, &str); 7] = [
    (
        "test_errors",
        "query_tells_version_and_features",
        "it asks for the machine that Linux is",
    ),
    (
        "test_errors",
        "handlers_that_cannot_be",
        "it asks that there is no write-once rule, which the machine has",
    ),
    (
        "test_kernel",
        "another_process_writes",
        "process_vm_writev of another process: a simulator reaches its own program's memory only",
    ),
    (
        "test_kernel",
        "call_that_sleeps_does_not_leave_the_page_open",
        "it asks for ULPF_INFO_OPEN; on the machine a page is open for nobody while a call is made",
    ),
    (
        "test_limits",
        "module_stays_while_in_use",
        "delete_module: there is no module",
    ),
    (
        "test_limits",
        "locked_memory_is_limited",
        "setresuid: the machine has one user, and no limits",
    ),
    (
        "test_ring",
        "polling",
        "epoll; poll and blocking reads are there",
    ),
];

fn built(name: &str) -> PathBuf {
    let tests = Path::new(HERE).join("../kernel/tests");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let done = Command::new("gcc")
        .args([
            "-O2",
            "-g",
            "-std=gnu11",
            "-static",
            "-pthread",
            "-fno-stack-protector",
        ])
        .args(["-I../include/uapi", "-o"])
        .arg(&out)
        .args([&format!("{name}.c"), "device.c"])
        .current_dir(tests)
        .status()
        .expect("gcc is there");
    assert!(done.success(), "{name}.c does not compile");
    out
}

/// All of a program's tests; each has a time limit of its own in there.
fn run(name: &str, options: &[&str]) {
    let out = Command::new(env!("CARGO_BIN_EXE_ulpf-sim"))
        .args(options)
        .arg(built(name))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let all = format!("{text}{}", String::from_utf8_lossy(&out.stderr));
    let planned = text
        .lines()
        .find_map(|l| l.strip_prefix("1..")?.parse().ok());
    let result = |l: &str| -> Option<(bool, String)> {
        let ok = l.starts_with("ok ");
        let mut words = l
            .strip_prefix(if ok { "ok " } else { "not ok " })?
            .split(' ');
        Some((ok, words.nth(1)?.to_owned()))
    };
    // A program that executes itself tells of that test twice.
    let mut results = BTreeMap::new();
    for (ok, test) in text.lines().filter_map(result) {
        *results.entry(test).or_insert(true) &= ok;
    }
    assert_eq!(
        Some(results.len()),
        planned,
        "{name} has not come to its end: {all}"
    );
    for (test, ok) in results {
        let reason = NOT_HERE
            .iter()
            .find(|n| (n.0, n.1) == (name, test.as_str()));
        if let Some((_, _, why)) = reason {
            println!("not here: {name} {test}: {why}");
        }
        assert_eq!(ok, reason.is_none(), "{name} {test}:\n{all}");
    }
}

#[test]
fn faults() {
    run("test_faults", &[]);
}

#[test]
fn changes() {
    run("test_changes", &["--functional"]);
}

#[test]
fn flushes_and_huge_pages() {
    run("test_flush", &["--functional"]);
    run("test_huge", &["--functional"]);
}

#[test]
fn errors() {
    run("test_errors", &["--functional"]);
}

#[test]
fn kernel_accesses() {
    run("test_kernel", &["--functional"]);
}

#[test]
fn life() {
    run("test_life", &["--functional"]);
}

#[test]
fn limits() {
    run("test_limits", &["--functional"]);
}

#[test]
fn ring() {
    run("test_ring", &[]);
}
