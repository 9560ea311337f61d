//! Patched accesses: where they are, what their bodies have been made from (what a patch is: `engine/src/patch`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use ulpf_engine::access::MemOp;
use ulpf_engine::patch::{Group, IDLE_ROUND, JUMP, Part, Tables, Trampoline, What};
use ulpf_lib::ring::{Area, SharedHeader, Unpatched};
use ulpf_lib::{AccessKind, PAGE_SIZE};

use crate::patience::{By, Patience};

/// What is known of a patched instruction beforehand; [`Area::hit`] points to one.
#[repr(C)]
pub struct Known {
    pub pc: u64,
    /// Where the program goes on, and the body. 0: where [`Area::target`] says.
    pub after: u64,
    pub back: u64,
    pub size: u64,
    pub kind: AccessKind,
    /// Not of a hit: no guard has been met for a while (`Target::leaving`), and nothing executed.
    pub leaving: bool,
    /// A string instruction, which nobody has executed.
    pub repeats: bool,
    /// Not 0: no access, but a call of the program's allocator, which is served in its place; which function.
    pub call: u8,
    /// Asks, before its access is made, whether that leads out of the block of this operand's pointer.
    pub operand: Option<MemOp>,
}

/// For each part of a patch: of a hit, of leaving when the patch stays, and when it has gone; of a string instruction
/// that is executed as it is; and of an access that asks where its pointer leads.
pub const KNOWN: usize = 5;
/// Which of them says that the body begins anew.
pub const AGAIN: usize = 1;
/// Which of them is of a string instruction that is executed as it is.
pub const NATIVE: usize = 3;
/// Which of them asks.
pub const ASKS: usize = 4;

impl Known {
    pub fn of(part: &Part) -> [Known; KNOWN] {
        let (size, kind) = match part.access() {
            Some(access) => (access.mem().size.into(), access.mem().kind),
            None => (0, AccessKind::Read),
        };
        let repeats = matches!(part.what, What::Repeated(_));
        let known = |after, leaving| Known {
            pc: part.at,
            after,
            back: after,
            size,
            kind,
            leaving,
            repeats,
            call: 0,
            operand: None,
        };
        let operand = part.access().map(|access| *access.mem());
        [
            known(part.goes_on().unwrap_or(0), false),
            known(part.at, true),
            known(part.at, true),
            known(part.at, false),
            Known {
                operand,
                ..known(part.at, false)
            },
        ]
    }

    /// Where the program goes on.
    pub fn after(&self, area: &Area) -> u64 {
        match self.after {
            0 => area.target.load(Relaxed),
            after => after,
        }
    }
}

/// A patch. One that has not paid is kept, so that it can be put back quickly.
pub struct Patch {
    /// The jump is there.
    pub in_place: AtomicBool,
    pub group: Group,
    pub jump: [u8; JUMP],
    /// The code may be read and executed, and nothing else: what its protection is after a change of the jump
    /// by the program's thread.
    pub plain_code: bool,
    pub at: u64,
    /// What its body consists of, without the bytes, which are there.
    pub body: Trampoline,
    /// How many they are.
    pub len: u64,
    /// What a hit of each part is told, and who has met no guard there for a while ([`Known::of`]); the body
    /// has their address.
    pub known: Box<[Known]>,
    /// Which of [`ulpf_lib::ring::Area::idle_count`].
    pub idle_count: usize,
    /// For how long it may meet no guard.
    pub patience: Patience,
    /// TSC when it has gone.
    pub gone_at: AtomicU64,
    /// How often somebody has jumped into its middle.
    pub landings: AtomicU32,
    /// How often somebody has jumped to what is behind its jump, and looked at by it.
    pub entered: AtomicU32,
    /// How often somebody has gone from a fault to the body since the jump was there, or since a thread has
    /// met no guard there for a while.
    pub entries: AtomicU32,
    /// How often the stub's task has put it back.
    pub returns: AtomicU32,
}

/// Visits that are not worth their faults, before the jump is put in.
pub const MOST_ENTRIES: u32 = 4;
/// Of a loop that has had its jump back as often as this, visits are not.
const MOST_RETURNS: u32 = 2;

impl Patch {
    pub fn start(&self) -> u64 {
        self.group.start()
    }
    pub fn end(&self) -> u64 {
        self.group.end()
    }
    pub fn is_in_place(&self) -> bool {
        self.in_place.load(Relaxed)
    }
    /// Its middle is where a loop goes, most likely: the signals cost more than it saves.
    pub fn hopeless(&self) -> bool {
        self.landings.load(Relaxed) >= MOST_LANDINGS
    }

    /// The jump is out. (Whoever calls has written the code.)
    pub fn has_gone(&self) {
        self.in_place.store(false, Relaxed);
        self.gone_at.store(tsc(), Relaxed);
        REMOVED.fetch_add(1, Relaxed);
    }

    /// The jump is in again.
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

    /// Who takes it out, and puts it back; `alone`: a thread may.
    pub fn by(&self, alone: bool) -> By {
        // A loop needs no jump to come back, unless it is too short.
        let visited = self.group.loops() && self.returns.load(Relaxed) < MOST_RETURNS;
        match self.is_in_place() {
            true if alone => By::Thread,
            true if !visited => By::Task,
            _ => By::Visit,
        }
    }

