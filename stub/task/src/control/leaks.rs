//! Leaks of a checked heap at the program's end: blocks that nothing points to any more.
//!
//! ```text
//! registers, stacks, data ──▶ blocks ──▶ blocks …          reachable; perhaps lost, where only the inside is pointed to
//!                             blocks that are left ──▶ …   lost; lost with the one that led there
//! ```
//! As in Valgrind's memcheck, every aligned word may be a pointer, whatever its type.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::Refusal;
use ulpf_lib::command::HeapAsk;
use ulpf_lib::command::reply::Reply;
use ulpf_lib::guard::maps::{Snapshot, VmaKind};
use ulpf_lib::guard::{PROT_READ, PROT_WRITE};
use ulpf_lib::ring::findings::{By, IN_MEMORY, Wrong};
use ulpf_lib::{kept, sys};
use ulpf_stub_handlers::check::blocks::{self, Block};
use ulpf_stub_handlers::check::{
    arena, client, client_blocks, findings, judge, regions, report, shadow,
};
use ulpf_stub_handlers::global::{g, machine};

use super::{Control, parked, reader, text};

/// Marks of blocks: the higher one wins.
const LOST: u8 = 1;
const LOST_WITH: u8 = 2;
const PERHAPS: u8 = 3;
const REACHED: u8 = 4;

/// Bytes that are examined together.
const PIECE: usize = 64 << 10;
/// The kernel lets the stack's last bytes below the stack pointer be used.
const RED_ZONE: u64 = 128;

#[derive(Default)]
struct Search {
    /// Blocks that are marked, and whose words are still to be examined.
    pending: Vec<(Block, u8)>,
}

impl Search {
    /// A word of the program's that was found where `level` is.
    fn word(&mut self, word: u64, level: u8) {
        let mut set = 0;
        let mut mark = |start| {
            set = match start {
                true => level,
                false => level.min(PERHAPS),
            };
            set
        };
        let marked = client_blocks::mark(word, &mut mark).or_else(|| {
            let outer = blocks::near(word).is_some_and(|b| is_divided(&b));
            match arena::has(word) && !outer {
                true => blocks::mark(word, mark),
                false => None,
            }
        });
        if let Some(block) = marked {
            self.pending.push((block, set));
        }
    }

    /// Follows the words of `block`.
    fn inside(&mut self, block: &Block, level: u8) {
        for at in words_of(block) {
            let word = match arena::has(at) || regions::is_requested(at) {
                // SAFETY: watched memory, by its alias, which is always mapped.
                true => unsafe { (shadow::reachable(at) as *const u64).read_volatile() },
                // (Even where the program has poisoned it.)
                false => text::word(at).unwrap_or(0),
            };
            self.word(word, level);
        }
    }

    /// Follows blocks until no new one is found.
    fn follow(&mut self) {
        while let Some((block, level)) = self.pending.pop() {
            if reader::program_is_dead() {
                return;
            }
            self.inside(&block, level);
        }
    }
}

/// Addresses of a block's words. Of a large block, those that have content: a program may use little of it.
fn words_of(block: &Block) -> impl Iterator<Item = u64> {
    const LARGE: u64 = 16 * PAGE_SIZE;
    let (from, to) = (block.start.next_multiple_of(8), block.start + block.size);
    let parts = match block.size < LARGE {
        true => vec![(from, to)],
        false => g().guards().content(from, to),
    };
    let words = |(from, to): (u64, u64)| (from..to.saturating_sub(7)).step_by(8);
    parts.into_iter().flat_map(words)
}

/// /proc/self/pagemap.
struct Pages {
    fd: u64,
    /// Linux before 6.7 does not know PAGEMAP_SCAN: there, a word for each page is read.
    scans: bool,
    words: Vec<u64>,
}

/// Number of pages whose words are read together: those of 128 MiB.
const WORDS: usize = 32 << 10;
/// Stretches that one scan may name.
const STRETCHES: usize = 64;

/// struct pm_scan_arg (include/uapi/linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// struct page_region.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Stretch {
    start: u64,
    end: u64,
    categories: u64,
}

impl Pages {
    fn open() -> Option<Pages> {
        let fd = kept::open(c"/proc/self/pagemap").ok()?;
        Some(Pages {
            fd: fd as u64,
            scans: true,
            words: vec![0; WORDS],
        })
    }

