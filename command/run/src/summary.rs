//! The summary at the end: counts per watch, totals, losses.

use super::watches::Watch;
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::value::RawValue;
use std::fmt::{self, Write};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use ulpf_area::SharedArea;
use ulpf_host::foreign::text::Text;
use ulpf_host::say::json::{self, Address};
use ulpf_lib::ring::{SharedHeader, Unpatched, listed};
use ulpf_session::armed::Armed;
use ulpf_session::words::count;

/// Up to this number, watches without a hit are listed one by one.
const LIST_IDLE: usize = 24;

/// From this number on, the causes of faults are listed.
const MANY_FAULTS: u64 = 10_000;

/// The counters of one watch, read once.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub number: usize,
    pub name: String,
    /// Address of its first place.
    pub addr: u64,
    /// Bytes of all its places.
    pub len: u64,
    pub places: usize,
    pub kind: &'static str,
    pub hits: u64,
    pub silent: u64,
    /// Hits that its filter has rejected.
    pub filtered: u64,
    pub false_positives: u64,
    /// In a debug register at the end.
    pub register: bool,
    /// Hits that a debug register has reported.
    pub traps: u64,
    /// Reason why it was not watched.
    pub refused: Option<String>,
    /// Its memory was unmapped at the end.
    pub gone: bool,
    /// Number of moves, if it follows pointers.
    pub moved: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub rows: Vec<Row>,
    pub lost: u64,
    pub faults: u64,
    pub false_positives: u64,
    pub slow: u64,
    /// Faults by the reason why no patch has spared them.
    pub unpatched: Vec<(&'static str, u64)>,
    pub syscalls: u64,
    pub seconds: f64,
    /// If there are several processes: this one, and the one that it was forked from.
    pub process: Option<(i32, Option<i32>)>,
    /// Its rank in an MPI program.
    pub rank: Option<u32>,
    /// The program's name, if there are several processes.
    pub program: String,
    pub after_exec: bool,
}

impl Summary {
    pub fn read(watches: &[Watch], shared: &SharedArea, lost: u64, seconds: f64) -> Summary {
        let header = shared.header();
        let shown = |(_, w): &(usize, &Watch)| !w.deleted || !w.past.is_empty();
        let rows = watches.iter().enumerate().filter(shown);
        let rows = rows.map(|(number, watch)| {
            let mut row = Row {
                number: number + 1,
                name: watch.spec.text.clone(),
                ..Row::default()
            };
            if let Some(first) = watch.watched.first() {
                (row.addr, row.len, row.places) = (first.addr, watch.len(), watch.watched.len());
            }
            row.kind = watch.spec.kind.word();
            let ids = watch.past.iter().chain(match &watch.armed {
                Armed::Yes(ids) => &ids[..],
                _ => &[],
            });
            for id in ids {
                let counters = shared.counters(*id);
                let (hits, silent) = shared.hits(*id);
                // The program may have written anything there.
                let add = |to: &mut u64, n: u64| *to = to.saturating_add(n);
                add(&mut row.hits, hits);
                add(&mut row.silent, silent);
                add(&mut row.filtered, counters.filtered.load(Relaxed));
                add(
                    &mut row.false_positives,
                    counters.false_positives.load(Relaxed),
                );
                row.gone = counters.gone.load(Relaxed) != 0;
                let table = shared.watch_table();
                let line = table.get(*id as usize);
                if let Some(line) = line.filter(|l| l.what.load(Acquire) & listed::FOLLOWS != 0) {
                    row.addr = line.start.load(Relaxed);
                    add(row.moved.get_or_insert(0), counters.moved.load(Relaxed));
                }
                add(&mut row.traps, counters.traps.load(Relaxed));
                row.register = counters.placement.load(Relaxed) != 0;
            }
            row.refused = match &watch.armed {
                Armed::No(problem) => Some(problem.to_string()),
                Armed::Pending(_) if watch.past.is_empty() => {
                    Some("its library was never loaded".into())
                }
                _ => None,
            };
            row
        });
        let unpatched = |header: &SharedHeader| {
            let counted = header.unpatched.iter().map(|n| n.load(Relaxed));
            let named = Unpatched::ALL.iter().map(|why| why.why()).zip(counted);
            let mut some: Vec<_> = named.filter(|(_, n)| *n > 0).collect();
            some.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
            some
        };
        Summary {
            rows: rows.collect(),
            lost,
            faults: header.faults.load(Relaxed),
            false_positives: header.all_false_positives(shared.areas()),
            slow: header.slow.load(Relaxed),
            unpatched: unpatched(header),
            syscalls: header.syscalls.load(Relaxed),
            seconds,
            process: None,
            rank: None,
            program: String::new(),
            after_exec: false,
        }
    }

