//! Counters and hits of watches on another machine, in a shared area as our own stub has it (`ulpf_lib::ring`). `ulpf
//! top`, `last`, `export`, the debug adapter and the plugin's log read it unchanged.
//!
//! Only the front end's task writes it. The time of a hit is when the front end received it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, Release};
use ulpf_area::SharedArea;
use ulpf_host::sys;
use ulpf_lib::ring::{self, Entry, MAX_VALUE, hit_flags, listed};
use ulpf_rsp::reports::{Hit, Listed, Totals};

/// Number of rings; each of the first threads has its own, and further threads share the last one.
const RINGS: u32 = 64;

pub struct Mirror {
    pub area: SharedArea,
    rings: HashMap<u64, u32>,
}

impl Mirror {
    /// Creates the area. `pid` represents the program, `program` is its file, and `bias` is the load bias. The error is
    /// text for the user.
    pub fn new(pid: i32, bias: u64, program: &str) -> Result<Mirror, String> {
        let area = SharedArea::elsewhere(pid, bias, program)
            .map_err(|e| format!("There is no memory to keep hits in: {e}."))?;
        let rings = HashMap::new();
        Ok(Mirror { area, rings })
    }

    /// A watch's entry in the table. `since`: TSC when it was set. `state`: ENDED and OFF of [`listed`].
    pub fn write(&self, watch: &Listed, since: u64, state: u32) {
        let flag = |is: bool, bit| if is { bit } else { 0 };
        let what = watch.kind as u32
            | flag(watch.log, listed::LOGGED)
            | flag(!watch.debuggers, listed::OUT_OF_BAND)
            | state;
        let number = watch.id as u32;
        let Some(to) = self.area.list(number) else {
            return;
        };
        to.start.store(watch.addr, Relaxed);
        to.len.store(watch.len, Relaxed);
        to.reported_as.store(number, Relaxed);
        to.since.store(since, Relaxed);
        to.what.store(what, Release);
        let (n, c) = (self.area.counters(number), &watch.counts);
        n.hits.store(c.hits, Relaxed);
        n.silent.store(c.silent, Relaxed);
        n.filtered.store(c.filtered, Relaxed);
        n.stops.store(c.stops, Relaxed);
        n.false_positives.store(c.false_positives, Relaxed);
        n.placement.store(c.register.into(), Relaxed);
    }

    pub fn totals(&self, t: &Totals) {
        let h = self.area.header();
        h.faults.store(t.faults, Relaxed);
        h.false_positives.store(t.false_positives, Relaxed);
        h.slow.store(t.slow, Relaxed);
        h.syscalls.store(t.syscalls, Relaxed);
    }

    /// The hit's record. If `log` is set, the record is also written to its thread's ring.
    pub fn hit(&mut self, number: u32, hit: &Hit, log: bool) -> ring::Hit {
        let next = (self.rings.len() as u32).min(RINGS - 1);
        let ring = *self.rings.entry(hit.thread).or_insert(next);
        let word = |of: &[u8]| {
            let mut bytes = [0; MAX_VALUE];
            let n = of.len().min(MAX_VALUE);
            bytes[..n].copy_from_slice(&of[..n]);
            bytes
        };
        let (old, new) = (word(&hit.old), word(&hit.new));
        let known = !hit.old.is_empty();
        let flag = |is: bool, bit| if is { bit } else { 0 };
        let flags = flag(hit.is_silent(), hit_flags::SILENT)
            | flag(hit.len as usize > MAX_VALUE, hit_flags::TRUNCATED)
            | flag(!known, hit_flags::UNKNOWN);
        let words = |bytes: [u8; MAX_VALUE]| {
            let mut words = [0; MAX_VALUE / 8];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
            }
            words
        };
        let recorded = ring::Hit {
            time: sys::tsc(),
            pc: hit.pc,
            addr: hit.addr,
            len: hit.len as u32,
            watch: number,
            tid: hit.thread as u32,
            kind: hit.access as u8,
            flags,
            old,
            new,
            ..ring::Hit::default()
        };
        if log {
            let entry = Entry {
                pc: recorded.pc,
                addr: recorded.addr,
                len: recorded.len,
                watch: number,
                tid: recorded.tid,
                kind: recorded.kind,
                flags,
                old: &words(old),
                new: &words(new),
                inside: 0,
                call: None,
                frames: &[],
            };
            self.area.record(ring, &entry, recorded.time);
        }
        recorded
    }
}

/// Readers recognise by the pid 0 that the program is gone.
impl Drop for Mirror {
    fn drop(&mut self) {
        self.area.header().pid.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_lib::ring::last::{Asked, all};
    use ulpf_lib::{AccessKind, WatchKind};
    use ulpf_rsp::reports::WatchCounts;

    #[test]
    fn a_hit_is_read_as_it_was_recorded() {
        let mut mirror = Mirror::new(1, 0, "/bin/program").unwrap();
        let watch = Listed {
            id: 3,
            addr: 0x1000,
            len: 4,
            kind: WatchKind::Write,
            counts: WatchCounts {
                hits: 5,
                ..WatchCounts::default()
            },
            log: true,
            debuggers: false,
        };
        mirror.write(&watch, 1, 0);
        assert_eq!(
            (mirror.area.watch_table().len(), mirror.area.hits(3).0),
            (4, 5)
        );
        let hit = |thread| Hit {
            sequence: 1,
            watch: 9,
            pc: 0x400000,
            thread,
            access: AccessKind::Write,
            addr: 0x1000,
            len: 4,
            old: vec![1, 0, 0, 0],
            new: vec![2, 0, 0, 0],
            system_call: false,
        };
        let recorded = [mirror.hit(3, &hit(7), true), mirror.hit(3, &hit(8), true)];
        mirror.hit(3, &hit(7), false);
        let asked = Asked {
            addr: 0,
            len: u64::MAX,
            reads: true,
            most: 10,
        };
        let found = all(&mirror.area, &asked).hits;
        assert_eq!(found.len(), 2);
        for hit in &found {
            let was = recorded.iter().find(|t| t.tid == hit.tid).unwrap();
            assert_eq!((hit.watch, hit.old, hit.new), (3, was.old, was.new));
        }
    }
}
