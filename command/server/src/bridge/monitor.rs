//! `monitor ulpf …` over the bridge: commands of the back end itself. Commands for watches are in `front/commands.rs`.
#![forbid(unsafe_code)]

use super::link::{Failure, Link};
use std::fmt::Write;
use std::time::Duration;
use ulpf_bridge::{Feature, Hit, Reply, Request};

/// Time limit for a command of the user, which may take long.
const LONG: Duration = Duration::from_secs(60);

pub const HELP: &str = "\
ulpf watch ADDR LEN r|w|rw [stop] [log] [FILTER]
                         watch memory: stop at its hits, or log them, or only count
ulpf filter ID [FILTER]  change which hits of such a watch matter (nothing said: all)
ulpf unwatch ID          take such a watch away
ulpf off ID, ulpf on ID  switch it off and on; it keeps its number, counts and filter
ulpf stats [json]        what watches have counted, and the machine's own counters
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

fn number(word: &str) -> Result<u64, String> {
    let parsed = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    parsed
        .map_err(|_| format!("`{word}` is no number; numbers are decimal, or hexadecimal with 0x"))
}

pub async fn answer(link: &mut Link, command: &str) -> String {
    let c = &link.capabilities;
    // A stub behind a proxy answers itself.
    if c.has(Feature::Monitor) && !c.has(Feature::Statistics) && command != "ulpf backend" {
        return forward(link, command).await;
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    let text = match &words[..] {
        ["ulpf"] | ["ulpf", "help"] => Ok(HELP.to_owned()),
        ["ulpf", "backend"] => Ok(backend(link)),
        ["ulpf", "stats"] => statistics(link, false).await,
        ["ulpf", "stats", "json"] => statistics(link, true).await,
        ["ulpf", "hits"] => hits(link, 20).await,
        ["ulpf", "hits", n] => match number(n) {
            Ok(n) => hits(link, n).await,
            Err(why) => Err(why),
        },
        _ if link.capabilities.has(Feature::Monitor) => return forward(link, command).await,
        _ => Err(format!(
            "The {} back end has no command `{command}`. `monitor ulpf help` lists what there is.",
            link.backend
        )),
    };
    match text {
        Ok(text) => text,
        Err(why) => format!("{why}\n"),
    }
}

async fn forward(link: &mut Link, command: &str) -> String {
    let command = command.to_owned();
    match link
        .request_within(Request::Monitor { command }, LONG)
        .await
    {
        Ok(Reply::Text { text }) => text,
        Ok(_) => String::new(),
        Err(f) => format!("{f}\n"),
    }
}

pub fn backend(link: &Link) -> String {
    let c = &link.capabilities;
    let mut out = format!("{}: {}\n", link.backend, link.name);
    let _ = writeln!(
        out,
        "watches: {:?}, at most {}",
        c.watches,
        match c.most_watches {
            Some(n) => n.to_string(),
            None => "as many as there is memory for".into(),
        }
    );
    let _ = writeln!(out, "features: {:?}", c.features);
    out
}

async fn statistics(link: &mut Link, json: bool) -> Result<String, String> {
    match link.request(Request::Statistics).await {
        Ok(Reply::Statistics { counters, text }) => Ok(match json {
            true => serde_json::to_string(&counters).unwrap_or_default() + "\n",
            false => text,
        }),
        Ok(_) => Err("The back end's answer is none to `statistics`.".into()),
        Err(f) => Err(f.to_string()),
    }
}

async fn last_hits(link: &mut Link, most: u64) -> Result<(Vec<Hit>, u64), Failure> {
    let ask = |since| Request::Hits { since, most };
    // Ask for the number of hits first, then for the last of them.
    let Reply::Hits { last, .. } = link
        .request(Request::Hits {
            since: u64::MAX,
            most: 0,
        })
        .await?
    else {
        return Ok((vec![], 0));
    };
    match link.request(ask(last.saturating_sub(most))).await? {
        Reply::Hits { hits, last, .. } => Ok((hits, last)),
        _ => Ok((vec![], last)),
    }
}

async fn hits(link: &mut Link, most: u64) -> Result<String, String> {
    let (hits, last) = last_hits(link, most.min(4096))
        .await
        .map_err(|f| f.to_string())?;
    let mut out = format!("{last} hits\n");
    for h in hits {
        let hex = |b: &[u8]| ulpf_rsp::to_hex(b);
        let _ = writeln!(
            out,
            "{:>8}  watch {}  {} {:#x} +{}  {} -> {}  at {:#x}{}",
            h.sequence,
            h.watch,
            if h.write { "write" } else { "read " },
            h.addr,
            h.len,
            hex(&h.old.0),
            hex(&h.new.0),
            h.pc,
            if h.system_call { " (system call)" } else { "" },
        );
    }
    Ok(out)
}
