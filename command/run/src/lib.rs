//! `ulpf run` and `ulpf attach`: watches without a debugger. `find`: `ulpf find`, which needs no stub.
//!
//! ```text
//!   options ─▶ specs ──▶ Control: run to the entry ─▶ symbols resolve ─▶ Control: arm
//!                                                                           │
//!   this thread:  Log::follow (ring → lines)  ◀──Event──  task: Control::run (signals, libraries)
//!                                                                           │
//!   Summary ◀───────────────────────────── the program's end ◀──────────────┘
//! ```
#![forbid(unsafe_code)]

mod active_calls;
mod calls;
mod changes;
mod check;
mod chosen;
mod clock;
mod compact;
mod control;
mod crash;
mod events;
mod exchange;
pub mod find;
mod follow;
#[doc(hidden)]
pub mod fuzzing;
mod life;
mod log;
mod offer;
mod options;
mod output;
mod parent;
mod requests;
mod stops;
mod summary;
mod tracers;
mod watches;

pub use options::{AttachArgs, CheckArgs, RunArgs};

use anyhow::{Context, Result, anyhow, bail};
use chosen::Chosen;
use control::{Control, Reached};
use crash::Crash;
use log::Log;
use options::{Check, LogPolicy, WatchArgs};
use output::Output;
use std::fs::File;
use std::io::{IsTerminal, Read, stderr};
use std::path::Path;
use summary::Summary;
use ulpf_host::say::{already_printed, say};
use ulpf_inject::inferior::{Ending, Inferior};
use ulpf_inject::{Launch, StartError};
use ulpf_lib::ring::Rings;
use ulpf_session::armed::Armed;
use ulpf_session::hit::log::Look;
use ulpf_session::memory::Auxv;
use ulpf_session::words::count;
use ulpf_symbols::{Program, Spec};
use watches::{Changes, Watch};

/// A SPEC for the places that `ulpf find` has left.
const FOUND: &str = "@found";
/// Exit status if watches are refused, or no program could be started.
const REFUSED: i32 = 2;

/// `ulpf run`: returns the exit status. If the program died by a signal, does not return but dies by the same signal.
pub fn run(args: &RunArgs) -> i32 {
    let (program, rest) = args
        .command
        .split_first()
        .map_or((Default::default(), &[][..]), |(p, r)| (p.clone(), r));
    let mut launch = Launch::new(program, rest.iter().cloned());
    launch.shell = false;
    launch.own_group = false;
    launch.here = false;
    launch.disable_randomization = args.no_aslr;
    main(&args.watching, Target::Launch(launch))
}

/// `ulpf check`: returns the exit status, as `ulpf run` does.
pub fn check(args: &CheckArgs) -> i32 {
    let watching = match Check::options(args) {
        Ok(watching) => watching,
        Err(why) => {
            say!("{why}");
            return REFUSED;
        }
    };
    if let Some(pid) = args.attach {
        return main(&watching, Target::Attach(pid));
    }
    run(&RunArgs {
        watching,
        aslr: args.aslr,
        no_aslr: args.no_aslr,
        command: args.command.clone(),
    })
}

/// `ulpf attach`: returns the exit status.
pub fn attach(args: &AttachArgs) -> i32 {
    let mut watching = args.watching.clone();
    let specs = std::mem::take(&mut watching.watch).into_iter();
    let found = |spec: String| match spec.strip_prefix(FOUND) {
        Some(rest) => crate::find::specs(args.pid, rest),
        None => Ok(vec![spec]),
    };
    match specs.map(found).collect::<Result<Vec<_>>>() {
        Ok(specs) => watching.watch = specs.concat(),
        Err(error) => {
            output::speak_as(&watching);
            say!("{error:#}");
            return REFUSED;
        }
    }
    main(&watching, Target::Attach(args.pid))
}

enum Target {
    Launch(Launch),
    Attach(i32),
}

