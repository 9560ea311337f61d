//! Processes an access to watched memory: counts it, logs it, and makes a stop if the debugger wants one.
//!
//! ```text
//! a fault · a patch · a system call · a debug register ─▶ Cause ─▶ each watch that it overlaps
//!                                                                    ├▶ counters
//!                                                                    ├▶ filter ──▶ rejected
//!                                                                    ├▶ a record in the thread's ring (`log`)
//!                                                                    ├▶ the bytes become what they were (`freeze`)
//!                                                                    └▶ an event to stop for
//! ```

use core::sync::atomic::Ordering::*;

use ulpf_engine::attribution::Touch;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::filter::Candidate;
use ulpf_lib::ring::Counters;
use ulpf_lib::{AccessKind, TargetAddr, WatchId, WatchKind, WatchRange};

use crate::cause::Cause;
use crate::check::{judge, regions};
use crate::filter;
use crate::global::g;
use crate::last_writer;
use crate::log;
use crate::paths;
use crate::runtime::debug_registers;
use crate::runtime::events::{Event, Events};
use crate::runtime::memory;
use crate::runtime::thread::{Call, Current};
use crate::syscalls::scratch::Kept;
use crate::unwind;
use ulpf_stub_tables::attributes::Part;

/// False positives of a page before another placement of its watches is considered. Later thresholds are set by the
/// stub's task (`Counters::look_at`).
pub const FIRST_LOOK: u64 = 1024;

/// Processes every watch that the access overlaps. Returns `false` if it overlaps no watch of any kind.
pub fn hits(t: Current, gprs: &Gprs, c: &Cause, stops: &mut Events) -> bool {
    let mut any = false;
    g().watchlist().for_each_overlap(
        c.addr,
        c.len,
        &mut |id, range: WatchRange, kind: WatchKind| {
            any = true;
            if kind.sees(c.kind)
                && let Some(event) = hit(t, gprs, c, id, range, kind)
            {
                stops.push(event);
            }
        },
    );
    if c.kind.writes() && debug_registers::active() {
        debug_registers::written(c.addr, c.len, memory::look);
    }
    any
}

/// Processes a hit that a debug register has reported (see `debug_registers`).
pub fn register_hit(
    t: Current,
    gprs: &Gprs,
    (id, range, kind): (WatchId, WatchRange, WatchKind),
    touch: &Touch,
    old: &[u8],
) -> Option<Event> {
    let from = (touch.addr.0 - range.start.0) as usize;
    let cause = Cause {
        pc: touch.pc,
        addr: touch.addr,
        len: touch.len,
        kind: touch.kind,
        old: old.get(from..from + touch.len as usize),
        new: None,
        kept: None,
        syscall: None,
        locked: false,
    };
    hit(t, gprs, &cause, id, range, kind)
}

fn hit(
    t: Current,
    gprs: &Gprs,
    c: &Cause,
    id: WatchId,
    range: WatchRange,
    kind: WatchKind,
) -> Option<Event> {
    if g().attributes(id).part == Part::Checked {
        // (An access across the edge of a chunk is judged once, as a whole.)
        return match c.addr.0.wrapping_sub(range.start.0) < range.len {
            true => judge::access(t, gprs, c),
            false => None,
        };
    }
    let start = c.addr.0.max(range.start.0);
    let end = (c.addr.0 + c.len).min(range.end().0);
    let len = end - start;
    if g().attributes(id).writers {
        if c.kind.writes() {
            last_writer::written(t, gprs, c, start, len);
        }
        return None;
    }
    let at = (start - c.addr.0) as usize;
    let old = match c.kept {
        Some(kept) => kept.get(start, len),
        None => c.old.and_then(|o| o.get(at..at + len as usize)),
    };
    let whole = old.filter(|o| o.len() as u64 == len);
    let new = c.new.and_then(|n| n.get(at..at + len as usize));
    let same = |o: &[u8]| new.map_or_else(|| unchanged(start, o), |n| n == o);
    let silent = c.kind.writes() && whole.is_some_and(same);
    let attributes = g().attributes(id);
    // Memory given back to the allocator is not the watched object any more, though a pointer may still lead there.
    let given_back = attributes.part != Part::Whole
        && c.kind.writes()
        && c.syscall.is_none()
        && unwind::is_allocators(t, gprs, c.pc);
    if attributes.part == Part::Pointer {
        match silent && !given_back {
            false => paths::changed_at(range.start.0, given_back),
            // The same address again, but another object.
            true if paths::some_given_back() => paths::changed(),
            true => {}
        }
        return None;
    }
    if given_back {
        return None;
    }
    let (part, id) = (id, attributes.group.unwrap_or(id));
    let mut number = 1;
    if let Some(n) = g().counters(id) {
        number += n.hits.fetch_add(1, Relaxed);
        if silent {
            n.silent.fetch_add(1, Relaxed);
        }
    }
    if let Some(filter) = &attributes.filter
        && (!filter.is_debuggers() || g().decides.load(Relaxed))
    {
        let hit = Candidate {
            pc: c.pc,
            thread: t.tid() as u64,
            kind: c.kind,
            start,
            len,
            watch: range.start.0..range.end().0,
            old,
            silent,
            number,
            unit: filter.unit,
        };
        if !filter::passes(filter, t, gprs, &hit) {
            if let Some(n) = g().counters(id) {
                n.filtered.fetch_add(1, Relaxed);
            }
            if c.kind.writes() && !silent {
                filter.changed_unseen();
            }
            return None;
        }
    }
    if attributes.log {
        let inside = match attributes.part {
            Part::End => g().watches().before(part) + (start - range.start.0),
            Part::Whole | Part::Pointer | Part::Checked => 0,
        };
        let bytes = (id, start, len, inside);
        log::hit(t, gprs, c, bytes, old, silent, attributes);
    }
    // (Also after a silent store: another thread may have undone a change in between.)
    if c.kind.writes()
        && let Some(value) = &attributes.frozen
    {
        let from = (start - range.start.0) as usize;
        if let Some(bytes) = value.get(from..from + len as usize) {
            memory::write(start, bytes);
        }
    }
    // GDB resumes by itself when a written value has not changed; that stop is omitted.
    let wanted = attributes.stop
        && g().debugger.load(Relaxed)
        && t.is_debugged()
        && !(kind == WatchKind::Write && silent && !g().stop_at_silent.load(Relaxed));
    if !wanted {
        return None;
    }
    if let Some(n) = g().counters(id) {
        n.stops.fetch_add(1, Relaxed);
    }
    Some(Event::Watch {
        id,
        kind,
        addr: TargetAddr(start),
        access: c.kind,
    })
}

