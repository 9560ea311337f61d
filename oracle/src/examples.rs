//! Real programs: those of `examples/` and `tests/programs/`, with their C library, judged in single steps from `ready()` to
//! their end, or as far as the steps go that are allowed.

use crate::bench::{Bench, Totals, say_difference};
use crate::hits::{Access, Expected, Recorder, compare};
use crate::program::Watch;
use crate::ring::Ring;
use crate::step;
use crate::symbols::Symbols;
use crate::tracee::Tracee;
use crate::ulpf::{ALL, How, Runner, Tasks};
use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use ulpf_lib::{AccessKind, WatchKind};

pub struct Example {
    pub name: &'static str,
    args: &'static [&'static str],
    /// Instructions that are stepped at most.
    steps: u64,
    /// `[*]NAME[+OFFSET][:LEN] KIND`: a variable, what it points to, a part of these; `rsp` is the
    /// stack pointer at `ready`. Separated by commas.
    watches: &'static str,
}

const fn example(
    name: &'static str,
    args: &'static [&'static str],
    steps: u64,
    watches: &'static str,
) -> Example {
    Example {
        name,
        args,
        steps,
        watches,
    }
}

/// Those with one thread, whose memory does not depend on the time or on process numbers.
pub static EXAMPLES: [Example; 19] = [
    example(
        "five",
        &[],
        ALL_STEPS,
        "a w, b w, c w, d w, e rw, unwatched+12:4 rw, unwatched+80:9 w",
    ),
    example(
        "five_static",
        &[],
        ALL_STEPS,
        "a w, b rw, c w, d w, e w, unwatched+16:64 w",
    ),
    example(
        "five_static_pie",
        &[],
        ALL_STEPS,
        "a w, b w, c rw, d w, e w, unwatched+13:2 rw",
    ),
    example(
        "five_nopie",
        &[],
        ALL_STEPS,
        "a w, a:2 rw, c w, d r, e w, unwatched w",
    ),
    example(
        "structs",
        &[],
        ALL_STEPS,
        "box rw, box+8:1 w, box+9:7 w, shelf w, shelf+70:90 rw, chosen rw",
    ),
    example(
        "strings",
        &[],
        70_000,
        "text+100:40 rw, text+4090:12 w, text+8192:1 rw, text w, pair rw, counter rw, bits rw, \
         calls rw, *heap_stack+65024:512 rw, source+4000:5 r",
    ),
    example(
        "shapes",
        &[],
        ALL_STEPS,
        "lanes rw, lanes+20:4 w, lanes+22:12 r, sources rw, kinds w",
    ),
    example(
        "reads",
        &[],
        ALL_STEPS,
        "table+8:4 r, table rw, table+2:4 w",
    ),
    example("locals", &[], 180, "rsp+-256:256 rw, rsp+0:64 w"),
    example(
        "sysread",
        &[],
        20_000,
        "buffer:16 rw, buffer+90:40 w, buffer+4090:12 rw, buffer+200:16 w, buffer+1072:8 w, \
         buffer+2048:60 rw, other:12 rw",
    ),
    example("bigarray", &[], 20_000, "big w, big+1000:100 rw"),
    example("overrun", &[], ALL_STEPS, "account rw, account+16:8 w"),
    example("stray", &[], ALL_STEPS, "game rw, game+16:4 w"),
    example(
        "heap1000",
        &[],
        50_000,
        "*blocks:48 rw, *blocks+800:9 rw, *blocks+4000:48 w, *blocks+7992:48 rw, blocks+80:8 r",
    ),
    example(
        "sweep",
        &["1"],
        60_000,
        "*block+5:1 w, *block+4090:12 rw, *block+8192:100 w, *block+30000:1 rw, rounds_done w",
    ),
    example(
        "sweep",
        &["1", "into"],
        60_000,
        "*block+5:2 w, *block+4095:2 rw, *block+9000:300 rw",
    ),
    example(
        "sweep",
        &["2", "leave"],
        60_000,
        "*block+4096:1 rw, *block+12287:1 w",
    ),
    // Code that is generated, run, changed and run again.
    example(
        "generated",
        &["1", "20", "60"],
        ALL_STEPS,
        "cells w, cells+24:4 rw, cells+800:300 rw, cells+2044:8 w",
    ),
    // Stacks in the heap.
    example(
        "coroutines",
        &["3"],
        ALL_STEPS,
        "*blocks:16384 rw, *blocks+8:16384 w, *blocks+16:16380 r, blocks rw, sums rw",
    ),
];

