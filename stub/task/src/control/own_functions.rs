//! The beginnings of the program's own functions, where a running program's heap is checked. Calls about blocks that it
//! had before continue there (`check/entries.rs` of the handlers).
//!
//! ```text
//! free:    mov r11, entry; jmp r11 ─▶ entry ─▶ called ── a block of ours ──▶ served, ret
//! free+14: push rbx … ◀── jmp ── test rdi, rdi; je …; push rbp ◀── another one
//!                                 └ what stood in the first bytes, in memory near it
//! ```
//! This memory stays after a detach, if the program holds blocks of ours.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::patch::Prologue;
use ulpf_lib::guard::maps::{Snapshot, VmaKind};
use ulpf_lib::{PAGE_SIZE, TargetAddr, place, sys};
use ulpf_stub_handlers::check::entries::{COPY, JUMP};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::stopped::Stopped;

use super::{parked, text};

/// Reach of an instruction's operand, less a little.
const REACH: u64 = (1 << 31) - (1 << 25);
/// Distance that is kept from memory that grows.
const ASIDE: u64 = 64 << 20;
/// Most bytes of a function that are searched for branches into its beginning.
const LONGEST: u64 = 16 << 10;

/// A page for beginnings, and how much of it is in use.
struct Near {
    page: u64,
    used: u64,
}

#[derive(Default)]
pub struct OwnFunctions(Vec<Near>);

impl OwnFunctions {
    /// Copies the first instructions of the function at `[start, end)`. Returns where the copy is, and the
    /// instructions. `None`: they cannot be relocated.
    pub fn moved(
        &mut self,
        stopped: &mut Stopped,
        (start, end): (u64, u64),
        maps: &Snapshot,
    ) -> Option<(u64, Prologue)> {
        let mut code = alloc::vec![0; (end - start).clamp(64, LONGEST) as usize];
        let known = text::read(start, &mut code);
        let code = code.get(..known)?;
        let to = self.allocate(stopped, start, maps)?;
        let made = Prologue::of(start, code, JUMP, to)?;
        if made.code.len() as u64 > COPY || text::write_raw(to, &made.code).is_err() {
            return None;
        }
        if let Some(near) = self.0.iter_mut().find(|n| n.page + n.used == to) {
            near.used += COPY;
        }
        Some((to, made))
    }

    fn allocate(&mut self, stopped: &mut Stopped, at: u64, maps: &Snapshot) -> Option<u64> {
        let fits = |n: &&Near| n.used + COPY <= PAGE_SIZE && n.page.abs_diff(at) < REACH;
        if let Some(near) = self.0.iter().find(fits) {
            return Some(near.page + near.used);
        }
        let page = gaps(at, maps).into_iter().find_map(map)?;
        place::add(page, PAGE_SIZE);
        stopped.guards().exclude(TargetAddr(page), PAGE_SIZE);
        self.0.push(Near { page, used: 0 });
        Some(page)
    }
}

/// Free pages within reach, the nearest first: the last ones of gaps, where nothing grows.
fn gaps(at: u64, maps: &Snapshot) -> Vec<u64> {
    let brk = g().brk.load(Relaxed);
    let pairs = maps.vmas.iter().zip(maps.vmas.iter().skip(1));
    let large = pairs.filter(|(low, high)| {
        let grows = high.kind == VmaKind::Stack || low.end <= brk + PAGE_SIZE && brk < high.start;
        high.start - low.end > 4 * PAGE_SIZE && !(grows && high.start - low.end < 4 * ASIDE)
    });
    let mut all: Vec<u64> = large
        .map(|(_, high)| match high.kind {
            VmaKind::Stack => high.start - 2 * ASIDE,
            _ => high.start - 2 * PAGE_SIZE,
        })
        .filter(|page| page.abs_diff(at) < REACH)
        .collect();
    all.sort_by_key(|page| page.abs_diff(at));
    all
}

fn map(page: u64) -> Option<u64> {
    let prot = k::PROT_READ | k::PROT_EXEC;
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED_NOREPLACE;
    // SAFETY: a place where nothing is.
    let got = unsafe { sys!(k::__NR_mmap, page, PAGE_SIZE, prot, flags, -1i64, 0) }.ok()?;
    if got != page {
        // SAFETY: just mapped, by a kernel that does not know the flag.
        let _ = unsafe { sys!(k::__NR_munmap, got, PAGE_SIZE) };
        return None;
    }
    Some(page)
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
