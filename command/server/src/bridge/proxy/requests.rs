//! The bridge's requests as packets of the remote protocol.
#![forbid(unsafe_code)]

use super::remote::{Answer, refuse};
use super::stops::registers;
use super::{Flavour, Proxy};
use crate::bridge::packets;
use tokio::io::{AsyncRead, AsyncWrite};
use ulpf_bridge::{Armed, Bytes, How, Kind, Refusal, Reply, Request, WatchSpec};
use ulpf_lib::WatchKind;

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Proxy<R, W> {
    pub(super) async fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Threads => self.threads().await,
            Request::Registers { thread } => {
                self.choose(thread).await?;
                let mut data = self.registers.clone();
                data.truncate(if data.len() >= packets::REGISTERS {
                    packets::REGISTERS
                } else {
                    164
                });
                Ok(Reply::Data { data: Bytes(data) })
            }
            Request::SetRegisters { thread, registers } => {
                self.choose(thread).await?;
                let n = registers.0.len().min(self.registers.len());
                self.registers[..n].copy_from_slice(&registers.0[..n]);
                self.remote
                    .done(format!("G{}", ulpf_rsp::to_hex(&self.registers)))
                    .await
            }
            Request::Read { addr, len } => {
                let reply = self.remote.fine(format!("m{addr:x},{len:x}")).await?;
                let data =
                    ulpf_rsp::from_hex(&reply).ok_or_else(|| refuse("its answer is no memory"))?;
                Ok(Reply::Data { data: Bytes(data) })
            }
            Request::Write { addr, data } => {
                self.remote
                    .done(format!(
                        "M{addr:x},{:x}:{}",
                        data.0.len(),
                        ulpf_rsp::to_hex(&data.0)
                    ))
                    .await
            }
            Request::Breakpoints { insert, remove } => {
                for addr in remove {
                    self.remote.done(format!("z0,{addr:x},1")).await?;
                }
                for addr in insert {
                    self.remote.done(format!("Z0,{addr:x},1")).await?;
                }
                Ok(Reply::Done)
            }
            Request::Watch { watches } => {
                let mut all = vec![];
                for spec in watches {
                    all.push(match self.watch(&spec).await {
                        Ok(id) => Armed::Id(id),
                        Err(why) => Armed::Refused(why),
                    });
                }
                Ok(Reply::Watched { watches: all })
            }
            Request::Unwatch { ids } => {
                for id in ids {
                    self.unwatch(id).await?;
                }
                Ok(Reply::Done)
            }
            Request::Resume {
                how,
                thread,
                signal,
                alone,
            } => {
                let step = how == How::Step;
                let mut letter = match (step, signal) {
                    (false, 0) => "c".into(),
                    (true, 0) => "s".into(),
                    (_, n) => {
                        let gdb = ulpf_host::signals::to_gdb(i32::from(n));
                        format!("{}{gdb:02x}", if step { 'S' } else { 'C' })
                    }
                };
                // gem5 does not support vCont.
                if let (Flavour::Packets, Some(thread)) = (self.flavour, thread) {
                    let others = if alone { "" } else { ";c" };
                    letter = format!("vCont;{letter}:{thread:x}{others}");
                }
                self.remote.send(letter.as_bytes()).await?;
                self.running = true;
                Ok(Reply::Done)
            }
            Request::Statistics => {
                let text = self.remote.monitor("ulpf stats").await?;
                // `name value` lines.
                let line = |l: &str| {
                    let (name, value) = l.trim().rsplit_once(' ')?;
                    Some((name.trim().replace(' ', "_"), value.parse().ok()?))
                };
                let counters = text.lines().filter_map(line).collect();
                Ok(Reply::Statistics { counters, text })
            }
            Request::Monitor { command } => {
                let text = self.remote.monitor(&command).await?;
                Ok(Reply::Text { text })
            }
            Request::Auxv => {
                let reply = self.remote.fine("qXfer:auxv:read::0,1000".into()).await?;
                let data = reply.strip_prefix(b"l").map(ulpf_rsp::unescape);
                let data = data.ok_or_else(|| refuse("it has no auxiliary vector"))?;
                Ok(Reply::Data { data: Bytes(data) })
            }
            request => Err(refuse(format!("it has no `{}`", request.name()))),
        }
    }

    async fn threads(&mut self) -> Answer {
        let mut threads = vec![];
        let mut packet: &[u8] = b"qfThreadInfo";
        loop {
            let reply = self.remote.ask(packet).await?;
            let Some(list) = reply.strip_prefix(b"m") else {
                break;
            };
            threads.extend(list.split(|&b| b == b',').filter_map(ulpf_rsp::hex_number));
            packet = b"qsThreadInfo";
        }
        Ok(Reply::Threads { threads })
    }

    /// Loads the registers of this thread into `registers`.
    async fn choose(&mut self, thread: u64) -> Result<(), Refusal> {
        if thread != self.stop.thread || self.registers.is_empty() {
            self.remote.done(format!("Hg{thread:x}")).await?;
            let reply = self.remote.fine("g".into()).await?;
            self.registers = registers(&reply);
            self.stop.thread = thread;
        }
        Ok(())
    }

    async fn watch(&mut self, w: &WatchSpec) -> Result<u64, Refusal> {
        match self.flavour {
            Flavour::Packets => self
                .remote
                .done(format!("Z{},{:x},{:x}", number(w.kind), w.addr, w.len))
                .await
                .map(|_| ())?,
            Flavour::Gem5 => {
                let said = self
                    .remote
                    .monitor(&format!(
                        "ulpf watch {:#x} {} {}",
                        w.addr,
                        w.len,
                        word(w.kind)
                    ))
                    .await?;
                if !said.starts_with("ok") {
                    return Err(refuse(said.trim()));
                }
            }
        }
        self.next += 1;
        self.watches.insert(self.next, w.clone());
        Ok(self.next)
    }

    async fn unwatch(&mut self, id: u64) -> Result<(), Refusal> {
        let Some(w) = self.watches.remove(&id) else {
            return Err(refuse(format!("there is no watch {id}")));
        };
        match self.flavour {
            Flavour::Packets => self
                .remote
                .done(format!("z{},{:x},{:x}", number(w.kind), w.addr, w.len))
                .await
                .map(|_| ()),
            Flavour::Gem5 => self
                .remote
                .monitor(&format!(
                    "ulpf unwatch {:#x} {} {}",
                    w.addr,
                    w.len,
                    word(w.kind)
                ))
                .await
                .map(|_| ()),
        }
    }
}

fn number(kind: Kind) -> u8 {
    match kind {
        Kind::Write => 2,
        Kind::Read => 3,
        Kind::Access => 4,
    }
}

/// The kind as a word of gem5's script, whose `unwatch` also takes address, length and kind.
fn word(kind: Kind) -> &'static str {
    WatchKind::from(kind).word()
}
