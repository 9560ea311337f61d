//! Instructions that cannot be redirected: the pages open for one step of the processor.
//!
//! Examples are far transfers, segment loads, and operands that begin on a guarded page and end on one without an alias.
//! During the step this thread is the changer, so there is one step at a time. Accesses of other threads to the open
//! pages are missed; the steps are counted (`ulpf_stats::opened`). With protection keys the pages are open for this
//! thread only.

use core::sync::atomic::Ordering::*;

use ulpf_engine::access::AccessList;
use ulpf_engine::frame::UContext;
use ulpf_lib::TargetAddr;
use ulpf_lib::eflags::TF;

use crate::callbacks::after_access;
use crate::change;
use crate::exception_stacks::{OwnBlock, Step};
use crate::hits::Pending;
use crate::keys;
use crate::mask::{ALL, SYNCHRONOUS};
use crate::model::MODEL;
use crate::shared::{Changer, S, Unchanging};

/// Opens the pages and lets the instruction run; called between `enter` and `leave`, and leaves.
pub fn begin(
    own: OwnBlock,
    still: Unchanging,
    uc: &mut UContext,
    at: TargetAddr,
    list: Option<&AccessList>,
) {
    change::leave(own, still);
    // A step that meets another guarded page restarts with that page open as well.
    let (mut changer, mask, before) = match own.take_step() {
        Some(step) => (step.changer, step.mask, Some(step.list)),
        None => (change::join(), uc.sigmask, None),
    };
    if !keys::active() {
        S.opened.fetch_add(1, Relaxed);
    }
    let mut kept = match list {
        Some(list) => *list,
        None => AccessList::watched_on(at, changer.still().list()),
    };
    open(&mut changer, uc, &kept, at, true);
    let mut pending = Pending::new(uc.gprs.rip);
    pending.collect(changer.still(), &kept);
    if let Some(before) = before {
        // The last step guards all of them again.
        before
            .iter()
            .for_each(|a| kept.push(a.addr.0, a.len, a.kind));
    }
    own.begin_step(Step {
        mask,
        at: at.0,
        list: kept,
        pending,
        changer,
    });
    uc.sigmask = ALL & !SYNCHRONOUS;
    uc.gprs.rflags |= TF;
}

fn open(changer: &mut Changer, uc: &mut UContext, list: &AccessList, at: TargetAddr, open: bool) {
    if keys::active() {
        keys::set_frame(uc, open);
        return;
    }
    let model = MODEL.get(changer);
    model.open(at.0, 1, open);
    for a in list.iter() {
        model.open(a.addr.0, a.len, open);
    }
}

/// The step has been made.
pub fn finish(own: OwnBlock, uc: &mut UContext) {
    let Some(mut step) = take(own, uc) else {
        return;
    };
    step.pending.made(step.changer.still());
    change::end(own, step.changer);
    after_access(own, uc.sigmask, uc, &step.pending);
}

/// The stepped instruction has faulted for reasons of its own.
pub fn cancel(own: OwnBlock, uc: &mut UContext) {
    if let Some(step) = take(own, uc) {
        change::end(own, step.changer);
    }
}

fn take(own: OwnBlock, uc: &mut UContext) -> Option<Step> {
    let mut step = own.take_step()?;
    uc.sigmask = step.mask;
    uc.gprs.rflags &= !TF;
    let at = TargetAddr(step.at);
    open(&mut step.changer, uc, &step.list, at, false);
    Some(step)
}
