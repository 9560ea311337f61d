//! The table of filters, tests/filters.json.

use super::*;
use serde_json::Value;

/// Memory in which each byte is the end of its address, and rax, which is 7.
struct Small;

impl Program for Small {
    fn register(&mut self, number: u16) -> Option<u64> {
        (number == 0).then_some(7)
    }
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        for (n, byte) in to.iter_mut().enumerate() {
            *byte = (addr + n as u64) as u8;
        }
        (0x1000..0x1100).contains(&addr)
    }
    fn process(&mut self) -> u64 {
        42
    }
    fn thread_pointer(&mut self) -> Option<u64> {
        None
    }
    fn callers(&mut self) -> [Option<u64>; 2] {
        [None, Some(0x500010)]
    }
}

fn parse(words: &str) -> Result<Filter, String> {
    let (mut filter, mut rest) = (Filter::default(), words.split_ascii_whitespace());
    while let Some(word) = rest.next() {
        if !filter.take(word, &mut rest)? {
            return Err(format!("`{word}` says nothing about hits"));
        }
    }
    Ok(filter)
}

fn hit<'a>(filter: &Filter, kind: AccessKind, old: &'a [u8]) -> Candidate<'a> {
    Candidate {
        pc: 0x400010,
        thread: 3,
        kind,
        start: 0x1001,
        len: 1,
        watch: 0x1000..0x1004,
        old: Some(old),
        silent: false,
        number: 5,
        unit: filter.unit_of(Some(4)),
    }
}

fn table(name: &str) -> Vec<Value> {
    let text = include_str!("../../../tests/filters.json");
    let mut table: Value = serde_json::from_str(text).unwrap();
    match table[name].take() {
        Value::Array(cases) => cases,
        other => panic!("{other}"),
    }
}

#[test]
fn the_table() {
    for case in table("cases") {
        let parsed = parse(case["words"].as_str().unwrap());
        if let Some(why) = case["refused"].as_str() {
            assert!(parsed.unwrap_err().contains(why), "{case}");
            continue;
        }
        let filter = parsed.unwrap_or_else(|why| panic!("{case}: {why}"));
        let kind = match case["kind"].as_str() {
            Some("read") => AccessKind::Read,
            Some("both") => AccessKind::ReadWrite,
            _ => AccessKind::Write,
        };
        let old: &[u8] = match case["old"].is_array() {
            true => &[],
            false => &[9],
        };
        let candidate = Candidate {
            silent: case["silent"] == true,
            ..hit(&filter, kind, old)
        };
        let verdict = filter.passes(&candidate, &mut Small, || 0);
        let failed = verdict.failed.map(|e| e.to_string());
        assert_eq!(verdict.passes, case["passes"] == true, "{case}");
        assert_eq!(failed.as_deref(), case["failed"].as_str(), "{case}");
    }
}

#[test]
fn printed_and_read_again() {
    let all = table("cases")
        .into_iter()
        .filter(|c| c["refused"].is_null());
    for case in all {
        let words = case["words"].as_str().unwrap();
        let filter = parse(words).unwrap();
        assert_eq!(parse(&filter.to_string()).as_ref(), Ok(&filter), "{words}");
    }
    for case in table("clauses") {
        let words = case["words"].as_str().unwrap();
        assert_eq!(parse(words).unwrap().to_string().trim_start(), words);
    }
}

#[test]
fn the_main_thread_has_the_number_of_its_process() {
    let filter = parse("thread main").unwrap();
    let main = Candidate {
        thread: 42,
        ..hit(&filter, AccessKind::Write, &[9])
    };
    assert!(filter.passes(&main, &mut Small, || 0).passes);
}

#[test]
fn skip_and_count() {
    let filter = parse("skip 2 count 3").unwrap();
    let candidate = hit(&filter, AccessKind::Write, &[9]);
    let passing = (0..10).filter(|n| filter.passes(&candidate, &mut Small, || *n).passes);
    assert_eq!(passing.collect::<Vec<_>>(), [2, 3, 4]);
    // Hits that other tests have rejected are not counted.
    let other = parse("thread 4 skip 1").unwrap();
    assert!(!other.passes(&candidate, &mut Small, || panic!()).passes);
}

#[test]
fn elements() {
    // The access touches the first two of four elements with two bytes each.
    let pass = |words: &str| {
        let filter = parse(words).unwrap();
        let candidate = Candidate {
            start: 0x1001,
            len: 2,
            watch: 0x1000..0x1008,
            ..hit(&filter, AccessKind::Write, &[9, 9])
        };
        filter.passes(&candidate, &mut Small, || 0).passes
    };
    assert!(pass("unit 2 old == 0x0900") && pass("unit 2 old == 0x0309"));
    assert!(!pass("unit 2 new == 0x0504"));
    // One element has to meet all conditions.
    assert!(!pass("unit 2 old == 0x0900 new == 0x0302"));
}

#[test]
fn units() {
    let filter = parse("new == 1").unwrap();
    assert_eq!(
        [Some(1), Some(8), Some(9), None].map(|len| filter.unit_of(len)),
        [1, 8, 0, 0]
    );
    assert_eq!(parse("unit 4").unwrap().unit_of(Some(8)), 4);
}

#[test]
fn ranges_are_put_in_order() {
    let ranges = Ranges::new(true, vec![(5, 9), (1, 3), (3, 4), (8, 12), (20, 20)]);
    assert_eq!(ranges.list(), [(1, 4), (5, 12)]);
}
