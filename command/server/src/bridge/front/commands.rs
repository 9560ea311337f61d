//! `monitor ulpf …` for programs of another machine: the commands of the plugin and the debug adapter. Syntax and
//! answers are those of our own stub (`ulpf_lib::command`), so that clients need not distinguish the two. Unavailable
//! commands are refused with the reason.
#![forbid(unsafe_code)]

use super::Front;
use crate::bridge::monitor;
use crate::bridge::packets::Spec;
use crate::bridge::remote::Failure;
use crate::bridge::watch_table::{PLACE, Watch};
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use ulpf_host::sys;
use ulpf_lib::Refusal;
use ulpf_lib::command::reply::{
    self, Counted, CountedBytes, Patching, PlacementState, Record, Statistics, Totals, WatchState,
    Which,
};
use ulpf_lib::command::{self, Arm, Command, FilterOf, Mistake, Placement, Reply, What, looks};
use ulpf_lib::filter::{Filter, Thread};
use ulpf_rsp::reports::Role;

fn refused(what: &str, why: &str, what_to_do: &str) -> String {
    line(Reply::Refused(Refusal::new(what, why, what_to_do)))
}

fn line(reply: impl std::fmt::Display) -> String {
    format!("{reply}\n")
}

/// Why a back end cannot set this watch, if it cannot.
fn lacks(arm: &Arm) -> Option<&'static str> {
    match arm.what {
        What::Heap => {
            return Some(
                "the heap as a whole is followed by our own stub only; this back end does not see it grow",
            );
        }
        What::Along(..) => {
            return Some(
                "pointers are followed by our own stub only; this back end does not see them change",
            );
        }
        What::Range(_) => {}
    }
    if arm.how.placement == Some(Placement::Register) {
        return Some("this back end has no debug registers for watches");
    }
    if arm.how.backtrace > 0 {
        return Some("this back end does not know a hit's callers (bt)");
    }
    unknown_to_it(&arm.filter)
}

/// Why a back end cannot evaluate this filter, if it cannot.
fn unknown_to_it(filter: &Filter) -> Option<&'static str> {
    if filter.caller.is_some() {
        return Some(
            "this back end does not know who called; from and outside ask where the instruction is",
        );
    }
    if filter.thread == Some(Thread::Main) {
        return Some("over the bridge, thread takes the number of a thread");
    }
    None
}

fn matters(filter: Filter) -> Option<Filter> {
    (filter != Filter::default()).then_some(filter)
}

/// The requested watch, or why the back end cannot set it.
fn wanted(arm: Arm) -> Result<Watch, &'static str> {
    match (lacks(&arm), arm.what.range()) {
        (None, Some(range)) => Ok(Watch {
            stop: arm.how.stop,
            log: arm.how.log,
            filter: matters(arm.filter),
            ..Watch::new(Spec {
                addr: range.start.0,
                len: range.len,
                kind: arm.kind,
            })
        }),
        (why, _) => Err(why.unwrap_or_default()),
    }
}

const SEE_BACKEND: &str = "see `monitor ulpf backend` for what there is";

/// The watch's entry in `ulpf stats`.
fn counted(id: u32, w: &Watch) -> Counted {
    let c = &w.counts;
    Counted {
        id,
        of: CountedBytes::Range {
            start: w.spec.addr,
            len: w.spec.len,
        },
        kind: w.spec.kind,
        hits: c.hits,
        silent: c.silent,
        filtered: c.filtered,
        false_positives: c.false_positives,
        stops: c.stops,
        register: c.register,
        traps: 0,
        state: match w.there {
            Some(_) => WatchState::On,
            None => WatchState::Off,
        },
    }
}

impl Front {
    /// Whether this command is answered here. Otherwise it is about the machine.
    pub(super) fn is_command(&self, text: &str) -> bool {
        let first = command::lines(text).next().unwrap_or("");
        let known = match Command::parse(first) {
            Ok(command) => command != Command::Help,
            Err(mistake) => matches!(mistake, Mistake::Refused(_)),
        };
        known && text != "ulpf stats json"
    }

    /// Runs commands that are separated by `;`. Consecutive watches are set in one request.
    pub(super) async fn commands(&mut self, text: &str) -> String {
        let (mut out, mut pending) = (String::new(), vec![]);
        for text in command::lines(text) {
            match Command::parse(text) {
                Ok(Command::Watch(arm)) => pending.push(arm),
                parsed => {
                    out += &self.arm_all(std::mem::take(&mut pending)).await;
                    out += &match parsed {
                        Ok(command) => self.command(command).await,
                        Err(mistake) => self.mistake(mistake),
                    };
                }
            }
        }
        out + &self.arm_all(pending).await
    }

