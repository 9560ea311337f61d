//! Conditions, threads and ignore counts of the debugger's own watches, decided on the thread that made the access.
//!
//! GDB's plugin compiles them and sends `ulpf condition`. GDB does not know this: it decides again at each hit that is
//! reported. So a condition here may pass a hit that GDB rejects, but never the other way round; the plugin guarantees
//! that. GDB must also learn what it would have learned at the hits that are not reported. That is the watch's value,
//! with which it compares the next one, and the progress of its ignore count. So before a stop:
//!
//! ```text
//! a hit that passes ─▶ the plugin's byte is hit (`out_of_band`) ─▶ `ulpf settle`: which watches, how many hits
//!                      memory shows what was there before the      the plugin has GDB read their values anew,
//!                      hit, until the program goes on               and lets the program go on
//!                  ─▶ now nothing is unsettled: the hit itself is reported, and no instruction was made meanwhile
//! ```
//! The plugin is asked to look (`look`) in the same way before the program goes on, when GDB may have moved its
//! watches.
//!
//! A debugger that steps would take the plugin's stop for the end of its step. So GDB alone decides while a thread
//! steps (`Global::decides`).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_engine::cpu::Gprs;
use ulpf_lib::command::reply::{Settle, Settled};
use ulpf_lib::filter::Filter;
use ulpf_lib::{WatchId, WatchKind, WatchRange};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::events::{Event, Resume, Tid};
use ulpf_stub_handlers::runtime::park::notify;
use ulpf_stub_handlers::runtime::thread::Thread;
use ulpf_stub_tables::attributes::Attributes;
use ulpf_stub_tables::filter::CountedFilter;

use super::parked::{self, Parked};
use super::{Control, out_of_band};
use crate::inferior::{Inferior, Stop, StopReason};

#[derive(Default)]
pub struct Conditions {
    list: Vec<Condition>,
    /// The stack pointer of the innermost function with a local that the debugger watches; 0 if there is no such
    /// function.
    pub locals: u64,
    /// The debugger's watches may differ from those for which the conditions were made.
    look: bool,
    /// The plugin must look and has not done so yet.
    asked: bool,
    /// A stop that only the plugin sees is due.
    due: bool,
    /// The present round.
    round: Option<Round>,
    /// Watches settled without a round.
    at_stop: Vec<Settled>,
}

struct Condition {
    range: WatchRange,
    kind: WatchKind,
    filter: Arc<CountedFilter>,
}

/// A stop that only the plugin sees.
#[derive(Default)]
struct Round {
    settled: Vec<Settled>,
    /// Bytes as they were before the next hit.
    before: Vec<(u64, Vec<u8>)>,
    /// Registers as they are shown.
    shown: Option<(Tid, Gprs)>,
    /// The debugger's interruption is still to be reported.
    interrupted: bool,
}

impl Conditions {
    pub fn find(&self, range: WatchRange, kind: WatchKind) -> Option<Arc<CountedFilter>> {
        let found = self
            .list
            .iter()
            .find(|c| c.range == range && c.kind == kind)?;
        Some(found.filter.clone())
    }

    /// The debugger has set or removed a watch.
    pub fn watches_changed(&mut self) {
        self.look = true;
    }

    /// The debugger has learned of a hit of a watch of its own. If that watch has no condition here, the debugger's
    /// watches may depend on it: `*p`, where `p` was hit.
    fn reported(&mut self, id: WatchId) {
        let attributes = g().attributes(id);
        let decided = attributes.filter.as_ref().is_some_and(|f| f.is_debuggers());
        self.look |= !attributes.out_of_band && !decided;
    }

    /// Applies to `buf` the bytes at `addr` as they are to be shown.
    pub fn overlay(&self, addr: u64, buf: &mut [u8]) {
        for (at, bytes) in self.round.iter().flat_map(|r| &r.before).rev() {
            let end = (at + bytes.len() as u64).min(addr.saturating_add(buf.len() as u64));
            for byte in addr.max(*at)..end {
                let from = bytes.get((byte - at) as usize);
                if let (Some(to), Some(from)) = (buf.get_mut((byte - addr) as usize), from) {
                    *to = *from;
                }
            }
        }
    }

