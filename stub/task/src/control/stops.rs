//! Selects the thread whose event is reported.

use core::sync::atomic::Ordering::*;

use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::events::{Event, Request, Resume};
use ulpf_stub_handlers::runtime::thread::{State, Thread};

use super::parked::{self, Parked, asked, has_met, resume_again};
use super::{Control, world};
use crate::inferior::{Inferior, Stop, StopReason, Tid};

/// Returns whether its next instruction is a breakpoint that stops it in any case, or it has met that already.
fn is_about_to_meet(t: &Thread) -> bool {
    let Some(parked) = Parked::of(t).filter(|_| t.state() == State::Parked) else {
        return false;
    };
    let runs = t.is_debugged() && !t.hold.load(SeqCst) && !t.stepping.load(Relaxed);
    let at = g().breakpoint_at(parked.pc());
    runs && at.is_some_and(|b| b.there && b.conditions.is_empty())
        && matches!(parked.event(), Event::None | Event::Breakpoint)
}

/// All threads, those behind this index in their table first, so that each has its turn.
pub(super) fn behind(place: u32) -> impl Iterator<Item = &'static Thread> {
    let is_next = move |t: &&'static Thread| t.index.load(Relaxed) > place;
    let all = g().threads.iter();
    all.filter(is_next)
        .chain(g().threads.iter().filter(move |t| !is_next(t)))
}

impl Control {
    /// A thread wants to exec, which ends all others, and one of these still has an event to report.
    pub(super) fn stop_comes_first(&self) -> bool {
        let execs = |t: &Thread| matches!(asked(t), Some(Request::ExecBegin { .. }));
        self.running
            && self.holder.is_none()
            && g().threads.iter().any(execs)
            && g().threads.iter().any(|t| t.is_debugged() && has_met(t))
    }

    /// Several threads are at breakpoints, and one of them was released first: it is reported alone, and stops the
    /// others before their next instruction. Each of them has its turn (gdbserver chooses one by chance). The hit of
    /// the first one is reported later, if the breakpoint is still there. The world is stopped.
    pub(super) fn choose(&mut self, first: Stop) -> Stop {
        let mut stop = first;
        if first.reason == StopReason::Breakpoint
            && let Some(t) = behind(self.turn).find(|t| t.tid() == first.tid || is_about_to_meet(t))
            && t.tid() != first.tid
        {
            if let Some(parked) = Parked::of(t) {
                parked.set_event(Event::None);
            }
            self.keep_event(first);
            stop.tid = t.tid();
        }
        self.next_turn(stop);
        stop
    }

    /// Another thread is asked first for the next stop.
    pub(super) fn next_turn(&mut self, stop: Stop) {
        if stop.reason != StopReason::Interrupted
            && let Some(t) = g().threads.find(stop.tid)
        {
            self.turn = t.index.load(Relaxed);
        }
    }

    /// The thread whose event is reported next, with the reason.
    pub(super) fn find_stop(&mut self) -> Option<Stop> {
        let steps = |t: &&'static Thread| parked::event(t) == Event::Stepped;
        // The thread that the debugger steps comes first, so that the debugger stays with it.
        for t in g().threads.iter().filter(steps).chain(behind(self.turn)) {
            // An event of a held thread is reported once the debugger releases the thread.
            if t.state() != State::Parked || t.hold.load(SeqCst) {
                continue;
            }
            let Some(parked) = Parked::of(t) else {
                continue;
            };
            let event = parked.event();
            if t.is_debugged()
                && let Some(stop) = self.settles(t, parked, event)
            {
                return Some(stop);
            }
            let reason = match event {
                // It returned from a system call and saw the world stopped, a moment before all threads were released.
                Event::None if g().world.load(SeqCst) == 0 => {
                    let how = resume_again(t);
                    world::release(t, how);
                    continue;
                }
                Event::None => continue,
                Event::Breakpoint => {
                    if g().breakpoint_at(parked.pc()).is_none() {
                        parked.set_event(Event::None); // removed meanwhile: as if it had never been hit
                        if g().world.load(SeqCst) == 0 {
                            world::release(t, Resume::Continue { signal: None });
                        }
                        continue;
                    }
                    StopReason::Breakpoint
                }
                Event::Stepped => StopReason::Stepped,
                Event::Watch { id, kind, addr, .. } => {
                    self.report_watch(id);
                    self.out_of_band.reason(t, id, kind, addr)
                }
                Event::Signal(n) => StopReason::Signal(n),
                Event::HeapError { report } => StopReason::HeapError { report },
                Event::HeapEnd => StopReason::HeapEnd,
                Event::Syscall { nr, entry } => StopReason::Syscall { nr, entry },
                Event::Forked { child } => StopReason::Forked {
                    child,
                    vfork: false,
                },
                // Its parent reports it, once the parent is released.
                Event::Vforked { parent } if self.is_held(parent) => {
                    t.hold.store(true, SeqCst);
                    continue;
                }
                Event::Vforked { parent } => {
                    parked.set_event(Event::None);
                    return Some(Stop {
                        tid: parent,
                        reason: StopReason::Forked {
                            child: t.tid(),
                            vfork: true,
                        },
                    });
                }
                Event::VforkDone => StopReason::VforkDone,
                Event::Traces { number } => StopReason::Traces { number },
                // Everything that had to be settled is settled.
                Event::Ends => {
                    parked.set_event(Event::None);
                    if g().world.load(SeqCst) == 0 {
                        world::release(t, Resume::Continue { signal: None });
                    }
                    continue;
                }
                Event::Created => StopReason::Created,
                Event::Exits { status } => StopReason::Exits { status },
            };
            if !t.is_debugged() {
                // A vfork child shares our memory, not our debugger.
                let signal = if let Event::Signal(n) = event {
                    Some(n)
                } else {
                    None
                };
                parked.set_event(Event::None);
                world::release(t, Resume::Continue { signal });
                continue;
            }
            self.notices.explain(parked, event);
            parked.set_event(Event::None);
            return Some(Stop {
                tid: t.tid(),
                reason,
            });
        }
        if self.interrupt && self.non_stop {
            return self.interrupted_thread();
        }
        if self.interrupt {
            self.world.stop(None);
            // The kernel gives a terminal's SIGINT to the main thread, too.
            let main = Some(self.pid()).filter(|pid| self.thread(*pid).is_some());
            let main = main.filter(|pid| !self.is_held(*pid));
            let tid = main.or_else(|| self.any_thread())?;
            if let Some(stop) = self.settles_interrupted(tid) {
                return Some(stop);
            }
            return Some(Stop {
                tid,
                reason: StopReason::Interrupted,
            });
        }
        self.due()
    }

    /// A thread for a stop without one of its own: preferably that of the last stop.
    pub(super) fn any_thread(&self) -> Option<Tid> {
        let all = self.threads();
        all.iter()
            .find(|t| **t == self.current && !self.is_held(**t))
            .or_else(|| all.iter().find(|t| !self.is_held(**t)))
            .or_else(|| all.first())
            .copied()
    }
}
