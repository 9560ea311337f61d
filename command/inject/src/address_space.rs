//! Chooses the addresses of the stub's memory in a program (`ulpf_lib::place` divides that memory).
#![forbid(unsafe_code)]

use crate::tracee::Memory;
use std::fs;
use std::ops::Range;
use ulpf_host::foreign::files;
use ulpf_host::process;
use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::mapping::{Mapping, mappings};
use ulpf_lib::place;

/// Possible addresses: above the 32-bit range, and below the stack.
const ANYWHERE: Range<u64> = 0x1_0000_0000..0x7f00_0000_0000;
/// The kernel's next mappings are at most this far below a file.
const NEXT_FILES: u64 = 16 << 30;

/// The base of the stub's place: `usual`, unless the program uses more than half of the addresses there, or the kernel
/// puts files there. Then it is in the widest unmapped range of the address space, far from the kernel's next mappings.
/// If an earlier stub has left its code, the place stays, because a later stub must not take that code for the
/// program's.
pub fn base(pid: i32, usual: u64) -> u64 {
    let maps = files::maps(pid).unwrap_or_default();
    base_in(&maps, usual)
}

fn base_in(maps: &[u8], usual: u64) -> u64 {
    let [images, memory] = [place::of_images(usual), place::of_memory(usual)];
    let free = |place: Range<u64>| {
        let gap = gap_in(maps, place.clone());
        gap.end - gap.start >= (place.end - place.start) / 2
    };
    let whole = usual..usual + place::WHOLE_LEN;
    let is_file = |m: &Mapping| m.inode != 0 && !m.name.starts_with(b"/memfd:ulpf");
    let is_left = |m: &Mapping| m.prot & PROT_EXEC != 0 && whole.contains(&m.start) && !is_file(m);
    // The next file is mapped below the present ones.
    let is_near =
        |m: &Mapping| is_file(m) && whole.start < m.end && m.start < whole.end + NEXT_FILES;
    if mappings(maps).any(|m| is_left(&m))
        || !mappings(maps).any(|m| is_near(&m)) && free(images) && free(memory)
    {
        return usual;
    }
    let gap = gap_in(maps, ANYWHERE);
    place::base_within(gap).unwrap_or(usual)
}

/// Start of the widest unmapped range in `place`. Existing mappings usually belong to libulpf, which maps more memory
/// after them, so a margin is left.
pub fn widest_gap(pid: i32, place: Range<u64>) -> u64 {
    const MARGIN: u64 = 16 << 30;
    let maps = files::maps(pid).unwrap_or_default();
    let gap = gap_in(&maps, place.clone()).start;
    gap + if gap != place.start { MARGIN } else { 0 }
}

/// The kernel's random bytes for the program (AT_RANDOM); `None` if its addresses are not random.
pub fn random_bytes(pid: i32, memory: &Memory) -> Option<[u8; 16]> {
    let hex = |path: &str| u64::from_str_radix(fs::read_to_string(path).ok()?.trim(), 16).ok();
    let persona = hex(&format!("/proc/{pid}/personality")).unwrap_or(0);
    if persona & libc::ADDR_NO_RANDOMIZE as u64 != 0
        || hex("/proc/sys/kernel/randomize_va_space") == Some(0)
    {
        return None;
    }
    let at = process::auxiliary(pid, libc::AT_RANDOM).ok()??;
    let mut bytes = [0; 16];
    memory.read(at, &mut bytes).ok()?;
    Some(bytes)
}

fn gap_in(maps: &[u8], place: Range<u64>) -> Range<u64> {
    let (mut best, mut free) = (place.start..place.start, place.start);
    let end = place.end..place.end;
    for mapping in mappings(maps).map(|m| m.start..m.end).chain([end]) {
        let gap = free..mapping.start.min(place.end);
        if gap.end.saturating_sub(gap.start) > best.end - best.start {
            best = gap;
        }
        free = free.max(mapping.end);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_over_the_usual_place_moves_it() {
        let usual = place::base_for(None);
        let with = |mapped: &str| {
            let all = format!(
                "555555554000-555555600000 r-xp 0 0:0 0\n{mapped} ---p 0 0:0 0\n7ffffffde000-7ffffffff000 rw-p 0 0:0 0\n"
            );
            base_in(all.as_bytes(), usual)
        };
        assert_eq!(with("7ffff7c00000-7ffff7fff000"), usual);
        assert_eq!(with("7e8100000000-7e8100100000"), usual);
        // Mappings of InnoDB.
        let moved = with("77460c000000-7f4604000000");
        assert!(
            (0x2000_0000_0000..0x3000_0000_0000).contains(&moved),
            "{moved:#x}"
        );
        // Files: a stack limit of 1 TiB puts the dynamic loader there, or right above.
        assert_ne!(
            with("7e9000000000-7e9000001000 r--p 0 8:1 9 /lib/ld.so\n7e9000001000-7e9000003000"),
            usual
        );
        assert_ne!(
            with("7ed400000000-7ed400001000 r--p 0 8:1 9 /lib/ld.so\n7ed400001000-7ed400003000"),
            usual
        );
        // Mappings of libulpf.
        assert_eq!(
            with(
                "7e9000000000-7e9000001000 rw-s 0 0:1 9 /memfd:ulpf (deleted)\n7ff000001000-7ff000003000"
            ),
            usual
        );
        // Left by an earlier stub.
        let left = "7e8000001000-7e8000002000 r-xp 0 0:0 0\n7e8100000000-7ea100000000";
        assert_eq!(with(left), usual);
        // Only the place of images is used.
        assert_ne!(with("7e8000000000-7e8100000000"), usual);
    }

    #[test]
    fn gaps() {
        let place = 0x10_0000..0x20_0000;
        let gap = |mapped: &[&str]| {
            let lines = mapped.iter().map(|m| format!("{m} rw-p 0 0:0 0\n"));
            gap_in(lines.collect::<String>().as_bytes(), place.clone()).start
        };
        assert_eq!(gap(&[]), 0x10_0000);
        assert_eq!(gap(&["1000-2000", "300000-301000"]), 0x10_0000);
        assert_eq!(gap(&["100000-101000", "1f0000-1f1000"]), 0x10_1000);
        assert_eq!(gap(&["170000-171000", "180000-181000"]), 0x18_1000);
        assert_eq!(gap(&["f0000-160000", "1f0000-300000"]), 0x16_0000);
        assert_eq!(gap(&["f0000-300000"]), 0x10_0000);
    }
}
