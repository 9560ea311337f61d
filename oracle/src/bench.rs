//! Runs one program under ulpf and on its judge, and keeps what differs.

use crate::generate::{self, CHILDREN, Codes, MOST_CHILDREN, More, Plan, file_name, mix};
use crate::hits::{Actual, Difference, Expected, compare};
use crate::minimise::minimise;
use crate::program::{Judge, Program, Watch, hot};
use crate::ring::MOST_HITS;
use crate::seccomp::Filters;
use crate::threads::{THREADS, ThreadedProgram};
use crate::ulpf::{How, Patching, Tasks};
use crate::{registers, step, ulpf, unicorn};
use anyhow::{Result, bail};
use std::io::Write;
use std::ops::AddAssign;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub struct Bench {
    pub ulpf: PathBuf,
    /// Where the programs are written: no other bench's.
    pub elf: PathBuf,
    pub codes: Arc<Codes>,
}

#[derive(Default)]
pub struct Totals {
    pub programs: u64,
    instructions: u64,
    accesses: u64,
    pub hits: u64,
    pub differences: u64,
    /// Programs that no judge could follow (they fault).
    pub unjudged: u64,
    /// Programs that the CPU has judged, in single steps.
    pub stepped: u64,
    /// Programs of several threads.
    pub threaded: u64,
    /// Programs whose watches were in debug registers.
    pub registers: u64,
    /// Programs with filters of their own, and programs with children.
    pub filtering: u64,
    pub forking: u64,
    /// Programs that make code.
    pub making: u64,
    /// Programs that execute others.
    pub executing: u64,
    /// Patches in place at some time.
    pub patches: u64,
    /// Interruptions.
    pub moments: u64,
    /// Single steps of the examples.
    pub steps: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.programs += other.programs;
        self.instructions += other.instructions;
        self.accesses += other.accesses;
        self.hits += other.hits;
        self.differences += other.differences;
        self.unjudged += other.unjudged;
        self.stepped += other.stepped;
        self.threaded += other.threaded;
        self.registers += other.registers;
        self.filtering += other.filtering;
        self.forking += other.forking;
        self.making += other.making;
        self.executing += other.executing;
        self.patches += other.patches;
        self.moments += other.moments;
        self.steps += other.steps;
    }
}

/// A program to run.
pub enum Subject {
    One(Program),
    Threads(ThreadedProgram),
    /// Each executes the next one.
    Stages(Vec<Program>),
}

/// Before each program of several, in a case.
const STAGE: &str = "stage\n";

/// Result of a comparison.
pub enum Verdict {
    Same {
        expected: Expected,
        hits: u64,
        placed: u64,
        moments: u64,
    },
    Differs(Box<Difference>),
    /// It did not run to its end under ulpf.
    Broken(anyhow::Error),
    Unjudged(anyhow::Error),
}

impl Subject {
    /// The files of its programs.
    fn elves(&self) -> Vec<Vec<u8>> {
        match self {
            Subject::One(p) => vec![p.elf()],
            Subject::Threads(c) => vec![c.elf()],
            Subject::Stages(all) => all.iter().map(Program::elf).collect(),
        }
    }

    /// The watches of each of them.
    fn epochs(&self) -> Vec<&[Vec<Watch>]> {
        match self {
            Subject::Stages(all) => all.iter().map(|p| &p.epochs[..]).collect(),
            _ => vec![&self.parts()[0].epochs],
        }
    }

    pub fn parts(&self) -> &[Program] {
        match self {
            Subject::One(p) => std::slice::from_ref(p),
            Subject::Threads(c) => &c.parts,
            Subject::Stages(all) => all,
        }
    }

    pub fn parse(text: &str) -> Result<Subject> {
        if let Some((_, stages)) = text.split_once(STAGE) {
            let stages = stages.split(STAGE).map(Program::parse);
            return Ok(Subject::Stages(stages.collect::<Result<_>>()?));
        }
        Ok(match ThreadedProgram::parse(text)? {
            Some(c) => Subject::Threads(c),
            None => Subject::One(Program::parse(text)?),
        })
    }

