//! Where a function begins, by the unwind tables of its file (`.eh_frame_hdr`, which the C++ and Rust
//! run-times search in the same way). Only tables of the form that linkers write are read; without one,
//! nothing is known.

use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::Snapshot;

use super::text;

/// Longer ones are not looked at.
const LONGEST: u64 = 1 << 20;

fn bytes<const N: usize>(at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (text::read(at, &mut bytes) == N).then_some(bytes)
}

fn u32_at(at: u64) -> Option<u32> {
    bytes(at).map(u32::from_le_bytes)
}

fn u64_at(at: u64) -> Option<u64> {
    bytes(at).map(u64::from_le_bytes)
}

/// `at` and the signed number that stands there.
fn relative(base: u64, at: u64) -> Option<u64> {
    Some(base.wrapping_add_signed(i64::from(u32_at(at)? as i32)))
}

/// The address of the unwind table of the file that is mapped at `pc`.
fn table(pc: u64, maps: &Snapshot) -> Option<u64> {
    const PT_LOAD: u32 = 1;
    const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    let mut n = maps.index(pc);
    let vma = maps.vmas.get(n).filter(|v| v.start <= pc)?;
    let file = (vma.dev, vma.inode);
    // Its first mapping has the headers.
    while let Some(v) = n.checked_sub(1).and_then(|n| maps.vmas.get(n)) {
        if (v.dev, v.inode) != file {
            break;
        }
        n -= 1;
    }
    let base = maps.vmas.get(n)?.start;
    let head: [u8; 64] = bytes(base)?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let count = u16::from_le_bytes([head[56], head[57]]);
    let mut header = base.wrapping_add(u64_at(base + 32)?);
    let mut bias = None;
    let (mut inside, mut table) = (false, None);
    for _ in 0..count.min(64) {
        let (kind, offset) = (u32_at(header)?, u64_at(header.wrapping_add(8))?);
        let address = u64_at(header.wrapping_add(16))?;
        let len = u64_at(header.wrapping_add(40))?;
        header = header.wrapping_add(56);
        if kind == PT_LOAD {
            if offset == 0 {
                bias = Some(base.wrapping_sub(address & !(PAGE_SIZE - 1)));
            }
            inside |= pc.wrapping_sub(bias?.wrapping_add(address)) < len;
        } else if kind == PT_GNU_EH_FRAME {
            table = Some(address);
        }
    }
    inside.then_some(bias?.wrapping_add(table?))
}

/// The first address of the function that holds `pc`.
pub fn start(pc: u64, maps: &Snapshot) -> Option<u64> {
    let table = table(pc, maps)?;
    // Version 1; table's address relative to itself, count as it is, entries relative to the table.
    if bytes(table)? != [1, 0x1b, 0x03, 0x3b] {
        return None;
    }
    let entry = |n: u64| table.wrapping_add(12 + n * 8);
    let (mut low, mut high) = (0, u64::from(u32_at(table.wrapping_add(8))?));
    while low < high {
        let middle = (low + high) / 2;
        if relative(table, entry(middle))? <= pc {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let entry = entry(low.checked_sub(1)?);
    let start = relative(table, entry)?;
    let described = relative(table, entry.wrapping_add(4))?;
    // Length, its own origin, the function's start relative to itself, its length.
    let field = described.wrapping_add(8);
    let same = relative(field, field)? == start;
    let len = u64::from(u32_at(described.wrapping_add(12))?);
    (same && pc - start < len && len <= LONGEST).then_some(start)
}
