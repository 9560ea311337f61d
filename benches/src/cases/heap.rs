//! The whole heap watched: the thesis's programs, and three well-known ones. And the static count of
//! accesses that can be patched.

use super::super::children::finish;
use super::super::machine::find;
use super::super::programs::{has_quantum, missing};
use super::super::published::TABLE_4_8;
use super::super::readings::Readings;
use super::super::table::{Goal, Table, Unit, count as whole, counted as number, some, times};
use super::super::tools::{Counted, How, Run};
use super::super::turns::Bench;
use super::redis;
use crate::coverage;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// As a user would: where the watches live is ulpf's choice.
pub const AUTO: How = How {
    no_patch: false,
    placement: "auto",
    log: false,
    at_once: false,
    kept: false,
};

// ---- tables 4.7 and 4.8 -----------------------------------------------------------------------------

pub fn programs(bench: &mut Bench) -> Result<()> {
    const CASE: &str = "heap";
    let quick = bench.quick;
    let pick = |long: &'static [&'static str], short| if quick { short } else { long };
    let mut all = Vec::new();
    match has_quantum() {
        true => {
            let program = bench.programs.get("quantum")?;
            all.push(("libquantum", program, pick(&["33", "5"], &["15", "7"])));
        }
        false => bench.skip(
            "libquantum",
            "there is no quantum.h (apt install libquantum-dev)",
        ),
    }
    all.push((
        "lbm",
        bench.programs.get("lbm")?,
        pick(&["24", "10"], &["12", "2"]),
    ));
    for turn in 0..bench.turns {
        for (name, program, arguments) in &all {
            let run = Run { program, arguments };
            let bare = bench.bare(run)?;
            bench.reading(CASE, &format!("{name}, bare"), "ms", bare.get("ns")? / 1e6);
            let mut ways = vec![("patched", AUTO)];
            if turn == 0 && !quick {
                ways.push((
                    "trap",
                    How {
                        no_patch: true,
                        ..AUTO
                    },
                ));
            }
            for (who, how) in ways {
                let (measured, counted) = bench.watched(&how, &["heap".into()], run)?;
                ensure!(
                    counted.hits > 1000,
                    "{name}: only {} hits on the heap",
                    counted.hits
                );
                bench.reading(
                    CASE,
                    &format!("{name}, {who}"),
                    "ms",
                    measured.get("ns")? / 1e6,
                );
                if who == "patched" {
                    tell(bench, CASE, name, &counted);
                }
            }
        }
    }
    Ok(())
}

fn tell(bench: &mut Bench, case: &'static str, name: &str, counted: &Counted) {
    bench.reading(case, name, "hits", counted.hits as f64);
    bench.reading(
        case,
        name,
        "false positives",
        counted.false_positives as f64,
    );
    bench.reading(case, name, "faults", counted.faults as f64);
    bench.reading(case, name, "% still fault", counted.share() * 100.0);
}

pub fn program_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "All of the heap watched, hits counted (thesis, tables 4.7 and 4.8)",
        &[
            "program",
            "hits",
            "bare, ms",
            "patched",
            "trap path",
            "thesis, lookup",
            "thesis, no lookup",
            "MemTrace",
            "goal",
            "",
        ],
    );
    for row in TABLE_4_8 {
        let ratio = |who: &str| {
            r.ratio(
                "heap",
                &format!("{}, {who}", row.program),
                &format!("{}, bare", row.program),
                "ms",
            )
        };
        let Some(ours) = ratio("patched") else {
            continue;
        };
        let goal = Goal::at_most(
            format!("{}, all heap watched", row.program),
            ours,
            row.lookup,
            row.goal,
            Unit::Times,
        );
        let limit = goal.limit(row.goal);
        let outcome = t.goal(Some(goal));
        t.row(&[
            row.program,
            &number(r.median("heap", row.program, "hits")),
            &some(r.median("heap", &format!("{}, bare", row.program), "ms")),
            &times(Some(ours)),
            &times(ratio("trap")),
            &times(Some(row.lookup)),
            &times(Some(row.no_lookup)),
            &times(Some(row.memtrace)),
            &limit,
            &outcome,
        ]);
    }
    t.note("The bar is the thesis's figure with lookup. Debian's libquantum runs Shor's algorithm (one thread); the LBM kernel is ours. The thesis and MemTrace had SPEC CPU2006's.");
    vec![t]
}

// ---- accesses that still fault ----------------------------------------------------------------------

pub const SQL: &str = "\
create table t(a integer primary key, b text); create index i on t(b);
with recursive n(x) as (select 1 union all select x + 1 from n where x < ROWS)
 insert into t select x, printf('row %d', (x * 7919) % ROWS) from n;
select count(*), sum(length(b)) from t where b like 'row 1%';
select b, count(*) from t group by b order by b limit 3;";

pub const PYTHON: &str = "\
words = {}
for i in range(ROWS):
    words.setdefault(str(i * 7919 % 1000), []).append((i, [i] * 3))
print(len(words), sum(len(w) for w in words.values()))";

