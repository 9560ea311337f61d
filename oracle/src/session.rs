//! A program under `ulpf server` on stdin and stdout: the protocol, as far as it is needed here.

use crate::bench::spawn;
use crate::program::Watch;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use ulpf_lib::command::Reply;
use ulpf_rsp::{Decoder, Event, expand_runs, frame, from_hex, to_hex, unescape};

/// A program of the generator runs for a second or so between two markers, on a busy machine for half a minute.
const TIMEOUT_MS: i32 = 120_000;

pub struct Session {
    server: Child,
    to: ChildStdin,
    from: ChildStdout,
    decoder: Decoder,
    /// Messages received and not yet returned.
    ready: VecDeque<String>,
    /// Notifications of stops, not yet returned.
    notified: VecDeque<String>,
    /// Stops acknowledged to the server, in order (non-stop mode).
    stops: VecDeque<String>,
    /// Watch number to index in the epoch.
    pub ids: HashMap<u32, u32>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Session {
    /// `command` is `ulpf server`, but for what is always the same. The program rests at its beginning.
    pub fn start(command: &mut Command) -> Result<Session> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut server = spawn(command).with_context(|| format!("cannot start {command:?}"))?;
        let mut s = Session {
            to: server.stdin.take().context("no stdin")?,
            from: server.stdout.take().context("no stdout")?,
            server,
            decoder: Decoder::default(),
            ready: VecDeque::new(),
            notified: VecDeque::new(),
            stops: VecDeque::new(),
            ids: HashMap::new(),
        };
        s.request("qSupported:swbreak+;hwbreak+;vContSupported+")?;
        s.request("QStartNoAckMode")?;
        // As in gdb, SIGCHLD does not stop the program.
        s.request("QPassSignals:14")?;
        let stopped = s.request("?")?;
        ensure!(stopped.starts_with('T'), "the server says {stopped}");
        Ok(s)
    }

    fn send(&mut self, body: &str) -> Result<()> {
        Ok(self.to.write_all(&frame(body.as_bytes()))?)
    }

    fn receive(&mut self) -> Result<String> {
        self.receive_within(TIMEOUT_MS)?
            .with_context(|| format!("no answer for {} s: it hangs", TIMEOUT_MS / 1000))
    }

    /// `None`: nothing came in that time.
    fn receive_within(&mut self, milliseconds: i32) -> Result<Option<String>> {
        loop {
            if let Some(reply) = self.ready.pop_front() {
                return Ok(Some(reply));
            }
            if !self.hear_within(milliseconds)? {
                return Ok(None);
            }
        }
    }

