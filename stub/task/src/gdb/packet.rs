//! The stub's packets: parsing what a stranger may have sent. ([`ulpf_rsp`] has the framing.)
//!
//! Pure functions, no target, no I/O (GDB manual, appendix "GDB Remote Serial Protocol"). Every
//! parser takes the payload of one frame and answers `None` for anything malformed; what they
//! allocate is bounded by the length of the frame.

use crate::inferior::Resume;
use alloc::vec::Vec;
use ulpf_lib::{TargetAddr, signals};
use ulpf_rsp::xfer::split_once;
use ulpf_rsp::{from_hex, hex_number, push_number};

/// Largest payload that we announce and accept, in bytes.
pub const PACKET_SIZE: usize = 0x10000;

/// Process or thread number of a thread id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    All,
    Any,
    Is(u64),
}

/// `TID` or `pPID.TID` or `pPID`; numbers are hex, `-1` is all, `0` is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId {
    pub pid: Option<Id>,
    pub tid: Id,
}

impl ThreadId {
    pub const ALL: ThreadId = ThreadId {
        pid: None,
        tid: Id::All,
    };

    pub fn parse(s: &[u8]) -> Option<ThreadId> {
        fn id(s: &[u8]) -> Option<Id> {
            Some(match s {
                b"-1" => Id::All,
                _ => match hex_number(s)? {
                    0 => Id::Any,
                    n => Id::Is(n),
                },
            })
        }
        match s.strip_prefix(b"p") {
            None => Some(ThreadId {
                pid: None,
                tid: id(s)?,
            }),
            Some(s) => match split_once(s, b'.') {
                None => Some(ThreadId {
                    pid: Some(id(s)?),
                    tid: Id::All,
                }),
                Some((pid, tid)) => Some(ThreadId {
                    pid: Some(id(pid)?),
                    tid: id(tid)?,
                }),
            },
        }
    }

    /// Returns whether it names this thread. (`0`, any, does.)
    pub fn names(self, pid: i32, tid: i32) -> bool {
        let is = |id, n: i32| match id {
            Id::All | Id::Any => true,
            Id::Is(id) => id == n as u64,
        };
        self.pid.is_none_or(|p| is(p, pid)) && is(self.tid, tid)
    }
}

/// `pPID.TID`, or `TID` when the client does not speak multiprocess.
pub fn push_thread_id(out: &mut Vec<u8>, pid: i32, tid: i32, multiprocess: bool) {
    if multiprocess {
        out.push(b'p');
        push_number(out, pid as u64);
        out.push(b'.');
    }
    push_number(out, tid as u64);
}

/// One action of `vCont`; signals in the client's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    Continue(Option<u8>),
    Step(Option<u8>),
    /// Step until PC leaves `[start, end)`.
    Range(u64, u64),
    Stop,
}

impl Go {
    /// The same with the signal in Linux's numbering.
    pub fn resume(self) -> Resume {
        let signal = |s: Option<u8>| s.and_then(signals::from_gdb);
        match self {
            Go::Continue(s) => Resume::Continue { signal: signal(s) },
            Go::Step(s) => Resume::Step { signal: signal(s) },
            Go::Range(start, end) => Resume::RangeStep {
                start: TargetAddr(start),
                end: TargetAddr(end),
            },
            Go::Stop => Resume::Hold,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    pub go: Go,
    pub thread: ThreadId,
}

/// The actions of `vCont;ACTION[:THREAD];…`; the first that names a thread counts.
pub fn vcont(payload: &[u8]) -> Option<Vec<Action>> {
    payload
        .strip_prefix(b"vCont;")?
        .split(|b| *b == b';')
        .map(|one| {
            let (verb, thread) = match split_once(one, b':') {
                Some((verb, thread)) => (verb, ThreadId::parse(thread)?),
                None => (one, ThreadId::ALL),
            };
            Some(Action {
                go: go(verb)?,
                thread,
            })
        })
        .collect()
}

fn go(verb: &[u8]) -> Option<Go> {
    let signal = |s| Some(Some(u8::try_from(hex_number(s)?).ok()?));
    Some(match *verb {
        [b'c'] => Go::Continue(None),
        [b's'] => Go::Step(None),
        [b't'] => Go::Stop,
        [b'C', ref s @ ..] => Go::Continue(signal(s)?),
        [b'S', ref s @ ..] => Go::Step(signal(s)?),
        [b'r', ref s @ ..] => {
            let (start, end) = split_once(s, b',')?;
            Go::Range(hex_number(start)?, hex_number(end)?)
        }
        _ => return None,
    })
}

/// The old single-thread packets `c[ADDR]`, `s[ADDR]`, `Csig[;ADDR]`, `Ssig[;ADDR]`. A resume
/// address is not served (no current debugger sends one).
pub fn old_resume(payload: &[u8]) -> Option<Go> {
    match payload {
        [b'c' | b's' | b'C' | b'S', ..] => go(payload),
        _ => None,
    }
}

/// `ADDR,LEN` of `m` and `x`.
pub fn addr_len(s: &[u8]) -> Option<(u64, u64)> {
    let (addr, len) = split_once(s, b',')?;
    Some((hex_number(addr)?, hex_number(len)?))
}

/// A breakpoint: `ADDR,KIND[;Xlen,bytecodeXlen,bytecode…][;cmds:…]`.
#[derive(Debug, PartialEq, Eq)]
pub struct Breakpoint {
    pub addr: u64,
    pub conditions: Vec<Vec<u8>>,
    /// A `cmds:` list (dprintf in the target) follows.
    pub commands: bool,
}

pub fn breakpoint(rest: &[u8]) -> Option<Breakpoint> {
    let mut lists = rest.split(|b| *b == b';');
    let (addr, _kind) = addr_len(lists.next()?)?;
    let mut out = Breakpoint {
        addr,
        conditions: Vec::new(),
        commands: false,
    };
    for list in lists {
        if list.starts_with(b"cmds:") {
            out.commands = true;
            continue;
        }
        let mut rest = list;
        while let Some(item) = rest.strip_prefix(b"X") {
            let (len, code) = split_once(item, b',')?;
            let digits = usize::try_from(hex_number(len)?).ok()?.checked_mul(2)?;
            out.conditions.push(from_hex(code.get(..digits)?)?);
            rest = &code[digits..];
        }
        if !rest.is_empty() {
            return None;
        }
    }
    Some(out)
}

/// Hex numbers separated by `;` (QPassSignals, QProgramSignals). Empty fields are skipped.
pub fn number_list(s: &[u8]) -> Option<Vec<u64>> {
    s.split(|b| *b == b';')
        .filter(|n| !n.is_empty())
        .map(hex_number)
        .collect()
}

/// Relevant features of the client's `qSupported:FEATURE;…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientFeatures {
    pub multiprocess: bool,
    pub swbreak: bool,
    /// It accepts `N`: no resumed thread is left.
    pub no_resumed: bool,
    /// It accepts a description of our registers; other clients expect those of every x86-64.
    pub descriptions: bool,
    /// It knows the types of 16-bit floating point. GDB does since version 11 (`ieee_half` since 9), the first one that
    /// also announces memory tags. An older GDB rejects a whole description that contains an unknown type.
    pub small_floats: bool,
}

impl ClientFeatures {
    /// The part that concerns gdbstub (which takes an empty list for a malformed packet).
    pub fn for_gdbstub(self) -> &'static [u8] {
        match self.multiprocess {
            true => b"qSupported:multiprocess+",
            false => b"qSupported:multiprocess-",
        }
    }
}

