//! Copies counters and hits of the back end into the shared area for other readers (`mirror.rs`).
#![forbid(unsafe_code)]

use super::Front;
use crate::bridge::remote::Failure;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;
use ulpf_lib::ring::listed;
use ulpf_rsp::reports::{Hits, Listed, Role, Totals};

/// Time limit for an answer while the program runs, because a user waits for it.
const SOON: Duration = Duration::from_secs(2);
/// Limits of hits in one answer, and of answers for one update: a running machine may hit faster than the front end
/// reads.
const HITS: u64 = 4096;
const WHILE_IT_RUNS: usize = 4;
/// Limit of answers for one update at a stop: all hits that a back end keeps.
pub(super) const ALL: usize = 64;
/// Limit of answers for one list of watches.
const LISTS: usize = 1024;

impl Front {
    /// Writes a watch's present state to the mirror. `ended`: it has been removed.
    pub(super) fn show(&self, number: u32, ended: bool) {
        let (Some(mirror), Some(w)) = (&self.mirror, self.table.watches.get(&number)) else {
            return;
        };
        let state = match (ended, w.there) {
            (true, _) => listed::ENDED,
            (false, None) => listed::ENDED | listed::OFF,
            (false, Some(_)) => 0,
        };
        mirror.write(&w.listed(number), w.since, state);
    }

    /// Reads all counters and hits: after a stop, and periodically while the program runs.
    pub(super) async fn look(&mut self) -> Result<(), Failure> {
        self.look_at(ALL).await
    }

    pub(super) async fn look_while_it_is_at_it(&mut self) -> Result<(), Failure> {
        self.look_at(WHILE_IT_RUNS).await
    }

    async fn look_at(&mut self, answers: usize) -> Result<(), Failure> {
        if self.role() == Role::Plain {
            return Ok(());
        }
        self.counted().await?;
        let forwards = self.role() == Role::Commands;
        for hit in self.new_hits(answers).await?.hits {
            let number = match forwards {
                true => u32::try_from(hit.watch).ok(),
                false => self.table.number(hit.watch),
            };
            if let (Some(number), Some(mirror)) = (number, &mut self.mirror) {
                let watch = self.table.watches.get(&number);
                let log = watch.is_none_or(|w| w.log || w.stop);
                mirror.hit(number, &hit, log);
            }
        }
        Ok(())
    }

    /// Hits since the last update.
    pub(super) async fn new_hits(&mut self, answers: usize) -> Result<Hits, Failure> {
        let mut all = Hits::default();
        for _ in 0..answers {
            let since = self.table.seen;
            let some = self.remote()?.hits(since, HITS, SOON).await?;
            self.table.lost += some.lost;
            all.stop = some.stop;
            let newest = some.hits.last().map_or(some.last, |h| h.sequence);
            // A back end that repeats old hits for ever.
            if some.hits.is_empty() || newest <= since {
                self.table.seen = some.last;
                break;
            }
            self.table.seen = newest;
            all.hits.extend(some.hits);
            if newest >= some.last {
                break;
            }
        }
        Ok(all)
    }

    async fn counted(&mut self) -> Result<(), Failure> {
        let (mut watches, mut totals) = (vec![], Totals::default());
        let mut from = 0;
        for _ in 0..LISTS {
            let some = self.remote()?.counts(from, SOON).await?;
            totals = some.totals;
            match some.watches.last().and_then(|w| w.id.checked_add(1)) {
                Some(next) if next > from => from = next,
                _ => break,
            }
            watches.extend(some.watches);
        }
        if self.role() == Role::Commands {
            self.counted_by_the_stub(watches);
        } else {
            for listed in &watches {
                let Some(number) = self.table.number(listed.id) else {
                    continue;
                };
                if let Some(w) = self.table.watches.get_mut(&number) {
                    // A watch that was switched off and on starts with zero counters in the back end.
                    w.counts = w.before.and(listed.counts);
                }
                self.show(number, false);
            }
        }
        self.totals = totals;
        if let Some(mirror) = &self.mirror {
            mirror.totals(&totals);
        }
        Ok(())
    }

    /// Our own stub uses its own watch numbers, and receives commands directly.
    fn counted_by_the_stub(&mut self, watches: Vec<Listed>) {
        let Some(mirror) = &self.mirror else { return };
        let mut now = BTreeSet::new();
        for listed in &watches {
            let Ok(number) = u32::try_from(listed.id) else {
                continue;
            };
            now.insert(number);
            // A watch keeps its start time as long as it exists.
            let since = self.there_since.entry(number);
            let since = *since.or_insert_with(ulpf_host::sys::tsc);
            mirror.write(listed, since, 0);
        }
        let gone = self.there_since.keys().copied();
        for number in gone.filter(|n| !now.contains(n)).collect::<Vec<_>>() {
            self.there_since.remove(&number);
            if let Some(entry) = mirror.area.watch_table().get(number as usize) {
                entry.what.fetch_or(listed::ENDED, Release);
            }
        }
    }
}
