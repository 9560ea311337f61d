//! `ulpf last`: finds the last writers of a variable or address in the rings of a session.
//!
//! The session itself is not involved: its shared area is mapped read-only (`ulpf_area::sessions`), and the program's
//! symbols are read here. The answer gives its limits: since when the bytes have been watched, and since when each
//! thread's ring is complete.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stdout};
use std::sync::atomic::Ordering;
use std::time::Duration;
use ulpf_area::SharedArea;
use ulpf_area::sessions::{self, Whose};
use ulpf_host::foreign::text::Text;
use ulpf_host::say::json::{self, Address};
use ulpf_host::say::{say, say_json};
use ulpf_host::sys;
use ulpf_lib::WatchKind;
use ulpf_lib::ring::last::{Asked, Found, last};
use ulpf_lib::ring::{Hit, listed};
use ulpf_session::find::{Several, choose, name};
use ulpf_session::hit::entry::When;
use ulpf_session::hit::log::{Formatter, Look, Record};
use ulpf_session::hit::place::Place;
use ulpf_session::kept::{self, Kept};
use ulpf_session::last_writers::LastWriters;
use ulpf_session::memory::LazyMemory;
use ulpf_session::words::{self, count};
use ulpf_symbols::{Problem, Program, Spec, Watched};

const EXAMPLES: &str = "\
WHAT is a variable, a part of one, or an address, as for `ulpf run --watch`:
  counter    p->x    tab[3]    tab[0..16]    0x7fffe000    0x7fffe000:64

A session of `ulpf run`, `attach`, `server` or `gdb` has to be watching it, or to record all last writers (--blame); where none is, the last `ulpf run` or `attach`
that has ended is asked (the newest eight are kept in ~/.cache/ulpf; --pid names one). Exit status: 0: an access
was found; 1: no access is known; 2: an error.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LastArgs {
    /// What was written
    pub what: String,

    /// The watched program, or the ulpf that watches it; may be left out if there is only one
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<i32>,

    /// Number of accesses to show, the youngest first
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub number: u32,

    /// Reads, too, where they are watched
    #[arg(short, long)]
    pub reads: bool,

    /// JSON lines instead of text
    #[arg(long)]
    pub json: bool,

    /// As root: look into other users' sessions, too
    #[arg(long)]
    pub all_users: bool,
}

/// Runs the command and returns the exit status.
pub fn main(args: &LastArgs) -> i32 {
    match answer(args) {
        Ok(found) => i32::from(!found),
        Err(error) => {
            say_json(args.json);
            say!("{error:#}");
            2
        }
    }
}

/// Watches that cover the bytes.
#[derive(Default)]
struct Cover {
    /// An armed watch logs the accesses.
    logged: bool,
    /// Watches that do not: only counted; only for the other kind of access; ended.
    counted: bool,
    other_kind: bool,
    ended: bool,
    /// TSC since which all of them have been armed.
    since: u64,
    /// Number of bytes that none of them covers, as far as that can be determined.
    uncovered: u64,
    /// Hits that their filters rejected.
    rejected: u64,
}

