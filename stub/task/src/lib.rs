//! The stub's own task: it shares the address space with the program and nothing else, so it may allocate (from its
//! own arena) and wait. `control` runs the program, `gdb` speaks with whoever debugs it, and `inferior` is what the
//! latter needs of the former.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

pub mod control;
mod files;
pub mod gdb;
pub mod inferior;
