//! The connection to a remote port: a back end's, or any stub's. Packets out, replies in, with time limits.
//!
//! One task owns it, and makes one request at a time. The remote protocol does not number its requests: after a reply
//! that was late, the next request begins with `vMustReplyEmpty`, and everything before the empty reply is dropped.
//! While the program runs, only ulpf's own packets (docs/bridge.md) are requested. Their replies cannot be mistaken for
//! stops, which wait as events meanwhile.
#![forbid(unsafe_code)]

use super::place::Place;
use crate::packets::is_output;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use ulpf_host::foreign::numbers::Budget;
use ulpf_host::listen::socket_dir::SocketDir;
use ulpf_host::listen::{Reader, Writer};
use ulpf_lib::Refusal;
use ulpf_lib::command::{self, Command};
use ulpf_rsp::reports::{ABOUT, About, Ask, Counts, Hits, Role};
use ulpf_rsp::{Decoder, Event};

/// Time limit for an answer. GDB itself gives up after about six seconds.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a requested stop.
pub const STOPPING: Duration = Duration::from_secs(10);
/// Time limit for a back end to start.
const COMING: Duration = Duration::from_secs(5);
/// Limit of the events that wait.
const MOST_EVENTS: usize = 1 << 12;
/// Bytes that it may say before it has answered as a stub does: the rest of an earlier conversation.
const MOST_BEFORE: usize = 1 << 20;
/// The first packet, as GDB sends it. The debugger's own one follows when there is a debugger.
const GREETING: &[u8] = b"qSupported:swbreak+;hwbreak+;vContSupported+";
/// Bytes of an x86-64 processor's registers from rax to gs: every `g` packet begins with them.
const CORE: usize = 164;

/// How watches are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavour {
    /// By `Z2` to `Z4`, or as the stub's role says.
    Packets,
    /// By `monitor ulpf watch ADDR LEN KIND`, which our configuration script for gem5 answers with `ok`.
    Gem5,
}

/// Why a request has failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The stub has refused it.
    Refused(Refusal),
    Late(String),
    Lost(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Failure::Refused(r) => r.fmt(f),
            Failure::Late(why) | Failure::Lost(why) => f.write_str(why),
        }
    }
}

impl Failure {
    pub fn refused(why: impl Into<String>) -> Failure {
        let what = "the remote stub refuses this";
        Failure::Refused(Refusal::new(what, why, "see `monitor ulpf backend`"))
    }
}

/// An event of a running program.
#[derive(Debug, PartialEq)]
pub enum Said {
    /// A stop reply, also of the program's end.
    Stop(Vec<u8>),
    /// Text for the user.
    Text(String),
    Lost(String),
}

pub struct Remote {
    reader: Reader,
    writer: Writer,
    decoder: Decoder,
    queue: VecDeque<Vec<u8>>,
    /// Stops and texts that came while a report was awaited.
    events: VecDeque<Vec<u8>>,
    /// Limit of what the stub may send before the next request.
    budget: Budget,
    acks: bool,
    /// The stub owes replies that are not awaited any more.
    behind: bool,
    greeted: bool,
    /// It is lost for good; the reason.
    pub lost: Option<String>,
    pub flavour: Flavour,
    pub time_limit: Duration,
    pub about: About,
    /// The program's file, as the stub names it; maybe empty.
    pub program: String,
    /// `None` without a program.
    pub stop: Option<Vec<u8>>,
}

/// A running back end: the connection, and its process if the server has started it.
pub struct Started {
    pub remote: Remote,
    pub child: Option<Child>,
    /// The back end ends with the debugger's session.
    pub ours: bool,
    pub(super) _dir: Option<SocketDir>,
}

async fn connect(place: &Place) -> std::io::Result<(Reader, Writer)> {
    Ok(match place {
        Place::Unix(path) => {
            let (r, w) = UnixStream::connect(path).await?.into_split();
            (Box::new(r), Box::new(w))
        }
        Place::Tcp(addr) => {
            let stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            ulpf_host::sys::keep_alive(&stream)?;
            let (r, w) = stream.into_split();
            (Box::new(r), Box::new(w))
        }
    })
}

/// Text of an `O` packet.
fn text_of(packet: &[u8]) -> String {
    let bytes = ulpf_rsp::from_hex(packet.get(1..).unwrap_or_default());
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// Whether this is a stop reply.
pub fn is_stop(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'T' | b'S' | b'W' | b'X' | b'N'))
}

/// Whether this stop reply is the end of the program.
pub fn is_end(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'W' | b'X'))
}

