//! The memfd that the stub and the command share: hits, counters, and the list of watches.
//!
//! ```text
//! 0              COUNTERS_OFFSET          WATCH_TABLE_OFFSET          AREAS_OFFSET   HEADS_OFFSET       RINGS_OFFSET
//! | SharedHeader | COUNTER_SLOTS×Counters | COUNTER_SLOTS×Listed | AREAS×Area | AREAS×RingHead | rings | Findings |
//!
//! rings: one for each thread that runs at the same time, by `Thread::index`
//! | 64 of 4 MiB … | 960 of 128 KiB … | 31,744 of 16 KiB … |      (sparse: what is not written costs nothing)
//! ```
//!
//! **A ring has one writer**, its thread, which never waits and shares no cache line with another thread. `record` is the
//! format, `reader` reads, `room` makes a writer wait for the reader, `last` looks back. `models/src/ring.rs` is their
//! model.
//!
//! A number is reused when its thread has ended. The ring then continues, and each record names its thread. Reading
//! removes nothing: records stay until newer ones need the room, so that `ulpf last` can look back.

pub mod findings;
pub mod last;
mod layout;
mod lossless;
mod reader;
mod record;
#[cfg(test)]
mod tests;

pub use findings::SHARED_LEN;
pub use layout::*;
pub use lossless::Handshake;
pub use reader::{Progress, Reader, Rings, Start, copy_slots};
pub use record::{Entry, Hit, Ring, SystemCall};
