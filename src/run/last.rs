//! `ulpf last`: who has written this, as the rings of a running session remember it.
//!
//! Nothing is asked of the session: its shared area is mapped for reading (`inject::sessions`), the
//! program's symbols are looked up here. The answer says how far it reaches: since when the bytes have
//! been watched, and from when on each thread's ring has everything.

use super::format::{Formatter, Look, Quoted, When};
use super::memory::ProcessMemory;
use super::output::{look_of, say_json};
use super::summary::count;
use crate::foreign::text::{Bytes, Text};
use crate::inject::sessions::{self, Watched as Session, Whose};
use crate::inject::{process, sys};
use crate::symbols::{Memory, Problem, Program, Spec, Watched};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stdout};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use ulpf_lib::WatchKind;
use ulpf_lib::ring::last::{Asked, Found, last};
use ulpf_lib::ring::listed;

const EXAMPLES: &str = "\
WHAT is a variable, a part of one, or an address, as for `ulpf run --watch`:
  counter    p->x    tab[3]    tab[0..16]    0x7fffe000    0x7fffe000:64

A session of `ulpf run`, `attach`, `server` or `gdb` has to be watching it. Exit status: 0: here is who;
1: nobody, as far as is known; 2: it could not be answered.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LastArgs {
    /// What was written
    pub what: String,

    /// The watched program, or the ulpf that watches it; may be left out if there is only one
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<i32>,

    /// How many accesses, the youngest first
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

/// The exit status.
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
    /// Seen and logged, at present.
    logged: bool,
    /// Only counted; only for the other kind of access; taken away.
    counted: bool,
    other_kind: bool,
    ended: bool,
    /// TSC; since then all of them have been in force.
    since: u64,
    /// The bytes that none of them covers, as far as told apart: how many.
    uncovered: u64,
    /// Hits that their filters rejected.
    rejected: u64,
}