    /// Calls `f` with each stretch of `[from, to)` whose pages have content, and with stretches whose state is unknown.
    /// With `own`, content of files is left out. Ends early when the program has ended.
    fn each(&mut self, from: u64, to: u64, own: bool, mut f: impl FnMut(u64, u64)) {
        let mut at = from & !(PAGE_SIZE - 1);
        let cut = |start: u64, end: u64| (start.max(from), end.min(to));
        while at < to && !reader::program_is_dead() {
            if self.scans {
                let mut found = [Stretch::default(); STRETCHES];
                match self.scan(at, to, own, &mut found) {
                    Some((walked, count)) if walked > at => {
                        for s in found.iter().take(count) {
                            let (start, end) = cut(s.start, s.end);
                            f(start, end);
                        }
                        at = walked;
                    }
                    _ => self.scans = false,
                }
                continue;
            }
            let pages = (to.next_multiple_of(PAGE_SIZE) - at) / PAGE_SIZE;
            let pages = (pages as usize).min(WORDS);
            let words = self.words.get_mut(..pages).unwrap_or_default();
            if !read_words(self.fd, at, words) {
                let (start, end) = cut(at, to);
                return f(start, end);
            }
            let has = |word: &u64| word & CONTENT != 0 && !(own && word & FILE != 0);
            for group in words.chunk_by(|a, b| has(a) == has(b)) {
                let end = at + group.len() as u64 * PAGE_SIZE;
                if group.first().is_some_and(has) {
                    let (start, end) = cut(at, end);
                    f(start, end);
                }
                at = end;
            }
        }
    }

    /// PAGEMAP_SCAN: up to where it has looked, and how many stretches there are. `None`: it cannot.
    fn scan(&self, from: u64, to: u64, own: bool, found: &mut [Stretch]) -> Option<(u64, usize)> {
        /// `_IOWR('f', 16, struct pm_scan_arg)`
        const PAGEMAP_SCAN: u32 = 0xc060_6610;
        const IS_FILE: u64 = 1 << 2;
        const PRESENT: u64 = 1 << 3;
        const SWAPPED: u64 = 1 << 4;
        let not_files = if own { IS_FILE } else { 0 };
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: from,
            end: to.next_multiple_of(PAGE_SIZE),
            vec: found.as_mut_ptr() as u64,
            vec_len: found.len() as u64,
            category_inverted: not_files,
            category_mask: not_files,
            category_anyof_mask: PRESENT | SWAPPED,
            return_mask: PRESENT | SWAPPED,
            ..Scan::default()
        };
        // SAFETY: the kernel writes to the two, within their lengths.
        let count = unsafe { sys!(k::__NR_ioctl, self.fd, PAGEMAP_SCAN, &raw mut scan) }.ok()?;
        Some((scan.walk_end, count as usize))
    }
}

/// Present, or swapped out; and that of a file.
const CONTENT: u64 = 1 << 63 | 1 << 62;
const FILE: u64 = 1 << 61;

/// The words of the pages from `at` on. `false`: not all of them can be read.
fn read_words(fd: u64, at: u64, words: &mut [u64]) -> bool {
    let len = size_of_val(words) as u64;
    let from = at / PAGE_SIZE * 8;
    // SAFETY: fills the words at most.
    let read = unsafe { sys!(k::__NR_pread64, fd, words.as_mut_ptr(), len, from) };
    read == Ok(len)
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys!(k::__NR_close, self.fd) };
    }
}

/// Where a word of the program's is.
enum Place {
    /// The number of a register, and the thread.
    Register(u8, u32),
    Memory(u64),
}

impl Control {
    /// Reports the leaks at the program's end.
    pub fn find_leaks(&mut self) {
        let Some(findings) = findings::findings() else {
            return;
        };
        if findings.searched.swap(1, SeqCst) != 0 || self.check.unknown {
            return;
        }
        if self.mark_all() {
            tell(|_, wrong, blocks, bytes, example| report::left(wrong, blocks, bytes, example));
        }
    }

    /// Serves a client request for leaks: reports them, and stores the sums for the program.
    pub fn count_leaks(&mut self) {
        if !self.mark_all() {
            return;
        }
        client::LEFT
            .iter()
            .flatten()
            .for_each(|n| n.store(0, Relaxed));
        tell(|_, wrong, blocks, bytes, _| {
            report::add_left(&client::LEFT, wrong, blocks, bytes);
        });
        let sum = |of: &[AtomicU64; 2]| {
            let [blocks, bytes] = of.each_ref().map(|n| n.load(Relaxed));
            let s = if blocks == 1 { "" } else { "s" };
            alloc::format!("{blocks} block{s} ({bytes} bytes)")
        };
        let [lost, with, perhaps, reachable] = client::LEFT.each_ref().map(sum);
        self.warn(&alloc::format!(
            "ulpf: the program asks what is lost by now: {lost}; with these, {with}; possibly, {perhaps}; still reachable, {reachable}\n"
        ));
    }

