//! A server, and a client that says to it what gdb would say, in bulk.

use super::children::wait;
use super::loops;
use anyhow::{Context, Result, bail, ensure};
use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use ulpf_lib::command::{Arm, Reply};
use ulpf_lib::mapping::mappings;
use ulpf_rsp::{Decoder, Event};
use ulpf_session::arm;

/// `ulpf server` or gdbserver, with a program.
pub struct Server {
    child: Option<Child>,
    /// Its output until it listened.
    begun: String,
    pub port: u16,
}

impl Server {
    /// Starts it and waits until it listens.
    pub fn start(command: &mut Command) -> Result<Server> {
        let mut server = Server::silent(command)?;
        let child = server.child.as_mut().context("no child")?;
        // Not buffered beyond the line that we wait for: the rest is read at the end.
        let mut err = BufReader::with_capacity(1, child.stderr.take().context("no pipe")?);
        let port = loop {
            let mut line = String::new();
            let n = err.read_line(&mut line)?;
            ensure!(
                n > 0,
                "the server does not listen, and said: {}",
                server.begun
            );
            server.begun += &line;
            if let Some((_, port)) = line.split_once("Listening on port ") {
                break port.trim().parse()?;
            }
        };
        child.stderr = Some(err.into_inner());
        server.port = port;
        Ok(server)
    }

    /// Starts something that is found otherwise.
    pub fn silent(command: &mut Command) -> Result<Server> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        Ok(Server {
            child: Some(child),
            begun: String::new(),
            port: 0,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// The process that the server has started.
    pub fn program(&self) -> Result<u32> {
        let said = self
            .begun
            .split_once("created; pid = ")
            .context("it printed no pid")?;
        let digits: String = said.1.chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    }

    /// Waits for its end: what it and the program have said.
    pub fn finish(mut self, limit: Duration) -> Result<String> {
        let child = self.child.take().context("no child")?;
        let (_, said) = wait(child, "the server", limit)?;
        Ok(format!("{}{said}", self.begun))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A connection without acknowledgements.
pub struct Client {
    stream: TcpStream,
    decoder: Decoder,
    ready: VecDeque<Vec<u8>>,
}

impl Client {
    pub fn connect(port: u16) -> Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(300)))?;
        let mut client = Client {
            stream,
            decoder: Decoder::default(),
            ready: VecDeque::new(),
        };
        client.request("QStartNoAckMode")?;
        client.stream.write_all(b"+")?;
        client.request("qSupported:multiprocess+;vContSupported+;swbreak+")?;
        client.request("?")?;
        Ok(client)
    }

    pub fn send(&mut self, packet: &str) -> Result<()> {
        Ok(self.stream.write_all(&ulpf_rsp::frame(packet.as_bytes()))?)
    }

    pub fn receive(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(packet) = self.ready.pop_front() {
                return Ok(packet);
            }
            let mut buffer = [0; 65536];
            let n = self.stream.read(&mut buffer)?;
            ensure!(n > 0, "the server closed the connection");
            let ready = &mut self.ready;
            self.decoder.feed(&buffer[..n], |event| {
                if let Event::Packet(packet) = event {
                    ready.push_back(ulpf_rsp::expand_runs(&packet).unwrap_or(packet));
                }
            });
        }
    }

    pub fn request(&mut self, packet: &str) -> Result<Vec<u8>> {
        self.send(packet)?;
        self.receive()
    }

    /// Sends packets without waiting between them; all must be answered with OK.
    pub fn many(&mut self, packets: impl Iterator<Item = String>) -> Result<()> {
        let mut batch = Vec::new();
        let mut count = 0;
        for packet in packets {
            batch.extend(ulpf_rsp::frame(packet.as_bytes()));
            count += 1;
        }
        let mut out = self.stream.try_clone()?;
        let writer = thread::spawn(move || out.write_all(&batch));
        for _ in 0..count {
            let reply = self.receive()?;
            ensure!(
                reply == b"OK",
                "the answer was {}",
                String::from_utf8_lossy(&reply)
            );
        }
        match writer.join() {
            Ok(written) => Ok(written?),
            Err(_) => bail!("the packets could not be sent"),
        }
    }

    /// A `monitor` command that sets watches.
    pub fn monitor(&mut self, command: &str) -> Result<()> {
        self.send(&format!("qRcmd,{}", ulpf_rsp::to_hex(command.as_bytes())))?;
        let mut said = Vec::new();
        loop {
            let reply = self.receive()?;
            match reply.as_slice() {
                b"OK" => break,
                [b'O', hex @ ..] => said.extend(ulpf_rsp::from_hex(hex).unwrap_or_default()),
                other => bail!("the answer was {}", String::from_utf8_lossy(other)),
            }
        }
        for line in String::from_utf8_lossy(&said).lines() {
            if let Ok(Reply::Refused(refusal)) = serde_json::from_str(line) {
                bail!("a watch was refused: {refusal}");
            }
        }
        Ok(())
    }

    /// Sets watches as `ulpf run` does.
    pub fn arm(&mut self, watches: &[Arm]) -> Result<()> {
        let watches: Vec<&Arm> = watches.iter().collect();
        arm::commands(&watches).try_for_each(|(command, _)| self.monitor(&command))
    }
}

/// A program at its function `ready`, with a client that may arm.
pub struct Session {
    pub server: Server,
    pub client: Client,
    pub pid: u32,
    base: u64,
}

impl Session {
    /// A position-independent program, run by `command` (which ends before the program's name).
    pub fn at_ready(command: &mut Command, program: &Path, arguments: &[&str]) -> Result<Session> {
        let server = Server::start(command.arg("127.0.0.1:0").arg(program).args(arguments))?;
        let mut client = Client::connect(server.port)?;
        let pid = server.program()?;
        let maps = fs::read(format!("/proc/{pid}/maps"))?;
        let name = program.as_os_str().as_encoded_bytes();
        let first = mappings(&maps).find(|m| m.path().ends_with(name));
        let base = first.context("it is not mapped")?.start;
        let ready = base + loops::address_of(program, "ready")?;
        client.many([format!("Z0,{ready:x},1")].into_iter())?;
        client.request("vCont;c")?;
        client.many([format!("z0,{ready:x},1")].into_iter())?;
        Ok(Session {
            server,
            client,
            pid,
            base,
        })
    }

    /// Where a variable is.
    pub fn address(&self, program: &Path, variable: &str) -> Result<u64> {
        Ok(self.base + loops::address_of(program, variable)?)
    }

    /// Bytes of memory that the program has in use.
    pub fn resident(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid))?;
        let line = text.lines().find_map(|l| l.strip_prefix("Rss:"));
        let kib = line.and_then(|l| l.trim().split(' ').next()?.parse::<f64>().ok());
        Ok(kib.context("no Rss")? * 1024.0)
    }

    /// One instruction; what was staged is armed before it. The seconds that it took.
    pub fn step(&mut self) -> Result<f64> {
        let start = Instant::now();
        self.client.request("vCont;s")?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// On to the end: what the program has printed.
    pub fn end(mut self) -> Result<String> {
        self.client.send("vCont;c")?;
        // The connection may be gone before the answer.
        let reply = self.client.receive().unwrap_or_default();
        ensure!(
            !matches!(reply.first(), Some(b'T' | b'S')),
            "it stopped: {}",
            String::from_utf8_lossy(&reply)
        );
        drop(self.client);
        self.server.finish(Duration::from_secs(20))
    }
}
