//! The record of all measurements, the raw readings and the charts in ulpf's own source tree.

use super::table::Table;
use super::turns::Bench;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The record, as a path from the root of the source tree.
const PAGE: &str = "docs/notes/measurements.md";
/// The way from the record's folder back to that root, for links.
const UP: &str = "../..";
const RUNS: &str = "benches/runs";
const CHARTS: &str = "benches/charts";
const BEGIN: &str = "<!-- begin figures -->";
const END: &str = "<!-- end figures -->";

/// Before an hour is spent: is there a page to write?
pub fn can_write() -> Result<()> {
    parts(&fs::read_to_string(PAGE).unwrap_or_default()).map(|_| ())
}

/// The parts of the page before and behind the figures.
fn parts(page: &str) -> Result<(&str, &str)> {
    let found = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, behind) = rest.split_once(END)?;
        Some((before, behind))
    });
    found.with_context(|| format!("--write belongs in ulpf's source tree; there is no {PAGE} with a place for figures here"))
}

pub fn write(
    bench: &Bench,
    machine: &[(&str, String)],
    tables: &[Table],
    charts: &[(&'static str, String)],
) -> Result<()> {
    let date = today()?;
    let runs = format!("{RUNS}/{date}.csv");
    fs::create_dir_all(RUNS)?;
    fs::write(&runs, bench.readings.csv(machine))
        .with_context(|| format!("cannot write {runs}"))?;
    write_charts(Path::new(CHARTS), charts)?;
    let page = fs::read_to_string(PAGE)?;
    let (before, behind) = parts(&page)?;
    let machine: Vec<String> = machine
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let mut figures = format!(
        "Medians of {} turns on {date}: {}. Raw readings: [{runs}]({UP}/{runs}).\n\n",
        bench.turns,
        machine.join(", ")
    );
    for table in tables {
        figures += &table.markdown();
        figures.push('\n');
    }
    for (name, _) in charts {
        figures += &format!("![{name}]({UP}/{CHARTS}/{name}.svg)\n\n");
    }
    for absent in &bench.absent {
        figures += &format!("{absent}.\n\n");
    }
    let text = format!("{before}{BEGIN}\n{figures}{END}{behind}");
    fs::write(PAGE, text).with_context(|| format!("cannot write {PAGE}"))
}

pub fn write_charts(folder: &Path, charts: &[(&'static str, String)]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, text) in charts {
        let file = folder.join(format!("{name}.svg"));
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn today() -> Result<String> {
    let said = Command::new("date")
        .arg("+%F")
        .output()
        .context("cannot ask for the date")?;
    let date = String::from_utf8_lossy(&said.stdout).trim().to_string();
    ensure!(!date.is_empty(), "date(1) said nothing");
    Ok(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_for_figures() {
        let page = format!("a{BEGIN}old{END}z");
        assert_eq!(parts(&page).unwrap(), ("a", "z"));
        assert!(parts("nothing").is_err());
    }
}
