//! Where in a program's address space the stub's memory goes (`ulpf_lib::place` says which part of it is ours).
#![forbid(unsafe_code)]

use crate::tracee::Memory;
use std::fs;
use std::ops::Range;
use ulpf_host::foreign::files;
use ulpf_lib::mapping::mappings;

/// Where the widest stretch of `place` begins in which nothing is mapped. What is there is libulpf's, as a
/// rule, which goes on behind it: a margin is left for that.
pub fn widest_gap(pid: i32, place: Range<u64>) -> u64 {
    const MARGIN: u64 = 16 << 30;
    let maps = files::maps(pid).unwrap_or_default();
    let gap = gap_in(&maps, place.clone());
    gap + if gap != place.start { MARGIN } else { 0 }
}

/// What the kernel has given to the program to be random by (AT_RANDOM); `None`: its addresses are not random.
pub fn random_bytes(pid: i32, memory: &Memory) -> Option<[u8; 16]> {
    let hex = |path: &str| u64::from_str_radix(fs::read_to_string(path).ok()?.trim(), 16).ok();
    let persona = hex(&format!("/proc/{pid}/personality")).unwrap_or(0);
    if persona & libc::ADDR_NO_RANDOMIZE as u64 != 0
        || hex("/proc/sys/kernel/randomize_va_space") == Some(0)
    {
        return None;
    }
    let auxv = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let words = auxv
        .chunks_exact(8)
        .map(|w| w.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
    let words: Vec<u64> = words.collect();
    let at = words.chunks_exact(2).find(|w| w[0] == libc::AT_RANDOM)?[1];
    let mut bytes = [0; 16];
    memory.read(at, &mut bytes).ok()?;
    Some(bytes)
}

fn gap_in(maps: &[u8], place: Range<u64>) -> u64 {
    let (mut best, mut free) = (place.start..place.start, place.start);
    let end = place.end..place.end;
    for mapping in mappings(maps).map(|m| m.start..m.end).chain([end]) {
        let gap = free..mapping.start.min(place.end);
        if gap.end.saturating_sub(gap.start) > best.end - best.start {
            best = gap;
        }
        free = free.max(mapping.end);
    }
    best.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps() {
        let place = 0x10_0000..0x20_0000;
        let gap = |mapped: &[&str]| {
            let lines = mapped.iter().map(|m| format!("{m} rw-p 0 0:0 0\n"));
            gap_in(lines.collect::<String>().as_bytes(), place.clone())
        };
        assert_eq!(gap(&[]), 0x10_0000);
        assert_eq!(gap(&["1000-2000", "300000-301000"]), 0x10_0000);
        assert_eq!(gap(&["100000-101000", "1f0000-1f1000"]), 0x10_1000);
        assert_eq!(gap(&["170000-171000", "180000-181000"]), 0x18_1000);
        assert_eq!(gap(&["f0000-160000", "1f0000-300000"]), 0x16_0000);
        assert_eq!(gap(&["f0000-300000"]), 0x10_0000);
    }
}
