// SPDX-License-Identifier: GPL-2.0-or-later
//! `ulpf-sim-tables`: the experiments of the two papers on the simulated hardware, beside what was published.
//!
//! ```text
//!   guest/*.c + libulpf's splay tree ─▶ the machine ─┬▶ cycles, faults, hits ─▶ tables ─▶ terminal,
//!   guest/signals.c ─▶ this processor ───────────────┘                         the record
//! ```
//! Each table says what of it is measured, what is a parameter, and where it differs from what was
//! published and why.

mod guest;
mod protection;
mod published;
// Domains, and calls across them, occur in its tests alone.
#[allow(dead_code)]
mod sentry;
mod speed;
// For its tests.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../../../ulpf-lib/c/benches/splay/mod.rs"]
mod splay;
mod table;
mod thesis;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use table::Table;
use ulpf_sim_bridge::outln;

/// The experiments of the two papers on the simulated hardware.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Tables, separated by commas; without it, all.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Short rows only.
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    markdown: bool,
    /// Write docs/notes/measurements.md, seen from the current folder.
    #[arg(long)]
    write: bool,
    /// Cost of a store of the measured loops (Tables 4.3 to 4.6), in cycles.
    #[arg(long, value_name = "CYCLES", default_value_t = thesis::BASE)]
    base: u64,
}

type Case = fn(&Options) -> Result<Table>;

const CASES: [(&str, Case); 10] = [
    ("4.1", thesis::steps),
    ("4.2", thesis::delivery),
    ("4.3", thesis::sparse),
    ("4.4", thesis::dense),
    ("4.5", thesis::extreme),
    ("4.6", thesis::debuggers),
    ("4.7", thesis::heap),
    ("sentry-5", protection::changes),
    ("sentry-9", protection::watcher),
    ("speed", speed::speed),
];

const PAGE: &str = "docs/notes/measurements.md";
const BEGIN: &str = "<!-- begin simulator -->\n";
const END: &str = "<!-- end simulator -->";

fn names() -> String {
    CASES.map(|c| c.0).join(", ")
}

fn main() -> Result<()> {
    let o = &Options::parse();
    for name in &o.only {
        if !CASES.iter().any(|c| c.0 == name) {
            bail!("there is no table {name}; there are {}", names());
        }
    }
    ensure!(o.base > 0, "a store costs something: --base is at least 1");
    let page = match o.write {
        true => Some(std::fs::read_to_string(PAGE).with_context(|| {
            format!("--write belongs in ulpf's source tree; there is no {PAGE} here")
        })?),
        false => None,
    };
    let mut written = String::new();
    for (name, case) in CASES {
        if !o.only.is_empty() && !o.only.iter().any(|n| n == name) {
            continue;
        }
        let table = case(o)?;
        if table.rows.is_empty() {
            outln!("{}\n  left out by --quick\n", table.title);
            continue;
        }
        match o.markdown || o.write {
            true => written += &table.markdown(),
            false => outln!("{}", table.text()),
        }
    }
    match page {
        None => outln!("{}", written.trim_end()),
        Some(page) => std::fs::write(PAGE, place(&page, &written)?)?,
    }
    Ok(())
}

/// The page with these figures instead of those before.
fn place(page: &str, figures: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, behind) = rest.split_once(END)?;
        Some((before, behind))
    });
    let (before, behind) = parts.with_context(|| format!("{PAGE} has no place for the figures"))?;
    Ok(format!("{before}{BEGIN}{figures}{END}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_a_place() {
        let page = format!("a\n{BEGIN}old\n{END}\nz");
        assert_eq!(
            place(&page, "new\n").unwrap(),
            format!("a\n{BEGIN}new\n{END}\nz")
        );
        assert!(place("a", "b").is_err());
    }
}
