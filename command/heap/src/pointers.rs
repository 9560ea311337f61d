//! Describes the pointers to a block.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use ulpf_lib::ring::findings::{IN_MEMORY, Report};
use ulpf_session::words::count;
use ulpf_symbols::Program;

/// Registers by their numbers in instructions.
const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// The report of the block itself comes first.
pub fn text(reports: &[Report], program: &Program) -> String {
    let mut out = String::new();
    let Some((block, pointers)) = reports.split_first() else {
        return out;
    };
    let (start, size) = (block.block.load(Relaxed), block.size.load(Relaxed));
    let freed = match block.freed.load(Relaxed) {
        0 => "",
        _ => "freed ",
    };
    let _ = writeln!(
        out,
        "{} to the {freed}block of {} at {start:#x}",
        count(pointers.len() as u64, "pointer"),
        count(size, "byte"),
    );
    for pointer in pointers {
        let to = pointer.len.load(Relaxed);
        let inside = match to.wrapping_sub(start) {
            0 => String::new(),
            n => format!(", to byte {n}"),
        };
        let _ = writeln!(out, "    {}{inside}", place(pointer, program));
    }
    out
}

fn place(pointer: &Report, program: &Program) -> String {
    let kind = pointer.kind.load(Relaxed);
    if kind != IN_MEMORY {
        let name = REGISTERS.get(kind as usize - 1).copied();
        let thread = pointer.here.thread.load(Relaxed);
        return format!("{} of thread {thread}", name.unwrap_or("a register"));
    }
    let at = pointer.addr.load(Relaxed);
    match pointer.block.load(Relaxed) {
        0 => match program.variable_at(at) {
            Some(name) => format!("{name} at {at:#x}"),
            None => format!("{at:#x}"),
        },
        block => format!(
            "{at:#x}, {} inside the block of {} at {block:#x}",
            count(at.saturating_sub(block), "byte"),
            count(pointer.size.load(Relaxed), "byte"),
        ),
    }
}
