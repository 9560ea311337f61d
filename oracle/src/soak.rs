//! Runs programs, counts, and keeps what differs.

use crate::generate::{self, Codes, Plan};
use crate::hits::{Actual, Difference, Expected, compare};
use crate::minimise::minimise;
use crate::program::{Judge, Program};
use crate::ulpf::MOST_HITS;
use crate::{step, ulpf, unicorn};
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub struct Bench {
    ulpf: PathBuf,
    /// Where the programs are written.
    elf: PathBuf,
    codes: Codes,
}

#[derive(Default)]
struct Totals {
    programs: u64,
    instructions: u64,
    accesses: u64,
    hits: u64,
    differences: u64,
    /// Programs that no judge could follow (they fault).
    unjudged: u64,
    /// Programs that the CPU has judged, in single steps.
    stepped: u64,
}

/// What became of one program.
enum Verdict {
    Same {
        expected: Expected,
        hits: u64,
    },
    Differs(Box<Difference>),
    /// It did not run to its end under ulpf.
    Broken(anyhow::Error),
    Unjudged(anyhow::Error),
}

impl Bench {
    fn expect(&self, program: &Program) -> Result<Expected> {
        match program.judge {
            Judge::Unicorn => unicorn::judge(program),
            Judge::Step => {
                self.write(program)?;
                step::judge(program, &self.elf)
            }
        }
    }

    fn write(&self, program: &Program) -> Result<()> {
        let _ = std::fs::remove_file(&self.elf);
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o755)
            .open(&self.elf)?;
        file.write_all(&program.elf())?;
        Ok(())
    }

    fn actual(&self, program: &Program) -> Result<Actual> {
        self.write(program)?;
        ulpf::run(&self.ulpf, &self.elf, program)
    }

    fn run(&self, program: &Program) -> Verdict {
        let expected = match self.expect(program) {
            Ok(e) => e,
            Err(e) => return Verdict::Unjudged(e),
        };
        match self.actual(program) {
            Ok(actual) => match compare(&expected, &actual) {
                Ok(hits) => Verdict::Same { expected, hits },
                Err(d) => Verdict::Differs(d),
            },
            Err(e) => Verdict::Broken(e),
        }
    }

    /// The program of a plan, with so few rounds that the ring holds every hit.
    fn fitting(&self, plan: &mut Plan) -> Result<Program> {
        for _ in 0..8 {
            let program = plan.build(&self.codes);
            let expected = self.expect(&program)?;
            let most = expected
                .epochs
                .iter()
                .map(|e| e.values().map(|s| s.hits.len()).sum::<usize>());
            let mut fits = true;
            for (hits, epoch) in most.zip(&mut plan.epochs) {
                if hits > MOST_HITS {
                    fits = false;
                    epoch.rounds =
                        (epoch.rounds as u64 * MOST_HITS as u64 / hits as u64 / 2) as u32;
                    epoch.rounds = epoch.rounds.max(1);
                }
            }
            if fits {
                return Ok(program);
            }
        }
        bail!("too many hits in one round")
    }
}

fn say_difference(d: &Difference) {
    println!("  {} in epoch {}, thread {}", d.what, d.epoch, d.thread);
    d.expected
        .iter()
        .for_each(|h| println!("    expected {h:?}"));
    d.got.iter().for_each(|h| println!("    got      {h:?}"));
}

/// The instructions of a program around `pc`.
pub fn listing(p: &Program, pc: Option<u64>) -> String {
    use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
    let mut out = String::new();
    let mut d = Decoder::with_ip(64, &p.code, crate::program::CODE, DecoderOptions::NONE);
    let mut f = IntelFormatter::new();
    while d.can_decode() {
        let i = d.decode();
        if pc.is_some_and(|pc| i.ip() + 120 < pc || i.ip() > pc + 20) {
            continue;
        }
        let mut s = String::new();
        f.format(&i, &mut s);
        let mark = if pc == Some(i.ip()) { "=>" } else { "  " };
        out.push_str(&format!("{mark} {:#x} {s}\n", i.ip()));
    }
    out
}

impl Bench {
    /// One generated program. `false`: something is wrong, and has been told and saved.
    fn one(&self, judge: Judge, seed: u64, totals: &mut Totals) -> Result<bool> {
        let mut plan = Plan::new(judge, seed);
        if std::env::var_os("ORACLE_DEBUG").is_some() {
            println!("{judge:?} {seed}");
        }
        let program = match self.fitting(&mut plan) {
            Ok(p) => p,
            Err(e) => {
                totals.unjudged += 1;
                if std::env::var_os("ORACLE_DEBUG").is_some() {
                    println!("{judge:?} {seed}: {e:#}");
                }
                return Ok(true);
            }
        };
        let mut hangs = false;
        match self.run(&program) {
            Verdict::Same { expected, hits } => {
                totals.programs += 1;
                totals.stepped += u64::from(judge == Judge::Step);
                totals.instructions += expected.instructions;
                totals.accesses += expected.accesses;
                totals.hits += hits;
                return Ok(true);
            }
            Verdict::Unjudged(e) => bail!("judged once, not twice: {e:#}"),
            Verdict::Differs(d) => {
                println!("{judge:?} {seed}: differs");
                say_difference(&d);
                if let Some(h) = d.expected.first().or(d.got.first()) {
                    print!("{}", listing(&program, Some(h.pc)));
                }
            }
            Verdict::Broken(e) => {
                println!("{judge:?} {seed}: {e:#}");
                hangs = format!("{e:#}").contains("hangs");
            }
        }
        totals.programs += 1;
        totals.differences += 1;
        if hangs {
            // Too slow to be made smaller.
            println!("seed kept: {judge:?} {seed}");
        } else {
            self.keep(plan)?;
        }
        Ok(false)
    }

