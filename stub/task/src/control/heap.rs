//! Watches on the whole heap: ranges that come and go as the program allocates and frees memory.
//!
//! The heap is what the program has from brk(2) and from private anonymous mappings: malloc's arenas and
//! large blocks, a collector's pages, a runtime's own. Stacks, thread descriptors, code and the data of
//! executable and libraries are not part of it. Each stretch is a watch of its own in the watchlist, and
//! all of them are reported under the number of the watch that the user has set.
//!
//! A thread whose system call changes the heap leaves what it did in `Own::mapped` and asks; it goes on
//! when the watches have followed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::guard::{HeapAndData, ThreadMemory};
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::parked::{self, Parked};
use super::{Control, ranges, text};
use crate::inferior::Refusal;
use ulpf_lib::command::Placement;
use ulpf_stub_handlers::check::entries;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::runtime::mapped::{CHANGES, Mapped};
use ulpf_stub_handlers::runtime::thread::Thread;
use ulpf_stub_tables::attributes::Attributes;
use ulpf_stub_tables::filter::CountedFilter;

/// One watch on the heap, as the user has set it.
struct HeapWatch {
    id: WatchId,
    kind: WatchKind,
    attributes: Attributes,
    /// Static data that it covers beside the heap, ascending.
    data: Vec<(u64, u64)>,
    /// The watches in force, for the stretches of `Heap::parts` and `data`.
    members: Vec<((u64, u64), WatchId)>,
}

#[derive(Default)]
pub struct Heap {
    /// Ascending and disjoint; stretches that touch are one.
    parts: Vec<(u64, u64)>,
    watches: Vec<HeapWatch>,
}

impl Heap {
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.1 - p.0).sum()
    }

    /// The watches on it that the user has set.
    pub fn list(&self) -> impl Iterator<Item = (WatchId, WatchKind)> + '_ {
        let set = self.watches.iter().filter(|w| !w.attributes.writers);
        set.map(|w| (w.id, w.kind))
    }

    /// Whether one of them records last writers.
    pub fn records_writers(&self) -> bool {
        self.watches.iter().any(|w| w.attributes.writers)
    }

    /// Whether one of them records the last writer of this byte.
    pub fn records(&self, addr: u64) -> bool {
        let recording = self.watches.iter().filter(|w| w.attributes.writers);
        let mut members = recording.flat_map(|w| &w.members);
        members.any(|((start, end), _)| (*start..*end).contains(&addr))
    }

    fn meets(&self, r: (u64, u64)) -> bool {
        self.parts.iter().any(|p| p.0 < r.1 && r.0 < p.1)
    }

    fn cut(&mut self, r: (u64, u64)) {
        if r.0 >= r.1 || !self.meets(r) {
            return;
        }
        self.parts = ranges::outside(&self.parts, &[r]);
    }

    fn add(&mut self, r: (u64, u64)) {
        if r.0 >= r.1 {
            return;
        }
        let mut parts = core::mem::take(&mut self.parts);
        parts.push(r);
        self.parts = ranges::joined(parts);
    }
}

impl Control {
    /// Sets a watch on the whole heap; its number, and the bytes that the heap has now.
    pub fn watch_heap(
        &mut self,
        kind: WatchKind,
        attributes: Attributes,
    ) -> Result<(WatchId, u64), Refusal> {
        let id = self.watch_heap_and(kind, attributes, false)?;
        Ok((id, self.heap.bytes()))
    }

    /// As [`Control::watch_heap`]; `data`: and on the data of executable and libraries.
    pub fn watch_heap_and(
        &mut self,
        kind: WatchKind,
        attributes: Attributes,
        data: bool,
    ) -> Result<WatchId, Refusal> {
        let mut static_data = Vec::new();
        if self.heap.watches.is_empty() || data {
            let found = self.find_heap()?;
            self.heap.parts = found.heap;
            if data {
                static_data = found.data;
            }
        }
        let id = self
            .staged
            .reserve()
            .ok_or_else(super::watches::no_numbers)?;
        self.heap.watches.push(HeapWatch {
            id,
            kind,
            attributes: attributes.clone(),
            data: static_data,
            members: Vec::new(),
        });
        g().heap_watched.store(true, SeqCst);
        self.set_attributes(id, attributes);
        self.spread_heap_watches(true);
        Ok(id)
    }

    fn find_heap(&mut self) -> Result<HeapAndData, Refusal> {
        let first = g().pid.load(Relaxed);
        let stopped = g().threads.iter().filter(|t| t.is_stopped());
        let threads: Vec<ThreadMemory> = stopped
            .map(|t| ThreadMemory {
                is_first: t.tid() == first,
                stack_pointer: parked::frame(t, self.world.stopped()).map_or(0, |c| c.gprs.rsp),
                ..thread_memory(t.fs_base.load(Relaxed))
            })
            .collect();
        let end = g().brk.load(Relaxed).next_multiple_of(4096);
        let brk = (start_brk().unwrap_or(end), end);
        if !entries::ON.load(SeqCst) {
            self.exclude_remains();
        }
        self.world.stopped().guards().heap(brk, &threads)
    }

