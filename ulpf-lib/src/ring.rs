//! What the stub and the command share, in one memfd: hits, counters, and the list of watches.
//!
//! ```text
//! 0              COUNTERS_OFFSET          WATCH_TABLE_OFFSET          AREAS_OFFSET   HEADS_OFFSET       RINGS_OFFSET
//! | SharedHeader | COUNTER_SLOTS×Counters | COUNTER_SLOTS×Listed | AREAS×Area | AREAS×RingHead | rings | Findings |
//!
//! rings: one for each thread that runs at the same time, by `Thread::index`
//! | 64 of 4 MiB … | 960 of 128 KiB … | 31,744 of 16 KiB … |      (sparse: what is not written costs nothing)
//! ```
//!
//! **A ring has one writer**, its thread, which never waits and shares no cache line with another one.
//! `record` says what it writes, `reader` how it is read, `room` how a writer waits for the reader, `last` how one looks back. `models/src/ring.rs` is their model. A number is used again when its thread has
//! ended; the ring goes on then, and its records say which thread each is of. Nothing is taken out by
//! reading: records stay until newer ones need the room, so that somebody can look back (`ulpf last`).

pub mod found;
pub mod last;
mod layout;
mod reader;
mod record;
mod room;
#[cfg(test)]
mod tests;

pub use found::SHARED_LEN;
pub use layout::*;
pub use reader::{Progress, Reader, Rings, Start, copy_slots};
pub use record::{Entry, Hit, Ring, SystemCall};
pub use room::Room;
