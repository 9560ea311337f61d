//! The oracle: runs generated programs under ulpf and on an independent machine, and compares every hit. `make
//! soak` runs it for a given time, `make test` a fixed slice.
//!
//! ```text
//!   seed ─▶ generate ─▶ Program ─┬▶ judge (Unicorn with memory hooks, or single steps) ─▶ Expected ─┐
//!                                └▶ ulpf server, hit ring ─▶ Actual ────────────────────────────────┴▶ compare
//! ```
#![doc = include_str!("../README.md")]
#![allow(clippy::print_stderr, clippy::print_stdout)]

mod asm;
mod bench;
mod chain;
mod children;
#[path = "../../engine/src/tests/corpus.rs"]
#[allow(dead_code, clippy::should_implement_trait)]
mod corpus;
mod examples;
mod generate;
mod hits;
mod kernel;
mod masks;
mod minimise;
mod program;
mod registers;
mod ring;
mod seccomp;
mod session;
mod soak;
mod step;
mod symbols;
mod threads;
mod tracee;
mod ulpf;
mod unicorn;

const USAGE: &str = "\
oracle soak [SECONDS] [--seed N] [--kind KIND]
                                   random programs until the time is up
oracle slice                       the fixed cases and a fixed set of programs
oracle case FILE…                  fixed cases
oracle examples [NAME]             the programs of examples/ and tests/programs/
oracle one KIND SEED               one program: unicorn, step, threads, registers, filters, filters-step,
                                   children, children-step, children-filters, made, made-step, stages,
                                   stages-step

--ulpf FILE                        the ulpf to judge (default: target/release/ulpf)
";

fn main() {
    match soak::main(std::env::args().skip(1).collect()) {
        Ok(true) => {}
        Ok(false) => std::process::exit(1),
        Err(e) => {
            eprintln!("oracle: {e:#}\n\n{USAGE}");
            std::process::exit(2);
        }
    }
}
