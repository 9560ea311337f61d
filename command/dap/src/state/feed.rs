//! Counters and rings of the program's shared area, and the set of watches that log.
#![forbid(unsafe_code)]

use serde_json::Value;
use std::collections::HashSet;
use std::time::Duration;
use ulpf_area::{SharedArea, sessions};
use ulpf_lib::ring::{Hit, Reader, Rings, Start};
use ulpf_session::hit::completed::Completer;

const PERIOD: Duration = Duration::from_millis(100);
/// Limit of records for one reading; the others are read the next time.
const RECORDS: usize = 50_000;
/// Minimum of records read from each ring.
const LEAST: usize = 16;

#[derive(Default)]
pub struct Feed {
    pub area: Option<(i32, SharedArea)>,
    /// Completes the program's hits.
    pub completer: Option<Completer>,
    reader: Option<Reader>,
    /// The stub's numbers of watches that log, and of all others that have been seen.
    pub logging: HashSet<u32>,
    pub silent: HashSet<u32>,
    pub active: bool,
    /// The process number for the shared area of a program on another machine, as known by the plugin.
    pub stands_for: Option<i32>,
}

impl Feed {
    /// Forgets the area, because there is another program.
    pub fn forget(&mut self) {
        let active = self.active;
        *self = Feed::default();
        self.active = active;
    }

    /// Waits until the next reading. Cancel-safe.
    pub async fn due(&self) {
        if !self.active || self.area.is_none() {
            return std::future::pending().await;
        }
        tokio::time::sleep(PERIOD).await;
    }

    pub fn area(&mut self, pid: Option<i32>) -> Option<&SharedArea> {
        let pid = self.stands_for.or(pid)?;
        if self.area.as_ref().is_none_or(|(of, _)| *of != pid) {
            // An exec creates a new area. The watches' names are gone with the old program anyway.
            let found = sessions::area_of(pid);
            self.completer = found
                .as_ref()
                .map(|(_, elsewhere)| Completer::of(pid, elsewhere.clone()));
            self.area = found.map(|(area, _)| (pid, area));
            self.reader = None;
        }
        self.area.as_ref().map(|(_, area)| area)
    }

    /// The completed forms of hits; null if the program is not known.
    pub async fn complete(&self, asked: Vec<String>) -> Vec<Value> {
        match &self.completer {
            Some(completer) => completer.tell(asked).await,
            None => vec![Value::Null; asked.len()],
        }
    }

    /// New hits of watches that log, sorted by time; the number of lost hits; and whether there are hits of unknown
    /// watches.
    pub fn new_hits(&mut self) -> (Vec<Hit>, u64, bool) {
        let Some((_, area)) = &self.area else {
            return (Vec::new(), 0, false);
        };
        let reader = self.reader.get_or_insert_with(|| Reader::new(Start::First));
        let (mut hits, mut lost) = (Vec::new(), 0);
        let (logging, silent) = (&self.logging, &self.silent);
        let mut unknown = false;
        let mut left = RECORDS;
        for ring in 0..area.rings() {
            let mut read = 0;
            // Every ring gets a few records, however busy the earlier ones are.
            reader.read(area, ring, left.max(LEAST), |hit| {
                read += 1;
                lost += hit.lost;
                if !silent.contains(&hit.watch) {
                    unknown |= !logging.contains(&hit.watch);
                    hits.push(hit);
                }
            });
            left = left.saturating_sub(read);
        }
        hits.sort_by_key(|hit| hit.time);
        (hits, lost, unknown)
    }
}
