//! Patches: a jump over a busy instruction, so that its next access to a guarded page costs a few
//! cycles instead of a fault.
//!
//! ```text
//!     mov %al,(%rdi)  ─▶  e9 …  jmp ─▶  trampoline:  address → page class → alias → watched? → mov %al,(alias)
//!     inc %rdi                           │       not a guarded page: the original instruction
//!     …               ◀─────────────────┘       watched: mov %al,(alias), and the hit is accounted for
//! ```
//!
//! A jump has five bytes, most stores have fewer. Then the instructions behind it move to the trampoline, too.
//! Where one of them began, the jump has a byte that traps. A thread that jumps there, in any way, is sent on to
//! the copy ([`TRAPS`]). So control flow need not be known. Using the bytes that happen to complete a jump is the
//! idea of instruction punning (Chamith, Svensson, Dalessandro, Newton, PLDI 2017) and E9Patch's (Duck, Gao,
//! Roychoudhury, PLDI 2020). Here the bytes are chosen. At targets of loops, all of them stay as they are
//! ([`Pun`]).
//!
//! A trampoline changes no flags, unless nothing reads them ([`flags`]), and needs three registers, which it keeps in the thread's [`ulpf_lib::ring::Area`]
//! (gs-relative). At each of its instructions the PC alone determines the state of the original program ([`Mark`]).
//! Code that interrupts a trampoline rolls it back or forward, so that it is never visible.

mod alias;
mod asm;
mod branches;
mod fast_path;
pub mod flags;
mod hits;
mod implicit;
mod last_writer;
mod lean;
mod mask;
mod original;
mod out_of_block;
mod plan;
mod prediction;
mod prologue;
mod registers;
mod stretch;
#[cfg(test)]
mod tests;
mod trampoline;
mod types;
mod value;
mod whole_page;
mod writer;

pub use branches::{Branch, leading_to};
pub use implicit::{Access, Implicit};
pub use plan::{Group, Part, Pun, Refusal, What, is_masked_move, skipped};
pub use prediction::following;
pub use prologue::Prologue;
pub use stretch::stretch;
pub use trampoline::Trampoline;
pub use types::*;
pub use writer::{Tables, Target, Writers};
