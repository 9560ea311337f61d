//! Instructions that cannot be redirected: the pages open for one step of the processor.
//!
//! Far transfers, segment loads, operands that begin on a guarded page and end on one that has no
//! alias, … . While the step lasts this thread is the changer, so one is made at a time, and
//! accesses of other threads to the open pages go unseen: they are counted (`ulpf_stats::opened`). With
//! protection keys the pages are open for this thread only.

use core::sync::atomic::Ordering::*;

use ulpf_engine::access::AccessList;
use ulpf_engine::frame::UContext;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr};

use crate::change;
use crate::handler::{Next, tell};
use crate::hits::Pending;
use crate::keys;
use crate::model;
use crate::shared::S;
use crate::signals::{ALL, SYNCHRONOUS};
use crate::stacks::{Block, Step};

/// Trap flag.
const TF: u64 = 1 << 8;

/// Opens the pages and lets the instruction run; called between `enter` and `leave`.
pub fn begin(b: &mut Block, uc: &mut UContext, at: TargetAddr, list: Option<&AccessList>) -> Next {
    change::leave(b);
    change::begin();
    if !keys::active() {
        S.opened.fetch_add(1, Relaxed);
    }
    let mut kept = AccessList::new();
    if let Some(list) = list {
        kept = *list;
    } else {
        // What it touches nobody knows; what of this page changes will show.
        let page = at.page();
        S.list()
            .for_each_overlap(page, PAGE_SIZE, &mut |_, range, _| {
                let from = range.start.0.max(page.0);
                kept.push(
                    from,
                    range.end().0.min(page.0 + PAGE_SIZE) - from,
                    AccessKind::Write,
                );
            });
    }
    open(uc, &kept, at, true);
    let pc = uc.gprs.rip;
    let mut pending = Pending::new(pc);
    pending.collect(&kept);
    // A step that meets another guarded page begins anew, with that page open as well.
    let mask = b.step().map_or(uc.sigmask, |s| s.mask);
    if let Some(before) = b.take_step() {
        // All are guarded again by the last one.
        before
            .list
            .iter()
            .for_each(|a| kept.push(a.addr.0, a.len, a.kind));
    }
    b.begin_step(Step {
        mask,
        at: at.0,
        list: kept,
        pending,
    });
    uc.sigmask = ALL & !SYNCHRONOUS;
    uc.gprs.rflags |= TF;
    Next::Done
}

fn open(uc: &mut UContext, list: &AccessList, at: TargetAddr, open: bool) {
    if keys::active() {
        keys::set_frame(uc, open);
        return;
    }
    model::open(at.0, 1, open);
    for a in list.iter() {
        model::open(a.addr.0, a.len, open);
    }
}

/// The step has been made.
pub fn finish(b: &mut Block, uc: &mut UContext) {
    let Some(mut step) = take(b, uc) else { return };
    step.pending.made();
    change::end(b);
    tell(b, uc.sigmask, uc, &step.pending);
}

/// The stepped instruction has faulted for reasons of its own.
pub fn cancel(b: &mut Block, uc: &mut UContext) {
    if take(b, uc).is_some() {
        change::end(b);
    }
}

fn take(b: &mut Block, uc: &mut UContext) -> Option<Step> {
    let step = b.take_step()?;
    uc.sigmask = step.mask;
    uc.gprs.rflags &= !TF;
    open(uc, &step.list, TargetAddr(step.at), false);
    Some(step)
}
