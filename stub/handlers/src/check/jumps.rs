//! Finds out whether a jump leads to an access over the instructions before it. A straight-line reading of the
//! registers is wrong then. The direct jumps and branches of the surrounding code are read; the bounds of the function
//! are not needed.

use crate::engine;
use crate::runtime::memory;

/// Bytes on each side that are searched for a jump. (Few functions are longer.)
const REACH: u64 = 64 << 10;
const PIECE: usize = 2048;
/// `jcc rel32`
const LONGEST: usize = 6;
/// Bytes within which decoding from an arbitrary byte meets the real instruction boundaries.
const SETTLES: u64 = 64;

/// True if a jump leads behind `from`, and not behind `to`.
pub fn come_between(from: u64, to: u64) -> bool {
    let lands = |target: u64| target > from && target <= to;
    let step = PIECE - LONGEST;
    far_pieces(to, step).any(|at| {
        let mut code = [0u8; PIECE];
        let code = memory::code(at, &mut code);
        (0..code.len().min(step)).any(|i| {
            let next = code.get(i..).and_then(far_jump);
            next.is_some_and(|(len, by)| lands((at + (i + len) as u64).wrapping_add_signed(by)))
        })
    }) || near(from, &lands)
        || near(to.wrapping_sub(i8::MAX as u64 + SETTLES), &lands)
}

fn far_pieces(around: u64, step: usize) -> impl Iterator<Item = u64> {
    let first = around.saturating_sub(REACH);
    (first..around.saturating_add(REACH)).step_by(step)
}

/// The length and displacement of a 32-bit jump at this byte. Any byte is tried: other bytes hardly ever look like a
/// jump to just this range.
fn far_jump(code: &[u8]) -> Option<(usize, i64)> {
    let (len, by) = match *code {
        [0xe9, a, b, c, d, ..] => (5, [a, b, c, d]),
        [0x0f, 0x80..=0x8f, a, b, c, d, ..] => (6, [a, b, c, d]),
        _ => return None,
    };
    Some((len, i32::from_le_bytes(by).into()))
}

/// True if an 8-bit jump among the instructions from there on has such a target. They are decoded one by one, since
/// single bytes often look like such a jump.
fn near(from: u64, lands: &impl Fn(u64) -> bool) -> bool {
    let mut code = [0u8; 2 * (i8::MAX as usize + SETTLES as usize)];
    let code = memory::code(from, &mut code);
    let mut at = 0;
    while let Some(rest) = code.get(at..).filter(|rest| !rest.is_empty()) {
        let pc = from + at as u64;
        let len = engine::decode(pc, rest).map_or(1, |i| usize::from(i.len).max(1));
        let jump = match *rest {
            [0x70..=0x7f | 0xe0..=0xe3 | 0xeb, by, ..] if len == 2 => Some(by as i8),
            _ => None,
        };
        if jump.is_some_and(|by| lands((pc + 2).wrapping_add_signed(by.into()))) {
            return true;
        }
        at += len;
    }
    false
}