    fn text(&self, comment: &str) -> String {
        match self {
            Subject::One(p) => p.text(comment),
            Subject::Threads(c) => c.text(comment),
            Subject::Stages(all) => {
                let texts = all.iter().enumerate().map(|(n, p)| {
                    let comment = if n == 0 { comment } else { "" };
                    format!("{STAGE}{}", p.text(comment))
                });
                texts.collect()
            }
        }
    }

    /// The threads or children that it may have.
    fn tasks(&self) -> Tasks {
        match self {
            Subject::One(_) | Subject::Stages(_) => Tasks {
                most: MOST_CHILDREN,
                at: CHILDREN,
                // Unwatched children store to shared memory.
                chained: false,
            },
            Subject::Threads(c) => Tasks {
                most: c.parts.len() as u64 - 1,
                at: THREADS,
                chained: c.parts.len() > 1,
            },
        }
    }

    /// The instructions around `pc`.
    pub fn listing(&self, pc: Option<u64>) -> String {
        let mut out = String::new();
        for p in self.parts() {
            let end = p.code_at + p.code.len() as u64;
            if pc.is_none_or(|pc| (p.code_at..end).contains(&pc)) {
                out += &listing(p, pc);
            }
        }
        out
    }
}

impl Bench {
    /// As if every instruction of every other program had been hot in an earlier run.
    fn keep_hot(&self, subject: &Subject) -> Result<()> {
        let cache = self.elf.with_file_name("ulpf");
        let _ = std::fs::remove_dir_all(&cache);
        std::fs::create_dir(&cache)?;
        let stages = match subject {
            Subject::Threads(_) => &[],
            _ => subject.parts(),
        };
        for part in stages
            .iter()
            .filter(|p| mix(p.memory_seed, 0x407) >> 8 & 1 == 0)
        {
            let (name, bytes) = hot(&part.segments());
            std::fs::write(cache.join(name), bytes)?;
        }
        Ok(())
    }

    fn expect_one(&self, program: &Program) -> Result<Expected> {
        self.expect_next(program, &mut Filters::default())
    }

    /// As [`Bench::expect_one`], of a program that has filters from before, and hands on its own.
    fn expect_next(&self, program: &Program, filters: &mut Filters) -> Result<Expected> {
        match program.judge {
            Judge::Unicorn => unicorn::judge(program, filters),
            Judge::Step => {
                write(&self.elf, &program.elf())?;
                step::judge(program, &self.elf)
            }
        }
    }

    pub fn expect(&self, subject: &Subject) -> Result<Expected> {
        if let Subject::One(p) = subject {
            return self.expect_one(p);
        }
        let mut all = Expected::default();
        if let Subject::Stages(stages) = subject {
            let mut filters = Filters::default();
            for stage in stages {
                all.append(self.expect_next(stage, &mut filters)?);
            }
            return Ok(all);
        }
        for (n, part) in subject.parts().iter().enumerate() {
            all.join(n as u32, self.expect_one(part)?);
        }
        Ok(all)
    }

    /// All its files; the first one's.
    fn write(&self, subject: &Subject) -> Result<PathBuf> {
        let elves = subject.elves();
        for (n, elf) in elves.iter().enumerate() {
            write(&self.elf.with_file_name(file_name(n)), elf)?;
        }
        self.keep_hot(subject)?;
        Ok(self.elf.with_file_name(file_name(0)))
    }

