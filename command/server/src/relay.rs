//! Packets that the stub answers while the program is stopped.
#![forbid(unsafe_code)]

use super::client::{Client, Input};
use super::common::Outcome;
use super::non_stop::say_text;
use super::packets::{error_for, is_output};
use super::requests::output;
use super::soon::soon;
use super::state::Server;
use super::target::Event;
use super::watchdog;
use ulpf_host::say::message;

impl Server {
    /// Sends a packet to the stub of the first process, and all its replies to the debugger. The program does not run
    /// meanwhile.
    pub async fn relay(&mut self, client: &mut Client, packet: &[u8]) -> Option<Outcome> {
        let shows_refusals = self.shows_refusals();
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
        if let Some(why) = target.still_hangs(watchdog::HUNG_TIMEOUT).await {
            // Registers are reported as unavailable.
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
        let limit = watchdog::timeout_of(packet);
        // Most replies come before a timer is worth its cost.
        let mut early = soon(target.event()).await;
        let late = tokio::time::sleep(limit);
        tokio::pin!(late);
        loop {
            tokio::select! {
                biased;
                () = &mut late, if early.is_none() => {
                    let why = target.hangs(limit);
                    message!("ulpf server: {}", why.trim_start_matches("E."));
                    let _ = client.send(error_for(packet, why.as_bytes())).await;
                    return None;
                }
                event = async {
                    match early.take() {
                        Some(event) => event,
                        None => target.event().await,
                    }
                } => match event {
                    // The client accepts text only as an answer to `monitor`.
                    Event::Reply(reply) if target.non_stop && is_output(&reply) && !packet.starts_with(b"qRcmd") => {
                        say_text(&reply);
                    }
                    Event::Reply(reply) => {
                        if packet == b"g" && let Some(all) = ulpf_rsp::expand_runs(&reply) {
                            target.registers_len = all.len();
                        }
                        if reply == b"OK" {
                            target.watches.accepted(packet);
                        }
                        target.prefetch.was_asked(packet, &reply);
                        // (In non-stop mode a stop does not answer a resume.)
                        let explains = shows_refusals || target.non_stop;
                        if !explains && target.refused.takes(packet, &reply) {
                            let _ = client.send(b"OK").await;
                            return None;
                        }
                        let _ = client.send(&reply).await;
                        if !is_output(&reply) {
                            return None;
                        }
                    }
                    Event::Notification(text) => { let _ = client.notify(&text).await; }
                    Event::Ended(ending) => {
                        if packet == b"?" {
                            let _ = client.send(self.ended(ending).as_bytes()).await;
                        } else {
                            // The next resume reports the end.
                            let _ = client.send(error_for(packet, b"E.The program has ended.")).await;
                        }
                        return None;
                    }
                    event @ (Event::Stop(_) | Event::ChildExecuted(_) | Event::ChildEnded(..) | Event::ChildRunsOn(_)) => {
                        target.later.push_back(event);
                    }
                    // The exec discards the answer, but the event is kept.
                    event @ Event::Executed(_) if target.non_stop => {
                        target.later.push_back(event);
                        let _ = client.send(error_for(packet, b"E.The program has executed another one.")).await;
                        return None;
                    }
                    Event::Executed(_) | Event::Replaced | Event::StubLost => {
                        let why = target.lost.clone().unwrap_or_default();
                        message!("ulpf server: {}", why.trim_start_matches("E."));
                        let _ = client.send(error_for(packet, why.as_bytes())).await;
                        return None;
                    }
                },
                input = client.next_urgent() => match input {
                    Input::Interrupt => { let _ = target.interrupt().await; }
                    Input::Ask(ask) => {
                        let reply = self.reports.reply(ask, Some(target.pid));
                        let _ = client.send(reply.as_bytes()).await;
                    }
                    _ => return Some(Outcome::Closed),
                },
            }
        }
    }

    /// Whether the debugger may show why a watch is refused. A client without `qSupported` is assumed to do so. GDB
    /// does not: since version 15 it shows the texts of other errors (`error-message`), but not of insertions.
    pub(super) fn shows_refusals(&self) -> bool {
        self.supported.is_none()
    }

    /// If watches are refused, the program must not run while the debugger believes that they are set. Prints the
    /// reasons and returns a stop without a reason.
    pub(super) async fn holds(&mut self, client: &mut Client) -> Option<Vec<u8>> {
        for target in &mut self.targets {
            if let Some(notes) = target.refused.take_notes() {
                let _ = client.send(output(&notes).as_bytes()).await;
            }
        }
        let mut texts = self.targets.iter().filter_map(|t| t.refused.text());
        let text = texts.next()?;
        let _ = client.send(output(&text).as_bytes()).await;
        let current = self.targets.first_mut()?.request(b"qC").await;
        let thread = current.as_deref().and_then(|r| r.strip_prefix(b"QC"));
        Some(match thread {
            Some(thread) => [b"T00thread:", thread, b";"].concat(),
            None => b"S00".into(),
        })
    }
}
