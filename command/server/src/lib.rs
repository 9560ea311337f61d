//! `ulpf server`: a replacement for gdbserver.
//!
//! ```text
//!   debugger ⇄ Client (framing, acks) ⇄ Server (this module) ⇄ Target (control channel) ⇄ stub
//! ```
//! One task does everything, so nothing here is shared or locked. It serves a packet completely before it reads the
//! next. Only interrupt requests and the loss of the connection overtake a packet. `relay` and `running` send to the
//! stub the packets that it can answer. `requests` answers the rest: start, kill, files, and requests without a
//! program. `state` is shared by all of them.
#![forbid(unsafe_code)]

mod afterwards;
mod answers;
mod apply;
mod bridge;
mod changes;
mod checked;
mod client;
mod common;
mod filters;
#[doc(hidden)]
pub mod fuzzing;
mod heap;
mod host_io;
mod leaving;
mod non_stop;
pub mod options;
mod osdata;
mod packets;
pub mod plugin;
mod prefetch;
mod processes;
mod refused;
mod relay;
mod reports;
mod requests;
mod run;
mod running;
mod settle;
mod soon;
mod state;
mod stops;
mod target;
mod vfork;
mod vfork_children;
mod watchdog;
mod watches;

pub use bridge::Bound as BridgeBound;
pub use bridge::backend::BackEnd;
pub use common::Terminal;

use client::{Client, Input};
use common::{Outcome, bind, report};
use options::{Options, Target as Wanted};
use running::event_of;
use soon::soon;
use state::Server;
use std::sync::Arc;
use std::time::Duration;
use target::{Event, Target};
use ulpf_host::listen::{Connection, Listener};
use ulpf_host::say::message;
use ulpf_host::signals::Incoming;
use ulpf_host::{foreground, process};
use ulpf_inject::{Arguments, Launch, StartError, Stdio};
use ulpf_rsp::reports::Ask;

/// A server that is bound to its address but does not serve yet.
pub struct Bound {
    listener: Listener,
    server: Server,
}

