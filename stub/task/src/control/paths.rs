//! Watches that follow pointers: `p->x` is watched wherever `p` points, `list->*next.refs` in each node that there is.
//!
//! ```text
//!     0x4040>8>16         the pointer at 0x4040 ─▶ 8 bytes behind, another ─▶ 16 bytes behind: the bytes
//!     in the watchlist:   a part `Pointer`          a part `Pointer`           a part `End`
//!     0x4040@list,8,4     the pointer at 0x4040 ─▶ a node, its link ─▶ a node, its link …
//!     in the watchlist:   a part `Pointer`          `End`,  `Pointer`   `End`,  `Pointer`
//!     0x1149@frames,-20   20 bytes below the caller's frame, in each reported frame of the function.
//!     in the watchlist:   `End`, `End` …            The debugger reports a frame at the function's first instruction.
//!     0x0@threads,-4      4 bytes below each thread's pointer to its own data (its fs base); threads report their
//!     in the watchlist:   `End`, `End` …            beginning and their end
//! ```
//! Each pointer on the path, and every other word that decides where it leads, is watched for stores that are not
//! reported. When one changes, the path is resolved again here, with the world stopped, before the thread that changed
//! it goes on. With several threads, that is before any other thread sees the new value (`stub/handlers/src/paths.rs`).
//! Unchanged words are not read again, and parts that stay keep their numbers. Where a pointer is NULL, or points to
//! unmapped memory, the path ends. The pointers before that are still watched, so the path is resolved again when they
//! change. The same happens when mappings change.
//!
//! Pointers are always watched by guarded pages, because a debug register reports a store only after it was made. The
//! bytes at the end may be watched in either way. Numbers of parts are reused. A watch counts and reports under its own
//! number, which no part has.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::command::reply::CountedBytes;
use ulpf_lib::command::{MOST_PATHS, Path, Placement, Run, State, Trace, Word};
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::watches::{IfUnmapped, no_numbers, refusal};
use super::{Control, text, watch_table};
use crate::inferior::Refusal;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::paths;
use ulpf_stub_handlers::runtime::thread::Thread;
use ulpf_stub_tables::attributes::{Attributes, Part};
use ulpf_stub_tables::filter::CountedFilter;

/// One watch that follows pointers.
struct Along {
    id: WatchId,
    path: Path,
    len: u64,
    kind: WatchKind,
    attributes: Attributes,
    off: bool,
    /// The user knows that it is set.
    set: bool,
    /// The resolved path, as far as it can be watched, and the numbers of its parts.
    trace: Trace,
    words: Vec<WatchId>,
    runs: Vec<WatchId>,
    /// The last message to the user about a place that cannot be watched.
    warned: String,
}

#[derive(Default)]
pub struct Paths {
    all: Vec<Along>,
    /// Numbers of ended parts; those in `leave` join `spare` at the next commit.
    spare: Vec<WatchId>,
    leave: Vec<WatchId>,
}

impl Along {
    /// The first byte of the first place, or 0 if there is no place.
    fn start(&self) -> u64 {
        self.trace.runs.first().map_or(0, |run| run.range.start.0)
    }
}

impl Paths {
    fn find(&self, id: WatchId) -> Option<&Along> {
        self.all.iter().find(|w| w.id == id)
    }

    pub fn has(&self, id: WatchId) -> bool {
        self.find(id).is_some()
    }

    pub fn is_off(&self, id: WatchId) -> bool {
        self.find(id).is_some_and(|w| w.off)
    }

    /// Watches that are at exactly `range` now.
    pub fn at(&self, range: WatchRange) -> Vec<WatchId> {
        let is = |run: &Run| run.range == range;
        let there = self.all.iter().filter(|w| w.trace.runs.iter().any(is));
        there.map(|w| w.id).collect()
    }

    pub fn len_of(&self, id: WatchId) -> Option<u64> {
        self.find(id).map(|w| w.len)
    }