const ALL_STEPS: u64 = 400_000;

/// Both sides get this and nothing else, so that their stacks are the same.
fn environment(command: &mut Command) {
    // Lazy binding saves the extended state on the stack, of which only xsave knows the size.
    command
        .env_clear()
        .env("LC_ALL", "C")
        .env("LD_BIND_NOW", "1");
}

struct Judged {
    watches: Vec<Watch>,
    ready: u64,
    expected: Expected,
    /// Stopped before the program's end.
    cut: bool,
}

impl Example {
    fn watches(&self, t: &Tracee, symbols: &Symbols, base: u64) -> Result<Vec<Watch>> {
        let word = |at: u64| -> Result<u64> {
            let mut bytes = [0; 8];
            t.read(at, &mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let rsp = t.registers()?.rsp;
        let mut out = vec![];
        for text in self.watches.split(", ") {
            let (place, kind) = text.trim().split_once(' ').context("a watch has a kind")?;
            let (place, len) = match place.split_once(':') {
                Some((p, l)) => (p, Some(l.parse()?)),
                None => (place, None),
            };
            let (name, offset) = match place.split_once('+') {
                Some((n, o)) => (n, o.parse::<i64>()?),
                None => (place, 0),
            };
            let at = |n: &str| {
                symbols
                    .find(n)
                    .with_context(|| format!("no {n} in {}", self.name))
            };
            let (addr, size) = match name.strip_prefix('*') {
                None if name == "rsp" => (rsp.wrapping_add_signed(offset), 8),
                None => {
                    let s = at(name)?;
                    (base + s.addr + offset as u64, s.size)
                }
                // An array of pointers: the offset chooses one.
                Some(n) if n == "blocks" => (word(base + at(n)?.addr + offset as u64)?, 8),
                Some(n) => (word(base + at(n)?.addr)? + offset as u64, 8),
            };
            out.push(Watch {
                addr,
                len: len.unwrap_or(size),
                kind: match kind {
                    "w" => WatchKind::Write,
                    "r" => WatchKind::Read,
                    _ => WatchKind::Access,
                },
            });
        }
        Ok(out)
    }

    fn judge(&self, program: &Path, steps: u64) -> Result<Judged> {
        let symbols = Symbols::read(program)?;
        let mut command = Command::new(program);
        command.args(self.args);
        environment(&mut command);
        let mut t = Tracee::begin(&mut command)?;
        let base = if symbols.moves { t.base(program)? } else { 0 };
        let ready = symbols.find("ready").or(symbols.find("main"));
        let ready = base + ready.context("neither ready nor main")?.addr;
        t.run_to(ready)?;
        let watches = self.watches(&t, &symbols, base)?;
        let mut recorder = Recorder::new();
        recorder.epoch(&watches);
        let cut = !Stepper::new(&mut t, &mut recorder).go(steps)?;
        Ok(Judged {
            watches,
            ready,
            expected: recorder.out,
            cut,
        })
    }
}

struct Stepper<'a> {
    t: &'a mut Tracee,
    recorder: &'a mut Recorder,
    decoded: HashMap<(u64, [u8; 15]), (Instruction, bool)>,
    factory: InstructionInfoFactory,
}

impl Stepper<'_> {
    fn new<'a>(t: &'a mut Tracee, recorder: &'a mut Recorder) -> Stepper<'a> {
        Stepper {
            t,
            recorder,
            decoded: HashMap::new(),
            factory: InstructionInfoFactory::new(),
        }
    }