    /// False positives that belong to no single watch: a patched instruction that meets no watch continues without
    /// looking for the nearest one.
    fn beside_any(&self) -> u64 {
        let listed = self.rows.iter().map(|r| r.false_positives);
        let listed = listed.fold(0, u64::saturating_add);
        self.false_positives.saturating_sub(listed)
    }

    /// Text for people. With `all`, lists every watch without a hit.
    pub fn text(&self, all: bool) -> String {
        let mut out = String::new();
        let sum = |f: fn(&Row) -> u64| self.rows.iter().map(f).fold(0, u64::saturating_add);
        let (hits, silent) = (sum(|r| r.hits), sum(|r| r.silent));
        let filtered = sum(|r| r.filtered);
        let name = match self.program.as_str() {
            "" => String::new(),
            name => format!(" ({})", Text(name)),
        };
        let _ = writeln!(
            out,
            "ulpf: {}{}{} on {}, {}, {}{} in {:.3} s",
            self.rank
                .map_or(String::new(), |rank| format!("rank {rank}: ")),
            match self.process {
                None => String::new(),
                Some((pid, _)) if self.after_exec => format!("process {pid}{name} after exec: "),
                Some((pid, None)) => format!("process {pid}{name}: "),
                Some((pid, Some(parent))) => format!("process {pid}{name}, forked by {parent}: "),
            },
            count(hits, "hit"),
            count(self.rows.len() as u64, "watch"),
            count(silent, "silent store"),
            match filtered {
                0 => String::new(),
                n => format!("{n} filtered out, "),
            },
            count(self.false_positives, "false positive"),
            self.seconds
        );
        let idle = |r: &&Row| r.hits == 0 && r.refused.is_none();
        let folded = !all && self.rows.iter().filter(idle).count() > LIST_IDLE;
        // A refused watch may have been hit before: say, its library has come back different.
        let shown = |r: &&Row| match r.refused {
            Some(_) => r.hits > 0 || r.false_positives > 0,
            None => !folded || r.hits > 0,
        };
        let rows: Vec<&Row> = self.rows.iter().filter(shown).collect();
        // Only if there are filtered hits.
        let column = |text: &str| match filtered {
            0 => String::new(),
            _ => format!("{text:>10} "),
        };
        if !rows.is_empty() {
            let width = rows
                .iter()
                .map(|r| r.len.to_string().len())
                .max()
                .unwrap_or(0)
                .max(6);
            let _ = writeln!(
                out,
                "{:>12} {:>10} {}{:>10}  kind  {:<8}  {:<14} {:>width$}  watch",
                "hits",
                "silent",
                column("filtered"),
                "false",
                "place",
                "address",
                "length"
            );
            for r in rows {
                let _ = writeln!(
                    out,
                    "{:>12} {:>10} {}{:>10}  {:<4}  {:<8}  {:<14} {:>width$}  {}{}",
                    r.hits,
                    r.silent,
                    column(&r.filtered.to_string()),
                    r.false_positives,
                    r.kind,
                    if r.register { "register" } else { "guard" },
                    match (r.len, r.addr, r.moved) {
                        (0, ..) => "-".into(),
                        (_, 0, Some(_)) => "nowhere".into(),
                        (_, addr, _) => format!("{addr:#x}"),
                    },
                    if r.len == 0 {
                        "-".into()
                    } else {
                        r.len.to_string()
                    },
                    match r.places {
                        0 | 1 => Text(&r.name).to_string(),
                        n => format!("{} ({n} places)", Text(&r.name)),
                    },
                    match r.moved {
                        None => String::new(),
                        Some(n) => format!(" (moved {})", count(n, "time")),
                    }
                );
            }
        }
        // Rows without a watch, so that each column adds up to the figure above.
        let mut rest = |false_positives: u64, what: fmt::Arguments| {
            let _ = writeln!(
                out,
                "{:>12} {:>10} {}{:>10}  {what}",
                "",
                "",
                column(""),
                false_positives
            );
        };
        if folded {
            let rows = self.rows.iter().filter(idle);
            let (mut idle, mut false_positives) = (0, 0u64);
            for row in rows {
                idle += 1;
                false_positives = false_positives.saturating_add(row.false_positives);
            }
            let idle = count(idle, "watch");
            rest(
                false_positives,
                format_args!("{idle} without a hit (--summary lists them)"),
            );
        }
        if !self.rows.is_empty() && self.beside_any() > 0 {
            rest(
                self.beside_any(),
                format_args!("by patched instructions, which tell no watch"),
            );
        }
        for (row, why) in self
            .rows
            .iter()
            .filter_map(|r| Some((r, r.refused.as_ref()?)))
        {
            let name = Text(&row.name);
            let _ = writeln!(out, "ulpf: `{name}` was not watched: {why}");
        }
        for row in self.rows.iter().filter(|r| r.gone) {
            let _ = writeln!(
                out,
                "ulpf: the memory of `{}` was gone at the end",
                Text(&row.name)
            );
        }
        if self.lost > 0 {
            let _ = writeln!(
                out,
                "ulpf: {} missing from the log, which was written slower than they came; the counts above are exact",
                count(self.lost, "hit")
            );
        }
        let _ = writeln!(
            out,
            "ulpf: {}, {} on the slow path, {}",
            count(self.faults, "fault"),
            self.slow,
            count(self.syscalls, "system call")
        );
        if self.faults >= MANY_FAULTS && !self.unpatched.is_empty() {
            let _ = writeln!(out, "ulpf: why instructions still fault:");
            for (why, n) in &self.unpatched {
                let _ = writeln!(out, "{n:>12} {why}");
            }
        }
        out
    }

