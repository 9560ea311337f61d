//! Sites: decoded instructions with their thunks, found by pc without locks.
//!
//! The table is insert-only. An entry matches by pc *and* code bytes, so code that changes under the same pc (a JIT, dlclose
//! and dlopen) gets another entry. An entry that another thread may be reading is never rewritten.
#![allow(unsafe_code)]

use super::emit::{self, Plan};
use super::emulate;
use super::native::{self, ExecFrame, FaultInfo};
use super::types::{AliasMap, CodeArena, DataArena, Open, Outcome, STATUS, Slow, open, translate};

use crate::access::layout::Wrap;
use crate::access::{AccessList, Class, DecodeError, Decoder, Insn, state};
use crate::cpu::{Cpu, Gprs};
use core::mem::size_of;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use ulpf_lib::{AccessKind, TargetAddr};

/// One instruction that has touched a guarded page.
pub struct Site {
    /// The decoded instruction.
    pub insn: Insn,
    pub(super) plan: Plan,
    /// Entry of the thunk in the executable view, and of the instruction in it.
    thunk: u64,
    thunk_insn: u64,
    /// State components to load and to save back.
    load: u64,
    save: u64,
    /// Cost so far, which decides when the site is patched.
    pub heat: AtomicI32,
    /// Number of its faults.
    pub faults: AtomicU32,
    /// Number of its faults that touched no watch.
    pub beside: AtomicU32,
}

/// Why an instruction has no site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SiteError {
    /// Its bytes are no instruction that we know.
    Decode(DecodeError),
    /// Table or site memory exhausted: decode with [`Decoder`] and take the slow path.
    Full,
}

impl Site {
    fn is(&self, pc: u64, bytes: &[u8]) -> bool {
        self.insn.pc == pc && bytes.starts_with(self.insn.code())
    }
}

#[cfg(test)]
impl Site {
    pub(super) fn thunk_is_missing(&self) -> bool {
        self.thunk == 0
    }
}

/// Resume flag: set in the frame of a fault, cleared by completing the instruction.
const RF: u64 = 1 << 16;

/// All thunks and sites of a process.
pub struct Thunks {
    code: CodeArena,
    code_used: AtomicUsize,
    table: *const AtomicPtr<Site>,
    mask: usize,
    /// Those of the table, one behind the other: few where the table is large.
    order: *const AtomicPtr<Site>,
    sites: *mut Site,
    sites_max: usize,
    sites_used: AtomicUsize,
}

// SAFETY: the memory behind the pointers is written only through atomics, or before a site is
// published, or in code bytes that were bump-allocated by this thread.
unsafe impl Send for Thunks {}
// SAFETY: as above.
unsafe impl Sync for Thunks {}

/// Bytes for a site: two slots of the table, one of the order, itself.
const PER_SITE: usize = 3 * size_of::<AtomicPtr<Site>>() + size_of::<Site>();
/// Slots looked at before the table counts as full.
const PROBES: usize = 128;

