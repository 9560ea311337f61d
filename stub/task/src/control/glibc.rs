//! The blocks that a program has when heap checking begins, for glibc's allocator (ptmalloc, 2.27 and later). They are
//! found by a walk of its arenas, chunk by chunk.
//!
//! ```text
//!     libc's data    main_arena: found without symbols by its empty bins[n], which point to themselves
//!       .next ─▶ other arenas, each at the beginning of its first heap (64 MiB, aligned); .top ─▶ last heap ─▶ .prev …
//!
//!     chunk    │ prev_size │ size | flags │ what malloc returned … │ size | flags │ …
//!                ▲ belongs to the chunk before while that is in use     ▲ bit 0: the chunk before is in use
//! ```
//! Some freed chunks are marked in use: those in the arena's fastbins, and those in a thread's tcache. A tcache is
//! itself a chunk, of a certain size, and is recognized by its content. All data is read, and accepted only if it is
//! consistent.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::{Snapshot, Vma};
use ulpf_lib::guard::{PROT_READ, PROT_WRITE};
use ulpf_lib::ring::findings::Old;
use ulpf_stub_handlers::check::old::{FREED_BEFORE, IN_USE, OldBlock};
use ulpf_stub_handlers::global::g;

use super::text;

/// Of malloc_state: flags, fastbinsY, top, bins, next; and all of it.
const FLAGS: u64 = 4;
const FASTBINS: u64 = 16;
const FASTBINS_LEN: u64 = 10;
const TOP: u64 = 96;
const BINS: u64 = 112;
const NBINS: u64 = 127;
const NEXT: u64 = 2160;
const STATE: u64 = 2200;
/// Bins that are empty in any heap: that few of them are in use at a time.
const EMPTY: usize = 24;

const NONCONTIGUOUS: u32 = 2;
/// heap_info: prev; and all of it, by version.
const PREV: u64 = 8;
const HEAP_INFOS: [u64; 2] = [48, 32];
const HEAP_MAX: u64 = 64 << 20;

const SMALLEST: u64 = 32;
const PREV_INUSE: u64 = 1;
const IS_MMAPPED: u64 = 2;
const FLAG_BITS: u64 = 7;

/// A thread's tcache: counts and lists, and the chunk that it is.
const TCACHE_BINS: u64 = 64;
const TCACHE_CHUNK: u64 = 0x290;

const MOST_ARENAS: usize = 1024;
const MOST_HEAPS: usize = 1024;

/// Memory that is read in large pieces, from its beginning to its end. (What lists lead to is read word by word.)
struct Reader {
    at: u64,
    bytes: Vec<u8>,
    len: usize,
}

impl Reader {
    fn new() -> Reader {
        Reader {
            at: 0,
            bytes: alloc::vec![0; 256 << 10],
            len: 0,
        }
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        let mut from = at.wrapping_sub(self.at) as usize;
        if from.checked_add(8).is_none_or(|end| end > self.len) {
            (self.at, from) = (at, 0);
            self.len = text::read(at, &mut self.bytes);
        }
        let word = self
            .bytes
            .get(..self.len)?
            .get(from..from.checked_add(8)?)?;
        word.try_into().ok().map(u64::from_le_bytes)
    }
}

/// Result of a walk of the heap.
#[derive(Default)]
pub struct Walked {
    /// Ascending.
    pub blocks: Vec<OldBlock>,
    /// Memory, `[start, end)` in whole pages, in which all bytes outside blocks are the allocator's.
    pub regions: Vec<(u64, u64)>,
}

/// A range of chunks: the first one, and their end: the top chunk, or a heap's end.
struct Chunks {
    first: u64,
    top: u64,
    end: u64,
}

/// All blocks of the C library whose data are in these mappings.
pub fn walk(data: &[(u64, u64)]) -> Result<Walked, Old> {
    let mut r = Reader::new();
    let main = data.iter().find_map(|stretch| main_arena(&mut r, *stretch));
    let main = main.ok_or(Old::Unknown)?;
    let mut walked = Walked::default();
    let mut free = BTreeSet::new();
    let mut arena = main;
    for _ in 0..MOST_ARENAS {
        fastbins(&mut r, arena, &mut free).ok_or(Old::Damaged)?;
        let stretches = match arena == main {
            true => main_chunks(&mut r, main)?,
            false => heaps(&mut r, arena).ok_or(Old::Damaged)?,
        };
        for stretch in &stretches {
            chunks(&mut r, stretch, &mut walked).ok_or(Old::Damaged)?;
        }
        arena = r.word(arena + NEXT).ok_or(Old::Damaged)?;
        if arena == main {
            break;
        }
    }
    walked.blocks.sort_unstable_by_key(|b| b.start);
    tcaches(&mut r, &walked, &mut free);
    for block in &mut walked.blocks {
        if free.contains(&block.start) {
            block.state = FREED_BEFORE.into();
        }
    }
    walked.regions.sort_unstable();
    Ok(walked)
}

