//! redis-server: with an idle watch, and with its whole heap watched.

use super::super::children::{tail, wait};
use super::super::clock::Clock;
use super::super::machine::find;
use super::super::programs::Programs;
use super::super::readings::Readings;
use super::super::table::{Table, figure, some};
use super::super::tools::{Counted, How, PATCHED};
use super::super::turns::Bench;
use anyhow::{Context, Result, bail, ensure};
use object::{Object, ObjectSection};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const CASE: &str = "redis";

/// The server's program under the name that it must have, or why not. (The package of the tools holds
/// the same file; that of the server starts a service when it is installed.)
pub fn program(bench: &mut Bench) -> Option<PathBuf> {
    if find("redis-benchmark").is_none() || find("redis-cli").is_none() {
        bench.skip(
            "redis",
            "redis-benchmark is not installed (apt install redis-tools)",
        );
        return None;
    }
    let real = find("redis-server").or_else(|| find("redis-check-rdb"));
    let Some(real) = real.and_then(|real| fs::canonicalize(real).ok()) else {
        bench.skip(
            "redis",
            "redis-server is not installed (apt install redis-server)",
        );
        return None;
    };
    let ours = bench.programs.file("redis-server");
    let _ = std::os::unix::fs::symlink(real, &ours);
    Some(ours)
}

/// A server that listens on a socket in our folder.
pub struct Server {
    child: Option<Child>,
    socket: PathBuf,
    /// The server itself, not the command that watches it.
    pid: u32,
}

impl Server {
    fn start(bench: &Bench, mut command: Command, program: &Path, name: &str) -> Result<Server> {
        if command.get_program() != program.as_os_str() {
            command.arg(program);
        }
        let mut server = Server::open(&bench.programs, command, name)?;
        if name != "bare" {
            server.pid = started(&bench.programs.file("log.json"))?;
        }
        Ok(server)
    }

