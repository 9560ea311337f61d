//! Reports the cause when a wait for the program's threads takes long: the thread, its work for us, and its state in
//! the kernel. The wait goes on; the user can act.

use alloc::string::String;
use core::fmt::Write;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use super::parked::Parked;
use crate::files::read_file;
use ulpf_stub_handlers::runtime::events::Request;
use ulpf_stub_handlers::runtime::thread::{State, Thread};

/// Threads stop within microseconds; a wait of this many nanoseconds needs the user's help.
const LIMIT_NS: u64 = 3_000_000_000;

/// One wait. Reports at most once.
pub struct Watchdog {
    since: u64,
    reported: bool,
}

impl Watchdog {
    pub fn new() -> Watchdog {
        Watchdog {
            since: now(),
            reported: false,
        }
    }

    /// Returns whether it is time to report the cause of the wait.
    pub fn expired(&mut self) -> bool {
        let late = !self.reported && now().saturating_sub(self.since) > LIMIT_NS;
        self.reported |= late;
        late
    }
}

fn now() -> u64 {
    let mut t = [0u64; 2];
    // SAFETY: fills `t`.
    let _ = unsafe { sys!(k::__NR_clock_gettime, k::CLOCK_MONOTONIC, t.as_mut_ptr()) };
    t[0] * 1_000_000_000 + t[1]
}

/// The threads that a stop waits for.
pub fn threads_run(waiting: impl Iterator<Item = &'static Thread>, asker: Option<&Thread>) {
    let mut text = String::from("ulpf: the program does not come to rest");
    if let Some(t) = asker {
        let what = Parked::of(t).map_or(Request::None, |t| t.request());
        let _ = write!(
            text,
            ", which thread {} needs for {}",
            t.tid(),
            purpose(what)
        );
    }
    text.push_str(".\n");
    for t in waiting.take(8) {
        describe(&mut text, t);
    }
    super::notices::tell(&text);
}

/// The thread that runs alone, and does not come back.
pub fn holder_runs(t: &Thread, what: Request) {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "ulpf: all threads wait for one of them, which has to finish {}.",
        purpose(what)
    );
    describe(&mut text, t);
    super::notices::tell(&text);
}

fn purpose(what: Request) -> &'static str {
    match what {
        Request::ForkBegin => "a fork",
        Request::ReleaseBegin { .. } | Request::LocksBegin { .. } => "a change of its memory",
        Request::OpenBegin { .. } => "an instruction that has to be stepped",
        Request::StepOverBegin { .. } => "a step over a breakpoint",
        _ => "a change of what is watched",
    }
}

/// The stat line of a thread from /proc, or an empty string.
fn stat_of(t: &Thread) -> String {
    let mut path = String::new();
    let _ = write!(path, "/proc/{}/task/{}/stat\0", t.tgid(), t.tid());
    let stat = read_file(&path).unwrap_or_default();
    String::from_utf8_lossy(&stat).into_owned()
}

/// Its name, and the rest from the thread's state on.
fn name_and_rest(stat: &str) -> (&str, &str) {
    match (stat.find('('), stat.rfind(") ")) {
        (Some(from), Some(to)) if from < to => (
            stat.get(from + 1..to).unwrap_or("?"),
            stat.get(to + 2..).unwrap_or(""),
        ),
        _ => ("?", ""),
    }
}

/// Returns whether a signal has stopped the thread, and no tracer holds it.
pub fn job_control_stops(t: &Thread) -> bool {
    let stat = stat_of(t);
    name_and_rest(&stat).1.starts_with('T')
}

/// Returns whether a signal or its tracer has stopped the thread.
pub fn is_stopped(t: &Thread) -> bool {
    let stat = stat_of(t);
    let (_, rest) = name_and_rest(&stat);
    rest.starts_with(['T', 't'])
}

fn describe(text: &mut String, t: &Thread) {
    let (pid, tid) = (t.tgid(), t.tid());
    let _ = write!(text, "ulpf:   thread {tid}");
    let mut path = String::new();
    let stat = stat_of(t);
    let (name, rest) = name_and_rest(&stat);
    let _ = write!(text, " ({name}) ");
    let _ = match rest.chars().next() {
        Some('T') => write!(
            text,
            "is stopped by a signal (T): kill -CONT {pid} lets it go on"
        ),
        Some('t') => write!(text, "is held by another debugger (t): detach that one"),
        Some('D') => write!(
            text,
            "is in an uninterruptible wait of the kernel (D): a disk, a network file system"
        ),
        Some('Z' | 'X') => write!(text, "has ended and waits for its process (Z)"),
        Some('R') => write!(text, "runs (R)"),
        Some(other) => write!(text, "is in state {other}"),
        None => write!(text, "has no entry in /proc"),
    };
    if t.state() == State::Starting {
        text.push_str(", and has not begun yet");
    }
    path.clear();
    let _ = write!(path, "/proc/{pid}/task/{tid}/syscall\0");
    let call = read_file(&path).unwrap_or_default();
    let call = String::from_utf8_lossy(&call);
    let words = call.trim();
    if let (Some(pc), Some(number)) = (words.rsplit(' ').next(), words.split(' ').next())
        && pc.starts_with("0x")
    {
        let _ = write!(text, ", pc {pc}, in system call {number}");
    }
    text.push('\n');
}
