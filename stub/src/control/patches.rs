//! Patching accesses, on the stub's task with the world at rest (see `patches.rs`).
//!
//! ```text
//! page classes   a byte for each page of user memory: which distance to the alias, for which accesses
//! bits           a bit for each byte of our place: does a store (a load) there concern a watch?
//! rooms          stretches of 4 MiB within reach of the program's code, where bodies are
//! ```
//! Pages get their class when a hot site meets them, and lose it whenever watches or mappings change.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::patch::{Body, CLASS_READS, CLASS_WRITES, CLASSES, Group, Refusal, Target};
use ulpf_lib::guard::maps::{Snapshot, VmaKind};
use ulpf_lib::guard::{
    OUR_PLACE, OUR_PLACE_LEN, PAGES, PROT_EXEC, PROT_WRITE, PageEntry, our_place,
};
use ulpf_lib::pages::Guard;
use ulpf_lib::sys;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr};

use super::text;
use super::trampolines::quiet;
use crate::direct::Known;
use crate::g;
use crate::patches::{self, AFTER, ENABLED, GS_TAKEN, Patch, SOME};

/// Pages that are looked at together.
const BATCH: u64 = 64;
const ROOM: u64 = 4 << 20;
const CELL: u64 = 16;
const ROOMS: usize = 64;
/// How far a jump reaches, less a little.
const REACH: u64 = (1 << 31) - (1 << 25);
/// Accesses to pages without guard, in a row, after which a patch goes.
const PATIENCE: u32 = 1 << 14;

struct Room {
    start: u64,
    used: Vec<u64>,
}

pub struct Patches {
    rooms: Vec<Room>,
    /// Distance to the alias and guard of each class; 0 is none.
    classes: Vec<(u64, Guard)>,
    /// Pages with a class.
    classified: Vec<u64>,
    /// Counters that bodies count down, and those that are free.
    patience: Vec<u64>,
    counters: u64,
    counters_left: u64,
    pub placed: u64,
    pub removed: u64,
    pub refused: u64,
    /// Sites that loops jump into.
    hopeless: BTreeSet<u64>,
    failed: bool,
}

/// Why a site is not patched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Not {
    Code(Refusal),
    /// It may work another time.
    Now,
    Place,
}

