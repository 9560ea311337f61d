//! Non-stop mode: a thread stops and goes on by itself, while the others run.
//!
//! ```text
//!            resume_some                            meets something (`find_stop`), or `stop_some`
//!   stopped ─────────────▶ runs ──────────────────▶ stopped, reported
//!   (held)                  │  ▲                    (held)
//!                           ▼  │ end_pause: steps that are not made yet go on
//!                          rests, while the debugger changes something
//! ```
//! A stopped thread is *held*, as under scheduler locking in all-stop mode: it is parked, or in a system call after
//! which it will be. Its events wait until it is released. All other threads run, and the main loop serves the debugger
//! as it always does while the program runs. Code that needs the world stopped calls [`World::stopped`]. The world goes on
//! once all packets that came together are served. Reading memory, and the registers of a parked thread, needs no stop.
//!
//! [`World::stopped`]: super::world::World::stopped

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::locks;
use ulpf_stub_handlers::runtime::events::{Event, Resume, Tid};
use ulpf_stub_handlers::runtime::park::notify;
use ulpf_stub_handlers::runtime::thread::{State, Thread};

use super::parked::{self, Parked, has_met};
use super::{Control, pause, socket, world};
use crate::gdb::GdbSession;
use crate::inferior::{Stop, StopReason};

/// The thread with which `t` goes on: itself, or for a vfork child that is not one of the debugger's threads the thread
/// that made it. `None`: no thread.
fn leads(t: &Thread) -> Option<Tid> {
    match t.is_debugged() {
        true => Some(t.tid()),
        false => Parked::of(t)
            .map(|t| t.vfork_parent())
            .filter(|tid| *tid != 0),
    }
}

/// Returns whether it is held and nothing can still arrive for it. The parent of a vfork child is notified of the
/// child's end even while it is held. It waits in its call, or has returned from it and is parked before it reports.
fn stays(t: &Thread) -> bool {
    let nr = t.orig_rax.load(Relaxed) as u32;
    let vforks = matches!(nr, k::__NR_vfork | k::__NR_clone | k::__NR_clone3);
    t.hold.load(SeqCst) && t.is_stopped() && !vforks && parked::event(t) != Event::VforkDone
}

impl Control {
    pub(super) fn begin_non_stop(&mut self) {
        for t in g().threads.iter() {
            t.hold.store(leads(t).is_some(), SeqCst);
        }
        (self.non_stop, self.running, self.idle_reported) = (true, true, true);
        self.let_world_go();
    }

    pub(super) fn end_non_stop(&mut self) {
        self.world.stop(None);
        (self.non_stop, self.running, self.interrupt) = (false, false, false);
    }

    /// A held thread that is just leaving a system call is between two states for a moment.
    fn comes_to_rest(t: &Thread) {
        let mut rounds = 0;
        while t.state() == State::Running && rounds < 1000 {
            pause::sleep();
            rounds += 1;
        }
    }

    pub(super) fn let_some_go(&mut self, how: &dyn Fn(Tid) -> Option<Resume>) {
        self.settle_shadows();
        let mut chosen = Vec::new();
        for t in g().threads.iter().filter(|t| t.hold.load(SeqCst)) {
            let Some(how) = leads(t).and_then(how).filter(|how| *how != Resume::Hold) else {
                continue;
            };
            Self::comes_to_rest(t);
            self.forget_stale(t, how);
            let how = match t.is_debugged() {
                true => how,
                false => Resume::Continue { signal: None },
            };
            chosen.push((t, how));
        }
        // The debugger's changes take effect before any thread runs.
        let rested = self.world.is_stopped();
        if rested {
            self.commit_watches();
            self.world.stopped().guards().resumed();
            self.world.goes_on();
        }
        for (t, how) in chosen {
            t.ordered.store(true, SeqCst);
            t.hold.store(false, SeqCst);
            self.idle_reported = false;
            // An event that it has already met is reported first.
            if !has_met(t) {
                world::release(t, how);
            }
        }
        if rested {
            self.let_world_go();
        }
        notify();
    }

