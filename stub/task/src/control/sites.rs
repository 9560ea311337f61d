//! Patching system-call sites, on the stub's task with the world stopped (see `syscalls/sites.rs`).
//!
//! A `syscall` has two bytes, a jump five. Two ways to make room, neither of which changes a byte
//! that another branch could land in the middle of:
//!
//! ```text
//! NearJump:    b8 6e 00 00 00 | 0f 05      mov eax, 110; syscall
//!              e9 .. .. .. .. | 0f 05      jmp trampoline; the `syscall` stays for whoever jumps to it
//!              48 8b 44 24 10 | 0f 05      mov rax, [rsp+16]; syscall (of a number that is only known then)
//! PunnedJump:  0f 05 | 48 3d 00 f0 ff ff   syscall; cmp rax, -4096
//!              e9 XX | 48 3d 00 f0 ff ff   jmp whose displacement is 0x003d48XX: the next instruction
//!                                          is unchanged, and the trampoline goes where that leads
//! ```
//! (The second is E9Patch's punning: Duck, Gao, Roychoudhury, PLDI 2020. With a prefix before the e9 the
//! displacement begins a byte later and leads elsewhere.) `xor eax, eax; syscall`, how libc calls
//! read, can also be punned at the xor. Where nothing works the site stays as it is.

use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::access::Decoder;
use ulpf_engine::access::state::cpuid;
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::place::{self, AfterFork};
use ulpf_lib::sys;

use super::trampolines::{self, Trampolines};
use super::{Control, text};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_handlers::syscalls::seccomp;
use ulpf_stub_handlers::syscalls::sites::{self, FILTER, KNOWN, SEEN_SITES, SLOW, Seen, Site};
use ulpf_stub_handlers::syscalls::sites_code::{Code, MAX_NUMBERS, Plan, SLOT, SLOTS};

const LOOK_BACK: u64 = 48;

/// State that only the stub's task uses.
pub struct Sites {
    trampolines: Trampolines,
    bmi2: bool,
    pub refused: u64,
    /// Ranges that are marked in the filter, [`merged`].
    marked: Vec<(u64, u64)>,
}

/// Why a site is not patched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Not {
    /// It may work at another time.
    Now,
    Ever,
}

impl Sites {
    pub fn new() -> Sites {
        Sites {
            trampolines: Trampolines::new(),
            // CPUID 7: EBX bit 8.
            bmi2: cpuid(7, 0).ebx >> 8 & 1 != 0,
            refused: 0,
            marked: Vec::new(),
        }
    }

