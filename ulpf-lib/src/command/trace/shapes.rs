//! Walks through trees, hash tables, rings and chunks.
//!
//! ```text
//!     @tree     0x4040 ─▶ root ─▶ left, right …              a node for each element
//!     @btree    0x4040 ─▶ root ─▶ edges[0..=len] ─▶ …        up to ROOM elements in a node
//!     @table    … place 2 │ place 1 │ place 0 ║ control bytes  0x4040 leads to ║
//!     @ring     │ 3 │ 4 │   │   │ 0 │ 1 │ 2 │                from place HEAD on
//!     @chunks   0x4040: cur, first, last, node ─▶ map ─▶ chunks
//! ```
//!
//! **In the middle of a change.** The path is evaluated again after each store, and a container is inconsistent in the
//! middle of a change. While a tree is rotated, no pointer leads to some of its nodes, though other threads may use their
//! elements (C++ allows that). The number of nodes is usually stored last. So former nodes are kept while that number is
//! the same, unless they have been freed. They are kept if the walk finds fewer nodes, or if it misses only one or two
//! former ones (a rotation hides one node beside the new one). A container that has replaced another one keeps none of
//! the former nodes.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;

use super::{LOWEST, POINTER, State, Walk};
use crate::command::path::{LONGEST, Step};

/// Maximum depth of a tree.
const DEEPEST: u64 = 64;
/// Control bytes of a table that are read together.
const GROUP: u64 = 8;
/// A bucket whose control byte has this bit is empty.
const EMPTY: u64 = 0x80;

/// Layout of a B-tree's node.
#[derive(Clone, Copy)]
struct Nodes {
    len: u64,
    edges: u64,
    room: u64,
    stride: u64,
    offset: u64,
    /// Index of the next step.
    then: usize,
}

/// A chunk of a deque: the numbers of its elements and the address of the first. Chunks are in order.
type Chunk = (Range<u64>, u64);

