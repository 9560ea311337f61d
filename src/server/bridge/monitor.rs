//! `monitor ulpf …` over the bridge: what a back end has beyond the protocol, the same for all of them.
#![forbid(unsafe_code)]

use super::link::{Failure, Link};
use std::fmt::Write;
use std::time::Duration;
use ulpf_bridge::{Armed, Feature, Hit, Kind, Reply, Request, WatchSpec};

/// A command of the user's may take its time.
const LONG: Duration = Duration::from_secs(60);

pub const HELP: &str = "\
ulpf backend             which back end this is, and what it can do
ulpf stats [json]        the machine's counters
ulpf hits [N]            the last hits, at most N (20)
ulpf watch ADDR LEN [w|r|rw]
                         watch memory; a hit stops the program
ulpf unwatch ID          take such a watch away
ulpf help                this text
Filters, conditions, logs and the commands of GDB's plugin are those of the
stub (--backend signal); this back end does not have them.
";

fn kind(word: Option<&str>) -> Result<Kind, String> {
    match word {
        None | Some("w") => Ok(Kind::Write),
        Some("r") => Ok(Kind::Read),
        Some("rw") => Ok(Kind::Access),
        Some(other) => Err(format!(
            "`{other}` is no kind of watch; there are w, r and rw"
        )),
    }
}

fn number(word: &str) -> Result<u64, String> {
    let parsed = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    parsed
        .map_err(|_| format!("`{word}` is no number; numbers are decimal, or hexadecimal with 0x"))
}

/// What GDB's plugin is told where its commands have nobody to serve them.
const NO_PLUGIN: &str = r#"{"refused":{"what":"there are no ulpf commands here","why":"they are those of ulpf's stub, and this program is on another machine (monitor ulpf backend)","what_to_do":"use watch, rwatch and awatch, or monitor ulpf watch"}}"#;

pub async fn answer(link: &mut Link, command: &str) -> String {
    let c = &link.capabilities;
    // A stub behind a proxy speaks for itself.
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
        ["ulpf", "watch", addr, len, how @ ..] if how.len() < 2 => {
            match (number(addr), number(len), kind(how.first().copied())) {
                (Ok(addr), Ok(len), Ok(kind)) => watch(link, WatchSpec { addr, len, kind }).await,
                (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => Err(why),
            }
        }
        ["ulpf", "unwatch", id] => match number(id) {
            Ok(id) => link
                .request(Request::Unwatch { ids: vec![id] })
                .await
                .map(|_| String::new())
                .map_err(|f| f.to_string()),
            Err(why) => Err(why),
        },
        ["ulpf", "about"] => Ok(format!("{NO_PLUGIN}\n")),
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

fn backend(link: &Link) -> String {
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
    // How many there have been; then the last of them.
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
        let hex = |b: &[u8]| crate::rsp::to_hex(b);
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

async fn watch(link: &mut Link, spec: WatchSpec) -> Result<String, String> {
    match link
        .request(Request::Watch {
            watches: vec![spec],
        })
        .await
    {
        Ok(Reply::Watched { watches }) => match watches.first() {
            Some(Armed::Id(id)) => Ok(format!("watch {id}\n")),
            Some(Armed::Refused(why)) => Err(why.to_string()),
            None => Err("The back end says nothing of the watch.".into()),
        },
        Ok(_) => Err("The back end's answer is none to `watch`.".into()),
        Err(f) => Err(f.to_string()),
    }
}
