//! The thesis's loop: each byte of 256 pages stored in address order, with watches here and there.

use super::super::published::{Sparse, TABLE_4_3, TABLE_4_4, TABLE_4_5};
use super::super::readings::Readings;
use super::super::svg::{self, Line};
use super::super::table::{Goal, Table, Unit, count, some, times};
use super::super::tools::{How, PATCHED, Peer, Run, TRAP};
use super::super::turns::Bench;
use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::path::Path;

const PAGES: usize = 256;
const PAGE: usize = 4096;

/// The same addresses in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// Random bytes of the block: so many, on so many of its pages.
fn random(watches: usize, pages: usize) -> BTreeSet<usize> {
    let mut random = Random(watches as u64 + 1);
    let mut chosen = BTreeSet::new();
    while chosen.len() < pages {
        chosen.insert(random.below(PAGES));
    }
    let chosen: Vec<usize> = chosen.into_iter().collect();
    let mut bytes: BTreeSet<usize> = chosen
        .iter()
        .map(|page| page * PAGE + random.below(PAGE))
        .collect();
    while bytes.len() < watches {
        bytes.insert(chosen[random.below(pages)] * PAGE + random.below(PAGE));
    }
    bytes
}

/// Watches in a row of a table.
enum Watches {
    Bytes(BTreeSet<usize>),
    All,
}

impl Watches {
    fn specs(&self) -> Vec<String> {
        match self {
            Watches::Bytes(bytes) => bytes.iter().map(|b| format!("block+{b}:1")).collect(),
            Watches::All => vec![format!("block:{}", PAGES * PAGE)],
        }
    }
    fn gdb(&self) -> Option<String> {
        match self {
            Watches::Bytes(bytes) => Some(gdb_watches(bytes.iter())),
            Watches::All => None,
        }
    }
}

/// Conditions that do not hold: a hit does not stop.
pub fn gdb_watches<'a>(bytes: impl Iterator<Item = &'a usize>) -> String {
    let lines: Vec<String> = bytes
        .map(|b| format!("watch -l block[{b}] if 1 == 0"))
        .collect();
    lines.join("\n")
}

