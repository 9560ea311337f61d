//! `monitor ulpf last-writers`: from now on, heap and static data have records of their last writers.
//!
//! They are watches that record instead of counting ([`Attributes::writers`]). This task maps the tables, gives running
//! threads new stamps, and answers from the records.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::command::reply::{Access, Last, Micros, Record, Which};
use ulpf_lib::last_writer::{Written, stretches};
use ulpf_lib::ring::{Area, SharedHeader};
use ulpf_lib::{AccessKind, TargetAddr, WatchKind, place, syscalls};
use ulpf_stub_handlers::check::entries;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::last_writer;
use ulpf_stub_handlers::runtime::thread::Thread;
use ulpf_stub_tables::attributes::Attributes;
use ulpf_stub_tables::patches::tsc;

use super::Control;
use crate::inferior::Refusal;

/// Bytes of one answer.
const MOST: u64 = 1 << 20;
/// Stretches of one answer.
const MOST_STRETCHES: usize = 1000;

impl Control {
    /// Begins to record. Does nothing if records have begun.
    pub fn record_writers(&mut self) -> Result<(), Refusal> {
        if self.heap.records_writers() {
            return Ok(());
        }
        if entries::ON.load(SeqCst) {
            return Err(Refusal::new(
                "last writers",
                "the heap of the program is checked",
                "leave --check or --blame out",
            ));
        }
        // (A child has its parent's records.)
        if last_writer::tables().is_none() {
            self.map_records()?;
        }
        self.world
            .stopped()
            .guards()
            .when_emptied(last_writer::emptied);
        let attributes = Attributes {
            writers: true,
            out_of_band: true,
            ..Attributes::default()
        };
        self.watch_heap_and(WatchKind::Write, attributes, true)?;
        // Patches so far write no records.
        self.edits.accesses.remove_all(self.world.stopped());
        renew_stamps();
        Ok(())
    }

    fn map_records(&mut self) -> Result<(), Refusal> {
        let len = last_writer::len();
        let at = place::map_sparse_before(len).map_err(|error| {
            Refusal::new(
                "last writers",
                alloc::format!(
                    "their records need {} GiB of address space (error {})",
                    len >> 30,
                    error.0
                ),
                "raise the limit of address space (ulimit -v unlimited)",
            )
        })?;
        let stopped = self.world.stopped();
        stopped.guards().exclude(TargetAddr(at), len);
        last_writer::begin(at);
        if let Some(h) = g().header() {
            h.writers_since.store(tsc(), Relaxed);
            let map = &raw const g().page_map as u64;
            for (to, at) in h.writers.iter().zip([at, place::memory().start, map]) {
                to.store(at, Relaxed);
            }
        }
        Ok(())
    }
}

/// Gives new stamps to threads that have run, and returns after how many nanoseconds to do so again; `None` while nothing is
/// recorded.
pub fn renew_stamps() -> Option<i64> {
    last_writer::tables()?;
    for t in g().threads.iter() {
        let area = g().areas().get(t.index.load(Relaxed) as usize);
        let tid = t.tid();
        let due = |area: &&Area| tid != 0 && last_writer::is_due(area) && has_run(t, area);
        if let Some(area) = area.filter(due) {
            last_writer::renew(area, tid as u32);
            // (Another thread may have got its area meanwhile: it renews the stamp itself.)
            if t.tid() != tid {
                area.stamp.store(0, Relaxed);
                area.stamped.store(0, Relaxed);
            }
        }
    }
    Some(last_writer::distance_ns() as i64)
}

/// Whether the thread has run since the last question: the registers that trampolines keep in its area have changed, or
/// else the kernel says so.
fn has_run(t: &Thread, area: &Area) -> bool {
    let words = [&area.address, &area.rcx, &area.other];
    let now = words
        .iter()
        .fold(1u64, |sum, word| sum.rotate_left(21) ^ word.load(Relaxed));
    if area.seen.swap(now, Relaxed) != now {
        return true;
    }
    let file = alloc::format!("/proc/{}/task/{}/schedstat\0", t.tgid(), t.tid());
    let text = crate::files::read_file(&file).unwrap_or_default();
    let nanos = core::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok());
    // (Where that is not known, a new stamp does no harm.)
    nanos.is_none_or(|now| area.ran.swap(now, Relaxed) != now)
}

/// The last writers of `[addr, addr + len)`, which are recorded.
pub fn answer(h: &SharedHeader, addr: u64, len: u64) -> Last {
    let len = len.min(MOST);
    let (clock, now) = (h.clock(), tsc());
    let ago = |tsc: u64| Micros::of_nanos(clock.ago(now, tsc));
    let records = (addr..addr.saturating_add(len))
        .map(|at| last_writer::of(at).unwrap_or(ulpf_lib::last_writer::LastWriter::NONE));
    let found = stretches(addr, records);
    let known = found.iter().filter_map(|of| record(of, &ago));
    Last {
        addr,
        len,
        watched_since: Some(ago(h.writers_since.load(Relaxed))),
        reaches_back: None,
        stretches: true,
        last: known.take(MOST_STRETCHES).collect::<Vec<_>>(),
    }
}

fn record(of: &Written, ago: &dyn Fn(u64) -> Micros) -> Option<Record> {
    let site = last_writer::site_of(of.by)?;
    let (tid, since) = last_writer::stamp_of(of.by).unwrap_or_default();
    Some(Record {
        which: Which::Ago(ago(since)),
        tid,
        addr: of.addr,
        access: Some(Access {
            kind: AccessKind::Write,
            len: of.len as u32,
            inside: 0,
            unchained: false,
            values: None,
            call: site
                .call
                .map(|nr| syscalls::name(nr).unwrap_or("a system call").into()),
            // (The call before a return address.)
            pc: site.pc - u64::from(site.called),
            callers: Vec::new(),
            through: Vec::new(),
        }),
    })
}