fn answer(args: &LastArgs) -> Result<bool> {
    let session = choose(args.pid, Whose::of(args.all_users))?;
    let program = match &session.elsewhere {
        Some(elsewhere) => Ok(Program::of_file(
            &elsewhere.file,
            elsewhere.bias,
            session.by,
        )),
        None => Program::of_process(session.pid),
    };
    let program =
        program.with_context(|| format!("cannot read what process {} is made of", session.pid))?;
    let watch = resolve(&args.what, &program, session.pid)?;
    let (pid, shared) = (session.pid, &session.shared);
    let cover = Cover::of(&session, &watch, args.reads);
    if !cover.logged {
        bail!(cover.why_not(&watch, pid, args.reads));
    }
    let found = last(
        shared,
        &Asked {
            addr: watch.addr,
            len: watch.len,
            reads: args.reads,
            most: args.number as usize,
        },
    );
    let now = sys::tsc();
    let ago = |tsc: u64| {
        let clock = shared.clock();
        clock.nanos(now).saturating_sub(clock.nanos(tsc.min(now)))
    };
    let mut text = String::new();
    if args.json {
        head_json(&mut text, &session, &watch, &cover, &found, &ago)?;
    } else {
        head(&mut text, &session, &watch, &cover, &ago)?;
    }
    let look = look_of(args.json, stdout().is_terminal());
    let mut formatter = Formatter::new(look);
    let mut told = false;
    for hit in &found.hits {
        if found.reaches_back.is_some_and(|from| hit.time < from) && !told && look != Look::Json {
            reach(&mut text, &found, &ago)?;
            told = true;
        }
        let when = When::Ago(ago(hit.time));
        formatter.hit(&mut text, hit, None, when, 0, &watch, &program);
    }
    if look != Look::Json && !told && found.hits.len() < args.number as usize {
        match found.reaches_back {
            Some(_) => reach(&mut text, &found, &ago)?,
            None if found.hits.is_empty() => {
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
    Ok(!found.hits.is_empty())
}

pub fn choose(of: Option<i32>, whose: Whose) -> Result<Session> {
    let mut sessions = sessions::find(of, whose).context("cannot look at processes")?;
    match (sessions.list.pop(), sessions.list.len()) {
        (Some(only), 0) => Ok(only),
        (Some(last), _) => {
            sessions.list.push(last);
            let list = sessions.list.iter();
            let list = list.map(|s| format!("\n  {} ({})", s.pid, name(s.pid)));
            bail!(
                "several programs are watched; choose one with --pid:{}",
                list.collect::<String>()
            )
        }
        (None, _) => match of {
            Some(pid) if sessions.forbidden && sys::is_root() => bail!(
                "process {pid} belongs to another user; --all-users looks into other users' sessions, too"
            ),
            Some(pid) if sessions.forbidden => bail!(
                "process {pid} belongs to somebody else, who alone (and root) may look into what is watched there"
            ),
            _ if !sessions.foreign.is_empty() => bail!(
                "process {} watches with another version of ulpf; use that version's `ulpf last`",
                sessions.foreign[0]
            ),
            Some(pid) if !process::is_alive(pid) => bail!("there is no process {pid}"),
            _ if sessions.hides_some() => bail!(
                "no program is watched by a ulpf of yours; ulpf ({}) of another user is at work: --all-users looks into other users' sessions, too",
                sessions.others[0]
            ),
            Some(pid) => bail!(
                "process {pid} is not watched by any ulpf; start it with `ulpf run`, or watch it with `ulpf attach --watch … {pid}`"
            ),
            None => bail!(
                "no program is watched at present; `ulpf run`, `attach`, `server` or `gdb` has to be at it (a program that has ended cannot be asked any more)"
            ),
        },
    }
}

fn name(pid: i32) -> String {
    let path = process::executable(pid).unwrap_or_default();
    let name = path.file_name().unwrap_or_default();
    Bytes(name.as_bytes()).to_string()
}

/// The program runs, and Yama may keep us from its memory: it is opened only if it is needed.
pub struct Lazily(i32, OnceCell<Option<ProcessMemory>>);

impl Lazily {
    pub fn of(pid: i32) -> Lazily {
        Lazily(pid, OnceCell::new())
    }
}

impl Memory for Lazily {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        let memory = self.1.get_or_init(|| ProcessMemory::of(self.0, None).ok());
        memory.as_ref().is_some_and(|m| m.read(addr, buf))
    }
    fn thread_pointer(&self) -> Option<u64> {
        None
    }
}

fn resolve(what: &str, program: &Program, pid: i32) -> Result<Watched> {
    let problem = |problem: Problem| anyhow::anyhow!("{problem}");
    // A bare address is one byte, which finds whatever covers it.
    let bare = what.trim().strip_prefix("0x");
    let text = match bare.map(|hex| u64::from_str_radix(hex, 16)) {
        Some(Ok(_)) => format!("{}:1", what.trim()),
        _ => what.to_string(),
    };
    let spec = Spec::parse(&text).map_err(problem)?;
    let memory = Lazily::of(pid);
    let watch = program.resolve(&spec, &memory).map_err(problem)?;
    if watch.heap {
        bail!("`{what}` is all of the heap; ask for an address in it");
    }
    Ok(watch)
}

impl Cover {
    fn of(session: &Session, watch: &Watched, reads: bool) -> Cover {
        let mut cover = Cover::default();
        let (start, end) = (watch.addr, watch.addr.saturating_add(watch.len));
        let mut covered: Vec<(u64, u64)> = Vec::new();
        let mut ids = BTreeSet::new();
        for line in session.shared.roster() {
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
        // Several stretches may be reported as one watch.
        for id in ids {
            let counters = session.shared.counters(id);
            let filtered = counters.filtered.load(Ordering::Relaxed);
            cover.rejected = cover.rejected.saturating_add(filtered);
        }
        cover
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
    watch: &Watched,
    cover: &Cover,
    ago: &impl Fn(u64) -> u64,
) -> std::fmt::Result {
    writeln!(
        text,
        "{}, {} at {:#x} in process {} ({}), watched for {}:",
        Text(&watch.name),
        count(watch.len, "byte"),
        watch.addr,
        session.pid,
        name(session.pid),
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

fn reach(text: &mut String, found: &Found, ago: &impl Fn(u64) -> u64) -> std::fmt::Result {
    let from = found.reaches_back.unwrap_or(0);
    let what = match found.hits.is_empty() {
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
    watch: &Watched,
    cover: &Cover,
    found: &Found,
    ago: &impl Fn(u64) -> u64,
) -> std::fmt::Result {
    write!(
        text,
        "{{\"type\":\"last\",\"pid\":{},\"ulpf\":{},\"spec\":{},\"addr\":\"{:#x}\",\"len\":{},\"found\":{}",
        session.pid,
        session.by,
        Quoted(&watch.spec),
        watch.addr,
        watch.len,
        found.hits.len()
    )?;
    write!(text, ",\"watched_since\":{}", Number(ago(cover.since)))?;
    write!(text, ",\"unwatched_bytes\":{}", cover.uncovered)?;
    write!(text, ",\"rejected\":{}", cover.rejected)?;
    match found.reaches_back {
        Some(from) => writeln!(text, ",\"reaches_back\":{}}}", Number(ago(from))),
        None => writeln!(text, ",\"reaches_back\":null}}"),
    }
}

/// Nanoseconds, for people.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} s", Duration::from_nanos(self.0).as_secs_f64())
    }
}

/// Nanoseconds, as seconds in JSON.
struct Number(u64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}.{:06}",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000 / 1000
        )
    }
}
