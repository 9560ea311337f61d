//! A remote port (`ulpf server`'s, gem5's) as a back end of the bridge: each request becomes packets of
//! the remote protocol. `ulpf bridge` offers one to whoever connects; for gem5 it runs in this process.
//!
//! ```text
//!   front end ⇄ JSON lines ⇄ Proxy ⇄ remote protocol, with acknowledgements ⇄ remote port
//! ```
//! gem5 knows no `Z2`: there a watch is `monitor ulpf watch …`, which our configuration script answers.
#![forbid(unsafe_code)]

use super::packets;
use crate::rsp::{self, Decoder, Event};
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Child;
use tokio::time::timeout;
use ulpf_bridge::{
    Armed, Ask, Bytes, Capabilities, Feature, Hit, How, Kind, Lines, Reason, Refusal, Reply,
    Request, Said, State, Stop, VERSION, WatchSpec, agree,
};

/// For a packet's answer. Simulators are slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// How watches are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavour {
    /// `Z2` to `Z4`.
    Packets,
    /// `monitor ulpf watch ADDR LEN KIND`.
    Gem5,
}

pub struct Proxy<R, W> {
    reader: R,
    writer: W,
    decoder: Decoder,
    queue: VecDeque<Vec<u8>>,
    flavour: Flavour,
    name: String,
    program: String,
    /// The process behind the port, if we have started it.
    child: Option<Child>,
    running: bool,
    stop: Stop,
    /// The whole `g` packet of this stop.
    registers: Vec<u8>,
    watches: BTreeMap<u64, WatchSpec>,
    next: u64,
    hits: u64,
}

type Answer = Result<Reply, Refusal>;

