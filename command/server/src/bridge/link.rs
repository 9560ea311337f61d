//! The connection to a back end: requests with time limits, events, and reconnection.
//!
//! One task owns the link and makes one request at a time. A late answer is recognised by its number and dropped. A
//! malformed line ends the connection, because later lines of such a peer cannot be trusted either.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use ulpf_bridge::{
    Ask, Capabilities, LAYOUTS, Lines, OLDEST, Refusal, Reply, Request, Said, State, Stop, VERSION,
    line,
};

/// Time limit for an answer. GDB itself gives up after about six seconds.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for a requested stop.
pub const STOPPING: Duration = Duration::from_secs(10);
/// Time limit for a back end to start or to come back.
const COMING: Duration = Duration::from_secs(5);
/// Time limit for the answer to `hello` after other lines, the remains of an earlier conversation.
const BEHIND: Duration = Duration::from_secs(1);

/// The address of a back end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    Unix(PathBuf),
    Tcp(String),
    /// None: the link cannot reconnect.
    Once,
}

impl Place {
    /// A path, or HOST:PORT.
    pub fn parse(text: &str) -> Place {
        match text.contains(':') && !text.contains('/') {
            true => Place::Tcp(match text.strip_prefix(':') {
                Some(port) => format!("127.0.0.1:{port}"),
                None => text.to_owned(),
            }),
            false => Place::Unix(text.into()),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "{}", path.display()),
            Place::Tcp(addr) => f.write_str(addr),
            Place::Once => f.write_str("a connection of its own"),
        }
    }
}

type Reader = Box<dyn AsyncRead + Unpin + Send>;
type Writer = Box<dyn AsyncWrite + Unpin + Send>;

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
        Place::Once => return Err(std::io::ErrorKind::NotConnected.into()),
    })
}

/// Why a request has failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The back end has refused it.
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

/// An event that is not an answer.
#[derive(Debug, PartialEq)]
pub enum Event {
    Stopped(Stop),
    Message(String),
    Lost(String),
}

/// Why the connection has ended.
enum Broken {
    Gone(String),
    /// The peer has sent a malformed line.
    Nonsense(String),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Broken::Gone(why) | Broken::Nonsense(why) => f.write_str(why),
        }
    }
}

pub struct Link {
    reader: Reader,
    writer: Writer,
    lines: Lines,
    place: Place,
    next: u64,
    events: VecDeque<Event>,
    answer: Option<(u64, Result<Reply, Refusal>)>,
    session: String,
    /// `hello` has been answered on this connection.
    greeted: bool,
    has_hung_up: bool,
    /// The link is lost for good; the reason.
    pub lost: Option<String>,
    pub backend: String,
    pub name: String,
    pub program: String,
    pub capabilities: Capabilities,
}

