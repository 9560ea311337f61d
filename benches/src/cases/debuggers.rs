//! The thesis's table 4.6: 8 pages, code as compilers make it without optimisation, beside gdb.

use super::super::published::TABLE_4_6;
use super::super::readings::Readings;
use super::super::svg::{self, Line};
use super::super::table::{Goal, Table, Unit, some, times};
use super::super::tools::{PATCHED, Peer, Run, TRAP};
use super::super::turns::Bench;
use super::sweep::{Random, gdb_watches, software, ulpf};
use anyhow::Result;
use std::collections::BTreeSet;

const SIZE: usize = 8 * 4096;
const CASE: &str = "debuggers";

fn bytes(watches: usize) -> BTreeSet<usize> {
    let mut random = Random(watches as u64 + 7);
    let mut bytes = BTreeSet::new();
    while bytes.len() < watches {
        bytes.insert(random.below(SIZE));
    }
    bytes
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let program = bench.programs.sweep("-O0")?;
    let seconds = if bench.quick { "0.1" } else { "0.3" };
    let long = Run {
        program: &program,
        arguments: &["8", "10000", seconds],
    };
    let rows: Vec<usize> = TABLE_4_6.iter().map(|r| r.watches).collect();
    let rows: Vec<usize> = match bench.quick {
        true => vec![1, 64],
        false => rows,
    };
    for turn in 0..bench.turns {
        for &watches in &rows {
            let bare = bench.bare(long)?;
            bench.reading(CASE, "bare", "ns", bare.get("ns")?);
            let bytes = bytes(watches);
            let pages: BTreeSet<usize> = bytes.iter().map(|b| b / 4096).collect();
            let specs: Vec<String> = bytes.iter().map(|b| format!("block+{b}:1")).collect();
            let expected = (watches as u64, (pages.len() * 4096 - watches) as u64);
            let name = |who: &str| format!("{watches} watches, {who}");
            ulpf(
                bench,
                (CASE, &name("patched")),
                &PATCHED,
                &specs,
                expected,
                long,
            )?;
            if turn == 0 {
                let once = Run {
                    arguments: &["8", "1", "0"],
                    ..long
                };
                ulpf(bench, (CASE, &name("trap")), &TRAP, &specs, expected, once)?;
            }
        }
    }
    for &watches in &rows {
        let script = gdb_watches(bytes(watches).iter());
        let name = |who: &str| format!("{watches} watches, {who}");
        for (peer, who, takes_part) in [
            (Peer::Gdb, "gdb hardware", watches <= 4),
            (Peer::Gdbserver, "gdbserver", watches <= 4),
            (Peer::Valgrind, "valgrind", true),
        ] {
            if let Some(why) = peer.missing() {
                bench.skip(who, &why);
            } else if takes_part {
                let rounds = if peer == Peer::Valgrind { "3" } else { "21" };
                let arguments = &["8", rounds, "60"];
                let measured = bench.peer(peer, &script, Run { arguments, ..long })?;
                bench.reading(CASE, &name(who), "ns", measured.get("ns")?);
            }
        }
        if Peer::Gdb.missing().is_none()
            && let Some(ns) = software(bench, &script, &program, watches)?
        {
            bench.reading(CASE, &name("gdb software"), "ns", ns);
        }
    }
    Ok(())
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Beside debuggers: 8 pages stored byte by byte, -O0 (thesis, table 4.6)",
        &[
            "watches",
            "patched",
            "trap path",
            "gdb hardware",
            "gdbserver",
            "gdb software",
            "valgrind",
            "thesis, gdb hardware",
            "thesis, gdb software",
            "thesis, ULPF",
            "goal",
            "",
        ],
    );
    for row in TABLE_4_6 {
        let ratio = |who: &str| {
            r.ratio(
                CASE,
                &format!("{} watches, {who}", row.watches),
                "bare",
                "ns",
            )
        };
        let Some(ours) = ratio("patched") else {
            continue;
        };
        let goal = Goal::at_most(
            format!("table 4.6, -O0, watches: {}", row.watches),
            ours,
            row.ulpf,
            3.0f64.min(row.ulpf),
            Unit::Times,
        );
        let limit = goal.limit(goal.goal);
        let outcome = t.goal(Some(goal));
        t.row(&[
            &row.watches.to_string(),
            &times(Some(ours)),
            &times(ratio("trap")),
            &times(ratio("gdb hardware")),
            &times(ratio("gdbserver")),
            &times(ratio("gdb software")),
            &times(ratio("valgrind")),
            &times(row.hardware),
            &times(Some(row.software)),
            &times(Some(row.ulpf)),
            &limit,
            &outcome,
        ]);
    }
    t.note(format!(
        "Slowdowns of the whole loop; bare: {} ns a store. The bar is the thesis's ULPF. gdb software: from a slice of the loop. Each hit of gdb's and of valgrind's is a stop at which gdb finds a condition false.",
        some(r.median(CASE, "bare", "ns"))
    ));
    vec![t]
}

/// The thesis's figure 4.3.
pub fn chart(r: &Readings) -> Option<String> {
    let line = |name, who: &str| Line {
        name,
        published: false,
        points: TABLE_4_6
            .iter()
            .filter_map(|row| {
                let variant = format!("{} watches, {who}", row.watches);
                Some((row.watches as f64, r.ratio(CASE, &variant, "bare", "ns")?))
            })
            .collect(),
    };
    let ours = line("ulpf, patched", "patched");
    if ours.points.is_empty() {
        return None;
    }
    let lines = [
        ours,
        line("ulpf, trap path", "trap"),
        line("gdb software", "gdb software"),
        line("gdb hardware", "gdb hardware"),
        line("gdbserver", "gdbserver"),
        line("valgrind memcheck", "valgrind"),
        Line {
            name: "thesis, gdb software",
            published: true,
            points: TABLE_4_6
                .iter()
                .map(|r| (r.watches as f64, r.software))
                .collect(),
        },
        Line {
            name: "thesis, ULPF",
            published: true,
            points: TABLE_4_6
                .iter()
                .map(|r| (r.watches as f64, r.ulpf))
                .collect(),
        },
    ];
    svg::chart(
        "Slowdown of debuggers (8 pages stored byte by byte, -O0)",
        "watches",
        "slowdown",
        &lines,
    )
}
