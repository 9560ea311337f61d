//! The accesses of every x86-64 instruction that touches memory.
//!
//! [`Decoder`] turns bytes into an [`Insn`] once per site; [`Insn::accesses`] then tells for
//! the registers of the moment which bytes the instruction reads and writes.
//!
//! ```text
//!   bytes ─ capstone (iced when capstone cannot) ─┐
//!         ─ Layout (where the bits are) ──────────┼─ Insn ── + Cpu ── AccessList
//!         ─ class, kind, size rules of our own ───┘
//! ```

pub mod class;
pub mod decode;
pub mod element;
pub mod insn;
pub mod layout;
mod list;
pub mod state;
#[cfg(test)]
mod tests;

pub use class::Class;
pub use decode::{DecodeError, Decoder};
pub use insn::{Insn, MemOp, NO_REG};
pub use list::{Access, AccessList};