fn refuse(why: impl Into<String>) -> Refusal {
    Refusal::new("The remote port refuses this", why, "")
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Proxy<R, W> {
    /// Asks the remote port where its program is. The error is for the user.
    pub async fn new(
        reader: R,
        writer: W,
        flavour: Flavour,
        name: String,
        program: String,
        child: Option<Child>,
    ) -> Result<Proxy<R, W>, String> {
        let stop = Stop {
            thread: 1,
            pc: 0,
            reason: Reason::Attached,
        };
        let mut proxy = Proxy {
            reader,
            writer,
            decoder: Decoder::default(),
            queue: VecDeque::new(),
            flavour,
            name,
            program,
            child,
            running: false,
            stop,
            registers: vec![],
            watches: BTreeMap::new(),
            next: 0,
            hits: 0,
        };
        let told = |r: Refusal| r.to_string();
        let _ = proxy
            .ask(b"qSupported:swbreak+;hwbreak+")
            .await
            .map_err(told)?;
        let stop = proxy.ask(b"?").await.map_err(told)?;
        proxy.stopped(&stop).await;
        if proxy.registers.len() < 164 {
            return Err("The remote port has no registers of an x86-64 processor.".into());
        }
        if !proxy.stop.reason.is_end() {
            proxy.stop.reason = Reason::Attached;
        }
        Ok(proxy)
    }

    /// Serves one front end, until it goes. `Err`: the remote port has gone.
    pub async fn serve(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), String> {
        let (mut lines, mut buf) = (Lines::default(), vec![0; 1 << 16]);
        loop {
            tokio::select! {
                n = reader.read(&mut buf) => match n {
                    Ok(n @ 1..) => lines.feed(&buf[..n]),
                    _ => {
                        if self.running {
                            let _ = self.writer.write_all(&[rsp::INTERRUPT]).await;
                        }
                        return Ok(());
                    }
                },
                packet = next(&mut self.reader, &mut self.writer, &mut self.decoder, &mut self.queue), if self.running => {
                    let said = match packet {
                        Ok(packet) if is_output(&packet) => Said::Message(text_of(&packet)),
                        Ok(packet) => {
                            self.stopped(&packet).await;
                            Said::Stopped(self.stop.clone())
                        }
                        Err(why) => {
                            self.ended(&why).await;
                            Said::Stopped(self.stop.clone())
                        }
                    };
                    let _ = writer.write_all(&said.line()).await;
                }
            }
            loop {
                let said = match lines.take() {
                    Ok(None) => break,
                    Ok(Some(text)) => self.line(&text).await,
                    Err(bad) => {
                        let answer = Err(Refusal::new("This is no request", bad.to_string(), ""));
                        let _ = writer
                            .write_all(&Said::Answer { id: 0, answer }.line())
                            .await;
                        if bad == ulpf_bridge::Bad::TooLong {
                            return Ok(());
                        }
                        continue;
                    }
                };
                let killed = matches!(
                    &said,
                    (
                        Said::Answer {
                            answer: Ok(Reply::Done),
                            ..
                        },
                        true
                    )
                );
                if writer.write_all(&said.0.line()).await.is_err() {
                    return Ok(());
                }
                if killed {
                    self.stop.reason = Reason::Killed {
                        number: 9,
                        why: "the debugger killed it".into(),
                    };
                    let _ = writer
                        .write_all(&Said::Stopped(self.stop.clone()).line())
                        .await;
                    return Err("its program was killed".into());
                }
            }
        }
    }

    /// The answer, and whether it was the last one.
    async fn line(&mut self, text: &str) -> (Said, bool) {
        let Ask { id, request } = match Ask::parse(text) {
            Ok(ask) => ask,
            Err((id, why)) => {
                let answer = Err(Refusal::new(
                    "This is no request",
                    why,
                    "docs/bridge.md has them all.",
                ));
                return (
                    Said::Answer {
                        id: id.unwrap_or(0),
                        answer,
                    },
                    false,
                );
            }
        };
        let kill = request == Request::Kill;
        let answer = match request {
            Request::Status if self.running => Ok(Reply::Status(State::Running)),
            Request::Hello { versions, .. } => self.hello(versions),
            Request::Interrupt => {
                if self.running {
                    let _ = self.writer.write_all(&[rsp::INTERRUPT]).await;
                }
                Ok(Reply::Done)
            }
            Request::Kill => {
                let _ = self.writer.write_all(&rsp::frame(b"k")).await;
                if let Some(child) = &mut self.child {
                    let _ = child.kill().await;
                }
                Ok(Reply::Done)
            }
            _ if self.running => Err(Refusal::new(
                "Not now",
                "the program runs",
                "Interrupt it first.",
            )),
            Request::Status => Ok(Reply::Status(State::Stopped {
                stop: self.stop.clone(),
            })),
            _ if self.stop.reason.is_end() => Err(Refusal::new(
                "There is no program any more",
                "it has ended",
                "Start it again.",
            )),
            request => self.answer(request).await,
        };
        (Said::Answer { id, answer }, kill)
    }

    fn hello(&self, versions: [u32; 2]) -> Answer {
        if agree(versions).is_none() {
            return Err(Refusal::new(
                format!(
                    "There is no version of the bridge that both sides speak: {versions:?} and {VERSION}"
                ),
                "they are of different times",
                "Build both from the same source.",
            ));
        }
        let full = self.registers.len() >= packets::REGISTERS;
        let mut features = vec![
            Feature::Breakpoints,
            Feature::Step,
            Feature::Interrupt,
            Feature::SetRegisters,
            Feature::Monitor,
        ];
        if self.flavour == Flavour::Packets {
            features.push(Feature::Auxv);
        } else {
            features.push(Feature::Statistics);
        }
        Ok(Reply::Hello {
            version: VERSION,
            backend: if self.flavour == Flavour::Gem5 {
                "gem5"
            } else {
                "rsp"
            }
            .into(),
            name: self.name.clone(),
            session: format!("{:x}", std::process::id()),
            program: self.program.clone(),
            capabilities: Capabilities {
                registers: if full { "amd64-linux" } else { "amd64-core" }.into(),
                watches: vec![Kind::Write, Kind::Read, Kind::Access],
                most_watches: None,
                features,
            },
        })
    }

    async fn answer(&mut self, request: Request) -> Answer {
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
                self.done(format!("G{}", rsp::to_hex(&self.registers)))
                    .await
            }
            Request::Read { addr, len } => {
                let reply = self.fine(format!("m{addr:x},{len:x}")).await?;
                let data =
                    rsp::from_hex(&reply).ok_or_else(|| refuse("its answer is no memory"))?;
                Ok(Reply::Data { data: Bytes(data) })
            }
            Request::Write { addr, data } => {
                self.done(format!(
                    "M{addr:x},{:x}:{}",
                    data.0.len(),
                    rsp::to_hex(&data.0)
                ))
                .await
            }
            Request::Breakpoints { insert, remove } => {
                for addr in remove {
                    self.done(format!("z0,{addr:x},1")).await?;
                }
                for addr in insert {
                    self.done(format!("Z0,{addr:x},1")).await?;
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
            Request::Resume { how, signal, .. } => {
                let letter = match (&how, signal) {
                    (How::Continue, 0) => "c".into(),
                    (How::Step, 0) => "s".into(),
                    (how, n) => {
                        let gdb = crate::signals::to_gdb(i32::from(n));
                        let letter = if *how == How::Step { 'S' } else { 'C' };
                        format!("{letter}{gdb:02x}")
                    }
                };
                self.send(letter.as_bytes()).await?;
                self.running = true;
                Ok(Reply::Done)
            }
            Request::Statistics => {
                let text = self.monitor("ulpf stats").await?;
                // `name value` lines.
                let line = |l: &str| {
                    let (name, value) = l.trim().rsplit_once(' ')?;
                    Some((name.trim().replace(' ', "_"), value.parse().ok()?))
                };
                let counters = text.lines().filter_map(line).collect();
                Ok(Reply::Statistics { counters, text })
            }
            Request::Monitor { command } => {
                let text = self.monitor(&command).await?;
                Ok(Reply::Text { text })
            }
            Request::Auxv => {
                let reply = self.fine("qXfer:auxv:read::0,1000".into()).await?;
                let data = reply.strip_prefix(b"l").map(rsp::unescape);
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
            let reply = self.ask(packet).await?;
            let Some(list) = reply.strip_prefix(b"m") else {
                break;
            };
            threads.extend(list.split(|&b| b == b',').filter_map(rsp::hex_number));
            packet = b"qsThreadInfo";
        }
        Ok(Reply::Threads { threads })
    }

    /// Makes `registers` those of this thread.
    async fn choose(&mut self, thread: u64) -> Result<(), Refusal> {
        if thread != self.stop.thread || self.registers.is_empty() {
            self.done(format!("Hg{thread:x}")).await?;
            let reply = self.fine("g".into()).await?;
            self.registers = registers(&reply);
            self.stop.thread = thread;
        }
        Ok(())
    }

    async fn watch(&mut self, w: &WatchSpec) -> Result<u64, Refusal> {
        match self.flavour {
            Flavour::Packets => self
                .done(format!("Z{},{:x},{:x}", number(w.kind), w.addr, w.len))
                .await
                .map(|_| ())?,
            Flavour::Gem5 => {
                let said = self
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
                .done(format!("z{},{:x},{:x}", number(w.kind), w.addr, w.len))
                .await
                .map(|_| ()),
            Flavour::Gem5 => self
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

    async fn send(&mut self, packet: &[u8]) -> Result<(), Refusal> {
        let sent = self.writer.write_all(&rsp::frame(packet)).await;
        sent.map_err(|e| refuse(format!("it cannot be written to: {e}")))
    }

    async fn packet(&mut self) -> Result<Vec<u8>, Refusal> {
        let next = next(
            &mut self.reader,
            &mut self.writer,
            &mut self.decoder,
            &mut self.queue,
        );
        match timeout(PATIENCE, next).await {
            Ok(packet) => packet.map_err(refuse),
            Err(_) => Err(refuse(format!(
                "it has not answered for {} s",
                PATIENCE.as_secs()
            ))),
        }
    }

    /// A packet and its reply.
    async fn ask(&mut self, packet: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.send(packet).await?;
        loop {
            let reply = self.packet().await?;
            if !is_output(&reply) {
                return Ok(reply);
            }
        }
    }

    /// One that is no error.
    async fn fine(&mut self, packet: String) -> Result<Vec<u8>, Refusal> {
        let reply = self.ask(packet.as_bytes()).await?;
        match &reply[..] {
            [] => Err(refuse("it does not know such packets")),
            [b'E', b'.', why @ ..] => Err(refuse(String::from_utf8_lossy(why))),
            [b'E', _, _] => Err(refuse(String::from_utf8_lossy(&reply))),
            _ => Ok(reply),
        }
    }

    async fn done(&mut self, packet: String) -> Answer {
        self.fine(packet).await.map(|_| Reply::Done)
    }

    async fn monitor(&mut self, command: &str) -> Result<String, Refusal> {
        let packet = format!("qRcmd,{}", rsp::to_hex(command.as_bytes()));
        self.send(packet.as_bytes()).await?;
        let mut text = String::new();
        loop {
            let reply = self.packet().await?;
            match &reply[..] {
                b"OK" => return Ok(text),
                [] => return Err(refuse("it has no monitor commands")),
                [b'E', ..] => return Err(refuse(String::from_utf8_lossy(&reply))),
                _ if is_output(&reply) => text += &text_of(&reply),
                hex => {
                    return Ok(
                        text + &String::from_utf8_lossy(&rsp::from_hex(hex).unwrap_or_default())
                    );
                }
            }
        }
    }

    /// The port has closed. A simulator ends with its program.
    async fn ended(&mut self, why: &str) {
        self.running = false;
        let status = match &mut self.child {
            Some(child) => timeout(PATIENCE, child.wait())
                .await
                .ok()
                .and_then(Result::ok),
            None => None,
        };
        self.stop.reason = match status {
            Some(s) if s.code().is_some() => Reason::Exited {
                status: s.code().unwrap_or_default(),
            },
            // The script ends so when the program does; what gem5 itself dies of is SIGABRT.
            Some(s) if s.signal() == Some(libc::SIGSEGV) => Reason::Killed {
                number: libc::SIGSEGV as u8,
                why: String::new(),
            },
            Some(s) => Reason::Failed {
                why: format!("{} has ended ({s})", self.name),
            },
            None => Reason::Failed { why: why.into() },
        };
        self.stop.pc = 0;
    }

    async fn stopped(&mut self, packet: &[u8]) {
        self.running = false;
        let reply = String::from_utf8_lossy(packet).into_owned();
        let number = |text: &str| u8::from_str_radix(text.get(..2).unwrap_or(""), 16).unwrap_or(0);
        let code = number(reply.get(1..).unwrap_or(""));
        let linux = (1..=64)
            .find(|&n| crate::signals::to_gdb(n) == i32::from(code))
            .unwrap_or(5) as u8;
        match reply.chars().next() {
            Some('W') => {
                self.stop.reason = Reason::Exited {
                    status: i32::from(code),
                };
                return;
            }
            Some('X') => {
                self.stop.reason = Reason::Killed {
                    number: linux,
                    why: String::new(),
                };
                return;
            }
            _ => {}
        }
        let fields = || {
            reply
                .get(3..)
                .unwrap_or("")
                .split(';')
                .filter_map(|f| f.split_once(':'))
        };
        let field = |name: &str| fields().find(|f| f.0 == name).map(|f| f.1);
        let hex = |text: &str| rsp::hex_number(text.as_bytes());
        self.stop.thread = field("thread").and_then(hex).unwrap_or(self.stop.thread);
        self.registers = self
            .ask(b"g")
            .await
            .map(|r| registers(&r))
            .unwrap_or_default();
        let pc = self.registers.get(128..136).and_then(|b| b.try_into().ok());
        self.stop.pc = pc.map_or(0, u64::from_le_bytes);
        let watch = ["watch", "rwatch", "awatch"]
            .into_iter()
            .find_map(|n| Some((n, hex(field(n)?)?)));
        self.stop.reason = match watch {
            Some((name, addr)) => self.hit(name, addr),
            None if field("swbreak").is_some() || field("hwbreak").is_some() => Reason::Breakpoint,
            None => match linux {
                2 => Reason::Interrupted,
                // What gem5 says of an interrupt; programs there end with SIGILL, they do not stop.
                4 if self.flavour == Flavour::Gem5 => Reason::Interrupted,
                5 => Reason::Step,
                number => Reason::Signal {
                    number,
                    why: String::new(),
                },
            },
        };
    }

    /// What the port says of a hit is the address.
    fn hit(&mut self, name: &str, addr: u64) -> Reason {
        let kind = match name {
            "watch" => Kind::Write,
            "rwatch" => Kind::Read,
            _ => Kind::Access,
        };
        let of = |w: &WatchSpec| w.kind == kind && addr.wrapping_sub(w.addr) < w.len;
        let watch = self.watches.iter().find(|w| of(w.1)).map_or(0, |w| *w.0);
        self.hits += 1;
        Reason::Watch {
            kind,
            hit: Hit {
                sequence: self.hits,
                watch,
                pc: self.stop.pc,
                thread: self.stop.thread,
                write: kind == Kind::Write,
                addr,
                len: 1,
                old: Bytes::default(),
                new: Bytes::default(),
                system_call: false,
            },
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

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Write => "w",
        Kind::Read => "r",
        Kind::Access => "rw",
    }
}

/// What is unavailable is zero.
fn registers(reply: &[u8]) -> Vec<u8> {
    reply
        .chunks(2)
        .map(|digits| rsp::from_hex(digits).map_or(0, |b| b[0]))
        .collect()
}

fn is_output(packet: &[u8]) -> bool {
    crate::server::target::is_output(packet)
}

fn text_of(packet: &[u8]) -> String {
    String::from_utf8_lossy(&rsp::from_hex(&packet[1..]).unwrap_or_default()).into_owned()
}

/// The next packet, acknowledged, runs expanded. Safe to cancel.
async fn next(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    decoder: &mut Decoder,
    queue: &mut VecDeque<Vec<u8>>,
) -> Result<Vec<u8>, String> {
    loop {
        if let Some(packet) = queue.pop_front() {
            return Ok(packet);
        }
        let mut buf = [0; 4096];
        let n = match reader.read(&mut buf).await {
            Ok(0) => return Err("the remote port has closed the connection".into()),
            Ok(n) => n,
            Err(e) => return Err(format!("the remote port cannot be read from: {e}")),
        };
        let mut acks = vec![];
        decoder.feed(&buf[..n], |e| match e {
            Event::Packet(p) => {
                acks.push(b'+');
                queue.push_back(rsp::expand_runs(&p).unwrap_or(p));
            }
            Event::BadChecksum { .. } => acks.push(b'-'),
            _ => {}
        });
        // An error shows at the next read.
        let _ = writer.write_all(&acks).await;
    }
}