impl<R: Fn(u64, u64) -> Option<u64>> Walk<'_, R> {
    /// One step through a container that begins at `at`, and the steps from `then` on from each of its elements.
    pub(super) fn go_through(&mut self, at: u64, step: Step, offset: u64, then: usize) {
        match step {
            Step::Tree { left, right, count } => {
                let mut nodes = self.tree(at, left, right);
                self.keep(at.wrapping_add(count), &mut nodes, &[left, right]);
                for (number, node) in (0..).zip(nodes) {
                    self.go(node.wrapping_add(offset), then, number);
                }
            }
            Step::Btree {
                height,
                len,
                edges,
                room,
                stride,
            } => {
                let root = self.pointer(at);
                let height = self.word(at.wrapping_add(height), POINTER);
                if let (Some(root), Some(height @ 0..DEEPEST)) = (root, height) {
                    let nodes = Nodes {
                        len,
                        edges,
                        room,
                        stride,
                        offset,
                        then,
                    };
                    self.btree(root, height, nodes, &mut 0);
                }
            }
            Step::Table {
                mask,
                slots,
                stride,
            } => {
                let control = self.pointer(at);
                let mask = self.word(at.wrapping_add(mask), POINTER);
                let slots = slots.map(|of| self.pointer(at.wrapping_add(of)));
                // (An empty table has the control bytes of one slot, which all empty tables share.)
                if let (Some(control), Some(mask @ 1..LONGEST)) = (control, mask) {
                    let before = |n: u64| control.wrapping_sub((n + 1).wrapping_mul(stride));
                    match slots {
                        None => self.table(control, mask, before, offset, then),
                        Some(Some(slots)) => {
                            let behind = |n: u64| slots.wrapping_add(n.wrapping_mul(stride));
                            self.table(control, mask, behind, offset, then);
                        }
                        Some(None) => {}
                    }
                }
            }
            Step::Ring {
                capacity,
                head,
                count,
                stride,
                from,
                to,
            } => {
                let begin = self.pointer(at);
                let mut number = |of: u64| self.word(at.wrapping_add(of), POINTER);
                let (capacity, head, count) = (number(capacity), number(head), number(count));
                if let (Some(begin), Some(capacity), Some(head), Some(count)) =
                    (begin, capacity, head, count)
                    && head <= capacity
                    && count <= capacity
                    && capacity < LONGEST / stride
                {
                    let straight = count.min(capacity - head);
                    let place = |n: u64| begin.wrapping_add(n * stride);
                    let chunks = [(0..straight, place(head)), (straight..count, place(0))];
                    self.chunks(&chunks, stride, from..to, offset, then);
                }
            }
            Step::Chunks {
                finish,
                map,
                stride,
                from,
                to,
            } => {
                let now = self.deque(at, at.wrapping_add(finish), at.wrapping_add(map), stride);
                let alone = self.path.frames.len() < 2;
                let chunks = match now {
                    Some(chunks) => chunks,
                    None if alone => former(&self.was.nodes),
                    None => Vec::new(),
                };
                let kept = |(n, at): &Chunk| [n.start, n.end, *at];
                self.trace.nodes = chunks.iter().flat_map(kept).collect();
                self.chunks(&chunks, stride, from..to, offset, then);
            }
            Step::Short {
                flag,
                count,
                inside,
                stride,
                from,
                to,
            } => {
                let text = match self.word(at.wrapping_add(flag), 1) {
                    Some(flag) if flag & 1 == 0 => Some((at.wrapping_add(inside), flag >> 1)),
                    Some(_) => {
                        let begin = self.pointer(at);
                        begin.zip(self.word(at.wrapping_add(count), POINTER))
                    }
                    None => None,
                };
                if let Some((begin, count @ 0..LONGEST)) = text {
                    self.chunks(&[(0..count, begin)], stride, from..to, offset, then);
                }
            }
            // Other functions handle these.
            Step::Pointer
            | Step::List { .. }
            | Step::Elements { .. }
            | Step::Times { .. }
            | Step::If { .. }
            | Step::Is { .. }
            | Step::Frames
            | Step::Threads => {}
        }
    }

    /// The nodes of a tree, in order.
    fn tree(&mut self, at: u64, left: u64, right: u64) -> Vec<u64> {
        let (mut nodes, mut above, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut next = self.pointer(at);
        loop {
            while let Some(node) = next {
                if !seen.insert(node) {
                    break;
                }
                if seen.len() as u64 > self.path.most() {
                    self.trace.more = true;
                    break;
                }
                above.push(node);
                next = self.pointer(node.wrapping_add(left));
            }
            let Some(node) = above.pop() else {
                return nodes;
            };
            next = self.pointer(node.wrapping_add(right));
            // A freed node is not part of the tree.
            let last = self.trace.words.last();
            if last.is_none_or(|link| link.state != State::GivenBack) {
                nodes.push(node);
            }
        }
    }

    /// Adds the nodes that a container still has although no pointer leads to them, because it is being changed. `count`
    /// is the number of nodes, `links` are the offsets of a node's pointers.
    pub(super) fn keep(&mut self, count: u64, nodes: &mut Vec<u64>, links: &[u64]) {
        let Some(count) = self.word(count, POINTER) else {
            return;
        };
        // (With several frames, each container is taken as it is now.)
        if self.path.frames.len() > 1 {
            return;
        }
        if let Some((before, were)) = self.was.nodes.split_first()
            && *before == count
        {
            let here: BTreeSet<u64> = nodes.iter().copied().collect();
            let lost: Vec<u64> = were.iter().copied().filter(|n| !here.contains(n)).collect();
            let fewer = (nodes.len() as u64) < count;
            if fewer || (lost.len() <= 2 && lost.len() < were.len()) {
                for node in lost {
                    let mut given_back = false;
                    for link in links {
                        self.word(node.wrapping_add(*link), POINTER);
                        let last = self.trace.words.last();
                        given_back |= last.is_none_or(|link| link.state == State::GivenBack);
                    }
                    if !given_back && (nodes.len() as u64) < self.path.most() {
                        nodes.push(node);
                    }
                }
            }
        }
        self.trace.nodes.push(count);
        self.trace.nodes.extend_from_slice(nodes);
    }

    /// The values in a node, and in those below it.
    fn btree(&mut self, node: u64, height: u64, of: Nodes, number: &mut u64) {
        let len = self.word(node.wrapping_add(of.len), 2);
        let Some(len) = len.filter(|len| *len <= of.room) else {
            return;
        };
        for n in 0..=len {
            if height > 0 {
                let edge = node.wrapping_add(of.edges).wrapping_add(n * POINTER);
                if let Some(below) = self.pointer(edge) {
                    self.btree(below, height - 1, of, number);
                }
            }
            if *number >= self.path.most() {
                self.trace.more = true;
                return;
            }
            if n < len {
                let value = node.wrapping_add(of.offset).wrapping_add(n * of.stride);
                self.go(value, of.then, *number);
                *number += 1;
            }
        }
    }

    /// The full buckets of a table, in its order.
    fn table(
        &mut self,
        control: u64,
        mask: u64,
        slot: impl Fn(u64) -> u64,
        offset: u64,
        then: usize,
    ) {
        let mut number = 0;
        for first in (0..=mask).step_by(GROUP as usize) {
            // (The control bytes end with a copy of the first group.)
            let Some(group) = self.word(control.wrapping_add(first), GROUP) else {
                return;
            };
            let places = first..=mask.min(first + GROUP - 1);
            for (place, n) in places.zip(0..) {
                if group >> (8 * n) & EMPTY != 0 {
                    continue;
                }
                if number >= self.path.most() {
                    self.trace.more = true;
                    return;
                }
                self.go(slot(place).wrapping_add(offset), then, number);
                number += 1;
            }
        }
    }

    /// The chunks of a deque, or `None` in the middle of a change.
    fn deque(&mut self, start: u64, finish: u64, map: u64, stride: u64) -> Option<Vec<Chunk>> {
        let mut word = |at: u64| self.word(at, POINTER);
        let [cur, first, last, node] = [0, 8, 16, 24].map(|part| word(start.wrapping_add(part)));
        let (end, last_node) = (word(finish), word(finish.wrapping_add(24)));
        let (map, size) = (word(map), word(map.wrapping_add(8)));
        let (cur, first, last, node) = (cur?, first?, last?, node?);
        let (end, last_node, map, size) = (end?, last_node?, map?, size?);
        let bytes = last.checked_sub(first).filter(|n| *n < LONGEST)?;
        let nodes = map..map.checked_add(size.checked_mul(POINTER)?)?;
        if !(nodes.contains(&node) && nodes.contains(&last_node) && node <= last_node) {
            return None;
        }
        let (mut chunks, mut number) = (Vec::new(), 0);
        let mut at = node;
        loop {
            let chunk = self.pointer(at)?;
            let inside = chunk..=chunk.checked_add(bytes)?;
            let from = if at == node { cur } else { chunk };
            let to = if at == last_node { end } else { *inside.end() };
            let wrong = at == node && chunk != first;
            if wrong || !inside.contains(&from) || !inside.contains(&to) || to < from {
                return None;
            }
            let count = (to - from) / stride;
            chunks.push((number..number + count, from));
            number += count;
            if at == last_node {
                return Some(chunks);
            }
            if chunks.len() as u64 > self.path.most() {
                self.trace.more = true;
                return Some(chunks);
            }
            at += POINTER;
        }
    }

    /// The elements of chunks whose numbers are to be watched.
    fn chunks(
        &mut self,
        chunks: &[Chunk],
        stride: u64,
        meant: Range<u64>,
        offset: u64,
        then: usize,
    ) {
        for (numbers, at) in chunks {
            let from = numbers.start.max(meant.start);
            let all = from..numbers.end.min(meant.end);
            let before = from.saturating_sub(numbers.start).wrapping_mul(stride);
            let first = at.wrapping_add(before).wrapping_add(offset);
            if *at >= LOWEST {
                self.each(first, stride, all, then);
            }
        }
    }
}

