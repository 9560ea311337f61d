//! Reports errors to the command. Each error is reported once for each place, with its call stack and the nearest
//! block. Of the block, it tells the call stacks of allocation and free.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_engine::cpu::Gprs;
use ulpf_lib::ring::MAX_FRAMES;
use ulpf_lib::ring::findings::{By, Report, Wrong};
use ulpf_lib::sync::futex;

use super::blocks::Block;
use super::findings::findings;
use super::{STOPS, arena, depot, lookup};
use crate::cause::Cause;
use crate::global::g;
use crate::runtime::events::Event;
use crate::runtime::thread::Current;
use crate::unwind;

/// Callers that must be equal for two errors to be one.
const SAME: usize = 4;

/// The content of a report.
struct Error {
    wrong: Wrong,
    pc: u64,
    addr: u64,
    len: u64,
    kind: u32,
    syscall: u32,
    /// Source of a copy that overlaps its destination.
    from: u64,
    block: Option<Block>,
    /// The block that contains the access, if `block` is the one that its pointer leads to.
    other: Option<Block>,
}

/// Reports an access to poisoned bytes. Returns the event to stop for.
pub fn access(
    t: Current,
    gprs: &Gprs,
    c: &Cause,
    wrong: Wrong,
    at: u64,
    block: Option<Block>,
) -> Option<Event> {
    write(
        t,
        gprs,
        &Error {
            wrong,
            pc: c.pc,
            addr: at,
            len: c.len.min(c.addr.0 + c.len - at),
            kind: c.kind as u32,
            syscall: c.syscall.map_or(0, |call| call.nr as u32 + 1),
            from: 0,
            block,
            other: None,
        },
    )
}

/// Reports an access by a pointer to one block that lies in another one. Returns the event to stop for.
pub fn far(t: Current, gprs: &Gprs, c: &Cause, block: Block, other: Block) -> Option<Event> {
    write(
        t,
        gprs,
        &Error {
            wrong: Wrong::Far,
            pc: c.pc,
            addr: c.addr.0,
            len: c.len,
            kind: c.kind as u32,
            syscall: 0,
            from: 0,
            block: Some(block),
            other: Some(other),
        },
    )
}

/// Reports a copy whose operands overlap: to, from, bytes. `which` is an index in [`ulpf_lib::ring::findings::COPIES`].
pub fn overlap(t: Current, gprs: &Gprs, which: u32, (to, from, len): (u64, u64, u64)) {
    write(
        t,
        gprs,
        &Error {
            wrong: Wrong::Overlap,
            pc: gprs.rip,
            addr: to,
            len,
            kind: which,
            syscall: 0,
            from,
            block: lookup::near(to),
            other: None,
        },
    );
}

/// Reports a pointer that cannot be freed. Returns the event to stop for.
pub fn call(t: Current, gprs: &Gprs, wrong: Wrong, addr: u64, by: By) -> Option<Event> {
    given(t, gprs, wrong, addr, by, lookup::near(addr))
}

/// Reports a client request with arguments that do not fit. Returns the event to stop for.
pub fn client_request(
    t: Current,
    gprs: &Gprs,
    wrong: Wrong,
    addr: u64,
    block: Option<Block>,
) -> Option<Event> {
    given(t, gprs, wrong, addr, By::Client, block)
}

fn given(
    t: Current,
    gprs: &Gprs,
    wrong: Wrong,
    addr: u64,
    by: By,
    block: Option<Block>,
) -> Option<Event> {
    write(
        t,
        gprs,
        &Error {
            wrong,
            pc: gprs.rip,
            addr,
            len: 0,
            kind: by as u32,
            syscall: 0,
            from: 0,
            block,
            other: None,
        },
    )
}

fn is_same(r: &Report, error: &Error, frames: &[u64]) -> bool {
    let callers = r.here.callers().take(SAME);
    r.wrong.load(Relaxed) == error.wrong as u32
        && r.pc.load(Relaxed) == error.pc
        && r.kind.load(Relaxed) == error.kind
        && callers.eq(frames.iter().copied().take(SAME))
}

