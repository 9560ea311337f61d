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
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::*;

use ulpf_engine::access::Decoder;
use ulpf_engine::access::state::cpuid;
use ulpf_lib::guard::maps::Snapshot;

use super::code_caves::{self, REACH, Wanted};
use super::{Control, ranges, text};
use ulpf_stub_handlers::global::{g, tables};
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_handlers::syscalls::seccomp;
use ulpf_stub_handlers::syscalls::sites::{self, FILTER, KNOWN, SEEN_SITES, Seen};
use ulpf_stub_handlers::syscalls::sites_code::{Code, MAX_NUMBERS, Plan};
use ulpf_stub_tables::calls::{Call, MAX_MARKS, Mark, SLOT, SLOTS, TRAMPOLINE, XOR_EAX};
use ulpf_stub_tables::edit::Edit;

const LOOK_BACK: u64 = 48;

/// State that only the stub's task uses.
pub struct Sites {
    bmi2: bool,
    pub refused: u64,
    /// Ranges that are marked in the filter, [`ranges::joined`].
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
        if let Some(site) = sites::list().iter().find(|x| x.insn == insn) {
            return self.extend(stopped, site.start, s, &met);
        }
        let taken = |n: &usize| sites::list().iter().any(|site| site.slot == *n);
        let slot = (0..SLOTS).find(|n| !taken(n)).ok_or(Not::Ever)?;
        let mut site = self.place(stopped, slot, insn, &met, maps)?;
        if let Err(why) = self.fill(&mut site, &met) {
            free_trampoline(stopped, &site);
            return Err(why);
        }
        sites::SOME.store(true, SeqCst);
        if text::write_raw(site.start, site.ours()).is_err() {
            let _ = text::write_raw(site.start, site.original());
            free_trampoline(stopped, &site);
            return Err(Not::Ever);
        }
        stopped.tables_mut().edits.calls.insert(site);
        met.iter().for_each(|&nr| sites::put(&s.done, nr as u64));
        Ok(())
    }

    /// More numbers for a site that is patched already.
    fn extend(
        &mut self,
        stopped: &mut Stopped,
        start: u64,
        s: &Seen,
        met: &[u16],
    ) -> Result<(), Not> {
        let calls = &mut stopped.tables_mut().edits.calls;
        let site = calls.at_mut(start).ok_or(Not::Ever)?;
        // Whatever the result, it is not tried again for these.
        met.iter().for_each(|&nr| sites::put(&s.done, nr as u64));
        if site.mov.is_some() {
            return Ok(());
        }
        let code = self.code(site, met)?;
        text::write_raw(slot(site), &code.bytes).map_err(|_| Not::Now)?;
        site.marks = code.marks;
        Ok(())
    }

    fn code(&self, site: &Call, numbers: &[u16]) -> Result<Code, Not> {
        let plan = |n: usize| Plan {
            slow: site.slow(),
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
    fn fill(&self, site: &mut Call, met: &[u16]) -> Result<(), Not> {
        let numbers = if site.mov.is_some() { &[][..] } else { met };
        let code = self.code(site, numbers)?;
        site.marks = code.marks;
        text::write_raw(slot(site), &code.bytes)
            .and_then(|()| text::write_raw(site.trampoline, &trampoline(site)))
            .map_err(|_| Not::Ever)
    }

    /// Decides how to patch, and takes a place for the trampoline.
    fn place(
        &mut self,
        stopped: &mut Stopped,
        slot: usize,
        insn: u64,
        met: &[u16],
        maps: &Snapshot,
    ) -> Result<Call, Not> {
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
            let start = from + w.start as u64;
            let n = w.len as usize;
            let mut original = [0; 8];
            if let (Some(to), Some(code)) = (original.get_mut(..n), bytes.get(w.start..w.start + n))
            {
                to.copy_from_slice(code);
            }
            let mut site = Call {
                slot,
                start,
                len: w.len,
                original,
                patched: [0xcc; 8],
                end: match w.shape {
                    Shape::Near => insn,
                    Shape::Punned { prefix } => start + 5 + prefix as u64,
                },
                insn,
                trampoline: 0,
                mov: w.mov,
                first: w.mov.is_none() && matches!(w.shape, Shape::Near),
                marks: [Mark::NONE; MAX_MARKS],
            };
            if tables().edits.touch(site.start, site.end) {
                not = Not::Now;
                continue;
            }
            let tail = bytes.get(w.start + 2..w.start + 6).unwrap_or(&[]);
            let Some(reach) = reach(start, w.shape, tail) else {
                continue;
            };
            let wanted = Wanted {
                from: start,
                reach: &reach,
                size: site.trampoline_len(),
                cave: code_caves::SMALL,
                lasting: false,
            };
            let Some(at) = code_caves::find(stopped, &wanted, maps) else {
                continue;
            };
            site.trampoline = at;
            let jump = jump(start, w.shape, at);
            let changed = site.patched.iter_mut().zip(jump);
            changed.for_each(|(to, byte)| *to = byte);
            let len = site.trampoline_len();
            let caves = &mut stopped.tables_mut().caves;
            caves.take(at, (len, len), start, false);
            return Ok(site);
        }
        Err(not)
    }

    // ---- the way back --------------------------------------------------------------------------

    fn remove(&mut self, stopped: &mut Stopped, start: u64) {
        let Some(site) = stopped.tables_mut().edits.calls.remove(start) else {
            return;
        };
        let _ = text::write_raw(start, site.original());
        free_trampoline(stopped, &site);
        for s in &SEEN_SITES {
            if s.insn.load(Relaxed) == site.insn {
                s.count.store(0, Relaxed);
                s.done.iter().for_each(|w| w.store(0, Relaxed));
            }
        }
    }

    /// The code in `[start, end)` is about to be changed, or something planted there: restores the original code.
    pub fn restore(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        let mut gone: Vec<u64> = sites::list().meeting(start, end).map(Call::start).collect();
        gone.extend(stopped.tables().caves.edits_in(start, end));
        for start in gone {
            self.remove(stopped, start);
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
    }

    pub fn remove_all(&mut self, stopped: &mut Stopped) {
        let all: Vec<u64> = sites::list().iter().map(Call::start).collect();
        for start in all {
            self.remove(stopped, start);
        }
        code_caves::give_back_empty(stopped);
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
            let site = sites::list().iter().find(|x| x.insn == at);
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
        sites::list().iter().count()
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
        let now = ranges::joined(moved.chain(pages).chain(closed).collect());
        let marked = &mut self.edits.calls.marked;
        let before = core::mem::replace(marked, now);
        let now = &*marked;
        if !ranges::outside(&before, now).is_empty() {
            for &(start, end) in &before {
                FILTER.clear(start, end);
            }
            for &(start, end) in now {
                FILTER.add(start, end);
            }
        } else {
            // A heap that grows by thousands of mappings is not marked again for each.
            for (start, end) in ranges::outside(now, &before) {
                FILTER.add(start, end);
            }
        }
    }

    /// Patching on or off (`monitor ulpf patch-syscalls`).
    pub fn enable_sites(&mut self, on: bool) {
        sites::ENABLED.store(on, SeqCst);
        if !on {
            self.edits.calls.remove_all(self.world.stopped());
        }
    }
}

fn slot(site: &Call) -> u64 {
    sites::slots_base() + (site.slot * SLOT) as u64
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

fn free_trampoline(stopped: &mut Stopped, site: &Call) {
    let caves = &mut stopped.tables_mut().caves;
    caves.free(site.trampoline, site.trampoline_len());
}

/// The code in the cave: a jump to the slot. Where the `syscall` itself is displaced, another one follows that is
/// dispatched, and a jump to the next instruction.
fn trampoline(site: &Call) -> Vec<u8> {
    let mut code: Vec<u8> = [0xff, 0x25, 0, 0, 0, 0].to_vec(); // jmp [rip+0]
    code.extend(slot(site).to_le_bytes());
    debug_assert_eq!(code.len() as u64, TRAMPOLINE);
    if !site.keeps_syscall() {
        code.extend([0x0f, 0x05, 0x48, 0xb9]); // syscall; mov rcx, next
        code.extend(site.next().to_le_bytes());
        code.extend([0xff, 0xe1]); // jmp rcx
    }
    code
}

/// Where a jump of this shape at `start` can lead. `tail` are the bytes behind its first two.
fn reach(start: u64, shape: Shape, tail: &[u8]) -> Option<RangeInclusive<u64>> {
    let at = |after: u64, distance: i32| {
        let to = start.checked_add(after)?;
        to.checked_add_signed(distance.into())
    };
    let [b1, b2, b3, b4] = *tail else { return None };
    Some(match shape {
        Shape::Near => start.saturating_sub(REACH)..=start.saturating_add(REACH),
        Shape::Punned { prefix: true } => {
            let to = at(6, i32::from_le_bytes([b1, b2, b3, b4]))?;
            to..=to
        }
        Shape::Punned { prefix: false } => {
            let first = at(5, i32::from_le_bytes([0, b1, b2, b3]))?;
            first..=first + 255
        }
    })
}

/// The bytes of the jump from `start` to `to` that are written.
fn jump(start: u64, shape: Shape, to: u64) -> [u8; 5] {
    const REX_W: u8 = 0x48; // without effect on a near jump
    let [a, b, c, d] = (to.wrapping_sub(start + 5) as i32).to_le_bytes();
    match shape {
        Shape::Punned { prefix: true } => [REX_W, 0xe9, 0, 0, 0],
        _ => [0xe9, a, b, c, d],
    }
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
    } else if before(2)? == XOR_EAX {
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