    /// It has met no guard for so many times in a row, and nobody needs it.
    pub fn is_idle(&self, misses: u64, by: By, header: Option<&SharedHeader>) -> bool {
        if misses <= IDLE_ROUND.into() {
            self.patience.begins(tsc());
        }
        let ends = self.patience.ends(misses, by);
        if let Some(h) = header.filter(|_| ends) {
            let nanos = h
                .nanos(tsc())
                .saturating_sub(h.nanos(self.patience.since()));
            self.patience.has_ended(misses, nanos);
        }
        ends
    }

    /// Somebody needs the body again.
    pub fn learn(&self, by: By, h: &SharedHeader) {
        let gone_at = h.nanos(self.gone_at.load(Relaxed));
        self.patience
            .learn(h.nanos(tsc()).saturating_sub(gone_at), by);
    }
}

pub static PLACED: AtomicU64 = AtomicU64::new(0);
pub static REMOVED: AtomicU64 = AtomicU64::new(0);

pub fn tsc() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

const MOST_LANDINGS: u32 = 64;

/// Written by the stub's task while the world rests. (`in_place` also by the only thread that there is.)
pub struct Table {
    /// By their start; no two of them overlap.
    pub list: BTreeMap<u64, Box<Patch>>,
    /// From the address of a body to the start of its patch.
    pub bodies: BTreeMap<u64, u64>,
    /// Stretches where bodies are.
    pub caves: Vec<(u64, u64)>,
    /// Those of them that lie in address space that the program has reserved.
    pub reserved: Vec<(u64, u64)>,
    /// What bodies look up; all zero: not yet mapped.
    pub tables: Tables,
    /// From pages to their aliases: those of all classes.
    pub distances: Vec<u64>,
    /// Sites that were tried, and why they were not patched.
    pub refused: BTreeMap<u64, Unpatched>,
    /// Pages of generated code that have been closed for writing since their mapping has changed.
    pub written: BTreeMap<u64, CodePage>,
}

/// A page of generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodePage {
    /// The program's own protection, which permits writing.
    pub prot: u8,
    /// It is closed for writing at present: it has patches.
    pub closed: bool,
    /// When it was closed (TSC).
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
            list: BTreeMap::new(),
            bodies: BTreeMap::new(),
            caves: Vec::new(),
            reserved: Vec::new(),
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

    /// The last patch that begins before `end`.
    pub fn before(&self, end: u64) -> Option<&Patch> {
        self.list.range(..end).next_back().map(|(_, p)| &**p)
    }
    /// Those that begin in `starts`.
    pub fn within(&self, starts: Range<u64>) -> impl DoubleEndedIterator<Item = &Patch> {
        self.list.range(starts).map(|(_, p)| &**p)
    }
    /// The patch that covers `pc`.
    pub fn at(&self, pc: u64) -> Option<&Patch> {
        let p = self.before(pc.saturating_add(1))?;
        (p.is_in_place() && pc < p.end()).then_some(p)
    }
    /// The patch that looks at the access of the instruction at `pc`, in place or not.
    pub fn of(&self, pc: u64) -> Option<&Patch> {
        let p = self.before(pc.saturating_add(1))?;
        p.group.checks(pc).then_some(p)
    }
    /// The patch whose body covers `pc`, and where in it.
    pub fn body(&self, pc: u64) -> Option<(&Patch, u16)> {
        if !self.caves.iter().any(|r| pc >= r.0 && pc < r.1) {
            return None;
        }
        let (at, start) = self.bodies.range(..=pc).next_back()?;
        let p = self.list.get(start)?;
        let offset = pc - at;
        (offset <= p.len).then_some((p, offset as u16))
    }
    /// The starts of the patches whose code meets `[start, end)`.
    pub fn meeting(&self, start: u64, end: u64) -> Vec<u64> {
        let meeting = overlapping(&self.list, start..end, |_, p| p.end());
        meeting.map(|(at, _)| *at).collect()
    }
    /// The starts of those whose bodies do.
    pub fn with_bodies(&self, start: u64, end: u64) -> Vec<u64> {
        let body = |of: &u64| self.list.get(of).map_or(0, |p| p.len);
        let meeting = overlapping(&self.bodies, start..end, |at, of| at + body(of));
        meeting.map(|(_, of)| *of).collect()
    }
    /// The pages of [`Table::written`] that meet `[start, end)`.
    pub fn code_pages(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, CodePage)> + '_ {
        let first = start & !(PAGE_SIZE - 1);
        let all = self.written.range(first..end.max(first));
        all.map(|(at, page)| (*at, *page))
    }
    /// Those of them that are closed.
    pub fn closed(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u8)> + '_ {
        let all = self.code_pages(start, end).filter(|(_, page)| page.closed);
        all.map(|(at, page)| (at, page.prot))
    }

    /// Does anything patched, a body, or a page that was closed meet `[start, end)`?
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.before(end).is_some_and(|p| start < p.end())
            || self.code_pages(start, end).next().is_some()
            || self.caves.iter().any(|r| r.0 < end && start < r.1)
    }
}

/// What meets a range, of what lies one behind the other by where it begins.
fn overlapping<V>(
    all: &BTreeMap<u64, V>,
    Range { start, end }: Range<u64>,
    ends: impl Fn(u64, &V) -> u64,
) -> impl Iterator<Item = (&u64, &V)> {
    let before = all.range(..start).next_back();
    let before = before.filter(|(at, what)| start < ends(**at, what));
    before.into_iter().chain(all.range(start..end.max(start)))
}
