//! Hits and counters for other tools: JSON lines, CSV, a trace that ui.perfetto.dev and chrome://tracing
//! open, figures for Prometheus. Hits are read from the rings, in order of time, while the program runs;
//! what came faster than it was written is counted.

use super::look::Looker;
use super::model::{Line, Session};
use super::rows::seconds;
use crate::foreign::text::shown;
use crate::run::format::Quoted;
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

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
    /// By the end of the file's name.
    pub fn of(path: &Path) -> Result<Format> {
        let name = path.to_string_lossy();
        match () {
            _ if name.ends_with(".jsonl") || name.ends_with(".ndjson") => Ok(Format::Jsonl),
            _ if name.ends_with(".csv") => Ok(Format::Csv),
            _ if name.ends_with(".json") => Ok(Format::Trace),
            _ => bail!(
                "cannot tell the format of {name}: call it .jsonl, .csv or .trace.json (or say --format)"
            ),
        }
    }
}

/// Writes hits, and at the end the counters.
pub struct Export<W: Write> {
    to: W,
    format: Format,
    text: String,
    pub hits: u64,
}

impl Export<BufWriter<File>> {
    pub fn create(path: &Path, format: Format) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Export::new(BufWriter::new(file), format)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

impl<W: Write> Export<W> {
    pub fn new(to: W, format: Format) -> Result<Self> {
        let mut export = Export {
            to,
            format,
            text: String::new(),
            hits: 0,
        };
        export.text += match format {
            Format::Jsonl => "",
            Format::Csv => "time,thread,access,watch,addr,len,old,new,silent,pc,where\n",
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

    pub fn begin(&mut self, s: &Session) -> Result<()> {
        let (pid, name) = (s.pid, Quoted(&s.program));
        let _ = match self.format {
            Format::Jsonl => writeln!(
                self.text,
                "{{\"type\":\"session\",\"pid\":{pid},\"program\":{name}}}"
            ),
            Format::Csv => Ok(()),
            Format::Trace => writeln!(
                self.text,
                "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"tid\":{pid},\"args\":{{\"name\":{name}}}}},"
            ),
        };
        if self.format == Format::Trace {
            for t in s.threads.iter().filter(|t| !t.name.is_empty()) {
                let _ = writeln!(
                    self.text,
                    "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{},\"args\":{{\"name\":{}}}}},",
                    t.tid,
                    Quoted(&t.name)
                );
            }
        }
        self.put()
    }

    pub fn hit(&mut self, pid: i32, l: &Line) -> Result<()> {
        self.hits += 1;
        let h = &l.hit;
        let used = h.used();
        let hex = |bytes: &[u8]| {
            bytes[..used]
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<String>()
        };
        let silent = h.flags & ulpf_lib::ring::hit_flags::SILENT != 0;
        let (old, new) = (hex(&h.old), hex(&h.new));
        let _ = match self.format {
            Format::Jsonl => writeln!(
                self.text,
                "{{\"type\":\"hit\",\"time\":{},\"pid\":{pid},\"tid\":{},\"access\":\"{}\",\"name\":{},\"addr\":\"{:#x}\",\"len\":{},\"value\":{},\"old_bytes\":\"{old}\",\"new_bytes\":\"{new}\",\"silent\":{silent},\"pc\":\"{:#x}\",\"where\":{}}}",
                seconds(l.nanos),
                l.tid,
                l.verb,
                Quoted(&l.name),
                h.addr,
                h.len,
                Quoted(&l.change),
                h.pc,
                Quoted(&l.place)
            ),
            Format::Csv => writeln!(
                self.text,
                "{},{},{},{},{:#x},{},{old},{new},{silent},{:#x},{}",
                seconds(l.nanos),
                l.tid,
                l.verb,
                Cell(&l.name),
                h.addr,
                h.len,
                h.pc,
                Cell(&l.place)
            ),
            Format::Trace => writeln!(
                self.text,
                "{{\"ph\":\"i\",\"s\":\"t\",\"name\":{},\"cat\":\"{}\",\"ts\":{}.{:03},\"pid\":{pid},\"tid\":{},\"args\":{{\"value\":{},\"where\":{},\"addr\":\"{:#x}\"}}}},",
                Quoted(&l.name),
                l.verb,
                l.nanos / 1000,
                l.nanos % 1000,
                l.tid,
                Quoted(&l.change),
                Quoted(&l.place),
                h.addr
            ),
        };
        self.put()
    }

    /// Some were overwritten before they were read.
    pub fn lost(&mut self, n: u64) -> Result<()> {
        if n > 0 && self.format == Format::Jsonl {
            let _ = writeln!(self.text, "{{\"type\":\"lost\",\"count\":{n}}}");
        }
        self.put()
    }

    /// The counters, and the end of the file.
    pub fn end(mut self, s: &Session) -> Result<u64> {
        let pid = s.pid;
        for w in &s.watches {
            let (name, n) = (
                Quoted(&w.name),
                (w.hits, w.silent, w.filtered, w.false_positives),
            );
            let _ = match self.format {
                Format::Jsonl => writeln!(
                    self.text,
                    "{{\"type\":\"counters\",\"pid\":{pid},\"watch\":{name},\"kind\":\"{}\",\"addr\":\"{:#x}\",\"len\":{},\"hits\":{},\"silent\":{},\"filtered\":{},\"false_positives\":{}}}",
                    w.kind, w.addr, w.len, n.0, n.1, n.2, n.3
                ),
                Format::Csv => Ok(()),
                Format::Trace => writeln!(
                    self.text,
                    "{{\"ph\":\"C\",\"name\":{name},\"ts\":{:.0},\"pid\":{pid},\"args\":{{\"hits\":{},\"silent\":{}}}}},",
                    s.seconds * 1e6,
                    n.0,
                    n.1
                ),
            };
        }
        if self.format == Format::Trace {
            let _ = writeln!(
                self.text,
                "{{\"ph\":\"M\",\"name\":\"end\",\"pid\":{pid},\"tid\":{pid},\"args\":{{}}}}\n]"
            );
        }
        self.put()?;
        self.to.flush()?;
        Ok(self.hits)
    }
}

/// A field of a CSV line. CSV has no way to write a character that a terminal obeys: it is shown.
struct Cell<'a>(&'a str);

impl std::fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = shown(self.0);
        match text.contains([',', '"']) {
            true => write!(f, "\"{}\"", text.replace('"', "\"\"")),
            false => f.write_str(&text),
        }
    }
}

