//! Restartable sequences (rseq(2), `ulpf_stub_handlers::sections`): whether a program is served, and which memory must
//! not change meanwhile.
//!
//! The C library registers every thread of every program. The registration is served only in programs with sequences:
//! code that contains the signature other than as an operand of a `mov` (with which the C library calls rseq(2)). No
//! other program needs it. A program that registers a signature of its own is always served.

use alloc::format;
use alloc::vec::Vec;

use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::pages::{Guard, PageRun};
use ulpf_lib::{PAGE_SIZE, TargetAddr, WatchKind, WatchRange, place};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::thread::Thread;
use ulpf_stub_handlers::sequences;

use super::{Control, backend, gs, text};

/// RSEQ_SIG of glibc and others.
const C_LIBRARY: u32 = 0x5305_3053;
/// Bytes of a signature and the byte before it, which is checked, too.
const SIGNATURE: usize = 5;
/// Larger mappings of code are not searched.
const LONGEST: u64 = 64 << 20;

#[derive(Default)]
pub struct Sections {
    signature: u32,
    /// Code that has been searched.
    searched: Vec<Code>,
    /// Data of files that have sequences, which are described there (`struct rseq_cs`).
    data: Vec<(u64, u64)>,
    some: bool,
}

#[derive(PartialEq, Eq)]
struct Code {
    span: (u64, u64),
    file: (u64, u64),
}

impl Sections {
    /// Searches code that was mapped since the last call, and returns the code that contains sequences. `None`: more
    /// than can be remembered. The code is also searched for instructions that set gs, because reading takes longest.
    fn look(&mut self, gs: &mut gs::Searched) -> Option<Vec<(u64, u64)>> {
        let maps = Snapshot::read().ok()?;
        let mut new = Vec::new();
        let file =
            |v: &Vma| matches!(v.kind, VmaKind::File | VmaKind::OddFile) && !place::has(v.start);
        for vma in maps
            .vmas
            .iter()
            .filter(|v| file(v) && v.prot & PROT_EXEC != 0)
        {
            let code = Code {
                span: (vma.start, vma.end),
                file: (vma.dev, vma.inode),
            };
            if self.searched.contains(&code) {
                continue;
            }
            self.searched.push(code);
            if vma.end - vma.start > LONGEST {
                continue;
            }
            let asks = gs.is_new(vma);
            let (mut has, mut sets_gs) = (false, false);
            const { assert!(SIGNATURE == gs::WRGSBASE) };
            text::each_piece(vma, SIGNATURE, |_, code| {
                has = has || has_signature(code, self.signature);
                sets_gs = sets_gs || asks && gs::has_wrgsbase(code);
                has && (sets_gs || !asks)
            });
            gs.note(sets_gs);
            if !has {
                continue;
            }
            if !sequences::remember_code(vma.start, vma.end) {
                return None;
            }
            self.some = true;
            new.push((vma.start, vma.end));
            let same = |v: &&Vma| file(v) && (v.dev, v.inode) == (vma.dev, vma.inode);
            let data = maps
                .vmas
                .iter()
                .filter(same)
                .filter(|v| v.prot & PROT_EXEC == 0);
            self.data.extend(data.map(|v| (v.start, v.end)));
        }
        Some(new)
    }

    fn describes(&self, run: &PageRun) -> bool {
        let meets = |d: &(u64, u64)| d.0 < run.end.0 && run.start.0 < d.1;
        run.guard == Guard::NoAccess && self.data.iter().any(meets)
    }
}

impl Control {
    /// A thread registers with rseq(2). Its record says whether it is served.
    pub(super) fn register_sequences(
        &mut self,
        t: &'static Thread,
        (at, len): (u64, u32),
        signature: u32,
    ) {
        let others = any_registered();
        if self.sections.signature != signature {
            if others {
                return;
            }
            self.sections = Sections {
                signature,
                ..Sections::default()
            };
        }
        let known = self.sections_have_come();
        if !known || !self.sections.some && signature == C_LIBRARY {
            return;
        }
        let end = at.saturating_add(u64::from(len));
        if len == 0 || end > ulpf_lib::addr::USER_END {
            return;
        }
        // Where other threads are registered this one has to be, too: its sequences would never end.
        let possible = self.can_read() && (self.moves((at, end)) || self.can_leave((at, end)));
        if !possible && !others {
            return;
        }
        backend::no_upcalls(self.world.stopped());
        t.sequences.set(at, len, signature);
        self.apply_guards();
    }

    /// Code was mapped: code with sequences is not patched. `false`: there is more of it than can be remembered.
    pub(super) fn sections_have_come(&mut self) -> bool {
        if self.sections.signature == 0 {
            return true;
        }
        let Some(new) = self.sections.look(self.edits.accesses.searched_for_gs()) else {
            return false;
        };
        for (start, end) in new {
            self.edits.restore(self.world.stopped(), start, end);
        }
        true
    }

    /// Returns whether no wanted guard keeps the kernel from reading descriptions of sequences.
    fn can_read(&mut self) -> bool {
        let placed = self.placement.placed();
        let mut wanted = self.staged.list().pages_without(&placed);
        !wanted.any(|run| self.sections.describes(&run))
    }

    /// Moves the pages of an area; the kernel then uses their alias.
    fn moves(&mut self, (at, end): (u64, u64)) -> bool {
        let (from, to) = pages(at, end);
        let moved = |g: &ulpf_stub_handlers::global::Global| {
            (from..to)
                .step_by(PAGE_SIZE as usize)
                .all(|page| g.alias_of(page).is_some())
        };
        if !moved(g()) && self.pull_out_of_system_calls() {
            self.world
                .stopped()
                .guards()
                .move_pages(TargetAddr(from), to - from);
        }
        moved(g())
    }