    /// The watches, and where they are.
    pub fn list(&self) -> impl Iterator<Item = (WatchId, CountedBytes, WatchKind)> + '_ {
        self.all.iter().map(|w| {
            let bytes = CountedBytes::Along {
                start: w.start(),
                len: w.len,
                moved: g().counters(w.id).map_or(0, |n| n.moved.load(Relaxed)),
            };
            (w.id, bytes, w.kind)
        })
    }

    /// The pages of all pointers on the path.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.all.iter().flat_map(|w| &w.trace.words);
        let ranges = words.map(|word| word.range);
        ranges.flat_map(|r| [r.start.page().0, TargetAddr(r.end().0 - 1).page().0])
    }

    /// After a commit: the parts in `leave` are out of the watchlist.
    pub fn committed(&mut self) {
        self.spare.append(&mut self.leave);
    }
}

impl Control {
    /// Sets a watch on `len` bytes at the end of a path.
    pub fn watch_path(
        &mut self,
        mut path: Path,
        len: u64,
        kind: WatchKind,
        attributes: Attributes,
    ) -> Result<WatchId, Refusal> {
        if path.is_of_threads() {
            path.set_threads(&pointers_of_threads(None));
        }
        let refused = |why: String, what_to_do: &str| {
            let what = alloc::format!("cannot follow pointers from {}", TargetAddr(path.base()));
            Err(refusal(what, why, what_to_do.into()))
        };
        if self.paths.all.len() >= MOST_PATHS {
            return refused(
                alloc::format!("{MOST_PATHS} watches follow pointers already, which is the most"),
                "take some away, or watch where it points now (snapshot)",
            );
        }
        let begins = path.trace(len, &Trace::default(), None, number_at);
        match begins.words.first() {
            // It has no frame yet; threads have data of their own, or will have.
            _ if path.function().is_some() || path.is_of_threads() => {}
            Some(first) => {
                let first = first.range;
                self.check(
                    first,
                    WatchKind::Write,
                    Placement::Guard,
                    IfUnmapped::Refuse,
                )?;
            }
            None => return refused("no program has memory there".into(), "check the address"),
        };
        if begins.more {
            return Err(too_many(&path));
        }
        let id = self.staged.reserve().ok_or_else(no_numbers)?;
        self.set_attributes(id, attributes.clone());
        let mut watch = Along {
            id,
            path,
            len,
            kind,
            attributes,
            off: false,
            set: false,
            trace: Trace::default(),
            words: Vec::new(),
            runs: Vec::new(),
            warned: String::new(),
        };
        if let Some(why) = self.trace_path(&mut watch, None) {
            self.let_path_go(&mut watch);
            return Err(why);
        }
        if watch.runs.is_empty() {
            watch_table::moved(id, len, kind, None);
        }
        if let Some(n) = g().counters(id) {
            n.moved.store(0, Relaxed);
        }
        watch.set = true;
        self.paths.all.push(watch);
        self.paths_exist();
        Ok(id)
    }

    /// Removes a watch, and returns where it was. `None`: no watch has this number.
    pub fn unwatch_path(&mut self, id: WatchId) -> Option<(u64, u64)> {
        let at = self.paths.all.iter().position(|w| w.id == id)?;
        let mut watch = self.paths.all.remove(at);
        let start = watch.start();
        self.let_path_go(&mut watch);
        watch_table::ended(id);
        self.paths_exist();
        Some((start, watch.len))
    }

    /// Removes all of them; their parts are already gone.
    pub fn forget_paths(&mut self) {
        let all = core::mem::take(&mut self.paths);
        all.all.iter().for_each(|w| watch_table::ended(w.id));
        self.paths_exist();
    }

    fn paths_exist(&self) {
        paths::exist(!self.paths.all.is_empty());
        paths::set_of_threads(self.paths.all.iter().any(|w| w.path.is_of_threads()));
    }