    /// `true`: the program has ended.
    fn go(&mut self, steps: u64) -> Result<bool> {
        for _ in 0..steps {
            let r = self.t.registers()?;
            let (i, memory) = self.decode(r.rip)?;
            if i.mnemonic() == Mnemonic::Syscall {
                if matches!(r.rax, 60 | 231) {
                    return Ok(true);
                }
                self.syscall()?;
                continue;
            }
            self.recorder.out.instructions += 1;
            if !memory {
                self.t.step()?;
                continue;
            }
            let t = &*self.t;
            let list = step::accesses(&mut self.factory, &i, &r, &|| t.vectors());
            // The size of xsave's area does not matter if it lies elsewhere.
            let list = match list {
                Err(_) if !self.recorder.any_overlap(r.rsp & !0xfff, 0x4000) => vec![],
                list => list?,
            };
            if !list.iter().any(|a| self.recorder.watched_page(a.0, a.1)) {
                self.t.step()?;
                continue;
            }
            let mut done = vec![];
            for &(addr, len, kind) in &list {
                self.recorder.out.accesses += u64::from(self.recorder.watched_page(addr, len));
                let mut old = vec![0; len as usize];
                self.t.read(addr, &mut old)?;
                done.push(Access {
                    addr,
                    kind,
                    new: old.clone(),
                    old,
                });
            }
            self.t.step()?;
            if matches!(i.mnemonic(), Mnemonic::Pushf | Mnemonic::Pushfq) {
                self.t.clean_pushed_flags()?;
            }
            for a in &mut done {
                self.t.read(a.addr, &mut a.new)?;
            }
            self.recorder.group(r.rip, None, &done);
        }
        Ok(false)
    }

    /// The instruction, and whether it may touch memory.
    fn decode(&mut self, pc: u64) -> Result<(Instruction, bool)> {
        let mut code = [0; 15];
        let room = (4096 - pc as usize % 4096).min(15);
        if self.t.read(pc, &mut code).is_err() {
            self.t.read(pc, &mut code[..room])?;
        }
        // Programs change their code.
        if let Some(known) = self.decoded.get(&(pc, code)) {
            return Ok(*known);
        }
        let i = Decoder::with_ip(64, &code, pc, DecoderOptions::NONE).decode();
        ensure!(!i.is_invalid(), "no instruction at {pc:#x}");
        let memory = !self.factory.info(&i).used_memory().is_empty();
        self.decoded.insert((pc, code), (i, memory));
        Ok((i, memory))
    }

    /// The kernel's accesses in system calls that meet watches. This does not use the stub's table, and so checks it.
    fn syscall(&mut self) -> Result<()> {
        use AccessKind::{Read, Write};
        let r = self.t.registers()?;
        let a = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
        let mut parts: Vec<(u64, u64, AccessKind)> = match r.rax as i64 {
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom => vec![(a[1], a[2], Write)],
            libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto => vec![(a[1], a[2], Read)],
            libc::SYS_fstat => vec![(a[1], 144, Write)],
            libc::SYS_ioctl => vec![(a[2], 36, Write)],
            libc::SYS_uname => vec![(a[0], 390, Write)],
            libc::SYS_rt_sigprocmask => vec![(a[1], a[3], Read), (a[2], a[3], Write)],
            // The path is a constant.
            libc::SYS_newfstatat => vec![(a[2], 144, Write)],
            call @ (libc::SYS_readv | libc::SYS_writev) => {
                let mut iov = vec![0; a[2] as usize * 16];
                self.t.read(a[1], &mut iov)?;
                let word = |n: usize| {
                    iov.get(n * 8..n * 8 + 8)
                        .and_then(|b| b.try_into().ok())
                        .map_or(0, u64::from_le_bytes)
                };
                let kind = if call == libc::SYS_readv { Write } else { Read };
                (0..a[2] as usize)
                    .map(|n| (word(2 * n), word(2 * n + 1), kind))
                    .collect()
            }
            nr => {
                if let Some(p) = a.iter().find(|p| self.recorder.any_overlap(**p, 4096)) {
                    bail!("system call {nr} is not modelled and is given {p:#x}");
                }
                vec![]
            }
        };
        parts.retain(|p| p.0 != 0 && p.1 > 0);
        let mut done = vec![];
        for &(addr, len, kind) in &parts {
            let mut old = vec![0; len as usize];
            self.t.read(addr, &mut old)?;
            done.push(Access {
                addr,
                kind,
                new: vec![],
                old,
            });
        }
        self.t.step()?;
        let result = self.t.registers()?.rax as i64;
        let counted = !matches!(r.rax, 5 | 14 | 16 | 63 | 262);
        let mut left = result.max(0) as usize;
        for d in &mut done {
            if counted {
                d.old.truncate(left);
                left -= d.old.len();
            } else if result < 0 {
                d.old.clear();
            }
            d.new = d.old.clone();
            self.t.read(d.addr, &mut d.new)?;
        }
        done.retain(|d| !d.old.is_empty());
        self.recorder.group(r.rip, Some(r.rax as u32), &done);
        Ok(())
    }
}

