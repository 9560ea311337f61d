//! The debugger's packets, relayed to a back end. Watches, monitor commands and stops are served here.
#![forbid(unsafe_code)]

mod commands;
pub mod fuzzing;
mod look;
mod pages;
mod points;
mod running;
mod sort;

use super::backend::BackEnd;
use super::mirror::Mirror;
use super::packets::Spec;
use super::remote::{Failure, Remote, Started, is_end, is_stop};
use super::start;
use super::watch_table::WatchTable;
use super::{monitor, packets};
use crate::answers;
use crate::client::{Client, Input};
use crate::common::Terminal;
use crate::host_io::HostIo;
use crate::packets::{PACKET_LIMIT, PACKET_SIZE, TOO_LONG};
use crate::watches::{LazyWatches, needs_them};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;
use ulpf_host::say::message;
use ulpf_lib::ring;
use ulpf_rsp::reports::{Role, Totals};
use ulpf_symbols::Program;

/// The actions of the simulators.
const ACTIONS: &[u8] = b"vCont;c;C;s;S";
/// Time limit for a back end to take note that it is to end.
const ENDING: Duration = Duration::from_secs(1);
/// Bytes of a target description that are looked at.
const DESCRIPTION: usize = 1 << 16;

pub struct Front {
    backend: BackEnd,
    program: Option<(OsString, Vec<OsString>)>,
    terminal: Terminal,
    /// Descriptors for the program's output.
    pub output: Option<[i32; 2]>,
    pub debug: bool,
    pub extended: bool,
    started: Option<Started>,
    /// The last stop; `None` while there is no program.
    stop: Option<Vec<u8>>,
    /// The end of the program has been reported to the debugger.
    ended: bool,
    /// The debugger's `qSupported`, for a back end that is started later.
    supported: Option<Vec<u8>>,
    lazy: LazyWatches,
    /// Breakpoints of the debugger: `0,ADDR,KIND`, `1,ADDR,KIND`.
    points: HashSet<Vec<u8>>,
    table: WatchTable,
    /// Number of watches set so far in a back end that does not number them.
    last_there: u64,
    /// The shared area for other readers; `None` before the program's start and after its end.
    mirror: Option<Mirror>,
    /// Names of the program, for the plugin.
    names: Program,
    totals: Totals,
    /// Watches of our own stub, by its numbers: the TSC when each was first seen.
    there_since: BTreeMap<u32, u64>,
    /// Last known bytes of watches, for back ends that report no values.
    values: HashMap<u32, Vec<u8>>,
    /// Messages for the user, printed at the next opportunity.
    to_tell: Vec<String>,
    /// Further watches that the last instruction has hit. Each is reported as a stop before the program continues, with
    /// the hit's record for the plugin.
    also: VecDeque<(u32, Vec<u8>, Option<ring::Hit>)>,
    /// The registers at this stop.
    registers: Option<Vec<u8>>,
    /// The back end's target description.
    description: Option<String>,
    host_io: HostIo,
}

/// The outcome of a packet for the connection.
enum Done {
    Reply(Vec<u8>),
    Silent,
    Close,
    Quit(i32),
}

fn ok() -> Done {
    Done::Reply(b"OK".into())
}

/// (The client's `send` replaces what a packet cannot have.)
fn error(f: &Failure) -> Done {
    Done::Reply(format!("E.{f}").into_bytes())
}

async fn tell(client: &mut Client, text: &str) {
    message!("ulpf server: {text}");
    print(client, &format!("{text}\n")).await;
}

/// Prints text in pieces that fit into packets.
async fn print(client: &mut Client, text: &str) {
    for piece in text.as_bytes().chunks(PACKET_SIZE / 4) {
        let _ = client
            .send(format!("O{}", ulpf_rsp::to_hex(piece)).as_bytes())
            .await;
    }
}

/// The key of a packet that sets or removes a breakpoint.
fn breakpoint(packet: &[u8]) -> Option<(bool, &[u8])> {
    match packet {
        [letter @ (b'Z' | b'z'), b'0' | b'1', b',', ..] => {
            let key = packet[1..].split(|&b| b == b';').next()?;
            Some((*letter == b'Z', key))
        }
        _ => None,
    }
}