    /// Removes a watch on the heap. `false`: no such watch.
    pub fn unwatch_heap(&mut self, id: WatchId) -> bool {
        let Some(at) = self.heap.watches.iter().position(|w| w.id == id) else {
            return false;
        };
        for (_, member) in self.heap.watches.remove(at).members {
            self.staged.remove_id(member);
        }
        g().heap_watched
            .store(!self.heap.watches.is_empty(), SeqCst);
        true
    }

    pub fn filter_heap(&mut self, id: WatchId, filter: Option<Arc<CountedFilter>>) {
        let watch = self.heap.watches.iter_mut().find(|w| w.id == id);
        if let Some(w) = watch {
            w.attributes.filter = filter;
            let attributes = w.attributes.clone();
            self.set_attributes(id, attributes);
            self.spread_heap_watches(true);
        }
    }

    /// A thread's system call has changed the heap.
    pub fn follow_heap(&mut self, t: &Thread) {
        let m = Parked::of(t).map(|t| t.take_mapped()).unwrap_or_default();
        if m == Mapped::default() || self.heap.watches.is_empty() {
            return;
        }
        let come = m.only_if.0 == m.only_if.1 || self.heap.meets(m.only_if);
        self.heap.cut(m.gone);
        for w in self.heap.watches.iter_mut().filter(|w| !w.data.is_empty()) {
            w.data = ranges::outside(&w.data, &[m.gone]);
        }
        if come {
            self.heap.add(m.come);
        }
        self.spread_heap_watches(false);
        let fresh = m.fresh != 0 && m.fresh == CHANGES.load(SeqCst);
        self.world
            .stopped()
            .guards()
            .has_mapped(fresh.then_some(m.come));
        self.commit_watches();
        self.world.stopped().guards().has_mapped(None);
        if come && patches::ENABLED.load(SeqCst) {
            let classes = &mut self.edits.accesses.classes;
            classes.expect(self.world.stopped(), m.come);
        }
    }

    /// Makes the watches in the list those of the heap's stretches. With `anew`, attributes for their hits have
    /// changed.
    fn spread_heap_watches(&mut self, anew: bool) {
        for n in 0..self.heap.watches.len() {
            let Some(w) = self.heap.watches.get_mut(n) else {
                return;
            };
            let (kind, attributes) = (
                w.kind,
                Attributes {
                    group: Some(w.id),
                    placement: Placement::Guard,
                    ..w.attributes.clone()
                },
            );
            let mut members = core::mem::take(&mut w.members);
            let mut parts = self.heap.parts.clone();
            parts.extend_from_slice(&w.data);
            parts.sort_unstable();
            members.retain(|&(part, id)| {
                let stays = parts.binary_search(&part).is_ok();
                if !stays {
                    self.staged.remove_id(id);
                }
                stays
            });
            for part in parts {
                let Err(at) = members.binary_search_by_key(&part, |m| m.0) else {
                    continue;
                };
                let range = WatchRange::new(TargetAddr(part.0), part.1 - part.0);
                if let Some(id) = range.and_then(|r| self.staged.insert(r, kind)) {
                    members.insert(at, (part, id));
                }
            }
            let ids: Vec<WatchId> = members.iter().map(|m| m.1).collect();
            if let Some(w) = self.heap.watches.get_mut(n) {
                w.members = members;
            }
            let fresh = self.staged.first_new();
            for id in ids {
                if id.0 >= fresh {
                    self.set_first_attributes(id, attributes.clone());
                } else if anew || g().attributes(id).group != attributes.group {
                    self.set_attributes(id, attributes.clone());
                }
            }
        }
    }
}

/// Least size of glibc's descriptor of a thread, `struct pthread`, in bytes.
const DESCRIPTOR: u64 = 0x900;

fn thread_memory(fs_base: u64) -> ThreadMemory {
    let stack = thread_stack(fs_base);
    let (stack, end) = stack.unwrap_or((0, fs_base.saturating_add(DESCRIPTOR)));
    ThreadMemory {
        is_first: false,
        stack_pointer: 0,
        data: (thread_data(fs_base), end),
        stack,
    }
}

/// The stack of a thread that is not the first one, with its descriptor at the end. Some two words of the descriptor are its
/// address and size (glibc: `stackblock`, musl: `map_base`); their place depends on the version.
fn thread_stack(fs_base: u64) -> Option<(u64, u64)> {
    let mut bytes = [0; DESCRIPTOR as usize];
    let there = text::read(fs_base, &mut bytes);
    let (words, _) = bytes.get(..there)?.as_chunks::<8>();
    stack_in(fs_base, words)
}

