//! The checked heap itself: where blocks lie, and what is known of them.
//!
//! ```text
//! arena     | granule: slots of one size          | granule … | large block: several granules, and a gap |
//! slot      | block (what was asked for) | gap |
//! granules  a word each: what it is for            known apart from the program's memory
//! slots     a record for each 64 bytes: size, state, who has allocated and freed
//! ```
//! A freed block goes through the quarantine, a queue of so many bytes, before its slot is used again.
//!
//! One lock, held for some tens of instructions; a thread in here is in our own code, so no signal of the program and no
//! rest comes between.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::ring::found::{Asked, By, Wrong};
use ulpf_lib::sys;

use super::arena::{
    self, ARENA, CARVED, EXHAUSTED, GRANULE, GRANULES_AT, MAPPED, RECORDS_AT, START, arena, lock,
};
use super::blocks::{
    EMPTY, FREE, Granule, IN_USE, QUARANTINED, Slot, expect, get, granule, link, offset, put,
    set_granule, set_next, slot_of,
};
use super::found::{count, findings};
use super::twin::Twin;
use super::{entries, shadow, told_blocks};
use crate::runtime::memory;

const LARGEST: u64 = 16 << 10;
/// Of a large block, the gap behind it at least.
const LARGE_GAP: u64 = PAGE_SIZE;
/// A freed block of that size or more gives its memory back at once.
const GIVEN_BACK: u64 = 1 << 20;
/// Free large blocks that are looked at for one that fits.
const TRIES: usize = 256;
const CLASSES: usize = 64;

/// Bytes of freed blocks that wait.
static QUARANTINE: AtomicU64 = AtomicU64::new(64 << 20);
/// Bytes of a gap at least.
static GAP: AtomicU64 = AtomicU64::new(16);

/// By size of slots: the free ones, and where the next unused one is and its granule ends.
struct Class {
    free: AtomicU32,
    fresh: AtomicU64,
    end: AtomicU64,
}

static CLASS: [Class; CLASSES] = [const {
    Class {
        free: AtomicU32::new(0),
        fresh: AtomicU64::new(0),
        end: AtomicU64::new(0),
    }
}; CLASSES];
/// Free large blocks.
static LARGE: AtomicU32 = AtomicU32::new(0);
/// The quarantine: its oldest block and its youngest, and the bytes of all.
static OLDEST: AtomicU32 = AtomicU32::new(0);
static YOUNGEST: AtomicU32 = AtomicU32::new(0);
static WAITING: AtomicU64 = AtomicU64::new(0);

/// Where the heap's memory is.
pub struct Places {
    /// Of [`ARENA`] bytes of address space.
    pub arena: u64,
    /// Zeroed, of [`RECORDS`] bytes.
    pub records: u64,
    /// Zeroed, of [`GRANULES`] bytes.
    pub granules: u64,
    /// Bytes of freed blocks that wait.
    pub quarantine: u64,
    /// Bytes of a gap at least.
    pub gap: u64,
}

/// By the stub's task, before anybody is served.
pub fn begin(places: &Places) {
    RECORDS_AT.store(places.records, Relaxed);
    GRANULES_AT.store(places.granules, Relaxed);
    QUARANTINE.store(places.quarantine, Relaxed);
    GAP.store(places.gap.max(16).next_multiple_of(16), Relaxed);
    START.store(places.arena, Relaxed);
}

/// A forked child: what its parent's stub knew is known here, too.
pub fn adopt(twin: Twin) {
    twin.take(&QUARANTINE);
    twin.take(&GAP);
    twin.take(&CLASS);
    for word in [&LARGE, &OLDEST, &YOUNGEST] {
        twin.take(word);
    }
    twin.take(&WAITING);
}

// ---- allocation ----------------------------------------------------------------------------------

/// There is no memory for it.
pub enum NoRoom {
    /// As long as the arena has not grown by so many bytes.
    Grow(u64),
    /// Nor ever will be.
    Never,
}

/// The number and the size of slots for so many bytes.
fn class(need: u64) -> (usize, u64) {
    let need = need.max(arena::SMALLEST);
    if need <= 128 {
        let size = need.next_multiple_of(16);
        return (((size - 64) / 16) as usize, size);
    }
    // Eight sizes from each power of two to the next one.
    let power = (need - 1).ilog2();
    let step = 1u64 << (power - 3);
    let size = need.next_multiple_of(step);
    let n = (size - (1 << power)) / step;
    ((4 + u64::from(power - 7) * 8 + n) as usize, size)
}

