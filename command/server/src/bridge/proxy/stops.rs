//! Translates stop replies of the remote port into the bridge's stops.
#![forbid(unsafe_code)]

use super::remote::PATIENCE;
use super::{Flavour, Proxy};
use std::os::unix::process::ExitStatusExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use ulpf_bridge::{Bytes, Hit, Kind, Reason, WatchSpec};

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Proxy<R, W> {
    /// The port has closed. A simulator ends with its program.
    pub(super) async fn ended(&mut self, why: &str) {
        self.running = false;
        let status = match &mut self.child {
            Some(child) => timeout(PATIENCE, child.wait())
                .await
                .ok()
                .and_then(Result::ok),
            None => None,
        };
        self.stop.reason = match status {
            Some(s) if s.code().is_some() => Reason::Exited {
                status: s.code().unwrap_or_default(),
            },
            // The script ends with this signal when the program does; gem5 itself dies of SIGABRT.
            Some(s) if s.signal() == Some(libc::SIGSEGV) => Reason::Killed {
                number: libc::SIGSEGV as u8,
                why: String::new(),
            },
            Some(s) => Reason::Failed {
                why: format!("{} has ended ({s})", self.name),
            },
            None => Reason::Failed { why: why.into() },
        };
        self.stop.pc = 0;
    }

    pub(super) async fn stopped(&mut self, packet: &[u8]) {
        self.running = false;
        let reply = String::from_utf8_lossy(packet).into_owned();
        let number = |text: &str| u8::from_str_radix(text.get(..2).unwrap_or(""), 16).unwrap_or(0);
        let code = number(reply.get(1..).unwrap_or(""));
        let linux = (1..=64)
            .find(|&n| ulpf_host::signals::to_gdb(n) == i32::from(code))
            .unwrap_or(5) as u8;
        match reply.chars().next() {
            Some('W') => {
                self.stop.reason = Reason::Exited {
                    status: i32::from(code),
                };
                return;
            }
            Some('X') => {
                self.stop.reason = Reason::Killed {
                    number: linux,
                    why: String::new(),
                };
                return;
            }
            _ => {}
        }
        let fields = || {
            reply
                .get(3..)
                .unwrap_or("")
                .split(';')
                .filter_map(|f| f.split_once(':'))
        };
        let field = |name: &str| fields().find(|f| f.0 == name).map(|f| f.1);
        let hex = |text: &str| ulpf_rsp::hex_number(text.as_bytes());
        self.stop.thread = field("thread").and_then(hex).unwrap_or(self.stop.thread);
        let reply = self.remote.ask(b"g").await;
        self.registers = reply.map(|r| registers(&r)).unwrap_or_default();
        let pc = self.registers.get(128..136).and_then(|b| b.try_into().ok());
        self.stop.pc = pc.map_or(0, u64::from_le_bytes);
        let watch = ["watch", "rwatch", "awatch"]
            .into_iter()
            .find_map(|n| Some((n, hex(field(n)?)?)));
        self.stop.reason = match watch {
            Some((name, addr)) => self.hit(name, addr, field("ulpf-access")),
            None if field("swbreak").is_some() || field("hwbreak").is_some() => Reason::Breakpoint,
            None => match linux {
                2 => Reason::Interrupted,
                // gem5 reports an interrupt so. A program's SIGILL ends it there and never stops it.
                4 if self.flavour == Flavour::Gem5 => Reason::Interrupted,
                5 => Reason::Step,
                number => Reason::Signal {
                    number,
                    why: String::new(),
                },
            },
        };
    }

    /// The port reports only the address of a hit; gem5 also reports the access.
    fn hit(&mut self, name: &str, addr: u64, access: Option<&str>) -> Reason {
        let kind = match name {
            "watch" => Kind::Write,
            "rwatch" => Kind::Read,
            _ => Kind::Access,
        };
        let of = |w: &WatchSpec| w.kind == kind && addr.wrapping_sub(w.addr) < w.len;
        let watch = self.watches.iter().find(|w| of(w.1)).map_or(0, |w| *w.0);
        let (write, read) = match access {
            Some("w") => (true, false),
            Some("rw") => (true, true),
            Some("r") => (false, false),
            _ => (kind == Kind::Write, false),
        };
        self.hits += 1;
        Reason::Watch {
            kind,
            hit: Hit {
                sequence: self.hits,
                watch,
                pc: self.stop.pc,
                thread: self.stop.thread,
                write,
                read,
                addr,
                len: 1,
                old: Bytes::default(),
                new: Bytes::default(),
                system_call: false,
            },
        }
    }
}

/// Decodes registers; unavailable bytes become zero.
pub fn registers(reply: &[u8]) -> Vec<u8> {
    reply
        .chunks(2)
        .map(|digits| ulpf_rsp::from_hex(digits).map_or(0, |b| b[0]))
        .collect()
}
