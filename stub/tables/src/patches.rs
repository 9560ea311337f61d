//! Patched accesses: their addresses, and the parameters of their trampolines (for patches, see `engine/src/patch`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use ulpf_engine::access::{Insn, MemOp};
use ulpf_engine::patch::{Group, IDLE_ROUND, JUMP, Part, Tables, Trampoline, What};
use ulpf_lib::ring::{Area, SharedHeader, Unpatched};
use ulpf_lib::{AccessKind, PAGE_SIZE};

use crate::back_off::{BackOff, By};
use crate::edit::{Edit, List};

/// Precomputed facts about a patched instruction; [`Area::hit`] points to one.
#[repr(C)]
pub struct Known {
    pub pc: u64,
    /// Address where the program continues, and address where the trampoline continues. 0: the address in
    /// [`Area::target`].
    pub after: u64,
    pub back: u64,
    pub size: u64,
    pub kind: AccessKind,
    /// Not a hit: the patch has met no guard for a while (`Target::leaving`), and nothing was executed.
    pub leaving: bool,
    /// A string instruction, which has not been executed.
    pub repeats: bool,
    /// Not 0: no access, but a call of the program's allocator, which is served in its place; the function's number.
    pub call: u8,
    /// That instruction, in the first entry of its part.
    pub insn: Option<Box<Insn>>,
    /// Index into [`Area::idle_count`], the patch's.
    pub idle_count: u32,
    /// For an access that asks first: the operand whose pointer's block the access may leave.
    pub operand: Option<MemOp>,
}

/// Number of entries for each part of a patch: a hit; leaving while the patch stays; leaving after it was removed.
/// Also: a natively executed string instruction; an access that checks for an out-of-block access.
pub const KNOWN: usize = 5;
/// Index of the entry that restarts the trampoline.
pub const AGAIN: usize = 1;
/// Index of the entry of a string instruction that is executed natively.
pub const NATIVE: usize = 3;
/// Index of the entry that asks.
pub const ASKS: usize = 4;

impl Known {
    pub fn of(part: &Part) -> [Known; KNOWN] {
        let (size, kind) = match part.access() {
            Some(access) => (access.mem().size.into(), access.mem().kind),
            None => (0, AccessKind::Read),
        };
        let insn = match &part.what {
            What::Repeated(insn) => Some(Box::new(*insn)),
            _ => None,
        };
        let repeats = insn.is_some();
        let known = |after, leaving| Known {
            pc: part.at,
            after,
            back: after,
            size,
            kind,
            leaving,
            repeats,
            call: 0,
            insn: None,
            idle_count: 0,
            operand: None,
        };
        let operand = part.access().map(|access| *access.mem());
        [
            Known {
                insn,
                ..known(part.goes_on().unwrap_or(0), false)
            },
            known(part.at, true),
            known(part.at, true),
            known(part.at, false),
            Known {
                operand,
                ..known(part.at, false)
            },
        ]
    }

    /// Address where the program continues.
    pub fn after(&self, area: &Area) -> u64 {
        match self.after {
            0 => area.target.load(Relaxed),
            after => after,
        }
    }
}

/// A patch. A patch that did not pay off is kept, so that it can be put back quickly.
pub struct Patch {
    /// The jump is in the code.
    pub in_place: AtomicBool,
    pub group: Group,
    pub jump: [u8; JUMP],
    /// The code is readable and executable, and nothing else. The program's thread restores this protection after it
    /// has changed the jump.
    pub plain_code: bool,
    pub at: u64,
    /// Layout of its trampoline, without the bytes, which are in place.
    pub trampoline: Trampoline,
    /// Length of the trampoline in bytes.
    pub len: u64,
    /// [`Known::of`] for each part. The trampoline contains their addresses; a hit and a thread that has met no guard
    /// for a while report them.
    pub known: Box<[Known]>,
    /// Index into [`ulpf_lib::ring::Area::idle_count`].
    pub idle_count: usize,
    /// Limit for accesses without a guard.
    pub back_off: BackOff,
    /// TSC when it was removed.
    pub gone_at: AtomicU64,
    /// Number of jumps into the middle of the jump.
    pub displaced_entries: AtomicU32,
    /// Number of jumps to the instructions behind the jump that the patch checks.
    pub entered: AtomicU32,
    /// Number of times that a thread went from a fault to the trampoline, since the jump was placed or since a thread
    /// met no guard here for a while.
    pub entries: AtomicU32,
    /// Number of times that the stub's task has put it back.
    pub returns: AtomicU32,
}

/// Number of visits that are not worth their faults, before the jump is placed.
pub const MOST_ENTRIES: u32 = 4;
/// A loop whose jump was put back this often gets no more visits.
const MOST_RETURNS: u32 = 2;