    /// The same for a debugger's request during the run. Returns the number of places reported.
    fn leaks_now(&mut self) -> usize {
        let mut count = 0;
        if self.mark_all() {
            tell(|number, wrong, blocks, bytes, example| {
                count += usize::from(report::answer(
                    number,
                    wrong as u32,
                    blocks,
                    bytes,
                    Some(example),
                ));
            });
        }
        count
    }

    /// Marks each block with how it is reached. `false`: the search failed.
    fn mark_all(&mut self) -> bool {
        blocks::unmark();
        client_blocks::unmark();
        let mut search = Search::default();
        if !self.each_word(|_, word| search.word(word, REACHED)) {
            return false;
        }
        search.follow();
        if reader::program_is_dead() {
            return false;
        }
        let mut rest = Vec::new();
        each_block(|block, mark| {
            if mark == 0 {
                rest.push(block);
            }
        });
        for block in rest {
            // (A block before it may have led there.)
            let marked = match block.by {
                By::Client => client_blocks::mark(block.start, |_| LOST),
                _ => blocks::mark(block.start, |_| LOST),
            };
            if marked.is_some() {
                search.inside(&block, LOST_WITH);
                search.follow();
            }
        }
        true
    }

    /// Calls `see` with every word of the program outside its heap: registers, stacks, data. `false`: they cannot be
    /// read.
    fn each_word(&mut self, mut see: impl FnMut(Place, u64)) -> bool {
        let mut stacks = Vec::new();
        for t in g().threads.iter() {
            let Some(context) = parked::frame(t, self.world.stopped()) else {
                continue;
            };
            stacks.push(context.gprs.rsp - RED_ZONE);
            for n in 0..16 {
                let mut gprs = context.gprs;
                let word = gprs.get_mut(n).map_or(0, |r| *r);
                see(Place::Register(n, t.tid() as u32), word);
            }
        }
        let Ok(maps) = Snapshot::read() else {
            return false;
        };
        let mut map = Pages::open();
        let mut bytes = vec![0; PIECE];
        let mut look = |from: u64, to: u64, see: &mut dyn FnMut(Place, u64)| {
            let Some(piece) = bytes.get_mut(..(to - from) as usize) else {
                return;
            };
            let read = text::read(from, piece);
            let words = piece.get(..read).unwrap_or_default().chunks_exact(8);
            for (at, word) in (from..).step_by(8).zip(words) {
                let word = word.try_into().map_or(0, u64::from_le_bytes);
                let forbidden =
                    regions::is_requested(at) && shadow::first_poisoned(at, 8).is_some();
                if !forbidden {
                    see(Place::Memory(at), word);
                }
            }
        };
        // (Memory that has been moved is no longer what it was.)
        for (start, end) in regions::regions() {
            for (start, end) in g().guards().content(start, end) {
                for at in (start..end).step_by(PIECE) {
                    look(at, end.min(at + PIECE as u64), &mut see);
                }
            }
        }
        let image = machine().image;
        for vma in &maps.vmas {
            let ours = vma.is_ours()
                || (image.0..image.1).contains(&vma.start)
                || self.world.stopped().guards().is_ours(vma.start);
            let data = vma.prot & PROT_READ != 0 && vma.prot & PROT_WRITE != 0;
            // Data that was relocated before it became read-only (RELRO).
            let was_data = vma.prot == PROT_READ && vma.kind == VmaKind::File && !vma.shared;
            let memory = matches!(
                vma.kind,
                VmaKind::Anonymous | VmaKind::File | VmaKind::Stack
            );
            if ours
                || !(data || was_data)
                || !memory
                || arena::has(vma.start)
                || regions::has(vma.start)
            {
                continue;
            }
            // Of a stack, what is in use.
            let within = |sp: &&u64| (vma.start..vma.end).contains(*sp);
            let begin = stacks.iter().filter(within).min();
            let begin = begin.map_or(vma.start, |sp| sp & !7);
            let mut pieces = |mut at: u64, end: u64| {
                while at < end && !reader::program_is_dead() {
                    let stop = end.min((at & !(PIECE as u64 - 1)) + PIECE as u64);
                    look(at, stop, &mut see);
                    at = stop;
                }
            };
            match &mut map {
                Some(map) => map.each(begin, vma.end, !data, pieces),
                None => pieces(begin, vma.end),
            }
            if reader::program_is_dead() {
                return false;
            }
        }
        true
    }