impl Remote {
    /// Connects. Retries while a back end that was just started comes up. `alive` returns the reason if it will never
    /// come. The error is text for the user.
    pub async fn open(
        place: &Place,
        mut alive: impl FnMut() -> Result<(), String>,
    ) -> Result<Remote, String> {
        let end = Instant::now() + COMING;
        loop {
            let why = match connect(place).await {
                Ok((reader, writer)) => {
                    match Remote::greet(reader, writer, Flavour::Packets, TIMEOUT).await {
                        Ok(remote) => return Ok(remote),
                        // A port forwarder accepts connections before the stub listens behind it.
                        Err(Failure::Lost(why)) => why,
                        Err(Failure::Late(_)) => {
                            return Err(format!(
                                "Something is at {place}, but it does not answer as a remote stub does. Start the stub there (`ulpf server`, gdbserver, QEMU with -gdb), or look whether another debugger is connected to it."
                            ));
                        }
                        Err(Failure::Refused(why)) => return Err(why.what),
                    }
                }
                Err(e) => e.to_string(),
            };
            alive()?;
            if Instant::now() > end {
                return Err(format!(
                    "No remote stub answers at {place}: {why}. Start it first, or look whether it listens there."
                ));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Greets the stub at the other end of a stream.
    pub async fn greet(
        reader: Reader,
        writer: Writer,
        flavour: Flavour,
        time_limit: Duration,
    ) -> Result<Remote, Failure> {
        let mut remote = Remote {
            reader,
            writer,
            decoder: Decoder::default(),
            queue: VecDeque::new(),
            events: VecDeque::new(),
            budget: Budget::of(MOST_BEFORE),
            acks: true,
            // A serial port may have the rest of an earlier conversation.
            behind: true,
            greeted: false,
            lost: None,
            flavour,
            time_limit,
            about: About {
                role: Role::Plain,
                kind: match flavour {
                    Flavour::Packets => "rsp".into(),
                    Flavour::Gem5 => "gem5".into(),
                },
                name: "a remote stub".into(),
            },
            program: String::new(),
            stop: None,
        };
        let refused = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            Failure::Refused(Refusal::new(text, "", ""))
        };
        if remote.ask(b"QStartNoAckMode").await? == b"OK" {
            remote.acks = false;
        }
        remote.ask(GREETING).await?;
        let about = remote.ask(ABOUT).await?;
        if let Some(why) = about.strip_prefix(b"E.") {
            return Err(refused(why));
        }
        if let Some(about) = About::parse(&about) {
            remote.about = about;
        }
        let stop = remote.ask(b"?").await?;
        if !is_stop(&stop) {
            return Err(refused(
                b"The stub at the other end does not say why its program has stopped.",
            ));
        }
        if !is_end(&stop) {
            if remote.registers().await?.len() < CORE {
                return Err(refused(
                    b"The remote port has no registers of an x86-64 processor.",
                ));
            }
            remote.stop = Some(stop);
            let program = remote.object("exec-file:read:", 4096).await?;
            remote.program = String::from_utf8_lossy(&program).into_owned();
        }
        remote.greeted = true;
        remote.budget = Budget::default();
        Ok(remote)
    }

    /// The next packet, with runs expanded. Cancel-safe.
    async fn next(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some(packet) = self.queue.pop_front() {
                return Ok(packet);
            }
            let mut buf = [0; 1 << 14];
            let n = match self.reader.read(&mut buf).await {
                Ok(0) => return Err("it has closed the connection".into()),
                Ok(n) => n,
                Err(e) => return Err(format!("it cannot be read from: {e}")),
            };
            let (queue, mut said, mut acks) = (&mut self.queue, n, vec![]);
            let mut nonsense = None;
            self.decoder.feed(&buf[..n], |e| match e {
                Event::Packet(p) => {
                    acks.push(b'+');
                    match ulpf_rsp::expand_runs(&p) {
                        Some(packet) => {
                            said += packet.len();
                            queue.push_back(packet);
                        }
                        None => nonsense = Some("a packet has an impossible run"),
                    }
                }
                Event::BadChecksum { .. } => {
                    acks.push(b'-');
                    nonsense = Some("a packet has a wrong checksum");
                }
                Event::Oversize => nonsense = Some("a packet is too long"),
                _ => {}
            });
            if !self.budget.take(said) {
                return Err(self.budget.too_much("it"));
            }
            if self.acks {
                // An error shows at the next read.
                let _ = self.writer.write_all(&acks).await;
            } else if let Some(why) = nonsense {
                return Err(format!("it says what is no packet ({why})"));
            }
        }
    }

    fn lose(&mut self, why: &str) -> Failure {
        let why = match self.greeted {
            true => format!("The connection to the back end is lost: {why}."),
            false => why.into(),
        };
        self.lost = Some(why.clone());
        Failure::Lost(why)
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if let Some(why) = &self.lost {
            return Err(Failure::Lost(why.clone()));
        }
        self.budget.renew();
        match timeout(self.time_limit, self.writer.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(self.lose(&format!("it cannot be written to: {e}"))),
            Err(_) => Err(self.lose("it does not read what is written to it")),
        }
    }

    /// Sends a packet without awaiting a reply.
    pub async fn send(&mut self, packet: &[u8]) -> Result<(), Failure> {
        self.write(&ulpf_rsp::frame(packet)).await
    }

    /// Resumes the program. Its stop is an event.
    pub async fn resume(&mut self, packet: &[u8]) -> Result<(), Failure> {
        self.catch_up().await?;
        // An unrequested stop belongs to an earlier run.
        self.events.clear();
        self.send(packet).await
    }

    /// Requests a stop of the running program.
    pub async fn interrupt(&mut self) -> Result<(), Failure> {
        self.write(&[ulpf_rsp::INTERRUPT]).await
    }

    async fn packet(&mut self, end: Instant) -> Result<Option<Vec<u8>>, Failure> {
        match timeout_at(end, self.next()).await {
            Ok(Ok(packet)) => Ok(Some(packet)),
            Ok(Err(why)) => Err(self.lose(&why)),
            Err(_) => Ok(None),
        }
    }

    fn late(&mut self, request: &[u8], time: Duration) -> Failure {
        self.behind = true;
        let name = |b: &&u8| b.is_ascii_alphanumeric() || **b == b'.';
        let name: Vec<u8> = request.iter().take_while(name).take(20).copied().collect();
        Failure::Late(format!(
            "The back end has not answered `{}` for {} s. `kill` ends it.",
            String::from_utf8_lossy(&name),
            time.as_secs_f32()
        ))
    }

    /// Drops all replies that are owed.
    async fn catch_up(&mut self) -> Result<(), Failure> {
        const MARK: &[u8] = b"vMustReplyEmpty";
        if !self.behind {
            return Ok(());
        }
        self.send(MARK).await?;
        let end = Instant::now() + self.time_limit;
        loop {
            match self.packet(end).await? {
                Some(reply) if reply.is_empty() => {
                    self.behind = false;
                    return Ok(());
                }
                Some(_) => {}
                None => return Err(self.late(MARK, self.time_limit)),
            }
        }
    }

    /// Sends a packet to the stub of a stopped program, and returns its reply.
    pub async fn ask(&mut self, packet: &[u8]) -> Result<Vec<u8>, Failure> {
        self.ask_within(packet, self.time_limit).await
    }

    async fn ask_within(&mut self, packet: &[u8], time: Duration) -> Result<Vec<u8>, Failure> {
        self.catch_up().await?;
        self.send(packet).await?;
        let end = Instant::now() + time;
        loop {
            match self.packet(end).await? {
                Some(reply) if is_output(&reply) => {}
                Some(reply) => return Ok(reply),
                None => return Err(self.late(packet, time)),
            }
        }
    }

    /// As [`Remote::ask`], but an error reply is a failure.
    pub async fn fine(&mut self, packet: &[u8]) -> Result<Vec<u8>, Failure> {
        let reply = self.ask(packet).await?;
        match &reply[..] {
            [] => Err(Failure::refused("it does not know such packets")),
            [b'E', b'.', why @ ..] => Err(Failure::refused(String::from_utf8_lossy(why))),
            [b'E', _, _] => Err(Failure::refused(String::from_utf8_lossy(&reply))),
            _ => Ok(reply),
        }
    }

    /// A monitor command; returns its output.
    pub async fn monitor(&mut self, command: &str, time: Duration) -> Result<String, Failure> {
        let packet = format!("qRcmd,{}", ulpf_rsp::to_hex(command.as_bytes()));
        self.catch_up().await?;
        self.send(packet.as_bytes()).await?;
        let (mut text, end) = (String::new(), Instant::now() + time);
        loop {
            let Some(reply) = self.packet(end).await? else {
                return Err(self.late(packet.as_bytes(), time));
            };
            match &reply[..] {
                b"OK" => return Ok(text),
                [] => return Err(Failure::refused("it has no monitor commands")),
                [b'E', ..] => return Err(Failure::refused(String::from_utf8_lossy(&reply))),
                _ if is_output(&reply) => text += &text_of(&reply),
                hex => {
                    let bytes = ulpf_rsp::from_hex(hex).unwrap_or_default();
                    return Ok(text + &String::from_utf8_lossy(&bytes));
                }
            }
        }
    }

    /// Commands of ulpf, and one answer for each.
    pub async fn commands(
        &mut self,
        commands: &[Command],
        time: Duration,
    ) -> Result<Vec<command::Reply>, Failure> {
        let words: Vec<String> = commands.iter().map(Command::to_string).collect();
        let text = self.monitor(&words.join(";"), time).await?;
        let replies = text.lines().map(serde_json::from_str);
        match replies.collect::<Result<Vec<command::Reply>, _>>() {
            Ok(all) if all.len() == commands.len() => Ok(all),
            _ => Err(Failure::Late(
                "The back end's answer is none to such commands.".into(),
            )),
        }
    }

    /// The reply to one of ulpf's own packets, also while the program runs.
    async fn report(&mut self, ask: Ask, time: Duration) -> Result<Vec<u8>, Failure> {
        let packet = ask.packet();
        self.send(packet.as_bytes()).await?;
        let end = Instant::now() + time;
        loop {
            match self.packet(end).await? {
                Some(reply) if ask.is_answered_by(&reply) => return Ok(reply),
                Some(reply) if is_stop(&reply) || is_output(&reply) => {
                    self.events.push_back(reply);
                    if self.events.len() > MOST_EVENTS {
                        return Err(self.lose("it reports stop after stop, and answers nothing"));
                    }
                }
                // The late reply to an earlier request.
                Some(_) => {}
                None => {
                    let behind = self.behind;
                    let late = self.late(packet.as_bytes(), time);
                    // The replies to these requests are recognised.
                    self.behind = behind;
                    return Err(late);
                }
            }
        }
    }

    pub async fn counts(&mut self, from: u64, time: Duration) -> Result<Counts, Failure> {
        let reply = self.report(Ask::Counts(from), time).await?;
        Counts::parse(&reply).ok_or_else(|| self.lose("it says what is no list of counts"))
    }

    pub async fn hits(&mut self, since: u64, most: u64, time: Duration) -> Result<Hits, Failure> {
        let reply = self.report(Ask::Hits { since, most }, time).await?;
        Hits::parse(&reply).ok_or_else(|| self.lose("it says what is no list of hits"))
    }

    /// The next event of the running program. Cancel-safe.
    pub async fn event(&mut self) -> Said {
        loop {
            // The last words of a connection that is lost count.
            let packet = match (self.events.pop_front(), &self.lost) {
                (Some(packet), _) => packet,
                (None, Some(why)) => return Said::Lost(why.clone()),
                (None, None) => match self.next().await {
                    Ok(packet) => packet,
                    Err(why) => return Said::Lost(self.lose(&why).to_string()),
                },
            };
            // (Each is one event; a program may print without end.)
            self.budget.renew();
            match &packet[..] {
                _ if is_output(&packet) => return Said::Text(text_of(&packet)),
                _ if is_stop(&packet) => return Said::Stop(packet),
                // A stub that refuses to resume the program.
                [] => return Said::Stop(b"S00".into()),
                [b'E', ..] => {
                    let why = String::from_utf8_lossy(&packet).into_owned();
                    self.events.push_front(b"S00".into());
                    return Said::Text(format!("The program does not run: {why}\n"));
                }
                // The late reply to a report.
                _ => {}
            }
        }
    }

    /// The `g` packet of the selected thread; unavailable bytes are zero.
    pub async fn registers(&mut self) -> Result<Vec<u8>, Failure> {
        let reply = self.fine(b"g").await?;
        let byte = |digits: &[u8]| ulpf_rsp::from_hex(digits).map_or(0, |b| b[0]);
        Ok(reply.chunks(2).map(byte).collect())
    }

    pub async fn read(&mut self, addr: u64, len: u64) -> Result<Vec<u8>, Failure> {
        let reply = self.fine(format!("m{addr:x},{len:x}").as_bytes()).await?;
        ulpf_rsp::from_hex(&reply).ok_or_else(|| Failure::refused("its answer is no memory"))
    }

    /// An object of `qXfer`, by its name and annex (`auxv:read:`), as far as `most` bytes; empty if the stub does not
    /// have it.
    pub async fn object(&mut self, name: &str, most: usize) -> Result<Vec<u8>, Failure> {
        let mut all = vec![];
        while all.len() < most {
            let packet = format!("qXfer:{name}:{:x},{:x}", all.len(), most - all.len());
            let reply = self.ask(packet.as_bytes()).await?;
            let Some((letter @ (b'm' | b'l'), more)) = reply.split_first() else {
                break;
            };
            all.extend(ulpf_rsp::unescape(more).unwrap_or_default());
            if *letter == b'l' || more.is_empty() {
                break;
            }
        }
        Ok(all)
    }
}
