//! Signal numbers in the notations of Linux, the remote protocol (GDB) and people; and the signals that we receive.
#![forbid(unsafe_code)]

use crate::sys;
use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The last signal that asks us to end, or 0.
static TO_END: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Number of threads that read foreign files or debug information.
static READING: AtomicUsize = AtomicUsize::new(0);

/// Time limit of such reading after a signal.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// Whether a signal asks us to end. Long work that cannot wait for signals itself polls this.
pub fn asked_to_end() -> bool {
    TO_END.load(Ordering::Relaxed) != 0
}

/// Clears the signal: it has been passed on to the program.
pub fn passed_on() {
    TO_END.store(0, Ordering::Relaxed);
}

/// From now on [`asked_to_end`] reports this signal. The caller must have replaced its default action.
pub fn note(number: i32) {
    let _ = signal_hook::flag::register_usize(number, TO_END.clone(), number as usize);
}

/// While this lives, the thread reads foreign data and polls [`asked_to_end`]. If a library does not return to it, or a
/// file system hangs, `ulpf` ends after [`GRACE_PERIOD`] all the same. The stub notices that and releases the program.
pub struct Reading(());

impl Reading {
    /// Begins reading; it ends when the value is dropped.
    pub fn begin() -> Reading {
        look_at_readers();
        READING.fetch_add(1, Ordering::Relaxed);
        Reading(())
    }
}

fn look_at_readers() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| drop(std::thread::spawn(watch_readers)));
}

impl Drop for Reading {
    fn drop(&mut self) {
        READING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While this lives and reading takes long, a line on the terminal says that debug information is read. No other code
/// may write to the terminal meanwhile.
pub struct ReadingNotice(());

/// Start of the reading, and whether the line is shown.
static NOTICE: Mutex<Option<(Instant, bool)>> = Mutex::new(None);

/// Reading that is shorter than this shows no line.
const SHORT: Duration = Duration::from_secs(1);

impl ReadingNotice {
    /// `None` if standard error is not a terminal.
    pub fn begin() -> Option<ReadingNotice> {
        stderr().is_terminal().then(|| {
            look_at_readers();
            *notice() = Some((Instant::now(), false));
            ReadingNotice(())
        })
    }
}

impl Drop for ReadingNotice {
    fn drop(&mut self) {
        if let Some((_, true)) = notice().take() {
            let _ = stderr().write_all(b"\r\x1b[K");
        }
    }
}

fn notice() -> MutexGuard<'static, Option<(Instant, bool)>> {
    NOTICE.lock().unwrap_or_else(|held| held.into_inner())
}

fn tell() {
    if let Some((since, there)) = &mut *notice()
        && since.elapsed() > SHORT
    {
        let seconds = since.elapsed().as_secs();
        let line = format!("\rulpf: reading debug information, {seconds} s");
        let _ = stderr().write_all(line.as_bytes());
        *there = true;
    }
}

fn watch_readers() {
    let mut since: Option<Instant> = None;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        tell();
        since = match asked_to_end() && READING.load(Ordering::Relaxed) > 0 {
            true => since.or_else(|| Some(Instant::now())),
            false => None,
        };
        if since.is_some_and(|s| s.elapsed() > GRACE_PERIOD) {
            // (`eprintln!` panics if the reader has gone, and this must end.)
            let text = "ulpf: ends while it reads debug information: interrupted by a signal\n";
            let _ = stderr().write_all(text.as_bytes());
            std::process::exit(128 + TO_END.load(Ordering::Relaxed) as i32);
        }
    }
}

/// Signals to ourselves. A signal that our parent has set to be ignored (nohup) stays ignored.
pub struct Incoming(Vec<(i32, Signal)>);

impl Incoming {
    /// Receives these signals (Linux numbers) instead of their default action.
    pub fn new(numbers: &[i32]) -> Incoming {
        let heard = numbers.iter().filter(|&&n| !sys::is_ignored(n));
        let hear = |&n: &i32| {
            let signal = signal(SignalKind::from_raw(n)).ok()?;
            note(n);
            Some((n, signal))
        };
        Incoming(heard.filter_map(hear).collect())
    }

    /// Waits for the next signal. Safe to cancel.
    pub async fn next(&mut self) -> i32 {
        std::future::poll_fn(|cx| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// (Linux number, name, description), from gdb/signals.def.
const SIGNALS: &[(i32, &str, &str)] = &[
    (1, "SIGHUP", "Hangup"),
    (2, "SIGINT", "Interrupt"),
    (3, "SIGQUIT", "Quit"),
    (4, "SIGILL", "Illegal instruction"),
    (5, "SIGTRAP", "Trace/breakpoint trap"),
    (6, "SIGABRT", "Aborted"),
    (7, "SIGBUS", "Bus error"),
    (8, "SIGFPE", "Arithmetic exception"),
    (9, "SIGKILL", "Killed"),
    (10, "SIGUSR1", "User defined signal 1"),
    (11, "SIGSEGV", "Segmentation fault"),
    (12, "SIGUSR2", "User defined signal 2"),
    (13, "SIGPIPE", "Broken pipe"),
    (14, "SIGALRM", "Alarm clock"),
    (15, "SIGTERM", "Terminated"),
    (16, "SIGSTKFLT", "Stack fault"),
    (17, "SIGCHLD", "Child status changed"),
    (18, "SIGCONT", "Continued"),
    (19, "SIGSTOP", "Stopped (signal)"),
    (20, "SIGTSTP", "Stopped (user)"),
    (21, "SIGTTIN", "Stopped (tty input)"),
    (22, "SIGTTOU", "Stopped (tty output)"),
    (23, "SIGURG", "Urgent I/O condition"),
    (24, "SIGXCPU", "CPU time limit exceeded"),
    (25, "SIGXFSZ", "File size limit exceeded"),
    (26, "SIGVTALRM", "Virtual timer expired"),
    (27, "SIGPROF", "Profiling timer expired"),
    (28, "SIGWINCH", "Window size changed"),
    (29, "SIGIO", "I/O possible"),
    (30, "SIGPWR", "Power fail/restart"),
    (31, "SIGSYS", "Bad system call"),
];

/// The number for a name in the notation of GDB and Linux.
pub fn number(name: &str) -> Option<i32> {
    let known = SIGNALS.iter().find(|(_, n, _)| *n == name);
    known.map(|(linux, ..)| *linux)
}

/// `SIGSEGV`, or `?` if there is no such signal.
pub fn name(linux: i32) -> String {
    match SIGNALS.iter().find(|s| s.0 == linux) {
        Some(s) => s.1.into(),
        None if (32..=64).contains(&linux) => format!("SIG{linux}"),
        None => "?".into(),
    }
}

/// The description that GDB prints: `Segmentation fault`.
pub fn description(linux: i32) -> String {
    match SIGNALS.iter().find(|s| s.0 == linux) {
        Some(s) => s.2.into(),
        None => format!("Real-time event {linux}"),
    }
}
