//! A waiting thread: the task owns parts of its record and frame while it waits.

use core::sync::atomic::Ordering::*;

use ulpf_lib::TargetAddr;
use ulpf_stub_handlers::runtime::events::{Event, Events, Request, Resume, Tid};
use ulpf_stub_handlers::runtime::frame::UContext;
use ulpf_stub_handlers::runtime::mapped::{Locks, Mapped};
use ulpf_stub_handlers::runtime::park;
use ulpf_stub_handlers::runtime::thread::{Call, Own, State, Thread};
use ulpf_stub_handlers::stopped::Stopped;

/// A thread that goes on only when the task lets it: parked, or with a request.
#[derive(Clone, Copy)]
pub struct Parked<'a>(&'a Thread);

impl<'a> Parked<'a> {
    pub fn of(t: &'a Thread) -> Option<Parked<'a>> {
        matches!(t.state(), State::Parked | State::Requesting).then_some(Parked(t))
    }

    fn own(&self) -> &Own {
        // SAFETY: it waits for this task, which is the only one to let it go, and does not while it looks.
        unsafe { self.0.own() }
    }

    pub fn event(&self) -> Event {
        self.own().event.get()
    }

    pub fn set_event(&self, event: Event) {
        self.own().event.set(event);
    }

    /// Further events of the same instruction, to be reported after the present stop.
    pub fn later(&self) -> Events {
        self.own().later.get()
    }

    pub fn set_later(&self, later: Events) {
        self.own().later.set(later);
    }

    pub fn request(&self) -> Request {
        self.own().request.get()
    }

    pub fn set_resume(&self, how: Resume) {
        self.own().resume.set(how);
    }

    /// The system call behind the hit that is reported.
    pub fn call(&self) -> Option<Call> {
        self.own().call.get()
    }

    pub fn mapped(&self) -> Mapped {
        self.own().mapped.get()
    }

    pub fn take_mapped(&self) -> Mapped {
        self.own().mapped.take()
    }

    pub fn set_changed_in_place(&self, yes: bool) {
        self.own().changed_in_place.set(yes);
    }

    pub fn set_segment(&self, range: (u64, u64)) {
        self.own().segment.set(range);
    }

    pub fn take_locks(&self) -> Locks {
        self.own().locks.take()
    }

    /// The thread that has made this vfork child, which the command follows; else 0.
    pub fn vfork_parent(&self) -> Tid {
        self.own().vfork_parent.get()
    }

    /// Its frame, whatever the other threads do.
    pub fn frame(&mut self) -> Option<&'a mut UContext> {
        // SAFETY: on the thread's own block. It is parked, and goes on only if this task, which has the frame now,
        // lets it.
        unsafe { self.0.ctx.load(Acquire).as_mut() }
    }

    /// siginfo_t of the signal that it has stopped for.
    pub fn siginfo(&mut self) -> &'a mut [u8; 128] {
        // SAFETY: 128 plain bytes; as in `frame`.
        unsafe { &mut *self.own().info.as_ptr().cast() }
    }

    /// Ends its single-stepping.
    pub fn untrap(&self) {
        let context = self.0.ctx.load(Acquire);
        // SAFETY: as in `pc`; no other thread uses the frame.
        if let Some(c) = unsafe { context.as_mut() } {
            park::set_tf(c, false);
        }
    }

    pub fn pc(&self) -> u64 {
        let context = self.0.ctx.load(Acquire);
        // SAFETY: the frame on its own block, if it has one.
        unsafe { context.as_ref() }.map_or(0, |c| c.gprs.rip)
    }
}

/// The event of a parked thread; `Event::None` for any other thread.
pub fn event(t: &Thread) -> Event {
    match t.state() {
        State::Parked => Parked(t).event(),
        _ => Event::None,
    }
}

/// The frame of a stopped thread. A thread in a system call does not touch it before it has stopped elsewhere.
pub fn frame<'a>(t: &Thread, _: &'a mut Stopped) -> Option<&'a mut UContext> {
    if !t.is_stopped() {
        return None;
    }
    // SAFETY: on the thread's own block, and no thread goes on while the token is lent.
    unsafe { t.ctx.load(Acquire).as_mut() }
}

/// True for a thread that had no [`frame`], unless it is about to end: it is leaving a system call, and stops in a
/// moment. (It may have stopped since that look, so the state of its gate does not count.)
pub fn is_unsettled(t: &Thread) -> bool {
    !matches!(t.state(), State::Dead | State::Free)
}

/// siginfo_t of the signal that a stopped thread has stopped for.
pub fn siginfo<'a>(t: &Thread, _: &'a mut Stopped) -> Option<&'a mut [u8; 128]> {
    if !t.is_stopped() {
        return None;
    }
    // SAFETY: 128 plain bytes, which a thread writes only when it parks for a signal; see `frame`.
    Some(unsafe { &mut *t.own().info.as_ptr().cast() })
}

/// The request that a thread waits for.
pub fn asked(t: &Thread) -> Option<Request> {
    let parked = Parked::of(t).filter(|_| t.state() == State::Requesting);
    parked.map(|t| t.request())
}

/// It has an event, which is to be reported now.
pub fn has_met(t: &Thread) -> bool {
    !t.hold.load(SeqCst) && event(t) != Event::None
}

/// A thread parked in the middle of a debugger's step continues to step.
pub fn resume_again(t: &Thread) -> Resume {
    if !t.stepping.load(Relaxed) {
        return Resume::Continue { signal: None };
    }
    let (start, end) = t.range();
    if (start, end) != (0, 0) {
        return Resume::RangeStep {
            start: TargetAddr(start),
            end: TargetAddr(end),
        };
    }
    Resume::Step { signal: None }
}