    fn mistake(&mut self, mistake: Mistake) -> String {
        let (what, why) = match mistake {
            Mistake::Refused(r) => {
                self.table.why = Some(r.to_string());
                return line(Reply::Refused(r));
            }
            Mistake::Unknown(word) => (format!("ulpf {word}"), "there is no such command"),
            Mistake::Foreign => ("monitor".into(), "only ulpf's own commands can stand here"),
        };
        refused(&what, why, "see `monitor ulpf help`")
    }

    async fn arm_all(&mut self, arms: Vec<Arm>) -> String {
        let asked: Vec<Result<Watch, &str>> = arms.into_iter().map(wanted).collect();
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
                    self.table.why = Some(format!("ulpf watch: {why}; {SEE_BACKEND}"));
                    refused("ulpf watch", why, SEE_BACKEND)
                }
                Ok(_) => match armed.next() {
                    Some(Ok(number)) => line(Reply::Watch(number)),
                    Some(Err(why)) => line(Reply::Refused(why)),
                    None => refused("ulpf watch", "the back end says nothing of it", SEE_BACKEND),
                },
            };
        }
        out
    }

    async fn command(&mut self, command: Command) -> String {
        match command {
            Command::Unwatch(id) => self.unwatch_one(id).await,
            // A back end refuses a watch only when it is set.
            Command::Check { .. } => line(Reply::Watchable { mapped: true }),
            Command::Switch { id, on } => self.switch_one(id, on).await,
            Command::Filter {
                of: FilterOf::Watch(id),
                filter,
                keep: false,
            } => self.filter(id, filter).await,
            Command::Filter { .. } => refused(
                "ulpf filter",
                "over the bridge it takes the number of one of ulpf's own watches",
                "say: ulpf filter ID [FILTER], for example ulpf filter 1 changed skip 10; set the watch with `ulpf watch`",
            ),
            Command::Stats => self.stats().await,
            Command::Log(most) => self.log(most).await,
            Command::Last { addr, len, most } => self.last(addr, len, most).await,
            Command::Stop => {
                line(reply::Stop(self.table.stop.as_ref().map(|hit| {
                    Record::of(Which::Stop { watch: hit.watch }, hit)
                })))
            }
            // Each hit is a stop of its own here.
            Command::StopRest => String::new(),
            Command::About => self.about(),
            Command::Backend => self.backend(),
            // Patches do not exist here; the answer to people and plugins gives the reason.
            Command::Patch {
                on: None,
                after: None,
                patience: None,
            } => line(Patching::Nowhere(
                "the program's code is not changed over the bridge".into(),
            )),
            Command::Placement(None) => line(PlacementState {
                placement: Placement::Guard,
                registers: 0,
                used: 0,
                counts: None,
                unavailable: Some("watches live where the back end has them".into()),
            }),
            Command::Why => match &self.table.why {
                Some(why) => format!("{why}\n"),
                None => "no watch has been refused\n".into(),
            },
            Command::Help => monitor::HELP.into(),
            Command::Watch(arm) => self.arm_all(vec![arm]).await,
            other => refused(
                &other.to_string(),
                "this is not to be had over the bridge",
                "see `monitor ulpf help`, and `monitor ulpf backend` for what there is",
            ),
        }
    }

    fn is_ours(&self, watch: u32) -> bool {
        let found = self.table.watches.get(&watch);
        found.is_some_and(|w| !w.debuggers)
    }

    fn unknown(&mut self) -> String {
        refused(
            "ulpf watch",
            "there is no such watch (or it is the debugger's own)",
            "`monitor ulpf stats` lists them",
        )
    }

    async fn unwatch_one(&mut self, n: u32) -> String {
        if !self.is_ours(n) {
            return self.unknown();
        }
        // Copies its final counters to the shared area.
        let _ = self.look().await;
        let of = self
            .table
            .watches
            .get(&n)
            .map(|w| (w.spec.addr, w.spec.len));
        match self.disarm(&[n]).await {
            Ok(()) => line(Reply::Unwatched(of)),
            Err(f) => refused("the watch is not taken away", &f.to_string(), "try again"),
        }
    }

    async fn switch_one(&mut self, watch: u32, on: bool) -> String {
        if !self.is_ours(watch) {
            return self.unknown();
        }
        match self.switch(watch, on).await {
            Ok(()) => line(Reply::Switched { watch, on }),
            Err(f) => refused("the watch stays as it was", &f.to_string(), "try again"),
        }
    }

    async fn filter(&mut self, n: u32, filter: Filter) -> String {
        if !self.is_ours(n) {
            return self.unknown();
        }
        if let Some(why) = unknown_to_it(&filter) {
            return refused(
                "ulpf filter",
                why,
                "`monitor ulpf help` lists what there is",
            );
        }
        let filter = matters(filter);
        let there = self.table.watches.get(&n).and_then(|w| w.there);
        if let (Some(id), Role::Watches) = (there, self.role())
            && let Err(f) = self.filter_there(id as u32, filter.clone()).await
        {
            return refused("the filter stays as it was", &f.to_string(), "try again");
        }
        if let Some(w) = self.table.watches.get_mut(&n) {
            (w.filter, w.passed, w.reported) = (filter, 0, false);
        }
        line(Reply::Filtered(vec![n]))
    }

    async fn filter_there(&mut self, id: u32, filter: Option<Filter>) -> Result<(), Failure> {
        let command = Command::Filter {
            of: FilterOf::Watch(id),
            filter: filter.unwrap_or_default(),
            keep: false,
        };
        match self
            .remote()?
            .commands(&[command], monitor::LONG)
            .await?
            .pop()
        {
            Some(Reply::Refused(why)) => Err(Failure::Refused(why)),
            _ => Ok(()),
        }
    }

    /// The statistics: text for people, then the stub's format.
    async fn stats(&mut self) -> String {
        let mut out = String::new();
        if let Ok(remote) = self.remote()
            && monitor::is_simulator(remote)
        {
            out += &match monitor::statistics(remote, false).await {
                Ok(text) => text,
                Err(f) => format!("{f}\n"),
            };
        }
        if let Err(f) = self.look().await {
            let _ = writeln!(out, "(The counts are those of the last look: {f})");
        }
        let t = &self.totals;
        let totals = Totals {
            faults: t.faults,
            false_positives: t.false_positives,
            slow: t.slow,
            syscalls: t.syscalls,
            next: self.table.next(),
            lost: Some(self.table.lost),
            ..Totals::default()
        };
        let watches = self.table.watches.iter();
        let watches = watches.map(|(n, w)| counted(*n, w)).collect();
        out + &line(Statistics { totals, watches })
    }

    async fn log(&mut self, most: u64) -> String {
        let late = self.look().await.err();
        let Some(mirror) = &self.mirror else {
            return String::new();
        };
        let mut out = String::new();
        looks::log(&mirror.area, mirror.area.clock(), most, &mut out);
        if let Some(why) = late {
            let _ = writeln!(out, "(The youngest hits are missing: {why})");
        }
        out
    }

    async fn last(&mut self, addr: u64, len: u64, most: u64) -> String {
        let _ = self.look().await;
        let Some(mirror) = &self.mirror else {
            return String::new();
        };
        let (area, mut out) = (&mirror.area, String::new());
        let table = area.watch_table().iter();
        let asked = (addr, len, most);
        looks::who_wrote(area, area.clock(), sys::tsc(), table, asked, &mut out);
        out
    }

    /// Information on the program. `area` is the process number of the shared area with hits and counters.
    fn about(&self) -> String {
        let Some(mirror) = &self.mirror else {
            return refused("there is no program", "it has ended", "`run` starts one");
        };
        line(Reply::About {
            session: mirror.area.clock().base_tsc,
            pid: mirror.area.header().pid.load(Relaxed) as i32,
            stops_at: PLACE,
        })
    }

    /// Describes the back end for people; the last line is for the plugin.
    fn backend(&self) -> String {
        let Some(started) = &self.started else {
            return String::new();
        };
        let (about, sorted) = (&started.remote.about, monitor::sorted(&started.remote));
        let backend = line(reply::Backend {
            backend: about.kind.clone().into(),
            name: Some(about.name.clone()),
            why: sorted.into(),
            ..Default::default()
        });
        format!("{}{sorted}\n{backend}", monitor::backend(&started.remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_lib::WatchKind;

    fn of(text: &str) -> Result<Watch, &'static str> {
        match Command::parse(&format!("ulpf watch {text}")) {
            Ok(Command::Watch(arm)) => wanted(arm),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn watches_as_the_stub_takes_them() {
        let w = of("0x1000 8 rw stop log guard changed skip 3").unwrap();
        let Spec { addr, len, kind } = w.spec;
        assert_eq!((addr, len, kind), (0x1000, 8, WatchKind::Access));
        assert!(w.stop && w.log && !w.debuggers);
        let filter = w.filter.unwrap();
        assert!(filter.changed && filter.skip == 3);
        assert!(of("4096 4 w").unwrap().filter.is_none());
        for (bad, why) in [
            ("heap w", "the heap"),
            ("16 4 w debug-register", "debug registers"),
            ("16 4 w bt 3", "callers"),
            ("16 4 w called from 1-2", "who called"),
            ("16 4 w thread main", "the number of a thread"),
        ] {
            let said = of(bad).unwrap_err();
            assert!(said.contains(why), "{bad}: {said}");
        }
    }
}
