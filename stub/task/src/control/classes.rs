//! Tables about pages that trampolines look up.
//!
//! ```text
//!     page classes   a byte for each page of user memory: distance to the alias, and the accesses it is valid for
//!     bits           a bit for each byte of our place: does a store (a load) there concern a watch?
//!     tallies        a byte for each page of our place: the one watch, which only counts, that covers all of the page
//!     whole          a byte for each page of user memory: the same for it and the next page, for loads and for stores
//! ```
//! Pages get their class when a hot site meets them. They lose it when their mapping or that of the page before changes
//! ([`ulpf_lib::PageMap`] ensures that), and when the watches there change.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_engine::access::state::cpuid;
use ulpf_engine::patch::{CLASS_READS, CLASS_WRITES, CLASSES, IDLE_START, Tables, WHOLE_DISTANCES};
use ulpf_lib::guard::{PAGES, PageEntry};
use ulpf_lib::pages::Guard;
use ulpf_lib::place;
use ulpf_lib::ring::TALLIES;
use ulpf_lib::staged::Changes;
use ulpf_lib::sys::Errno;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr, WatchId, WatchKind, WatchRange};
use ulpf_stub_handlers::check::{self, arena, regions, shadow};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::last_writer;
use ulpf_stub_handlers::locks;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::attributes::Part;

/// Size of a batch of pages that are processed together, in bytes.
const BATCH: u64 = 64 * PAGE_SIZE;
/// Number of classes that are taken away at once.
const VICTIMS: usize = 16;

/// Properties of all pages of a class.
#[derive(Clone, Copy, PartialEq)]
struct Class {
    /// Distance to the alias.
    distance: u64,
    guard: Guard,
    /// The program may write there. (Else its stores fault, whether there is a guard or not.)
    writable: bool,
}

#[derive(Default)]
pub struct Classes {
    /// Each class from class 1 on; class 0 means no class. `None`: no page has the class any more.
    classes: Vec<Option<Class>>,
    /// See [`Classes::heap`].
    heap: Option<u64>,
    /// Classes of pages of a checked heap, which are in no batch.
    pinned: BTreeSet<usize>,
    /// Where classes are taken away next, if all are in use.
    victim: usize,
    /// Batches that were processed, so that some of their pages may have a class.
    batches: BTreeSet<u64>,
    /// The batch that gets its classes at present.
    batch: u64,
    /// Watches that trampolines count themselves, and the class of their pages, by tally.
    tallied: Vec<(WatchId, u8)>,
    /// Number of pages whose class was looked up: with a tally, and without one.
    with_tally: u64,
    without: u64,
    /// Number of them on which every access is a hit of one watch.
    covered: u64,
}

impl Classes {
    pub fn pages(&self) -> usize {
        let pages = self.batches.iter().flat_map(|at| pages(*at, at + BATCH));
        pages.filter(|p| g().page_map.class(*p) != 0).count()
    }

    /// Every alias may have moved.
    pub fn clear(&mut self) {
        self.classes.clear();
        self.pinned.clear();
    }

    /// The same for a checked heap, whose bits are for loads and stores alike.
    pub fn prepare_for_check(&mut self, stopped: &mut Stopped) -> bool {
        if !self.prepare(stopped) {
            return false;
        }
        self.declassify();
        let tables = &mut stopped.tables_mut().patches.tables;
        if tables.reads != tables.writes {
            place::unmap(
                tables.reads.wrapping_add(place::memory().start / 8),
                patches::BITS_LEN,
            );
            tables.reads = tables.writes;
        }
        true
    }

