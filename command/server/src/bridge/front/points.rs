//! Breakpoints and watches: the debugger's own, and those of ulpf's commands.
#![forbid(unsafe_code)]

use super::Front;
use crate::bridge::link::Failure;
use crate::bridge::packets;
use crate::bridge::watch_table::{PLACE, Watch};
use std::collections::HashMap;
use std::time::Duration;
use ulpf_bridge::{Armed, Feature, Refusal, Reply, Request, WatchSpec};

/// Limit of watches in one request to the back end.
pub const BATCH: usize = 1024;
/// Time limit for a request with many watches.
const LONG: Duration = Duration::from_secs(60);

impl Front {
    pub(super) async fn insert_or_remove(
        &mut self,
        insert: bool,
        args: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        if let Some(spec) = packets::watch(args) {
            let done = match insert {
                true => self.watch(spec).await,
                false => self.unwatch(vec![args.into()]).await,
            };
            done?;
            let letter: &[u8] = if insert { b"Z" } else { b"z" };
            self.lazy.accepted(&[letter, args].concat());
            return Ok(b"OK".into());
        }
        let mut fields = args.split(|&b| b == b',' || b == b';');
        let (kind, addr) = (fields.next(), fields.next().and_then(ulpf_rsp::hex_number));
        let (Some(b"0" | b"1"), Some(addr)) = (kind, addr) else {
            return Ok(Vec::new());
        };
        if !self.can().has(Feature::Breakpoints) {
            return Ok(Vec::new());
        }
        let count = match kind {
            Some(b"0") => self.soft.entry(addr).or_default(),
            _ => self.hard.entry(addr).or_default(),
        };
        let was = *count;
        *count = if insert {
            was + 1
        } else {
            was.saturating_sub(1)
        };
        let there = |of: &HashMap<u64, usize>| of.get(&addr).is_some_and(|&n| n > 0);
        let wanted = there(&self.soft) || there(&self.hard);
        let (add, take) = if wanted {
            (vec![addr], vec![])
        } else {
            (vec![], vec![addr])
        };
        self.ask(Request::Breakpoints {
            insert: add,
            remove: take,
        })
        .await?;
        Ok(b"OK".into())
    }

    /// Sets a watch of the debugger's own table.
    async fn watch(&mut self, spec: WatchSpec) -> Result<(), Failure> {
        if spec.addr == PLACE && !self.forwards() {
            self.table.understood = true;
            return Ok(());
        }
        let armed = self.arm(vec![Watch::debuggers(&spec)]).await?;
        match armed.into_iter().next() {
            Some(Err(why)) => Err(Failure::Refused(why)),
            _ => Ok(()),
        }
    }

    /// Sets watches in as few requests as possible. Returns for each its number or the refusal.
    pub(super) async fn arm(
        &mut self,
        watches: Vec<Watch>,
    ) -> Result<Vec<Result<u32, Refusal>>, Failure> {
        let can = self.can();
        let mut told = Vec::with_capacity(watches.len());
        for some in watches.chunks(BATCH) {
            let supported = |w: &&Watch| can.watches.contains(&w.kind);
            let specs = some.iter().filter(supported).map(|w| w.spec(&can));
            let request = Request::Watch {
                watches: specs.collect(),
            };
            let answers = match request == (Request::Watch { watches: vec![] }) {
                true => vec![],
                false => match self.ask_within(request, LONG).await? {
                    Reply::Watched { watches } => watches,
                    _ => {
                        return Err(Failure::Late(
                            "The back end's answer is none to `watch`.".into(),
                        ));
                    }
                },
            };
            let mut answers = answers.into_iter();
            for watch in some {
                if !can.watches.contains(&watch.kind) {
                    let what = format!(
                        "This back end has no watches of this kind ({:?})",
                        watch.kind
                    );
                    told.push(Err(Refusal::new(what, "", "")));
                    continue;
                }
                told.push(match answers.next() {
                    Some(Armed::Id(id)) => {
                        let watch = Watch {
                            there: Some(id),
                            ..watch.clone()
                        };
                        let number = self.table.add(watch);
                        self.show(number, false);
                        Ok(number)
                    }
                    Some(Armed::Refused(why)) => {
                        self.table.why = Some(why.to_string());
                        Err(why)
                    }
                    None => Err(Refusal::new(
                        "The back end says nothing of the watch",
                        "",
                        "",
                    )),
                });
            }
        }
        Ok(told)
    }

    async fn unwatch(&mut self, keys: Vec<Vec<u8>>) -> Result<(), Failure> {
        let mut numbers = vec![];
        for spec in keys.iter().filter_map(|key| packets::watch(key)) {
            match spec.addr == PLACE && !self.forwards() {
                true => self.table.understood = false,
                false => numbers.extend(self.table.taken(&spec)),
            }
        }
        self.disarm(&numbers).await
    }

    /// Removes watches from the table, whether the back end answers or not.
    pub(super) async fn disarm(&mut self, numbers: &[u32]) -> Result<(), Failure> {
        // Show their final counters.
        for &number in numbers {
            self.show(number, true);
        }
        let gone = numbers.iter().filter_map(|&n| self.table.remove(n)?.there);
        let ids: Vec<u64> = gone.collect();
        match ids.is_empty() {
            true => Ok(()),
            false => self
                .ask_within(Request::Unwatch { ids }, LONG)
                .await
                .map(drop),
        }
    }

    /// Sends the back end the removals of watches that the debugger has not re-inserted.
    pub(super) async fn settle(&mut self) -> Result<(), Failure> {
        loop {
            let overdue = self.lazy.overdue(BATCH);
            if overdue.is_empty() {
                return Ok(());
            }
            self.unwatch(overdue.into_iter().map(|p| p[1..].to_vec()).collect())
                .await?;
        }
    }

    /// Switches a watch off, keeping its number and counters, or on again.
    pub(super) async fn switch(&mut self, number: u32, on: bool) -> Result<(), Failure> {
        let can = self.can();
        let Some(watch) = self.table.watches.get(&number) else {
            return Ok(());
        };
        match (watch.there, on) {
            (None, true) => {
                let watches = vec![watch.spec(&can)];
                match self.ask(Request::Watch { watches }).await? {
                    Reply::Watched { watches } => match watches.into_iter().next() {
                        Some(Armed::Id(id)) => self.table.is_now(number, Some(id)),
                        Some(Armed::Refused(why)) => return Err(Failure::Refused(why)),
                        None => {}
                    },
                    _ => {
                        return Err(Failure::Late(
                            "The back end's answer is none to `watch`.".into(),
                        ));
                    }
                }
            }
            (Some(id), false) => {
                self.look().await?;
                self.table.is_now(number, None);
                self.ask(Request::Unwatch { ids: vec![id] }).await?;
            }
            _ => {}
        }
        self.show(number, false);
        Ok(())
    }
}