fn resumes(packet: &[u8]) -> bool {
    packet.starts_with(b"vCont;") || matches!(packet.first(), Some(b'c' | b'C' | b's' | b'S'))
}

impl Front {
    pub fn new(
        backend: BackEnd,
        program: Option<(OsString, Vec<OsString>)>,
        terminal: Terminal,
        files: bool,
        debug: bool,
    ) -> Front {
        Front {
            backend,
            program,
            terminal,
            output: None,
            debug,
            extended: false,
            started: None,
            stop: None,
            ended: false,
            supported: None,
            lazy: LazyWatches::default(),
            points: HashSet::new(),
            table: WatchTable::default(),
            last_there: 0,
            mirror: None,
            names: Program::default(),
            totals: Totals::default(),
            there_since: BTreeMap::new(),
            values: HashMap::new(),
            to_tell: Vec::new(),
            also: VecDeque::new(),
            registers: None,
            description: None,
            host_io: HostIo::new(files),
        }
    }

    /// Whether the program or back end to start is known.
    pub fn can_start(&self) -> bool {
        self.program.is_some() || self.is_elsewhere()
    }

    /// Whether the back end has its program, and was not started here.
    fn is_elsewhere(&self) -> bool {
        matches!(self.backend, BackEnd::At(_))
    }

    pub fn has_program(&self) -> bool {
        self.is_connected() && !self.ended
    }

    fn is_connected(&self) -> bool {
        let started = self.started.as_ref();
        started.is_some_and(|s| s.remote.lost.is_none())
    }

    fn remote(&mut self) -> Result<&mut Remote, Failure> {
        match &mut self.started {
            Some(started) => Ok(&mut started.remote),
            None => Err(Failure::Lost("There is no program.".into())),
        }
    }

    fn role(&self) -> Role {
        let started = self.started.as_ref();
        started.map_or(Role::Plain, |s| s.remote.about.role)
    }

    /// Starts the back end. The error is text for the user.
    pub async fn start(&mut self) -> Result<(), String> {
        self.end().await;
        let shared = self.terminal == Terminal::Shared;
        let started =
            start::start(&self.backend, self.program.as_ref(), shared, self.output).await?;
        if self.terminal == Terminal::Program
            && let Some(pid) = started.child.as_ref().and_then(|c| c.id())
        {
            message!("Process {} created; pid = {pid}", started.remote.program);
        }
        self.started = Some(started);
        if let Some(packet) = self.supported.clone() {
            let text = |f: Failure| f.to_string();
            self.remote()
                .map_err(text)?
                .ask(&packet)
                .await
                .map_err(text)?;
        }
        self.begin().await
    }

    /// Takes note of a program that has just been started.
    async fn begin(&mut self) -> Result<(), String> {
        self.forget_program();
        self.ended = false;
        let Some(started) = &mut self.started else {
            return Ok(());
        };
        self.stop.clone_from(&started.remote.stop);
        self.ended = self.stop.is_none();
        if self.ended {
            return Ok(());
        }
        let pid = started.child.as_ref().and_then(|c| c.id());
        let pid = pid.unwrap_or(std::process::id()) as i32;
        let bias = start::bias(&mut started.remote).await;
        let bias = bias.map_err(|f| f.to_string())?;
        self.mirror = Some(Mirror::new(pid, bias, &started.remote.program)?);
        let own = std::process::id() as i32;
        self.names = Program::of_file(Path::new(&started.remote.program), bias, own);
        Ok(())
    }

    fn forget_program(&mut self) {
        (self.stop, self.registers, self.description) = (None, None, None);
        self.lazy = LazyWatches::default();
        (self.table, self.mirror) = (WatchTable::default(), None);
        self.totals = Totals::default();
        self.there_since.clear();
        self.values.clear();
        self.also.clear();
        self.points.clear();
    }

    /// Ends the program and its back end, if this front end started them; else the connection.
    pub async fn end(&mut self) {
        if let Some(mut started) = self.started.take()
            && started.ours
        {
            // A back end that does not answer is killed all the same.
            let _ = timeout(ENDING, started.remote.send(b"k")).await;
            if let Some(child) = &mut started.child {
                let _ = child.kill().await;
            }
        }
        self.forget_program();
    }

