//! The debugger's packets, served by a back end over the bridge.
#![forbid(unsafe_code)]

use super::link::{Event, Failure, Link, STOPPING};
use super::packets;
use super::start::{self, BackEnd, Started};
use super::{Terminal, monitor};
use crate::inject::foreground;
use crate::rsp;
use crate::server::client::{Client, Input};
use crate::server::host_io::HostIo;
use crate::server::watches::LazyWatches;
use crate::server::{PACKET_LIMIT, PACKET_SIZE};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use ulpf_bridge::{Armed, Bytes, Feature, How, Reason, Reply, Request, State, Stop, WatchSpec};

const FEATURES: &str = "QStartNoAckMode+;vContSupported+;swbreak+;hwbreak+;qXfer:features:read+;qXfer:exec-file:read+;qXfer:auxv:read+";
/// Watches that go to the back end in one request.
const BATCH: usize = 1024;
/// For a request with many watches.
const LONG: Duration = Duration::from_secs(60);
/// To the front end's own debugger there is one process.
const AN_HOUR: Duration = Duration::from_secs(3600);

pub struct Front {
    backend: BackEnd,
    program: Option<(OsString, Vec<OsString>)>,
    terminal: Terminal,
    pub debug: bool,
    pub extended: bool,
    started: Option<Started>,
    /// The last stop; none while the program runs or there is none.
    stop: Option<Stop>,
    /// The debugger has been told of the program's end.
    ended: bool,
    lazy: LazyWatches,
    ids: HashMap<Vec<u8>, Vec<u64>>,
    /// Those watches: GDB ignores stops by watches that are not its own, unless they are plain traps.
    known: HashSet<u64>,
    /// Breakpoints that the debugger calls software breakpoints.
    soft: HashMap<u64, usize>,
    hard: HashMap<u64, usize>,
    /// The registers at this stop.
    registers: Option<Vec<u8>>,
    thread: u64,
    host_io: HostIo,
}

/// What is to become of the connection.
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

/// In pieces that fit into packets.
async fn print(client: &mut Client, text: &str) {
    for piece in text.as_bytes().chunks(PACKET_SIZE / 4) {
        let _ = client
            .send(format!("O{}", rsp::to_hex(piece)).as_bytes())
            .await;
    }
}

impl Front {
    pub fn new(
        backend: BackEnd,
        program: Option<(OsString, Vec<OsString>)>,
        terminal: Terminal,
        debug: bool,
    ) -> Front {
        Front {
            backend,
            program,
            terminal,
            debug,
            extended: false,
            started: None,
            stop: None,
            ended: false,
            lazy: LazyWatches::default(),
            ids: HashMap::new(),
            known: HashSet::new(),
            soft: HashMap::new(),
            hard: HashMap::new(),
            registers: None,
            thread: 1,
            host_io: HostIo::default(),
        }
    }

    /// Is there all that a back end needs to begin?
    pub fn can_start(&self) -> bool {
        self.program.is_some() || matches!(self.backend, BackEnd::At(_))
    }

    pub fn has_program(&self) -> bool {
        self.started.is_some() && !self.ended
    }

    /// The error is for the user.
    pub async fn start(&mut self) -> Result<(), String> {
        self.end().await;
        let shared = self.terminal == Terminal::Shared;
        let mut started = start::start(&self.backend, self.program.as_ref(), shared).await?;
        let stop = match started.link.request(Request::Status).await {
            Ok(Reply::Status(State::Stopped { stop })) => stop,
            Ok(_) => halt(&mut started.link).await?,
            Err(f) => return Err(f.to_string()),
        };
        if self.terminal == Terminal::Program
            && let Some(pid) = started.child.as_ref().and_then(|c| c.id())
        {
            message!("Process {} created; pid = {pid}", started.link.program);
        }
        self.thread = stop.thread;
        (self.stop, self.started, self.ended) = (Some(stop), Some(started), false);
        Ok(())
    }

