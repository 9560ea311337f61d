//! A running program: the events that the front end awaits, and the stop that it reports.
#![forbid(unsafe_code)]

use super::{BackEnd, Done, Front, error, print, tell};
use crate::bridge::packets::{number_in, with_reason, without_vcont};
use crate::bridge::remote::{Failure, Flavour, STOPPING, Said, is_end};
use crate::client::{Client, Input};
use crate::common::Terminal;
use crate::packets::{resume_again, thread_in};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use ulpf_host::foreground;
use ulpf_host::say::message;
use ulpf_lib::signals;
use ulpf_rsp::reports::Role;

/// `LOOK`: interval of reading counters and hits while the program runs. `ALIVE`: the same while the back end does not
/// answer.
const LOOK: Duration = Duration::from_millis(250);
const ALIVE: Duration = Duration::from_secs(5);
/// Time limit for a simulator's process to end with its connection.
const ENDING: Duration = Duration::from_secs(5);
/// With more watches than this, counters are not read at every stop.
const FEW: usize = 1000;
/// The protocol's SIGINT, SIGILL and SIGTRAP.
const INT: u8 = 2;
const ILL: u8 = 4;
const TRAP: u8 = 5;

/// The outcome of one run.
enum Ran {
    Stopped(Vec<u8>),
    Done(Done),
}

/// State kept over all runs for one resume request, because stops in between may not be reported.
struct Wait {
    /// Deadline of a stop that the debugger has requested.
    asked: Option<Instant>,
    /// The debugger has gone.
    gone: bool,
    look: Instant,
    /// The back end does not answer, and the user has been informed.
    silent: bool,
}

impl Front {
    pub(super) async fn resume(&mut self, client: &mut Client, packet: &[u8]) -> Done {
        if let Err(f) = self.settle().await {
            return error(&f);
        }
        // Unless the watch has been removed meanwhile.
        while let Some((number, stop, record)) = self.also.pop_front() {
            if self.table.watches.contains_key(&number) {
                self.table.stop = record;
                return Done::Reply(stop);
            }
        }
        let packet = match self.started.as_ref().map(|s| s.remote.flavour) {
            Some(Flavour::Gem5) => without_vcont(packet),
            _ => packet.to_vec(),
        };
        let again = resume_again(&packet);
        let mut resume = packet;
        let mut wait = Wait {
            asked: None,
            gone: false,
            look: Instant::now() + LOOK,
            silent: false,
        };
        self.table.stop = None;
        loop {
            let sent = match self.remote() {
                Ok(remote) => remote.resume(&resume).await,
                Err(f) => Err(f),
            };
            // The debugger accepts only a stop now.
            if let Err(f) = sent {
                return self.stay(client, &f.to_string()).await;
            }
            self.registers = None;
            let child = self.started.as_ref().and_then(|s| s.child.as_ref()?.id());
            if let (Some(pid), BackEnd::Sim) = (child, &self.backend) {
                foreground::to_program(pid as i32);
            }
            let ran = self.running(client, &mut wait).await;
            if self.terminal == Terminal::Shared {
                foreground::to_debugger();
            }
            let stop = match ran {
                Ran::Done(done) => return done,
                Ran::Stopped(stop) => stop,
            };
            let plain = with_reason(&stop, if again.is_none() { TRAP } else { INT }, None);
            let sorted = self.sorted(stop).await;
            for text in std::mem::take(&mut self.to_tell) {
                print(client, &text).await;
            }
            let stop = match (sorted, &again) {
                (Some(stop), _) => stop,
                (None, Some(again)) if wait.asked.is_none() && !wait.gone => {
                    resume.clone_from(again);
                    continue;
                }
                // No hit is to be reported, but the debugger wants a stop.
                (None, _) => plain,
            };
            let reply = self.stopped(stop).await;
            return match wait.gone {
                true => Done::Close,
                false => Done::Reply(reply),
            };
        }
    }

    /// Reports a stop although the program did not run, and prints the reason. The user gets the prompt back.
    async fn stay(&mut self, client: &mut Client, why: &str) -> Done {
        tell(client, why).await;
        if !self.is_connected() {
            self.ended = true;
            self.mirror = None;
            return Done::Reply(b"X09".into());
        }
        Done::Reply(self.stands(0))
    }

    /// A stop reply for the thread of the last stop.
    fn stands(&self, signal: u8) -> Vec<u8> {
        match self.stop.as_deref().and_then(thread_in) {
            Some(thread) => [
                format!("T{signal:02x}thread:").as_bytes(),
                thread,
                &b";"[..],
            ]
            .concat(),
            None => format!("S{signal:02x}").into_bytes(),
        }
    }