/// The stack that the descriptor at `fs_base` names.
fn stack_in(fs_base: u64, descriptor: &[[u8; 8]]) -> Option<(u64, u64)> {
    /// PTHREAD_STACK_MIN.
    const LEAST: u64 = 16 << 10;
    /// Less than musl's.
    const LEAST_DESCRIPTOR: u64 = 0x80;
    let ends = fs_base + LEAST_DESCRIPTOR..=fs_base + 4 * DESCRIPTOR;
    let pairs = descriptor.windows(2).filter_map(|pair| match pair {
        [start, len] => Some((u64::from_le_bytes(*start), u64::from_le_bytes(*len))),
        _ => None,
    });
    // (Not a thread ID before a pointer into the descriptor.)
    let blocks = pairs.filter(|(start, len)| *start >= LEAST && (LEAST..fs_base).contains(len));
    let mut blocks = blocks.map(|(start, len)| (start, start.saturating_add(len)));
    blocks.find(|(start, end)| *start < fs_base && ends.contains(end))
}

/// Where a thread's static thread-local variables begin, which lie before its descriptor. Its vector of blocks of them says
/// so, in the form of its C library.
fn thread_data(fs_base: u64) -> u64 {
    const MOST: u64 = 4096;
    let field = |n: u64| text::word(fs_base + 8 * n);
    let (Some(myself), Some(vector), Some(third), Some(fourth)) =
        (field(0), field(1), field(2), field(3))
    else {
        return fs_base;
    };
    // glibc's tcbhead_t: itself, the vector, itself again, a flag. musl's struct pthread: itself, the vector, and the
    // threads before and behind it in a ring.
    let is_glibc = third == fs_base && fourth as u32 <= 1;
    let is_musl = text::word(fourth.wrapping_add(16)) == Some(fs_base);
    let count = |at: u64| text::word(at).unwrap_or(0).min(MOST);
    let is_static = |at: &u64| *at != 0 && *at < fs_base;
    let lowest = match myself == fs_base {
        // dtv_t (sysdeps/generic/dl-dtv.h): a block, and what is freed with it: nothing for a static one.
        true if is_glibc => (1..=count(vector.wrapping_sub(16)))
            .map(|n| vector + 16 * n)
            .filter(|at| text::word(at + 8) == Some(0))
            .filter_map(text::word)
            .filter(is_static)
            .min(),
        true if is_musl => (1..=count(vector))
            .filter_map(|n| text::word(vector + 8 * n))
            .filter(is_static)
            .min(),
        _ => None,
    };
    lowest.unwrap_or(fs_base)
}

/// Where the kernel lets the program break begin (proc_pid_stat(5), field 47). The stub's task shares the program's
/// memory, so its own entry has the value.
fn start_brk() -> Option<u64> {
    let stat = crate::files::read_file("/proc/self/stat\0")?;
    let text = core::str::from_utf8(&stat).ok()?;
    let start: u64 = text
        .rsplit_once(") ")?
        .1
        .split_ascii_whitespace()
        .nth(44)?
        .parse()
        .ok()?;
    (start != 0).then_some(start & !4095)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const UNITS: u64 = 48;

    /// glibc's descriptor has the thread ID before a list that begins in the descriptor, musl's the ID alone.
    #[test]
    fn a_stack_is_found_whatever_the_thread_id() {
        const FS_BASE: u64 = 0x7fff_f786_96c0;
        let stack = (0x7fff_f766_a010, 0x20_0000);
        for id in 1..70_000 {
            let words = [FS_BASE, id, FS_BASE + 0x2e0, 0, stack.0, stack.1];
            let found = stack_in(FS_BASE, &words.map(u64::to_le_bytes));
            assert_eq!(found, Some((stack.0, stack.0 + stack.1)), "{id}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn stretches_are_those_of_a_list_of_bytes(
            changes in vec((any::<bool>(), 0..UNITS, 0..UNITS), 1..40),
            look in (0..UNITS, 0..UNITS),
        ) {
            let mut heap = Heap::default();
            let mut model = [false; UNITS as usize];
            for (comes, start, end) in changes {
                match comes {
                    true => heap.add((start, end)),
                    false => heap.cut((start, end)),
                }
                if start < end {
                    model[start as usize..end as usize].fill(comes);
                }
                let has = |n| heap.parts.iter().any(|p| p.0 <= n && n < p.1);
                for n in 0..UNITS {
                    prop_assert_eq!(has(n), model[n as usize], "byte {}", n);
                }
                // A cut does not make parts that touch.
                prop_assert!(heap.parts.windows(2).all(|two| two[0].1 < two[1].0));
                prop_assert!(heap.parts.iter().all(|p| p.0 < p.1));
                prop_assert_eq!(heap.bytes(), model.iter().filter(|b| **b).count() as u64);
            }
            let (start, end) = (look.0.min(look.1), look.0.max(look.1));
            let any = model[start as usize..end as usize].contains(&true);
            prop_assert_eq!(start < end && heap.meets((start, end)), any);
        }
    }
}
