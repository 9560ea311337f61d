//! Programs that everybody knows, with their heaps watched as a whole: what that costs, beside what valgrind takes to do
//! nothing.
//!
//! Each runs with some work and with ten times as much. The whole run is the longer one. The steady state is the difference
//! between the two, so that neither the start nor the first tenth of the work counts. Costs are in processor time, ulpf's own
//! included, or in wall-clock time where the kernel does not count processor time.

use super::super::children::{finish, tail};
use super::super::machine::find;
use super::super::programs::missing;
use super::super::readings::{CLOCK, PROCESSOR, Readings};
use super::super::table::{Goal, Table, Unit, some, times};
use super::super::tools::{Counted, How};
use super::super::turns::Bench;
use super::heap::AUTO;
use super::redis;
use super::workloads::{Kind, PROGRAMS, Program, SERVER};
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const CASE: &str = "real";

/// Name of a way to run the programs, and the watch that it sets, if any.
type Mode = (&'static str, Option<&'static str>);
const MODES: [Mode; 3] = [
    ("bare", None),
    ("writes", Some("heap")),
    ("reads and writes", Some("heap:rw")),
];
/// Run once more, when it is known which accesses were hot.
const AGAIN: &str = "again";
const IDLE: &str = "valgrind --tool=none";
/// Accesses to guarded pages that have faulted, of all such.
const FAULTED: &str = "%";

pub fn run(bench: &mut Bench) -> Result<()> {
    let divide = if bench.quick { 100 } else { 1 };
    let few = if bench.quick { 2 } else { PROGRAMS.len() };
    let valgrind = find("valgrind");
    if valgrind.is_none() {
        bench.skip(IDLE, "valgrind is not installed (apt install valgrind)");
    }
    for p in PROGRAMS.iter().take(few) {
        if let Some(why) = missing(p.program, p.package) {
            bench.skip(p.name, &why);
            continue;
        }
        let mut works = Vec::new();
        for (length, amount) in [("short", p.work / divide / 10), ("long", p.work / divide)] {
            match Work::new(bench, p, amount) {
                Ok(Some(work)) => works.push((length, work)),
                Ok(None) => {} // it has said why
                Err(why) => bench.skip(p.name, &format!("{why:#}")),
            }
        }
        if works.len() < 2 {
            continue;
        }
        for turn in 0..bench.turns {
            for (length, work) in &works {
                let valgrind = valgrind.as_deref();
                // (To watch reads, too, takes long, and of those that generate code there is no limit for it.)
                let reads = turn == 0 && p.kind == Kind::Compiled;
                let modes = if reads { &MODES[..] } else { &MODES[..2] };
                one(bench, p.name, (length, modes), work, valgrind)?;
            }
        }
    }
    Ok(())
}

/// Work of one program.
enum Work {
    Runs(PathBuf, Vec<String>),
    /// A server, and the number of requests of each sort.
    Serves(PathBuf, u32),
}

impl Work {
    fn new(bench: &mut Bench, p: &Program, amount: u32) -> Result<Option<Work>> {
        if p.name == SERVER {
            return Ok(redis::program(bench).map(|file| Work::Serves(file, amount.max(1))));
        }
        let (file, arguments) = p.prepare(&bench.programs.folder, amount)?;
        Ok(Some(Work::Runs(file, arguments)))
    }

    fn file(&self) -> &Path {
        let (Work::Runs(file, _) | Work::Serves(file, _)) = self;
        file
    }

    /// Does it by this command, which runs the program. What was printed.
    fn run(&self, bench: &Bench, mut command: Command) -> Result<String> {
        match self {
            Work::Runs(_, arguments) => {
                let (status, said) = finish(command.args(arguments), bench.limit)?;
                ensure!(status.success(), "it ended with {status}:\n{}", tail(&said));
                Ok(said)
            }
            Work::Serves(_, requests) => {
                redis::served(&bench.programs, command, *requests)?;
                Ok(String::new())
            }
        }
    }

    /// The same, and what it takes is a reading.
    fn cost(&self, bench: &mut Bench, variant: &str, command: Command) -> Result<String> {
        let Work::Serves(_, requests) = self else {
            return bench.cost(CASE, variant, |bench| self.run(bench, command));
        };
        match redis::served(&bench.programs, command, *requests)? {
            Some(ms) => bench.reading(CASE, variant, PROCESSOR, ms),
            None => bench.skip(SERVER, "the kernel counts no processor time here"),
        }
        Ok(String::new())
    }
}

/// One length of work, in all ways.
fn one(
    bench: &mut Bench,
    name: &str,
    (length, modes): (&str, &[Mode]),
    work: &Work,
    valgrind: Option<&Path>,
) -> Result<()> {
    let mut expected = None;
    for (mode, watch) in modes {
        let variant = format!("{name}, {length}, {mode}");
        let Some(watch) = watch else {
            expected = Some(work.cost(bench, &variant, Command::new(work.file()))?);
            continue;
        };
        let under_ulpf = |bench: &Bench, kept: bool| {
            let how = How {
                at_once: true,
                kept,
                ..AUTO
            };
            let mut command = bench.ulpf_run_command(&how, &[(*watch).into()])?;
            command.arg(work.file());
            anyhow::Ok(command)
        };
        let same = |said: &str, how: &str| {
            ensure!(
                Some(said) == expected.as_deref(),
                "{name} printed something else under ulpf{how} ({mode})"
            );
            Ok(())
        };
        let command = under_ulpf(bench, false)?;
        let said = work.cost(bench, &variant, command)?;
        same(&said, "")?;
        let counted = Counted::of(&bench.summary(&said)?);
        bench.reading(CASE, &variant, FAULTED, counted.share() * 100.0);
        if length != "short" {
            continue;
        }
        // By that it is known which accesses are hot.
        work.run(bench, under_ulpf(bench, true)?)?;
        let command = under_ulpf(bench, true)?;
        let said = work.cost(bench, &format!("{variant}, {AGAIN}"), command)?;
        same(&said, " when it was run once more")?;
    }
    if let Some(valgrind) = valgrind {
        let variant = format!("{name}, {length}, {IDLE}");
        let mut command = Command::new(valgrind);
        command.args(["-q", "--tool=none"]).arg(work.file());
        // (Java and others print more under it.)
        if let Err(why) = work.cost(bench, &variant, command) {
            bench.skip(&format!("{name} under {IDLE}"), &format!("{why:#}"));
        }
    }
    Ok(())
}