    /// Maps the tables, once. `false`: they cannot be mapped.
    pub fn prepare(&mut self, stopped: &mut Stopped) -> bool {
        if stopped.tables().patches.tables.classes != 0 {
            return true;
        }
        // CPUID 7: EBX bit 8 is BMI2.
        if cpuid(7, 0).ebx >> 8 & 1 == 0 {
            return false;
        }
        type Map = fn(u64) -> Result<u64, Errno>;
        let maps: [(u64, Map); 5] = [
            (PAGES + PAGE_SIZE, place::map_sparse),
            (patches::BITS_LEN, place::map_sparse),
            (patches::BITS_LEN, place::map_sparse),
            (patches::TALLIES_LEN, place::map_sparse),
            (patches::WHOLE_LEN, place::map_sparse_behind),
        ];
        let mut all = [0; 5];
        for (n, (len, map)) in maps.into_iter().enumerate() {
            let (Ok(at), Some(slot)) = (map(len), all.get_mut(n)) else {
                // Probably RLIMIT_AS: the program works with faults alone.
                for (at, (len, _)) in all.into_iter().zip(maps).take(n) {
                    place::unmap(at, len);
                    stopped.guards().include(TargetAddr(at), len);
                }
                return false;
            };
            stopped.guards().exclude(TargetAddr(at), len);
            *slot = at;
        }
        let [classes, writes, reads, tallies, whole] = all;
        let (classes, whole) = (classes + PAGE_SIZE, whole + PAGE_SIZE);
        stopped.tables_mut().patches.tables = Tables {
            classes,
            writes: writes.wrapping_sub(place::memory().start / 8),
            reads: reads.wrapping_sub(place::memory().start / 8),
            tallies: tallies.wrapping_sub(place::memory().start / PAGE_SIZE),
            whole,
            locks: locks::address(),
        };
        // SAFETY: mapped for good.
        unsafe {
            g().page_map
                .use_classes(classes as *mut u8, whole as *mut u8)
        };
        true
    }

    pub fn classify_around(&mut self, stopped: &mut Stopped, page: u64) {
        if g().page_map.class(TargetAddr(page)) != 0 {
            return;
        }
        let first = page & !(BATCH - 1);
        self.batches.insert(first);
        self.batch = first;
        for page in pages(first, first + BATCH) {
            self.classify(stopped, page);
        }
    }

    /// The heap has got `[start, end)`, whose beginning is probably written soon.
    pub fn expect(&mut self, stopped: &mut Stopped, (start, end): (u64, u64)) {
        let last = end
            .saturating_sub(PAGE_SIZE)
            .min(start.saturating_add(BATCH - PAGE_SIZE));
        for page in [start, last].into_iter().filter(|page| *page < end) {
            self.classify_around(stopped, page);
        }
    }

    /// Pages of a checked heap, whose bits are the heap's own.
    pub fn classify_checked(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        for page in pages(start, end) {
            self.classify(stopped, page);
        }
    }