    /// A thread has begun, or is about to end: moves the watches on each thread's own data.
    pub fn follow_threads(&mut self, leaves: Option<&Thread>) {
        if !paths::of_threads() {
            return;
        }
        let pointers = pointers_of_threads(leaves);
        let mut all = core::mem::take(&mut self.paths.all);
        for watch in all.iter_mut().filter(|w| w.path.is_of_threads()) {
            watch.path.set_threads(&pointers);
            if !watch.off {
                self.trace_or_tell(watch, Some(&[]));
            }
        }
        self.paths.all = all;
        self.commit_watches();
    }

    pub fn switch_path(&mut self, id: WatchId, on: bool) {
        let Some(at) = self.paths.all.iter().position(|w| w.id == id) else {
            return;
        };
        let mut watch = self.paths.all.remove(at);
        if watch.off == on {
            watch.off = !on;
            match on {
                true => {
                    watch_table::moved(id, watch.len, watch.kind, None);
                    self.trace_or_tell(&mut watch, None);
                }
                false => {
                    self.let_path_go(&mut watch);
                    watch_table::off(id);
                }
            }
        }
        self.paths.all.insert(at, watch);
    }

    /// The function whose locals a watch follows was entered or has returned. `false`: no watch with this number
    /// follows frames, or the frame is not one of its function's.
    pub fn frame_of_path(&mut self, id: WatchId, at: u64, begins: bool) -> bool {
        let follows = |w: &Along| w.id == id && w.path.function().is_some();
        let Some(n) = self.paths.all.iter().position(follows) else {
            return false;
        };
        let mut watch = self.paths.all.remove(n);
        let known = match begins {
            true => {
                watch.path.begin_frame(at);
                true
            }
            false => watch.path.end_frame(at),
        };
        if !watch.off {
            self.trace_or_tell(&mut watch, Some(&[]));
        }
        self.paths.all.insert(n, watch);
        known
    }

    pub fn filter_path(&mut self, id: WatchId, filter: Option<Arc<CountedFilter>>) {
        let Some(w) = self.paths.all.iter_mut().find(|w| w.id == id) else {
            return;
        };
        w.attributes.filter = filter;
        let (runs, a) = (w.runs.clone(), w.attributes.clone());
        self.set_attributes(id, a.clone());
        for end in runs {
            let placement = g().attributes(end).placement;
            let a = Attributes {
                placement,
                ..a.clone()
            };
            self.set_attributes(end, part(id, Part::End, a));
        }
    }

    /// If a pointer has changed, resolves its paths again; the watches move at the next commit.
    pub fn trace_paths(&mut self) {
        let Some(changed) = paths::take_changed() else {
            return;
        };
        let mut all = core::mem::take(&mut self.paths.all);
        for watch in all.iter_mut().filter(|w| !w.off) {
            self.trace_or_tell(watch, changed.pointers());
        }
        let given_back = |word: &Word| word.state == State::GivenBack;
        paths::set_given_back(all.iter().any(|w| w.trace.words.iter().any(given_back)));
        self.paths.all = all;
    }

    /// The same, at once.
    pub fn retrace(&mut self) {
        if paths::has_changed() {
            self.commit_watches();
        }
    }

    /// `changed`: the pointers that may have; `None`: any of them.
    fn trace_or_tell(&mut self, watch: &mut Along, changed: Option<&[u64]>) {
        let why = self.trace_path(watch, changed);
        let why = why.or_else(|| watch.trace.more.then(|| too_many(&watch.path)));
        let Some(why) = why else {
            watch.warned.clear();
            return;
        };
        let lost = match watch.trace.more {
            true => "does not follow to the end",
            false => "has lost its way",
        };
        let text = alloc::format!(
            "ulpf: watch {} {lost}: {}: {}; {}\n",
            watch.id.0,
            why.what,
            why.why,
            why.what_to_do
        );
        if text != watch.warned {
            self.warn(&text);
            watch.warned = text;
        }
    }

