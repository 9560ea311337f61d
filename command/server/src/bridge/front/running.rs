//! A running program: the events that the front end awaits, and the stop that it reports.
#![forbid(unsafe_code)]

use super::{Done, Front, error, print, tell};
use crate::bridge::link::{Event, Failure, STOPPING};
use crate::bridge::packets;
use crate::bridge::watch_table::PLACE;
use crate::client::{Client, Input};
use crate::common::Terminal;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use ulpf_bridge::{Feature, Hit, How, Kind, Reason, Request, Stop};
use ulpf_host::foreground;
use ulpf_host::say::message;

/// `LOOK`: interval of reading counters and hits while the program runs. `ALIVE`: interval of checks that the back end
/// answers, if it cannot be read while the program runs.
const LOOK: Duration = Duration::from_millis(250);
const ALIVE: Duration = Duration::from_secs(5);
/// With more watches than this, counters are not read at every stop.
const FEW: usize = 1000;

/// The outcome of one run.
enum Ran {
    Stopped(Stop),
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
    pub(super) async fn stop_reply(&mut self, stop: &Stop) -> Vec<u8> {
        if stop.reason.is_end() {
            return packets::stop_reply(stop, None, false).into_bytes();
        }
        self.thread = stop.thread;
        self.registers = None;
        let registers = self.registers().await.ok();
        if let Reason::Watch { hit, kind } = &stop.reason {
            let ours = self.table.number(hit.watch);
            let debuggers = ours
                .and_then(|n| self.table.watches.get(&n))
                .is_some_and(|w| w.debuggers);
            // GDB ignores stops by watches other than its own, unless they are plain traps.
            let reason = match (debuggers, self.table.understood && ours.is_some()) {
                (true, _) => Reason::Watch {
                    kind: *kind,
                    hit: hit.clone(),
                },
                (false, true) => Reason::Watch {
                    kind: Kind::Access,
                    hit: Hit {
                        addr: PLACE,
                        ..hit.clone()
                    },
                },
                (false, false) => Reason::Step,
            };
            let stop = Stop {
                reason,
                ..stop.clone()
            };
            return packets::stop_reply(&stop, registers.as_deref(), false).into_bytes();
        }
        let soft = self.soft.get(&stop.pc).is_some_and(|&n| n > 0);
        packets::stop_reply(stop, registers.as_deref(), soft).into_bytes()
    }

