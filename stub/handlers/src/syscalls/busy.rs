//! What dispatch has to do with patched system-call sites: which become worth it, and what a slot has left undone.

use core::sync::atomic::Ordering::*;

use super::sites::{AFTER, ENABLED, KNOWN, Left, has, put, seen};
use super::{dispatch, rest, sites_code};
use crate::global::g;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;

/// Dispatch has served a call; the context is complete. Has its site become worth a patch?
pub fn note(t: Current, uc: &mut UContext, insn: u64, nr: u64) {
    if nr >= KNOWN as u64 || !ENABLED.load(Relaxed) {
        return;
    }
    let Some(s) = seen(insn) else { return };
    s.signals.fetch_add(1, Relaxed);
    if !sites_code::may_serve(nr) {
        return;
    }
    if s.refused.load(Relaxed) || has(&s.done, nr) {
        return;
    }
    put(&s.met, nr);
    let after = AFTER.load(Relaxed);
    if s.count.fetch_add(1, Relaxed) + 1 < after {
        return;
    }
    let i = t.own();
    if t.stepping.load(Relaxed)
        || i.own_step.get().is_some()
        || t.leaving.load(Relaxed)
        || i.deferred_len.get() > 0
        || !i.pending.get().is_empty()
        || t.tgid() != g().pid.load(Relaxed)
    {
        return;
    }
    s.count.store(0, Relaxed);
    park::request(t, uc, Request::Patch { insn });
}

impl Left {
    /// Makes the call again, by dispatch, which knows how to wait only for the rest of the time and
    /// need not be interrupted for another stop; unless the context has gone elsewhere meanwhile.
    pub fn again(&self, t: Current, uc: &mut UContext) {
        if self.interrupted
            && uc.gprs.rip == self.insn
            && uc.gprs.rax == self.nr as u64
            && !t.leaving.load(Relaxed)
        {
            uc.gprs.rip = self.insn + 2;
            t.own().begun.set(self.begun);
            dispatch(t, uc);
            t.own().begun.set(0);
        }
        let partial = self
            .result
            .filter(|(done, args)| rest::of_one_piece(self.nr.into(), args, *done).is_some());
        if let Some((done, _)) = partial
            && uc.gprs.rip == self.insn + 2
            && uc.gprs.rax == done as u64
            && !t.leaving.load(Relaxed)
        {
            uc.gprs.rax = self.nr as u64;
            t.own().already.set(done);
            dispatch(t, uc);
            t.own().already.set(0);
        }
    }
}
