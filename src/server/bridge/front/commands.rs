//! `monitor ulpf …` for programs that another machine has: the commands that the plugin and the debug adapter
//! speak, in the words and with the answers of our own stub (`stub/task/src/control/monitor.rs`), so that they need
//! not know which of the two it is. What cannot be had here is refused with the reason.
#![forbid(unsafe_code)]

use super::Front;
use crate::inject::sys;
use crate::server::bridge::book::{PLACE, Watch};
use crate::server::bridge::monitor;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use ulpf_bridge::filter::number;
use ulpf_bridge::{Feature, Filter, Kind, Refusal, Request};
use ulpf_lib::ring::last::{Asked, all, last};
use ulpf_lib::ring::{Hit, listed};

const MOST_LAST: u64 = 1000;
/// Some megabytes of text.
const MOST_LOGGED: u64 = 20_000;

const SAY: &str =
    "say: ulpf watch ADDR LEN r|w|rw [stop] [log] [FILTER], for example ulpf watch 0x4040 8 w log";

fn refused(what: &str, why: &str, todo: &str) -> String {
    format!(
        "{}\n",
        json!({"refused": {"what": what, "why": why, "what_to_do": todo}})
    )
}

fn refusal(r: &Refusal) -> String {
    let (what, why) = match r.why.as_str() {
        "" => ("ulpf watch", r.what.as_str()),
        why => (r.what.as_str(), why),
    };
    let todo = match r.todo.as_str() {
        "" => "see `monitor ulpf backend`",
        todo => todo,
    };
    refused(what, why, todo)
}

/// `ADDR LEN KIND …`, as the stub takes it.
fn parse<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Watch, String> {
    let first = words.next();
    if first == Some("heap") {
        return Err(
            "the heap as a whole is followed by our own stub only; this back end does not see it grow"
                .into(),
        );
    }
    let addr = number(first).ok_or("the address has to be a number")?;
    let len = number(words.next()).ok_or("the length has to be a number")?;
    let kind = match words.next() {
        Some("w") => Kind::Write,
        Some("r") => Kind::Read,
        Some("rw") => Kind::Access,
        _ => return Err("the kind has to be r, w or rw".into()),
    };
    if len == 0 || addr.checked_add(len).is_none() {
        return Err(
            "the length is zero or the range wraps around the end of the address space".into(),
        );
    }
    let mut watch = Watch::new(addr, len, kind);
    let mut filter = Filter::default();
    let mut any = false;
    while let Some(word) = words.next() {
        match word {
            "log" => watch.log = true,
            "stop" => watch.stop = true,
            "auto" | "guard" => {}
            "debug-register" => {
                return Err("this back end has no debug registers for watches".into());
            }
            "bt" if number(words.next()) == Some(0) => {}
            "bt" => return Err("this back end does not know a hit's callers (bt)".into()),
            _ if filter.take(word, words)? => any = true,
            _ => return Err(format!("`{word}` says nothing about a watch")),
        }
    }
    watch.filter = any.then_some(filter);
    Ok(watch)
}

/// Nanoseconds, as seconds.
fn seconds(ns: u64) -> String {
    format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1000)
}

/// A hit, behind fields of its own.
fn told(fields: &str, hit: &Hit) -> String {
    let mut text = format!("{{{fields}");
    // A string takes everything.
    let _ = hit.write_json(&mut text);
    text
}

impl Front {
    /// Is it one that is answered here, not by a stub behind a proxy and not by the back end?
    pub(super) fn is_command(&self, text: &str) -> bool {
        let mut words = text.split_whitespace();
        let known = words.next() == Some("ulpf")
            && matches!(
                words.next(),
                Some(
                    "watch"
                        | "unwatch"
                        | "off"
                        | "on"
                        | "filter"
                        | "stats"
                        | "log"
                        | "last"
                        | "stop"
                        | "about"
                        | "backend"
                        | "patch"
                        | "placement"
                        | "why"
                        | "watches"
                        | "sites"
                        | "patch-syscalls"
                )
            );
        known && !self.forwards() && text != "ulpf stats json"
    }

