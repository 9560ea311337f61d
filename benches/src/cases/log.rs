//! The log: how many hits a second it takes, and what one costs the program, which waits for it or does not.

use super::super::readings::Readings;
use super::super::table::{Table, some};
use super::super::tools::Measured;
use super::super::turns::Bench;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

const CASE: &str = "log";
const FAST: &str = "lines, the program does not wait";

/// Variant, log file, and log policy (whether the program waits).
const CASES: [(&str, &str, &str); 6] = [
    ("compact, the program does not wait", "hits.ulpf", "fast"),
    ("compact, none lost", "hits.ulpf", "lossless"),
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
            let mut command = bench.ulpf();
            command.args(["run", "--at", "ready", "--placement", "guard"]);
            command.args(["--no-summary", "--log-policy", policy, "-w", "page[0]"]);
            command.arg("--log").arg(&file).arg("--").arg(&program);
            command.args(["change", &hits.to_string()]);
            let begun = Instant::now();
            let out = command.output().context("cannot run ulpf")?;
            let seconds = begun.elapsed().as_secs_f64();
            let said = [out.stdout, out.stderr].concat();
            let measured = Measured::find(&String::from_utf8_lossy(&said))?;
            let written = match name.ends_with(".ulpf") {
                true => lines_of_compact(bench, &file)?,
                false => File::open(&file).map(|f| BufReader::new(f).lines().count())?,
            };
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

/// Number of lines that `ulpf log` prints for the file.
fn lines_of_compact(bench: &Bench, file: &Path) -> Result<usize> {
    let mut reading = bench
        .ulpf()
        .arg("log")
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run ulpf")?;
    let out = reading.stdout.take().context("no output of ulpf log")?;
    let lines = BufReader::new(out).lines().count();
    ensure!(reading.wait()?.success(), "{} is damaged", file.display());
    Ok(lines)
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
    t.note("One thread that does nothing but store. Where none is lost, it waits for the log most of the time. What the compact log costs whoever writes it: `cargo bench -p ulpf-log`.");
    vec![t]
}
