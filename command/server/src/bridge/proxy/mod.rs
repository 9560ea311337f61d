//! A remote port (of `ulpf server` or gem5) as a back end of the bridge: each request becomes packets of the remote
//! protocol. `ulpf bridge` offers it to other machines; for gem5 it runs in this process.
//!
//! ```text
//!   front end ⇄ JSON lines ⇄ Proxy ⇄ remote protocol, with acknowledgements ⇄ remote port
//! ```
//! gem5 does not support `Z2`: a watch is set there by `monitor ulpf watch …`, which our configuration script answers.
#![forbid(unsafe_code)]

mod looks;
mod remote;
mod requests;
mod stops;

use super::packets;
use crate::packets::is_output;
use looks::Looks;
use remote::{Answer, Remote, refuse, text_of};
use std::collections::BTreeMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Child;
use ulpf_bridge::{
    Ask, Capabilities, Feature, Kind, Lines, Reason, Refusal, Reply, Request, Said, State, Stop,
    VERSION, WatchSpec, agree,
};
use ulpf_lib::command::{self, Command};

/// How watches are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavour {
    /// `Z2` to `Z4`.
    Packets,
    /// `monitor ulpf watch ADDR LEN KIND`.
    Gem5,
}

/// A remote port, as a back end of the bridge.
pub struct Proxy<R, W> {
    remote: Remote<R, W>,
    flavour: Flavour,
    name: String,
    /// A unique session name. It stays unique when this machine restarts.
    session: String,
    program: String,
    /// The process behind the port, if the proxy has started it.
    child: Option<Child>,
    running: bool,
    stop: Stop,
    /// The whole `g` packet of this stop.
    registers: Vec<u8>,
    watches: BTreeMap<u64, WatchSpec>,
    next: u64,
    hits: u64,
    /// The shared area of our own stub behind the port, if it is on this machine.
    looks: Option<Looks>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Proxy<R, W> {
    /// Queries the remote port for its program. The error is text for the user.
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
            remote: Remote::new(reader, writer),
            flavour,
            name,
            session: session(),
            program,
            child,
            running: false,
            stop,
            registers: vec![],
            watches: BTreeMap::new(),
            next: 0,
            hits: 0,
            looks: None,
        };
        let told = |r: Refusal| r.to_string();
        let greeting = b"qSupported:swbreak+;hwbreak+";
        let _ = proxy.remote.ask(greeting).await.map_err(told)?;
        let stop = proxy.remote.ask(b"?").await.map_err(told)?;
        proxy.stopped(&stop).await;
        if proxy.registers.len() < 164 {
            return Err("The remote port has no registers of an x86-64 processor.".into());
        }
        if !proxy.stop.reason.is_end() {
            proxy.stop.reason = Reason::Attached;
            proxy.look_for_the_stub().await;
        }
        Ok(proxy)
    }

    /// Whether the program has ended.
    pub fn is_over(&self) -> bool {
        self.stop.reason.is_end()
    }

    /// Serves one front end until it disconnects. Returns `Err` if the remote port has gone.
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
                            self.remote.say(&[ulpf_rsp::INTERRUPT]).await;
                        }
                        return Ok(());
                    }
                },
                packet = self.remote.next(), if self.running => {
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
                    self.remote.say(&[ulpf_rsp::INTERRUPT]).await;
                }
                Ok(Reply::Done)
            }
            // The shared area can be read in any state of the program.
            Request::List if self.looks.is_some() => self.looks(Looks::list),
            Request::Hits { since, most } if self.looks.is_some() => {
                self.looks(|looks| looks.hits(since, most))
            }
            Request::Kill => {
                self.remote.say(&ulpf_rsp::frame(b"k")).await;
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

    /// Opens the shared area if the stub is our own and on this machine.
    async fn look_for_the_stub(&mut self) {
        let Ok(about) = self.remote.monitor(&Command::About.to_string()).await else {
            return;
        };
        if let Ok(command::Reply::About { pid, .. }) = serde_json::from_str(about.trim()) {
            self.looks = Looks::of(pid);
        }
    }

    /// Reads the shared area. Fails if there is no stub of ulpf on this machine.
    fn looks(&mut self, what: impl FnOnce(&mut Looks) -> Reply) -> Answer {
        match &mut self.looks {
            Some(looks) => Ok(what(looks)),
            None => Err(refuse("it has no stub of ulpf's on this machine")),
        }
    }

    fn hello(&self, versions: [u32; 2]) -> Answer {
        let Some(version) = agree(versions) else {
            return Err(Refusal::new(
                format!(
                    "There is no version of the bridge that both sides speak: {versions:?} and {VERSION}"
                ),
                "they are of different times",
                "Build both from the same source.",
            ));
        };
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
            if self.looks.is_some() {
                features.extend([Feature::List, Feature::Hits, Feature::Live]);
            }
        } else {
            features.push(Feature::Statistics);
        }
        Ok(Reply::Hello {
            version,
            backend: if self.flavour == Flavour::Gem5 {
                "gem5"
            } else {
                "rsp"
            }
            .into(),
            name: self.name.clone(),
            session: self.session.clone(),
            program: self.program.clone(),
            capabilities: Capabilities {
                registers: if full { "amd64-linux" } else { "amd64-core" }.into(),
                watches: vec![Kind::Write, Kind::Read, Kind::Access],
                most_watches: None,
                features,
            },
        })
    }
}

fn session() -> String {
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{:x}-{}", std::process::id(), random.trim())
}
