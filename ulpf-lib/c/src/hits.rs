//! Hits of an access: the watches it concerns, the old and new values, and the handlers to call.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::access::AccessList;
use ulpf_lib::sys;
use ulpf_lib::{AccessKind, WatchId, WatchKind, WatchRange};

use crate::memory;
use crate::shared::{LIVE, S, SPENT, Slot, Unchanging};
use crate::thread;

pub const ONE_SHOT: u32 = 1;
pub const STOP: u32 = 2;
pub const CHANGED: u32 = 4;
pub const OTHERS: u32 = 8;
/// The handler is called for accesses of handlers as well.
pub const NESTED: u32 = 16;
/// Set by us: a range of `set_permissions`, whose handler is the thesis's.
pub const RANGE: u32 = 1 << 31;

/// Hits that one instruction can hand to handlers.
const MOST: usize = 24;
/// Bytes of old (and new) values kept for them.
const ROOM: usize = 2048;

#[derive(Clone, Copy)]
struct Hit {
    id: u32,
    addr: u64,
    len: u64,
    kind: AccessKind,
    /// Offset of its old value; `kept`: number of stored bytes.
    at: usize,
    kept: usize,
    report: bool,
}

/// The hits of one instruction between "about to happen" and "has happened".
pub struct Pending {
    hits: [Hit; MOST],
    len: usize,
    used: usize,
    old: [u8; ROOM],
    new: [u8; ROOM],
    pub pc: u64,
    /// The system call that makes the access, or -1 for an instruction.
    pub syscall: i32,
    /// Some watch is concerned (of any thread).
    pub watched: bool,
}

/// The argument of a handler (`struct ulpf_hit`).
#[repr(C)]
pub struct HitInfo {
    pub size: usize,
    pub watch: i64,
    pub addr: u64,
    pub len: usize,
    /// `ULPF_READ`, `ULPF_WRITE` or both.
    pub access: i32,
    pub thread: i32,
    pub pc: u64,
    pub old_value: *const u8,
    pub new_value: *const u8,
    /// Valid bytes of the values (`len`, or fewer for a very long access).
    pub value_len: usize,
    /// Number of hits of the watch, including this one.
    pub count: u64,
    /// The write has left the value unchanged.
    pub silent: i32,
    /// The system call that has made the access, or -1 for an instruction.
    pub syscall: i32,
    /// The interrupted `ucontext_t`; null in a system call.
    pub context: *const core::ffi::c_void,
}

pub type Handler = extern "C" fn(*const HitInfo, *mut core::ffi::c_void);

impl Pending {
    pub fn new(pc: u64) -> Pending {
        let none = Hit {
            id: 0,
            addr: 0,
            len: 0,
            kind: AccessKind::Read,
            at: 0,
            kept: 0,
            report: false,
        };
        Pending {
            hits: [none; MOST],
            len: 0,
            used: 0,
            old: [0; ROOM],
            new: [0; ROOM],
            pc,
            syscall: -1,
            watched: false,
        }
    }

    /// Records the hits of one instruction in advance, with the old values.
    pub fn collect(&mut self, still: &Unchanging, list: &AccessList) {
        for a in list.iter() {
            still.list().for_each_overlap(
                a.addr,
                a.len,
                &mut |id: WatchId, range: WatchRange, kind: WatchKind| {
                    if !kind.sees(a.kind) {
                        return;
                    }
                    let start = a.addr.0.max(range.start.0);
                    let end = (a.addr.0 + a.len).min(range.end().0);
                    self.push(id, start, end - start, a.kind, |old| {
                        memory::read(still, start, old)
                    });
                },
            );
        }
    }

