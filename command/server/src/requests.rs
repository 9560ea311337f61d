//! Dispatch of the debugger's packets.
#![forbid(unsafe_code)]

use super::afterwards;
use super::answers;
use super::client::Client;
use super::common::{Outcome, report};
use super::filters;
use super::packets::{ERROR_TEXTS, PACKET_LIMIT, PACKET_SIZE, TOO_LONG, announces, shape_stop};
use super::processes::Addressed;
use super::state::Server;
use super::target::Target;
use super::watches;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use tokio::task::spawn_blocking;
use ulpf_host::foreign::text::lines;
use ulpf_lib::command::Command;
use ulpf_symbols::Program;

/// Abilities of the server itself, added to the stub's answer to qSupported.
const OWN_FEATURES: &[&str] = &[
    "QStartNoAckMode+",
    "QStartupWithShell+",
    "QEnvironmentHexEncoded+",
    "QEnvironmentReset+",
    "QEnvironmentUnset+",
    "QSetWorkingDir+",
    "QDisableRandomization+",
    "multiprocess+",
    "single-inf-arg+",
    "qXfer:osdata:read+",
    "exec-events+",
    "fork-events+",
    "vfork-events+",
];

/// Features of a stub, for a debugger that connects before there is a stub. It asks once per connection, so the list
/// must equal the stub's own (`test_the_same_abilities_without_a_program`).
const STUB_FEATURES: &[&str] = &[
    "swbreak+",
    "hwbreak+",
    "vContSupported+",
    "QPassSignals+",
    "QCatchSyscalls+",
    "QProgramSignals+",
    "QNonStop+",
    "QThreadEvents+",
    "no-resumed+",
    "ConditionalBreakpoints+",
    "augmented-libraries-svr4-read+",
    "qXfer:features:read+",
    "qXfer:auxv:read+",
    "qXfer:exec-file:read+",
    "qXfer:libraries-svr4:read+",
    "qXfer:siginfo:read+",
    "qXfer:siginfo:write+",
    "qXfer:threads:read+",
    "binary-upload+",
    "error-message+",
];

/// Settings that a debugger makes once and that also apply to programs started later.
const STICKY: &[&str] = &[
    "QPassSignals:",
    "QProgramSignals:",
    "QThreadEvents:",
    "QCatchSyscalls:",
];

const HELP: &str = "\
The following monitor commands are supported:
  help
    Print this message
  set debug <0|1>, set remote-debug <0|1>
    Print what passes between the debugger and the server, or no longer
  set debug-format all|none
    Accepted, without effect
  exit
    End the server and a program that it started; one that was attached to
    goes on
";

