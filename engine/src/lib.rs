//! Which memory an instruction touches, and how to do the access through the alias.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

pub mod agent;
pub mod cpu;
pub mod access; pub mod exec;
