//! The stub's own task. It shares the address space with the program and nothing else, so it may allocate (from its own
//! arena) and wait. `control` runs the program, `gdb` is the protocol layer for the debugger, and `inferior` is the
//! interface between the two. `stub/STOP-THE-WORLD.md` says how it changes what handlers read.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

pub mod control;
mod files;
pub mod gdb;
pub mod inferior;
