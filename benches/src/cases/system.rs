//! Programs that have nothing to do with what is watched, their system calls, and placement.

use super::super::children::finish;
use super::super::readings::Readings;
use super::super::table::{Goal, Table, Unit, count, figure, some, times};
use super::super::tools::{How, Measured, PATCHED, Run};
use super::super::turns::Bench;
use anyhow::Result;
use std::process::Command;

const WATCH: &str = "guarded[0]";

// ---- untouched --------------------------------------------------------------------------------------

pub fn untouched(bench: &mut Bench) -> Result<()> {
    const CASE: &str = "untouched";
    let program = bench.programs.get("untouched")?;
    let run = Run {
        program: &program,
        arguments: &[],
    };
    // Single readings lie apart, with us and without: what neighbours on the machine do.
    for _ in 0..bench.turns * if bench.quick { 2 } else { 6 } {
        let bare = bench.bare(run)?;
        bench.reading(CASE, "bare", "ms", bare.get("ns")? / 1e6);
        let (measured, _) = bench.watched(&PATCHED, &[WATCH.into()], run)?;
        bench.reading(CASE, "one watch armed", "ms", measured.get("ns")? / 1e6);
    }
    Ok(())
}

pub fn untouched_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new("A program that never touches its guarded page", &["", "ms"]);
    for variant in ["bare", "one watch armed"] {
        t.row(&[variant, &some(r.median("untouched", variant, "ms"))]);
    }
    let ratio = r.ratio("untouched", "one watch armed", "bare", "ms");
    t.goal(ratio.map(|value| {
        Goal::at_most(
            "a program that never touches a guarded page",
            (value * 1000.0).round() / 1000.0,
            1.01,
            1.0,
            Unit::Times,
        )
    }));
    let percent = ratio.map_or("–".into(), |v| format!("{:+.2} %", (v - 1.0) * 100.0));
    t.row(&["slowdown", &percent]);
    vec![t]
}

// ---- system calls -----------------------------------------------------------------------------------

pub fn syscall(bench: &mut Bench) -> Result<()> {
    const CASE: &str = "syscall";
    let program = bench.programs.get("syscalls")?;
    let run = Run {
        program: &program,
        arguments: &[],
    };
    for _ in 0..bench.turns {
        let bare = bench.bare(run)?;
        bench.reading(CASE, "bare", "ns", bare.get("ns")?);
        let (measured, _) = bench.watched(&PATCHED, &[WATCH.into()], run)?;
        bench.reading(CASE, "ulpf", "ns", measured.get("ns")?);
    }
    Ok(())
}

pub fn syscall_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new("A system call from a patched site", &["", "ns a call"]);
    t.row(&["bare", &some(r.median("syscall", "bare", "ns"))]);
    t.row(&["under ulpf", &some(r.median("syscall", "ulpf", "ns"))]);
    t.row(&["factor", &times(r.ratio("syscall", "ulpf", "bare", "ns"))]);
    vec![t]
}

// ---- placement --------------------------------------------------------------------------------------

const EVERY: [u64; 3] = [10_000, 100, 2];

pub fn placement(bench: &mut Bench) -> Result<()> {
    let program = bench.programs.get("hotlocal")?;
    let rounds = if bench.quick { 20_000 } else { 100_000 };
    for _ in 0..bench.turns.min(3) {
        for every in EVERY {
            for place in ["bare", "guard", "debug-register", "auto"] {
                // Without faults it is over at once: more rounds to measure.
                let many = match place {
                    "bare" => rounds * 100,
                    "auto" => rounds * 10,
                    _ => rounds,
                };
                let mut command = match place {
                    "bare" => Command::new(&program),
                    _ => {
                        let how = How {
                            no_patch: place == "guard",
                            placement: place,
                            ..PATCHED
                        };
                        let mut command = bench.ulpf_run_command(&how, &["*watched".into()])?;
                        command.arg(&program);
                        command
                    }
                };
                command.args([many.to_string(), every.to_string()]);
                let (_, said) = finish(&mut command, bench.limit)?;
                let Ok(measured) = Measured::find(&said) else {
                    bench.skip(
                        &format!("placement {place}"),
                        said.lines().next().unwrap_or("it said nothing"),
                    );
                    continue;
                };
                bench.reading(
                    "placement",
                    &format!("one in {every}, {place}"),
                    "ns",
                    measured.get("ns")?,
                );
            }
        }
    }
    Ok(())
}

pub fn placement_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "A loop on the stack, beside a watched local (ns a round, each with several stores)",
        &[
            "the local is hit once in …",
            "bare",
            "guard, not patched",
            "debug register",
            "auto",
            "auto against guard",
        ],
    );
    for every in EVERY {
        let name = |place: &str| format!("one in {every}, {place}");
        let of = |place: &str| r.median("placement", &name(place), "ns");
        let gain = r.ratio("placement", &name("guard"), &name("auto"), "ns");
        t.row(&[
            &format!("{} rounds", count(every as f64)),
            &some(of("bare")),
            &some(of("guard")),
            &some(of("debug-register")),
            &some(of("auto")),
            &gain.map_or("–".into(), |g| format!("{}× cheaper", figure(g))),
        ]);
    }
    vec![t]
}