    /// Returns whether memory is shown other than it is.
    pub fn shows(&self) -> bool {
        self.round.is_some()
    }

    /// The registers of a thread, where the debugger would take its PC for a breakpoint that it has come to.
    pub fn shown(&mut self, tid: Tid) -> Option<&mut Gprs> {
        let shown = self.round.as_mut()?.shown.as_mut()?;
        (shown.0 == tid).then_some(&mut shown.1)
    }
}

impl Control {
    /// Sets the condition for the debugger's own watches of exactly these bytes and this kind, now and later. The
    /// default filter removes it.
    pub fn set_condition(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        filter: Filter,
    ) -> Result<Vec<WatchId>, &'static str> {
        let set = filter != Filter::default();
        if set && self.filters.find(range).is_some() {
            return Err("`monitor ulpf filter` has said which hits of these bytes matter");
        }
        self.conditions
            .list
            .retain(|c| c.range != range || c.kind != kind);
        let new = set.then(|| Arc::new(CountedFilter::of_debugger(filter, range.len)));
        if let Some(filter) = &new {
            let filter = filter.clone();
            let condition = Condition {
                range,
                kind,
                filter,
            };
            self.conditions.list.push(condition);
        }
        let ids = self.watches_of_debugger(range, kind);
        for &id in &ids {
            self.set_filter(id, new.clone());
        }
        Ok(ids)
    }

    fn watches_of_debugger(&self, range: WatchRange, kind: WatchKind) -> Vec<WatchId> {
        let all = g().watches().attributes.iter();
        let same = |(id, a): &(WatchId, &Attributes)| {
            !a.out_of_band && self.staged.get(*id) == Some((range, kind))
        };
        all.filter(same).map(|(id, _)| id).collect()
    }

    fn drop_conditions(&mut self) {
        for c in core::mem::take(&mut self.conditions.list) {
            for id in self.watches_of_debugger(c.range, c.kind) {
                self.set_filter(id, None);
            }
        }
    }

    /// The program is about to go on as `action` says. `false`: a stop that only the plugin sees comes first.
    pub(super) fn decide(&mut self, steps: bool) -> bool {
        let plugin = self.out_of_band.understood;
        let c = &mut self.conditions;
        if !c.list.is_empty() && (!plugin || core::mem::take(&mut c.asked)) {
            // The plugin does not keep the debugger up to date.
            self.drop_conditions();
        }
        let c = &mut self.conditions;
        // (Where one thread stops alone, the others change the state that would have to be settled.)
        let decides = !c.list.is_empty() && !steps && !self.non_stop;
        g().decides.store(decides, SeqCst);
        if !decides || !c.look {
            return true;
        }
        (c.asked, c.due) = (true, true);
        notify();
        false
    }

    /// Ends showing other memory and registers. `true`: an interruption is still to be reported.
    pub(super) fn end_round(&mut self) -> bool {
        let round = self.conditions.round.take();
        round.is_some_and(|r| r.interrupted)
    }

    /// A stop at which the plugin is asked to look.
    pub(super) fn due(&mut self) -> Option<Stop> {
        if !core::mem::take(&mut self.conditions.due) {
            return None;
        }
        let tid = self.any_thread()?;
        Some(self.begin_round(tid, Round::default()))
    }

    /// Before `event` of a thread is reported: the plugin's stop, if there are hits to settle.
    pub(super) fn settles(&mut self, t: &Thread, parked: Parked, event: Event) -> Option<Stop> {
        let before_it = match event {
            Event::Watch { .. } | Event::Signal(_) | Event::HeapError { .. } | Event::Ends => true,
            // GDB has a breakpoint at the return of a function whose locals it watches, and removes these watches
            // there.
            Event::Breakpoint => !self.has_returned(t),
            _ => false,
        };
        let mut round = before_it.then(|| self.unsettled(Some(t)))??;
        let hits: Vec<Event> = core::iter::once(event)
            .chain(parked.later().iter())
            .collect();
        for hit in hits {
            if let Event::Watch { id, addr, .. } = hit
                && let Some(hit) = out_of_band::record(t, id, addr)
                && hit.kind != ulpf_lib::AccessKind::Read as u8
            {
                let old = hit.old.get(..hit.used()).unwrap_or_default();
                round.before.push((hit.addr, old.into()));
            }
        }
        Some(self.begin_round(t.tid(), round))
    }

    fn has_returned(&mut self, t: &Thread) -> bool {
        let locals = self.conditions.locals;
        locals != 0 && self.gprs(t.tid()).is_none_or(|gprs| gprs.rsp > locals)
    }

    /// The same before an interruption.
    pub(super) fn settles_interrupted(&mut self, tid: Tid) -> Option<Stop> {
        let mut round = self.unsettled(None)?;
        round.interrupted = true;
        Some(self.begin_round(tid, round))
    }

    /// Writes the answer to `ulpf settle`, which is also sent at a debugger's stop before it steps.
    pub fn settle(&mut self, out: &mut dyn Write) {
        let at_stop = self.thread(self.current).filter(|_| !self.running);
        if self.conditions.round.is_none()
            && let Some(mut round) = self.unsettled(at_stop)
        {
            self.conditions.at_stop.append(&mut round.settled);
        }
        let c = &mut self.conditions;
        c.asked = false;
        let look = core::mem::take(&mut c.look);
        let mut of = core::mem::take(&mut c.at_stop);
        if let Some(round) = &mut c.round {
            of.append(&mut round.settled);
        }
        let _ = writeln!(out, "{}", Settle { of, look });
    }

    pub(super) fn report_watch(&mut self, id: WatchId) {
        self.conditions.reported(id);
    }

    /// Effects that the debugger has to learn before a stop of this thread.
    fn unsettled(&mut self, of: Option<&Thread>) -> Option<Round> {
        let any = self.conditions.list.iter().any(|c| c.filter.is_unsettled());
        if !any || !self.out_of_band.understood {
            return None;
        }
        self.world.stop(None);
        // Another thread's hit that was not reported: the bytes before it are not known to us.
        let others = g()
            .threads
            .iter()
            .filter(|t| of.is_none_or(|of| !core::ptr::eq(*t, of)));
        let waiting: Vec<WatchRange> = others
            .filter_map(|t| match parked::event(t) {
                Event::Watch { id, .. } => self.staged.get(id).map(|w| w.0),
                _ => None,
            })
            .collect();
        let mut settled = Vec::new();
        for c in &self.conditions.list {
            let waits = waiting
                .iter()
                .any(|r| r.overlaps(c.range.start, c.range.len));
            if c.filter.is_unsettled() && !waits {
                settled.push(Settled {
                    range: c.range,
                    kind: c.kind,
                    skipped: c.filter.settle(),
                });
            }
        }
        (!settled.is_empty()).then(|| Round {
            settled,
            ..Round::default()
        })
    }

    fn begin_round(&mut self, tid: Tid, mut round: Round) -> Stop {
        self.world.stop(None);
        if let Some(gprs) = self.gprs(tid).copied()
            && g().breakpoint_at(gprs.rip).is_some()
        {
            let rip = gprs.rip.wrapping_add(1);
            round.shown = Some((tid, Gprs { rip, ..gprs }));
        }
        self.conditions.round = Some(round);
        self.out_of_band.forget();
        Stop {
            tid,
            reason: StopReason::Watch {
                kind: WatchKind::Access,
                addr: out_of_band::PLACE,
                start: out_of_band::PLACE,
            },
        }
    }

    /// The other watches that the instruction of the present stop has hit, for the debugger's user.
    pub fn take_rest(&mut self, out: &mut dyn Write) {
        let Some(t) = self.thread(self.current) else {
            return;
        };
        let Some(parked) = Parked::of(t) else { return };
        let mut later = parked.later();
        for event in later.iter() {
            if let Event::Watch { id, addr, .. } = event
                && g().is_out_of_band(id)
            {
                out_of_band::tell(t, id, addr, out);
            }
        }
        later.retain(|e| !matches!(e, Event::Watch { id, .. } if g().is_out_of_band(*id)));
        parked.set_later(later);
    }
}

/// Returns whether a resume action steps.
pub fn steps(how: Resume) -> bool {
    matches!(how, Resume::Step { .. } | Resume::RangeStep { .. })
}