/// `ulpf server`: serves until the end, and returns the exit status.
pub async fn serve(options: Options) -> i32 {
    if let Some(backend) = options.backend.clone() {
        return bridge::serve(options, backend).await;
    }
    // These signals end the server, but never while the stub is only half loaded.
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
    /// # Errors
    ///
    /// Text for the user.
    pub async fn new(options: Options, terminal: Terminal) -> Result<Bound, String> {
        let listener = bind(&options).await?;
        let server = Server::new(options, &listener, terminal);
        Ok(Bound { listener, server })
    }

    /// Serves until the end, then ends the programs.
    pub async fn serve(mut self) {
        self.run().await;
        self.end().await;
    }

    /// Serves until the end. The caller must call [`Bound::end`] afterwards.
    pub async fn run(&mut self) -> Outcome {
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

    /// Kills the programs that the server started, and detaches from the others.
    pub async fn end(self) {
        drop(self.listener);
        let mut server = self.server;
        server.leave().await;
    }
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
            self.leave_non_stop().await;
            // Without a debugger, a running program would hang at its first stop.
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

    /// Accepts the next client. On an error (too few descriptors, say) it retries while the server has a program,
    /// because the error may pass.
    async fn accept(&mut self, listener: &mut Listener) -> Option<Connection> {
        let mut last_error = None;
        loop {
            let accepted = listener.accept();
            tokio::pin!(accepted);
            let accepted = loop {
                tokio::select! {
                    biased;
                    accepted = &mut accepted => break accepted,
                    change = self.changes.next() => self.asked(change, false).await,
                }
            };
            let error = match accepted {
                Ok(client) => return Some(client),
                Err(e) => e.to_string(),
            };
            if last_error.as_ref() != Some(&error) {
                message!("Cannot accept a connection: {error}");
            }
            if self.targets.is_empty() && !self.options.multi {
                return None;
            }
            last_error = Some(error);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn connection(&mut self, client: &mut Client) -> Outcome {
        loop {
            // Changes that waited for this stop.
            self.make_changes(false).await;
            let input = match soon(client.next()).await {
                Some(input) => Ok(input),
                None => self.next_input(client).await,
            };
            let input = match input {
                Ok(input) => input,
                Err((number, event)) => {
                    self.happened(client, number, event).await;
                    self.what_came_meanwhile(client).await;
                    continue;
                }
            };
            match input {
                Input::Gone => return Outcome::Closed,
                // The program has stopped meanwhile. The stub decides what the interrupt means.
                Input::Interrupt => {
                    if let Some(target) = self.targets.first_mut() {
                        let _ = target.interrupt().await;
                    }
                }
                Input::Ask(ask) => self.report(client, ask).await,
                Input::Packet(packet) => {
                    if let Some(outcome) = self.serve_packet(client, &packet).await {
                        return outcome;
                    }
                    self.what_came_meanwhile(client).await;
                }
            }
        }
    }

    /// Answers a front end that asks for counts or hits, in any state of the program.
    async fn report(&mut self, client: &mut Client, ask: Ask) {
        let pid = self.targets.first().map(|t| t.pid);
        let reply = self.reports.reply(ask, pid);
        let _ = client.send(reply.as_bytes()).await;
    }

    /// The debugger's next input, or the next event of a process in non-stop mode. Changes of other clients are served
    /// meanwhile.
    async fn next_input(&mut self, client: &mut Client) -> Result<Input, (i32, Event)> {
        let next = client.next();
        tokio::pin!(next);
        loop {
            tokio::select! {
                biased;
                input = &mut next => return Ok(input),
                change = self.changes.next() => self.asked(change, false).await,
                event = event_of(&mut self.targets, |t| t.non_stop) => return Err(event),
            }
        }
    }

    /// Starts the program of `self.program` with the debugger's settings.
    async fn start(&mut self) -> Result<(), StartError> {
        let Some((program, args)) = self.program.clone() else {
            return Err(StartError::Step {
                step: "start a program",
                source: std::io::Error::other("no program has been named"),
            });
        };
        let spec = Launch {
            program: program.clone(),
            here: true,
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
        let inferior = ulpf_inject::inferior::start(spec).await?;
        self.say(&format!(
            "Process {} created; pid = {}",
            program.to_string_lossy(),
            inferior.pid
        ));
        self.adopt(inferior).await;
        self.check_heap(false).await;
        self.record_writers().await;
        Ok(())
    }

    /// Switches the heap check on for the newest program, if `--check` is given.
    async fn check_heap(&mut self, running: bool) {
        let (Some(how), Some(target)) = (&self.options.check, self.targets.first_mut()) else {
            return;
        };
        match target.check_heap(Arc::new(how.clone()), running).await {
            Ok(notices) => {
                for text in notices {
                    message!("ulpf server: {text}");
                }
            }
            Err(why) => message!("ulpf server: {why}; the program runs unchecked"),
        }
    }

    /// Begins to record the last writers in the newest program, if `--blame` is given.
    async fn record_writers(&mut self) {
        let Some(target) = self.targets.first_mut().filter(|_| self.options.blame) else {
            return;
        };
        if let Err(why) = target.record_writers().await {
            message!("ulpf server: {why}; last writers are not recorded");
        }
    }

    async fn attach(&mut self, pid: i32) -> Result<(), StartError> {
        let inferior = ulpf_inject::inferior::attach(pid, self.options.settings).await?;
        self.say(&format!("Attached; pid = {pid}"));
        // `R` starts the same program again.
        self.program = process::executable(pid).map(|p| (p.into(), Arguments::default()));
        self.adopt(inferior).await;
        self.check_heap(true).await;
        self.record_writers().await;
        Ok(())
    }

    /// Takes over the session, and sends its stub the debugger's settings so far.
    async fn adopt(&mut self, inferior: ulpf_inject::inferior::Inferior) {
        for warning in &inferior.warnings {
            message!("{warning}");
        }
        let mut target = Target::new(inferior);
        self.greet(&mut target).await;
        let number = target.number;
        self.enlist(target);
        self.selected = None;
        self.bring_forward(number);
    }

    /// Adds a process. From now on other clients may send requests for it.
    fn enlist(&mut self, target: Target) {
        self.changes.accept(target.pid);
        self.past = None;
        self.targets.push(target);
    }

    /// The end of the server: kills the programs that it started, and detaches from the others.
    async fn leave(&mut self) {
        self.take_terminal();
        // Stubs that do not answer detach when the server has exited.
        let _ = tokio::time::timeout(watchdog::STOP_TIMEOUT, self.release_children()).await;
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
            let detached = tokio::time::timeout(watchdog::STOP_TIMEOUT, target.detach()).await;
            if !detached.unwrap_or(false) {
                message!(
                    "ulpf server: process {} could not be detached cleanly.",
                    target.pid
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
