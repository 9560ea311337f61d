//! The first instructions of functions that are to be replaced.

use ulpf_stub_handlers::global::tables;

use super::functions::bytes;
use super::text;

/// Number of jumps that are followed.
const JUMPS: usize = 4;

/// Returns whether it is a jump, behind the instruction that marks a branch target (endbr64).
pub fn is_jump(code: [u8; 12]) -> bool {
    let code = code
        .strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa])
        .unwrap_or(&code);
    code.starts_with(&[0xe9]) || code.starts_with(&[0xff, 0x25])
}

/// Bytes from the beginning of a function to that of the next one: those behind its end are for alignment.
pub fn room_at((start, end): (u64, u64)) -> u64 {
    let next = end.next_multiple_of(16);
    let mut between = [0; 16];
    let between = between.get_mut(..(next - end) as usize).unwrap_or_default();
    let read = text::read(end, between);
    // int3, and the bytes of long nops.
    let filler = |b: &u8| {
        matches!(
            b,
            0xcc | 0x90 | 0x66 | 0x2e | 0x0f | 0x1f | 0x00 | 0x40 | 0x44 | 0x80 | 0x84
        )
    };
    match read == between.len() && between.iter().all(filler) {
        true => next - start,
        false => end - start,
    }
}

/// The target of a function that only jumps.
pub fn jumps_to(at: u64) -> Option<u64> {
    let code: [u8; 9] = bytes(at)?;
    let (code, behind) = match code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        Some(rest) => (rest, at + 9),
        None => (&code[..5], at + 5),
    };
    let far = code.strip_prefix(&[0xe9])?.try_into().ok()?;
    Some(behind.wrapping_add_signed(i32::from_le_bytes(far).into()))
}

/// Returns whether a function leads, by jumps only, to one that is served.
pub fn comes_to_served(at: u64) -> bool {
    let mut next = Some(at);
    for _ in 0..JUMPS {
        next = next.and_then(jumps_to);
        if next.is_some_and(|to| tables().edits.functions.at(to).is_some()) {
            return true;
        }
    }
    false
}
