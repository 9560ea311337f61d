//! Page guards: watched pages lose the right to be written (or touched) at their own address, and
//! keep it at a second one, the alias. `ulpf-lib/GUARD.md` has the drawing and the kinds of page.
//!
//! **Concurrency.** [`Guards`] belongs to the stub's task, which shares the program's memory but not its descriptor
//! table. Every method that takes `&mut self` is called while all program threads are parked. The fault handler reads the
//! [`PageMap`] only.
//!
//! **Visible effects.** The system-call layer must hide these from the program, with the methods of this module:
//!
//! * fork shares moved pages: [`Guards::prepare_fork`], [`Guards::privatize_in_child`].
//! * Calls that change mappings or content (munmap, MAP_FIXED, mremap, brk downwards, (pkey_)mprotect, madvise other than
//!   hints): [`Guards::release`] before, [`Guards::apply`] after. [`Guards::forget`], [`Guards::discard`] and
//!   [`Guards::set_prot`] avoid the copies.
//! * Locks: [`Guards::open`] before, [`Guards::set_locks`] or [`Guards::look_at_locks`] after.
//!
//! Private file pages become anonymous memory with the same content: later changes of the file no longer show.

mod apply;
mod check;
mod close;
pub mod flags;
mod heap;
mod inherited;
mod live;
mod machine;
pub mod maps;
mod os;
mod page_map;
mod plan;
mod refuse;
mod release;
mod runs;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;
mod thread_memory;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

pub use machine::{DeviceUse, FEATURES, Keys, Machine};
pub use page_map::{Fault, PAGES, PROT_EXEC, PROT_READ, PROT_WRITE, PageEntry, PageMap, alias_in};

use crate::addr::{PAGE_SIZE, TargetAddr, USER_END};
use crate::pages::{Guard, PageRun};
use crate::place;
use crate::refusal::Refusal;
use crate::sys::Errno;
use crate::watch::AccessKind;
use inherited::{Inherited, Unshown};
use maps::{Snapshot, Vma, VmaKind};
use os::InChild;
use page_map::WINDOW_OVERLAP;
pub use refuse::Unarmed;
use refuse::Why;
use runs::Runs;
pub use thread_memory::ThreadMemory;

/// Where moved memory came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Anonymous,
    File,
    /// The main thread's stack.
    Stack,
    /// Shared by the program itself; the alias is a duplicate of the mapping.
    Shared,
}

/// Record of a moved page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Moved {
    /// The program's own protection.
    prot: u8,
    guard: Option<Guard>,
    origin: Origin,
    in_child: InChild,
    /// mlock(2).
    locked: bool,
}

impl Moved {
    /// Protection that the primary mapping has under the guard.
    fn effective(self) -> u8 {
        match self.guard {
            None => self.prot,
            // On x86 a writable page is readable.
            Some(Guard::NoWrite) if self.prot & PROT_WRITE != 0 => {
                self.prot & !PROT_WRITE | PROT_READ
            }
            Some(Guard::NoWrite) => self.prot,
            Some(Guard::NoAccess) => 0,
        }
    }
}

/// A range of addresses and its address in the alias.
#[derive(Clone, Copy, Debug)]
struct Window {
    len: u64,
    alias: u64,
    writable: bool,
}

/// State of an address for a guard, valid for the length that [`Guards::piece`] returns.
#[derive(Clone, Copy, Debug)]
enum Piece {
    Moved,
    Movable {
        prot: u8,
        origin: Origin,
        in_child: InChild,
        locked: bool,
    },
    /// The program itself may not make the accesses to look for, so there is nothing to guard until it may.
    Latent,
    No(Why),
}

