//! Patching accesses, on the stub's task with the world at rest (see `patches.rs`).
//!
//! ```text
//! page classes   a byte for each page of user memory: which distance to the alias, for which accesses
//! bits           a bit for each byte of our place: does a store (a load) there concern a watch?
//! rooms          stretches of 4 MiB within reach of the program's code, where bodies are
//! ```
//! Pages get their class when a hot site meets them, and lose it whenever watches or mappings change.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::patch::{
    CLASS_READS, CLASS_WRITES, CLASSES, Group, Refusal, Tables, Target, Trampoline, skipped,
};
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::guard::{PAGES, PROT_EXEC, PROT_READ, PageEntry};
use ulpf_lib::pages::Guard;
use ulpf_lib::place::{self, AfterFork};
use ulpf_lib::ring::{CALMS, Unpatched};
use ulpf_lib::sys;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr, WatchId, WatchKind};

use super::rooms::Rooms;
use super::text;
use crate::direct::{KNOWN, Known};
use crate::g;
use crate::patches::{self, AFTER, ENABLED, GS_TAKEN, PLACED, Patch, REMOVED, SOME};

/// Pages that are looked at together.
const BATCH: u64 = 64;
/// How far a patch goes to take others with it.
const FURTHEST: u64 = 24;

pub struct Patches {
    rooms: Rooms,
    /// Distance to the alias and guard of each class; 0 is none.
    classes: Vec<(u64, Guard)>,
    /// Pages with a class.
    classified: Vec<u64>,
    /// Watches that bodies count for themselves, by tally.
    tallied: Vec<WatchId>,
    /// How many bodies there have been.
    made: usize,
    pub refused: u64,
    failed: bool,
}

impl Patches {
    pub fn new() -> Patches {
        Patches {
            rooms: Rooms::new(),
            classes: Vec::new(),
            classified: Vec::new(),
            tallied: Vec::new(),
            made: 0,
            refused: 0,
            failed: false,
        }
    }

    /// The site at `pc` is hot, and has met `page`.
    pub fn serve(&mut self, pc: u64, page: u64) {
        if !ENABLED.load(SeqCst) || self.failed || !self.prepare() {
            return;
        }
        if GS_TAKEN.load(SeqCst) {
            self.disable();
            return;
        }
        self.classify_around(page);
        if patches::is_patched(pc) {
            return;
        }
        let table = patches::table();
        let done = match (table.at(pc), table.position(pc)) {
            // One more of its instructions is hot.
            (Some(p), _) if p.group.parts.iter().any(|x| x.at == pc) => {
                let start = p.start();
                let maps = Snapshot::read().map_err(|_| Unpatched::Code);
                maps.and_then(|maps| self.place(pc, start, &maps))
            }
            (Some(_), _) => Err(Unpatched::Taken),
            (_, Some(n)) => self.put_back(n),
            _ if table.refused.get(&pc) == Some(&Unpatched::Landings) => {
                self.patch_before(pc, Unpatched::Landings)
            }
            _ => match self.patch(pc) {
                Err(why @ (Unpatched::Successor | Unpatched::Room)) => self.patch_before(pc, why),
                done => done,
            },
        };
        // SAFETY: the world rests.
        let refused = unsafe { &mut patches::table_mut().refused };
        match done {
            // That a loop begins behind it stays true.
            Ok(()) if refused.get(&pc) == Some(&Unpatched::Landings) => {}
            Ok(()) => {
                refused.remove(&pc);
            }
            Err(why) => {
                self.refused += 1;
                refused.insert(pc, why);
            }
        }
    }

    // ---- pages -----------------------------------------------------------------------------------

