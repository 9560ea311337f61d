//! `--plain`: a report in each interval, as lines for screen readers and pipes. No cursor movement, no overwriting.
//! Commands are lines on standard input.

use super::TopArgs;
use super::app::App;
use super::figures::{figure, short};
use super::rows;
use super::started::Started;
use super::theme::Theme;
use super::view::{View, passes};
use super::watcher::Watcher;
use anyhow::Result;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, Write, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use ulpf_host::foreign::text::{Text, lines};
use ulpf_host::rights::thread_time;
use ulpf_session::control_socket::Ask;
use ulpf_session::hit::Line;
use ulpf_session::snapshot::Snapshot;
use ulpf_session::watcher::Pace;
use ulpf_session::words::Seconds;

const COMMANDS: &str = "\
commands: watches, sites, pages, threads, hits [N], heap, blocks; add SPEC, off N, on N, delete N;
filter WORDS (of hits), program (the next one), pause, help, quit";

/// Factor of the default interval: four reports a second are too fast to read as lines.
const SLOWER: f64 = 8.0;

pub fn run(
    args: &TopArgs,
    watcher: &mut Watcher,
    mut started: Option<Started>,
    leave: &AtomicBool,
) -> Result<()> {
    let mut app = App::new(Theme::of_environment());
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let look = Duration::from_secs_f64(args.interval.min(1.0));
    let report = Duration::from_secs_f64(match args.interval {
        default if default == 0.25 => default * SLOWER,
        asked => asked,
    });
    let mut reported = Reported::default();
    let (mut next, mut reports) = (Instant::now(), 0);
    let mut rest = Duration::ZERO;
    let mut heard = true;
    let mut pace = Pace::default();
    loop {
        let begun = thread_time();
        watcher.look(&mut app);
        let used = thread_time() - begun;
        watcher.look_at_heap(&mut app);
        if let Some(program) = &mut started {
            super::tell_of(program, &mut app);
        }
        let ended = app.session().is_some_and(|s| s.ended.is_some());
        let mut text = String::new();
        if Instant::now() >= next || ended && started.is_some() {
            reported.report(&app, &mut text);
            next = Instant::now() + report;
            reports += 1;
        }
        if let Some((message, _)) = app.message.take() {
            let _ = writeln!(text, "{}", Text(&message));
        }
        // The reader has closed the pipe.
        if stdout()
            .write_all(lines(&text).as_bytes())
            .and_then(|()| stdout().flush())
            .is_err()
        {
            return Ok(());
        }
        let enough = args.count.is_some_and(|n| reports >= n);
        if leave.load(Ordering::Relaxed) || enough || ended && started.is_some() {
            return Ok(());
        }
        let late = rest.max(pace.pause(used)).max(look);
        rest = Duration::ZERO;
        let until = Instant::now() + late;
        while Instant::now() < until && !leave.load(Ordering::Relaxed) {
            let wait = until.saturating_duration_since(Instant::now());
            let wait = wait.min(Duration::from_millis(100));
            if !heard {
                std::thread::sleep(wait);
                continue;
            }
            match commands.recv_timeout(wait) {
                Ok(line) => {
                    let mut text = String::new();
                    if !obey(&line, &mut app, watcher, &mut text) {
                        return Ok(());
                    }
                    if stdout()
                        .write_all(lines(&text).as_bytes())
                        .and_then(|()| stdout().flush())
                        .is_err()
                    {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => heard = false,
            }
        }
    }
}

/// Executes a command line. Returns `false` if it ends the program.
fn obey(line: &str, app: &mut App, watcher: &mut Watcher, text: &mut String) -> bool {
    use super::app::Action;
    let line = line.trim();
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim();
    let number = || rest.parse::<usize>();
    let ask = match (word, number()) {
        ("quit" | "q", _) => return false,
        ("watches", _) => return show(app, View::Watches, usize::MAX, text),
        ("sites", _) => return show(app, View::Sites, usize::MAX, text),
        ("pages", _) => return show(app, View::Pages, usize::MAX, text),
        ("threads", _) => return show(app, View::Threads, usize::MAX, text),
        ("hits", n) => return show(app, View::Hits, n.unwrap_or(20), text),
        ("heap", _) => return show(app, View::Heap, usize::MAX, text),
        ("blocks", _) => {
            watcher.act(app, Action::Blocks);
            return true;
        }
        ("pause", _) => {
            app.paused ^= true;
            let _ = writeln!(
                text,
                "the feed {}",
                if app.paused { "rests" } else { "goes on" }
            );
            return true;
        }
        ("filter", _) => {
            app.feed_filter = rest.to_string();
            return true;
        }
        ("program", _) if !app.sessions.is_empty() => {
            app.current = (app.current + 1) % app.sessions.len();
            return true;
        }
        ("add", _) if !rest.is_empty() => Ask::Add(rest.to_string()),
        ("off", Ok(n)) => Ask::Off(n),
        ("on", Ok(n)) => Ask::On(n),
        ("delete", Ok(n)) => Ask::Delete(n),
        ("", _) => return true,
        _ => {
            let _ = writeln!(text, "{COMMANDS}");
            return true;
        }
    };
    watcher.act(app, Action::Ask(ask));
    true
}

fn show(app: &mut App, view: View, last: usize, text: &mut String) -> bool {
    app.view = view;
    let columns = rows::columns(view);
    let rows = app.rows();
    if rows.is_empty() {
        let _ = match (view, &app.heap) {
            (View::Heap, None) => writeln!(text, "the heap is not checked: ulpf check does that"),
            (View::Heap, Some(_)) => writeln!(text, "nothing is wrong with the heap so far"),
            _ => writeln!(text, "no {}", view.title().to_lowercase()),
        };
    }
    for row in rows.iter().skip(rows.len().saturating_sub(last)) {
        let cells = columns.iter().zip(&row.cells);
        let cells = cells.filter(|(_, cell)| !cell.is_empty());
        let words: Vec<String> = cells
            .map(|(c, cell)| format!("{} {cell}", c.title))
            .collect();
        let _ = writeln!(text, "{}", words.join(", "));
    }
    true
}

/// Earlier reports, kept so that only changes are reported.
#[derive(Default)]
struct Reported {
    begun: bool,
    nothing: String,
    hits: HashMap<(i32, usize, u64), u64>,
    line: HashMap<i32, u64>,
}

impl Reported {
    fn report(&mut self, app: &App, text: &mut String) {
        if !self.begun {
            self.begun = true;
            let _ = writeln!(text, "ulpf top, plain; {COMMANDS}");
        }
        if app.sessions.is_empty() && self.nothing != app.nothing {
            self.nothing.clone_from(&app.nothing);
            let _ = writeln!(text, "{}", app.nothing);
        }
        for session in &app.sessions {
            self.session(session, &app.feed_filter, text);
        }
        if let Some(heap) = &app.heap {
            let sums = heap.sums;
            let _ = writeln!(
                text,
                "  heap: {} errors; {} blocks of {} bytes, {} bytes kept of freed ones",
                figure(sums.errors),
                figure(sums.blocks),
                figure(sums.bytes),
                figure(sums.kept)
            );
        }
    }

    fn session(&mut self, s: &Snapshot, filter: &str, text: &mut String) {
        let (t, r) = (&s.totals, &s.rates);
        let _ = writeln!(
            text,
            "{}, {:.0} seconds: {} hits, {} per second, {} silent, {} false positives{}",
            s.title(),
            s.seconds,
            figure(t.hits),
            short(r.hits),
            figure(t.silent),
            figure(t.false_positives),
            s.ended
                .as_ref()
                .map_or(String::new(), |why| format!("; {why}"))
        );
        for w in &s.watches {
            let key = (
                s.pid,
                w.number.unwrap_or(usize::MAX),
                u64::from(w.id.unwrap_or(0)),
            );
            let before = self.hits.insert(key, w.hits);
            if before == Some(w.hits) {
                continue;
            }
            let _ = writeln!(
                text,
                "  watch {}, {}: {} hits, {} per second, value {}",
                w.number.unwrap_or(w.id.map_or(0, |id| id as usize + 1)),
                Text(&w.name),
                figure(w.hits),
                short(w.rate),
                if w.last.is_empty() {
                    "not known"
                } else {
                    &w.last
                }
            );
        }
        // The newest hits, and the number of all new ones.
        let shown = self.line.entry(s.pid).or_default();
        let fits = |l: &&Line| passes(filter, &l.name, &l.place, l.tid);
        let new_hits: Vec<_> = s
            .feed
            .iter()
            .filter(|l| l.number > *shown)
            .filter(fits)
            .collect();
        *shown = s.feed.back().map_or(*shown, |l| l.number);
        if new_hits.len() > 5 {
            let _ = writeln!(
                text,
                "  {} hits, the last 5:",
                figure(new_hits.len() as u64)
            );
        }
        for l in new_hits.iter().skip(new_hits.len().saturating_sub(5)) {
            let _ = writeln!(
                text,
                "  {} at {} s by thread {}: {}, {}",
                l.verb,
                Seconds(l.nanos),
                l.tid,
                format_args!("{}: {}", Text(&l.name), Text(&l.change.replace('→', "to"))),
                Text(&l.place)
            );
        }
    }
}
