//! Where the trampolines of patches lie: memory within reach of a jump from the program's code, at places that the
//! jump's bytes can encode (see `engine/src/patch`).
//!
//! A cave does not obstruct the program. Where the program break or the stack will grow, a cave is used only if there
//! is no other place, as far away as possible. It is given back before the break arrives (`syscalls::affected`). The
//! program may also have reserved address space, as V8 does for its code and, at its end, the copy of its built-in
//! functions. Such a cave is a range in the middle, which is closed again before the program uses it.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use linux_raw_sys::general as k;
use ulpf_engine::patch::Group;
use ulpf_lib::addr::USER_END;
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::sys;
use ulpf_lib::{PAGE_SIZE, TargetAddr};

use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::runtime::thread::{State, Thread};
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::cells::Cells;

const CAVE_SIZE: u64 = 4 << 20;
const CELL: u64 = 16;
const MOST_CAVES: usize = 128;
/// How far a jump reaches, less a little.
const REACH: u64 = (1 << 31) - (1 << 25);
/// Lowest address that may be mapped, as a rule.
const LOWEST: u64 = 0x1_0000;
/// Distance that a cave keeps from what may grow.
const ASIDE: u64 = 64 << 20;
/// The same, from the program break.
const FROM_BREAK: u64 = 1 << 30;
/// The same where there is no other place: the jump's bytes may leave no choice.
const NEAR_BREAK: u64 = 16 << 20;
const LAST: u64 = 8;
/// Placement within reserved address space, and its least size.
const RESERVED: u64 = 7;
const LEAST_RESERVED: u64 = 256 << 20;

pub struct CodeCaves(Vec<CodeCave>);

struct CodeCave {
    start: u64,
    len: u64,
    cells: Cells,
    /// It lies in address space that the program has reserved.
    reserved: bool,
}

impl CodeCaves {
    pub fn new() -> CodeCaves {
        CodeCaves(Vec::new())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A free place for a trampoline of `size` bytes that a jump of this group can reach.
    pub fn find(
        &mut self,
        stopped: &mut Stopped,
        group: &Group,
        size: u64,
        maps: &Snapshot,
    ) -> Option<u64> {
        if let Some(at) = self.find_there(group, size) {
            return Some(at);
        }
        for (rank, free) in self.places(group, maps) {
            let reserved = rank == RESERVED;
            let Some(to) = next(group, free.start).filter(|to| to + size <= free.end) else {
                continue;
            };
            let start = free.start.max(to & !(16 * PAGE_SIZE - 1));
            let len = CAVE_SIZE.min(free.end - start);
            if self.0.len() < MOST_CAVES
                && self.add(stopped, start, len, reserved)
                && let Some(at) = self.0.last_mut().and_then(|c| c.find(group, size))
            {
                return Some(at);
            }
        }
        None
    }

    /// The same in existing caves.
    pub fn find_there(&mut self, group: &Group, size: u64) -> Option<u64> {
        self.0.iter_mut().find_map(|c| c.find(group, size))
    }

    /// Free memory within reach of the group, the best first.
    fn places(&self, group: &Group, maps: &Snapshot) -> Vec<(u64, Range<u64>)> {
        let here = group.start();
        let reach =
            here.saturating_sub(REACH).max(LOWEST)..(here + REACH).min(USER_END - PAGE_SIZE);
        let brk = g().brk.load(Relaxed);
        let mut all: Vec<(u64, Range<u64>)> = Vec::new();
        let mut near_break = None;
        for n in 0..=maps.vmas.len() {
            let below = n.checked_sub(1).and_then(|n| maps.vmas.get(n));
            let above = maps.vmas.get(n);
            let (low, high) = (
                below.map_or(0, |v| v.end),
                above.map_or(USER_END, |v| v.start),
            );
            let large = high.saturating_sub(low) >= 4 * ASIDE;
            let (mut start, mut end) = (low, high);
            let mut rank = u64::from(!large) << 1;
            if large {
                // Our own do not grow.
                let aside = |v: Option<&Vma>| match v {
                    Some(v) if self.0.iter().any(|cave| cave.start == v.start) => 0,
                    _ => ASIDE,
                };
                (start, end) = (low + aside(below), high - aside(above));
            }
            if above.is_some_and(|v| v.kind == VmaKind::Stack) {
                end = end.min(high.saturating_sub(ASIDE));
            }
            if low <= brk.next_multiple_of(PAGE_SIZE) && brk < high {
                let near = (brk + NEAR_BREAK).max(start)..(brk + FROM_BREAK).min(end);
                near_break = Some(near).filter(|near| near.start < near.end);
                start = start.max(brk + FROM_BREAK);
                rank = 4;
            }
            let (start, end) = (
                start.max(reach.start),
                end.min(reach.end) & !(PAGE_SIZE - 1),
            );
            let start = start.next_multiple_of(PAGE_SIZE);
            if start >= end {
                continue;
            }
            // The nearest to the code first, of large gaps more than one.
            let from = match start > here {
                true => start,
                false => end.saturating_sub(CAVE_SIZE).max(start),
            };
            all.push((rank, from..end));
            if from != start {
                all.push((rank + 1, start..end));
            }
        }
        all.extend(near_break.map(|near| (LAST, near)));
        let within = |r: Range<u64>| r.start.max(reach.start)..r.end.min(reach.end);
        let reserved = maps.vmas.iter().filter_map(middle).map(within);
        all.extend(reserved.filter(|r| r.start < r.end).map(|r| (RESERVED, r)));
        all.sort_by_key(|(rank, r)| (*rank, r.start.abs_diff(here)));
        all
    }

    fn add(&mut self, stopped: &mut Stopped, start: u64, len: u64, reserved: bool) -> bool {
        let there = match reserved {
            true => open(start, len),
            false => map(start, len),
        };
        if !there {
            return false;
        }
        match reserved {
            true => stopped.guards().exclude_lent(TargetAddr(start), len),
            false => stopped.guards().exclude(TargetAddr(start), len),
        }
        let patches = &mut stopped.tables_mut().patches;
        patches.caves.push((start, start + len));
        if reserved {
            patches.reserved.push((start, start + len));
        }
        self.0.push(CodeCave {
            start,
            len,
            cells: Cells::new(len / CELL),
            reserved,
        });
        true
    }

    /// Marks the bytes `[at, at + size)` of a cave as used, or as free.
    pub fn take(&mut self, at: u64, size: u64, take: bool) {
        let Some(cave) = self.0.iter_mut().find(|r| r.range().contains(&at)) else {
            return;
        };
        let first = (at - cave.start) / CELL;
        let end = (at + size - cave.start).div_ceil(CELL);
        cave.cells.set(first..end, take);
    }

    /// Gives back the caves in `[start, end)`, and returns which they were.
    pub fn forget(&mut self, stopped: &mut Stopped, start: u64, end: u64) -> Vec<Range<u64>> {
        let (gone, stay) = core::mem::take(&mut self.0)
            .into_iter()
            .partition(|c| c.start < end && start < c.start + c.len);
        self.0 = stay;
        let gone: Vec<CodeCave> = gone;
        for cave in &gone {
            match cave.reserved {
                true => patches::close_reserved(cave.start, cave.len),
                // SAFETY: our own mapping, with the world stopped; no thread executes in it.
                false => drop(unsafe { sys!(k::__NR_munmap, cave.start, cave.len) }),
            }
            stopped.guards().include(TargetAddr(cave.start), cave.len);
            let patches = &mut stopped.tables_mut().patches;
            patches.caves.retain(|r| r.0 != cave.start);
            patches.reserved.retain(|r| r.0 != cave.start);
        }
        gone.iter().map(CodeCave::range).collect()
    }
}

impl CodeCave {
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.len
    }

