//! Patching system-call sites, on the stub's task with the world at rest (see `syscalls/sites.rs`).
//!
//! A `syscall` has two bytes, a jump five. Two ways to make room, neither of which changes a byte
//! that another branch could land in the middle of:
//!
//! ```text
//! NearJump:    b8 6e 00 00 00 | 0f 05      mov eax, 110; syscall
//!              e9 .. .. .. .. | 0f 05      jmp trampoline; the `syscall` stays for whoever jumps to it
//! PunnedJump:  0f 05 | 48 3d 00 f0 ff ff   syscall; cmp rax, -4096
//!              e9 XX | 48 3d 00 f0 ff ff   jmp whose displacement is 0x003d48XX: the next instruction
//!                                          is unchanged, and the trampoline goes where that leads
//! ```
//! (The second is E9Patch's punning: Duck, Gao, Roychoudhury, PLDI 2020.) Where neither works the site
//! stays as it is.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::access::Decoder;
use ulpf_lib::TargetAddr;
use ulpf_lib::guard::maps::{Snapshot, VmaKind};
use ulpf_lib::guard::{PROT_EXEC, PROT_WRITE};
use ulpf_lib::sys;

use super::{Control, text};
use crate::g;
use crate::syscalls::sites::{self, FILTER, KNOWN, SEEN_SITES, SLOW, Seen, Site};
use crate::syscalls::sites_code::{self, Code, MAX_NUMBERS, Plan, SLOT, SLOTS};

const PAGE: u64 = 4096;
/// Bytes of a trampoline: jmp [rip+0] and its target.
const TRAMPOLINE: u64 = 14;
/// Trampolines lie on multiples of this.
const CELL: u64 = 16;
/// How far a jump reaches, less a little.
const REACH: u64 = (1 << 31) - (1 << 16);
const LOOK_BACK: u64 = 48;

/// What the stub's task alone knows.
#[derive(Default)]
pub struct Sites {
    /// Cells in use of each page in `Table::near`.
    cells: Vec<[u64; 4]>,
    bmi2: bool,
    pub refused: u64,
}

/// Why a site is not patched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Not {
    /// It may work another time.
    Now,
    Ever,
}

impl Sites {
    pub fn new() -> Sites {
        Sites {
            cells: alloc::vec![[0; 4]; sites::NEAR_PAGES],
            // CPUID 7: EBX bit 8.
            bmi2: core::arch::x86_64::__cpuid_count(7, 0).ebx >> 8 & 1 != 0,
            refused: 0,
        }
    }

    /// The site at `insn` is busy: patch it, and with it those that nearly are.
    pub fn patch(&mut self, insn: u64) {
        if !sites::ENABLED.load(SeqCst) {
            return;
        }
        let after = sites::AFTER.load(Relaxed);
        let Ok(maps) = Snapshot::read() else { return };
        for s in &SEEN_SITES {
            let at = s.insn.load(SeqCst);
            let busy = at == insn || s.count.load(Relaxed) * 4 >= after.max(4);
            if at == 0 || !busy || s.refused.load(Relaxed) {
                continue;
            }
            s.count.store(0, Relaxed);
            if self.patch_one(s, at, &maps) == Err(Not::Ever) {
                s.refused.store(true, Relaxed);
                self.refused += 1;
            }
        }
    }

    fn patch_one(&mut self, s: &Seen, insn: u64, maps: &Snapshot) -> Result<(), Not> {
        let met: Vec<u16> = (0..KNOWN as u64)
            .filter(|&nr| sites::has(&s.met, nr))
            .map(|nr| nr as u16)
            .collect();
        // SAFETY: the world rests.
        let table = unsafe { sites::table_mut() };
        if let Some(at) = table
            .sites
            .iter()
            .position(|x| x.in_place && x.insn == insn)
        {
            return self.extend(at, s, &met);
        }
        let index = table
            .sites
            .iter()
            .position(|x| !x.in_place)
            .ok_or(Not::Ever)?;
        let mut site = self.place(insn, &met, maps)?;
        let written = self.fill(index, &mut site, &met);
        if written.is_err() {
            self.free_cell(site.trampoline);
            return written;
        }
        if let Some(slot) = table.sites.get_mut(index) {
            *slot = Site {
                in_place: true,
                ..site
            };
        }
        sites::SOME.store(true, SeqCst);
        if jump(&site).is_err() {
            self.remove(index);
            return Err(Not::Ever);
        }
        met.iter().for_each(|&nr| sites::put(&s.done, nr as u64));
        Ok(())
    }

