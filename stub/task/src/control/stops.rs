//! Which thread has something to report.

use core::sync::atomic::Ordering::*;

use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::events::{Event, Request, Resume};
use ulpf_stub_handlers::runtime::thread::{State, Thread};

use super::parked::{self, Parked, asked, has_met, resume_again};
use super::{Control, world};
use crate::inferior::{Inferior, Stop, StopReason};

impl Control {
    /// A thread wants to exec, which ends all others, and one of these still has something to report.
    pub(super) fn stop_comes_first(&self) -> bool {
        let execs = |t: &Thread| matches!(asked(t), Some(Request::ExecBegin { .. }));
        self.running
            && self.holder.is_none()
            && g().threads.iter().any(execs)
            && g().threads.iter().any(|t| t.is_debugged() && has_met(t))
    }

    /// All threads, those behind the one that was reported last first: in this order they are let go and asked, so that none
    /// is always overtaken by another one.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = &'static Thread> + use<> {
        let turn = self.turn;
        let is_next = move |t: &&'static Thread| t.index.load(Relaxed) > turn;
        let all = g().threads.iter();
        all.filter(is_next)
            .chain(g().threads.iter().filter(move |t| !is_next(t)))
    }

    /// Which thread has something to report?
    pub(super) fn find_stop(&mut self) -> Option<Stop> {
        let steps = |t: &&'static Thread| parked::event(t) == Event::Stepped;
        // The thread that the debugger steps comes first, so that it is not led elsewhere.
        for t in g().threads.iter().filter(steps).chain(self.in_turn()) {
            // What a held thread has met is reported once the debugger lets it go.
            if t.state() != State::Parked || t.hold.load(SeqCst) {
                continue;
            }
            let Some(parked) = Parked::of(t) else {
                continue;
            };
            let event = parked.event();
            let reason = match event {
                // It came out of a system call and saw the world rest, a moment before everybody was let go.
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
                Event::Watch { id, kind, addr, .. } => self.out_of_band.reason(t, id, kind, addr),
                Event::Signal(n) => StopReason::Signal(n),
                Event::Syscall { nr, entry } => StopReason::Syscall { nr, entry },
                Event::Forked { child } => StopReason::Forked {
                    child,
                    vfork: false,
                },
                // Its parent's to report, once that is let go.
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
            self.turn = t.index.load(Relaxed);
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
            let all = self.threads();
            let tid = all
                .iter()
                .find(|t| **t == self.current && !self.is_held(**t))
                .or_else(|| all.iter().find(|t| !self.is_held(**t)))
                .or_else(|| all.first())
                .copied()?;
            return Some(Stop {
                tid,
                reason: StopReason::Interrupted,
            });
        }
        None
    }
}