    pub fn run(&self, subject: &Subject, patching: Patching) -> Verdict {
        let expected = match self.expect(subject) {
            Ok(e) => e,
            Err(e) => return Verdict::Unjudged(e),
        };
        let parts = subject.parts();
        let how = How {
            ulpf: &self.ulpf,
            // Guards beside the registers would report the hits on their pages in their own way.
            patching: if parts.iter().any(|p| p.uses_gs() || p.registers) {
                Patching::Off
            } else {
                patching
            },
            // A debug register traps behind the access, with less to tell.
            placement: if parts[0].registers {
                "debug-register"
            } else {
                "guard"
            },
            seed: parts[0].memory_seed,
            tasks: subject.tasks(),
        };
        let run = self
            .write(subject)
            .and_then(|elf| ulpf::run(&how, &elf, &subject.epochs()));
        match run {
            Ok(run) => match self.compare(subject, &expected, &run.actual) {
                Ok(hits) => Verdict::Same {
                    expected,
                    hits,
                    placed: run.placed,
                    moments: run.moments,
                },
                Err(d) => Verdict::Differs(d),
            },
            Err(e) => Verdict::Broken(e),
        }
    }

    fn compare(
        &self,
        subject: &Subject,
        expected: &Expected,
        actual: &Actual,
    ) -> Result<u64, Box<Difference>> {
        match subject {
            Subject::One(p) if p.registers => registers::compare(p, expected, actual),
            _ => compare(expected, actual),
        }
    }

    /// The program of a plan, with so few rounds that the ring holds every hit.
    fn fitting(&self, plan: &mut [Plan]) -> Result<Subject> {
        for _ in 0..8 {
            let subject = self.build(plan)?;
            let expected = self.expect(&subject)?;
            let mut fits = true;
            for (n, e) in expected.epochs.iter().enumerate() {
                let hits = e.values().map(|s| s.hits.len()).sum::<usize>();
                if hits > MOST_HITS {
                    fits = false;
                    for p in plan.iter_mut() {
                        let epochs = p.epochs.len();
                        let epoch = &mut p.epochs[n % epochs];
                        epoch.rounds =
                            (epoch.rounds as u64 * MOST_HITS as u64 / hits as u64 / 2) as u32;
                        epoch.rounds = epoch.rounds.max(1);
                    }
                }
            }
            if fits {
                return Ok(subject);
            }
        }
        bail!("too many hits in one round")
    }

    /// Leaves out what touches the bytes of other threads.
    fn build(&self, plan: &mut [Plan]) -> Result<Subject> {
        if let [plan] = plan
            && plan.member.is_none()
        {
            return Ok(Subject::One(plan.build(&self.codes)));
        }
        if plan[0].member.is_none() {
            let last = plan.len() - 1;
            let stages = plan.iter_mut().enumerate().map(|(n, p)| {
                p.then = (n < last).then_some(n + 1);
                p.build(&self.codes)
            });
            return Ok(Subject::Stages(stages.collect()));
        }
        let mut parts = vec![];
        for p in plan {
            parts.push(self.member(p)?);
        }
        Ok(Subject::Threads(ThreadedProgram { parts }))
    }

    fn member(&self, plan: &mut Plan) -> Result<Program> {
        for _ in 0..200 {
            let (program, items) = plan.build_mapped(&self.codes);
            let stray = match self.expect_one(&program) {
                Ok(_) => return Ok(program),
                Err(e) => e.downcast::<unicorn::Stray>()?,
            };
            let at = (stray.0 - program.code_at) as usize;
            let Some(&(epoch, item, _)) = items.iter().find(|i| at < i.2) else {
                bail!("{stray}, and no item is to blame");
            };
            plan.epochs[epoch].items.remove(item);
        }
        bail!("too much of it strays")
    }
}

/// Held while executables are written and while processes start. A process that starts meanwhile holds the file open
/// for writing until its own execve, and until then execve of the file fails (ETXTBSY).
static EXECUTABLES: Mutex<()> = Mutex::new(());

pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let _none_is_written = EXECUTABLES.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

fn write(path: &Path, elf: &[u8]) -> Result<()> {
    let _none_starts = EXECUTABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = std::fs::remove_file(path);
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o755)
        .open(path)?;
    file.write_all(elf)?;
    Ok(())
}

