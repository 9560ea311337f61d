//! `ulpf log`: reads a compact log back.

use crate::hit::entry::{CSV_HEAD, When};
use crate::hit::log::{Formatter, Look, Record};
use crate::hit::trace::Meta;
use crate::log::file::{Item, LogFile};
use crate::log::format::Head;
use crate::log::words::{Clock, Words};
use crate::suffix::{Kind, kind_of};
use crate::words::{Seconds, count};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use ulpf_host::foreign::text::{Text, is_plain};
use ulpf_host::say::{json, say};
use ulpf_lib::ring::Hit;
use ulpf_symbols::Watched;

const EXAMPLES: &str = "\
Examples:
  ulpf run --log hits.ulpf -w counter -- ./prog     writes it
  ulpf log hits.ulpf                                as lines, as `ulpf run` would have written them
  ulpf log hits.ulpf -o hits.jsonl                  JSON lines; .csv: a table; .trace.json: for ui.perfetto.dev
  ulpf log hits.ulpf --who 'tab[3].next' --before 1.25
                                                    the last write to that before second 1.25
  ulpf log hits.ulpf --who 0x404040:8 -n 5          the last five writes to these bytes

docs/log.md describes the file. Damaged parts are skipped and reported; all before and behind them is shown.
Exit status: 0; 1: --who has found no access; 2: it cannot be read; 3: it is damaged, or was cut short.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LogArgs {
    /// A file that `ulpf run --log FILE.ulpf` or `ulpf attach --log FILE.ulpf` has written, or still writes
    pub file: PathBuf,

    /// JSON lines instead of text
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// How hits are written, if the name of the file does not say it
    #[arg(long, value_enum)]
    pub format: Option<Format>,

    /// Write to FILE (.txt, .jsonl, .csv, .trace.json) instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Show the last write to WHAT: a watch, a part of one by its name in hits, ADDRESS, or ADDRESS:BYTES
    #[arg(long, value_name = "WHAT")]
    pub who: Option<String>,

    /// Only what was before this second of the log
    #[arg(long, value_name = "SECONDS")]
    pub before: Option<f64>,

    /// Number of accesses that `--who` shows, the youngest first
    #[arg(short, long, value_name = "N", default_value_t = 1, requires = "who", value_parser = clap::value_parser!(u32).range(1..))]
    pub number: u32,

    /// Makes `--who` show reads, too, where they are watched
    #[arg(short, long, requires = "who")]
    pub reads: bool,
}

/// Output format of hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people
    Text,
    /// One object a line
    Jsonl,
    /// A line of names, then a line for each hit
    Csv,
    /// Chrome's trace format, for ui.perfetto.dev
    Trace,
}

impl Format {
    fn of(path: &Path) -> Result<Format> {
        Ok(match kind_of(path) {
            Some(Kind::Text) => Format::Text,
            Some(Kind::Jsonl) => Format::Jsonl,
            Some(Kind::Csv) => Format::Csv,
            Some(Kind::Trace) => Format::Trace,
            Some(Kind::Compact) | None => bail!(
                "cannot tell what to write to {}: call it .txt (lines), .jsonl (JSON lines), .csv (a table) or .trace.json (for ui.perfetto.dev), or say --format",
                path.display()
            ),
        })
    }
}

/// Runs the command and returns the exit status.
pub fn main(args: &LogArgs) -> i32 {
    match show(args) {
        Ok(status) => status,
        Err(error) if is_closed(&error) => 0,
        Err(error) => {
            say!("{error:#}");
            2
        }
    }
}