    /// Maps the tables, once.
    fn prepare(&mut self) -> bool {
        // SAFETY: the world rests.
        let t = unsafe { patches::table_mut() };
        if t.tables.classes != 0 {
            return true;
        }
        // CPUID 7: EBX bit 8 is BMI2.
        if core::arch::x86_64::__cpuid_count(7, 0).ebx >> 8 & 1 == 0 {
            self.failed = true;
            return false;
        }
        let sparse = |len: u64| -> Option<u64> {
            let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
            let prot = k::PROT_READ | k::PROT_WRITE;
            let at = place::map(len, prot, flags, -1, AfterFork::Both).ok()?;
            // SAFETY: advice about our own mapping: no huge pages, not in core dumps.
            unsafe {
                let _ = sys!(k::__NR_madvise, at, len, 15);
                let _ = sys!(k::__NR_madvise, at, len, 16);
                g().guards_mut().exclude(TargetAddr(at), len);
                Some(at)
            }
        };
        let lens = [
            PAGES + PAGE_SIZE,
            patches::BITS_LEN,
            patches::BITS_LEN,
            patches::TALLIES_LEN,
        ];
        let mut all = [0; 4];
        for (n, len) in lens.into_iter().enumerate() {
            let (Some(at), Some(slot)) = (sparse(len), all.get_mut(n)) else {
                // RLIMIT_AS, most likely: faults will do.
                for (at, len) in all.into_iter().zip(lens).take(n) {
                    place::unmap(at, len);
                    // SAFETY: the world rests.
                    unsafe { g().guards_mut() }.include(TargetAddr(at), len);
                }
                self.failed = true;
                return false;
            };
            *slot = at;
        }
        let [classes, writes, reads, tallies] = all;
        let classes = classes + PAGE_SIZE;
        t.tables = Tables {
            classes,
            writes: writes.wrapping_sub(place::memory().start / 8),
            reads: reads.wrapping_sub(place::memory().start / 8),
            tallies: tallies.wrapping_sub(place::memory().start / PAGE_SIZE),
        };
        // SAFETY: mapped for good.
        unsafe { g().page_map.use_classes(classes as *mut u8) };
        true
    }

    fn classify_around(&mut self, page: u64) {
        let first = page & !(BATCH * PAGE_SIZE - 1);
        for n in 0..BATCH {
            self.classify(TargetAddr(first + n * PAGE_SIZE));
        }
    }

