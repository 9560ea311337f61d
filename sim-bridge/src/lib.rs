// SPDX-License-Identifier: GPL-2.0-or-later
//! The hardware that the ULPF thesis proposes, simulated. A static Linux program runs on Unicorn, and
//! every data access passes a model of an MMU with user-level page faults.
//!
//! ```text
//!   elf ─▶ machine ─┬─ every access ─▶ mmu: tlb, user page tables, write-once ─▶ fault ─▶ the handler
//!                   ├─ system calls ─▶ os (files, memory, time), device (/dev/ulpf)
//!                   └─ cycles       ─▶ costs (the thesis's tables), stats
//! ```
#![doc = include_str!("../README.md")]

/// Prints a line on standard error. A closed reader is no error; `eprintln!` would panic.
#[macro_export]
macro_rules! message {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{}\n", format_args!($($text)*)).as_bytes());
    }};
}

/// Prints a line on standard output. A closed reader is no error; `println!` would panic.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{}\n", format_args!($($text)*)).as_bytes());
    }};
}

pub mod bridge;
pub mod config;
pub mod costs;
pub mod debug;
pub mod device;
pub mod elf;
mod errno;
pub mod fault;
mod host;
pub mod instructions;
pub mod machine;
pub mod memory;
pub mod mmu;
pub mod os;
pub mod processes;
pub mod registers;
pub mod signals;
pub mod state;
pub mod stats;
pub mod tables;
pub mod threads;
pub mod time;
pub mod tlb;
mod user_memory;
pub mod write_once;
