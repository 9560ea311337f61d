//! Running a program bare, under `ulpf run`, and under those that ulpf is compared with.

use super::children::{finish, tail};
use super::machine::find;
use super::packets::Server;
use super::turns::Bench;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Readings of a program, from its line `bench: ns=0.25 cycles=0.7`.
#[derive(Clone, Debug, Default)]
pub struct Measured(Vec<(String, f64)>);

impl Measured {
    pub fn find(text: &str) -> Result<Measured> {
        let line = text.lines().find_map(|l| Some(l.split_once("bench: ")?.1));
        let line = line.with_context(|| format!("it printed no figures, but:\n{}", tail(text)))?;
        let pair = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_string(), value.parse().ok()?))
        };
        Ok(Measured(line.split(' ').filter_map(pair).collect()))
    }
    pub fn get(&self, name: &str) -> Result<f64> {
        let found = self.0.iter().find(|(n, _)| n == name);
        Ok(found.with_context(|| format!("it printed no {name}"))?.1)
    }
}

/// A program and what it is given.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub program: &'a Path,
    pub arguments: &'a [&'a str],
}

const HOT_CACHE: &str = "ULPF_HOT_CACHE";

/// How `ulpf run` is asked to watch.
#[derive(Clone, Debug)]
pub struct How {
    pub no_patch: bool,
    /// Where the watches live.
    pub placement: &'static str,
    /// A line for each hit, to /dev/null.
    pub log: bool,
    /// Not from `ready()` on, but from the entry.
    pub at_once: bool,
    /// Hot accesses are cached for the next run with this set.
    pub kept: bool,
}

pub const PATCHED: How = How {
    no_patch: false,
    placement: "guard",
    log: false,
    at_once: false,
    kept: false,
};
pub const TRAP: How = How {
    no_patch: true,
    ..PATCHED
};

/// Counters of `ulpf run`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    pub hits: u64,
    pub false_positives: u64,
    pub faults: u64,
}

impl Counted {
    /// Fraction of the accesses to guarded pages that has faulted.
    pub fn share(&self) -> f64 {
        self.faults as f64 / ((self.hits + self.false_positives) as f64).max(1.0)
    }
    pub fn of(summary: &Value) -> Counted {
        let number = |v: &Value, name: &str| v[name].as_u64().unwrap_or(0);
        let watches = summary["watches"].as_array();
        let hits = watches.map(|all| all.iter().map(|w| number(w, "hits")).sum());
        Counted {
            hits: hits.unwrap_or(0),
            false_positives: number(summary, "false_positives"),
            faults: number(summary, "faults"),
        }
    }
}

/// A debugger that ulpf is compared with, or that speaks to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// gdb by itself.
    Gdb,
    /// gdb and gdbserver.
    Gdbserver,
    /// gdb and valgrind's memcheck, through vgdb.
    Valgrind,
    /// gdb and `ulpf server`.
    Ulpf(&'static [&'static str]),
    /// `ulpf gdb`: gdb with the plugin, and the server in its parent.
    UlpfGdb,
}

impl Peer {
    /// Why it cannot take part here.
    pub fn missing(self) -> Option<String> {
        let needs: &[(&str, &str)] = match self {
            Peer::Gdb | Peer::Ulpf(_) | Peer::UlpfGdb => &[("gdb", "gdb")],
            Peer::Gdbserver => &[("gdb", "gdb"), ("gdbserver", "gdbserver")],
            Peer::Valgrind => &[
                ("gdb", "gdb"),
                ("valgrind", "valgrind"),
                ("vgdb", "valgrind"),
            ],
        };
        let mut absent = needs.iter().filter(|(program, _)| find(program).is_none());
        absent
            .next()
            .map(|(program, package)| format!("{program} is not installed (apt install {package})"))
    }
}

const SETTINGS: &str = "\
set pagination off
set confirm off
set width 0
set print thread-events off
set auto-load no
set breakpoint pending on
set startup-with-shell off
";

impl Bench {
    /// By itself, at the addresses that it has under ulpf and gdb.
    pub fn bare(&self, run: Run) -> Result<Measured> {
        let Run { program, arguments } = run;
        let mut command = match find("setarch") {
            Some(setarch) => {
                let mut command = Command::new(setarch);
                command.arg("-R").arg(program);
                command
            }
            None => Command::new(program),
        };
        command.env("OMP_NUM_THREADS", "1");
        let (_, said) = finish(command.args(arguments), self.limit)?;
        Measured::find(&said)
    }

    /// Under `ulpf run`, with these watches: what it printed, and what was counted.
    pub fn watched(&self, how: &How, watches: &[String], run: Run) -> Result<(Measured, Counted)> {
        let (said, summary) = self.ulpf_run(how, watches, run)?;
        Ok((Measured::find(&said)?, Counted::of(&summary)))
    }

    /// The same, for programs that print something else. The log's summary.
    pub fn ulpf_run(&self, how: &How, watches: &[String], run: Run) -> Result<(String, Value)> {
        let Run { program, arguments } = run;
        let mut command = self.ulpf_run_command(how, watches)?;
        let (_, said) = finish(command.arg(program).args(arguments), self.limit)?;
        if how.log {
            return Ok((said, Value::Null));
        }
        let summary = self.summary(&said)?;
        Ok((said, summary))
    }

