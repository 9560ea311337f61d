//! Code caves: memory of the stub within reach of a jump from the program's code, and the code that lies there
//! (`control/code_caves.rs` of the stub's task makes them).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};

use ulpf_engine::patch::Group;

use crate::cells::Cells;

const CELL: u64 = 16;

/// The addresses that a jump may lead to.
pub trait Reach {
    /// The next such address from `at` on, at a multiple of `step`.
    fn next(&self, at: u64, step: u64) -> Option<u64>;

    /// The next such address from `at` on. Where the jump's lowest byte has few possible values, code may have to begin
    /// within a cell.
    fn next_start(&self, at: u64) -> Option<u64> {
        self.next(at, CELL).or_else(|| self.next(at, 1))
    }
}

impl Reach for Group {
    fn next(&self, at: u64, step: u64) -> Option<u64> {
        Group::next(self, at, step)
    }
}

impl Reach for RangeInclusive<u64> {
    fn next(&self, at: u64, step: u64) -> Option<u64> {
        let next = at.max(*self.start()).checked_next_multiple_of(step)?;
        self.contains(&next).then_some(next)
    }
}

pub struct Cave {
    pub start: u64,
    pub end: u64,
    /// It lies in address space that the program has reserved.
    pub reserved: bool,
    /// The program may come to need its place.
    gives_way: bool,
    cells: Cells,
    /// It has code that stays: it is not given back.
    lasting: bool,
}

/// A piece of code in a cave.
struct Code {
    /// Start of the edit that leads there.
    edit: u64,
    len: u64,
}

#[derive(Default)]
pub struct Caves {
    list: Vec<Cave>,
    /// By address; no two overlap.
    code: BTreeMap<u64, Code>,
}