    /// Resolves the path of one watch. Returns why it cannot be watched to its end.
    fn trace_path(&mut self, w: &mut Along, changed: Option<&[u64]>) -> Option<Refusal> {
        let mut now = w.path.trace(w.len, &w.trace, changed, number_at);
        if now == w.trace {
            return None;
        }
        let was = core::mem::replace(
            &mut w.trace,
            Trace {
                more: now.more,
                nodes: core::mem::take(&mut now.nodes),
                ..Trace::default()
            },
        );
        let (words, runs) = (core::mem::take(&mut w.words), core::mem::take(&mut w.runs));
        let same_words = same(
            was.words.iter().map(|word| word.range),
            now.words.iter().map(|word| word.range),
        );
        let same_runs = same(
            was.runs.iter().map(|run| run.range),
            now.runs.iter().map(|run| run.range),
        );
        // Parts that end go first, so that their numbers and registers are free for new ones.
        for id in gone(&words, &same_words).chain(gone(&runs, &same_runs)) {
            self.let_part_go(id);
        }
        let refused = self.add_words(w, &now.words, &words, &same_words);
        let refused = self.add_runs(w, &now.runs, (&runs, &was.runs), &same_runs, refused);
        if was.runs != w.trace.runs {
            watch_table::moved(w.id, w.len, w.kind, w.trace.runs.first().map(|r| r.range));
        }
        refused
    }

    /// The words on the path; words that were there before keep their part.
    fn add_words(
        &mut self,
        w: &mut Along,
        now: &[Word],
        were: &[WatchId],
        same: &[Option<usize>],
    ) -> Option<Refusal> {
        let pointer = Attributes {
            placement: Placement::Guard,
            out_of_band: true,
            ..Attributes::default()
        };
        let mut refused = None;
        for (word, before) in now.iter().zip(same) {
            let known = before.and_then(|n| were.get(n).copied());
            let id = match known {
                Some(id) => id,
                None if refused.is_some() => continue,
                None => {
                    let a = part(w.id, Part::Pointer, pointer.clone());
                    match self.add_part(word.range, WatchKind::Write, a) {
                        Ok(id) => id,
                        Err(why) => {
                            refused = Some(why);
                            continue;
                        }
                    }
                }
            };
            w.words.push(id);
            w.trace.words.push(*word);
        }
        refused
    }

    /// The bytes at the end. After a `refused` word on the path, no more are added.
    fn add_runs(
        &mut self,
        w: &mut Along,
        now: &[Run],
        (were, was): (&[WatchId], &[Run]),
        same: &[Option<usize>],
        mut refused: Option<Refusal>,
    ) -> Option<Refusal> {
        for (run, before) in now.iter().zip(same) {
            let known = before.and_then(|n| Some((were.get(n).copied()?, was.get(n)?.first)));
            let (id, first) = match known {
                Some((id, first)) => (id, Some(first)),
                None if refused.is_some() => continue,
                None => match self.add_end(w, run.range) {
                    Ok(id) => (id, None),
                    Err(why) => {
                        refused = Some(why);
                        continue;
                    }
                },
            };
            if first != Some(run.first) {
                let before = run.first.wrapping_sub(w.path.first()).wrapping_mul(w.len);
                let watches = &mut self.world.stopped().tables_mut().watches;
                watches.set_before(id, before);
            }
            w.runs.push(id);
            w.trace.runs.push(*run);
        }
        refused
    }

    fn add_end(&mut self, w: &Along, range: WatchRange) -> Result<WatchId, Refusal> {
        let mut a = part(w.id, Part::End, w.attributes.clone());
        // A watch that was set in a register continues without one where its bytes no longer fit a register.
        if w.set
            && a.placement == Placement::Register
            && self.check_register(range, w.kind).is_err()
        {
            a.placement = Placement::Guard;
        }
        self.add_part(range, w.kind, a)
    }

    fn add_part(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        a: Attributes,
    ) -> Result<WatchId, Refusal> {
        // (A lazy static points to code before its first use.)
        let wanted = (a.placement, false);
        let (placement, _) = self.possible(range, kind, wanted, IfUnmapped::Await)?;
        let register = placement == Placement::Register;
        let spare = self.paths.spare.pop();
        let spare = spare.filter(|id| self.staged.insert_again(*id, range, kind));
        let id = spare
            .or_else(|| self.staged.insert_new(range, kind))
            .ok_or_else(no_numbers)?;
        self.set_first_attributes(id, a);
        if register {
            self.force_register(id);
        }
        Ok(id)
    }