    /// More numbers for a site that is patched already.
    fn extend(&mut self, index: usize, s: &Seen, met: &[u16]) -> Result<(), Not> {
        // SAFETY: the world rests: nobody is in the slot.
        let table = unsafe { sites::table_mut() };
        let site = table.sites.get_mut(index).ok_or(Not::Ever)?;
        // Whatever comes of it, it is not tried again for these.
        met.iter().for_each(|&nr| sites::put(&s.done, nr as u64));
        if site.mov.is_some() {
            return Ok(());
        }
        let slow = table.slow + index as u64 * SLOW;
        let code = self.code(site, slow, met)?;
        text::write_raw(slot(index), &code.bytes).map_err(|_| Not::Now)?;
        site.marks = code.marks;
        Ok(())
    }

    fn code(&self, site: &Site, slow: u64, numbers: &[u16]) -> Result<Code, Not> {
        let plan = |n: usize| Plan {
            slow,
            next: site.next(),
            mov: site.mov,
            numbers: numbers.get(..n).unwrap_or(&[]),
            near: FILTER.near.as_ptr() as u64,
            wide: FILTER.wide.as_ptr() as u64,
            bmi2: self.bmi2,
        };
        // As many numbers as there is room for.
        (0..=numbers.len().min(MAX_NUMBERS))
            .rev()
            .find_map(|n| Code::generate(&plan(n)))
            .ok_or(Not::Ever)
    }

    /// Slot and trampoline, before the jump that leads there.
    fn fill(&self, index: usize, site: &mut Site, met: &[u16]) -> Result<(), Not> {
        let (slow, numbers) = match site.mov {
            Some(_) => (site.insn, &[][..]),
            None => (slow_way(index, site.next())?, met),
        };
        let code = self.code(site, slow, numbers)?;
        site.marks = code.marks;
        let mut jump = [0u8; TRAMPOLINE as usize];
        jump[..2].copy_from_slice(&[0xff, 0x25]);
        jump[6..].copy_from_slice(&slot(index).to_le_bytes());
        text::write_raw(slot(index), &code.bytes)
            .and_then(|()| text::write_raw(site.trampoline, &jump))
            .map_err(|_| Not::Ever)
    }

    /// Decides how to patch, and takes a place for the trampoline.
    fn place(&mut self, insn: u64, met: &[u16], maps: &Snapshot) -> Result<Site, Not> {
        let vma = maps.at(insn).ok_or(Not::Ever)?;
        // Never memory that others see, or that the program may write while we patch it.
        if vma.shared
            || vma.kind != VmaKind::File
            || vma.prot & PROT_WRITE != 0
            || vma.prot & PROT_EXEC == 0
            || insn + 8 > vma.end
        {
            return Err(Not::Ever);
        }
        let from = insn.saturating_sub(LOOK_BACK).max(vma.start);
        let mut bytes = [0u8; LOOK_BACK as usize + 8];
        let len = (insn + 8 - from) as usize;
        let bytes = bytes.get_mut(..len).ok_or(Not::Ever)?;
        if ours(from, insn + 8) {
            return Err(Not::Now);
        }
        if text::read(from, bytes) != len {
            return Err(Not::Ever);
        }
        let at = (insn - from) as usize;
        if bytes.get(at..at + 2) != Some(&[0x0f, 0x05]) {
            return Err(Not::Ever);
        }
        let mut site = Site { insn, ..Site::FREE };
        if let Some((size, nr)) = number_before(bytes, at, from)
            && met == [nr as u16]
            && free(insn - size as u64, insn)
            && let Some(t) = self.near_cell(insn - size as u64, maps)
        {
            site.start = insn - size as u64;
            site.len = size;
            site.end = insn;
            site.mov = Some(nr);
            site.trampoline = t;
        } else {
            if !free(insn, insn + 5) {
                return Err(Not::Now);
            }
            let tail = bytes.get(at + 2..at + 5).ok_or(Not::Ever)?;
            site.start = insn;
            site.len = 2;
            site.end = insn + 5;
            site.trampoline = self.punned_cell(insn, tail, maps).ok_or(Not::Ever)?;
        }
        let first = (site.start - from) as usize;
        let n = site.len as usize;
        if let (Some(to), Some(original)) =
            (site.original.get_mut(..n), bytes.get(first..first + n))
        {
            to.copy_from_slice(original);
        }
        Ok(site)
    }

