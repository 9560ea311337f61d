//! Non-stop mode: threads stop and resume one by one, and packets are served while others run.
//!
//! ```text
//!   stubs, ends of processes ──▶ Stops, a queue ──▶ %Stop:T05…     the first one, if the debugger owes no answer
//!                                                ◀── vStopped       it has taken note of that one
//!                                                ──▶ T05…           the next one, as the answer; or
//!                                                ──▶ OK             there is none
//! ```
//! The server acknowledges each stop to its stub (`vUlpfSeen`) when the debugger has acknowledged it. Until then no
//! action applies to that thread. The server never is in `running` here: stubs serve packets at any time, and events
//! are handled between packets ([`Server::happened`]).
#![forbid(unsafe_code)]

use super::client::Client;
use super::heap;
use super::packets::{exec_stop, is_output, plain_stop, shape_stop, thread_in};
use super::state::Server;
use super::stops::Stops;
use super::target::{Event, Target};
use std::collections::VecDeque;
use ulpf_host::process;
use ulpf_host::say::message;
use ulpf_inject::inferior::Inferior;

/// Prints text of a stub when no debugger waits for it.
pub fn say_text(output: &[u8]) {
    let text = ulpf_rsp::from_hex(&output[1..]).unwrap_or_default();
    message!("{}", String::from_utf8_lossy(&text).trim_end());
}

impl Server {
    /// Answers a packet that exists only in non-stop mode or has another meaning there; `None` for all other packets.
    pub(super) async fn non_stop(&mut self, client: &mut Client, packet: &[u8]) -> Option<Vec<u8>> {
        let disabled = self.options.disabled.vcont;
        match packet {
            b"QNonStop:0" | b"QNonStop:1" => Some(self.set_non_stop(packet).await),
            _ if packet.starts_with(b"QNonStop") => Some(b"E01".into()),
            _ if !self.stops.on => None,
            b"vStopped" => Some(self.next_stop().await),
            b"?" => Some(self.all_stops(client).await),
            b"vCtrlC" => Some(self.interrupt_any().await),
            [b'c' | b's' | b'C' | b'S', ..] if !self.targets.is_empty() => {
                Some(self.go_on(packet).await)
            }
            _ if packet.starts_with(b"vCont;") && !disabled && !self.targets.is_empty() => {
                Some(self.go_on(packet).await)
            }
            _ => None,
        }
    }

    async fn set_non_stop(&mut self, packet: &[u8]) -> Vec<u8> {
        let on = packet.ends_with(b"1");
        self.stops = Stops {
            on,
            connects: on,
            ..Stops::default()
        };
        self.sticky.insert(b"QNonStop".into(), packet.into());
        for target in &mut self.targets {
            // Removals that wait for a resume are sent now, because the program runs.
            target.settle_watches().await;
            let _ = target.request(packet).await;
            target.non_stop = on;
        }
        b"OK".into()
    }

    /// The debugger has gone: every thread stops, as the next debugger expects.
    pub(super) async fn leave_non_stop(&mut self) {
        if self.stops.on {
            self.set_non_stop(b"QNonStop:0").await;
            self.sticky.remove(&b"QNonStop"[..]);
        }
    }

    /// `vCont`, and the old resume packets. Stops are reported later, as notifications.
    async fn go_on(&mut self, packet: &[u8]) -> Vec<u8> {
        if packet.starts_with(b"vCont;") && !packet.starts_with(b"vCont;t") {
            self.follow_all_children().await;
        }
        let greeting = self.greeting();
        let several = self.targets.len() > 1;
        let mut reply = b"OK".to_vec();
        for target in &mut self.targets {
            target.greeting.clone_from(&greeting);
            let mine = match several || target.has_vfork_children() {
                true => target.actions_for(packet),
                false => Some(packet.to_vec()),
            };
            let Some(mine) = mine else { continue };
            target.note_steps(&mine);
            if let Some(why) = target.lost.clone().filter(|_| !target.is_replaced()) {
                reply = why.into_bytes();
                continue;
            }
            // The end of the process is reported separately.
            if let Some(said) = target.request(&mine).await
                && said != b"OK"
            {
                reply = said;
            }
        }
        reply
    }

    /// `vCtrlC`: stops one running thread.
    async fn interrupt_any(&mut self) -> Vec<u8> {
        for target in &mut self.targets {
            if target.request(b"vCtrlC").await.as_deref() == Some(b"OK") {
                break;
            }
        }
        b"OK".into()
    }

