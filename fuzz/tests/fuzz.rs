//! A test for each fuzz target: its corpus, and changed inputs from a fixed seed. `build.rs` finds the targets.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;
use ulpf_fuzz::changes::Changes;
use ulpf_fuzz::{Target, slice};

include!(concat!(env!("OUT_DIR"), "/tests.rs"));

fn run(name: &str) {
    match slice::run(ulpf_fuzz::target(name), name, slice::DEADLINE) {
        Ok(passed) => println!(
            "{name}: {} inputs of the corpus, {} changed ones, {:.1} s",
            passed.corpus,
            passed.changed,
            passed.took.as_secs_f64()
        ),
        Err(failure) => panic!("{failure}"),
    }
}

/// The failure of a target that does this with its only input.
fn failure(test: &'static str, run: fn(&[u8])) -> String {
    let target = Target {
        name: test,
        inputs: 1,
        run,
    };
    let failure = slice::run(&target, test, Duration::from_secs(2))
        .err()
        .expect("a failure");
    let (_, path) = failure.rsplit_once(' ').expect("a path");
    let path = Path::new(path);
    assert!(fs::remove_file(path).is_ok(), "{failure}");
    fs::remove_dir(path.parent().expect("a folder")).expect("an empty folder");
    failure
}

#[test]
fn a_panic_is_reported() {
    let failure = failure("a_panic_is_reported", |_| panic!("as planned"));
    assert!(failure.contains("as planned") && failure.contains("input 1 failed"));
}

#[test]
fn a_panic_of_another_thread_is_reported() {
    let run = |_: &[u8]| drop(std::thread::spawn(|| panic!("as planned")).join());
    let failure = failure("a_panic_of_another_thread_is_reported", run);
    assert!(failure.contains("as planned"));
}

#[test]
fn an_early_exit_is_reported() {
    let failure = failure("an_early_exit_is_reported", |_| std::process::exit(0));
    assert!(failure.contains("input 1 failed"));
}

#[test]
fn a_stack_overflow_is_reported() {
    fn deep(n: u64) -> u64 {
        let page = black_box([n; 512]);
        if n == 0 { 0 } else { deep(n - 1) + page[7] }
    }
    let run = |_: &[u8]| assert_eq!(deep(black_box(512)), 0);
    let failure = failure("a_stack_overflow_is_reported", run);
    assert!(failure.contains("overflowed its stack"), "{failure}");
}

#[test]
fn too_much_memory_is_reported() {
    let run = |_: &[u8]| drop(black_box(vec![1u8; 97 << 20]));
    let failure = failure("too_much_memory_is_reported", run);
    assert!(failure.contains("more than 96 MiB"), "{failure}");
}

#[test]
fn a_hang_is_reported() {
    let run = |_: &[u8]| std::thread::sleep(Duration::from_secs(3600));
    let failure = failure("a_hang_is_reported", run);
    assert!(failure.contains("ran for 2 s"), "{failure}");
}

#[test]
fn changed_inputs_are_the_same_in_every_run() {
    let corpus = [
        b"vCont;c".to_vec(),
        b"qSupported:xmlRegisters=i386".to_vec(),
    ];
    let words = [b"multiprocess+".to_vec()];
    let inputs = || -> Vec<Vec<u8>> {
        let mut changes = Changes::new(7, &corpus, &words);
        let one = |_| {
            let mut input = Vec::new();
            changes.next(&mut input);
            input
        };
        (0..10_000).map(one).collect()
    };
    let first = inputs();
    assert_eq!(first, inputs());
    assert!(first.iter().all(|input| input.len() <= 4096));
    let mut different = first.clone();
    different.sort();
    different.dedup();
    assert!(different.len() > 8_000, "{}", different.len());
}