    fn classify(&mut self, page: TargetAddr) {
        let map = &g().page_map;
        let entry = map.entry(page);
        let Some(guard) = entry.guard() else { return };
        if map.class(page) != 0 || !entry.permits(AccessKind::Write) {
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
        let Some(class) = self.class(distance, guard) else {
            return;
        };
        let Tables { writes, reads, .. } = patches::table().tables;
        for (bits, kind) in [(writes, AccessKind::Write), (reads, AccessKind::Read)] {
            // SAFETY: the bits of one page of our place; nobody reads them while the world rests.
            let bits = unsafe {
                core::slice::from_raw_parts_mut(
                    (bits + alias / 8) as *mut u8,
                    PAGE_SIZE as usize / 8,
                )
            };
            bits.fill(0);
            g().watchlist()
                .for_each_overlap(page, PAGE_SIZE, &mut |_, range, k| {
                    if k.sees(kind) {
                        let from = range.start.0.max(page.0) - page.0;
                        let to = range.end().0.min(page.0 + PAGE_SIZE) - page.0;
                        set(bits, from, to);
                    }
                });
        }
        let tally = whole_page(page).map_or(0, |id| self.tally(id));
        // SAFETY: a page of our place; nobody looks while the world rests.
        unsafe { *((patches::table().tables.tallies + alias / PAGE_SIZE) as *mut u8) = tally };
        self.edge(page, alias, entry);
        let next = TargetAddr(page.0 + PAGE_SIZE);
        if map.class(next) != 0 {
            self.edge(next, alias + PAGE_SIZE, map.entry(next));
        }
        map.set_class(page, class);
        self.classified.push(page.0);
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

    fn class(&mut self, distance: u64, guard: Guard) -> Option<u8> {
        if let Some(n) = self.classes.iter().position(|c| *c == (distance, guard)) {
            return Some(n as u8 + 1);
        }
        let n = self.classes.len() + 1;
        if n >= CLASSES {
            return None;
        }
        self.classes.push((distance, guard));
        // SAFETY: the world rests.
        let distances = unsafe { &mut patches::table_mut().distances };
        if !distances.contains(&distance) {
            distances.push(distance);
        }
        let classes = patches::table().tables.classes;
        let put = |table: i32, value: u64| {
            let at = classes.wrapping_add_signed(table.into()) + n as u64 * 8;
            // SAFETY: the page before the classes.
            unsafe { *(at as *mut u64) = value };
        };
        put(CLASS_WRITES, distance);
        put(
            CLASS_READS,
            if guard == Guard::NoAccess {
                distance
            } else {
                0
            },
        );
        Some(n as u8)
    }

    /// Where bodies count for a watch; 0: nowhere.
    fn tally(&mut self, id: WatchId) -> u8 {
        let known = self.tallied.iter().position(|t| *t == id);
        let n = known.unwrap_or(self.tallied.len()) + 1;
        let Some(slot) = g().header().and_then(|h| h.tallies.get(n)) else {
            return 0;
        };
        if known.is_none() {
            self.tallied.push(id);
            slot.store(id.0 + 1, Release);
        }
        n as u8
    }

    /// Watches or guards have changed: nothing is known of any page.
    pub fn declassify(&mut self) {
        for page in core::mem::take(&mut self.classified) {
            g().page_map.set_class(TargetAddr(page), 0);
        }
        for (n, id) in (1..).zip(core::mem::take(&mut self.tallied)) {
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

    // ---- code ------------------------------------------------------------------------------------

    /// What a patch of the access at `pc` is to displace that begins at `from` and goes on to `last`, at least.
    /// It looks at what those that it replaces have looked at, too.
    fn group(
        &self,
        pc: u64,
        (from, last): (u64, u64),
        maps: &Snapshot,
    ) -> Result<Group, Unpatched> {
        use Unpatched::Code;
        let vma = maps.at(pc).ok_or(Code)?;
        if !text::may_patch(vma) || g().alias_of(pc).is_some() {
            return Err(Code);
        }
        let mut code = [0u8; 64];
        let room = (vma.end - from).min(code.len() as u64) as usize;
        let code = code.get_mut(..room).ok_or(Code)?;
        if from < vma.start || text::read(from, code) != room {
            return Err(Code);
        }
        let own = code.get((pc - from) as usize..).ok_or(Code)?;
        let own = own.get(..own.len().min(15)).ok_or(Code)?;
        let insn = crate::fault::decode(pc, own).ok_or(Unpatched::Instruction)?;
        // Some come by way of the prefix, others jump past it.
        let mut prefix = [0; 4];
        let read = text::read(pc - 3, &mut prefix);
        if from == pc && read == 4 && (skipped(&prefix) || prefix.get(..3).is_some_and(skipped)) {
            return Err(Unpatched::Successor);
        }
        let hot = |at: u64| {
            let list = &patches::table().list;
            list.iter().any(|p| p.is_in_place() && p.group.checks(at))
        };
        let mut also = |at: u64, rest: &[u8]| {
            let rest = rest.get(..rest.len().min(15))?;
            hot(at).then(|| crate::fault::decode(at, rest)).flatten()
        };
        let group = Group::from(from, last, &insn, code, &mut also).map_err(|why| match why {
            Refusal::Instruction => Unpatched::Instruction,
            Refusal::Successor => Unpatched::Successor,
        })?;
        if group.needs_fs_base() && !g().fsgsbase {
            return Err(Unpatched::Instruction);
        }
        Ok(group)
    }

    /// A patch of the access at `pc` that displaces what stands before, not what stands behind, where that
    /// cannot move or loops jump to it. What stands before, the function's own beginning tells, which the
    /// unwind tables know.
    fn patch_before(&mut self, pc: u64, why: Unpatched) -> Result<(), Unpatched> {
        use Unpatched::Landings;
        let maps = Snapshot::read().map_err(|_| why)?;
        let start = super::functions::start(pc, &maps).ok_or(why)?;
        let mut code = alloc::vec![0; (pc - start) as usize + 15];
        let n = text::read(start, &mut code);
        let code = code.get(..n).ok_or(why)?;
        let own = code.get((pc - start) as usize..).ok_or(why)?;
        let insn = crate::fault::decode(pc, own).ok_or(why)?;
        for from in Group::starts(&insn, start, code) {
            let tried = patches::table().refused.get(&from) == Some(&Landings);
            if !tried && self.place(pc, from, &maps).is_ok() {
                return Ok(());
            }
        }
        Err(why)
    }

    fn patch(&mut self, pc: u64) -> Result<(), Unpatched> {
        let maps = Snapshot::read().map_err(|_| Unpatched::Code)?;
        self.place(pc, pc, &maps)
    }

    /// A patch of the access at `pc`, its jump at `from`.
    fn place(&mut self, pc: u64, from: u64, maps: &Snapshot) -> Result<(), Unpatched> {
        use Unpatched::{Code, Room, Taken};
        let mut group = self.group(pc, (from, pc), maps)?;
        // What would be lost of those that it meets comes with it, as long as that is not far away.
        let mut stretch = (from, pc);
        for _ in 0..4 {
            let before = stretch;
            for p in &patches::table().list {
                let near = p.start() + FURTHEST > pc && p.start() < pc + FURTHEST;
                if near && p.is_in_place() && p.start() < group.end() && group.start() < p.end() {
                    let last = p.group.parts.iter().rfind(|x| p.group.checks(x.at));
                    stretch.0 = stretch.0.min(p.start());
                    stretch.1 = stretch.1.max(last.map_or(0, |x| x.at));
                }
            }
            if stretch == before {
                break;
            }
            let Ok(larger) = self.group(pc, stretch, maps) else {
                break;
            };
            group = larger;
        }
        if group.loops() && patches::taken(group.start(), group.end()) {
            group = group.displaced();
        }
        let (start, end) = (group.start(), group.end());
        if patches::taken(start, end) {
            return Err(Taken);
        }
        let plain_code = maps
            .at(start)
            .is_some_and(|v| v.prot == PROT_READ | PROT_EXEC);
        let mut known: Box<[Known]> = group.parts.iter().flat_map(Known::of).collect();
        let hit = known.as_ptr() as u64;
        let calm = self.made % CALMS;
        let target = |at| Target {
            at,
            calm: patches::calm_at(calm),
            hit,
            leaving: hit + size_of::<Known>() as u64,
            step: KNOWN as u64 * size_of::<Known>() as u64,
            tables: patches::table().tables,
        };
        // Its length does not depend on where it is.
        let size = Trampoline::new(&group, target(start)).map_or(0, |b| b.code.len() as u64 + 1);
        let made = (size > 1)
            .then(|| self.rooms.find(&group, size, maps))
            .flatten()
            .and_then(|at| Some((at, group.jump(at)?, Trampoline::new(&group, target(at))?)));
        let (at, jump, body) = made.ok_or(Room)?;
        // Those whose place it takes, and with them what they look at.
        while let Some(n) = patches::table()
            .list
            .iter()
            .position(|p| p.start() < end && start < p.end())
        {
            self.remove(n);
        }
        self.made += 1;
        self.rooms.take(at, size, true);
        for (n, known) in known.chunks_exact_mut(KNOWN).enumerate() {
            let offset = |of: &[u16]| at + u64::from(of.get(n).copied().unwrap_or(0));
            if let [hit, stays, _] = known {
                (hit.back, stays.back) = (offset(&body.after), offset(&body.parts));
            }
        }
        SOME.store(true, SeqCst);
        let written = text::write_raw(at, &body.code).and_then(|()| text::write_raw(start, &jump));
        if written.is_err() {
            self.rooms.take(at, size, false);
            return Err(Code);
        }
        // SAFETY: the world rests.
        let table = unsafe { patches::table_mut() };
        let n = table.list.partition_point(|p| p.start() < start);
        table.list.insert(
            n,
            Patch {
                in_place: AtomicBool::new(true),
                group,
                jump,
                plain_code,
                at,
                body,
                _known: known,
                calm,
                patience: AtomicU32::new(patches::PATIENCE.load(Relaxed)),
                gone_at: AtomicU64::new(0),
                landings: AtomicU32::new(0),
                entries: AtomicU32::new(0),
            },
        );
        let n = table.bodies.partition_point(|b| b.0 < at);
        table.bodies.insert(n, (at, start));
        PLACED.fetch_add(1, Relaxed);
        Ok(())
    }

    // ---- the way back ----------------------------------------------------------------------------

    fn remove(&mut self, n: usize) {
        // SAFETY: the world rests.
        let table = unsafe { patches::table_mut() };
        if n >= table.list.len() {
            return;
        }
        let p = table.list.remove(n);
        table.bodies.retain(|b| b.1 != p.start());
        if p.is_in_place() {
            let original = p.group.bytes.get(..p.jump.len()).unwrap_or(&[]);
            let _ = text::write_raw(p.start(), original);
            REMOVED.fetch_add(1, Relaxed);
        }
        self.rooms.take(p.at, p.body.code.len() as u64 + 1, false);
    }

    /// The patch of the instruction at `pc` has not paid: the original code is back, for now or for good.
    pub fn cool(&mut self, pc: u64) {
        // Its jump may stand before the access.
        let table = patches::table();
        let there = table.list.iter().position(|p| p.start() == pc);
        let Some(n) = there.or_else(|| table.position(pc)) else {
            return;
        };
        let Some(p) = patches::table().list.get(n).filter(|p| p.is_in_place()) else {
            return;
        };
        if p.hopeless() {
            // SAFETY: the world rests.
            let refused = unsafe { &mut patches::table_mut().refused };
            refused.insert(p.start(), Unpatched::Landings);
            return self.remove(n);
        }
        let original = p.group.bytes.get(..p.jump.len()).unwrap_or(&[]);
        let _ = text::write_raw(p.start(), original);
        p.has_gone();
    }

    fn put_back(&mut self, n: usize) -> Result<(), Unpatched> {
        let p = patches::table().list.get(n).ok_or(Unpatched::Taken)?;
        if patches::taken(p.start(), p.end()) {
            return Err(Unpatched::Taken);
        }
        text::write_raw(p.start(), &p.jump).map_err(|_| Unpatched::Code)?;
        p.is_back();
        Ok(())
    }

    /// Somebody is about to change or to plant something in `[start, end)`: the original code is back.
    pub fn restore(&mut self, start: u64, end: u64) {
        if !patches::touches(start, end) {
            return;
        }
        let mut n = patches::table().list.len();
        while n > 0 {
            n -= 1;
            let meets = patches::table().list.get(n).is_some_and(|p| {
                let body = p.at + p.body.code.len() as u64;
                p.start() < end && start < p.end() || p.at < end && start < body
            });
            if meets {
                self.remove(n);
            }
        }
    }

    /// The mappings of `[start, end)` are about to change.
    pub fn forget(&mut self, start: u64, end: u64) {
        // SAFETY: the world rests.
        let refused = unsafe { &mut patches::table_mut().refused };
        refused.retain(|at, _| *at < start || *at >= end);
        self.restore(start, end);
        for room in self.rooms.forget(start, end) {
            for n in (0..patches::table().list.len()).rev() {
                if patches::table()
                    .list
                    .get(n)
                    .is_some_and(|p| room.contains(&p.at))
                {
                    self.remove(n);
                }
            }
        }
    }

    pub fn remove_all(&mut self) {
        for n in (0..patches::table().list.len()).rev() {
            self.remove(n);
        }
        self.declassify();
        self.rooms.forget(0, u64::MAX);
    }

    /// For good, or until somebody asks for it again.
    pub fn disable(&mut self) {
        ENABLED.store(false, SeqCst);
        self.remove_all();
        self.classes.clear();
        // SAFETY: the world rests.
        unsafe { patches::table_mut() }.distances.clear();
        // SAFETY: the world rests, and no body is left that could look.
        unsafe { patches::drop_tables() };
    }

    /// For `monitor ulpf patch`.
    pub fn state(&self, out: &mut dyn Write) {
        let table = patches::table();
        let there = || table.list.iter().filter(|p| p.is_in_place());
        let short = there().filter(|p| p.group.is_relocated());
        // What stands before the access has moved.
        let preceded = there().filter(|p| !p.group.checks(p.start()));
        let _ = writeln!(
            out,
            "{{\"enabled\":{},\"after\":{},\"patches\":{},\"relocated\":{},\"preceded\":{},\"placed\":{},\"removed\":{},\"refused\":{},\"landings\":{},\"pages\":{},\"rooms\":{}}}",
            ENABLED.load(Relaxed),
            AFTER.load(Relaxed),
            there().count(),
            short.count(),
            preceded.count(),
            PLACED.load(Relaxed),
            REMOVED.load(Relaxed),
            self.refused,
            patches::LANDINGS.load(Relaxed),
            self.classified.len(),
            self.rooms.count(),
        );
    }
}

/// For `monitor ulpf patch sites`: the instructions with the most faults, and what is the matter.
pub fn sites(most: usize, out: &mut dyn Write) {
    let mut all: Vec<_> = crate::fault::sites().collect();
    all.sort_by_key(|s| core::cmp::Reverse(s.faults.load(Relaxed)));
    for site in all.into_iter().take(most) {
        let _ = write!(
            out,
            "{{\"pc\":\"{:#x}\",\"faults\":{},\"beside\":{},\"why\":\"{}\",\"bytes\":\"",
            site.insn.pc,
            site.faults.load(Relaxed),
            site.beside.load(Relaxed),
            patches::why_not(site.insn.pc).why(),
        );
        for byte in site.insn.code() {
            let _ = write!(out, "{byte:02x}");
        }
        let _ = out.write_str("\"}\n");
    }
}

/// Every access to the page is a hit of this watch, and is only counted.
fn whole_page(page: TargetAddr) -> Option<WatchId> {
    let (mut all, mut whole) = (0, None);
    g().watchlist()
        .for_each_overlap(page, PAGE_SIZE, &mut |id, range, kind| {
            all += 1;
            let covers = range.start.0 <= page.0 && range.end().0 >= page.0 + PAGE_SIZE;
            if covers && kind != WatchKind::Read {
                whole = Some(id);
            }
        });
    let id = whole.filter(|_| all == 1)?;
    let a = g().attributes(id);
    let only_counts = !a.stop && !a.log && a.filter.is_none();
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