/// Writes a report. The first one of its kind is an event to stop for.
fn write(t: Current, gprs: &Gprs, error: &Error) -> Option<Event> {
    let f = findings().filter(|_| t.own().quiet.get() == 0)?;
    let mut frames = [0; MAX_FRAMES];
    let n = unwind::backtrace(t, gprs, &mut frames, MAX_FRAMES);
    let frames = frames.get(..n).unwrap_or_default();
    f.errors.fetch_add(1, Relaxed);
    let report;
    {
        let _lock = arena::lock();
        let used = f
            .reports
            .iter()
            .take_while(|r| r.published.load(Relaxed) != 0);
        let used = used.count();
        let mut known = f.reports.iter().take(used);
        if let Some(r) = known.find(|r| is_same(r, error, frames)) {
            r.count.fetch_add(1, Relaxed);
            return None;
        }
        let Some(r) = f.reports.get(used) else {
            f.unreported.fetch_add(1, Relaxed);
            return None;
        };
        report = used as u32;
        r.wrong.store(error.wrong as u32, Relaxed);
        r.count.store(1, Relaxed);
        // SAFETY: reads the time-stamp counter.
        let now = unsafe { core::arch::x86_64::_rdtsc() };
        r.time.store(now, Relaxed);
        r.addr.store(error.addr, Relaxed);
        r.len.store(error.len, Relaxed);
        r.kind.store(error.kind, Relaxed);
        r.syscall.store(error.syscall, Relaxed);
        r.from.store(error.from, Relaxed);
        r.pc.store(error.pc, Relaxed);
        r.here.note(t.tid() as u32, frames);
        note_block(r, error.block.as_ref());
        note_other(r, error.other.as_ref());
        r.published.store(1, Release);
    }
    wake();
    let stops = STOPS.load(Relaxed) && g().debugger.load(Relaxed) && t.is_debugged();
    stops.then_some(Event::HeapError { report })
}

/// Wakes the command, which waits for errors.
fn wake() {
    let Some(h) = g().header() else { return };
    if h.reader_waits.load(Relaxed) != 0 {
        h.wake.fetch_add(1, SeqCst);
        futex::wake_all(&h.wake);
    }
}

/// Adds leaked blocks and their bytes to the sums of their kind.
pub fn add_left(sums: &[[AtomicU64; 2]; 4], wrong: Wrong, blocks: u64, bytes: u64) {
    if let Some([all, all_bytes]) = wrong.left().and_then(|n| sums.get(n)) {
        all.fetch_add(blocks, Relaxed);
        all_bytes.fetch_add(bytes, Relaxed);
    }
}

/// Reports leaked blocks that have one call stack. Called by the stub's task with the world stopped.
pub fn left(wrong: Wrong, blocks: u64, bytes: u64, example: &Block) {
    let Some(f) = findings() else { return };
    let Some(r) = f.reports.iter().find(|r| r.published.load(Relaxed) == 0) else {
        return add_left(&f.left, wrong, blocks, bytes);
    };
    describe(r, wrong as u32, blocks, bytes);
    note_block(r, Some(example));
    r.published.store(1, Release);
}

/// Answers question `number` of a debugger: it is about `count` blocks, of which `example` is one. Called by the stub's
/// task with the world stopped. Returns `false` if the table is full.
pub fn answer(number: usize, wrong: u32, count: u64, len: u64, example: Option<&Block>) -> bool {
    let Some(r) = findings().and_then(|f| f.asked.get(number)) else {
        return false;
    };
    describe(r, wrong, count, len);
    note_block(r, example);
    true
}

/// Answers as [`answer`] does: with a pointer in memory at `at`, or in a register (see [`ulpf_lib::ring::findings::IN_MEMORY`]) of a thread.
pub fn pointer(
    number: usize,
    at: u64,
    to: u64,
    (kind, thread): (u32, u32),
    block: Option<&Block>,
) -> bool {
    let Some(r) = findings().and_then(|f| f.asked.get(number)) else {
        return false;
    };
    describe(r, 0, 1, to);
    note_block(r, block);
    r.addr.store(at, Relaxed);
    r.kind.store(kind, Relaxed);
    r.here.note(thread, &[]);
    true
}

fn describe(r: &Report, wrong: u32, count: u64, len: u64) {
    r.wrong.store(wrong, Relaxed);
    r.count.store(count, Relaxed);
    r.len.store(len, Relaxed);
}

fn note_other(r: &Report, other: Option<&Block>) {
    r.other.store(other.map_or(0, |b| b.start), Relaxed);
    r.other_allocated_at.note(0, &[]);
    let Some(b) = other else { return };
    r.other_size.store(b.size, Relaxed);
    depot::tell(b.allocated_at, &r.other_allocated_at);
}

fn note_block(r: &Report, block: Option<&Block>) {
    r.block.store(block.map_or(0, |b| b.start), Relaxed);
    r.freed_at.note(0, &[]);
    r.allocated_at.note(0, &[]);
    let Some(b) = block else { return };
    r.size.store(b.size, Relaxed);
    r.by.store(b.by as u32, Relaxed);
    r.asked.store(b.asked as u32, Relaxed);
    r.freed.store(b.freed.into(), Relaxed);
    depot::tell(b.allocated_at, &r.allocated_at);
    if b.freed {
        depot::tell(b.freed_at, &r.freed_at);
    }
}