    /// The site at `insn` is busy: patch it, and with it those that nearly are.
    pub fn patch(&mut self, stopped: &mut Stopped, insn: u64) {
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
            if self.patch_one(stopped, s, at, &maps) == Err(Not::Ever) {
                s.refused.store(true, Relaxed);
                self.refused += 1;
            }
        }
    }

    fn patch_one(
        &mut self,
        stopped: &mut Stopped,
        s: &Seen,
        insn: u64,
        maps: &Snapshot,
    ) -> Result<(), Not> {
        let met: Vec<u16> = (0..KNOWN as u64)
            .filter(|&nr| sites::has(&s.met, nr) && seccomp::passes(nr))
            .map(|nr| nr as u16)
            .collect();
        let table = sites::table();
        if let Some(at) = table
            .sites
            .iter()
            .position(|x| x.in_place && x.insn == insn)
        {
            return self.extend(stopped, at, s, &met);
        }
        let index = table
            .sites
            .iter()
            .position(|x| !x.in_place)
            .ok_or(Not::Ever)?;
        let mut site = self.place(stopped, insn, &met, maps)?;
        let written = self.fill(stopped, index, &mut site, &met);
        if written.is_err() {
            self.trampolines.free(site.trampoline);
            return written;
        }
        if let Some(slot) = stopped.sites().sites.get_mut(index) {
            *slot = Site {
                in_place: true,
                ..site
            };
        }
        sites::SOME.store(true, SeqCst);
        if write_jump(&site).is_err() {
            self.remove(stopped, index);
            return Err(Not::Ever);
        }
        met.iter().for_each(|&nr| sites::put(&s.done, nr as u64));
        Ok(())
    }

    /// More numbers for a site that is patched already.
    fn extend(
        &mut self,
        stopped: &mut Stopped,
        index: usize,
        s: &Seen,
        met: &[u16],
    ) -> Result<(), Not> {
        let table = stopped.sites();
        let site = table.sites.get_mut(index).ok_or(Not::Ever)?;
        // Whatever the result, it is not tried again for these.
        met.iter().for_each(|&nr| sites::put(&s.done, nr as u64));
        if site.mov.is_some() {
            return Ok(());
        }
        let slow = match site.keeps_syscall() {
            true => site.insn,
            false => table.slow + index as u64 * SLOW,
        };
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
            xor: site.xor(),
            first: site.first(),
            numbers: numbers.get(..n).unwrap_or(&[]),
            near: FILTER.near.as_ptr() as u64,
            wide: FILTER.wide.as_ptr() as u64,
            classes: &raw const ulpf_stub_handlers::patches::table().tables.classes as u64,
            bmi2: self.bmi2,
        };
        // As many numbers as there is room for.
        (0..=numbers.len().min(MAX_NUMBERS))
            .rev()
            .find_map(|n| Code::generate(&plan(n)))
            .ok_or(Not::Ever)
    }

    /// Slot and trampoline, before the jump that leads there.
    fn fill(
        &self,
        stopped: &mut Stopped,
        index: usize,
        site: &mut Site,
        met: &[u16],
    ) -> Result<(), Not> {
        let slow = match site.keeps_syscall() {
            true => site.insn,
            false => slow_way(stopped, index, site.next())?,
        };
        let numbers = if site.mov.is_some() { &[][..] } else { met };
        let code = self.code(site, slow, numbers)?;
        site.marks = code.marks;
        text::write_raw(slot(index), &code.bytes)
            .and_then(|()| self.trampolines.write(site.trampoline, slot(index)))
            .map_err(|_| Not::Ever)
    }

    /// Decides how to patch, and takes a place for the trampoline.
    fn place(
        &mut self,
        stopped: &mut Stopped,
        insn: u64,
        met: &[u16],
        maps: &Snapshot,
    ) -> Result<Site, Not> {
        let vma = maps.at(insn).ok_or(Not::Ever)?;
        let sections = ulpf_stub_handlers::sequences::has_code(vma.start, vma.end);
        if !text::may_patch(vma) || sections || insn + 8 > vma.end {
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
        let before = number_before(bytes, at, from).filter(|b| met == [b.1 as u16]);
        let mut candidates: Vec<Candidate> = Vec::new();
        if let Some((size, nr)) = before.filter(|b| b.0 >= 5) {
            candidates.push(Candidate {
                start: at - size as usize,
                mov: Some(nr),
                len: size,
                shape: Shape::Near,
            });
        } else if before.is_none() && whole_before(bytes, at, from) {
            candidates.push(Candidate {
                start: at - WHOLE,
                mov: None,
                len: WHOLE as u8,
                shape: Shape::Near,
            });
        } else {
            for prefix in [false, true] {
                candidates.push(Candidate {
                    start: at,
                    mov: None,
                    len: 2,
                    shape: Shape::Punned { prefix },
                });
            }
            if let Some((2, nr)) = before {
                for prefix in [false, true] {
                    candidates.push(Candidate {
                        start: at - 2,
                        mov: Some(nr),
                        len: 2,
                        shape: Shape::Punned { prefix },
                    });
                }
            }
        }
        let mut not = Not::Ever;
        for w in candidates {
            let mut site = Site {
                insn,
                start: from + w.start as u64,
                len: w.len,
                mov: w.mov,
                first: w.mov.is_none() && matches!(w.shape, Shape::Near),
                ..Site::FREE
            };
            let jump = match w.shape {
                Shape::Near => {
                    site.end = insn;
                    self.trampolines
                        .near(stopped, site.start, maps)
                        .map(|t| (t, trampolines::jump(site.start, t)))
                }
                Shape::Punned { prefix } => {
                    site.end = site.start + 5 + prefix as u64;
                    let tail = bytes.get(w.start + 2..w.start + 6).unwrap_or(&[]);
                    self.trampolines
                        .punned(stopped, site.start, tail, prefix, maps)
                }
            };
            let Some((trampoline, patched)) = jump else {
                continue;
            };
            if !free(site.start, site.end) {
                self.trampolines.free(trampoline);
                not = Not::Now;
                continue;
            }
            site.trampoline = trampoline;
            site.patched = patched;
            let n = w.len as usize;
            if let (Some(to), Some(original)) =
                (site.original.get_mut(..n), bytes.get(w.start..w.start + n))
            {
                to.copy_from_slice(original);
            }
            return Ok(site);
        }
        Err(not)
    }

    // ---- the way back --------------------------------------------------------------------------

    fn remove(&mut self, stopped: &mut Stopped, index: usize) {
        let Some(site) = stopped.sites().sites.get_mut(index) else {
            return;
        };
        let original = site.original.get(..site.len as usize).unwrap_or(&[]);
        let _ = text::write_raw(site.start, original);
        let (insn, trampoline) = (site.insn, site.trampoline);
        *site = Site::FREE;
        self.trampolines.free(trampoline);
        for s in &SEEN_SITES {
            if s.insn.load(Relaxed) == insn {
                s.count.store(0, Relaxed);
                s.done.iter().for_each(|w| w.store(0, Relaxed));
            }
        }
    }

    /// The code in `[start, end)` is about to be changed, or something planted there: restores the original code.
    pub fn restore(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        if !sites::touches(start, end) {
            return;
        }
        for n in 0..SLOTS {
            let Some(s) = sites::table().sites.get(n) else {
                return;
            };
            let meets = |from: u64, to: u64| from < end && start < to;
            if s.in_place
                && (meets(s.start, s.end) || meets(s.trampoline, s.trampoline + trampolines::LEN))
            {
                self.remove(stopped, n);
            }
        }
    }

    /// The mappings of `[start, end)` are about to change. Forgets what is known of code there.
    pub fn forget(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        self.restore(stopped, start, end);
        for s in &SEEN_SITES {
            let at = s.insn.load(Relaxed);
            if at >= start && at < end {
                s.refused.store(false, Relaxed);
                s.met.iter().for_each(|w| w.store(0, Relaxed));
                s.done.iter().for_each(|w| w.store(0, Relaxed));
            }
        }
        self.trampolines.forget(stopped, start, end);
    }

    pub fn remove_all(&mut self, stopped: &mut Stopped) {
        for n in 0..SLOTS {
            if sites::table().sites.get(n).is_some_and(|s| s.in_place) {
                self.remove(stopped, n);
            }
        }
        self.trampolines.unmap(stopped);
        sites::SOME.store(false, SeqCst);
    }

    /// One line a site: address, how it is patched, signals since, numbers (those in brackets go to
    /// dispatch).
    pub fn list(&self, out: &mut dyn Write) {
        for s in &SEEN_SITES {
            let at = s.insn.load(Relaxed);
            if at == 0 {
                continue;
            }
            let site = sites::table()
                .sites
                .iter()
                .find(|x| x.in_place && x.insn == at);
            let how = match site {
                Some(x) if x.keeps_syscall() => "near jump",
                Some(_) => "punned jump",
                None if s.refused.load(Relaxed) => "not patched",
                None => "not yet patched",
            };
            let _ = write!(out, "{at:#x} {how}, {} signals,", s.signals.load(Relaxed));
            for nr in 0..KNOWN as u64 {
                if sites::has(&s.done, nr) {
                    let _ = write!(out, " {nr}");
                } else if sites::has(&s.met, nr) {
                    let _ = write!(out, " ({nr})");
                }
            }
            let _ = out.write_str("\n");
        }
    }

    pub fn in_place(&self) -> usize {
        sites::table().sites.iter().filter(|s| s.in_place).count()
    }
}

