//! Programs that everybody knows, with their heaps watched as a whole: what that costs, beside what valgrind takes to do
//! nothing.
//!
//! Each runs with some work and with ten times as much. The whole run is the longer one; the steady state is what it takes
//! more than the shorter one, so that neither the start nor the first tenth of the work counts. What each takes is processor
//! time, ulpf's own included, or (where the kernel does not count that) the time of the clock.

use super::super::children::finish;
use super::super::machine::find;
use super::super::programs::missing;
use super::super::readings::{CLOCK, Readings};
use super::super::table::{Goal, Table, Unit, some, times};
use super::super::tools::{Counted, How, Run};
use super::super::turns::Bench;
use super::heap::AUTO;
use super::known::{Kind, PROGRAMS};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

const CASE: &str = "real";

/// What each is run as, and by which name that is read.
type Way = (&'static str, Option<&'static str>);
const WAYS: [Way; 3] = [
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
    let few = if bench.quick { 1 } else { PROGRAMS.len() };
    let valgrind = find("valgrind");
    if valgrind.is_none() {
        bench.skip(IDLE, "valgrind is not installed (apt install valgrind)");
    }
    for p in PROGRAMS.iter().take(few) {
        if let Some(why) = missing(p.program, p.package) {
            bench.skip(p.name, &why);
            continue;
        }
        let lengths = [p.work / divide / 10, p.work / divide];
        let runs = lengths.map(|work| p.prepare(&bench.programs.folder, work));
        let [short, long] = match runs {
            [Ok(short), Ok(long)] => [short, long],
            [Err(why), _] | [_, Err(why)] => {
                bench.skip(p.name, &format!("{why:#}"));
                continue;
            }
        };
        for turn in 0..bench.turns {
            for (length, (file, arguments)) in [("short", &short), ("long", &long)] {
                let valgrind = valgrind.as_deref();
                // (To watch reads, too, takes long, and of those that generate code there is no limit for it.)
                let reads = turn == 0 && p.kind == Kind::Compiled;
                let ways = if reads { &WAYS[..] } else { &WAYS[..2] };
                one(bench, p.name, (length, ways), (file, arguments), valgrind)?;
            }
        }
    }
    Ok(())
}

/// One length of work, in all ways.
fn one(
    bench: &mut Bench,
    name: &str,
    (length, ways): (&str, &[Way]),
    (file, arguments): (&Path, &[String]),
    valgrind: Option<&Path>,
) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let how = How {
        at_once: true,
        ..AUTO
    };
    let mut expected = None;
    for (way, watch) in ways {
        let variant = format!("{name}, {length}, {way}");
        let (said, counted) = bench.cost(CASE, &variant, |bench| match watch {
            None => {
                let (_, said) = finish(Command::new(file).args(&arguments), bench.limit)?;
                Ok((said, None))
            }
            Some(watch) => {
                let run = Run {
                    program: file,
                    arguments: &arguments,
                };
                let (said, summary) = bench.ulpf_run(&how, &[(*watch).into()], run)?;
                Ok((said, Some(Counted::of(&summary))))
            }
        })?;
        if let Some(counted) = counted {
            bench.reading(CASE, &variant, FAULTED, counted.share() * 100.0);
        }
        let expected = expected.get_or_insert_with(|| said.clone());
        ensure!(
            said == *expected,
            "{name} printed something else under ulpf ({way})"
        );
        let watch = watch.filter(|_| length == "short");
        let Some(watch) = watch else { continue };
        let how = How { kept: true, ..how };
        let run = Run {
            program: file,
            arguments: &arguments,
        };
        // By that it is known which accesses are hot.
        bench.ulpf_run(&how, &[watch.into()], run)?;
        let (said, _) = bench.cost(CASE, &format!("{variant}, {AGAIN}"), |bench| {
            bench.ulpf_run(&how, &[watch.into()], run)
        })?;
        ensure!(
            said == *expected,
            "{name} printed something else when it was run under ulpf once more ({way})"
        );
    }
    if let Some(valgrind) = valgrind {
        let variant = format!("{name}, {length}, {IDLE}");
        let said = bench.cost(CASE, &variant, |bench| {
            let mut command = Command::new(valgrind);
            command.args(["-q", "--tool=none"]).arg(file);
            // (Java and others say things about it.)
            let (status, _) = finish(command.args(&arguments), bench.limit)?;
            ensure!(status.success(), "it ended with {status}");
            Ok(())
        });
        if let Err(why) = said {
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
        let median =
            |length: &str, way: &str| r.median(CASE, &format!("{}, {length}, {way}", p.name), unit);
        let more = |way: &str| Some(median("long", way)? - median("short", way)?);
        let steady = |way: &str| {
            let bare = more("bare").filter(|ms| *ms > 0.0)?;
            Some(more(way)? / bare)
        };
        let faulted = |way: &str| {
            let variant = format!("{}, long, {way}", p.name);
            let share = r.median(CASE, &variant, FAULTED);
            share.map_or("–".into(), |share| Unit::Percent.show(share))
        };
        let whole = |way: &str| Some(median("long", way)? / median("long", "bare")?);
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
    t.note("Steady state: what ten times the work takes more than the work, against the same of bare; the whole run is the longer one. Each program prints under ulpf what it prints without, or the case fails.");
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
        let median = |way: &str| r.median(CASE, &format!("{}, short, {way}", p.name), unit);
        let of_bare = |way: &str| Some(median(way)? / median("bare")?);
        let cell = |way: &str| times(of_bare(way));
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