    /// Serves one debugger. Returns the exit status if the server is to end.
    pub async fn connection(&mut self, client: &mut Client) -> Option<i32> {
        self.host_io.close_all();
        self.extended = false;
        self.supported = None;
        loop {
            match client.next().await {
                Input::Gone => {
                    self.forget().await;
                    return None;
                }
                Input::Interrupt => {}
                // A front end of another server: this one has no reports.
                Input::Ask(_) => drop(client.send(b"").await),
                Input::Packet(packet) => {
                    let reply = match self.packet(client, &packet).await {
                        Done::Reply(reply) => reply,
                        Done::Silent => continue,
                        Done::Close => {
                            self.forget().await;
                            return None;
                        }
                        Done::Quit(status) => return Some(status),
                    };
                    let _ = client.send(&reply).await;
                }
            }
        }
    }

    /// Prepares for the next debugger. A stub that was not started here forgets the former one when its connection ends.
    /// The error is text for the user.
    pub async fn again(&mut self) -> Result<(), String> {
        match self.is_elsewhere() && self.has_program() {
            true => self.start().await,
            false => Ok(()),
        }
    }

    /// Removes the watches and breakpoints of a debugger that has disconnected.
    async fn forget(&mut self) {
        if !self.has_program() {
            self.forget_program();
        }
        if !self.has_program() || self.is_elsewhere() {
            return;
        }
        self.lazy = LazyWatches::default();
        self.table.understood = false;
        self.also.clear();
        for key in std::mem::take(&mut self.points) {
            if let Ok(remote) = self.remote() {
                let _ = remote.ask(&[b"z", &key[..]].concat()).await;
            }
        }
        let theirs: Vec<u32> = self.table.watches.keys().copied().collect();
        let _ = self.disarm(&theirs).await;
    }

    async fn packet(&mut self, client: &mut Client, packet: &[u8]) -> Done {
        let rest = |p: &str| packet.strip_prefix(p.as_bytes());
        if self.lazy.settles(packet) {
            return ok();
        }
        match packet {
            b"QStartNoAckMode" => {
                let _ = client.send(b"OK").await;
                client.stop_acks();
                return Done::Silent;
            }
            b"!" => {
                self.extended = true;
                // A stub that knows no extended mode ends with its program; that is the debugger's affair then.
                if let (true, Ok(remote)) = (self.is_elsewhere(), self.remote()) {
                    let _ = remote.ask(packet).await;
                }
                return ok();
            }
            b"k" => return self.kill(None).await,
            b"D" => return self.detach(packet).await,
            // Stops are answers here, not notifications.
            b"QNonStop:0" => return ok(),
            b"QNonStop:1" => return Done::Reply(b"E01".into()),
            _ if packet.len() > PACKET_LIMIT => return Done::Reply(TOO_LONG.into()),
            _ => {}
        }
        if rest("qSupported").is_some() {
            return self.features(packet).await;
        }
        if let Some(hex) = rest("qRcmd,") {
            return self.monitor(client, hex).await;
        }
        if rest("vKill;").is_some() {
            return self.kill(Some(packet)).await;
        }
        if rest("D;").is_some() {
            return self.detach(packet).await;
        }
        if !self.is_elsewhere() {
            if let Some(request) = rest("vFile:") {
                return Done::Reply(self.host_io.answer(request));
            }
            if let Some(words) = rest("vRun;") {
                return self.run(words).await;
            }
            if packet == b"vCont?" {
                return Done::Reply(ACTIONS.into());
            }
            if rest("qAttached").is_some() {
                return Done::Reply(b"0".into());
            }
        }
        // A stub elsewhere may have other programs, or none yet.
        match self.has_program() || self.is_elsewhere() && self.is_connected() {
            true => self.relay(client, packet).await,
            false => self.without_program(packet),
        }
    }