/// Runs an example and adds to the totals.
impl Example {
    /// `false` if a difference was reported.
    /// `most`: single steps, if fewer than the example allows.
    pub fn compare(&self, bench: &Bench, most: u64, totals: &mut Totals) -> Result<bool> {
        let program = path(self.name);
        let title = format!("{} {}", self.name, self.args.join(" "));
        let judged = self
            .judge(&program, self.steps.min(most))
            .with_context(|| title.clone())?;
        ensure!(
            judged.expected.epochs.iter().any(|e| !e.is_empty()),
            "{title}: nothing is hit"
        );
        totals.steps += judged.expected.instructions;
        let mut ok = true;
        for patching in ALL {
            let how = How {
                ulpf: &bench.ulpf,
                patching,
                placement: "guard",
                seed: judged.expected.instructions,
                tasks: Tasks::default(),
            };
            let same = actual(&how, &program, self, &judged).map(|(mut actual, patches)| {
                totals.patches += patches;
                if judged.cut {
                    // Later hits are not judged.
                    let most = judged.expected.epochs[0]
                        .get(&0)
                        .map_or(0, |s| s.hits.len());
                    actual.values_mut().for_each(|h| h.truncate(most));
                }
                compare(&judged.expected, &vec![actual])
            });
            match same {
                Ok(Ok(n)) => totals.hits += n,
                Ok(Err(d)) => {
                    println!("{title}, {patching:?}: differs");
                    say_difference(&d);
                    ok = false;
                }
                Err(e) => {
                    println!("{title}, {patching:?}: {e:#}");
                    ok = false;
                }
            }
        }
        Ok(ok)
    }
}

type Hits = std::collections::BTreeMap<u32, Vec<crate::hits::Hit>>;

/// The hits under ulpf, and how many patches there were.
fn actual(how: &How, program: &Path, e: &Example, judged: &Judged) -> Result<(Hits, u64)> {
    let mut command = how.command(program);
    command.args(e.args);
    environment(&mut command);
    let mut runner = Runner::start(how, &mut command)?;
    let breakpoint = format!("0,{:x},1", judged.ready);
    let reply = runner.session.request(&format!("Z{breakpoint}"))?;
    ensure!(reply == "OK", "a breakpoint at ready: {reply}");
    runner.go_to_marker(false).context("to ready")?;
    runner.session.request(&format!("z{breakpoint}"))?;
    let reply = runner.session.request("QCatchSyscalls:1;e7")?;
    ensure!(reply == "OK", "catch exit_group: {reply}");
    runner.areas = judged.watches.iter().map(pages).collect();
    runner.patch(0)?;
    runner.session.watch(&judged.watches)?;
    let pid = runner.session.program()?;
    let mut ring = Ring::of(pid)?;
    runner.go_to_marker(true).context("to the end")?;
    let numbers = how.numbers(pid)?;
    let hits = ring.drain(&runner.session.ids, &numbers, None)?;
    let placed = runner.placed()?;
    Ok((hits, placed))
}

/// The pages of a watch.
fn pages(w: &Watch) -> (u64, u64) {
    let start = w.addr & !4095;
    (start, (w.addr + w.len).next_multiple_of(4096) - start)
}

/// An example, or a program of the tests.
fn path(name: &str) -> PathBuf {
    let bin = |folder| crate::soak::root().join(folder).join("bin").join(name);
    let example = bin("examples");
    match example.exists() {
        true => example,
        false => bin("tests/programs"),
    }
}