    /// `vStopped`: the debugger acknowledges the last stop that it received.
    async fn next_stop(&mut self) -> Vec<u8> {
        if std::mem::take(&mut self.stops.sent)
            && let Some((number, stop)) = self.stops.queue.pop_front()
            && let Some(thread) = thread_in(&stop)
            && let Some(target) = self.targets.iter_mut().find(|t| t.knows(number))
        {
            let tid = thread.rsplit(|b| *b == b'.').next().unwrap_or(thread);
            // An error shows as end of file later.
            let _ = target.send(&[b"vUlpfSeen;", tid].concat()).await;
        }
        self.first_of_queue().unwrap_or_else(|| b"OK".into())
    }

    /// The stop to be sent now: the first of the queue.
    fn first_of_queue(&mut self) -> Option<Vec<u8>> {
        let (number, stop) = self.stops.queue.front()?.clone();
        self.stops.sent = true;
        // From now on the debugger may ask about the child.
        self.note_child(number, &stop);
        Some(shape_stop(stop, &self.options.disabled))
    }

    /// Queues one more stop, and notifies the debugger if no notification is pending.
    async fn tell_stop(&mut self, client: &mut Client, number: i32, stop: Vec<u8>) {
        self.stops.push(number, stop);
        if !self.stops.sent
            && let Some(stop) = self.first_of_queue()
        {
            let _ = client.notify(&[super::target::STOP, &stop].concat()).await;
        }
    }

    /// `?`: reports all stopped threads again, the first one in the answer. For a debugger that connects, one of the
    /// threads that were just stopped (by `--attach`, or when the last debugger left) stays stopped, as with gdbserver.
    /// The others run, because GDB 13 fails with an internal error when it connects and receives several stops.
    async fn all_stops(&mut self, client: &mut Client) -> Vec<u8> {
        if self.targets.is_empty() && self.stops.queue.is_empty() {
            return b"OK".into();
        }
        // Stops without a thread are not reported again by a stub, so they stay.
        let threadless = |stop: &(i32, Vec<u8>)| thread_in(&stop.1).is_none();
        self.stops.queue.retain(threadless);
        self.stops.sent = false;
        let connects = std::mem::take(&mut self.stops.connects);
        let numbers: Vec<i32> = self.targets.iter().map(|t| t.number).collect();
        for number in numbers {
            let mut stays = true;
            let mut stops = self.stops_of(client, number).await;
            stops.sort_by_key(|stop| stop.starts_with(b"T00"));
            for stop in stops {
                let goes = connects && !std::mem::take(&mut stays);
                match thread_in(&stop).filter(|_| goes && stop.starts_with(b"T00")) {
                    Some(thread) => self.let_thread_go(number, thread).await,
                    None => self.stops.push(number, stop),
                }
            }
        }
        self.first_of_queue().unwrap_or_else(|| b"OK".into())
    }

    /// The stops of all stopped threads of a process.
    async fn stops_of(&mut self, client: &mut Client, number: i32) -> Vec<Vec<u8>> {
        // Stops that have arrived before are part of the answer.
        self.what_came_meanwhile(client).await;
        let Some(target) = self.targets.iter_mut().find(|t| t.number == number) else {
            return Vec::new();
        };
        let _ = target.request(b"vUlpfStops").await;
        let all = std::mem::take(&mut target.later).into_iter();
        let (stops, others) = all.partition(|event| matches!(event, Event::Stop(_)));
        target.later = others;
        let stops: VecDeque<Event> = stops;
        let stop = |event| match event {
            Event::Stop(stop) => Some(stop),
            _ => None,
        };
        stops.into_iter().filter_map(stop).collect()
    }

    /// After `vAttach`: the debugger expects a running program, and stops the threads that it wants.
    pub(super) async fn attached_running(&mut self) -> Vec<u8> {
        if let Some(target) = self.targets.first_mut() {
            let _ = target.request(b"vCont;c").await;
        }
        b"OK".into()
    }

    /// Handles the events that arrived during other requests.
    pub(super) async fn what_came_meanwhile(&mut self, client: &mut Client) {
        while self.stops.on
            && let Some(target) = self.targets.iter_mut().find(|t| !t.later.is_empty())
        {
            let number = target.number;
            if let Some(event) = target.later.pop_front() {
                Box::pin(self.happened(client, number, event)).await;
            }
        }
    }

