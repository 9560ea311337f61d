//! Pages within reach of patched code, with the trampolines that lead from there to the slots.
//!
//! They are where the program has no memory and gets none by itself: not where the program break or the stack grows.

use alloc::vec::Vec;

use linux_raw_sys::general as k;
use ulpf_lib::TargetAddr;
use ulpf_lib::guard::maps::{Snapshot, VmaKind};
use ulpf_lib::sys;

use core::sync::atomic::Ordering::Relaxed;

use super::text;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_handlers::syscalls::sites;

const PAGE: u64 = 4096;
/// Bytes of a trampoline: jmp [rip+0] and its target.
pub const LEN: u64 = 14;
/// They begin on multiples of this, unless the bytes of a punned jump will have it otherwise.
const CELL: u64 = 16;
/// How far a jump reaches, less a little.
const REACH: u64 = (1 << 31) - (1 << 16);

/// Most room that is left between them and the code: the kernel puts new mappings there.
const ASIDE: u64 = 256 << 20;

/// The pages are those of `sites::Table::near`.
pub struct Trampolines {
    /// Cells in use of each page.
    cells: Vec<[u64; 4]>,
}

impl Trampolines {
    pub fn new() -> Trampolines {
        Trampolines {
            cells: alloc::vec![[0; 4]; sites::NEAR_PAGES],
        }
    }

    /// Writes the trampoline at `at`.
    pub fn write(&self, at: u64, to: u64) -> Result<(), sys::Errno> {
        let mut jump = [0u8; LEN as usize];
        jump[..2].copy_from_slice(&[0xff, 0x25]);
        jump[6..].copy_from_slice(&to.to_le_bytes());
        text::write_raw(at, &jump)
    }

    /// A cell that a jump at `from` reaches.
    pub fn near(&mut self, stopped: &mut Stopped, from: u64, maps: &Snapshot) -> Option<u64> {
        for page in sites::table().near {
            if page != 0 && page.abs_diff(from) < REACH {
                let cells = (page..page + PAGE).step_by(CELL as usize);
                if let Some(at) = cells.into_iter().find(|at| self.take_cell(*at)) {
                    return Some(at);
                }
            }
        }
        // The first gap below, so that the program break has its way upwards; then above.
        let here = maps.index(from);
        let below = (0..=here).rev().filter_map(|n| {
            let end = maps.vmas.get(n)?.start;
            let start = n
                .checked_sub(1)
                .map_or(Some(0x1_0000), |m| Some(maps.vmas.get(m)?.end))?;
            (start + 3 * PAGE <= end)
                .then(|| (end - ((end - start) / 64).clamp(2 * PAGE, ASIDE)) & !(PAGE - 1))
        });
        let above = (here..maps.vmas.len().saturating_sub(1)).filter_map(|n| {
            let (start, end) = (maps.vmas.get(n)?.end, maps.vmas.get(n + 1)?.start);
            (start + 3 * PAGE <= end).then_some(((start + end) / 2) & !(PAGE - 1))
        });
        let page = below
            .chain(above)
            .filter(|p| p.abs_diff(from) < REACH && quiet(*p, maps))
            .take(8)
            .find(|&p| self.new_page(stopped, p).is_some())?;
        self.take_cell(page).then_some(page)
    }

    /// Where a jump of two bytes at `start`, completed by the bytes behind them, leads: a free place
    /// for a trampoline, and the two bytes.
    pub fn punned(
        &mut self,
        stopped: &mut Stopped,
        start: u64,
        tail: &[u8],
        prefix: bool,
        maps: &Snapshot,
    ) -> Option<(u64, [u8; 8])> {
        let [b1, b2, b3, b4] = *tail else { return None };
        if prefix {
            let to = start
                .checked_add(6)?
                .checked_add_signed(i32::from_le_bytes([b1, b2, b3, b4]) as i64)?;
            // 0x48: REX.W, without effect on a near jump.
            return self
                .take_place(stopped, to, maps)
                .then_some((to, [0x48, 0xe9, 0, 0, 0, 0, 0, 0]));
        }
        let low = i32::from_le_bytes([0, b1, b2, b3]) as i64;
        let first = start.checked_add(5)?.checked_add_signed(low)?;
        let mut to = first.next_multiple_of(CELL);
        while to <= first + 255 {
            if self.take_place(stopped, to, maps) {
                return Some((to, [0xe9, (to - first) as u8, 0, 0, 0, 0, 0, 0]));
            }
            to += CELL;
        }
        None
    }

