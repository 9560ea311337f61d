//! The log: how many hits a second it takes, and what one costs the program, which waits for it or does not.

use super::super::readings::Readings;
use super::super::table::{Table, some};
use super::super::tools::Measured;
use super::super::turns::Bench;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Instant;

const CASE: &str = "log";
const FAST: &str = "lines, the program does not wait";

/// What is written, into a file of which kind, and whether the program waits.
const CASES: [(&str, &str, &str); 4] = [
    (FAST, "hits.txt", "fast"),
    ("lines, none lost", "hits.txt", "lossless"),
    ("JSON, none lost", "hits.jsonl", "lossless"),
    ("a table, none lost", "hits.csv", "lossless"),
];

pub fn run(bench: &mut Bench) -> Result<()> {
    let program = bench.programs.get("stores")?;
    let hits: u64 = if bench.quick { 300_000 } else { 3_000_000 };
    for _ in 0..bench.turns {
        for (variant, name, policy) in CASES {
            let file = bench.programs.file(name);
            let mut command = Command::new(&bench.ulpf);
            command.args(["run", "--at", "ready", "--placement", "guard"]);
            command.args(["--no-summary", "--log-policy", policy, "-w", "page[0]"]);
            command.arg("--log").arg(&file).arg("--").arg(&program);
            command.args(["change", &hits.to_string()]);
            let begun = Instant::now();
            let out = command.output().context("cannot run ulpf")?;
            let seconds = begun.elapsed().as_secs_f64();
            let said = [out.stdout, out.stderr].concat();
            let measured = Measured::find(&String::from_utf8_lossy(&said))?;
            let written = File::open(&file).map(|f| BufReader::new(f).lines().count())?;
            ensure!(
                policy == "fast" || written as u64 >= hits,
                "{variant}: {hits} stores, but {written} lines"
            );
            bench.reading(CASE, variant, "cycles", measured.get("cycles")?);
            bench.reading(CASE, variant, "hits/s", written as f64 / seconds);
        }
    }
    Ok(())
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Hits into a log",
        &["", "hits written a second", "cycles a hit, for the program"],
    );
    for (variant, ..) in CASES {
        t.row(&[
            variant,
            &some(r.median(CASE, variant, "hits/s")),
            &some(r.median(CASE, variant, "cycles")),
        ]);
    }
    t.note("One thread that does nothing but store. Where none is lost, it waits for the log most of the time.");
    vec![t]
}
