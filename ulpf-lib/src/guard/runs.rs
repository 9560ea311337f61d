//! A map from address ranges to values, kept as maximal runs.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

pub struct Runs<V> {
    /// start → (end, value); disjoint; neighbours that touch differ in value.
    map: BTreeMap<u64, (u64, V)>,
}

impl<V: Copy + PartialEq> Runs<V> {
    pub const fn new() -> Runs<V> {
        Runs {
            map: BTreeMap::new(),
        }
    }
    /// The run that holds `at`.
    pub fn get(&self, at: u64) -> Option<(u64, u64, V)> {
        let (&start, &(end, value)) = self.map.range(..=at).next_back()?;
        (at < end).then_some((start, end, value))
    }
    /// Runs that meet `[start, end)`, cut to it, ascending.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, V)> + '_ {
        let from = self.get(start).map_or(start, |(s, ..)| s);
        self.map
            .range(from..end.max(from))
            .map(move |(&s, &(e, v))| (s.max(start), e.min(end), v))
    }
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, V)> + '_ {
        self.map.iter().map(|(&s, &(e, v))| (s, e, v))
    }
    /// Whether every byte of `[start, end)` is in some run.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.get(at) {
                Some((_, e, _)) => at = e,
                None => return false,
            }
        }
        true
    }
    pub fn meets(&self, start: u64, end: u64) -> bool {
        self.within(start, end).next().is_some()
    }
    pub fn insert(&mut self, mut start: u64, mut end: u64, value: V) {
        if start >= end {
            return;
        }
        self.remove(start, end);
        if let Some((&s, &(e, v))) = self.map.range(..start).next_back()
            && e == start
            && v == value
        {
            self.map.remove(&s);
            start = s;
        }
        if let Some(&(e, v)) = self.map.get(&end)
            && v == value
        {
            self.map.remove(&end);
            end = e;
        }
        self.map.insert(start, (end, value));
    }
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if let Some((s, e, v)) = self.get(start)
            && s < start
        {
            self.map.insert(s, (start, v));
            self.map.insert(start, (e, v));
        }
        if let Some((s, e, v)) = self.get(end)
            && s < end
        {
            self.map.insert(s, (end, v));
            self.map.insert(end, (e, v));
        }
        let inside: Vec<u64> = self.map.range(start..end).map(|(&s, _)| s).collect();
        for s in inside {
            self.map.remove(&s);
        }
    }
    pub fn clear(&mut self) {
        self.map.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_an_array(ops in proptest::collection::vec((0u64..64, 0u64..20, 0u8..4), 0..60)) {
            let mut runs = Runs::new();
            let mut model = [0u8; 90];
            for (start, len, value) in ops {
                let end = start + len;
                if value == 0 { runs.remove(start, end) } else { runs.insert(start, end, value) }
                model[start as usize..end as usize].fill(value);
                for (at, &want) in model.iter().enumerate() {
                    prop_assert_eq!(runs.get(at as u64).map_or(0, |r| r.2), want);
                }
                let all: Vec<_> = runs.iter().collect();
                prop_assert!(all.windows(2).all(|w| w[0].1 < w[1].0 || w[0].1 == w[1].0 && w[0].2 != w[1].2));
                prop_assert_eq!(runs.covers(start, end), model[start as usize..end as usize].iter().all(|v| *v != 0));
                let cut: u64 = runs.within(start, end).map(|(s, e, _)| e - s).sum();
                prop_assert_eq!(cut, model[start as usize..end as usize].iter().filter(|v| **v != 0).count() as u64);
            }
        }
    }
}
