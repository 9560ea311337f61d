//! `ulpf run` and `ulpf attach`: watches without a debugger.
//!
//! ```text
//!   options ─▶ specs ──▶ Control: run to the entry ─▶ symbols resolve ─▶ Control: arm
//!                                                                           │
//!   this thread:  Log::follow (ring → lines)  ◀──Event──  task: Control::run (signals, libraries)
//!                                                                           │
//!   Summary ◀───────────────────────────── the program's end ◀──────────────┘
//! ```

mod control;
mod format;
mod log;
mod memory;
mod options;
mod ring;
mod summary;
mod syscalls;

pub use options::{AttachArgs, RunArgs, WatchArgs};

use crate::inject::Launch;
use crate::session::{self, Ending, Session};
use crate::symbols::{Memory, Problem, Program, Spec, Watched};
use anyhow::{Context, Result};
use control::Control;
use format::{Look, Quoted};
use log::{Found, Log};
use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::Instant;
use summary::{Summary, count, kind};

/// What happened to a watch.
#[derive(Clone, Debug)]
pub enum Armed {
    /// The stub's number for it.
    Yes(u32),
    No(Problem),
    /// Its library is not loaded yet.
    Pending(Problem),
}

/// A watch from the command line to the summary.
#[derive(Clone, Debug)]
pub struct Watch {
    pub spec: Spec,
    pub watched: Option<Watched>,
    pub armed: Armed,
}

/// The exit status when watches are refused, or nothing could be started.
const REFUSED: i32 = 2;

/// `ulpf run`: the exit status. Does not return when the program died by a signal: neither do we.
pub fn run(args: &RunArgs) -> i32 {
    let (program, rest) = args
        .command
        .split_first()
        .map_or((Default::default(), &[][..]), |(p, r)| (p.clone(), r));
    let mut launch = Launch::new(program, rest.iter().cloned());
    launch.shell = false;
    launch.own_group = false;
    launch.disable_randomization = !args.aslr;
    main(&args.watching, Target::Launch(launch))
}

/// `ulpf attach`: the exit status.
pub fn attach(args: &AttachArgs) -> i32 {
    main(&args.watching, Target::Attach(args.pid))
}

enum Target {
    Launch(Launch),
    Attach(i32),
}

fn main(options: &WatchArgs, target: Target) -> i32 {
    let launched = matches!(target, Target::Launch(_));
    match watch(options, target) {
        Ok(Ending::Exited(status)) => status,
        Ok(Ending::Killed(signal)) if launched => crate::inject::sys::die_by(signal),
        Ok(_) => 0,
        Err(error) => {
            // Already told in detail when there is nothing to say.
            let text = format!("{error:#}");
            if !text.is_empty() {
                eprintln!("ulpf: {text}");
            }
            REFUSED
        }
    }
}

/// An error whose details have been printed.
fn told() -> anyhow::Error {
    anyhow::Error::msg("")
}