    /// Handles an event of process `number`.
    pub(super) async fn happened(&mut self, client: &mut Client, number: i32, event: Event) {
        match event {
            Event::Stop(stop) if self.is_unwanted(&stop) => {
                self.note_child(number, &stop);
                self.release_children().await;
                let thread = thread_in(&stop).unwrap_or_default().to_vec();
                self.let_thread_go(number, &thread).await;
            }
            Event::Stop(stop) if heap::is_end(&stop) => {
                self.tell_heap_end(client, number, true).await;
                let thread = thread_in(&stop).unwrap_or_default().to_vec();
                self.let_thread_go(number, &thread).await;
            }
            Event::Stop(stop) if self.is_suppressed(number, &stop) => {
                let thread = thread_in(&stop).unwrap_or_default().to_vec();
                let target = self.targets.iter_mut().find(|t| t.number == number);
                let how = target.and_then(|t| {
                    let step = t.steps.get(&thread).cloned();
                    let how = step.unwrap_or_else(|| b"c".into());
                    t.is_before(&stop, &how).then_some(how)
                });
                match how {
                    Some(how) => self.resume_thread(number, &thread, &how).await,
                    None => self.tell_stop(client, number, plain_stop(&stop)).await,
                }
            }
            Event::Stop(stop) => {
                let stop = self.tell_heap_error(client, number, stop).await;
                self.tell_stop(client, number, stop).await;
            }
            Event::Reply(reply) if is_output(&reply) => say_text(&reply),
            // Unsolicited; ignored.
            Event::Reply(_) | Event::Notification(_) => {}
            Event::Ended(ending) => {
                self.tell_heap_end(client, number, false).await;
                self.bring_forward(number);
                let reply = self.ended(ending).into_bytes();
                self.stops.forget(number);
                self.tell_stop(client, number, reply).await;
            }
            Event::Executed(program) => self.executed(client, number, &program).await,
            Event::ChildExecuted(inferior) => self.child_is_own(client, *inferior).await,
            Event::ChildEnded(child, ending) => {
                let reply = self.ending_of(child, ending).into_bytes();
                self.tell_stop(client, child, reply).await;
            }
            Event::ChildRunsOn(text) => message!("ulpf server: {text}"),
            Event::Replaced | Event::StubLost => {
                let target = self.targets.iter().find(|t| t.number == number);
                let why = target.and_then(|t| t.lost.clone()).unwrap_or_default();
                message!("ulpf server: {}", why.trim_start_matches("E."));
            }
        }
    }

    async fn let_thread_go(&mut self, number: i32, thread: &[u8]) {
        self.resume_thread(number, thread, b"c").await;
    }

    async fn resume_thread(&mut self, number: i32, thread: &[u8], how: &[u8]) {
        if let Some(target) = self.targets.iter_mut().find(|t| t.number == number) {
            let tid = thread.rsplit(|b| *b == b'.').next().unwrap_or(thread);
            let _ = target.send(&[b"vUlpfSeen;", tid].concat()).await;
            let _ = target
                .request(&[b"vCont;", how, b":", thread].concat())
                .await;
        }
    }

    /// The process has executed another program, and is stopped at its first instruction.
    async fn executed(&mut self, client: &mut Client, number: i32, program: &str) {
        // Stops of the old program's threads are obsolete.
        self.stops.forget(number);
        if !self.exec_events {
            if let Some(target) = self.targets.iter_mut().find(|t| t.number == number) {
                let _ = target.request(b"vCont;c").await;
            }
            return;
        }
        for stop in Box::pin(self.stops_of(client, number)).await {
            self.tell_stop(client, number, exec_stop(&stop, program))
                .await;
        }
    }

    /// A vfork child has executed another program, and has a stub of its own now.
    async fn child_is_own(&mut self, client: &mut Client, inferior: Inferior) {
        let mut target = Target::new(inferior);
        self.greet(&mut target).await;
        let number = target.number;
        let program = process::executable(target.pid).unwrap_or_default();
        self.enlist(target);
        self.executed(client, number, &program.display().to_string())
            .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_stops() {
        let of = |stop: &str| thread_in(stop.as_bytes()).map(<[u8]>::to_vec);
        assert_eq!(of("T05thread:p1.2;core:3;"), Some(b"p1.2".into()));
        assert_eq!(of("T0506:00;thread:7;"), Some(b"7".into()));
        assert_eq!(of("W00;process:1"), None);
        assert_eq!(of("N"), None);
    }
}
