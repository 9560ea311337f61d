//! Sets of addresses: ranges `[start, end)`, ascending.

use alloc::vec::Vec;

/// The same memory as ascending ranges that do not touch.
pub fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = next.0 <= last.1;
        if joins {
            last.1 = last.1.max(next.1);
        }
        joins
    });
    ranges
}

/// The parts of `ranges` outside `others`; both ascend.
pub fn outside(ranges: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    let mut others = others.iter().copied().peekable();
    for &(mut start, end) in ranges {
        while let Some(&(from, to)) = others.peek()
            && from < end
        {
            if start < from {
                left.push((start, from));
            }
            start = start.max(to);
            if to > end {
                break;
            }
            others.next();
        }
        if start < end {
            left.push((start, end));
        }
    }
    left
}