    /// Several commands are separated by `;`. Watches that follow each other are set in one go.
    pub(super) async fn commands(&mut self, text: &str) -> String {
        let (mut out, mut pending) = (String::new(), vec![]);
        for command in text.split([';', '\n']).map(str::trim) {
            let mut words = command.split_ascii_whitespace().skip(1);
            let verb = words.next().unwrap_or("");
            if verb == "watch" {
                pending.push(parse(&mut words));
                continue;
            }
            out += &self.arm_all(std::mem::take(&mut pending)).await;
            if !command.is_empty() {
                let words: Vec<&str> = words.collect();
                out += &self.command(verb, &words).await;
            }
        }
        out + &self.arm_all(pending).await
    }

    async fn arm_all(&mut self, asked: Vec<Result<Watch, String>>) -> String {
        let good: Vec<Watch> = asked.iter().flatten().cloned().collect();
        let armed = match good.is_empty() {
            true => Ok(vec![]),
            false => self.arm(good).await,
        };
        let mut armed = match armed {
            Ok(armed) => armed.into_iter(),
            Err(f) => {
                let why = f.to_string();
                let say = refused("the watch is not set", &why, "try again");
                return say.repeat(asked.len());
            }
        };
        let mut out = String::new();
        for one in asked {
            out += &match one {
                Err(why) => {
                    self.book.why = Some(format!("ulpf watch: {why}; {SAY}"));
                    refused("ulpf watch", &why, SAY)
                }
                Ok(_) => match armed.next() {
                    Some(Ok(number)) => format!("{{\"watch\":{number}}}\n"),
                    Some(Err(why)) => refusal(&why),
                    None => refused("ulpf watch", "the back end says nothing of it", SAY),
                },
            };
        }
        out
    }

    async fn command(&mut self, verb: &str, words: &[&str]) -> String {
        match (verb, words) {
            ("unwatch", [id]) => self.unwatch_one(id).await,
            ("off" | "on", [id]) => self.switch_one(id, verb == "on").await,
            ("filter", words) => self.filter(words).await,
            ("stats", []) => self.stats().await,
            ("log", rest) => self.log(number(rest.first().copied()).unwrap_or(100)).await,
            ("last", [addr, rest @ ..]) => self.last(addr, rest).await,
            ("stop", []) => match &self.book.stop {
                Some(hit) => {
                    let record = told(&format!("\"watch\":{}", hit.watch), hit);
                    format!("{{\"stop\":{record}}}\n")
                }
                None => "{\"stop\":null}\n".into(),
            },
            ("about", []) => self.about(),
            ("backend", []) => self.backend(),
            // For people and plugins alike: none of it, and why.
            ("patch", []) => {
                "{\"enabled\":false,\"patches\":0,\"why\":\"the program's code is not changed over the bridge\"}\n"
                    .into()
            }
            ("placement", []) => {
                "{\"placement\":\"guard\",\"registers\":0,\"used\":0,\"unavailable\":\"watches live where the back end has them\"}\n".into()
            }
            ("why", []) => match &self.book.why {
                Some(why) => format!("{why}\n"),
                None => "no watch has been refused\n".into(),
            },
            _ => refused(
                &format!("ulpf {verb}"),
                "this is not to be had over the bridge, or not said like that",
                "see `monitor ulpf help`, and `monitor ulpf backend` for what there is",
            ),
        }
    }

    fn known(&self, word: &str) -> Option<u32> {
        let n = u32::try_from(number(Some(word))?).ok()?;
        let is_ours = self.book.watches.get(&n).is_some_and(|w| !w.debuggers);
        is_ours.then_some(n)
    }

    fn unknown(&mut self) -> String {
        refused(
            "ulpf watch",
            "there is no such watch (or it is the debugger's own)",
            "`monitor ulpf stats` lists them",
        )
    }

    async fn unwatch_one(&mut self, word: &str) -> String {
        let Some(n) = self.known(word) else {
            return self.unknown();
        };
        // What it has counted to the end is in the log of whoever looks.
        let _ = self.look().await;
        let of = self.book.watches.get(&n).map(|w| (w.addr, w.len));
        let (start, len) = of.unwrap_or_default();
        match self.disarm(&[n]).await {
            Ok(()) => format!("{{\"unwatched\":{{\"start\":{start},\"len\":{len}}}}}\n"),
            Err(f) => refused("the watch is not taken away", &f.to_string(), "try again"),
        }
    }

    async fn switch_one(&mut self, word: &str, on: bool) -> String {
        let Some(n) = self.known(word) else {
            return self.unknown();
        };
        match self.switch(n, on).await {
            Ok(()) => format!("{{\"watch\":{n},\"on\":{on}}}\n"),
            Err(f) => refused("the watch stays as it was", &f.to_string(), "try again"),
        }
    }

