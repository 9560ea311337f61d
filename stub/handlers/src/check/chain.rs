//! A queue of freed slots, linked through their records.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::arena::GRANULE;
use super::blocks::{Granule, Slot, expect, get, granule, offset, set_next};

/// Slots, the oldest first; each record names the next one.
pub struct Chain {
    first: AtomicU32,
    last: AtomicU32,
    bytes: AtomicU64,
}

/// A chain that has been taken out and has one owner.
pub struct Loose {
    pub first: u32,
    pub last: u32,
    pub bytes: u64,
}

impl Chain {
    pub const fn empty() -> Chain {
        Chain {
            first: AtomicU32::new(0),
            last: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub fn append(&self, more: &Loose) {
        match self.last.load(Relaxed) {
            0 => self.first.store(more.first, Relaxed),
            last => set_next(offset(last), more.first),
        }
        self.last.store(more.last, Relaxed);
        self.bytes
            .store(self.bytes.load(Relaxed) + more.bytes, Relaxed);
    }

    pub fn take_all(&self) -> Loose {
        Loose {
            first: self.first.swap(0, Relaxed),
            last: self.last.swap(0, Relaxed),
            bytes: self.bytes.swap(0, Relaxed),
        }
    }

    /// Takes the oldest slots until at most `left` bytes remain. (The `next` of the last slot taken does not belong to
    /// the result.)
    pub fn take_until(&self, left: u64) -> Option<Loose> {
        let first = Some(self.first.load(Relaxed)).filter(|first| *first != 0)?;
        let (mut last, mut next, mut bytes) = (0, first, 0);
        let all = self.bytes.load(Relaxed);
        while next != 0 && all - bytes > left {
            (last, next) = (next, get(offset(next)).next);
            if next != 0 {
                expect(offset(next));
            }
            bytes += bytes_of(offset(last));
        }
        (bytes > 0).then_some(())?;
        self.first.store(next, Relaxed);
        if next == 0 {
            self.last.store(0, Relaxed);
        }
        self.bytes.store(all - bytes, Relaxed);
        Some(Loose { first, last, bytes })
    }
}

/// Bytes that a slot counts for.
fn bytes_of(slot: u64) -> u64 {
    let bytes = match granule(slot & !(GRANULE - 1)) {
        Granule::Small(size) => size,
        Granule::Large(n) => n * GRANULE,
        _ => return 0,
    };
    takes(bytes)
}

/// Bytes that a freed slot of `bytes` counts for: with its record, and a bit for each byte.
pub fn takes(bytes: u64) -> u64 {
    bytes + bytes / 8 + size_of::<Slot>() as u64
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::blocks::set_granule;
    use super::super::tests::fixture::Heap;
    use super::*;

    const SIZE: u64 = 48;
    const LARGE: u64 = 3 * GRANULE;

    #[derive(Clone, Debug)]
    enum Op {
        Append(usize),
        TakeAll,
        TakeUntil(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1usize..5).prop_map(Op::Append),
            1 => Just(Op::TakeAll),
            3 => (0u64..1200).prop_map(Op::TakeUntil),
        ]
    }

    fn slots(loose: &Loose) -> Vec<u64> {
        let mut all = vec![offset(loose.first)];
        while all.last() != Some(&offset(loose.last)) {
            all.push(offset(get(*all.last().unwrap()).next));
        }
        all
    }

    fn loose(of: &[u64]) -> Loose {
        for two in of.windows(2) {
            set_next(two[0], super::super::blocks::link(two[1]));
        }
        Loose {
            first: super::super::blocks::link(of[0]),
            last: super::super::blocks::link(of[of.len() - 1]),
            bytes: of.iter().map(|slot| bytes_of(*slot)).sum(),
        }
    }

    #[test]
    fn a_slot_takes_its_record_and_its_bits_too() {
        let _heap = Heap::new(1 << 20, 0);
        set_granule(GRANULE, Granule::Small(SIZE), 0);
        set_granule(2 * GRANULE, Granule::Large(3), 0);
        assert_eq!(bytes_of(GRANULE + 2 * SIZE), SIZE + SIZE / 8 + 32);
        assert_eq!(bytes_of(2 * GRANULE), LARGE + LARGE / 8 + 32);
        assert_eq!(bytes_of(9 * GRANULE), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn a_chain_is_a_queue(ops in vec(op(), 1..60)) {
            let _heap = Heap::new(1 << 20, 0);
            set_granule(GRANULE, Granule::Small(SIZE), 0);
            let each = takes(SIZE);
            let mut unused = (0..).map(|n| GRANULE + n * SIZE);
            let (chain, mut model) = (Chain::empty(), VecDeque::new());
            for op in ops {
                match op {
                    Op::Append(n) => {
                        let more: Vec<u64> = unused.by_ref().take(n).collect();
                        chain.append(&loose(&more));
                        model.extend(more);
                    }
                    Op::TakeAll => {
                        let all = chain.take_all();
                        prop_assert_eq!(all.bytes, model.len() as u64 * each);
                        if !model.is_empty() {
                            prop_assert_eq!(slots(&all), model.drain(..).collect::<Vec<_>>());
                        }
                    }
                    Op::TakeUntil(left) => {
                        let mut want = Vec::new();
                        while model.len() as u64 * each > left {
                            want.extend(model.pop_front());
                        }
                        let taken = chain.take_until(left);
                        let bytes = taken.as_ref().map_or(0, |t| t.bytes);
                        prop_assert_eq!(bytes, want.len() as u64 * each);
                        prop_assert_eq!(taken.as_ref().map_or(vec![], slots), want);
                    }
                }
                prop_assert_eq!(chain.bytes(), model.len() as u64 * each);
            }
        }
    }
}