/// First slot to probe. Instructions near each other share a page of the table, since each of its pages costs a fault at
/// first use.
fn hash(pc: u64) -> usize {
    const NEAR: u64 = 128;
    let (near, far) = (pc / 8 % NEAR, pc / 8 / NEAR);
    ((far.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * NEAR + near) as usize
}

impl Thunks {
    /// Bytes of [`DataArena`] for `sites` sites, a power of two.
    pub const fn data_size(sites: usize) -> usize {
        sites * PER_SITE + 64
    }

    /// `data` must be zeroed and aligned to 64. `None` when it is too small for a single site.
    pub fn new(code: CodeArena, data: DataArena) -> Option<Thunks> {
        let fit = data.len.checked_sub(64)? / PER_SITE;
        let sites = fit.checked_next_power_of_two()? / if fit.is_power_of_two() { 1 } else { 2 };
        if sites == 0 {
            return None;
        }
        let slots = sites * 2;
        Some(Thunks {
            code,
            code_used: AtomicUsize::new(0),
            table: data.base.cast(),
            mask: slots - 1,
            // SAFETY: data_size counted all parts.
            order: unsafe { data.base.add(slots * size_of::<AtomicPtr<Site>>()).cast() },
            // SAFETY: as above.
            sites: unsafe {
                data.base
                    .add(((slots + sites) * size_of::<AtomicPtr<Site>>() + 63) & !63)
                    .cast()
            },
            sites_max: sites,
            sites_used: AtomicUsize::new(0),
        })
    }

    fn slot(&self, i: usize) -> &AtomicPtr<Site> {
        // SAFETY: masked into the table, which is zeroed memory: null pointers.
        unsafe { &*self.table.add(i & self.mask) }
    }

    /// Number of sites known so far.
    pub fn len(&self) -> usize {
        self.sites_used.load(Ordering::Relaxed).min(self.sites_max)
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All sites that are known by now.
    pub fn all(&self) -> impl Iterator<Item = &Site> {
        // SAFETY: there is room for as many as there are sites, all of it zeroed memory at first.
        let slots = (0..self.len()).map(|n| unsafe { &*self.order.add(n) });
        // SAFETY: published sites are never freed or changed.
        slots.filter_map(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() })
    }

    /// This one is in the table.
    fn put_in_order(&self, site: *mut Site) {
        // SAFETY: `make` has taken one of `sites_max`.
        unsafe {
            let n = site.offset_from_unsigned(self.sites);
            (*self.order.add(n)).store(site, Ordering::Release);
        }
    }

    /// The site at `pc`, if there is one and these bytes begin with its instruction.
    pub fn known(&self, pc: u64, bytes: &[u8]) -> Option<&Site> {
        let first = hash(pc);
        let slots = (0..PROBES).map(|i| self.slot(first.wrapping_add(i)));
        // SAFETY: published sites are never freed or changed.
        let mut sites = slots.map_while(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() });
        sites.find(|site| site.is(pc, bytes))
    }

    /// The site at `pc`, decoded now if this is its first fault. Give up to 15 readable bytes.
    pub fn site(&self, decoder: &Decoder, pc: u64, bytes: &[u8]) -> Result<&Site, SiteError> {
        let first = hash(pc);
        let mut made: *mut Site = core::ptr::null_mut();
        for i in 0..PROBES {
            let slot = self.slot(first.wrapping_add(i));
            let mut found = slot.load(Ordering::Acquire);
            if found.is_null() {
                if made.is_null() {
                    made = self.make(decoder, pc, bytes)?;
                }
                match slot.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        self.put_in_order(made);
                        // SAFETY: just published, lives as long as the arena.
                        return Ok(unsafe { &*made });
                    }
                    Err(other) => found = other,
                }
            }
            // SAFETY: published sites are never freed or changed.
            let site = unsafe { &*found };
            if site.is(pc, bytes) {
                return Ok(site);
            }
        }
        Err(SiteError::Full)
    }

    fn make(&self, decoder: &Decoder, pc: u64, bytes: &[u8]) -> Result<*mut Site, SiteError> {
        let insn = decoder.decode(pc, bytes).map_err(SiteError::Decode)?;
        let n = self.sites_used.fetch_add(1, Ordering::Relaxed);
        if n >= self.sites_max {
            return Err(SiteError::Full);
        }
        let site = self.build(insn);
        // SAFETY: slot `n` is ours alone and inside the arena.
        unsafe {
            let p = self.sites.add(n);
            p.write(site);
            Ok(p)
        }
    }

    pub(super) fn build(&self, insn: Insn) -> Site {
        let mut site = Site {
            insn,
            plan: emit::plan(&insn),
            thunk: 0,
            thunk_insn: 0,
            load: 0,
            save: 0,
            heat: AtomicI32::new(0),
            faults: AtomicU32::new(0),
            beside: AtomicU32::new(0),
        };
        if matches!(site.plan, Plan::Thunk | Plan::Gather) {
            match emit::thunk(&insn) {
                Some((code, at)) => match self.place(code.bytes()) {
                    Some(rx) => {
                        site.thunk = rx;
                        site.thunk_insn = rx + u64::from(at);
                        site.load = emit::components(&insn);
                        site.save = emit::changed(&insn);
                    }
                    None => site.plan = Plan::Slow(Slow::ArenaFull),
                },
                None => site.plan = Plan::Slow(Slow::Unsupported),
            }
        }
        site
    }

    /// Forgets all thunks; nothing may run them any more.
    #[cfg(test)]
    pub(super) fn reset(&self) {
        self.code_used.store(0, Ordering::Relaxed);
    }

    /// Copies code into the arena; its address in the executable view.
    fn place(&self, code: &[u8]) -> Option<u64> {
        let size = (code.len() + 15) & !15;
        let at = self.code_used.fetch_add(size, Ordering::Relaxed);
        if at.checked_add(size)? > self.code.len {
            // Keep the counter from wrapping after very many attempts.
            self.code_used.store(self.code.len, Ordering::Relaxed);
            return None;
        }
        // SAFETY: [at, at + size) is inside the arena and ours alone.
        unsafe {
            self.code
                .rw
                .add(at)
                .copy_from_nonoverlapping(code.as_ptr(), code.len())
        };
        // The bytes were never executed at this address before, so no CPU holds stale ones.
        Some(self.code.rx as u64 + at as u64)
    }

    /// For the nested SIGSEGV/SIGBUS/SIGFPE/SIGILL handler: when the fault happened in a thunk
    /// or an accessor, changes the nested registers so that `execute` returns
    /// [`Outcome::Fault`] with `info`, and says true.
    pub fn recover(&self, nested: &mut Gprs, info: FaultInfo) -> bool {
        native::recover(nested, self.generated(), info)
    }

    /// Whether `rip` is in generated code.
    pub fn contains(&self, rip: u64) -> bool {
        self.generated().contains(&rip)
    }

    fn generated(&self) -> core::ops::Range<u64> {
        let rx = self.code.rx as u64;
        rx..rx + self.code.len as u64
    }

    /// Does the instruction of `site` for the registers in `cpu`.
    pub fn execute(&self, site: &Site, cpu: &mut Cpu, map: &dyn AliasMap) -> Outcome {
        let outcome = match site.plan {
            Plan::Thunk => self.run(site, cpu, map),
            Plan::Gather => self.gather(site, cpu, map),
            Plan::Emulate => {
                let outcome = emulate::execute(&site.insn, cpu, map);
                return finish(cpu, outcome);
            }
            Plan::Nothing => return Outcome::NeedSlow(Slow::Unsupported),
            Plan::Slow(why) => return Outcome::NeedSlow(why),
        };
        if outcome == Outcome::Done {
            cpu.gprs.rip = site.insn.pc.wrapping_add(site.insn.len.into());
        }
        finish(cpu, outcome)
    }

    /// Performs the instruction with an address in place of the ModRM operand, so that its accesses reach the alias.
    fn run(&self, site: &Site, cpu: &mut Cpu, map: &dyn AliasMap) -> Outcome {
        let insn = &site.insn;
        if insn.class == Class::Plain {
            // By far the most frequent: no list needed.
            let (operand, len) = (insn.effective(cpu), u64::from(insn.mem.size));
            let Some(at) = open(map, operand, len, insn.mem.kind) else {
                return Outcome::NeedSlow(Slow::Split);
            };
            let mut frame = ExecFrame::new();
            frame.addr = at;
            return self.call(
                site,
                cpu,
                &mut frame,
                operand,
                (at, len, operand.wrapping_sub(at)),
            );
        }
        let mut list = AccessList::new();
        insn.accesses(cpu, &mut list);
        let operand = match insn.class {
            Class::MaskMov => insn.segment_base(cpu).wrapping_add(insn.string_dest(cpu)),
            Class::BitString => insn.bit_address(cpu),
            Class::Clzero => list.first().map_or(0, |a| a.addr.0),
            _ => insn.effective(cpu),
        };
        let mut frame = ExecFrame::new();
        let mut moved = (0, 0, 0);
        if insn.class == Class::Movdir64b {
            let (Some(from), Some(to)) = (list.first(), list.get(1)) else {
                return Outcome::NeedSlow(Slow::Unsupported);
            };
            let (Some(a), Some(b)) = (
                open(map, from.addr.0, 64, AccessKind::Read),
                open(map, to.addr.0, 64, AccessKind::Write),
            ) else {
                return Outcome::NeedSlow(Slow::Split);
            };
            (frame.addr, frame.addr2) = (a, b);
            moved = (b, 64, to.addr.0.wrapping_sub(b));
            if b == to.addr.0 {
                moved = (a, 64, from.addr.0.wrapping_sub(a));
            }
        } else if insn.class == Class::Flush {
            // Touches no data, but the page has to be readable.
            let Some(at) = open(map, operand, 1, AccessKind::Read) else {
                return Outcome::NeedSlow(Slow::Split);
            };
            moved = (at, 1, operand.wrapping_sub(at));
            frame.addr = at;
        } else if let Some((start, len, kind)) = reach(map, insn, operand, &list) {
            let Some(at) = open(map, start, len, kind) else {
                return Outcome::NeedSlow(Slow::Split);
            };
            moved = (at, len, start.wrapping_sub(at));
            frame.addr = operand.wrapping_add(at.wrapping_sub(start));
        } else {
            // Every element masked off: nothing is touched.
            frame.addr = operand;
        }
        if insn.class == Class::BitString {
            // The instruction adds the bit offset again.
            frame.addr = frame.addr.wrapping_sub(insn.bit_offset(cpu) as u64);
        }
        self.call(site, cpu, &mut frame, operand, moved)
    }

    /// Runs the thunk. `moved`: alias range and what to add to get back to target addresses.
    fn call(
        &self,
        site: &Site,
        cpu: &mut Cpu,
        frame: &mut ExecFrame,
        operand: u64,
        moved: (u64, u64, u64),
    ) -> Outcome {
        let insn = &site.insn;
        if site.load != 0 {
            let mut load = site.load;
            if matches!(insn.class, Class::Xsave | Class::Xsavec | Class::Xrstor) {
                load &= cpu.gprs.rdx << 32 | cpu.gprs.rax & 0xffff_ffff;
            }
            // Protection keys and tiles would take effect while we still run.
            if cpu.xsave.is_null() || load & !0xe7 != 0 {
                return Outcome::NeedSlow(Slow::NoState);
            }
            // MXCSR belongs to SSE and AVX, and the header has to be valid: load at least SSE.
            frame.load = load | state::SSE;
            frame.save = if site.save == 0 {
                0
            } else {
                site.save & load | state::SSE
            };
            frame.xsave = cpu.xsave;
        }
        frame.gprs = cpu.gprs;
        frame.flags = cpu.gprs.rflags & STATUS;
        frame.thunk = site.thunk;
        let fixes_x87 = frame.save & state::X87 != 0 && cpu.xsave_len >= 24;
        let before = if fixes_x87 { fdp(cpu) } else { 0 };
        // SAFETY: `cpu` and `frame` outlive the call; the thunk was emitted for this site.
        if unsafe { native::call(frame) } {
            cpu.gprs.rflags = cpu.gprs.rflags & !STATUS | frame.flags & STATUS;
            if fixes_x87 {
                fix_x87(site, cpu, before, operand);
            }
            return Outcome::Done;
        }
        Outcome::Fault(translate(frame.fault, insn.pc, moved))
    }

    /// Gathers and scatters: elements are done in order, in runs that share one distance between
    /// target and alias, each run natively with only its mask bits set.
    fn gather(&self, site: &Site, cpu: &mut Cpu, map: &dyn AliasMap) -> Outcome {
        let insn = &site.insn;
        let (count, elem) = (insn.vsib_count(), insn.element());
        // Distance of every enabled element, found before anything is done.
        let mut delta = [None; 16];
        for i in 0..count {
            if insn.vsib_enabled(cpu, i) {
                let addr = insn.vsib_address(cpu, i);
                let Some(at) = open(map, addr, elem, insn.mem.kind) else {
                    return Outcome::NeedSlow(Slow::Split);
                };
                if insn.layout.addr32
                    && insn.effective(cpu).wrapping_add(insn.vsib_index(cpu, i)) != addr
                {
                    // The sum wraps at 32 bits, which the rewritten address does not.
                    return Outcome::NeedSlow(Slow::Unsupported);
                }
                if let Some(d) = delta.get_mut(i as usize) {
                    *d = Some(at.wrapping_sub(addr));
                }
            }
        }
        let mask = VsibMask::of(insn, cpu);
        let base = insn.effective(cpu);
        let mut first = 0;
        loop {
            // One run: from the first enabled element on, all that share its distance.
            let (mut run, mut rest) = (0u64, 0u64);
            let mut distance = None;
            let mut next = first;
            for i in first..count {
                let Some(d) = delta.get(i as usize).copied().flatten() else {
                    continue;
                };
                if rest == 0 && (distance.is_none() || distance == Some(d)) {
                    distance = Some(d);
                    run |= 1 << i;
                    next = i + 1;
                } else {
                    rest |= 1 << i;
                }
            }
            mask.set(insn, cpu, run, true);
            let distance = distance.unwrap_or(0);
            let mut frame = ExecFrame::new();
            frame.addr = base.wrapping_add(distance);
            let outcome = self.call(site, cpu, &mut frame, base, (0, 0, 0));
            if let Outcome::Fault(info) = outcome {
                // The elements not yet done are still wanted.
                mask.set(insn, cpu, run | rest, false);
                return Outcome::Fault(FaultInfo {
                    addr: info.addr.wrapping_sub(distance),
                    ..info
                });
            }
            if outcome != Outcome::Done || rest == 0 {
                return outcome;
            }
            first = next;
        }
    }
}