    /// Takes the cells of a trampoline at `at`, on new pages if need be.
    fn take_place(&mut self, stopped: &mut Stopped, at: u64, maps: &Snapshot) -> bool {
        let last = at + LEN - 1;
        if at < 0x1_0000 || last >= ulpf_lib::addr::USER_END - PAGE {
            return false;
        }
        for page in [at & !(PAGE - 1), last & !(PAGE - 1)] {
            let ready = sites::table().near.contains(&page)
                || (maps.at(page).is_none()
                    && quiet(page, maps)
                    && self.new_page(stopped, page).is_some());
            if !ready {
                return false;
            }
        }
        let first = at & !(CELL - 1);
        let second = last & !(CELL - 1);
        if !self.take_cell(first) {
            return false;
        }
        if second != first && !self.take_cell(second) {
            self.free_cell(first);
            return false;
        }
        true
    }

    fn new_page(&mut self, stopped: &mut Stopped, page: u64) -> Option<usize> {
        let table = stopped.sites();
        let n = table.near.iter().position(|p| *p == 0)?;
        let prot = k::PROT_READ | k::PROT_EXEC;
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED_NOREPLACE;
        // SAFETY: a page where nothing is.
        let got = unsafe { sys!(k::__NR_mmap, page, PAGE, prot, flags, -1i64, 0) }.ok()?;
        if got != page {
            // SAFETY: just mapped, by a kernel that does not know the flag.
            let _ = unsafe { sys!(k::__NR_munmap, got, PAGE) };
            return None;
        }
        *table.near.get_mut(n)? = page;
        *self.cells.get_mut(n)? = [0; 4];
        stopped.guards().exclude(TargetAddr(page), PAGE);
        Some(n)
    }

    fn cell(&mut self, at: u64) -> Option<(&mut u64, u64)> {
        let page = sites::table()
            .near
            .iter()
            .position(|p| *p == at & !(PAGE - 1))?;
        let cell = (at % PAGE / CELL) as usize;
        Some((
            self.cells.get_mut(page)?.get_mut(cell / 64)?,
            1 << (cell % 64),
        ))
    }

    fn take_cell(&mut self, at: u64) -> bool {
        self.cell(at).is_some_and(|(word, bit)| {
            let free = *word & bit == 0;
            *word |= bit;
            free
        })
    }

    fn free_cell(&mut self, at: u64) {
        if let Some((word, bit)) = self.cell(at) {
            *word &= !bit;
        }
    }

    pub fn free(&mut self, trampoline: u64) {
        self.free_cell(trampoline);
        self.free_cell(trampoline + LEN - 1);
    }

    /// No code leads to any of them any more.
    pub fn unmap(&mut self, stopped: &mut Stopped) {
        for p in stopped.sites().near.iter_mut() {
            let page = core::mem::take(p);
            if page != 0 {
                // SAFETY: our own page.
                let _ = unsafe { sys!(k::__NR_munmap, page, PAGE) };
            }
        }
    }

    /// The mappings of `[start, end)` are about to change; no site uses a page there any more.
    pub fn forget(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        for p in stopped.sites().near.iter_mut() {
            if *p < end && start < *p + PAGE {
                *p = 0;
            }
        }
    }
}

pub fn jump(start: u64, to: u64) -> [u8; 8] {
    let distance = (to.wrapping_sub(start + 5) as i32).to_le_bytes();
    let mut bytes = [0xe9, 0, 0, 0, 0, 0xcc, 0xcc, 0xcc];
    bytes[1..5].copy_from_slice(&distance);
    bytes
}

/// Returns whether a mapping of ours at `page` does not obstruct the program: neither the break nor a stack will grow
/// there.
pub fn quiet(page: u64, maps: &Snapshot) -> bool {
    const ROOM: u64 = 64 << 20;
    let brk = g().brk.load(Relaxed);
    let at = maps.index(page);
    let below = at
        .checked_sub(1)
        .and_then(|n| maps.vmas.get(n))
        .map_or(0, |v| v.end);
    if page >= brk && below <= brk.next_multiple_of(PAGE) {
        return false;
    }
    !maps
        .vmas
        .get(at)
        .is_some_and(|v| v.kind == VmaKind::Stack && v.start - page < ROOM)
}