    async fn running(&mut self, client: &mut Client, wait: &mut Wait) -> Ran {
        loop {
            let looks = self.role() != Role::Plain;
            let Some(started) = &mut self.started else {
                return Ran::Done(Done::Reply(b"X09".into()));
            };
            // The debugger first: unreported stops may arrive without end.
            tokio::select! {
                biased;
                input = client.next_urgent(), if !wait.gone => {
                    if let Input::Ask(_) = input {
                        let _ = client.send(b"").await;
                        continue;
                    }
                    wait.gone = input == Input::Gone;
                    wait.asked.get_or_insert(Instant::now() + STOPPING);
                    if let Err(f) = started.remote.interrupt().await
                        && !wait.gone
                    {
                        tell(client, &f.to_string()).await;
                    }
                }
                said = started.remote.event() => match said {
                    Said::Text(text) => print(client, &text).await,
                    Said::Stop(stop) => {
                        // gem5 reports an interrupt so. A program's SIGILL ends it there and never stops it.
                        let interrupted = started.remote.flavour == Flavour::Gem5 && number_in(&stop) == ILL;
                        return Ran::Stopped(match interrupted {
                            true => with_reason(&stop, INT, None),
                            false => stop,
                        });
                    }
                    Said::Lost(why) => return self.lost(client, &why).await,
                },
                () = sleep_until(wait.asked.unwrap_or(wait.look)), if wait.asked.is_some() => {
                    let kind = started.remote.about.kind.clone();
                    let why = format!("The {kind} back end has been told to stop and has not for {} s. `kill` ends it.", STOPPING.as_secs());
                    if wait.gone {
                        return Ran::Done(Done::Close);
                    }
                    tell(client, &why).await;
                    return Ran::Done(Done::Reply(self.stands(INT)));
                }
                () = sleep_until(wait.look), if wait.asked.is_none() && looks => self.look_while_it_runs(client, wait).await,
            }
        }
    }

    /// The connection has ended. A simulator ends with its program.
    async fn lost(&mut self, client: &mut Client, why: &str) -> Ran {
        let child = self.started.as_mut().and_then(|s| s.child.as_mut());
        let status: Option<ExitStatus> = match (&self.backend, child) {
            (BackEnd::Gem5(_), Some(child)) => {
                let ended = timeout(ENDING, child.wait()).await;
                ended.ok().and_then(Result::ok)
            }
            _ => None,
        };
        match status.map(|s| (s.code(), s.signal())) {
            Some((Some(code), _)) => Ran::Stopped(format!("W{:02x}", code & 0xff).into_bytes()),
            // The script ends with this signal when the program does; gem5 itself dies of SIGABRT.
            Some((_, Some(libc::SIGSEGV))) => Ran::Stopped(b"X0b".into()),
            Some((_, Some(signal))) => {
                let name = ulpf_host::signals::name(signal);
                Ran::Done(self.stay(client, &format!("gem5 has ended ({name})")).await)
            }
            _ => Ran::Done(self.stay(client, why).await),
        }
    }

    async fn look_while_it_runs(&mut self, client: &mut Client, wait: &mut Wait) {
        let said = self.look_while_it_is_at_it().await;
        wait.look = Instant::now() + LOOK;
        match said {
            Err(Failure::Late(_)) => {
                wait.look = Instant::now() + ALIVE;
                if !std::mem::replace(&mut wait.silent, true) {
                    tell(client, "The back end does not answer, though the connection is there: its machine may have stopped, or be very busy. Ctrl-C tries to stop the program, `kill` gives it up.").await;
                }
            }
            // (A lost connection is reported as an event.)
            Err(_) => {}
            Ok(()) if std::mem::take(&mut wait.silent) => {
                tell(client, "The back end answers again.").await;
            }
            Ok(()) => {}
        }
    }

    async fn stopped(&mut self, stop: Vec<u8>) -> Vec<u8> {
        let number = number_in(&stop);
        if self.terminal == Terminal::Program {
            match stop.first() {
                Some(b'W') => message!("\nChild exited with status {number}"),
                Some(b'X') => message!(
                    "\nChild terminated with signal = {number:#x} ({})",
                    ulpf_host::signals::name(signals::from_gdb(number).unwrap_or_default())
                ),
                _ => {}
            }
        }
        self.ended = is_end(&stop);
        if self.table.watches.len() <= FEW {
            // The counters can be read after the end, too; on failure the next look reads them.
            let _ = self.look().await;
        }
        if self.ended {
            self.mirror = None;
        }
        self.stop = Some(stop.clone());
        stop
    }
}