    // ---- trampolines ---------------------------------------------------------------------------

    /// A cell that a jump at `from` reaches.
    fn near_cell(&mut self, from: u64, maps: &Snapshot) -> Option<u64> {
        for (n, &page) in sites::table().near.iter().enumerate() {
            if page != 0 && page.abs_diff(from) < REACH {
                for c in 0..PAGE / CELL {
                    if self.take_cell(n, page + c * CELL) {
                        return Some(page + c * CELL);
                    }
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
                .then(|| (end - 2 * PAGE).min(end - (end - start) / 64) & !(PAGE - 1))
        });
        let above = (here..maps.vmas.len().saturating_sub(1)).filter_map(|n| {
            let (start, end) = (maps.vmas.get(n)?.end, maps.vmas.get(n + 1)?.start);
            (start + 3 * PAGE <= end).then_some(((start + end) / 2) & !(PAGE - 1))
        });
        let page = below
            .chain(above)
            .filter(|p| p.abs_diff(from) < REACH && quiet(*p, maps))
            .take(8)
            .find(|&p| self.new_page(p).is_some())?;
        let n = sites::table().near.iter().position(|p| *p == page)?;
        self.take_cell(n, page).then_some(page)
    }

    /// A cell where the jump `e9 XX tail` at `insn` leads, for some XX.
    fn punned_cell(&mut self, insn: u64, tail: &[u8], maps: &Snapshot) -> Option<u64> {
        let [b1, b2, b3] = *tail else { return None };
        let low = i32::from_le_bytes([0, b1, b2, b3]) as i64;
        let first = insn.checked_add(5)?.checked_add_signed(low)?;
        let mut at = first.next_multiple_of(CELL);
        while at <= first + 255 {
            let page = at & !(PAGE - 1);
            if page < 0x1_0000 || at >= ulpf_lib::addr::USER_END - PAGE {
                return None;
            }
            let known = sites::table().near.iter().position(|p| *p == page);
            let n = match known {
                Some(n) => Some(n),
                None if maps.at(page).is_none() && quiet(page, maps) => self.new_page(page),
                None => None,
            };
            if n.is_some_and(|n| self.take_cell(n, at)) {
                return Some(at);
            }
            at += CELL;
        }
        None
    }

    fn new_page(&mut self, page: u64) -> Option<usize> {
        // SAFETY: the world rests.
        let table = unsafe { sites::table_mut() };
        let n = table.near.iter().position(|p| *p == 0)?;
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED_NOREPLACE;
        // SAFETY: a page where nothing is.
        let got = unsafe { sys!(k::__NR_mmap, page, PAGE, 5, flags, -1i64, 0) }.ok()?;
        if got != page {
            // SAFETY: just mapped, by a kernel that does not know the flag.
            let _ = unsafe { sys!(k::__NR_munmap, got, PAGE) };
            return None;
        }
        *table.near.get_mut(n)? = page;
        *self.cells.get_mut(n)? = [0; 4];
        // SAFETY: the stub's task, with the world at rest.
        unsafe { g().guards_mut() }.exclude(TargetAddr(page), PAGE);
        Some(n)
    }

    fn take_cell(&mut self, page: usize, at: u64) -> bool {
        let cell = (at % PAGE / CELL) as usize;
        let Some(word) = self.cells.get_mut(page).and_then(|c| c.get_mut(cell / 64)) else {
            return false;
        };
        let bit = 1u64 << (cell % 64);
        let free = *word & bit == 0;
        *word |= bit;
        free
    }

    fn free_cell(&mut self, at: u64) {
        let page = sites::table()
            .near
            .iter()
            .position(|p| *p == at & !(PAGE - 1));
        let cell = (at % PAGE / CELL) as usize;
        if let Some(word) = page
            .and_then(|n| self.cells.get_mut(n))
            .and_then(|c| c.get_mut(cell / 64))
        {
            *word &= !(1 << (cell % 64));
        }
    }

    // ---- the way back --------------------------------------------------------------------------

    fn remove(&mut self, index: usize) {
        // SAFETY: the world rests.
        let Some(site) = (unsafe { sites::table_mut() }).sites.get_mut(index) else {
            return;
        };
        let original = site.original.get(..site.len as usize).unwrap_or(&[]);
        let _ = text::write_raw(site.start, original);
        let (insn, trampoline) = (site.insn, site.trampoline);
        *site = Site::FREE;
        self.free_cell(trampoline);
        for s in &SEEN_SITES {
            if s.insn.load(Relaxed) == insn {
                s.count.store(0, Relaxed);
                s.done.iter().for_each(|w| w.store(0, Relaxed));
            }
        }
    }

    /// Somebody is about to change or to plant something in `[start, end)`: the original code is back.
    pub fn restore(&mut self, start: u64, end: u64) {
        if !sites::touches(start, end) {
            return;
        }
        for n in 0..SLOTS {
            let Some(s) = sites::table().sites.get(n) else {
                return;
            };
            let meets = |from: u64, to: u64| from < end && start < to;
            if s.in_place
                && (meets(s.start, s.end) || meets(s.trampoline, s.trampoline + TRAMPOLINE))
            {
                self.remove(n);
            }
        }
    }

    /// The mappings of `[start, end)` are about to change. What was known of code there is void.
    pub fn forget(&mut self, start: u64, end: u64) {
        self.restore(start, end);
        for s in &SEEN_SITES {
            let at = s.insn.load(Relaxed);
            if at >= start && at < end {
                s.refused.store(false, Relaxed);
                s.met.iter().for_each(|w| w.store(0, Relaxed));
                s.done.iter().for_each(|w| w.store(0, Relaxed));
            }
        }
        // SAFETY: the world rests.
        for p in unsafe { sites::table_mut() }.near.iter_mut() {
            if *p < end && start < *p + PAGE {
                *p = 0;
            }
        }
    }

    pub fn remove_all(&mut self) {
        for n in 0..SLOTS {
            if sites::table().sites.get(n).is_some_and(|s| s.in_place) {
                self.remove(n);
            }
        }
        // SAFETY: the world rests.
        for p in unsafe { sites::table_mut() }.near.iter_mut() {
            let page = core::mem::take(p);
            if page != 0 {
                // SAFETY: our own page, which nothing leads to any more.
                let _ = unsafe { sys!(k::__NR_munmap, page, PAGE) };
            }
        }
        sites::SOME.store(false, SeqCst);
    }

    pub fn in_place(&self) -> usize {
        sites::table().sites.iter().filter(|s| s.in_place).count()
    }
}

impl Control {
    /// Which memory is ours has changed: the slots have to know.
    pub fn refresh_filter(&self) {
        FILTER.clear();
        // SAFETY: the world rests.
        for (start, end) in unsafe { g().guards_mut() }.moved_runs() {
            FILTER.add(start, end);
        }
        for run in self.staged.list().pages() {
            FILTER.add(run.start.0, run.end.0);
        }
    }