    pub(super) async fn resume(&mut self, client: &mut Client, action: packets::Action) -> Done {
        if let Err(f) = self.settle().await {
            return error(&f);
        }
        // Unless the watch has been removed meanwhile.
        while let Some((stop, record)) = self.also.pop_front() {
            let there = matches!(&stop.reason, Reason::Watch { hit, .. } if self.table.number(hit.watch).is_some());
            if there {
                self.table.stop = record;
                let reply = self.stop_reply(&stop).await;
                self.stop = Some(stop);
                return Done::Reply(reply);
            }
        }
        let how = if action.step {
            How::Step
        } else {
            How::Continue
        };
        let mut resume = Request::Resume {
            how,
            thread: action.thread,
            signal: action.signal,
            alone: action.alone,
        };
        let mut wait = Wait {
            asked: None,
            gone: false,
            look: Instant::now() + LOOK,
            silent: false,
        };
        self.table.stop = None;
        loop {
            match self.ask(resume).await {
                Ok(_) => {}
                // The debugger accepts only a stop now.
                Err(f) => return self.stay(client, &f.to_string()).await,
            }
            self.registers = None;
            let child = self.started.as_ref().and_then(|s| s.child.as_ref()?.id());
            if let Some(pid) = child {
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
            let (thread, pc) = (stop.thread, stop.pc);
            let sorted = self.sorted(stop).await;
            for text in std::mem::take(&mut self.to_tell) {
                print(client, &text).await;
            }
            let stop = match sorted {
                Some(stop) => stop,
                // No hit is to be reported, but the debugger wants a stop.
                None if action.step || wait.asked.is_some() || wait.gone => Stop {
                    thread,
                    pc,
                    reason: match action.step {
                        true => Reason::Step,
                        false => Reason::Interrupted,
                    },
                },
                None => {
                    resume = Request::Resume {
                        how: How::Continue,
                        thread: action.thread,
                        signal: 0,
                        alone: action.alone,
                    };
                    continue;
                }
            };
            let reply = self.stopped(client, stop).await;
            return match wait.gone {
                true => Done::Close,
                false => Done::Reply(reply),
            };
        }
    }

    /// Reports a stop although the program did not run, and prints the reason. The user gets the prompt back.
    async fn stay(&mut self, client: &mut Client, why: &str) -> Done {
        tell(client, why).await;
        let lost = self.started.as_ref().is_none_or(|s| s.link.lost.is_some());
        if lost {
            self.ended = true;
            self.mirror = None;
            return Done::Reply(b"X09".into());
        }
        Done::Reply(format!("T00thread:{:x};", self.thread).into_bytes())
    }

    async fn running(&mut self, client: &mut Client, wait: &mut Wait) -> Ran {
        loop {
            let Some(started) = &mut self.started else {
                return Ran::Done(Done::Reply(b"X09".into()));
            };
            // The debugger first: unreported stops may arrive without end.
            tokio::select! {
                biased;
                input = client.next_urgent(), if !wait.gone => {
                    wait.gone = input == Input::Gone;
                    wait.asked.get_or_insert(Instant::now() + STOPPING);
                    if let Err(f) = started.link.request(Request::Interrupt).await
                        && !wait.gone
                    {
                        tell(client, &f.to_string()).await;
                    }
                }
                event = started.link.event() => match event {
                    Event::Message(text) => print(client, &format!("{text}\n")).await,
                    Event::Stopped(stop) => return Ran::Stopped(stop),
                    Event::Lost(why) => return Ran::Done(self.stay(client, &why).await),
                },
                () = sleep_until(wait.asked.unwrap_or(wait.look)), if wait.asked.is_some() => {
                    let name = started.link.backend.clone();
                    let why = format!("The {name} back end has been told to stop and has not for {} s. `kill` ends it.", STOPPING.as_secs());
                    if wait.gone {
                        return Ran::Done(Done::Close);
                    }
                    tell(client, &why).await;
                    return Ran::Done(Done::Reply(format!("T02thread:{:x};", self.thread).into_bytes()));
                }
                () = sleep_until(wait.look), if wait.asked.is_none() => self.look_while_it_runs(client, wait).await,
            }
        }
    }

    async fn look_while_it_runs(&mut self, client: &mut Client, wait: &mut Wait) {
        let live = self.can().has(Feature::Live);
        let mut said = Ok(());
        if live {
            said = self.look_while_it_is_at_it().await;
        }
        if !live || matches!(said, Err(Failure::Late(_))) {
            // The machine may be busy or waiting while its back end still answers.
            let time = Duration::from_secs(2);
            said = self.ask_within(Request::Status, time).await.map(drop);
        }
        wait.look = Instant::now() + if live { LOOK } else { ALIVE };
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

    async fn stopped(&mut self, client: &mut Client, stop: Stop) -> Vec<u8> {
        match &stop.reason {
            Reason::Failed { why } => {
                tell(client, &format!("The machine cannot go on: {why}")).await
            }
            Reason::Signal { number, why } => {
                print(client, &format!("signal {number}: {why}\n")).await;
            }
            Reason::Exited { status } if self.terminal == Terminal::Program => {
                message!("\nChild exited with status {status}");
            }
            Reason::Killed { number, .. } if self.terminal == Terminal::Program => {
                let number = i32::from(*number);
                message!(
                    "\nChild terminated with signal = {:#x} ({})",
                    ulpf_host::signals::to_gdb(number),
                    ulpf_host::signals::name(number)
                );
            }
            _ => {}
        }
        self.ended = stop.reason.is_end();
        if self.table.watches.len() <= FEW {
            // The counters can be read after the end, too; on failure the next look reads them.
            let _ = self.look().await;
        }
        if self.ended {
            self.mirror = None;
        }
        let reply = self.stop_reply(&stop).await;
        self.stop = Some(stop);
        reply
    }
}