    pub(super) fn hold_some(&mut self, which: &dyn Fn(Tid) -> bool) -> Vec<Tid> {
        let named = |t: &&Thread| t.is_debugged() && t.tid() != 0 && which(t.tid());
        let runs = |t: &&Thread| !t.hold.load(SeqCst);
        if !g().threads.iter().any(|t| named(&t) && runs(&t)) {
            return Vec::new();
        }
        self.world.stopped();
        let mut held = Vec::new();
        for t in g().threads.iter().filter(named).filter(runs) {
            if !has_met(t) {
                t.hold.store(true, SeqCst);
                held.push(t.tid());
            }
        }
        self.idle_reported |= self.none_runs();
        held
    }

    /// The debugger wants any thread to stop.
    pub(super) fn interrupted_thread(&mut self) -> Option<Stop> {
        self.interrupt = false;
        let tid = self.threads_that_run().next()?.tid();
        let held = self.hold_some(&|t| t == tid);
        let reason = StopReason::Interrupted;
        held.first().map(|tid| Stop { tid: *tid, reason })
    }

    fn threads_that_run(&self) -> impl Iterator<Item = &'static Thread> {
        let runs = |t: &&Thread| t.is_debugged() && t.tid() != 0 && !t.hold.load(SeqCst);
        g().threads.iter().filter(runs)
    }

    /// Reports one thread's stop; the others go on.
    pub(super) fn one_has_stopped(&mut self, session: &mut GdbSession, stop: Stop) {
        let exits = matches!(stop.reason, StopReason::Exits { .. });
        let t = self.thread(stop.tid);
        if let Some(t) = t {
            t.hold.store(!exits, SeqCst);
            // The others go on, and may use its page as well.
            locks::give_back_kept(t);
        }
        if let StopReason::Forked { child, vfork: true } = stop.reason
            && let Some(child) = g().threads.find(child)
        {
            child.hold.store(true, SeqCst);
        }
        self.idle_reported |= self.none_runs();
        self.next_turn(stop);
        self.current = stop.tid;
        let fd = self.fd;
        session.stopped(self, stop, &mut |b: &[u8]| socket::send_all(fd, b));
        self.end_pause();
        if let (true, Some(t)) = (exits, t)
            && parked::event(t) == Event::None
        {
            world::release(t, Resume::Continue { signal: None });
        }
    }

    /// If packets have stopped the world, makes their changes effective and lets it go on.
    pub(super) fn end_pause(&mut self) {
        if !self.world.was_halted() {
            return;
        }
        if self.non_stop {
            self.commit_watches();
            self.world.stopped().guards().resumed();
        }
        self.let_world_go();
    }

    /// Returns whether every existing thread stays where it is, so that nothing will happen any more.
    pub(super) fn none_runs(&self) -> bool {
        let mut all = g().threads.iter().peekable();
        self.holder.is_none()
            && g().in_exec.load(SeqCst) == 0
            && all.peek().is_some()
            && all.all(stays)
    }

    /// Returns whether threads that were resumed have ended, and the remaining ones were not resumed.
    pub(super) fn none_is_left(&mut self) -> bool {
        let none = self.running && !self.idle_reported && self.none_runs();
        self.idle_reported |= none;
        none
    }

    pub(super) fn keep_event(&mut self, stop: Stop) {
        let event = match stop.reason {
            StopReason::Signal(n) => Event::Signal(n),
            StopReason::HeapError { report } => Event::HeapError { report },
            StopReason::Breakpoint => Event::Breakpoint,
            _ => return,
        };
        if let Some(parked) = self.thread(stop.tid).and_then(Parked::of)
            && parked.event() == Event::None
        {
            parked.set_event(event);
        }
    }
}
