//! A checked heap, on the stub's task: its beginning, the functions that it replaces, and its growth
//! (`stub/handlers/src/check` has the rest).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::command::HeapCheck;
use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::place;
use ulpf_lib::ring::findings::{By, UNREPLACED};
use ulpf_lib::sys;
use ulpf_lib::{AccessKind, AliasAddr, PAGE_SIZE, TargetAddr, WatchId, WatchKind, WatchRange};
use ulpf_stub_handlers::check::arena::{self, ARENA, GRANULE, GRANULES};
use ulpf_stub_handlers::check::block_map::{self, LINES, OWNERS};
use ulpf_stub_handlers::check::blocks::{self, RECORDS};
use ulpf_stub_handlers::check::entries::{self, Function, JUMP};
use ulpf_stub_handlers::check::findings::findings;
use ulpf_stub_handlers::check::heap::{self, Places};
use ulpf_stub_handlers::check::requests;
use ulpf_stub_handlers::check::serve;
use ulpf_stub_handlers::check::shadow::{self, WINDOW};
use ulpf_stub_handlers::check::{
    self, client_list, depot, errno, family, files, judge, left, old, out_of_block,
};
use ulpf_stub_handlers::global::{g, machine, tables};
use ulpf_stub_handlers::runtime::areas;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::attributes::{Attributes, Part};
use ulpf_stub_tables::edit::{Detour, Edit, List};

use super::allocator::Tables;
use super::entrances::{comes_to_served, is_jump, room_at};
use super::functions::{self, DT_STRTAB, Object, bytes};
use super::own_functions;
use super::slots;
use super::watches::{no_numbers, refusal};
use super::{Control, text, unwind};
use crate::inferior::Refusal;
use ulpf_lib::command::Placement;

/// The arena grows by at least this many bytes.
const LEAST_CHUNK: u64 = 4 << 20;
/// Number of addresses below our own place that are tried for the blocks.
const MOST_HINTS: u64 = 8;
/// The arena grows by at most this many bytes, unless one block needs more.
pub(super) const MOST_CHUNK: u64 = 256 << 20;