pub fn faults(bench: &mut Bench) -> Result<()> {
    const CASE: &str = "faults";
    let rows = if bench.quick { "500" } else { "20000" };
    let sql = SQL.replace("ROWS", rows);
    let python = PYTHON.replace("ROWS", rows);
    let how = How {
        at_once: true,
        ..AUTO
    };
    for (name, program, package, arguments) in [
        ("sqlite3", "sqlite3", "sqlite3", vec![":memory:", &sql]),
        (
            "CPython",
            "/usr/bin/python3",
            "python3",
            vec!["-S", "-E", "-c", &python],
        ),
    ] {
        if let Some(why) = missing(program, package) {
            bench.skip(name, &why);
            continue;
        }
        let program = find(program).unwrap_or_default();
        let mut bare = Command::new(&program);
        let (_, expected) = finish(bare.args(&arguments), bench.limit)?;
        let run = Run {
            program: &program,
            arguments: &arguments,
        };
        let (said, summary) = bench.ulpf_run(&how, &["heap".into()], run)?;
        ensure!(
            said == expected,
            "{name} printed something else under ulpf: {said}"
        );
        tell(bench, CASE, name, &Counted::of(&summary));
    }
    if let Some(counted) = redis::heap(bench)? {
        tell(bench, CASE, "redis", &counted);
    }
    Ok(())
}

pub fn fault_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Accesses to guarded pages that still fault, all of the heap watched",
        &[
            "program",
            "hits",
            "false positives",
            "faults",
            "still fault",
            "bar",
            "goal",
            "",
        ],
    );
    for program in ["sqlite3", "redis", "CPython"] {
        let Some(share) = r.median("faults", program, "% still fault") else {
            continue;
        };
        let goal = Goal::at_most(
            format!("{program}, all heap watched: accesses that still fault"),
            share,
            5.0,
            0.5,
            Unit::Percent,
        );
        let limits = (goal.limit(goal.bar), goal.limit(goal.goal));
        let outcome = t.goal(Some(goal));
        let count = |what| number(r.median("faults", program, what));
        t.row(&[
            program,
            &count("hits"),
            &count("false positives"),
            &count("faults"),
            &Unit::Percent.show(share),
            &limits.0,
            &limits.1,
            &outcome,
        ]);
    }
    t.note("Faults against hits and false positives, from the summary of `ulpf run --watch heap`, of short runs that include each site's first faults.");
    vec![t]
}

// ---- accesses that can be patched -------------------------------------------------------------------

const FILES: &[(&str, &[&str])] = &[
    ("sqlite3 (libsqlite3.so)", &["libsqlite3.so.0"]),
    ("redis-server", &["redis-server", "redis-check-rdb"]),
    ("libc.so.6", &["libc.so.6"]),
];

/// A library or program of this machine's.
fn locate(names: &[&str]) -> Option<PathBuf> {
    const FOLDERS: [&str; 4] = [
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib64",
        "/usr/lib64",
    ];
    names.iter().find_map(|name| {
        let library = FOLDERS
            .iter()
            .map(|f| Path::new(f).join(name))
            .find(|p| p.is_file());
        library.or_else(|| find(name))
    })
}

/// Readings with this prefix are reasons.
const REFUSED: &str = "refused: ";

pub fn coverage(bench: &mut Bench) -> Result<()> {
    const CASE: &str = "coverage";
    for (name, names) in FILES {
        let Some(path) = locate(names) else {
            bench.skip(name, &format!("there is no {} here", names[0]));
            continue;
        };
        let coverage = coverage::of_file(&path)?;
        for (kind, sites) in [("stores", &coverage.stores), ("loads", &coverage.loads)] {
            let mut tell = |what: &str, count: u64| {
                bench.reading(
                    CASE,
                    &format!("{name}, {kind}, {what}"),
                    "sites",
                    count as f64,
                );
            };
            tell("near jump", sites.near);
            tell("relocated successors", sites.relocated);
            tell("all", sites.all());
            for (why, count) in sites.reasons() {
                tell(&format!("{REFUSED}{why}"), count);
            }
        }
    }
    Ok(())
}

pub fn coverage_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Sites that some tactic can patch (static count)",
        &[
            "file",
            "sites",
            "near jump",
            "relocated successors",
            "refused",
            "can be patched",
            "bar",
            "goal",
            "",
        ],
    );
    let mut why = Table::new(
        "Sites that no tactic can patch, by reason",
        &["file", "reason", "sites"],
    );
    for (name, _) in FILES {
        for kind in ["stores", "loads"] {
            let count =
                |what: &str| r.median("coverage", &format!("{name}, {kind}, {what}"), "sites");
            let (Some(all), Some(near), Some(relocated)) = (
                count("all"),
                count("near jump"),
                count("relocated successors"),
            ) else {
                continue;
            };
            let share = (near + relocated) / all.max(1.0) * 100.0;
            // Loads fault only under read and access watches; no limit was set for them.
            let goal = (kind == "stores").then(|| {
                Goal::at_least(
                    format!("{name}: store sites that some tactic can patch"),
                    share,
                    97.0,
                    99.9,
                    Unit::Percent,
                )
            });
            let limit = |pick: fn(&Goal) -> String| goal.as_ref().map_or("–".into(), pick);
            let limits = (limit(|g| g.limit(g.bar)), limit(|g| g.limit(g.goal)));
            let outcome = t.goal(goal);
            let file = format!("{name}, {kind}");
            t.row(&[
                &file,
                &whole(all),
                &whole(near),
                &whole(relocated),
                &whole(all - near - relocated),
                &Unit::Percent.show(share),
                &limits.0,
                &limits.1,
                &outcome,
            ]);
            let prefix = format!("{file}, {REFUSED}");
            let reasons = r.0.iter().filter(|x| x.case == "coverage");
            for (reason, x) in reasons.filter_map(|x| Some((x.variant.strip_prefix(&prefix)?, x))) {
                why.row(&[&file, reason, &whole(x.value)]);
            }
        }
    }
    vec![t, why]
}