fn main_arena(r: &mut Reader, (start, end): (u64, u64)) -> Option<u64> {
    let last = end.checked_sub(STATE)?;
    (start..=last).step_by(16).find(|at| is_arena(r, *at))
}

/// Returns whether its bins and their chunks point to each other and to themselves.
fn is_arena(r: &mut Reader, at: u64) -> bool {
    let mut empty = 0;
    for n in 0..NBINS {
        let bin = at + BINS + n * 16 - 16;
        let (Some(forward), Some(back)) = (r.word(bin + 16), r.word(bin + 24)) else {
            return false;
        };
        match (forward == bin, back == bin) {
            (true, true) => empty += 1,
            (false, false)
                if r.word(forward + 24) == Some(bin) && r.word(back + 16) == Some(bin) => {}
            _ => return false,
        }
        // (Most memory is not an arena.)
        if n == 40 && empty == 0 {
            return false;
        }
    }
    let next = r.word(at + NEXT);
    empty >= EMPTY && next.is_some_and(|next| next != 0 && next.is_multiple_of(8))
}

fn main_chunks(r: &mut Reader, main: u64) -> Result<Vec<Chunks>, Old> {
    let flags = (r.word(main).ok_or(Old::Damaged)? >> 32) as u32;
    const _: () = assert!(FLAGS == 4);
    let top = r.word(main + TOP).ok_or(Old::Damaged)?;
    // (Nothing was allocated from it.)
    if top == main + TOP {
        return Ok(Vec::new());
    }
    let end = g().brk.load(Relaxed);
    let first = start_brk().ok_or(Old::Unknown)?.next_multiple_of(16);
    if flags & NONCONTIGUOUS != 0 || !(first..end).contains(&top) {
        return Err(Old::Unknown);
    }
    Ok(alloc::vec![Chunks { first, top, end }])
}

/// Start of the memory that ends at the program break.
fn start_brk() -> Option<u64> {
    /// Behind the name, which is in brackets.
    const FIELD: usize = 44;
    let stat = crate::files::read_file("/proc/self/stat\0")?;
    let name = stat.iter().rposition(|byte| *byte == b')')?;
    let text = core::str::from_utf8(stat.get(name + 1..)?).ok()?;
    text.split_ascii_whitespace().nth(FIELD)?.parse().ok()
}

/// The heaps of another arena.
fn heaps(r: &mut Reader, arena: u64) -> Option<Vec<Chunks>> {
    let top = r.word(arena + TOP)?;
    let mut heap = top & !(HEAP_MAX - 1);
    let mut all = Vec::new();
    for _ in 0..MOST_HEAPS {
        let end = heap.checked_add(r.word(heap + 16)?)?;
        // (Its arena, and that it is in it.)
        (r.word(heap)? == arena && end - heap <= HEAP_MAX).then_some(())?;
        let prev = r.word(heap + PREV)?;
        let firsts = match prev {
            0 => [(arena + STATE).next_multiple_of(16); 2],
            _ => HEAP_INFOS.map(|len| heap + len),
        };
        let is_first = |r: &mut Reader, at: u64| {
            r.word(at + 8)
                .is_some_and(|size| size & !FLAG_BITS >= SMALLEST)
        };
        let first = firsts.into_iter().find(|at| is_first(r, *at))?;
        let top = if all.is_empty() { top } else { end };
        all.push(Chunks { first, top, end });
        if prev == 0 {
            return Some(all);
        }
        heap = prev;
    }
    None
}

