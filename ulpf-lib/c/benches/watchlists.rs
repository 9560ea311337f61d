//! Speed of several structures for the query whether an access is watched. Section 5.1 of the thesis asks for this
//! comparison. Runs on its access patterns and on traces of real programs, and prints a table in Markdown.
//!
//! `cargo bench -p libulpf [-- TRACE…]`; a TRACE has a line `ADDRESS LENGTH` (hexadecimal, decimal) for each
//! access, as `benches/trace` makes them out of the log of `ulpf run`.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::time::Instant;

mod splay;

use splay::Splay;
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange, Watchlist};

const PAGE: u64 = 4096;
const BASE: u64 = 0x5555_0000_0000;

trait Structure {
    fn new(ranges: &[(u64, u64)]) -> Self;
    fn watched(&mut self, addr: u64, len: u64) -> bool;
}

impl Structure for Splay<()> {
    fn new(ranges: &[(u64, u64)]) -> Self {
        let mut s = Splay::new();
        ranges
            .iter()
            .for_each(|&(start, end)| s.insert(start, end, ()));
        s
    }
    fn watched(&mut self, addr: u64, len: u64) -> bool {
        self.overlap(addr, addr + len).is_some()
    }
}

impl Structure for BTreeMap<u64, u64> {
    fn new(ranges: &[(u64, u64)]) -> Self {
        ranges.iter().copied().collect()
    }
    fn watched(&mut self, addr: u64, len: u64) -> bool {
        self.range(..addr + len)
            .next_back()
            .is_some_and(|(_, &end)| end > addr)
    }
}

struct Sorted(Vec<(u64, u64)>);

impl Structure for Sorted {
    fn new(ranges: &[(u64, u64)]) -> Self {
        Sorted(ranges.to_vec())
    }
    fn watched(&mut self, addr: u64, len: u64) -> bool {
        let at = self.0.partition_point(|r| r.0 < addr + len);
        at > 0 && self.0[at - 1].1 > addr
    }
}

/// The structure of libulpf and the stub.
impl Structure for Watchlist {
    fn new(ranges: &[(u64, u64)]) -> Self {
        let mut list = Watchlist::new();
        let watches = ranges.iter().enumerate().map(|(i, &(start, end))| {
            let range = WatchRange::new(TargetAddr(start), end - start).unwrap();
            (WatchId(i as u32), range, WatchKind::Write)
        });
        list.insert_bulk(watches);
        list
    }
    fn watched(&mut self, addr: u64, len: u64) -> bool {
        self.any_overlap(TargetAddr(addr), len)
    }
}

/// A bit for each byte of a page that has watches.
struct Bitmap(HashMap<u64, Box<[u64; 64]>>);

impl Structure for Bitmap {
    fn new(ranges: &[(u64, u64)]) -> Self {
        let mut pages: HashMap<u64, Box<[u64; 64]>> = HashMap::new();
        for at in ranges.iter().flat_map(|r| r.0..r.1) {
            pages.entry(at / PAGE).or_insert_with(|| Box::new([0; 64]))
                [(at % PAGE / 64) as usize] |= 1 << (at % 64);
        }
        Bitmap(pages)
    }
    fn watched(&mut self, addr: u64, len: u64) -> bool {
        (addr / PAGE..=(addr + len - 1) / PAGE).any(|page| {
            let Some(bits) = self.0.get(&page) else {
                return false;
            };
            (addr.max(page * PAGE)..(addr + len).min((page + 1) * PAGE))
                .any(|at| bits[(at % PAGE / 64) as usize] >> (at % 64) & 1 != 0)
        })
    }
}

/// A Bloom filter over words of eight bytes, in front of the tree (section 5.1.2).
struct Bloom {
    bits: Vec<u64>,
    behind: Splay<()>,
}

impl Bloom {
    fn places(&self, word: u64) -> [usize; 3] {
        let hash = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mask = self.bits.len() * 64 - 1;
        [0, 21, 42].map(|by| (hash >> by) as usize & mask)
    }
}

impl Structure for Bloom {
    fn new(ranges: &[(u64, u64)]) -> Self {
        let words: u64 = ranges.iter().map(|r| (r.1 - 1) / 8 - r.0 / 8 + 1).sum();
        // Ten bits for a word, and three hashes: some two in a hundred are wrong. A cap, as a cache has one.
        let size = (words * 10 / 64 + 1).next_power_of_two().min(1 << 15);
        let mut bloom = Bloom {
            bits: vec![0; size as usize],
            behind: Splay::new(),
        };
        for word in ranges.iter().flat_map(|r| r.0 / 8..=(r.1 - 1) / 8) {
            for at in bloom.places(word) {
                bloom.bits[at / 64] |= 1 << (at % 64);
            }
        }
        bloom.behind = Structure::new(ranges);
        bloom
    }
    fn watched(&mut self, addr: u64, len: u64) -> bool {
        let maybe = (addr / 8..=(addr + len - 1) / 8).any(|word| {
            self.places(word)
                .iter()
                .all(|at| self.bits[at / 64] >> (at % 64) & 1 != 0)
        });
        maybe && self.behind.overlap(addr, addr + len).is_some()
    }
}