fn watch(options: &WatchArgs, target: Target) -> Result<Ending> {
    let specs = specs(options)?;
    let mut output = Output::open(options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let launched = matches!(target, Target::Launch(_));
    let session = runtime.block_on(async {
        match target {
            Target::Launch(launch) => session::start(launch).await,
            Target::Attach(pid) => session::attach(pid).await,
        }
    });
    let session: Session = match session {
        Ok(session) => session,
        Err(error) => {
            // The shell's own words and status for programs that do not exist or cannot be run.
            eprintln!("ulpf: {error}");
            let source = std::error::Error::source(&error);
            if let Some(source) = source.filter(|s| !error.to_string().contains(&s.to_string())) {
                eprintln!("ulpf: {source}");
            }
            return Err(told());
        }
    };
    let started = Instant::now();
    for warning in &session.warnings {
        eprintln!("ulpf: {warning}");
    }
    let shared = session.shared.clone();
    let mut control = runtime.block_on(async { Control::new(session) })?;
    let pid = control.pid;
    let prepared = runtime.block_on(prepare(&mut control, options, specs, launched));
    let (program, mut watches, found) = match prepared {
        Ok(Some(ready)) => ready,
        Ok(None) => {
            eprintln!("ulpf: the program ended before the watches could be set");
            return Ok(runtime.block_on(control.ending()));
        }
        Err(error) => {
            runtime.block_on(control.give_up());
            return Err(error);
        }
    };
    let armed = runtime.block_on(
        control.arm(
            &found
                .iter()
                .map(|(_, command)| command.clone())
                .collect::<Vec<_>>(),
        ),
    );
    let armed = match armed {
        Ok(armed) => armed,
        Err(error) => {
            runtime.block_on(control.give_up());
            return Err(error);
        }
    };
    for ((number, _), armed) in found.iter().zip(armed) {
        watches[*number].armed = armed;
    }
    output.start(&watches, pid, options)?;
    let refused = watches
        .iter()
        .filter(|w| matches!(w.armed, Armed::No(_)))
        .count();
    if refused > 0 && !options.keep_going {
        eprintln!(
            "ulpf: {} refused; nothing was run (--keep-going runs with the others)",
            count(refused as u64, "watch")
        );
        runtime.block_on(control.give_up());
        return Err(told());
    }
    let pending = watches.iter().any(|w| matches!(w.armed, Armed::Pending(_)));
    let (send, receive) = std::sync::mpsc::channel();
    let task = runtime.spawn(control.run(send.clone(), pending));
    let backtrace = options.backtrace;
    let again = move |program: &Program, watches: &mut Vec<Watch>| {
        resolve_pending(program, watches, pid, backtrace)
    };
    let mut log = Log::new(
        shared.clone(),
        pid,
        program,
        watches,
        output.look,
        output.take(),
        Box::new(again),
    );
    log.quiet = options.quiet;
    log.changes_only = options.changes_only;
    let mut ending = log.follow(send, &receive);
    let control = runtime.block_on(task);
    if let Ok(Ok(known)) = &control {
        ending = *known;
    }
    let summary = Summary::read(
        &log.watches,
        &shared,
        log.lost,
        started.elapsed().as_secs_f64(),
    );
    if let Some(error) = log.broken() {
        eprintln!("ulpf: the log is incomplete: {error}");
    }
    if let Look::Json = output.look {
        let _ = log
            .output
            .write_all(summary.json().as_bytes())
            .and_then(|()| log.output.flush());
    }
    if !(options.no_summary || output.look == Look::Json && output.is_stderr) {
        let _ = stderr().write_all(summary.text(options.summary).as_bytes());
    }
    if let Ok(Err(error)) = control {
        return Err(error.context("the program could not be followed to its end"));
    }
    Ok(ending)
}

type Ready = (Program, Vec<Watch>, Found);

/// Brings the program to where watches are set, and resolves them. `None`: it ended before.
async fn prepare(
    control: &mut Control,
    options: &WatchArgs,
    specs: Vec<Spec>,
    launched: bool,
) -> Result<Option<Ready>> {
    control.greet().await?;
    let pid = control.pid;
    if launched {
        let entry = memory::Auxv::of(pid)?
            .entry()
            .context("the kernel did not say where the program starts")?;
        if !control.run_to(entry).await? {
            return Ok(None);
        }
    }
    let mut program = Program::of_process(pid)?;
    if let Some(name) = &options.at {
        let addr = program.function(name).with_context(|| {
            format!("--at: there is no function `{name}` in the program or its libraries")
        })?;
        if !control.run_to(addr).await? {
            return Ok(None);
        }
        program.refresh_from_process(pid)?;
    }
    let memory = control.memory().await?;
    let mut watches = Vec::with_capacity(specs.len());
    let mut found = Vec::new();
    for spec in specs {
        let mut watch = Watch {
            spec,
            watched: None,
            armed: Armed::No(Problem::new("", "", "")),
        };
        if let Some(command) = resolve(&program, &mut watch, &memory, options.backtrace) {
            found.push((watches.len(), command));
        }
        watches.push(watch);
    }
    Ok(Some((program, watches, found)))
}

/// Resolves one watch; the command that arms it.
fn resolve(
    program: &Program,
    watch: &mut Watch,
    memory: &dyn Memory,
    backtrace: Option<u8>,
) -> Option<String> {
    match program.resolve(&watch.spec, memory) {
        Ok(watched) => {
            let mut command = format!(
                "ulpf watch {:#x} {} {} log",
                watched.addr,
                watched.len,
                kind(watched.kind)
            );
            if let Some(frames) = backtrace {
                command += &format!(" bt {frames}");
            }
            watch.watched = Some(watched);
            Some(command)
        }
        Err(problem) => {
            // Only a named library is worth waiting for: a misspelt name would wait for ever.
            let waits = problem.not_yet
                && matches!(watch.spec.scope, Some(crate::symbols::Scope::Object(_)));
            watch.armed = if waits {
                Armed::Pending(problem)
            } else {
                Armed::No(problem)
            };
            None
        }
    }
}

/// Tries again what waits for a library.
fn resolve_pending(
    program: &Program,
    watches: &mut [Watch],
    pid: i32,
    backtrace: Option<u8>,
) -> Found {
    let Ok(memory) = memory::ProcessMemory::of(pid, None) else {
        return Vec::new();
    };
    let waiting = watches
        .iter_mut()
        .enumerate()
        .filter(|(_, w)| matches!(w.armed, Armed::Pending(_)));
    let found: Vec<_> = waiting
        .filter_map(|(number, watch)| Some((number, resolve(program, watch, &memory, backtrace)?)))
        .collect();
    for watch in watches.iter() {
        if let Armed::No(problem) = &watch.armed {
            eprintln!("ulpf: {problem}");
        }
    }
    found
}

/// All watches that the user named; every malformed one is told.
fn specs(options: &WatchArgs) -> Result<Vec<Spec>> {
    let mut texts = options.watch.clone();
    for file in &options.watch_file {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        texts.extend(spec_lines(&text).map(str::to_string));
    }
    if texts.is_empty() {
        anyhow::bail!(
            "nothing to watch: name it with --watch SPEC (for example --watch counter, --watch 'tab[0..16]:rw')"
        );
    }
    let (mut specs, mut bad) = (Vec::with_capacity(texts.len()), 0);
    for text in &texts {
        match Spec::parse(text) {
            Ok(spec) => specs.push(spec),
            Err(problem) => {
                eprintln!("ulpf: {problem}");
                bad += 1;
            }
        }
    }
    if bad > 0 && !options.keep_going || specs.is_empty() {
        return Err(told());
    }
    Ok(specs)
}

/// One a line; `#` starts a comment.
fn spec_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|line| !line.is_empty())
}

