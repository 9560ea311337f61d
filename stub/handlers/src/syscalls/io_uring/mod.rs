//! The three calls of io_uring; `crate::uring` says how it works.

pub mod completions;
mod descriptors;
pub mod enter;
mod operands;
mod polled;
pub mod register;
pub mod setup;
mod submit;
