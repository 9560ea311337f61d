//! Accepts clients from TCP, a unix socket, a character device, or our own stdin and stdout, and decides which of them are let in.
//!
//! ```text
//!   a connection ─▶ whose is it? (owner.rs) ─▶ what does it begin like? (greeting.rs) ─▶ the client
//!                      another user's: no          HTTP, TLS: no · nothing yet: it waits, others overtake it
//! ```
//! A silent connection blocks no other: several connections wait for their first words at once, and the first that has
//! sent them is the next client.
#![forbid(unsafe_code)]

mod device;
mod greeting;
mod owner;
mod socket;
pub mod socket_dir;

pub use greeting::Protocol;

use crate::sys;
use device::Device;
use greeting::Verdict;
use owner::Peer;
use socket::{Socket, cannot_bind};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, Cursor, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

/// Input from a client.
pub type Reader = Box<dyn AsyncRead + Unpin + Send>;
/// Output to a client.
pub type Writer = Box<dyn AsyncWrite + Unpin + Send>;

/// Limit of the connections that have not sent their first words; beyond it, the oldest one is dropped.
const WAITING: usize = 16;
/// Limit of the refusals that are reported one by one.
const MOST_REPORTED: usize = 20;

/// Purpose of a listener, and the clients that it admits.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The command, for messages.
    pub name: &'static str,
    pub protocol: Protocol,
    /// Users of this machine other than ours and root may connect.
    pub any_user: bool,
}

/// An admitted client that speaks our protocol.
pub struct Connection {
    pub reader: Reader,
    pub writer: Writer,
    /// Where it comes from, in the words that follow "Remote debugging" in gdbserver.
    pub from: String,
}

#[derive(Debug)]
enum Kind {
    Stdio,
    Tcp(TcpListener),
    Unix(Socket),
    Device(Device, PathBuf),
}

/// A listening address, and its connections that have not sent their first words.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    rules: Rules,
    /// Each task ends with a client, or with the reason why it is refused.
    waiting: JoinSet<Result<Connection, Option<String>>>,
    /// Handles of the tasks in `waiting`, oldest first.
    order: VecDeque<AbortHandle>,
    refused: usize,
}

impl Listener {
    /// Binds `COMM`. The error is text for the user, in gdbserver's words where it has some.
    pub async fn bind(comm: &OsStr, rules: Rules) -> Result<Listener, String> {
        let kind = if comm == "-" || comm == "stdio" {
            Kind::Stdio
        } else {
            match tcp_address(comm) {
                None if Device::is_one(Path::new(comm)) => {
                    Kind::Device(Device::open(Path::new(comm))?, comm.into())
                }
                None => Kind::Unix(Socket::bind(Path::new(comm))?),
                Some(address) => Kind::Tcp(bind_tcp(&address).await?),
            }
        };
        Ok(Listener {
            kind,
            rules,
            waiting: JoinSet::new(),
            order: VecDeque::new(),
            refused: 0,
        })
    }

    /// Whether the only client is at our stdin and stdout.
    pub fn is_stdio(&self) -> bool {
        matches!(self.kind, Kind::Stdio)
    }

    /// The address of a TCP listener.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Tcp(listener) => listener.local_addr().ok(),
            _ => None,
        }
    }

    /// The address, if other machines can reach it.
    pub fn beyond_this_machine(&self) -> Option<SocketAddr> {
        let address = self.address()?;
        (!address.ip().to_canonical().is_loopback()).then_some(address)
    }

    /// gdbserver's message when it begins to wait.
    pub fn announcement(&self) -> Option<String> {
        match &self.kind {
            Kind::Stdio => None,
            Kind::Tcp(l) => Some(format!(
                "Listening on port {}",
                l.local_addr().map(|a| a.port()).unwrap_or(0)
            )),
            Kind::Unix(socket) => Some(format!("Listening on {}", socket.path().display())),
            Kind::Device(_, path) => Some(format!("Listening on {}", path.display())),
        }
    }

    /// Waits for a client. Safe to cancel.
    pub async fn accept(&mut self) -> io::Result<Connection> {
        loop {
            let any_user = self.rules.any_user;
            let protocol = self.rules.protocol;
            // A client that has sent its first words is served before the next connection is accepted.
            tokio::select! {
                biased;
                Some(done) = self.waiting.join_next() => match done {
                    Ok(Ok(client)) => return Ok(client),
                    Ok(Err(Some(why))) => self.refuse(&why),
                    // It disconnected without a word, or was dropped to make room.
                    Ok(Err(None)) | Err(_) => {}
                },
                accepted = next(&self.kind) => {
                    let handle = match accepted? {
                        Accepted::Only(client) => return Ok(client),
                        Accepted::Tcp(stream, from) => {
                            self.waiting.spawn(tcp(stream, from, protocol, any_user))
                        }
                        Accepted::Unix(stream, from) => {
                            self.waiting.spawn(unix(stream, from, protocol, any_user))
                        }
                    };
                    self.order.retain(|handle| !handle.is_finished());
                    self.order.push_back(handle);
                    if self.order.len() > WAITING
                        && let Some(oldest) = self.order.pop_front()
                    {
                        oldest.abort();
                    }
                }
            }
        }
    }

    fn refuse(&mut self, why: &str) {
        self.refused += 1;
        let name = self.rules.name;
        match self.refused {
            ..=MOST_REPORTED => tell(&format!("{name}: {why}")),
            n if n == MOST_REPORTED + 1 => {
                tell(&format!("{name}: no more is said of such connections"))
            }
            _ => {}
        }
    }
}

