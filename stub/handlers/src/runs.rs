//! Many iterations of a `rep stos` or `rep movs` at once: `memset` and `memcpy` of watched memory. By a fault, or from
//! a patch's body (`direct.rs`), which has single ones made here, too.
//!
//! One by one an iteration costs some 50 cycles, though no signal. A run is what no watch, or one that is
//! only counted, sees all of, on one page: then hits and silent stores are numbers, and the bytes are
//! copied. Whatever is more special goes the usual way (`fault::perform`), a step at a time.

use core::sync::atomic::Ordering::Relaxed;

use ulpf_engine::access::{Class, Insn};
use ulpf_engine::cpu::Cpu;
use ulpf_lib::eflags::DF;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr, WatchId, WatchKind, WatchRange};

use crate::check::{regions, shadow};
use crate::global::g;
use crate::hits::{self, count_false_positives};
use crate::locks::{self, Held};
use crate::runtime::memory;
use crate::runtime::thread::Current;
use ulpf_stub_tables::attributes::Part;

/// Fewer are no gain in a fault's handler.
pub const LEAST: u64 = 4;
const MOST: usize = PAGE_SIZE as usize;

/// Room for a page of old values and one of new ones.
pub struct Buffers<'a> {
    pub old: &'a mut [u8; MOST],
    pub new: &'a mut [u8; MOST],
}

/// What has been made at once.
pub struct Run {
    /// Iterations are left.
    pub more: bool,
    /// None of it was watched.
    pub beside: bool,
}

/// Makes as many iterations as are alike, if they are `least` at least; `None`: none.
pub fn run(t: Current, cpu: &mut Cpu, insn: &Insn, b: Buffers, least: u64) -> Option<Run> {
    let copies = insn.class == Class::Movs;
    if !copies && insn.class != Class::Stos
        || insn.layout.addr32
        || cpu.gprs.rflags & DF != 0
        || t.stepping.load(Relaxed)
        || t.own().own_step.get().is_some()
    {
        return None;
    }
    let (size, dest) = (insn.string_size(), insn.string_dest(cpu));
    let source = insn.string_source(cpu);
    let (page, seen) = (
        g().page_map.entry(TargetAddr(dest)),
        g().page_map.entry(TargetAddr(source)),
    );
    let checked = copies && regions::is_checked(source);
    let stores = page.guards(AccessKind::Write);
    let loads = copies && !checked && seen.guards(AccessKind::Read);
    if !stores && !loads || page.moved() && !page.permits(AccessKind::Write) {
        return None;
    }
    let count = match insn.is_rep() {
        true => insn.string_count(cpu),
        false => 1,
    };
    let mut n = count.min(left_of_page(dest) / size);
    if copies {
        n = n.min(left_of_page(source) / size);
    }
    let mut of = |here: bool, at: u64, kind: AccessKind| match here && n >= least {
        true => alone(at, &mut n, size, kind),
        false => Some(None),
    };
    let written = of(stores, dest, AccessKind::Write)?;
    let read = of(loads, source, AccessKind::Read)?;
    if n < least {
        return None;
    }
    let len = (n * size) as usize;
    let (old, new) = (b.old.get_mut(..len)?, b.new.get_mut(..len)?);
    if copies {
        let apart = source.abs_diff(dest) >= len as u64;
        if !apart
            || checked && shadow::first_closed(source, len as u64).is_some()
            || seen.moved() && !seen.permits(AccessKind::Read)
            || memory::read(source, new) != len
        {
            return None;
        }
    } else {
        let value = cpu.gprs.rax;
        match size {
            1 => new.fill(value as u8),
            2 => fill(new, (value as u16).to_le_bytes()),
            4 => fill(new, (value as u32).to_le_bytes()),
            _ => fill(new, value.to_le_bytes()),
        }
    }
    let lock = match written {
        Some(_) => locks::take_page(dest)?,
        None => Held::NONE,
    };
    let made =
        (written.is_none() || memory::read(dest, old) == len) && memory::write(dest, new) == len;
    lock.give_back();
    if !made {
        return None;
    }
    if let Some(id) = written {
        let silent = match size {
            1 => same::<1>(old, new),
            2 => same::<2>(old, new),
            4 => same::<4>(old, new),
            _ => same::<8>(old, new),
        };
        hits::count(id, n, silent);
    }
    if let Some(id) = read {
        hits::count(id, n, 0);
    }
    let beside = written.is_none() && read.is_none();
    if beside {
        // As one by one: an iteration is one, whatever it touches.
        let at = if stores { dest } else { source };
        count_false_positives(t, TargetAddr(at), n);
    }
    let r = &mut cpu.gprs;
    r.rdi = r.rdi.wrapping_add(len as u64);
    if copies {
        r.rsi = r.rsi.wrapping_add(len as u64);
    }
    if insn.is_rep() {
        r.rcx -= n;
    }
    if n == count {
        r.rip = insn.pc.wrapping_add(insn.len.into());
    }
    Some(Run {
        more: n < count,
        beside,
    })
}

fn fill<const SIZE: usize>(to: &mut [u8], element: [u8; SIZE]) {
    to.as_chunks_mut().0.fill(element);
}

/// How many elements are the same.
fn same<const SIZE: usize>(old: &[u8], new: &[u8]) -> u64 {
    let (old, new) = (old.as_chunks::<SIZE>().0, new.as_chunks::<SIZE>().0);
    old.iter().zip(new).filter(|(old, new)| old == new).count() as u64
}

fn left_of_page(addr: u64) -> u64 {
    PAGE_SIZE - addr % PAGE_SIZE
}

/// Is the page of a checked heap, and of no other watch? (Then it has a class.)
fn has_only_bits(addr: u64) -> bool {
    regions::is_checked(addr) && g().page_map.class(TargetAddr(addr)) != 0
}

/// The only watch that sees such an access to `addr`, if it is one that only counts, or `Some(None)`: none does.
/// `n` becomes how many elements that is so for. `None`: it is more special than that.
pub fn alone(addr: u64, n: &mut u64, size: u64, access: AccessKind) -> Option<Option<WatchId>> {
    let len = *n * size;
    if has_only_bits(addr) && addr % PAGE_SIZE + len <= PAGE_SIZE {
        let open = shadow::first_closed(addr, len).map_or(len, |closed| closed - addr);
        *n = open / size;
        return (*n > 0).then_some(None);
    }
    let mut here = None;
    let mut special = false;
    let mut end = addr + len;
    let look = &mut |id: WatchId, range: WatchRange, kind: WatchKind| {
        if range.start.0 > addr {
            end = end.min(range.start.0);
            return false; // what follows begins later still
        }
        let a = g().attributes(id);
        if a.part == Part::Checked {
            // What nobody may touch is told of one by one.
            let open = shadow::first_closed(addr, end - addr).map_or(end, |closed| closed);
            special |= open - addr < size;
            end = end.min(open - (open - addr) % size);
            return true;
        }
        special |= here.is_some() || a.log || a.stop || a.filter.is_some() || a.frozen.is_some();
        special |= a.part == Part::Pointer;
        special |= !kind.sees(access);
        end = end.min(range.end().0);
        here = Some(a.group.unwrap_or(id));
        true
    };
    g().watchlist().overlaps_while(TargetAddr(addr), len, look);
    *n = (end - addr) / size;
    (!special).then_some(here)
}