pub fn client_features(payload: &[u8]) -> ClientFeatures {
    let list = payload.strip_prefix(b"qSupported:").unwrap_or_default();
    let has = |name: &[u8]| list.split(|b| *b == b';').any(|f| f == name);
    ClientFeatures {
        multiprocess: has(b"multiprocess+"),
        swbreak: has(b"swbreak+"),
        no_resumed: has(b"no-resumed+"),
        descriptions: list
            .split(|b| *b == b';')
            .filter_map(|f| f.strip_prefix(b"xmlRegisters="))
            .any(|kinds| kinds.split(|b| *b == b',').any(|kind| kind == b"i386")),
        small_floats: has(b"memory-tagging+"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_named_by_process_and_number() {
        let names = |s: &[u8], pid, tid| ThreadId::parse(s).map(|id| id.names(pid, tid));
        assert_eq!(names(b"p1f.20", 0x1f, 0x20), Some(true));
        assert_eq!(names(b"p1f.20", 0x1f, 0x21), Some(false));
        assert_eq!(names(b"p1f.20", 0x1e, 0x20), Some(false));
        assert_eq!(names(b"p1f", 0x1f, 7), Some(true));
        assert_eq!(names(b"20", 3, 0x20), Some(true));
        for all in [&b"-1"[..], b"0", b"p-1.-1", b"p0.0"] {
            assert_eq!(names(all, 1, 2), Some(true));
        }
        for bad in [&b""[..], b"p", b"p1.", b"p.1", b"-2", b"p1.2.3"] {
            assert_eq!(ThreadId::parse(bad), None);
        }
    }

    #[test]
    fn actions_come_in_their_order() {
        let thread = |n| ThreadId {
            pid: None,
            tid: Id::Is(n),
        };
        let all = ThreadId::ALL;
        let action = |go, thread| Action { go, thread };
        assert_eq!(
            vcont(b"vCont;s:a;C0b:b;r10,20:c;t;c").unwrap(),
            [
                action(Go::Step(None), thread(10)),
                action(Go::Continue(Some(11)), thread(11)),
                action(Go::Range(16, 32), thread(12)),
                action(Go::Stop, all),
                action(Go::Continue(None), all),
            ]
        );
        for bad in [
            &b"vCont"[..],
            b"vCont;",
            b"vCont;x",
            b"vCont;C100",
            b"vCont;C",
            b"vCont;r1",
            b"vCont;c:",
        ] {
            assert_eq!(vcont(bad), None);
        }
        assert_eq!(old_resume(b"S05"), Some(Go::Step(Some(5))));
        assert_eq!(old_resume(b"c1234"), None);
        assert_eq!(old_resume(b"t"), None);
    }

    #[test]
    fn a_breakpoint_has_conditions_and_commands() {
        let want = Breakpoint {
            addr: 0x1000,
            conditions: vec![vec![0x26, 0x27], vec![1]],
            commands: true,
        };
        assert_eq!(breakpoint(b"1000,1;X2,2627X1,01;cmds:0"), Some(want));
        for bad in [
            &b"1000"[..],
            b"1000,1;Y",
            b"1000,1;X2,26",
            b"1000,1;X1,0g",
            b"1000,1;Xffffffffffffffff,00",
        ] {
            assert_eq!(breakpoint(bad), None);
        }
    }

    #[test]
    fn features_are_whole_words() {
        let all =
            b"qSupported:multiprocess+;swbreak+;xmlRegisters=arm,i386;no-resumed+;memory-tagging+";
        let f = client_features(all);
        assert!(f.multiprocess && f.swbreak && f.no_resumed && f.descriptions && f.small_floats);
        let none = b"qSupported:multiprocess-;xswbreak+;xmlRegisters=i3866";
        assert_eq!(client_features(none), ClientFeatures::default());
        assert_eq!(number_list(b"e;10;;14"), Some(vec![14, 16, 20]));
        assert_eq!(number_list(b"e;x"), None);
    }
}
