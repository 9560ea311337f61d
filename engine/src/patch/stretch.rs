//! Finds instruction starts before an access, in code without known function boundaries.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use iced_x86::DecoderOptions;

use super::plan::may_go_on;

/// First address from which execution runs straight to the end of `code` (which begins at `start`), as far as is known.
/// Instructions count if they are reached from `known` ones, straight or by jumps.
pub fn stretch(start: u64, code: &[u8], known: impl Iterator<Item = u64>) -> Option<u64> {
    let end = start + code.len() as u64;
    let reached = reached(start, code, known)?;
    let mut first = end;
    // (From the last one on, each is asked whether it leads to the next.)
    for (at, (behind, goes_on)) in reached.into_iter().rev() {
        if behind != first || !goes_on {
            break;
        }
        first = at;
    }
    (first < end).then_some(first)
}

/// Instructions that are reached from those that are `known`: by address, where each ends, and whether what stands there
/// may be executed next. `None`: two of them overlap, so not all is code that looks so.
fn reached(
    start: u64,
    code: &[u8],
    known: impl Iterator<Item = u64>,
) -> Option<BTreeMap<u64, (u64, bool)>> {
    let end = start + code.len() as u64;
    let mut found = BTreeMap::new();
    let mut waiting: Vec<u64> = known.collect();
    while let Some(at) = waiting.pop() {
        if !(start..end).contains(&at) || found.contains_key(&at) {
            continue;
        }
        let code = code.get((at - start) as usize..)?;
        let i = iced_x86::Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode();
        if i.is_invalid() {
            continue; // it goes on behind `code`
        }
        let goes_on = may_go_on(at, code);
        found.insert(at, (i.next_ip(), goes_on));
        if goes_on {
            waiting.push(i.next_ip());
        }
        if i.is_jmp_short_or_near() || i.is_jcc_short_or_near() {
            waiting.push(i.near_branch64());
        }
    }
    let ends = found.values().map(|(end, _)| *end);
    let overlap = ends
        .zip(found.keys().skip(1))
        .any(|(end, next)| end > *next);
    (!overlap).then_some(found)
}
