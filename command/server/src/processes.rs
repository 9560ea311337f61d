//! Several processes on one connection. A debugger that follows forks addresses each process by its number. The process
//! of a packet is moved to the front of the list, where the other modules expect it.
//!
//! A forked child waits, unwatched and without a stub, until the debugger addresses it (see
//! `stub/task/src/control/follow.rs`). Most debuggers detach it at once; the child then continues as if it had never
//! been stopped. Otherwise it gets a stub of its own (`follow_child`). A vfork child gets one when it executes another
//! program; until then its parent's stub serves it (see `vfork`).
#![forbid(unsafe_code)]

use super::client::Client;
use super::common::{Outcome, report};
use super::packets::{PACKET_SIZE, process_of};
use super::state::{PendingChild, Server};
use super::target::Target;
use ulpf_host::foreign::numbers::RelationError;
use ulpf_host::say::message;
use ulpf_inject::follow::Child;
use ulpf_inject::inferior::follow::child_in;

/// Limit in bytes for the list of all threads of one process. Linux does not let a process have so many.
const LONGEST: usize = 64 << 20;

/// The next step for a packet.
pub(super) enum Addressed {
    /// Serve it; its process is in front.
    Serve,
    Reply(Vec<u8>),
    Done(Option<Outcome>),
}

impl Server {
    pub(super) fn bring_forward(&mut self, number: i32) -> bool {
        let is_it = |t: &Target| t.number == number || t.vfork_child(number).is_some();
        match self.targets.iter().position(is_it) {
            Some(at) => {
                self.targets.swap(0, at);
                true
            }
            None => false,
        }
    }

    /// Whether this stop reports a fork event that the debugger has not requested.
    pub(super) fn is_unwanted(&self, stop: &[u8]) -> bool {
        match child_in(stop) {
            Some((_, false)) => !self.fork_events,
            Some((_, true)) => !self.vfork_events,
            None => !self.vfork_events && stop.windows(11).any(|w| w == b";vforkdone:"),
        }
    }

    /// Notes the child that a stop of `parent` reports.
    pub(super) fn note_child(&mut self, parent: i32, stop: &[u8]) {
        let Some((number, vfork)) = child_in(stop) else {
            return;
        };
        let Some(target) = self.targets.iter().find(|t| t.number == parent) else {
            return;
        };
        let process = match vfork {
            false => target.process.child(number),
            true => target.process.vfork_child(number),
        };
        if let Err(why @ (RelationError::NoChild { .. } | RelationError::OtherRights { .. })) =
            &process
        {
            message!(
                "ulpf server: {} is reported as forked, and left alone: {why}.",
                number
            );
        }
        self.pending_children.push(PendingChild {
            number,
            parent,
            vfork,
            process,
        });
    }

