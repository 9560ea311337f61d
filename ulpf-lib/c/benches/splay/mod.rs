//! The thesis's watchlist (section 4.1): a splay tree of disjoint address ranges.
//!
//! A lookup makes the found node the root, so it changes the tree; handlers on several threads at once cannot use it. So
//! libulpf has a list of its own. This one is measured: in the comparison of the thesis's section 5.1
//! (`watchlists.rs`), and in the thesis's handler on the simulated hardware (`benches/sim/guest`).

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node<V> {
    start: u64,
    end: u64,
    value: V,
    left: u32,
    right: u32,
}

/// Disjoint ranges `[start, end)`, each with a value.
pub struct Splay<V> {
    nodes: Vec<Node<V>>,
    free: Vec<u32>,
    root: u32,
}

impl<V: Copy> Default for Splay<V> {
    fn default() -> Splay<V> {
        Splay::new()
    }
}

impl<V: Copy> Splay<V> {
    /// An empty tree.
    pub const fn new() -> Splay<V> {
        Splay {
            nodes: Vec::new(),
            free: Vec::new(),
            root: NONE,
        }
    }
    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }
    /// Whether the tree is empty.
    pub fn is_empty(&self) -> bool {
        self.root == NONE
    }

    fn left(&self, n: u32) -> u32 {
        self.nodes[n as usize].left
    }
    fn right(&self, n: u32) -> u32 {
        self.nodes[n as usize].right
    }
    fn start(&self, n: u32) -> u64 {
        self.nodes[n as usize].start
    }

    /// Makes the range that begins last at or before `key`, or a neighbour of that place, the root
    /// (top-down: Sleator and Tarjan, section 4).
    fn splay(&mut self, key: u64) {
        if self.root == NONE {
            return;
        }
        // Ends of the left and right tree that are built; NONE: still empty.
        let (mut left_root, mut right_root) = (NONE, NONE);
        let (mut left_end, mut right_end) = (NONE, NONE);
        let mut t = self.root;
        loop {
            if key < self.start(t) {
                let mut l = self.left(t);
                if l == NONE {
                    break;
                }
                if key < self.start(l) {
                    self.nodes[t as usize].left = self.right(l);
                    self.nodes[l as usize].right = t;
                    t = l;
                    l = self.left(t);
                    if l == NONE {
                        break;
                    }
                }
                match right_end {
                    NONE => right_root = t,
                    end => self.nodes[end as usize].left = t,
                }
                right_end = t;
                t = l;
            } else if key > self.start(t) {
                let mut r = self.right(t);
                if r == NONE {
                    break;
                }
                if key > self.start(r) {
                    self.nodes[t as usize].right = self.left(r);
                    self.nodes[r as usize].left = t;
                    t = r;
                    r = self.right(t);
                    if r == NONE {
                        break;
                    }
                }
                match left_end {
                    NONE => left_root = t,
                    end => self.nodes[end as usize].right = t,
                }
                left_end = t;
                t = r;
            } else {
                break;
            }
        }
        let (l, r) = (self.left(t), self.right(t));
        match left_end {
            NONE => left_root = l,
            end => self.nodes[end as usize].right = l,
        }
        match right_end {
            NONE => right_root = r,
            end => self.nodes[end as usize].left = r,
        }
        self.nodes[t as usize].left = left_root;
        self.nodes[t as usize].right = right_root;
        self.root = t;
    }

    /// The range that holds `addr`; it is the root afterwards.
    pub fn lookup(&mut self, addr: u64) -> Option<(u64, u64, V)> {
        self.overlap(addr, addr.saturating_add(1))
    }

    /// The first range that shares a byte with `[start, end)`.
    pub fn overlap(&mut self, start: u64, end: u64) -> Option<(u64, u64, V)> {
        self.splay(start);
        let root = self.nodes.get(self.root as usize).copied()?;
        let found = if root.start <= start {
            if root.end > start {
                return Some((root.start, root.end, root.value));
            }
            self.edge(root.right, false)
        } else {
            // The one before it may reach further.
            match self.edge(root.left, true) {
                Some(n) if n.end > start => Some(n),
                _ => Some(root),
            }
        };
        found
            .filter(|n| n.start < end && start < n.end)
            .map(|n| (n.start, n.end, n.value))
    }

    fn edge(&self, mut at: u32, rightmost: bool) -> Option<Node<V>> {
        let mut last = None;
        while let Some(node) = self.nodes.get(at as usize) {
            last = Some(*node);
            at = if rightmost { node.right } else { node.left };
        }
        last
    }

    /// Adds a range that overlaps none.
    pub fn insert(&mut self, start: u64, end: u64, value: V) {
        let fresh = Node {
            start,
            end,
            value,
            left: NONE,
            right: NONE,
        };
        let n = match self.free.pop() {
            Some(n) => {
                self.nodes[n as usize] = fresh;
                n
            }
            None => {
                self.nodes.push(fresh);
                self.nodes.len() as u32 - 1
            }
        };
        if self.root == NONE {
            self.root = n;
            return;
        }
        self.splay(start);
        let t = self.root;
        if start < self.start(t) {
            self.nodes[n as usize].left = self.left(t);
            self.nodes[n as usize].right = t;
            self.nodes[t as usize].left = NONE;
        } else {
            self.nodes[n as usize].right = self.right(t);
            self.nodes[n as usize].left = t;
            self.nodes[t as usize].right = NONE;
        }
        self.root = n;
    }

    /// Removes the range that begins at `start`.
    pub fn remove(&mut self, start: u64) -> Option<(u64, u64, V)> {
        self.splay(start);
        let root = self.root;
        let node = self
            .nodes
            .get(root as usize)
            .copied()
            .filter(|n| n.start == start)?;
        if node.left == NONE {
            self.root = node.right;
        } else {
            self.root = node.left;
            self.splay(start); // the largest of the left part: nothing is to its right
            self.nodes[self.root as usize].right = node.right;
        }
        self.free.push(root);
        Some((node.start, node.end, node.value))
    }

    /// Takes out everything that touches `[start, end]`, the neighbours that end or begin there too.
    pub fn take_touching(&mut self, start: u64, end: u64) -> Vec<(u64, u64, V)> {
        let mut taken = Vec::new();
        while let Some(found) = self.overlap(start.saturating_sub(1), end.saturating_add(1)) {
            self.remove(found.0);
            taken.push(found);
        }
        taken
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        *self = Splay::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_empty_tree_holds_nothing() {
        let mut s: Splay<()> = Splay::new();
        assert_eq!((s.lookup(1), s.remove(1), s.len()), (None, None, 0));
    }

    #[test]
    fn what_was_found_is_the_root() {
        let mut s = Splay::new();
        for i in 0..100u64 {
            s.insert(i * 10, i * 10 + 4, i);
        }
        assert_eq!(s.lookup(503), Some((500, 504, 50)));
        assert_eq!(s.nodes[s.root as usize].value, 50);
        assert_eq!(s.lookup(504), None);
    }

    proptest! {
        #[test]
        fn as_a_sorted_map(ops in proptest::collection::vec((0u8..3, 0u64..200, 1u64..12), 1..200)) {
            let mut s = Splay::new();
            let mut m: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
            for (i, (op, start, len)) in ops.into_iter().enumerate() {
                let end = start + len;
                let first = m.iter().find(|&(&s, &(e, _))| s < end && start < e).map(|(&s, &(e, v))| (s, e, v));
                prop_assert_eq!(s.overlap(start, end), first);
                match op {
                    0 if first.is_none() => {
                        s.insert(start, end, i);
                        m.insert(start, (end, i));
                    }
                    1 => {
                        let expected = m.remove(&start).map(|(e, v)| (start, e, v));
                        prop_assert_eq!(s.remove(start), expected);
                    }
                    2 if len < 3 => {
                        let mut taken = s.take_touching(start, end);
                        taken.sort_unstable();
                        let gone: Vec<_> = m.iter().filter(|&(&s, &(e, _))| s <= end && start <= e && e > start.saturating_sub(1))
                            .map(|(&s, &(e, v))| (s, e, v)).collect();
                        gone.iter().for_each(|g| { m.remove(&g.0); });
                        prop_assert_eq!(taken, gone);
                    }
                    _ => {}
                }
                prop_assert_eq!(s.len(), m.len());
            }
        }
    }
}
