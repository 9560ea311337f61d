//! Decodes the memory accesses of an instruction, performs them through the alias, and patches them.
//! `engine/PERFORM.md` and `engine/PATCH.md` describe both.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

pub mod access;
pub mod agent;
pub mod attribution;

#[cfg(test)]
mod tests {
    pub mod corpus;
}
pub mod cpu;
pub mod exec;
pub mod frame;
pub mod patch;