pub fn say_difference(d: &Difference) {
    println!("  {} in epoch {}, thread {}", d.what, d.epoch, d.thread);
    d.expected
        .iter()
        .for_each(|h| println!("    expected {h:?}"));
    d.got.iter().for_each(|h| println!("    got      {h:?}"));
}

/// The instructions of a program around `pc`.
pub fn listing(p: &Program, pc: Option<u64>) -> String {
    use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};
    let mut out = String::new();
    let mut d = Decoder::with_ip(64, &p.code, p.code_at, DecoderOptions::NONE);
    let mut f = GasFormatter::new();
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

/// A kind of program that is generated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    One(Judge),
    Threads,
    /// One thread, with its watches in debug registers.
    Registers,
    /// One thread at first, which does more.
    More(Judge, More),
    /// Programs that execute each other.
    Stages(Judge),
}

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::One(judge) => format!("{judge:?}"),
            Kind::More(judge, More { children: true, .. }) => format!("Children-{judge:?}"),
            Kind::More(judge, More { made: true, .. }) => format!("Made-{judge:?}"),
            Kind::More(judge, _) => format!("Filters-{judge:?}"),
            Kind::Stages(judge) => format!("Stages-{judge:?}"),
            Kind::Threads | Kind::Registers => format!("{self:?}"),
        }
    }

    fn judge(self) -> Judge {
        match self {
            Kind::One(judge) | Kind::More(judge, _) | Kind::Stages(judge) => judge,
            Kind::Threads | Kind::Registers => Judge::Unicorn,
        }
    }
}

impl Bench {
    /// One generated program. `false` if a difference was reported and saved.
    pub fn one(&self, kind: Kind, seed: u64, totals: &mut Totals) -> Result<bool> {
        let debug = std::env::var_os("ORACLE_DEBUG").is_some();
        let patching = Patching::of(seed);
        let mut plan = match kind {
            Kind::One(judge) => vec![Plan::new(judge, seed)],
            Kind::Threads => generate::threads(Judge::Unicorn, seed),
            Kind::Registers => vec![Plan::registers(seed)],
            Kind::Stages(judge) => Plan::stages(judge, seed),
            Kind::More(judge, more) => vec![Plan::more(judge, seed, more)],
        };
        if debug {
            println!("{kind:?} {seed}, {patching:?}");
        }
        let subject = match self.fitting(&mut plan) {
            Ok(p) => p,
            Err(e) => {
                totals.unjudged += 1;
                if debug {
                    println!("{kind:?} {seed}: {e:#}");
                }
                return Ok(true);
            }
        };
        let mut hangs = false;
        match self.run(&subject, patching) {
            Verdict::Same {
                expected,
                hits,
                placed,
                moments,
            } => {
                totals.programs += 1;
                totals.stepped += u64::from(kind.judge() == Judge::Step);
                totals.threaded += u64::from(kind == Kind::Threads);
                totals.registers += u64::from(kind == Kind::Registers);
                totals.executing += u64::from(matches!(kind, Kind::Stages(_)));
                let makes = |p: &Program| p.makes_code;
                totals.making += u64::from(subject.parts().iter().any(makes));
                if let Kind::More(_, more) = kind {
                    totals.filtering += u64::from(more.seccomp);
                    totals.forking += u64::from(more.children);
                }
                totals.instructions += expected.instructions;
                totals.accesses += expected.accesses;
                totals.hits += hits;
                totals.patches += placed;
                totals.moments += moments;
                return Ok(true);
            }
            Verdict::Unjudged(e) => bail!("judged once, not twice: {e:#}"),
            Verdict::Differs(d) => {
                println!("{kind:?} {seed}, {patching:?}: differs");
                say_difference(&d);
                if let Some(h) = d.expected.first().or(d.got.first()) {
                    print!("{}", subject.listing(Some(h.pc)));
                }
            }
            Verdict::Broken(e) => {
                println!("{kind:?} {seed}, {patching:?}: {e:#}");
                hangs = format!("{e:#}").contains("hangs");
            }
        }
        totals.programs += 1;
        totals.differences += 1;
        if hangs {
            // Too slow to be made smaller.
            println!("seed kept: {kind:?} {seed}");
        } else {
            self.keep(kind, seed, plan, patching)?;
        }
        Ok(false)
    }

