//! Hits and counters for other tools: JSON lines, CSV, a trace for ui.perfetto.dev and chrome://tracing, metrics for
//! Prometheus. Hits are read from the rings in order of time while the program runs. Hits that come faster than they
//! are written are counted.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::value::RawValue;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use ulpf_host::say::json::{self, Address};
use ulpf_session::hit::Line;
use ulpf_session::hit::entry::CSV_HEAD;
use ulpf_session::hit::trace::Meta;
use ulpf_session::snapshot::Snapshot;
use ulpf_session::suffix::{Kind, kind_of};

/// Format of hits, for other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One object a line
    Jsonl,
    /// A line of names, then a line for each hit
    Csv,
    /// Chrome's trace format, for ui.perfetto.dev
    Trace,
}

impl Format {
    /// The format for a file of this name.
    pub fn of(path: &Path) -> Result<Format> {
        Ok(match kind_of(path) {
            Some(Kind::Jsonl) => Format::Jsonl,
            Some(Kind::Csv) => Format::Csv,
            Some(Kind::Trace) => Format::Trace,
            Some(Kind::Text | Kind::Compact) | None => bail!(
                "cannot tell what to write to {}: call it .jsonl (JSON lines), .csv (a table) or .trace.json (for ui.perfetto.dev), or say --format",
                path.display()
            ),
        })
    }
}

/// Writes hits, and the counters at the end.
pub struct Export<W: Write> {
    to: W,
    format: Format,
    text: String,
    /// Number of hits written so far.
    pub hits: u64,
}

impl Export<BufWriter<File>> {
    /// Creates a new file.
    pub fn create(path: &Path, format: Format) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Export::new(BufWriter::new(file), format)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

impl<W: Write> Export<W> {
    /// Writes to anything that takes bytes.
    pub fn new(to: W, format: Format) -> Result<Self> {
        let mut export = Export {
            to,
            format,
            text: String::new(),
            hits: 0,
        };
        export.text += match format {
            Format::Jsonl => "",
            Format::Csv => CSV_HEAD,
            Format::Trace => "[\n",
        };
        export.put()?;
        Ok(export)
    }

    fn put(&mut self) -> Result<()> {
        self.to.write_all(self.text.as_bytes())?;
        self.text.clear();
        Ok(())
    }

    /// Writes the header before the hits.
    pub fn begin(&mut self, s: &Snapshot) -> Result<()> {
        match self.format {
            Format::Jsonl => self.line(&Begun {
                r#type: "session",
                pid: s.pid,
                program: &s.program,
            }),
            Format::Csv => {}
            Format::Trace => {
                self.event(&Meta::process(s.pid, &s.program));
                for t in s.threads.iter().filter(|t| !t.name.is_empty()) {
                    self.event(&Meta::thread(s.pid, t.tid, &t.name));
                }
            }
        }
        self.put()
    }

    /// Writes one hit of process `pid`.
    pub fn hit(&mut self, pid: i32, line: &Line) -> Result<()> {
        self.hits += 1;
        match self.format {
            Format::Jsonl => self.line(&line.entry(pid).json()),
            Format::Csv => line.entry(pid).csv(&mut self.text),
            Format::Trace => self.event(&line.trace(pid)),
        }
        self.put()
    }

    /// Records that `n` hits were overwritten before they were read.
    pub fn lost(&mut self, n: u64) -> Result<()> {
        if n > 0 && self.format == Format::Jsonl {
            self.line(&Lost {
                r#type: "lost",
                count: n,
            });
        }
        self.put()
    }

