//! `ulpf server` for programs of other machines: a debugger on one side, and on the other a back end, which is any stub
//! of the remote protocol (docs/bridge.md).
//!
//! ```text
//!   debugger ⇄ Client (framing, acks) ⇄ Front (watches, commands, stops) ⇄ Remote (requests, events) ⇄ back end
//! ```
//! One task does everything, as in the server for programs of this machine. It serves a packet completely before it
//! reads the next.
#![forbid(unsafe_code)]

pub mod backend;
mod fake;
mod front;
pub mod fuzzing;
mod gem5;
mod mirror;
mod monitor;
mod packets;
mod place;
pub mod remote;
mod start;
#[cfg(test)]
mod tests;
mod watch_table;

use super::client::Client;
use super::common::{self, Outcome, Terminal};
use super::options::{Options, Target as Wanted};
use backend::BackEnd;
use front::Front;
use ulpf_host::foreground;
use ulpf_host::listen::Listener;
use ulpf_host::say::message;
use ulpf_host::signals::Incoming;

/// A server that is bound to its address but does not serve yet.
pub struct Bound {
    listener: Listener,
    front: Front,
    once: bool,
    multi: bool,
    terminal: Terminal,
}

/// `ulpf server --backend …`: serves until the end, and returns the exit status.
pub async fn serve(options: Options, backend: BackEnd) -> i32 {
    let mut bound = match Bound::new(options, backend, Terminal::Program).await {
        Ok(bound) => bound,
        Err(why) => {
            message!("{why}\nExiting");
            return 1;
        }
    };
    let mut signals = Incoming::new(&[libc::SIGHUP, libc::SIGINT, libc::SIGTERM]);
    let outcome = tokio::select! {
        outcome = bound.run() => outcome,
        signal = signals.next() => Outcome::Signalled(signal),
    };
    bound.front.end().await;
    foreground::take_back();
    outcome.status()
}

impl Bound {
    /// The error is text for the user.
    pub async fn new(
        options: Options,
        backend: BackEnd,
        terminal: Terminal,
    ) -> Result<Bound, String> {
        let listener = common::bind(&options).await?;
        let files = common::serves_files(&options, &listener);
        let program = match options.target {
            Wanted::Program { program, args } => Some((program, args)),
            Wanted::None => None,
            Wanted::Attach(_) => {
                return Err(
                    "--attach goes with the programs of this machine (--backend signal).".into(),
                );
            }
        };
        let mut front = Front::new(backend, program, terminal, files, options.remote_debug);
        front.output = options.output;
        let (once, multi) = (options.once, options.multi);
        Ok(Bound {
            listener,
            front,
            once,
            multi,
            terminal,
        })
    }

    /// Serves until the end.
    pub async fn serve(mut self) {
        self.run().await;
        self.front.end().await;
    }

    fn say(&self, text: &str) {
        if self.terminal == Terminal::Program {
            message!("{text}");
        }
    }

    async fn run(&mut self) -> Outcome {
        // Without a program, `run` starts our own back end later.
        if self.front.can_start()
            && let Err(why) = self.front.start().await
        {
            message!("ulpf server: {why}\nExiting");
            return Outcome::Quit(1);
        }
        let stdio = self.listener.is_stdio();
        loop {
            if let Some(text) = self.listener.announcement() {
                self.say(&text);
            }
            let connection = match self.listener.accept().await {
                Ok(connection) => connection,
                Err(e) => {
                    message!("Cannot accept a connection: {e}");
                    return Outcome::Quit(1);
                }
            };
            self.say(&format!("Remote debugging {}", connection.from));
            let mut client = Client::new(connection, self.front.debug);
            if let Some(status) = self.front.connection(&mut client).await {
                return Outcome::Quit(status);
            }
            drop(client);
            foreground::to_debugger();
            if self.once
                || stdio
                || !(self.front.extended && self.multi || self.front.has_program())
            {
                return Outcome::Quit(0);
            }
            if let Err(why) = self.front.again().await {
                message!("ulpf server: {why}\nExiting");
                return Outcome::Quit(1);
            }
            self.say(
                "Remote side has terminated connection.  ulpf server will reopen the connection.",
            );
        }
    }
}