    fn without_program(&self, packet: &[u8]) -> Done {
        let known = match packet {
            b"?" => return Done::Reply(b"W00".into()),
            [
                b'g' | b'G' | b'm' | b'M' | b'X' | b'p' | b'P' | b'Z' | b'z' | b'T' | b'H',
                ..,
            ] => true,
            // (These packets are announced, so the answer must be an error: GDB would read another one as "unknown packet".)
            _ => resumes(packet) || packet.starts_with(b"qXfer:"),
        };
        Done::Reply(match known {
            true => b"E.There is no program; `run` starts one.".into(),
            // With an empty answer, the debugger asks again when there is a program.
            false => Vec::new(),
        })
    }

    /// Serves a packet for a stopped program: watches and runs are served here, all others by the back end.
    async fn relay(&mut self, client: &mut Client, packet: &[u8]) -> Done {
        if let [letter @ (b'Z' | b'z'), key @ ..] = packet
            && Spec::parse(key).is_some()
        {
            return match self.insert_or_remove(*letter == b'Z', key).await {
                Ok(reply) => Done::Reply(reply),
                Err(f) => error(&f),
            };
        }
        if resumes(packet) {
            return self.resume(client, packet).await;
        }
        if matches!(packet.first(), Some(b'G' | b'P' | b'H')) {
            self.registers = None;
        }
        let asked = match self.remote() {
            Ok(remote) => remote.ask(packet).await,
            Err(f) => Err(f),
        };
        let reply = match asked {
            Ok(reply) => reply,
            Err(f) => return error(&f),
        };
        if let (b"OK", Some((insert, key))) = (&reply[..], breakpoint(packet)) {
            match insert {
                true => self.points.insert(key.into()),
                false => self.points.remove(key),
            };
        }
        let starts = [&b"vRun;"[..], b"vAttach;"];
        if starts.iter().any(|p| packet.starts_with(p)) && is_stop(&reply) && !is_end(&reply) {
            if let Ok(remote) = self.remote() {
                remote.stop = Some(reply.clone());
            }
            if let Err(why) = self.begin().await {
                return error(&Failure::Late(why));
            }
        }
        Done::Reply(reply)
    }

    /// `qSupported`: what the debugger and the back end have in common, but acknowledgements and packet sizes, which
    /// are between the debugger and this server.
    async fn features(&mut self, packet: &[u8]) -> Done {
        self.supported = Some(packet.into());
        let theirs = match &mut self.started {
            Some(started) => started.remote.ask(packet).await,
            None => Ok(match self.backend {
                BackEnd::Sim => packets::SIMULATOR.into(),
                BackEnd::Gem5(_) | BackEnd::At(_) => vec![],
            }),
        };
        match theirs {
            Ok(theirs) => Done::Reply(packets::features(&theirs)),
            Err(f) => error(&f),
        }
    }