    /// Returns whether an area that has not moved needs no guards. Moves watches to debug registers for that, if
    /// possible.
    fn can_leave(&mut self, (at, end): (u64, u64)) -> bool {
        let (from, to) = pages(at, end);
        let placed = self.placement.placed();
        let wanted: Vec<_> = self.staged.list().pages_without(&placed).collect();
        let mut all = (from..to).step_by(PAGE_SIZE as usize);
        all.all(|page| {
            let meets = |run: &PageRun| run.start.0 <= page && page < run.end.0;
            !wanted.iter().any(meets) || self.leave_page(page)
        })
    }

    /// Returns whether a guard is impossible for a watch, because the kernel accesses the memory.
    pub(super) fn has_sequences(&mut self, range: WatchRange, kind: WatchKind) -> bool {
        let (from, to) = pages(range.start.0, range.end().0);
        let reads = kind != WatchKind::Write;
        sequences::has_area(from, to) && !g().touches(from, to)
            || reads && any_registered() && self.describes_any(from, to)
    }

    /// Keeps descriptions of sequences free of read guards, which would stop the kernel.
    pub(super) fn spare_sequences(&mut self, wanted: Vec<PageRun>) -> Vec<PageRun> {
        if !wanted.iter().any(|run| self.sections.describes(run)) || !any_registered() {
            return wanted;
        }
        let mut left: Vec<PageRun> = Vec::with_capacity(wanted.len());
        for run in wanted {
            if !self.sections.describes(&run) {
                left.push(run);
                continue;
            }
            for page in (run.start.0..run.end.0).step_by(PAGE_SIZE as usize) {
                let end = page + PAGE_SIZE;
                let spared = self.describes_any(page, end);
                let guard = match spared {
                    true => Guard::NoWrite,
                    false => run.guard,
                };
                if spared {
                    self.warn(&format!(
                        "ulpf: cannot watch what is read at {page:#x}-{end:#x}: the kernel reads descriptions of restartable sequences there (rseq(2)); watch 1, 2, 4 or 8 bytes in a debug register (placement register)\n"
                    ));
                }
                match left
                    .last_mut()
                    .filter(|l| l.end.0 == page && l.guard == guard)
                {
                    Some(last) => last.end = TargetAddr(end),
                    None => left.push(PageRun {
                        start: TargetAddr(page),
                        end: TargetAddr(end),
                        guard,
                    }),
                }
            }
        }
        left
    }

    /// Returns whether sequences are described in these pages.
    fn describes_any(&self, start: u64, end: u64) -> bool {
        let met = self
            .sections
            .data
            .iter()
            .map(|d| (d.0.max(start), d.1.min(end)));
        met.filter(|(from, to)| from < to)
            .any(|(from, to)| describes(from, to, self.sections.signature))
    }
}

/// Returns whether any thread is registered.
fn any_registered() -> bool {
    g().threads.iter().any(|t| !t.sequences.is_empty())
}

fn pages(start: u64, end: u64) -> (u64, u64) {
    (start & !(PAGE_SIZE - 1), end.next_multiple_of(PAGE_SIZE))
}

/// `struct rseq_cs`: version 0 and flags, start, length, and abort handler, which the signature precedes.
fn describes(start: u64, end: u64, signature: u32) -> bool {
    const DESCRIPTION: usize = 32;
    const LONGEST_SEQUENCE: u64 = 1 << 20;
    let mut buf = alloc::vec![0u8; PAGE_SIZE as usize + DESCRIPTION];
    (start..end).step_by(PAGE_SIZE as usize).any(|page| {
        let n = text::read(page, &mut buf);
        let words: Vec<u64> = buf
            .get(..n)
            .unwrap_or(&[])
            .chunks_exact(8)
            .map(|b| b.try_into().map_or(0, u64::from_le_bytes))
            .collect();
        words.windows(4).any(|w| {
            let [head, from, len, abort] = *w else {
                return false;
            };
            let known = |at: u64| sequences::has_code(at, at.saturating_add(1));
            let mut before = [0u8; 4];
            head as u32 == 0
                && len != 0
                && len < LONGEST_SEQUENCE
                && known(from)
                && known(abort)
                && text::read(abort - 4, &mut before) == 4
                && u32::from_le_bytes(before) == signature
        })
    })
}

/// Returns whether the signature is in this code, other than as the operand that a `mov` loads into a register.
fn has_signature(code: &[u8], signature: u32) -> bool {
    const CHUNK: usize = 64;
    const MOV: core::ops::RangeInclusive<u8> = 0xb8..=0xbf;
    let [first, second, third, fourth] = signature.to_le_bytes();
    let is = |b: &[u8]| b[1..] == [first, second, third, fourth] && !MOV.contains(&b[0]);
    // Two of its bytes are searched in a form that compilers vectorize.
    code.chunks(CHUNK).enumerate().any(|(n, chunk)| {
        let pairs = chunk.iter().zip(code.iter().skip(n * CHUNK + 1));
        let may = pairs.fold(false, |found, (&a, &b)| {
            found | ((a == second) & (b == third))
        });
        let from = (n * CHUNK).saturating_sub(2);
        let to = (n * CHUNK + CHUNK + 3).min(code.len());
        may && code
            .get(from..to)
            .is_some_and(|part| part.windows(SIGNATURE).any(is))
    })
}
