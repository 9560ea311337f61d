//! A pointer that changes under a watch that follows it.

use super::super::readings::Readings;
use super::super::table::{Table, some, times};
use super::super::tools::{PATCHED, Run};
use super::super::turns::Bench;
use anyhow::Result;

const CASE: &str = "following";
/// Name, how many blocks the pointer goes to, how many threads sleep meanwhile.
const VARIANTS: [(&str, &str, &str); 3] = [
    ("two blocks in turn", "2", "0"),
    ("a hundred blocks in turn", "100", "0"),
    ("two blocks, another thread asleep", "2", "1"),
];
const BARE: &str = "bare";
const WATCH: &str = "pointer->value";
/// Name, how many nodes a list has into which one more is linked, and out of which it is unlinked.
const LISTS: [(&str, &str); 2] = [
    ("a node of a list of ten", "10"),
    ("a node of a list of a thousand", "1000"),
];
const BARE_LIST: &str = "bare, a node of a list";
const NODES: &str = "list->*next.value";

pub fn run(bench: &mut Bench) -> Result<()> {
    let program = bench.programs.get("pointers")?;
    let count = if bench.quick { "2000" } else { "20000" };
    for _ in 0..bench.turns {
        let run = Run {
            program: &program,
            arguments: &["20000000", "2", "0"],
        };
        bench.reading(CASE, BARE, "ns", bench.bare(run)?.get("ns")?);
        for (name, places, threads) in VARIANTS {
            let run = Run {
                program: &program,
                arguments: &[count, places, threads],
            };
            let (measured, _) = bench.watched(&PATCHED, &[WATCH.into()], run)?;
            bench.reading(CASE, name, "ns", measured.get("ns")?);
        }
        let run = Run {
            program: &program,
            arguments: &["20000000", "2", "0", "10"],
        };
        bench.reading(CASE, BARE_LIST, "ns", bench.bare(run)?.get("ns")?);
        for (name, nodes) in LISTS {
            let run = Run {
                program: &program,
                arguments: &[count, "2", "0", nodes],
            };
            let (measured, _) = bench.watched(&PATCHED, &[NODES.into()], run)?;
            bench.reading(CASE, name, "ns", measured.get("ns")?);
        }
    }
    Ok(())
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "A pointer that changes, and a store through it, under a watch that follows",
        &["", "ns", "times as long as bare"],
    );
    t.row(&[BARE, &some(r.median(CASE, BARE, "ns")), &times(Some(1.0))]);
    for (name, ..) in VARIANTS {
        t.row(&[
            name,
            &some(r.median(CASE, name, "ns")),
            &times(r.ratio(CASE, name, BARE, "ns")),
        ]);
    }
    let bare = r.median(CASE, BARE_LIST, "ns");
    t.row(&[BARE_LIST, &some(bare), &times(Some(1.0))]);
    for (name, _) in LISTS {
        t.row(&[
            name,
            &some(r.median(CASE, name, "ns")),
            &times(r.ratio(CASE, name, BARE_LIST, "ns")),
        ]);
    }
    vec![t]
}
