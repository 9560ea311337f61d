//! `monitor ulpf …` for the machine behind a back end: its description, and the simulators' own counters. Commands for
//! watches are in `front/commands.rs`.
#![forbid(unsafe_code)]

use super::remote::{Failure, Flavour, Remote};
use std::fmt::Write;
use std::time::Duration;
use ulpf_lib::AccessKind;
use ulpf_rsp::reports::Role;

/// Time limit for a command of the user, which may take long.
pub const LONG: Duration = Duration::from_secs(60);
/// Hits of one answer.
const MOST_HITS: u64 = 4096;

pub const HELP: &str = "\
ulpf watch ADDR LEN r|w|rw [stop] [log] [FILTER]
                         watch memory: stop at its hits, or log them, or only count
ulpf filter ID [FILTER]  change which hits of such a watch matter (nothing said: all)
ulpf unwatch ID          take such a watch away
ulpf off ID, ulpf on ID  switch it off and on; it keeps its number, counts and filter
ulpf stats [json]        what watches have counted, and a simulator's own counters
ulpf hits [N]            the last hits, at most N (20), as the back end has kept them
ulpf log [N]             the last N (100) hits of watches that log or stop, as JSON lines
ulpf last ADDR [LEN] [N] who has written these bytes (one) last, as JSON
ulpf stop, ulpf about    which watch made the last stop; the session, as JSON
ulpf backend             which back end this is, and what it can do
ulpf why                 why the last watch was refused
ulpf help                this text
FILTER, any number of these: changed, thread N, skip N, count N, old|new OP N [mask M],
       from|outside RANGES, if x BYTECODE, unit BYTES
GDB's ulpf commands work; what needs ulpf's own stub in the program (heap, bt,
called from, debug registers, patches) is refused by name.
";

/// The side that evaluates conditions, for the user.
pub fn sorted(remote: &Remote) -> &'static str {
    match remote.about.role {
        Role::Plain => "conditions are evaluated here, at a stop for every hit",
        Role::Watches | Role::Commands => "conditions are evaluated by the back end",
    }
}

pub fn backend(remote: &Remote) -> String {
    let about = &remote.about;
    let (watches, hits) = match (remote.flavour, about.role) {
        (Flavour::Gem5, _) => (
            "set by gem5's configuration script, as many as there is memory for",
            "counted here, at a stop for every hit",
        ),
        (Flavour::Packets, Role::Plain) => (
            "set by Z2, Z3 and Z4, as many as the remote stub has",
            "counted here, at a stop for every hit; it reports no values, which are read at the stop",
        ),
        (Flavour::Packets, Role::Watches | Role::Commands) => (
            "numbered by the back end, as many as there is memory for",
            "counted and kept there, and read while the program runs",
        ),
    };
    format!(
        "{}: {}\nwatches: {watches}\nhits: {hits}\n",
        about.kind, about.name
    )
}

/// Whether it is a simulator, which has counters of its own.
pub fn is_simulator(remote: &Remote) -> bool {
    remote.flavour == Flavour::Gem5 || remote.about.role == Role::Watches
}

/// The counters of a simulator: `NAME VALUE` lines, or the same as JSON.
pub async fn statistics(remote: &mut Remote, json: bool) -> Result<String, Failure> {
    if !is_simulator(remote) {
        return Err(Failure::refused("it has no counters of its own"));
    }
    let text = remote.monitor("ulpf stats", LONG).await?;
    if !json {
        return Ok(text);
    }
    let counter = |line: &str| {
        let (name, value) = line.trim().rsplit_once(' ')?;
        let value: u64 = value.parse().ok()?;
        Some((name.trim().replace(' ', "_"), value.into()))
    };
    let all: serde_json::Map<_, _> = text.lines().filter_map(counter).collect();
    Ok(format!("{}\n", serde_json::Value::Object(all)))
}

/// The last hits that the back end has kept.
pub async fn hits(remote: &mut Remote, most: u64) -> Result<String, Failure> {
    if remote.about.role == Role::Plain {
        return Err(Failure::refused("it keeps no hits; `ulpf log` has them"));
    }
    let time_limit = remote.time_limit;
    let last = remote.hits(u64::MAX, 0, time_limit).await?.last;
    let mut since = last.saturating_sub(most.min(MOST_HITS));
    let mut out = format!("{last} hits\n");
    loop {
        let hits = remote.hits(since, MOST_HITS, time_limit).await?.hits;
        for h in hits.iter().take_while(|h| h.sequence <= last) {
            let _ = writeln!(
                out,
                "{:>8}  watch {}  {} {:#x} +{}  {} -> {}  at {:#x}{}",
                h.sequence,
                h.watch,
                match h.access {
                    AccessKind::Read => "read ",
                    AccessKind::Write | AccessKind::ReadWrite => "write",
                },
                h.addr,
                h.len,
                ulpf_rsp::to_hex(&h.old),
                ulpf_rsp::to_hex(&h.new),
                h.pc,
                if h.system_call { " (system call)" } else { "" },
            );
        }
        match hits
            .last()
            .filter(|h| h.sequence < last && h.sequence > since)
        {
            Some(h) => since = h.sequence,
            None => return Ok(out),
        }
    }
}
