//! The connected debugger: framing and acknowledgements. The meaning of packets is not known here.
#![forbid(unsafe_code)]

use super::packets::{PACKET_LIMIT, TOO_LONG};
use std::collections::VecDeque;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use ulpf_host::foreign::text::lines;
use ulpf_host::listen::{Connection, Reader, Writer};
use ulpf_host::say::message;
use ulpf_rsp::reports::Ask;
use ulpf_rsp::{Decoder, Event};

/// One input from the debugger.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    Packet(Vec<u8>),
    /// A request that is also served while the program runs.
    Ask(Ask),
    Interrupt,
    /// End of file or a broken connection.
    Gone,
}

/// Limit in bytes for packets that wait while another packet is served.
const QUEUE_LIMIT: usize = 1 << 20;

/// Bytes that a packet counts in the queue.
fn weight(packet: &[u8]) -> usize {
    packet.len() + size_of::<Input>()
}

pub struct Client {
    reader: Reader,
    writer: Writer,
    decoder: Decoder,
    queue: VecDeque<Input>,
    /// `urgent`: number of queued inputs that are not packets. `queued`: weight of the queued packets.
    urgent: usize,
    queued: usize,
    /// The debugger has switched acknowledgements off.
    no_ack: bool,
    /// The debugger is LLDB.
    pub is_lldb: bool,
    /// The last packet that we sent, until it is acknowledged.
    unacked: Option<Vec<u8>>,
    /// `owed`: bytes still to be written, in order. `flushes`: written bytes still need a flush.
    owed: Vec<u8>,
    flushes: bool,
    debug: bool,
}

impl Client {
    pub fn new(connection: Connection, debug: bool) -> Client {
        Client {
            reader: connection.reader,
            writer: connection.writer,
            decoder: Decoder::new(PACKET_LIMIT),
            queue: VecDeque::new(),
            urgent: 0,
            queued: 0,
            no_ack: false,
            is_lldb: false,
            unacked: None,
            owed: Vec::new(),
            flushes: false,
            debug,
        }
    }

    pub fn stop_acks(&mut self) {
        self.no_ack = true;
        self.unacked = None;
    }

    /// Switches the protocol trace on stderr on or off.
    pub fn set_debug(&mut self, on: bool) {
        self.debug = on;
    }

    /// The next input from the debugger. Cancel-safe.
    pub async fn next(&mut self) -> Input {
        loop {
            if let Some(input) = self.queue.pop_front() {
                return self.taken(input);
            }
            if !self.fill().await {
                return Input::Gone;
            }
        }
    }

    /// The next interrupt request, report or the end of the connection; other packets stay queued for [`Client::next`]. For use while
    /// a request is being served. Cancel-safe.
    pub async fn next_urgent(&mut self) -> Input {
        loop {
            if self.urgent > 0
                && let Some(at) = self
                    .queue
                    .iter()
                    .position(|i| !matches!(i, Input::Packet(_)))
                && let Some(input) = self.queue.remove(at)
            {
                return self.taken(input);
            }
            if self.queued > QUEUE_LIMIT {
                // The peer sends faster than it is served: let its socket fill up.
                return std::future::pending().await;
            }
            if !self.fill().await {
                return Input::Gone;
            }
        }
    }

    fn taken(&mut self, input: Input) -> Input {
        match &input {
            Input::Packet(p) => self.queued -= weight(p),
            _ => self.urgent -= 1,
        }
        input
    }