    /// A place for a trampoline.
    fn find(&mut self, group: &Group, size: u64) -> Option<u64> {
        let cells = size.div_ceil(CELL);
        let mut row = self.cells.first(cells)?;
        loop {
            let at = next(group, self.start + row.start * CELL)?;
            if at + size <= self.start + row.end * CELL {
                return Some(at);
            }
            let behind = row.end.max((at - self.start) / CELL);
            row = self.cells.row(behind, cells)?;
        }
    }
}

/// The next possible start of a trampoline, from `at` on. Behind an instruction of one byte the jump's lowest byte has
/// few possible values. Then the trampoline may have to begin within a cell.
fn next(group: &Group, at: u64) -> Option<u64> {
    group.next(at, CELL).or_else(|| group.next(at, 1))
}

/// The part of reserved address space that may become a cave: allocators begin at an end of it.
fn middle(vma: &Vma) -> Option<Range<u64>> {
    let len = vma.end - vma.start;
    let reserved = vma.kind == VmaKind::Anonymous && vma.prot == 0 && !vma.shared;
    let start = (vma.start + len / 2).next_multiple_of(PAGE_SIZE);
    (reserved && len >= LEAST_RESERVED).then_some(start..vma.end - ASIDE)
}

/// Maps a cave at an unmapped address.
fn map(start: u64, len: u64) -> bool {
    let prot = k::PROT_READ | k::PROT_EXEC;
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED_NOREPLACE | k::MAP_NORESERVE;
    // SAFETY: a place where nothing is.
    let Ok(got) = (unsafe { sys!(k::__NR_mmap, start, len, prot, flags, -1i64, 0) }) else {
        return false;
    };
    if got != start {
        // SAFETY: just mapped, by a kernel that does not know the flag.
        let _ = unsafe { sys!(k::__NR_munmap, got, len) };
    }
    got == start
}

/// Makes a cave of reserved address space, if it is still reserved and no thread is about to change it. The mapping
/// keeps its other attributes in the kernel.
fn open(start: u64, len: u64) -> bool {
    let changes = |t: &Thread| {
        let nr = t.orig_rax.load(Relaxed) as u32;
        t.state() == State::InSyscall && CALLS.contains(&nr)
    };
    let maps = Snapshot::read();
    let vma = maps.as_ref().ok().and_then(|maps| maps.at(start));
    let there = |r: Range<u64>| r.start <= start && start + len <= r.end;
    if g().threads.iter().any(changes) || !vma.and_then(middle).is_some_and(there) {
        return false;
    }
    let prot = k::PROT_READ | k::PROT_EXEC;
    // SAFETY: nothing is mapped there, and the program's calls that would use it are seen first.
    unsafe { sys!(k::__NR_mprotect, start, len, prot) }.is_ok()
}

/// Calls that may change reserved address space.
const CALLS: [u32; 6] = [
    k::__NR_mmap,
    k::__NR_munmap,
    k::__NR_mremap,
    k::__NR_mprotect,
    k::__NR_pkey_mprotect,
    k::__NR_madvise,
];
