//! Memory for code within reach of a jump from the program's code, at places that the jump's bytes can encode. It holds
//! the trampolines of all edits, and the first instructions of functions that are replaced (`own_functions.rs`).
//!
//! A cave does not obstruct the program. Where the program break or the stack will grow, a cave is used only if there
//! is no other place, as far away as possible. It is given back before the break arrives (`syscalls::affected`). The
//! program may also have reserved address space, as V8 does for its code and, at its end, the copy of its built-in
//! functions. Such a cave is a range in the middle, which is closed again before the program uses it.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use linux_raw_sys::general as k;
use ulpf_lib::addr::USER_END;
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::sys;
use ulpf_lib::{PAGE_SIZE, TargetAddr};

use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::runtime::thread::{State, Thread};
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::caves::{Cave, Reach};

/// Bytes of a cave for patched accesses, and for little code or where new mappings of the program come.
pub const LARGE: u64 = 4 << 20;
pub const SMALL: u64 = 16 * PAGE_SIZE;
const MOST_CAVES: usize = 192;
/// How far a jump reaches, less a little.
pub const REACH: u64 = (1 << 31) - (1 << 25);
/// Lowest address that may be mapped, as a rule.
const LOWEST: u64 = 0x1_0000;
/// Distance that a cave keeps from what may grow.
const ASIDE: u64 = 64 << 20;
/// The same, from the program break.
const FROM_BREAK: u64 = 1 << 30;
/// The same where there is no other place: the jump's bytes may leave no choice.
const NEAR_BREAK: u64 = 16 << 20;

/// The kinds of places, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The part of a large gap that is nearest to the code; then the rest of it.
    Near,
    Large,
    /// The same of smaller gaps.
    NearSmall,
    Small,
    /// Far behind the program break.
    BehindBreak,
    /// A large gap up to its ends, where the kernel puts new mappings.
    Edge,
    /// Address space that the program has reserved.
    Reserved,
    /// Where the program break will come.
    NearBreak,
}

impl Rank {
    /// Returns whether the program may come to need the place.
    fn gives_way(self) -> bool {
        matches!(self, Rank::BehindBreak | Rank::Reserved | Rank::NearBreak)
    }
}

/// The least size of reserved address space with a cave.
const LEAST_RESERVED: u64 = 256 << 20;

/// A request for room in a cave.
pub struct Wanted<'a> {
    /// Where the jump is, and where it can lead.
    pub from: u64,
    pub reach: &'a dyn Reach,
    /// Bytes of code.
    pub size: u64,
    /// Bytes of a new cave.
    pub cave: u64,
    /// The code stays, whatever the program's memory does.
    pub lasting: bool,
}

/// A free place for code. It is in a new cave if no other one has room.
pub fn find(stopped: &mut Stopped, wanted: &Wanted, maps: &Snapshot) -> Option<u64> {
    let Wanted { reach, size, .. } = *wanted;
    let here = |stopped: &mut Stopped| {
        let caves = &mut stopped.tables_mut().caves;
        caves.find(reach, size, wanted.lasting)
    };
    if let Some(at) = here(stopped) {
        return Some(at);
    }
    let places = places(stopped, wanted.from, maps).into_iter();
    for (rank, free) in places.filter(|(rank, _)| !(wanted.lasting && rank.gives_way())) {
        let Some(to) = reach
            .next_start(free.start)
            .filter(|to| to + size <= free.end)
        else {
            continue;
        };
        let start = free.start.max(to & !(SMALL - 1));
        let len = match rank {
            Rank::Edge => SMALL,
            _ => wanted.cave,
        };
        // (One that begins less than its length before the place has room for it.)
        let len = len
            .max((to + size - start).next_multiple_of(PAGE_SIZE))
            .min(free.end - start);
        if stopped.tables().caves.count() < MOST_CAVES
            && add(stopped, start, len, rank)
            && let Some(at) = here(stopped)
        {
            return Some(at);
        }
    }
    None
}

