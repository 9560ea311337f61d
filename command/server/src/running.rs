//! Resumes processes until one of them has an event to report. There is usually one process; a debugger that follows
//! children may have several. The debugger receives one stop at a time, and then all processes are stopped. Events of
//! other processes wait for the next resume.
#![forbid(unsafe_code)]

use super::client::{Client, Input};
use super::common::{Outcome, Terminal};
use super::heap;
use super::packets::{
    catches_execve, exec_stop, is_output, plain_stop, repeated, resume_again, shape_stop,
    with_reason,
};
use super::state::Server;
use super::target::{Event, HALTED, Target};
use super::watchdog;
use std::future::Future;
use std::ops::ControlFlow;
use std::task::Poll;
use tokio::time::Instant;
use ulpf_host::foreign::text::lines;
use ulpf_host::say::message;
use ulpf_host::{foreground, process};
use ulpf_inject::inferior::{Ending, Inferior};

/// The next event of the selected processes, with the process number. Cancel-safe.
pub(super) async fn event_of(
    targets: &mut [Target],
    which: impl Fn(&Target) -> bool,
) -> (i32, Event) {
    let mut all: Vec<_> = targets
        .iter_mut()
        .filter(|t| which(t))
        .map(|t| {
            let number = t.number;
            Box::pin(async move { (number, t.event().await) })
        })
        .collect();
    std::future::poll_fn(|cx| {
        for one in &mut all {
            if let Poll::Ready(event) = one.as_mut().poll(cx) {
                return Poll::Ready(event);
            }
        }
        Poll::Pending
    })
    .await
}

/// Prints a message for the user while the debugger waits for a stop.
async fn tell(client: &mut Client, text: &str) {
    message!("ulpf server: {text}");
    print(client, text).await;
}

async fn print(client: &mut Client, text: &str) {
    let text = format!(
        "O{}",
        ulpf_rsp::to_hex(lines(&format!("{text}\n")).as_bytes())
    );
    let _ = client.send(text.as_bytes()).await;
}

impl Server {
    /// Serves a packet that resumes processes; the reply is a stop.
    pub(super) async fn resume(&mut self, client: &mut Client, packet: &[u8]) -> Option<Outcome> {
        self.follow_all_children().await;
        while let Some((number, reply)) = self.pending_stop(packet) {
            if self.is_suppressed(number, &reply) {
                continue; // resumed below
            }
            let reply = self.tell_heap_error(client, number, reply).await;
            let _ = client
                .send(&shape_stop(reply, &self.options.disabled))
                .await;
            return None;
        }
        if let Some(reply) = self.due() {
            let _ = client.send(&reply).await;
            return None;
        }
        let mut numbers: Vec<i32> = self.targets.iter().map(|t| t.number).collect();
        numbers.retain(|&n| {
            let target = self.targets.iter().find(|t| t.number == n);
            target.is_some_and(|t| t.actions_for(packet).is_some())
        });
        for &number in &numbers {
            if let ControlFlow::Break(outcome) = self.settle(client, number).await {
                return outcome;
            }
        }
        let launched = self.targets.iter().filter(|t| t.launched);
        // Prefer the process that is resumed, if there are several.
        let reader = launched.max_by_key(|t| numbers.contains(&t.number));
        let reader = reader.filter(|_| self.terminal == Terminal::Shared);
        if let Some(reader) = reader {
            // Before the resume, because the program may read at once.
            foreground::to_program(reader.pid);
        }
        let shared = reader.is_some();
        if self.tell_later_events(client).await {
            return None;
        }
        let greeting = self.greeting();
        let several = self.targets.len() > 1;
        for target in &mut self.targets {
            let mine = match several || target.has_vfork_children() {
                true => target.actions_for(packet),
                false => Some(packet.to_vec()),
            };
            let Some(mine) = mine else { continue };
            target.inherits = false;
            target.resumed.clone_from(&mine);
            // The process may have been killed while it was stopped.
            if target.exit.now().is_none() {
                // An error shows as end of file later.
                let _ = target.resume(&mine).await;
            }
            target.running = true;
            (target.again, target.halted) = (resume_again(&mine), false);
            target.greeting.clone_from(&greeting);
        }
        let outcome = self.run_on(client).await;
        if shared && outcome.is_none() {
            foreground::to_debugger();
        }
        outcome
    }