    async fn filter(&mut self, words: &[&str]) -> String {
        let Some(n) = words.first().and_then(|w| self.known(w)) else {
            return refused(
                "ulpf filter",
                "over the bridge it takes the number of one of ulpf's own watches",
                "say: ulpf filter ID [FILTER], for example ulpf filter 1 changed skip 10; set the watch with `ulpf watch`",
            );
        };
        let (mut filter, mut any) = (Filter::default(), false);
        let mut rest = words[1..].iter().copied();
        while let Some(word) = rest.next() {
            match filter.take(word, &mut rest) {
                Ok(true) => any = true,
                Ok(false) => {
                    let why = format!("`{word}` says nothing about hits");
                    return refused("ulpf filter", &why, "`monitor ulpf help` lists what does");
                }
                Err(why) => {
                    return refused(
                        "ulpf filter",
                        why,
                        "`monitor ulpf help` lists what there is",
                    );
                }
            }
        }
        let filter = any.then_some(filter);
        let there = self.book.watches.get(&n).and_then(|w| w.there);
        if let Some(watch) = there {
            // Where it is sorted here, the back end has to stop for every hit from now on.
            let done = match self.can().has(Feature::Filters) {
                true => {
                    let filter = filter.clone();
                    self.ask(Request::Filter { watch, filter }).await.map(drop)
                }
                false => self.switch(n, false).await,
            };
            if let Err(f) = done {
                return refused("the filter stays as it was", &f.to_string(), "try again");
            }
        }
        if let Some(w) = self.book.watches.get_mut(&n) {
            (w.filter, w.passed, w.told) = (filter, 0, false);
        }
        if there.is_some()
            && !self.can().has(Feature::Filters)
            && let Err(f) = self.switch(n, true).await
        {
            return refused("the watch is off now", &f.to_string(), "switch it on again");
        }
        format!("{{\"filtered\":[{n}]}}\n")
    }

    /// First for people, then as the stub has it.
    async fn stats(&mut self) -> String {
        let mut out = String::new();
        if self.can().has(Feature::Statistics)
            && let Some(started) = &mut self.started
        {
            out += &monitor::answer(&mut started.link, "ulpf stats").await;
        }
        if let Err(f) = self.look().await {
            let _ = writeln!(out, "(The counts are those of the last look: {f})");
        }
        let watches: Vec<Value> = self
            .book
            .watches
            .iter()
            .map(|(n, w)| {
                let c = &w.counts;
                let mut line = json!({
                    "id": n, "start": w.addr, "len": w.len,
                    "kind": match w.kind { Kind::Write => "w", Kind::Read => "r", Kind::Access => "rw" },
                    "hits": c.hits, "silent": c.silent, "filtered": c.filtered,
                    "false_positives": c.false_positives, "stops": c.stops,
                    "placement": if c.register { "debug-register" } else { "guard" }, "traps": 0,
                });
                if w.there.is_none() {
                    line["off"] = true.into();
                }
                line
            })
            .collect();
        let t = &self.totals;
        let told = json!({
            "faults": t.faults, "false_positives": t.false_positives, "slow": t.slow, "syscalls": t.syscalls,
            "sites": 0, "sites_refused": 0, "moved_pages": 0, "watch_bytes": 0, "next": self.book.next(),
            "lost": self.book.lost, "watches": watches,
        });
        let _ = writeln!(out, "{told}");
        out
    }

    async fn log(&mut self, most: u64) -> String {
        let late = self.look().await.err();
        let Some(mirror) = &self.mirror else {
            return String::new();
        };
        let asked = Asked {
            addr: 0,
            len: u64::MAX,
            reads: true,
            most: most.min(MOST_LOGGED) as usize,
        };
        let found = all(&mirror.area, &asked);
        let clock = mirror.area.clock();
        let since = |tsc: u64| seconds(clock.nanos(tsc).saturating_sub(clock.base_ns));
        let mut out = match found.reaches_back {
            Some(from) => format!("{{\"reaches_back\":{}}}\n", since(from)),
            None => "{\"reaches_back\":null}\n".into(),
        };
        for hit in found.hits.iter().rev() {
            let fields = format!("\"time\":{},\"watch\":{}", since(hit.time), hit.watch);
            let _ = writeln!(out, "{}", told(&fields, hit));
        }
        if let Some(why) = late {
            let _ = writeln!(out, "(The youngest hits are missing: {why})");
        }
        out
    }