// ---- tables -----------------------------------------------------------------------------------------

/// Its bar and its goal.
fn limits_of(goal: Option<&Goal>) -> (String, String) {
    goal.map_or(("–".into(), "–".into()), |g| {
        (g.limit(g.bar), g.limit(g.goal))
    })
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Real programs, all of the heap watched (times of bare; steady state, and the whole run)",
        &[
            "program",
            "bare, ms",
            "writes, steady",
            "bar",
            "goal",
            "",
            "whole run",
            "reads and writes, steady",
            "bar",
            "goal",
            "",
            "whole run",
            "valgrind's idle, steady",
            "whole run",
            "writes that fault",
            "reads and writes",
        ],
    );
    for p in PROGRAMS {
        let unit = r.unit_of_cost(CASE);
        let median = |length: &str, mode: &str| {
            r.median(CASE, &format!("{}, {length}, {mode}", p.name), unit)
        };
        let more = |mode: &str| Some(median("long", mode)? - median("short", mode)?);
        let steady = |mode: &str| {
            let bare = more("bare").filter(|ms| *ms > 0.0)?;
            Some(more(mode)? / bare)
        };
        let faulted = |mode: &str| {
            let variant = format!("{}, long, {mode}", p.name);
            let share = r.median(CASE, &variant, FAULTED);
            share.map_or("–".into(), |share| Unit::Percent.show(share))
        };
        let whole = |mode: &str| Some(median("long", mode)? / median("long", "bare")?);
        let Some(writes) = steady("writes") else {
            continue;
        };
        let limits = match p.kind {
            Kind::Compiled => (5.0, 2.0),
            Kind::Generates => (15.0, 5.0),
            Kind::Go => (8.0, 3.0),
        };
        let of_writes = Goal::at_most(
            format!("{}, all heap watched, steady state", p.name),
            writes,
            limits.0,
            limits.1,
            Unit::Times,
        );
        let of_both = (p.kind == Kind::Compiled)
            .then(|| steady("reads and writes"))
            .flatten()
            .map(|both| {
                Goal::at_most(
                    format!("{}, all heap watched for reads, too, steady state", p.name),
                    both,
                    10.0,
                    4.0,
                    Unit::Times,
                )
            });
        let limits = [Some(&of_writes), of_both.as_ref()].map(limits_of);
        let outcomes = [t.goal(Some(of_writes)), t.goal(of_both)];
        t.row(&[
            p.name,
            &some(median("long", "bare")),
            &times(Some(writes)),
            &limits[0].0,
            &limits[0].1,
            &outcomes[0],
            &times(whole("writes")),
            &times(steady("reads and writes")),
            &limits[1].0,
            &limits[1].1,
            &outcomes[1],
            &times(whole("reads and writes")),
            &times(steady(IDLE)),
            &times(whole(IDLE)),
            &faulted("writes"),
            &faulted("reads and writes"),
        ]);
    }
    t.note(match r.unit_of_cost(CASE) {
        CLOCK => "Times of the clock: the kernel counts no processor time here.",
        _ => "Processor time (task-clock) of all processes together, ulpf's and its task in the program included.",
    });
    t.note("Steady state: what ten times the work takes more than the work, against the same of bare; the whole run is the longer one. Each program prints under ulpf what it prints without, or the case fails. redis serves redis-benchmark, whose time does not count.");
    vec![t, short_runs(r)]
}

/// A tenth of the work: the first run, and the next one, for which it is known which accesses were hot.
fn short_runs(r: &Readings) -> Table {
    let mut t = Table::new(
        "Short runs, all of the heap watched: the first one, and the next (times of bare)",
        &[
            "program",
            "bare, ms",
            "writes",
            "the next run",
            "reads and writes",
            "the next run",
            "valgrind's idle",
        ],
    );
    for p in PROGRAMS {
        let unit = r.unit_of_cost(CASE);
        let median = |mode: &str| r.median(CASE, &format!("{}, short, {mode}", p.name), unit);
        let of_bare = |mode: &str| Some(median(mode)? / median("bare")?);
        let cell = |mode: &str| times(of_bare(mode));
        if median("bare").is_none() {
            continue;
        }
        t.row(&[
            p.name,
            &some(median("bare")),
            &cell("writes"),
            &cell(&format!("writes, {AGAIN}")),
            &cell("reads and writes"),
            &cell(&format!("reads and writes, {AGAIN}")),
            &cell(IDLE),
        ]);
    }
    t.note("A tenth of the work of the table above, start-up included. For the next run it is kept, by build ID, which accesses were hot; all other runs of this program's measurements do without (ULPF_HOT_CACHE=off).");
    t
}