/// Walks a stretch to its end.
fn chunks(r: &mut Reader, stretch: &Chunks, walked: &mut Walked) -> Option<()> {
    let mut at = stretch.first;
    let mut blocks = Vec::new();
    while at < stretch.top {
        let size = r.word(at + 8)?;
        let len = size & !FLAG_BITS;
        // Fencepost chunks at the end of a full heap.
        if len < SMALLEST && stretch.top == stretch.end && stretch.end - at <= 64 {
            break;
        }
        let next = at.checked_add(len)?;
        let fits = len >= SMALLEST
            && len.is_multiple_of(16)
            && size & IS_MMAPPED == 0
            && next <= stretch.top;
        fits.then_some(())?;
        let in_use = r.word(next + 8)? & PREV_INUSE != 0;
        blocks.push(OldBlock {
            start: at + 16,
            // (The first word of the next chunk belongs to it, too, as long as it is in use.)
            size: len - 8,
            state: if in_use { IN_USE } else { FREED_BEFORE }.into(),
            freed: 0.into(),
        });
        at = next;
    }
    if let Some(last) = blocks.last() {
        let end = last.start + last.size + 8;
        let start = stretch.first & !(PAGE_SIZE - 1);
        walked
            .regions
            .push((start, end.next_multiple_of(PAGE_SIZE)));
    }
    walked.blocks.extend(blocks);
    Some(())
}

/// A pointer of such a list: decoded (2.32 and later), and as it is.
fn revealed(at: u64, word: u64) -> [u64; 2] {
    [word ^ at >> 12, word]
}

/// The fastbins of an arena: chunks, each with the next one where a block begins.
fn fastbins(r: &mut Reader, arena: u64, free: &mut BTreeSet<u64>) -> Option<()> {
    for n in 0..FASTBINS_LEN {
        let mut chunk = r.word(arena + FASTBINS + n * 8)?;
        for _ in 0..1 << 20 {
            if chunk == 0 {
                break;
            }
            let block = chunk.checked_add(16)?;
            (chunk.is_multiple_of(16) && text::word(chunk + 8)? & !FLAG_BITS == SMALLEST + n * 16)
                .then_some(())?;
            if !free.insert(block) {
                return None;
            }
            let next = revealed(block, text::word(block)?);
            chunk = next.into_iter().find(|next| {
                next.is_multiple_of(16) && (*next == 0 || text::word(*next).is_some())
            })?;
        }
    }
    Some(())
}

/// The tcaches of all threads, as far as they are found.
fn tcaches(r: &mut Reader, walked: &Walked, free: &mut BTreeSet<u64>) {
    let candidates = walked
        .blocks
        .iter()
        .filter(|b| b.size + 8 == TCACHE_CHUNK && b.is(IN_USE));
    for candidate in candidates {
        if let Some(blocks) = tcache(r, candidate.start, walked) {
            free.extend(blocks);
        }
    }
}

/// The blocks in the tcache at `at`; `None` if it is not a tcache.
fn tcache(r: &mut Reader, at: u64, walked: &Walked) -> Option<Vec<u64>> {
    let mut all = Vec::new();
    for n in 0..TCACHE_BINS {
        let count = r.word(at + n / 4 * 8)? >> (n % 4 * 16) & 0xffff;
        let mut block = r.word(at + TCACHE_BINS * 2 + n * 8)?;
        for _ in 0..count {
            let found = walked
                .blocks
                .binary_search_by_key(&block, |b| b.start)
                .ok()?;
            let size = walked.blocks.get(found)?.size + 8;
            (size == SMALLEST + n * 16).then_some(())?;
            all.push(block);
            let next = revealed(block, text::word(block)?);
            block = next.into_iter().find(|next| next.is_multiple_of(16))?;
        }
        // (The last one leads nowhere.)
        (block == 0).then_some(())?;
    }
    Some(all)
}

/// Writable ranges of a file that is mapped at `[start, end)`.
pub fn data_of((start, end): (u64, u64), maps: &Snapshot) -> Vec<(u64, u64)> {
    let writable = |v: &&Vma| v.prot & PROT_READ != 0 && v.prot & PROT_WRITE != 0;
    let within = |v: &&Vma| start <= v.start && v.end <= end;
    let mut all: Vec<(u64, u64)> = Vec::new();
    for vma in maps.vmas.iter().filter(within).filter(writable) {
        match all.last_mut() {
            Some(last) if last.1 == vma.start => last.1 = vma.end,
            _ => all.push((vma.start, vma.end)),
        }
    }
    all
}
