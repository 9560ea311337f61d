//! The cost of one store to a guarded page, by its result.

use super::super::packets::Session;
use super::super::published::{TABLE_4_1_HARDWARE, TABLE_4_1_SIGNALS};
use super::super::readings::Readings;
use super::super::table::{Goal, Table, Unit, figure, some};
use super::super::tools::{How, Measured, PATCHED, Peer, Run, TRAP};
use super::super::turns::Bench;
use anyhow::{Result, ensure};
use std::path::Path;

const CASE: &str = "store";
const WATCH: &str = "page[0]";

/// Under `ulpf run`, with the watch on the first long.
fn watched(
    bench: &mut Bench,
    program: &Path,
    variant: &str,
    how: &How,
    mode: &str,
    count: u64,
) -> Result<()> {
    let arguments = [mode, &count.to_string()];
    let run = Run {
        program,
        arguments: &arguments,
    };
    let specs = [WATCH.to_string()];
    let measured = match how.log {
        true => Measured::find(&bench.ulpf_run(how, &specs, run)?.0)?,
        false => {
            let (measured, counted) = bench.watched(how, &specs, run)?;
            let seen = counted.hits + counted.false_positives;
            ensure!(
                seen >= count,
                "{variant}: {count} stores, but {seen} were counted"
            );
            measured
        }
    };
    both(bench, variant, &measured)
}

/// A watch that would stop, if its condition, evaluated in the target, ever held.
fn conditional(bench: &mut Bench, program: &Path, count: u64) -> Result<()> {
    let mut command = bench.ulpf();
    command.args(["server", "--once", "--placement=guard"]);
    let arguments = ["change", &count.to_string()];
    let mut session = Session::at_ready(&mut command, program, &arguments)?;
    let page = session.address(program, "page")?;
    let watch = format!("ulpf watch {page:#x} 8 w stop new == {:#x}", u64::MAX);
    session.client.monitor(&watch)?;
    let measured = Measured::find(&session.end()?)?;
    both(bench, "conditional, patched", &measured)
}

fn both(bench: &mut Bench, variant: &str, measured: &Measured) -> Result<()> {
    bench.reading(CASE, variant, "ns", measured.get("ns")?);
    bench.reading(CASE, variant, "cycles", measured.get("cycles")?);
    Ok(())
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let program = bench.programs.get("stores")?;
    // The patch is made, and a ring touched for the first time, once; both are lost in the number of hits.
    let (few, hits, many) = if bench.quick {
        (10_000, 500_000, 2_000_000)
    } else {
        (50_000, 5_000_000, 20_000_000)
    };
    for _ in 0..bench.turns {
        for mode in ["mate", "change"] {
            let arguments = [mode, &many.to_string()];
            let bare = bench.bare(Run {
                program: &program,
                arguments: &arguments,
            })?;
            both(bench, &format!("{mode}, bare"), &bare)?;
        }
        watched(bench, &program, "mate, trap", &TRAP, "mate", few)?;
        watched(bench, &program, "mate, patched", &PATCHED, "mate", many)?;
        watched(bench, &program, "silent, trap", &TRAP, "silent", few)?;
        watched(bench, &program, "silent, patched", &PATCHED, "silent", hits)?;
        watched(bench, &program, "change, patched", &PATCHED, "change", hits)?;
        conditional(bench, &program, hits)?;
        let logged = How {
            log: true,
            ..PATCHED
        };
        watched(bench, &program, "logged, patched", &logged, "change", hits)?;
        for name in ["empty_handler", "open_step_close"] {
            let other = bench.programs.get(name)?;
            let arguments = [&*few.to_string()];
            let measured = bench.bare(Run {
                program: &other,
                arguments: &arguments,
            })?;
            both(bench, name, &measured)?;
        }
        let stores = if bench.quick { "300" } else { "3000" };
        for (peer, who) in [
            (Peer::Gdb, "conditional hit, gdb hardware"),
            (Peer::Gdbserver, "conditional hit, gdbserver"),
            (
                Peer::Ulpf(&["--placement=guard"]),
                "conditional hit, gdb and ulpf server",
            ),
        ] {
            if let Some(why) = peer.missing() {
                bench.skip(who, &why);
                continue;
            }
            let arguments = ["change", stores];
            let run = Run {
                program: &program,
                arguments: &arguments,
            };
            let measured = bench.peer(peer, "watch -l page[0] if page[0] < 0", run)?;
            both(bench, who, &measured)?;
        }
    }
    Ok(())
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let ns = |variant: &str| r.median(CASE, variant, "ns");
    let cycles = |variant: &str| r.median(CASE, variant, "cycles");
    let mut t = Table::new(
        "One store",
        &[
            "case",
            "ns",
            "cycles",
            "against open-step-close",
            "against gdb's conditional hardware watch",
        ],
    );
    let cheaper = |than: &str, variant: &str| match (ns(than), ns(variant)) {
        (Some(than), Some(ours)) if ours > 0.0 && than > ours => {
            format!("{}× cheaper", figure(than / ours))
        }
        _ => "".into(),
    };
    for (variant, what) in [
        ("mate, bare", "bare"),
        ("mate, trap", "false positive, trap path"),
        ("mate, patched", "false positive, patched"),
        ("silent, trap", "hit that does not stop (silent), trap path"),
        (
            "silent, patched",
            "hit that does not stop (silent), patched",
        ),
        (
            "change, patched",
            "hit that does not stop (a new value, counted), patched",
        ),
        (
            "conditional, patched",
            "hit whose condition is false in the target, patched",
        ),
        ("logged, patched", "logged hit, no backtrace, patched"),
        (
            "empty_handler",
            "a handler that does nothing (the kernel's part)",
        ),
        ("open_step_close", "open, single-step, close"),
        (
            "conditional hit, gdb hardware",
            "gdb, hardware watch, condition false",
        ),
        ("conditional hit, gdbserver", "the same through gdbserver"),
        (
            "conditional hit, gdb and ulpf server",
            "the same through ulpf server, gdb evaluates",
        ),
    ] {
        if ns(variant).is_some() {
            t.row(&[
                what,
                &some(ns(variant)),
                &some(cycles(variant)),
                &cheaper("open_step_close", variant),
                &cheaper("conditional hit, gdb hardware", variant),
            ]);
        }
    }
    if let (Some(ours), Some(bare)) = (cycles("mate, patched"), cycles("mate, bare")) {
        t.goal(Some(Goal::at_most(
            "false positive at a patched site, more than bare",
            ours - bare,
            15.0,
            4.0,
            Unit::Cycles,
        )));
    }
    if let (Some(gdb), Some(ours)) = (
        ns("conditional hit, gdb hardware"),
        ns("conditional, patched"),
    ) {
        t.goal(Some(Goal::at_least(
            "conditional hit that does not stop, cheaper than gdb's hardware watch",
            gdb / ours,
            1000.0,
            5000.0,
            Unit::Times,
        )));
    }
    if let Some(ours) = cycles("logged, patched") {
        t.goal(Some(Goal::at_most(
            "logged hit, no backtrace",
            ours,
            150.0,
            60.0,
            Unit::Cycles,
        )));
    }
    let sum = |all: &[f64]| figure(all.iter().sum());
    t.note(format!(
        "Cycles are those of the time-stamp counter. The thesis's table 4.1: simulated hardware {} cycles a fault, signals {} (its processor).",
        sum(&TABLE_4_1_HARDWARE),
        sum(&TABLE_4_1_SIGNALS)
    ));
    vec![t]
}