fn tell(text: &str) {
    // One write, so that a reader of our stderr never sees half a line.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

enum Accepted {
    /// The only client: stdin and stdout, or a character device.
    Only(Connection),
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream, String),
}

async fn next(kind: &Kind) -> io::Result<Accepted> {
    Ok(match kind {
        Kind::Stdio => Accepted::Only(Connection {
            reader: Box::new(tokio::io::stdin()),
            writer: Box::new(tokio::io::stdout()),
            from: "using stdio".into(),
        }),
        Kind::Tcp(listener) => {
            let (stream, from) = listener.accept().await?;
            Accepted::Tcp(stream, from)
        }
        Kind::Unix(socket) => {
            let stream = socket.accept().await?;
            Accepted::Unix(stream, format!("using {}", socket.path().display()))
        }
        Kind::Device(device, path) => {
            let (reader, writer) = device.accept().await;
            Accepted::Only(Connection {
                reader: Box::new(reader),
                writer: Box::new(writer),
                from: format!("using {}", path.display()),
            })
        }
    })
}

async fn tcp(
    stream: TcpStream,
    from: SocketAddr,
    protocol: Protocol,
    any_user: bool,
) -> Result<Connection, Option<String>> {
    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
    // Fails only on a broken connection, which the next read reports.
    let _ = stream.set_nodelay(true);
    let _ = sys::keep_alive(&stream);
    if !any_user {
        let peer = owner::of_tcp(&stream).await;
        let why = admit(peer, &format!("from {from}"));
        // A port scan has disconnected by now.
        if why.is_err() && has_gone(&stream).await {
            return Err(None);
        }
        why.map_err(Some)?;
    }
    let description = format!("from host {}, port {}", from.ip(), from.port());
    let (reader, writer) = stream.into_split();
    meet(
        reader,
        writer,
        description,
        &format!("from {from}"),
        protocol,
    )
    .await
}

async fn unix(
    stream: UnixStream,
    description: String,
    protocol: Protocol,
    any_user: bool,
) -> Result<Connection, Option<String>> {
    if !any_user {
        admit(owner::of_unix(&stream), "to the socket").map_err(Some)?;
    }
    let (reader, writer) = stream.into_split();
    meet(reader, writer, description, "to the socket", protocol).await
}

fn admit(peer: Peer, which: &str) -> Result<(), String> {
    let who = match peer {
        Peer::Elsewhere => return Ok(()),
        Peer::User(user) if user == 0 || user == sys::user() => return Ok(()),
        Peer::User(user) => format!("it is user {user}'s"),
        Peer::Unknown => "whose it is cannot be found out (in /proc/self/net/tcp)".into(),
    };
    let may = match sys::user() {
        0 => "only root".to_string(),
        user => format!("only user {user} and root"),
    };
    Err(format!(
        "a connection {which} was refused: {who}, and {may} may connect. --any-user lets in all users of this machine."
    ))
}

async fn has_gone(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let peeked = stream.peek(&mut byte);
    let peeked = tokio::time::timeout(Duration::from_millis(200), peeked).await;
    matches!(peeked, Ok(Ok(0) | Err(_)))
}

/// Waits for the first words. No byte of them is lost or interpreted.
async fn meet(
    mut reader: impl AsyncRead + Unpin + Send + 'static,
    writer: impl AsyncWrite + Unpin + Send + 'static,
    from: String,
    which: &str,
    protocol: Protocol,
) -> Result<Connection, Option<String>> {
    let mut said = Vec::new();
    let mut piece = vec![0; greeting::LONGEST];
    loop {
        let n = match reader.read(&mut piece).await {
            Ok(0) | Err(_) => return Err(None),
            Ok(n) => n,
        };
        said.extend_from_slice(&piece[..n]);
        match protocol.judge(&said) {
            Verdict::More => {}
            Verdict::Ours => break,
            Verdict::Foreign(language) => {
                return Err(Some(format!(
                    "a connection {which} was dropped unread: it begins like {language}, not like {}",
                    protocol.client()
                )));
            }
        }
    }
    Ok(Connection {
        reader: Box::new(Cursor::new(said).chain(reader)),
        writer: Box::new(writer),
        from,
    })
}

/// HOST:PORT in one of gdbserver's spellings; `None` for a path.
fn tcp_address(comm: &OsStr) -> Option<String> {
    let text = comm.to_string_lossy();
    let prefixes = ["tcp:", "tcp4:", "tcp6:"];
    match prefixes.iter().find_map(|p| text.strip_prefix(p)) {
        Some(address) => Some(address.to_string()),
        // A path may contain a colon, a host may not contain a slash.
        None if comm.as_bytes().contains(&b'/') || !text.contains(':') => None,
        None => Some(text.into_owned()),
    }
}

async fn bind_tcp(text: &str) -> Result<TcpListener, String> {
    let (host, port) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("{text}: a port is missing; write HOST:PORT or :PORT."))?;
    let port: u16 = port
        .parse()
        .map_err(|_| format!("{text}: \"{port}\" is not a port number (0 to 65535)."))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    let addresses: Vec<_> = tokio::net::lookup_host((host, port))
        .await
        .map_err(|e| {
            format!(
                "{text}: cannot resolve name: {}",
                e.to_string().rsplit(": ").next().unwrap_or("unknown")
            )
        })?
        .collect();
    TcpListener::bind(&addresses[..]).await.map_err(cannot_bind)
}