    /// Makes the smallest program that still differs, and saves it.
    fn keep(&self, kind: Kind, seed: u64, plan: Vec<Plan>, patching: Patching) -> Result<()> {
        // A difference that depends on timing does not show each time.
        let tries = match patching {
            Patching::Moments | Patching::NonStop => 5,
            _ if kind == Kind::Threads => 3,
            _ => 1,
        };
        let small = minimise(plan, &mut |p| {
            let Ok(subject) = self.build(&mut p.to_vec()) else {
                return false;
            };
            (0..tries).any(|_| {
                matches!(
                    self.run(&subject, patching),
                    Verdict::Differs(..) | Verdict::Broken(..)
                )
            })
        });
        let subject = self.build(&mut small.clone())?;
        let mut comment = format!("{kind:?} {seed}, {patching:?}\n");
        let mut at = None;
        let verdicts = (0..tries).map(|_| self.run(&subject, patching));
        let wrong = |v: &Verdict| matches!(v, Verdict::Differs(..) | Verdict::Broken(..));
        match verdicts.into_iter().find(wrong) {
            Some(Verdict::Differs(d)) => {
                comment += &format!("{}\n", d.what);
                for h in &d.expected {
                    comment += &format!("expected {h:?}\n");
                }
                for h in &d.got {
                    comment += &format!("got      {h:?}\n");
                }
                at = d.expected.first().or(d.got.first()).map(|h| h.pc);
            }
            Some(Verdict::Broken(e)) => comment += &format!("{e:#}\n"),
            _ => comment += "not every time\n",
        }
        comment += &subject.listing(at);
        let folder = crate::soak::cases().join("new");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}-{seed}.case", kind.name()));
        std::fs::write(&path, subject.text(&comment))?;
        println!("saved as {}\n{comment}", path.display());
        Ok(())
    }

    pub fn case(&self, path: &Path) -> Result<bool> {
        use anyhow::Context;
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let subject = Subject::parse(&text).with_context(|| path.display().to_string())?;
        let mut ok = true;
        for patching in ulpf::ALL {
            match self.run(&subject, patching) {
                Verdict::Same { hits, .. } => {
                    println!("{}, {patching:?}: same, {hits} hits", path.display());
                }
                Verdict::Differs(d) => {
                    println!("{}, {patching:?}: differs", path.display());
                    say_difference(&d);
                    if let Some(h) = d.expected.first().or(d.got.first()) {
                        print!("{}", subject.listing(Some(h.pc)));
                    }
                    ok = false;
                }
                Verdict::Broken(e) | Verdict::Unjudged(e) => {
                    println!("{}, {patching:?}: {e:#}", path.display());
                    ok = false;
                }
            }
        }
        Ok(ok)
    }
}

impl Totals {
    pub fn line(&self, time: Duration) -> String {
        format!(
            "{} programs ({} of several threads, {} in debug registers, {} with filters, {} with children, {} that make code, {} that execute others), {} instructions, {} single steps of examples, {} accesses compared, {} hits compared, \
             {} differences; {} patches, {} interruptions ({} programs without a judge; {:.0} s, \
             {:.0} accesses/s)",
            self.programs,
            self.threaded,
            self.registers,
            self.filtering,
            self.forking,
            self.making,
            self.executing,
            self.instructions,
            self.steps,
            self.accesses,
            self.hits,
            self.differences,
            self.patches,
            self.moments,
            self.unjudged,
            time.as_secs_f64(),
            self.accesses as f64 / time.as_secs_f64()
        )
    }
}
