//! Counters and hits for a front end on another machine (`qUlpf` packets, docs/bridge.md). They are read from the area that
//! the stub shares, as `ulpf top` does, so no thread stops for it, and reading works while the program runs.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};
use ulpf_area::{SharedArea, sessions};
use ulpf_lib::AccessKind;
use ulpf_lib::ring::{self, Reader, Rings, Start, hit_flags, listed};
use ulpf_rsp::reports::{About, Ask, Counts, Hit, Hits, Listed, Role, Totals, WatchCounts};

/// Hits kept for later requests.
const KEPT: usize = 1 << 16;

/// Interval of checks whether the program has executed another one, which has an area of its own.
const AGAIN: Duration = Duration::from_secs(1);

/// The reports of a server. It opens the area of a program when a front end asks for the first time.
#[derive(Default)]
pub struct Reports(Option<Looks>);

struct Looks {
    pid: i32,
    looked: Instant,
    area: SharedArea,
    reader: Reader,
    log: VecDeque<Hit>,
    /// The number of the last hit, counting those that were overwritten before they were read.
    sequence: u64,
}

impl Reports {
    /// The reply to a request about the process `pid`, or to one without a process.
    pub fn reply(&mut self, ask: Ask, pid: Option<i32>) -> String {
        if self.0.as_ref().map(|l| l.pid) != pid {
            self.0 = pid.and_then(Looks::of);
        }
        match (ask, &mut self.0) {
            (Ask::About, _) => About {
                role: Role::Commands,
                kind: "stub".into(),
                name: format!("ulpf server {}", env!("CARGO_PKG_VERSION")),
            }
            .reply(),
            (Ask::Counts(from), Some(looks)) => looks.counts(from),
            (Ask::Hits { since, most }, Some(looks)) => looks.hits(since, most),
            (Ask::Counts(from), None) => Counts::reply(from, &Totals::default(), []),
            (Ask::Hits { since, .. }, None) => {
                let none = Hits {
                    since,
                    ..Hits::default()
                };
                Hits::reply(&none, [])
            }
        }
    }
}

impl Looks {
    fn of(pid: i32) -> Option<Looks> {
        Some(Looks {
            pid,
            looked: Instant::now(),
            area: sessions::area_of(pid)?.0,
            reader: Reader::new(Start::First),
            log: VecDeque::new(),
            sequence: 0,
        })
    }

    fn counts(&mut self, from: u64) -> String {
        self.renew();
        let header = self.area.header();
        let totals = Totals {
            faults: header.faults.load(Relaxed),
            false_positives: header.all_false_positives(self.area.areas()),
            slow: header.slow.load(Relaxed),
            syscalls: header.syscalls.load(Relaxed),
        };
        Counts::reply(from, &totals, &self.watches(from))
    }

    /// At most `most` hits with numbers greater than `since`.
    fn hits(&mut self, since: u64, most: u64) -> String {
        self.update();
        let first = self.log.front().map_or(self.sequence + 1, |h| h.sequence);
        let head = Hits {
            since,
            last: self.sequence,
            lost: (first - 1).saturating_sub(since),
            // The stub reports its stops itself.
            stop: 0,
            hits: vec![],
        };
        let from = self.log.partition_point(|h| h.sequence <= since);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Hits::reply(&head, self.log.range(from..).take(most))
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
        let mut new_hits: Vec<ring::Hit> = Vec::new();
        // Hits that do not fit are read the next time, or counted as overwritten.
        for n in 0..self.area.rings() {
            let room = KEPT.saturating_sub(new_hits.len());
            self.reader
                .read(&self.area, n, room, |hit| new_hits.push(hit));
        }
        new_hits.sort_by_key(|hit| hit.time);
        for hit in new_hits {
            self.sequence = self.sequence.wrapping_add(hit.lost + 1);
            self.log.push_back(from_ring(&hit, self.sequence));
        }
        let excess = self.log.len().saturating_sub(KEPT);
        self.log.drain(..excess);
    }

    fn watches(&self, from: u64) -> Vec<Listed> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let lines = self.area.watch_table().iter().enumerate().skip(from);
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
                kind: ulpf_session::words::kind_of(what),
                counts: WatchCounts {
                    hits,
                    silent,
                    filtered: n.filtered.load(Relaxed),
                    stops: n.stops.load(Relaxed),
                    false_positives: n.false_positives.load(Relaxed),
                    register: n.placement.load(Relaxed) != 0,
                },
                log: what & listed::LOGGED != 0,
                debuggers: what & listed::OUT_OF_BAND == 0,
            })
        });
        // More do not fit into a reply.
        present.take(4096).collect()
    }
}

fn from_ring(hit: &ring::Hit, sequence: u64) -> Hit {
    let values = hit.flags & hit_flags::UNKNOWN == 0;
    let bytes = |of: &[u8]| match values {
        true => of[..hit.used()].to_vec(),
        false => vec![],
    };
    Hit {
        sequence,
        watch: hit.watch.into(),
        pc: hit.pc,
        thread: hit.tid.into(),
        access: match hit.kind {
            kind if kind == AccessKind::Read as u8 => AccessKind::Read,
            kind if kind == AccessKind::Write as u8 => AccessKind::Write,
            _ => AccessKind::ReadWrite,
        },
        addr: hit.addr,
        len: hit.len.into(),
        old: bytes(&hit.old),
        new: bytes(&hit.new),
        system_call: hit.call.is_some(),
    }
}
