//! Watches that are not in the debugger's own table: GDB removes and inserts each of its watches at every
//! stop, and tells its user nothing about a hit of one that it does not know.
//!
//! So a debugger that knows how (the plugin) watches one byte instead, at an address that no program can
//! have. A hit of any other watch is reported as an access to that byte, and [`OutOfBand::answer`] says which it was.

use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_lib::command::reply::{Record, Stop, Which};
use ulpf_lib::ring::{Hit, Reader, Start};
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::last::Ours;
use crate::inferior::StopReason;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::thread::Thread;

/// Not canonical: never a program's.
pub const PLACE: TargetAddr = TargetAddr(0x756c_7066_0000_0000);

/// Slots at the end of a ring that hold the last instruction's records. One stop reports fewer watches than this, each
/// with a long record.
const TAIL: u64 = 512;

#[derive(Default)]
pub struct OutOfBand {
    /// The debugger watches the byte.
    pub understood: bool,
    /// The watch of the last reported stop; its thread's ring and id; the first byte that was hit.
    last: Option<(WatchId, u32, u32, TargetAddr)>,
}

pub fn is_place(range: WatchRange) -> bool {
    range.start == PLACE
}

impl OutOfBand {
    /// The stop reason that the debugger gets for a hit.
    pub fn reason(
        &mut self,
        t: &Thread,
        id: WatchId,
        kind: WatchKind,
        addr: TargetAddr,
    ) -> StopReason {
        let out_of_band = g().is_out_of_band(id);
        self.last = out_of_band.then(|| (id, t.index.load(Relaxed), t.tid() as u32, addr));
        match out_of_band && self.understood {
            true => StopReason::Watch {
                kind: WatchKind::Access,
                addr: PLACE,
                start: PLACE,
            },
            false => StopReason::Watch {
                kind,
                addr,
                start: start_of(id, addr),
            },
        }
    }

    /// The last stop was not a hit of such a watch.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// The hit behind the last stop, with the values from its thread's ring.
    pub fn answer(&self, out: &mut dyn Write) {
        let hit = self.last.map(of);
        let _ = writeln!(out, "{}", Stop(hit));
    }
}

/// Where the watched range that holds `addr` begins; `addr`, if the watch is gone.
fn start_of(id: WatchId, addr: TargetAddr) -> TargetAddr {
    let mut start = addr;
    g().watchlist()
        .for_each_overlap(addr, 1, &mut |at, range, _| {
            if at == id {
                start = range.start;
            }
        });
    start
}

/// Reports a hit of this thread, which is stopped because of it.
pub fn tell(t: &Thread, id: WatchId, addr: TargetAddr, out: &mut dyn Write) {
    let hit = of((id, t.index.load(Relaxed), t.tid() as u32, addr));
    let _ = writeln!(out, "{}", Stop(Some(hit)));
}

fn of((id, ring, tid, addr): (WatchId, u32, u32, TargetAddr)) -> Record {
    let which = Which::Stop { watch: id.0 };
    let hit = g()
        .header()
        .and_then(|h| last_record(&Ours(h), ring as usize, id, addr));
    match hit {
        Some(hit) => Record::of(which, &hit),
        // A watch that writes no records.
        None => Record {
            which,
            tid,
            addr: addr.0,
            access: None,
        },
    }
}

/// The ring record of the hit that a thread is stopped for.
pub fn record(t: &Thread, id: WatchId, addr: TargetAddr) -> Option<Hit> {
    let ring = t.index.load(Relaxed) as usize;
    last_record(&Ours(g().header()?), ring, id, addr)
}

/// The latest record of this hit in a ring.
fn last_record(rings: &Ours, ring: usize, id: WatchId, addr: TargetAddr) -> Option<Hit> {
    let mut found = None;
    let mut reader = Reader::new(Start::Tail(TAIL));
    reader.read(rings, ring, TAIL as usize, |hit| {
        if hit.watch == id.0 && hit.addr == addr.0 {
            found = Some(hit);
        }
    });
    found
}