/// Whether the reader of our output has closed it.
fn is_closed(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

fn show(args: &LogArgs) -> Result<i32> {
    let format = match (args.format, &args.output) {
        (Some(format), _) => format,
        _ if args.json => Format::Jsonl,
        (None, Some(path)) if path.as_os_str() != "-" => Format::of(path)?,
        (None, _) => Format::Text,
    };
    let mut log = LogFile::open(&args.file)?;
    let to_stdout = args.output.as_ref().is_none_or(|p| p.as_os_str() == "-");
    let to: Box<dyn Write> = match &args.output {
        Some(path) if !to_stdout => Box::new(
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?,
        ),
        _ => Box::new(stdout()),
    };
    let look = match format {
        Format::Text => Look::of(false, to_stdout && stdout().is_terminal()),
        Format::Jsonl => Look::Json,
        Format::Csv => Look::Csv,
        Format::Trace => Look::Trace,
    };
    let words = std::mem::take(&mut log.words);
    let before = match args.before {
        Some(seconds) if seconds.is_finite() && seconds >= 0.0 => {
            words.clock.tsc((seconds * 1e9).min(u64::MAX as f64) as u64)
        }
        Some(seconds) => bail!("{seconds} is no second of a log"),
        None => u64::MAX,
    };
    // (Damage is reported with times from the heads, so the log needs the clock.)
    log.words.clock = words.clock;
    let mut out = Out::new(to, look, &words);
    let mut status = 0;
    match &args.who {
        Some(what) => {
            let asked = Asked::parse(what, &words)?;
            let n = who(&mut log, &mut out, args, &asked, before)?;
            if n == 0 {
                status = 1;
                let verb = if args.reads { "accessed" } else { "written" };
                say!(
                    "nobody has {verb} `{}`, as far as this log knows",
                    Text(what)
                );
            }
        }
        None => all(&mut log, &mut out, before)?,
    }
    out.finish()?;
    if out.unknown > 0 {
        say!(
            "{}: {} left out: the file does not say what was watched there",
            args.file.display(),
            count(out.unknown, "hit")
        );
    }
    for damage in &log.damage {
        say!("{} is {damage}", args.file.display());
    }
    if words.bad > 0 {
        say!(
            "{}: {} not understood",
            args.file.display(),
            count(words.bad, "word")
        );
    }
    if !words.ended {
        say!(
            "{} has no end: whoever wrote it was killed, or still writes",
            args.file.display()
        );
    }
    let whole = log.damage.is_empty() && words.bad == 0 && words.ended && out.unknown == 0;
    Ok(match whole {
        true => status,
        false => 3,
    })
}

/// Formats the whole log and drops the text. For the fuzz target `log_file`.
///
/// # Errors
/// The file cannot be read.
#[doc(hidden)]
pub fn show_all(log: &mut LogFile, json: bool) -> Result<()> {
    let words = std::mem::take(&mut log.words);
    let look = if json { Look::Json } else { Look::Plain };
    let mut out = Out::new(Box::new(io::sink()), look, &words);
    let shown = all(log, &mut out, u64::MAX).and_then(|()| out.finish());
    log.words = words;
    shown
}

/// Shows everything before a time.
fn all(log: &mut LogFile, out: &mut Out, before: u64) -> Result<()> {
    let words = out.words;
    let mut said = words.said.iter().peekable();
    log.each(|life, item| {
        let hit = match item {
            Item::Hit(hit) if hit.time < before => hit,
            Item::Hit(_) => return Ok(()),
            Item::Lost(n) => return out.lost(n),
        };
        while let Some((tsc, line)) = said.next_if(|(tsc, _)| *tsc <= hit.time) {
            out.said(*tsc, line)?;
        }
        out.lost(hit.lost)?;
        out.hit(life, &hit)
    })?;
    while let Some((tsc, line)) = said.next_if(|(tsc, _)| *tsc < before) {
        out.said(*tsc, line)?;
    }
    Ok(())
}

fn who(
    log: &mut LogFile,
    out: &mut Out,
    args: &LogArgs,
    asked: &Asked,
    before: u64,
) -> Result<usize> {
    let words = out.words;
    let near = |life: u32, head: &Head| asked.near(life, head);
    let wanted =
        |life: u32, hit: &Hit| (args.reads || hit.kind & 2 != 0) && asked.covers(words, life, hit);
    let hits = log.last(before, args.number as usize, near, wanted)?;
    for (life, hit) in &hits {
        out.hit(*life, hit)?;
    }
    Ok(hits.len())
}

/// The bytes that `--who` asks for.
enum Asked {
    /// In any process.
    At { addr: u64, len: u64 },
    /// Parts of watches, by life and the hits' number: offset, length, and the address if the part does not move.
    Parts(HashMap<(u32, u32), (u64, u64, Option<u64>)>),
}

impl Asked {
    fn parse(what: &str, words: &Words) -> Result<Asked> {
        let what = what.trim();
        if let Some(at) = what.strip_prefix("0x") {
            let (at, len) = at.split_once(':').unwrap_or((at, "1"));
            let addr = u64::from_str_radix(at, 16);
            return match (addr, len.parse()) {
                (Ok(addr), Ok(len @ 1..)) => Ok(Asked::At { addr, len }),
                _ => bail!("`{what}` is no address: say 0x404040, or 0x404040:8 for eight bytes"),
            };
        }
        let mut parts = HashMap::new();
        for (n, life) in words.lives.iter().enumerate() {
            for (id, (_, watched)) in &life.watches {
                let all = (watched.spec == what).then_some((0, watched.len));
                let Some((at, len)) = all.or_else(|| watched.part_named(what)) else {
                    continue;
                };
                let stays = watched.path.is_none() && !watched.heap;
                let addr = stays.then(|| watched.addr.wrapping_add(at));
                parts.insert((n as u32, *id), (at, len, addr));
            }
        }
        if parts.is_empty() {
            bail!(
                "`{what}` is no part of what this log is about: {}",
                watches(words)
            );
        }
        Ok(Asked::Parts(parts))
    }

    /// Whether that block may hold a hit of these bytes.
    fn near(&self, life: u32, head: &Head) -> bool {
        match self {
            Asked::At { addr, len } => head.may_touch(*addr, *len),
            Asked::Parts(parts) => {
                let mut here = parts.iter().filter(|((of, _), _)| *of == life);
                here.any(|(_, (_, len, addr))| addr.is_none_or(|a| head.may_touch(a, *len)))
            }
        }
    }

    fn covers(&self, words: &Words, life: u32, hit: &Hit) -> bool {
        let overlap = |at: u64, len: u64, from: u64, n: u64| {
            from < at.saturating_add(len) && at < from.saturating_add(n.max(1))
        };
        match self {
            Asked::At { addr, len } => overlap(*addr, *len, hit.addr, hit.len.into()),
            Asked::Parts(parts) => {
                let part = parts.get(&(life, hit.watch));
                let life = words.lives.get(life as usize);
                let watched = life.and_then(|l| l.watches.get(&hit.watch));
                part.zip(watched)
                    .is_some_and(|((at, len, _), (_, watched))| {
                        watched.heap || overlap(*at, *len, watched.offset(hit), hit.len.into())
                    })
            }
        }
    }
}

/// The watches of the log, for a message.
fn watches(words: &Words) -> String {
    const MOST: usize = 8;
    let all = words.lives.iter().flat_map(|l| l.watches.values());
    let mut all: Vec<&Watched> = all.map(|(_, w)| w).collect();
    all.sort_by_key(|w| (&w.spec, w.addr));
    all.dedup_by_key(|w| &w.spec);
    let mut text = String::new();
    for watched in all.iter().take(MOST) {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}`{}`", Text(&watched.spec));
    }
    match all.len() {
        0 => "it has no watches".into(),
        n if n > MOST => format!("{text} and {} more", n - MOST),
        _ => text,
    }
}