    /// Makes the smallest program that still differs, and saves it.
    fn keep(&self, plan: Plan) -> Result<()> {
        let seed = plan.seed;
        let judge = plan.judge;
        let small = minimise(plan, &mut |p| {
            matches!(
                self.run(&p.build(&self.codes)),
                Verdict::Differs(..) | Verdict::Broken(..)
            )
        });
        let program = small.build(&self.codes);
        let mut comment = format!("{judge:?} {seed}\n");
        let mut at = None;
        match self.run(&program) {
            Verdict::Differs(d) => {
                comment += &format!("{}\n", d.what);
                for h in &d.expected {
                    comment += &format!("expected {h:?}\n");
                }
                for h in &d.got {
                    comment += &format!("got      {h:?}\n");
                }
                at = d.expected.first().or(d.got.first()).map(|h| h.pc);
            }
            Verdict::Broken(e) => comment += &format!("{e:#}\n"),
            _ => comment += "not every time\n",
        }
        comment += &listing(&program, at);
        let folder = cases().join("new");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{judge:?}-{seed}.case"));
        std::fs::write(&path, program.text(&comment))?;
        println!("saved as {}\n{comment}", path.display());
        Ok(())
    }

    fn soak(&self, time: Duration, first: u64) -> Result<bool> {
        let start = Instant::now();
        let mut totals = Totals::default();
        let mut told = Instant::now();
        let mut seed = first;
        while start.elapsed() < time {
            let judge = if seed % 4 == 3 {
                Judge::Step
            } else {
                Judge::Unicorn
            };
            self.one(judge, seed, &mut totals)?;
            seed += 1;
            if told.elapsed() > Duration::from_secs(30) {
                told = Instant::now();
                println!("{}", totals.line(start.elapsed()));
            }
            if totals.differences >= 20 {
                println!("enough differences");
                break;
            }
        }
        println!("seeds {first} to {}", seed - 1);
        println!("{}", totals.line(start.elapsed()));
        Ok(totals.differences == 0)
    }

    fn case(&self, path: &Path) -> Result<bool> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let program = Program::parse(&text).with_context(|| path.display().to_string())?;
        let ok = match self.run(&program) {
            Verdict::Same { hits, .. } => {
                println!("{}: same, {hits} hits", path.display());
                true
            }
            Verdict::Differs(d) => {
                println!("{}: differs", path.display());
                say_difference(&d);
                if let Some(h) = d.expected.first().or(d.got.first()) {
                    print!("{}", listing(&program, Some(h.pc)));
                }
                false
            }
            Verdict::Broken(e) | Verdict::Unjudged(e) => {
                println!("{}: {e:#}", path.display());
                false
            }
        };
        Ok(ok)
    }
}

impl Totals {
    fn line(&self, time: Duration) -> String {
        format!(
            "{} programs, {} instructions, {} accesses compared, {} hits compared, {} differences \
             ({} programs without a judge; {:.0} s, {:.0} accesses/s)",
            self.programs,
            self.instructions,
            self.accesses,
            self.hits,
            self.differences,
            self.unjudged,
            time.as_secs_f64(),
            self.accesses as f64 / time.as_secs_f64()
        )
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
        .to_path_buf()
}

fn cases() -> PathBuf {
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
    let scratch = std::env::temp_dir().join(format!("ulpf-oracle-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let bench = Bench {
        ulpf,
        elf: scratch.join("program"),
        codes: generate::codes(),
    };
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["soak"] => bench.soak(Duration::from_secs(1800), seed.unwrap_or(1)),
        ["soak", time] => bench.soak(Duration::from_secs(time.parse()?), seed.unwrap_or(1)),
        ["slice"] => slice(&bench),
        ["case", ref files @ ..] => files
            .iter()
            .try_fold(true, |ok, f| Ok(bench.case(Path::new(f))? && ok)),
        ["one", judge, seed] => {
            let judge = if judge == "step" {
                Judge::Step
            } else {
                Judge::Unicorn
            };
            let mut totals = Totals::default();
            let ok = bench.one(judge, seed.parse()?, &mut totals);
            println!("{}", totals.line(Duration::from_secs(1)));
            ok
        }
        _ => bail!("not understood: {}", args.join(" ")),
    };
    let _ = std::fs::remove_dir_all(&scratch);
    result
}

/// The programs of the slice; every fourth is judged in single steps.
const SLICE: u64 = 60;
const MOST_UNJUDGED: u64 = 6;
const LEAST_STEPPED: u64 = 12;

/// The fixed cases, then a fixed set of programs.
fn slice(bench: &Bench) -> Result<bool> {
    let mut totals = Totals::default();
    let start = Instant::now();
    let mut ok = true;
    let mut files: Vec<_> = std::fs::read_dir(cases())?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "case"))
        .collect();
    files.sort();
    for f in &files {
        ok &= bench.case(f)?;
    }
    for seed in 1..=SLICE {
        let judge = if seed % 4 == 3 {
            Judge::Step
        } else {
            Judge::Unicorn
        };
        ok &= bench.one(judge, seed, &mut totals)?;
    }
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
    Ok(ok)
}