impl Server {
    /// Serves one packet. Returns `Some` if the connection is over.
    pub(super) async fn serve_packet(
        &mut self,
        client: &mut Client,
        packet: &[u8],
    ) -> Option<Outcome> {
        if packet.len() > self.packet_size {
            let _ = client.send(TOO_LONG).await;
            return None;
        }
        if let Some(reply) = self.non_stop(client, packet).await {
            let _ = client.send(&reply).await;
            return None;
        }
        match self.address(client, packet).await {
            Addressed::Serve => {}
            Addressed::Reply(reply) => {
                let _ = client.send(&reply).await;
                return None;
            }
            Addressed::Done(outcome) => return outcome,
        }
        if let Some(target) = self.targets.first_mut().filter(|t| t.lost.is_none()) {
            // A forked child does not have the watches that the debugger removes from it.
            let came_without = target.inherits && watches::removes(packet);
            // In non-stop mode the program may be running.
            let settles = !target.non_stop && target.watches.settles(packet);
            if settles || target.refused.settles(packet) || came_without {
                let _ = client.send(b"OK").await;
                return None;
            }
            if !target.non_stop
                && target.exit.now().is_none()
                && let Some(reply) = target.prefetch.answer(packet)
            {
                let _ = client.send(&reply).await;
                return None;
            }
            if watches::needs_them(packet) {
                // If the stub hangs, the relay of this packet reports it.
                let _ = target.settle_watches().await;
            }
        }
        // (No other debugger asks for it.)
        client.is_lldb |= packet == b"qHostInfo";
        let starts = |p: &str| packet.starts_with(p.as_bytes());
        let reply: Vec<u8> = match packet {
            b"QStartNoAckMode" => {
                let _ = client.send(b"OK").await;
                client.stop_acks();
                return None;
            }
            b"!" => {
                self.extended = true;
                b"OK".into()
            }
            _ if starts("qSupported") => self.supported(packet).await,
            _ if starts("vFile:") => self.host_io.answer(&packet[b"vFile:".len()..]),
            _ if starts("qXfer:osdata:read:") => self.osdata.answer(packet),
            _ if starts("qAttached") => self.attached(packet),
            _ if starts("QDisableRandomization:") => flag(packet, &mut self.disable_randomization),
            _ if starts("QStartupWithShell:") => flag(packet, &mut self.shell),
            b"QEnvironmentReset" => {
                self.env = std::env::vars_os().collect();
                b"OK".into()
            }
            _ if starts("QEnvironmentHexEncoded:") => self.set_variable(packet),
            _ if starts("QEnvironmentUnset:") => self.unset_variable(packet),
            _ if starts("QSetWorkingDir:") => match argument(packet) {
                Some(dir) => {
                    self.cwd = (!dir.is_empty()).then(|| PathBuf::from(OsString::from_vec(dir)));
                    b"OK".into()
                }
                None => b"E01".into(),
            },
            _ if starts("qRcmd,") => return self.monitor(client, packet).await,
            b"qExecAndArgs" => self.exec_and_args(),
            _ if starts("vRun;") => self.run(packet).await,
            _ if starts("vAttach;") => self.attach_request(packet).await,
            _ if starts("vKill;") => self.kill_request(packet).await,
            b"k" => return self.kill_all(client).await,
            b"D" => return self.detach(client, packet).await,
            _ if starts("D;") => return self.detach(client, packet).await,
            b"R" | [b'R', ..] if self.extended => {
                self.restart().await;
                return None;
            }
            // Packets between server and stub; they have no answer.
            _ if starts("vUlpfAhead") || starts("vUlpfRenew") || self.is_disabled(packet) => {
                Vec::new()
            }
            _ if !self.targets.is_empty() => {
                if starts("vCont;") || matches!(packet.first(), Some(b'c' | b'C' | b's' | b'S')) {
                    if let Some(stop) = self.holds(client).await {
                        let _ = client.send(&stop).await;
                        return None;
                    }
                    return self.resume(client, packet).await;
                }
                let outcome = self.relay(client, packet).await;
                if STICKY.iter().any(|s| starts(s)) {
                    self.remember(packet);
                    for target in self.targets.iter_mut().skip(1) {
                        let _ = target.request(packet).await;
                    }
                }
                return outcome;
            }
            _ => self.without_program(packet),
        };
        let _ = client.send(&reply).await;
        None
    }

    fn is_disabled(&self, packet: &[u8]) -> bool {
        let d = &self.options.disabled;
        (d.vcont && packet.starts_with(b"vCont"))
            || (d.qc && packet == b"qC")
            || (d.thread_info && (packet == b"qfThreadInfo" || packet == b"qsThreadInfo"))
    }

    fn remember(&mut self, packet: &[u8]) {
        let key = packet
            .iter()
            .position(|&b| b == b':')
            .map_or(packet, |at| &packet[..at]);
        self.sticky.insert(key.into(), packet.into());
    }

    async fn supported(&mut self, packet: &[u8]) -> Vec<u8> {
        let can = |feature: &[u8]| announces(packet, feature);
        self.multiprocess = can(b"multiprocess+");
        self.exec_events = can(b"exec-events+");
        // Only process numbers tell to which process a packet belongs.
        self.fork_events = self.multiprocess && can(b"fork-events+");
        self.vfork_events = self.multiprocess && can(b"vfork-events+");
        self.one_argument = can(b"single-inf-arg+");
        self.supported = Some(packet.into());
        let offer = self.offer();
        for target in &mut self.targets {
            let _ = target.request(&offer).await;
        }
        let stub = match self.targets.first_mut() {
            Some(target) => target
                .request(packet)
                .await
                .map(|r| String::from_utf8_lossy(&r).into_owned()),
            None => Some(format!(
                "PacketSize={PACKET_SIZE:x};{}",
                STUB_FEATURES.join(";")
            )),
        }
        .unwrap_or_default();
        let announced = stub.split(';').find_map(|f| f.strip_prefix("PacketSize="));
        self.packet_size = announced
            .and_then(|n| usize::from_str_radix(n, 16).ok())
            .unwrap_or(PACKET_SIZE)
            .min(PACKET_LIMIT);
        // The server's features replace the stub's entries of the same name.
        let name = |f: &str| f.trim_end_matches(['+', '-']).to_string();
        let own: Vec<String> = OWN_FEATURES.iter().map(|f| name(f)).collect();
        let features: Vec<&str> = stub
            .split(';')
            .filter(|f| !f.is_empty() && !own.contains(&name(f)))
            .chain(OWN_FEATURES.iter().copied())
            .collect();
        features.join(";").into_bytes()
    }

