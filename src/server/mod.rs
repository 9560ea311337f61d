//! `ulpf server`: takes gdbserver's place.
//!
//! ```text
//!   debugger ⇄ Client (framing, acks) ⇄ Server (this module) ⇄ Target (control channel) ⇄ stub
//! ```
//! One task does everything, so nothing here is shared or locked. A packet is served to its end before
//! the next one is looked at; only interrupt requests and the loss of the connection overtake. What
//! the stub can answer goes to the stub; the rest (starting, killing, files, having no program) is
//! answered in [`requests`].
#![forbid(unsafe_code)]

/// `eprintln!` in one write, so that whoever reads our stderr never sees half a line.
macro_rules! message {
    ($($text:tt)*) => {{
        use std::io::Write;
        let text = format!("{}\n", format_args!($($text)*));
        let _ = std::io::stderr().write_all($crate::foreign::text::lines(&text).as_bytes());
    }};
}

mod bridge;
mod client;
mod door;
mod filters;
#[cfg(fuzzing)]
pub mod fuzzing;
mod host_io;
pub mod options;
mod processes;
mod requests;
mod running;
mod target;
mod vfork;
mod watchdog;
mod watches;

pub use bridge::{BackEnd, Bound as BridgeBound, Place, offer};

use crate::inject::{ExecError, Launch, StartError, Stdio, foreground, process, sys};
use crate::listen::{Connection, Listener, Protocol, Rules};
use crate::rsp;
use crate::session::{self, Ending};
use crate::signals::Incoming;
use client::{Client, Input};
use host_io::HostIo;
use options::{Options, Target as Wanted};
use processes::Unborn;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use target::{News, Target};

/// The size that we announce while there is no program; the stub announces its own.
pub const PACKET_SIZE: usize = 0x10000;
/// Longer packets are refused whatever the stub may announce.
pub const PACKET_LIMIT: usize = 0x40000;

/// How a connection, or the whole server, ended.
enum Outcome {
    /// The debugger has gone.
    Closed,
    /// The server is done, with this exit status.
    Quit(i32),
    /// We were told to leave by a signal.
    Signalled(i32),
}

impl Outcome {
    /// The process's; it does not come back if a signal is to end it.
    fn status(self) -> i32 {
        match self {
            Outcome::Signalled(signal) => sys::die_by(signal),
            Outcome::Quit(status) => status,
            Outcome::Closed => 0,
        }
    }
}

struct Server {
    options: Options,
    /// What vRun, R and the command line start.
    program: Option<(OsString, Vec<OsString>)>,
    env: BTreeMap<OsString, OsString>,
    cwd: Option<PathBuf>,
    shell: bool,
    disable_randomization: bool,
    /// The debugger has sent `!`.
    extended: bool,
    /// The debugger understands `p1.2`, `;process:`.
    multiprocess: bool,
    /// The debugger wants to hear of exec, fork, vfork.
    exec_events: bool,
    fork_events: bool,
    vfork_events: bool,
    /// The debugger's last qSupported, for the stubs of programs that are started later.
    supported: Option<Vec<u8>>,
    /// Settings that outlive a program: packet up to its `:` → packet.
    sticky: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What qSupported has announced.
    packet_size: usize,
    /// The first one is the one that packets are for (see [`processes`]).
    targets: Vec<Target>,
    /// Forked children that the debugger has heard of and has not decided about.
    unborn: Vec<Unborn>,
    /// The debugger has selected this one of them.
    chosen: Option<i32>,
    host_io: HostIo,
    stdio: bool,
    terminal: Terminal,
    door: door::Door,
}

/// Who has the terminal, when there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// The program, from its start to the end of the server; gdbserver's way.
    Program,
    /// The debugger (see `foreground::share_with`), except while the program runs. The server says nothing
    /// then, because the debugger does.
    Shared,
}

/// A server that has its address but has not begun.
pub struct Bound {
    listener: Listener,
    server: Server,
}

