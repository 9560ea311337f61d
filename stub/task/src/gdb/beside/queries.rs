//! Small questions and settings of GDB.

use super::{Served, monitor, tls};
use crate::gdb::arch::Layout;
use crate::gdb::packet::{self, Id, ThreadId};
use crate::gdb::{Client, Event, GdbSession};
use crate::inferior::{Inferior, StopReason, Tid};
use alloc::vec::Vec;
use linux_raw_sys::general as k;
use ulpf_lib::signals;

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
            packet::thread_id(&mut reply, pid, session.thread, multiprocess);
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
        [b'D'] | [b'D', b';', ..] => {
            inf.detach();
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
            session.debuggee.layout = Layout::for_client(session.client.features);
            session.last_stop.clear();
            session.interrupt_due = false;
            session.large = Default::default();
            Served::PassAs(session.client.features.for_gdbstub().to_vec())
        }
        b"qRcmd" => monitor::serve(session, inf, rest),
        b"qThreadExtraInfo" => match named(inf, session.debuggee.pid, rest) {
            Some(tid) => {
                let mut reply = Vec::new();
                packet::push_hex(&mut reply, inf.thread_name(tid).as_bytes());
                Served::Reply(reply)
            }
            None => Served::error(),
        },
        b"qGetTLSAddr" => thread_local(inf, session.debuggee.pid, rest),
        b"qAttached" => Served::text("1"),
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
        b"QCatchSyscalls" => {
            let (on, list) = match rest {
                [b'0' | b'1'] => (rest == b"1", Some(Vec::new())),
                [b'1', b';', list @ ..] => (true, packet::number_list(list)),
                _ => (false, None),
            };
            match list {
                Some(list) => {
                    inf.set_catch_syscalls(on, &list);
                    Served::Ok
                }
                None => Served::error(),
            }
        }
        b"QUlpfFollow" => {
            inf.follow(rest);
            Served::Ok
        }
        // `vUlpfForkGo` has no reply, for a client that cannot wait for one.
        b"vUlpfFork" | b"vUlpfForkGo" => {
            let child = packet::hex_u64(rest).and_then(|n| Tid::try_from(n).ok());
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
            let child = packet::hex_u64(child).and_then(|n| Tid::try_from(n).ok());
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
    let mut number = || fields.next().and_then(packet::hex_u64);
    let (Some(tid), Some(offset), Some(map)) = (tid, number(), number()) else {
        return Served::error();
    };
    let mut reply = Vec::new();
    match tls::address(inf, pid, tid, offset, map) {
        Ok(at) => packet::push_num(&mut reply, at),
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
    const SIGINT: i32 = k::SIGINT as i32;
    const SIGTRAP: i32 = k::SIGTRAP as i32;
    let signal = match session.last_reason.map(|stop| stop.reason) {
        Some(StopReason::Signal(n)) => n,
        Some(StopReason::Interrupted) => SIGINT,
        _ => SIGTRAP,
    };
    let stopped = session.last_reason.map_or(session.thread, |stop| stop.tid);
    let thread = match inf.threads().contains(&stopped) {
        true => stopped,
        false => session.thread,
    };
    let mut reply = b"T".to_vec();
    packet::push_hex(&mut reply, &[signals::to_gdb(signal)]);
    reply.extend_from_slice(b"thread:");
    packet::thread_id(
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
    session.thread = tid;
    let mut canonical = b"Hg".to_vec();
    packet::push_num(&mut canonical, tid as u64);
    Some(Served::PassAs(canonical))
}
