//! HTTP server of `ulpf export --metrics`: one page of metrics, for Prometheus and not for web pages.
//!
//! Each connection has a thread and an overall deadline. The thread of an admitted client waits until the main task has
//! written the metrics.

use anyhow::{Context, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Limit of the connections at a time.
const MOST: usize = 16;
/// Time limit of a connection, from its beginning to its end.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the bytes of a request's head.
const LONGEST: usize = 8 << 10;

/// Channel for the metrics.
pub type Wanted = Sender<String>;

pub struct Server {
    listener: TcpListener,
    hosts: Arc<Hosts>,
    sender: Sender<Wanted>,
    wanted: Receiver<Wanted>,
    /// Each thread that serves a connection holds a clone, for counting.
    served: Arc<()>,
}

/// The host names that we accept. A page whose name resolves to this machine ("DNS rebinding") is read by browsers as
/// if we had served it, but they send its name.
struct Hosts {
    address: IpAddr,
    more: Vec<String>,
}

impl Server {
    pub fn bind(address: SocketAddr, more: &[String]) -> Result<Server> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
        listener.set_nonblocking(true)?;
        let (sender, wanted) = channel();
        let hosts = Hosts {
            address: address.ip(),
            more: more.to_vec(),
        };
        Ok(Server {
            listener,
            hosts: Arc::new(hosts),
            sender,
            wanted,
            served: Arc::default(),
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits a moment for a client that wants the metrics.
    pub fn next(&self) -> Option<Wanted> {
        while let Ok((stream, _)) = self.listener.accept() {
            // Connections over the limit are closed.
            if Arc::strong_count(&self.served) > MOST {
                continue;
            }
            let (hosts, sender) = (self.hosts.clone(), self.sender.clone());
            let place = self.served.clone();
            let thread = std::thread::Builder::new().name("metrics".into());
            let _ = thread.spawn(move || {
                let _ = serve(stream, &hosts, &sender);
                drop(place);
            });
        }
        self.wanted.recv_timeout(Duration::from_millis(50)).ok()
    }
}

fn serve(stream: TcpStream, hosts: &Hosts, sender: &Sender<Wanted>) -> io::Result<()> {
    let end = Instant::now() + TIMEOUT;
    stream.set_nonblocking(false)?;
    let head = read_head(&stream, end)?;
    let (status, kind, body) = match hosts.judge(&head) {
        Ok(()) => {
            let (reply, figures) = channel();
            let gone = |_| io::Error::from(ErrorKind::TimedOut);
            sender.send(reply).map_err(|_| ErrorKind::BrokenPipe)?;
            let figures = figures.recv_timeout(left(end)?).map_err(gone)?;
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ("200 OK", kind, figures)
        }
        Err((status, why)) => (status, "text/plain; charset=utf-8", format!("{why}\n")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nX-Content-Type-Options: nosniff\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    write(&stream, head.as_bytes(), end)?;
    write(&stream, body.as_bytes(), end)
}

fn left(end: Instant) -> io::Result<Duration> {
    match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// Reads up to the empty line.
fn read_head(mut stream: &TcpStream, end: Instant) -> io::Result<Vec<u8>> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(2).any(|w| w == b"\n\n") && !head.windows(4).any(|w| w == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left(end)?))?;
        let n = stream.read(&mut piece)?;
        if n == 0 || head.len() + n > LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&piece[..n]);
    }
    Ok(head)
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

impl Hosts {
    /// Checks a request. The error: status, and reason.
    fn judge(&self, head: &[u8]) -> Result<(), (&'static str, &'static str)> {
        let head = String::from_utf8_lossy(head);
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split_ascii_whitespace();
        let (method, target) = (words.next(), words.next());
        let fields = lines.take_while(|line| !line.is_empty());
        let hosts: Vec<&str> = fields
            .filter_map(|line| line.split_once(':'))
            .filter(|(name, _)| name.eq_ignore_ascii_case("host"))
            .map(|(_, value)| value.trim())
            .collect();
        match (method, target, &hosts[..]) {
            (Some("GET"), Some(target), [host]) if self.is_ours(host) => match target {
                "/metrics" => Ok(()),
                _ => Err(("404 Not Found", "the figures are at /metrics")),
            },
            (Some("GET"), ..) => Err((
                "421 Misdirected Request",
                "ask localhost or 127.0.0.1; other names of this machine have to be given to `ulpf export` as --allow-host NAME",
            )),
            _ => Err(("405 Method Not Allowed", "only GET")),
        }
    }

    /// Whether the name is ours: `NAME`, `NAME:PORT`, `[ADDRESS]:PORT`. Ports may be forwarded, so any port is accepted.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((address, _))) => address,
            Some(None) => return false,
            None => host.split(':').next().unwrap_or_default(),
        };
        if let Ok(address) = name.parse::<IpAddr>() {
            return address.to_canonical().is_loopback() || address == self.address;
        }
        let mut named = self.more.iter().map(String::as_str).chain(["localhost"]);
        named.any(|ours| ours.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts() -> Hosts {
        Hosts {
            address: IpAddr::from([127, 0, 0, 7]),
            more: vec!["box.example".into()],
        }
    }

    fn status(head: &str) -> &'static str {
        hosts()
            .judge(head.as_bytes())
            .map_or_else(|e| &e.0[..3], |()| "200")
    }

    #[test]
    fn who_is_answered() {
        for host in [
            "localhost",
            "LOCALHOST:9469",
            "127.0.0.1:1",
            "127.0.0.7",
            "[::1]:9469",
            "[::ffff:127.0.0.1]",
            "box.example:80",
        ] {
            let head = format!("GET /metrics HTTP/1.1\r\naccept: */*\r\nhOST: {host}\r\n\r\n");
            assert_eq!(status(&head), "200", "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]",
            "[::1",
            "0.0.0.0",
            "evil.example:9469",
            "127.1",
        ] {
            let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(status(&head), "421", "{host}");
        }
        for (head, expected) in [
            ("GET /metrics HTTP/1.1\r\n\r\n", "421"),
            ("GET /metrics HTTP/1.1\r\n\r\nHost: localhost\r\n", "421"),
            (
                "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
                "421",
            ),
            (
                "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
                "404",
            ),
            ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
            ("", "405"),
        ] {
            assert_eq!(status(head), expected, "{head}");
        }
    }

    proptest! {
        #[test]
        fn any_head(head: Vec<u8>) {
            let _ = hosts().judge(&head);
        }
    }
}
