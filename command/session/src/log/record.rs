//! Copies hits from a process's rings to the file, on a thread of its own.

use crate::drain::Sink;
use crate::log::encode::Encoder;
use crate::log::writer::Log;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};
use ulpf_lib::ring::{Hit, hit_flags};

/// A hit reaches the file at most this long after it was read. A killed ulpf loses no more than that.
const SOON: Duration = Duration::from_millis(200);
/// A ring that stays silent for this many periods frees its memory.
const SILENT: u32 = 10;

/// Encodes the hits of one process.
pub struct Recorder<F> {
    log: Log,
    life: u32,
    /// Leave out silent stores.
    changes_only: bool,
    /// All rings except the one that hits come from at present.
    rings: BTreeMap<usize, Ring>,
    current: Option<(usize, Ring)>,
    /// Instructions and return addresses that `tell` has already received.
    seen: HashSet<(u64, bool)>,
    new_places: Vec<(u64, bool)>,
    tell: F,
    flushed: Instant,
}

struct Ring {
    encoder: Encoder,
    /// Times never decrease within a thread, whatever its clock says.
    latest: u64,
    silent: u32,
    /// Hits lost before a hit that was left out.
    lost: u64,
}

impl<F: FnMut(Vec<(u64, bool)>) -> bool> Recorder<F> {
    /// `tell` receives code that is new to this log (`true` for return addresses). It returns `false` when the receiver
    /// is gone.
    pub fn new(log: Log, life: u32, changes_only: bool, tell: F) -> Recorder<F> {
        Recorder {
            log,
            life,
            changes_only,
            rings: BTreeMap::new(),
            current: None,
            seen: HashSet::new(),
            new_places: Vec::new(),
            tell,
            flushed: Instant::now(),
        }
    }

    /// Moves the current ring back into the map.
    fn put_back(&mut self) {
        self.rings.extend(self.current.take());
    }

    fn flush(&mut self) {
        self.put_back();
        let log = &self.log;
        for ring in self.rings.values_mut() {
            ring.silent = if ring.encoder.is_empty() {
                ring.silent + 1
            } else {
                0
            };
            ring.encoder.take(|head, payload| log.block(head, payload));
        }
        self.rings.retain(|_, ring| ring.silent < SILENT);
        self.flushed = Instant::now();
    }
}

impl<F: FnMut(Vec<(u64, bool)>) -> bool> Sink for Recorder<F> {
    fn ring(&mut self, ring: usize) {
        if self.current.as_ref().is_some_and(|(n, _)| *n == ring) {
            return;
        }
        self.put_back();
        let new = || Ring {
            encoder: Encoder::new(self.life, ring as u32),
            latest: 0,
            silent: 0,
            lost: 0,
        };
        self.current = Some((ring, self.rings.remove(&ring).unwrap_or_else(new)));
    }

    #[inline]
    fn hit(&mut self, mut hit: Hit) {
        let Some((_, ring)) = &mut self.current else {
            return;
        };
        if hit.lost | ring.lost != 0 {
            ring.lost = ring.lost.saturating_add(hit.lost);
            hit.lost = ring.lost;
        }
        if self.changes_only && hit.flags & hit_flags::SILENT != 0 {
            return;
        }
        ring.lost = 0;
        if ring.encoder.is_full() {
            let log = &self.log;
            ring.encoder.take(|head, payload| log.block(head, payload));
        }
        ring.latest = ring.latest.max(hit.time);
        let (seen, new_places) = (&mut self.seen, &mut self.new_places);
        ring.encoder.hit(&hit, ring.latest, |pc, caller| {
            if seen.insert((pc, caller)) {
                new_places.push((pc, caller));
            }
        });
    }

    fn lost(&mut self, ring: usize, lost: u64) {
        if lost > 0 {
            self.ring(ring);
            let current = self.current.as_mut();
            current
                .into_iter()
                .for_each(|(_, ring)| ring.encoder.lose(lost));
        }
    }

    fn looked(&mut self) -> bool {
        if self.flushed.elapsed() >= SOON {
            self.flush();
        }
        self.new_places.is_empty() || (self.tell)(std::mem::take(&mut self.new_places))
    }

    fn end(&mut self) {
        self.put_back();
        for ring in self.rings.values_mut() {
            let lost = std::mem::take(&mut ring.lost);
            ring.encoder.lose(lost);
        }
        self.flush();
    }
}
