//! Performs many iterations of a `rep stos` or `rep movs` at once: `memset` and `memcpy` of watched memory. Called at a
//! fault, or from a trampoline (`direct.rs`), which also has single iterations performed here.
//!
//! One by one, an iteration costs some 50 cycles, though no signal. A run is a part of one page that no watch sees, or
//! that one watch that only counts sees as a whole. Then hits and silent stores are counted, and the bytes are copied.
//! All other iterations go the usual way (`fault::perform`), one at a time.

use core::sync::atomic::Ordering::Relaxed;

use ulpf_engine::access::{Class, Insn};
use ulpf_engine::cpu::Cpu;
use ulpf_lib::eflags::DF;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr, WatchId, WatchKind, WatchRange};

use crate::check::{regions, shadow};
use crate::global::g;
use crate::hits::{self, count_false_positives};
use crate::locks::{self, Held};
use crate::patches;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use ulpf_stub_tables::attributes::Part;

/// Shorter runs gain nothing in a fault handler.
pub const LEAST: u64 = 4;
const MOST: usize = PAGE_SIZE as usize;

/// Room for a page of old values and one of new ones.
pub struct Buffers<'a> {
    pub old: &'a mut [u8; MOST],
    pub new: &'a mut [u8; MOST],
}

/// The result of a run.
pub struct Run {
    /// Iterations are left.
    pub more: bool,
    /// No byte of it was watched.
    pub beside: bool,
}

/// Direction of a string instruction, by the direction flag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Direction {
    /// The number of whole elements on the page, if the first one is at `addr`.
    fn on_page(self, addr: u64, size: u64) -> u64 {
        let left = left_of_page(addr);
        match self {
            Direction::Up => left / size,
            Direction::Down if left < size => 0,
            Direction::Down => (PAGE_SIZE - left) / size + 1,
        }
    }

    /// The lowest address of `n` elements, the first of them at `addr`.
    fn lowest(self, addr: u64, n: u64, size: u64) -> u64 {
        match self {
            Direction::Up => addr,
            Direction::Down => addr - (n - 1) * size,
        }
    }

    /// As [`alone`], for `n` elements, the first of them at `addr`. Reduces `n`, but not below `least`.
    fn alone(
        self,
        addr: u64,
        n: &mut u64,
        size: u64,
        access: AccessKind,
        least: u64,
    ) -> Option<Option<WatchId>> {
        if self == Direction::Up {
            return alone(addr, n, size, access);
        }
        // `alone` omits elements at the upper end, where these begin.
        while *n >= least {
            let mut same = *n;
            match alone(self.lowest(addr, *n, size), &mut same, size, access) {
                Some(seen) if same == *n => return Some(seen),
                _ => *n /= 2,
            }
        }
        None
    }

    /// Computes what a copy by elements leaves at its destination; `new` has the source's bytes before the copy.
    /// `behind` is the distance of the destination behind the source, in the direction of the copy. If that is less
    /// than the length, the copy repeats what it has stored. Returns `false` if an element overlaps the one that it is
    /// stored to.
    fn spread(self, new: &mut [u8], behind: u64, size: u64) -> bool {
        if behind >= new.len() as u64 {
            return true;
        }
        if behind < size {
            return behind == 0;
        }
        // Doubled each time: the known bytes are a multiple of `behind`.
        let (mut known, len) = (behind as usize, new.len());
        while known < len {
            match self {
                Direction::Up => {
                    let Some((from, to)) = new.split_at_mut_checked(known) else {
                        return false;
                    };
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                }
                Direction::Down => {
                    let Some((to, from)) = new.split_at_mut_checked(len - known) else {
                        return false;
                    };
                    let pairs = to.iter_mut().rev().zip(from.iter().rev());
                    pairs.for_each(|(to, from)| *to = *from);
                }
            }
            known *= 2;
        }
        true
    }
}

