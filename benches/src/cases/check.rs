//! `ulpf check`: programs that everybody knows with their heaps checked, beside valgrind's memcheck.
//!
//! Whole runs, from the command to its end. Costs are in processor time, ulpf's own included (see `real`).

use super::super::children::{finish, tail};
use super::super::machine::find;
use super::super::peak;
use super::super::programs::missing;
use super::super::readings::{PROCESSOR, Readings, median};
use super::super::table::{Goal, Table, Unit, figure, some, times};
use super::super::tools::Measured;
use super::super::turns::Bench;
use super::redis;
use super::workloads::PROGRAMS;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CASE: &str = "check";
const OURS: &str = "ulpf check";
const MEMCHECK: &str = "memcheck";
const REDIS: &str = "redis";
const MEMORY: &str = "MiB";
/// Default size of `ulpf check`'s quarantine.
const QUARANTINE_MIB: f64 = 64.0;

/// Amount of work for each program: a fourth to a half of a second.
const WORK: &[(&str, u32)] = &[
    ("sqlite3", 60_000),
    ("CPython", 200_000),
    ("perl", 200_000),
    ("gawk", 400_000),
    ("git log", 2_000),
    ("xz", 800),
    ("cc1", 200),
];

/// The command that runs `program` in one of the ways; what it finds goes to a file.
fn command(bench: &Bench, mode: &str, program: &Path) -> Command {
    let found = bench.programs.file("found");
    match mode {
        OURS => {
            let mut command = bench.ulpf();
            command.args(["check", "--log"]).arg(found).arg("--");
            command.arg(program);
            command
        }
        MEMCHECK => {
            let mut command = Command::new("valgrind");
            command.args(["--tool=memcheck", "--undef-value-errors=no"]);
            command.arg(format!("--log-file={}", found.display()));
            command.arg(program);
            command
        }
        _ => Command::new(program),
    }
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let divide = if bench.quick { 20 } else { 1 };
    let few = if bench.quick { 1 } else { WORK.len() };
    let has_memcheck = find("valgrind").is_some();
    if !has_memcheck {
        bench.skip(MEMCHECK, "valgrind is not installed (apt install valgrind)");
    }
    let mut all = Vec::new();
    for (name, work) in WORK.iter().take(few) {
        let Some(p) = PROGRAMS.iter().find(|p| p.name == *name) else {
            continue;
        };
        if let Some(why) = missing(p.program, p.package) {
            bench.skip(p.name, &why);
            continue;
        }
        match p.prepare(&bench.programs.folder, work / divide) {
            Ok((file, arguments)) => all.push((*name, file, arguments)),
            Err(why) => bench.skip(p.name, &format!("{why:#}")),
        }
    }
    for turn in 0..bench.turns {
        // (Of memcheck one turn is enough: it takes longest.)
        let modes = match turn == 0 && has_memcheck {
            true => &["bare", OURS, MEMCHECK][..],
            false => &["bare", OURS],
        };
        for (name, file, arguments) in &all {
            one(bench, name, modes, (file, arguments))?;
        }
        if !bench.quick {
            for mode in modes {
                server(bench, mode)?;
            }
            threads(bench)?;
        }
    }
    if !bench.quick {
        for (name, file, arguments) in &all {
            for mode in ["bare", OURS] {
                memory(bench, name, mode, (file, arguments))?;
            }
        }
    }
    Ok(())
}

fn one(
    bench: &mut Bench,
    name: &str,
    modes: &[&str],
    (file, arguments): (&PathBuf, &[String]),
) -> Result<()> {
    let mut expected = None;
    for mode in modes {
        let said = bench.cost(CASE, &format!("{name}, {mode}"), |bench| {
            let mut command = command(bench, mode, file);
            Ok(finish(command.args(arguments), bench.limit)?.1)
        })?;
        is_served(bench, mode)?;
        let expected = expected.get_or_insert_with(|| said.clone());
        ensure!(
            said == *expected,
            "{name} printed something else under {mode}"
        );
    }
    Ok(())
}

/// Fails if `ulpf check` did not check the program, so that an unchecked run does not count as fast.
fn is_served(bench: &Bench, mode: &str) -> Result<()> {
    if mode != OURS {
        return Ok(());
    }
    let found =
        fs::read_to_string(bench.programs.file("found")).context("it has written nothing")?;
    ensure!(
        found.contains("allocated") && !found.contains("nothing is checked"),
        "ulpf check has said:\n{}",
        tail(&found)
    );
    Ok(())
}

fn memory(
    bench: &mut Bench,
    name: &str,
    mode: &str,
    (file, arguments): (&PathBuf, &[String]),
) -> Result<()> {
    let mut command = command(bench, mode, file);
    let (done, most) = peak::during(|| finish(command.args(arguments), bench.limit));
    done?;
    let mib = most as f64 / f64::from(1 << 20);
    bench.reading(CASE, &format!("{name}, {mode}"), MEMORY, mib);
    Ok(())
}

