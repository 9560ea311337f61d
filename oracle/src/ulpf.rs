//! The program under the real thing: `ulpf server` on stdin and stdout, watches over `monitor`, hits
//! straight out of the shared ring. Between two markers there are fewer hits than the ring holds (the
//! judge has counted them), and the ring is emptied at each marker: nothing is ever overwritten.

use crate::hits::{Actual, Hit};
use crate::program::{Program, Watch};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use ulpf_lib::ring::{HitRecord, RING_OFFSET, RING_RECORDS, SHARED_MAGIC, SharedHeader, hit_flags};

/// Hits between two markers that the ring holds with room to spare.
pub const MOST_HITS: usize = RING_RECORDS as usize - 4096;

/// A program of the generator's runs for a second or so between two markers.
const PATIENCE_MS: i32 = 30_000;

/// Runs the program; `Err` for what the program did not survive, as text.
pub fn run(ulpf: &Path, elf: &Path, program: &Program) -> Result<Actual> {
    let mut session = Session::start(ulpf, elf)?;
    let mut actual = Actual::new();
    let mut ring = None;
    let mut threads = BTreeMap::new();
    for (n, watches) in program.epochs.iter().enumerate() {
        session
            .resume_to_marker()
            .with_context(|| format!("at marker {n}"))?;
        let ring = match &mut ring {
            Some(r) => r,
            None => ring.insert(Ring::of(session.program()?)?),
        };
        if n > 0 {
            actual.push(ring.drain(&session.ids, &mut threads)?);
        }
        if program.uses_gs() {
            session.monitor(&["ulpf patch off".to_string()])?;
        } else {
            session.patch(program.memory_seed, n)?;
        }
        session.watch(watches)?;
    }
    session.resume_to_marker().context("at the last marker")?;
    let mut ring = ring.context("the program has no marker")?;
    actual.push(ring.drain(&session.ids, &mut threads)?);
    let end = session.resume()?;
    ensure!(
        end == "W00" || end.starts_with("W00;"),
        "the program ended with {end}"
    );
    Ok(actual)
}

