//! Contents of the tables: columns and rows, in order.

use super::figures::{figure, short};
use super::heap::Heap;
use super::view::{Table, View, contains, passes};
use std::borrow::Cow;
use std::cmp::Ordering;
use ulpf_host::foreign::text::shown;
use ulpf_session::hit::Line;
use ulpf_session::snapshot::{Page, Site, Snapshot, State, Thread, Watch};
use ulpf_session::words::Seconds;

pub struct Column {
    pub title: &'static str,
    pub width: u16,
    pub right: bool,
    /// In narrow terminals, columns with the largest number are omitted first; 0 is never omitted.
    pub spare: u8,
}

const fn left(title: &'static str, width: u16, spare: u8) -> Column {
    Column {
        title,
        width,
        right: false,
        spare,
    }
}

const fn right(title: &'static str, width: u16, spare: u8) -> Column {
    Column {
        title,
        width,
        right: true,
        spare,
    }
}

/// The column with width 0 gets the remaining width.
pub fn columns(view: View) -> &'static [Column] {
    const WATCHES: &[Column] = &[
        right("#", 4, 0),
        left("watch", 0, 0),
        left("kind", 4, 1),
        right("hits/s", 7, 0),
        right("hits", 10, 0),
        right("silent", 8, 3),
        right("false", 9, 1),
        left("last value", 15, 0),
        left("state", 8, 2),
        right("filtered", 9, 4),
        left("address", 14, 4),
        right("length", 8, 4),
        right("moved", 7, 4),
    ];
    const SITES: &[Column] = &[
        left("function", 0, 0),
        left("line", 22, 0),
        left("served", 8, 0),
        right("hits/s", 8, 0),
        right("share", 6, 0),
        right("traps", 9, 2),
        right("false", 6, 2),
        left("address", 14, 3),
    ];
    const PAGES: &[Column] = &[
        left("page", 14, 0),
        right("watches", 8, 0),
        right("bytes", 6, 0),
        right("hits/s", 8, 0),
        right("false/s", 8, 0),
        left("heat", 0, 0),
    ];
    const THREADS: &[Column] = &[
        right("thread", 8, 0),
        left("name", 16, 0),
        left("state", 9, 0),
        right("logged/s", 9, 0),
        right("logged", 10, 0),
        left("last hit at", 0, 0),
    ];
    const HITS: &[Column] = &[
        right("time", 11, 0),
        right("thread", 8, 1),
        left("access", 6, 0),
        left("watch", 20, 0),
        left("value", 26, 0),
        left("where", 0, 0),
    ];
    const HEAP: &[Column] = &[
        left("kind", 15, 0),
        right("count", 7, 0),
        right("bytes", 9, 3),
        left("what", 0, 0),
        left("where", 24, 0),
    ];
    match view {
        View::Heap => HEAP,
        View::Watches => WATCHES,
        View::Sites => SITES,
        View::Pages => PAGES,
        View::Threads => THREADS,
        View::Hits => HITS,
    }
}

/// The style of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Tone {
    #[default]
    Plain,
    Dim,
    Good,
    Bad,
    Heat(f64),
}

pub struct Row {
    /// Identity of the row, independent of its position.
    pub key: u64,
    /// Position in the session's list.
    pub at: usize,
    pub cells: Vec<String>,
    /// Sort keys of numeric columns; text columns sort by their text.
    pub order: Vec<f64>,
    pub tone: Tone,
}

pub fn rows(session: &Snapshot, heap: Option<&Heap>, view: View) -> Vec<Row> {
    let mut rows = match view {
        View::Heap => heap.map_or(Vec::new(), of_heap),
        View::Watches => watches(session),
        View::Sites => sites(session),
        View::Pages => pages(session),
        View::Threads => threads(session),
        View::Hits => hits(session),
    };
    // Names come from the program and its owner, so they are made printable.
    for cell in rows.iter_mut().flat_map(|row| &mut row.cells) {
        if let Cow::Owned(shown) = shown(cell) {
            *cell = shown;
        }
    }
    rows
}

