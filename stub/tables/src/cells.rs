//! Bitmap of used cells. A row of free cells is found without scanning full ones.

use alloc::vec::Vec;
use core::ops::Range;

/// Row lengths below this have a search start each; longer rows share the last one.
const ROWS: usize = 257;

pub struct Cells {
    count: u64,
    /// A bit for each cell.
    used: Vec<u64>,
    /// No row of this many free cells begins before the cell of this number. (Large programs have a hundred thousand
    /// trampolines: a search from the front for each would scan all of them every time.)
    dense: [u64; ROWS],
}

impl Cells {
    /// All of them are free.
    pub fn new(count: u64) -> Cells {
        Cells {
            count,
            used: alloc::vec![0; count.div_ceil(64) as usize],
            dense: [0; ROWS],
        }
    }

    /// The first row of at least `cells` free cells, at its full length. For [`ROWS`] or more, the first row that may
    /// be long enough.
    pub fn first(&mut self, cells: u64) -> Option<Range<u64>> {
        let least = cells.min(ROWS as u64 - 1);
        let dense = *self.dense.get(least as usize)?;
        let row = self.row(dense, least);
        let begins = row.as_ref().map_or(self.count, |row| row.start);
        if let Some(dense) = self.dense.get_mut(least as usize) {
            *dense = begins;
        }
        row
    }

    /// The first row of at least `cells` free cells from cell `n` on.
    pub fn row(&self, mut n: u64, cells: u64) -> Option<Range<u64>> {
        loop {
            let first = self.is(n, false)?;
            n = self.is(first, true).unwrap_or(self.count);
            if n - first >= cells {
                return Some(first..n);
            }
        }
    }

    /// Returns whether all of them are free.
    pub fn is_empty(&self) -> bool {
        self.used.iter().all(|word| *word == 0)
    }

    /// Marks cells as used or free.
    pub fn set(&mut self, cells: Range<u64>, used: bool) {
        if !used {
            // The row may begin before them, by less than the length that it lacked.
            for (length, dense) in (0..).zip(&mut self.dense) {
                *dense = (*dense).min(cells.start.saturating_sub(length));
            }
        }
        for n in cells {
            if let Some(word) = self.used.get_mut(n as usize / 64) {
                let bit = 1 << (n % 64);
                *word = if used { *word | bit } else { *word & !bit };
            }
        }
    }

    /// The first cell from `n` on that is used, or free.
    fn is(&self, n: u64, used: bool) -> Option<u64> {
        let mut word = n / 64;
        let mut wanted = u64::MAX << (n % 64);
        loop {
            let bits = *self.used.get(word as usize)?;
            let found = if used { bits } else { !bits } & wanted;
            if found != 0 {
                let n = word * 64 + u64::from(found.trailing_zeros());
                return Some(n).filter(|n| *n < self.count);
            }
            word += 1;
            wanted = u64::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row that a scan of every cell finds.
    fn looked_for(used: &[bool], cells: u64) -> Option<Range<u64>> {
        let mut n = 0;
        while n < used.len() {
            let len = used[n..].iter().take_while(|used| !**used).count();
            if len > 0 && len as u64 >= cells {
                return Some(n as u64..(n + len) as u64);
            }
            n += len.max(1);
        }
        None
    }

    #[test]
    fn rows_are_those_that_a_look_at_every_cell_finds() {
        let mut random = 0x2545_f491_4f6c_dd1du64;
        let mut number = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for count in [1, 63, 64, 65, 300, 1000] {
            let mut cells = Cells::new(count);
            let mut used = std::vec![false; count as usize];
            let mut taken: Vec<Range<u64>> = Vec::new();
            for _ in 0..20_000 {
                let most = if number(4) == 0 { 400 } else { 12 };
                let length = number(most) + 1;
                let least = length.min(ROWS as u64 - 1);
                let row = cells.first(length);
                assert_eq!(row, looked_for(&used, least));
                let at = row.filter(|row| row.end - row.start >= length);
                if let Some(row) = at.filter(|_| number(3) > 0) {
                    // Somewhere in the row.
                    let start = row.start + number(row.end - row.start - length + 1);
                    cells.set(start..start + length, true);
                    used[start as usize..(start + length) as usize].fill(true);
                    taken.push(start..start + length);
                } else if !taken.is_empty() {
                    let free = taken.swap_remove(number(taken.len() as u64) as usize);
                    used[free.start as usize..free.end as usize].fill(false);
                    cells.set(free, false);
                }
            }
        }
    }
}