/// redis-server, under redis-benchmark: the server's time, without that of redis-benchmark.
fn server(bench: &mut Bench, mode: &str) -> Result<()> {
    let Some(program) = redis::program(bench) else {
        return Ok(());
    };
    let command = command(bench, mode, &program);
    let Some(ms) = redis::served(&bench.programs, command, 40_000)? else {
        bench.skip(REDIS, "the kernel counts no processor time here");
        return Ok(());
    };
    is_served(bench, mode)?;
    bench.reading(CASE, &format!("{REDIS}, {mode}"), PROCESSOR, ms);
    Ok(())
}

/// Two threads that allocate, use and free blocks, beside one.
fn threads(bench: &mut Bench) -> Result<()> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        bench.skip(
            "two threads on two processors",
            "there is only one processor",
        );
        return Ok(());
    }
    let program = bench.programs.get("blocks")?;
    for count in ["1", "2"] {
        for mode in ["bare", OURS] {
            let mut command = command(bench, mode, &program);
            let (_, said) = finish(command.args([count, "200000"]), bench.limit)?;
            let ns = Measured::find(&said)?.get("ns")?;
            bench.reading(CASE, &format!("{count} threads, {mode}"), "ns", ns);
        }
    }
    Ok(())
}

// ---- tables -----------------------------------------------------------------------------------------

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "`ulpf check`: whole runs, as times of bare",
        &[
            "program",
            "bare, ms",
            OURS,
            "bar",
            "goal",
            "",
            MEMCHECK,
            "memcheck / ulpf check",
            "bar",
            "goal",
            "",
            "memory, bare, MiB",
            "ulpf check",
        ],
    );
    // (redis is measured in processor time only.)
    let unit = r.unit_of_cost(CASE);
    let mut ratios = Vec::new();
    let names = WORK.iter().map(|w| w.0);
    for name in names.chain([REDIS]) {
        let variant = |mode: &str| format!("{name}, {mode}");
        let of_bare = |mode: &str| r.ratio(CASE, &variant(mode), &variant("bare"), unit);
        let Some(ours) = of_bare(OURS) else {
            continue;
        };
        ratios.push(ours);
        let each = Goal::at_most(
            format!("{name} under ulpf check"),
            ours,
            12.0,
            2.5,
            Unit::Times,
        );
        let memcheck = of_bare(MEMCHECK);
        let faster = memcheck.map(|m| {
            let what = format!("{name}: ulpf check against memcheck");
            Goal::at_least(what, m / ours, 4.0, 10.0, Unit::Times)
        });
        let limit = |goal: Option<&Goal>, of: fn(&Goal) -> f64| {
            goal.map_or("–".into(), |g| g.limit(of(g)))
        };
        let limits = [Some(&each), faster.as_ref()]
            .map(|goal| [limit(goal, |g| g.bar), limit(goal, |g| g.goal)]);
        let outcomes = [t.goal(Some(each)), t.goal(faster)];
        let mib = |mode: &str| some(r.median(CASE, &variant(mode), MEMORY));
        t.row(&[
            name,
            &some(r.median(CASE, &variant("bare"), unit)),
            &times(Some(ours)),
            &limits[0][0],
            &limits[0][1],
            &outcomes[0],
            &times(memcheck),
            &times(memcheck.map(|m| m / ours)),
            &limits[1][0],
            &limits[1][1],
            &outcomes[1],
            &mib("bare"),
            &mib(OURS),
        ]);
    }
    if let Some(middle) = median(ratios) {
        let goal = Goal::at_most(
            "ulpf check, the median of these",
            middle,
            6.0,
            2.5,
            Unit::Times,
        );
        t.note(format!(
            "The median is {}; the bar {}, the goal {}: {}.",
            times(Some(middle)),
            goal.limit(goal.bar),
            goal.limit(goal.goal),
            goal.outcome()
        ));
        t.goal(Some(goal));
    }
    t.note(format!(
        "memcheck with `--undef-value-errors=no`, one turn. Memory: the most that all processes together took (proportional set size), \
         ulpf's own and up to {} MiB of freed blocks (quarantine) included.",
        figure(QUARANTINE_MIB)
    ));
    let mut tables = vec![t];
    tables.extend(thread_table(r));
    tables
}

fn thread_table(r: &Readings) -> Option<Table> {
    let mut t = Table::new(
        "`ulpf check`: two threads that allocate, use and free blocks, against one",
        &[
            "",
            "one thread, ns a block",
            "two threads, ns a block",
            "throughput",
        ],
    );
    let mut gain = None;
    for mode in ["bare", OURS] {
        let [one, two] = ["1", "2"].map(|n| format!("{n} threads, {mode}"));
        gain = Some(r.ratio(CASE, &one, &two, "ns")?);
        t.row(&[
            mode,
            &some(r.median(CASE, &one, "ns")),
            &some(r.median(CASE, &two, "ns")),
            &times(gain),
        ]);
    }
    let what = "two threads on two processors under ulpf check, against one";
    t.goal(gain.map(|gain| Goal::at_least(what, gain, 1.8, 2.0, Unit::Times)));
    Some(t)
}