/// Performs as many equal iterations as possible, if there are at least `least`; `None` if there are fewer.
pub fn run(t: Current, cpu: &mut Cpu, insn: &Insn, b: Buffers, least: u64) -> Option<Run> {
    let copies = insn.class == Class::Movs;
    if !copies && insn.class != Class::Stos
        || insn.layout.addr32
        || t.stepping.load(Relaxed)
        || t.own().own_step.get().is_some()
    {
        return None;
    }
    let direction = match cpu.gprs.rflags & DF {
        0 => Direction::Up,
        _ => Direction::Down,
    };
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
    let mut n = count.min(direction.on_page(dest, size));
    if copies {
        n = n.min(direction.on_page(source, size));
    }
    let mut of = |here: bool, at: u64, kind: AccessKind| match here && n >= least {
        true => direction.alone(at, &mut n, size, kind, least),
        false => Some(None),
    };
    let written = of(stores, dest, AccessKind::Write)?;
    let read = of(loads, source, AccessKind::Read)?;
    if n < least {
        return None;
    }
    let len = (n * size) as usize;
    let to = direction.lowest(dest, n, size);
    let (old, new) = (b.old.get_mut(..len)?, b.new.get_mut(..len)?);
    if copies {
        let from = direction.lowest(source, n, size);
        // (A destination before the source is written after the source is read: the distance wraps to a large number.)
        let behind = match direction {
            Direction::Up => dest.wrapping_sub(source),
            Direction::Down => source.wrapping_sub(dest),
        };
        if checked && shadow::first_poisoned(from, len as u64).is_some()
            || seen.moved() && !seen.permits(AccessKind::Read)
            || memory::read(from, new) != len
            || !direction.spread(new, behind, size)
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
        Some(_) => locks::take_page(to)?,
        None => Held::NONE,
    };
    let made = (written.is_none() || memory::read(to, old) == len) && memory::write(to, new) == len;
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
        hits::counted(t, (cpu.gprs, insn.pc), id, (to, len as u64), (n, silent));
    }
    if let Some(id) = read {
        hits::count(id, n, 0);
    }
    let beside = written.is_none() && read.is_none();
    if beside {
        // Each iteration counts as one, whatever it touches, as it does one by one.
        let at = if stores { dest } else { source };
        count_false_positives(t, TargetAddr(at), n);
    }
    let r = &mut cpu.gprs;
    let step = match direction {
        Direction::Up => len as u64,
        Direction::Down => (len as u64).wrapping_neg(),
    };
    r.rdi = r.rdi.wrapping_add(step);
    if copies {
        r.rsi = r.rsi.wrapping_add(step);
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

/// The number of elements that are equal.
fn same<const SIZE: usize>(old: &[u8], new: &[u8]) -> u64 {
    let (old, new) = (old.as_chunks::<SIZE>().0, new.as_chunks::<SIZE>().0);
    old.iter().zip(new).filter(|(old, new)| old == new).count() as u64
}

fn left_of_page(addr: u64) -> u64 {
    PAGE_SIZE - addr % PAGE_SIZE
}

/// True if the page belongs to a checked heap, and to no other watch. (Then it has a class.)
fn has_only_bits(addr: u64) -> bool {
    regions::is_checked(addr) && g().page_map.class(TargetAddr(addr)) != 0
}

/// The only watch that sees such an access to `addr`, if it only counts, or `Some(None)` if no watch sees it. `n`
/// becomes the number of elements for which that holds. `None` if the access needs more than a count.
pub fn alone(addr: u64, n: &mut u64, size: u64, access: AccessKind) -> Option<Option<WatchId>> {
    let len = *n * size;
    if has_only_bits(addr) && addr % PAGE_SIZE + len <= PAGE_SIZE {
        let open = shadow::first_poisoned(addr, len).map_or(len, |closed| closed - addr);
        *n = open / size;
        return (*n > 0).then_some(None);
    }
    if access == AccessKind::Write
        && let Some(id) = patches::counting(addr)
    {
        return Some(Some(id));
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
            // Accesses to poisoned bytes are reported one by one.
            let open = shadow::first_poisoned(addr, end - addr).map_or(end, |closed| closed);
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