    fn classify(&mut self, stopped: &mut Stopped, page: TargetAddr) {
        // Where the program wants no patches (a lock of all memory), their tables are gone.
        if patches::table().tables.classes == 0 {
            return;
        }
        let map = &g().page_map;
        let entry = map.entry(page);
        let Some(guard) = entry.guard() else { return };
        let writable = entry.permits(AccessKind::Write);
        if map.class(page) != 0 || !entry.permits(AccessKind::Read) {
            return;
        }
        // (Of a page that may only be read, a guard against stores changes nothing.)
        if !writable && guard != Guard::NoAccess {
            return;
        }
        let Some(alias) = entry.alias(page).map(|a| a.0) else {
            return;
        };
        let core::ops::Range { start, end } = place::memory();
        if !(start + PAGE_SIZE..end - PAGE_SIZE).contains(&alias) {
            return;
        }
        let distance = alias.wrapping_sub(page.0);
        let class = Class {
            distance,
            guard,
            writable,
        };
        let Some(class) = self.class(stopped, class) else {
            return;
        };
        if regions::is_checked(page.0) {
            // Its bits always hold what they must, and nothing of other watches.
            if has_watch(page) || has_watch(TargetAddr(page.0 - PAGE_SIZE)) {
                return;
            }
            let begins = regions::start_of(page.0) == Some(page.0);
            if begins || page.0.is_multiple_of(shadow::WINDOW) {
                self.edge(page, alias, entry);
            }
            self.pinned.insert(class.into());
            map.set_class(page, class);
            if arena::has(page.0) && !check::STOPS.load(Relaxed) {
                self.heap = self.heap.or(Some(distance));
            }
            self.in_heap(TargetAddr(page.0 - PAGE_SIZE));
            self.in_heap(page);
            return;
        }
        // A watch that the program has set itself: over-reads would not be its hits.
        if check::has_no_debugger() {
            return;
        }
        let Tables { writes, reads, .. } = patches::table().tables;
        let shared = writes == reads;
        for (bits, kind) in [(writes, AccessKind::Write), (reads, AccessKind::Read)] {
            // SAFETY: the bits of one page of our place; no thread reads them while the world is stopped.
            let bits = unsafe {
                core::slice::from_raw_parts_mut(
                    (bits + alias / 8) as *mut u8,
                    PAGE_SIZE as usize / 8,
                )
            };
            if !shared || kind == AccessKind::Write {
                bits.fill(0);
            }
            g().watchlist()
                .for_each_overlap(page, PAGE_SIZE, &mut |_, range, k| {
                    if k.sees(kind) {
                        let from = range.start.0.max(page.0) - page.0;
                        let to = range.end().0.min(page.0 + PAGE_SIZE) - page.0;
                        set(bits, from, to);
                    }
                });
        }
        let covers = covers(page);
        self.covered += u64::from(covers.is_some());
        let counts = covers.and_then(only_counts);
        let tally = counts.map_or(0, |id| self.tally(id, class));
        match tally {
            0 => self.without += 1,
            _ => self.with_tally += 1,
        }
        // SAFETY: a page of our place; no thread reads it while the world is stopped.
        unsafe { *tally_of(alias) = tally };
        self.edge(page, alias, entry);
        let next = TargetAddr(page.0 + PAGE_SIZE);
        if map.class(next) != 0 {
            self.edge(next, alias + PAGE_SIZE, map.entry(next));
        }
        map.set_class(page, class);
        self.whole(TargetAddr(page.0 - PAGE_SIZE));
        self.whole(page);
    }

    /// Distance to the alias of most of a checked heap. `None`: trampolines do not use it.
    pub fn heap(&self) -> Option<u64> {
        self.heap
    }

    /// Notes whether every access that begins on `page` is to that part of a checked heap, even if it ends on the next
    /// page.
    fn in_heap(&self, page: TargetAddr) {
        let map = &g().page_map;
        let class = map.class(page);
        let known = self.classes.get(usize::from(class).wrapping_sub(1));
        let heap = self.heap.map(|distance| Class {
            distance,
            guard: Guard::NoAccess,
            writable: true,
        });
        if heap.is_some()
            && known == Some(&heap)
            && map.class(TargetAddr(page.0 + PAGE_SIZE)) == class
        {
            map.set_whole(page, IDLE_START as u8, IDLE_START as u8);
        }
    }

    /// Notes whether every access that begins on `page` is a hit of one watch, even if it ends on the next page.
    fn whole(&self, page: TargetAddr) {
        let map = &g().page_map;
        let next = TargetAddr(page.0 + PAGE_SIZE);
        let class = map.class(page);
        let Some(Some(of)) = self.classes.get(usize::from(class).wrapping_sub(1)) else {
            return;
        };
        let (entry, behind) = (map.entry(page), map.entry(next));
        let Some(alias) = entry.alias(page).map(|a| a.0) else {
            return;
        };
        // SAFETY: both have a class, so their aliases are in our place.
        let tallies = unsafe { [*tally_of(alias), *tally_of(alias + PAGE_SIZE)] };
        let tally = usize::from(tallies[0]).wrapping_sub(1);
        let is_classes = self.tallied.get(tally).is_some_and(|t| t.1 == class);
        let alike = map.class(next) == class && entry.shared() == behind.shared();
        if !is_classes || !alike || tallies[0] != tallies[1] {
            return;
        }
        let loads = of.guard == Guard::NoAccess && sees_reads(page);
        let tally = |counted| if counted { tallies[0] } else { 0 };
        map.set_whole(page, tally(loads), tally(of.writable));
    }