impl Edit for Patch {
    fn start(&self) -> u64 {
        self.group.start()
    }
    fn end(&self) -> u64 {
        self.group.end()
    }
    fn original(&self) -> &[u8] {
        self.group.bytes.get(..JUMP).unwrap_or(&[])
    }
    fn ours(&self) -> &[u8] {
        &self.jump
    }
    fn is_in_place(&self) -> bool {
        self.in_place.load(Relaxed)
    }
}

impl Patch {
    /// A loop most likely jumps to the middle of the patch, so the signals cost more than the patch saves.
    pub fn hopeless(&self) -> bool {
        self.displaced_entries.load(Relaxed) >= MOST_DISPLACED_ENTRIES
    }

    /// Notes that the jump was removed. (The caller has written the code.)
    pub fn has_gone(&self) {
        self.in_place.store(false, Relaxed);
        self.gone_at.store(tsc(), Relaxed);
        REMOVED.fetch_add(1, Relaxed);
    }

    /// Notes that the jump was put back.
    pub fn is_back(&self, header: Option<&SharedHeader>, by: By) {
        if let Some(h) = header {
            self.learn(by, h);
        }
        if by == By::Task {
            self.returns.fetch_add(1, Relaxed);
        }
        self.entries.store(0, Relaxed);
        self.in_place.store(true, Relaxed);
        PLACED.fetch_add(1, Relaxed);
    }

    /// How the patch is taken out and put back; `alone`: a thread may do it itself.
    pub fn by(&self, alone: bool) -> By {
        // A loop needs no jump to come back, unless it is too short.
        let visited = self.group.loops() && self.returns.load(Relaxed) < MOST_RETURNS;
        match self.is_in_place() {
            true if alone => By::Thread,
            true if !visited => By::Task,
            _ => By::Visit,
        }
    }

    /// Returns whether the patch has met no guard for enough times in a row, so that it is not needed.
    pub fn is_idle(&self, misses: u64, by: By, header: Option<&SharedHeader>) -> bool {
        if misses <= IDLE_ROUND.into() {
            self.back_off.begins(tsc());
        }
        let ends = self.back_off.ends(misses, by);
        if let Some(h) = header.filter(|_| ends) {
            let nanos = h
                .nanos(tsc())
                .saturating_sub(h.nanos(self.back_off.since()));
            self.back_off.has_ended(misses, nanos);
        }
        ends
    }

    /// Adjusts the patience, since the trampoline is needed again.
    pub fn learn(&self, by: By, h: &SharedHeader) {
        let gone_at = h.nanos(self.gone_at.load(Relaxed));
        self.back_off
            .learn(h.nanos(tsc()).saturating_sub(gone_at), by);
    }
}

pub static PLACED: AtomicU64 = AtomicU64::new(0);
pub static REMOVED: AtomicU64 = AtomicU64::new(0);

pub fn tsc() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

const MOST_DISPLACED_ENTRIES: u32 = 64;

impl List<Patch> {
    /// The patch that covers `pc`.
    pub fn covering(&self, pc: u64) -> Option<&Patch> {
        let p = self.before(pc.saturating_add(1))?;
        (p.is_in_place() && pc < p.end()).then_some(p)
    }
    /// The patch that checks the access of the instruction at `pc`, in place or not.
    pub fn checking(&self, pc: u64) -> Option<&Patch> {
        let p = self.before(pc.saturating_add(1))?;
        p.group.checks(pc).then_some(p)
    }
}

/// Facts for trampolines and handlers beside the list of patches. The stub's task writes them while the world is stopped.
pub struct Table {
    /// Tables that trampolines look up; all zero: not yet mapped.
    pub tables: Tables,
    /// From pages to the distances of their aliases, for all classes.
    pub distances: Vec<u64>,
    /// Sites that could not be patched, and why.
    pub refused: BTreeMap<u64, Unpatched>,
    /// Pages of generated code that were write-protected since their mapping last changed.
    pub written: BTreeMap<u64, CodePage>,
}

/// A page of generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodePage {
    /// The program's own protection, which permits writing.
    pub prot: u8,
    /// It is write-protected at present, because it has patches.
    pub closed: bool,
    /// When it was write-protected (TSC).
    pub since: u64,
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

impl Table {
    pub const fn new() -> Table {
        Table {
            tables: Tables {
                classes: 0,
                writes: 0,
                reads: 0,
                tallies: 0,
                whole: 0,
                locks: 0,
            },
            distances: Vec::new(),
            refused: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    /// The pages of [`Table::written`] that meet `[start, end)`.
    pub fn code_pages(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, CodePage)> + '_ {
        let first = start & !(PAGE_SIZE - 1);
        let all = self.written.range(first..end.max(first));
        all.map(|(at, page)| (*at, *page))
    }
    /// The pages of [`Table::code_pages`] that are write-protected.
    pub fn closed(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u8)> + '_ {
        let all = self.code_pages(start, end).filter(|(_, page)| page.closed);
        all.map(|(at, page)| (at, page.prot))
    }
}