fn answer(args: &LastArgs) -> Result<bool> {
    let (session, program) = session(args)?;
    let places = resolve(&args.what, &program, session.pid)?;
    let (pid, shared) = (session.pid, &session.shared);
    let mut cover = Cover::default();
    let mut found = Found::default();
    // The youngest hits of all places, each with the place that it has hit.
    let mut hits: Vec<(Hit, &Watched)> = Vec::new();
    for place in &places {
        let here = Cover::of(&session, place, args.reads);
        if !here.logged {
            // (A watch that logs knows more: values, and the writes before.)
            let memory = LazyMemory::of(pid);
            let records = LastWriters::of(shared.header(), &memory);
            if let Some(records) = records.filter(|_| session.ended.is_none() && !args.reads) {
                return by_records(args, &session, (&program, &places), &records);
            }
            bail!(here.why_not(place, pid, args.reads));
        }
        cover.add(&here);
        let asked = Asked {
            addr: place.addr,
            len: place.len,
            reads: args.reads,
            most: args.number as usize,
        };
        let some = last(shared, &asked);
        found.reaches_back = found.reaches_back.max(some.reaches_back);
        hits.extend(some.hits.into_iter().map(|hit| (hit, place)));
    }
    hits.sort_by_key(|(hit, _)| std::cmp::Reverse(hit.time));
    hits.truncate(args.number as usize);
    let now = sys::tsc();
    let ago = |tsc: u64| shared.clock().ago(now, tsc);
    let mut text = String::new();
    if args.json {
        head_json(
            &mut text,
            &session,
            &places,
            &cover,
            (&found, hits.len()),
            &ago,
        );
    } else {
        head(&mut text, &session, &places, &cover, &ago)?;
    }
    let look = Look::of(args.json, stdout().is_terminal());
    let mut formatter = Formatter::new(look);
    let mut warned = false;
    for (hit, watch) in &hits {
        if found.reaches_back.is_some_and(|from| hit.time < from) && !warned && look != Look::Json {
            reach(&mut text, &found, hits.is_empty(), &ago)?;
            warned = true;
        }
        let when = When::Ago(ago(hit.time));
        let record = Record {
            hit,
            pid,
            several: false,
            when,
            number: 0,
            watch,
        };
        formatter.hit(&mut text, &record, &program);
    }
    if look != Look::Json && !warned && hits.len() < args.number as usize {
        match found.reaches_back {
            Some(_) => reach(&mut text, &found, hits.is_empty(), &ago)?,
            None if hits.is_empty() => {
                let verb = if args.reads { "accessed" } else { "written" };
                writeln!(text, "  nobody has {verb} it since the watch was set")?;
            }
            None => writeln!(text, "  that is all since the watch was set")?,
        }
        if cover.rejected > 0 {
            let n = count(cover.rejected, "hit");
            writeln!(
                text,
                "  ({n} did not pass the watch's filter, and were not kept)"
            )?;
        }
    }
    let _ = stdout().write_all(text.as_bytes());
    Ok(!hits.is_empty())
}

/// Answers from the records of last writers: each stretch of bytes with one writer.
fn by_records(
    args: &LastArgs,
    session: &Session,
    (program, places): (&Program, &[Watched]),
    records: &LastWriters,
) -> Result<bool> {
    #[derive(Serialize)]
    struct Line<'a> {
        r#type: &'static str,
        ago: Option<words::Seconds>,
        pid: i32,
        tid: Option<u32>,
        name: &'a str,
        addr: Address,
        len: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        call: Option<&'static str>,
        #[serde(flatten)]
        place: Place,
    }
    let now = sys::tsc();
    let clock = session.shared.clock();
    let ago = |tsc: u64| clock.ago(now, tsc);
    let (mut text, mut any) = (String::new(), false);
    let (since, mut left) = (ago(records.since), 0);
    for watched in places {
        if watched.len > MOST_RECORDED {
            bail!(
                "`{}` has {}; ask for {MOST_RECORDED} at most",
                watched.name,
                count(watched.len, "byte")
            );
        }
        let Some(found) = records.last(watched.addr, watched.len) else {
            bail!(
                "cannot tell who has written `{}` ({:#x}): it is neither heap nor data of an executable or library, or its memory cannot be read",
                watched.name,
                watched.addr
            );
        };
        left += watched.len - found.iter().map(|stretch| stretch.len).sum::<u64>();
        for stretch in &found {
            any = true;
            let site = stretch.site;
            let (name, _) = watched.part(stretch.addr - watched.addr, stretch.len);
            let call = site.call.and_then(ulpf_lib::syscalls::name);
            let place = Place::at(program, site.pc, site.called);
            let when = stretch.when.map(|(tid, since)| (tid, ago(since)));
            if args.json {
                let line = Line {
                    r#type: "writer",
                    ago: when.map(|(_, ago)| words::Seconds(ago)),
                    pid: session.pid,
                    tid: when.map(|(tid, _)| tid),
                    name: &name,
                    addr: Address(stretch.addr),
                    len: stretch.len,
                    call,
                    place,
                };
                json::append(&mut text, &line);
                continue;
            }
            let (tid, ago) = when.unwrap_or_default();
            let by = call.map(|call| format!("  by {call}")).unwrap_or_default();
            writeln!(
                text,
                "{:>12} s ago [{tid}] {}: {}{by}  {}",
                words::Seconds(ago),
                Text(&name),
                count(stretch.len, "byte"),
                place.text
            )?;
        }
    }
    if !args.json && left > 0 {
        let (bytes, since) = (count(left, "byte"), Seconds(since));
        writeln!(
            text,
            "  ({bytes} not written since records began, {since} ago)"
        )?;
    }
    let _ = stdout().write_all(text.as_bytes());
    Ok(any)
}

