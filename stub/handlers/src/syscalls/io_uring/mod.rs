//! The three calls of io_uring; `crate::uring` says how it works.

pub mod enter;
mod operands;
pub mod register;
