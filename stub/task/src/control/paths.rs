//! Watches that follow pointers: `p->x` is watched wherever `p` points.
//!
//! ```text
//! 0x4040>8>16         the pointer at 0x4040 ─▶ 8 bytes behind, another ─▶ 16 bytes behind: the bytes
//! in the watchlist:   a part `Pointer`          a part `Pointer`           a part `End`
//! ```
//! Each pointer on the way is watched for stores, of which nobody hears. When one has changed, the way is gone again
//! here, with the world at rest, before the thread that changed it goes on, and with several threads before any other
//! sees the new value (`stub/handlers/src/paths.rs`). Where a pointer is NULL, or points to no memory, the way ends:
//! what is before it is still watched, and so it is gone on when that changes. So it is when mappings change.
//!
//! Pointers live on guarded pages, for a debug register tells of a store when it has been made; the bytes at the end
//! live where any watch may. The numbers of parts are used again and again, and what a watch counts and reports is its
//! own number's, which no part has.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::command::reply::CountedBytes;
use ulpf_lib::command::{MOST_PATHS, Path, Placement, Trace};
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::watches::{Absent, no_numbers, refusal};
use super::{Control, text, watch_table};
use crate::inferior::Refusal;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::paths;
use ulpf_stub_tables::attributes::{Attributes, Part};
use ulpf_stub_tables::filter::CountedFilter;

/// One watch that follows.
struct Along {
    id: WatchId,
    path: Path,
    len: u64,
    kind: WatchKind,
    attributes: Attributes,
    off: bool,
    /// Its user has been told that it is set.
    set: bool,
    /// Where its way leads, as far as it can be watched, and the numbers of its parts.
    trace: Trace,
    pointers: Vec<WatchId>,
    end: Option<WatchId>,
    /// What the user has been told last of a place that cannot be watched.
    told: String,
}

#[derive(Default)]
pub struct Paths {
    all: Vec<Along>,
    /// Numbers of parts that are no more; those that `leave` are so from the next commit on.
    spare: Vec<WatchId>,
    leave: Vec<WatchId>,
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

    /// Those that are exactly there now.
    pub fn at(&self, range: WatchRange) -> Vec<WatchId> {
        let there = self.all.iter().filter(|w| w.trace.end == Some(range));
        there.map(|w| w.id).collect()
    }

    pub fn len_of(&self, id: WatchId) -> Option<u64> {
        self.find(id).map(|w| w.len)
    }

    /// The watches, and where they are.
    pub fn list(&self) -> impl Iterator<Item = (WatchId, CountedBytes, WatchKind)> + '_ {
        self.all.iter().map(|w| {
            let bytes = CountedBytes::Along {
                start: w.trace.end.map_or(0, |end| end.start.0),
                len: w.len,
                moved: g().counters(w.id).map_or(0, |n| n.moved.load(Relaxed)),
            };
            (w.id, bytes, w.kind)
        })
    }

    /// The pages of all pointers on the way.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        let pointers = self.all.iter().flat_map(|w| &w.trace.pointers);
        pointers.flat_map(|p| [p.start.page().0, TargetAddr(p.end().0 - 1).page().0])
    }

    /// What has left the watchlist, has left.
    pub fn committed(&mut self) {
        self.spare.append(&mut self.leave);
    }
}

