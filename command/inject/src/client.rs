//! Our end of the control channel: requests to the stub in the remote serial protocol, without acknowledgements.
#![forbid(unsafe_code)]

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use ulpf_host::foreign::numbers::Budget;
use ulpf_rsp::{Decoder, Event, INTERRUPT, expand_runs, frame, from_hex, to_hex};

/// A client of the stub: one request, one reply, over the control channel.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
    ready: std::collections::VecDeque<Received>,
    /// Bytes that the stub may send until the next request.
    budget: Budget,
}

/// Data from a stub.
#[derive(Debug)]
pub enum Received {
    Packet(Vec<u8>),
    Notification(Vec<u8>),
}

impl Client {
    /// `stream`: [`crate::Injected::control`].
    pub fn new(stream: UnixStream) -> Client {
        Client {
            stream,
            decoder: Decoder::default(),
            ready: Default::default(),
            budget: Budget::default(),
        }
    }

    /// Sends a packet without escaping it; the answer is the next packet.
    pub async fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.budget.renew();
        self.stream.write_all(&frame(payload)).await
    }

    /// Asks the stub to stop the program; the stop reply is the next packet. Does not wait for a stub that does not
    /// read.
    pub fn interrupt(&mut self) -> io::Result<()> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, WouldBlock};
        match self.stream.try_write(&[INTERRUPT]) {
            // The next read reports the end of the stub, after all that it has sent before.
            Err(e) if matches!(e.kind(), BrokenPipe | ConnectionReset | WouldBlock) => Ok(()),
            result => result.map(drop),
        }
    }

    /// The channel, for waiting until it is readable.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The next packet; see [`Client::next`].
    pub async fn recv(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Received::Packet(packet) = self.next().await? {
                return Ok(packet);
            }
        }
    }

    /// The next packet (runs expanded) or notification. Safe to cancel. At end of file the error is `UnexpectedEof`:
    /// the stub has gone, usually because the program has.
    pub async fn next(&mut self) -> io::Result<Received> {
        loop {
            if let Some(received) = self.ready.pop_front() {
                return Ok(received);
            }
            let mut buf = [0; 4096];
            let n = self.stream.read(&mut buf).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (ready, mut said) = (&mut self.ready, n);
            self.decoder.feed(&buf[..n], |e| match e {
                Event::Packet(p) => {
                    let packet = expand_runs(&p).unwrap_or(p);
                    said += packet.len();
                    ready.push_back(Received::Packet(packet));
                }
                Event::Notification(p) => ready.push_back(Received::Notification(p)),
                _ => {}
            });
            if !self.budget.take(said) {
                let why = self.budget.too_much("the program's stub");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }

    /// Sends a packet and returns its answer.
    pub async fn request(&mut self, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.send(payload).await?;
        self.recv().await
    }

    /// Sends a monitor command (`qRcmd`) and returns its text. An error reply or an unknown command is an error.
    pub async fn monitor(&mut self, command: &str) -> io::Result<String> {
        let no_text =
            || io::Error::other(format!("the stub answers `{command}` with what is no text"));
        let mut text = Vec::new();
        let mut reply = self
            .request(format!("qRcmd,{}", to_hex(command.as_bytes())).as_bytes())
            .await?;
        loop {
            match reply.as_slice() {
                b"" => {
                    return Err(io::Error::other(format!(
                        "the stub does not know the command `{command}`"
                    )));
                }
                b"OK" => break,
                [b'O', hex @ ..] => text.extend(from_hex(hex).ok_or_else(no_text)?),
                [b'E', b'.', why @ ..] => {
                    return Err(io::Error::other(String::from_utf8_lossy(why).into_owned()));
                }
                [b'E', hex @ ..] if hex.len() == 2 => {
                    return Err(io::Error::other(format!(
                        "`{command}` failed (E{})",
                        String::from_utf8_lossy(hex)
                    )));
                }
                hex => {
                    text.extend(from_hex(hex).ok_or_else(no_text)?);
                    break;
                }
            }
            reply = self.recv().await?;
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_rsp::notification;

    /// Notifications, console lines, garbage or an endless packet: the client gives up on each.
    #[tokio::test]
    async fn a_stub_without_end_is_given_up() {
        for flood in [
            notification(b"Nonsense"),
            frame(b"O"),
            frame(b"O48"),
            b"garbage".into(),
            [b"$", &[b'x'; 99][..]].concat(),
            frame(b"0*~*~*~*~"),
        ] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut client = Client::new(ours);
            client.budget = Budget::of(4 << 20);
            let flood = flood.repeat(200);
            let stub = tokio::spawn(async move {
                let mut theirs = theirs;
                while theirs.write_all(&flood).await.is_ok() {}
            });
            let error = loop {
                match client.recv().await {
                    Ok(_) => {}
                    Err(e) => break e,
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let ready: usize = client.ready.len();
            assert!(ready < 4096);
            drop(client);
            stub.await.unwrap();
        }
    }
}