/// `ulpf server`: serves until it is over; the exit status.
pub async fn serve(options: Options) -> i32 {
    if let Some(backend) = options.backend.clone() {
        return bridge::serve(options, backend).await;
    }
    // They end us, but not while the stub is only half-way in a program.
    let mut signals = Incoming::new(&[libc::SIGHUP, libc::SIGINT, libc::SIGTERM]);
    let mut bound = match Bound::new(options, Terminal::Program).await {
        Ok(bound) => bound,
        Err(why) => {
            message!("{why}\nExiting");
            return 1;
        }
    };
    let outcome = tokio::select! {
        outcome = bound.run() => outcome,
        signal = signals.next() => Outcome::Signalled(signal),
    };
    bound.end().await;
    foreground::take_back();
    outcome.status()
}

impl Bound {
    /// The error is text for the user.
    pub async fn new(options: Options, terminal: Terminal) -> Result<Bound, String> {
        let listener = bind(&options).await?;
        let server = Server {
            program: match &options.target {
                Wanted::Program { program, args } => Some((program.clone(), args.clone())),
                _ => None,
            },
            env: std::env::vars_os().collect(),
            cwd: None,
            shell: !options.no_shell,
            disable_randomization: !options.keep_randomization,
            extended: false,
            multiprocess: false,
            exec_events: false,
            fork_events: false,
            vfork_events: false,
            supported: None,
            sticky: BTreeMap::new(),
            packet_size: PACKET_SIZE,
            targets: Vec::new(),
            unborn: Vec::new(),
            chosen: None,
            host_io: HostIo::new(serves_files(&options, &listener)),
            stdio: listener.is_stdio(),
            terminal,
            door: door::Door::default(),
            options,
        };
        Ok(Bound { listener, server })
    }

    /// Serves until it is over.
    pub async fn serve(mut self) {
        self.run().await;
        self.end().await;
    }

    async fn run(&mut self) -> Outcome {
        let server = &mut self.server;
        let started = match server.options.target {
            Wanted::None => Ok(()),
            Wanted::Program { .. } => server.start().await,
            Wanted::Attach(pid) => server.attach(pid).await,
        };
        if let Err(error) = started {
            report(&error, "");
            message!("Exiting");
            return Outcome::Quit(1);
        }
        server.accept_loop(&mut self.listener).await
    }

    async fn end(self) {
        drop(self.listener);
        let mut server = self.server;
        server.leave().await;
    }
}

/// The place that the options name. The error is text for the user.
async fn bind(options: &Options) -> Result<Listener, String> {
    let rules = Rules {
        name: "ulpf server",
        protocol: Protocol::Remote,
        any_user: options.any_user,
    };
    let listener = Listener::bind(&options.comm, rules).await?;
    if let Some(address) = listener.beyond_this_machine() {
        let files = match options.allow_files {
            true => "; and read and write your files (--allow-files)",
            false => ". It serves no files (vFile) there; --allow-files lets it",
        };
        message!(
            "ulpf server: whoever reaches {address} has the program and can start others as you: there is no password{files}. :PORT listens on this machine only."
        );
    }
    Ok(listener)
}

/// Files are for debuggers of this machine, unless the user says otherwise.
fn serves_files(options: &Options, listener: &Listener) -> bool {
    options.allow_files || listener.beyond_this_machine().is_none()
}

/// Says why a program could not be started, in gdbserver's words.
fn report(error: &StartError, prefix: &str) {
    if let StartError::ExitedEarly {
        exec_error: Some(ExecError { program, source }),
        ..
    } = error
    {
        let source = source
            .raw_os_error()
            .map_or_else(|| source.to_string(), crate::errno_text);
        message!("ulpf server: Cannot exec {program}\nulpf server: Error: {source}");
    }
    message!("{prefix}{error}");
}