/// The mask of a gather or scatter as the program set it.
struct VsibMask {
    evex: bool,
    opmask: u64,
    lanes: [u64; 8],
}

impl VsibMask {
    fn of(insn: &Insn, cpu: &Cpu) -> VsibMask {
        let evex = insn.layout.wrap == Wrap::Evex;
        let mut mask = VsibMask {
            evex,
            opmask: cpu.opmask(insn.layout.aaa),
            lanes: [0; 8],
        };
        let elem = insn.element();
        for (i, lane) in (0..insn.vsib_count()).zip(&mut mask.lanes) {
            if !evex {
                *lane = cpu.vector(insn.layout.vvvv & 15, i * elem, elem);
            }
        }
        mask
    }

    /// Keeps the elements in `bits`; what lies above the elements too, unless `only`.
    fn set(&self, insn: &Insn, cpu: &mut Cpu, bits: u64, only: bool) {
        let (count, elem) = (insn.vsib_count(), insn.element());
        if self.evex {
            let above = if only {
                0
            } else {
                self.opmask & (u64::MAX << count)
            };
            cpu.set_opmask(insn.layout.aaa, bits | above);
            return;
        }
        for (i, lane) in (0..count).zip(self.lanes) {
            let value = if bits >> i & 1 != 0 { lane } else { 0 };
            cpu.set_vector(insn.layout.vvvv & 15, i * elem, elem, value);
        }
    }
}
/// The range whose alias is used. Masked instructions get their whole operand where that is
/// possible; otherwise from the first to the last byte that is enabled. Some check the whole
/// operand whatever they then touch: those need all of it.
fn reach(
    map: &dyn AliasMap,
    insn: &Insn,
    operand: u64,
    list: &AccessList,
) -> Option<(u64, u64, AccessKind)> {
    use Class::{BroadcastEvex, MaskMov, MaskedEvex, MaskedVex, Packed, Xrstor, Xsave, Xsavec};
    let kind = insn.mem.kind;
    let enabled = hull(list);
    let len = match insn.class {
        // Checks the page even when all is masked off (SDM, MASKMOVDQU).
        MaskMov => return Some((operand, insn.maskmov_len(), kind)),
        // vextract…: no fault suppression (class E6NF).
        MaskedEvex
            if insn.layout.map == 3 && matches!(insn.layout.opcode, 0x19 | 0x1b | 0x39 | 0x3b) =>
        {
            return Some((operand, insn.mem.size.into(), kind));
        }
        // Checks the area from its start.
        Xsave | Xsavec | Xrstor => {
            let end = enabled.map_or(operand, |(start, len, _)| start.wrapping_add(len));
            return Some((operand, end.wrapping_sub(operand), kind));
        }
        MaskedVex | MaskedEvex | BroadcastEvex | Packed => insn.mem.size.into(),
        _ => return enabled,
    };
    match map.open(TargetAddr(operand), len, kind) {
        Open::Alias(_) => Some((operand, len, kind)),
        _ => enabled,
    }
}

