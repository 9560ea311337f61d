//! A remote stub without a program, for unit tests and fuzz targets: it answers from a script, and after that fittingly.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use ulpf_rsp::reports::{ABOUT, About, Ask, Counts, Hits, Role, Totals};
use ulpf_rsp::{Decoder, Event};

/// Bytes of an x86-64 processor's core registers.
const CORE: usize = 164;

pub struct Fake {
    /// Replies in place of its own, to the packets after the greeting.
    script: VecDeque<Vec<u8>>,
    greeted: bool,
    role: Role,
    watches: u32,
    /// Waits so long before each reply.
    delay: Duration,
}

impl Fake {
    /// Its first replies after the greeting; an empty one leaves the packet unanswered.
    pub fn new(script: Vec<Vec<u8>>) -> Fake {
        Fake {
            script: script.into(),
            greeted: false,
            role: Role::Watches,
            watches: 0,
            delay: Duration::ZERO,
        }
    }

    /// Serves one client until it disconnects.
    pub async fn serve(mut self, mut stream: DuplexStream) {
        let (mut decoder, mut buffer) = (Decoder::default(), [0; 4096]);
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            let mut packets = vec![];
            decoder.feed(&buffer[..n], |e| {
                if let Event::Packet(packet) = e {
                    packets.push(packet);
                }
            });
            for packet in packets {
                tokio::time::sleep(self.delay).await;
                let says = match self.greeted.then(|| self.script.pop_front()).flatten() {
                    Some(reply) if reply.is_empty() => continue,
                    Some(reply) if reply == b"EOF" => return,
                    // As it is, so that a frame may be wrong, too.
                    Some(reply) if reply.starts_with(b"raw:") => reply[4..].into(),
                    Some(reply) => ulpf_rsp::frame(&reply),
                    None => ulpf_rsp::frame(&self.reply(&packet)),
                };
                // The last packet of the greeting.
                self.greeted |= packet.starts_with(b"qXfer:exec-file:");
                if stream.write_all(&says).await.is_err() {
                    return;
                }
            }
        }
    }

    fn reply(&mut self, packet: &[u8]) -> Vec<u8> {
        if packet == ABOUT {
            let (kind, name) = ("fake".into(), "a fake".into());
            let role = self.role;
            return About { role, kind, name }.reply().into();
        }
        match Ask::parse(packet) {
            Some(Ask::Counts(from)) => {
                return Counts::reply(from, &Totals::default(), []).into();
            }
            Some(Ask::Hits { since, .. }) => {
                let none = Hits {
                    since,
                    ..Hits::default()
                };
                return Hits::reply(&none, []).into();
            }
            Some(Ask::About) | None => {}
        }
        match packet {
            b"QStartNoAckMode" => b"OK".into(),
            b"?" => b"T05thread:1;".into(),
            b"g" => "00".repeat(CORE).into(),
            b"qfThreadInfo" => b"m1".into(),
            b"qsThreadInfo" => b"l".into(),
            [b'm', ..] => b"00000000".into(),
            [b'c' | b's' | b'C' | b'S', ..] => b"T05thread:1;".into(),
            _ if packet.starts_with(b"vCont;") => b"T05thread:1;".into(),
            _ if packet.starts_with(b"qRcmd,") => {
                self.watches += 1;
                let text = format!("{{\"watch\":{}}}\n", self.watches);
                ulpf_rsp::to_hex(text.as_bytes()).into()
            }
            [
                b'G' | b'P' | b'M' | b'X' | b'H' | b'Z' | b'z' | b'T' | b'D',
                ..,
            ] => b"OK".into(),
            _ => vec![],
        }
    }
}

#[cfg(test)]
impl Fake {
    pub fn role(self, role: Role) -> Fake {
        Fake { role, ..self }
    }

    pub fn delay(self, delay: Duration) -> Fake {
        Fake { delay, ..self }
    }
}
