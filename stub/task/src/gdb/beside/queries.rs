//! Small questions and settings of GDB. gdbstub answers some of them, too, but not as gdbserver
//! (`stub/host-tests/tests/session.rs`):
//!
//! - `?`: the first thread, whatever stopped. Here the last stop reply is repeated (`resuming`).
//! - `Hg`, `qC`: "any" is the first thread, and any number is accepted. Here it is the thread of the last stop, and a
//!   thread has to exist. Test: `threads_carry_process_ids_when_asked`.
//! - `T`, `qThreadExtraInfo`: the process is dropped, and a missing thread has an empty name. It has the same test.
//! - `k`, `vKill`: only while the program is stopped, and `k` has a reply (`leaving`).

use super::{Served, tls};
use crate::gdb::packet::{self, Id, ThreadId, push_thread_id};
use crate::gdb::reason::Reported;
use crate::gdb::{Client, Event, GdbSession, arch};
use crate::inferior::{Inferior, StopReason, Tid};
use alloc::vec::Vec;
use ulpf_lib::signals;
use ulpf_rsp::{hex_number, push_hex, push_number};

/// Packets that a client may send before the stop that it waits for.
pub fn allowed_while_running(payload: &[u8]) -> bool {
    matches!(payload, b"k" | b"vCtrlC")
        || payload.starts_with(b"vKill")
        || payload.starts_with(b"vUlpf")
}

pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    let pid = session.debuggee.pid;
    let multiprocess = session.client.features.multiprocess;
    match payload {
        b"?" => Served::Reply(last_stop(session, inf)),
        [b'H', op @ (b'g' | b'c'), thread @ ..] => {
            select(session, inf, *op, thread).unwrap_or_else(Served::error)
        }
        b"qC" => {
            let mut reply = b"QC".to_vec();
            push_thread_id(&mut reply, pid, session.thread, multiprocess);
            Served::Reply(reply)
        }
        [b'T', thread @ ..] => Served::ok_or_error(named(inf, pid, thread).is_some()),
        b"g" | b"qfThreadInfo" | b"qsThreadInfo" => Served::Pass,
        [b'G' | b'p' | b'P', ..] => Served::Pass,
        b"k" => {
            inf.kill();
            session.event = Event::Killed;
            Served::Silent
        }
        // With `vUlpfDetachStopped` a program that a signal has stopped is not woken for that.
        [b'D'] | [b'D', b';', ..] | b"vUlpfDetachStopped" => {
            inf.detach(payload.starts_with(b"D"));
            session.event = Event::Detached;
            Served::Ok
        }
        b"vCtrlC" => {
            if session.event == Event::Running {
                inf.interrupt();
            }
            Served::Ok
        }
        _ => by_name(session, inf, payload),
    }
}

fn by_name(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    let (name, rest) = match payload.iter().position(|b| matches!(b, b':' | b',' | b';')) {
        Some(at) => (&payload[..at], &payload[at + 1..]),
        None => (payload, &b""[..]),
    };
    match name {
        b"qSupported" => {
            session.client = Client {
                features: packet::client_features(payload),
                ..Default::default()
            };
            session.debuggee.layout = arch::layout_for(session.client.features);
            session.last_stop.clear();
            session.interrupt_due = false;
            session.large = Default::default();
            session
                .negotiate(inf)
                .map_or_else(Served::error, Served::Reply)
        }
        b"qRcmd" | b"qAttached" | b"QCatchSyscalls" => Served::Pass,
        b"qThreadExtraInfo" => match named(inf, session.debuggee.pid, rest) {
            Some(tid) => {
                let mut reply = Vec::new();
                push_hex(&mut reply, inf.thread_name(tid).as_bytes());
                Served::Reply(reply)
            }
            None => Served::error(),
        },
        b"qGetTLSAddr" => thread_local(inf, session.debuggee.pid, rest),
        // The server's, and harmless here. With qSymbol we need no symbols.
        b"QStartNoAckMode" | b"qSymbol" | b"QProgramSignals" => Served::Ok,
        b"QPassSignals" => match packet::number_list(rest) {
            Some(list) => {
                let mask = list
                    .iter()
                    .filter_map(|n| signals::from_gdb(u8::try_from(*n).ok()?))
                    .fold(0u64, |mask, signo| mask | 1 << (signo - 1));
                inf.set_pass_signals(mask);
                Served::Ok
            }
            None => Served::error(),
        },
        b"QUlpfFollow" => {
            inf.follow(rest);
            Served::Ok
        }
        // `vUlpfForkGo` has no reply, for a client that cannot wait for one.
        b"vUlpfFork" | b"vUlpfForkGo" => {
            let child = hex_number(rest).and_then(|n| Tid::try_from(n).ok());
            if let Some(child) = child {
                inf.release_child(child);
            }
            match name {
                b"vUlpfForkGo" => Served::Silent,
                _ => Served::ok_or_error(child.is_some()),
            }
        }
        b"vUlpfForkHold" => {
            inf.hold_fork(rest == b"1");
            Served::Silent
        }
        b"vUlpfVfork" => {
            let (child, yes) = match rest {
                [child @ .., b';', b'0'] => (child, false),
                child => (child, true),
            };
            let child = hex_number(child).and_then(|n| Tid::try_from(n).ok());
            Served::ok_or_error(child.is_some_and(|child| inf.adopt_child(child, yes)))
        }
        // Like an interrupt, but for a stop that the user did not request: any other stop that comes first serves as
        // well.
        b"vUlpfHalt" => {
            if session.event == Event::Running {
                session.halting = true;
                inf.interrupt();
            }
            Served::Silent
        }
        b"vUlpfExec" => {
            inf.exec_word(rest);
            Served::Silent
        }
        b"vKill" => {
            inf.kill();
            session.event = Event::Killed;
            Served::Ok
        }
        _ => Served::unknown(),
    }
}

