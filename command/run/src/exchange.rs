//! Exchanges with the stub while the program is stopped: packets and their answers, monitor commands.

use super::control::{
    Control, FIRST_HAS_ENDED, STUB_TIMEOUT, forward, is_second_request, restless, silent,
};
use super::events::OnSignal;
use super::watches::Changes;
use anyhow::{Context, Result, bail, ensure};
use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use ulpf_heap::functions::AT_ONCE;
use ulpf_inject::client::Client;
use ulpf_lib::command::reply::Backend;
use ulpf_lib::command::{Arm, Command, HeapCheck, Reply};
use ulpf_session::arm;
use ulpf_session::armed::{Armed, outcomes};
use ulpf_session::memory::ProcessMemory;

/// Limit of the commands in one `monitor` request: bytes before the hex coding.
const BATCH: usize = 16 << 10;

impl Control {
    /// First packets: the features that we support, and the signals that need no report.
    pub async fn greet(&mut self) -> Result<()> {
        self.request(b"qSupported:swbreak+;hwbreak+;vContSupported+;error-message+")
            .await?;
        self.request(b"?").await?;
        // All signals: we need none.
        let all: Vec<String> = (1..=0x97).map(|n| format!("{n:x}")).collect();
        self.request(format!("QPassSignals:{}", all.join(";")).as_bytes())
            .await?;
        Ok(())
    }

    /// Sends a packet and returns the stub's answer.
    pub(super) async fn request(&mut self, packet: &[u8]) -> Result<Vec<u8>> {
        self.follower.offered.note(packet);
        self.answer(async |stub: &mut Client| stub.request(packet).await)
            .await
    }

    /// Sends a monitor command and returns the stub's answer.
    pub(super) async fn command(&mut self, command: &Command) -> Result<String> {
        self.text(&command.to_string()).await
    }

    /// Sends commands as text and returns the stub's answer.
    async fn text(&mut self, text: &str) -> Result<String> {
        self.answer(async |stub: &mut Client| stub.monitor(text).await)
            .await
    }

    /// An exchange with the stub. The stub may be forged and never answer, so the end of the program and signals to us
    /// are handled meanwhile.
    pub(super) async fn answer<T>(
        &mut self,
        exchange: impl AsyncFnOnce(&mut Client) -> io::Result<T>,
    ) -> Result<T> {
        let mut enough = pin!(tokio::time::sleep(STUB_TIMEOUT));
        let (pid, forwards) = (self.pid, self.on_signal == OnSignal::Forward);
        // Signals to a program that we have started belong to it; a second one means that the user wants to leave.
        let mut requests = 0;
        let mut exchange = pin!(exchange(&mut self.client));
        loop {
            tokio::select! {
                biased;
                number = self.signals.next() => {
                    let heeded = match self.on_signal {
                        OnSignal::Forward => {
                            forward(&self.process, number);
                            true
                        }
                        OnSignal::Leave => true,
                        OnSignal::Nothing => FIRST_HAS_ENDED.load(Ordering::Relaxed),
                    };
                    if heeded {
                        requests += 1;
                        self.leaving |= !forwards;
                        if self.leaving && is_second_request(&mut self.told_at) {
                            bail!(restless(pid));
                        }
                        enough.as_mut().reset(tokio::time::Instant::now() + STUB_TIMEOUT);
                    }
                }
                answer = &mut exchange => return Ok(answer?),
                _ = self.exit.wait() => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                () = &mut enough, if self.leaving || requests > 1 => bail!(silent(pid)),
            }
        }
    }

    pub(super) async fn breakpoint(&mut self, what: u8, addr: u64) -> Result<()> {
        let reply = self
            .request(format!("{}0,{addr:x},1", what as char).as_bytes())
            .await?;
        match reply.as_slice() {
            b"OK" => Ok(()),
            [b'E', b'.', why @ ..] => bail!("{}", String::from_utf8_lossy(why)),
            other => bail!("the stub answered `{}`", String::from_utf8_lossy(other)),
        }
    }

    /// A register of the selected thread, by GDB's number.
    pub(super) async fn register(&mut self, number: u32) -> Result<Option<u64>> {
        let reply = self.request(format!("p{number:x}").as_bytes()).await?;
        let bytes = ulpf_rsp::from_hex(&reply).and_then(|b| <[u8; 8]>::try_from(b).ok());
        Ok(bytes.map(u64::from_le_bytes))
    }

    pub async fn memory(&mut self) -> Result<ProcessMemory> {
        // fs_base is 58 in the stub's target description.
        let thread_pointer = self.register(58).await?.filter(|p| *p != 0);
        Ok(ProcessMemory::of(self.pid, thread_pointer)?)
    }

