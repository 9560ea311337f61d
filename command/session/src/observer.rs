//! Observes one session from outside: its shared area is mapped read-only, and no process is asked. The cost of a look
//! does not grow with the number of hits: counters count them, and only the youngest records of the rings are read.

use super::hit::place::own_caller;
use super::hit::{Known, Line};
use super::listing::{Entry, Listing, sites_of};
use super::names::Names;
use super::snapshot::{HISTORY, Page, Rates, Served, Site, Snapshot, State, Thread, Totals, Watch};
use super::words::{kind_of, verb};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};
use ulpf_area::SharedArea;
use ulpf_area::sessions::Watched as Found;
use ulpf_host::{process, sys};
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::ring::findings::Findings;
use ulpf_lib::ring::{Hit, Reader, Rings, Start, Unpatched, listed};
use ulpf_symbols::{Program, Watched};

/// Slots that one look reads of all rings together, and of each ring with new records at least.
const SLOTS: u64 = 4096;
const LEAST: u64 = 16;
/// Lines that one look adds to the feed: more than a user reads, and cheap.
const LINES: usize = 256;
/// Rings with new records that one look reads; the others follow in the next look.
const RINGS: usize = 1024;
/// Watches that are shown; the totals include the others.
const WATCHES: usize = 20_000;
const PAGES: usize = 4096;
/// Pages that one look visits, of all watches together.
const STEPS: usize = 1 << 17;
/// Share of a site's recent hits that remains after a look.
const KEPT: f64 = 0.8;
/// Weight of the last look in a shown rate.
const FRESH: f64 = 0.6;

/// Looks at one session, again and again.
pub struct Observer {
    /// The program.
    pub pid: i32,
    /// The ulpf that watches it.
    pub(crate) by: i32,
    /// As [`Found::started`].
    started: u64,
    /// The session has ended.
    pub(crate) ended: bool,
    /// The snapshot; it is here only during a look.
    snapshot: Snapshot,
    /// The program is on another machine: /proc describes another process of that number.
    elsewhere: bool,
    /// Mapped for reading.
    pub(crate) shared: SharedArea,
    /// Names of its watches and places.
    pub names: Names,
    reader: Reader,
    last: Instant,
    refreshed: Instant,
    before: Totals,
    rings: HashMap<usize, Ring>,
    sites: HashMap<u64, Sampled>,
    /// The owner's list of the watches.
    pub listing: Listing,
    known: HashMap<u32, Rc<Watched>>,
    values: HashMap<u32, String>,
    before_watch: HashMap<u32, (u64, u64, f64, f64)>,
    lines: u64,
    /// First ring of the next look, if there are many.
    turn: usize,
}

#[derive(Default)]
struct Ring {
    records: u64,
    rate: f64,
    tid: u32,
    last: Rc<str>,
}

#[derive(Default)]
struct Sampled {
    hits: u64,
    /// Recent hits.
    recent: f64,
    by_kernel: bool,
    by_register: bool,
    patched: bool,
    why: String,
    traps: Option<(u64, u64)>,
}

/// Selects the hits for the feed.
pub type Wanted<'a> = &'a dyn Fn(&str, &str, u32) -> bool;

fn mixed(before: f64, now: f64) -> f64 {
    let rate = before * (1.0 - FRESH) + now * FRESH;
    if rate < 0.05 { 0.0 } else { rate }
}

impl Observer {
    /// Begins to observe a session that was found.
    pub fn new(found: &Found) -> Observer {
        let pid = found.pid;
        let elsewhere = found.elsewhere.as_ref();
        let path = match elsewhere {
            Some(elsewhere) => elsewhere.file.clone(),
            None => process::executable(pid).unwrap_or_default(),
        };
        let program = path.file_name().unwrap_or_default().to_string_lossy();
        Observer {
            pid,
            by: found.by,
            started: found.started,
            ended: false,
            snapshot: Snapshot {
                pid,
                by: found.by,
                how: subcommand(found.by),
                program: program.into_owned(),
                ..Snapshot::default()
            },
            shared: found.shared.clone(),
            names: Names::of_session(pid, elsewhere, found.by),
            elsewhere: elsewhere.is_some(),
            reader: Reader::new(Start::First),
            last: Instant::now(),
            refreshed: Instant::now(),
            before: Totals::default(),
            rings: HashMap::new(),
            sites: HashMap::new(),
            listing: Listing::default(),
            known: HashMap::new(),
            values: HashMap::new(),
            before_watch: HashMap::new(),
            lines: 0,
            turn: 0,
        }
    }