struct Case {
    name: String,
    ranges: Vec<(u64, u64)>,
    accesses: Vec<(u64, u64)>,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// A store to each byte of the pages that have watches: what faults in the thesis's loop.
fn sweep(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut pages: Vec<u64> = ranges
        .iter()
        .flat_map(|r| r.0 / PAGE..=(r.1 - 1) / PAGE)
        .collect();
    pages.dedup();
    pages
        .iter()
        .flat_map(|p| (p * PAGE..(p + 1) * PAGE).map(|at| (at, 1)))
        .collect()
}

fn thesis() -> Vec<Case> {
    let mut random = Random(1);
    let mut cases = Vec::new();
    let mut case = |name: &str, mut ranges: Vec<(u64, u64)>, accesses: Option<Vec<(u64, u64)>>| {
        ranges.sort_unstable();
        ranges.dedup_by_key(|r| r.0);
        let accesses = accesses.unwrap_or_else(|| sweep(&ranges));
        cases.push(Case {
            name: name.into(),
            ranges,
            accesses,
        });
    };
    let mut bytes = |n: u64| {
        (0..n)
            .map(|_| BASE + random.below(256 * PAGE))
            .map(|a| (a, a + 1))
            .collect::<Vec<_>>()
    };
    case("sparse, 8 watches", bytes(8), None);
    case("sparse, 256 watches", bytes(256), None);
    case(
        "dense, 48 watches",
        (0..48)
            .map(|i| (BASE + i * 256, BASE + i * 256 + 1))
            .collect(),
        None,
    );
    case(
        "one on each of 256 pages",
        (0..256)
            .map(|i| (BASE + i * PAGE, BASE + i * PAGE + 1))
            .collect(),
        None,
    );
    case(
        "all of 256 pages, one range",
        vec![(BASE, BASE + 256 * PAGE)],
        None,
    );
    let blocks: Vec<(u64, u64)> = (0..100_000)
        .map(|i| (BASE + i * 48, BASE + i * 48 + 32))
        .collect();
    let anywhere = (0..1_000_000)
        .map(|_| (BASE + random.below(100_000 * 48 / 8) * 8, 8))
        .collect();
    case(
        "100,000 heap blocks, accesses anywhere",
        blocks.clone(),
        Some(anywhere),
    );
    let near = (0..1_000_000u64)
        .map(|i| (BASE + (i / 1000 * 48 + random.below(64) * 8) % 4_700_000, 8))
        .collect();
    case("100,000 heap blocks, accesses near by", blocks, Some(near));
    cases
}

/// Every fourth place of sixteen bytes that the trace touches is watched.
fn trace(path: &str) -> Case {
    let text = std::fs::read_to_string(path).expect("a trace");
    let accesses: Vec<(u64, u64)> = text
        .lines()
        .filter_map(|line| {
            let (addr, len) = line.split_once(' ')?;
            Some((
                u64::from_str_radix(addr.trim_start_matches("0x"), 16).ok()?,
                len.parse().ok()?,
            ))
        })
        .collect();
    let mut places: Vec<u64> = accesses
        .iter()
        .map(|a| a.0 / 16 * 16)
        .filter(|a| a / 16 % 4 == 0)
        .collect();
    places.sort_unstable();
    places.dedup();
    let name = std::path::Path::new(path)
        .file_stem()
        .unwrap()
        .to_string_lossy();
    let ranges: Vec<_> = places.iter().map(|&a| (a, a + 16)).collect();
    Case {
        name: format!("trace of {name}, {} watches", ranges.len()),
        ranges,
        accesses,
    }
}

/// Nanoseconds for an access, the best of five; and how many were watched.
fn measure<S: Structure>(case: &Case) -> (f64, usize) {
    let mut s = S::new(&case.ranges);
    let mut hits = 0;
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            hits = case
                .accesses
                .iter()
                .filter(|a| black_box(s.watched(a.0, a.1)))
                .count();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    (best * 1e9 / case.accesses.len() as f64, hits)
}

fn main() {
    let mut cases = thesis();
    cases.extend(
        std::env::args()
            .skip(1)
            .filter(|a| !a.starts_with("--"))
            .map(|a| trace(&a)),
    );
    println!("| | splay | B-tree | sorted array | page bitmap | Bloom, splay | ulpf | hits |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for case in &cases {
        let results = [
            measure::<Splay<()>>(case),
            measure::<BTreeMap<u64, u64>>(case),
            measure::<Sorted>(case),
            measure::<Bitmap>(case),
            measure::<Bloom>(case),
            measure::<Watchlist>(case),
        ];
        assert!(
            results.iter().all(|r| r.1 == results[0].1),
            "{}: {results:?}",
            case.name
        );
        let best = results.iter().map(|r| r.0).fold(f64::INFINITY, f64::min);
        let cells = results.map(|(ns, _)| {
            if ns == best {
                format!("**{ns:.1}**")
            } else {
                format!("{ns:.1}")
            }
        });
        let share = 100 * results[0].1 / case.accesses.len().max(1);
        println!("| {} | {} | {share} % |", case.name, cells.join(" | "));
    }
}
