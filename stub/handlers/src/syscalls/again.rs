//! Completes a call of a slot that a signal has interrupted.

use core::sync::atomic::Ordering::*;

use super::sites::Left;
use super::{continuation, dispatch};
use crate::runtime::frame::UContext;
use crate::runtime::thread::Current;

impl Left {
    /// Makes the call again, by dispatch, unless the context has gone elsewhere meanwhile. Dispatch can wait for the
    /// rest of the time only, and another stop need not interrupt it.
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
        let partial = self.result.filter(|(done, args)| {
            continuation::of_one_piece(self.nr.into(), args, *done).is_some()
        });
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