    /// One JSON line.
    pub fn json(&self) -> String {
        let watch = |r: &Row| WatchJson {
            watch: r.number,
            spec: r.name.clone(),
            kind: r.kind,
            addr: Address(r.addr),
            len: r.len,
            places: (r.places > 1).then_some(r.places),
            hits: r.hits,
            silent: r.silent,
            filtered: r.filtered,
            false_positives: r.false_positives,
            placement: match r.register {
                true => "debug-register",
                false => "guard",
            },
            traps: r.traps,
            gone: r.gone.then_some(true),
            moved: r.moved,
            refused: r.refused.clone(),
        };
        json::line(&SummaryJson {
            r#type: "summary",
            pid: self.process.map(|(pid, _)| pid),
            rank: self.rank,
            program: if self.process.is_some() {
                &self.program
            } else {
                ""
            },
            seconds: json::number(format_args!("{:.6}", self.seconds)),
            lost: self.lost,
            faults: self.faults,
            false_positives: self.false_positives,
            false_positives_patched: self.beside_any(),
            slow: self.slow,
            syscalls: self.syscalls,
            unpatched: Causes(&self.unpatched),
            watches: self.rows.iter().map(watch).collect(),
        })
    }
}

/// Totals of all processes.
pub fn of_all(all: &[Summary]) -> String {
    let sum = |f: &dyn Fn(&Summary) -> u64| all.iter().map(f).fold(0, u64::saturating_add);
    let rows = |f: fn(&Row) -> u64| {
        sum(&move |s: &Summary| s.rows.iter().map(f).fold(0, u64::saturating_add))
    };
    let filtered = match rows(|r| r.filtered) {
        0 => String::new(),
        n => format!("{n} filtered out, "),
    };
    let lost = match sum(&|s| s.lost) {
        0 => String::new(),
        n => format!(", {} missing from the log", count(n, "hit")),
    };
    format!(
        "ulpf: all {} processes: {}, {}, {filtered}{}{lost}\n",
        all.len(),
        count(rows(|r| r.hits), "hit"),
        count(rows(|r| r.silent), "silent store"),
        count(sum(&|s| s.false_positives), "false positive"),
    )
}

/// docs/json.md describes it.
#[derive(Serialize)]
struct SummaryJson<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    #[serde(skip_serializing_if = "str::is_empty")]
    program: &'a str,
    seconds: Option<Box<RawValue>>,
    lost: u64,
    faults: u64,
    false_positives: u64,
    false_positives_patched: u64,
    slow: u64,
    syscalls: u64,
    unpatched: Causes<'a>,
    watches: Vec<WatchJson>,
}