fn main(options: &WatchArgs, target: Target) -> i32 {
    // A choice among programs implies more than one.
    let follow = options.follow || !options.only.is_empty() || !options.skip.is_empty();
    // It is about the terminal; with JSON it asks for the counts alone.
    let quiet = options.quiet && (options.log.is_none() || options.json);
    let options = &WatchArgs {
        follow,
        quiet,
        ..options.clone()
    };
    if let Target::Attach(pid) = target
        && !Path::new(&format!("/proc/{pid}")).exists()
    {
        output::speak_as(options);
        say!("there is no process {pid}");
        return REFUSED;
    }
    if let Err(why) = options.backend.check() {
        say!("{why}");
        return REFUSED;
    }
    let launched = matches!(target, Target::Launch(_));
    match watch(options, target) {
        Ok(Ending::Exited(status)) => status,
        Ok(Ending::Killed(signal)) if launched => ulpf_host::sys::die_by(signal),
        Ok(_) => 0,
        Err(error) => {
            // An empty text means that the details have been printed already.
            let text = format!("{error:#}");
            if !text.is_empty() {
                say!("{text}");
            }
            REFUSED
        }
    }
}

/// The status that shells and env(1) use for programs that cannot be run.
fn exec_status(error: &std::io::Error, otherwise: i32) -> i32 {
    match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        std::io::ErrorKind::PermissionDenied => 126,
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => 126,
        _ => otherwise,
    }
}

/// Prints why a program cannot be run.
fn cannot_run(program: &str, error: &std::io::Error, otherwise: i32) -> Ending {
    let why = error
        .raw_os_error()
        .map_or_else(|| error.to_string(), ulpf_host::errno::errno_text);
    let plain = !program.contains('/') && error.kind() == std::io::ErrorKind::NotFound;
    match plain && Path::new(program).is_file() {
        true => say!(
            "cannot run {program}: it is not in PATH. To run the file in the current folder, write ./{program}"
        ),
        false => say!("cannot run {program}: {why}"),
    }
    Ending::Exited(exec_status(error, otherwise))
}

/// The path of a program that is a script.
fn script(launch: &Launch) -> Option<String> {
    let found = launch.file()?;
    let mut start = [0; 2];
    File::open(&found)
        .and_then(|mut file| file.read_exact(&mut start))
        .ok()?;
    (&start == b"#!").then(|| found.display().to_string())
}

