// SPDX-License-Identifier: GPL-2.0-or-later
//! The programs of the tables: carried in this file, run on a machine of their own, and what they say.

use anyhow::{Context, Result, ensure};
use ulpf_sim_bridge::costs::Costs;
use ulpf_sim_bridge::elf;
use ulpf_sim_bridge::machine::{Config, End, Machine};
use ulpf_sim_bridge::stats::Stats;

pub const SWEEP: &[u8] = include_bytes!(env!("ULPF_GUEST_SWEEP"));
pub const SWEEP_O0: &[u8] = include_bytes!(env!("ULPF_GUEST_SWEEP_O0"));
pub const HEAP: &[u8] = include_bytes!(env!("ULPF_GUEST_HEAP"));
const SIGNALS: &[u8] = include_bytes!(env!("ULPF_GUEST_SIGNALS"));

pub struct GuestReport {
    /// Between the program's own two readings of the time-stamp counter.
    pub cycles: u64,
    pub hits: u64,
    pub false_positives: u64,
    pub nodes: u64,
    /// Of the whole run.
    pub stats: Stats,
}

impl GuestReport {
    pub fn faults(&self) -> u64 {
        self.hits + self.false_positives
    }
}

pub fn run(program: &[u8], args: &[&str]) -> Result<GuestReport> {
    let mut machine = Machine::new(&Config {
        costs: Costs::default(),
        ..Config::default()
    })?;
    let args: Vec<_> = ["program"]
        .iter()
        .chain(args)
        .map(|&a| a.to_owned())
        .collect();
    machine.load(&elf::read(program)?, &args, &[])?;
    machine.keep_output();
    let end = machine.run();
    ensure!(end == End::Exit(0), "{}: {end:?}", args.join(" "));
    let said = machine.output();
    let words: Vec<_> = said.split_whitespace().collect();
    let number = |name: &str| -> Result<u64> {
        let at = words.iter().position(|&w| w == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok())
            .with_context(|| format!("{} says nothing of {name}: {said}", args.join(" ")))
    };
    Ok(GuestReport {
        cycles: number("cycles")?,
        hits: number("hits")?,
        false_positives: number("false_positives")?,
        nodes: number("nodes")?,
        stats: machine.state.borrow().stats.clone(),
    })
}

/// Table 4.1's steps with signals on this processor: entering the handler, permitting the write, leaving
/// and executing the write again, forbidding it again.
pub fn signals() -> Result<[u64; 4]> {
    use std::os::unix::fs::OpenOptionsExt;
    // A random name is unpredictable, so no other process has created it.
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let path = std::env::temp_dir().join(format!("ulpf-sim-signals-{}", random.trim()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o700);
    std::io::Write::write_all(&mut options.open(&path)?, SIGNALS)?;
    let said = std::process::Command::new(&path).output();
    let _ = std::fs::remove_file(&path);
    let said = said.with_context(|| path.display().to_string())?;
    let text = String::from_utf8_lossy(&said.stdout);
    let numbers: Vec<u64> = text
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    numbers
        .try_into()
        .map_err(|_| anyhow::anyhow!("the program that measures signals says: {text}"))
}