fn watches(session: &Snapshot) -> Vec<Row> {
    let row = |(at, w): (usize, &Watch)| {
        let state = match w.state {
            State::Armed if w.register => "register",
            State::Armed if w.counts_only => "counts",
            State::Armed => "guard",
            State::Off => "off",
            State::Gone => "gone",
            State::Waiting => "waiting",
            State::Refused => "refused",
        };
        let number = w.number.unwrap_or(w.id.map_or(0, |id| id as usize + 1));
        let value = match w.note.is_empty() {
            true => w.last.clone(),
            false => w.note.clone(),
        };
        Row {
            // The key is the same before and after the owner has described the watch, because a server numbers watches
            // as the stub does.
            key: number as u64,
            at,
            cells: vec![
                number.to_string(),
                w.name.to_string(),
                w.kind.to_string(),
                short(w.rate),
                figure(w.hits),
                figure(w.silent),
                figure(w.false_positives),
                value,
                state.to_string(),
                figure(w.filtered),
                if w.addr == 0 && w.moved.is_some() {
                    "nowhere".into()
                } else if w.addr == 0 {
                    "-".into()
                } else {
                    format!("{:#x}", w.addr)
                },
                if w.len == 0 {
                    "-".into()
                } else {
                    figure(w.len)
                },
                w.moved.map_or("-".into(), figure),
            ],
            order: vec![
                number as f64,
                0.0,
                0.0,
                -w.rate,
                -(w.hits as f64),
                -(w.silent as f64),
                -(w.false_positives as f64),
                0.0,
                0.0,
                -(w.filtered as f64),
                w.addr as f64,
                w.len as f64,
                -(w.moved.unwrap_or(0) as f64),
            ],
            tone: match w.state {
                State::Off | State::Waiting => Tone::Dim,
                State::Gone | State::Refused => Tone::Bad,
                State::Armed if w.rate > 0.0 => Tone::Good,
                State::Armed => Tone::Plain,
            },
        }
    };
    session.watches.iter().enumerate().map(row).collect()
}

fn sites(session: &Snapshot) -> Vec<Row> {
    let row = |(at, s): (usize, &Site)| {
        let share = s.share;
        let false_share = s.traps.map(|(n, f)| f as f64 / n.max(1) as f64);
        Row {
            key: s.pc,
            at,
            cells: vec![
                s.function.to_string(),
                s.line.to_string(),
                s.served.word().to_string(),
                short(s.rate),
                format!("{:.0}%", share * 100.0),
                s.traps.map_or("-".into(), |(n, _)| figure(n)),
                false_share.map_or("-".into(), |f| format!("{:.0}%", f * 100.0)),
                format!("{:#x}", s.pc),
            ],
            order: vec![
                0.0,
                0.0,
                0.0,
                -s.rate,
                -share,
                -s.traps.map_or(-1.0, |(n, _)| n as f64),
                -false_share.unwrap_or(-1.0),
                s.pc as f64,
            ],
            tone: Tone::Heat(share),
        }
    };
    session.sites.iter().enumerate().map(row).collect()
}

fn pages(session: &Snapshot) -> Vec<Row> {
    let heat = |p: &Page| p.hits + p.false_positives;
    let most = session.pages.iter().map(heat).fold(0.0, f64::max);
    let row = |(at, p): (usize, &Page)| {
        let level = level(heat(p), most);
        Row {
            key: p.addr,
            at,
            cells: vec![
                format!("{:#x}", p.addr),
                figure(p.watches.into()),
                figure(p.bytes),
                short(p.hits),
                short(p.false_positives),
                String::new(),
            ],
            order: vec![
                p.addr as f64,
                -f64::from(p.watches),
                -(p.bytes as f64),
                -p.hits,
                -p.false_positives,
                -level,
            ],
            tone: Tone::Heat(level),
        }
    };
    session.pages.iter().enumerate().map(row).collect()
}

/// Heat on a logarithmic scale, so that a page with one hit a second is visible beside one with a million.
pub fn level(heat: f64, most: f64) -> f64 {
    match heat > 0.0 && most > 0.0 {
        true => ((1.0 + heat).ln() / (1.0 + most).ln()).clamp(0.05, 1.0),
        false => 0.0,
    }
}