    /// Brings the process of a packet to the front. Does nothing while there is only one process.
    pub(super) async fn address(&mut self, client: &mut Client, packet: &[u8]) -> Addressed {
        let with_vfork_child = self.targets.iter().any(Target::has_vfork_children);
        if self.targets.len() + self.pending_children.len() < 2 && !with_vfork_child {
            return Addressed::Serve;
        }
        let starts = |p: &str| packet.starts_with(p.as_bytes());
        match packet {
            [b'H', b'g' | b'c', thread @ ..] => {
                let Some(number) = process_of(thread).filter(|&n| n > 0) else {
                    return self.for_selected().await;
                };
                let number = number as i32;
                self.selected = None;
                if self.pending_children.iter().any(|u| u.number == number) {
                    self.selected = Some(number);
                    return Addressed::Reply(b"OK".into());
                }
                match self.bring_forward(number) {
                    true => Addressed::Serve,
                    false => Addressed::Reply(b"E01".into()),
                }
            }
            [b'T', thread @ ..] => {
                let Some(number) = process_of(thread) else {
                    return Addressed::Serve;
                };
                if self
                    .pending_children
                    .iter()
                    .any(|u| i64::from(u.number) == number)
                {
                    return Addressed::Reply(b"OK".into());
                }
                self.aside(client, packet, number as i32).await
            }
            _ if starts("qThreadExtraInfo,") => match process_of(&packet[17..]) {
                Some(number) => self.aside(client, packet, number as i32).await,
                None => Addressed::Serve,
            },
            _ if starts("qXfer:exec-file:read:") || starts("qAttached:") => {
                let at = packet.iter().rposition(|&b| b == b':').unwrap_or(0);
                let number = match starts("qAttached:") {
                    true => &packet[at + 1..],
                    false => packet[..at]
                        .split(|&b| b == b':')
                        .next_back()
                        .unwrap_or(b""),
                };
                match ulpf_rsp::hex_number(number) {
                    Some(number) => self.aside(client, packet, number as i32).await,
                    None => self.for_selected().await,
                }
            }
            _ if starts("D;") || starts("vKill;") => {
                let at = packet.iter().position(|&b| b == b';').unwrap_or(0) + 1;
                let number = ulpf_rsp::hex_number(&packet[at..]).map_or(0, |n| n as i32);
                if let Some(place) = self
                    .pending_children
                    .iter()
                    .position(|u| u.number == number)
                {
                    let child = self.pending_children.remove(place);
                    self.selected = None;
                    self.say(&format!("Detaching from process {}", child.number));
                    self.let_go(&child, starts("vKill;")).await;
                    return Addressed::Reply(b"OK".into());
                }
                if self.let_go_of_vfork_child(number, starts("vKill;")).await {
                    return Addressed::Reply(b"OK".into());
                }
                // Its children must not be killed with it.
                self.follow_children_of(number).await;
                match self.bring_forward(number) {
                    true => Addressed::Serve,
                    false => Addressed::Reply(b"E01".into()),
                }
            }
            // A breakpoint that was copied with the memory: the child does not have it.
            [b'z', ..] if self.selected.is_some() => Addressed::Reply(b"OK".into()),
            b"qfThreadInfo" => Addressed::Reply(self.thread_list().await),
            b"qsThreadInfo" => Addressed::Reply(b"l".into()),
            _ if starts("qXfer:threads:read::") => Addressed::Reply(self.threads(packet).await),
            _ if starts("vCont;") || starts("vFile:") || starts("Q") || packet == b"k" => {
                Addressed::Serve
            }
            _ => self.for_selected().await,
        }
    }

    /// A packet for the selected process. A child without a stub gets one now.
    async fn for_selected(&mut self) -> Addressed {
        let Some(number) = self.selected.take() else {
            return Addressed::Serve;
        };
        self.follow_child(number).await;
        if !self.bring_forward(number) {
            return Addressed::Reply(b"E01".into());
        }
        let target = self.targets.first_mut();
        if let Some(parent) = target.filter(|t| t.vfork_child(number).is_some()) {
            // The stub does not know the selected thread yet.
            let choose = format!("Hgp{number:x}.{number:x}");
            let _ = parent.request(choose.as_bytes()).await;
        }
        Addressed::Serve
    }

    /// Serves a packet for a process other than the selected one.
    async fn aside(&mut self, client: &mut Client, packet: &[u8], number: i32) -> Addressed {
        if self.pending_children.iter().any(|u| u.number == number) {
            self.follow_child(number).await;
        }
        let before = self.targets.first().map(|t| t.number);
        if !self.bring_forward(number) {
            return Addressed::Reply(b"E01".into());
        }
        if packet.starts_with(b"qAttached") {
            let vfork = self.targets.first().and_then(|t| t.vfork_child(number));
            let reply = match vfork {
                Some(_) => b"1".into(),
                None => self.attached(packet),
            };
            before.map(|n| self.bring_forward(n));
            return Addressed::Reply(reply);
        }
        let outcome = self.relay(client, packet).await;
        before.map(|n| self.bring_forward(n));
        Addressed::Done(outcome)
    }

    fn parent_of(&mut self, child: &PendingChild) -> Option<&mut Target> {
        self.targets.iter_mut().find(|t| t.number == child.parent)
    }

    /// Detaches a waiting child, or kills it.
    pub(super) async fn let_go(&mut self, child: &PendingChild, kill: bool) {
        let Some(parent) = self.parent_of(child) else {
            return; // its wait has ended with its parent
        };
        if let (true, Ok(process)) = (kill, &child.process) {
            let _ = process.signal(libc::SIGKILL);
        }
        if !child.vfork {
            let go = format!("vUlpfFork;{:x}", child.number);
            let _ = parent.request(go.as_bytes()).await;
        }
    }

    /// Detaches a vfork child that the parent's stub serves, or kills it. Returns false if there is no such child.
    pub(super) async fn let_go_of_vfork_child(&mut self, number: i32, kill: bool) -> bool {
        let mut parents = self.targets.iter_mut();
        let Some(parent) = parents.find(|t| t.vfork_child(number).is_some()) else {
            return false;
        };
        let Some(child) = parent.release_vfork_child(number).await else {
            return false;
        };
        if kill {
            let _ = child.process.signal(libc::SIGKILL);
        }
        self.say(&format!("Detaching from process {number}"));
        true
    }

