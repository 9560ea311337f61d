//! Parts of packets that the front end reads or changes: watches, stop replies, features. No I/O.
#![forbid(unsafe_code)]

use crate::packets::{PACKET_LIMIT, PACKET_SIZE};
use std::ops::Range;
use ulpf_lib::{AccessKind, WatchKind};

/// First number, count, and bytes of each register of the core: rax to rip, eflags to gs.
const CORE: [(usize, usize, usize); 2] = [(0, 17, 8), (17, 7, 4)];
/// The bytes of fs_base in a `g` packet of Linux's whole description.
const FS_BASE: Range<usize> = 544..552;
/// Size in bytes of such a packet, without later extensions.
const LINUX: usize = 560;

/// The bytes of a register of the core in the `g` packet. Every description of an x86-64 processor begins with these.
pub fn register(number: usize) -> Option<Range<usize>> {
    let mut at = 0;
    for (first, count, size) in CORE {
        if (first..first + count).contains(&number) {
            let from = at + (number - first) * size;
            return Some(from..from + size);
        }
        at += count * size;
    }
    None
}

/// The bytes of fs_base in a `g` packet of this length, if its stub has Linux's description.
pub fn thread_pointer(len: usize, description: &str) -> Option<Range<usize>> {
    let is = len >= LINUX
        && ["sse", "linux", "segments"]
            .iter()
            .all(|f| description.contains(&format!("\"org.gnu.gdb.i386.{f}\"")));
    is.then_some(FS_BASE)
}

/// The bytes of a watch, and which accesses it reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Spec {
    pub addr: u64,
    pub len: u64,
    pub kind: WatchKind,
}

impl Spec {
    /// `2,ADDR,LEN`: the watch of a `Z` or `z` packet.
    pub fn parse(key: &[u8]) -> Option<Spec> {
        let mut fields = key.split(|&b| b == b',');
        let kind = match fields.next()? {
            b"2" => WatchKind::Write,
            b"3" => WatchKind::Read,
            b"4" => WatchKind::Access,
            _ => return None,
        };
        let addr = ulpf_rsp::hex_number(fields.next()?)?;
        let len = ulpf_rsp::hex_number(fields.next()?.split(|&b| b == b';').next()?)?;
        Some(Spec { addr, len, kind })
    }

    /// The packet that sets (`Z`) or removes (`z`) it.
    pub fn packet(self, letter: char) -> Vec<u8> {
        let kind = match self.kind {
            WatchKind::Write => 2,
            WatchKind::Read => 3,
            WatchKind::Access => 4,
        };
        format!("{letter}{kind},{:x},{:x}", self.addr, self.len).into_bytes()
    }
}

/// The watch of a stop reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchStop {
    pub kind: WatchKind,
    pub addr: u64,
    /// gem5 tells it.
    pub access: Option<AccessKind>,
}

/// The fields of a `T` packet.
fn fields(stop: &[u8]) -> impl Iterator<Item = &[u8]> {
    let fields = stop.strip_prefix(b"T").and_then(|s| s.get(2..));
    let fields = fields.unwrap_or_default().split(|&b| b == b';');
    fields.filter(|f| !f.is_empty())
}

fn watch_field(field: &[u8]) -> Option<(WatchKind, &[u8])> {
    let at = field.iter().position(|&b| b == b':')?;
    let kind = match &field[..at] {
        b"watch" => WatchKind::Write,
        b"rwatch" => WatchKind::Read,
        b"awatch" => WatchKind::Access,
        _ => return None,
    };
    Some((kind, &field[at + 1..]))
}

impl WatchStop {
    pub fn of(stop: &[u8]) -> Option<WatchStop> {
        let (kind, addr) = fields(stop).find_map(watch_field)?;
        let access = fields(stop).find_map(|f| f.strip_prefix(b"ulpf-access:"));
        Some(WatchStop {
            kind,
            addr: ulpf_rsp::hex_number(addr)?,
            access: access.map(|a| match a {
                b"w" => AccessKind::Write,
                b"rw" => AccessKind::ReadWrite,
                _ => AccessKind::Read,
            }),
        })
    }
}

/// The stop reply with another reason: a watch, or nothing but a signal of the protocol's numbering.
pub fn with_reason(stop: &[u8], signal: u8, watch: Option<(WatchKind, u64)>) -> Vec<u8> {
    let mut out = format!("T{signal:02x}").into_bytes();
    let stays = |f: &&[u8]| watch_field(f).is_none() && !f.starts_with(b"ulpf-access:");
    for field in fields(stop).filter(stays) {
        out.extend_from_slice(field);
        out.push(b';');
    }
    if let Some((kind, addr)) = watch {
        let name = match kind {
            WatchKind::Write => "watch",
            WatchKind::Read => "rwatch",
            WatchKind::Access => "awatch",
        };
        out.extend_from_slice(format!("{name}:{addr:x};").as_bytes());
    }
    out
}

