//! The compact log: a file that is written as fast as hits come, and that can be read when everything else is gone.
//!
//! ```text
//!     a process's rings ──▶ record (a thread of its own) ─▶ encode ──┐ blocks of hits
//!     `ulpf run`: watches, instructions, what is said ──▶ words ─────┴─▶ writer ──▶ FILE.ulpf
//!                                                                                     │
//!     text · JSON · CSV · trace ◀── show ◀── in order of time, or by the heads ◀── file ◀── decode, words
//! ```
//! [`mod@format`] draws the file. The hits of a thread stay in its order and are sorted only when they are read, so the
//! writer does nothing per hit but compress it.
#![forbid(unsafe_code)]

mod decode;
mod encode;
mod file;
mod format;
mod record;
mod show;
#[cfg(test)]
mod tests;
mod words;
mod writer;

pub use decode::{Bad, Decoder};
pub use encode::Encoder;
pub use file::{Item, LogFile};
pub use format::{Head, What};
pub use record::Recorder;
#[doc(hidden)]
pub use show::show_all;
pub use show::{LogArgs, main};
pub use words::Word;
pub use writer::Log;