/// True if memory still holds `old`.
fn unchanged(addr: u64, old: &[u8]) -> bool {
    let mut buf = [0u8; 64];
    let mut at = addr;
    for part in old.chunks(buf.len()) {
        let Some(now) = buf.get_mut(..part.len()) else {
            return false;
        };
        if memory::look(at, now) != part.len() || now != part {
            return false;
        }
        at += part.len() as u64;
    }
    true
}

/// Counts hits of a watch that only counts.
pub fn count(id: WatchId, hits: u64, silent: u64) {
    if let Some(n) = g().counters(id) {
        n.hits.fetch_add(hits, Relaxed);
        n.silent.fetch_add(silent, Relaxed);
    }
}

/// `number` stores of one instruction, all of `[start, start + len)`, that no trampoline has counted; `silent` of them have
/// changed nothing. The watch only counts them, or records them.
pub fn counted(
    t: Current,
    (gprs, pc): (&Gprs, u64),
    id: WatchId,
    (start, len): (u64, u64),
    (number, silent): (u64, u64),
) {
    if !g().attributes(id).writers {
        return count(id, number, silent);
    }
    last_writer::stored(t, (gprs, pc), start, len);
}

pub fn count_false_positive(t: Current, at: TargetAddr) {
    count_false_positives(t, at, 1);
}

/// Counts false positives, all on one page.
pub fn count_false_positives(t: Current, at: TargetAddr, number: u64) {
    let Some(h) = g().header() else { return };
    h.false_positives.fetch_add(number, Relaxed);
    // (The placement of a checked heap is fixed, whatever its costs.)
    if regions::is_checked(at.0) {
        return;
    }
    if let Some(n) = page_counters(at.page()) {
        let before = n.false_positives.fetch_add(number, Relaxed);
        if before >= n.look_at.load(Relaxed).max(FIRST_LOOK) {
            t.own().reconsider.set(at.page().0);
        }
    }
}

/// The counters for false positives of a page, which are those of its first watch.
pub fn page_counters(page: TargetAddr) -> Option<&'static Counters> {
    let mut first = None;
    let look = &mut |id, _, _| {
        first = Some(id);
        false
    };
    g().watchlist()
        .overlaps_while(page, ulpf_lib::PAGE_SIZE, look);
    first.and_then(|id| g().counters(g().attributes(id).group.unwrap_or(id)))
}

/// The kernel has made an access for a system call.
pub fn kernel_access(
    t: Current,
    gprs: &Gprs,
    call: &Call,
    addr: TargetAddr,
    len: u64,
    kind: AccessKind,
    kept: &Kept,
) {
    let cause = Cause {
        pc: gprs.rip.wrapping_sub(2),
        addr,
        len,
        kind,
        old: None,
        new: None,
        kept: Some(kept),
        syscall: Some(call),
        locked: false,
    };
    let mut events = Events::none();
    hits(t, gprs, &cause, &mut events);
    events.iter().for_each(|e| t.own().report(e));
    t.own().call.set(Some(*call));
}