    /// Records one hit of a watch, if that is for this thread. `old` fills in the value before it.
    pub fn push(
        &mut self,
        id: WatchId,
        addr: u64,
        len: u64,
        kind: AccessKind,
        old: impl FnOnce(&mut [u8]) -> bool,
    ) {
        let Some(slot) = S.slot(id.0).filter(|s| s.state.load(Relaxed) == LIVE) else {
            return;
        };
        self.watched = true;
        if !concerns(slot) {
            return;
        }
        let Some(hit) = self.hits.get_mut(self.len) else {
            slot.hits.fetch_add(1, Relaxed);
            S.unreported.fetch_add(1, Relaxed);
            return;
        };
        let at = self.used;
        let room = (len as usize).min(ROOM - at);
        let to = self.old.get_mut(at..at + room).unwrap_or(&mut []);
        let kept = if old(to) { room } else { 0 };
        self.used += kept;
        self.len += 1;
        *hit = Hit {
            id: id.0,
            addr,
            len,
            kind,
            at,
            kept,
            report: false,
        };
    }

    /// The access has been made: counts the hits and decides which are reported.
    pub fn made(&mut self, still: &Unchanging) {
        for hit in self.hits.iter_mut().take(self.len) {
            let Some(slot) = S.slot(hit.id) else { continue };
            let span = hit.at..hit.at + hit.kept;
            let (Some(old), Some(new)) = (self.old.get(span.clone()), self.new.get_mut(span))
            else {
                continue;
            };
            memory::read(still, hit.addr, new);
            let silent = hit.kind.writes() && hit.kept as u64 == hit.len && old == new;
            let flags = slot.flags.load(Relaxed);
            slot.hits.fetch_add(1, Relaxed);
            slot.silent.fetch_add(silent as u64, Relaxed);
            slot.time.store(now(), Relaxed);
            hit.report = !(silent && flags & CHANGED != 0);
            if hit.report && flags & ONE_SHOT != 0 {
                // If several threads hit at once, one reports.
                hit.report = slot
                    .state
                    .compare_exchange(LIVE, SPENT, AcqRel, Relaxed)
                    .is_ok();
            }
            if flags & RANGE != 0 {
                hit.report = false;
            }
        }
    }

    /// Calls `call` for each hit to be reported, with its handler (0: none), data and description. Returns whether one of
    /// them is to stop the thread.
    pub fn report(
        &self,
        nested: bool,
        context: *const core::ffi::c_void,
        mut call: impl FnMut(Handler, usize, &HitInfo),
    ) -> bool {
        let mut stop = false;
        for hit in self.hits.iter().take(self.len).filter(|h| h.report) {
            let Some(slot) = S.slot(hit.id) else { continue };
            let flags = slot.flags.load(Relaxed);
            stop |= flags & STOP != 0;
            if nested && flags & NESTED == 0 {
                S.nested.fetch_add(1, Relaxed);
                continue;
            }
            let (handler, data) = match slot.handler.load(Acquire) {
                0 => (S.handler.load(Acquire), S.handler_data.load(Acquire)),
                own => (own, slot.data.load(Acquire)),
            };
            if handler == 0 {
                continue;
            }
            let span = hit.at..hit.at + hit.kept;
            let (old, new) = (
                self.old.get(span.clone()).unwrap_or(&[]),
                self.new.get(span).unwrap_or(&[]),
            );
            let info = HitInfo {
                size: size_of::<HitInfo>(),
                watch: hit.id as i64,
                addr: hit.addr,
                len: hit.len as usize,
                access: hit.kind as i32,
                thread: thread::id(),
                pc: self.pc,
                old_value: old.as_ptr(),
                new_value: new.as_ptr(),
                value_len: hit.kept,
                count: slot.hits.load(Relaxed),
                silent: (hit.kind.writes() && hit.kept as u64 == hit.len && old == new) as i32,
                syscall: self.syscall,
                context,
            };
            // SAFETY: the program has passed this function as a handler.
            let handler = unsafe { core::mem::transmute::<usize, Handler>(handler) };
            call(handler, data, &info);
        }
        stop
    }
}

/// Whether this watch is for this thread.
fn concerns(slot: &Slot) -> bool {
    let thread = slot.thread.load(Relaxed);
    thread == 0 || (thread == thread::id()) != (slot.flags.load(Relaxed) & OTHERS != 0)
}

/// CLOCK_MONOTONIC in nanoseconds.
fn now() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: two words are a `timespec`.
    let _ = unsafe { sys!(k::__NR_clock_gettime, k::CLOCK_MONOTONIC, time.as_mut_ptr()) };
    time[0] * 1_000_000_000 + time[1]
}
