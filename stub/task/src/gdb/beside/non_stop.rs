//! Packets of non-stop mode (`crate::gdb::non_stop` says how it works).

use super::Served;
use crate::gdb::GdbSession;
use crate::gdb::packet::{Action, Go};
use crate::inferior::{Inferior, Stop, StopReason, Tid};
use alloc::vec::Vec;
use ulpf_rsp::hex_number;

/// Packets that exist, or mean something else, in non-stop mode.
pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Option<Served> {
    Some(match payload {
        b"QNonStop:0" | b"QNonStop:1" => {
            session.set_non_stop(inf, payload.ends_with(b"1"));
            Served::Ok
        }
        b"QThreadEvents:0" | b"QThreadEvents:1" => {
            session.non_stop.thread_events = payload.ends_with(b"1");
            session.set_thread_events(inf);
            Served::Ok
        }
        _ if payload.starts_with(b"QNonStop") || payload.starts_with(b"QThreadEvents") => {
            Served::error()
        }
        _ if !session.is_non_stop() => return None,
        b"vCtrlC" => {
            let runs = inf.threads().iter().any(|tid| !inf.is_stopped(*tid));
            if runs {
                inf.interrupt();
            }
            Served::ok_or_error(runs)
        }
        b"vUlpfStops" => Served::Frames(session.all_stops(inf)),
        // Meant for a program that runs as a whole.
        b"vUlpfHalt" => Served::Silent,
        _ => {
            let tid = hex_number(payload.strip_prefix(b"vUlpfSeen;")?);
            let tid = tid.and_then(|tid| Tid::try_from(tid).ok());
            if let Some(stop) = tid.and_then(|tid| session.non_stop.stops.get_mut(&tid)) {
                stop.seen = true;
            }
            Served::Silent
        }
    })
}

/// `vCont` and the old resume packets.
pub fn go_on(session: &mut GdbSession, inf: &mut dyn Inferior, actions: &[Action]) -> Served {
    let pid = session.debuggee.pid;
    let go = |tid| {
        let action = actions.iter().find(|a| a.thread.names(pid, tid));
        action.map(|a| a.go)
    };
    let mut frames = Vec::new();
    if actions.iter().any(|a| a.go == Go::Stop) {
        for tid in inf.stop_some(&|tid| go(tid) == Some(Go::Stop)) {
            let reason = StopReason::Halted;
            session.one_stopped(inf, Stop { tid, reason }, &mut |f| {
                frames.extend_from_slice(f)
            });
        }
        session.those_gone(inf, actions, &mut frames);
    }
    let stops = &session.non_stop;
    let resumed = |tid| match go(tid)? {
        Go::Stop => None,
        go => (!stops.is_unseen(tid)).then(|| go.resume()),
    };
    let on_their_way: Vec<Tid> = stops.stops.keys().copied().collect();
    let on_their_way = on_their_way
        .into_iter()
        .filter(|tid| resumed(*tid).is_some());
    let on_their_way: Vec<Tid> = on_their_way.collect();
    inf.resume_some(&resumed);
    for tid in on_their_way {
        session.non_stop.stops.remove(&tid);
    }
    frames.extend_from_slice(b"$OK#9a");
    Served::Frames(frames)
}
