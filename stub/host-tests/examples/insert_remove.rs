//! Time that the protocol layer itself takes for what GDB does at a stop with N watches: remove
//! and insert every one. `cargo run --release -p ulpf-stub-host-tests --example insert_remove -- N`
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::time::Instant;
use ulpf_stub_host_tests::fake::{PAGE, Recorder};
use ulpf_stub_host_tests::gdb::GdbSession;

fn main() {
    let n: u64 = std::env::args()
        .nth(1)
        .map_or(10_000, |n| n.parse().expect("a number"));
    let frames = |verb: char| -> Vec<Vec<u8>> {
        (0..n)
            .map(|i| {
                ulpf_rsp::frame(
                    format!("{verb}2,{:x},8", PAGE + 0x7fff_0000_0000 + 8 * i).as_bytes(),
                )
            })
            .collect()
    };
    let (insert, remove) = (frames('Z'), frames('z'));
    let mut inf = Recorder::default();
    let mut session = GdbSession::new(100);
    for round in 0..3 {
        let start = Instant::now();
        for f in insert.iter().chain(&remove) {
            session.incoming(&mut inf, f, &mut |reply| assert_eq!(reply, b"$OK#9a"));
        }
        println!(
            "round {round}: {n} watches in and out in {:?}",
            start.elapsed()
        );
    }
}