/// The chosen session and its program: one that is watched at present, or else the last that has ended.
fn session(args: &LastArgs) -> Result<(Session, Program)> {
    let none = match choose(args.pid, Whose::of(args.all_users)) {
        Ok(found) => {
            let program = match &found.elsewhere {
                Some(elsewhere) => Ok(Program::of_file(&elsewhere.file, elsewhere.bias, found.by)),
                None => Program::of_process(found.pid),
            };
            let program = program
                .with_context(|| format!("cannot read what process {} is made of", found.pid))?;
            return Ok((Session::of(found), program));
        }
        Err(several) if several.is::<Several>() => return Err(several),
        Err(none) => none,
    };
    match kept::find(args.pid) {
        Ok(Some(mut kept)) => {
            let program = kept.program();
            Ok((Session::kept(kept), program))
        }
        Ok(None) => Err(none),
        Err(error) => Err(none.context(format!("the last session cannot be read: {error}"))),
    }
}

/// The session that the user asks about.
struct Session {
    pid: i32,
    by: i32,
    shared: SharedArea,
    /// The program's name.
    name: String,
    /// `killed by SIGSEGV 3 s ago`
    ended: Option<String>,
}

impl Session {
    fn of(found: sessions::Watched) -> Session {
        Session {
            pid: found.pid,
            by: found.by,
            shared: found.shared,
            name: name(found.pid),
            ended: None,
        }
    }

    fn kept(kept: Kept) -> Session {
        let ago = kept.ended.elapsed().unwrap_or_default();
        Session {
            pid: kept.pid,
            by: kept.by,
            shared: kept.shared,
            name: kept.program,
            ended: Some(format!("{} {:.0} s ago", kept.ending, ago.as_secs_f64())),
        }
    }
}

/// Limit of the bytes of a place whose last writers are asked for.
const MOST_RECORDED: u64 = 16 << 20;
/// Limit of the places: the rings are read once for each.
const MOST_PLACES: usize = 1000;

fn resolve(what: &str, program: &Program, pid: i32) -> Result<Vec<Watched>> {
    let problem = |problem: Problem| anyhow::anyhow!("{problem}");
    // A bare address is one byte, which matches any access that covers it.
    let bare = what.trim().strip_prefix("0x");
    let text = match bare.map(|hex| u64::from_str_radix(hex, 16)) {
        Some(Ok(_)) => format!("{}:1", what.trim()),
        _ => what.to_string(),
    };
    let spec = Spec::parse(&text).map_err(problem)?;
    let memory = LazyMemory::of(pid);
    let places = program.resolve(&spec, &memory).map_err(problem)?;
    if places.iter().any(|place| place.heap) {
        bail!("`{what}` is all of the heap; ask for an address in it");
    }
    if places.len() > MOST_PLACES {
        bail!(
            "`{what}` is {} places; name {MOST_PLACES} elements at most",
            places.len()
        );
    }
    Ok(places)
}

impl Cover {
    fn of(session: &Session, watch: &Watched, reads: bool) -> Cover {
        let mut cover = Cover::default();
        let (start, end) = (watch.addr, watch.addr.saturating_add(watch.len));
        let mut covered: Vec<(u64, u64)> = Vec::new();
        let mut ids = BTreeSet::new();
        for line in session.shared.watch_table() {
            let what = line.what.load(Ordering::Acquire);
            let from = line.start.load(Ordering::Relaxed);
            let to = from.saturating_add(line.len.load(Ordering::Relaxed));
            if what == 0 || from >= end || to <= start {
                continue;
            }
            if what & listed::ENDED != 0 {
                cover.ended = true;
            } else if what & listed::KIND == WatchKind::Read as u32 && !reads {
                cover.other_kind = true;
            } else if what & listed::LOGGED == 0 {
                cover.counted = true;
            } else {
                cover.logged = true;
                cover.since = cover.since.max(line.since.load(Ordering::Relaxed));
                ids.insert(line.reported_as.load(Ordering::Relaxed));
                covered.push((from.max(start), to.min(end)));
            }
        }
        covered.sort_unstable();
        let mut at = start;
        for (from, to) in covered {
            cover.uncovered += from.saturating_sub(at);
            at = at.max(to);
        }
        cover.uncovered += end - at;
        // Several ranges may be reported as one watch.
        for id in ids {
            let counters = session.shared.counters(id);
            let filtered = counters.filtered.load(Ordering::Relaxed);
            cover.rejected = cover.rejected.saturating_add(filtered);
        }
        cover
    }