/// A name, and the address of the function chosen for it.
type Chosen = (&'static [u8], u64);

#[derive(Default)]
pub struct Check {
    /// The watch that all chunks belong to.
    pub id: Option<WatchId>,
    /// Files that were examined, by their start addresses.
    pub(super) looked: Vec<u64>,
    /// Files whose copy functions are not chosen yet.
    unsettled: Vec<u64>,
    /// Files of which some slots for copy functions do not lead to ours yet.
    unlooked: Vec<u64>,
    /// Functions that the C library has chosen for copying.
    chosen: Vec<Chosen>,
    /// Copy functions that the program defines itself.
    own: Vec<&'static [u8]>,
    /// The program's allocator cannot be replaced ([`unreplaced`]): nothing is checked.
    pub(super) unknown: bool,
    /// Functions that the command has named distinguish `delete` from `free`.
    pub tells_kinds: bool,
}

const FUNCTIONS: [(&[u8], Function); 12] = [
    (b"malloc", Function::Malloc),
    (b"calloc", Function::Calloc),
    (b"realloc", Function::Realloc),
    (b"reallocarray", Function::Reallocarray),
    (b"free", Function::Free),
    (b"cfree", Function::Free),
    (b"memalign", Function::Memalign),
    (b"aligned_alloc", Function::Memalign),
    (b"posix_memalign", Function::PosixMemalign),
    (b"valloc", Function::Valloc),
    (b"pvalloc", Function::Pvalloc),
    (b"malloc_usable_size", Function::UsableSize),
];

/// Functions of the C++ library alone: a program's own may have another meaning.
const DELETES: [(&[u8], Function); 10] = [
    (b"_ZdlPv", Function::Delete),
    (b"_ZdlPvm", Function::Delete),
    (b"_ZdlPvRKSt9nothrow_t", Function::Delete),
    (b"_ZdlPvSt11align_val_t", Function::Delete),
    (b"_ZdlPvmSt11align_val_t", Function::Delete),
    (b"_ZdaPv", Function::DeleteArray),
    (b"_ZdaPvm", Function::DeleteArray),
    (b"_ZdaPvRKSt9nothrow_t", Function::DeleteArray),
    (b"_ZdaPvSt11align_val_t", Function::DeleteArray),
    (b"_ZdaPvmSt11align_val_t", Function::DeleteArray),
];

const NEWS: [(&[u8], By); 8] = [
    (b"_Znwm", By::New),
    (b"_ZnwmRKSt9nothrow_t", By::New),
    (b"_ZnwmSt11align_val_t", By::New),
    (b"_ZnwmSt11align_val_tRKSt9nothrow_t", By::New),
    (b"_Znam", By::NewArray),
    (b"_ZnamRKSt9nothrow_t", By::NewArray),
    (b"_ZnamSt11align_val_t", By::NewArray),
    (b"_ZnamSt11align_val_tRKSt9nothrow_t", By::NewArray),
];

/// Functions of an allocator's library (jemalloc, tcmalloc, mimalloc) besides malloc. Many of these are one function
/// under several names, so the allocation family of an allocation or a free is unknown there.
const OWN: [(&[u8], Function); 20] = [
    (b"_Znwm", Function::Malloc),
    (b"_ZnwmRKSt9nothrow_t", Function::Malloc),
    (b"_ZnwmSt11align_val_t", Function::NewAligned),
    (b"_ZnwmSt11align_val_tRKSt9nothrow_t", Function::NewAligned),
    (b"_Znam", Function::Malloc),
    (b"_ZnamRKSt9nothrow_t", Function::Malloc),
    (b"_ZnamSt11align_val_t", Function::NewAligned),
    (b"_ZnamSt11align_val_tRKSt9nothrow_t", Function::NewAligned),
    (b"_ZdlPv", Function::Free),
    (b"_ZdlPvm", Function::Free),
    (b"_ZdlPvRKSt9nothrow_t", Function::Free),
    (b"_ZdlPvSt11align_val_t", Function::Free),
    (b"_ZdlPvmSt11align_val_t", Function::Free),
    (b"_ZdaPv", Function::Free),
    (b"_ZdaPvm", Function::Free),
    (b"_ZdaPvRKSt9nothrow_t", Function::Free),
    (b"_ZdaPvSt11align_val_t", Function::Free),
    (b"_ZdaPvmSt11align_val_t", Function::Free),
    (b"_ZdlPvSt11align_val_tRKSt9nothrow_t", Function::Free),
    (b"_ZdaPvSt11align_val_tRKSt9nothrow_t", Function::Free),
];

/// Further functions of jemalloc for existing blocks. (Blocks from `mallocx` stay jemalloc's own.)
const OTHERS: [(&[u8], Function); 5] = [
    (b"dallocx", Function::Free),
    (b"sdallocx", Function::Free),
    (b"sallocx", Function::UsableSize),
    (b"xallocx", Function::UsableSize),
    (b"rallocx", Function::Realloc),
];

/// Array functions, and the function that each may only jump to.
const ARRAYS: [(&[u8], &[u8]); 2] = [
    (b"_Znam", b"_Znwm"),
    (b"_ZnamSt11align_val_t", b"_ZnwmSt11align_val_t"),
];

/// tcmalloc's interface to the program.
const INSTANCE: &[u8] = b"_ZN15MallocExtension8instanceEv";
/// Functions that identify the allocators of [`UNREPLACED`], in its order.
const UNKNOWN: [&[u8]; 7] = [
    b"__asan_init",
    b"__tsan_init",
    b"__msan_init",
    b"__hwasan_init",
    b"__lsan_init",
    b"__dfsan_init",
    b"moz_arena_malloc",
];
/// Number of tcmalloc in [`UNREPLACED`].
const WAITS: usize = UNKNOWN.len();
/// Number of Chromium's allocator, whose own entries the browser's code calls without these functions.
const CHROMIUM: usize = WAITS + 1;

/// The allocator of [`UNREPLACED`] that a file with these functions contains.
fn unreplaced(has: impl Fn(&[u8]) -> bool) -> Option<usize> {
    // tcmalloc has malloc_size, too, and mimalloc has both.
    let chromium = || {
        let others: [&[u8]; 2] = [b"malloc_good_size", b"tc_malloc"];
        has(b"malloc_size") && !others.into_iter().any(&has)
    };
    let named = UNKNOWN.iter().position(|name| has(name));
    named.or_else(|| chromium().then_some(CHROMIUM))
}

/// Returns whether the function calls its malloc until something has happened. (test rax, rax; je, backwards)
fn waits_for_malloc((start, end): (u64, u64)) -> bool {
    let code: Option<[u8; 64]> = bytes(start);
    let len = end.saturating_sub(start) as usize;
    code.is_some_and(|code| {
        let code = code.get(..len).unwrap_or(&code);
        code.windows(5)
            .any(|c| c.starts_with(&[0x48, 0x85, 0xc0, 0x74]) && c[4] >= 0x80)
    })
}

/// Functions that read the bytes that they copy, and no others.
const COPIERS: [&[u8]; 6] = [
    b"memcpy",
    b"memmove",
    b"mempcpy",
    b"__memcpy_chk",
    b"__memmove_chk",
    b"__mempcpy_chk",
];

pub fn no(why: &str, what_to_do: &str) -> Refusal {
    refusal(
        "cannot check the heap".into(),
        why.into(),
        what_to_do.into(),
    )
}

/// Records about the heap and about the threads that allocate: address and length.
pub(super) fn books() -> impl Iterator<Item = (u64, u64)> {
    books_by(|number| number.load(SeqCst))
}

/// The same of the image whose statics `read` reads.
pub(super) fn books_by(
    read: impl Fn(&'static AtomicU64) -> u64,
) -> impl Iterator<Item = (u64, u64)> {
    let all = [
        (read(&arena::RECORDS_AT), RECORDS),
        (read(&arena::GRANULES_AT), GRANULES),
        (read(&block_map::OWNERS_AT), OWNERS),
        (read(&block_map::LINES_AT), LINES),
        (read(&depot::AT), depot::LEN),
        (read(&client_list::AT), client_list::LEN),
        old::place_by(&read),
    ];
    all.into_iter().filter(|(at, _)| *at != 0)
}

/// Settings of the check that may differ from those of an earlier one.
pub(super) fn configure(how: &HeapCheck) -> Result<(), Refusal> {
    serve::FRAMES.store(how.frames.into(), Relaxed);
    check::LEAKS.store(how.leaks, Relaxed);
    check::STOPS.store(how.stop, Relaxed);
    if how.base && block_map::OWNERS_AT.load(Relaxed) == 0 {
        block_map::OWNERS_AT.store(memory(OWNERS)?, Relaxed);
        block_map::LINES_AT.store(memory(LINES)?, Relaxed);
        blocks::map_all();
    }
    out_of_block::GUESSES.store(how.base, Relaxed);
    Ok(())
}

pub(super) const NO_ROOM: &str = "raise the limit of its address space (ulimit -v)";

/// Zeroed memory of ours, which forked children inherit.
pub fn memory(len: u64) -> Result<u64, Refusal> {
    place::map_sparse(len).map_err(|_| no("there is no address space for its books", NO_ROOM))
}

/// More than the reach of jumps from the program's libraries. The memory right below these stays free for trampolines,
/// some of which have only one possible place (instruction punning).
const REACH: u64 = 4 << 30;

/// Address space for the blocks, at a multiple of [`WINDOW`], away from our own place, in which nothing can be watched.
/// (The kernel chooses an address there where the program has taken what lies above it.)
fn reserve() -> Result<u64, Refusal> {
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
    let len = ARENA + WINDOW + REACH;
    let place = place::all();
    let below = (1..=MOST_HINTS).map(|n| place.start - n * len);
    for hint in core::iter::once(0).chain(below) {
        // SAFETY: new memory; what of it is too much goes back.
        unsafe {
            let at = sys!(k::__NR_mmap, hint, len, k::PROT_NONE, flags, -1i64, 0)
                .map_err(|_| no("there is no address space for its blocks", NO_ROOM))?;
            if at < place.end && place.start < at + len {
                let _ = sys!(k::__NR_munmap, at, len);
                continue;
            }
            let start = at.next_multiple_of(WINDOW);
            if start > at {
                let _ = sys!(k::__NR_munmap, at, start - at);
            }
            let end = start + ARENA;
            if at + len > end {
                let _ = sys!(k::__NR_munmap, end, at + len - end);
            }
            return Ok(start);
        }
    }
    Err(no("there is no address space for its blocks", NO_ROOM))
}

impl Control {
    /// From now on we serve the program's allocations.
    pub fn check_heap(&mut self, how: &HeapCheck) -> Result<(), Refusal> {
        if self.check.id.is_some() {
            self.look_for_old_blocks();
            return Ok(());
        }
        let stopped = self.world.stopped();
        self.edits.accesses.search();
        if areas::GS_TAKEN.load(SeqCst) || !self.edits.accesses.classes.prepare_for_check(stopped) {
            return Err(no(
                "it takes a processor with BMI2, and address space for its tables",
                NO_ROOM,
            ));
        }
        if stopped.tables().code.is_none() {
            unwind::load(stopped, None);
        }
        if let Some(args) = how.of {
            return self.adopt_parents_heap(args);
        }
        if how.running
            && let Some(taken) = self.take_over_heap(how)
        {
            return taken;
        }
        let places = Places {
            arena: reserve()?,
            records: memory(RECORDS)?,
            granules: memory(GRANULES)?,
            quarantine: how.quarantine,
            redzone: how.redzone,
        };
        // (Of a record its state is read before it is written: as small pages each would fault twice.)
        place::huge(places.records, RECORDS);
        let notes = memory(depot::LEN)?;
        depot::begin(notes);
        heap::begin(&places);
        configure(how)?;
        entries::PASSES.store(how.running, Relaxed);
        self.exclude_books();
        self.check.id = Some(self.staged.reserve().ok_or_else(no_numbers)?);
        self.grow_heap(LEAST_CHUNK);
        if arena::mapped() == 0 {
            let refused = self.last_refusal.take();
            let left = "its memory cannot be watched beside what is limited or what earlier checks have left behind";
            let start =
                "start the program anew, or raise the limit of its address space (ulimit -v)";
            return Err(refused.unwrap_or_else(|| no(left, start)));
        }
        self.begin_to_serve();
        self.look_for_old_blocks();
        Ok(())
    }

    pub(super) fn begin_to_serve(&mut self) {
        areas::SOME.store(true, SeqCst);
        entries::ON.store(true, SeqCst);
        if let Some(f) = findings() {
            f.on.store(1, SeqCst);
        }
        self.serve_allocators();
    }

    /// Excludes the heap's own records from guards.
    pub(super) fn exclude_books(&mut self) {
        let guards = self.world.stopped().guards();
        books().for_each(|(at, len)| guards.exclude(TargetAddr(at), len));
    }

    /// Serves the allocation functions of files that were mapped since the last call.
    pub fn serve_allocators(&mut self) {
        if !entries::ON.load(SeqCst) || self.check.unknown {
            return;
        }
        let Ok(maps) = Snapshot::read() else { return };
        // (Our image has such functions, too, for itself.)
        let image = machine().image;
        for (n, vma) in maps.vmas.iter().enumerate() {
            // (A forked child still has its parent's stub.)
            if vma.prot & PROT_EXEC == 0 || vma.is_ours() {
                continue;
            }
            let Some(object) = Object::at(n, &maps) else {
                continue;
            };
            let start = object.start;
            if (image.0..image.1).contains(&start) {
                continue;
            }
            if !self.check.looked.contains(&start) && !is_loader(&object) {
                self.check.looked.push(start);
                if let Some(tables) = Tables::of(&object) {
                    self.serve_file(&object, &tables, &maps);
                    self.check.unsettled.push(start);
                    if !object.is_runtime() {
                        let has = |name: &[u8]| {
                            tables
                                .find(name)
                                .or(tables.chooser(name).map(|at| (at, at)))
                        };
                        let own = slots::COPIES.iter().filter(|(name, _)| has(name).is_some());
                        self.check.own.extend(own.map(|(name, _)| *name));
                    }
                    // (Copies inside such libraries are not checked. A debugger would stop inside a thunk.)
                    if !object.is_runtime() && !check::STOPS.load(SeqCst) {
                        self.check.unlooked.push(start);
                    }
                }
            }
            // A library chooses its functions when it is relocated, some time after it is mapped.
            if self.check.unsettled.contains(&start) {
                let tables = Tables::of(&object);
                let chosen = tables.map_or(Some(Vec::new()), |t| settle(&object, &t, &maps));
                if let Some(chosen) = chosen {
                    self.check.unsettled.retain(|at| *at != start);
                    self.check.chosen.extend(chosen);
                }
            }
        }
        if entries::OTHERS.load(Relaxed) {
            files::are(files_of(&maps));
        }
        self.look_at_slots(&maps);
        self.serve_annotations(&maps);
    }

    /// Calls of copy functions in files that have been relocated since go through us.
    fn look_at_slots(&mut self, maps: &Snapshot) {
        let (chosen, own) = (&self.check.chosen, &self.check.own);
        let find = |name: &[u8]| {
            let mut known = chosen
                .iter()
                .filter(|(n, _)| *n == name && !own.contains(n));
            known.next().map(|(_, at)| *at)
        };
        let stopped = self.world.stopped();
        self.check.unlooked.retain(|start| {
            let object = Object::at(maps.index(*start), maps).filter(|o| o.start == *start);
            object.is_some_and(|object| !slots::look(stopped, &object, maps, find))
        });
    }

    /// Reports an allocator of [`UNREPLACED`].
    fn cannot_replace(&mut self, n: usize) {
        if let Some(f) = findings() {
            f.unreplaced.store(n as u64 + 1, SeqCst);
        }
        self.warn(&alloc::format!(
            "ulpf: the heap is not checked: ulpf cannot take the place of {}\n",
            UNREPLACED[n]
        ));
    }

    fn serve_file(&mut self, object: &Object, tables: &Tables, maps: &Snapshot) {
        let runtime = object.is_runtime();
        let has = |name: &[u8]| tables.find(name).is_some();
        if let Some(n) = unreplaced(has) {
            self.check.unknown = true;
            self.cannot_replace(n);
        }
        if self.check.unknown {
            return;
        }
        let own = !runtime && has(b"malloc") && has(b"_Znwm");
        if own && tables.find(INSTANCE).is_some_and(waits_for_malloc) {
            return self.cannot_replace(WAITS);
        }
        let deletes = DELETES.iter().filter(|_| runtime);
        let theirs = OWN.iter().filter(|_| own);
        for (name, function) in FUNCTIONS.iter().chain(deletes).chain(theirs) {
            let Some(at) = tables.find(name) else {
                continue;
            };
            let name = core::str::from_utf8(name).unwrap_or_default();
            self.replace(own, name, at, *function, maps);
        }
        if own && !entries::PASSES.load(Relaxed) {
            self.serve_others(tables, maps);
        }
        if let Some((at, _)) = tables.find(b"__errno_location") {
            errno::learn(at, &functions::block(at, errno::CODE));
        }
        for (name, by) in NEWS.iter().filter(|_| runtime) {
            if let Some(at) = tables.find(name) {
                family::add_new(at, *by);
            }
        }
        for (array, one) in ARRAYS.iter().filter(|_| runtime) {
            let (Some(array), Some(one)) = (tables.find(array), tables.find(one)) else {
                continue;
            };
            // A function that only jumps on leaves no frame among the callers.
            let jumps = bytes(array.0).is_some_and(is_jump);
            if jumps && room_at(array) >= JUMP as u64 {
                own_functions::send_threads(self.world.stopped(), array.0, one.0);
                serve(
                    self.world.stopped(),
                    array.0,
                    Function::NewArray,
                    Some(one.0),
                );
            }
        }
        for name in COPIERS {
            if let Some(at) = tables.find(name) {
                judge::add_copier(at);
            }
        }
    }

    /// An allocator that has functions beside these: it has to have begun, and gets blocks that come from them.
    fn serve_others(&mut self, tables: &Tables, maps: &Snapshot) {
        let known = |name: &[u8]| Some(served(tables.find(name)?.0)?.number);
        let own = |name: &[u8]| known(name).and_then(entries::own).map(|k| k.back);
        let own = |name: &[u8]| own(name).filter(|at| *at != 0);
        let (Some(_), Some(free), Some(realloc)) = (own(b"malloc"), own(b"free"), own(b"realloc"))
        else {
            return;
        };
        let size = own(b"malloc_usable_size");
        for (name, function) in OTHERS {
            if let Some(at) = tables.find(name) {
                let name = core::str::from_utf8(name).unwrap_or_default();
                self.replace(true, name, at, function, maps);
            }
        }
        // Where the first instructions of one cannot be relocated, another one does the same.
        let names = OTHERS.iter().chain(&FUNCTIONS).chain(&OWN);
        for (name, function) in names {
            let at = known(name).filter(|n| entries::own(*n).is_some_and(|k| k.back == 0));
            let instead = match function {
                Function::Free => Some(free),
                Function::Realloc => Some(realloc),
                Function::UsableSize => size,
                _ => None,
            };
            if let (Some(known), Some(instead)) = (at.and_then(entries::known), instead) {
                entries::pass(known.pc, instead);
            }
        }
        entries::has_others();
    }

    /// Replaces the function at `at`: calls are served here from now on. They can be passed on to the function itself
    /// if its first instructions can be relocated. For an allocator that `has_others` besides it, that is optional. In
    /// a program that ran before, a function that cannot be relocated is not served.
    pub fn replace(
        &mut self,
        has_others: bool,
        name: &str,
        at: (u64, u64),
        function: Function,
        maps: &Snapshot,
    ) {
        // (A forked child's functions are served before its files are examined.)
        if served(at.0).is_some_and(|f| bytes(at.0) == Some(f.jump)) {
            return;
        }
        let may = maps.at(at.0).is_some_and(text::may_patch);
        if !may || room_at(at) < JUMP as u64 {
            // (One that only jumps to another one needs nothing.)
            if !comes_to_served(at.0) {
                let text = alloc::format!(
                    "ulpf: the program's {name} at {:#x} cannot be replaced: its code is too short, or the \
                     program can write to it; blocks that it allocates are not checked\n",
                    at.0
                );
                self.warn(&text);
            }
            return;
        }
        if is_anothers(at.0, maps) {
            let text = alloc::format!(
                "ulpf: the program's {name} at {:#x} is served by what another version of ulpf has left; blocks that \
                 it allocates are not checked before the program is started anew\n",
                at.0
            );
            return self.warn(&text);
        }
        let stopped = self.world.stopped();
        let end = at.0 + JUMP as u64;
        self.edits.restore(stopped, at.0, end);
        let known = served(at.0).is_some();
        let mut own = None;
        let ran_before = entries::PASSES.load(Relaxed);
        if (ran_before || has_others) && !known {
            own = own_functions::moved(stopped, at, maps);
            if own.is_none() && ran_before {
                let text = alloc::format!(
                    "ulpf: the program's {name} at {:#x} cannot be replaced: its first instructions cannot be \
                     elsewhere; blocks that it allocates are not checked\n",
                    at.0
                );
                return self.warn(&text);
            }
        }
        if !serve(stopped, at.0, function, None) {
            return;
        }
        if let Some((to, made)) = &own {
            entries::pass(at.0, *to);
            if let Some(function) = served(at.0) {
                entries::keep_moved(function.number, own_functions::places(made));
            }
            own_functions::move_threads(stopped, at.0, (*to, made));
        }
        if let Some(f) = findings() {
            f.functions.fetch_add(1, Relaxed);
        }
    }

    /// Leaves the program. If it had an allocator before us, and holds no block of ours, that allocator serves it again
    /// (`check/left.rs` of the handlers). Otherwise its functions go on to lead to us.
    pub fn leave_heap(&mut self) {
        if !entries::ON.load(SeqCst) {
            return;
        }
        let stopped = self.world.stopped();
        if let Ok(maps) = Snapshot::read() {
            for start in &self.check.looked {
                let object = Object::at(maps.index(*start), &maps).filter(|o| o.start == *start);
                object.iter().for_each(|o| slots::restore(stopped, o));
            }
        }
        for request in stopped.tables_mut().edits.requests.take().iter() {
            let _ = text::write_raw(request.at, request.original());
        }
        // (Only our functions can free blocks of ours.)
        if !entries::PASSES.load(SeqCst) || left::holds() {
            return blocks::give_back_free();
        }
        for function in stopped.tables_mut().edits.functions.take().iter() {
            let _ = text::write(stopped, function.at, function.original());
            // A thread in the middle of the jump has had no effect yet.
            own_functions::send_threads(stopped, function.at, function.at);
        }
        left::LEFT.store(true, SeqCst);
    }

    /// The mappings of `[start, end)` have changed: their addresses, their protection, or what a child inherits. Those
    /// of `gone` no longer exist. A function that still begins with our jump is kept: most calls about code leave it as
    /// it is.
    pub fn forget_allocators(&mut self, start: u64, end: u64, gone: (u64, u64)) {
        if !entries::ON.load(SeqCst) {
            return;
        }
        let inside = |at: &u64| (start..end).contains(at);
        let edits = &mut self.world.stopped().tables_mut().edits;
        let lost = take_lost(&mut edits.functions, start, end);
        lost.iter().for_each(|f| entries::remove(f.at));
        let requests = take_lost(&mut edits.requests, start, end);
        requests.iter().for_each(|r| requests::remove(r.number));
        let any = !lost.is_empty() || !requests.is_empty();
        let lost: Vec<u64> = lost.iter().map(|f| f.at).collect();
        let files = &self.check.looked;
        if any || files.iter().any(inside) {
            let maps = Snapshot::read().ok();
            let there = |at: u64| maps.as_ref().is_none_or(|maps| maps.at(at).is_some());
            // Files whose code is the file's again are looked through once more.
            let file_of = |at: &u64| files.iter().copied().filter(|file| file <= at).max();
            let anew: Vec<u64> = lost.iter().filter_map(file_of).collect();
            let gone = |at: &u64| anew.contains(at) || inside(at) && (any || !there(*at));
            self.check.looked.retain(|at| !gone(at));
            self.check.unsettled.retain(|at| !gone(at));
            self.check.unlooked.retain(|at| !gone(at));
            self.check.chosen.retain(|(_, at)| !gone(at));
            self.annotations.forget_files(gone);
        }
        self.forget_annotations(gone.0, gone.1);
        if any {
            self.serve_allocators();
        }
    }

    /// Grows the arena by at least `bytes`, or notes that it cannot grow by that.
    pub fn grow_heap(&mut self, bytes: u64) {
        let had = arena::mapped();
        let start = arena::arena() + had;
        let wanted = (had / 2).clamp(LEAST_CHUNK, MOST_CHUNK).max(bytes);
        let less = (bytes < wanted).then_some(bytes);
        for wanted in [wanted].into_iter().chain(less) {
            let len = wanted.next_multiple_of(GRANULE).min(ARENA - had);
            if len >= bytes && self.add_chunk(start, len) {
                arena::grown(had + len);
                return self.serve_allocators();
            }
        }
        let before = arena::refuse(bytes);
        // (A program may ask for much, and be content with less.)
        if had > 0 && bytes <= before / 2 {
            self.warn(&alloc::format!(
                "ulpf: the checked heap cannot grow by {bytes} bytes: from now on freed blocks are used again sooner where memory is \
wanted, so that uses of them may not be found; where that is not enough, the program gets none\n"
            ));
        }
    }

    fn add_chunk(&mut self, start: u64, len: u64) -> bool {
        let prot = k::PROT_READ | k::PROT_WRITE;
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED | k::MAP_NORESERVE;
        // SAFETY: address space that we have reserved.
        let mapped = unsafe { sys!(k::__NR_mmap, start, len, prot, flags, -1i64, 0) };
        mapped.is_ok() && self.watch_chunk(start, len)
    }

    /// Checks all accesses to this memory from now on. `None`: it cannot be watched.
    pub(super) fn watch_checked(&mut self, start: u64, len: u64) -> Option<WatchId> {
        let range = WatchRange::new(TargetAddr(start), len);
        let id = range.and_then(|r| self.staged.insert_new(r, WatchKind::Access))?;
        self.set_first_attributes(
            id,
            Attributes {
                group: self.check.id,
                placement: Placement::Guard,
                part: Part::Checked,
                ..Attributes::default()
            },
        );
        self.commit_watches();
        Some(id)
    }

    /// Watches all of this memory from now on, and closes it.
    pub(super) fn watch_chunk(&mut self, start: u64, len: u64) -> bool {
        if self.watch_checked(start, len).is_none() {
            return false;
        }
        let end = start + len;
        let mut at = start;
        while at < end {
            let stop = end.min((at & !(WINDOW - 1)) + WINDOW);
            let ends = (watched_alias(at), watched_alias(stop - PAGE_SIZE));
            let (Some(first), Some(last)) = ends else {
                return false;
            };
            let distance = first.0.wrapping_sub(at);
            if last.0.wrapping_sub(stop - PAGE_SIZE) != distance || !shadow::settle(at, distance) {
                return false;
            }
            if let Some(bits) = shadow::bits(at) {
                // (The surrounding memory holds bits of ours, too.)
                place::huge(bits as u64 - place::HUGE, (stop - at) / 8 + 2 * place::HUGE);
            }
            shadow::poison(at, stop - at);
            at = stop;
        }
        let stopped = self.world.stopped();
        self.edits
            .accesses
            .classes
            .classify_checked(stopped, start, end);
        true
    }
}

/// The function at `at`, if it is served.
pub(super) fn served(at: u64) -> Option<&'static Detour<JUMP>> {
    tables().edits.functions.at(at)
}

/// Serves the function at `at` from now on. `on` is where its calls continue instead of returning. Returns `false` if
/// there are too many functions, or if the code cannot be written.
pub(super) fn serve(stopped: &mut Stopped, at: u64, function: Function, on: Option<u64>) -> bool {
    let original = served(at).map_or_else(|| bytes(at).unwrap_or_default(), |f| f.original);
    let number = entries::add(at, function, on);
    number.is_some_and(|number| plant(stopped, number, at, original))
}

/// Writes the jump of the function at `at`, which has this number. Returns `false`, and does not serve it, if its code
/// cannot be written.
pub(super) fn plant(stopped: &mut Stopped, number: usize, at: u64, original: [u8; JUMP]) -> bool {
    let jump = entries::jump(number);
    let functions = &mut stopped.tables_mut().edits.functions;
    functions.insert(Detour {
        at,
        number,
        original,
        jump,
    });
    entries::keep(number, original);
    let is_there = text::write(stopped, at, &jump).is_ok();
    if !is_there {
        stopped.tables_mut().edits.functions.remove(at);
        entries::remove(at);
    }
    is_there
}

/// Takes out the jumps in `[start, end)` that are not in memory any more.
fn take_lost<const LEN: usize>(
    list: &mut List<Detour<LEN>>,
    start: u64,
    end: u64,
) -> Vec<Box<Detour<LEN>>> {
    let is_lost = |edit: &&Detour<LEN>| {
        let mut there = [0; LEN];
        text::read_raw(edit.at, &mut there) != LEN || there != edit.jump
    };
    let lost = list.within(start..end).filter(is_lost);
    let lost: Vec<u64> = lost.map(|edit| edit.at).collect();
    lost.into_iter().filter_map(|at| list.remove(at)).collect()
}

/// The alias of memory in which accesses are checked. `None`: it has no alias, or no bits. Only aliases in our own
/// place have bits, and that place may have been full.
pub(super) fn watched_alias(at: u64) -> Option<AliasAddr> {
    let entry = g().page_map.entry(TargetAddr(at));
    let watched = entry.guards(AccessKind::Read);
    let has_bits = |alias: &AliasAddr| place::memory().contains(&alias.0);
    entry
        .alias(TargetAddr(at))
        .filter(has_bits)
        .filter(|_| watched)
}

/// Returns whether the function begins with a jump to an image that an earlier stub has left.
fn is_anothers(at: u64, maps: &Snapshot) -> bool {
    let jump = bytes(at).filter(entries::is_jump);
    let to = jump.and_then(|jump| Some(u64::from_le_bytes(*jump.get(2..)?.first_chunk()?)));
    to.and_then(|to| maps.at(to))
        .is_some_and(|vma| vma.is_ours())
}

/// Address ranges of mapped files, with their zeroed data.
fn files_of(maps: &Snapshot) -> impl Iterator<Item = (u64, u64)> {
    let mut known = 0;
    maps.vmas.iter().enumerate().filter_map(move |(n, vma)| {
        let code = vma.prot & PROT_EXEC != 0 && vma.start >= known;
        let object = Object::at(n, maps).filter(|_| code)?;
        known = object.end;
        Some((object.start, object.end))
    })
}

/// The dynamic loader's own functions are for itself, until there are others.
fn is_loader(object: &Object) -> bool {
    const DT_SONAME: u64 = 14;
    const NAME: &[u8; 8] = b"ld-linux";
    let [texts, name] = object.dynamic([DT_STRTAB, DT_SONAME]);
    let at = texts
        .zip(name)
        .map(|(t, n)| object.loaded(t).wrapping_add(n));
    at.and_then(bytes::<8>) == Some(*NAME)
}

/// The functions that a library has chosen for copying (STT_GNU_IFUNC, R_X86_64_IRELATIVE): names and addresses.
/// `None`: not known yet.
fn settle(object: &Object, tables: &Tables, maps: &Snapshot) -> Option<Vec<Chosen>> {
    const IRELATIVE: u64 = 37;
    let names = COPIERS
        .into_iter()
        .chain(slots::COPIES.into_iter().map(|(name, _)| name));
    let mut names: Vec<&[u8]> = names.collect();
    names.sort_unstable();
    names.dedup();
    let choosers = names
        .iter()
        .filter_map(|name| Some((*name, tables.chooser(name)?)));
    let choosers: Vec<Chosen> = choosers.collect();
    if choosers.is_empty() {
        // (Else a plain one is what old programs are bound to.)
        let plain = names
            .iter()
            .filter_map(|name| Some((*name, tables.find(name)?.0)));
        return Some(plain.collect());
    }
    let (mut all, mut settled) = (Vec::<Chosen>::new(), false);
    for (slot, info, chooser) in slots::relocations(object) {
        let chooser = object.bias.wrapping_add(chooser);
        if info & 0xffff_ffff != IRELATIVE {
            continue;
        }
        for (name, _) in choosers.iter().filter(|(_, at)| *at == chooser) {
            let chosen = bytes(object.bias.wrapping_add(slot)).map(u64::from_le_bytes);
            let chosen = chosen.filter(|at| *at != chooser);
            let Some(function) = chosen.and_then(|at| functions::bounds(at, maps)) else {
                continue;
            };
            all.push((*name, function.0));
            if COPIERS.contains(name) {
                judge::add_copier(function);
                settled = true;
            }
        }
    }
    settled.then_some(all)
}
