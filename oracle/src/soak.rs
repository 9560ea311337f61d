//! Runs: a soak, the slice of `make test`, single programs and fixed cases.

use crate::bench::{Bench, Kind, Totals};
use crate::examples::{EXAMPLES, Example};
use crate::generate::{self, More};
use crate::program::Judge;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The kinds take turns.
fn kind(seed: u64, registers: bool) -> Kind {
    let judge = match seed / 10 % 3 {
        0 => Judge::Step,
        _ => Judge::Unicorn,
    };
    match seed % 10 {
        1 => Kind::More(judge, MADE),
        2 | 6 => Kind::Threads,
        3 | 7 => Kind::One(Judge::Step),
        4 => Kind::Stages(judge),
        5 if registers => Kind::Registers,
        8 => Kind::More(judge, FILTERS),
        9 => Kind::More(judge, CHILDREN[(seed / 10 % 2) as usize]),
        _ => Kind::One(Judge::Unicorn),
    }
}

const MADE: More = More {
    seccomp: false,
    children: false,
    made: true,
};
const FILTERS: More = More {
    seccomp: true,
    children: false,
    made: false,
};
/// Every other one has filters, too.
const CHILDREN: [More; 2] = [
    More {
        seccomp: false,
        children: true,
        made: false,
    },
    More {
        seccomp: true,
        children: true,
        made: false,
    },
];

/// A kind by its name.
fn named(name: &str) -> Result<Kind> {
    Ok(match name {
        "unicorn" => Kind::One(Judge::Unicorn),
        "step" => Kind::One(Judge::Step),
        "threads" => Kind::Threads,
        "registers" => Kind::Registers,
        "filters" => Kind::More(Judge::Unicorn, FILTERS),
        "made" => Kind::More(Judge::Unicorn, MADE),
        "made-step" => Kind::More(Judge::Step, MADE),
        "filters-step" => Kind::More(Judge::Step, FILTERS),
        "stages" => Kind::Stages(Judge::Unicorn),
        "stages-step" => Kind::Stages(Judge::Step),
        "children" => Kind::More(Judge::Unicorn, CHILDREN[0]),
        "children-step" => Kind::More(Judge::Step, CHILDREN[0]),
        "children-filters" => Kind::More(Judge::Unicorn, CHILDREN[1]),
        _ => bail!("no such kind: {name}"),
    })
}

/// Whether watches can be put into debug registers here. Perf events may be forbidden.
fn registers_work(ulpf: &Path) -> bool {
    let said = std::process::Command::new(ulpf).arg("doctor").output();
    let said = said.map_or(vec![], |o| o.stdout);
    String::from_utf8_lossy(&said)
        .lines()
        .any(|l| l.starts_with("ok") && l.contains("debug registers"))
}