#[derive(Serialize)]
struct WatchJson {
    watch: usize,
    spec: String,
    kind: &'static str,
    addr: Address,
    len: u64,
    /// If there are several: `addr` is that of the first, `len` that of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    places: Option<usize>,
    hits: u64,
    silent: u64,
    filtered: u64,
    false_positives: u64,
    placement: &'static str,
    traps: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gone: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// An object, in the order of the figures.
struct Causes<'a>(&'a [(&'static str, u64)]);

impl Serialize for Causes<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (why, n) in self.0 {
            map.serialize_entry(why, n)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize) -> Vec<Row> {
        let row = |i: usize| Row {
            number: i + 1,
            name: format!("v[{i}]"),
            addr: 0x404040 + 4 * i as u64,
            len: 4,
            kind: "w",
            hits: if i == 1 { 3 } else { 0 },
            silent: if i == 1 { 1 } else { 0 },
            ..Row::default()
        };
        (0..n).map(row).collect()
    }

    #[test]
    fn few_watches() {
        let mut s = Summary {
            rows: rows(2),
            faults: 5,
            false_positives: 2,
            syscalls: 9,
            seconds: 0.25,
            ..Default::default()
        };
        assert_eq!(
            s.text(false),
            "ulpf: 3 hits on 2 watches, 1 silent store, 2 false positives in 0.250 s\n\
             \x20       hits     silent      false  kind  place     address        length  watch\n\
             \x20          0          0          0  w     guard     0x404040            4  v[0]\n\
             \x20          3          1          0  w     guard     0x404044            4  v[1]\n\
             \x20                                2  by patched instructions, which tell no watch\n\
             ulpf: 5 faults, 0 on the slow path, 9 system calls\n"
        );
        s.rows[1].filtered = 2;
        let text = s.text(false);
        let (head, rest) = text.split_once('\n').unwrap();
        assert!(
            head.contains("1 silent store, 2 filtered out, 2 false"),
            "{head}"
        );
        assert!(
            rest.starts_with("        hits     silent   filtered      false  kind"),
            "{rest}"
        );
        assert!(
            rest.contains("\n           3          1          2          0  w "),
            "{rest}"
        );
        s.faults = 30_000;
        s.unpatched = vec![("not hot yet", 10), ("patching is off", 7)];
        let text = s.text(false);
        assert!(text.contains("still fault"), "{text}");
        assert!(
            text.contains("\n          10 not hot yet\n           7 patching is off\n"),
            "{text}"
        );
        s.lost = 1;
        s.rows[0].refused = Some("because".into());
        let text = s.text(false);
        assert!(
            text.contains("ulpf: `v[0]` was not watched: because\n"),
            "{text}"
        );
        assert!(text.contains("1 hit missing from the log"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&s.json()).unwrap();
        assert_eq!(
            (&json["watches"][1]["hits"], &json["lost"]),
            (&3.into(), &1.into())
        );
        assert_eq!(json["watches"][0]["refused"], "because");
        assert_eq!(json["unpatched"]["not hot yet"], 10);
    }

    #[test]
    fn many_idle_watches_are_folded() {
        let s = Summary {
            rows: rows(1000),
            ..Default::default()
        };
        assert!(s.text(false).contains(" 999 watches without a hit"));
        assert_eq!(s.text(false).lines().count(), 5);
        assert_eq!(s.text(true).lines().count(), 1003);
    }

    /// The sum of a column of the table, located by the end of its heading.
    fn sum(text: &str, column: &str) -> u64 {
        let mut lines = text.lines().skip(1);
        let head = lines.next().unwrap();
        let end = head.find(&format!(" {column} ")).unwrap() + 1 + column.len();
        let table = lines.take_while(|l| l.starts_with(' '));
        let cell = |l: &str| l[..end].rsplit(' ').next().unwrap().parse().unwrap_or(0);
        table.map(cell).sum()
    }

    #[test]
    fn each_column_adds_up_to_its_figure_above() {
        for (watches, all) in [
            (2, false),
            (24, false),
            (25, false),
            (1000, false),
            (1000, true),
        ] {
            for filtered in [0, 2] {
                let mut s = Summary {
                    rows: rows(watches),
                    false_positives: 7 * watches as u64 + 17,
                    ..Default::default()
                };
                s.rows.iter_mut().for_each(|r| r.false_positives = 7);
                s.rows[0].refused = Some("its library came back different".into());
                (s.rows[0].hits, s.rows[1].filtered) = (5, filtered);
                let text = s.text(all);
                assert!(text.starts_with("ulpf: 8 hits on"), "{text}");
                assert_eq!(sum(&text, "hits"), 8, "{text}");
                assert_eq!(sum(&text, "silent"), 1, "{text}");
                assert_eq!(sum(&text, "false"), s.false_positives, "{text}");
                if filtered > 0 {
                    assert_eq!(sum(&text, "filtered"), filtered, "{text}");
                }
            }
        }
    }
}