/// Memory for granules that nobody has had.
fn carve(granules: u64) -> Result<u64, NoRoom> {
    let at = CARVED.load(Relaxed);
    let end = at + granules * GRANULE;
    if end > ARENA {
        return Err(NoRoom::Never);
    }
    let mapped = MAPPED.load(Relaxed);
    if end > mapped && !entries::asleep() {
        return Err(match EXHAUSTED.load(Relaxed) {
            true => NoRoom::Never,
            false => NoRoom::Grow(end - mapped),
        });
    }
    if end > mapped && !grow_alone(end - mapped) {
        return Err(NoRoom::Never);
    }
    CARVED.store(end, Relaxed);
    Ok(at)
}

/// In a forked child nobody watches: it takes memory itself.
fn grow_alone(more: u64) -> bool {
    let mapped = MAPPED.load(Relaxed);
    let more = more.next_multiple_of(16 << 20).min(ARENA - mapped);
    let prot = k::PROT_READ | k::PROT_WRITE;
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED | k::MAP_NORESERVE;
    let at = arena() + mapped;
    // SAFETY: address space that the heap has reserved.
    let done = unsafe { sys!(k::__NR_mmap, at, more, prot, flags, -1i64, 0) }.is_ok();
    if done {
        MAPPED.store(mapped + more, Relaxed);
    }
    done
}

fn small(need: u64) -> Result<u64, NoRoom> {
    let (n, size) = class(need);
    let Some(class) = CLASS.get(n) else {
        return Err(NoRoom::Never);
    };
    let free = class.free.load(Relaxed);
    if free != 0 {
        class.free.store(get(offset(free)).next, Relaxed);
        return Ok(offset(free));
    }
    let mut fresh = class.fresh.load(Relaxed);
    if fresh + size > class.end.load(Relaxed) {
        fresh = carve(1)?;
        set_granule(fresh, Granule::Small(size));
        class.end.store(fresh + GRANULE, Relaxed);
    }
    class.fresh.store(fresh + size, Relaxed);
    Ok(fresh)
}

fn large(need: u64) -> Result<u64, NoRoom> {
    let granules = need.div_ceil(GRANULE);
    // The first one that is large enough; what is left of it stays free.
    let (mut before, mut at) = (0, LARGE.load(Relaxed));
    for _ in 0..TRIES {
        if at == 0 {
            break;
        }
        let (slot, next) = (offset(at), get(offset(at)).next);
        let has = match granule(slot) {
            Granule::Large(n) => n,
            _ => 0,
        };
        if has >= granules {
            let mut follows = next;
            if has > granules {
                let rest = slot + granules * GRANULE;
                set_large(rest, has - granules);
                put(
                    rest,
                    Slot {
                        state: FREE,
                        next,
                        ..EMPTY
                    },
                );
                follows = link(rest);
            }
            match before {
                0 => LARGE.store(follows, Relaxed),
                _ => set_next(offset(before), follows),
            }
            set_large(slot, granules);
            return Ok(slot);
        }
        (before, at) = (at, next);
    }
    let slot = carve(granules)?;
    set_large(slot, granules);
    Ok(slot)
}

fn set_large(slot: u64, granules: u64) {
    set_granule(slot, Granule::Large(granules));
    for n in 1..granules {
        set_granule(slot + n * GRANULE, Granule::Behind(n));
    }
}

/// Who asks for a block.
#[derive(Clone, Copy)]
pub struct Origin {
    pub by: By,
    pub asked: Asked,
    /// The number of the callers in the depot.
    pub noted: u32,
}

/// A block of so many bytes, aligned to `align`, a power of two.
pub fn allocate(size: u64, align: u64, origin: Origin, zeroed: bool) -> Result<u64, NoRoom> {
    if size > ARENA || align > ARENA {
        return Err(NoRoom::Never);
    }
    let rounded = size.max(1).next_multiple_of(16);
    let gap = GAP
        .load(Relaxed)
        .max((size / 16).next_multiple_of(16).min(512));
    let extra = if align > 16 { align } else { 0 };
    let mut need = rounded + gap + extra;
    let (slot, before);
    {
        let _lock = lock();
        slot = if need <= LARGEST {
            small(need)?
        } else {
            need += LARGE_GAP;
            large(need)?
        };
        before = get(slot).state;
        let inside = (arena() + slot).next_multiple_of(align.max(16)) - (arena() + slot);
        put(
            slot,
            Slot {
                state: IN_USE,
                by: origin.by as u8,
                asked: origin.asked as u8,
                inside: inside as u32,
                size,
                allocated: origin.noted,
                ..EMPTY
            },
        );
        let block = arena() + slot + inside;
        memory::expect(shadow::reachable(block));
        shadow::open(block, size);
        if let Some(f) = findings() {
            count(&f.allocated, 1);
            let now = count(&f.bytes, size as i64);
            if now > f.most.load(Relaxed) {
                f.most.store(now, Relaxed);
            }
        }
        if before == 0 || !zeroed {
            return Ok(block);
        }
    }
    let block = arena() + slot + u64::from(get(slot).inside);
    clear(block, size);
    Ok(block)
}