    /// The packet that tells a stub which events this debugger follows.
    pub(super) fn offer(&self) -> Vec<u8> {
        let all = [(self.fork_events, "fork"), (self.vfork_events, "vfork")];
        let wanted: Vec<&str> = all.iter().filter(|w| w.0).map(|w| w.1).collect();
        ulpf_inject::inferior::follow::offer(&wanted)
    }

    pub(super) fn attached(&self, packet: &[u8]) -> Vec<u8> {
        let asked = packet.strip_prefix(b"qAttached:").map(ulpf_rsp::hex_number);
        match (self.targets.first(), asked) {
            (None, _) | (_, Some(None)) => b"E01".into(),
            (Some(t), Some(Some(pid))) if pid != t.number as u64 => b"E01".into(),
            (Some(t), _) => if t.launched { b"0" } else { b"1" }.into(),
        }
    }

    fn set_variable(&mut self, packet: &[u8]) -> Vec<u8> {
        let Some(pair) = argument(packet) else {
            return b"E01".into();
        };
        let Some(at) = pair.iter().position(|&b| b == b'=').filter(|&at| at > 0) else {
            return b"E01".into();
        };
        self.env.insert(
            OsString::from_vec(pair[..at].into()),
            OsString::from_vec(pair[at + 1..].into()),
        );
        b"OK".into()
    }

    fn unset_variable(&mut self, packet: &[u8]) -> Vec<u8> {
        let Some(name) = argument(packet) else {
            return b"E01".into();
        };
        self.env.remove(&OsString::from_vec(name));
        b"OK".into()
    }

    /// Replies as gdbserver's without a program.
    fn without_program(&mut self, packet: &[u8]) -> Vec<u8> {
        let starts = |p: &str| packet.starts_with(p.as_bytes());
        match packet {
            b"?" => b"W00".into(),
            b"vCont?" => b"vCont;c;C;s;S;t;r".into(),
            _ if STICKY.iter().any(|s| starts(s)) => {
                self.remember(packet);
                b"OK".into()
            }
            _ if starts("qSymbol:") => b"OK".into(),
            b"qC" | b"qfThreadInfo" | b"qsThreadInfo" => b"E01".into(),
            _ if starts("vCont;") || starts("qXfer:") || starts("qRcmd") => b"E01".into(),
            [
                b'H' | b'g' | b'G' | b'm' | b'M' | b'p' | b'P' | b'T' | b'X' | b'x' | b'Z' | b'z'
                | b'c' | b'C' | b's' | b'S',
                ..,
            ] => b"E01".into(),
            _ => Vec::new(),
        }
    }

