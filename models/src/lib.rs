//! Models of the protocols that threads speak without locks.
//!
//! loom runs each model through the interleavings of its threads, with few preemptions (one to three, by model), and
//! through the values that a load may return. A model runs the product's code from `ulpf-lib`, which is generic over
//! its atomic cells (`ulpf_lib::sync`):
//!
//! | model | code of the product |
//! |---|---|
//! | `ring` | `ulpf-lib/src/ring/{record,reader,room}.rs` |
//! | `world` | `ulpf-lib/src/sync/stop_the_world.rs` |
//! | `lock` | `ulpf-lib/src/sync/lock.rs` |
//! | `patches` | `ulpf-lib/src/sync/stop_the_world.rs`; tables and code are mirrored |
//!
//! The surroundings of that code (signals, futexes, tables of code) are modelled here, and each model names the code it
//! mirrors. Each model also lists the changes of the product that made it fail.
#![deny(unsafe_code)]

#[cfg(test)]
mod lock;
#[cfg(test)]
mod patches;
#[cfg(test)]
mod ring;
#[cfg(test)]
mod words;
#[cfg(test)]
mod world;