    /// Adds another place.
    fn add(&mut self, place: &Cover) {
        self.since = self.since.max(place.since);
        self.uncovered = self.uncovered.saturating_add(place.uncovered);
        self.rejected = self.rejected.saturating_add(place.rejected);
    }

    fn why_not(&self, watch: &Watched, pid: i32, reads: bool) -> String {
        let what = format!(
            "cannot tell who has {} `{}` ({:#x})",
            if reads { "accessed" } else { "written" },
            watch.name,
            watch.addr
        );
        match () {
            _ if self.counted => format!(
                "{what}: its watch in process {pid} only counts; watch it without --quiet (with `log` in `monitor ulpf watch`)"
            ),
            _ if self.other_kind => format!(
                "{what}: process {pid} watches it for reads only; ask with --reads, or watch it with :rw"
            ),
            _ if self.ended => {
                format!("{what}: its watch in process {pid} has been taken away; set it again")
            }
            _ => format!(
                "{what}: it is not watched in process {pid}; watch it, and ask when it has happened again"
            ),
        }
    }
}

fn head(
    text: &mut String,
    session: &Session,
    places: &[Watched],
    cover: &Cover,
    ago: &impl Fn(u64) -> u64,
) -> std::fmt::Result {
    let first = &places[0];
    let (name_of_all, several) = match places.len() {
        1 => (&first.name, String::new()),
        n => (&first.spec, format!(" in {n} places, the first")),
    };
    let len = places.iter().fold(0, |n, p| u64::saturating_add(n, p.len));
    writeln!(
        text,
        "{}, {}{several} at {:#x} in process {} ({}{}), watched for {}:",
        Text(name_of_all),
        count(len, "byte"),
        first.addr,
        session.pid,
        Text(&session.name),
        Text(
            &session
                .ended
                .as_ref()
                .map(|e| format!(", {e}"))
                .unwrap_or_default()
        ),
        Seconds(ago(cover.since))
    )?;
    if cover.uncovered > 0 {
        let n = count(cover.uncovered, "byte");
        writeln!(
            text,
            "  ({n} of it not watched: what happened there is not known)"
        )?;
    }
    Ok(())
}

fn reach(
    text: &mut String,
    found: &Found,
    nobody: bool,
    ago: &impl Fn(u64) -> u64,
) -> std::fmt::Result {
    let from = found.reaches_back.unwrap_or(0);
    let what = match nobody {
        true => "nobody has written it since then",
        false => "there may have been others before",
    };
    writeln!(
        text,
        "  (all threads' hits are known only for the last {}: {what})",
        Seconds(ago(from))
    )
}

fn head_json(
    text: &mut String,
    session: &Session,
    places: &[Watched],
    cover: &Cover,
    (found, hits): (&Found, usize),
    ago: &impl Fn(u64) -> u64,
) {
    /// docs/json.md describes it.
    #[derive(Serialize)]
    struct Last<'a> {
        r#type: &'static str,
        pid: i32,
        ulpf: i32,
        ended: bool,
        spec: &'a str,
        addr: Address,
        len: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        places: Option<usize>,
        found: usize,
        watched_since: words::Seconds,
        unwatched_bytes: u64,
        rejected: u64,
        reaches_back: Option<words::Seconds>,
    }
    let last = Last {
        r#type: "last",
        pid: session.pid,
        ulpf: session.by,
        ended: session.ended.is_some(),
        spec: &places[0].spec,
        addr: Address(places[0].addr),
        len: places.iter().fold(0, |n, p| u64::saturating_add(n, p.len)),
        places: (places.len() > 1).then_some(places.len()),
        found: hits,
        watched_since: words::Seconds(ago(cover.since)),
        unwatched_bytes: cover.uncovered,
        rejected: cover.rejected,
        reaches_back: found.reaches_back.map(|from| words::Seconds(ago(from))),
    };
    json::append(text, &last);
}

/// Nanoseconds, for people.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} s", Duration::from_nanos(self.0).as_secs_f64())
    }
}