    async fn monitor(&mut self, client: &mut Client, hex: &[u8]) -> Done {
        let command = ulpf_rsp::from_hex(hex).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).trim().to_owned();
        if command == "exit" {
            let _ = client.send(b"OK").await;
            return Done::Quit(0);
        }
        if let Some(request) = answers::Request::of(command.as_bytes()) {
            let answer = self.answer_plugin(&request).await;
            print(client, &answer).await;
            return ok();
        }
        // Our own stub's counts include the watches that the debugger has removed, until it hears of that.
        let packet = [b"qRcmd,", hex].concat();
        if self.role() == Role::Commands && needs_them(&packet) {
            // A connection that has broken shows below.
            let _ = self.settle().await;
        }
        let text = match self.answer(&command).await {
            Ok(text) => text,
            Err(f) => format!("{f}\n"),
        };
        print(client, &text).await;
        ok()
    }

    async fn answer(&mut self, command: &str) -> Result<String, Failure> {
        let role = self.role();
        if command == "help" && role != Role::Commands {
            let exit = "exit                     end the server and its program\n";
            return Ok(format!("{exit}{}", monitor::HELP));
        }
        if self.started.is_none() {
            return Ok("There is no program; `run` starts one.\n".into());
        }
        if role != Role::Commands && self.is_command(command) {
            return Ok(self.commands(command).await);
        }
        let remote = self.remote()?;
        let words: Vec<&str> = command.split_whitespace().collect();
        match &words[..] {
            // Our own stub serves all commands itself; any stub, those that are not ulpf's.
            _ if role == Role::Commands => remote.monitor(command, monitor::LONG).await,
            ["ulpf", "stats", "json"] => monitor::statistics(remote, true).await,
            ["ulpf", "hits"] => monitor::hits(remote, 20).await,
            ["ulpf", "hits", n] => match ulpf_lib::number::number(Some(n)) {
                Some(n) => monitor::hits(remote, n).await,
                None => Ok(format!(
                    "`{n}` is no number; numbers are decimal, or hexadecimal with 0x\n"
                )),
            },
            ["ulpf", ..] => Ok(format!(
                "The {} back end has no command `{command}`. `monitor ulpf help` lists what there is.\n",
                remote.about.kind
            )),
            _ => remote.monitor(command, monitor::LONG).await,
        }
    }

    /// `vRun;PROGRAM;ARG…`, all in hex. An empty program means the previous one.
    async fn run(&mut self, words: &[u8]) -> Done {
        let words: Option<Vec<Vec<u8>>> = words
            .split(|&b| b == b';')
            .map(ulpf_rsp::from_hex)
            .collect();
        let Some(words) = words else {
            return Done::Reply(b"E01".into());
        };
        let mut words = words.into_iter().map(OsString::from_vec);
        let program = words.next().unwrap_or_default();
        if !program.is_empty() {
            self.program = Some((program, words.collect()));
        }
        let started = match self.start().await {
            Ok(()) => self.remote().map_err(|f| f.to_string()),
            Err(why) => Err(why),
        };
        match started {
            // The stop again, with the threads' numbers as this debugger has asked for them.
            Ok(remote) => match remote.ask(b"?").await {
                Ok(stop) => Done::Reply(stop),
                Err(f) => error(&f),
            },
            Err(why) => {
                message!("ulpf server: {why}");
                error(&Failure::Late(why))
            }
        }
    }

    /// `k`, or `vKill`, which is answered.
    async fn kill(&mut self, packet: Option<&[u8]>) -> Done {
        if let (true, Some(started)) = (self.is_elsewhere(), &mut self.started) {
            let done = match packet {
                Some(packet) => started.remote.ask(packet).await,
                None => started.remote.send(b"k").await.map(|()| vec![]),
            };
            self.ended = true;
            self.mirror = None;
            return match (done, packet) {
                (Ok(reply), Some(_)) => Done::Reply(reply),
                (Err(f), Some(_)) => error(&f),
                (_, None) if self.extended => Done::Silent,
                (_, None) => Done::Quit(0),
            };
        }
        self.end().await;
        self.ended = true;
        match (packet, self.extended) {
            (Some(_), _) => ok(),
            (None, true) => Done::Silent,
            (None, false) => Done::Quit(0),
        }
    }

    async fn detach(&mut self, packet: &[u8]) -> Done {
        if !self.is_elsewhere() {
            return Done::Reply(b"E.The simulated machine lives for its debugger, so its program cannot be let go. `kill` ends it.".into());
        }
        // Removed watches must not stop the program after the detach.
        let done = match self.settle().await {
            Ok(()) => match self.remote() {
                Ok(remote) => remote.ask(packet).await,
                Err(f) => Err(f),
            },
            Err(f) => Err(f),
        };
        match done {
            Ok(reply) => {
                self.ended = reply == b"OK";
                Done::Reply(reply)
            }
            Err(f) => error(&f),
        }
    }

    /// The registers of the thread that has stopped; empty if they cannot be read.
    async fn registers(&mut self) -> Vec<u8> {
        if let Some(all) = &self.registers {
            return all.clone();
        }
        let all = match self.remote() {
            Ok(remote) => remote.registers().await.unwrap_or_default(),
            Err(_) => vec![],
        };
        self.registers = Some(all.clone());
        all
    }

    /// The bytes of fs_base in registers of this length, if the back end's description has it.
    async fn thread_pointer(&mut self, len: usize) -> Option<Range<usize>> {
        if self.description.is_none() {
            let remote = self.remote().ok()?;
            let text = remote.object("features:read:target.xml", DESCRIPTION).await;
            let text = text.unwrap_or_default();
            self.description = Some(String::from_utf8_lossy(&text).into_owned());
        }
        packets::thread_pointer(len, self.description.as_deref()?)
    }
}