    /// Reads once and decodes. Returns false if the connection has ended.
    ///
    /// Cancel-safe: there is no await between the read and the queuing of all that was read.
    async fn fill(&mut self) -> bool {
        if self.pay().await.is_err() {
            return false;
        }
        let mut buf = [0; 8192];
        let n = match self.reader.read(&mut buf).await {
            Ok(0) | Err(_) => return false,
            Ok(n) => n,
        };
        if self.debug {
            message!(
                "ulpf server: received {}",
                String::from_utf8_lossy(&buf[..n])
            );
        }
        let mut events = Vec::new();
        self.decoder.feed(&buf[..n], |e| events.push(e));
        events.into_iter().for_each(|event| self.take_in(event));
        self.pay().await.is_ok()
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::Packet(p) => {
                self.unacked = None;
                self.owe_ack(b"+");
                match Ask::parse(&p) {
                    Some(ask) => {
                        self.urgent += 1;
                        self.queue.push_back(Input::Ask(ask));
                    }
                    None => {
                        self.queued += weight(&p);
                        self.queue.push_back(Input::Packet(p));
                    }
                }
            }
            Event::Interrupt => {
                // A second interrupt in a row adds nothing.
                if self.queue.back() != Some(&Input::Interrupt) {
                    self.urgent += 1;
                    self.queue.push_back(Input::Interrupt);
                }
            }
            Event::BadChecksum { sent, computed } => {
                message!(
                    "Bad checksum, sentsum={sent:#x}, csum={computed:#x}{}",
                    if self.no_ack {
                        " [no-ack-mode, Bad medium?]"
                    } else {
                        ""
                    }
                );
                self.owe_ack(b"-");
            }
            Event::Oversize => {
                self.owe_ack(b"+");
                let frame = ulpf_rsp::frame(TOO_LONG);
                self.owed.extend_from_slice(&frame);
                self.sent(frame);
            }
            Event::Ack => self.unacked = None,
            Event::Nak => self.owed.extend(self.unacked.iter().flatten()),
            Event::Notification(_) => {}
        }
    }

    /// Queues an acknowledgement, if they are in use.
    fn owe_ack(&mut self, ack: &[u8]) {
        if !self.no_ack {
            self.owed.extend_from_slice(ack);
        }
    }

    /// Writes the bytes of `owed`. Cancel-safe.
    async fn pay(&mut self) -> io::Result<()> {
        if self.owed.is_empty() && !self.flushes {
            return Ok(());
        }
        while !self.owed.is_empty() {
            let n = self.writer.write(&self.owed).await?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.owed.drain(..n);
            self.flushes = true;
        }
        self.writer.flush().await?;
        self.flushes = false;
        Ok(())
    }

    /// Sends a packet. On an error the debugger has gone; the next read reports that, too.
    pub async fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let frame = match payload.strip_prefix(b"E.") {
            // The debugger prints the text unchanged.
            Some(why) => {
                ulpf_rsp::frame(format!("E.{}", lines(&String::from_utf8_lossy(why))).as_bytes())
            }
            None => ulpf_rsp::frame(payload),
        };
        let done = self.write(&frame).await;
        self.sent(frame);
        done
    }

    /// Keeps a packet until it is acknowledged.
    fn sent(&mut self, frame: Vec<u8>) {
        if !self.no_ack {
            self.unacked = Some(frame);
        }
    }

    pub async fn notify(&mut self, payload: &[u8]) -> io::Result<()> {
        self.write(&ulpf_rsp::notification(payload)).await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.debug && bytes.len() > 1 {
            message!("ulpf server: sent {}", String::from_utf8_lossy(bytes));
        }
        self.owed.extend_from_slice(bytes);
        self.pay().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A client, and the debugger's end of its connection. `room`: how many bytes it takes before they are read.
    fn connected(room: usize) -> (Client, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(room);
        let (reader, writer) = tokio::io::split(theirs);
        let connection = Connection {
            reader: Box::new(reader),
            writer: Box::new(writer),
            from: String::new(),
        };
        (Client::new(connection, false), ours)
    }

    /// A cancelled wait loses nothing, not even while an acknowledgement cannot be written.
    #[tokio::test]
    async fn waiting_may_be_cancelled() {
        let (mut client, mut ours) = connected(1);
        let debugger = tokio::spawn(async move {
            for packet in [&b"$a#61"[..], b"$b#62"] {
                ours.write_all(packet).await.unwrap();
            }
            let mut acks = [0; 2];
            ours.read_exact(&mut acks).await.unwrap();
            assert_eq!(&acks, b"++");
        });
        let mut taken = Vec::new();
        while taken.len() < 2 {
            // Polled once only.
            if let Some(input) = std::future::poll_fn(|context| {
                let mut next = std::pin::pin!(client.next());
                std::task::Poll::Ready(match next.as_mut().poll(context) {
                    std::task::Poll::Ready(input) => Some(input),
                    std::task::Poll::Pending => None,
                })
            })
            .await
            {
                taken.push(input);
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(
            taken,
            [Input::Packet(b"a".into()), Input::Packet(b"b".into())]
        );
        client.pay().await.unwrap();
        debugger.await.unwrap();
    }

    /// Packets that are not served yet wait in the debugger's socket, empty ones as well.
    #[tokio::test]
    async fn what_waits_is_bounded() {
        for flood in [&b"$#00"[..], b"\x03", b"$#00\x03"] {
            let (mut client, ours) = connected(1 << 16);
            client.stop_acks();
            let flood = flood.repeat(1 << 14);
            let debugger = tokio::spawn(async move {
                let mut ours = ours;
                while ours.write_all(&flood).await.is_ok() {}
            });
            let serving = async {
                for _ in 0..100_000 {
                    client.next_urgent().await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_millis(500), serving).await;
            let most = QUEUE_LIMIT / size_of::<Input>() + 8192;
            assert!(client.queue.len() <= most, "{}", client.queue.len());
            drop(client);
            debugger.await.unwrap();
        }
    }
}