/// Under `ulpf run`; its counters must tell every store.
pub fn ulpf(
    bench: &mut Bench,
    (case, variant): (&'static str, &str),
    how: &How,
    watches: &[String],
    expected: (u64, u64),
    run: Run,
) -> Result<()> {
    let (measured, counted) = bench.watched(how, watches, run)?;
    let rounds = measured.get("rounds")? as u64;
    let (hits, others) = (expected.0 * rounds, expected.1 * rounds);
    ensure!(
        (counted.hits, counted.false_positives) == (hits, others),
        "{variant}: {rounds} rounds have {hits} hits and {others} false positives, but {} and {} were counted",
        counted.hits,
        counted.false_positives
    );
    bench.reading(case, variant, "ns", measured.get("ns")?);
    bench.reading(case, variant, "cycles", measured.get("cycles")?);
    bench.reading(case, variant, "ns, first round", measured.get("first")?);
    Ok(())
}

struct Row {
    watches: usize,
    pages: usize,
    what: Watches,
}

impl Row {
    /// Hits and false positives of a round.
    fn expected(&self) -> (u64, u64) {
        (
            self.watches as u64,
            (self.pages * PAGE - self.watches) as u64,
        )
    }
    fn name(&self, who: &str) -> String {
        format!("{} watches, {who}", self.watches)
    }
}

fn table(bench: &mut Bench, case: &'static str, rows: &[Row], peers: bool) -> Result<()> {
    let program = bench.programs.sweep("-O2")?;
    let seconds = if bench.quick { "0.15" } else { "0.5" };
    let long = Run {
        program: &program,
        arguments: &["256", "1000", seconds],
    };
    for turn in 0..bench.turns {
        for row in rows {
            let bare = bench.bare(long)?;
            bench.reading(case, "bare", "ns", bare.get("ns")?);
            bench.reading(case, "bare", "cycles", bare.get("cycles")?);
            let specs = row.what.specs();
            let name = row.name("patched");
            ulpf(bench, (case, &name), &PATCHED, &specs, row.expected(), long)?;
            // Two microseconds a store: a round of 256 pages takes two seconds.
            let most = if bench.quick { 4 } else { 256 };
            if row.pages <= most && (turn == 0 || row.pages <= 16) {
                let name = row.name("trap");
                let once = Run {
                    arguments: &["256", "1", "0"],
                    ..long
                };
                ulpf(bench, (case, &name), &TRAP, &specs, row.expected(), once)?;
            }
        }
        if peers {
            let count = if bench.quick { "2000" } else { "20000" };
            let one = bench.bare(Run {
                program: &bench.programs.get("open_step_close")?,
                arguments: &[count],
            })?;
            bench.reading(case, "open-step-close", "ns", one.get("ns")?);
        }
    }
    if peers {
        for row in rows {
            others(bench, case, row, &program)?;
        }
    }
    Ok(())
}

/// Debuggers, once.
fn others(bench: &mut Bench, case: &'static str, row: &Row, program: &Path) -> Result<()> {
    let Some(script) = row.what.gdb() else {
        return Ok(());
    };
    let hardware = row.watches <= 4 && (!bench.quick || row.watches == 1);
    // These take seconds each.
    let slow = match bench.quick {
        true => row.watches == 1,
        false => [1, 4, 16, 64, 256].contains(&row.watches),
    };
    for (peer, who, takes_part) in [
        (Peer::Gdb, "gdb hardware", hardware),
        (Peer::Gdbserver, "gdbserver", hardware),
        (Peer::Valgrind, "valgrind", slow),
    ] {
        if !takes_part {
            continue;
        }
        if let Some(why) = peer.missing() {
            bench.skip(who, &why);
            continue;
        }
        let rounds = if peer == Peer::Valgrind { "3" } else { "21" };
        let arguments = &["256", rounds, "60"];
        let measured = bench.peer(peer, &script, Run { program, arguments })?;
        bench.reading(case, &row.name(who), "ns", measured.get("ns")?);
    }
    if slow
        && Peer::Gdb.missing().is_none()
        && let Some(ns) = software(bench, &script, program, row.watches)?
    {
        bench.reading(case, &row.name("gdb software"), "ns", ns);
    }
    Ok(())
}

/// gdb's software watches: each instruction is a single step, at each all watches are looked at. A store
/// takes what a longer slice of the loop takes more than a shorter one (the clock is stepped, too).
/// `None`: the machine was too busy to tell.
pub fn software(
    bench: &Bench,
    script: &str,
    program: &Path,
    watches: usize,
) -> Result<Option<f64>> {
    let script =
        format!("set can-use-hw-watchpoints 0\n{script}\nbreak measured\ncontinue\ndelete");
    let few = (if bench.quick { 200 } else { 800 } / (watches + 4)).clamp(16, 50);
    let slice = |stores: usize| {
        let arguments = &["256", "1", "0", &stores.to_string()];
        let measured = bench.peer(Peer::Gdb, &script, Run { program, arguments })?;
        Ok::<f64, anyhow::Error>(measured.get("ns")? * stores as f64)
    };
    let each = (slice(8 * few)? - slice(few)?) / (7 * few) as f64;
    Ok((each > 0.0).then_some(each))
}

// ---- table 4.3 --------------------------------------------------------------------------------------

pub fn sparse(bench: &mut Bench) -> Result<()> {
    let quick = bench.quick;
    let rows: Vec<Row> = TABLE_4_3
        .iter()
        .filter(|r| !quick || [1, 16, 256].contains(&r.watches))
        .map(|r| Row {
            watches: r.watches,
            pages: r.pages,
            what: Watches::Bytes(random(r.watches, r.pages)),
        })
        .collect();
    table(bench, "sparse", &rows, true)
}

/// Projected slowdown of a block with `pages` pages watched by opening, stepping and closing pages.
fn projected(r: &Readings, case: &str, pages: usize) -> Option<f64> {
    let bare = r.median(case, "bare", "ns")?;
    let each = r.median(case, "open-step-close", "ns")?;
    let part = pages as f64 / PAGES as f64;
    Some((part * each + (1.0 - part) * bare) / bare)
}

pub fn sparse_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Sparse watches: 256 pages stored byte by byte (thesis, table 4.3)",
        &[
            "watches",
            "pages",
            "patched",
            "trap path",
            "gdb hardware",
            "gdbserver",
            "gdb software",
            "valgrind",
            "open-step-close",
            "thesis, lookup",
            "thesis, no lookup",
            "",
        ],
    );
    for row in TABLE_4_3 {
        let ratio = |who: &str| {
            r.ratio(
                "sparse",
                &format!("{} watches, {who}", row.watches),
                "bare",
                "ns",
            )
        };
        let Some(ours) = ratio("patched") else {
            continue;
        };
        let outcome = t.goal(Some(Goal::at_most(
            format!(
                "table 4.3, watches on pages: {} on {}",
                row.watches, row.pages
            ),
            ours,
            row.lookup,
            row.no_lookup,
            Unit::Times,
        )));
        t.row(&[
            &row.watches.to_string(),
            &row.pages.to_string(),
            &times(Some(ours)),
            &times(ratio("trap")),
            &times(ratio("gdb hardware")),
            &times(ratio("gdbserver")),
            &times(ratio("gdb software")),
            &times(ratio("valgrind")),
            &times(projected(r, "sparse", row.pages)),
            &times(Some(row.lookup)),
            &times(Some(row.no_lookup)),
            &outcome,
        ]);
    }
    t.note(format!(
        "Slowdowns of the whole loop; bare: {} ns a store. gdb software: from a slice of the loop. open-step-close: its {} ns a store, on as many pages. Each hit of gdb's and of valgrind's (memcheck, vgdb) is a stop at which gdb finds a condition false.",
        some(r.median("sparse", "bare", "ns")),
        some(r.median("sparse", "open-step-close", "ns")),
    ));
    vec![t]
}

// ---- table 4.4 --------------------------------------------------------------------------------------

