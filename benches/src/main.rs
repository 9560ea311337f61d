//! `ulpf-bench`: what watching costs here, beside what others take and what they have published.
//!
//! ```text
//!   programs (C, compiled now) ─▶ loops: is it one store a byte? ─▶ cases: A and B in turns ─▶ readings
//!                                                                                                 │
//!   terminal · the record · JSON ◀──── tables, with bars and goals ◀─ medians, ratios ◀───────────┤
//!                                                     charts (SVG) · CSV with the machine ◀───────┘
//! ```
//! Base and watched are the same file. Where ulpf watches, its own counters must account for every
//! access, or the case fails: what was not watched is not reported as fast.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, clippy::print_stdout)]

mod cases;
mod children;
mod clock;
mod coverage;
mod loops;
mod machine;
mod packets;
mod page;
mod peak;
mod programs;
mod published;
mod readings;
mod svg;
mod table;
mod tools;
mod turns;

use anyhow::{Context, Result, bail};
use cases::CASES;
use clap::Parser;
use programs::Programs;
use readings::Readings;
use serde_json::json;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use table::Table;
use turns::Bench;

/// How long what is prepared may take.
const SOON: Duration = Duration::from_secs(120);

/// Measures what watching costs here, beside other tools and their published figures
#[derive(Parser, Clone, Debug)]
#[command(name = "ulpf-bench", version)]
struct BenchArgs {
    /// The command that is measured; without this, the one beside this program
    #[arg(long, value_name = "FILE")]
    ulpf: Option<PathBuf>,

    /// Fewer turns, smaller cases: less than a minute
    #[arg(short, long)]
    quick: bool,

    /// Tell what there is to measure
    #[arg(short, long)]
    list: bool,

    /// Measure only this; may be repeated
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,

    /// How often A and B are measured, in turns
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: Option<u32>,

    /// Write every single reading to FILE
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw charts into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Tables as one JSON object instead of text
    #[arg(long)]
    json: bool,

    /// Write docs/notes/measurements.md, benches/runs and benches/charts of ulpf's own source tree (the current folder)
    #[arg(long, conflicts_with_all = ["only", "quick"])]
    write: bool,

    /// Tell every reading when it is taken
    #[arg(short, long)]
    verbose: bool,
}

fn main() {
    std::process::exit(bench(&BenchArgs::parse()));
}

/// The command beside this program.
fn beside() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(own.with_file_name("ulpf"))
}

/// The exit status.
fn bench(args: &BenchArgs) -> i32 {
    if args.list {
        let width = CASES.iter().map(|c| c.name.len()).max().unwrap_or(0);
        for case in CASES {
            println!("{:width$}  {}", case.name, case.about);
        }
        return 0;
    }
    match measure(args) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            eprintln!("ulpf-bench: {error:#}");
            2
        }
    }
}

/// Did all go well?
fn measure(args: &BenchArgs) -> Result<bool> {
    for name in &args.only {
        if !CASES.iter().any(|c| c.name == name) {
            bail!("there is no case `{name}`; `ulpf-bench --list` tells what there is");
        }
    }
    if args.write {
        page::can_write()?;
    }
    let mut bench = Bench {
        quick: args.quick,
        turns: args.turns.unwrap_or(if args.quick { 1 } else { 5 }),
        programs: Programs::new()?,
        ulpf: args.ulpf.clone().map_or_else(beside, Ok)?,
        limit: Duration::from_secs(600),
        readings: Readings::default(),
        absent: Vec::new(),
        verbose: args.verbose,
    };
    let machine = machine::describe();
    let mut failed = Vec::new();
    let chosen = |name: &str| match args.only.is_empty() {
        true => true,
        false => args.only.iter().any(|n| n == name),
    };
    let begun = Instant::now();
    for case in CASES.iter().filter(|c| chosen(c.name)) {
        if std::io::stderr().is_terminal() || args.verbose {
            eprintln!(
                "{:>5.0} s  {}: {}",
                begun.elapsed().as_secs_f64(),
                case.name,
                case.about
            );
        }
        if let Err(error) = (case.run)(&mut bench) {
            failed.push(format!("{} failed: {error:#}", case.name));
        }
    }
    let taken = |c: &&cases::Case| bench.readings.0.iter().any(|r| r.case == c.name);
    let mut tables: Vec<Table> = Vec::new();
    for case in CASES.iter().filter(taken) {
        tables.extend((case.tables)(&bench.readings));
    }
    if let Some(goals) = table::goals(&tables) {
        tables.insert(0, goals);
    }
    let problems: Vec<String> = bench.absent.iter().chain(&failed).cloned().collect();
    let charts = cases::charts(&bench.readings);
    if let Some(file) = &args.csv {
        std::fs::write(file, bench.readings.csv(&machine))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(folder) = &args.svg {
        page::write_charts(folder, &charts)?;
    }
    if args.json {
        let machine: serde_json::Map<_, _> = machine
            .iter()
            .map(|(name, value)| (name.to_string(), json!(value)))
            .collect();
        let all: Vec<_> = tables.iter().map(Table::json).collect();
        let json =
            json!({"machine": machine, "turns": bench.turns, "tables": all, "problems": problems});
        println!("{json:#}");
    } else {
        for table in &tables {
            println!("{}", table.text());
        }
    }
    for problem in &problems {
        eprintln!("ulpf-bench: {problem}");
    }
    if args.write && failed.is_empty() {
        page::write(&bench, &machine, &tables, &charts)?;
    }
    Ok(failed.is_empty())
}
