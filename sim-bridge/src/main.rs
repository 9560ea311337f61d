// SPDX-License-Identifier: GPL-2.0-or-later
//! `ulpf-sim`: runs a static program on the simulated machine.

use anyhow::{Context, Result, anyhow, bail, ensure};
use std::os::unix::ffi::OsStringExt;
use ulpf_sim_bridge::bridge::serve;
use ulpf_sim_bridge::bridge::session::Session;
use ulpf_sim_bridge::elf::{self, Elf};
use ulpf_sim_bridge::machine::{Config, End, Machine};
use ulpf_sim_bridge::os::exec::Resume;
use ulpf_sim_bridge::processes::calls as processes;

const USAGE: &str = "\
Runs a static x86-64 Linux program on a simulated processor with user-level page faults.

Usage: ulpf-sim [OPTIONS] PROG [ARGS…]

  --functional         no cycles, no TLB before the program sets permissions; fast
  --watch WHAT         watch a variable (NAME, NAME:LEN) or memory (ADDR:LEN) for writes, with a handler
                       that is part of the model; more than once if you like
  --tlb N              entries of the data TLB, a power of two [64]
  --write-once RULE    corrected, thesis (Figure 3.5), or bit (without its address register) [corrected]
  --cost STEP=CYCLES   what a step costs; `--cost help=0` names them
  --bridge ADDR        be a remote port at ADDR (a new socket's path, or HOST:PORT): a debugger says when to run;
                       `ulpf server --backend sim` starts this (docs/bridge.md)
  --limit N            give up after N instructions
  --handler-limit N    give up when a handler of faults has not returned after N instructions [10000000]
  --stats              the machine's counters as a table, to stderr at the end
  --json FILE          the same as JSON; `-` is stderr
  -h, --help           this text
  -V, --version

The exit status is the program's; 128 + N if a signal N ended it; 125 if the machine could not go on, or
refuses the program (dynamically linked, 32-bit, for another processor).
";

struct Options {
    config: Config,
    watches: Vec<String>,
    stats: bool,
    json: Option<String>,
    bridge: Option<String>,
    program: Vec<String>,
    /// State left by the program that ran here before (execve).
    resume: Option<Resume>,
    /// Options that hold for the next program, too.
    words: Vec<String>,
}

impl Options {
    /// The program's file, which need not be what it is called.
    fn path(&self) -> &str {
        match &self.resume {
            Some(r) => &r.path,
            None => &self.program[0],
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let mut o = Options {
        config: Config::default(),
        watches: vec![],
        stats: false,
        json: None,
        bridge: None,
        program: vec![],
        resume: None,
        words: vec![],
    };
    while let Some(arg) = args.next() {
        if !arg.starts_with('-') {
            o.program.push(arg);
            break;
        }
        let (name, mut value) = match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => {
                (name.to_owned(), Some(value.to_owned()))
            }
            _ => (arg.clone(), None),
        };
        let words = &mut o.words;
        // Not those of one program: watches, statistics, and the limit, of which the rest is left.
        let stays = [
            "--functional",
            "--tlb",
            "--write-once",
            "--cost",
            "--handler-limit",
        ]
        .contains(&name.as_str());
        if stays {
            words.push(name.clone());
        }
        let mut value = || {
            let value = value
                .take()
                .or_else(|| args.next())
                .ok_or_else(|| anyhow!("{name} needs a value"))?;
            if stays {
                words.push(value.clone());
            }
            anyhow::Ok(value)
        };
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|_| anyhow!("`{text}` is no number"))
        };
        match name.as_str() {
            "-h" | "--help" => {
                ulpf_sim_bridge::outln!("{}", USAGE.trim_end());
                return Ok(None);
            }
            "-V" | "--version" => {
                ulpf_sim_bridge::outln!("ulpf-sim {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            "--functional" => o.config.functional = true,
            "--watch" => o.watches.push(value()?),
            "--tlb" => o.config.tlb = number(value()?)? as usize,
            "--write-once" => o.config.rule = value()?.parse()?,
            "--cost" => o.config.costs.set(&value()?)?,
            "--handler-limit" => o.config.handler_limit = number(value()?)?,
            "--limit" => o.config.limit = Some(number(value()?)?),
            "--resume" => o.resume = Some(Resume::read(number(value()?)? as i32)?),
            "--stats" => o.stats = true,
            "--bridge" => o.bridge = Some(value()?),
            "--json" => o.json = Some(value()?),
            "--" => break,
            _ => bail!("unknown option {name}; `ulpf-sim --help` lists them"),
        }
    }
    o.program.extend(args);
    if let Some(r) = &o.resume {
        o.program = r.args.clone();
    }
    match o.program.is_empty() && o.resume.is_none() {
        true => bail!("no program given; `ulpf-sim --help` tells more"),
        false => Ok(Some(o)),
    }
}

/// NAME, NAME:LEN or ADDR:LEN.
fn place(elf: &Elf, what: &str) -> Result<(u64, u64)> {
    let (name, len) = match what.split_once(':') {
        Some((name, len)) => (
            name,
            Some(len.parse().map_err(|_| anyhow!("`{len}` is no length"))?),
        ),
        None => (what, None),
    };
    if let Some(hex) = name.strip_prefix("0x") {
        let addr = u64::from_str_radix(hex, 16).map_err(|_| anyhow!("`{name}` is no address"))?;
        return Ok((addr, len.context("an address needs a length: 0xADDR:LEN")?));
    }
    let symbol = elf.symbols.iter().find(|s| s.0 == name);
    let s = symbol
        .with_context(|| format!("the program has no variable `{name}` (is it stripped?)"))?;
    Ok((s.1, len.unwrap_or(s.2)))
}

fn load(o: &Options) -> Result<(Machine, Vec<(u64, u64)>)> {
    let path = o.path();
    let file = std::fs::read(path).with_context(|| path.to_owned())?;
    let elf = elf::read(&file).with_context(|| path.to_owned())?;
    let watches: Vec<_> = o
        .watches
        .iter()
        .map(|w| place(&elf, w))
        .collect::<Result<_>>()?;
    let environment: Vec<_> = match &o.resume {
        Some(r) => r.environment.clone(),
        None => std::env::vars_os()
            .map(|(k, v)| [k.into_vec(), b"=".to_vec(), v.into_vec()].concat())
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .collect(),
    };
    let mut machine = Machine::new(&Config {
        processes: true,
        options: o.bridge.is_none().then(|| o.words.clone()),
        ..o.config.clone()
    })?;
    machine.load(&elf, &o.program, &environment)?;
    {
        let s = &mut *machine.state.borrow_mut();
        let absolute = std::path::absolute(path)?;
        s.os.program = absolute.to_string_lossy().into_owned();
        if let Some(r) = &o.resume {
            r.apply(s);
        }
    }
    machine.watch(&watches)?;
    Ok((machine, watches))
}

/// Under a debugger.
fn serve(o: &Options, addr: &str) -> Result<i32> {
    ensure!(
        o.watches.is_empty() && !o.config.functional && o.config.limit.is_none(),
        "--bridge goes with neither --watch, --functional nor --limit; the debugger sets the watches"
    );
    let status = serve::serve(addr, || {
        let (machine, _) = load(o)?;
        let path = std::path::absolute(&o.program[0])?;
        Ok(Session::new(machine, path.display().to_string()))
    })?;
    Ok(status)
}

fn run(o: &Options) -> Result<i32> {
    if let Some(addr) = &o.bridge {
        return serve(o, addr);
    }
    let path = o.path();
    let (mut machine, watches) = load(o)?;
    let end = machine.run();
    processes::settle(&machine.uc, &mut machine.state.borrow_mut());
    if machine.state.borrow().child {
        processes::end(&end);
    }
    let status = match &end {
        End::Exit(status) => *status,
        End::Signal(n, why) => {
            ulpf_sim_bridge::message!("ulpf-sim: {path}: signal {n}: {why}");
            128 + n
        }
        End::Failed(why) => {
            ulpf_sim_bridge::message!("ulpf-sim: {path}: {why}");
            125
        }
        End::Paused(_) => unreachable!("nobody has asked for it"),
    };
    let stats = &machine.state.borrow().stats;
    if o.stats {
        ulpf_sim_bridge::message!("{}", stats.table(!watches.is_empty()).trim_end());
    }
    match o.json.as_deref() {
        Some("-") => ulpf_sim_bridge::message!("{}", stats.json(!watches.is_empty(), status)),
        Some(file) => std::fs::write(file, stats.json(!watches.is_empty(), status) + "\n")
            .with_context(|| file.to_owned())?,
        None => {}
    }
    Ok(status)
}

fn main() {
    let status = match options(std::env::args().skip(1)) {
        Ok(None) => Ok(0),
        Ok(Some(o)) => run(&o),
        Err(e) => Err(e),
    };
    std::process::exit(status.unwrap_or_else(|e| {
        ulpf_sim_bridge::message!("ulpf-sim: {e:#}");
        125
    }));
}