    async fn monitor(&mut self, client: &mut Client, packet: &[u8]) -> Option<Outcome> {
        let Some(command) = ulpf_rsp::from_hex(&packet[b"qRcmd,".len()..]) else {
            let _ = client.send(b"E01").await;
            return None;
        };
        if let Some(done) = Server::set(client, command.trim_ascii()) {
            let _ = client.send(output(&format!("{done}\n")).as_bytes()).await;
            let _ = client.send(b"OK").await;
            return None;
        }
        if let Some(request) = answers::Request::of(&command) {
            let answer = match (self.targets.first_mut(), &self.past) {
                (Some(target), _) => target.answer_plugin(&request),
                (None, Some((_, program))) => request.answer(program, None),
                (None, None) => request.answer(&Program::default(), None),
            };
            self.print(client, &answer).await;
            return None;
        }
        match command.trim_ascii() {
            b"exit" => {
                let _ = client.send(b"OK").await;
                return Some(Outcome::Quit(0));
            }
            b"" => {
                let unknown = format!("Unknown monitor command.\n\n{HELP}");
                self.refuse_command(client, &unknown).await;
            }
            b"help" => {
                let _ = client.send(output(HELP).as_bytes()).await;
                if !self.targets.is_empty() {
                    return self.relay(client, packet).await;
                }
                let _ = client.send(b"OK").await;
            }
            _ if !self.targets.is_empty() => {
                let asked = std::str::from_utf8(&command).ok().map(Command::parse);
                if let Some(Ok(Command::HeapAsk(what))) = asked {
                    let answer = self.targets[0].ask_heap(what).await;
                    self.print(client, &answer).await;
                    return None;
                }
                let Some(spec) = filters::names_a_variable(&command) else {
                    return self.relay(client, packet).await;
                };
                let pid = self.targets[0].pid;
                let translated = spawn_blocking(move || filters::translate(pid, &spec)).await;
                match translated.unwrap_or_else(|e| Err(e.to_string())) {
                    Ok(commands) => {
                        let commands = commands.iter().map(|c| c.to_string());
                        let commands = commands.collect::<Vec<_>>().join(";");
                        let packet = format!("qRcmd,{}", ulpf_rsp::to_hex(commands.as_bytes()));
                        return self.relay(client, packet.as_bytes()).await;
                    }
                    Err(why) => {
                        let _ = client.send(output(&format!("{why}\n")).as_bytes()).await;
                        let _ = client.send(b"OK").await;
                    }
                }
            }
            command => {
                let past = self.past.as_ref();
                let text = std::str::from_utf8(command).ok();
                let answer = past
                    .zip(text)
                    .and_then(|((area, _), t)| afterwards::answer(area, t));
                let Some(answer) = answer else {
                    let why = "There is no program, and the server itself knows only `help`, `set` and `exit`.\n";
                    self.refuse_command(client, why).await;
                    return None;
                };
                self.print(client, &answer).await;
            }
        }
        None
    }

    /// The answer to a monitor command. Each packet has to fit, in hex and with its first letter.
    async fn print(&self, client: &mut Client, answer: &str) {
        for part in parts(&lines(answer), self.packet_size / 2 - 8) {
            let _ = client.send(output(part).as_bytes()).await;
        }
        let _ = client.send(b"OK").await;
    }

    /// Refuses a monitor command. GDB since version 15 shows the text of an error; other debuggers get the text as
    /// output first.
    async fn refuse_command(&self, client: &mut Client, why: &str) {
        let supported = self.supported.as_deref();
        if supported.is_some_and(|s| announces(s, ERROR_TEXTS)) {
            let error = format!("E.{}", one_line(why.lines().next().unwrap_or_default()));
            let _ = client.send(error.as_bytes()).await;
            return;
        }
        let _ = client.send(output(why).as_bytes()).await;
        let _ = client.send(b"E01").await;
    }

    /// gdbserver's `monitor set …`. Returns the text to print, or `None` if it is another command.
    fn set(client: &mut Client, words: &[u8]) -> Option<String> {
        let (what, value) = match words
            .strip_prefix(b"set ")?
            .split(|b| *b == b' ')
            .collect::<Vec<_>>()[..]
        {
            [what, value] => (what, value),
            _ => return None,
        };
        let what = match (what, value) {
            (b"debug-format", b"all") => {
                return Some("All extra debug format options enabled.".into());
            }
            (b"debug-format", b"none") => {
                return Some("All extra debug format options disabled.".into());
            }
            (b"debug", b"0" | b"1") => "Debug",
            (b"remote-debug", b"0" | b"1") => "Protocol debug",
            _ => return None,
        };
        let on = value == b"1";
        client.set_debug(on);
        Some(format!(
            "{what} output {}.",
            if on { "enabled" } else { "disabled" }
        ))
    }

    async fn attach_request(&mut self, packet: &[u8]) -> Vec<u8> {
        let pid =
            ulpf_rsp::hex_number(&packet[b"vAttach;".len()..]).and_then(|n| i32::try_from(n).ok());
        let Some(pid) = pid.filter(|&p| p > 0) else {
            return b"E01".into();
        };
        if !self.targets.is_empty() && !self.multiprocess {
            return b"E.The server already has a program. Detach from it or kill it first.".into();
        }
        match self.attach(pid).await {
            Ok(()) if self.stops.on => self.attached_running().await,
            Ok(()) => self.first_stop().await,
            Err(error) => {
                report(&error, "ulpf server: ");
                format!("E.{}", one_line(&error.to_string())).into_bytes()
            }
        }
    }

