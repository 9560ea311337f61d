//! Evaluates a [`Path`] at one moment. The result has each word read on the way, whose change may move the end, and the
//! bytes at the end.
//!
//! ```text
//! 0x4040@list,8,4    words    0x4040 ─▶ node 0 + 8 ─▶ node 1 + 8 ─▶ …      watched for stores
//!                    runs              node 0 + 4    node 1 + 4            what the watch is about
//! ```
//! Adjacent places form one run. A word that the last walk has read and that is watched since is not read again
//! ([`Path::trace`]). Most changes are to one word, and most of a long list stays as it is.

mod shapes;

use alloc::vec::Vec;
use core::cell::Cell;

use super::path::{LONGEST, Path, Step, Until};
use crate::addr::{TargetAddr, USER_END};
use crate::watch::WatchRange;

/// No program has memory below: a smaller pointer points to nothing.
const LOWEST: u64 = 0x1000;
const POINTER: u64 = 8;
/// Number of former words among which a missing word is searched before the whole list.
const AHEAD: usize = 4;

/// A word that was read on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// Its bytes.
    pub range: WatchRange,
    /// Its value, or `None` without memory.
    pub value: Option<u64>,
    /// Whether the value counts.
    pub state: State,
}

/// Whether the value of a word on the way counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It does.
    Plain,
    /// It has a new value already, which counts only after its neighbour has changed, too.
    Half,
    /// The memory has been freed; it counts only after the program itself has written to it.
    GivenBack,
}

/// Flag in the list of changed words: the memory has been freed. No address has this bit.
pub const GIVEN_BACK: u64 = 1 << 63;

/// Adjacent places at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Their bytes.
    pub range: WatchRange,
    /// The number of the first one.
    pub first: u64,
}

/// Result of a path at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    /// Words on the way, in the order in which they were read.
    pub words: Vec<Word>,
    /// The bytes at its end. It is empty if a pointer on the way is NULL, memory is missing, or there are no elements.
    pub runs: Vec<Run>,
    /// The path has more places than its maximum.
    pub more: bool,
    /// Nodes of its container, kept for when that is in the middle of a change: see `trace/shapes.rs`.
    pub nodes: Vec<u64>,
}

/// The walk of one moment.
struct Walk<'a, R> {
    path: &'a Path,
    len: u64,
    was: &'a Trace,
    /// Words that may have changed since; `None`: all.
    changed: Option<&'a [u64]>,
    /// Position of this walk in the former words.
    at: Cell<usize>,
    /// Some memory on the way is known to be freed.
    given_back: bool,
    read: R,
    trace: Trace,
}

impl Path {
    /// Evaluates the path to `len` bytes at its end. `was` is the former result; of its words only those in `changed` are
    /// read again (`None`: all). `read` returns a number of the given size, if there is memory.
    pub fn trace(
        &self,
        len: u64,
        was: &Trace,
        changed: Option<&[u64]>,
        read: impl Fn(u64, u64) -> Option<u64>,
    ) -> Trace {
        let mut walk = Walk {
            path: self,
            len,
            was,
            changed,
            at: Cell::new(0),
            given_back: changed.is_some_and(|all| all.iter().any(|at| at & GIVEN_BACK != 0))
                || was.words.iter().any(|word| word.state == State::GivenBack),
            read,
            trace: Trace::default(),
        };
        walk.go(self.base, 0, 0);
        walk.trace
    }
}

fn range(at: u64, len: u64) -> Option<WatchRange> {
    let range = WatchRange::new(TargetAddr(at), len)?;
    (range.end().0 <= USER_END).then_some(range)
}

