//! With a debugger, an access is judged before it is made, and the program stops at the faulty instruction.
//!
//! ```text
//! a fault · a patch's int3 ─▶ perform ─▶ stops_at ── an error that is new ─▶ a stop at the instruction
//!                                │                                               │ the program goes on
//!                                └──────── judged: made, and not judged again ◀──┘ perform, once more
//! ```
//! Accesses that are not known before (of system calls, and of instructions that cannot be decoded) are judged
//! afterwards.

use core::sync::atomic::Ordering::*;

use ulpf_engine::access::AccessList;
use ulpf_engine::cpu::Gprs;
use ulpf_engine::exec::Site;

use super::{STOPS, judge, out_of_block, regions};
use crate::cause::Cause;
use crate::runtime::events::{Events, Predicted};
use crate::runtime::thread::Current;
use crate::sequences;

/// The events to stop for before the instruction at PC makes these accesses; `None` if they are not known.
pub fn stops_at(t: Current, gprs: &Gprs, site: &Site, list: Option<&AccessList>) -> Events {
    let mut events = Events::none();
    if !STOPS.load(Relaxed) {
        return events;
    }
    let i = t.own();
    let pc = gprs.rip;
    let before = i.predicted.take();
    if before.stopped && before.pc == pc {
        i.predicted.set(Predicted { pc, stopped: false });
        return events;
    }
    // (A thread that runs alone cannot park.)
    let Some(list) = list.filter(|_| !sequences::active(t) && !i.alone.get()) else {
        return events;
    };
    let mut wrong = false;
    for a in list.iter().filter(|a| overlaps(a.addr.0, a.len)) {
        let (is_one, event) =
            judge::before_access(t, gprs, &Cause::before_access(pc, a.addr, a.len, a.kind));
        wrong |= is_one;
        event.into_iter().for_each(|e| events.push(e));
    }
    let (is_one, event) = out_of_block::access(t, gprs, site, list);
    wrong |= is_one;
    event.into_iter().for_each(|e| events.push(e));
    let stopped = !events.is_empty();
    if wrong {
        i.predicted.set(Predicted { pc, stopped });
    }
    events
}

fn overlaps(addr: u64, len: u64) -> bool {
    let last = addr.saturating_add(len.saturating_sub(1));
    regions::is_checked(addr) || regions::is_checked(last)
}
