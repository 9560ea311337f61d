//! Copies counters and hits of the back end into the shared area for other readers (`mirror.rs`).
#![forbid(unsafe_code)]

use super::Front;
use crate::bridge::link::Failure;
use crate::bridge::mirror::Line;
use crate::bridge::watch_table::{Counts, Watch};
use std::collections::BTreeSet;
use std::time::Duration;
use ulpf_bridge::{Feature, Hit, Listed, Reply, Request, Totals};

/// Time limit for an answer while the program runs, because a user waits for it.
const SOON: Duration = Duration::from_secs(2);
/// Limits of hits in one answer, and of answers for one update: a running machine may hit faster than the front end
/// reads.
const HITS: u64 = 4096;
const WHILE_IT_RUNS: usize = 4;
/// Limit of answers for one update at a stop: all hits that a back end keeps.
pub(super) const ALL: usize = 64;

impl Front {
    /// Writes a watch's present state to the mirror. `ended`: it has been removed.
    pub(super) fn show(&self, number: u32, ended: bool) {
        let (Some(mirror), Some(w)) = (&self.mirror, self.table.watches.get(&number)) else {
            return;
        };
        mirror.write(&line(number, w, ended));
    }

    /// Reads all counters and hits: after a stop, and periodically while the program runs.
    pub(super) async fn look(&mut self) -> Result<(), Failure> {
        self.look_at(ALL).await
    }

    pub(super) async fn look_while_it_is_at_it(&mut self) -> Result<(), Failure> {
        self.look_at(WHILE_IT_RUNS).await
    }

    async fn look_at(&mut self, answers: usize) -> Result<(), Failure> {
        let can = self.can();
        if can.has(Feature::List)
            && let Reply::Listed { watches, totals } = self.ask_within(Request::List, SOON).await?
        {
            self.counted(watches, totals);
        }
        if can.has(Feature::Hits) {
            for hit in self.news(answers).await? {
                let number = match self.forwards() {
                    true => Some(hit.watch as u32),
                    false => self.table.number(hit.watch),
                };
                if let (Some(number), Some(mirror)) = (number, &mut self.mirror) {
                    let log = self
                        .table
                        .watches
                        .get(&number)
                        .is_none_or(|w| w.log || w.stop);
                    mirror.hit(number, &hit, log);
                }
            }
        }
        Ok(())
    }

    /// Hits since the last update.
    pub(super) async fn news(&mut self, answers: usize) -> Result<Vec<Hit>, Failure> {
        let mut all = vec![];
        for _ in 0..answers {
            let since = self.table.seen;
            let request = Request::Hits { since, most: HITS };
            let Reply::Hits { hits, last, lost } = self.ask_within(request, SOON).await? else {
                return Ok(all);
            };
            self.table.lost += lost;
            let newest = hits.last().map_or(last, |h| h.sequence);
            // A back end that was restarted, or that repeats old hits for ever.
            if hits.is_empty() || newest <= since {
                self.table.seen = last;
                return Ok(all);
            }
            self.table.seen = newest;
            all.extend(hits);
            if newest >= last {
                break;
            }
        }
        Ok(all)
    }

    fn counted(&mut self, watches: Vec<Listed>, totals: Totals) {
        if self.forwards() {
            self.counted_by_the_stub(watches);
        } else {
            for listed in &watches {
                let Some(number) = self.table.number(listed.id) else {
                    continue;
                };
                if let Some(w) = self.table.watches.get_mut(&number) {
                    // A watch that was switched off and on starts with zero counters in the back end.
                    w.counts = w.before.and(counts(listed));
                }
                self.show(number, false);
            }
        }
        self.totals = totals;
        if let Some(mirror) = &self.mirror {
            mirror.totals(&totals);
        }
    }

    /// Our own stub behind a proxy uses its own watch numbers, and receives commands directly.
    fn counted_by_the_stub(&mut self, watches: Vec<Listed>) {
        let Some(mirror) = &self.mirror else { return };
        let now: BTreeSet<u32> = watches.iter().map(|w| w.id as u32).collect();
        for listed in &watches {
            let mut line = of_listed(listed);
            // A watch keeps its start time as long as it exists.
            line.since = *self
                .there_since
                .entry(line.number)
                .or_insert_with(ulpf_host::sys::tsc);
            mirror.write(&line);
        }
        let gone = self.there_since.keys().copied();
        for number in gone.filter(|n| !now.contains(n)).collect::<Vec<_>>() {
            self.there_since.remove(&number);
            if let Some(entry) = mirror.area.watch_table().get(number as usize) {
                let ended = ulpf_lib::ring::listed::ENDED;
                entry
                    .what
                    .fetch_or(ended, std::sync::atomic::Ordering::Release);
            }
        }
    }
}

fn counts(listed: &Listed) -> Counts {
    Counts {
        hits: listed.hits,
        silent: listed.silent,
        filtered: listed.filtered,
        stops: listed.stops,
        false_positives: listed.false_positives,
        register: listed.register,
    }
}

fn of_listed(listed: &Listed) -> Line {
    Line {
        number: listed.id as u32,
        addr: listed.addr,
        len: listed.len,
        kind: listed.kind,
        log: listed.log,
        debuggers: listed.debuggers,
        off: false,
        ended: false,
        since: 0,
        counts: counts(listed),
    }
}

fn line(number: u32, w: &Watch, ended: bool) -> Line {
    Line {
        number,
        addr: w.addr,
        len: w.len,
        kind: w.kind,
        log: w.log || w.stop,
        debuggers: w.debuggers,
        off: w.there.is_none() && !ended,
        ended,
        since: w.since,
        counts: w.counts,
    }
}