    /// Disarms and arms watches; returns the outcome for each watch to be armed.
    pub async fn change(&mut self, changes: &Changes) -> Result<Vec<(usize, Armed)>> {
        let disarm = changes.disarm.iter().map(|id| Command::Unwatch(*id));
        let disarm: Vec<Command> = disarm.collect();
        self.monitor(&disarm).await?;
        self.monitor(&changes.filter).await?;
        if let Some(functions) = &changes.functions {
            let (first, rest) = functions.split_at(functions.len().min(AT_ONCE));
            for some in std::iter::once(first).chain(rest.chunks(AT_ONCE)) {
                let command = Command::HeapFunctions(some.to_vec());
                self.heap_command(&command).await?;
            }
        }
        let arms: Vec<&Arm> = changes.arm.iter().map(|(_, arm)| arm).collect();
        let mut armed = Vec::with_capacity(arms.len());
        for (command, count) in arm::commands(&arms) {
            let answer = self.ask(&command).await?;
            let before = armed.len();
            for line in answer.lines().filter(|l| !l.trim().is_empty()) {
                outcomes(line, before + count, &mut armed)
                    .with_context(|| format!("the stub answered `{line}`"))?;
            }
            let answered = armed.len() - before;
            ensure!(
                answered == count,
                "the stub answered {answered} of {count} watches: {answer}"
            );
        }
        let numbers = changes.arm.iter().map(|(number, _)| *number);
        let mut places: Vec<(usize, Vec<Armed>)> = Vec::new();
        for (number, place) in numbers.zip(armed) {
            match places.last_mut() {
                Some((last, all)) if *last == number => all.push(place),
                _ => places.push((number, vec![place])),
            }
        }
        let (mut outcomes, mut back) = (Vec::new(), Vec::new());
        for (number, places) in places {
            let (armed, some) = Armed::together(places);
            outcomes.push((number, armed));
            back.extend(some.into_iter().map(Command::Unwatch));
        }
        self.monitor(&back).await?;
        self.frames_changed(changes, &outcomes).await?;
        Ok(outcomes)
    }

    /// Starts the check of the program's heap.
    pub async fn check_heap(&mut self, how: &HeapCheck) -> Result<()> {
        self.heap_command(&Command::HeapCheck(*how)).await
    }

    /// From now on the last writers of heap and data are recorded.
    pub async fn record_writers(&mut self) -> Result<()> {
        self.order(&Command::LastWriters, Reply::LastWriters).await
    }

    async fn heap_command(&mut self, command: &Command) -> Result<()> {
        self.order(command, Reply::HeapChecked).await
    }

    /// Sends a command that is answered with `done`.
    async fn order(&mut self, command: &Command, done: Reply) -> Result<()> {
        let answer = self.command(command).await?;
        let answer = answer.trim();
        match serde_json::from_str(answer) {
            Ok(reply) if reply == done => Ok(()),
            Ok(Reply::Refused(r)) => bail!("{}: {}; {}", r.what, r.why, r.what_to_do),
            _ => bail!("the stub answered `{answer}`"),
        }
    }

    /// How watches are served, and the reason, in a sentence.
    pub async fn backend(&mut self) -> Result<String> {
        let answer = self.ask(&Command::Backend.to_string()).await?;
        let answer = answer.trim();
        if let Ok(Reply::Refused(refused)) = serde_json::from_str(answer) {
            return Ok(format!("{}: {}", refused.what, refused.why));
        }
        let backend: Backend = serde_json::from_str(answer)
            .with_context(|| format!("the stub answered `{answer}`"))?;
        Ok(format!("backend {}: {}", backend.backend, backend.why))
    }

    async fn ask(&mut self, command: &str) -> Result<String> {
        let answer = self.text(command).await;
        answer.context("cannot set the watches")
    }

    /// Sends commands, many at a time; returns one line of answer for each, in order.
    pub(super) async fn monitor(&mut self, commands: &[Command]) -> Result<Vec<String>> {
        let mut lines = Vec::with_capacity(commands.len());
        let commands: Vec<String> = commands.iter().map(Command::to_string).collect();
        let mut rest = &commands[..];
        while !rest.is_empty() {
            let mut batch = String::new();
            let mut taken = 0;
            while taken < rest.len() && (taken == 0 || batch.len() + rest[taken].len() < BATCH) {
                batch.push_str(&rest[taken]);
                batch.push(';');
                taken += 1;
            }
            rest = &rest[taken..];
            let answer = self.ask(&batch).await?;
            let before = lines.len();
            lines.extend(
                answer
                    .lines()
                    .filter(|l| !l.trim().is_empty())
                    .map(str::to_string),
            );
            if lines.len() - before != taken {
                bail!(
                    "the stub answered {} of {taken} watches: {answer}",
                    lines.len() - before
                );
            }
        }
        Ok(lines)
    }
}
