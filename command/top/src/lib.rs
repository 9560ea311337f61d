//! `ulpf top`: a live view of running sessions and their watches.
//!
//! ```text
//!  session::watcher (all sessions, what their owners say) ──▶ Snapshots ─┐
//!                                                                        ├─▶ draw ──▶ terminal
//!  keys, mouse ──────────────────────────▶ app (what is chosen) ─────────┘   plain ──▶ lines
//! ```
//! The watched program is never slowed down. `ulpf top` reads memory that is shared anyway, a fixed number of times a
//! second, at a bounded cost. One thread does all the work, except that requests to owners have threads of their own,
//! because owners may answer slowly.
#![forbid(unsafe_code)]

mod app;
mod details;
mod draw;
pub mod export;
mod figures;
mod heap;
mod plain;
mod rows;
mod started;
#[cfg(test)]
mod tests;
mod theme;
mod view;
mod watcher;

use anyhow::{Context, Result};
use app::{Action, App};
use clap::Args;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, DisableMouseCapture, EnableMouseCapture, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use started::Started;
use std::ffi::OsString;
use std::io::{IsTerminal, stdout};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use theme::Theme;
use ulpf_area::sessions::Whose;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::rights::thread_time;
use ulpf_host::say::say;
use ulpf_session::watcher::Pace;
use watcher::Watcher;

const EXAMPLES: &str = "\
Shows every session of `ulpf run`, `attach`, `server` and `gdb` of yours, or starts a program itself:
  ulpf top                                    whatever is watched now
  ulpf top -w counter -w 'tab[0..16]:rw' -- ./prog args
  ulpf top --plain                            lines instead of a screen, commands on standard input
  sudo ulpf top --all-users                   what other users watch, too

? shows the keys. NO_COLOR=1 switches colours off. It only looks: quitting leaves programs as they are,
but for one that it has started itself, which ends with it.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Only this watched program, or the programs that this ulpf watches; may be repeated
    #[arg(short, long, value_name = "PID")]
    pub pid: Vec<i32>,

    /// Watch this in the program that is started (as `ulpf run --watch`); may be repeated
    #[arg(short, long = "watch", value_name = "SPEC", requires = "command")]
    pub watch: Vec<String>,

    /// Record up to N callers with each hit of the program that is started
    #[arg(short, long, value_name = "N", requires = "command", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub backtrace: Option<u8>,

    /// As root: show other users' sessions, too
    #[arg(long)]
    pub all_users: bool,

    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0.25, value_parser = interval)]
    pub interval: f64,

    /// Lines of text instead of a screen: for screen readers, pipes and logs
    #[arg(long)]
    pub plain: bool,

    /// With --plain: end after so many reports
    #[arg(long, value_name = "N", requires = "plain")]
    pub count: Option<u64>,

    /// A program to start, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(n) if (0.05..=3600.0).contains(&n) => Ok(n),
        _ => Err("it takes a number of seconds from 0.05 to 3600".into()),
    }
}

/// Runs the command and returns the exit status.
pub fn main(args: &TopArgs) -> i32 {
    match top(args) {
        Ok(()) => 0,
        Err(error) => {
            say!("{error:#}");
            2
        }
    }
}

fn top(args: &TopArgs) -> Result<()> {
    let leave = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, leave.clone()).context("cannot heed signals")?;
        ulpf_host::signals::note(signal);
    }
    let mut started = None;
    let mut watcher = Watcher::new(args.pid.clone(), Whose::of(args.all_users));
    if !args.command.is_empty() {
        let mut more = Vec::new();
        if let Some(n) = args.backtrace {
            more = vec!["-b".into(), n.to_string()];
        }
        let (mut program, session) = Started::start(&args.watch, &more, &args.command)?;
        match session {
            Some(session) => {
                watcher.only(&session);
                program.go()?;
            }
            None => {
                let said = program.said(20).join("\n  ");
                let status = program.status.and_then(|s| s.code()).unwrap_or(1);
                program.end();
                anyhow::bail!("the program was not started (status {status}):\n  {said}");
            }
        }
        started = Some(program);
    }
    if args.plain || !stdout().is_terminal() {
        return plain::run(args, &mut watcher, started, &leave);
    }
    let screen = Screen::open()?;
    let child = started.as_ref().map(Started::process);
    let in_live = Arc::new(AtomicBool::new(true));
    let (leaving, still) = (leave.clone(), in_live.clone());
    std::thread::spawn(move || end_by_force(&leaving, &still, child));
    let result = live(args, &mut watcher, &mut started, &leave);
    in_live.store(false, Ordering::Relaxed);
    drop(started);
    drop(screen);
    match ulpf_host::sys::is_hung_up(&stdout()) {
        true => Ok(()),
        false => result,
    }
}