    /// The program and its back end go, if they are ours.
    pub async fn end(&mut self) {
        if let Some(mut started) = self.started.take()
            && started.ours
        {
            // One that does not listen is killed all the same.
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
        self.ids.clear();
        self.known.clear();
        self.soft.clear();
        self.hard.clear();
    }

    /// Serves one debugger. `Some`: the server is to end, with this status.
    pub async fn connection(&mut self, client: &mut Client) -> Option<i32> {
        self.host_io = HostIo::default();
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

    /// What a debugger that has gone has set is not left to the next one.
    async fn forget(&mut self) {
        self.lazy = LazyWatches::default();
        let ids: Vec<u64> = self.ids.drain().flat_map(|(_, ids)| ids).collect();
        self.known.clear();
        let remove: Vec<u64> = self
            .soft
            .drain()
            .chain(self.hard.drain())
            .map(|b| b.0)
            .collect();
        if !self.has_program() {
            return;
        }
        if !remove.is_empty() {
            let insert = vec![];
            let _ = self.ask(Request::Breakpoints { insert, remove }).await;
        }
        if !ids.is_empty() {
            let _ = self.ask(Request::Unwatch { ids }).await;
        }
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
            return Done::Reply(crate::server::requests::TOO_LONG.into());
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
        match (self.has_program(), known || packet.starts_with(b"vCont;")) {
            (true, _) => self.with_program(client, packet).await,
            (false, true) => Done::Reply(b"E.There is no program; `run` starts one.".into()),
            // What there may be to ask is asked again when there is one.
            (false, false) => Done::Reply(Vec::new()),
        }
    }

    /// What only a program that rests can answer.
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
                if let Some(thread) = args.get(1..).and_then(rsp::hex_number).filter(|&n| n != 0) {
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
                let alive = rsp::hex_number(args).is_some_and(|n| all.contains(&n));
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
                match self.link().has(Feature::Auxv) {
                    true => self
                        .data(Request::Auxv)
                        .await
                        .map(|d| packets::part(&d, range)),
                    // An empty one: to know no such packet would go against what we said we support.
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

    fn link(&self) -> ulpf_bridge::Capabilities {
        self.started
            .as_ref()
            .map(|s| s.link.capabilities.clone())
            .unwrap_or_default()
    }

    async fn ask(&mut self, request: Request) -> Result<Reply, Failure> {
        match &mut self.started {
            Some(started) => started.link.request(request).await,
            None => Err(Failure::Lost("There is no program.".into())),
        }
    }

    async fn data(&mut self, request: Request) -> Result<Vec<u8>, Failure> {
        let name = request.name();
        match self.ask(request).await? {
            Reply::Data { data } => Ok(data.0),
            _ => Err(Failure::Late(format!(
                "The back end's answer is none to `{name}`."
            ))),
        }
    }

    async fn threads(&mut self) -> Result<Vec<u64>, Failure> {
        match self.ask(Request::Threads).await? {
            Reply::Threads { threads } => Ok(threads),
            _ => Ok(vec![self.thread]),
        }
    }

    async fn registers(&mut self) -> Result<Vec<u8>, Failure> {
        if let Some(all) = &self.registers {
            return Ok(all.clone());
        }
        let all = self
            .data(Request::Registers {
                thread: self.thread,
            })
            .await?;
        self.registers = Some(all.clone());
        Ok(all)
    }

    async fn read_register(&mut self, args: &[u8]) -> Result<Vec<u8>, Failure> {
        let Some(range) = rsp::hex_number(args).and_then(|n| packets::register(n as usize)) else {
            return Ok(b"E01".into());
        };
        let all = packets::all_registers(&self.registers().await?);
        Ok(all.as_bytes()[2 * range.start..2 * range.end].into())
    }

    async fn set_registers(&mut self, registers: Vec<u8>) -> Result<Vec<u8>, Failure> {
        self.registers = None;
        let (thread, registers) = (self.thread, Bytes(registers));
        self.ask(Request::SetRegisters { thread, registers })
            .await?;
        Ok(b"OK".into())
    }

    async fn write_registers(&mut self, args: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut all = self.registers().await?;
        // What is not available cannot be written.
        for (byte, digits) in all.iter_mut().zip(args.chunks(2)) {
            if let Some(value) = rsp::from_hex(digits) {
                *byte = value[0];
            }
        }
        self.set_registers(all).await
    }

    async fn write_register(&mut self, args: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut parts = args.splitn(2, |&b| b == b'=');
        let number = parts.next().and_then(rsp::hex_number);
        let value = parts.next().and_then(rsp::from_hex);
        let range = number.and_then(|n| packets::register(n as usize));
        let (Some(range), Some(value)) = (range, value) else {
            return Ok(b"E01".into());
        };
        let mut all = self.registers().await?;
        match all.get_mut(range) {
            Some(slot) if slot.len() == value.len() => slot.copy_from_slice(&value),
            _ => return Ok(b"E.The back end does not have this register.".into()),
        }
        self.set_registers(all).await
    }

    async fn read(&mut self, args: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut numbers = args.split(|&b| b == b',').map(rsp::hex_number);
        let (Some(Some(addr)), Some(Some(len))) = (numbers.next(), numbers.next()) else {
            return Ok(b"E01".into());
        };
        let len = len.min(PACKET_SIZE as u64 / 2 - 16);
        Ok(rsp::to_hex(&self.data(Request::Read { addr, len }).await?).into_bytes())
    }

    /// `ADDR,LEN:DATA`, in hex or binary.
    async fn write(&mut self, args: &[u8], hex: bool) -> Result<Vec<u8>, Failure> {
        let mut parts = args.splitn(2, |&b| b == b':');
        let mut numbers = parts
            .next()
            .unwrap_or_default()
            .split(|&b| b == b',')
            .map(rsp::hex_number);
        let text = parts.next().unwrap_or_default();
        let data = match hex {
            true => rsp::from_hex(text),
            false => Some(rsp::unescape(text)),
        };
        let (Some(Some(addr)), Some(Some(len)), Some(data)) =
            (numbers.next(), numbers.next(), data)
        else {
            return Ok(b"E01".into());
        };
        if data.len() as u64 != len {
            return Ok(b"E01".into());
        }
        if len > 0 {
            self.ask(Request::Write {
                addr,
                data: Bytes(data),
            })
            .await?;
        }
        Ok(b"OK".into())
    }

    async fn insert_or_remove(&mut self, insert: bool, args: &[u8]) -> Result<Vec<u8>, Failure> {
        if let Some(spec) = packets::watch(args) {
            let done = match insert {
                true => self.watch(args, spec).await,
                false => self.unwatch(vec![args.into()]).await,
            };
            done?;
            let letter: &[u8] = if insert { b"Z" } else { b"z" };
            self.lazy.accepted(&[letter, args].concat());
            return Ok(b"OK".into());
        }
        let mut fields = args.split(|&b| b == b',' || b == b';');
        let (kind, addr) = (fields.next(), fields.next().and_then(rsp::hex_number));
        let (Some(b"0" | b"1"), Some(addr)) = (kind, addr) else {
            return Ok(Vec::new());
        };
        if !self.link().has(Feature::Breakpoints) {
            return Ok(Vec::new());
        }
        let count = match kind {
            Some(b"0") => self.soft.entry(addr).or_default(),
            _ => self.hard.entry(addr).or_default(),
        };
        let was = *count;
        *count = if insert {
            was + 1
        } else {
            was.saturating_sub(1)
        };
        let there = |of: &HashMap<u64, usize>| of.get(&addr).is_some_and(|&n| n > 0);
        let wanted = there(&self.soft) || there(&self.hard);
        let (add, take) = if wanted {
            (vec![addr], vec![])
        } else {
            (vec![], vec![addr])
        };
        self.ask(Request::Breakpoints {
            insert: add,
            remove: take,
        })
        .await?;
        Ok(b"OK".into())
    }

    async fn watch(&mut self, key: &[u8], spec: WatchSpec) -> Result<(), Failure> {
        if !self.link().watches.contains(&spec.kind) {
            return Err(Failure::Late(format!(
                "This back end has no watches of this kind ({:?}).",
                spec.kind
            )));
        }
        match self
            .ask(Request::Watch {
                watches: vec![spec],
            })
            .await?
        {
            Reply::Watched { watches } => match watches.into_iter().next() {
                Some(Armed::Id(id)) => {
                    self.ids.entry(key.into()).or_default().push(id);
                    self.known.insert(id);
                    Ok(())
                }
                Some(Armed::Refused(why)) => Err(Failure::Refused(why)),
                None => Err(Failure::Late(
                    "The back end says nothing of the watch.".into(),
                )),
            },
            _ => Err(Failure::Late(
                "The back end's answer is none to `watch`.".into(),
            )),
        }
    }

    async fn unwatch(&mut self, keys: Vec<Vec<u8>>) -> Result<(), Failure> {
        let mut ids = vec![];
        for key in keys {
            ids.extend(self.ids.get_mut(&key).and_then(Vec::pop));
        }
        match (&mut self.started, ids.is_empty()) {
            (Some(started), false) => started
                .link
                .request_within(Request::Unwatch { ids }, LONG)
                .await
                .map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Tells the back end of the watches that the debugger has taken away for good.
    async fn settle(&mut self) -> Result<(), Failure> {
        loop {
            let overdue = self.lazy.overdue(BATCH);
            if overdue.is_empty() {
                return Ok(());
            }
            self.unwatch(overdue.into_iter().map(|p| p[1..].to_vec()).collect())
                .await?;
        }
    }

    async fn monitor(&mut self, client: &mut Client, hex: &[u8]) -> Done {
        let command = rsp::from_hex(hex).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).trim().to_owned();
        if command == "exit" {
            let _ = client.send(b"OK").await;
            return Done::Quit(0);
        }
        let text = match &mut self.started {
            _ if command == "help" => format!(
                "exit                     end the server and its program\n{}",
                monitor::HELP
            ),
            Some(started) => monitor::answer(&mut started.link, &command).await,
            None => "There is no program; `run` starts one.\n".into(),
        };
        print(client, &text).await;
        ok()
    }

    /// `vRun;PROGRAM;ARG…`, all in hex; an empty program means the one before.
    async fn run(&mut self, words: &[u8]) -> Done {
        let words: Option<Vec<Vec<u8>>> = words.split(|&b| b == b';').map(rsp::from_hex).collect();
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
        if self.link().has(Feature::Detach) {
            return match self.ask(Request::Detach).await {
                Ok(_) => {
                    (self.started, self.ended) = (None, true);
                    ok()
                }
                Err(f) => error(&f),
            };
        }
        match self.backend {
            // It waits for whoever comes next.
            BackEnd::At(_) => ok(),
            BackEnd::Sim | BackEnd::Gem5(_) => Done::Reply(
                b"E.The simulated machine lives for its debugger, so its program cannot be let go. `kill` ends it.".into(),
            ),
        }
    }

    async fn stop_reply(&mut self, stop: &Stop) -> Vec<u8> {
        if stop.reason.is_end() {
            return packets::stop_reply(stop, None, false).into_bytes();
        }
        self.thread = stop.thread;
        self.registers = None;
        let registers = self.registers().await.ok();
        if let Reason::Watch { hit, .. } = &stop.reason
            && !self.known.contains(&hit.watch)
        {
            let stop = Stop {
                reason: Reason::Step,
                ..stop.clone()
            };
            return packets::stop_reply(&stop, registers.as_deref(), false).into_bytes();
        }
        let soft = self.soft.get(&stop.pc).is_some_and(|&n| n > 0);
        packets::stop_reply(stop, registers.as_deref(), soft).into_bytes()
    }

    async fn resume(&mut self, client: &mut Client, action: packets::Action) -> Done {
        if let Err(f) = self.settle().await {
            return error(&f);
        }
        let how = if action.step {
            How::Step
        } else {
            How::Continue
        };
        let resume = Request::Resume {
            how,
            thread: action.thread,
            signal: action.signal,
        };
        match self.ask(resume).await {
            Ok(_) => {}
            // The debugger waits for a stop, and nothing else.
            Err(f) => return self.stay(client, &f.to_string()).await,
        }
        self.registers = None;
        let child = self.started.as_ref().and_then(|s| s.child.as_ref()?.id());
        if let Some(pid) = child {
            foreground::to_program(pid as i32);
        }
        let done = self.running(client).await;
        if self.terminal == Terminal::Shared {
            foreground::to_debugger();
        }
        done
    }

    /// The program does not run, whatever was wanted: the debugger gets its prompt back, and the reason.
    async fn stay(&mut self, client: &mut Client, why: &str) -> Done {
        tell(client, why).await;
        let lost = self.started.as_ref().is_none_or(|s| s.link.lost.is_some());
        if lost {
            self.ended = true;
            return Done::Reply(b"X09".into());
        }
        Done::Reply(format!("T00thread:{:x};", self.thread).into_bytes())
    }

    async fn running(&mut self, client: &mut Client) -> Done {
        // When an interruption has to have come about.
        let mut by = Instant::now() + AN_HOUR;
        let mut asked = false;
        let mut gone = false;
        loop {
            let Some(started) = &mut self.started else {
                return Done::Reply(b"X09".into());
            };
            tokio::select! {
                biased;
                event = started.link.event() => match event {
                    Event::Message(text) => print(client, &format!("{text}\n")).await,
                    Event::Stopped(stop) => {
                        let reply = self.stopped(client, stop).await;
                        return if gone { Done::Close } else { Done::Reply(reply) };
                    }
                    Event::Lost(why) => return self.stay(client, &why).await,
                },
                () = sleep_until(by), if asked => {
                    let name = started.link.backend.clone();
                    let why = format!("The {name} back end has been told to stop and has not for {} s. `kill` ends it.", STOPPING.as_secs());
                    if gone {
                        return Done::Close;
                    }
                    tell(client, &why).await;
                    return Done::Reply(format!("T02thread:{:x};", self.thread).into_bytes());
                }
                input = client.next_urgent(), if !gone => {
                    gone = input == Input::Gone;
                    if !asked {
                        (asked, by) = (true, Instant::now() + STOPPING);
                    }
                    if let Err(f) = started.link.request(Request::Interrupt).await
                        && !gone
                    {
                        tell(client, &f.to_string()).await;
                    }
                }
            }
        }
    }

    async fn stopped(&mut self, client: &mut Client, stop: Stop) -> Vec<u8> {
        match &stop.reason {
            Reason::Failed { why } => {
                tell(client, &format!("The machine cannot go on: {why}")).await
            }
            Reason::Signal { number, why } => {
                print(client, &format!("signal {number}: {why}\n")).await;
            }
            Reason::Exited { status } if self.terminal == Terminal::Program => {
                message!("\nChild exited with status {status}");
            }
            Reason::Killed { number, .. } if self.terminal == Terminal::Program => {
                let number = i32::from(*number);
                message!(
                    "\nChild terminated with signal = {:#x} ({})",
                    crate::signals::to_gdb(number),
                    crate::signals::name(number)
                );
            }
            _ => {}
        }
        self.ended = stop.reason.is_end();
        let reply = self.stop_reply(&stop).await;
        self.stop = Some(stop);
        reply
    }
}

/// A program that runs when the front end comes is stopped first.
async fn halt(link: &mut Link) -> Result<Stop, String> {
    link.request(Request::Interrupt)
        .await
        .map_err(|f| f.to_string())?;
    let end = Instant::now() + STOPPING;
    loop {
        match tokio::time::timeout_at(end, link.event()).await {
            Ok(Event::Stopped(stop)) => return Ok(stop),
            Ok(Event::Message(text)) => message!("{text}"),
            Ok(Event::Lost(why)) => return Err(why),
            Err(_) => return Err("The back end's program runs and cannot be stopped.".into()),
        }
    }
}
