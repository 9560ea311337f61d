//! Bytes of the remote serial protocol: parsing what a stranger may have sent, writing what we say.
//!
//! Pure functions, no target, no I/O (GDB manual, appendix "GDB Remote Serial Protocol"). Every
//! parser takes the payload of one frame and answers `None` for anything malformed; what they
//! allocate is bounded by the length of the frame.

use alloc::vec::Vec;

/// Largest payload that we announce and accept, in bytes.
pub const PACKET_SIZE: usize = 0x10000;

/// Turns a byte stream from the server into frames.
///
/// ```text
/// $ payload # x x      a packet (the server has verified the checksum)
/// 0x03                 the interrupt request, outside any frame
/// + -                  acknowledgements; never sent between server and stub, skipped
/// ```
#[derive(Default)]
pub struct FrameReader {
    body: Vec<u8>,
    state: FrameState,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum FrameState {
    #[default]
    Outside,
    Body,
    Checksum1,
    Checksum2,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    Packet(Vec<u8>),
    Interrupt,
}

impl FrameReader {
    /// Takes one byte; a whole frame comes out with its last byte. A frame above [`PACKET_SIZE`]
    /// is cut there (and so answered as malformed).
    pub fn push(&mut self, byte: u8) -> Option<Incoming> {
        match (self.state, byte) {
            (FrameState::Outside, 0x03) => return Some(Incoming::Interrupt),
            (FrameState::Outside, b'$') => self.state = FrameState::Body,
            (FrameState::Outside, _) => {}
            (FrameState::Body, b'#') => self.state = FrameState::Checksum1,
            (FrameState::Body, _) => {
                if self.body.len() < PACKET_SIZE {
                    self.body.push(byte);
                }
            }
            (FrameState::Checksum1, _) => self.state = FrameState::Checksum2,
            (FrameState::Checksum2, _) => {
                self.state = FrameState::Outside;
                let next = Vec::with_capacity(64);
                return Some(Incoming::Packet(core::mem::replace(&mut self.body, next)));
            }
        }
        None
    }
}

/// `$payload#xx`. The payload must already be escaped.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    framed(b'$', payload)
}

/// `%payload#xx`: a message without a request.
pub fn notification(payload: &[u8]) -> Vec<u8> {
    framed(b'%', payload)
}

fn framed(lead: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 4);
    out.push(lead);
    out.extend_from_slice(payload);
    out.push(b'#');
    let sum = payload.iter().fold(0u8, |a, b| a.wrapping_add(*b));
    push_hex(&mut out, &[sum]);
    out
}

fn digit(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        b'A'..=b'F' => Some(c - b'A' + 10),
        _ => None,
    }
}

/// One to any number of hex digits whose value fits 64 bits.
pub fn hex_u64(s: &[u8]) -> Option<u64> {
    if s.is_empty() {
        return None;
    }
    s.iter().try_fold(0u64, |n, c| {
        if n >> 60 != 0 {
            return None;
        }
        Some(n << 4 | u64::from(digit(*c)?))
    })
}

/// Pairs of hex digits to bytes.
pub fn unhex(s: &[u8]) -> Option<Vec<u8>> {
    let pairs = s.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|p| Some(digit(p[0])? << 4 | digit(p[1])?))
        .collect()
}

pub fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len() * 2);
    for b in bytes {
        out.push(DIGITS[usize::from(b >> 4)]);
        out.push(DIGITS[usize::from(b & 15)]);
    }
}

/// Shortest big-endian hex number, as in thread ids and addresses.
pub fn push_num(out: &mut Vec<u8>, n: u64) {
    let digits = (64 - n.leading_zeros()).div_ceil(4).max(1);
    for i in (0..digits).rev() {
        let d = (n >> (4 * i)) as u8 & 15;
        out.push(if d < 10 { b'0' + d } else { b'a' + d - 10 });
    }
}

/// Binary data of `X` and `qXfer:…:write`: `}` escapes the next byte, which is xored with 0x20.
pub fn unescape(s: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.iter();
    while let Some(b) = bytes.next() {
        out.push(if *b == b'}' { bytes.next()? ^ 0x20 } else { *b });
    }
    Some(out)
}

