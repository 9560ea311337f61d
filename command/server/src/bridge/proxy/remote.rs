//! The connection to a remote port: packets out, replies in, acknowledged.
#![forbid(unsafe_code)]

use crate::packets::is_output;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use ulpf_bridge::{Refusal, Reply};
use ulpf_host::foreign::numbers::{self, Budget};
use ulpf_rsp::{Decoder, Event};

/// Time limit for the answer to a packet. Simulators are slow.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub type Answer = Result<Reply, Refusal>;

pub fn refuse(why: impl Into<String>) -> Refusal {
    Refusal::new("The remote port refuses this", why, "")
}

pub struct Remote<R, W> {
    reader: R,
    writer: W,
    decoder: Decoder,
    queue: VecDeque<Vec<u8>>,
    /// Limit of what the remote port may send before the next request.
    budget: Budget,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Remote<R, W> {
    pub fn new(reader: R, writer: W) -> Remote<R, W> {
        Remote {
            reader,
            writer,
            decoder: Decoder::default(),
            queue: VecDeque::new(),
            budget: Budget::default(),
        }
    }

    /// The next packet, acknowledged and with runs expanded. Cancel-safe.
    pub async fn next(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some(packet) = self.queue.pop_front() {
                return Ok(packet);
            }
            let mut buf = [0; 4096];
            let n = match self.reader.read(&mut buf).await {
                Ok(0) => return Err("the remote port has closed the connection".into()),
                Ok(n) => n,
                Err(e) => return Err(format!("the remote port cannot be read from: {e}")),
            };
            let mut acks = vec![];
            let (queue, mut said) = (&mut self.queue, n);
            self.decoder.feed(&buf[..n], |e| match e {
                Event::Packet(p) => {
                    acks.push(b'+');
                    let packet = ulpf_rsp::expand_runs(&p).unwrap_or(p);
                    said += packet.len();
                    queue.push_back(packet);
                }
                Event::BadChecksum { .. } => acks.push(b'-'),
                _ => {}
            });
            if !self.budget.take(said) {
                return Err(numbers::too_much("the remote port"));
            }
            // An error shows at the next read.
            let _ = self.writer.write_all(&acks).await;
        }
    }

    /// Sends bytes that are not a packet or need no answer. An error shows at the next read.
    pub async fn say(&mut self, bytes: &[u8]) {
        let _ = self.writer.write_all(bytes).await;
    }

    pub async fn send(&mut self, packet: &[u8]) -> Result<(), Refusal> {
        self.budget.renew();
        let sent = self.writer.write_all(&ulpf_rsp::frame(packet)).await;
        sent.map_err(|e| refuse(format!("it cannot be written to: {e}")))
    }

    async fn packet(&mut self) -> Result<Vec<u8>, Refusal> {
        match timeout(PATIENCE, self.next()).await {
            Ok(packet) => packet.map_err(refuse),
            Err(_) => Err(refuse(format!(
                "it has not answered for {} s",
                PATIENCE.as_secs()
            ))),
        }
    }

    /// Sends a packet and returns its reply.
    pub async fn ask(&mut self, packet: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.send(packet).await?;
        loop {
            let reply = self.packet().await?;
            if !is_output(&reply) {
                return Ok(reply);
            }
        }
    }

    /// As [`Remote::ask`], but an error reply becomes a refusal.
    pub async fn fine(&mut self, packet: String) -> Result<Vec<u8>, Refusal> {
        let reply = self.ask(packet.as_bytes()).await?;
        match &reply[..] {
            [] => Err(refuse("it does not know such packets")),
            [b'E', b'.', why @ ..] => Err(refuse(String::from_utf8_lossy(why))),
            [b'E', _, _] => Err(refuse(String::from_utf8_lossy(&reply))),
            _ => Ok(reply),
        }
    }

    pub async fn done(&mut self, packet: String) -> Answer {
        self.fine(packet).await.map(|_| Reply::Done)
    }

    pub async fn monitor(&mut self, command: &str) -> Result<String, Refusal> {
        let packet = format!("qRcmd,{}", ulpf_rsp::to_hex(command.as_bytes()));
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
                    return Ok(text
                        + &String::from_utf8_lossy(&ulpf_rsp::from_hex(hex).unwrap_or_default()));
                }
            }
        }
    }
}

pub fn text_of(packet: &[u8]) -> String {
    String::from_utf8_lossy(&ulpf_rsp::from_hex(&packet[1..]).unwrap_or_default()).into_owned()
}