/// The former chunks of the deque.
fn former(nodes: &[u64]) -> Vec<Chunk> {
    let chunk = |kept: &[u64]| match *kept {
        [from, to, at] => Some((from..to, at)),
        _ => None,
    };
    nodes.chunks(3).filter_map(chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::Memory;
    use super::*;
    use crate::command::{GIVEN_BACK, Trace};
    use alloc::collections::BTreeMap;

    fn runs(trace: &Trace) -> Vec<(u64, u64, u64)> {
        let run = |r: &crate::command::Run| (r.range.start.0, r.range.len, r.first);
        trace.runs.iter().map(run).collect()
    }

    /// root 0x6000, with 0x5000 on its left and 0x7000 on its right; left at 16, right at 24.
    fn tree() -> Memory {
        Memory::of(&[
            (0x4000, 0x6000),
            (0x4020, 3),
            (0x6010, 0x5000),
            (0x6018, 0x7000),
            (0x5010, 0),
            (0x5018, 0),
            (0x7010, 0),
            (0x7018, 0),
        ])
    }
    const TREE: &str = "0x4000@tree,16,24,32,32";

    #[test]
    fn nodes_of_trees() {
        let mut memory = tree();
        let first = memory.trace(TREE, 4);
        let all = [(0x5020, 4, 0), (0x6020, 4, 1), (0x7020, 4, 2)];
        assert_eq!(runs(&first), all);
        // A rotation: no pointer leads to 0x6000 for a moment, but the node is still in the tree.
        memory.words.insert(0x4000, 0x7000);
        let half = memory.trace_after(TREE, 4, &first, &[0x4000]);
        let mut starts: Vec<u64> = runs(&half).iter().map(|run| run.0).collect();
        starts.sort_unstable();
        assert_eq!(starts, [0x5020, 0x6020, 0x7020]);
        memory.words.insert(0x7010, 0x6000);
        memory.words.insert(0x6018, 0);
        let done = memory.trace_after(TREE, 4, &half, &[0x7010, 0x6018]);
        assert_eq!(runs(&done), all);
        // One node is removed, freed, and counted no longer.
        memory.words.insert(0x6010, 0);
        let out = memory.trace_after(TREE, 4, &done, &[0x6010]);
        assert_eq!(runs(&out).len(), 3);
        let freed = memory.trace_after(TREE, 4, &out, &[0x5010 | GIVEN_BACK]);
        assert_eq!(runs(&freed), [(0x6020, 4, 0), (0x7020, 4, 1)]);
        memory.words.insert(0x4020, 2);
        let counted = memory.trace_after(TREE, 4, &freed, &[0x4020]);
        assert_eq!(runs(&counted), [(0x6020, 4, 0), (0x7020, 4, 1)]);
        // Another tree with as many nodes takes its place.
        memory.words.extend([
            (0x4000, 0x8000),
            (0x8010, 0x9000),
            (0x8018, 0),
            (0x9010, 0),
            (0x9018, 0),
        ]);
        let other = memory.trace_after(TREE, 4, &counted, &[0x4000]);
        assert_eq!(runs(&other), [(0x9020, 4, 0), (0x8020, 4, 1)]);
        // A cycle ends.
        memory.words.insert(0x9010, 0x8000);
        assert_eq!(runs(&memory.trace(TREE, 4)).len(), 2);
    }

    #[test]
    fn lists_that_are_built_anew() {
        let mut memory =
            Memory::of(&[(0x4000, 0x5000), (0x4008, 2), (0x5000, 0x6000), (0x6000, 0)]);
        let path = "0x4000@counted,0,8,16";
        let first = memory.trace(path, 4);
        assert_eq!(runs(&first), [(0x5010, 4, 0), (0x6010, 4, 1)]);
        // A hash table that grows begins with an empty list.
        memory.words.insert(0x4000, 0);
        let empty = memory.trace_after(path, 4, &first, &[0x4000]);
        assert_eq!(runs(&empty), [(0x5010, 4, 0), (0x6010, 4, 1)]);
        memory.words.insert(0x4008, 0);
        let cleared = memory.trace_after(path, 4, &empty, &[0x4008]);
        assert_eq!(runs(&cleared), []);
    }

    #[test]
    fn values_of_b_trees() {
        // Two leaves of values of 8 bytes at 8, their number at 80; in the node above them the edges at 96.
        let mut memory: BTreeMap<u64, u64> = [
            (0x4000, 0x6000),
            (0x4008, 1),
            (0x6050, 1),
            (0x6060, 0x7000),
            (0x6068, 0x8000),
            (0x7050, 2),
            (0x8050, 1),
        ]
        .into();
        let path = "0x4000@btree,8,80,96,11,8,8";
        let of = |words: &BTreeMap<u64, u64>| {
            let words: Vec<_> = words.iter().map(|(at, n)| (*at, *n)).collect();
            runs(&Memory::of(&words).trace(path, 8))
        };
        let all = [(0x7008, 16, 0), (0x6008, 8, 2), (0x8008, 8, 3)];
        assert_eq!(of(&memory), all);
        memory.insert(0x6050, 12);
        assert_eq!(of(&memory), []);
    }

    #[test]
    fn places_of_tables() {
        // Three of sixteen buckets are full: 0, 3 and 9.
        let full = |n: u64| 0x22 << (8 * (n % 8)) ^ EMPTY << (8 * (n % 8));
        let none = u64::MAX / 255 * EMPTY;
        let words = [
            (0x4000, 0x6000),
            (0x4008, 15),
            (0x6000, none ^ full(0) ^ full(3)),
            (0x6008, none ^ full(9)),
        ];
        let trace = Memory::of(&words).trace("0x4000@table,8,16,8", 8);
        let place = |n: u64| 0x6000 - 16 * (n + 1) + 8;
        assert_eq!(
            runs(&trace),
            [(place(0), 8, 0), (place(3), 8, 1), (place(9), 8, 2)]
        );
        let apart = [&words[..], &[(0x4010, 0x7000)]].concat();
        let trace = Memory::of(&apart).trace("0x4000@slots,8,16,16,8", 8);
        let place = |n: u64| 0x7000 + 16 * n + 8;
        assert_eq!(
            runs(&trace),
            [(place(0), 8, 0), (place(3), 8, 1), (place(9), 8, 2)]
        );
        // With four buckets, the control bytes behind them do not count.
        let four = Memory::of(&[(0x4000, 0x6000), (0x4008, 3), (0x6000, 0)]);
        assert_eq!(runs(&four.trace("0x4000@table,8,16,8", 8)).len(), 4);
        let empty = Memory::of(&[(0x4000, 0x6000), (0x4008, 0)]);
        assert_eq!(runs(&empty.trace("0x4000@table,8,16,8", 8)), []);
    }

    #[test]
    fn rings_and_chunks() {
        let words = [(0x4008, 0x5000), (0x4000, 4), (0x4010, 3), (0x4018, 3)];
        let ring = Memory::of(&words);
        let path = "0x4008@ring,-8,8,16,8,0,-1,0";
        assert_eq!(
            runs(&ring.trace(path, 8)),
            [(0x5018, 8, 0), (0x5000, 16, 1)]
        );
        let second = ring.trace("0x4008@ring,-8,8,16,8,1,2,0", 8);
        assert_eq!(runs(&second), [(0x5000, 8, 1)]);
        // A text inside the object, and elsewhere.
        let path = "0x4010@short,-16,-8,-15,1,0,-1,0";
        let short = Memory::of(&[(0x4000, 3 << 1)]);
        assert_eq!(runs(&short.trace(path, 1)), [(0x4001, 3, 0)]);
        let long = Memory::of(&[(0x4000, 1), (0x4010, 0x5000), (0x4008, 40)]);
        assert_eq!(runs(&long.trace(path, 1)), [(0x5000, 40, 0)]);
        // Chunks of two elements at 0x8000 and 0x9000; the first one is in use from its second element on.
        let mut words: BTreeMap<u64, u64> = [
            (0x4000, 0x6000),
            (0x4008, 8),
            (0x4010, 0x8008),
            (0x4018, 0x8000),
            (0x4020, 0x8010),
            (0x4028, 0x6008),
            (0x4030, 0x9008),
            (0x4048, 0x6010),
            (0x6008, 0x8000),
            (0x6010, 0x9000),
        ]
        .into();
        let memory = |words: &BTreeMap<u64, u64>| {
            let words: Vec<_> = words.iter().map(|(at, n)| (*at, *n)).collect();
            Memory::of(&words)
        };
        let path = "0x4010@chunks,32,-16,8,0,-1,0";
        let first = memory(&words).trace(path, 8);
        let both = [(0x8008, 8, 0), (0x9000, 8, 1)];
        assert_eq!(runs(&first), both);
        // Its pointers have been copied elsewhere, and the iterators are still the old ones.
        words.extend([(0x4000, 0x7000), (0x7008, 0x8000), (0x7010, 0x9000)]);
        let half = memory(&words).trace_after(path, 8, &first, &[0x4000]);
        assert_eq!(runs(&half), both);
        words.extend([(0x4028, 0x7008), (0x4048, 0x7010), (0x4030, 0x9010)]);
        let done = memory(&words).trace_after(path, 8, &half, &[0x4028, 0x4048, 0x4030]);
        assert_eq!(runs(&done), [(0x8008, 8, 0), (0x9000, 16, 1)]);
    }
}