/// From the first to the last byte that is touched, and how.
fn hull(list: &AccessList) -> Option<(u64, u64, AccessKind)> {
    let first = list.first()?;
    let (mut start, mut end) = (first.addr.0, first.addr.0.wrapping_add(first.len));
    let (mut reads, mut writes) = (false, false);
    for a in list.iter() {
        start = start.min(a.addr.0);
        end = end.max(a.addr.0.wrapping_add(a.len));
        reads |= a.kind.reads();
        writes |= a.kind.writes();
    }
    let kind = match (reads, writes) {
        (true, true) => AccessKind::ReadWrite,
        (false, true) => AccessKind::Write,
        _ => AccessKind::Read,
    };
    Some((start, end.wrapping_sub(start), kind))
}

fn finish(cpu: &mut Cpu, outcome: Outcome) -> Outcome {
    if outcome == Outcome::Done {
        cpu.gprs.rflags &= !RF;
    }
    outcome
}

/// Offsets in the legacy area of an XSAVE image: the x87 unit's last opcode, instruction and operand.
const FOP: usize = 6;
const FIP: usize = 8;
const FDP: usize = 16;

/// The address of the x87 unit's last operand.
fn fdp(cpu: &Cpu) -> u64 {
    // SAFETY: the image has 24 bytes at least.
    unsafe { cpu.xsave.add(FDP).cast::<u64>().read_unaligned() }
}

/// The x87 unit remembers the last instruction's address, operand address and opcode; here that is the thunk's. Operand and
/// opcode stay as they were (`before`) on processors that keep them for exceptions alone (FDP_EXCPTN_ONLY).
fn fix_x87(site: &Site, cpu: &mut Cpu, before: u64, operand: u64) {
    let updated = fdp(cpu) != before;
    // SAFETY: the image has 24 bytes at least.
    unsafe {
        let fip = cpu.xsave.add(FIP).cast::<u64>();
        if fip.read_unaligned() != site.thunk_insn {
            return;
        }
        fip.write_unaligned(site.insn.pc);
        if updated {
            let l = &site.insn.layout;
            cpu.xsave.add(FDP).cast::<u64>().write_unaligned(operand);
            let fop = u16::from(l.opcode & 7) << 8 | u16::from(l.modrm);
            cpu.xsave.add(FOP).cast::<u16>().write_unaligned(fop);
        }
    }
}
