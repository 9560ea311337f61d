//! The program under the real thing: `ulpf server`, watches over `monitor`, hits out of the ring at each
//! marker.

use crate::corpus::Rng;
use crate::hits::Actual;
use crate::program::{ARENA_LEN, ARENAS, Watch};
use crate::ring::{Ring, read_memory};
use crate::session::Session;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use ulpf_lib::command::reply;

/// For a marker, or a stop that was asked for.
const TIMEOUT: Duration = Duration::from_secs(120);

/// When hot instructions are patched. The hits are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patching {
    Off,
    /// After so many false positives of an instruction.
    After(u32),
    /// Another way in each epoch.
    Epochs,
    /// The program is interrupted every few milliseconds. Then patching changes, and uncompared watches are added and
    /// removed: pages lose their class, patches are removed and placed again.
    Moments,
    /// The same in non-stop mode: all this happens while the program runs, and threads stop and continue one by one.
    NonStop,
}

/// For the fixed cases.
pub const ALL: [Patching; 5] = [
    Patching::Off,
    Patching::After(0),
    Patching::After(5),
    Patching::Moments,
    Patching::NonStop,
];

impl Patching {
    pub fn of(seed: u64) -> Patching {
        match crate::generate::mix(seed, 0x9a7c) >> 8 & 7 {
            0 => Patching::Off,
            1..=2 => Patching::After(0),
            3 => Patching::After(5),
            4 => Patching::Epochs,
            5 => Patching::NonStop,
            _ => Patching::Moments,
        }
    }
}

/// How a program is run.
pub struct How<'a> {
    pub ulpf: &'a Path,
    pub patching: Patching,
    /// `--placement`
    pub placement: &'a str,
    pub seed: u64,
    pub tasks: Tasks,
}

/// The threads and children that a program has beside its first thread.
#[derive(Default)]
pub struct Tasks {
    pub most: u64,
    /// Where it keeps their numbers, after a word.
    pub at: u64,
    /// Only they store to what is watched: the hits of each watch are one chain.
    pub chained: bool,
}

/// Results of a run.
#[derive(Default)]
pub struct Run {
    pub actual: Actual,
    /// Patches that were put in place.
    pub placed: u64,
    /// How often the program was interrupted.
    pub moments: u64,
}

/// Runs the program, which executes another one at the end of each stage; `Err` for what it did not survive, as text.
pub fn run(how: &How, elf: &Path, stages: &[&[Vec<Watch>]]) -> Result<Run> {
    let mut runner = Runner::start(how, &mut how.command(elf))?;
    let mut actual = Actual::new();
    for (n, epochs) in stages.iter().enumerate() {
        let stage = runner.stage(epochs, n > 0);
        actual.extend(stage.with_context(|| format!("in program {n}"))?);
    }
    let placed = runner.placed()?;
    // The last interrupt may have come too late for the last marker.
    let mut end = runner.end()?;
    while end.starts_with("T02") && how.patching == Patching::Moments {
        end = runner.session.resume()?;
    }
    ensure!(
        end == "W00" || end.starts_with("W00;"),
        "the program ended with {end}"
    );
    Ok(Run {
        actual,
        placed,
        moments: runner.moments,
    })
}

impl How<'_> {
    /// The server for a program; its arguments may follow.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(self.ulpf);
        command
            .args(["server", "--once", "--no-startup-with-shell"])
            .arg(format!("--placement={}", self.placement))
            .arg("-")
            .arg(program);
        // Where the programs are that it executes.
        if let Some(folder) = program.parent() {
            command.current_dir(folder);
            command.env("XDG_CACHE_HOME", folder);
            command.env("ULPF_HOT_CACHE", "on");
        }
        command
    }

    /// Numbers of the threads that the kernel knows to those that we give them.
    pub fn numbers(&self, pid: i32) -> Result<BTreeMap<u32, u32>> {
        let mut numbers = vec![0; self.tasks.most as usize * 8];
        read_memory(pid, self.tasks.at + 8, &mut numbers)?;
        let mut out = BTreeMap::from([(pid as u32, 0)]);
        for (n, bytes) in (1..).zip(numbers.chunks(8)) {
            out.insert(u32::from_le_bytes(bytes[..4].try_into()?), n);
        }
        Ok(out)
    }

    /// The watches whose hits are one chain each.
    fn chained<'a>(&self, watches: &'a [Watch]) -> Option<&'a [Watch]> {
        self.tasks.chained.then_some(watches)
    }
}

