//! The beginnings of the program's own functions, where a running program's heap is checked. Calls about blocks that it
//! had before continue there (`check/entries.rs` of the handlers).
//!
//! ```text
//! free:    mov r11, entry; jmp r11 ─▶ entry ─▶ called ── a block of ours ──▶ served, ret
//! free+14: push rbx … ◀── jmp ── test rdi, rdi; je …; push rbp ◀── another one
//!                                 └ what stood in the first bytes, in memory near it
//! ```
//! This memory stays after a detach, if the program holds blocks of ours.

use ulpf_engine::patch::Prologue;
use ulpf_lib::guard::maps::Snapshot;
use ulpf_stub_handlers::check::entries::{COPY, JUMP};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::stopped::Stopped;

use super::code_caves::{self, REACH, Wanted};
use super::{parked, text};

/// Most bytes of a function that are searched for branches into its beginning.
const LONGEST: u64 = 16 << 10;

/// Copies the first instructions of the function at `[start, end)`. Returns where the copy is, and the instructions.
/// `None`: they cannot be relocated.
pub fn moved(
    stopped: &mut Stopped,
    (start, end): (u64, u64),
    maps: &Snapshot,
) -> Option<(u64, Prologue)> {
    let mut code = alloc::vec![0; (end - start).clamp(64, LONGEST) as usize];
    let known = text::read(start, &mut code);
    let code = code.get(..known)?;
    let wanted = Wanted {
        from: start,
        reach: &(start.saturating_sub(REACH)..=start.saturating_add(REACH)),
        size: COPY,
        cave: code_caves::SMALL,
        lasting: true,
    };
    let to = code_caves::find(stopped, &wanted, maps)?;
    let made = Prologue::of(start, code, JUMP, to)?;
    let len = made.code.len() as u64;
    if len > COPY || text::write_raw(to, &made.code).is_err() {
        return None;
    }
    stopped
        .tables_mut()
        .caves
        .take(to, (len, COPY), start, true);
    Some((to, made))
}

/// Moves threads that are in the middle of a function that only jumps to `to` on to `to`.
pub fn send_threads(stopped: &mut Stopped, start: u64, to: u64) {
    for t in g().threads.iter() {
        if let Some(context) = parked::frame(t, stopped)
            && (1..JUMP as u64).contains(&context.gprs.rip.wrapping_sub(start))
        {
            context.gprs.rip = to;
        }
    }
}

/// Offsets in the copy of the instructions that begin at each byte of the jump ([`entries::keep_moved`]).
///
/// [`entries::keep_moved`]: ulpf_stub_handlers::check::entries::keep_moved
pub fn places(made: &Prologue) -> [u8; JUMP] {
    let mut all = [0; JUMP];
    for (n, place) in all.iter_mut().enumerate() {
        *place = made
            .moved(n as u64)
            .and_then(|at| at.try_into().ok())
            .unwrap_or(0);
    }
    all
}

/// Moves threads that are inside the bytes that become a jump to the relocated copy of these instructions.
pub fn move_threads(stopped: &mut Stopped, start: u64, (to, made): (u64, &Prologue)) {
    for t in g().threads.iter() {
        let Some(context) = parked::frame(t, stopped) else {
            continue;
        };
        let inside = context.gprs.rip.wrapping_sub(start);
        if (1..JUMP as u64).contains(&inside)
            && let Some(offset) = made.moved(inside)
        {
            context.gprs.rip = to + offset;
        }
    }
}