struct Session {
    server: Child,
    to: ChildStdin,
    from: ChildStdout,
    input: Vec<u8>,
    /// Watch number to index in the epoch.
    ids: HashMap<u32, u32>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Session {
    fn start(ulpf: &Path, elf: &Path) -> Result<Session> {
        let mut server = Command::new(ulpf)
            // On guarded pages: a debug register traps behind the access, with less to tell.
            .args(["server", "--once", "--no-startup-with-shell"])
            .args(["--placement=guard", "-"])
            .arg(elf)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", ulpf.display()))?;
        let mut s = Session {
            to: server.stdin.take().context("no stdin")?,
            from: server.stdout.take().context("no stdout")?,
            server,
            input: vec![],
            ids: HashMap::new(),
        };
        s.request("qSupported:swbreak+;hwbreak+;vContSupported+")?;
        s.request("QStartNoAckMode")?;
        let stopped = s.request("?")?;
        ensure!(stopped.starts_with('T'), "the server says {stopped}");
        Ok(s)
    }

    fn send(&mut self, body: &str) -> Result<()> {
        let sum = body.bytes().fold(0u8, u8::wrapping_add);
        self.to.write_all(format!("${body}#{sum:02x}").as_bytes())?;
        Ok(())
    }

    fn receive(&mut self) -> Result<String> {
        loop {
            if let Some(start) = self.input.iter().position(|b| *b == b'$')
                && let Some(len) = self.input[start..].iter().position(|b| *b == b'#')
                && self.input.len() > start + len + 2
            {
                let body = self.input[start + 1..start + len].to_vec();
                self.input.drain(..start + len + 3);
                return Ok(String::from_utf8_lossy(&expand(&body)).into_owned());
            }
            let mut poll = libc::pollfd {
                fd: self.from.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one descriptor of ours.
            let ready = unsafe { libc::poll(&mut poll, 1, PATIENCE_MS) };
            ensure!(
                ready > 0,
                "no answer for {} s: it hangs",
                PATIENCE_MS / 1000
            );
            let mut buf = [0; 65536];
            let n = self.from.read(&mut buf)?;
            ensure!(n > 0, "the server is gone");
            self.input.extend(&buf[..n]);
        }
    }

    fn request(&mut self, body: &str) -> Result<String> {
        self.send(body)?;
        self.receive()
    }

    /// Goes on; the stop reply.
    fn resume(&mut self) -> Result<String> {
        self.send("vCont;c")?;
        loop {
            let reply = self.receive()?;
            if !reply.starts_with('O') {
                return Ok(reply);
            }
        }
    }

    /// The program's process number.
    fn program(&mut self) -> Result<i32> {
        let reply = self.request("qC")?;
        let thread = reply.strip_prefix("QC").unwrap_or("");
        let pid = thread.trim_start_matches('p').split('.').next();
        i32::from_str_radix(pid.unwrap_or(""), 16)
            .with_context(|| format!("the server answers {reply} to qC"))
    }

    fn resume_to_marker(&mut self) -> Result<()> {
        let reply = self.resume()?;
        ensure!(reply.starts_with("T05"), "the program stopped with {reply}");
        Ok(())
    }

    /// `monitor …`, many commands at once; one line for each.
    fn monitor(&mut self, commands: &[String]) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for batch in commands.chunks(64) {
            let hex: String = batch
                .join(";")
                .bytes()
                .map(|b| format!("{b:02x}"))
                .collect();
            self.send(&format!("qRcmd,{hex}"))?;
            let mut text = String::new();
            loop {
                let reply = self.receive()?;
                match reply.strip_prefix('O') {
                    _ if reply == "OK" => break,
                    Some(hex) => text.push_str(&unhex(hex)),
                    None => {
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

    /// Patches never, always, or after a few false positives, another way in each epoch.
    fn patch(&mut self, seed: u64, epoch: usize) -> Result<()> {
        let how = match (seed >> (epoch % 16 * 2)) & 3 {
            0 => "off",
            1 => "on after 5",
            _ => "on after 0",
        };
        self.monitor(&[format!("ulpf patch {how}")])?;
        Ok(())
    }

    /// Replaces the watches.
    fn watch(&mut self, watches: &[Watch]) -> Result<()> {
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
            let id = line
                .strip_prefix("{\"watch\":")
                .and_then(|l| l.strip_suffix('}'));
            let Some(id) = id else {
                bail!("{:?} is refused: {line}", watches[n])
            };
            self.ids.insert(id.parse()?, n as u32);
        }
        ensure!(
            self.ids.len() == watches.len(),
            "two watches with one number"
        );
        Ok(())
    }
}

fn unhex(s: &str) -> String {
    let bytes: Vec<u8> = (0..s.len() / 2)
        .filter_map(|i| u8::from_str_radix(s.get(2 * i..2 * i + 2)?, 16).ok())
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Undoes run-length encoding and escapes.
fn expand(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    let mut bytes = body.iter().copied();
    while let Some(b) = bytes.next() {
        match b {
            b'}' => out.extend(bytes.next().map(|b| b ^ 0x20)),
            b'*' => {
                let (last, n) = (out.last().copied(), bytes.next().unwrap_or(29) - 29);
                out.extend(std::iter::repeat_n(last.unwrap_or(0), n as usize));
            }
            b => out.push(b),
        }
    }
    out
}

/// The shared area, read out of the program's own mapping.
struct Ring {
    pid: libc::pid_t,
    base: u64,
    next: u64,
}

impl Ring {
    fn of(pid: i32) -> Result<Ring> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let line = maps
            .lines()
            .find(|l| l.contains("/memfd:ulpf-shared"))
            .context("the program has no ring")?;
        let base = line.split('-').next().unwrap_or("");
        let ring = Ring {
            pid,
            base: u64::from_str_radix(base, 16)?,
            next: 0,
        };
        let magic = ring.word(std::mem::offset_of!(SharedHeader, magic) as u64)?;
        ensure!(magic == SHARED_MAGIC, "not a ring");
        Ok(ring)
    }

    /// Copies `to.len()` bytes at an offset of the area.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let local = libc::iovec {
            iov_base: to.as_mut_ptr().cast(),
            iov_len: to.len(),
        };
        let remote = libc::iovec {
            iov_base: (self.base + at) as *mut _,
            iov_len: to.len(),
        };
        // SAFETY: writes to `to` only.
        let n = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        ensure!(
            n == to.len() as isize,
            "reading the ring: {}",
            std::io::Error::last_os_error()
        );
        Ok(())
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// All hits since the last time. The program rests.
    fn drain(
        &mut self,
        ids: &HashMap<u32, u32>,
        threads: &mut BTreeMap<u32, u32>,
    ) -> Result<BTreeMap<u32, Vec<Hit>>> {
        const RECORD: usize = size_of::<HitRecord>();
        let head = self.word(std::mem::offset_of!(SharedHeader, head) as u64)?;
        ensure!(
            head - self.next <= RING_RECORDS,
            "the ring was lapped: {} hits",
            head - self.next
        );
        let mut out: BTreeMap<u32, Vec<Hit>> = BTreeMap::new();
        let mut buf = vec![0u8; RECORD * 4096];
        while self.next < head {
            let slot = self.next % RING_RECORDS;
            let n = (head - self.next).min(RING_RECORDS - slot).min(4096);
            let bytes = &mut buf[..n as usize * RECORD];
            self.read(RING_OFFSET + slot * RECORD as u64, bytes)?;
            for record in bytes.chunks(RECORD) {
                // SAFETY: a record's bytes; every field is an integer.
                let r = unsafe { record.as_ptr().cast::<HitRecord>().read_unaligned() };
                ensure!(
                    r.seq.load(Ordering::Acquire) == self.next + 1,
                    "record {} is not complete",
                    self.next
                );
                self.next += 1;
                let Some(watch) = ids.get(&r.watch) else {
                    bail!("a hit of watch {}, which is not armed", r.watch)
                };
                out.entry(r.tid).or_default().push(Hit {
                    watch: *watch,
                    pc: r.pc,
                    addr: r.addr,
                    len: r.len,
                    kind: r.kind,
                    silent: r.flags & hit_flags::SILENT != 0,
                    syscall: (r.flags & hit_flags::KERNEL != 0).then_some(r.syscall),
                    old: r.old,
                    new: r.new,
                });
            }
        }
        // Threads are numbered as they were made: their numbers grow.
        for tid in out.keys() {
            let n = threads.len() as u32;
            threads.entry(*tid).or_insert(n);
        }
        Ok(out
            .into_iter()
            .map(|(tid, hits)| (threads[&tid], hits))
            .collect())
    }
}