    /// Handles events that came while the program was stopped for the debugger. Returns true if one of them was
    /// reported as a stop.
    async fn tell_later_events(&mut self, client: &mut Client) -> bool {
        while let Some(target) = self.targets.iter_mut().find(|t| !t.later.is_empty()) {
            let number = target.number;
            if let Some(event) = target.later.pop_front()
                && self.child_event(client, number, event).await
            {
                return true;
            }
        }
        false
    }

    /// Process `number` has stopped for a halt of the server: makes the requested changes and resumes it. Returns true
    /// if a stop was reported to the debugger.
    async fn halted(&mut self, client: &mut Client, number: i32) -> bool {
        if let Some(target) = self.targets.iter_mut().find(|t| t.number == number) {
            (target.running, target.halted) = (false, false);
        }
        self.make_changes(false).await;
        if self.tell_later_events(client).await {
            return true;
        }
        if let Some(target) = self.targets.iter_mut().find(|t| t.number == number) {
            target.running = true;
            if let Some(again) = target.again.clone() {
                // An error shows as end of file later.
                let _ = target.send(&again).await;
            }
        }
        false
    }

    fn others_run(&self, number: i32) -> bool {
        let others = |t: &Target| t.running && t.number != number;
        self.targets.iter().any(others)
    }

    /// Runs until a process stops or ends.
    async fn run_on(&mut self, client: &mut Client) -> Option<Outcome> {
        // Deadline of a requested interrupt.
        let mut overdue: Option<Instant> = None;
        // The interrupt was requested while a halt was in progress, and has not been sent to the stub.
        let mut unannounced = false;
        loop {
            let limit = overdue.unwrap_or_else(|| Instant::now() + watchdog::STOP_TIMEOUT);
            let (number, event) = tokio::select! {
                biased;
                () = tokio::time::sleep_until(limit), if overdue.is_some() => {
                    // A process that runs on unwatched cannot be stopped; the user has been informed.
                    let asked = self.targets.iter().find(|t| t.running && !t.is_replaced());
                    match asked.map(|t| t.number) {
                        Some(number) => return self.no_stop(client, number).await,
                        None => overdue = None,
                    }
                    continue;
                }
                event = event_of(&mut self.targets, |t| t.running) => event,
                change = self.changes.next() => {
                    self.asked(change, overdue.is_some()).await;
                    continue;
                }
                input = client.next_urgent() => match input {
                    Input::Interrupt => {
                        if let Some(target) = self.targets.iter_mut().find(|t| t.running) {
                            match target.halted {
                                true => unannounced = true,
                                false => drop(target.interrupt().await),
                            }
                        }
                        overdue.get_or_insert(limit);
                        continue;
                    }
                    Input::Ask(ask) => {
                        self.report(client, ask).await;
                        continue;
                    }
                    _ => return Some(Outcome::Closed),
                },
            };
            let event = match event {
                Event::Reply(reply) if self.is_suppressed(number, &reply) => {
                    let target = self.targets.iter_mut().find(|t| t.number == number);
                    // (If the debugger has requested a stop meanwhile, this is that stop.)
                    if let Some(target) = target.filter(|_| overdue.is_none())
                        && target.is_before_its_step(&reply)
                    {
                        // An error shows as end of file later.
                        let again = repeated(&target.resumed);
                        let _ = target.send(&again).await;
                        continue;
                    }
                    Event::Reply(plain_stop(&reply))
                }
                event => event,
            };
            match event {
                Event::Reply(reply) if is_output(&reply) => {
                    let _ = client.send(&reply).await;
                }
                Event::Reply(reply) if heap::is_end(&reply) => {
                    self.tell_heap_end(client, number, true).await;
                    if let Some(target) = self.targets.iter_mut().find(|t| t.number == number) {
                        let _ = target.send(b"vCont;c").await;
                    }
                }
                // The stop was on its way when the debugger that had requested it disconnected.
                Event::Reply(reply) if self.is_unwanted(&reply) => {
                    self.note_child(number, &reply);
                    self.release_children().await;
                    if let Some(target) = self.targets.iter_mut().find(|t| t.number == number) {
                        let _ = target.send(b"vCont;c").await;
                    }
                }
                // Threads of another process still run.
                Event::Reply(reply) if reply == b"N" && self.others_run(number) => {
                    if let Some(target) = self.targets.iter_mut().find(|t| t.number == number) {
                        target.running = false;
                    }
                }
                Event::Reply(mut reply) => {
                    let target = self.targets.iter_mut().find(|t| t.number == number);
                    if let Some(stop) = reply.strip_suffix(HALTED) {
                        if overdue.is_none() {
                            if self.halted(client, number).await {
                                return None;
                            }
                            continue;
                        }
                        // The debugger has requested a stop meanwhile: this is that stop.
                        reply = stop.to_vec();
                    } else if let (true, Some(target)) = (unannounced, target) {
                        // The interrupt follows this stop, as it would without the halt.
                        let _ = target.interrupt().await;
                    }
                    if let Some((gone, ending)) = self.come_to_rest(number).await {
                        // Report the end first: a debugger would not understand why no request to that process
                        // succeeds.
                        if let Some(target) = self.targets.iter_mut().find(|t| t.number == number) {
                            target.pending = Some(reply);
                        }
                        self.bring_forward(gone);
                        let reply = self.ended(ending);
                        let _ = client.send(reply.as_bytes()).await;
                        return None;
                    }
                    self.note_child(number, &reply);
                    let reply = self.tell_heap_error(client, number, reply).await;
                    let _ = client
                        .send(&shape_stop(reply, &self.options.disabled))
                        .await;
                    return None;
                }
                // A stop from non-stop mode, which is over.
                Event::Stop(_) => {}
                Event::Notification(text) => drop(client.notify(&text).await),
                event @ (Event::ChildExecuted(_)
                | Event::ChildEnded(..)
                | Event::ChildRunsOn(_)) => {
                    if self.child_event(client, number, event).await {
                        return None;
                    }
                }
                Event::Ended(ending) => {
                    self.tell_heap_end(client, number, false).await;
                    self.come_to_rest(number).await;
                    let reply = self.ended(ending);
                    let _ = client.send(reply.as_bytes()).await;
                    return None;
                }
                Event::Executed(program) => {
                    let Some(target) = self.targets.iter_mut().find(|t| t.number == number) else {
                        continue;
                    };
                    let catches = self.sticky.get(&b"QCatchSyscalls"[..]);
                    let caught = catches.is_some_and(|p| catches_execve(p));
                    if !self.exec_events && !caught {
                        // As in gdbserver: the exec is not reported and the program continues.
                        let _ = target.send(b"vCont;c").await;
                        continue;
                    }
                    target.running = false;
                    let stop = target.request(b"?").await.unwrap_or_default();
                    // The call has returned, too: into the new program.
                    let returned = caught.then(|| with_reason(&stop, "syscall_return:3b;"));
                    let stop = match (self.exec_events, returned) {
                        (true, returned) => {
                            target.pending = returned;
                            exec_stop(&stop, &program)
                        }
                        (false, returned) => returned.unwrap_or(stop),
                    };
                    self.come_to_rest(number).await;
                    let stop = shape_stop(stop, &self.options.disabled);
                    let _ = client.send(&stop).await;
                    return None;
                }
                Event::Replaced | Event::StubLost => {
                    let Some(target) = self.targets.iter_mut().find(|t| t.number == number) else {
                        continue;
                    };
                    let why = target.lost.clone().unwrap_or_default();
                    message!("ulpf server: {}", why.trim_start_matches("E."));
                    if !target.is_replaced() {
                        self.come_to_rest(number).await;
                        let _ = client.send(why.as_bytes()).await;
                        return None;
                    }
                    // The program continues, so its end is the reply. The user is informed now.
                    print(client, why.trim_start_matches("E.")).await;
                }
            }
        }
    }