/// Runs all pieces of work on all processors, each with its own bench. Calls `report` with the sum after each.
/// Returns `false` if one of them differs.
fn share<W: Send>(
    bench: &Bench,
    work: impl Iterator<Item = W> + Send,
    run: impl Fn(&Bench, W, &mut Totals) -> Result<bool> + Sync,
    report: impl Fn(&Totals) + Sync,
) -> Result<(bool, Totals)> {
    let work = Mutex::new(work);
    let all = Mutex::new((true, Totals::default()));
    let worker = |n: usize| -> Result<()> {
        let folder = bench.elf.with_file_name(n.to_string());
        std::fs::create_dir_all(&folder)?;
        let bench = Bench {
            ulpf: bench.ulpf.clone(),
            elf: folder.join("program"),
            codes: bench.codes.clone(),
        };
        loop {
            let Some(piece) = lock(&work).next() else {
                return Ok(());
            };
            let mut totals = Totals::default();
            let ok = run(&bench, piece, &mut totals)?;
            let mut all = lock(&all);
            all.0 &= ok;
            all.1 += totals;
            report(&all.1);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..std::thread::available_parallelism().map_or(2, usize::from))
            .map(|n| scope.spawn(move || worker(n)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|_| bail!("a worker has panicked")))
    })?;
    Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bench {
    fn soak(&self, time: Duration, first: u64, only: Option<Kind>) -> Result<bool> {
        let start = Instant::now();
        let reported = Mutex::new(Instant::now());
        let enough = AtomicBool::new(false);
        let registers = registers_work(&self.ulpf);
        let next = AtomicU64::new(first);
        let seeds = std::iter::from_fn(|| {
            let goes_on = start.elapsed() < time && !enough.load(Relaxed);
            goes_on.then(|| next.fetch_add(1, Relaxed))
        });
        let run = |bench: &Bench, seed: u64, totals: &mut Totals| {
            bench.one(only.unwrap_or_else(|| kind(seed, registers)), seed, totals)
        };
        let (ok, totals) = share(self, seeds, run, |totals| {
            let mut reported = lock(&reported);
            if reported.elapsed() > Duration::from_secs(30) {
                *reported = Instant::now();
                println!("{}", totals.line(start.elapsed()));
            }
            enough.store(totals.differences >= 20, Relaxed);
        })?;
        if enough.into_inner() {
            println!("enough differences");
        }
        println!("seeds {first} to {}", next.into_inner() - 1);
        println!("{}", totals.line(start.elapsed()));
        Ok(ok)
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
        .to_path_buf()
}

pub fn cases() -> PathBuf {
    root().join("oracle/cases")
}

/// `false`: there are differences.
pub fn main(mut args: Vec<String>) -> Result<bool> {
    let mut option = |name: &str| -> Option<String> {
        let at = args.iter().position(|a| a == name)?;
        args.remove(at);
        (at < args.len()).then(|| args.remove(at))
    };
    let ulpf = option("--ulpf").map_or(root().join("target/release/ulpf"), PathBuf::from);
    let seed = option("--seed").map_or(Ok(None), |s| s.parse().map(Some))?;
    let only = option("--kind").map(|name| named(&name)).transpose()?;
    let scratch = std::env::temp_dir().join(format!("ulpf-oracle-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let bench = Bench {
        ulpf,
        elf: scratch.join("program"),
        codes: Arc::new(generate::codes()),
    };
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["soak"] => bench.soak(Duration::from_secs(1800), seed.unwrap_or(1), only),
        ["soak", time] => bench.soak(Duration::from_secs(time.parse()?), seed.unwrap_or(1), only),
        ["examples", ref names @ ..] => {
            let mut totals = Totals::default();
            let start = Instant::now();
            let mut ok = true;
            for e in &EXAMPLES {
                if names.is_empty() || names.contains(&e.name) {
                    ok &= e.compare(&bench, u64::MAX, &mut totals)?;
                }
            }
            println!("{}", totals.line(start.elapsed()));
            Ok(ok)
        }
        ["slice"] => slice(&bench),
        ["case", ref files @ ..] => files
            .iter()
            .try_fold(true, |ok, f| Ok(bench.case(Path::new(f))? && ok)),
        ["one", name, seed] => {
            let mut totals = Totals::default();
            let ok = bench.one(named(name)?, seed.parse()?, &mut totals);
            println!("{}", totals.line(Duration::from_secs(1)));
            ok
        }
        _ => bail!("not understood: {}", args.join(" ")),
    };
    let _ = std::fs::remove_dir_all(&scratch);
    result
}

/// Single steps of an example of the slice, at most; `examples` makes all of them.
const SLICE_STEPS: u64 = 40_000;
/// The programs of the slice; every fifth or so is judged in single steps.
const SLICE: u64 = 45;
const MOST_UNJUDGED: u64 = 4;
const LEAST_STEPPED: u64 = 9;
const LEAST_THREADED: u64 = 7;
const LEAST_FILTERING: u64 = 3;
const LEAST_MAKING: u64 = 3;
const LEAST_FORKING: u64 = 3;
const LEAST_EXECUTING: u64 = 3;
const LEAST_PATCHES: u64 = 60;
const LEAST_MOMENTS: u64 = 18;

/// A piece of a slice.
enum Piece {
    Case(PathBuf),
    Program(u64),
    Example(&'static Example),
}

/// The fixed cases, a fixed set of programs, the examples.
fn slice(bench: &Bench) -> Result<bool> {
    let start = Instant::now();
    let mut files: Vec<_> = std::fs::read_dir(cases())?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "case"))
        .collect();
    files.sort();
    let registers = registers_work(&bench.ulpf);
    if !registers {
        println!("no debug registers here (ulpf doctor says why): nothing is compared in them");
    }
    let runs = |f: &PathBuf| {
        let text = std::fs::read_to_string(f).unwrap_or_default();
        registers || !text.lines().any(|l| l == "registers")
    };
    let pieces = (1..=SLICE)
        .map(Piece::Program)
        .chain(EXAMPLES.iter().map(Piece::Example))
        .chain(files.into_iter().filter(runs).map(Piece::Case));
    let run = |bench: &Bench, piece: Piece, totals: &mut Totals| match piece {
        Piece::Case(file) => bench.case(&file),
        Piece::Program(seed) => bench.one(kind(seed, registers), seed, totals),
        Piece::Example(e) => e.compare(bench, SLICE_STEPS, totals),
    };
    let (mut ok, totals) = share(bench, pieces, run, |_| ())?;
    println!("{}", totals.line(start.elapsed()));
    // A judge that does not work (where ptrace is forbidden, say) finds no difference.
    if totals.unjudged > MOST_UNJUDGED || totals.stepped < LEAST_STEPPED {
        println!(
            "the judges have failed: {} programs without a judge (at most {MOST_UNJUDGED} are expected), \
             {} judged in single steps (at least {LEAST_STEPPED}); ORACLE_DEBUG=1 says why",
            totals.unjudged, totals.stepped
        );
        ok = false;
    }
    // Neither does one whose programs are never patched.
    if totals.threaded < LEAST_THREADED
        || totals.filtering < LEAST_FILTERING
        || totals.making < LEAST_MAKING
        || totals.forking < LEAST_FORKING
        || totals.executing < LEAST_EXECUTING
        || totals.patches < LEAST_PATCHES
        || totals.moments < LEAST_MOMENTS
    {
        println!(
            "too little was tried: at least {LEAST_THREADED} programs of several threads, {LEAST_FILTERING} with \
             filters, {LEAST_MAKING} that make code, {LEAST_FORKING} that fork, {LEAST_EXECUTING} that execute others, {LEAST_PATCHES} patches and \
             {LEAST_MOMENTS} interruptions are expected"
        );
        ok = false;
    }
    Ok(ok)
}