impl Control {
    /// Updates the filter of the slots after a change of watched, moved or write-protected pages.
    pub fn refresh_filter(&mut self) {
        let moved = self.world.stopped().guards().moved_runs();
        let pages = self.staged.list().pages();
        let pages = pages.map(|run| (run.start.0, run.end.0));
        let closed = ulpf_stub_handlers::patches::table().closed(0, u64::MAX);
        let closed = closed.map(|(page, _)| (page, page + ulpf_lib::PAGE_SIZE));
        let now = merged(moved.chain(pages).chain(closed).collect());
        let before = core::mem::replace(&mut self.sites.marked, now);
        let now = &self.sites.marked;
        if !without(&before, now).is_empty() {
            for &(start, end) in &before {
                FILTER.clear(start, end);
            }
            for &(start, end) in now {
                FILTER.add(start, end);
            }
        } else {
            // A heap that grows by thousands of mappings is not marked again for each.
            for (start, end) in without(now, &before) {
                FILTER.add(start, end);
            }
        }
    }

    /// Patching on or off (`monitor ulpf patch-syscalls`).
    pub fn enable_sites(&mut self, on: bool) {
        sites::ENABLED.store(on, SeqCst);
        if !on {
            self.sites.remove_all(self.world.stopped());
        }
    }
}