    fn let_part_go(&mut self, id: WatchId) {
        self.staged.remove_id(id);
        self.paths.leave.push(id);
    }

    fn let_path_go(&mut self, w: &mut Along) {
        for id in w.words.drain(..).chain(w.runs.drain(..)) {
            self.let_part_go(id);
        }
        w.trace = Trace::default();
    }
}

/// Addresses of the threads' own data, without the thread that is about to end. The threads are stopped.
fn pointers_of_threads(leaves: Option<&Thread>) -> Vec<u64> {
    let mut pointers: Vec<u64> = Vec::new();
    for t in g()
        .threads
        .iter()
        .filter(|t| t.is_programs() && t.is_stopped())
    {
        let pointer = t.fs_base.load(Relaxed);
        let stays = leaves.is_none_or(|leaving| !core::ptr::eq(leaving, t));
        if stays && pointer != 0 && !pointers.contains(&pointer) {
            pointers.push(pointer);
        }
    }
    pointers
}

/// Attributes of a part of this watch.
fn part(of: WatchId, part: Part, a: Attributes) -> Attributes {
    Attributes {
        group: Some(of),
        part,
        ..a
    }
}

fn number_at(addr: u64, size: u64) -> Option<u64> {
    let mut bytes = [0u8; 8];
    let there = bytes.get_mut(..size as usize)?;
    let whole = text::read(addr, there) == there.len();
    whole.then_some(u64::from_le_bytes(bytes))
}

fn too_many(path: &Path) -> Refusal {
    Refusal::new(
        alloc::format!("cannot follow all from {}", TargetAddr(path.base())),
        alloc::format!(
            "it leads to more than {} places, of which no more are followed",
            path.most()
        ),
        "name fewer elements, or say `most N` behind the watch",
    )
}

/// For each present range, the index of the same range before. Most ranges keep their order.
fn same(
    was: impl Iterator<Item = WatchRange>,
    now: impl Iterator<Item = WatchRange>,
) -> Vec<Option<usize>> {
    /// Number of vanished ranges that are skipped.
    const AHEAD: usize = 4;
    let key = |r: WatchRange| (r.start.0, r.len);
    let was: Vec<_> = was.map(key).collect();
    let now: Vec<_> = now.map(key).collect();
    let (mut found, mut at) = (Vec::with_capacity(now.len()), 0);
    let mut used = alloc::vec![false; was.len()];
    for one in &now {
        let near = was.get(at..(at + AHEAD).min(was.len())).unwrap_or(&[]);
        let n = near.iter().position(|other| other == one).map(|n| at + n);
        if let Some(n) = n {
            at = n + 1;
            if let Some(used) = used.get_mut(n) {
                *used = true;
            }
        }
        found.push(n);
    }
    if found.iter().all(Option::is_some) {
        return found;
    }
    let unused = was.iter().zip(used).enumerate();
    let mut rest: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (n, (one, _)) in unused.filter(|(_, (_, used))| !used) {
        rest.entry(*one).or_default().push(n);
    }
    for (one, n) in now.iter().zip(&mut found).filter(|(_, n)| n.is_none()) {
        *n = rest.get_mut(one).and_then(Vec::pop);
    }
    found
}

/// Parts that no longer exist.
fn gone(ids: &[WatchId], same: &[Option<usize>]) -> impl Iterator<Item = WatchId> {
    let mut stay = alloc::vec![false; ids.len()];
    for n in same.iter().flatten() {
        if let Some(stays) = stay.get_mut(*n) {
            *stays = true;
        }
    }
    let all: Vec<WatchId> = ids.to_vec();
    let ids = all.into_iter().zip(stay);
    ids.filter(|(_, stays)| !stays).map(|(id, _)| id)
}