    /// Counters of the last [`Bench::ulpf_run_command`], whose output is `said`.
    pub fn summary(&self, said: &str) -> Result<Value> {
        let text = fs::read_to_string(self.programs.file("log.json")).unwrap_or_default();
        let last = text
            .lines()
            .last()
            .and_then(|l| serde_json::from_str::<Value>(l).ok());
        match last {
            Some(summary) if summary["type"] == "summary" => Ok(summary),
            _ => bail!("ulpf run has counted nothing, and said:\n{}", tail(said)),
        }
    }

    /// Without what earlier runs may have kept.
    pub fn ulpf(&self) -> Command {
        let mut command = Command::new(&self.ulpf);
        command.env(HOT_CACHE, "off");
        command
    }

    /// `ulpf run …  --`; the summary goes to `log.json`.
    pub fn ulpf_run_command(&self, how: &How, watches: &[String]) -> Result<Command> {
        let list = self.programs.file("watches");
        fs::write(&list, watches.join("\n")).context("cannot list the watches")?;
        let mut command = self.ulpf();
        if how.kept {
            command
                .env_remove(HOT_CACHE)
                .env("XDG_CACHE_HOME", self.programs.file("cache"));
        }
        command.env("OMP_NUM_THREADS", "1");
        command.arg("run").arg("--watch-file").arg(list);
        if !how.at_once {
            command.args(["--at", "ready"]);
        }
        command.args(["--placement", how.placement]);
        if how.no_patch {
            command.arg("--no-patch");
        }
        match how.log {
            true => command.args(["--no-summary", "--log", "/dev/null"]),
            false => {
                let log = self.programs.file("log.json");
                // The log of an earlier run must not be taken for this one's.
                let _ = fs::remove_file(&log);
                command
                    .args(["--quiet", "--no-summary", "--json", "--log"])
                    .arg(log)
            }
        };
        command.arg("--");
        Ok(command)
    }

    /// Runs gdb with the program at `ready()`: `script` there, then on to the end. Returns the output of both.
    pub fn debugged(&self, peer: Peer, script: &str, run: Run) -> Result<String> {
        let Run { program, arguments } = run;
        let path = program.to_str().context("the folder's name is not UTF-8")?;
        let mut text = SETTINGS.to_string();
        let mut other = None;
        match peer {
            Peer::Gdb | Peer::UlpfGdb => {
                let _ = writeln!(text, "set args {}\nbreak ready\nrun", arguments.join(" "));
            }
            Peer::Gdbserver | Peer::Ulpf(_) => {
                let mut command = match peer {
                    Peer::Ulpf(options) => {
                        let mut command = self.ulpf();
                        command.arg("server").args(options);
                        command
                    }
                    _ => Command::new("gdbserver"),
                };
                command
                    .args(["--once", "127.0.0.1:0", path])
                    .args(arguments);
                let server = Server::start(&mut command)?;
                let _ = writeln!(
                    text,
                    "target remote 127.0.0.1:{}\nbreak ready\ncontinue",
                    server.port
                );
                other = Some(server);
            }
            Peer::Valgrind => {
                let prefix = self.programs.file("vgdb");
                let prefix = prefix.display();
                let mut command = Command::new("valgrind");
                command
                    .args(["-q", "--tool=memcheck", "--vgdb=yes", "--vgdb-error=0"])
                    .arg(format!("--vgdb-prefix={prefix}"))
                    .arg(path)
                    .args(arguments);
                let server = Server::silent(&mut command)?;
                let _ = writeln!(
                    text,
                    "target remote | vgdb --vgdb-prefix={prefix} --pid={} --wait=20\nbreak ready\ncontinue",
                    server.pid()
                );
                other = Some(server);
            }
        }
        let _ = writeln!(text, "delete\n{script}\ncontinue");
        let file: PathBuf = self.programs.file("script.gdb");
        fs::write(&file, text).context("cannot write gdb's script")?;
        let mut command = match peer {
            Peer::UlpfGdb => {
                let mut command = self.ulpf();
                command.arg("gdb");
                command
            }
            _ => Command::new("gdb"),
        };
        command
            .args([
                "-nx",
                "-q",
                "-batch",
                "-iex",
                "set debuginfod enabled off",
                "-x",
            ])
            .arg(&file)
            .arg(path);
        let (_, mut said) = finish(&mut command, self.limit)?;
        if let Some(server) = other {
            said += &server.finish(Duration::from_secs(10))?;
        }
        Ok(said)
    }

    /// The same, for what the program prints.
    pub fn peer(&self, peer: Peer, script: &str, run: Run) -> Result<Measured> {
        Measured::find(&self.debugged(peer, script, run)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_figures() {
        let m = Measured::find("noise\n[x] bench: ns=0.250 cycles=1 rounds=40\nmore").unwrap();
        assert_eq!(
            (m.get("ns").unwrap(), m.get("rounds").unwrap()),
            (0.25, 40.0)
        );
        assert!(m.get("first").is_err());
        assert!(Measured::find("ns=1").is_err());
    }
}