/// See the head of the module.
pub struct Guards {
    map: &'static PageMap,
    /// Made when first needed: a program without watches gets none.
    file: Option<os::File>,
    machine: Machine,
    device_use: Option<DeviceUse>,
    /// Device and inode of `file`.
    identity: (u64, u64),
    pagemap: Option<os::File>,
    /// The kernel accounts memory strictly (vm.overcommit_memory = 2): filling a hole could fail later.
    strict: bool,
    moved: Runs<Moved>,
    /// Wanted, but neither moved nor guarded: the program's own protection forbids the access for now, or there is no
    /// memory (any more).
    pending: Runs<Guard>,
    /// The ranges of `pending` where the program has no memory.
    unmapped: Runs<()>,
    /// Alias windows of moved private memory, and duplicates of shared mappings, by address.
    windows: BTreeMap<u64, Window>,
    /// Number of windows at which empty ones are looked for again.
    windows_looked_at: usize,
    dups: BTreeMap<u64, Window>,
    /// Memory of the stub: never moved, never watched.
    excluded: Runs<()>,
    /// The ranges of `excluded` in address space that the program has reserved, until it uses it.
    lent: Runs<()>,
    /// Memory of ours that the kernel has placed among the program's, at the moment of `snapshot`.
    outside: Runs<()>,
    /// Tables of the page map.
    tables: Vec<(u64, u64)>,
    snapshot: Option<Snapshot>,
    /// See [`Guards::has_mapped`].
    fresh: Option<(u64, u64)>,
    /// Times that `fresh` has spared a look at the mappings since the last one.
    unlooked: u32,
    inherited: Inherited,
    max_map_count: u64,
    /// Parts of moved memory that are not holes, for the child of a fork.
    fork_data: Option<Vec<(u64, u64)>>,
    /// The program's threads run while we change things: see [`Guards::live`].
    live: bool,
    outer: Option<OuterGuards>,
    /// See [`Guards::stay_where`].
    in_use: fn(u64, u64) -> bool,
    /// See [`Guards::when_emptied`].
    emptied: fn(u64, u64),
}

/// Another guard owner (a stub) that moves and guards the same program's memory, hidden from the program
/// ([`Guards::within`]).
#[derive(Clone, Copy)]
pub struct OuterGuards {
    /// Returns whether it is present now.
    pub present: fn() -> bool,
    /// Changes the snapshot to the mappings as the program knows them.
    pub put_right: fn(&mut Snapshot),
}

/// Memory that the program changes, without its stacks.
#[derive(Default)]
pub struct HeapAndData {
    /// Ranges that hold allocations (start, end), ascending.
    pub heap: Vec<(u64, u64)>,
    /// Writable data and .bss of the executable and its libraries, ascending.
    pub data: Vec<(u64, u64)>,
}

/// Larger reservations are no heap: the shadow memory of a sanitizer, a cage of a JIT.
pub const LARGEST_HEAP: u64 = 1 << 40;
/// Fixed by the x86-64 ABI.
const VSYSCALL: TargetAddr = TargetAddr(0xffff_ffff_ff60_0000);
/// Sizes of windows, each with the number of windows up to which it is used. Smaller windows follow because our place has
/// 192 GiB and collectors take their memory in small pieces at random addresses.
const WINDOW_SIZES: [(u64, usize); 4] = [
    (1 << 30, 64),
    (1 << 26, 1024),
    (1 << 22, 4096),
    (1 << 18, usize::MAX),
];
/// Number of windows from which on empty ones are looked for.
const MANY_WINDOWS: usize = 512;

impl Guards {
    /// As [`Guards::lazy`], but finds out at once whether memory can be guarded at all.
    ///
    /// # Errors
    /// Those of [`Guards::prepare`].
    pub fn new(map: &'static PageMap) -> Result<Guards, Refusal> {
        let mut guards = Guards::lazy(map);
        guards.begin().map(|()| guards)
    }

    /// Finds out now whether memory can be guarded.
    ///
    /// # Errors
    /// Those of [`Guards::prepare`].
    pub fn begin(&mut self) -> Result<(), Refusal> {
        self.prepare()
    }

    /// Guards nothing yet and takes nothing from the system. A missing feature of the machine shows in the first
    /// [`Guards::check`], with the reason. The fault handler reads `map`.
    pub fn lazy(map: &'static PageMap) -> Guards {
        let mut excluded = Runs::new();
        let place = place::all();
        excluded.insert(place.start, place.end, ());
        Guards {
            map,
            file: None,
            machine: Machine::Undecided,
            device_use: None,
            identity: (0, 0),
            pagemap: None,
            strict: false,
            moved: Runs::new(),
            pending: Runs::new(),
            unmapped: Runs::new(),
            windows: BTreeMap::new(),
            windows_looked_at: 0,
            dups: BTreeMap::new(),
            excluded,
            lent: Runs::new(),
            outside: Runs::new(),
            tables: Vec::new(),
            snapshot: None,
            fresh: None,
            unlooked: 0,
            inherited: Inherited::new(),
            max_map_count: 65530,
            fork_data: None,
            live: false,
            outer: None,
            in_use: |_, _| false,
            emptied: |_, _| {},
        }
    }

