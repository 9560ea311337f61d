// SPDX-License-Identifier: GPL-2.0-or-later
//! How fast the machine is: instructions of the simulated program in a second of this one.

use super::Options;
use super::guest::SWEEP;
use super::table::{Table, ratio};
use anyhow::{Result, ensure};
use std::time::Instant;
use ulpf_sim_bridge::elf;
use ulpf_sim_bridge::machine::{Config, End, Machine};

/// The loop's data, and so many of its bytes watched, evenly.
fn mips(functional: bool, watches: u64, instructions: u64) -> Result<f64> {
    let mut machine = Machine::new(&Config {
        functional,
        ..Config::default()
    })?;
    // Zeroing by the loop itself; 256 pages, 4 instructions a byte.
    let args = ["sweep", "none", "256", "first", "0", "0"].map(String::from);
    let elf = elf::read(SWEEP)?;
    machine.load(&elf, &args, &[])?;
    machine.keep_output();
    // The block is the largest of the program's segments' tails, aligned to 2 MiB.
    let end = elf
        .segments
        .iter()
        .map(|s| s.addr + s.size)
        .max()
        .unwrap_or(0);
    let block = end.saturating_sub(256 * 4096) & !((2 << 20) - 1);
    let places: Vec<_> = (0..watches)
        .map(|n| (block + n * (4096 * 8 + 24) % (1 << 20), 1))
        .collect();
    machine.watch(&places)?;
    let start = Instant::now();
    let end = machine.run();
    let seconds = start.elapsed().as_secs_f64();
    ensure!(end == End::Exit(0), "the loop: {end:?}");
    let stats = &machine.state.borrow().stats;
    ensure!(watches == 0 || stats.hits > 0, "no watch was hit");
    let done = match stats.instructions {
        0 => instructions,
        n => n,
    };
    Ok(done as f64 / seconds / 1e6)
}

fn best(functional: bool, watches: u64, instructions: u64, turns: u32) -> Result<f64> {
    let mut best = 0f64;
    for _ in 0..turns {
        best = best.max(mips(functional, watches, instructions)?);
    }
    Ok(best)
}

pub fn speed(o: &Options) -> Result<Table> {
    // Functional mode counts no instructions, so the full mode does.
    let mut machine = Machine::new(&Config::default())?;
    let args = ["sweep", "none", "256", "first", "0", "0"].map(String::from);
    machine.load(&elf::read(SWEEP)?, &args, &[])?;
    machine.keep_output();
    machine.run();
    let instructions = machine.state.borrow().stats.instructions;
    let turns = if o.quick { 2 } else { 7 };
    let functional = best(true, 0, instructions, turns)?;
    let full = best(false, 0, instructions, turns)?;
    let watched = best(false, 1000, instructions, turns)?;
    let mut t = Table::new(
        "Speed of the machine: instructions a second, millions",
        &["", "MIPS", "bar", "against the full model"],
    );
    let mut row = |what: &str, mips: f64, bar: &str| {
        t.row([
            what.into(),
            ratio(mips),
            bar.into(),
            format!("{:.2}×", mips / full),
        ]);
    };
    row("functional (`--functional`)", functional, "≥ 50");
    row("TLB and cycles", full, "≥ 5");
    row("TLB and cycles, 1,000 watches", watched, "≥ a third of it");
    t.note(format!(
        "The loop of Table 4.3 with its start, {instructions} instructions; the best of {turns} runs, with loading and translation. The watches are served by the handler that is part of the model."
    ));
    Ok(t)
}