    /// Patching on or off (`monitor ulpf patch-syscalls`).
    pub fn enable_sites(&mut self, on: bool) {
        sites::ENABLED.store(on, SeqCst);
        if !on {
            self.sites.remove_all();
        }
    }
}

fn slot(index: usize) -> u64 {
    sites::slots_base() + (index * SLOT) as u64
}

/// Writes the jump.
fn jump(site: &Site) -> Result<(), sys::Errno> {
    let distance = (site.trampoline.wrapping_sub(site.start + 5) as i32).to_le_bytes();
    let mut bytes = [0xe9, 0, 0, 0, 0, 0xcc, 0xcc, 0xcc];
    bytes[1..5].copy_from_slice(&distance);
    text::write_raw(site.start, bytes.get(..site.len as usize).unwrap_or(&[]))
}

/// `syscall`, outside the image and so dispatched; then the way to the next instruction.
fn slow_way(index: usize, next: u64) -> Result<u64, Not> {
    // SAFETY: the world rests.
    let table = unsafe { sites::table_mut() };
    if table.slow == 0 {
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS;
        let len = SLOW * SLOTS as u64;
        // SAFETY: a new mapping of ours, outside the image.
        let at = unsafe {
            sys!(
                k::__NR_mmap,
                ulpf_lib::guard::our_place(len),
                len,
                5,
                flags,
                -1i64,
                0
            )
        };
        table.slow = at.map_err(|_| Not::Now)?;
    }
    let at = table.slow + index as u64 * SLOW;
    let mut code = [0u8; SLOW as usize];
    code[..4].copy_from_slice(&[0x0f, 0x05, 0x48, 0xb9]);
    code[4..12].copy_from_slice(&next.to_le_bytes());
    code[12..14].copy_from_slice(&[0xff, 0xe1]);
    text::write_raw(at, &code).map_err(|_| Not::Now)?;
    Ok(at)
}

/// Nothing of ours stands in `[start, end)`: breakpoints, other patches, moved pages.
fn free(start: u64, end: u64) -> bool {
    !sites::touches(start, end)
        && !g()
            .breakpoints()
            .iter()
            .any(|b| b.addr >= start && b.addr < end)
}

fn ours(start: u64, end: u64) -> bool {
    g().alias_of(start).is_some() || g().alias_of(end).is_some()
}

/// A page where a mapping of ours is in nobody's way: not where the break or a stack will grow.
fn quiet(page: u64, maps: &Snapshot) -> bool {
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

/// The instruction that ends at `at` loads eax with a constant: its length and the constant.
fn number_before(bytes: &[u8], at: usize, base: u64) -> Option<(u8, u32)> {
    let constant = |from: usize| {
        Some(u32::from_le_bytes(
            bytes.get(from..from + 4)?.try_into().ok()?,
        ))
    };
    let nr = constant(at.checked_sub(4)?)?;
    let opcode = at.checked_sub(5).and_then(|n| bytes.get(n));
    let size = if at >= 7 && bytes.get(at - 7..at - 4) == Some(&[0x48, 0xc7, 0xc0]) && nr >> 31 == 0
    {
        7 // mov rax, imm32
    } else if opcode == Some(&0xb8) {
        5 // mov eax, imm32
    } else {
        return None;
    };
    (nr < KNOWN as u32 && begins_instruction(bytes, at - size, base)).then_some((size as u8, nr))
}

/// Do linear decodings that start further back agree that an instruction begins at `at`?
fn begins_instruction(bytes: &[u8], at: usize, base: u64) -> bool {
    if at > 0 && bytes.get(at - 1).is_some_and(|b| (0x40..0x50).contains(b)) {
        return false; // perhaps a REX prefix
    }
    let decoder = crate::fault::decoder();
    let (mut yes, mut no) = (0, 0);
    for start in 0..at.saturating_sub(15) {
        let mut pc = start;
        while pc < at {
            let code = bytes.get(pc..(pc + 15).min(bytes.len())).unwrap_or(&[]);
            match length(decoder, base + pc as u64, code) {
                Some(n) => pc += n,
                None => break,
            }
        }
        if pc == at {
            yes += 1;
        } else if pc > at {
            no += 1;
        }
    }
    yes > 0 && yes >= 3 * no
}

fn length(decoder: &Decoder, pc: u64, code: &[u8]) -> Option<usize> {
    decoder.decode(pc, code).ok().map(|i| i.len as usize)
}

const _: () = assert!(sites_code::SLOT.is_multiple_of(16) && TRAMPOLINE <= CELL);