/// Where hits go.
struct Output {
    look: Look,
    is_stderr: bool,
    to: Option<Box<dyn Write>>,
}

impl Output {
    fn open(options: &WatchArgs) -> Result<Output> {
        let (to, is_terminal, is_stderr): (Box<dyn Write>, bool, bool) = match &options.log {
            None => (Box::new(stderr()), stderr().is_terminal(), true),
            Some(path) if path.as_os_str() == "-" => {
                (Box::new(stdout()), stdout().is_terminal(), false)
            }
            Some(path) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot write the log {}", path.display()))?;
                (Box::new(file), false, false)
            }
        };
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
            || std::env::var_os("TERM").is_none_or(|t| t == "dumb");
        let look = match () {
            _ if options.json => Look::Json,
            _ if is_terminal && !plain => Look::Coloured,
            _ => Look::Plain,
        };
        Ok(Output {
            look,
            is_stderr,
            to: Some(to),
        })
    }

    fn take(&mut self) -> Box<dyn Write> {
        self.to.take().unwrap_or_else(|| Box::new(std::io::sink()))
    }

    /// Says what is watched (JSON), and on standard error what is not.
    fn start(&mut self, watches: &[Watch], pid: i32, options: &WatchArgs) -> Result<()> {
        let mut text = String::new();
        if self.look == Look::Json {
            text += &format!(
                "{{\"type\":\"start\",\"pid\":{pid},\"watches\":{}}}\n",
                watches.len()
            );
        }
        for (i, watch) in watches.iter().enumerate() {
            let spec = &watch.spec;
            match (&watch.armed, &watch.watched) {
                (Armed::Yes(_), Some(w)) => {
                    if self.look == Look::Json {
                        let ty = w
                            .type_name()
                            .map_or("null".into(), |t| Quoted(t).to_string());
                        text += &format!(
                            "{{\"type\":\"watch\",\"watch\":{},\"spec\":{},\"kind\":\"{}\",\"addr\":\"{:#x}\",\"len\":{},\"value_type\":{ty}}}\n",
                            i + 1,
                            Quoted(&spec.text),
                            kind(w.kind),
                            w.addr,
                            w.len
                        );
                    }
                    if let Some(note) = &w.note {
                        eprintln!("ulpf: {note}");
                    }
                }
                (Armed::Pending(problem), _) => {
                    eprintln!(
                        "ulpf: `{spec}` waits: {}; it will be watched as soon as the program loads that",
                        problem.why
                    );
                }
                (Armed::No(problem), _) => {
                    eprintln!("ulpf: {problem}");
                    if self.look == Look::Json && options.keep_going {
                        text += &format!(
                            "{{\"type\":\"refused\",\"watch\":{},\"spec\":{},\"what\":{},\"why\":{},\"what_to_do\":{}}}\n",
                            i + 1,
                            Quoted(&spec.text),
                            Quoted(&problem.what),
                            Quoted(&problem.why),
                            Quoted(&problem.what_to_do)
                        );
                    }
                }
                (Armed::Yes(_), None) => {}
            }
        }
        if let Some(to) = &mut self.to {
            to.write_all(text.as_bytes())
                .context("cannot write the log")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_files_have_comments() {
        let lines: Vec<_> = spec_lines("# all\ncounter\n\n  tab[0..4]:rw  # four\n").collect();
        assert_eq!(lines, ["counter", "tab[0..4]:rw"]);
    }
}