    // ---- requests of a debugger --------------------------------------------------------------------

    /// Answers with reports, and returns their number.
    pub fn ask_heap(&mut self, what: HeapAsk) -> Result<Reply, Refusal> {
        let no = |what: &str, why: &str, then: &str| Err(Refusal::new(what, why, then));
        if arena::arena() == 0 {
            let then = "start the program with its heap checked: ulpf gdb --check PROGRAM, ulpf server --check";
            return no(
                "nothing is known of blocks",
                "the heap is not checked",
                then,
            );
        }
        self.world.stopped();
        let count = match what {
            HeapAsk::Leaks => self.leaks_now(),
            HeapAsk::Block(at) | HeapAsk::Pointers(at) => {
                let (wrong, block) = match client_blocks::near(at).filter(|b| b.has(at)) {
                    Some(block) => (Wrong::Outside, Some(block)),
                    // (Old blocks, too.)
                    None if arena::has(at) || regions::has(at) => judge::nearest(at),
                    None => (Wrong::Outside, None),
                };
                let Some(block) = block else {
                    let what = alloc::format!("no block at {at:#x}");
                    let why = "the address is not in the checked heap";
                    return no(
                        &what,
                        why,
                        "name an address that malloc or new has returned",
                    );
                };
                match what {
                    HeapAsk::Block(_) => {
                        let done = report::answer(0, wrong as u32, 1, 1, Some(&block));
                        if let Some(r) = findings::findings().and_then(|f| f.asked.first()) {
                            r.addr.store(at, Relaxed);
                        }
                        usize::from(done)
                    }
                    _ => self.pointers_to(&block),
                }
            }
            HeapAsk::Error => return no("ulpf heap-error", "the server answers that", "ask it"),
        };
        Ok(Reply::HeapAsked(count as u32))
    }

    /// Reports the pointers into the block: the first report is the block's own, then one for each pointer.
    fn pointers_to(&mut self, block: &Block) -> usize {
        let mut count = usize::from(report::answer(0, 0, 1, 0, Some(block)));
        let range = block.start..block.start + block.size.max(1);
        self.each_word(|place, word| {
            if range.contains(&word) {
                let (at, by) = match place {
                    Place::Register(n, thread) => (0, (u32::from(n) + 1, thread)),
                    Place::Memory(at) => (at, (IN_MEMORY, 0)),
                };
                count += usize::from(report::pointer(count, at, word, by, None));
            }
        });
        blocks::each(|other, _| {
            for at in words_of(&other) {
                // SAFETY: as in `Search::inside`.
                let word = unsafe { (shadow::reachable(at) as *const u64).read_volatile() };
                if range.contains(&word) {
                    let by = (IN_MEMORY, 0);
                    count += usize::from(report::pointer(count, at, word, by, Some(&other)));
                }
            }
        });
        count
    }
}

/// It contains blocks of the program's own allocator, which are counted in its place.
fn is_divided(block: &Block) -> bool {
    client_blocks::any_within(block.start, block.start + block.size)
}

/// Calls `f` with every block in use and its mark: blocks that the program has described, and all others except those
/// that contain them.
fn each_block(mut f: impl FnMut(Block, u8)) {
    client_blocks::each(&mut f);
    blocks::each(|block, mark| {
        if !is_divided(&block) {
            f(block, mark);
        }
    });
}

/// Calls `f` for each place where blocks were allocated: its number, the verdict on its blocks, their count, their
/// bytes, and one of them.
fn tell(mut f: impl FnMut(usize, Wrong, u64, u64, &Block)) {
    let mut places: BTreeMap<(u8, u32), (u64, u64, Block)> = BTreeMap::new();
    each_block(|block, mark| {
        // Blocks that a forked child inherited are reported by its parent.
        if block.inherited {
            return;
        }
        let all = places
            .entry((mark, block.allocated_at))
            .or_insert((0, 0, block));
        all.0 += 1;
        all.1 += block.size;
    });
    let mut list: Vec<_> = places.into_iter().collect();
    list.sort_by_key(|((mark, _), (_, bytes, _))| (*mark, core::cmp::Reverse(*bytes)));
    for (number, ((mark, _), (blocks, bytes, example))) in list.into_iter().enumerate() {
        let wrong = match mark {
            LOST => Wrong::Lost,
            LOST_WITH => Wrong::LostWith,
            PERHAPS => Wrong::PerhapsLost,
            _ => Wrong::Reachable,
        };
        f(number, wrong, blocks, bytes, &example);
    }
}