/// Free memory within reach of a jump at `here`, the best first.
fn places(stopped: &Stopped, here: u64, maps: &Snapshot) -> Vec<(Rank, Range<u64>)> {
    let caves = &stopped.tables().caves;
    let reach = here.saturating_sub(REACH).max(LOWEST)..(here + REACH).min(USER_END - PAGE_SIZE);
    let within = |r: Range<u64>| {
        let start = r.start.max(reach.start).next_multiple_of(PAGE_SIZE);
        start..r.end.min(reach.end) & !(PAGE_SIZE - 1)
    };
    let brk = g().brk.load(Relaxed);
    let mut all: Vec<(Rank, Range<u64>)> = Vec::new();
    for n in 0..=maps.vmas.len() {
        let below = n.checked_sub(1).and_then(|n| maps.vmas.get(n));
        let above = maps.vmas.get(n);
        let (low, high) = (
            below.map_or(0, |v| v.end),
            above.map_or(USER_END, |v| v.start),
        );
        let end = match above {
            Some(v) if v.kind == VmaKind::Stack => high.saturating_sub(ASIDE),
            _ => high,
        };
        let (mut start, mut end) = (low, end);
        let mut ranks = (Rank::NearSmall, Rank::Small);
        if high.saturating_sub(low) >= 4 * ASIDE {
            all.push((Rank::Edge, start..end));
            ranks = (Rank::Near, Rank::Large);
            // Our own do not grow.
            let aside = |v: Option<&Vma>| match v {
                Some(v) if caves.iter().any(|cave| cave.start == v.start) => 0,
                _ => ASIDE,
            };
            (start, end) = (low + aside(below), end.min(high - aside(above)));
        }
        if low <= brk.next_multiple_of(PAGE_SIZE) && brk < high {
            all.retain(|(rank, edge)| *rank != Rank::Edge || edge.start != low);
            let near = (brk + NEAR_BREAK).max(start)..(brk + FROM_BREAK).min(end);
            all.push((Rank::NearBreak, near));
            start = start.max(brk + FROM_BREAK);
            ranks = (Rank::BehindBreak, Rank::BehindBreak);
        }
        let free = within(start..end);
        // The nearest to the code first, of large gaps more than one.
        let from = match free.start > here {
            true => free.start,
            false => free.end.saturating_sub(LARGE).max(free.start),
        };
        all.push((ranks.0, from..free.end));
        if from != free.start {
            all.push((ranks.1, free));
        }
    }
    let reserved = maps.vmas.iter().filter_map(middle);
    all.extend(reserved.map(|r| (Rank::Reserved, r)));
    let all = all.into_iter().map(|(rank, r)| (rank, within(r)));
    let mut all: Vec<_> = all.filter(|(_, r)| r.start < r.end).collect();
    all.sort_by_key(|(rank, r)| (*rank, r.start.abs_diff(here)));
    all
}

fn add(stopped: &mut Stopped, start: u64, len: u64, rank: Rank) -> bool {
    let reserved = rank == Rank::Reserved;
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
    let caves = &mut stopped.tables_mut().caves;
    caves.add(start..start + len, reserved, rank.gives_way());
    true
}

/// Gives back the caves in `[start, end)`; no edit leads there.
pub fn give_back(stopped: &mut Stopped, start: u64, end: u64) {
    remove(stopped, |cave| cave.start < end && start < cave.end);
}

/// Gives back the caves without code.
pub fn give_back_empty(stopped: &mut Stopped) {
    remove(stopped, Cave::is_empty);
}

fn remove(stopped: &mut Stopped, goes: impl Fn(&Cave) -> bool) {
    for cave in stopped.tables_mut().caves.remove(goes) {
        match cave.reserved {
            true => patches::close_reserved(cave.start, cave.len()),
            // SAFETY: our own mapping, with the world stopped; no thread executes in it.
            false => drop(unsafe { sys!(k::__NR_munmap, cave.start, cave.len()) }),
        }
        stopped.guards().include(TargetAddr(cave.start), cave.len());
    }
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