/// Appends as much of `data` as fits into `room` bytes in escaped form; says how much that was.
pub fn push_escaped(out: &mut Vec<u8>, data: &[u8], room: usize) -> usize {
    let end = out.len() + room;
    for (n, b) in data.iter().enumerate() {
        let special = matches!(b, b'#' | b'$' | b'}' | b'*');
        if out.len() + 1 + usize::from(special) > end {
            return n;
        }
        if special {
            out.push(b'}');
            out.push(b ^ 0x20);
        } else {
            out.push(*b);
        }
    }
    data.len()
}

/// Splits at the first `sep`.
pub fn split_once(s: &[u8], sep: u8) -> Option<(&[u8], &[u8])> {
    let at = s.iter().position(|b| *b == sep)?;
    Some((&s[..at], &s[at + 1..]))
}

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
                _ => match hex_u64(s)? {
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

/// One action of `vCont`; signals in the client's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    Continue(Option<u8>),
    Step(Option<u8>),
    /// Step until PC leaves `[start, end)`.
    Range(u64, u64),
    Stop,
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
    let signal = |s| Some(Some(u8::try_from(hex_u64(s)?).ok()?));
    Some(match *verb {
        [b'c'] => Go::Continue(None),
        [b's'] => Go::Step(None),
        [b't'] => Go::Stop,
        [b'C', ref s @ ..] => Go::Continue(signal(s)?),
        [b'S', ref s @ ..] => Go::Step(signal(s)?),
        [b'r', ref s @ ..] => {
            let (start, end) = split_once(s, b',')?;
            Go::Range(hex_u64(start)?, hex_u64(end)?)
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

/// `ADDR,LEN` of `m`, `x`, and before the `:` of `M` and `X`.
pub fn addr_len(s: &[u8]) -> Option<(u64, u64)> {
    let (addr, len) = split_once(s, b',')?;
    Some((hex_u64(addr)?, hex_u64(len)?))
}

/// `ADDR,LEN:DATA`.
pub fn addr_data(s: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (head, data) = split_once(s, b':')?;
    let (addr, len) = addr_len(head)?;
    Some((addr, len, data))
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
            let digits = usize::try_from(hex_u64(len)?).ok()?.checked_mul(2)?;
            out.conditions.push(unhex(code.get(..digits)?)?);
            rest = &code[digits..];
        }
        if !rest.is_empty() {
            return None;
        }
    }
    Some(out)
}

/// `qXfer:OBJECT:read:ANNEX:OFFSET,LENGTH` or `qXfer:OBJECT:write:ANNEX:OFFSET:DATA`.
#[derive(Debug, PartialEq, Eq)]
pub struct Xfer<'a> {
    pub object: &'a [u8],
    pub annex: &'a [u8],
    pub offset: u64,
    pub body: XferBody,
}

#[derive(Debug, PartialEq, Eq)]
pub enum XferBody {
    Read { len: u64 },
    Write { data: Vec<u8> },
}

pub fn xfer(payload: &[u8]) -> Option<Xfer<'_>> {
    let rest = payload.strip_prefix(b"qXfer:")?;
    let (object, rest) = split_once(rest, b':')?;
    let (verb, rest) = split_once(rest, b':')?;
    let (annex, rest) = split_once(rest, b':')?;
    match verb {
        b"read" => {
            let (offset, len) = addr_len(rest)?;
            Some(Xfer {
                object,
                annex,
                offset,
                body: XferBody::Read { len },
            })
        }
        b"write" => {
            let (offset, data) = split_once(rest, b':')?;
            let body = XferBody::Write {
                data: unescape(data)?,
            };
            Some(Xfer {
                object,
                annex,
                offset: hex_u64(offset)?,
                body,
            })
        }
        _ => None,
    }
}