    /// Declares memory that the kernel knows by its address: `in_use` says whether a range holds any of it. Such memory
    /// is neither moved nor put back by [`Guards::apply`].
    pub fn stay_where(&mut self, in_use: fn(u64, u64) -> bool) {
        self.in_use = in_use;
    }

    /// `emptied` is called for each range of the alias (start, length) that has lost its content: it is a new window, or its
    /// memory has been given back.
    pub fn when_emptied(&mut self, emptied: fn(u64, u64)) {
        self.emptied = emptied;
    }

    /// Tells of the aliases of `[start, end)`, which is moved memory.
    fn empties(&self, start: u64, end: u64) {
        let before = self.windows.range(..=start).next_back();
        let after = self.windows.range(start.saturating_add(1)..end);
        for (va, window) in before.into_iter().chain(after) {
            let (from, to) = (start.max(*va), end.min(va + window.len));
            if from < to {
                (self.emptied)(window.alias + (from - va), to - from);
            }
        }
    }

    /// Makes the memory file, unless it exists, and thereby decides how guards are set.
    ///
    /// # Errors
    /// No file can be made, or the device is required and cannot be used; nothing has changed.
    pub fn prepare(&mut self) -> Result<(), Refusal> {
        if self.file.is_some() {
            return Ok(());
        }
        refuse::raise_file_limit()?;
        let file = match self.decide()? {
            Some(store) => store,
            None => os::File::memfd(c"ulpf", os::FILE_SIZE).map_err(refuse::no_memfd)?,
        };
        self.identity = file.identity().map_err(refuse::no_memfd)?;
        self.file = Some(file);
        self.pagemap = os::File::open(c"/proc/self/pagemap").ok();
        self.strict = maps::read_number(c"/proc/sys/vm/overcommit_memory") == Some(2);
        self.max_map_count =
            maps::read_number(c"/proc/sys/vm/max_map_count").unwrap_or(self.max_map_count);
        Ok(())
    }

