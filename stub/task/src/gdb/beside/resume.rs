//! `vCont` and the old resume packets. gdbstub refuses to step all threads, and drops the signal of an action for all
//! threads. It has no per-process actions and no non-stop mode. So it is not told that the program runs. Tests in
//! `stub/host-tests`: `resuming`, `a_second_client_starts_afresh`.

use super::{Served, non_stop};
use crate::gdb::packet::{self, Action, Go, ThreadId};
use crate::gdb::{Event, GdbSession};
use crate::inferior::{Inferior, Resume, Tid};
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
    // The first action that names a thread applies; a thread that no action names stays parked.
    let go = |tid| actions.iter().find(|a| a.thread.names(pid, tid));
    let goes = |tid: &Tid| go(*tid).is_some_and(|a| a.go != Go::Stop);
    if !inf.threads().iter().any(goes) {
        return Served::error();
    }
    inf.resume(&|tid| go(tid).map_or(Resume::Hold, |action| action.go.resume()));
    session.event = Event::Running;
    Served::Resumed
}