    /// An access that ends on `page` but begins before it goes through this page's alias only if the
    /// page before lies there, too, and may be accessed.
    fn edge(&self, page: TargetAddr, alias: u64, entry: PageEntry) {
        let before = TargetAddr(page.0.wrapping_sub(PAGE_SIZE));
        let other = g().page_map.entry(before);
        let same = other.alias(before).map(|a| a.0) == Some(alias - PAGE_SIZE)
            && other.shared() == entry.shared();
        if same && other.permits(AccessKind::Write) {
            return;
        }
        let Tables { writes, reads, .. } = patches::table().tables;
        for bits in [writes, reads] {
            // SAFETY: within the bits of our place, as `classify` has made sure.
            unsafe { *((bits + (alias - 1) / 8) as *mut u8) = 0xff };
        }
    }

    fn class(&mut self, stopped: &mut Stopped, class: Class) -> Option<u8> {
        let known = |c: &Option<Class>| *c == Some(class);
        if let Some(n) = self.classes.iter().position(known) {
            return Some(n as u8 + 1);
        }
        let n = self.free_class(stopped)?;
        *self.classes.get_mut(n - 1)? = Some(class);
        let distance = class.distance;
        let distances = &mut stopped.tables_mut().patches.distances;
        if !distances.contains(&distance) {
            distances.push(distance);
        }
        let classes = patches::table().tables.classes;
        let put = |table: i32, value: u64| {
            let at = classes.wrapping_add_signed(table.into()) + n as u64 * 8;
            // SAFETY: the page before the classes.
            unsafe { *(at as *mut u64) = value };
        };
        let of = |through_alias| if through_alias { distance } else { 0 };
        put(CLASS_WRITES, of(class.writable));
        put(CLASS_READS, of(class.guard == Guard::NoAccess));
        // (Tallies of memory that had this class before, which no longer exists.)
        self.aim_tallies(n as u8);
        Some(n as u8)
    }

    /// A class that no page has.
    fn free_class(&mut self, stopped: &mut Stopped) -> Option<usize> {
        if self.classes.len() + 1 < CLASSES {
            self.classes.push(None);
            return Some(self.classes.len());
        }
        let free = |c: &[Option<Class>]| c.iter().position(Option::is_none);
        if free(&self.classes).is_none() {
            self.take_classes(stopped);
        }
        free(&self.classes).map(|n| n + 1)
    }

    /// All classes are taken. Classes of memory that was unmapped become free again (collectors map and unmap their
    /// heaps in small pieces, each with an alias of its own). If no class is free then, some pages lose theirs, and get
    /// one at their next fault.
    fn take_classes(&mut self, stopped: &mut Stopped) {
        let map = &g().page_map;
        let mut used = [false; CLASSES];
        for class in &self.pinned {
            used.get_mut(*class)
                .into_iter()
                .for_each(|used| *used = true);
        }
        self.batches.retain(|at| {
            let mut any = *at == self.batch;
            for class in pages(*at, at + BATCH).map(|page| map.class(page)) {
                any |= class != 0;
                if let Some(used) = used.get_mut(usize::from(class)) {
                    *used |= class != 0;
                }
            }
            any
        });
        if used.iter().skip(1).all(|used| *used) {
            let victims = self.victim..self.victim + VICTIMS;
            self.victim = victims.end % (CLASSES - 1);
            let goes = |page: &TargetAddr| {
                let class = usize::from(map.class(*page));
                class != 0 && victims.contains(&(class - 1)) && !self.pinned.contains(&class)
            };
            for batch in &self.batches {
                unset(pages(*batch, batch + BATCH).filter(goes));
            }
            for (class, used) in used.iter_mut().enumerate().skip(1 + victims.start) {
                *used &= class > victims.end || self.pinned.contains(&class);
            }
        }
        for (class, used) in self.classes.iter_mut().zip(used.iter().skip(1)) {
            *class = class.filter(|_| *used);
        }
        let left = self.classes.iter().flatten().map(|class| class.distance);
        let distances = &mut stopped.tables_mut().patches.distances;
        distances.clear();
        distances.extend(left);
    }