impl Patches {
    pub fn new() -> Patches {
        Patches {
            rooms: Vec::new(),
            classes: Vec::new(),
            classified: Vec::new(),
            patience: Vec::new(),
            counters: 0,
            counters_left: 0,
            placed: 0,
            removed: 0,
            refused: 0,
            hopeless: BTreeSet::new(),
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
        if patches::table().at(pc).is_some() {
            return;
        }
        let done = match patches::table().position(pc) {
            _ if self.hopeless.contains(&pc) => Err(Not::Place),
            Some(n) => self.put_back(n),
            None => self.patch(pc),
        };
        if done.is_err() {
            self.refused += 1;
        }
    }

    // ---- pages -----------------------------------------------------------------------------------

    /// Maps the tables, once.
    fn prepare(&mut self) -> bool {
        // SAFETY: the world rests.
        let t = unsafe { patches::table_mut() };
        if t.tables[0] != 0 {
            return true;
        }
        // CPUID 7: EBX bit 8 is BMI2.
        if core::arch::x86_64::__cpuid_count(7, 0).ebx >> 8 & 1 == 0 {
            self.failed = true;
            return false;
        }
        let sparse = |len: u64| -> Option<u64> {
            let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
            // SAFETY: a new mapping; advice about it: no huge pages, not in core dumps.
            unsafe {
                let at = sys!(k::__NR_mmap, our_place(len), len, 3, flags, -1i64, 0).ok()?;
                let _ = sys!(k::__NR_madvise, at, len, 15);
                let _ = sys!(k::__NR_madvise, at, len, 16);
                g().guards_mut().exclude(TargetAddr(at), len);
                Some(at)
            }
        };
        let all = (|| {
            Some((
                sparse(PAGES + PAGE_SIZE)?,
                sparse(patches::BITS_LEN)?,
                sparse(patches::BITS_LEN)?,
            ))
        })();
        let Some((classes, writes, reads)) = all else {
            self.failed = true; // RLIMIT_AS, most likely: faults will do
            return false;
        };
        let classes = classes + PAGE_SIZE;
        t.tables = [
            classes,
            writes.wrapping_sub(OUR_PLACE / 8),
            reads.wrapping_sub(OUR_PLACE / 8),
        ];
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
        let place = OUR_PLACE + PAGE_SIZE..OUR_PLACE + OUR_PLACE_LEN - PAGE_SIZE;
        if !place.contains(&alias) {
            return;
        }
        let distance = alias.wrapping_sub(page.0);
        let Some(class) = self.class(distance, guard) else {
            return;
        };
        let [_, writes, reads] = patches::table().tables;
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
        let [_, writes, reads] = patches::table().tables;
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
        let classes = patches::table().tables[0];
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

    /// Watches or guards have changed: nothing is known of any page.
    pub fn declassify(&mut self) {
        for page in core::mem::take(&mut self.classified) {
            g().page_map.set_class(TargetAddr(page), 0);
        }
    }

    // ---- code ------------------------------------------------------------------------------------

    fn patch(&mut self, pc: u64) -> Result<(), Not> {
        let maps = Snapshot::read().map_err(|_| Not::Now)?;
        let vma = maps.at(pc).ok_or(Not::Now)?;
        // Never memory that others see, or that the program may write while we patch it.
        if vma.shared
            || vma.kind != VmaKind::File
            || vma.prot & PROT_WRITE != 0
            || vma.prot & PROT_EXEC == 0
            || g().alias_of(pc).is_some()
        {
            return Err(Not::Place);
        }
        let mut code = [0u8; 40];
        let room = (vma.end - pc).min(code.len() as u64) as usize;
        let code = code.get_mut(..room).ok_or(Not::Now)?;
        if text::read(pc, code) != room {
            return Err(Not::Now);
        }
        let insn = crate::fault::decode(pc, code).ok_or(Not::Place)?;
        let group = Group::new(&insn, code).map_err(Not::Code)?;
        let (start, end) = (group.start(), group.end());
        if taken(start, end) {
            return Err(Not::Now);
        }
        // Those that have not paid give way.
        while let Some(n) = patches::table()
            .list
            .iter()
            .position(|p| !p.in_place && p.start() < end && start < p.end())
        {
            self.remove(n);
        }
        let patience = self.counter().ok_or(Not::Place)?;
        let mut known = Box::new(Known {
            pc,
            after: pc + u64::from(insn.len),
            back: 0,
            size: insn.mem.size.into(),
            kind: insn.mem.kind,
            patience,
            patience_max: PATIENCE,
        });
        let hit = &raw const *known as u64;
        let target = |at| Target {
            at,
            patience,
            patience_max: PATIENCE,
            hit,
        };
        // Its length does not depend on where it is.
        let size = Body::new(&group, target(start)).map_or(0, |b| b.code.len() as u64 + 1);
        let made = (size > 1)
            .then(|| self.find(&group, size, &maps))
            .flatten()
            .and_then(|at| Some((at, group.jump(at)?, Body::new(&group, target(at))?)));
        let Some((at, jump, body)) = made else {
            self.patience.push(patience);
            return Err(Not::Place);
        };
        // SAFETY: a counter of ours.
        unsafe { (*(patience as *const AtomicU32)).store(PATIENCE, Relaxed) };
        self.take(at, size, true);
        known.back = at + u64::from(body.after);
        SOME.store(true, SeqCst);
        let written = text::write_raw(at, &body.code).and_then(|()| text::write_raw(start, &jump));
        if written.is_err() {
            self.take(at, size, false);
            self.patience.push(patience);
            return Err(Not::Place);
        }
        // SAFETY: the world rests.
        let table = unsafe { patches::table_mut() };
        let n = table.list.partition_point(|p| p.start() < start);
        table.list.insert(
            n,
            Patch {
                in_place: true,
                group,
                jump,
                at,
                body,
                known,
                landings: AtomicU32::new(0),
            },
        );
        let n = table.bodies.partition_point(|b| b.0 < at);
        table.bodies.insert(n, (at, start));
        self.placed += 1;
        Ok(())
    }

    fn counter(&mut self) -> Option<u64> {
        if let Some(c) = self.patience.pop() {
            return Some(c);
        }
        if self.counters_left == 0 {
            let at = crate::arena::map_anonymous(1 << 16);
            if at.is_null() {
                return None;
            }
            (self.counters, self.counters_left) = (at as u64, 1 << 14);
        }
        self.counters_left -= 1;
        Some(self.counters + self.counters_left * 4)
    }

    /// A free place for a body of `size` bytes that a jump of this group can lead to.
    fn find(&mut self, group: &Group, size: u64, maps: &Snapshot) -> Option<u64> {
        let cells = size.div_ceil(CELL);
        for room in &self.rooms {
            if let Some(at) = room.find(group, cells) {
                return Some(at);
            }
        }
        if self.rooms.len() >= ROOMS {
            return None;
        }
        let here = group.start();
        let near: [i64; 12] = [
            -64, -96, -128, -192, -256, -384, -512, -768, 64, 128, 256, 512,
        ];
        let near = near.into_iter().map(|m| here.wrapping_add_signed(m << 20));
        let far = group.far();
        let places: Vec<u64> = match far {
            Some(far) => far
                .flat_map(|base| [base + (4 << 20), base + (8 << 20), base + (1 << 20)])
                .collect(),
            None => near.collect(),
        };
        for at in places {
            let at = at & !(CELL * 4096 - 1);
            let reachable = at.abs_diff(here) < REACH && at >= 0x1_0000;
            let clear = maps.at(at).is_none()
                && maps
                    .vmas
                    .get(maps.index(at))
                    .is_none_or(|v| v.start >= at + ROOM);
            if !reachable || !clear || !quiet(at, maps) || !self.new_room(at) {
                continue;
            }
            if let Some(at) = self.rooms.last().and_then(|r| r.find(group, cells)) {
                return Some(at);
            }
        }
        None
    }

    fn new_room(&mut self, start: u64) -> bool {
        if self.rooms.len() >= ROOMS || self.rooms.iter().any(|r| r.start == start) {
            return false;
        }
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED_NOREPLACE | k::MAP_NORESERVE;
        // SAFETY: a place where nothing is.
        let Ok(got) = (unsafe { sys!(k::__NR_mmap, start, ROOM, 5, flags, -1i64, 0) }) else {
            return false;
        };
        if got != start {
            // SAFETY: just mapped, by a kernel that does not know the flag.
            let _ = unsafe { sys!(k::__NR_munmap, got, ROOM) };
            return false;
        }
        // SAFETY: the world rests.
        unsafe {
            g().guards_mut().exclude(TargetAddr(start), ROOM);
            patches::table_mut().rooms.push((start, start + ROOM));
        }
        self.rooms.push(Room {
            start,
            used: alloc::vec![0; (ROOM / CELL / 64) as usize],
        });
        true
    }

    fn take(&mut self, at: u64, size: u64, take: bool) {
        for room in &mut self.rooms {
            if at >= room.start && at < room.start + ROOM {
                let first = (at - room.start) / CELL;
                for n in first..first + size.div_ceil(CELL) {
                    if let Some(w) = room.used.get_mut(n as usize / 64) {
                        if take {
                            *w |= 1 << (n % 64);
                        } else {
                            *w &= !(1 << (n % 64));
                        }
                    }
                }
            }
        }
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
        if p.in_place {
            let original = p.group.bytes.get(..p.jump.len()).unwrap_or(&[]);
            let _ = text::write_raw(p.start(), original);
            self.removed += 1;
        }
        self.take(p.at, p.body.code.len() as u64 + 1, false);
        self.patience.push(p.known.patience);
    }

    /// The patch at `start` has not paid: the original code is back, for now or for good.
    pub fn cool(&mut self, start: u64) {
        // SAFETY: the world rests.
        let list = unsafe { &mut patches::table_mut().list };
        let n = list.partition_point(|p| p.start() < start);
        let p = list.get_mut(n);
        if let Some(p) = p.filter(|p| p.start() == start && p.in_place) {
            if p.hopeless() {
                self.hopeless.insert(start);
                return self.remove(n);
            }
            p.in_place = false;
            let _ = text::write_raw(start, p.group.bytes.get(..p.jump.len()).unwrap_or(&[]));
            self.removed += 1;
        }
    }

    fn put_back(&mut self, n: usize) -> Result<(), Not> {
        // SAFETY: the world rests.
        let p = unsafe { patches::table_mut() }
            .list
            .get_mut(n)
            .ok_or(Not::Now)?;
        if taken(p.start(), p.end()) {
            return Err(Not::Now);
        }
        // SAFETY: a counter of ours.
        unsafe { (*(p.known.patience as *const AtomicU32)).store(PATIENCE, Relaxed) };
        text::write_raw(p.start(), &p.jump).map_err(|_| Not::Place)?;
        p.in_place = true;
        self.placed += 1;
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
        self.hopeless.retain(|at| *at < start || *at >= end);
        self.restore(start, end);
        let gone = |s: u64| s < end && start < s + ROOM;
        if self.rooms.iter().any(|r| gone(r.start)) {
            for n in (0..patches::table().list.len()).rev() {
                if patches::table().list.get(n).is_some_and(|p| {
                    self.rooms
                        .iter()
                        .any(|r| gone(r.start) && p.at >= r.start && p.at < r.start + ROOM)
                }) {
                    self.remove(n);
                }
            }
            self.rooms.retain(|r| !gone(r.start));
            // SAFETY: the world rests.
            unsafe { patches::table_mut() }.rooms.retain(|r| !gone(r.0));
        }
    }

    pub fn remove_all(&mut self) {
        for n in (0..patches::table().list.len()).rev() {
            self.remove(n);
        }
        self.declassify();
        for room in core::mem::take(&mut self.rooms) {
            // SAFETY: our own mapping; nobody is in it.
            let _ = unsafe { sys!(k::__NR_munmap, room.start, ROOM) };
        }
        // SAFETY: the world rests.
        unsafe { patches::table_mut() }.rooms.clear();
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
        let there = || table.list.iter().filter(|p| p.in_place);
        let short = there().filter(|p| p.group.parts.len() > 1);
        let _ = writeln!(
            out,
            "{{\"enabled\":{},\"after\":{},\"patches\":{},\"relocated\":{},\"placed\":{},\"removed\":{},\"refused\":{},\"landings\":{},\"pages\":{},\"rooms\":{}}}",
            ENABLED.load(Relaxed),
            AFTER.load(Relaxed),
            there().count(),
            short.count(),
            self.placed,
            self.removed,
            self.refused,
            patches::LANDINGS.load(Relaxed),
            self.classified.len(),
            self.rooms.len(),
        );
    }
}

impl Room {
    fn find(&self, group: &Group, cells: u64) -> Option<u64> {
        let total = ROOM / CELL;
        let used = |n: u64| {
            self.used
                .get(n as usize / 64)
                .is_none_or(|w| w >> (n % 64) & 1 != 0)
        };
        let mut n = 0;
        while n + cells <= total {
            let at = self.start + n * CELL;
            if group.jump(at).is_none() {
                n += 1;
                continue;
            }
            match (n..n + cells).rev().find(|c| used(*c)) {
                Some(c) => n = c + 1,
                None => return Some(at),
            }
        }
        None
    }
}

/// Does something of ours stand in `[start, end)`?
fn taken(start: u64, end: u64) -> bool {
    crate::syscalls::sites::touches(start, end)
        || patches::table()
            .list
            .iter()
            .any(|p| p.in_place && p.start() < end && start < p.end())
        || g()
            .breakpoints()
            .iter()
            .any(|b| b.addr >= start && b.addr < end)
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