/// Ends this command if the main thread cannot. When the terminal has gone, crossterm waits for keys for ever, in a busy
/// loop; when the terminal takes no output, a write blocks. A program that this command has started ends, too.
fn end_by_force(leave: &AtomicBool, in_live: &AtomicBool, run: Option<Process>) {
    // The main thread draws a screen in less, and looks at `leave` each 250 ms.
    const TIMEOUT: Duration = Duration::from_millis(500);
    // It ends the program, and closes the screen.
    const LONGEST: Duration = Duration::from_secs(5);
    let mut since = None;
    let mut gone = false;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        gone |= ulpf_host::sys::is_hung_up(&stdout());
        if gone {
            leave.store(true, Ordering::Relaxed);
        }
        if leave.load(Ordering::Relaxed) {
            let limit = match gone && in_live.load(Ordering::Relaxed) {
                true => TIMEOUT,
                false => LONGEST,
            };
            if since.get_or_insert_with(Instant::now).elapsed() > limit {
                break;
            }
        }
    }
    if let Some(run) = run {
        started::end(&run);
    }
    std::process::exit(i32::from(!gone));
}

/// Switches the terminal to our mode, and back when dropped.
struct Screen;

impl Screen {
    fn open() -> Result<Screen> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            Screen::close();
            before(info);
        }));
        enable_raw_mode().context("cannot use this terminal (--plain writes lines instead)")?;
        let screen = Screen;
        execute!(stdout(), EnterAlternateScreen, EnableMouseCapture)?;
        Ok(screen)
    }
    fn close() {
        let _ = execute!(stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        Screen::close();
    }
}

fn live(
    args: &TopArgs,
    watcher: &mut Watcher,
    started: &mut Option<Started>,
    leave: &AtomicBool,
) -> Result<()> {
    // Dropped, it shows the cursor ([`Screen`] does), and panics if the terminal and standard error have gone.
    let mut terminal = ManuallyDrop::new(Terminal::new(CrosstermBackend::new(stdout()))?);
    let mut app = App::new(Theme::of_environment());
    let every = Duration::from_secs_f64(args.interval);
    let mut next = Instant::now();
    let mut pace = Pace::default();
    loop {
        if leave.load(Ordering::Relaxed) {
            return Ok(());
        }
        if Instant::now() >= next {
            let begun = thread_time();
            watcher.look(&mut app);
            if let Some(program) = started {
                tell_of(program, &mut app);
            }
            next = Instant::now() + every.max(pace.pause(thread_time() - begun));
        }
        watcher.look_at_heap(&mut app);
        watcher.details(&mut app);
        terminal.draw(|frame| draw::draw(frame, &mut app))?;
        // Wait for the next update, but handle signals and answers without delay.
        let wait = next.saturating_duration_since(Instant::now());
        if !event::poll(wait.min(Duration::from_millis(250)))? {
            continue;
        }
        while event::poll(Duration::ZERO)? {
            let action = match event::read()? {
                Event::Key(key) => app.key(key),
                Event::Mouse(mouse) => app.mouse(mouse),
                _ => None,
            };
            match action {
                Some(Action::Quit) => return Ok(()),
                Some(action) => watcher.act(&mut app, action),
                None => {}
            }
        }
    }
}

/// Reports in the session's view how the started program has ended.
fn tell_of(program: &mut Started, app: &mut App) {
    if !program.ended() {
        return;
    }
    app.output = program.said(20);
    let how = match program.status {
        Some(status) => match (
            status.code(),
            std::os::unix::process::ExitStatusExt::signal(&status),
        ) {
            (Some(0), _) => "the program has ended".to_string(),
            (Some(n), _) => format!("the program has ended with status {n}"),
            (_, Some(n)) => format!("the program was killed by signal {n}"),
            _ => return,
        },
        None => return,
    };
    if let Some(session) = app.sessions.first_mut()
        && session.ended.is_some()
    {
        session.ended = Some(how);
    }
}