pub fn dense(bench: &mut Bench) -> Result<()> {
    let quick = bench.quick;
    let rows: Vec<Row> = TABLE_4_4
        .iter()
        .filter(|r| !quick || [16, 48].contains(&r.watches))
        .map(|r| Row {
            watches: r.watches,
            pages: r.pages,
            what: Watches::Bytes((0..r.watches).map(|n| n * 256).collect()),
        })
        .collect();
    table(bench, "dense", &rows, false)
}

fn judged(
    r: &Readings,
    case: &'static str,
    t: &mut Table,
    rows: &[Sparse],
    limits: fn(&Sparse) -> (String, f64, f64),
) {
    for row in rows {
        let ratio = |who: &str| {
            r.ratio(
                case,
                &format!("{} watches, {who}", row.watches),
                "bare",
                "ns",
            )
        };
        let Some(ours) = ratio("patched") else {
            continue;
        };
        let (what, bar, goal) = limits(row);
        let goal = Goal::at_most(what, ours, bar, goal, Unit::Times);
        let limits = (goal.limit(bar), goal.limit(goal.goal));
        let outcome = t.goal(Some(goal));
        t.row(&[
            &count(row.watches as f64),
            &row.pages.to_string(),
            &times(Some(ours)),
            &times(ratio("trap")),
            &times(Some(row.lookup)),
            &times(Some(row.no_lookup)),
            &limits.0,
            &limits.1,
            &outcome,
        ]);
    }
    t.note(format!(
        "Slowdowns of the whole loop; bare: {} ns a store.",
        some(r.median(case, "bare", "ns"))
    ));
}

const HEAD: &[&str] = &[
    "watches",
    "pages",
    "patched",
    "trap path",
    "thesis, lookup",
    "thesis, no lookup",
    "bar",
    "goal",
    "",
];

pub fn dense_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Dense watches: 256 bytes apart in 256 pages (thesis, table 4.4)",
        HEAD,
    );
    judged(r, "dense", &mut t, TABLE_4_4, |row| {
        (
            format!("table 4.4, dense watches: {}", row.watches),
            row.lookup,
            1.02,
        )
    });
    vec![t]
}

// ---- table 4.5 --------------------------------------------------------------------------------------

pub fn extreme(bench: &mut Bench) -> Result<()> {
    let rows = [
        Row {
            watches: PAGES,
            pages: PAGES,
            // The first byte of each, as in the thesis.
            what: Watches::Bytes((0..PAGES).map(|n| n * PAGE).collect()),
        },
        Row {
            watches: PAGES * PAGE,
            pages: PAGES,
            what: Watches::All,
        },
    ];
    table(bench, "extreme", &rows, false)
}

pub fn extreme_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "One watch on each page, and every byte watched (thesis, table 4.5)",
        HEAD,
    );
    judged(r, "extreme", &mut t, TABLE_4_5, |row| match row.watches {
        PAGES => (
            "table 4.5, one watch on each of 256 pages".into(),
            row.lookup,
            row.no_lookup,
        ),
        _ => (
            "table 4.5, all 1,048,576 bytes watched, every store a counted hit".into(),
            row.lookup,
            8.0,
        ),
    });
    t.note("Every byte: each store is a hit, counted, and found in the counter at the end.");
    vec![t]
}

/// The thesis's figure 4.2.
pub fn chart(r: &Readings) -> Option<String> {
    let line = |name, who: &str| Line {
        name,
        published: false,
        points: TABLE_4_3
            .iter()
            .filter_map(|row| {
                let variant = format!("{} watches, {who}", row.watches);
                Some((row.pages as f64, r.ratio("sparse", &variant, "bare", "ns")?))
            })
            .collect(),
    };
    let thesis = |name, pick: fn(&Sparse) -> f64| Line {
        name,
        published: true,
        points: TABLE_4_3
            .iter()
            .map(|row| (row.pages as f64, pick(row)))
            .collect(),
    };
    let osc = Line {
        name: "open, step, close",
        published: false,
        points: TABLE_4_3
            .iter()
            .filter_map(|row| Some((row.pages as f64, projected(r, "sparse", row.pages)?)))
            .collect(),
    };
    let ours = line("ulpf, patched", "patched");
    if ours.points.is_empty() {
        return None;
    }
    let lines = [
        ours,
        line("ulpf, trap path", "trap"),
        osc,
        line("valgrind memcheck", "valgrind"),
        thesis("thesis, lookup", |row| row.lookup),
        thesis("thesis, no lookup", |row| row.no_lookup),
    ];
    svg::chart(
        "Slowdown by pages with watches (256 pages stored byte by byte)",
        "pages spanned by watches",
        "slowdown",
        &lines,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_watches_lie_on_as_many_pages() {
        for row in TABLE_4_3 {
            let bytes = random(row.watches, row.pages);
            let pages: BTreeSet<usize> = bytes.iter().map(|b| b / PAGE).collect();
            assert_eq!((bytes.len(), pages.len()), (row.watches, row.pages));
            assert!(bytes.iter().all(|b| *b < PAGES * PAGE));
        }
        assert_eq!(random(64, 55), random(64, 55));
    }
}