/// Output, formatted as the user asked.
struct Out<'a> {
    to: Box<dyn Write>,
    look: Look,
    words: &'a Words,
    clock: Clock,
    text: String,
    formatters: HashMap<u32, Formatter>,
    /// Hits of watches that the log does not list.
    unknown: u64,
}

const CHUNK: usize = 64 << 10;

impl Out<'_> {
    fn new(to: Box<dyn Write>, look: Look, words: &Words) -> Out<'_> {
        let mut text = String::with_capacity(2 * CHUNK);
        match look {
            Look::Csv => text.push_str(CSV_HEAD),
            Look::Trace => {
                text.push_str("[\n");
                for life in &words.lives {
                    json::put(&mut text, &Meta::process(life.pid, &life.program));
                    text.push_str(",\n");
                }
            }
            _ => {}
        }
        Out {
            to,
            look,
            words,
            clock: words.clock,
            text,
            formatters: HashMap::new(),
            unknown: 0,
        }
    }

    fn hit(&mut self, number: u32, hit: &Hit) -> Result<()> {
        let life = self.words.lives.get(number as usize);
        // Watches of another client (a debugger) share the rings.
        let known = life.and_then(|life| Some((life, life.watches.get(&hit.watch)?)));
        let Some((life, (watch, watched))) = known else {
            self.unknown += 1;
            return Ok(());
        };
        let record = Record {
            hit,
            pid: life.pid,
            several: self.words.several,
            when: When::Since(self.clock.nanos(hit.time)),
            number: watch - 1,
            watch: watched,
        };
        let look = self.look;
        let formatter = self.formatters.entry(number);
        let formatter = formatter.or_insert_with(|| Formatter::new(look));
        formatter.hit(&mut self.text, &record, life);
        self.put(CHUNK)
    }

    fn lost(&mut self, n: u64) -> Result<()> {
        #[derive(Serialize)]
        struct Lost {
            r#type: &'static str,
            count: u64,
        }
        match self.look {
            _ if n == 0 => {}
            Look::Json => json::append(
                &mut self.text,
                &Lost {
                    r#type: "lost",
                    count: n,
                },
            ),
            Look::Plain | Look::Coloured => {
                let lost = count(n, "hit");
                let _ = writeln!(
                    self.text,
                    "            ({lost} lost here: they came faster than this log was written)"
                );
            }
            Look::Csv | Look::Trace => {}
        }
        self.put(CHUNK)
    }

    /// Shows a message that is not a hit.
    fn said(&mut self, tsc: u64, line: &str) -> Result<()> {
        let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else {
            return Ok(());
        };
        match (self.look, value["type"].as_str()) {
            // As it was written, with its order of fields.
            (Look::Json, _) if line.chars().all(is_plain) => {
                self.text.push_str(line);
                self.text.push('\n');
            }
            (Look::Json, _) => json::append(&mut self.text, &value),
            (Look::Plain | Look::Coloured, Some("notice")) => {
                let text = value["text"].as_str().unwrap_or_default();
                let _ = writeln!(self.text, "            ({})", Text(text));
            }
            (Look::Plain | Look::Coloured, Some("crash")) => {
                let text = |name: &str| value[name].as_str().unwrap_or_default().to_string();
                let _ = writeln!(
                    self.text,
                    "{:>11} process {} was killed by {} in {}",
                    Seconds(self.clock.nanos(tsc)),
                    value["pid"].as_i64().unwrap_or_default(),
                    Text(&text("signal")),
                    Text(&text("function")),
                );
            }
            _ => {}
        }
        self.put(CHUNK)
    }

    /// Writes out the buffered text once it has at least `at_least` bytes.
    fn put(&mut self, at_least: usize) -> Result<()> {
        if self.text.len() >= at_least {
            self.to.write_all(self.text.as_bytes())?;
            self.text.clear();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.look == Look::Trace {
            // The last object, without a comma after it.
            let pid = self.words.lives.first().map_or(0, |l| l.pid);
            json::append(&mut self.text, &Meta::end(pid));
            self.text.push_str("]\n");
        }
        self.put(0)?;
        self.to.flush()?;
        Ok(())
    }
}
