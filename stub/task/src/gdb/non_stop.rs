//! Non-stop mode: each thread stops and goes on by itself.
//!
//! ```text
//!     QNonStop:1              every thread is stopped; from now on a stop is one thread's
//!     vCont;c:TID ── OK       at once; the stop comes as %Stop, whenever it comes
//!     vCont;t:TID ── OK       %Stop:T00… follows
//!     %Stop:T05…              one for each stop, as they happen
//!     vUlpfStops ── %Stop…OK  the stops of all threads that are stopped, once more (for `?`)
//!     vUlpfSeen;TID           the debugger has taken note of the thread's stop; no reply
//! ```
//! The debugger takes one notification at a time and asks for the next one (`vStopped`). The server keeps the queue,
//! because it may serve several programs and notices their ends. An action for a thread whose stop the debugger has not
//! seen yet was meant for a running thread, and is void (as in gdbserver, linux-low.cc, `in_queued_stop_replies`).
//!
//! gdbstub supports all-stop only: it serves registers and the list of threads.

use super::packet::{Action, Go, Id};
use super::{Event, GdbSession};
use crate::inferior::{Inferior, Stop, StopReason, Tid};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use linux_raw_sys::general as k;
use ulpf_rsp::notification;

#[derive(Default)]
pub struct NonStop {
    on: bool,
    /// Why threads have stopped that are.
    pub(super) stops: BTreeMap<Tid, ReportedStop>,
    /// Packets that wait until no thread runs alone.
    pub waiting: Vec<Vec<u8>>,
    /// The debugger wants to hear of threads that begin and end.
    pub(super) thread_events: bool,
}

pub(super) struct ReportedStop {
    reason: StopReason,
    /// The debugger has taken note of it.
    pub(super) seen: bool,
}

impl NonStop {
    pub fn reason_of(&self, tid: Tid) -> Option<StopReason> {
        self.stops.get(&tid).map(|stop| stop.reason)
    }

    pub(super) fn is_unseen(&self, tid: Tid) -> bool {
        self.stops.get(&tid).is_some_and(|stop| !stop.seen)
    }
}

impl GdbSession {
    pub fn is_non_stop(&self) -> bool {
        self.non_stop.on
    }

    /// Nothing may be changed now but by the command.
    pub(super) fn must_wait(&self, inf: &dyn Inferior, payload: &[u8]) -> bool {
        self.is_non_stop() && inf.is_busy() && !payload.starts_with(b"vUlpf")
    }

    /// Serves what has waited.
    pub fn catch_up(&mut self, inf: &mut dyn Inferior, out: &mut dyn FnMut(&[u8])) {
        for payload in core::mem::take(&mut self.non_stop.waiting) {
            self.packet(inf, &payload, out);
        }
    }

    pub(super) fn set_non_stop(&mut self, inf: &mut dyn Inferior, on: bool) {
        if on == self.non_stop.on {
            return;
        }
        let stops = core::mem::take(&mut self.non_stop.stops);
        self.non_stop.on = on;
        inf.set_non_stop(on);
        self.set_thread_events(inf);
        if on {
            self.first_stop(inf);
        }
        for (tid, stop) in stops.into_iter().filter(|(_, stop)| !stop.seen) {
            let reason = stop.reason;
            inf.report_again(Stop { tid, reason });
        }
        self.last_stop.clear();
        self.last_reason = None;
        self.event = Event::Stopped;
    }

    /// As all-stop would answer `?`: the thread of the last stop has a reason, the others are just stopped.
    fn first_stop(&mut self, inf: &mut dyn Inferior) {
        const SIGTRAP: i32 = k::SIGTRAP as i32;
        let threads = inf.threads();
        let last = self.last_reason.filter(|stop| threads.contains(&stop.tid));
        let first = threads.first().map(|tid| Stop {
            tid: *tid,
            reason: StopReason::Signal(SIGTRAP),
        });
        if let Some(stop) = last.or(first) {
            let reported = ReportedStop {
                reason: stop.reason,
                seen: true,
            };
            self.non_stop.stops.insert(stop.tid, reported);
        }
    }

    pub(super) fn set_thread_events(&mut self, inf: &mut dyn Inferior) {
        inf.set_thread_events(self.non_stop.on && self.non_stop.thread_events);
    }

    /// Tells of one thread's stop.
    pub(super) fn one_stopped(
        &mut self,
        inf: &mut dyn Inferior,
        stop: Stop,
        out: &mut dyn FnMut(&[u8]),
    ) {
        if let StopReason::Watch { addr, .. } = stop.reason {
            self.large.hit(addr);
        }
        let reported = ReportedStop {
            reason: stop.reason,
            seen: false,
        };
        match stop.reason {
            StopReason::Exits { .. } => drop(self.non_stop.stops.remove(&stop.tid)),
            _ => drop(self.non_stop.stops.insert(stop.tid, reported)),
        }
        out(&self.notice(inf, stop));
    }

    /// Threads that should stop by name and no longer exist: a debugger that follows their ends waits for one.
    pub(super) fn those_gone(
        &self,
        inf: &mut dyn Inferior,
        actions: &[Action],
        frames: &mut Vec<u8>,
    ) {
        if !self.non_stop.thread_events {
            return;
        }
        let threads = inf.threads();
        for action in actions.iter().filter(|a| a.go == Go::Stop) {
            let Id::Is(tid) = action.thread.tid else {
                continue;
            };
            let Ok(tid) = Tid::try_from(tid) else {
                continue;
            };
            if action.thread.names(self.debuggee.pid, tid) && !threads.contains(&tid) {
                let reason = StopReason::Exits { status: 0 };
                frames.extend(self.notice(inf, Stop { tid, reason }));
            }
        }
    }

    /// The stops of all threads that are stopped, and that this was all.
    pub(super) fn all_stops(&mut self, inf: &mut dyn Inferior) -> Vec<u8> {
        let mut frames = Vec::new();
        for tid in inf.threads() {
            if !inf.is_stopped(tid) {
                continue;
            }
            let reason = self.non_stop.reason_of(tid).unwrap_or(StopReason::Halted);
            self.one_stopped(inf, Stop { tid, reason }, &mut |f| {
                frames.extend_from_slice(f)
            });
        }
        frames.extend_from_slice(b"$OK#9a");
        frames
    }

    /// `%Stop:T05…`, or `%Stop:w00;…` for a thread that ends.
    fn notice(&self, inf: &mut dyn Inferior, stop: Stop) -> Vec<u8> {
        notification(&[b"Stop:", &self.stop_reply(inf, stop)[..]].concat())
    }
}