fn watch(options: &WatchArgs, target: Target) -> Result<Ending> {
    output::speak_as(options);
    let specs = watches::specs(options)?;
    if specs.is_empty() && !options.held && !options.blame && options.check.is_none() {
        if let Target::Launch(launch) = &target
            && launch.file().is_none()
        {
            let none = std::io::Error::from_raw_os_error(libc::ENOENT);
            let program = launch.program.to_string_lossy();
            return Ok(cannot_run(&program, &none, REFUSED));
        }
        offer::offer(&target);
        return Err(already_printed());
    }
    let chosen = Chosen::new(&options.only, &options.skip)?;
    let mut output = Output::open(options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let launched = matches!(target, Target::Launch(_));
    let script = match &target {
        Target::Launch(launch) => script(launch),
        Target::Attach(_) => None,
    };
    let settings = options.settings();
    let (inferior, signals) = runtime.block_on(async {
        let signals = control::signals();
        let inferior = match target {
            Target::Launch(launch) => {
                ulpf_inject::inferior::start(Launch { settings, ..launch }).await
            }
            Target::Attach(pid) => ulpf_inject::inferior::attach(pid, settings).await,
        };
        (inferior, signals)
    });
    let inferior: Inferior = match inferior {
        Ok(inferior) => inferior,
        Err(StartError::ExitedEarly {
            code,
            exec_error: Some(error),
        }) => return Ok(cannot_run(&error.program, &error.source, code)),
        Err(error) => return Err(error.into()),
    };
    let started = clock::Start::now();
    for warning in &inferior.warnings {
        say!("{warning}");
    }
    let shared = inferior.shared.clone();
    let mut control = runtime.block_on(async { Control::new(inferior, signals) })?;
    let pid = control.pid;
    // A wrapper is not the wanted program.
    let wanted = chosen.wants(pid);
    let (asked, none) = (specs.clone(), Vec::new());
    let prepared = prepare(
        &mut control,
        options,
        if wanted { specs } else { none },
        launched,
    );
    let prepared = runtime.block_on(prepared);
    let (program, mut watches, changes) = match prepared {
        Ok(Ok(ready)) => ready,
        Ok(Err(Reached::Left)) => return Ok(Ending::Unknown),
        Ok(Err(_)) => return runtime.block_on(ended_early(control)),
        Err(error) => return runtime.block_on(not_begun(control, error)),
    };
    match runtime.block_on(control.change(&changes)) {
        Ok(outcomes) => outcomes
            .into_iter()
            .for_each(|(number, armed)| watches[number].armed = armed),
        Err(error) => return runtime.block_on(not_begun(control, error)),
    }
    if options.verbose {
        say!("{}", runtime.block_on(control.backend())?);
    }
    output.start(&watches, pid, options);
    let refused = watches
        .iter()
        .filter(|w| matches!(w.armed, Armed::No(_)))
        .count();
    if let (1.., Some(script)) = (refused, &script) {
        let interpreter = program
            .executable()
            .map_or("its interpreter", |m| m.object.name());
        say!(
            "{script} is a script: names are looked up in {interpreter}, which runs it; name the program itself"
        );
    }
    if refused > 0 && !options.keep_going {
        let others = match launched {
            true => "nothing was run (--keep-going runs with the others)",
            false => "nothing is watched (--keep-going watches the others)",
        };
        say!("{} refused; {others}", count(refused as u64, "watch"));
        runtime.block_on(control.give_up());
        return Err(already_printed());
    }
    // The heap check needs the names in libraries that a short program loads late, too.
    let pending = options.check.is_some() || watches.iter().any(Watch::follows_libraries);
    let plan = log::Plan {
        specs: asked,
        how: watches::how(options),
        at: options.at.clone(),
        follow: options.follow,
        chosen,
        check: options.check.clone(),
        lossless: options.log_policy == LogPolicy::Lossless,
    };
    let handle = runtime.handle().clone();
    let run_child = Box::new(move |child, life, inherited, events| {
        follow::run_child(&handle, child, life, inherited, events);
    });
    let mut log = Log::new(started.clock(), plan, output, &control.process, run_child);
    control.follows_forks = options.follow;
    // After an exec of its own, its heap is checked again.
    control.heap = options.check.as_ref().map(|check| check.how);
    control.blame = options.blame;
    if log.chooses() || options.check.as_ref().is_some_and(|check| check.follow) {
        control.follow_any();
    }
    let first = log.begin(pid, shared, program, watches);
    log.lives[first].wanted = wanted;
    log.name_watches(first);
    log.begin_check();
    if options.held {
        ulpf_host::sys::stop_here();
    }
    if let Some(time) = options.time {
        runtime.spawn(async move {
            tokio::time::sleep(time).await;
            // (Whatever waits for a signal to leave hears it.)
            let _ = ulpf_host::sys::kill(std::process::id() as i32, libc::SIGTERM);
        });
    }
    let task = runtime.spawn(control.run(log.sender(), pending));
    log.follow();
    let control = runtime.block_on(task);
    let seconds = started.elapsed().as_secs_f64();
    let several = options.follow || log.lives.len() > 1;
    let summaries: Vec<Summary> = log
        .lives
        .iter()
        .filter(|life| life.wanted)
        .map(|life| Summary {
            process: several.then_some((life.pid, life.parent)),
            program: life.name(),
            rank: life.rank,
            after_exec: life.after_exec,
            ..Summary::read(&life.watches, &life.shared, life.lost, seconds)
        })
        .collect();
    if !options.quiet {
        keep_sessions(
            &log,
            control.as_ref().ok().and_then(|c| c.as_ref().ok()),
            options.verbose,
        );
    }
    // Only the end of the first process is known.
    let signal = match &control {
        Ok(Ok(Ending::Killed(signal))) => Some(*signal),
        _ => None,
    };
    let clock = started.clock();
    let ended = |n: usize| if n == 0 { signal } else { None };
    let crashes = log
        .lives
        .iter()
        .enumerate()
        .filter(|(n, _)| *n > 0 || signal.is_some());
    let crashes = crashes.filter_map(|(n, life)| Crash::of(life, &clock, ended(n), several));
    let crashes: Vec<Crash> = crashes.collect();
    let look = Look::of(false, stderr().is_terminal());
    let (texts, lines): (Vec<_>, Vec<_>) = crashes.iter().map(|c| (c.text(look), c.json())).unzip();
    drop(crashes);
    if let Look::Json = log.output.look {
        for mut line in lines {
            log.output.write(&mut line);
        }
        for summary in &summaries {
            log.output.write(&mut summary.json());
        }
    }
    log.output.end();
    log.output.finish();
    if let Some(status) = log.end_check(signal) {
        return control?.map(|_| Ending::Exited(status));
    }
    if summaries.is_empty() {
        say!("nothing was watched: no program was started that --only and --skip mean");
    }
    if let Some(error) = log.output.broken() {
        say!("the log is incomplete: {error}");
    }
    if !(log.output.look == Look::Json && log.output.is_stderr) {
        texts.iter().for_each(|text| ulpf_host::say::put(text));
    }
    if !(options.no_summary || log.output.look == Look::Json && log.output.is_stderr) {
        for summary in &summaries {
            ulpf_host::say::put(&summary.text(options.summary));
        }
        if summaries.len() > 1 {
            ulpf_host::say::put(&summary::of_all(&summaries));
        }
    }
    match control {
        Ok(Ok(ending)) => Ok(ending),
        Ok(Err(error)) => Err(error.context("the program could not be followed to its end")),
        Err(error) => Err(error.into()),
    }
}

/// Keeps the sessions of ended programs for `ulpf last`.
fn keep_sessions(log: &Log, ending: Option<&Ending>, verbose: bool) {
    for (number, life) in log.lives.iter().enumerate() {
        let ending = match ending {
            _ if ulpf_host::process::is_alive(life.pid) => continue,
            Some(Ending::Exited(status)) if number == 0 => format!("ended with status {status}"),
            Some(Ending::Killed(signal)) if number == 0 => {
                format!("killed by {}", ulpf_host::signals::name(*signal))
            }
            _ => "ended".into(),
        };
        if life.shared.rings() == 0 {
            continue;
        }
        // Without a folder there is no session for `ulpf last`; the run itself is not affected.
        let kept = ulpf_session::kept::keep(&life.shared, life.pid, &life.program, ending);
        if let (Err(error), true) = (kept, verbose) {
            let pid = life.pid;
            say!("`ulpf last` will know nothing of process {pid} any more: {error}");
        }
    }
}

async fn ended_early(control: Control) -> Result<Ending> {
    say!("the program ended before the watches could be set");
    control.ending().await
}

/// The watches could not be set, perhaps because the program has ended meanwhile.
async fn not_begun(mut control: Control, error: anyhow::Error) -> Result<Ending> {
    if control.has_ended(&error).await {
        return ended_early(control).await;
    }
    control.give_up().await;
    Err(error)
}

type Ready = (Program, Vec<Watch>, Changes);

/// Brings the program to where watches are set, and resolves them, unless it ends before.
async fn prepare(
    control: &mut Control,
    options: &WatchArgs,
    specs: Vec<Spec>,
    launched: bool,
) -> Result<Result<Ready, Reached>> {
    control.greet().await?;
    let pid = control.pid;
    if let Some(check) = &options.check {
        control.check_heap(&check.how).await?;
    }
    if launched {
        let entry = Auxv::of(pid)?
            .entry()
            .context("the kernel did not say where the program starts")?;
        match control.run_to(&[entry]).await? {
            Reached::There => {}
            before => return Ok(Err(before)),
        }
    }
    if options.blame {
        control.record_writers().await?;
    }
    let mut program = Program::of_process(pid)?;
    if let Some(name) = options.at.as_ref().filter(|_| !specs.is_empty()) {
        let code = program.code(name);
        let code = code.map_err(|why| anyhow!("--at: {why}"))?;
        match control.run_to(&code).await? {
            Reached::There => {}
            before => return Ok(Err(before)),
        }
        program.refresh_from_process(pid)?;
    }
    let memory = control.memory().await?;
    let (watches, mut changes) = {
        // A program that already runs, or has reached --at, may have written to the terminal, too.
        let alone = launched && options.at.is_none();
        let _told = (alone && !options.quiet && !options.json)
            .then(ulpf_host::signals::ReadingNotice::begin);
        watches::resolve_all(specs, &program, &memory, watches::how(options))
    };
    if ulpf_host::signals::asked_to_end() {
        if !launched {
            control.let_go().await?;
            return Ok(Err(Reached::Left));
        }
        bail!("told to end while debug information was being read; nothing was run");
    }
    if let Some(check) = &options.check {
        changes.functions = Some(ulpf_heap::functions::find(&program, &check.allocator).0);
    }
    Ok(Ok((program, watches, changes)))
}
