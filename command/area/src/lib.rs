//! The memory that `ulpf` shares with the stub of a program that it watches (`ulpf_lib::ring` describes it): a ring of
//! hits for each thread, counters, the list of watches. The command maps an area of its own when it starts a program
//! ([`shared`]), finds those of other `ulpf` processes ([`sessions`]), and keeps what was in one when the program has ended
//! ([`kept`]).
#![deny(unsafe_code)]

pub mod kept;
pub mod sessions;
#[allow(unsafe_code)]
pub mod shared;

pub use shared::SharedArea;
