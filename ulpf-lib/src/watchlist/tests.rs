use super::*;
use crate::addr::{PAGE_SIZE, TargetAddr};
use crate::pages::Guard;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn range(start: u64, len: u64) -> WatchRange {
    WatchRange::new(TargetAddr(start), len).unwrap()
}

fn overlaps(list: &Watchlist, addr: u64, len: u64) -> Vec<u32> {
    let mut ids = Vec::new();
    list.for_each_overlap(TargetAddr(addr), len, &mut |id, _, _| ids.push(id.0));
    ids
}

#[test]
fn nested_adjacent_and_duplicate_ranges_are_each_reported() {
    let mut list = Watchlist::new();
    let ranges = [
        (0x1000, 0x100),
        (0x1010, 8),
        (0x1018, 8),
        (0x1010, 8),
        (0x1000, 1 << 30),
    ];
    for (i, &(start, len)) in ranges.iter().enumerate() {
        assert!(list.insert(WatchId(i as u32), range(start, len), WatchKind::Write));
    }
    assert_eq!(overlaps(&list, 0x1017, 1), [0, 4, 1, 3]);
    assert_eq!(overlaps(&list, 0x1017, 2), [0, 4, 1, 3, 2]);
    assert_eq!(overlaps(&list, 0xfff, 1), []);
    assert_eq!(overlaps(&list, 0xfff, 2), [0, 4]);
    assert_eq!(overlaps(&list, 0x1000 + (1 << 30) - 1, 8), [4]);
    assert_eq!(overlaps(&list, 0x1000 + (1 << 30), 8), []);
    assert_eq!(overlaps(&list, 0x1010, 0), []);
    assert_eq!(
        list.remove_range(range(0x1010, 8), WatchKind::Write),
        Some(WatchId(3))
    );
    assert_eq!(list.remove_range(range(0x1010, 8), WatchKind::Read), None);
    assert_eq!(
        list.remove_range(range(0x1010, 8), WatchKind::Write),
        Some(WatchId(1))
    );
    assert_eq!(list.remove_range(range(0x1010, 8), WatchKind::Write), None);
}

#[test]
fn what_user_space_cannot_hold_is_not_taken() {
    let mut list = Watchlist::new();
    assert!(!list.insert(
        WatchId(0),
        range(0xffff_8000_0000_0000, 8),
        WatchKind::Write
    ));
    assert!(!list.insert(WatchId(0), range((1 << 47) - 4, 8), WatchKind::Write));
    assert!(!list.insert(WatchId(WATCH_ID_END), range(0x1000, 8), WatchKind::Write));
    assert!(list.insert(WatchId(7), range(0, (1 << 47) - 1), WatchKind::Write));
    assert!(
        !list.insert(WatchId(7), range(0x1000, 8), WatchKind::Write),
        "number in use"
    );
    assert!(list.any_overlap(TargetAddr((1 << 47) - 2), 8));
    assert!(!list.any_overlap(TargetAddr(u64::MAX - 3), u64::MAX));
}

#[test]
fn a_huge_range_below_a_million_small_ones_is_still_found() {
    let mut list = Watchlist::new();
    let huge = (WatchId(0), range(0x10_0000, 1 << 40), WatchKind::Access);
    let small = (1..=100_000).map(|i| {
        (
            WatchId(i),
            range(0x20_0000 + i as u64 * 64, 8),
            WatchKind::Write,
        )
    });
    assert_eq!(
        list.insert_bulk(core::iter::once(huge).chain(small)),
        100_001
    );
    assert_eq!(overlaps(&list, 0x20_0000 + 99_999 * 64, 1), [0, 99_999]);
    assert_eq!(overlaps(&list, 0x20_0000 + 99_999 * 64 + 8, 1), [0]);
    assert_eq!(
        list.get(WatchId(99_999)),
        Some((range(0x20_0000 + 99_999 * 64, 8), WatchKind::Write))
    );
}

#[test]
fn a_million_watches_stay_small() {
    let mut list = Watchlist::new();
    list.insert_bulk((0..1_000_000).map(|i| {
        (
            WatchId(i),
            range(0x1000_0000 + i as u64 * 24, 8),
            WatchKind::Write,
        )
    }));
    assert!(
        list.memory() <= 24 * 1_000_000,
        "{} bytes for a million watches",
        list.memory()
    );
}

#[test]
fn page_runs_carry_the_strongest_guard() {
    let mut list = Watchlist::new();
    for (i, (start, len, kind)) in [
        (0x1ff8, 16, WatchKind::Write),     // pages 1, 2
        (0x2800, 1, WatchKind::Read),       // page 2
        (0x3000, 0x3000, WatchKind::Write), // pages 3 to 5
        (0x8000, 1, WatchKind::Access),
        (0x9000, 1, WatchKind::Read),
    ]
    .into_iter()
    .enumerate()
    {
        list.insert(WatchId(i as u32), range(start, len), kind);
    }
    let runs: Vec<_> = list
        .pages()
        .map(|r| (r.start.0, r.end.0, r.guard))
        .collect();
    assert_eq!(
        runs,
        [
            (0x1000, 0x2000, Guard::NoWrite),
            (0x2000, 0x3000, Guard::NoAccess),
            (0x3000, 0x6000, Guard::NoWrite),
            (0x8000, 0xa000, Guard::NoAccess),
        ]
    );
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u64, u8),
    Remove(usize),
    RemoveRange(usize),
    Bulk(Vec<(u64, u64, u8)>),
    Query(u64, u64),
}

