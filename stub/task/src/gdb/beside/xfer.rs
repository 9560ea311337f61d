//! `qXfer`: whole objects in pieces. gdbstub has traits for four of them: features, auxv, exec-file, libraries-svr4. But
//! it says the end in a packet of its own, where gdbserver says it with the last piece. It takes no annex for libraries.
//! So all objects take this way. Test: `an_object_ends_with_its_last_piece` in `stub/host-tests`.

use super::{Served, libraries};
use crate::gdb::packet::{PACKET_SIZE, push_thread_id};
use crate::gdb::reason::Reported;
use crate::gdb::{GdbSession, procfs};
use crate::inferior::Inferior;
use alloc::vec::Vec;
use linux_raw_sys::general as k;
use ulpf_rsp::xfer::{Xfer, XferBody, xml_text};
use ulpf_rsp::{push_hex, push_number};

pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    let Some(request) = Xfer::parse(payload) else {
        return Served::error();
    };
    match &request.body {
        XferBody::Read { .. } => match object(session, inf, &request) {
            Object::Data(data) => {
                let piece = request.piece(&data, PACKET_SIZE);
                piece.map_or_else(Served::error, Served::Reply)
            }
            Object::Failed => Served::error(),
            Object::Unknown => Served::unknown(),
        },
        XferBody::Write { data } => match request.object {
            b"siginfo" => {
                write_siginfo(session, inf, request.offset, data).unwrap_or_else(Served::error)
            }
            _ => Served::unknown(),
        },
    }
}

/// The answer to `qXfer:threads:read:…`.
pub fn thread_list(
    session: &GdbSession,
    inf: &mut dyn Inferior,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let request = Xfer::parse(payload).filter(|request| request.object == b"threads")?;
    request.piece(&threads(session, inf), PACKET_SIZE)
}

enum Object {
    Data(Vec<u8>),
    Failed,
    Unknown,
}

fn object(session: &mut GdbSession, inf: &mut dyn Inferior, request: &Xfer<'_>) -> Object {
    let pid = session.debuggee.pid;
    let or_failed = |data: Option<Vec<u8>>| data.map_or(Object::Failed, Object::Data);
    match request.object {
        b"features" if request.annex == b"target.xml" => {
            Object::Data(session.debuggee.layout.xml.as_bytes().to_vec())
        }
        b"features" => Object::Failed,
        b"threads" => Object::Data(threads(session, inf)),
        b"auxv" => or_failed(procfs::auxiliary_vector(pid)),
        b"exec-file" => or_failed(procfs::exe(pid)),
        b"siginfo" => or_failed(siginfo(session, inf)),
        b"libraries-svr4" => or_failed(libraries::list(inf, request.annex)),
        _ => Object::Unknown,
    }
}

/// The thread's own signal, or the one that the kernel would have sent a tracer for a stop of ours.
fn siginfo(session: &GdbSession, inf: &mut dyn Inferior) -> Option<Vec<u8>> {
    const SI_KERNEL: i32 = k::SI_KERNEL as i32;
    let mut info = *inf.siginfo(session.thread)?;
    let reason = session.reason_of(session.thread);
    let ours = reason.and_then(|reason| Reported::of(reason, session.client).sent);
    if let Some((signo, code)) = ours {
        // struct siginfo: si_signo, si_errno, si_code, padding, si_addr
        info = [0; 128];
        info[..4].copy_from_slice(&signo.to_le_bytes());
        info[8..12].copy_from_slice(&code.to_le_bytes());
        if code != SI_KERNEL {
            let pc = inf.gprs(session.thread)?.rip;
            info[16..24].copy_from_slice(&pc.to_le_bytes());
        }
    }
    Some(info.to_vec())
}

fn threads(session: &GdbSession, inf: &mut dyn Inferior) -> Vec<u8> {
    let pid = session.debuggee.pid;
    let mut x = b"<threads>\n".to_vec();
    for tid in inf.threads() {
        x.extend_from_slice(b"<thread id=\"");
        push_thread_id(&mut x, pid, tid, session.client.features.multiprocess);
        if let Some(core) = procfs::core_of(inf, pid, tid) {
            x.extend_from_slice(alloc::format!("\" core=\"{core}").as_bytes());
        }
        x.extend_from_slice(b"\" name=\"");
        x.extend_from_slice(xml_text(&inf.thread_name(tid)).as_bytes());
        // pthread_self(), as it lies in memory: the thread pointer, with glibc and musl.
        if let Some((fs, _)) = inf.fs_gs_base(tid).filter(|(fs, _)| *fs != 0) {
            x.extend_from_slice(b"\" handle=\"");
            push_hex(&mut x, &fs.to_le_bytes());
        }
        x.extend_from_slice(b"\"/>\n");
    }
    x.extend_from_slice(b"</threads>\n");
    x
}

fn write_siginfo(
    session: &GdbSession,
    inf: &mut dyn Inferior,
    offset: u64,
    data: &[u8],
) -> Option<Served> {
    let info = inf.siginfo(session.thread)?;
    let at = usize::try_from(offset).ok()?;
    info.get_mut(at..at.checked_add(data.len())?)?
        .copy_from_slice(data);
    let mut reply = Vec::new();
    push_number(&mut reply, data.len() as u64);
    Some(Served::Reply(reply))
}
