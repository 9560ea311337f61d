//! The three calls of io_uring; `crate::uring` describes the method.

pub mod completions;
mod descriptors;
pub mod enter;
mod giving;
mod operands;
mod polled;
mod rare;
pub mod register;
pub mod setup;
mod submit;
mod wait;