    /// Returns whether every access to most pages is a hit of one watch.
    pub fn are_mostly_covered(&self) -> bool {
        self.covered > (self.with_tally + self.without) / 2
    }

    /// The same for a watch that only counts.
    pub fn are_mostly_whole(&self) -> bool {
        self.with_tally > self.without
    }

    /// The tally where trampolines count for a watch on pages of this class. If no tally is free, one of another class
    /// of the watch is used; 0: that does not exist either.
    fn tally(&mut self, id: WatchId, class: u8) -> u8 {
        let mut known = self.tallied.iter().position(|t| *t == (id, class));
        if known.is_none() && self.tallied.len() + 1 >= TALLIES {
            known = self.tallied.iter().position(|t| t.0 == id);
        }
        let n = known.unwrap_or(self.tallied.len()) + 1;
        let Some(slot) = g().header().and_then(|h| h.tallies.get(n)) else {
            return 0;
        };
        if known.is_none() {
            self.tallied.push((id, class));
            slot.store(id.0 + 1, Release);
            self.aim_tallies(class);
        }
        n as u8
    }

    /// Tallies of pages of this class are at its distance to the alias.
    fn aim_tallies(&self, class: u8) {
        let Some(Some(of)) = self.classes.get(usize::from(class).wrapping_sub(1)) else {
            return;
        };
        let whole = patches::table().tables.whole;
        let distances = whole.wrapping_add_signed(WHOLE_DISTANCES);
        for (n, _) in (1u64..)
            .zip(&self.tallied)
            .filter(|(_, tally)| tally.1 == class)
        {
            // SAFETY: the page before the table; there are 256.
            unsafe { *((distances + n * 8) as *mut u64) = of.distance };
        }
    }

    /// These watches have changed: forgets what is known of their pages.
    pub fn forget(&mut self, changes: &Changes) {
        let counts = |w: &(WatchId, WatchRange, WatchKind)| self.tallied.iter().any(|t| t.0 == w.0);
        if changes.removed.iter().any(counts) {
            return self.declassify();
        }
        // Ranges of the heap. (A change of their attributes is announced by `declassify`.)
        let stretch_of = |id| {
            let a = g().attributes(id);
            let stretch = a.part == Part::Whole && a.filter.is_none() && a.frozen.is_none();
            a.group.filter(|_| stretch).map(|group| group.0)
        };
        for (start, end) in changes.different(stretch_of) {
            let (first, end) = (TargetAddr(start).page().0, end.next_multiple_of(PAGE_SIZE));
            if regions::is_checked(first) {
                // Pages of a checked heap have their classes from the beginning, in no batch.
                unset(pages(first, end + PAGE_SIZE));
                continue;
            }
            for batch in self.batches.range(first & !(BATCH - 1)..end) {
                unset(pages(first.max(*batch), end.min(batch + BATCH)));
            }
        }
    }