impl Caves {
    pub const fn new() -> Caves {
        Caves {
            list: Vec::new(),
            code: BTreeMap::new(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Cave> {
        self.list.iter()
    }
    pub fn count(&self) -> usize {
        self.list.len()
    }
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.list.iter().any(|c| c.start < end && start < c.end)
    }

    /// Adds a cave, all of it free.
    pub fn add(&mut self, range: Range<u64>, reserved: bool, gives_way: bool) {
        self.list.push(Cave {
            start: range.start,
            end: range.end,
            reserved,
            gives_way,
            cells: Cells::new((range.end - range.start) / CELL),
            lasting: false,
        });
    }

    /// A free place for `size` bytes of code in a cave; for code that is `lasting`, in one that gives no way.
    pub fn find(&mut self, reach: &dyn Reach, size: u64, lasting: bool) -> Option<u64> {
        let caves = self.list.iter_mut();
        let mut caves = caves.filter(|cave| !(lasting && cave.gives_way));
        caves.find_map(|cave| cave.find(reach, size))
    }

    /// Takes `[at, at + size)` for code of the edit at `edit`, `len` bytes. Code that is `lasting` stays when the cave
    /// would be given back.
    pub fn take(&mut self, at: u64, (len, size): (u64, u64), edit: u64, lasting: bool) {
        self.set(at, size, true, lasting);
        self.code.insert(at, Code { edit, len });
    }

    /// Frees the same bytes.
    pub fn free(&mut self, at: u64, size: u64) {
        self.set(at, size, false, false);
        self.code.remove(&at);
    }

    fn set(&mut self, at: u64, size: u64, take: bool, lasting: bool) {
        let mut caves = self.list.iter_mut();
        if let Some(cave) = caves.find(|c| c.start <= at && at < c.end) {
            let first = (at - cave.start) / CELL;
            let end = (at + size - cave.start).div_ceil(CELL);
            cave.cells.set(first..end, take);
            cave.lasting |= lasting;
        }
    }

    /// Start of the edit whose code holds `pc`, or ends there; and the offset of `pc` in the code.
    pub fn edit_of(&self, pc: u64) -> Option<(u64, u64)> {
        if !self.touches(pc, pc.saturating_add(1)) {
            return None;
        }
        let (at, code) = self.code.range(..=pc).next_back()?;
        let offset = pc - at;
        (offset <= code.len).then_some((code.edit, offset))
    }

    /// Starts of the edits with code in `[start, end)`.
    pub fn edits_in(&self, start: u64, end: u64) -> Vec<u64> {
        let before = self.code.range(..start).next_back();
        let before = before.filter(|(at, code)| start < **at + code.len);
        let all = before
            .into_iter()
            .chain(self.code.range(start..end.max(start)));
        all.map(|(_, code)| code.edit).collect()
    }

    /// Removes the caves that `goes` names, and returns them.
    pub fn remove(&mut self, goes: impl Fn(&Cave) -> bool) -> Vec<Cave> {
        let goes = |cave: &Cave| !cave.lasting && goes(cave);
        let (gone, stay) = core::mem::take(&mut self.list).into_iter().partition(goes);
        self.list = stay;
        gone
    }
}

impl Cave {
    pub fn len(&self) -> u64 {
        self.end - self.start
    }
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn find(&mut self, reach: &dyn Reach, size: u64) -> Option<u64> {
        let cells = size.div_ceil(CELL);
        let mut row = self.cells.first(cells)?;
        loop {
            let at = reach.next_start(self.start + row.start * CELL)?;
            if at + size <= self.start + row.end * CELL {
                return Some(at);
            }
            let behind = row.end.max((at - self.start) / CELL);
            row = self.cells.row(behind, cells)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x7000_0000;

    fn cave() -> Caves {
        let mut caves = Caves::new();
        caves.add(START..START + 0x1000, false, false);
        caves
    }

    #[test]
    fn code_lies_where_a_jump_can_lead() {
        let mut caves = cave();
        let anywhere = 0..=u64::MAX;
        assert_eq!(caves.find(&anywhere, 14, false), Some(START));
        caves.take(START, (14, 14), 1, false);
        assert_eq!(caves.find(&anywhere, 14, false), Some(START + 16));
        // One possible address, within a cell.
        let one = START + 35..=START + 35;
        assert_eq!(caves.find(&one, 14, false), Some(START + 35));
        caves.take(START + 35, (14, 14), 2, false);
        assert_eq!(caves.find(&one, 14, false), None);
        assert_eq!(
            caves.find(&(START + 17..=START + 64), 14, false),
            Some(START + 64)
        );
        let outside = START + 0x1000..=START + 0x2000;
        assert_eq!(caves.find(&outside, 14, false), None);
        assert_eq!(caves.find(&(0..=START - 1), 14, false), None);
        caves.free(START + 35, 14);
        assert_eq!(caves.find(&one, 14, false), Some(START + 35));
    }

    #[test]
    fn code_leads_to_its_edit() {
        let mut caves = cave();
        caves.take(START, (14, 15), 1, false);
        caves.take(START + 32, (40, 41), 2, false);
        assert_eq!(caves.edit_of(START + 5), Some((1, 5)));
        assert_eq!(caves.edit_of(START + 14), Some((1, 14)));
        assert_eq!(caves.edit_of(START + 15), None);
        assert_eq!(caves.edit_of(START + 32), Some((2, 0)));
        assert_eq!(caves.edit_of(START - 1), None);
        assert_eq!(caves.edits_in(START + 8, START + 32), [1]);
        assert_eq!(caves.edits_in(START + 14, START + 33), [2]);
        assert_eq!(caves.edits_in(0, u64::MAX), [1, 2]);
    }

    #[test]
    fn a_cave_with_lasting_code_stays() {
        let mut caves = cave();
        caves.add(START + 0x2000..START + 0x3000, false, true);
        let there = START + 0x2000..=START + 0x2fff;
        assert_eq!(caves.find(&there, 14, true), None);
        assert_eq!(caves.find(&there, 14, false), Some(START + 0x2000));
        caves.take(START, (14, 14), 1, true);
        caves.free(START, 14);
        let gone = caves.remove(Cave::is_empty);
        assert_eq!(
            gone.iter().map(|c| c.start).collect::<Vec<u64>>(),
            [START + 0x2000]
        );
        assert_eq!(caves.count(), 1);
    }
}