impl Server {
    async fn accept_loop(&mut self, listener: &mut Listener) -> Outcome {
        loop {
            if let Some(text) = listener.announcement() {
                self.say(&text);
            }
            let Some(connection) = self.accept(listener).await else {
                return Outcome::Quit(1);
            };
            self.say(&format!("Remote debugging {}", connection.from));
            let mut client = Client::new(connection, self.options.remote_debug);
            self.host_io.close_all();
            self.multiprocess = false;
            (self.exec_events, self.fork_events, self.vfork_events) = (false, false, false);
            let outcome = self.connection(&mut client).await;
            drop(client);
            match outcome {
                Outcome::Closed => {}
                quit => return quit,
            }
            // A program that runs without anybody to hear of its stops would hang at the first one.
            for at in 0..self.targets.len() {
                let target = &mut self.targets[at];
                target.stop().await;
                if let Some(stop) = target.pending.take() {
                    let parent = target.number;
                    self.note_child(parent, &stop);
                }
            }
            self.release_children().await;
            self.take_terminal();
            if self.options.once || self.stdio || (!self.extended && self.targets.is_empty()) {
                return Outcome::Quit(0);
            }
            self.say(
                "Remote side has terminated connection.  ulpf server will reopen the connection.",
            );
        }
    }

    /// The next client. A lack of descriptors, say, may pass; a program that we have is worth the wait.
    async fn accept(&mut self, listener: &mut Listener) -> Option<Connection> {
        let mut told = None;
        loop {
            let accepted = listener.accept();
            tokio::pin!(accepted);
            let accepted = loop {
                tokio::select! {
                    biased;
                    accepted = &mut accepted => break accepted,
                    wish = self.door.next() => self.wished(wish, false).await,
                }
            };
            let error = match accepted {
                Ok(client) => return Some(client),
                Err(e) => e.to_string(),
            };
            if told.as_ref() != Some(&error) {
                message!("Cannot accept a connection: {error}");
            }
            if self.targets.is_empty() && !self.options.multi {
                return None;
            }
            told = Some(error);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What gdbserver's callers read, and its users expect.
    fn say(&self, text: &str) {
        if self.terminal == Terminal::Program {
            message!("{text}");
        }
    }

    /// After a stop, where the terminal is shared.
    fn take_terminal(&self) {
        if self.terminal == Terminal::Shared {
            foreground::to_debugger();
        }
    }

    async fn connection(&mut self, client: &mut Client) -> Outcome {
        loop {
            // What has waited for this rest.
            self.grant(false).await;
            let input = {
                let next = client.next();
                tokio::pin!(next);
                loop {
                    tokio::select! {
                        biased;
                        input = &mut next => break input,
                        wish = self.door.next() => self.wished(wish, false).await,
                    }
                }
            };
            match input {
                Input::Gone => return Outcome::Closed,
                // The program has stopped meanwhile; what that means is for the stub to say.
                Input::Interrupt => {
                    if let Some(target) = self.targets.first_mut() {
                        let _ = target.interrupt().await;
                    }
                }
                Input::Packet(packet) => {
                    if let Some(outcome) = self.serve_packet(client, &packet).await {
                        return outcome;
                    }
                }
            }
        }
    }

    /// Sends a packet to the stub in front and its replies to the debugger, to the last one. The
    /// program does not run meanwhile.
    async fn relay(&mut self, client: &mut Client, packet: &[u8]) -> Option<Outcome> {
        let Some(target) = self.targets.first_mut() else {
            let _ = client.send(b"E01").await;
            return None;
        };
        if let Some(why) = target.lost.clone() {
            let reply = match target.exit.now() {
                Some(ending) if packet == b"?" => self.ended(ending),
                _ => why,
            };
            let _ = client.send(error_for(packet, reply.as_bytes())).await;
            return None;
        }
        if let Some(why) = target.still_hangs(watchdog::AGAIN).await {
            // Registers are there, but nobody knows them.
            let unknown = "x".repeat(target.registers_len);
            let reply = match packet {
                b"g" if !unknown.is_empty() => unknown.as_bytes(),
                _ => error_for(packet, why.as_bytes()),
            };
            let _ = client.send(reply).await;
            return None;
        }
        // The program may have been killed while it was stopped.
        if target.exit.now().is_none() {
            // An error shows as end of file below.
            let _ = target.send(packet).await;
        }
        let patience = watchdog::patience(packet);
        let late = tokio::time::sleep(patience);
        tokio::pin!(late);
        loop {
            tokio::select! {
                biased;
                () = &mut late => {
                    let why = target.hangs(patience);
                    message!("ulpf server: {}", why.trim_start_matches("E."));
                    let _ = client.send(error_for(packet, why.as_bytes())).await;
                    return None;
                }
                news = target.news() => match news {
                    News::Reply(reply) => {
                        if packet == b"g" && let Some(all) = rsp::expand_runs(&reply) {
                            target.registers_len = all.len();
                        }
                        if reply == b"OK" {
                            target.watches.accepted(packet);
                        }
                        let _ = client.send(&reply).await;
                        if !target::is_output(&reply) {
                            return None;
                        }
                    }
                    News::Notification(text) => { let _ = client.notify(&text).await; }
                    News::Ended(ending) => {
                        if packet == b"?" {
                            let _ = client.send(self.ended(ending).as_bytes()).await;
                        } else {
                            // The next resume will tell.
                            let _ = client.send(error_for(packet, b"E.The program has ended.")).await;
                        }
                        return None;
                    }
                    news @ (News::ChildExecuted(_) | News::ChildEnded(..) | News::ChildRunsOn(_)) => {
                        target.later.push_back(news);
                    }
                    News::Executed(_) | News::Replaced | News::StubLost => {
                        let why = target.lost.clone().unwrap_or_default();
                        message!("ulpf server: {}", why.trim_start_matches("E."));
                        let _ = client.send(error_for(packet, why.as_bytes())).await;
                        return None;
                    }
                },
                input = client.next_urgent() => match input {
                    Input::Interrupt => { let _ = target.interrupt().await; }
                    _ => return Some(Outcome::Closed),
                },
            }
        }
    }

    /// Takes note of the program's end, says so on stderr, and gives the stop reply for it.
    fn ended(&mut self, ending: Ending) -> String {
        let pid = self.take_front().map_or(0, |t| t.number);
        self.ending_of(pid, ending)
    }

    fn ending_of(&self, pid: i32, ending: Ending) -> String {
        self.take_terminal();
        let (letter, number) = match ending {
            Ending::Exited(status) => {
                self.say(&format!("\nChild exited with status {status}"));
                ('W', status)
            }
            Ending::Killed(signal) => {
                let gdb = crate::signals::to_gdb(signal);
                self.say(&format!(
                    "\nChild terminated with signal = {gdb:#x} ({})",
                    crate::signals::name(signal)
                ));
                ('X', gdb)
            }
            Ending::Unknown => {
                message!(
                    "\nProcess {pid} has ended; only its parent was told its exit status, so 0 is reported."
                );
                ('W', 0)
            }
        };
        if self.multiprocess {
            format!("{letter}{number:02x};process:{pid:x}")
        } else {
            format!("{letter}{number:02x}")
        }
    }

    /// Starts the program of `self.program`, with the debugger's settings.
    async fn start(&mut self) -> Result<(), StartError> {
        let Some((program, args)) = self.program.clone() else {
            return Err(StartError::Step {
                step: "start a program",
                source: std::io::Error::other("no program has been named"),
            });
        };
        let spec = Launch {
            program: program.clone(),
            args,
            env: self
                .env
                .iter()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
            cwd: self.cwd.clone(),
            wrapper: self.options.wrapper.clone(),
            shell: self.shell,
            disable_randomization: self.disable_randomization,
            own_group: true,
            foreground: self.terminal == Terminal::Program,
            stdio: match self.options.output {
                Some([stdout, stderr]) => Stdio::Given { stdout, stderr },
                None if self.stdio => Stdio::Redirect,
                None => Stdio::Inherit,
            },
            settings: self.options.settings,
        };
        if self.stdio {
            message!("stdin/stdout redirected");
        }
        let session = session::start(spec).await?;
        self.say(&format!(
            "Process {} created; pid = {}",
            program.to_string_lossy(),
            session.pid
        ));
        self.adopt(session).await;
        Ok(())
    }

    async fn attach(&mut self, pid: i32) -> Result<(), StartError> {
        let session = session::attach(pid, self.options.settings).await?;
        self.say(&format!("Attached; pid = {pid}"));
        // `R` starts the same program again.
        self.program = process::executable(pid).map(|p| (p.into(), Vec::new()));
        self.adopt(session).await;
        Ok(())
    }

    /// Makes the session ours, and tells its stub what the debugger has said so far.
    async fn adopt(&mut self, session: session::Session) {
        for warning in &session.warnings {
            message!("{warning}");
        }
        let mut target = Target::new(session);
        for packet in greeting(self) {
            let _ = target.request(&packet).await;
        }
        self.enlist(target);
    }

    /// One more process; others may ask about it.
    fn enlist(&mut self, target: Target) {
        self.door.open(target.pid);
        self.targets.push(target);
    }

    /// The end of the server: what was started is killed, what was attached to goes on.
    async fn leave(&mut self) {
        self.take_terminal();
        // Stubs that do not answer let go when we have gone.
        let _ = tokio::time::timeout(watchdog::PATIENCE, self.release_children()).await;
        while let Some(mut target) = self.take_front() {
            if target.exit.now().is_some() {
                continue;
            }
            if target.launched {
                self.say(&format!("Killing process(es): {}", target.pid));
                target.kill().await;
                continue;
            }
            self.say(&format!("Detaching process(es): {}", target.pid));
            let detached = tokio::time::timeout(watchdog::PATIENCE, target.detach()).await;
            if !detached.unwrap_or(false) {
                message!(
                    "ulpf server: process {} could not be detached cleanly.",
                    target.pid
                );
            }
        }
    }

    /// The process that packets are for; another one comes to the front.
    fn take_front(&mut self) -> Option<Target> {
        (!self.targets.is_empty()).then(|| self.targets.swap_remove(0))
    }
}

/// What a stub is told before anything else: that we follow its program, and what the debugger has
/// said so far.
fn greeting(server: &Server) -> Vec<Vec<u8>> {
    std::iter::once(server.offer())
        .chain(server.supported.iter().cloned())
        .chain(server.sticky.values().cloned())
        .collect()
}

/// `T05…` of a program that has just been executed, with the reason.
fn exec_stop(reply: &[u8], program: &str) -> Vec<u8> {
    let (head, rest) = reply.split_at(reply.len().min(3));
    let reason = format!("exec:{};", rsp::to_hex(program.as_bytes()));
    [head, reason.as_bytes(), rest].concat()
}

/// GDB takes an error with a text only where it cannot be mistaken for data in hex.
fn error_for<'a>(packet: &[u8], text: &'a [u8]) -> &'a [u8] {
    match packet.first() {
        Some(b'g' | b'm' | b'p' | b'x') => b"E01",
        _ => text,
    }
}

/// Stop replies for debuggers that were told to do with less (`--disable-packet`).
fn shape_stop(reply: Vec<u8>, disabled: &options::Disabled) -> Vec<u8> {
    if reply.first() != Some(&b'T') || !(disabled.stop_thread || disabled.stop_t) {
        return reply;
    }
    if disabled.stop_t {
        return [b"S", &reply[1..reply.len().min(3)]].concat();
    }
    let text = String::from_utf8_lossy(&reply).into_owned();
    text.split_inclusive(';')
        .filter(|f| {
            !f.starts_with("thread:") && !f.get(3..).is_some_and(|f| f.starts_with("thread:"))
        })
        .collect::<String>()
        .into_bytes()
}

#[cfg(test)]
mod tests;