/// `qGetTLSAddr:THREAD,OFFSET,LINK_MAP`
fn thread_local(inf: &mut dyn Inferior, pid: i32, rest: &[u8]) -> Served {
    let mut fields = rest.split(|b| *b == b',');
    let tid = fields.next().and_then(|id| named(inf, pid, id));
    let mut number = || fields.next().and_then(hex_number);
    let (Some(tid), Some(offset), Some(map)) = (tid, number(), number()) else {
        return Served::error();
    };
    let mut reply = Vec::new();
    match tls::address(inf, tid, offset, map) {
        Ok(at) => push_number(&mut reply, at),
        Err(none) => {
            reply.extend_from_slice(b"E.");
            reply.extend_from_slice(none.why().as_bytes());
        }
    }
    Served::Reply(reply)
}

/// The last stop reply as it was sent; to a client that was not there, its signal and thread.
fn last_stop(session: &GdbSession, inf: &mut dyn Inferior) -> Vec<u8> {
    if !session.last_stop.is_empty() {
        return session.last_stop.clone();
    }
    let reason = session.last_reason.map(|stop| stop.reason);
    let reason = reason.unwrap_or(StopReason::Stepped);
    let signal = Reported::of(reason, session.client).signal;
    let stopped = session.last_reason.map_or(session.thread, |stop| stop.tid);
    let thread = match inf.threads().contains(&stopped) {
        true => stopped,
        false => session.thread,
    };
    let mut reply = b"T".to_vec();
    push_hex(&mut reply, &[signal]);
    reply.extend_from_slice(b"thread:");
    push_thread_id(
        &mut reply,
        session.debuggee.pid,
        thread,
        session.client.features.multiprocess,
    );
    reply.push(b';');
    reply
}

/// The live thread that an id names alone.
fn named(inf: &mut dyn Inferior, pid: i32, id: &[u8]) -> Option<Tid> {
    let id = ThreadId::parse(id)?;
    let Id::Is(tid) = id.tid else { return None };
    inf.threads()
        .into_iter()
        .find(|t| *t as u64 == tid && id.names(pid, *t))
}

/// `Hg`, `Hc`. "Any" is the thread that stopped; "all" makes sense for `Hc` only.
fn select(session: &mut GdbSession, inf: &mut dyn Inferior, op: u8, id: &[u8]) -> Option<Served> {
    let parsed = ThreadId::parse(id)?;
    if op == b'c' {
        session.resume_thread = parsed;
        return Some(Served::Ok);
    }
    let tid = match parsed.tid {
        Id::Is(_) => named(inf, session.debuggee.pid, id)?,
        Id::Any | Id::All => {
            let threads = inf.threads();
            match threads.contains(&session.thread) {
                true => session.thread,
                false => *threads.first()?,
            }
        }
    };
    session.select(inf, tid);
    Some(Served::Ok)
}
