//! `vCont` and the old resume packets. gdbstub refuses to step all threads, drops the signal of an action for all
//! threads, and has no per-process actions. So the actions are read here; gdbstub gets a plain `vCont;c` to know that
//! the program runs.

use super::{Served, non_stop};
use crate::gdb::packet::{self, Action, Go, ThreadId};
use crate::gdb::{Event, GdbSession};
use crate::inferior::Inferior;
use alloc::vec;
use alloc::vec::Vec;

pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    if payload == b"vCont?" {
        return Served::text("vCont;c;C;s;S;t;r");
    }
    match packet::vcont(payload) {
        Some(actions) => go_on(session, inf, actions),
        None => Served::error(),
    }
}

/// `c s C S`: one action for the thread of `Hc`, the others go on.
pub fn old(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    let Some(go) = packet::old_resume(payload) else {
        return Served::error();
    };
    let chosen = match session.resume_thread.tid {
        packet::Id::Is(_) => session.resume_thread,
        _ => ThreadId {
            pid: None,
            tid: packet::Id::Is(session.thread as u64),
        },
    };
    let mut actions = vec![Action { go, thread: chosen }];
    if !matches!(session.resume_thread.tid, packet::Id::Is(_)) {
        actions.push(Action {
            go: Go::Continue(None),
            thread: ThreadId::ALL,
        });
    }
    go_on(session, inf, actions)
}

fn go_on(session: &mut GdbSession, inf: &mut dyn Inferior, actions: Vec<Action>) -> Served {
    if session.is_non_stop() {
        return non_stop::go_on(session, inf, &actions);
    }
    let pid = session.debuggee.pid;
    let someone_goes = inf.threads().iter().any(|tid| {
        actions
            .iter()
            .find(|a| a.thread.names(pid, *tid))
            .is_some_and(|a| a.go != Go::Stop)
    });
    if !someone_goes {
        return Served::error();
    }
    session.debuggee.actions = actions;
    session.event = Event::Running;
    Served::PassAs(b"vCont;c".to_vec())
}