impl Link {
    /// Connects and says hello. Retries while a back end that was just started comes up. `alive` returns the reason if
    /// the back end will never come.
    pub async fn open(
        place: Place,
        mut alive: impl FnMut() -> Result<(), String>,
    ) -> Result<Link, String> {
        let end = Instant::now() + COMING;
        loop {
            let why = match connect(&place).await {
                Ok((reader, writer)) => {
                    match Link::said_hello(reader, writer, place.clone()).await {
                        Ok(link) => return Ok(link),
                        // A port forwarder accepts connections before the back end listens behind it.
                        Err(Broken::Gone(why)) => why,
                        Err(why) => return Err(why.to_string()),
                    }
                }
                Err(e) => e.to_string(),
            };
            alive()?;
            if Instant::now() > end {
                return Err(format!(
                    "No back end answers at {place}: {why}. Start it first, or look whether it listens there."
                ));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Says hello over an existing stream.
    pub async fn over(reader: Reader, writer: Writer, place: Place) -> Result<Link, String> {
        let link = Link::said_hello(reader, writer, place).await;
        link.map_err(|e| e.to_string())
    }

    async fn said_hello(reader: Reader, writer: Writer, place: Place) -> Result<Link, Broken> {
        let mut link = Link {
            reader,
            writer,
            lines: Lines::default(),
            place,
            next: 1,
            events: VecDeque::new(),
            answer: None,
            session: String::new(),
            greeted: false,
            has_hung_up: false,
            lost: None,
            backend: String::new(),
            name: String::new(),
            program: String::new(),
            capabilities: Capabilities::default(),
        };
        match link.hello(None).await {
            Ok(()) => Ok(link),
            Err(Failure::Lost(why)) if link.has_hung_up => Err(Broken::Gone(why)),
            Err(Failure::Late(_)) => Err(Broken::Nonsense(format!(
                "Something is at {}, but it does not answer `hello`. Start the back end there (in a guest: `ulpf bridge`), or look whether somebody else is connected to it.",
                link.place
            ))),
            Err(f) => Err(Broken::Nonsense(f.to_string())),
        }
    }

    async fn hello(&mut self, session: Option<String>) -> Result<(), Failure> {
        (self.greeted, self.has_hung_up) = (false, false);
        let hello = Request::Hello {
            versions: [OLDEST, VERSION],
            client: format!("ulpf {}", env!("CARGO_PKG_VERSION")),
            session: session.clone(),
        };
        let reply = self.ask(hello, PATIENCE).await?;
        let lost = |why: String| Failure::Lost(why);
        let Reply::Hello {
            version,
            backend,
            name,
            session: theirs,
            program,
            capabilities,
        } = reply
        else {
            return Err(lost(
                "The back end does not answer `hello` with its own.".into(),
            ));
        };
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(lost(format!(
                "The back end speaks version {version} of the bridge, this ulpf {OLDEST} to {VERSION}. Build both from the same source."
            )));
        }
        if !LAYOUTS.iter().any(|l| l.0 == capabilities.registers) {
            return Err(lost(format!(
                "The back end has registers that this ulpf does not know (\"{}\"). Build both from the same source.",
                capabilities.registers
            )));
        }
        if session.is_some_and(|ours| ours != theirs) {
            return Err(lost(
                "The back end has been started anew; its program and all watches are gone.".into(),
            ));
        }
        self.greeted = true;
        // Earlier events are covered by `status`.
        self.events.clear();
        (self.backend, self.name, self.session) = (backend, name, theirs);
        (self.program, self.capabilities) = (program, capabilities);
        Ok(())
    }

    /// One request and its answer. A request that only reads is repeated if the connection breaks and comes back.
    pub async fn request(&mut self, request: Request) -> Result<Reply, Failure> {
        self.request_within(request, PATIENCE).await
    }

    pub async fn request_within(
        &mut self,
        request: Request,
        time: Duration,
    ) -> Result<Reply, Failure> {
        if let Some(why) = &self.lost {
            return Err(Failure::Lost(why.clone()));
        }
        let asks = matches!(
            request,
            Request::Status
                | Request::Threads
                | Request::Registers { .. }
                | Request::Read { .. }
                | Request::Hits { .. }
                | Request::List
                | Request::Statistics
                | Request::Auxv
        );
        match self.ask(request.clone(), time).await {
            Err(Failure::Lost(why)) => {
                self.come_back(&why).await.map_err(Failure::Lost)?;
                match asks {
                    true => self.ask(request, time).await,
                    false => Err(Failure::Late(format!(
                        "The connection to the back end broke ({why}) and is back. Whether `{}` was done is not known; try again.",
                        request.name()
                    ))),
                }
            }
            answer => answer,
        }
    }

    async fn ask(&mut self, request: Request, time: Duration) -> Result<Reply, Failure> {
        let id = self.next;
        self.next += 1;
        let mut end = Instant::now() + time;
        let name = request.name();
        let late = || {
            Failure::Late(format!(
                "The back end has not answered `{name}` for {} s. `kill` ends it.",
                time.as_secs_f32()
            ))
        };
        let mut bytes = line(&Ask { id, request });
        if !self.greeted {
            // Ends a partial line that an earlier front end may have left.
            bytes.insert(0, b'\n');
        }
        match timeout_at(end, self.writer.write_all(&bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => {
                self.has_hung_up = true;
                return Err(Failure::Lost(format!("it cannot be written to: {e}")));
            }
            Err(_) => return Err(late()),
        }
        let mut nonsense = None;
        loop {
            match self.answer.take() {
                Some((of, answer)) if of == id => return answer.map_err(Failure::Refused),
                // The late answer to an earlier request.
                _ => {}
            }
            match timeout_at(end, self.read()).await {
                Ok(Ok(())) => {}
                Ok(Err(Broken::Nonsense(why))) if !self.greeted && nonsense.is_none() => {
                    end = end.min(Instant::now() + BEHIND);
                    nonsense = Some(why);
                }
                Ok(Err(why)) => {
                    self.has_hung_up = matches!(why, Broken::Gone(_)) && nonsense.is_none();
                    return Err(Failure::Lost(nonsense.unwrap_or(why.to_string())));
                }
                Err(_) => return Err(nonsense.map_or_else(late, Failure::Lost)),
            }
        }
    }

    /// Reads until one line has been understood. Cancel-safe.
    async fn read(&mut self) -> Result<(), Broken> {
        loop {
            match self.lines.take() {
                Ok(Some(text)) => {
                    match Said::parse(&text) {
                        Ok(Said::Answer { id, answer }) => self.answer = Some((id, answer)),
                        Ok(Said::Stopped(stop)) => self.events.push_back(Event::Stopped(stop)),
                        Ok(Said::Message(text)) => self.events.push_back(Event::Message(text)),
                        Err(why) => {
                            let start: String = text.chars().take(60).collect();
                            return Err(Broken::Nonsense(format!(
                                "it says what is no message of the bridge (`{start}`: {why})"
                            )));
                        }
                    }
                    return Ok(());
                }
                Ok(None) => {}
                Err(bad) => {
                    let why = format!("it says what is no message of the bridge ({bad})");
                    return Err(Broken::Nonsense(why));
                }
            }
            let mut buf = vec![0; 1 << 16];
            match self.reader.read(&mut buf).await {
                Ok(0) => return Err(Broken::Gone("it has closed the connection".into())),
                Ok(n) => self.lines.feed(&buf[..n]),
                Err(e) => return Err(Broken::Gone(format!("it cannot be read from: {e}"))),
            }
        }
    }

    /// The next event. Cancel-safe, except while it reconnects.
    pub async fn event(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if let Some(why) = &self.lost {
                return Event::Lost(why.clone());
            }
            // Late answers are overwritten.
            if let Err(why) = self.read().await {
                self.has_hung_up = matches!(why, Broken::Gone(_));
                if let Err(why) = self.come_back(&why.to_string()).await {
                    return Event::Lost(why);
                }
                // The state may have changed while the link was down.
                match self.ask(Request::Status, PATIENCE).await {
                    Ok(Reply::Status(State::Stopped { stop })) => return Event::Stopped(stop),
                    Ok(_) => {}
                    Err(f) => {
                        self.lost = Some(f.to_string());
                    }
                }
            }
        }
    }

    /// Tries to reconnect to the same session after the connection broke.
    async fn come_back(&mut self, why: &str) -> Result<(), String> {
        let told = format!("The connection to the back end is lost: {why}.");
        self.lost = Some(told.clone());
        if self.place == Place::Once || self.session.is_empty() || !self.has_hung_up {
            return Err(told);
        }
        let end = Instant::now() + COMING;
        while Instant::now() < end {
            if let Ok(Ok((reader, writer))) = timeout(COMING, connect(&self.place)).await {
                (self.reader, self.writer, self.lines) = (reader, writer, Lines::default());
                let session = Some(self.session.clone());
                match self.hello(session).await {
                    Ok(()) => {
                        self.lost = None;
                        return Ok(());
                    }
                    Err(Failure::Lost(why)) if why.contains("anew") => {
                        self.lost = Some(why.clone());
                        return Err(why);
                    }
                    Err(_) => {}
                }
            } else if let Place::Unix(path) = &self.place
                && !path.exists()
            {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        Err(told)
    }
}