fn kind(k: u8) -> WatchKind {
    [WatchKind::Write, WatchKind::Read, WatchKind::Access][k as usize % 3]
}

fn ops() -> impl Strategy<Value = Op> {
    // A small space, so that ranges meet, with a huge one now and then.
    let len = prop_oneof![8 => 1u64..64, 1 => 1u64..20_000, 1 => Just(1u64 << 30)];
    let watch = (0u64..40_000, len, 0u8..3);
    prop_oneof![
        10 => watch.clone().prop_map(|(a, l, k)| Op::Insert(a, l, k)),
        4 => any::<usize>().prop_map(Op::Remove),
        2 => any::<usize>().prop_map(Op::RemoveRange),
        1 => proptest::collection::vec(watch, 0..200).prop_map(Op::Bulk),
        6 => (0u64..45_000, 1u64..100).prop_map(|(a, l)| Op::Query(a, l)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_a_plain_list(ops in proptest::collection::vec(ops(), 1..250)) {
        let mut list = Watchlist::new();
        let mut model: BTreeMap<u32, (WatchRange, WatchKind)> = BTreeMap::new();
        let mut next = 0;
        for op in ops {
            match op {
                Op::Insert(a, l, k) => {
                    prop_assert!(list.insert(WatchId(next), range(a, l), kind(k)));
                    model.insert(next, (range(a, l), kind(k)));
                    next += 1;
                }
                Op::Bulk(all) => {
                    let all: Vec<_> = all.into_iter().map(|(a, l, k)| {
                        next += 1;
                        (WatchId(next - 1), range(a, l), kind(k))
                    }).collect();
                    list.insert_bulk(all.iter().copied());
                    model.extend(all.into_iter().map(|(id, r, k)| (id.0, (r, k))));
                }
                Op::Remove(i) if !model.is_empty() => {
                    let id = *model.keys().nth(i % model.len()).unwrap();
                    prop_assert_eq!(list.remove(WatchId(id)), model.remove(&id));
                    prop_assert_eq!(list.remove(WatchId(id)), None);
                }
                Op::RemoveRange(i) if !model.is_empty() => {
                    let (r, k) = *model.values().nth(i % model.len()).unwrap();
                    let id = list.remove_range(r, k).unwrap();
                    prop_assert_eq!(model.remove(&id.0), Some((r, k)));
                }
                Op::Query(a, l) => {
                    let mut got = overlaps(&list, a, l);
                    got.sort_unstable();
                    let want: Vec<u32> = model.iter().filter(|(_, (r, _))| r.overlaps(TargetAddr(a), l)).map(|(id, _)| *id).collect();
                    prop_assert_eq!(list.any_overlap(TargetAddr(a), l), !want.is_empty());
                    prop_assert_eq!(got, want);
                }
                _ => {}
            }
            prop_assert_eq!(list.len(), model.len());
        }
        let mut all: Vec<_> = list.iter().map(|(id, r, k)| (id.0, (r, k))).collect();
        prop_assert!(all.windows(2).all(|w| w[0].1.0 <= w[1].1.0));
        all.sort_unstable_by_key(|w| w.0);
        prop_assert_eq!(all, model.iter().map(|(i, w)| (*i, *w)).collect::<Vec<_>>());

        // Pages, by brute force.
        let small: Vec<_> = model.values().filter(|(r, _)| r.len < 1 << 30).copied().collect();
        let mut bounded = Watchlist::new();
        bounded.insert_bulk(small.iter().enumerate().map(|(i, (r, k))| (WatchId(i as u32), *r, *k)));
        let mut pages: BTreeMap<u64, Guard> = BTreeMap::new();
        for (r, k) in small {
            for page in r.start.page_number()..=(r.end().0 - 1) / PAGE_SIZE {
                let guard = pages.entry(page).or_insert(Guard::NoWrite);
                *guard = (*guard).max(Guard::needed_by(k));
            }
        }
        let mut runs: Vec<PageRun> = Vec::new();
        for (page, guard) in pages {
            let (start, end) = (TargetAddr(page * PAGE_SIZE), TargetAddr((page + 1) * PAGE_SIZE));
            match runs.last_mut() {
                Some(last) if last.end == start && last.guard == guard => last.end = end,
                _ => runs.push(PageRun { start, end, guard }),
            }
        }
        prop_assert_eq!(bounded.pages().collect::<Vec<_>>(), runs);
    }
}
