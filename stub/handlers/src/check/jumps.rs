//! Does code come to an access by a jump over what stands before it? What a straight reading makes of the registers is not so
//! then. Read are the direct jumps and branches of the code around: where a function is, nobody needs to know.

use crate::{engine, patches};

/// So far away a jump is looked for on each side, bytes. (Few functions are longer.)
const REACH: u64 = 64 << 10;
const PIECE: usize = 2048;
/// `jcc rel32`
const LONGEST: usize = 6;
/// From anywhere, decoding comes to where instructions begin within so many bytes.
const SETTLES: u64 = 64;

/// Does a jump lead behind `from`, and not behind `to`?
pub fn come_between(from: u64, to: u64) -> bool {
    let lands = |target: u64| target > from && target <= to;
    let step = PIECE - LONGEST;
    far_pieces(to, step).any(|at| {
        let mut code = [0u8; PIECE];
        let code = patches::original(at, &mut code);
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

/// The length of a jump with 32 bits that would stand there, and how far it leads from its end. At any byte: that others
/// look like one and lead to just this place hardly happens.
fn far_jump(code: &[u8]) -> Option<(usize, i64)> {
    let (len, by) = match *code {
        [0xe9, a, b, c, d, ..] => (5, [a, b, c, d]),
        [0x0f, 0x80..=0x8f, a, b, c, d, ..] => (6, [a, b, c, d]),
        _ => return None,
    };
    Some((len, i32::from_le_bytes(by).into()))
}

/// Does one with 8 bits, of the instructions from there on, lead there? They are read one by one: single bytes look like
/// such a jump often.
fn near(from: u64, lands: &impl Fn(u64) -> bool) -> bool {
    let mut code = [0u8; 2 * (i8::MAX as usize + SETTLES as usize)];
    let code = patches::original(from, &mut code);
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