    /// Writes the counters and the end of the file.
    pub fn end(mut self, s: &Snapshot) -> Result<u64> {
        for w in &s.watches {
            match self.format {
                Format::Jsonl => self.line(&Counters {
                    r#type: "counters",
                    pid: s.pid,
                    watch: &w.name,
                    kind: w.kind,
                    addr: Address(w.addr),
                    len: w.len,
                    hits: w.hits,
                    silent: w.silent,
                    filtered: w.filtered,
                    false_positives: w.false_positives,
                }),
                Format::Csv => {}
                Format::Trace => self.event(&CounterEvent {
                    ph: "C",
                    name: &w.name,
                    ts: json::number(format_args!("{:.0}", s.seconds * 1e6)),
                    pid: s.pid,
                    args: Counted {
                        hits: w.hits,
                        silent: w.silent,
                    },
                }),
            }
        }
        if self.format == Format::Trace {
            // The last event, without a comma after it.
            json::append(&mut self.text, &Meta::end(s.pid));
            self.text += "]\n";
        }
        self.put()?;
        self.to.flush()?;
        Ok(self.hits)
    }

    fn line(&mut self, value: &impl Serialize) {
        json::append(&mut self.text, value);
    }

    /// Appends an event of a trace that others follow.
    fn event(&mut self, value: &impl Serialize) {
        json::put(&mut self.text, value);
        self.text += ",\n";
    }
}

#[derive(Serialize)]
struct Begun<'a> {
    r#type: &'static str,
    pid: i32,
    program: &'a str,
}

#[derive(Serialize)]
struct Lost {
    r#type: &'static str,
    count: u64,
}

#[derive(Serialize)]
struct Counters<'a> {
    r#type: &'static str,
    pid: i32,
    watch: &'a str,
    kind: &'static str,
    addr: Address,
    len: u64,
    hits: u64,
    silent: u64,
    filtered: u64,
    false_positives: u64,
}

#[derive(Serialize)]
struct CounterEvent<'a> {
    ph: &'static str,
    name: &'a str,
    ts: Option<Box<RawValue>>,
    pid: i32,
    args: Counted,
}

#[derive(Serialize)]
struct Counted {
    hits: u64,
    silent: u64,
}

/// Writes the screen's contents: the hits in the feed, and the counters.
pub fn snapshot(path: &Path, s: &Snapshot) -> Result<u64> {
    let mut export = Export::create(path, Format::of(path)?)?;
    let written = (|| {
        export.begin(s)?;
        for line in &s.feed {
            export.hit(s.pid, line)?;
        }
        export.lost(s.unseen)?;
        export.end(s)
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_lib::ring::Hit;
    use ulpf_session::hit::Known;
    use ulpf_session::hit::entry::Named;
    use ulpf_symbols::Part;

    fn written(format: Format) -> String {
        let mut out = Vec::new();
        let mut export = Export::new(&mut out, format).unwrap();
        let session = Snapshot {
            pid: 7,
            program: "a \"b\"".into(),
            ..Snapshot::default()
        };
        export.begin(&session).unwrap();
        let line = Line {
            nanos: 1_002_003_004,
            tid: 8,
            verb: "write",
            name: "t[1,2]".into(),
            known: Known {
                named: Named::new(("t[1,2]".into(), Part::untyped(0)), 1).into(),
                ..Known::default()
            }
            .into(),
            change: "1 → 2".into(),
            place: "f+0x1 at a.c:3".into(),
            hit: Hit {
                addr: 0x4040,
                len: 1,
                kind: 2,
                tid: 8,
                ..Hit::default()
            },
            ..Line::default()
        };
        export.hit(7, &line).unwrap();
        export.lost(3).unwrap();
        assert_eq!(export.end(&session).unwrap(), 1);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn formats() {
        let lines: Vec<serde_json::Value> = written(Format::Jsonl)
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(
            (lines.len(), &lines[1]["name"], &lines[2]["count"]),
            (3, &"t[1,2]".into(), &3.into())
        );
        let trace: serde_json::Value = serde_json::from_str(&written(Format::Trace)).unwrap();
        assert_eq!(trace[1]["ts"], 1_002_003.004);
        let csv = written(Format::Csv);
        assert_eq!(
            csv.lines().nth(1),
            Some(
                "1.002003,,7,8,,,\"t[1,2]\",write,0x4040,1,,0x0,0x0,00,00,false,false,,,,0x0,,,,,,,,"
            )
        );
    }
}