    /// The page map that the fault handler reads.
    pub fn page_map(&self) -> &'static PageMap {
        self.map
    }

    /// Memory that must never be moved or watched, not even as the neighbour of a watched page: **every**
    /// mapping of the stub that is not in our place ([`place`]) (image, heap, stacks, generated code, shared
    /// area). A moved page is shared with the child of a fork until [`Guards::privatize_in_child`] has
    /// replaced it, so that function must not have its own stack and data there.
    pub fn exclude(&mut self, start: TargetAddr, len: u64) {
        let end = start.0.saturating_add(len).saturating_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
        self.excluded.insert(start.page().0, end, ());
    }

    /// As [`Guards::exclude`], for memory in address space that the program has reserved: for watches it is unmapped.
    pub fn exclude_lent(&mut self, start: TargetAddr, len: u64) {
        self.exclude(start, len);
        self.lent
            .insert(start.page().0, start.0.saturating_add(len), ());
    }

    /// The opposite of [`Guards::exclude`] and [`Guards::exclude_lent`].
    pub fn include(&mut self, start: TargetAddr, len: u64) {
        for runs in [&mut self.excluded, &mut self.lent] {
            runs.remove(start.page().0, start.0.saturating_add(len));
        }
    }

    /// Every mapping of ours that is not on the list of [`place`]: (start, length).
    pub fn own_mappings(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let windows = self
            .windows
            .values()
            .map(|w| (w.alias, w.len + WINDOW_OVERLAP));
        let dups = self.dups.values().map(|w| (w.alias, w.len));
        self.tables.iter().copied().chain(windows).chain(dups)
    }

    /// Discards the snapshot of the program's mappings. To be called whenever program threads have run.
    pub fn resumed(&mut self) {
        self.snapshot = None;
    }

    /// `Some`: the program has just mapped these addresses, start and end. They are private anonymous memory that may be read
    /// and written, where none was before, and no mapping has changed since. The next [`Guards::apply`] needs no
    /// look at the mappings for them.
    pub fn has_mapped(&mut self, fresh: Option<(u64, u64)>) {
        self.fresh = fresh;
    }

    /// Whether any part of `[addr, addr + len)` is ours: moved, or duplicated. If so, the system-call layer must act
    /// before (or after) the program changes the mapping.
    pub fn touches(&self, addr: TargetAddr, len: u64) -> bool {
        let end = addr.0.saturating_add(len);
        self.moved.meets(addr.page().0, end)
            || self
                .dups
                .iter()
                .any(|(&s, w)| s < end && addr.0 < s + w.len)
    }

    /// Whether a guard forbids this access anywhere in `[start, end)`. Iterates over runs, not pages, because callers
    /// pass ranges of any length.
    pub fn in_the_way(&self, start: TargetAddr, end: u64, access: AccessKind) -> bool {
        let mut runs = self.moved.within(start.page().0, end);
        runs.any(|(s, ..)| self.map.entry(TargetAddr(s)).guards(access))
    }

    /// Start of the next moved page from `at` on, or `end` if no page before it is moved.
    pub fn next_moved(&self, at: u64, end: u64) -> u64 {
        self.moved
            .within(at, end)
            .next()
            .map_or(end, |(s, ..)| s.max(at))
    }

    /// Is a guard wanted in `[addr, addr + len)` that could not be set so far, because the program has
    /// no memory there or may not access it? After a call that changes either, [`Guards::apply`].
    pub fn wants(&self, addr: TargetAddr, len: u64) -> bool {
        self.pending
            .meets(addr.page().0, addr.0.saturating_add(len))
    }

    /// Address ranges of our moved or duplicated memory.
    pub fn moved_runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let dups = self.dups.iter().map(|(&s, w)| (s, s + w.len));
        self.moved.iter().map(|(s, e, _)| (s, e)).chain(dups)
    }

    /// Moved ranges in ascending order, without those that end at or before `from`.
    pub fn moved_runs_from(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.moved.within(from, USER_END).map(|(s, e, _)| (s, e))
    }

    /// Ranges where guards are wanted but the program has no memory, as [`Guards::apply`] has found them.
    pub fn unmapped(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.unmapped.iter().map(|(s, e, ())| (s, e))
    }

    /// Moved pages, for statistics.
    pub fn moved_pages(&self) -> u64 {
        self.moved.iter().map(|(s, e, _)| (e - s) / PAGE_SIZE).sum()
    }

    /// Copies what the program would read from moved pages, whatever their protection, into `buf`.
    /// Returns the number of bytes before the first page that is not moved.
    pub fn read(&self, addr: TargetAddr, buf: &mut [u8]) -> usize {
        self.by_alias(addr, buf.len() as u64, |alias, at, n| {
            os::copy(buf.as_mut_ptr() as u64 + at, alias, n) as u64
        })
    }

    /// Writes to moved pages, whatever their protection. Returns the number of bytes before the first
    /// page that is not moved (or belongs to a file that the program opened for reading only).
    pub fn write(&mut self, addr: TargetAddr, data: &[u8]) -> usize {
        self.by_alias(addr, data.len() as u64, |alias, at, n| {
            let page = TargetAddr(addr.0 + at);
            let read_only = self.map.entry(page).shared()
                && !self.dup_of(page.0).is_some_and(|(_, w)| w.writable);
            if read_only {
                0
            } else {
                os::copy(alias, data.as_ptr() as u64 + at, n) as u64
            }
        })
    }

    /// `f(alias, offset, n)` for each page of `[addr, addr + len)` while it is moved.
    fn by_alias(
        &self,
        addr: TargetAddr,
        len: u64,
        mut f: impl FnMut(u64, u64, u64) -> u64,
    ) -> usize {
        let mut done = 0;
        while done < len {
            let at = TargetAddr(addr.0.wrapping_add(done));
            let Some(alias) = self.map.entry(at).alias(at) else {
                break;
            };
            let n = (PAGE_SIZE - at.0 % PAGE_SIZE).min(len - done);
            let copied = f(alias.0, done, n);
            done += copied;
            if copied < n {
                break;
            }
        }
        done as usize
    }

    fn read_maps(&mut self) -> Result<(), Errno> {
        if self.snapshot.is_none() {
            let still = flags::Still::now();
            let mut snapshot = Snapshot::read()?;
            if let Some(outer) = self.outer {
                (outer.put_right)(&mut snapshot);
            }
            self.know_its_kin(&mut snapshot);
            let unshown = |m: Moved| Unshown {
                in_child: m.in_child,
                locked: m.locked,
            };
            let moved = self.moved.iter().map(|(s, e, m)| (s, e, unshown(m)));
            self.inherited
                .complete(&mut snapshot, still, self.identity, moved);
            self.snapshot = Some(snapshot);
            self.unlooked = 0;
            self.look_outside();
            self.mark_stack();
        }
        Ok(())
    }

    /// Notes memory of ours among the program's: the kernel may have joined both to one mapping.
    fn look_outside(&mut self) {
        self.outside.clear();
        let place = place::all();
        let tables = self.tables.iter().copied();
        for (start, len) in place::outside().chain(tables) {
            if !place.contains(&start) {
                let end = (start + len).next_multiple_of(PAGE_SIZE);
                self.outside.insert(start, end, ());
            }
        }
    }

    /// Start of the next memory of ours from `at` on, or `end` if none begins before it.
    fn next_of_ours(&self, at: u64, end: u64) -> u64 {
        let first = |runs: &Runs<()>| runs.within(at, end).next().map_or(end, |(s, ..)| s);
        first(&self.excluded).min(first(&self.outside))
    }

    /// End of the memory of ours that holds `at`.
    fn end_of_ours(&self, at: u64) -> Option<u64> {
        let found = self.excluded.get(at).or_else(|| self.outside.get(at));
        found.map(|(_, end, ())| end)
    }

    /// Treats files on the kernel's own tmpfs, as our memfd is, as plain memory: memfds and System V segments without
    /// huge pages. (Other files need smaps.)
    fn know_its_kin(&self, snapshot: &mut Snapshot) {
        let (dev, _) = self.identity;
        if dev == 0 || matches!(self.machine, Machine::Device(_)) {
            return;
        }
        let kin = |v: &&mut Vma| v.kind == VmaKind::Odd && v.dev == dev;
        for vma in snapshot.vmas.iter_mut().filter(kin) {
            vma.kind = VmaKind::File;
        }
    }

    /// Resolves odd mappings in and around a run; to be called before [`Guards::piece`].
    fn resolve_odd(&mut self, run: &PageRun) {
        let Some(snapshot) = &mut self.snapshot else {
            return;
        };
        let first = snapshot.index(run.start.0.saturating_sub(PAGE_SIZE));
        let near = snapshot.vmas[first..]
            .iter()
            .take_while(|v| v.start <= run.end.0);
        let identity = self.identity;
        if near
            .into_iter()
            .any(|v| v.kind.is_odd() && (v.dev, v.inode) != identity)
        {
            snapshot.resolve();
        }
    }

    /// Finds all parts of the stack. The label `[stack]` is only on the part that holds the initial stack
    /// pointer; parts below moved pages, or below pages that were moved once, have no name. Nothing
    /// else can be adjacent to the stack (the kernel keeps `stack_guard_gap` free).
    fn mark_stack(&mut self) {
        let Some(snapshot) = &mut self.snapshot else {
            return;
        };
        let mut floor = None;
        for vma in snapshot.vmas.iter_mut().rev() {
            let moved = self
                .moved
                .get(vma.start)
                .is_some_and(|m| m.2.origin == Origin::Stack);
            let below = floor == Some(vma.end)
                && vma.kind == VmaKind::Anonymous
                && vma.prot & PROT_WRITE != 0;
            if moved || below || vma.kind == VmaKind::Stack {
                vma.kind = VmaKind::Stack;
                floor = Some(vma.start);
            }
        }
    }

    /// The stack's lowest page, if `at` is in the part that grows: moving it would end the growth.
    fn growing_page(&self, at: u64) -> Option<u64> {
        let vmas = &self.snapshot.as_ref()?.vmas;
        let index = vmas.partition_point(|v| v.end <= at);
        let vma = vmas
            .get(index)
            .filter(|v| v.start <= at && v.kind == VmaKind::Stack)?;
        let below = index.checked_sub(1).and_then(|i| vmas.get(i));
        (!below.is_some_and(|b| b.kind == VmaKind::Stack && b.end == vma.start))
            .then_some(vma.start)
    }

    /// State of the memory at `at` for this guard, and the address (at most `limit`) up to which it holds.
    fn piece(&self, at: u64, limit: u64, guard: Guard) -> (u64, Piece) {
        if let Some((_, end, _)) = self.moved.get(at) {
            return (end.min(limit), Piece::Moved);
        }
        if let Some((_, end, ())) = self.lent.get(at) {
            return (end.min(limit), Piece::Latent);
        }
        if let Some(end) = self.end_of_ours(at) {
            return (end.min(limit), Piece::No(Why::Ours));
        }
        let mut limit = self.next_of_ours(at, limit);
        limit = self
            .moved
            .within(at, limit)
            .next()
            .map_or(limit, |(s, ..)| s);
        let vmas = self.snapshot.as_ref().map_or(&[][..], |s| &s.vmas);
        let vma = match vmas.get(vmas.partition_point(|v| v.end <= at)) {
            Some(vma) if vma.start <= at => vma,
            Some(vma) => return (vma.start.min(limit), Piece::No(Why::Unmapped)),
            None => return (limit, Piece::No(Why::Unmapped)),
        };
        let end = vma.end.min(limit);
        if self.is_file(vma) || self.is_alias(at) {
            return (end, Piece::No(Why::Ours));
        }
        let origin = match vma.kind {
            VmaKind::Kernel => return (end, Piece::No(Why::Kernel)),
            VmaKind::Vsyscall => return (end, Piece::No(Why::Vsyscall)),
            VmaKind::HugePages => return (end, Piece::No(Why::HugePages)),
            _ if vma.keyed => return (end, Piece::No(Why::Keyed)),
            VmaKind::Device | VmaKind::Odd | VmaKind::OddFile => {
                return (end, Piece::No(Why::Device));
            }
            _ if vma.shared => Origin::Shared,
            VmaKind::Anonymous => Origin::Anonymous,
            VmaKind::File => Origin::File,
            VmaKind::Stack => Origin::Stack,
        };
        if vma.prot & PROT_EXEC != 0 && (vma.prot & PROT_WRITE == 0 || guard == Guard::NoAccess) {
            return (end, Piece::No(Why::Text));
        }
        let accessible = match guard {
            Guard::NoWrite => vma.prot & PROT_WRITE != 0,
            Guard::NoAccess => vma.prot != 0,
        };
        if !accessible {
            return (end, Piece::Latent);
        }
        (
            end,
            Piece::Movable {
                prot: vma.prot,
                origin,
                in_child: vma.in_child,
                locked: vma.locked,
            },
        )
    }

    /// Whether this is a mapping of the memory file.
    fn is_file(&self, vma: &maps::Vma) -> bool {
        self.file.is_some() && (vma.dev, vma.inode) == self.identity
    }

    /// Whether `at` is in one of our own windows. (Duplicates look like any shared mapping.)
    fn is_alias(&self, at: u64) -> bool {
        let inside = |w: &Window, extra| w.alias <= at && at < w.alias + w.len + extra;
        self.windows.values().any(|w| inside(w, WINDOW_OVERLAP))
            || self.dups.values().any(|w| inside(w, 0))
            || self.tables.iter().any(|&(s, len)| s <= at && at < s + len)
    }

    fn window_of(&self, at: u64) -> Option<(u64, Window)> {
        let (&start, &w) = self.windows.range(..=at).next_back()?;
        (at < start + w.len).then_some((start, w))
    }
    fn dup_of(&self, at: u64) -> Option<(u64, Window)> {
        let (&start, &w) = self.dups.range(..=at).next_back()?;
        (at < start + w.len).then_some((start, w))
    }

    /// Records the new state of `[start, end)`, here and in the page map. The pages lie in one window.
    fn record(&mut self, start: u64, end: u64, moved: Moved) {
        let shared = moved.origin == Origin::Shared;
        let mut at = start;
        while at < end {
            let Some((va, window)) = (if shared {
                self.dup_of(at)
            } else {
                self.window_of(at)
            }) else {
                return;
            };
            let stop = end.min(va + window.len);
            let entry = PageEntry::new(
                window.alias.wrapping_sub(va),
                moved.guard,
                moved.prot,
                shared,
            );
            self.map.set(at, stop, entry);
            at = stop;
        }
        self.moved.insert(start, end, moved);
    }

    fn erase(&mut self, start: u64, end: u64) {
        self.map.set(start, end, PageEntry::NONE);
        self.moved.remove(start, end);
    }
}