    pub(super) async fn first_stop(&mut self) -> Vec<u8> {
        let Some(target) = self.targets.first_mut() else {
            return b"E01".into();
        };
        match target.request(b"?").await {
            Some(reply) => shape_stop(reply, &self.options.disabled),
            None => b"E.The program ended before its first stop.".into(),
        }
    }

    async fn kill_request(&mut self, packet: &[u8]) -> Vec<u8> {
        let pid = ulpf_rsp::hex_number(&packet[b"vKill;".len()..]);
        match self.targets.first_mut() {
            // GDB uses 42000 as the process number until it knows the real one.
            Some(target) if pid == Some(target.number as u64) || pid == Some(42000) => {
                target.kill().await;
                if let Some(gone) = self.take_front() {
                    self.stops.forget(gone.number);
                }
                b"OK".into()
            }
            _ => b"E01".into(),
        }
    }

    pub(super) async fn end_all(&mut self) {
        for child in std::mem::take(&mut self.pending_children) {
            self.let_go(&child, true).await;
        }
        let vfork = self.targets.iter().flat_map(Target::vfork_children);
        for number in vfork.collect::<Vec<_>>() {
            self.let_go_of_vfork_child(number, true).await;
        }
        while let Some(mut target) = self.take_front() {
            target.kill().await;
            self.stops.forget(target.number);
        }
    }

    /// `k` has no reply.
    async fn kill_all(&mut self, client: &mut Client) -> Option<Outcome> {
        match self.targets.is_empty() {
            false => self.say("Killing all inferiors"),
            true => self.say("No process to kill"),
        }
        self.end_all().await;
        // GDB expects no answer, LLDB the end of the process.
        if client.is_lldb {
            let _ = client.send(b"X09").await;
        }
        if self.extended {
            None
        } else {
            Some(Outcome::Quit(0))
        }
    }

    /// `R` has no reply; the debugger sends `?` next.
    async fn restart(&mut self) {
        self.say("ulpf server restarting");
        self.end_all().await;
        if self.program.is_some()
            && let Err(error) = self.start().await
        {
            report(&error, "ulpf server: ");
        }
    }

    async fn detach(&mut self, client: &mut Client, packet: &[u8]) -> Option<Outcome> {
        let pid = packet.strip_prefix(b"D;").map(ulpf_rsp::hex_number);
        let Some(target) = self
            .targets
            .first_mut()
            .filter(|t| pid.is_none_or(|p| p == Some(t.number as u64)))
        else {
            let _ = client.send(b"E01").await;
            return None;
        };
        let text = format!("Detaching from process {}", target.pid);
        let detached = target.detach().await;
        let ended = target.exit.now();
        let (launched, mut exit) = (target.launched, target.exit.clone());
        self.say(&text);
        match ended {
            // The program was killed meanwhile, so there is nothing to detach from; this is not an error.
            Some(ending) if !detached => drop(self.ended(ending)),
            _ if !detached => {
                let _ = client.send(b"E01").await;
                return None;
            }
            _ => {
                if let Some(gone) = self.take_front() {
                    self.stops.forget(gone.number);
                }
            }
        }
        let _ = client.send(b"OK").await;
        if self.extended || !self.targets.is_empty() {
            return None;
        }
        // As gdbserver does: stay until the child has ended, because of its terminal and its parent.
        if launched {
            exit.wait().await;
        }
        Some(Outcome::Quit(0))
    }
}

/// The hex argument after the packet's colon.
fn argument(packet: &[u8]) -> Option<Vec<u8>> {
    let at = packet.iter().position(|&b| b == b':')?;
    ulpf_rsp::from_hex(&packet[at + 1..]).filter(|a| !a.contains(&0))
}

fn flag(packet: &[u8], value: &mut bool) -> Vec<u8> {
    match packet.last() {
        Some(b'0') => *value = false,
        Some(b'1') => *value = true,
        _ => return b"E01".into(),
    }
    b"OK".into()
}

pub(super) fn output(text: &str) -> String {
    format!("O{}", ulpf_rsp::to_hex(lines(text).as_bytes()))
}

/// Splits a text into parts of at most `most` bytes, or of one character.
fn parts(mut text: &str, most: usize) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let (part, rest) = text.split_at(end);
        text = rest;
        (!part.is_empty()).then_some(part)
    })
}

/// Makes a text fit into one packet: replaces control characters and the protocol's special characters.
pub(super) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| {
            if matches!(c, '#' | '$' | '}' | '*') || c.is_control() {
                ' '
            } else {
                c
            }
        })
        .collect()
}
