//! The bytes at which a commit makes a difference, if some watches are interchangeable.

use alloc::vec::Vec;

use super::Changes;
use crate::watch::{WatchId, WatchKind, WatchRange};

/// An address at which watches of one sort begin or end. The pair is the change there in the numbers of removed and added
/// watches that cover the following bytes.
type Edge = (u64, [i32; 2]);

impl Changes {
    /// Ascending ranges `[start, end)` that hold every byte whose watches differ from before. Watches of the same `sort`
    /// are interchangeable if they begin and end at the same addresses. A watch that has grown differs from its former
    /// end on.
    pub fn different(&self, sort: impl Fn(WatchId) -> Option<u32>) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut alike: Vec<(u32, WatchKind, usize, WatchRange)> = Vec::new();
        for (n, list) in [&self.removed, &self.added].into_iter().enumerate() {
            for &(id, range, kind) in list {
                match sort(id) {
                    Some(sort) => alike.push((sort, kind, n, range)),
                    None => found.push((range.start.0, range.end().0)),
                }
            }
        }
        alike.sort_unstable_by_key(|a| (a.0, a.1 as u8));
        for group in alike.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let edges = |of: fn(&WatchRange) -> u64, by: i32| {
                group.iter().map(move |&(_, _, n, range)| {
                    let mut change = [0, 0];
                    change[n] = by;
                    (of(&range), change)
                })
            };
            let starts: Vec<Edge> = edges(|r| r.start.0, 1).collect();
            let ends: Vec<Edge> = edges(|r| r.end().0, -1).collect();
            uncovered(&starts, &mut found);
            uncovered(&ends, &mut found);
            let mut all: Vec<Edge> = starts.into_iter().chain(ends).collect();
            all.sort_unstable_by_key(|e| e.0);
            let (mut covered, mut from) = ([0, 0], 0);
            for (at, change) in all {
                if covered[0] != covered[1] && from < at {
                    found.push((from, at));
                }
                covered = [covered[0] + change[0], covered[1] + change[1]];
                from = at;
            }
        }
        found.sort_unstable();
        found.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            last.1 = if joins { last.1.max(next.1) } else { last.1 };
            joins
        });
        found
    }
}

/// The two bytes at each address where the numbers of removed and added watches that begin (or end) there differ.
fn uncovered(edges: &[Edge], found: &mut Vec<(u64, u64)>) {
    let mut edges = edges.to_vec();
    edges.sort_unstable_by_key(|e| e.0);
    for same in edges.chunk_by(|a, b| a.0 == b.0) {
        let sum = |n: usize| same.iter().map(|e| e.1[n]).sum::<i32>();
        if let Some((at, _)) = same.first().filter(|_| sum(0) != sum(1)) {
            found.push((at.saturating_sub(1), at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::TargetAddr;

    fn changes(removed: &[(u32, u64, u64)], added: &[(u32, u64, u64)]) -> Changes {
        let list = |of: &[(u32, u64, u64)]| {
            let watch = |&(id, start, end): &(u32, u64, u64)| {
                let range = WatchRange::new(TargetAddr(start), end - start).unwrap();
                (WatchId(id), range, WatchKind::Write)
            };
            of.iter().map(watch).collect()
        };
        Changes {
            removed: list(removed),
            added: list(added),
        }
    }

    /// Watches below 100 are alike.
    fn sort(id: WatchId) -> Option<u32> {
        (id.0 < 100).then_some(7)
    }

    #[test]
    fn one_that_grows_differs_where_it_has_grown() {
        let grown = changes(&[(1, 0x1000, 0x3000)], &[(2, 0x1000, 0x5000)]);
        assert_eq!(grown.different(sort), [(0x2fff, 0x5001)]);
        let shrunk = changes(&[(1, 0x1000, 0x5000)], &[(2, 0x1000, 0x3000)]);
        assert_eq!(shrunk.different(sort), [(0x2fff, 0x5001)]);
        let moved = changes(&[(1, 0x1000, 0x3000)], &[(2, 0x1000, 0x3000)]);
        assert!(moved.different(sort).is_empty());
    }

    #[test]
    fn one_in_two_differs_at_the_boundary() {
        let cut = changes(
            &[(1, 0x1000, 0x3000)],
            &[(2, 0x1000, 0x2000), (3, 0x2000, 0x3000)],
        );
        assert_eq!(cut.different(sort), [(0x1fff, 0x2001)]);
        let hole = changes(
            &[(1, 0x1000, 0x9000)],
            &[(2, 0x1000, 0x4000), (3, 0x5000, 0x9000)],
        );
        assert_eq!(hole.different(sort), [(0x3fff, 0x5001)]);
    }

    #[test]
    fn what_is_not_alike_differs_everywhere() {
        let other = changes(&[(1, 0x1000, 0x3000)], &[(100, 0x1000, 0x3000)]);
        assert_eq!(other.different(sort), [(0xfff, 0x3001)]);
        let others = changes(&[(101, 0x1000, 0x3000)], &[(100, 0x1000, 0x3000)]);
        assert_eq!(others.different(sort), [(0x1000, 0x3000)]);
        let kinds = Changes {
            removed: changes(&[(1, 8, 16)], &[]).removed,
            added: changes(&[], &[(2, 8, 16)])
                .added
                .into_iter()
                .map(|(id, range, _)| (id, range, WatchKind::Access))
                .collect(),
        };
        assert_eq!(kinds.different(sort), [(7, 17)]);
    }
}