    async fn last(&mut self, addr: &str, rest: &[&str]) -> String {
        let value = |n: usize| match rest.get(n) {
            Some(word) => number(Some(word)).filter(|n| *n > 0),
            None => Some(1),
        };
        let (Some(addr), Some(len), Some(most)) = (number(Some(addr)), value(0), value(1)) else {
            return refused(
                "ulpf last",
                "it takes an address, a number of bytes, and how many writes to tell",
                "say: ulpf last ADDR [LEN] [N], for example ulpf last 0x4040 8 5",
            );
        };
        let _ = self.look().await;
        let Some(mirror) = &self.mirror else {
            return String::new();
        };
        let (clock, now) = (mirror.area.clock(), sys::tsc());
        let ago = |tsc: u64| seconds(clock.nanos(now).saturating_sub(clock.nanos(tsc.min(now))));
        let asked = Asked {
            addr,
            len,
            reads: false,
            most: most.min(MOST_LAST) as usize,
        };
        let found = last(&mirror.area, &asked);
        let there = mirror.area.roster().iter().filter(|l| {
            let (start, size) = (l.start.load(Relaxed), l.len.load(Relaxed));
            let what = l.what.load(Acquire);
            what & listed::LOGGED != 0
                && what & listed::ENDED == 0
                && start < addr.saturating_add(len)
                && addr < start.saturating_add(size)
        });
        let or_null = |tsc: Option<u64>| tsc.map_or("null".into(), &ago);
        let hits = found
            .hits
            .iter()
            .map(|hit| told(&format!("\"ago\":{}", ago(hit.time)), hit));
        format!(
            "{{\"addr\":\"{addr:#x}\",\"len\":{len},\"watched_since\":{},\"reaches_back\":{},\"last\":[{}]}}\n",
            or_null(there.map(|l| l.since.load(Relaxed)).max()),
            or_null(found.reaches_back),
            hits.collect::<Vec<_>>().join(",")
        )
    }

    /// `area`: whose number stands for the program where hits and counts are kept.
    fn about(&self) -> String {
        let Some(mirror) = &self.mirror else {
            return refused("there is no program", "it has ended", "`run` starts one");
        };
        let pid = mirror.area.header().pid.load(Relaxed);
        format!(
            "{{\"session\":\"{:#x}\",\"pid\":{pid},\"stops_at\":\"{PLACE:#x}\"}}\n",
            mirror.area.clock().base_tsc
        )
    }

    /// For people; the last line is for the plugin.
    fn backend(&self) -> String {
        let Some(started) = &self.started else {
            return String::new();
        };
        let can = self.can();
        let sorted = match can.has(Feature::Filters) {
            true => "conditions are evaluated by the back end",
            false => "conditions are evaluated here, at a stop for every hit",
        };
        let told = json!({
            "backend": started.link.backend, "name": started.link.name, "why": sorted,
        });
        format!("{}{sorted}\n{told}\n", monitor::backend(&started.link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Watch, String> {
        parse(&mut text.split_whitespace())
    }

    #[test]
    fn watches_as_the_stub_takes_them() {
        let w = of("0x1000 8 rw stop log guard changed skip 3").unwrap();
        assert_eq!((w.addr, w.len, w.kind), (0x1000, 8, Kind::Access));
        assert!(w.stop && w.log && !w.debuggers);
        let filter = w.filter.unwrap();
        assert!(filter.changed && filter.skip == 3);
        assert!(of("4096 4 w").unwrap().filter.is_none());
        for (bad, why) in [
            ("", "the address"),
            ("x 4 w", "the address"),
            ("16 w", "the length"),
            ("16 4", "the kind"),
            ("16 0 w", "the length is zero"),
            ("18446744073709551615 9 w", "wraps around"),
            ("heap w", "the heap"),
            ("16 4 w debug-register", "debug registers"),
            ("16 4 w bt 3", "callers"),
            ("16 4 w called from 1-2", "who called"),
            ("16 4 w levitate", "says nothing"),
        ] {
            let said = of(bad).unwrap_err();
            assert!(said.contains(why), "{bad}: {said}");
        }
    }

    #[test]
    fn refusals_are_what_the_plugin_takes() {
        let said = refusal(&Refusal::new("The watch cannot be set", "a \"b\"", ""));
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["refused"]["what"], "The watch cannot be set");
        assert_eq!(said["refused"]["why"], "a \"b\"");
    }
}