    /// Takes what comes. False: nothing did in that time.
    fn hear_within(&mut self, milliseconds: i32) -> Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.from.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor of ours.
        let ready = unsafe { libc::poll(&mut poll, 1, milliseconds) };
        if ready == 0 {
            return Ok(false);
        }
        ensure!(ready > 0, "poll: {}", std::io::Error::last_os_error());
        let mut buf = [0; 65536];
        let n = self.from.read(&mut buf)?;
        ensure!(n > 0, "the server is gone");
        let mut broken = None;
        self.decoder.feed(&buf[..n], |event| match event {
            Event::Packet(body) => {
                let body = expand_runs(&body).unwrap_or(body);
                let body = unescape(&body).unwrap_or(body);
                let text = String::from_utf8_lossy(&body).into_owned();
                self.ready.push_back(text);
            }
            Event::Notification(body) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                self.notified
                    .extend(text.strip_prefix("Stop:").map(str::to_string));
            }
            Event::BadChecksum { .. } | Event::Oversize => broken = Some(event),
            _ => {}
        });
        ensure!(broken.is_none(), "the server sends {broken:?}");
        Ok(true)
    }

    /// Goes on, and interrupts the program after some milliseconds; the stop reply.
    pub fn resume_for(&mut self, milliseconds: u64) -> Result<String> {
        self.send("vCont;c")?;
        let mut interrupted = false;
        let end = Instant::now() + Duration::from_millis(milliseconds);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let reply = match interrupted {
                false => self.receive_within(left.as_millis() as i32)?,
                true => Some(self.receive()?),
            };
            match reply {
                Some(text) if text.starts_with('O') => {}
                Some(text) => return Ok(text),
                None => {
                    self.to.write_all(b"\x03")?;
                    interrupted = true;
                }
            }
        }
    }

    /// From now on each thread stops and goes on by itself; all are stopped.
    pub fn non_stop(&mut self) -> Result<()> {
        ensure!(self.request("QNonStop:1")? == "OK", "no non-stop mode");
        let first = self.request("?")?;
        ensure!(first.starts_with('T'), "nothing is stopped: {first}");
        while self.request("vStopped")? != "OK" {}
        Ok(())
    }

    /// Non-stop: the next stop of a thread; `None`: there was none in that time.
    pub fn stop_within(&mut self, milliseconds: u64) -> Result<Option<String>> {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        loop {
            if let Some(stop) = self.stops.pop_front() {
                return Ok(Some(stop));
            }
            if let Some(stop) = self.notified.pop_front() {
                self.stops.push_back(stop);
                loop {
                    let next = self.request("vStopped")?;
                    if next == "OK" {
                        break;
                    }
                    self.stops.push_back(next);
                }
                continue;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.hear_within(left.as_millis().max(1) as i32)?;
        }
    }

    /// Non-stop: threads go on, or one stops.
    pub fn order(&mut self, actions: &str) -> Result<()> {
        let reply = self.request(actions)?;
        ensure!(reply == "OK", "{actions} is answered with {reply}");
        Ok(())
    }

    /// The program's threads, as stops name them.
    pub fn threads(&mut self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        let mut reply = self.request("qfThreadInfo")?;
        while let Some(list) = reply.strip_prefix('m') {
            let short = |id: &str| id.trim_start_matches('0').to_string();
            all.extend(list.split(',').map(short));
            reply = self.request("qsThreadInfo")?;
        }
        Ok(all)
    }

    pub fn request(&mut self, body: &str) -> Result<String> {
        self.send(body)?;
        self.receive()
    }

    /// Goes on; the stop reply.
    pub fn resume(&mut self) -> Result<String> {
        self.send("vCont;c")?;
        loop {
            let reply = self.receive()?;
            if !reply.starts_with('O') {
                return Ok(reply);
            }
        }
    }

    /// The program's process number.
    pub fn program(&mut self) -> Result<i32> {
        let reply = self.request("qC")?;
        let thread = reply.strip_prefix("QC").unwrap_or("");
        let pid = thread.trim_start_matches('p').split('.').next();
        i32::from_str_radix(pid.unwrap_or(""), 16)
            .with_context(|| format!("the server answers {reply} to qC"))
    }

    /// `monitor …`, many commands at once; one line for each.
    pub fn monitor(&mut self, commands: &[String]) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for batch in commands.chunks(64) {
            let hex = to_hex(batch.join(";").as_bytes());
            self.send(&format!("qRcmd,{hex}"))?;
            let mut text = String::new();
            loop {
                let reply = self.receive()?;
                ensure!(
                    !reply.starts_with('T'),
                    "a stop that nobody waits for, in answer to {batch:?}: {reply}"
                );
                match reply.strip_prefix('O') {
                    _ if reply == "OK" => break,
                    Some(hex) => text.push_str(&unhex(hex)),
                    None => {
                        ensure!(
                            !reply.starts_with("E."),
                            "{batch:?} is answered with {reply}"
                        );
                        text.push_str(&unhex(&reply));
                        break;
                    }
                }
            }
            lines.extend(text.lines().map(str::to_string));
        }
        ensure!(lines.len() == commands.len(), "monitor answers {lines:?}");
        Ok(lines)
    }

    /// A watch of which the ring does not tell.
    pub fn quiet_watch(&mut self, addr: u64, len: u64, kind: &str) -> Result<u32> {
        let command = format!("ulpf watch {addr:#x} {len} {kind}");
        let lines = self.monitor(&[command])?;
        number(&lines[0]).with_context(|| format!("{addr:#x} is refused: {}", lines[0]))
    }

    /// Replaces the watches.
    pub fn watch(&mut self, watches: &[Watch]) -> Result<()> {
        let mut commands: Vec<_> = self
            .ids
            .keys()
            .map(|id| format!("ulpf unwatch {id}"))
            .collect();
        let old = commands.len();
        commands.extend(
            watches
                .iter()
                .map(|w| format!("ulpf watch {:#x} {} {} log", w.addr, w.len, w.letter())),
        );
        let lines = self.monitor(&commands)?;
        self.ids.clear();
        for (n, line) in lines[old..].iter().enumerate() {
            let Some(id) = number(line) else {
                bail!("{:?} is refused: {line}", watches[n])
            };
            self.ids.insert(id, n as u32);
        }
        ensure!(
            self.ids.len() == watches.len(),
            "two watches with one number"
        );
        Ok(())
    }
}

/// The number of a watch just set.
fn number(line: &str) -> Option<u32> {
    match serde_json::from_str(line) {
        Ok(Reply::Watch(id)) => Some(id),
        _ => None,
    }
}

fn unhex(s: &str) -> String {
    let bytes = from_hex(s.as_bytes()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