    /// Start of the session, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) fn base_ns(&self) -> u64 {
        self.shared.clock().base_ns
    }

    /// Findings of the heap check, if it is on, and the modules of the program.
    pub fn findings(&self) -> Option<(&Findings, &Program)> {
        let findings = self.shared.findings();
        (findings.on.load(Relaxed) != 0).then_some((findings, &self.names.program))
    }

    /// The snapshot before the first look.
    pub fn begin(&mut self) -> Snapshot {
        std::mem::take(&mut self.snapshot)
    }

    /// Brings the session up to date. `feed` selects hits for the feed, which is paused if it is `None`.
    pub fn look(&mut self, snapshot: &mut Snapshot, feed: Option<Wanted>) {
        std::mem::swap(&mut self.snapshot, snapshot);
        self.update(feed);
        self.ended = self.snapshot.ended.is_some();
        std::mem::swap(&mut self.snapshot, snapshot);
    }

    fn update(&mut self, feed: Option<Wanted>) {
        let first = self.snapshot.seconds == 0.0;
        let passed = self.last.elapsed().as_secs_f64().max(1e-6);
        let ended = self.snapshot.ended.is_some();
        if !ended {
            let header = self.shared.header();
            let clock = self.shared.clock();
            let now = clock.nanos(sys::tsc());
            self.snapshot.seconds = now.saturating_sub(clock.base_ns) as f64 / 1e9;
            self.last = Instant::now();
            // In this order: the watching process ends after its program.
            let left_alone = !process::is_alive(self.snapshot.by);
            let gone = self.elsewhere && header.pid.load(Acquire) == 0;
            // (Another process may have got its number.)
            let other = process::started(self.pid).is_ok_and(|began| began != self.started);
            if gone || other || !process::is_alive(self.snapshot.pid) {
                self.snapshot.ended = Some("the program has ended".into());
            } else if left_alone {
                let by = self.snapshot.by;
                self.snapshot.ended = Some(format!("ulpf ({by}) has let go of the program"));
            }
        }
        let rate = |before: f64, n: u64, was: u64| match () {
            // Hits from before the first look have no rate.
            _ if first || ended => 0.0,
            _ => mixed(before, n.saturating_sub(was) as f64 / passed),
        };
        self.watches(&rate);
        self.totals(&rate, first);
        self.rings(&rate, feed);
        self.sites();
        self.pages();
        if !ended && self.snapshot.threads.is_empty() || !first {
            self.states();
        }
    }

    fn totals(&mut self, rate: &dyn Fn(f64, u64, u64) -> f64, first: bool) {
        let header = self.shared.header();
        let t = &mut self.snapshot.totals;
        t.faults = header.faults.load(Relaxed);
        t.false_positives = header.all_false_positives(self.shared.areas());
        t.slow = header.slow.load(Relaxed);
        t.syscalls = header.syscalls.load(Relaxed);
        let (t, b, r) = (*t, self.before, self.snapshot.rates);
        self.snapshot.rates = Rates {
            hits: rate(r.hits, t.hits, b.hits),
            false_positives: rate(r.false_positives, t.false_positives, b.false_positives),
            faults: rate(r.faults, t.faults, b.faults),
        };
        if !first && self.snapshot.ended.is_none() {
            let history = &mut self.snapshot.history;
            if history.len() >= HISTORY {
                history.pop_front();
            }
            history.push_back(self.snapshot.rates.hits as u64);
        }
        self.before = t;
    }

    fn watches(&mut self, rate: &dyn Fn(f64, u64, u64) -> f64) {
        // Several ranges may be reported as one watch (the heap).
        let mut all: BTreeMap<u32, (u64, u64, u32, u64, bool)> = BTreeMap::new();
        for (id, line) in self.shared.watch_table().iter().enumerate() {
            let what = line.what.load(Acquire);
            if what == 0 {
                continue;
            }
            let (start, len) = (line.start.load(Relaxed), line.len.load(Relaxed));
            let (since, as_id) = (line.since.load(Relaxed), line.reported_as.load(Relaxed));
            let ended = what & listed::ENDED != 0;
            if as_id != id as u32 {
                let heap = all.entry(as_id).or_insert((0, 0, what, 0, true));
                heap.1 = heap.1.saturating_add(if ended { 0 } else { len });
                heap.4 = true;
            } else {
                all.insert(as_id, (start, len, what, since, false));
            }
        }
        let mut totals = Totals::default();
        let mut watches = Vec::with_capacity(all.len().min(WATCHES));
        let mut more = 0;
        let mut off: Vec<(&Entry, [u64; 4])> = Vec::new();
        let listing = std::mem::take(&mut self.listing);
        for (id, (addr, len, what, since, heap)) in all {
            let c = self.shared.counters(id);
            let n = [
                c.hits.load(Relaxed),
                c.silent.load(Relaxed),
                c.filtered.load(Relaxed),
                c.false_positives.load(Relaxed),
            ];
            totals.hits = totals.hits.wrapping_add(n[0]);
            totals.silent = totals.silent.wrapping_add(n[1]);
            totals.filtered = totals.filtered.wrapping_add(n[2]);
            let entry = listing.armed(id);
            let ended = what & listed::ENDED != 0 && !heap;
            if ended {
                if let Some(entry) = listing.past(id)
                    && off.len() < WATCHES
                {
                    off.push((entry, n));
                }
                continue;
            }
            if watches.len() >= WATCHES {
                more += 1;
                continue;
            }
            let kind = kind_of(what);
            let spec = entry.map(|e| e.spec.as_str()).filter(|s| !s.is_empty());
            let spec = spec.or(heap.then_some("heap"));
            let named = self.names.watch((id, since), (addr, len), kind, spec);
            let b = self.before_watch.entry(id).or_default();
            b.2 = rate(b.2, n[0], b.0);
            b.3 = rate(b.3, n[3], b.1);
            (b.0, b.1) = (n[0], n[3]);
            let (hit_rate, false_rate) = (b.2, b.3);
            if n[0] == 0 || !self.values.contains_key(&id) {
                // Until a hit gives the value. The program's memory may be unreadable.
                if watches.len() < 256 {
                    let value = self.names.memory(&named);
                    if !value.is_empty() {
                        self.values.insert(id, value);
                    }
                }
            }
            watches.push(Watch {
                id: Some(id),
                number: entry.map(|e| e.number),
                name: match spec {
                    // (If a watch has several places, each is shown by its own name.)
                    Some(spec) if !heap && entry.is_none_or(|e| e.ids.len() <= 1) => spec.into(),
                    _ => named.name.as_str().into(),
                },
                addr,
                len,
                kind: kind.word(),
                state: match (entry.map(|e| e.state), c.gone.load(Relaxed)) {
                    // (The list may be older than the table.)
                    (None | Some(State::Armed | State::Waiting), 0) => State::Armed,
                    (Some(state), 0) => state,
                    _ => State::Gone,
                },
                hits: n[0],
                rate: hit_rate,
                silent: n[1],
                filtered: n[2],
                false_positives: n[3],
                false_rate,
                register: c.placement.load(Relaxed) != 0,
                debuggers: what & listed::OUT_OF_BAND == 0,
                counts_only: what & listed::LOGGED == 0,
                last: self.values.get(&id).cloned().unwrap_or_default(),
                moved: (what & listed::FOLLOWS != 0).then(|| c.moved.load(Relaxed)),
                note: match entry {
                    Some(e) if e.state == State::Off => e.why.clone(),
                    _ => String::new(),
                },
            });
            self.known.insert(id, named);
        }
        // Only the owner knows watches that are off, waiting or refused. A watch that was off for a while has a new
        // number since, and keeps its counts from before.
        let numbers = watches.iter().enumerate();
        let numbers = numbers.filter_map(|(at, w)| Some((w.number?, at)));
        let mut shown: HashMap<usize, usize> = numbers.collect();
        for (entry, n) in off {
            if let Some(w) = shown.get(&entry.number).and_then(|at| watches.get_mut(*at)) {
                w.hits = w.hits.wrapping_add(n[0]);
                w.silent = w.silent.wrapping_add(n[1]);
                w.filtered = w.filtered.wrapping_add(n[2]);
                w.false_positives = w.false_positives.wrapping_add(n[3]);
            } else {
                shown.insert(entry.number, watches.len());
                watches.push(entry.row(n));
            }
        }
        for entry in listing.entries.iter().filter(|e| e.state != State::Armed) {
            if shown.contains_key(&entry.number) {
                continue;
            }
            if watches.len() >= WATCHES {
                more += 1;
                continue;
            }
            watches.push(entry.row([0; 4]));
        }
        // An ended watch is remembered for its last hits. The limit guards against a program that writes new numbers
        // for ever.
        if self.known.len() > 2 * WATCHES {
            let present: HashSet<u32> = watches.iter().filter_map(|w| w.id).collect();
            self.known.retain(|id, _| present.contains(id));
            self.values.retain(|id, _| present.contains(id));
            self.before_watch.retain(|id, _| present.contains(id));
        }
        self.listing = listing;
        watches.sort_by_key(|w| (w.number.unwrap_or(usize::MAX), w.id));
        self.snapshot.totals = Totals {
            hits: totals.hits,
            silent: totals.silent,
            filtered: totals.filtered,
            ..self.snapshot.totals
        };
        (self.snapshot.watches, self.snapshot.more_watches) = (watches, more);
    }

    fn rings(&mut self, rate: &dyn Fn(f64, u64, u64) -> f64, feed: Option<Wanted>) {
        let rings = self.shared.rings();
        let mut changed: Vec<usize> = Vec::new();
        for n in 0..rings {
            let records = self.shared.head(n).1;
            let ring = self.rings.entry(n).or_default();
            ring.rate = rate(ring.rate, records, ring.records);
            if records != ring.records {
                changed.push(n);
                ring.records = records;
            }
        }
        // (A ring that is skipped now reports the next time how many hits were left out.)
        let all = changed.len();
        if all > RINGS {
            changed.rotate_left(self.turn % all);
            changed.truncate(RINGS);
            self.turn = self.turn.wrapping_add(RINGS);
        }
        let slots = (SLOTS / changed.len().max(1) as u64).max(LEAST);
        let mut hits: Vec<Hit> = Vec::new();
        for n in changed {
            let before = hits.len();
            self.reader.keep_last(&self.shared, n, slots);
            // Incomplete records, and those over the limit, are read the next time.
            let take = |hit: Hit| hits.push(hit);
            self.reader.read(&self.shared, n, slots as usize, take);
            if let (Some(ring), Some(hit)) = (self.rings.get_mut(&n), hits[before..].last()) {
                ring.tid = hit.tid;
                let hit = hit.clone();
                ring.last = self.names.place(hit.pc).text;
            }
        }
        if hits.iter().any(|h| !self.names.knows_code(h.pc))
            && self.refreshed.elapsed() > Duration::from_secs(1)
        {
            self.names.refresh();
            self.refreshed = Instant::now();
        }
        hits.sort_by_key(|hit| hit.time);
        let mut lines = Vec::new();
        for hit in hits.iter().rev() {
            if !self.sites.contains_key(&hit.pc) && self.sites.len() >= PAGES {
                continue;
            }
            let site = self.sites.entry(hit.pc).or_default();
            site.hits += 1;
            site.recent += 1.0;
            site.by_kernel |= hit.call.is_some();
            site.by_register |= self.shared.counters(hit.watch).placement.load(Relaxed) != 0;
        }
        let mut left_out = hits.iter().map(|h| h.lost).fold(0, u64::saturating_add);
        let mut seen: HashSet<u32> = HashSet::new();
        for hit in hits.into_iter().rev() {
            let Some(watch) = self.known.get(&hit.watch).cloned() else {
                continue;
            };
            if seen.insert(hit.watch) {
                let value = self.names.value(&watch, &hit);
                self.values.insert(hit.watch, value);
            }
            let Some(wanted) = feed else { continue };
            if lines.len() >= LINES {
                left_out += 1;
                continue;
            }
            let place = self.names.place(hit.pc).text;
            if wanted(&watch.name, &place, hit.tid) {
                lines.extend(self.line(hit));
            }
        }
        self.snapshot.unseen = self.snapshot.unseen.saturating_add(left_out);
        for mut line in lines.into_iter().rev() {
            self.lines += 1;
            line.number = self.lines;
            self.snapshot.push(line);
        }
    }

    /// Takes the stub's data of instructions: faults, how many of them met no watch, and why they are not patched.
    pub(crate) fn know_sites(&mut self, value: &serde_json::Value) {
        for site in sites_of(value) {
            if self.sites.len() >= PAGES && !self.sites.contains_key(&site.pc) {
                continue;
            }
            let known = self.sites.entry(site.pc).or_default();
            known.traps = Some((site.faults, site.beside));
            let patched = [Unpatched::Page, Unpatched::Beneath]
                .iter()
                .any(|w| w.why() == site.why);
            known.patched = patched;
            known.why = if patched {
                String::new()
            } else {
                site.why.into_owned()
            };
        }
    }

    /// Whether this watch, by the stub's number, has been seen.
    pub fn knows(&self, watch: u32) -> bool {
        self.known.contains_key(&watch)
    }

    /// A hit in words; `None` if its watch is unknown.
    pub fn line(&mut self, hit: Hit) -> Option<Line> {
        let watch = self.known.get(&hit.watch)?.clone();
        let place = self.names.place(hit.pc);
        let (named, change) = self.names.hit(&watch, &hit);
        let callers = self.names.callers(&hit.frames);
        let by = own_caller(&place.full, &callers);
        let clock = self.shared.clock();
        Some(Line {
            number: 0,
            nanos: clock.nanos(hit.time).saturating_sub(clock.base_ns),
            tid: hit.tid,
            verb: verb(hit.kind),
            name: named.name.clone(),
            change,
            place: match &by {
                Some(by) => by.text.as_str().into(),
                None => place.text,
            },
            known: Rc::new(Known {
                watch: self.listing.armed(hit.watch).map(|e| e.number),
                watched: Some(watch),
                named,
                place: place.full,
                by,
                callers,
            }),
            hit,
        })
    }

    fn sites(&mut self) {
        let all: f64 = self.sites.values().map(|s| s.recent).sum();
        let per_hit = self.snapshot.rates.hits / all.max(1.0);
        let mut rows: Vec<Site> = Vec::with_capacity(self.sites.len());
        for (pc, s) in &mut self.sites {
            let place = self.names.place(*pc);
            rows.push(Site {
                pc: *pc,
                function: place.function,
                line: place.line,
                served: match () {
                    _ if s.by_kernel => Served::Syscall,
                    _ if s.by_register => Served::Register,
                    _ if s.patched => Served::Patched,
                    _ => Served::Trap,
                },
                sampled: s.hits,
                share: s.recent / all.max(1.0),
                traps: s.traps,
                why: s.why.clone(),
                rate: s.recent * per_hit,
            });
            s.recent *= KEPT;
        }
        rows.sort_by_key(|s| (std::cmp::Reverse(s.sampled), s.pc));
        self.snapshot.sites = rows;
    }

    fn pages(&mut self) {
        let mut pages: BTreeMap<u64, Page> = BTreeMap::new();
        let mut steps = STEPS;
        let somewhere = |w: &&Watch| w.len > 0 && (w.moved.is_none() || w.addr != 0);
        for w in self.snapshot.watches.iter().filter(somewhere) {
            let end = w.addr.saturating_add(w.len);
            let (first, last) = (w.addr / PAGE_SIZE, (end - 1) / PAGE_SIZE);
            for (n, page) in (first..=last).enumerate() {
                if steps == 0 || pages.len() >= PAGES && !pages.contains_key(&page) {
                    break;
                }
                steps -= 1;
                let row = pages.entry(page).or_default();
                row.addr = page * PAGE_SIZE;
                row.watches += 1;
                let from = w.addr.max(row.addr);
                row.bytes += end
                    .min(row.addr.saturating_add(PAGE_SIZE))
                    .saturating_sub(from);
                // A watch is counted as a whole; if it has several pages, each gets its share.
                row.hits += w.rate / (last - first + 1) as f64;
                if n == 0 {
                    row.false_positives += w.false_rate;
                }
            }
        }
        self.snapshot.pages = pages.into_values().collect();
    }

    fn states(&mut self) {
        let pid = self.snapshot.pid;
        let mut rows: BTreeMap<i32, Thread> = BTreeMap::new();
        for ring in self.rings.values().filter(|r| r.tid != 0) {
            let row = rows.entry(ring.tid as i32).or_default();
            row.tid = ring.tid as i32;
            row.logged = row.logged.wrapping_add(ring.records);
            row.rate += ring.rate;
            row.last = ring.last.clone();
        }
        let alive = match self.elsewhere {
            true => Vec::new(),
            false => process::threads(pid).unwrap_or_default(),
        };
        for tid in alive.iter().copied().take(512) {
            if let Ok(status) = process::Status::of_thread(pid, tid) {
                let row = rows.entry(tid).or_default();
                row.tid = tid;
                row.name = status.name().to_string();
                row.state = status.state();
            }
        }
        // Ended threads are shown only for their hits.
        rows.retain(|_, r| r.state != '\0' || r.logged > 0);
        self.snapshot.threads = rows.into_values().collect();
    }
}

/// Subcommand of the watching ulpf.
fn subcommand(pid: i32) -> String {
    const ALL: [&str; 6] = ["run", "attach", "check", "server", "gdb", "dap"];
    let word = process::command_line(pid).into_iter().nth(1);
    let known = word.filter(|word| ALL.contains(&&word[..]));
    known.unwrap_or_else(|| "?".into())
}