    /// Handles an event of a vfork child of process `parent`. Returns true if a stop was reported to the debugger.
    async fn child_event(&mut self, client: &mut Client, parent: i32, event: Event) -> bool {
        match event {
            Event::ChildExecuted(inferior) => self.child_executed(client, *inferior).await,
            Event::ChildEnded(child, ending) => {
                if let Some(target) = self.targets.iter_mut().find(|t| t.number == parent) {
                    target.stop().await; // its stub has nothing to report
                }
                self.come_to_rest(parent).await;
                let reply = self.ending_of(child, ending);
                let _ = client.send(reply.as_bytes()).await;
                true
            }
            Event::ChildRunsOn(text) => {
                tell(client, &text).await;
                false
            }
            _ => false,
        }
    }

    /// A vfork child has executed another program and has a stub of its own. Returns true if that was reported to the
    /// debugger.
    async fn child_executed(&mut self, client: &mut Client, inferior: Inferior) -> bool {
        let mut target = Target::new(inferior);
        self.greet(&mut target).await;
        let number = target.number;
        if !self.exec_events {
            let _ = target.send(b"vCont;c").await;
            target.running = true;
            self.enlist(target);
            return false;
        }
        let program = process::executable(target.pid).unwrap_or_default();
        let stop = target.request(b"?").await.unwrap_or_default();
        self.enlist(target);
        self.come_to_rest(number).await;
        let stop = exec_stop(&stop, &program.display().to_string());
        let _ = client.send(&shape_stop(stop, &self.options.disabled)).await;
        true
    }