fn threads(session: &Snapshot) -> Vec<Row> {
    let row = |(at, t): (usize, &Thread)| {
        let state = match t.state {
            'R' => "runs",
            'S' => "sleeps",
            'D' => "in kernel",
            'T' | 't' => "stopped",
            'Z' | 'X' => "ends",
            '\0' => "ended",
            _ => "?",
        };
        Row {
            key: t.tid as u64,
            at,
            cells: vec![
                t.tid.to_string(),
                t.name.clone(),
                state.to_string(),
                short(t.rate),
                figure(t.logged),
                t.last.to_string(),
            ],
            order: vec![f64::from(t.tid), 0.0, 0.0, -t.rate, -(t.logged as f64), 0.0],
            tone: match t.state {
                '\0' => Tone::Dim,
                _ if t.rate > 0.0 => Tone::Good,
                _ => Tone::Plain,
            },
        }
    };
    session.threads.iter().enumerate().map(row).collect()
}

fn hits(session: &Snapshot) -> Vec<Row> {
    let row = |(at, l): (usize, &Line)| Row {
        key: l.number,
        at,
        cells: vec![
            Seconds(l.nanos).to_string(),
            l.tid.to_string(),
            l.verb.to_string(),
            l.name.to_string(),
            l.change.clone(),
            l.place.to_string(),
        ],
        order: Vec::new(),
        tone: Tone::Plain,
    };
    session.feed.iter().enumerate().map(row).collect()
}

/// `read of 4 bytes at 0x7ff6c0030060, 0 bytes behind …`: the address is shown only in the details.
fn without_address(what: &str) -> String {
    match what.split_once(" at 0x") {
        Some((access, rest)) => {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            format!("{access}{rest}")
        }
        None => what.to_string(),
    }
}

/// Errors in the order in which they were found, then blocks.
fn of_heap(heap: &Heap) -> Vec<Row> {
    let row = |(at, key): (usize, u64)| {
        let (kind, n, bytes, what, place) = match (heap.error(key), heap.blocks_of(key)) {
            (Some(found), _) => {
                let place = found.here.first().or(found.allocated_by.first());
                let what = without_address(&found.what);
                (found.kind.to_string(), found.count, None, what, place)
            }
            (None, Some(blocks)) => {
                let place = blocks.allocated_by.first();
                let what = "blocks, allocated by".to_string();
                (
                    blocks.how.clone(),
                    blocks.count,
                    Some(blocks.bytes),
                    what,
                    place,
                )
            }
            (None, None) => return None,
        };
        Some(Row {
            key,
            at,
            order: vec![
                at as f64 + 1.0,
                -(n as f64),
                -(bytes.unwrap_or(0) as f64),
                0.0,
                0.0,
            ],
            cells: vec![
                kind,
                figure(n),
                bytes.map_or("-".into(), figure),
                what,
                place.cloned().unwrap_or_default(),
            ],
            tone: match bytes {
                None => Tone::Bad,
                Some(_) => Tone::Plain,
            },
        })
    };
    heap.keys().enumerate().filter_map(row).collect()
}

/// Removes rows that do not match the search, and sorts the rest.
pub fn arrange(mut rows: Vec<Row>, view: View, table: &Table, feed_filter: &str) -> Vec<Row> {
    if view == View::Hits {
        rows.retain(|r| {
            let tid = r.cells[1].parse().unwrap_or(0);
            passes(feed_filter, &r.cells[3], &r.cells[5], tid)
        });
        return rows;
    }
    rows.retain(|r| {
        let mut words = table.search.split_whitespace();
        words.all(|w| r.cells.iter().any(|c| contains(c, w)))
    });
    let by = table.sort;
    rows.sort_by(|a, b| {
        let numbers = |r: &Row| r.order.get(by).copied().unwrap_or(0.0);
        let order = numbers(a)
            .partial_cmp(&numbers(b))
            .unwrap_or(Ordering::Equal);
        let order = match numbers(a) == 0.0 && numbers(b) == 0.0 {
            true => a.cells[by].cmp(&b.cells[by]),
            false => order,
        };
        if table.reverse {
            order.reverse()
        } else {
            order
        }
    });
    rows
}