/// What is on the screen: the hits that the feed holds, and the counters.
pub fn snapshot(path: &Path, s: &Session) -> Result<u64> {
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

/// A label's value: a line's end is escaped as the format does, and what a terminal would obey is shown.
fn label(text: &str) -> String {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| shown(line).replace('\\', "\\\\").replace('"', "\\\""))
        .collect();
    lines.join("\\n")
}

/// Counters for Prometheus, as OpenMetrics text.
pub fn metrics(sessions: &[(&Looker, &Session)]) -> String {
    let mut out = String::new();
    let watches = || {
        sessions
            .iter()
            .flat_map(|(_, s)| s.watches.iter().map(move |w| (s, w)))
    };
    type Figure = fn(&super::model::Watch) -> u64;
    let counters: [(&str, &str, Figure); 4] = [
        ("hits", "Accesses to the watched bytes", |w| w.hits),
        ("silent_stores", "Hits that left the value as it was", |w| {
            w.silent
        }),
        ("filtered", "Hits that the filter has rejected", |w| {
            w.filtered
        }),
        (
            "false_positives",
            "Accesses to its pages beside every watch, made by a fault",
            |w| w.false_positives,
        ),
    ];
    for (name, help, figure) in counters {
        let _ = writeln!(
            out,
            "# TYPE ulpf_watch_{name} counter\n# HELP ulpf_watch_{name} {help}."
        );
        for (s, w) in watches() {
            let _ = writeln!(
                out,
                "ulpf_watch_{name}_total{{pid=\"{}\",program=\"{}\",watch=\"{}\",kind=\"{}\"}} {}",
                s.pid,
                label(&s.program),
                label(&w.name),
                w.kind,
                figure(w)
            );
        }
    }
    type Total = fn(&super::model::Totals) -> u64;
    let totals: [(&str, &str, Total); 4] = [
        ("faults", "Faults on guarded pages", |t| t.faults),
        (
            "false_positives",
            "Accesses to guarded pages beside every watch",
            |t| t.false_positives,
        ),
        ("slow", "Accesses that were made the slow way", |t| t.slow),
        ("system_calls", "System calls that went through ulpf", |t| {
            t.syscalls
        }),
    ];
    for (name, help, figure) in totals {
        let _ = writeln!(
            out,
            "# TYPE ulpf_{name} counter\n# HELP ulpf_{name} {help}."
        );
        for (_, s) in sessions {
            let _ = writeln!(
                out,
                "ulpf_{name}_total{{pid=\"{}\"}} {}",
                s.pid,
                figure(&s.totals)
            );
        }
    }
    out + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_lib::ring::Hit;

    fn written(format: Format) -> String {
        let mut out = Vec::new();
        let mut export = Export::new(&mut out, format).unwrap();
        let session = Session {
            pid: 7,
            program: "a \"b\"".into(),
            ..Session::default()
        };
        export.begin(&session).unwrap();
        let line = Line {
            nanos: 1_002_003_004,
            tid: 8,
            verb: "write",
            name: "t[1,2]".into(),
            change: "1 → 2".into(),
            place: "f+0x1 at a.c:3".into(),
            hit: Hit {
                addr: 0x4040,
                len: 1,
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
            Some("1.002003,8,write,\"t[1,2]\",0x4040,1,00,00,false,0x0,f+0x1 at a.c:3")
        );
    }

    #[test]
    fn labels() {
        let program = "a\n} 7\nb\\\"\x1b[2J";
        assert_eq!(label(program), r#"a\n} 7\nb\\\"\\x1b[2J"#);
    }

    #[test]
    fn names_of_files() {
        for (name, format) in [
            ("a.jsonl", Format::Jsonl),
            ("a.csv", Format::Csv),
            ("a.trace.json", Format::Trace),
        ] {
            assert_eq!(Format::of(Path::new(name)).unwrap(), format);
        }
        assert!(Format::of(Path::new("a.txt")).is_err());
    }
}