/// The same memory as ascending ranges that do not touch.
fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
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

/// The parts of `ranges` outside `others`; both [`merged`].
fn without(ranges: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
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

fn slot(index: usize) -> u64 {
    sites::slots_base() + (index * SLOT) as u64
}

#[derive(Clone, Copy)]
enum Shape {
    Near,
    Punned { prefix: bool },
}

/// One way to patch a site; `start` is an offset into the bytes around it.
struct Candidate {
    start: usize,
    len: u8,
    mov: Option<u32>,
    shape: Shape,
}

fn write_jump(site: &Site) -> Result<(), sys::Errno> {
    text::write_raw(
        site.start,
        site.patched.get(..site.len as usize).unwrap_or(&[]),
    )
}

/// `syscall`, outside the image and so dispatched; then a jump to the next instruction.
fn slow_way(stopped: &mut Stopped, index: usize, next: u64) -> Result<u64, Not> {
    let table = stopped.sites();
    if table.slow == 0 {
        let prot = k::PROT_READ | k::PROT_EXEC;
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS;
        let len = SLOW * SLOTS as u64;
        let at = place::map(len, prot, flags, -1, AfterFork::Both);
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

/// Returns whether `[start, end)` is free of breakpoints, other patches and moved pages.
fn free(start: u64, end: u64) -> bool {
    !sites::touches(start, end)
        && !ulpf_stub_handlers::patches::touches(start, end)
        && !g()
            .breakpoints()
            .iter()
            .any(|b| b.addr >= start && b.addr < end)
}

fn ours(start: u64, end: u64) -> bool {
    g().alias_of(start).is_some() || g().alias_of(end).is_some()
}

/// The instruction that ends at `at` loads eax with a constant: its length and the constant.
fn number_before(bytes: &[u8], at: usize, base: u64) -> Option<(u8, u32)> {
    let before = |n: usize| bytes.get(at.checked_sub(n)?..at);
    let constant = || Some(u32::from_le_bytes(before(4)?.try_into().ok()?));
    let (size, nr) = if before(7)?.starts_with(&[0x48, 0xc7, 0xc0]) {
        (7, constant()?) // mov rax, imm32
    } else if before(5)?.starts_with(&[0xb8]) {
        (5, constant()?) // mov eax, imm32
    } else if before(2)? == sites::XOR_EAX {
        (2, 0)
    } else {
        return None;
    };
    (nr < KNOWN as u32 && begins_instruction(bytes, at - size, base)).then_some((size as u8, nr))
}

/// Length of an instruction that makes room for a jump, and is executed elsewhere unchanged.
const WHOLE: usize = 5;

/// Returns whether such an instruction ends at `at`. It is one of those by which the C library's cancellable calls
/// (since glibc 2.41) load the number, or keep a register: all of them go through two `syscall` instructions.
fn whole_before(bytes: &[u8], at: usize, base: u64) -> bool {
    let is = |code: &[u8]| {
        let start = at.checked_sub(WHOLE);
        start.is_some_and(|n| bytes.get(n..at).is_some_and(|b| b.starts_with(code)))
    };
    // mov rax, [rsp+disp8]; mov [rsp+disp8], r11
    (is(&[0x48, 0x8b, 0x44, 0x24]) || is(&[0x4c, 0x89, 0x5c, 0x24]))
        && begins_instruction(bytes, at - WHOLE, base)
}

/// Returns whether linear decodings that start further back agree that an instruction begins at `at`.
fn begins_instruction(bytes: &[u8], at: usize, base: u64) -> bool {
    if at > 0 && bytes.get(at - 1).is_some_and(|b| (0x40..0x50).contains(b)) {
        return false; // perhaps a REX prefix
    }
    let decoder = ulpf_stub_handlers::engine::decoder();
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