impl Control {
    /// Sets a watch on `len` bytes at the end of a path.
    pub fn watch_path(
        &mut self,
        path: Path,
        len: u64,
        kind: WatchKind,
        attributes: Attributes,
    ) -> Result<WatchId, Refusal> {
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
        let first = path.trace(len, |_| None).pointers;
        match first.first() {
            Some(first) => {
                self.check(*first, WatchKind::Write, Placement::Guard, Absent::Refused)?
            }
            None => return refused("no program has memory there".into(), "check the address"),
        };
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
            pointers: Vec::new(),
            end: None,
            told: String::new(),
        };
        if let Some(why) = self.trace_path(&mut watch) {
            self.let_path_go(&mut watch);
            return Err(why);
        }
        if watch.end.is_none() {
            watch_table::moved(id, len, kind, None);
        }
        if let Some(n) = g().counters(id) {
            n.moved.store(0, Relaxed);
        }
        watch.set = true;
        self.paths.all.push(watch);
        paths::exist(true);
        Ok(id)
    }

    /// Takes one away; where it was. `None`: there is none with this number.
    pub fn unwatch_path(&mut self, id: WatchId) -> Option<(u64, u64)> {
        let at = self.paths.all.iter().position(|w| w.id == id)?;
        let mut watch = self.paths.all.remove(at);
        let start = watch.trace.end.map_or(0, |end| end.start.0);
        self.let_path_go(&mut watch);
        watch_table::ended(id);
        paths::exist(!self.paths.all.is_empty());
        Some((start, watch.len))
    }

    /// All of them: what they were made of is gone already.
    pub fn forget_paths(&mut self) {
        let all = core::mem::take(&mut self.paths);
        all.all.iter().for_each(|w| watch_table::ended(w.id));
        paths::exist(false);
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
                    self.trace_or_tell(&mut watch);
                }
                false => {
                    self.let_path_go(&mut watch);
                    watch_table::off(id);
                }
            }
        }
        self.paths.all.insert(at, watch);
    }

    pub fn filter_path(&mut self, id: WatchId, filter: Option<Arc<CountedFilter>>) {
        let Some(w) = self.paths.all.iter_mut().find(|w| w.id == id) else {
            return;
        };
        w.attributes.filter = filter;
        let (end, a) = (w.end, w.attributes.clone());
        self.set_attributes(id, a.clone());
        if let Some(end) = end {
            let placement = g().attributes(end).placement;
            let a = Attributes { placement, ..a };
            self.set_attributes(end, part(id, Part::End, a));
        }
    }

    /// If a pointer has changed, the watches are where it leads from the next commit on.
    pub fn trace_paths(&mut self) {
        if !paths::take_changed() {
            return;
        }
        let mut all = core::mem::take(&mut self.paths.all);
        for watch in all.iter_mut().filter(|w| !w.off) {
            self.trace_or_tell(watch);
        }
        self.paths.all = all;
    }

    /// The same, at once.
    pub fn retrace(&mut self) {
        if paths::has_changed() {
            self.commit_watches();
        }
    }

    fn trace_or_tell(&mut self, watch: &mut Along) {
        let Some(why) = self.trace_path(watch) else {
            watch.told.clear();
            return;
        };
        let text = alloc::format!(
            "ulpf: watch {} has lost its way: {}: {}; {}\n",
            watch.id.0,
            why.what,
            why.why,
            why.what_to_do
        );
        if text != watch.told {
            self.warn(&text);
            watch.told = text;
        }
    }

    /// Goes the way of one; why it cannot be watched to its end.
    fn trace_path(&mut self, w: &mut Along) -> Option<Refusal> {
        let now = w.path.trace(w.len, pointer_at);
        if now == w.trace {
            return None;
        }
        let was = w.trace.end;
        let both = w.trace.pointers.iter().zip(&now.pointers);
        let same = both.take_while(|(was, is)| was == is).count();
        for id in w.pointers.drain(same..) {
            self.let_part_go(id);
        }
        w.trace.pointers.truncate(same);
        let moves = w.trace.end != now.end;
        if moves && let Some(id) = w.end.take() {
            self.let_part_go(id);
            w.trace.end = None;
        }
        let pointer = Attributes {
            placement: Placement::Guard,
            out_of_band: true,
            ..Attributes::default()
        };
        let mut refused = None;
        for range in now.pointers.into_iter().skip(same) {
            let a = part(w.id, Part::Pointer, pointer.clone());
            match self.add_part(range, WatchKind::Write, a) {
                Ok(id) => {
                    w.pointers.push(id);
                    w.trace.pointers.push(range);
                }
                Err(why) => {
                    refused = Some(why);
                    break;
                }
            }
        }
        if moves
            && refused.is_none()
            && let Some(range) = now.end
        {
            let mut a = part(w.id, Part::End, w.attributes.clone());
            // What was set in a register goes on without one where it has come to what a register cannot hold.
            if w.set
                && a.placement == Placement::Register
                && self.check_register(range, w.kind).is_err()
            {
                a.placement = Placement::Guard;
            }
            match self.add_part(range, w.kind, a) {
                Ok(id) => (w.end, w.trace.end) = (Some(id), Some(range)),
                Err(why) => refused = Some(why),
            }
        }
        if was != w.trace.end {
            watch_table::moved(w.id, w.len, w.kind, w.trace.end);
        }
        refused
    }

    fn add_part(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        a: Attributes,
    ) -> Result<WatchId, Refusal> {
        let register = a.placement == Placement::Register;
        self.check(range, kind, a.placement, Absent::Awaited)?;
        let spare = self.paths.spare.pop();
        let spare = spare.filter(|id| self.staged.insert_again(*id, range, kind));
        let id = spare
            .or_else(|| self.staged.insert_new(range, kind))
            .ok_or_else(no_numbers)?;
        self.set_attributes(id, a);
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
        for id in w.pointers.drain(..).chain(w.end.take()) {
            self.let_part_go(id);
        }
        w.trace = Trace::default();
    }
}

/// What a part of this watch does at a hit.
fn part(of: WatchId, part: Part, a: Attributes) -> Attributes {
    Attributes {
        group: Some(of),
        part,
        ..a
    }
}

fn pointer_at(addr: u64) -> Option<u64> {
    let mut bytes = [0u8; 8];
    (text::read(addr, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}