impl<R: Fn(u64, u64) -> Option<u64>> Walk<'_, R> {
    /// Reads a number that the path depends on.
    fn word(&mut self, at: u64, size: u64) -> Option<u64> {
        let range = range(at, size)?;
        let word = self.known(range).unwrap_or_else(|| Word {
            range,
            value: (self.read)(at, size),
            state: State::Plain,
        });
        self.trace.words.push(word);
        word.value
    }

    /// A former word that has not changed.
    fn known(&self, range: WatchRange) -> Option<Word> {
        let changed = self.changed?;
        let (words, from) = (&self.was.words, self.at.get());
        let near = words.get(from..(from + AHEAD).min(words.len()))?;
        let there = match near.iter().position(|word| word.range == range) {
            Some(n) => {
                self.at.set(from + n + 1);
                *near.get(n)?
            }
            // Reading again is right as well, unless the memory has been freed.
            None if !self.given_back => return None,
            None => *words.iter().find(|word| word.range == range)?,
        };
        let at = range.start.0;
        if changed.contains(&at) {
            return None;
        }
        if there.state == State::GivenBack || changed.contains(&(at | GIVEN_BACK)) {
            let (value, state) = (None, State::GivenBack);
            return Some(Word {
                range,
                value,
                state,
            });
        }
        // No event reports memory that appears.
        (there.value.is_some() && there.state == State::Plain).then_some(there)
    }

    fn pointer(&mut self, at: u64) -> Option<u64> {
        self.word(at, POINTER).filter(|to| *to >= LOWEST)
    }

    /// Goes from `at` by the steps from `n` on, to the place with this number.
    fn go(&mut self, at: u64, n: usize, number: u64) {
        let Some((step, offset)) = self.path.steps.get(n).copied() else {
            return self.arrive(at, number);
        };
        match step {
            Step::Pointer => {
                if let Some(to) = self.pointer(at) {
                    self.go(to.wrapping_add(offset), n + 1, number);
                }
            }
            Step::If { at: of, size } => {
                if self
                    .word(at.wrapping_add(of), size)
                    .is_some_and(|is| is != 0)
                {
                    self.go(at.wrapping_add(offset), n + 1, number);
                }
            }
            Step::List {
                link,
                pointer,
                end,
                count,
            } => {
                let end = end.map(|end| at.wrapping_add(end));
                let mut nodes = self.nodes(at, link, pointer, end);
                if let Some(count) = count {
                    self.keep(at.wrapping_add(count), &mut nodes, &[link]);
                }
                for (number, node) in (0..).zip(nodes) {
                    self.go(node.wrapping_add(offset), n + 1, number);
                }
            }
            Step::Elements {
                until,
                stride,
                from,
                to,
            } => {
                if let Some((begin, count)) = self.elements(at, until, stride) {
                    let all = from..count.min(to);
                    let first = begin.wrapping_add(from.wrapping_mul(stride));
                    self.each(first.wrapping_add(offset), stride, all, n + 1);
                }
            }
            Step::Times { count, stride } => {
                self.each(at.wrapping_add(offset), stride, 0..count, n + 1);
            }
            Step::Frames | Step::Threads => {
                let path = self.path;
                let most = usize::try_from(path.most()).unwrap_or(usize::MAX);
                self.trace.more |= path.frames.len() > most;
                for frame in path.frames.iter().take(most) {
                    self.go(frame.wrapping_add(offset), n + 1, number);
                }
            }
            Step::Is {
                at: of,
                size,
                first,
                count,
                inside,
            } => {
                let mask = u64::MAX >> (64 - 8 * size.clamp(1, 8));
                let is = |number: u64| (number.wrapping_sub(first) & mask < count) == inside;
                if self.word(at.wrapping_add(of), size).is_some_and(is) {
                    self.go(at.wrapping_add(offset), n + 1, number);
                }
            }
            of_container => self.go_through(at, of_container, offset, n + 1),
        }
    }

    /// Goes to all elements with these numbers, the first of which is at `at`.
    fn each(&mut self, at: u64, stride: u64, mut all: core::ops::Range<u64>, n: usize) {
        if all.is_empty() {
            return;
        }
        let count = all.end - all.start;
        // Adjacent places at the end of the path: one run, however many they are.
        if n == self.path.steps.len() && stride == self.len {
            let whole = count.checked_mul(stride).and_then(|len| range(at, len));
            if let Some(range) = whole {
                let first = all.start;
                self.trace.runs.push(Run { range, first });
            }
            return;
        }
        if count > self.path.most() {
            self.trace.more = true;
            all.end = all.start + self.path.most();
        }
        let first = all.start;
        for number in all {
            let at = at.wrapping_add((number - first).wrapping_mul(stride));
            self.go(at, n, number);
        }
    }

    /// Address of the first element, and the number of elements.
    fn elements(&mut self, at: u64, until: Until, stride: u64) -> Option<(u64, u64)> {
        let n = self.trace.words.len();
        let begin = self.word(at, POINTER);
        let count = match until {
            Until::Count(of, size) => self.word(at.wrapping_add(of), size),
            Until::Pointer(of) => {
                let end = self.word(at.wrapping_add(of), POINTER);
                // A program that replaces the elements changes both pointers, usually by one store after the other. While
                // only the first has changed, the range between them is meaningless.
                let half = match (self.was.words.get(n), self.was.words.get(n + 1)) {
                    (Some(first), Some(last)) => {
                        first.range.start.0 == at && first.value != begin && last.value == end
                    }
                    _ => false,
                };
                if half {
                    // It stays so until the other one changes, too.
                    if let (Some(first), Some(was)) =
                        (self.trace.words.get_mut(n), self.was.words.get(n))
                    {
                        (first.value, first.state) = (was.value, State::Half);
                    }
                    return None;
                }
                end.zip(begin)
                    .and_then(|(end, begin)| Some(end.checked_sub(begin)? / stride))
            }
        };
        let begin = begin.filter(|to| *to >= LOWEST)?;
        let fits = |count: &u64| count.checked_mul(stride).is_some_and(|n| n < LONGEST);
        Some((begin, count.filter(fits)?))
    }

    /// The nodes of a list, until null, its end or a node that was met before.
    fn nodes(&mut self, at: u64, link: u64, pointer: bool, end: Option<u64>) -> Vec<u64> {
        let mut nodes = Vec::new();
        let mut next = match pointer {
            true => self.pointer(at),
            false => Some(at),
        };
        // A cycle is found by comparing each node with a mark that moves ever more seldom (Brent).
        let (mut mark, mut since, mut power) = (0, 0usize, 1usize);
        while let Some(node) = next.filter(|node| Some(*node) != end) {
            if nodes.first() == Some(&node) {
                break;
            }
            if node == mark {
                // The cycle has this many nodes; the first of them is the first node that recurs.
                let round = since + 1;
                nodes.push(node);
                let first = (0..nodes.len()).find(|n| nodes.get(*n) == nodes.get(*n + round));
                nodes.truncate(first.map_or(nodes.len(), |first| first + round));
                break;
            }
            if nodes.len() as u64 >= self.path.most() {
                self.trace.more = true;
                break;
            }
            nodes.push(node);
            since += 1;
            if since == power {
                (mark, since, power) = (node, 0, power * 2);
            }
            next = self.pointer(node.wrapping_add(link));
            // A freed node is not part of the list.
            let last = self.trace.words.last();
            if last.is_some_and(|link| link.state == State::GivenBack) {
                nodes.pop();
            }
        }
        nodes
    }

    /// The bytes of one place.
    fn arrive(&mut self, at: u64, number: u64) {
        let Some(range) = range(at, self.len) else {
            return;
        };
        if let Some(last) = self.trace.runs.last_mut()
            && last.range.end() == range.start
            && number.checked_sub(last.first) == Some(last.range.len / self.len)
        {
            last.range.len += range.len;
            return;
        }
        let first = number;
        self.trace.runs.push(Run { range, first });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use core::cell::RefCell;

    /// Memory of a test: words.
    #[derive(Default)]
    pub(super) struct Memory {
        pub(super) words: BTreeMap<u64, u64>,
        read: RefCell<Vec<u64>>,
    }

    impl Memory {
        pub(super) fn of(words: &[(u64, u64)]) -> Memory {
            let words = words.iter().copied().collect();
            Memory {
                words,
                ..Memory::default()
            }
        }

        pub(super) fn trace_after(
            &self,
            word: &str,
            len: u64,
            was: &Trace,
            changed: &[u64],
        ) -> Trace {
            let path = Path::parse(word).unwrap().unwrap();
            self.read.borrow_mut().clear();
            path.trace(len, was, Some(changed), |at, _| {
                self.read.borrow_mut().push(at);
                self.words.get(&at).copied()
            })
        }

        pub(super) fn trace(&self, word: &str, len: u64) -> Trace {
            self.trace_after(word, len, &Trace::default(), &[])
        }
    }

    fn words(trace: &Trace) -> Vec<u64> {
        trace.words.iter().map(|w| w.range.start.0).collect()
    }

    fn runs(trace: &Trace) -> Vec<(u64, u64, u64)> {
        let run = |r: &Run| (r.range.start.0, r.range.len, r.first);
        trace.runs.iter().map(run).collect()
    }

    #[test]
    fn through_pointers() {
        let memory = Memory::of(&[
            (0x4040, 0x8000),
            (0x8008, 0x9004),
            (0x5000, 0),
            (0x6000, u64::MAX),
        ]);
        let at = |word: &str| {
            let trace = memory.trace(word, 4);
            (words(&trace), runs(&trace))
        };
        assert_eq!(
            at("0x4040>16"),
            (alloc::vec![0x4040], alloc::vec![(0x8010, 4, 0)])
        );
        let both = alloc::vec![0x4040, 0x8008];
        assert_eq!(at("0x4040>8>-4"), (both, alloc::vec![(0x9000, 4, 0)]));
        // NULL, no memory, an address outside of user space: the path ends there, and is evaluated again when that
        // changes.
        assert_eq!(at("0x5000>16"), (alloc::vec![0x5000], alloc::vec![]));
        assert_eq!(
            at("0x4040>0x10>1"),
            (alloc::vec![0x4040, 0x8010], alloc::vec![])
        );
        assert_eq!(at("0x6000>-16"), (alloc::vec![0x6000], alloc::vec![]));
        assert_eq!(at("0x6000>-16>0"), (alloc::vec![0x6000], alloc::vec![]));
    }

    /// All frames are one place.
    #[test]
    fn frames_of_a_function() {
        let memory = Memory::of(&[(0x7fe8, 0x5000), (0x6fe8, 0)]);
        let at = |word: &str, frames: &[u64]| {
            let mut path = Path::parse(word).unwrap().unwrap();
            frames.iter().for_each(|frame| path.begin_frame(*frame));
            path.trace(4, &Trace::default(), None, |at, _| {
                memory.words.get(&at).copied()
            })
        };
        assert_eq!(at("0x1149@frames,-20", &[]), Trace::default());
        let two = at("0x1149@frames,-20", &[0x8000, 0x7000]);
        assert_eq!(runs(&two), [(0x7fec, 4, 0), (0x6fec, 4, 0)]);
        // Even if one lies right behind the other.
        let near = at("0x1149@frames,-4", &[0x8000, 0x8004]);
        assert_eq!(runs(&near), [(0x7ffc, 4, 0), (0x8000, 4, 0)]);
        let through = at("0x1149@frames,-24>8", &[0x8000, 0x7000]);
        assert_eq!(words(&through), [0x7fe8, 0x6fe8]);
        assert_eq!(runs(&through), [(0x5008, 4, 0)]);
        assert!(at("0x1149@frames,0@most,1", &[0x8000, 0x7000]).more);
        let mut path = Path::parse("0x1149@frames,0").unwrap().unwrap();
        path.begin_frame(0x8000);
        assert!(path.end_frame(0x8000) && !path.end_frame(0x8000));
        assert_eq!(path.function(), Some(0x1149));
    }

    #[test]
    fn nodes_of_lists() {
        let list = [
            (0x4000, 0x5000),
            (0x5008, 0x6000),
            (0x6008, 0x7000),
            (0x7008, 0),
        ];
        let trace = Memory::of(&list).trace("0x4000@list,8,4", 4);
        assert_eq!(words(&trace), [0x4000, 0x5008, 0x6008, 0x7008]);
        assert_eq!(
            runs(&trace),
            [(0x5004, 4, 0), (0x6004, 4, 1), (0x7004, 4, 2)]
        );
        let trace = Memory::of(&list).trace("0x5000@nodes,8,0", 4);
        assert_eq!(
            runs(&trace),
            [(0x5000, 4, 0), (0x6000, 4, 1), (0x7000, 4, 2)]
        );
        let trace = Memory::of(&list).trace("0x4000@list,8,4@most,2", 4);
        assert!(trace.more && trace.runs.len() == 2);
        // A header ends it, and is not watched.
        let ring = [(0x4000, 0x5000), (0x5000, 0x6000), (0x6000, 0x4000)];
        let trace = Memory::of(&ring).trace("0x4000@list,0,16,0", 4);
        assert_eq!(runs(&trace), [(0x5010, 4, 0), (0x6010, 4, 1)]);
        assert_eq!(words(&trace), [0x4000, 0x5000, 0x6000]);
    }

    #[test]
    fn no_node_twice() {
        for (before, round) in [
            (0, 1),
            (0, 2),
            (0, 7),
            (1, 1),
            (1, 5),
            (3, 1),
            (5, 3),
            (40, 17),
            (7, 64),
        ] {
            let node = |n: u64| 0x10_0000 + 0x100 * n;
            let all = before + round;
            let mut memory: Vec<_> = (0..all - 1).map(|n| (node(n) + 8, node(n + 1))).collect();
            memory.push((node(all - 1) + 8, node(before)));
            memory.push((0x4000, node(0)));
            let trace = Memory::of(&memory).trace("0x4000@list,8,0", 8);
            let expected: Vec<_> = (0..all).map(|n| (node(n), 8, n)).collect();
            assert_eq!(runs(&trace), expected, "{before} {round}");
            assert!(!trace.more);
            // Every link that decides about it is among the words.
            let mut links = (0..all).map(|n| node(n) + 8);
            assert!(links.all(|link| words(&trace).contains(&link)));
        }
    }

    #[test]
    fn elements() {
        let vector = [(0x4000, 0x5000), (0x4008, 0x5060)];
        let memory = Memory::of(&vector);
        let trace = memory.trace("0x4000@span,8,24,0,-1,0", 24);
        assert_eq!(
            (words(&trace), runs(&trace)),
            (alloc::vec![0x4000, 0x4008], alloc::vec![(0x5000, 96, 0)])
        );
        let trace = memory.trace("0x4000@span,8,24,1,3,0", 24);
        assert_eq!(runs(&trace), [(0x5018, 48, 1)]);
        let trace = memory.trace("0x4000@span,8,24,0,-1,8", 4);
        assert_eq!(
            runs(&trace),
            [
                (0x5008, 4, 0),
                (0x5020, 4, 1),
                (0x5038, 4, 2),
                (0x5050, 4, 3)
            ]
        );
        let trace = memory.trace("0x4000@span,8,24,9,10,0", 24);
        assert_eq!(runs(&trace), []);
        let text = Memory::of(&[(0x4000, 0x4010), (0x4008, 5)]);
        let trace = text.trace("0x4000@count,8,8,1,0,-1,0", 1);
        assert_eq!(runs(&trace), [(0x4010, 5, 0)]);
        let held = Memory::of(&[(0x4008, 0)]).trace("0x4000@if,8,1,0", 4);
        assert_eq!(
            (words(&held), runs(&held)),
            (alloc::vec![0x4008], alloc::vec![])
        );
        // Pointers side by side, one of which is NULL.
        let tab = Memory::of(&[(0x4000, 0x5000), (0x4008, 0), (0x4010, 0x6000)]);
        let trace = tab.trace("0x4000@times,3,8,0>4", 4);
        assert_eq!(runs(&trace), [(0x5004, 4, 0), (0x6004, 4, 2)]);
    }

    #[test]
    fn nothing_that_makes_no_sense() {
        for (begin, end) in [
            (0x5000, 0x4000),
            (0, 0x6000),
            (0x1000, u64::MAX),
            (u64::MAX, u64::MAX),
            (0, 0),
        ] {
            let memory = Memory::of(&[(0x4000, begin), (0x4008, end)]);
            let trace = memory.trace("0x4000@span,8,8,0,-1,0", 8);
            assert_eq!(
                (words(&trace), runs(&trace)),
                (alloc::vec![0x4000, 0x4008], alloc::vec![])
            );
        }
    }

    /// A vector that has got another buffer: first one pointer changes, then the other.
    #[test]
    fn half_a_change() {
        let path = "0x4000@span,8,8,0,-1,0";
        let mut memory = Memory::of(&[(0x4000, 0x5000), (0x4008, 0x5010)]);
        let first = memory.trace(path, 8);
        memory.words.insert(0x4000, 0x4800);
        let half = memory.trace_after(path, 8, &first, &[0x4000]);
        assert_eq!(
            (words(&half), runs(&half)),
            (alloc::vec![0x4000, 0x4008], alloc::vec![])
        );
        // A walk for another reason finds the same.
        let half = memory.trace_after(path, 8, &half, &[]);
        assert_eq!(runs(&half), []);
        memory.words.insert(0x4000, 0x5000);
        let back = memory.trace_after(path, 8, &half, &[0x4000]);
        assert_eq!(runs(&back), [(0x5000, 16, 0)]);
        memory.words.insert(0x4000, 0x4800);
        let half = memory.trace_after(path, 8, &back, &[0x4000]);
        memory.words.insert(0x4008, 0x4818);
        let both = memory.trace_after(path, 8, &half, &[0x4008]);
        assert_eq!(runs(&both), [(0x4800, 24, 0)]);
    }

    #[test]
    fn what_has_not_changed_is_not_read() {
        let node = |n: u64| 0x10_0000 + 0x100 * n;
        let mut all: Vec<_> = (0..50).map(|n| (node(n) + 8, node(n + 1))).collect();
        all.extend([(0x4000, node(0)), (node(50) + 8, 0)]);
        let mut memory = Memory::of(&all);
        let path = "0x4000@list,8,0";
        let first = memory.trace(path, 8);
        assert_eq!(memory.read.borrow().len(), 52);
        // One more in the middle, one less, two of them in another order.
        memory
            .words
            .extend([(node(20) + 8, node(90)), (node(90) + 8, node(21))]);
        let more = memory.trace_after(path, 8, &first, &[node(20) + 8]);
        assert_eq!(*memory.read.borrow(), [node(20) + 8, node(90) + 8]);
        assert_eq!(runs(&more).len(), 52);
        memory.words.insert(node(10) + 8, node(12));
        let less = memory.trace_after(path, 8, &more, &[node(10) + 8]);
        assert_eq!(*memory.read.borrow(), [node(10) + 8]);
        assert_eq!(less, memory.trace(path, 8));
        // Everything is read if the changes are unknown.
        let whole = Path::parse(path).unwrap().unwrap();
        let again = whole.trace(8, &less, None, |at, _| memory.words.get(&at).copied());
        assert_eq!(again, less);
    }

    /// A node that is freed while the list still leads there.
    #[test]
    fn what_is_given_back() {
        let list = [
            (0x4000, 0x5000),
            (0x5008, 0x6000),
            (0x6008, 0x7000),
            (0x7008, 0),
        ];
        let mut memory = Memory::of(&list);
        let path = "0x4000@list,8,4";
        let first = memory.trace(path, 4);
        // The allocator writes to freed memory.
        memory.words.insert(0x6008, 0x9000);
        let less = memory.trace_after(path, 4, &first, &[0x6008 | GIVEN_BACK]);
        assert_eq!(runs(&less), [(0x5004, 4, 0)]);
        assert_eq!(words(&less), [0x4000, 0x5008, 0x6008]);
        let still = memory.trace_after(path, 4, &less, &[0x4000]);
        assert_eq!(runs(&still), [(0x5004, 4, 0)]);
        // The memory belongs to another node now.
        memory.words.insert(0x6008, 0);
        let more = memory.trace_after(path, 4, &still, &[0x6008]);
        assert_eq!(runs(&more), [(0x5004, 4, 0), (0x6004, 4, 1)]);
    }

    proptest::proptest! {
        /// A list that changes at random: reading only the changed words is enough.
        #[test]
        fn as_if_all_were_read(changes in proptest::collection::vec((0u64..12, 0u64..13), 1..40)) {
            let node = |n: u64| if n == 12 { 0 } else { 0x10_0000 + 0x100 * n };
            let mut memory = Memory::of(&[(0x4000, node(0))]);
            memory.words.extend((0..12).map(|n| (node(n) + 8, node(n + 1))));
            let path = "0x4000@list,8,16";
            let mut was = memory.trace(path, 4);
            for (from, to) in changes {
                let at = if from == 11 { 0x4000 } else { node(from) + 8 };
                memory.words.insert(at, node(to));
                was = memory.trace_after(path, 4, &was, &[at]);
                proptest::prop_assert_eq!(&was, &memory.trace(path, 4));
            }
        }
    }
}