fn clear(addr: u64, len: u64) {
    // SAFETY: a block that nobody else knows yet; each window's alias is contiguous.
    each_window(addr, len, |at, n| unsafe {
        core::ptr::write_bytes(shadow::reachable(at) as *mut u8, 0, n as usize)
    });
}

fn each_window(addr: u64, len: u64, mut f: impl FnMut(u64, u64)) {
    let (mut at, end) = (addr, addr + len);
    while at < end {
        let window = (at - arena()) / shadow::WINDOW * shadow::WINDOW + shadow::WINDOW + arena();
        let stop = end.min(window);
        f(at, stop - at);
        at = stop;
    }
}

/// Copies from one block to another.
pub fn copy(from: u64, to: u64, len: u64) {
    let mut buffer = [0u8; 1024];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(buffer.len() as u64) as usize;
        let part = buffer.get_mut(..n).unwrap_or_default();
        memory::read(from + done, part);
        memory::write(to + done, part);
        done += n as u64;
    }
}

/// Frees the block at `addr`, which a function of this kind was given.
pub fn free(addr: u64, by: By, noted: u32) -> Result<(), Wrong> {
    let _lock = lock();
    let (slot, bytes) = slot_of(addr).ok_or(Wrong::NoBlock)?;
    let s = get(slot);
    let start = arena() + slot + u64::from(s.inside);
    match s.state {
        IN_USE if start == addr => {}
        QUARANTINED | FREE if start == addr => return Err(Wrong::Twice),
        _ => return Err(Wrong::NoBlock),
    }
    shadow::close(start, s.size);
    told_blocks::forget_all(start, start + s.size);
    put(
        slot,
        Slot {
            state: QUARANTINED,
            freed: noted,
            next: 0,
            ..s
        },
    );
    if s.size >= GIVEN_BACK {
        give_back(start, s.size);
    }
    match YOUNGEST.load(Relaxed) {
        0 => OLDEST.store(link(slot), Relaxed),
        last => set_next(offset(last), link(slot)),
    }
    YOUNGEST.store(link(slot), Relaxed);
    count(&WAITING, bytes as i64);
    while WAITING.load(Relaxed) > QUARANTINE.load(Relaxed) && release_oldest() {}
    if let Some(f) = findings() {
        count(&f.freed, 1);
        count(&f.bytes, -(s.size as i64));
        f.quarantined.store(WAITING.load(Relaxed), Relaxed);
    }
    // It is freed all the same.
    if By::of(s.by.into()) != by {
        return Err(Wrong::Mismatch);
    }
    Ok(())
}

/// The oldest freed block may be used again. `false`: there is none.
fn release_oldest() -> bool {
    let oldest = OLDEST.load(Relaxed);
    if oldest == 0 {
        return false;
    }
    let slot = offset(oldest);
    let s = get(slot);
    OLDEST.store(s.next, Relaxed);
    match s.next {
        0 => YOUNGEST.store(0, Relaxed),
        next => expect(offset(next)),
    }
    // Its bits change when it is allocated, most likely soon.
    shadow::expect(arena() + slot);
    let list = match granule(slot & !(GRANULE - 1)) {
        Granule::Small(size) => {
            count(&WAITING, -(size as i64));
            CLASS.get(class(size).0).map(|c| &c.free)
        }
        Granule::Large(n) => {
            count(&WAITING, -((n * GRANULE) as i64));
            Some(&LARGE)
        }
        _ => None,
    };
    if let Some(list) = list {
        let next = list.swap(oldest, Relaxed);
        put(
            slot,
            Slot {
                state: FREE,
                next,
                ..s
            },
        );
    }
    true
}

/// Whole pages of a freed block go back to the system.
fn give_back(addr: u64, len: u64) {
    let from = addr.next_multiple_of(PAGE_SIZE);
    let to = (addr + len) & !(PAGE_SIZE - 1);
    if from >= to {
        return;
    }
    each_window(from, to - from, |at, n| {
        let reachable = shadow::reachable(at);
        let advice = match reachable == at {
            true => k::MADV_DONTNEED,
            false => k::MADV_REMOVE,
        };
        // SAFETY: memory of a block that has been freed.
        let _ = unsafe { sys!(k::__NR_madvise, reachable, n, advice) };
    });
}
