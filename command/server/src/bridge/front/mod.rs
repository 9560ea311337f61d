//! The debugger's packets, served by a back end over the bridge.
#![forbid(unsafe_code)]

mod commands;
pub mod fuzzing;
mod look;
mod pages;
mod points;
mod running;
mod sort;
mod state;

use super::backend::{BackEnd, Started};
use super::link::Failure;
use super::mirror::Mirror;
use super::start;
use super::watch_table::WatchTable;
use super::{monitor, packets};
use crate::answers;
use crate::client::{Client, Input};
use crate::common::Terminal;
use crate::host_io::HostIo;
use crate::packets::{PACKET_LIMIT, PACKET_SIZE, TOO_LONG};
use crate::watches::LazyWatches;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;
use ulpf_bridge::{Feature, Reply, Request, State, Stop, Totals};
use ulpf_host::say::message;
use ulpf_lib::ring;
use ulpf_symbols::Program;

const FEATURES: &str = "QStartNoAckMode+;vContSupported+;swbreak+;hwbreak+;qXfer:features:read+;qXfer:exec-file:read+;qXfer:auxv:read+";
pub struct Front {
    backend: BackEnd,
    program: Option<(OsString, Vec<OsString>)>,
    terminal: Terminal,
    /// Descriptors for the program's output.
    pub output: Option<[i32; 2]>,
    pub debug: bool,
    pub extended: bool,
    started: Option<Started>,
    /// The last stop; `None` while the program runs or there is no program.
    stop: Option<Stop>,
    /// The end of the program has been reported to the debugger.
    ended: bool,
    lazy: LazyWatches,
    table: WatchTable,
    /// The shared area for other readers; `None` before the program's start and after its end.
    mirror: Option<Mirror>,
    /// Names of the program, for the plugin.
    names: Program,
    totals: Totals,
    /// Watches of our own stub behind a proxy, by its numbers: the TSC when each was first seen.
    there_since: BTreeMap<u32, u64>,
    /// Last known bytes of watches, for back ends that report no values.
    values: HashMap<u32, Vec<u8>>,
    /// Messages for the user, printed at the next opportunity.
    to_tell: Vec<String>,
    /// Further watches that the last instruction has hit. Each is reported as a stop before the program continues, with
    /// the hit's record for the plugin.
    also: VecDeque<(Stop, Option<ring::Hit>)>,
    /// Breakpoints by address; `soft` are those that the debugger inserted as software breakpoints.
    soft: HashMap<u64, usize>,
    hard: HashMap<u64, usize>,
    /// The registers at this stop.
    registers: Option<Vec<u8>>,
    thread: u64,
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

fn error(f: &Failure) -> Done {
    let text = f.to_string().replace(['#', '$', '}', '*', '\n'], " ");
    Done::Reply(format!("E.{text}").into_bytes())
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
            lazy: LazyWatches::default(),
            table: WatchTable::default(),
            mirror: None,
            names: Program::default(),
            totals: Totals::default(),
            there_since: BTreeMap::new(),
            values: HashMap::new(),
            to_tell: Vec::new(),
            also: VecDeque::new(),
            soft: HashMap::new(),
            hard: HashMap::new(),
            registers: None,
            thread: 1,
            host_io: HostIo::new(files),
        }
    }

    /// Whether the program or back end to start is known.
    pub fn can_start(&self) -> bool {
        self.program.is_some() || matches!(self.backend, BackEnd::At(_))
    }

    pub fn has_program(&self) -> bool {
        self.started.is_some() && !self.ended
    }

    /// Starts the back end. The error is text for the user.
    pub async fn start(&mut self) -> Result<(), String> {
        self.end().await;
        let shared = self.terminal == Terminal::Shared;
        let mut started =
            start::start(&self.backend, self.program.as_ref(), shared, self.output).await?;
        let stop = match started.link.request(Request::Status).await {
            Ok(Reply::Status(State::Stopped { stop })) => stop,
            Ok(_) => start::halt(&mut started.link).await?,
            Err(f) => return Err(f.to_string()),
        };
        if self.terminal == Terminal::Program
            && let Some(pid) = started.child.as_ref().and_then(|c| c.id())
        {
            message!("Process {} created; pid = {pid}", started.link.program);
        }
        let pid = started.child.as_ref().and_then(|c| c.id());
        let pid = pid.unwrap_or(std::process::id()) as i32;
        let program = started.link.program.clone();
        let bias = start::bias(&mut started.link).await;
        self.mirror = Some(Mirror::new(pid, bias, &program)?);
        let own = std::process::id() as i32;
        self.names = Program::of_file(Path::new(&program), bias, own);
        self.thread = stop.thread;
        (self.stop, self.started, self.ended) = (Some(stop), Some(started), false);
        Ok(())
    }

    /// Ends the program and its back end, if this front end started them.
    pub async fn end(&mut self) {
        if let Some(mut started) = self.started.take()
            && started.ours
        {
            // A back end that does not answer is killed all the same.
            if started.link.lost.is_none() {
                let time = Duration::from_secs(1);
                let _ = started.link.request_within(Request::Kill, time).await;
            }
            if let Some(child) = &mut started.child {
                let _ = child.kill().await;
            }
        }
        (self.stop, self.registers) = (None, None);
        self.lazy = LazyWatches::default();
        (self.table, self.mirror) = (WatchTable::default(), None);
        self.totals = Totals::default();
        self.there_since.clear();
        self.values.clear();
        self.also.clear();
        self.soft.clear();
        self.hard.clear();
    }

    /// Serves one debugger. Returns the exit status if the server is to end.
    pub async fn connection(&mut self, client: &mut Client) -> Option<i32> {
        self.host_io.close_all();
        self.extended = false;
        loop {
            match client.next().await {
                Input::Gone => {
                    self.forget().await;
                    return None;
                }
                Input::Interrupt => {}
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

    /// Removes the watches and settings of a debugger that has disconnected.
    async fn forget(&mut self) {
        self.lazy = LazyWatches::default();
        self.table.understood = false;
        let theirs: Vec<u32> = self.table.watches.keys().copied().collect();
        let remove: Vec<u64> = self
            .soft
            .drain()
            .chain(self.hard.drain())
            .map(|b| b.0)
            .collect();
        if !self.has_program() {
            self.table = WatchTable::default();
            return;
        }
        if !remove.is_empty() {
            let insert = vec![];
            let _ = self.ask(Request::Breakpoints { insert, remove }).await;
        }
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
                return ok();
            }
            b"?" => {
                return Done::Reply(match (&self.stop, self.has_program()) {
                    (Some(stop), true) => self.stop_reply(&stop.clone()).await,
                    _ => b"W00".into(),
                });
            }
            b"k" => return self.kill(client, false).await,
            b"vCont?" => return Done::Reply(b"vCont;c;C;s;S".into()),
            b"qC" => return Done::Reply(format!("QC{:x}", self.thread).into_bytes()),
            b"qsThreadInfo" => return Done::Reply(b"l".into()),
            b"qAttached" => return Done::Reply(b"0".into()),
            b"D" => return self.detach().await,
            _ => {}
        }
        if rest("qSupported").is_some() {
            return Done::Reply(format!("PacketSize={PACKET_SIZE:x};{FEATURES}").into_bytes());
        }
        if let Some(request) = rest("vFile:") {
            return Done::Reply(self.host_io.answer(request));
        }
        if let Some(range) = rest("qXfer:features:read:target.xml:") {
            return Done::Reply(packets::part(packets::description().as_bytes(), range));
        }
        if let Some(hex) = rest("qRcmd,") {
            return self.monitor(client, hex).await;
        }
        if rest("vKill;").is_some() {
            return self.kill(client, true).await;
        }
        if rest("D;").is_some() {
            return self.detach().await;
        }
        if let Some(words) = rest("vRun;") {
            return self.run(words).await;
        }
        if packet.len() > PACKET_LIMIT {
            return Done::Reply(TOO_LONG.into());
        }
        let known = matches!(
            packet.first(),
            Some(
                b'g' | b'G'
                    | b'm'
                    | b'M'
                    | b'X'
                    | b'p'
                    | b'P'
                    | b'Z'
                    | b'z'
                    | b'c'
                    | b'C'
                    | b's'
                    | b'S'
                    | b'T'
                    | b'H'
            )
        );
        // (These packets are announced, so the answer must be an error: GDB would read another one as "unknown packet".)
        let known = known || packet.starts_with(b"vCont;") || packet.starts_with(b"qXfer:");
        match (self.has_program(), known) {
            (true, _) => self.with_program(client, packet).await,
            (false, true) => Done::Reply(b"E.There is no program; `run` starts one.".into()),
            // With an empty answer, the debugger asks again when there is a program.
            (false, false) => Done::Reply(Vec::new()),
        }
    }

    /// Serves packets that need a stopped program.
    async fn with_program(&mut self, client: &mut Client, packet: &[u8]) -> Done {
        let Some((&letter, args)) = packet.split_first() else {
            return Done::Reply(Vec::new());
        };
        match letter {
            b'v' if !packet.starts_with(b"vCont;") => return Done::Reply(Vec::new()),
            b'v' | b'c' | b'C' | b's' | b'S' => {
                return match packets::action(packet) {
                    Some(action) => self.resume(client, action).await,
                    None => Done::Reply(b"E.This is no action that the back end knows.".into()),
                };
            }
            b'H' => {
                if let Some(thread) = args
                    .get(1..)
                    .and_then(ulpf_rsp::hex_number)
                    .filter(|&n| n != 0)
                {
                    if self.thread != thread {
                        self.registers = None;
                    }
                    self.thread = thread;
                }
                return ok();
            }
            _ => {}
        }
        let done = match letter {
            b'g' => self
                .registers()
                .await
                .map(|r| packets::all_registers(&r).into_bytes()),
            b'p' => self.read_register(args).await,
            b'G' => self.write_registers(args).await,
            b'P' => self.write_register(args).await,
            b'm' => self.read(args).await,
            b'M' => self.write(args, true).await,
            b'X' => self.write(args, false).await,
            b'Z' | b'z' => self.insert_or_remove(letter == b'Z', args).await,
            b'T' => self.threads().await.map(|all| {
                let alive = ulpf_rsp::hex_number(args).is_some_and(|n| all.contains(&n));
                if alive { b"OK".into() } else { b"E01".into() }
            }),
            _ if packet == b"qfThreadInfo" => self.threads().await.map(|all| {
                let all: Vec<String> = all.iter().map(|n| format!("{n:x}")).collect();
                format!("m{}", all.join(",")).into_bytes()
            }),
            _ if packet.starts_with(b"qXfer:exec-file:read:") => {
                let program = self.started.as_ref().map(|s| s.link.program.clone());
                let range = packet.rsplit(|&b| b == b':').next().unwrap_or_default();
                Ok(packets::part(program.unwrap_or_default().as_bytes(), range))
            }
            _ if packet.starts_with(b"qXfer:auxv:read:") => {
                let range = packet.rsplit(|&b| b == b':').next().unwrap_or_default();
                match self.can().has(Feature::Auxv) {
                    true => self
                        .data(Request::Auxv)
                        .await
                        .map(|d| packets::part(&d, range)),
                    // An empty document, because the packet is announced as supported.
                    false => Ok(packets::part(&[], range)),
                }
            }
            _ => Ok(Vec::new()),
        };
        match done {
            Ok(reply) => Done::Reply(reply),
            Err(f) => error(&f),
        }
    }

    /// Whether our own stub is behind a proxy: it then serves all commands itself.
    fn forwards(&self) -> bool {
        let can = self.can();
        can.has(Feature::Monitor) && !can.has(Feature::Statistics)
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
        let is_command = self.is_command(&command);
        let text = match &mut self.started {
            _ if command == "help" => format!(
                "exit                     end the server and its program\n{}",
                monitor::HELP
            ),
            Some(_) if is_command => self.commands(&command).await,
            Some(started) => monitor::answer(&mut started.link, &command).await,
            None => "There is no program; `run` starts one.\n".into(),
        };
        print(client, &text).await;
        ok()
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
        if matches!(self.backend, BackEnd::At(_)) {
            return Done::Reply(
                b"E.This back end has its program already; it cannot be started again from here."
                    .into(),
            );
        }
        if !program.is_empty() {
            self.program = Some((program, words.collect()));
        }
        match self.start().await {
            Ok(()) => match self.stop.clone() {
                Some(stop) => Done::Reply(self.stop_reply(&stop).await),
                None => Done::Reply(b"E01".into()),
            },
            Err(why) => {
                message!("ulpf server: {why}");
                error(&Failure::Late(why))
            }
        }
    }

    async fn kill(&mut self, client: &mut Client, answer: bool) -> Done {
        self.end().await;
        self.ended = true;
        match (answer, self.extended) {
            (true, _) => ok(),
            (false, true) => {
                let _ = client;
                Done::Silent
            }
            (false, false) => Done::Quit(0),
        }
    }

    async fn detach(&mut self) -> Done {
        if self.can().has(Feature::Detach) {
            return match self.ask(Request::Detach).await {
                Ok(_) => {
                    (self.started, self.ended) = (None, true);
                    ok()
                }
                Err(f) => error(&f),
            };
        }
        match self.backend {
            // The back end waits for its next client.
            BackEnd::At(_) => ok(),
            BackEnd::Sim | BackEnd::Gem5(_) => Done::Reply(
                b"E.The simulated machine lives for its debugger, so its program cannot be let go. `kill` ends it.".into(),
            ),
        }
    }
}