/// The packet that resumes the program in a stub without `vCont` (gem5), which has one thread.
pub fn without_vcont(packet: &[u8]) -> Vec<u8> {
    let Some(actions) = packet.strip_prefix(b"vCont;") else {
        return packet.into();
    };
    let mut verbs = actions.split(|&b| b == b';').map(|action| {
        let end = action.iter().position(|&b| b == b':');
        &action[..end.unwrap_or(action.len())]
    });
    // Behind a step or a signal for one thread is the action for all others.
    verbs.next().unwrap_or(b"c").into()
}

/// The first number of a stop reply: its signal in the protocol's numbering, or an exit status.
pub fn number_in(stop: &[u8]) -> u8 {
    let digits = stop.get(1..3).and_then(ulpf_rsp::hex_number);
    digits.map_or(0, |n| n as u8)
}

/// The number of a stop's thread, without its process.
pub fn thread_number(stop: &[u8]) -> Option<u64> {
    let thread = crate::packets::thread_in(stop)?;
    ulpf_rsp::hex_number(thread.rsplit(|&b| b == b'.').next()?)
}

/// Features of the simulator, for a debugger that connects before there is one.
pub const SIMULATOR: &[u8] = b"vContSupported+;multiprocess+;swbreak+;hwbreak+;qXfer:features:read+;qXfer:exec-file:read+;qXfer:auxv:read+";

/// The answer to `qSupported`: the back end's features, but those that are between the debugger and this server.
pub fn features(theirs: &[u8]) -> Vec<u8> {
    let theirs = String::from_utf8_lossy(theirs);
    let size = theirs
        .split(';')
        .find_map(|f| f.strip_prefix("PacketSize="))
        .and_then(|n| usize::from_str_radix(n, 16).ok())
        .unwrap_or(PACKET_SIZE)
        .min(PACKET_LIMIT);
    let ours = ["PacketSize", "QStartNoAckMode", "QNonStop"];
    let kept = theirs
        .split(';')
        .filter(|f| !f.is_empty() && !ours.iter().any(|name| f.starts_with(name)));
    let mut out = format!("PacketSize={size:x};QStartNoAckMode+");
    for feature in kept {
        out.push(';');
        out.push_str(feature);
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_lie_one_behind_the_other() {
        assert_eq!(register(0), Some(0..8));
        assert_eq!(register(16), Some(128..136));
        assert_eq!(register(17), Some(136..140));
        assert_eq!(register(23), Some(160..164));
        assert_eq!(register(24), None);
        let all =
            "\"org.gnu.gdb.i386.sse\" \"org.gnu.gdb.i386.linux\" \"org.gnu.gdb.i386.segments\"";
        assert_eq!(thread_pointer(560, all), Some(FS_BASE));
        assert_eq!(thread_pointer(164, all), None);
        assert_eq!(thread_pointer(608, "\"org.gnu.gdb.i386.sse\""), None);
    }

    #[test]
    fn watches() {
        let w = Spec::parse(b"3,7ffc,10").unwrap();
        assert_eq!((w.addr, w.len, w.kind), (0x7ffc, 16, WatchKind::Read));
        assert_eq!(w.packet('z'), b"z3,7ffc,10");
        for bad in [&b"0,1,1"[..], b"2,1", b"2,,1", b"2,x,1", b"2"] {
            assert_eq!(Spec::parse(bad), None);
        }
    }

    #[test]
    fn stops() {
        let stop = b"T05core:1;thread:p1.2;watch:2002;ulpf-access:rw;";
        let watch = WatchStop::of(stop).unwrap();
        assert_eq!((watch.kind, watch.addr), (WatchKind::Write, 0x2002));
        assert_eq!(watch.access, Some(AccessKind::ReadWrite));
        assert_eq!(thread_number(stop), Some(2));
        assert_eq!(with_reason(stop, 2, None), b"T02core:1;thread:p1.2;");
        let other = with_reason(stop, 5, Some((WatchKind::Access, 16)));
        assert_eq!(other, b"T05core:1;thread:p1.2;awatch:10;");
        for plain in [&b"S05"[..], b"T", b"T05", b"W00", b"", b"T05watch:"] {
            assert_eq!(WatchStop::of(plain), None);
        }
        for (packet, old) in [("vCont;s:1;c", "s"), ("vCont;C0b:1", "C0b"), ("S05", "S05")] {
            assert_eq!(without_vcont(packet.as_bytes()), old.as_bytes());
        }
        assert_eq!((number_in(b"W03;process:1"), number_in(b"X")), (3, 0));
    }

    #[test]
    fn features_of_both() {
        let theirs = b"PacketSize=3fff;QStartNoAckMode+;QNonStop+;swbreak+";
        assert_eq!(
            features(theirs),
            b"PacketSize=3fff;QStartNoAckMode+;swbreak+"
        );
        assert_eq!(features(b""), b"PacketSize=10000;QStartNoAckMode+");
        let large = features(b"PacketSize=7fffffff");
        assert_eq!(large, b"PacketSize=40000;QStartNoAckMode+");
    }
}