    /// Forgets all that is known of pages, because attributes of watches have changed.
    pub fn declassify(&mut self) {
        for batch in core::mem::take(&mut self.batches) {
            let known = pages(batch, batch + BATCH);
            unset(known.filter(|page| !regions::is_checked(page.0)));
        }
        for (n, (id, _)) in (1..).zip(core::mem::take(&mut self.tallied)) {
            let Some(h) = g().header() else { return };
            let used = h.areas.load(Acquire) as usize;
            for area in g().areas().iter().take(used) {
                let sums = g().counters(id).map(|c| [&c.hits, &c.silent]);
                for (from, to) in [&area.hits, &area.silent]
                    .into_iter()
                    .zip(sums.into_iter().flatten())
                {
                    if let Some(from) = from.get(n) {
                        to.fetch_add(from.swap(0, Relaxed), Relaxed);
                    }
                }
            }
            if let Some(slot) = h.tallies.get(n) {
                slot.store(0, Release);
            }
        }
    }
}

/// Returns whether this page of a checked heap has a watch besides the heap's own.
fn has_watch(page: TargetAddr) -> bool {
    let mut any = false;
    g().watchlist()
        .for_each_overlap(page, PAGE_SIZE, &mut |id, _, _| {
            any |= g().attributes(id).part != Part::Checked;
        });
    any
}

/// The tally of the page of our place that has this alias.
fn tally_of(alias: u64) -> *mut u8 {
    (patches::table().tables.tallies + alias / PAGE_SIZE) as *mut u8
}

/// Returns whether some watch covers loads on this page.
fn sees_reads(page: TargetAddr) -> bool {
    let mut any = false;
    g().watchlist()
        .for_each_overlap(page, PAGE_SIZE, &mut |_, _, kind| {
            any |= kind.sees(AccessKind::Read);
        });
    any
}

fn pages(start: u64, end: u64) -> impl Iterator<Item = TargetAddr> {
    (start..end).step_by(PAGE_SIZE as usize).map(TargetAddr)
}

/// Takes the classes of these pages away: accesses fault until a hot site meets the pages again.
fn unset(pages: impl Iterator<Item = TargetAddr>) {
    for page in pages {
        if g().page_map.class(page) != 0 {
            g().page_map.set_class(page, 0);
        }
    }
}

/// Every access to the page is a hit of this watch.
fn covers(page: TargetAddr) -> Option<WatchId> {
    let (mut all, mut whole) = (0, None);
    g().watchlist()
        .for_each_overlap(page, PAGE_SIZE, &mut |id, range, kind| {
            all += 1;
            let covers = range.start.0 <= page.0 && range.end().0 >= page.0 + PAGE_SIZE;
            if covers && kind != WatchKind::Read {
                whole = Some(id);
            }
        });
    whole.filter(|_| all == 1)
}

/// The watch that counts the hits of this one, if they are only counted.
fn only_counts(id: WatchId) -> Option<WatchId> {
    let a = g().attributes(id);
    // (A hit of a watch that follows pointers needs the handler, which looks at the storing thread.)
    let only_counts = !a.stop && !a.log && a.filter.is_none() && a.frozen.is_none();
    let only_counts = only_counts && a.part == Part::Whole;
    // (Trampolines that write records do not count.)
    let only_counts = only_counts && a.writers == last_writer::tables().is_some();
    only_counts.then(|| a.group.unwrap_or(id))
}

/// Sets the bits `[from, to)`.
fn set(bits: &mut [u8], from: u64, to: u64) {
    let mut n = from;
    while n < to {
        let Some(byte) = bits.get_mut(n as usize / 8) else {
            return;
        };
        if n.is_multiple_of(8) && to - n >= 8 {
            *byte = 0xff;
            n += 8;
        } else {
            *byte |= 1 << (n % 8);
            n += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::set;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn bits_are_set_from_one_to_another(before in any::<[u8; 6]>(), from in 0u64..60, to in 0u64..60) {
            let mut bits = before;
            set(&mut bits, from, to);
            for n in 0..48u64 {
                let is = |of: &[u8]| of[n as usize / 8] >> (n % 8) & 1 == 1;
                prop_assert_eq!(is(&bits), is(&before) || (from <= n && n < to), "bit {}", n);
            }
        }
    }
}
