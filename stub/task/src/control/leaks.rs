//! What is left of a checked heap at the program's end: which blocks nothing leads to any more.
//!
//! ```text
//! registers, stacks, data ──▶ blocks ──▶ blocks …          reachable; perhaps lost, where only the inside is pointed to
//!                             blocks that are left ──▶ …   lost; lost with the one that led there
//! ```
//! As Valgrind's memcheck does: every aligned word may be a pointer, whatever it was meant to be.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::{Snapshot, VmaKind};
use ulpf_lib::guard::{PROT_READ, PROT_WRITE};
use ulpf_lib::place;
use ulpf_lib::ring::found::Wrong;
use ulpf_lib::sys;
use ulpf_stub_handlers::check::blocks::{self, Block};
use ulpf_stub_handlers::check::{arena, found, report, shadow};
use ulpf_stub_handlers::global::{g, machine};

use super::{Control, parked, text};

/// Marks of blocks: the higher one wins.
const LOST: u8 = 1;
const LOST_WITH: u8 = 2;
const PERHAPS: u8 = 3;
const REACHED: u8 = 4;

/// Bytes that are looked at together.
const PIECE: usize = 64 << 10;
/// The kernel lets the stack's last bytes below the stack pointer be used.
const RED_ZONE: u64 = 128;

#[derive(Default)]
struct Search {
    /// Blocks that are marked, and whose words are to be looked at.
    ahead: Vec<(Block, u8)>,
}

impl Search {
    /// A word of the program's that was found where `level` is.
    fn word(&mut self, word: u64, level: u8) {
        if !arena::has(word) {
            return;
        }
        let mut set = 0;
        let marked = blocks::mark(word, |start| {
            set = match start {
                true => level,
                false => level.min(PERHAPS),
            };
            set
        });
        if let Some(block) = marked {
            self.ahead.push((block, set));
        }
    }

    fn bytes(&mut self, bytes: &[u8], level: u8) {
        for word in bytes.chunks_exact(8) {
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            self.word(word, level);
        }
    }

    /// What the words of `block` lead to.
    fn inside(&mut self, block: &Block, level: u8) {
        let from = block.start.next_multiple_of(8);
        let mut at = from;
        while at + 8 <= block.start + block.size {
            // SAFETY: a block of the arena, by its alias, which is always mapped.
            let word = unsafe { (shadow::reachable(at) as *const u64).read_volatile() };
            self.word(word, level);
            at += 8;
        }
    }

    /// And so on, until nothing new comes.
    fn follow(&mut self) {
        while let Some((block, level)) = self.ahead.pop() {
            self.inside(&block, level);
        }
    }
}

/// /proc/self/pagemap.
struct Pages(u64);

impl Pages {
    fn open() -> Option<Pages> {
        let (path, flags) = (c"/proc/self/pagemap", k::O_RDONLY | k::O_CLOEXEC);
        // SAFETY: opens a file, in the stub's own table.
        let fd = unsafe { sys!(k::__NR_openat, k::AT_FDCWD, path.as_ptr(), flags, 0) };
        fd.ok().map(Pages)
    }

    /// Has one of these pages content, from the page at `at` on? If nobody knows, it may have.
    fn some(&self, at: u64, words: &mut [u64]) -> bool {
        /// Present, or swapped out.
        const CONTENT: u64 = 1 << 63 | 1 << 62;
        let len = size_of_val(words) as u64;
        let from = at / PAGE_SIZE * 8;
        // SAFETY: fills the words at most.
        let read = unsafe { sys!(k::__NR_pread64, self.0, words.as_mut_ptr(), len, from) };
        read != Ok(len) || words.iter().any(|w| w & CONTENT != 0)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys!(k::__NR_close, self.0) };
    }
}

impl Control {
    /// The program ends: what is left is told.
    pub fn find_leaks(&mut self) {
        let Some(findings) = found::findings() else {
            return;
        };
        if findings.searched.swap(1, SeqCst) != 0 {
            return;
        }
        let mut search = Search::default();
        let mut stacks = Vec::new();
        for t in g().threads.iter() {
            let Some(context) = parked::frame(t, self.world.rest()) else {
                continue;
            };
            stacks.push(context.gprs.rsp - RED_ZONE);
            for n in 0..16 {
                let mut gprs = context.gprs;
                search.word(gprs.get_mut(n).map_or(0, |r| *r), REACHED);
            }
        }
        let Ok(maps) = Snapshot::read() else { return };
        let map = Pages::open();
        let image = machine().image;
        let mut bytes = vec![0; PIECE];
        let mut words = [0; PIECE / 4096];
        for vma in &maps.vmas {
            let ours = place::all().contains(&vma.start)
                || place::has(vma.start)
                || (image.0..image.1).contains(&vma.start)
                || self.world.rest().guards().is_ours(vma.start);
            let data = vma.prot & PROT_READ != 0 && vma.prot & PROT_WRITE != 0;
            let memory = matches!(
                vma.kind,
                VmaKind::Anonymous | VmaKind::File | VmaKind::Stack
            );
            if ours || !data || !memory || arena::has(vma.start) {
                continue;
            }
            // Of a stack, what is in use.
            let within = |sp: &&u64| (vma.start..vma.end).contains(*sp);
            let begin = stacks.iter().filter(within).min();
            let mut at = begin.map_or(vma.start, |sp| sp & !7);
            while at < vma.end {
                let stop = vma.end.min((at & !(PIECE as u64 - 1)) + PIECE as u64);
                let pages = ((stop - 1) / 4096 - at / 4096 + 1) as usize;
                let known = words.get_mut(..pages).unwrap_or_default();
                let some = map.as_ref().is_none_or(|map| map.some(at, known));
                if some && let Some(piece) = bytes.get_mut(..(stop - at) as usize) {
                    let read = text::read(at, piece);
                    search.bytes(piece.get(..read).unwrap_or_default(), REACHED);
                }
                at = stop;
            }
        }
        search.follow();
        let mut rest = Vec::new();
        blocks::each(|block, mark| {
            if mark == 0 {
                rest.push(block);
            }
        });
        for block in rest {
            // (One of those before may have led there.)
            if blocks::mark(block.start, |_| LOST).is_some() {
                search.inside(&block, LOST_WITH);
                search.follow();
            }
        }
        tell();
    }
}

fn tell() {
    let mut places: BTreeMap<(u8, u32), (u64, u64, Block)> = BTreeMap::new();
    blocks::each(|block, mark| {
        let all = places
            .entry((mark, block.allocated_at))
            .or_insert((0, 0, block));
        all.0 += 1;
        all.1 += block.size;
    });
    let mut list: Vec<_> = places.into_iter().collect();
    list.sort_by_key(|((mark, _), (_, bytes, _))| (*mark, core::cmp::Reverse(*bytes)));
    for ((mark, _), (blocks, bytes, example)) in list {
        let wrong = match mark {
            LOST => Wrong::Lost,
            LOST_WITH => Wrong::LostWith,
            PERHAPS => Wrong::PerhapsLost,
            _ => Wrong::Reachable,
        };
        report::left(wrong, blocks, bytes, &example);
    }
}