pub struct Runner<'a> {
    pub session: Session,
    how: &'a How<'a>,
    rng: Rng,
    moments: u64,
    /// Where other watches may be: address and length.
    pub areas: Vec<(u64, u64)>,
    /// On the way to the first marker of a program.
    begins: bool,
    /// Numbers of the watches whose hits are not compared.
    others: Vec<u32>,
}

impl Runner<'_> {
    pub fn start<'a>(how: &'a How, command: &mut Command) -> Result<Runner<'a>> {
        let mut session = Session::start(command)?;
        if how.patching == Patching::NonStop {
            session.non_stop()?;
        }
        Ok(Runner {
            session,
            how,
            rng: Rng(crate::generate::mix(how.seed, 0xd15)),
            moments: 0,
            areas: ARENAS.map(|a| (a, ARENA_LEN as u64)).to_vec(),
            begins: false,
            others: vec![],
        })
    }

    /// To the last marker of a program, which is the first one or has just been executed.
    fn stage(&mut self, epochs: &[Vec<Watch>], disturb: bool) -> Result<Actual> {
        let mut actual = Actual::new();
        // A program that was just executed has no arenas yet; it is interrupted only.
        self.begins = true;
        let disturb = disturb && self.how.patching == Patching::Moments;
        self.go_to_marker(disturb).context("at marker 0")?;
        self.begins = false;
        self.session.ids.clear();
        let pid = self.session.program()?;
        let mut ring = Ring::of(pid)?;
        for (n, watches) in epochs.iter().enumerate() {
            self.patch(n)?;
            self.session.watch(watches)?;
            self.go_to_marker(true)
                .with_context(|| format!("at marker {}", n + 1))?;
            let numbers = self.how.numbers(pid)?;
            let chained = self.how.chained(watches);
            actual.push(ring.drain(&self.session.ids, &numbers, chained)?);
        }
        Ok(actual)
    }

    /// Goes on to the next marker.
    pub fn go_to_marker(&mut self, disturb: bool) -> Result<()> {
        if self.how.patching == Patching::NonStop {
            return self.run_to_marker(disturb);
        }
        let disturb = disturb && self.how.patching == Patching::Moments;
        let end = Instant::now() + TIMEOUT;
        loop {
            ensure!(Instant::now() < end, "no marker for {TIMEOUT:?}: it hangs");
            let reply = if disturb {
                let most = if self.rng.chance(3) { 12 } else { 3 };
                let time = self.rng.below(most);
                self.session.resume_for(time)?
            } else {
                self.session.resume()?
            };
            if reply.starts_with("T05") {
                break;
            }
            // An interrupt may arrive when the marker has been reported already.
            ensure!(reply.starts_with("T02"), "the program stopped with {reply}");
            self.moment()?;
        }
        self.forget(usize::MAX)
    }

    /// The same in non-stop mode.
    fn run_to_marker(&mut self, disturb: bool) -> Result<()> {
        self.session.order("vCont;c")?;
        let end = Instant::now() + TIMEOUT;
        loop {
            ensure!(Instant::now() < end, "no marker for {TIMEOUT:?}: it hangs");
            let time = if disturb { self.rng.below(4) } else { 1000 };
            match self.session.stop_within(time)? {
                Some(stop) if stop.starts_with("T05") => break,
                Some(stop) => bail!("the program stopped with {stop}"),
                None if !disturb => {}
                None if self.rng.chance(2) => self.moment()?,
                None => {
                    if self.one_stops()? {
                        break;
                    }
                }
            }
        }
        self.forget(usize::MAX)
    }

    /// One thread stops while the others run, makes a step perhaps, and goes on. True: the marker was met meanwhile.
    fn one_stops(&mut self) -> Result<bool> {
        self.moments += 1;
        let threads = self.session.threads()?;
        let one = threads[self.rng.below(threads.len() as u64) as usize].clone();
        self.session.order(&format!("vCont;t:{one}"))?;
        let (stopped, marker) = self.stop_of(&one)?;
        if !stopped {
            return Ok(marker);
        }
        // A step of the first one could be the one over a marker.
        if one != threads[0] && self.rng.chance(2) {
            self.session.order(&format!("vCont;s:{one}"))?;
            let (_, again) = self.stop_of(&one)?;
            self.session.order(&format!("vCont;c:{one}"))?;
            return Ok(marker || again);
        }
        self.session.order(&format!("vCont;c:{one}"))?;
        Ok(marker)
    }

    /// Whether this thread has stopped, or else ended, and whether the marker was met.
    fn stop_of(&mut self, one: &str) -> Result<(bool, bool)> {
        let mut marker = false;
        let end = Instant::now() + TIMEOUT;
        loop {
            ensure!(Instant::now() < end, "{one} does not stop");
            let Some(stop) = self.session.stop_within(20)? else {
                let alive = self.session.request(&format!("T{one}"))? == "OK";
                if alive {
                    continue;
                }
                return Ok((false, marker));
            };
            let its = stop
                .split(';')
                .any(|f| f.ends_with(&format!("thread:{one}")));
            match &stop[..3.min(stop.len())] {
                // It was at the marker before it could be stopped.
                "T05" if its && self.is_first(one)? => return Ok((false, true)),
                "T00" | "T05" if its => return Ok((true, marker)),
                "T05" => marker = true,
                _ => bail!("the program stopped with {stop}"),
            }
        }
    }

    fn is_first(&mut self, one: &str) -> Result<bool> {
        Ok(self.session.threads()?.first().is_some_and(|t| t == one))
    }

    /// Lets the program end; how it does.
    fn end(&mut self) -> Result<String> {
        if self.how.patching != Patching::NonStop {
            return self.session.resume();
        }
        self.session.order("vCont;c")?;
        let end = self.session.stop_within(TIMEOUT.as_millis() as u64)?;
        end.context("the program does not end")
    }

    /// Something changes while the threads are anywhere.
    fn moment(&mut self) -> Result<()> {
        self.moments += 1;
        if self.begins {
            return Ok(());
        }
        for _ in 0..1 + self.rng.below(3) {
            match self.rng.below(6) {
                0 => self.say("ulpf patch off")?,
                1 => self.say("ulpf patch on after 5 patience 64")?,
                2 => self.say("ulpf patch on after 0 patience 64")?,
                3 => self.say("ulpf patch on after 0 patience 4096")?,
                4 => self.forget(1)?,
                _ => self.another()?,
            }
        }
        Ok(())
    }

    fn say(&mut self, command: &str) -> Result<()> {
        self.session.monitor(&[command.to_string()])?;
        Ok(())
    }

    /// A watch that is counted, not logged.
    fn another(&mut self) -> Result<()> {
        let (start, room) = self.areas[self.rng.below(self.areas.len() as u64) as usize];
        let most = if self.rng.chance(3) { 5000 } else { 40 };
        let len = 1 + self.rng.below(room.min(most));
        let at = start + self.rng.below(room - len + 1);
        let kind = ["w", "r", "rw"][self.rng.below(3) as usize];
        let id = self.session.quiet_watch(at, len, kind)?;
        // The range may be that of a watch which counts.
        if !self.session.ids.contains_key(&id) && !self.others.contains(&id) {
            self.others.push(id);
        }
        Ok(())
    }

    fn forget(&mut self, most: usize) -> Result<()> {
        let from = self.others.len().saturating_sub(most);
        for id in self.others.split_off(from) {
            self.say(&format!("ulpf unwatch {id}"))?;
        }
        Ok(())
    }

    pub fn patch(&mut self, epoch: usize) -> Result<()> {
        let how = match self.how.patching {
            Patching::Off => "off".to_string(),
            Patching::After(n) => format!("on after {n}"),
            _ => {
                let n = crate::generate::mix(self.how.seed, 0x300 + epoch as u64) >> 8;
                let how = [
                    "off",
                    "on after 5 patience 64",
                    "on after 0 patience 64",
                    "on after 0 patience 4096",
                ];
                how[n as usize % how.len()].to_string()
            }
        };
        self.say(&format!("ulpf patch {how}"))
    }

    pub fn placed(&mut self) -> Result<u64> {
        let lines = self.session.monitor(&["ulpf patch".to_string()])?;
        match serde_json::from_str(&lines[0])? {
            reply::Patching::Counts(counts) => Ok(counts.placed),
            reply::Patching::Nowhere(why) => bail!("nothing is patched: {why}"),
        }
    }
}