    /// Gives a waiting child a stub, and puts it at the end of the list of processes. A vfork child counts as a process
    /// from now on.
    async fn follow_child(&mut self, number: i32) {
        let Some(place) = self
            .pending_children
            .iter()
            .position(|u| u.number == number)
        else {
            return;
        };
        let child = self.pending_children.remove(place);
        let Some(parent) = self.parent_of(&child) else {
            return;
        };
        let process = match &child.process {
            Ok(process) => process.clone(),
            Err(why) => {
                message!("ulpf server: process {number} is not followed: {why}.");
                self.let_go(&child, false).await;
                return;
            }
        };
        if child.vfork {
            if !parent.follow_vfork_child(number, process).await {
                message!("ulpf server: process {number}, a vfork child, has ended.");
            }
            return;
        }
        let Some(channel) = parent.channel() else {
            return;
        };
        let request = Child {
            process,
            number,
            parent: parent.process.clone(),
            stub: channel,
            remains: parent.remains,
            settings: self.options.settings,
        };
        match ulpf_inject::inferior::take_child(request).await {
            Ok(inferior) => {
                let mut target = Target::new(inferior);
                target.inherits = true;
                self.greet(&mut target).await;
                self.enlist(target);
            }
            Err(error) => {
                message!("ulpf server: process {number} was forked and is not followed:");
                report(&error, "ulpf server: ");
                self.let_go(&child, false).await;
            }
        }
    }

    pub(super) async fn follow_all_children(&mut self) {
        self.selected = None;
        while let Some(number) = self.pending_children.first().map(|u| u.number) {
            self.follow_child(number).await;
        }
    }

    async fn follow_children_of(&mut self, parent: i32) {
        let theirs = |u: &&PendingChild| u.parent == parent;
        while let Some(number) = self.pending_children.iter().find(theirs).map(|u| u.number) {
            self.follow_child(number).await;
        }
    }

    /// Detaches all waiting children, because no debugger decides about them.
    pub(super) async fn release_children(&mut self) {
        self.selected = None;
        for child in std::mem::take(&mut self.pending_children) {
            self.let_go(&child, false).await;
        }
        let vfork = self.targets.iter().flat_map(Target::vfork_children);
        for number in vfork.collect::<Vec<_>>() {
            self.let_go_of_vfork_child(number, false).await;
        }
    }

    /// `m` and the threads of all processes.
    async fn thread_list(&mut self) -> Vec<u8> {
        let mut list = b"m".to_vec();
        for target in &mut self.targets {
            let mut packet: &[u8] = b"qfThreadInfo";
            let end = list.len() + LONGEST;
            while list.len() < end
                && let Some([b'm', threads @ ..]) = target.request(packet).await.as_deref()
            {
                if list.len() > 1 {
                    list.push(b',');
                }
                list.extend_from_slice(threads);
                packet = b"qsThreadInfo";
            }
        }
        for child in &self.pending_children {
            list.extend(format!(",p{0:x}.{0:x}", child.number).bytes());
        }
        list
    }

    /// A piece of `<threads>…</threads>` with the threads of all processes.
    async fn threads(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut all = b"<threads>\n".to_vec();
        for target in &mut self.targets {
            let mut text = Vec::new();
            loop {
                let ask = format!("qXfer:threads:read::{:x},{:x}", text.len(), 0x3000);
                match target.request(ask.as_bytes()).await.as_deref() {
                    Some([b'm', part @ ..]) if !part.is_empty() && text.len() < LONGEST => {
                        text.extend(ulpf_rsp::unescape(part).unwrap_or_default());
                    }
                    Some([b'l', part @ ..]) => {
                        text.extend(ulpf_rsp::unescape(part).unwrap_or_default());
                        break;
                    }
                    _ => break,
                }
            }
            let text = String::from_utf8_lossy(&text);
            let inner = text.trim().trim_start_matches("<threads>");
            all.extend(inner.trim_end_matches("</threads>").bytes());
        }
        for child in &self.pending_children {
            all.extend(format!("<thread id=\"p{0:x}.{0:x}\"/>\n", child.number).bytes());
        }
        all.extend(b"</threads>\n");
        let request = ulpf_rsp::xfer::Xfer::parse(packet);
        let piece = request.and_then(|request| request.piece(&all, PACKET_SIZE));
        piece.unwrap_or_else(|| b"E01".into())
    }
}