    /// Process `number` is about to run: updates its stub's watches to those that the debugger has set. Waits for a
    /// stub that does not answer, until the user interrupts.
    async fn settle(&mut self, client: &mut Client, number: i32) -> ControlFlow<Option<Outcome>> {
        let mut reported = false;
        loop {
            let Some(target) = self.targets.iter_mut().find(|t| t.number == number) else {
                return ControlFlow::Continue(());
            };
            let Some(why) = target.settle_watches().await else {
                return ControlFlow::Continue(());
            };
            if !std::mem::replace(&mut reported, true) {
                tell(client, why.trim_start_matches("E.")).await;
            }
            tokio::select! {
                biased;
                input = client.next_urgent() => match input {
                    Input::Interrupt => {
                        self.pretend_to_stop(client, number).await;
                        return ControlFlow::Break(None);
                    }
                    Input::Ask(ask) => self.report(client, ask).await,
                    _ => return ControlFlow::Break(Some(Outcome::Closed)),
                },
                () = target.answers() => {}
            }
        }
    }

    /// The requested interrupt has not succeeded. The user gets the prompt back, and an explanation why other commands
    /// fail.
    async fn no_stop(&mut self, client: &mut Client, number: i32) -> Option<Outcome> {
        let target = self.targets.iter_mut().find(|t| t.number == number)?;
        let why = target.hangs(watchdog::STOP_TIMEOUT);
        target.running = false;
        tell(client, why.trim_start_matches("E.")).await;
        self.pretend_to_stop(client, number).await;
        None
    }

    async fn pretend_to_stop(&mut self, client: &mut Client, number: i32) {
        tell(client, watchdog::AFTERWARDS).await;
        let stop = if self.multiprocess {
            format!("T02thread:p{number:x}.{number:x};")
        } else {
            format!("T02thread:{number:x};")
        };
        let _ = client.send(stop.as_bytes()).await;
        self.come_to_rest(number).await;
    }

    /// Prepares the report of a stop of process `number`: brings it to the front and stops all others. Returns `Some`
    /// if one of them has ended meanwhile.
    async fn come_to_rest(&mut self, number: i32) -> Option<(i32, Ending)> {
        let mut ended = None;
        self.bring_forward(number);
        for (place, target) in self.targets.iter_mut().enumerate() {
            if place == 0 {
                target.running = false;
            } else if target.running && !target.is_replaced() {
                let stopped = target.stop().await;
                // The stub may have answered while the process was ending.
                if !stopped || !process::is_alive(target.pid) {
                    let end =
                        tokio::time::timeout(watchdog::HUNG_TIMEOUT, target.exit.wait()).await;
                    ended = end.ok().map(|ending| (target.number, ending)).or(ended);
                }
            }
        }
        ended
    }

    /// A stop that is already pending in a process to be resumed.
    fn pending_stop(&mut self, packet: &[u8]) -> Option<(i32, Vec<u8>)> {
        let concerned = |t: &&mut Target| t.actions_for(packet).is_some();
        let mut waiting = self.targets.iter_mut().filter(concerned);
        let target = waiting.find(|t| t.pending.is_some())?;
        let (number, reply) = (target.number, target.pending.take()?);
        self.bring_forward(number);
        self.note_child(number, &reply);
        Some((number, reply))
    }

    /// The reply for the process in front if it has lost its stub, so that no stop can follow.
    fn due(&mut self) -> Option<Vec<u8>> {
        let target = self.targets.first()?;
        let why = target.lost.clone()?;
        Some(match target.exit.now() {
            Some(ending) => self.ended(ending).into_bytes(),
            None if target.is_replaced() && target.running => return None,
            None => why.into_bytes(),
        })
    }
}