    /// As that command runs it; its number is not known, if there is another one between.
    fn open(programs: &Programs, mut command: Command, name: &str) -> Result<Server> {
        let socket = programs.file(name);
        let _ = fs::remove_file(&socket);
        command
            .args(["--port", "0", "--save", "", "--daemonize", "no", "--dir"])
            .arg(&programs.folder)
            .arg("--unixsocket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().context("cannot run redis-server")?;
        let server = Server {
            pid: child.id(),
            child: Some(child),
            socket,
        };
        let start = Instant::now();
        while !server.socket.exists() {
            if start.elapsed() > Duration::from_secs(60) {
                bail!("redis-server does not come up");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn load(&self, count: u32) -> Result<String> {
        let said = Command::new("redis-benchmark")
            .arg("-s")
            .arg(&self.socket)
            .args(["-n", &count.to_string(), "-t", "set,get", "-q", "--csv"])
            .output()?;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        ensure!(
            said.status.success() && text.contains("GET"),
            "redis-benchmark has ended with {}, and said:\n{}",
            said.status,
            tail(&String::from_utf8_lossy(&said.stderr))
        );
        Ok(text)
    }

    fn seconds(&self) -> Result<f64> {
        let times = fs::read_to_string(format!("/proc/{}/schedstat", self.pid))?;
        let ns = times.split(' ').next().and_then(|n| n.parse::<f64>().ok());
        Ok(ns.context("no schedstat")? / 1e9)
    }

    fn end(mut self) -> Result<()> {
        let mut cli = Command::new("redis-cli");
        cli.arg("-s").arg(&self.socket).args(["shutdown", "nosave"]);
        cli.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        let child = self.child.take().context("no child")?;
        wait(child, "redis-server", Duration::from_secs(60)).map(|_| ())
    }
}

/// The process that `ulpf run` says that it has started.
fn started(log: &Path) -> Result<u32> {
    let text = fs::read_to_string(log)?;
    let line = text
        .lines()
        .find(|l| l.contains("\"start\""))
        .context("no start in the log")?;
    let start: serde_json::Value = serde_json::from_str(line)?;
    start["pid"]
        .as_u64()
        .and_then(|p| u32::try_from(p).ok())
        .context("no pid in the log")
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Eight bytes of the program's data that are never touched, at their address without randomisation.
fn idle(program: &Path) -> Result<String> {
    let data = fs::read(program)?;
    let file = object::File::parse(&*data)?;
    let section = file
        .section_by_name(".data")
        .context("redis-server has no .data")?;
    Ok(format!("{:#x}:8", 0x5555_5555_4000 + section.address()))
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let Some(program) = program(bench) else {
        return Ok(());
    };
    let count = if bench.quick { 10_000 } else { 100_000 };
    let how = How {
        placement: "auto",
        at_once: true,
        ..PATCHED
    };
    let command = bench.ulpf_run_command(&how, &[idle(&program)?])?;
    let ours = Server::start(bench, command, &program, "ulpf")?;
    let bare = Server::start(bench, Command::new(&program), &program, "bare")?;
    for turn in 0..=bench.turns {
        let mut both = [("bare", &bare), ("ulpf", &ours)];
        if turn % 2 == 1 {
            both.reverse();
        }
        for (who, server) in both {
            let before = server.seconds()?;
            let said = server.load(count)?;
            let used = server.seconds()? - before;
            if turn == 0 {
                continue; // warms up
            }
            for line in said.lines() {
                let mut fields = line.split(',').map(|f| f.trim_matches('"'));
                let (name, rate) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
                if let (Some(name), Ok(rate)) = (
                    ["SET", "GET"].into_iter().find(|n| *n == name),
                    rate.parse(),
                ) {
                    bench.reading(CASE, &format!("{name}, {who}"), "requests a second", rate);
                }
            }
            let each = used / f64::from(count) / 2.0 * 1e6;
            bench.reading(
                CASE,
                &format!("processor time, {who}"),
                "µs a request",
                each,
            );
        }
    }
    bare.end()?;
    ours.end()
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "redis-server with an idle watch, under redis-benchmark",
        &["", "bare", "ulpf", "of bare"],
    );
    for (name, what, unit) in [
        ("SET", "SET, requests a second", "requests a second"),
        ("GET", "GET, requests a second", "requests a second"),
        (
            "processor time",
            "server's processor time, µs a request",
            "µs a request",
        ),
    ] {
        let (bare, ours) = (format!("{name}, bare"), format!("{name}, ulpf"));
        let part = r.ratio(CASE, &ours, &bare, unit).map(|x| x * 100.0);
        t.row(&[
            what,
            &some(r.median(CASE, &bare, unit)),
            &some(r.median(CASE, &ours, unit)),
            &part.map_or("–".into(), |p| format!("{} %", figure(p))),
        ]);
    }
    vec![t]
}

/// The processor time in ms of a server that `command` runs, from its start to its end, with `count` requests of each sort.
/// The load generator's time does not count. Returns `None` if the kernel does not count processor time here.
pub fn served(programs: &Programs, command: Command, count: u32) -> Result<Option<f64>> {
    thread::scope(|scope| {
        // The commands of this thread are not counted, because the thread starts before the clock.
        let (begin, may_begin) = mpsc::channel::<Server>();
        let loader = scope.spawn(move || -> Result<()> {
            let server = may_begin.recv().context("there is no server")?;
            server.load(count)?;
            server.end()
        });
        let Ok(mut clock) = Clock::begin() else {
            return Ok(None);
        };
        let server = Server::open(programs, command, "served")?;
        begin.send(server).context("nobody loads the server")?;
        loader.join().ok().context("the loader has panicked")??;
        clock.ms().map(Some)
    })
}

/// A few thousand requests with all of the heap watched: what was counted.
pub fn heap(bench: &mut Bench) -> Result<Option<Counted>> {
    let Some(program) = program(bench) else {
        return Ok(None);
    };
    let how = How {
        placement: "auto",
        at_once: true,
        ..PATCHED
    };
    let command = bench.ulpf_run_command(&how, &["heap".into()])?;
    let server = Server::start(bench, command, &program, "heap")?;
    server.load(if bench.quick { 500 } else { 10_000 })?;
    server.end()?;
    Ok(Some(Counted::of(&bench.summary("")?)))
}
