//! Counters and hits of our own stub behind the port. They are read from its shared area, as `ulpf top` does, so no
//! thread stops for it, and reading works while the program runs.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};
use ulpf_area::{SharedArea, sessions};
use ulpf_bridge::{Bytes, Hit, Listed, Reply, Totals};
use ulpf_lib::AccessKind;
use ulpf_lib::ring::{self, Reader, Rings, Start, hit_flags, listed};

/// `KEPT`: hits kept for later requests. `MOST`: hits of one answer.
const KEPT: usize = 1 << 16;
const MOST: u64 = 4096;
/// Watches of one answer. A line is limited to 4 MiB.
const WATCHES: usize = 20_000;

/// Interval of checks whether the program has executed another one, which has an area of its own.
const AGAIN: Duration = Duration::from_secs(1);

pub struct Looks {
    pid: i32,
    looked: Instant,
    area: SharedArea,
    reader: Reader,
    log: VecDeque<Hit>,
    /// The number of the last hit, counting those that were overwritten before they were read.
    sequence: u64,
}

impl Looks {
    pub fn of(pid: i32) -> Option<Looks> {
        Some(Looks {
            pid,
            looked: Instant::now(),
            area: sessions::area_of(pid)?.0,
            reader: Reader::new(Start::First),
            log: VecDeque::new(),
            sequence: 0,
        })
    }

    /// All watches and totals.
    pub fn list(&mut self) -> Reply {
        self.renew();
        let header = self.area.header();
        Reply::Listed {
            watches: self.watches(),
            totals: Totals {
                faults: header.faults.load(Relaxed),
                false_positives: header.all_false_positives(self.area.areas()),
                slow: header.slow.load(Relaxed),
                syscalls: header.syscalls.load(Relaxed),
            },
        }
    }

    /// At most `most` hits with numbers greater than `since`.
    pub fn hits(&mut self, since: u64, most: u64) -> Reply {
        self.update();
        let first = self.log.front().map_or(self.sequence + 1, |h| h.sequence);
        let hits = self.log.iter().filter(|h| h.sequence > since);
        Reply::Hits {
            hits: hits.take(most.min(MOST) as usize).cloned().collect(),
            last: self.sequence,
            lost: (first - 1).saturating_sub(since),
        }
    }

    fn renew(&mut self) {
        if self.looked.elapsed() < AGAIN {
            return;
        }
        self.looked = Instant::now();
        let now = sessions::area_of(self.pid).map(|(area, _)| area);
        if let Some(area) = now.filter(|a| a.clock().base_ns > self.area.clock().base_ns) {
            (self.area, self.reader) = (area, Reader::new(Start::First));
        }
    }

    fn update(&mut self) {
        self.renew();
        let mut news: Vec<ring::Hit> = Vec::new();
        // Hits that do not fit are read the next time, or counted as overwritten.
        for n in 0..self.area.rings() {
            let room = KEPT.saturating_sub(news.len());
            self.reader.read(&self.area, n, room, |hit| news.push(hit));
        }
        news.sort_by_key(|hit| hit.time);
        for hit in news {
            self.sequence = self.sequence.wrapping_add(hit.lost + 1);
            self.log.push_back(told(&hit, self.sequence));
        }
        let surplus = self.log.len().saturating_sub(KEPT);
        self.log.drain(..surplus);
    }

    fn watches(&self) -> Vec<Listed> {
        let lines = self.area.watch_table().iter().enumerate();
        let present = lines.filter_map(|(id, line)| {
            let what = line.what.load(Acquire);
            // Ranges of the heap are reported as one watch, which has no bytes of its own.
            let is_one = line.reported_as.load(Relaxed) == id as u32;
            if what == 0 || what & listed::ENDED != 0 || !is_one {
                return None;
            }
            let n = self.area.counters(id as u32);
            let (hits, silent) = self.area.hits(id as u32);
            Some(Listed {
                id: id as u64,
                addr: line.start.load(Relaxed),
                len: line.len.load(Relaxed),
                kind: ulpf_session::words::kind_of(what).into(),
                hits,
                silent,
                filtered: n.filtered.load(Relaxed),
                stops: n.stops.load(Relaxed),
                false_positives: n.false_positives.load(Relaxed),
                log: what & listed::LOGGED != 0,
                debuggers: what & listed::OUT_OF_BAND == 0,
                register: n.placement.load(Relaxed) != 0,
            })
        });
        present.take(WATCHES).collect()
    }
}

fn told(hit: &ring::Hit, sequence: u64) -> Hit {
    let values = hit.flags & hit_flags::UNKNOWN == 0;
    let bytes = |of: &[u8]| {
        Bytes(if values {
            of[..hit.used()].into()
        } else {
            vec![]
        })
    };
    Hit {
        sequence,
        watch: hit.watch.into(),
        pc: hit.pc,
        thread: hit.tid.into(),
        write: hit.kind != AccessKind::Read as u8,
        read: hit.kind == AccessKind::ReadWrite as u8,
        addr: hit.addr,
        len: hit.len.into(),
        old: bytes(&hit.old),
        new: bytes(&hit.new),
        system_call: hit.call.is_some(),
    }
}