/// Hex numbers separated by `;` (QPassSignals, QProgramSignals). Empty fields are skipped.
pub fn number_list(s: &[u8]) -> Option<Vec<u64>> {
    s.split(|b| *b == b';')
        .filter(|n| !n.is_empty())
        .map(hex_u64)
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

/// `pPID.TID`, or `TID` when the client does not speak multiprocess.
pub fn thread_id(out: &mut Vec<u8>, pid: i32, tid: i32, multiprocess: bool) {
    if multiprocess {
        out.push(b'p');
        push_num(out, pid as u64);
        out.push(b'.');
    }
    push_num(out, tid as u64);
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn incoming(bytes: &[u8]) -> Vec<Incoming> {
        let mut reader = FrameReader::default();
        bytes.iter().filter_map(|b| reader.push(*b)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn escaped_data_is_read_as_it_was(data in vec(any::<u8>(), 0..80), room in 0usize..120) {
            let mut out = b"m".to_vec();
            let took = push_escaped(&mut out, &data, room);
            prop_assert!(out.len() <= 1 + room);
            prop_assert!(took == data.len() || out.len() + 2 > 1 + room, "there was room");
            prop_assert_eq!(unescape(&out[1..]), Some(data[..took].to_vec()));
            prop_assert!(!out[1..].iter().any(|b| matches!(b, b'#' | b'$' | b'*')));
            let framed = [b"+".as_slice(), &frame(&out), b"-\x03"].concat();
            prop_assert_eq!(incoming(&framed), [Incoming::Packet(out), Incoming::Interrupt]);
        }

        #[test]
        fn numbers_and_bytes_are_read_as_they_were(n in any::<u64>(), data in vec(any::<u8>(), 0..40)) {
            let mut out = Vec::new();
            push_num(&mut out, n);
            prop_assert_eq!(&out, &format!("{n:x}").into_bytes());
            prop_assert_eq!(hex_u64(&out), Some(n));
            prop_assert_eq!(hex_u64(&out.to_ascii_uppercase()), Some(n));
            out.clear();
            push_hex(&mut out, &data);
            prop_assert_eq!(unhex(&out), Some(data));
        }
    }

    #[test]
    fn what_is_no_number_is_none() {
        for bad in ["", "g", "-1", "10000000000000000", "0x1", "1 "] {
            assert_eq!(hex_u64(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(hex_u64(b"0000000000000000000f"), Some(15));
        assert_eq!(unhex(b"123"), None);
        assert_eq!(unhex(b"1x"), None);
        assert_eq!(unescape(b"a}"), None);
    }

    #[test]
    fn a_frame_has_its_sum_and_ends_where_it_is_too_long() {
        assert_eq!(frame(b"OK"), b"$OK#9a");
        assert_eq!(notification(b"Stop:"), b"%Stop:#e0");
        let long = [b"$".as_slice(), &[b'a'; PACKET_SIZE + 5], b"#00$b#62"].concat();
        let got = incoming(&long);
        assert_eq!(got[0], Incoming::Packet(vec![b'a'; PACKET_SIZE]));
        assert_eq!(got[1], Incoming::Packet(b"b".to_vec()));
        // (An interrupt in a frame is one of its bytes.)
        assert_eq!(
            incoming(b"$a\x03#00"),
            [Incoming::Packet(b"a\x03".to_vec())]
        );
    }

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
    fn an_object_is_read_or_written_in_pieces() {
        let read = xfer(b"qXfer:features:read:target.xml:1f,ffb").unwrap();
        assert_eq!(
            (read.object, read.annex, read.offset),
            (&b"features"[..], &b"target.xml"[..], 31)
        );
        assert_eq!(read.body, XferBody::Read { len: 0xffb });
        let write = xfer(b"qXfer:siginfo:write::2:a}]:c").unwrap();
        assert_eq!((write.annex, write.offset), (&b""[..], 2));
        assert_eq!(
            write.body,
            XferBody::Write {
                data: b"a}:c".to_vec()
            }
        );
        for bad in [
            &b"qXfer:features:read:target.xml"[..],
            b"qXfer:a:read:b:1",
            b"qXfer:a:erase:b:1,2",
            b"qXfer:a:write:b:1",
        ] {
            assert_eq!(xfer(bad), None);
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
